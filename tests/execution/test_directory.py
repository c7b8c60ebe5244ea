"""The directory of a sweep belongs to one params file, and to one process at a time."""

import pytest
from builders import record
from support import mptexp

from mptexp.execution import directory
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.errors import ParamsError


def test_two_sweeps_in_one_directory_do_not_meet(light, tmp_path):
    light({"seed": [0]})
    with directory.locked(SweepDir(tmp_path / "reports/light")):
        done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 2
    assert "another mptexp command is at work" in done.stderr


def test_a_directory_of_another_params_file_is_refused(light, tmp_path):
    light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    light({"seed": [0]}, repeats=2)
    before = sorted((tmp_path / "reports").rglob("*"))
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 2
    assert "--out" in done.stderr
    assert sorted((tmp_path / "reports").rglob("*")) == before
    done = mptexp("run", "light.yaml", "--no-report", "--fresh", cwd=tmp_path)
    assert done.returncode == 0
    assert len(list((tmp_path / "reports/light/runs").iterdir())) == 2


def test_a_comment_does_not_make_another_params_file(light, tmp_path):
    path = light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    path.write_text("# a thought\n" + path.read_text())
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0


def test_a_directory_with_other_things_is_refused(light, tmp_path):
    light({"seed": [0]})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    for out in ("mine", "light.yaml"):
        done = mptexp("run", "light.yaml", "--out", out, "--fresh", cwd=tmp_path)
        assert done.returncode == 2, done.stdout
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_fresh_deletes_nothing_that_mptexp_did_not_make(light, tmp_path):
    light({"seed": [0]})
    mine = tmp_path / "mine"
    for name in ("params.yaml", "runs/mlflow/0.txt", "search/x.txt", "diagnosis/y.txt"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text("train: {lr: 1}\n")  # as of DVC
    (mine / "results.csv").write_text("my,results\n")
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    for words in ((), ("--fresh",)):
        done = mptexp("run", "light.yaml", "--out", "mine", *words, cwd=tmp_path)
        assert done.returncode == 2, done.stdout
        assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before
    assert "--fresh deletes nothing" in done.stderr


def test_fresh_leaves_what_somebody_keeps_beside_the_results(light, tmp_path):
    light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    mine = [tmp_path / "reports/light" / name for name in ("runs/mine/a.txt", "search/mine.txt")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    light({"seed": [100]})
    assert mptexp("run", "light.yaml", "--no-report", "--fresh", cwd=tmp_path).returncode == 0
    assert [path.read_text() for path in mine] == ["mine", "mine"]


@pytest.mark.parametrize("left", [["sweep.new"], ["sweep.json"], ["sweep.json", ".params.yaml.9"]])
def test_a_call_that_ended_before_it_had_begun_is_gone_on_with(tmp_path, left):
    place = SweepDir(tmp_path)
    place.mark()
    for name in left:
        (tmp_path / name).touch()
    if "sweep.json" not in left:
        place.marker.unlink()
    directory.prepare(place, "matrix: {seed: [0]}", fresh=False)
    assert place.is_marked
    assert place.params.is_file()


def test_a_sweep_without_a_marker_is_one_if_it_holds_a_record(tmp_path):
    place, text = SweepDir(tmp_path), "matrix: {seed: [0]}"
    place.params.write_text(text)
    with pytest.raises(ParamsError, match="neither empty nor"):
        directory.prepare(place, text, fresh=False)
    store.write_record(place.record(record()["run_id"]), record())
    directory.prepare(place, text, fresh=False)
    assert place.is_marked


def test_what_a_report_says_may_change_without_running_again(light, tmp_path):
    light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    light({"seed": [0]}, price_per_hour=2.5, target_accuracy=0.9)
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 runs are done already" in done.stdout
    assert "price_per_hour: 2.5" in (tmp_path / "reports/light/params.yaml").read_text()
