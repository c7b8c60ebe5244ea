import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support import mptexp, processes_of, until

from mptexp.execution import sweep, worker
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params
from mptexp.spec.errors import ParamsError
from mptexp.spec.run import Run
from mptexp.traces import xplane


def records(folder, name="light"):
    found, damaged = store.read_records(SweepDir(folder / "reports" / name))
    assert not damaged
    return {r["parameters"]["seed"] - r["parameters"]["block"]: r for r in found}


def test_every_ending_is_a_record_and_the_sweep_goes_on(light, tmp_path):
    light({"seed": [0, 1, 2, 3, 4, 5]}, timeout_min=0.15)
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    found = records(tmp_path)
    assert {seed: (r["status"], r["error"]) for seed, r in found.items()} == {
        0: ("ok", ""),
        1: ("failed", "ValueError: the second value is odd"),
        2: ("killed", "the kernel was ended by SIGKILL"),
        3: ("oom", "MemoryError: no more"),
        4: ("failed", "the notebook ended without writing a record"),
        5: ("timeout", "longer than 0.15 min"),
    }
    assert "4 of 6 runs failed" in done.stdout
    assert not processes_of(tmp_path)
    for record in found.values():
        folder = tmp_path / "reports/light/runs" / record["run_id"]
        assert {p.name for p in folder.iterdir()} <= {"record.json", "notebook.ipynb"}
        assert record["wall_s"] > 0
        if record["status"] not in ("timeout",):
            assert (folder / "notebook.ipynb").exists()

    # Final endings stay byte for byte; the others run again.
    kept = {s: (found[s]["run_id"], _bytes(tmp_path, found[s])) for s in (0, 3)}
    again = mptexp(
        "run", "light.yaml", "--no-report", "--only", "seed=1", "--only", "seed=0", cwd=tmp_path
    )
    assert again.returncode == 1
    assert "1 of 2 runs are done already" in again.stdout
    for seed, (_, content) in kept.items():
        assert _bytes(tmp_path, found[seed]) == content


def _bytes(folder, record):
    run = folder / "reports/light/runs" / record["run_id"]
    return {p.name: p.read_bytes() for p in run.iterdir()}


def test_private_names_are_not_published(light, tmp_path):
    light({"seed": [0]})
    home = tmp_path / "home-of-somebody"
    home.mkdir()
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path, HOME=str(home)).returncode == 0
    (run,) = (tmp_path / "reports/light/runs").iterdir()
    for path in run.iterdir():
        assert "home-of-somebody" not in path.read_text(), path
        assert str(tmp_path) not in path.read_text(), path


