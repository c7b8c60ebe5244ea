import numpy as np
import pandas as pd
import pytest

from mptexp.records.csv_columns import COLUMNS as RESULTS
from mptexp.report.text import column_formats


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("step_s", 0.01234, "12.34"),
        ("step_s", 1.5, "1,500.00"),
        ("images_per_s", 12345.6, "12,346"),
        ("images_per_s", 0.417, "0.417"),  # once 0
        ("tokens_per_s", 4573.2, "4,573"),
        ("val_accuracy", 0.987, "98.7 %"),
        ("peak_memory_bytes", 2**30, "1,024 MiB"),
        ("energy_per_image_j", 0.0123, "12.3 mJ"),
        ("flushed", 1e-7, "< 0.001 %"),
        ("cost_per_training", 4312.7, "4,310"),
        ("step_s", np.nan, "–"),
        ("step_s", None, "–"),
    ],
)
def test_a_number_in_si_units_is_scaled_for_display_alone(name, value, text):
    assert column_formats.cell(name, value) == text


def test_columns_stand_under_their_headings():
    table = pd.DataFrame({"step_s": [0.1, np.nan], "images_per_s": [320.0, 640.0]})
    made = column_formats.shown(table, "step_s", "images_per_s")
    assert made == {"ms per step": ["100.00", "–"], "Images/s": ["320", "640"]}
    blank = column_formats.without_blanks(pd.DataFrame({"a": ["–", "–"], "b": ["–", "1"]}))
    assert list(blank) == ["b"]


def test_every_sensor_is_a_column_of_the_results():
    assert set(column_formats.SENSORS) <= set(RESULTS)
