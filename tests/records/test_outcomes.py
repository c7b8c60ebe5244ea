import pytest
from builders import record

from mptexp.records import outcomes, store
from mptexp.records.outcomes import DAMAGED
from mptexp.records.sweep_dir import SweepDir


@pytest.fixture
def place(tmp_path):
    """A sweep of three runs."""
    place = SweepDir(tmp_path)
    for block in range(3):
        made = record(block=block)
        store.write_record(place.record(made["run_id"]), made)
    return place


def ids(place):
    return sorted(path.name for path in place.runs.iterdir())


def test_an_outcome_is_that_of_the_record(place):
    assert outcomes.read(place, ids(place)) == dict.fromkeys(ids(place), ("ok", 2.0, ""))


def test_what_was_changed_damaged_or_never_run_is_noticed(place):
    changed, damaged, _ = ids(place)
    path = place.record(changed)
    store.write_record(path, store.read_record(path) | {"status": "failed", "wall_s": 7.0})
    place.record(damaged).write_text("x")
    asked = [changed, damaged, "0" * 12]
    expected = {changed: ("failed", 7.0, ""), damaged: (DAMAGED, None, "")}
    assert outcomes.read(place, asked) == expected
