import json
import os
from pathlib import Path

import pytest

from mptexp import store
from mptexp.store import RecordError, SweepDir

RECORD = {
    "schema": 1,
    "run_id": "abc",
    "status": "ok",
    "error": "",
    "parameters": {"policy": "float32", "batch_size": 32, "block": 0, "gpu_model": "x"},
    "in_force": {"loss_scale": "none", "jit": False},
    "timing": {"step_s": 0.25, "images_per_s": 128.0},
    "history": [{"epoch": 1, "loss": 1.0, "val_accuracy": 0.5}],
    "marks": ["a", "b"],
    "wall_s": 3.0,
}


def test_a_record_is_written_and_read(tmp_path):
    path = tmp_path / "runs" / "abc" / "record.json"
    store.write_record(path, RECORD)
    assert store.read_record(path) == RECORD
    assert [p.name for p in path.parent.iterdir()] == ["record.json"]


def test_numbers_that_json_lacks_become_null(tmp_path):
    store.write_record(tmp_path / "r.json", RECORD | {"history": [{"loss": float("nan")}]})
    assert store.read_record(tmp_path / "r.json")["history"] == [{"loss": None}]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    store.write_record(path, RECORD)

    def fails(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        store.write_record(path, RECORD | {"status": "failed"})
    assert store.read_record(path) == RECORD
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"schema": 99}', json.dumps(RECORD | {"status": "fine"})]
)
def test_a_damaged_record_is_named(tmp_path, text):
    path = tmp_path / "runs" / "abc" / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(RecordError, match=r"record\.json"):
        store.read_record(path)
    assert len(store.read_records(SweepDir(tmp_path))[1]) == 1


def test_private_names_are_taken_out(tmp_path):
    where = str(Path.home() / "secret")
    assert str(Path.home()) not in store.scrub(f"at {where}, in {Path.cwd()}/reports")
    assert store.scrub("a rooted tree") == "a rooted tree"


def test_results_have_the_documented_columns(tmp_path):
    full = RECORD | {"parameters": _parameters()}
    table = store.results([full], "mine")
    assert list(table.columns) == list(store.COLUMNS)
    row = table.iloc[0]
    assert (row.sweep, row.status, row.step_s, row.val_accuracy) == ("mine", "ok", 0.25, 0.5)
    assert (row.epochs, row.marks, row.wall_s) == (1, "a; b", 3.0)


def test_a_failed_run_is_a_row(tmp_path):
    failed = {
        "schema": 1,
        "run_id": "x",
        "status": "oom",
        "error": "e",
        "parameters": _parameters(),
    }
    table = store.results([failed, RECORD | {"parameters": _parameters()}], "mine")
    assert sorted(table.status) == ["ok", "oom"]


def _parameters():
    from mptexp.spec import Run

    return Run(gpu_model="x").model_dump()


def test_publishing_replaces_an_earlier_attempt(tmp_path):
    directory = SweepDir(tmp_path)
    for status in ("failed", "ok"):
        store.write_record(directory.partial / "abc" / "record.json", RECORD | {"status": status})
        directory.publish("abc")
    assert store.read_record(directory.record("abc"))["status"] == "ok"
    assert not (directory.partial / "abc").exists()


def test_clearing_leaves_what_is_not_the_sweeps(tmp_path):
    directory = SweepDir(tmp_path)
    store.write_record(directory.record("abc"), RECORD)
    (tmp_path / "params.yaml").write_text("x")
    (tmp_path / "notes.txt").write_text("mine")
    directory.clear()
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
