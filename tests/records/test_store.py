import copy
import csv
import json
import os
import subprocess
from contextlib import suppress

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import PROJECT, heeding_permissions

from mptexp.host import files
from mptexp.records import privacy, store
from mptexp.records.store import RecordError
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.run import Run

RECORD = {
    "schema": 1,
    "run_id": "abc123abc123",
    "status": "ok",
    "error": "",
    "parameters": Run(gpu_model="x").model_dump(),
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


def test_half_a_character_is_written_as_an_escape(tmp_path):
    # A training that had ended was lost to a name that is not UTF-8: UnicodeEncodeError.
    store.write_record(tmp_path / "r.json", RECORD | {"marks": ["left out: K\udce4se"]})
    again = store.read_record(tmp_path / "r.json")
    assert again["marks"] == ["left out: K\\udce4se"]
    assert "changed" not in again


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


def test_a_record_that_nobody_could_read_replaces_none(tmp_path, monkeypatch):
    # The loss: a record of 80 MiB, written in place of an earlier one and read by nobody.
    path = tmp_path / "record.json"
    store.write_record(path, RECORD)
    monkeypatch.setattr(files, "MOST_BYTES", len(path.read_bytes()) + 100)
    with pytest.raises(OSError, match="the most that is read"):
        store.write_record(path, RECORD | {"error": "é" * 101})
    assert store.read_record(path) == RECORD


def test_what_a_killed_process_began_to_write_goes_and_anothers_stays(tmp_path):
    for name in (".a.csv.7", ".a.csv.8", ".a.csv.new", ".b.csv.7"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".a.csv.8").touch()  # another process is at work on it
    store.write_text(tmp_path / "a.csv", "whole")
    left = [".a.csv.8", ".a.csv.new", ".b.csv.7", "a.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


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


def test_of_another_machines_record_only_what_is_new_is_rewritten(tmp_path, monkeypatch):
    monkeypatch.setattr(privacy.socket, "gethostname", lambda: "ubuntu")
    privacy._private_names.cache_clear()
    path, known = tmp_path / "record.json", {"os": "Linux, ubuntu", "profile": {}}
    store.amend_record(path, known, profile={"missing": "on ubuntu", "seconds": float("nan")})
    privacy._private_names.cache_clear()
    new = {"missing": "on <host>", "seconds": None}
    written = json.loads(path.read_text())
    assert written.pop("digest") == store.digest(written)
    assert written == {"os": "Linux, ubuntu", "profile": new}


def test_a_parameter_that_is_not_named_is_at_its_default(tmp_path):
    few = {name: RECORD["parameters"][name] for name in ("gpu_model", "block")}
    store.write_record(tmp_path / "r.json", RECORD | {"parameters": few})
    assert store.read_record(tmp_path / "r.json") == RECORD


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["=", "+", "-", "@", "\t", "\r", "'", "＝", "1", "x", ",", '"'])))
def test_no_text_of_a_table_is_a_formula(tmp_path_factory, signs):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    text = "".join(signs)
    table = pd.DataFrame({"a": [text, "fine"], "n": [-1.5, 2], "i": [-1, 2]})
    table.insert(2, "o", pd.Series([None, -3], dtype=object))
    store.write_csv(path, table)
    with path.open(newline="") as file:
        _, first, second = csv.reader(file)
    assert first[1:] + second == ["-1.5", "", "-1", "fine", "2.0", "-3", "2"]
    assert first[0][:1] not in {*"=+-@\t\r＝"}
    assert first[0] in (text, f"'{text}")


def test_texts_of_a_table_can_be_restored(tmp_path):
    texts = ["=1", "'=1", "''=1", "'x", "x=1", ""]
    store.write_csv(tmp_path / "t.csv", pd.DataFrame({"a": texts}))
    written = pd.read_csv(tmp_path / "t.csv", keep_default_na=False)["a"]
    assert [t[1:] if store.FORMULA.match(t) else t for t in written] == texts


def test_a_record_that_was_changed_by_hand_says_so(tmp_path):
    path = tmp_path / "r.json"
    store.write_record(path, RECORD | {"peak_memory_bytes": 1234567})
    assert "changed" not in store.read_record(path)
    path.write_text(path.read_text().replace("1234567", "1234568"))
    assert store.read_record(path)["changed"] is True


def measured_again(tmp_path):
    """A directory that holds a run which was measured again, and the file of its record."""
    place = SweepDir(tmp_path / "sweep")
    for wall_s in (1.0, 2.0):
        one = run() | {"wall_s": wall_s}
        store.write_record(place.partial / one["run_id"] / "record.json", one)
        place.publish(one["run_id"])
    (path,) = place.superseded.glob("*/record.json")
    return place, path


def test_a_superseded_record_that_is_damaged_or_changed_is_named(tmp_path):
    # The lie: it was left out without a word, and what is claimed no longer reached over it.
    place, path = measured_again(tmp_path)
    whole = path.read_text()
    ((record,), *faults) = store.superseded_records(place)
    assert (record["wall_s"], faults) == (1.0, [[], []])
    path.write_text("{")
    records, (fault,), changed = store.superseded_records(place)
    assert (records, changed) == ([], [])
    assert fault.startswith(f"{path}: not a readable record")
    said = [f"{path}: changed since it was written"]
    path.write_text(whole.replace('"wall_s": 1.0', '"wall_s": 1.5'))
    assert store.superseded_records(place)[1:] == ([], said)
    store.write_record(path, record | {"wall_s": 1.5})  # made anew, which its own digest hides
    assert store.superseded_records(place)[1:] == ([], said)
    assert store.superseded_records(place).records[0]["changed"] is True


