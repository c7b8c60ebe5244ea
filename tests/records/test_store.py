import json
import os
from pathlib import Path

import pytest

from mptexp.records import store
from mptexp.records.store import RecordError, SweepDir

RECORD = {
    "schema": 1,
    "run_id": "abc123abc123",
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
    path = tmp_path / "runs" / "abc123abc123" / "record.json"
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
    path = tmp_path / "runs" / "abc123abc123" / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(RecordError, match=r"record\.json"):
        store.read_record(path)
    assert len(store.read_records(SweepDir(tmp_path))[1]) == 1


def test_private_names_are_taken_out(tmp_path):
    where = str(Path.home() / "secret")
    assert store.scrub(f"at {where}, in {Path.cwd()}/reports") == "at ~/secret, in ./reports"
    assert store.scrub(f"{Path.cwd()}-old") == f"{Path.cwd()}-old"


def test_of_another_machines_record_only_what_is_new_is_rewritten(tmp_path, monkeypatch):
    monkeypatch.setattr(store.socket, "gethostname", lambda: "ubuntu")
    store._private_names.cache_clear()
    path, known = tmp_path / "record.json", {"os": "Linux, ubuntu", "profile": {}}
    store.amend_record(path, known, profile={"missing": "on ubuntu", "seconds": float("nan")})
    store._private_names.cache_clear()
    new = {"missing": "on <host>", "seconds": None}
    assert json.loads(path.read_text()) == {"os": "Linux, ubuntu", "profile": new}


def test_what_identifies_a_run_is_never_rewritten(monkeypatch):
    monkeypatch.setattr(store.socket, "gethostname", lambda: "tensorflow")
    monkeypatch.setattr(store.getpass, "getuser", lambda: "train")
    store._private_names.cache_clear()
    record = {
        "parameters": {"backend": "tensorflow"},
        "notebook": "train",
        "error": "on tensorflow",
    }
    scrubbed = store.scrub(record | {"place": "train@x /home/train/a, train it"})
    store._private_names.cache_clear()
    assert scrubbed["parameters"] == {"backend": "tensorflow"}
    assert scrubbed["notebook"] == "train"
    assert scrubbed["error"] == "on <host>"
    assert scrubbed["place"] == "<user>@x /home/<user>/a, train it"


def test_results_have_the_documented_columns(tmp_path):
    full = RECORD | {"parameters": _parameters()}
    table = store.results([full], "mine")
    assert list(table.columns) == list(store.COLUMNS)
    row = table.iloc[0]
    assert (row.sweep, row.status, row.step_s, row.val_accuracy) == ("mine", "ok", 0.25, 0.5)
    assert (row.epochs, row.marks, row.wall_s) == (1, "a; b", 3.0)


def test_parameters_without_a_column_are_the_setting():
    runs = [_parameters() | {"width": w, "block": 1, "seed": 1} for w in (1.0, 2.0)]
    table = store.results([RECORD | {"parameters": run} for run in runs], "mine")
    assert sorted(table.setting) == ["width 1", "width 2"]
    blocks = [_parameters() | {"block": k, "seed": k} for k in (0, 1)]
    table = store.results([RECORD | {"parameters": run} for run in blocks], "mine")
    assert set(table.setting) == {""}


def test_what_is_not_emulated_is_not_named_in_the_setting():
    formats = [{}, {"weight_format": "bfloat16"}, {"propagation": "<8,8>"}]
    rows = [RECORD | {"parameters": _parameters() | chosen} for chosen in formats]
    found = store.results(rows, "x").setting
    assert sorted(found) == ["", "propagation <8,8>", "weight_format bfloat16"]


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
    from mptexp.spec.run import Run

    return Run(gpu_model="x").model_dump()


def test_publishing_replaces_an_earlier_attempt(tmp_path):
    directory = SweepDir(tmp_path)
    for status in ("failed", "ok"):
        store.write_record(
            directory.partial / "abc123abc123" / "record.json", RECORD | {"status": status}
        )
        directory.publish("abc123abc123")
    assert store.read_record(directory.record("abc123abc123"))["status"] == "ok"
    assert not (directory.partial / "abc123abc123").exists()


def test_clearing_leaves_what_is_not_the_sweeps(tmp_path):
    directory = SweepDir(tmp_path)
    store.write_record(directory.record("abc123abc123"), RECORD)
    (tmp_path / "params.yaml").write_text("x")
    (tmp_path / "notes.txt").write_text("mine")
    directory.clear()
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