def test_ctrl_c_loses_no_finished_run_and_leaves_no_process(light, tmp_path):
    light({"seed": [4000, 4001]})
    (tmp_path / "reports").mkdir()
    started = subprocess.Popen(
        [sys.executable, "-m", "mptexp", "run", "light.yaml", "--no-report"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    first = started.stdout.readline() + started.stdout.readline()
    while "[1/2]" not in first:
        first += started.stdout.readline()
    kept = {p: p.read_bytes() for p in (tmp_path / "reports/light/runs").rglob("*.json")}
    assert len(kept) == 1
    until(lambda: processes_of(tmp_path))
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "1 of 2 runs finished and kept" in errors
    assert "Traceback" not in errors
    until(lambda: not processes_of(tmp_path))
    assert not list((tmp_path / "reports/light/partial").iterdir())

    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0
    assert "1 of 2 runs are done already" in done.stdout
    assert {p: p.read_bytes() for p in kept} == kept
    assert {r["status"] for r in records(tmp_path).values()} == {"ok"}


def _plan(folder):
    found, _ = params.read(folder / "light.yaml")
    return sweep.plan(found, SweepDir(folder / "reports/light"))


def test_two_sweeps_in_one_directory_do_not_meet(light, tmp_path):
    light({"seed": [0]})
    with (
        sweep.locked(SweepDir(tmp_path / "reports/light")),
    ):
        done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 2
    assert "another mptexp run is at work" in done.stderr


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


def test_only_leaves_the_params_file_as_it_is(light, tmp_path):
    path = light({"seed": [0, 4]})
    done = mptexp("run", "light.yaml", "--no-report", "--only", "seed=0", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "reports/light/params.yaml").read_text() == path.read_text()
    planned = json.loads(mptexp("plan", "light.yaml", "--format", "json", cwd=tmp_path).stdout)
    states = {r["parameters"]["seed"]: r["state"] for r in planned["runs"]}
    assert states == {0: "ok", 4: "pending"}
    assert set(planned["runs"][0]) == {"run_id", "state", "parameters"}


def test_a_comment_does_not_make_another_params_file(light, tmp_path):
    path = light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    path.write_text("# a thought\n" + path.read_text())
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0


def test_another_machines_points_are_elsewhere_and_get_no_record(light, tmp_path):
    light({"gpu_model": ["local", "Tesla V100"]})
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0
    states = {p.run.gpu_model: p.state for p in _plan(tmp_path)}
    assert states["Tesla V100"] == "elsewhere"
    assert sorted(states.values()) == ["elsewhere", "ok"]
    assert len(list((tmp_path / "reports/light/runs").iterdir())) == 1


def test_another_machines_failed_run_stays_that_machines(light, tmp_path):
    light({"gpu_model": ["Tesla V100"]})
    (planned,) = _plan(tmp_path)
    directory = SweepDir(tmp_path / "reports/light")
    parameters = planned.run.model_dump()
    record = {"schema": 1, "run_id": planned.run_id, "parameters": parameters, "error": ""}
    for status, state in (("timeout", "elsewhere"), ("ok", "ok")):
        store.write_record(directory.record(planned.run_id), record | {"status": status})
        assert [(p.state, p.due) for p in _plan(tmp_path)] == [(state, False)]
    sweep.discard(_plan(tmp_path), directory)
    assert directory.record(planned.run_id).exists()


def test_a_notebook_that_was_cut_off_is_dropped(tmp_path):
    path = tmp_path / "notebook.ipynb"
    path.write_text('{"cells": [')
    worker._clean(path)
    assert not path.exists()


def test_a_trace_goes_with_the_record_that_tells_how_to_read_it(tmp_path):
    run, kept = Run(gpu_model="x", profile=True), tmp_path / xplane.FILE
    made = worker.bare(run, "train") | {"status": "ok", "profile": {"missing": "not read"}}
    for status, stays in (("ok", True), ("timeout", False)):
        kept.write_bytes(b"half of a trace")
        store.write_record(tmp_path / "record.json", made)
        worker._finish(tmp_path, run, "train", {"status": status, "error": ""}, 1.0, [])
        assert kept.exists() == stays


def test_a_damaged_record_is_due_again(light, tmp_path):
    light({"seed": [0]})
    (planned,) = _plan(tmp_path)
    path = SweepDir(tmp_path / "reports/light").record(planned.run_id)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    (planned,) = _plan(tmp_path)
    assert (planned.state, planned.due) == ("damaged", True)


def test_a_directory_with_other_things_is_refused(light, tmp_path):
    light({"seed": [0]})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    for out in ("mine", "light.yaml"):
        done = mptexp("run", "light.yaml", "--out", out, "--fresh", cwd=tmp_path)
        assert done.returncode == 2, done.stdout
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("filters", "words"),
    [(["epochs=9"], "its values here: 20"), (["epoch=9"], "allowed names"), (["x"], "key=value")],
)
def test_filters_that_match_nothing_are_refused(light, tmp_path, filters, words):
    light({"seed": [0]})
    with pytest.raises(ParamsError, match=words):
        sweep.only(_plan(tmp_path), filters)


def test_filters_read_values_as_the_file_does(light, tmp_path):
    light({"learning_rate": [0.001, 0.01], "loss_scale": [128, "none"]})
    kept = sweep.only(_plan(tmp_path), ["learning_rate=1e-3", "loss_scale=128"])
    assert [(p.run.learning_rate, p.run.loss_scale) for p in kept] == [(0.001, 128.0)]


def test_an_unknown_notebook_is_refused(light, tmp_path):
    path = light({"seed": [0]})
    with pytest.raises(ParamsError, match="notebook is 'nothing'"):
        sweep.notebook_path("nothing", path)
    assert sweep.notebook_path("train", path).name == "train.py"


def test_the_cost_of_a_run_is_that_of_its_point(light, tmp_path):
    light({"seed": [0]}, repeats=2, expected_run_s=40)
    found, _ = params.read(tmp_path / "light.yaml")
    first, second = (sweep.Planned(f"r{k}", Run(block=k, seed=k), "pending") for k in (0, 1))
    assert sweep.remaining_s([first, second], found) == 80
    done = sweep.Planned("r0", first.run, "ok", 5.0)
    assert sweep.remaining_s([done, second], found) == 5.0
    assert sweep.remaining_s([first], found.model_copy(update={"expected_run_s": None})) is None


def test_a_run_that_takes_more_memory_than_it_may_is_out_of_memory(tmp_path):
    # A real framework: importing it fits, a batch of large pictures does not.
    (tmp_path / "x.yaml").write_text(
        "defaults: {dataset: synthetic, image_size: 256, synthetic_length: 1024, epochs: 8,\n"
        "  width: 0.25, max_steps: 7, memory_limit_gb: 1.2}\n"
        "matrix: {batch_size: [1, 128]}\n"
    )
    done = mptexp("run", "x.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found, _ = store.read_records(SweepDir(tmp_path / "reports/x"))
    by_size = {r["parameters"]["batch_size"]: r for r in found}
    assert by_size[1]["status"] == "ok", by_size[1]["error"]
    assert by_size[1]["timing"]["ended_by"] == "max_steps"
    assert by_size[1]["peak_memory_bytes"] < 1.2e9
    assert by_size[128]["status"] == "oom"
    assert "more than memory_limit_gb 1.2 allows" in by_size[128]["error"]
    assert not processes_of(tmp_path)


def test_what_a_report_says_may_change_without_running_again(light, tmp_path):
    light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    light({"seed": [0]}, price_per_hour=2.5, target_accuracy=0.9)
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 runs are done already" in done.stdout
    assert "price_per_hour: 2.5" in (tmp_path / "reports/light/params.yaml").read_text()


def test_a_passing_helper_of_the_worker_is_not_taken_for_the_kernel():
    # Importing jupytext asks pandoc its version where there is one: a child before the kernel.
    program = (
        "import subprocess, sys; subprocess.run(['sleep', '0.2']); "
        "subprocess.run([sys.executable, '-c', "
        "'import time; x = bytearray(300_000_000); time.sleep(20)'])"
    )
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as started:
        try:
            ended = worker._watch(started, time.monotonic() + 15, 100_000_000)
        finally:
            os.killpg(started.pid, signal.SIGKILL)
    assert "more than memory_limit_gb 0.1 allows" in ended
