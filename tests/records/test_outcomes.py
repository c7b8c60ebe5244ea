import json
import os
import shutil

import pytest
from test_summary import record

from mptexp.records import outcomes, store
from mptexp.records.outcomes import DAMAGED
from mptexp.records.store import SweepDir


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A sweep of three runs, of which an index is already worth its file."""
    monkeypatch.setattr(outcomes, "FEW", 1)
    place = SweepDir(tmp_path)
    for block in range(3):
        made = record(block=block)
        store.write_record(place.record(made["run_id"]), made)
    return place


@pytest.fixture
def reads(monkeypatch):
    """The records that were read."""
    found, read_record = [], store.read_record

    def counted(path):
        found.append(path.parent.name)
        return read_record(path)

    monkeypatch.setattr(store, "read_record", counted)
    return found


def ids(place):
    return sorted(path.name for path in place.runs.iterdir())


def told(place, names=None):
    return {k: (v.status, v.wall_s) for k, v in outcomes.read(place, names or ids(place)).items()}


def test_no_record_is_read_twice(place, reads):
    first = told(place)
    assert first == dict.fromkeys(ids(place), ("ok", 2.0))
    assert sorted(reads) == ids(place)
    assert told(place) == first
    assert sorted(reads) == ids(place)


def test_what_was_changed_damaged_or_removed_is_noticed(place, reads):
    told(place)
    changed, damaged, removed = names = ids(place)
    path = place.record(changed)
    store.write_record(path, store.read_record(path) | {"status": "failed", "wall_s": 7.0})
    before = place.record(damaged).stat()
    with place.record(damaged).open("r+") as file:  # of the same size, its time set back
        file.write("x")
    os.utime(place.record(damaged), ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.rmtree(place.runs / removed)
    reads.clear()
    expected = {changed: ("failed", 7.0), damaged: (DAMAGED, None)}
    assert told(place, names) == expected
    assert sorted(reads) == sorted(expected)
    # A damaged record is not kept: what could not be read may be readable later.
    assert told(place, names) == expected
    assert damaged not in json.loads(place.outcomes.read_text())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": [1, 2, "fine", 3.0]}'])
def test_an_index_that_cannot_be_read_costs_time_alone(place, reads, text):
    first = told(place)
    place.outcomes.write_text(text)
    reads.clear()
    assert told(place) == first
    assert sorted(reads) == ids(place)


def test_where_no_index_can_be_written_the_records_are_read(place, reads):
    place.outcomes.mkdir()
    assert set(told(place).values()) == {("ok", 2.0)}
    assert [p.name for p in place.root.iterdir() if p.name.startswith(".")] == [".outcomes.json"]


def test_a_small_sweep_has_no_index(place, monkeypatch):
    monkeypatch.setattr(outcomes, "FEW", 3)
    told(place)
    assert not place.outcomes.exists()


def test_clearing_a_sweep_removes_its_index(place):
    told(place)
    assert place.outcomes.exists()
    place.clear()
    assert not place.outcomes.exists()
