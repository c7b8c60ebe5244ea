import pytest

from mptexp.records.csv_columns import COLUMNS, HISTORY, Column


def test_every_column_is_documented_and_times_are_positive_numbers():
    assert all(column.meaning for column in COLUMNS.values())
    assert {"step_s", "images_per_s", "fit_s"} <= {n for n, c in COLUMNS.items() if c.timed}
    assert not {"val_accuracy", "wall_s", "status"} & {n for n, c in COLUMNS.items() if c.timed}
    assert HISTORY[0] == "epoch"


def test_a_column_without_a_meaning_is_impossible():
    with pytest.raises(TypeError, match="meaning"):
        Column("step_s")
