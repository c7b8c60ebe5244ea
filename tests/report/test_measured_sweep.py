import pytest
from builders import record

from mptexp.errors import ParamsError
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep


def test_a_sweep_is_read_with_the_question_of_its_params_file(tmp_path):
    place = SweepDir(tmp_path)
    store.write_record(place.record(record()["run_id"]), record())
    assert (
        measured_sweep.load(str(tmp_path)).question
        == "What does reduced precision buy on this device?"
    )
    place.params.write_text("# Question: Is it?\n# Cost: a minute\nmatrix: {}\n")
    sweep = measured_sweep.load(place)
    assert sweep.question == "Is it?"
    assert sweep.header == {"question": "Is it?", "cost": "a minute"}
    assert len(sweep.tables.ok) == 1
    assert sweep.verdicts == []


def test_a_directory_without_records_is_refused(tmp_path):
    with pytest.raises(ParamsError, match="holds no record of a run; give the directory"):
        measured_sweep.load(tmp_path)
    damaged = SweepDir(tmp_path).record("0123456789ab")
    store.write_text(damaged, "{}")
    with pytest.raises(ParamsError, match=f"none of its records can be read: {damaged}: not a"):
        measured_sweep.load(tmp_path)


def test_a_sweep_that_was_handed_on_is_not_read_again(tmp_path, monkeypatch):
    place = tmp_path / "sweep"
    store.write_record(SweepDir(place).record(record()["run_id"]), record())
    monkeypatch.chdir(tmp_path)
    sweep = measured_sweep.load("sweep")
    with measured_sweep.handed(sweep):
        monkeypatch.chdir("/")
        given = measured_sweep.load(place)
        assert given.tables is sweep.tables
        assert given.directory.root == place.resolve()  # also from another working directory
    assert measured_sweep.load(place).tables is not sweep.tables
