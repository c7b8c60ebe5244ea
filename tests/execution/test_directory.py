"""The directory of a sweep belongs to one params file, and to one process at a time."""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from builders import record
from support import PROJECT, heeding_permissions, mptexp

from mptexp.errors import ParamsError
from mptexp.execution import directory
from mptexp.host import boot
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir


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
    assert "repeats 1 there, 2 asked for" in done.stderr
    assert "--out" in done.stderr
    assert "--fresh" not in done.stderr  # the lie: to add repeats, discard what is there
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
    directory.prepare(place, "matrix: {seed: [0]}")
    assert place.is_marked
    assert place.params.is_file()


def test_a_sweep_without_a_marker_is_one_if_it_holds_a_record(tmp_path):
    place, text = SweepDir(tmp_path), "matrix: {seed: [0]}"
    place.params.write_text(text)
    with pytest.raises(ParamsError, match="neither empty nor"):
        directory.prepare(place, text)
    store.write_record(place.record(record()["run_id"]), record())
    directory.prepare(place, text)
    assert place.is_marked


def test_what_a_report_says_may_change_without_running_again(light, tmp_path):
    light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    light({"seed": [0]}, price_per_hour=2.5, target_accuracy=0.9)
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 runs are done already" in done.stdout
    assert "price_per_hour: 2.5" in (tmp_path / "reports/light/params.yaml").read_text()


BASE = "matrix: {seed: [0, 1], policy: [float32, bfloat16]}\ntimeout_min: 5\n"


@pytest.mark.parametrize(
    "text",
    [
        BASE.replace("timeout_min: 5", "timeout_min: 10"),
        BASE + "max_batch: false\nexpected_run_s: 20\n",
        BASE.replace("float32, bfloat16", "bfloat16, float32"),
        BASE + "defaults: {batch_size: 32}\n",
        "matrix: {policy: [float32, bfloat16], seed: [0, 1], width: [1.0]}\n",
    ],
)
def test_what_changes_no_run_makes_no_other_params_file(tmp_path, text):
    # The lie: "another params file", and --fresh, which discards, though no run has another id.
    place = SweepDir(tmp_path)
    directory.prepare(place, BASE)
    assert directory.difference(place, text) == ""
    directory.prepare(place, text)
    assert place.params.read_text() == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BASE.replace("[0, 1]", "[0]"), "2 of its 4 points are among the 2 asked for"),
        (BASE + "repeats: 3\n", "repeats 1 there, 3 asked for"),
        (BASE + "notebook: infer\n", "notebook train there, infer asked for"),
        (
            BASE + "max_batch: true\nrepeats: 3\n",
            "max_batch False there, True asked for, repeats 1 there, 3 asked for",
        ),
    ],
)
def test_what_asks_for_other_runs_is_named(tmp_path, text, said):
    place = SweepDir(tmp_path)
    directory.prepare(place, BASE)
    assert directory.difference(place, text) == said
    with pytest.raises(ParamsError, match=f"another params file .*: {said}; "):
        directory.check(place, text)


def test_a_plan_refuses_what_the_run_would_refuse(light, tmp_path):
    # The lie: "2 runs, 1 to execute" and status 0, where the run refuses with 2.
    light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    light({"seed": [0]}, timeout_min=10)
    assert "1 run, 0 to execute\n" in mptexp("plan", "light.yaml", cwd=tmp_path).stdout
    light({"seed": [0]}, repeats=2)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    for words in ((), ("--out", "mine")):
        done = [mptexp(name, "light.yaml", *words, cwd=tmp_path) for name in ("plan", "run")]
        assert [one.returncode for one in done] == [2, 2]
        assert done[0].stderr == done[1].stderr
    done = mptexp("plan", "light.yaml", "--out", "light.py", cwd=tmp_path)
    assert (done.returncode, "light.py: cannot hold results" in done.stderr) == (2, True)


ELSEWHERE = "0123456789ab"  # as `boot.name` names a machine


@pytest.fixture
def place(tmp_path):
    return SweepDir(tmp_path / "reports/light")


def mark(place, age_s=0.0, text=ELSEWHERE):
    """Leaves what a command shows that was at work so long ago, on another machine by default."""
    place.root.mkdir(parents=True, exist_ok=True)
    place.at_work.write_text(text)
    os.utime(place.at_work, (time.time() - age_s,) * 2)


def works(place):
    """Whether a command can be at work in a directory."""
    with suppress(ParamsError), directory.locked(place):
        return True
    return False


def test_two_machines_do_not_meet_in_one_directory(light, place, tmp_path):
    # The lie: a lock on NFS holds on one machine alone, and two executed the same runs.
    light({"seed": [0]})
    mark(place, age_s=20.0)
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 2
    (left_s,) = re.findall(r"on another machine is at work here.* wait (\d+) s, or", done.stderr)
    assert 60 < int(left_s) <= 100
    assert str(place.at_work) in done.stderr
    assert list(place.root.iterdir()) == []
    assert directory.is_at_work(place)
    place.at_work.unlink()  # as it advises
    assert not directory.is_at_work(place)
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    assert not place.at_work.exists()