def test_superseded_records_behind_a_link_are_named(tmp_path):
    place, _ = measured_again(tmp_path)
    place.superseded.rename(tmp_path / "elsewhere")
    place.superseded.symlink_to(tmp_path / "elsewhere")
    records, damaged, changed = store.superseded_records(place)
    assert (records, changed) == ([], [])
    assert damaged == [f"{place.superseded}: a link, which is not followed"]


def run(notebook="train", **parameters):
    made = Run(gpu_model="x", **parameters)
    return RECORD | {
        "run_id": made.run_id(notebook),
        "notebook": notebook,
        "parameters": made.model_dump(),
    }


@pytest.mark.parametrize("digits", [308, 310])
def test_an_integer_that_no_float_holds_is_a_damaged_record(tmp_path, digits):
    place = SweepDir(tmp_path)
    made = run() | {"samples": [{"time": -int("9" * digits)}]}
    store.write_record(place.record(made["run_id"]), made)
    records, damaged = store.read_records(place)
    assert (len(records), len(damaged)) == ((1, 0) if digits < 309 else (0, 1))
    assert all("an integer that is larger than any float" in text for text in damaged)


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": run()["parameters"] | {"batch_size": 64}},
        {"parameters": run()["parameters"] | {"policy": "bfloat16"}},
        {"notebook": "other"},
    ],
)
def test_parameters_of_another_run_are_a_damaged_record(tmp_path, changes):
    place = SweepDir(tmp_path)
    path = place.record(run()["run_id"])
    store.write_record(path, run())
    assert "changed" not in store.read_record(path)
    store.write_record(path, run() | changes)
    with pytest.raises(RecordError, match="its parameters are not those of run"):
        store.read_record(path)
    assert len(store.read_records(place)[1]) == 1


def test_parameters_of_a_later_version_prove_nothing(tmp_path):
    known = run()
    known["parameters"] = known["parameters"] | {"of_a_later_version": 1, "epochs": 64}
    store.write_record(tmp_path / "r.json", known)
    assert store.read_record(tmp_path / "r.json")["parameters"]["epochs"] == 64


def test_a_record_that_was_changed_is_named(tmp_path):
    place = SweepDir(tmp_path)
    path = place.record(RECORD["run_id"])
    store.write_record(path, RECORD)
    assert store.changed(store.read_records(place)[0], place) == []
    path.write_text(path.read_text().replace('"wall_s": 3.0', '"wall_s": 2.0'))
    assert store.changed(store.read_records(place)[0], place) == [
        f"{path}: changed since it was written"
    ]


def test_a_record_that_is_amended_is_not_changed(tmp_path):
    path = tmp_path / "r.json"
    store.write_record(path, RECORD | {"further": [0.1, 1e-17, 1 / 3, -0.0, 2**60, None, "é"]})
    store.amend_record(path, store.read_record(path), error="none")
    assert "changed" not in store.read_record(path)


def test_a_number_beyond_floats_does_not_keep_a_record_from_being_amended(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(RECORD)[:-1] + ', "further": [1e999]}')
    store.amend_record(path, store.read_record(path), error="none")
    assert store.read_record(path)["further"] == [None]


def test_a_record_of_another_program_has_no_digest_and_is_read(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(RECORD))
    assert "changed" not in store.read_record(path)


def test_a_record_of_a_run_from_which_the_digest_was_taken_was_changed(tmp_path):
    # Else whoever edits a record need only delete the line that shows it.
    path = tmp_path / "r.json"
    path.write_text(json.dumps(RECORD | {"identity": {"code": "c0de"}}))
    assert store.read_record(path)["changed"] is True


@pytest.mark.parametrize("sweep", ["gpt-cpu", "quickstart-cpu"])
def test_a_record_may_name_any_of_its_parameters_or_not(tmp_path, sweep):
    path = next((PROJECT / "reports/published" / sweep / "runs").glob("*/record.json"))
    known = json.loads(path.read_text())
    for name in known["parameters"]:
        record = copy.deepcopy(known)
        del record["parameters"][name]
        path = tmp_path / name / "record.json"
        store.write_record(path, record)
        with suppress(RecordError):  # a damaged record, named
            assert name in store.read_record(path)["parameters"]


READ = """
import sys
from pathlib import Path
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
records, damaged = store.read_records(SweepDir(Path(sys.argv[1])))
print(len(records), *damaged, sep="\\n")
"""


@pytest.mark.parametrize(("hidden", "left"), [("runs/abc123abc123", 1), ("runs", 0)])
def test_a_folder_that_may_not_be_read_is_not_taken_for_empty(tmp_path, hidden, left):
    for run_id in ("abc123abc123", "def456def456"):
        path = tmp_path / "runs" / run_id / "record.json"
        store.write_record(path, RECORD | {"run_id": run_id})
    (tmp_path / hidden).chmod(0)
    try:
        command = heeding_permissions("-c", READ, tmp_path)
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    finally:
        (tmp_path / hidden).chmod(0o755)
    count, fault = done.stdout.splitlines()
    assert int(count) == left
    assert fault.startswith(f"{tmp_path / hidden}")
    assert fault.endswith("not a readable record: Permission denied")