def test_what_is_at_work_shows_it_as_long_as_it_lasts(place, monkeypatch):
    monkeypatch.setattr(directory, "RENEWED_S", 0.01)
    with directory.locked(place):
        mark(place, age_s=1000.0, text=boot.name())
        deadline = time.monotonic() + 10
        while time.time() - place.at_work.stat().st_mtime > 500:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert list(place.root.iterdir()) == []  # nothing that is copied with the results
    assert list(place.root.parent.iterdir()) == [place.root]


@pytest.mark.parametrize("age_s", [-1000.0, 121.0, 1e6])
def test_a_mark_that_nobody_renews_stops_no_machine(place, age_s):
    mark(place, age_s=age_s)
    assert works(place)


def test_what_a_kill_left_does_not_stop_the_same_machine(place):
    words = (
        "import os; from pathlib import Path; from mptexp.execution import directory;"
        "from mptexp.records.sweep_dir import SweepDir\n"
        f"with directory.locked(SweepDir(Path({str(place.root)!r}))): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", words], cwd=PROJECT).returncode == -9
    assert place.at_work.read_text() == boot.name()
    assert works(place)


def test_nor_after_it_was_started_again(place, monkeypatch):
    # Its name is another then, and the mark may be seconds old.
    mark(place, age_s=40.0)
    assert not works(place)
    monkeypatch.setattr(directory.time, "clock_gettime", lambda clock: 30.0)
    assert works(place)


@pytest.mark.parametrize("text", ["", "a note", "0123456789ab and more"])
def test_what_is_no_mark_stops_nothing_and_is_not_lost(place, text):
    mark(place, text=text)
    assert works(place)
    assert (place.at_work.read_text() if place.at_work.exists() else "") == text


def test_where_no_mark_can_be_written_work_goes_on(place):
    place.at_work.mkdir(parents=True)
    assert works(place)
    os.rmdir(place.at_work)
    os.mkfifo(place.at_work)
    assert works(place)
    place.at_work.unlink()
    place.at_work.symlink_to(place.root.parent / "elsewhere")
    assert works(place)
    assert not (place.root.parent / "elsewhere").exists()


def test_a_whole_run_takes_the_place_of_an_earlier_attempt_after_a_kill(light, tmp_path):
    # The loss: it was deleted without a word and executed again, as there was a record already.
    place = SweepDir(tmp_path / "out")
    place.root.mkdir()
    text = light({}).read_text()
    directory.prepare(place, text)
    whole = record() | {"ended_at": "2026-01-01T00:00:00+00:00"}
    run_id = whole["run_id"]
    store.write_record(place.record(run_id), whole | {"status": "timeout"})
    store.write_record(place.partial / run_id / "record.json", whole)
    directory.prepare(place, text)
    assert store.read_record(place.record(run_id))["status"] == "ok"


def test_a_link_in_place_of_what_was_measured_again_is_refused_before_any_run(light, tmp_path):
    # The loss: it led to another disk, and each call measured a run and threw it away.
    place = SweepDir(tmp_path / "out")
    place.root.mkdir()
    text = light({}).read_text()
    directory.prepare(place, text)
    (tmp_path / "elsewhere").mkdir()
    place.superseded.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ParamsError, match="superseded: is a link; make it a folder"):
        directory.prepare(place, text)
    place.superseded.unlink()
    place.superseded.touch()
    with pytest.raises(ParamsError, match="superseded: is a file; make it a folder"):
        directory.prepare(place, text)


def test_what_is_in_the_way_of_a_sweep_is_named(light, tmp_path):
    # "out: cannot be written: File exists", of a file in the place of out/runs.
    place, text = SweepDir(tmp_path / "out"), light({}).read_text()
    place.root.mkdir()
    directory.prepare(place, text)
    place.runs.rmdir()
    place.runs.touch()
    with pytest.raises(ParamsError, match="out/runs: cannot be written: File exists"):
        directory.prepare(place, text)


DISCARD = """
import sys
from types import SimpleNamespace
from mptexp.execution import directory
from mptexp.records.sweep_dir import SweepDir
run = SimpleNamespace(run_id="0123456789ab", run=SimpleNamespace(gpu_model="cpu"))
directory.discard([run], SweepDir(directory.Path(sys.argv[1])), everywhere=True)
"""


def test_results_that_cannot_be_discarded_are_named(tmp_path):
    # The lie: "4 of 4 runs are done already", of --fresh in a folder that takes no changes.
    kept = tmp_path / "runs/0123456789ab"
    kept.mkdir(parents=True)
    (kept / "record.json").touch()
    for folder in (kept, kept.parent):
        folder.chmod(0o555)
    try:
        command = heeding_permissions("-c", DISCARD, tmp_path)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        for folder in (kept.parent, kept):
            folder.chmod(0o755)
    assert f"{kept}: cannot be removed, as --fresh asks" in done.stderr
    assert (kept / "record.json").exists()
