import json

import pytest
from support import PATIENCE_S, by_seed, interrupt, mptexp, processes_of, started, until

from mptexp.api import commands
from mptexp.errors import ParamsError
from mptexp.execution import sweep
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir


def test_every_ending_is_a_record_and_the_sweep_goes_on(light, tmp_path):
    light({"seed": [0, 1, 2, 3, 4]})
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    ended = by_seed(tmp_path)
    assert {seed: (r["status"], r["error"]) for seed, r in ended.items()} == {
        0: ("ok", ""),
        1: ("failed", "ValueError: the second value is odd"),
        2: ("killed", "the Jupyter kernel was ended by SIGKILL"),
        3: ("oom", "MemoryError: no more"),
        4: ("failed", "the notebook ended without writing a record"),
    }
    assert "3 of 5 runs failed" in done.stdout
    assert not processes_of(tmp_path)
    for record in ended.values():
        folder = tmp_path / "reports/light/runs" / record["run_id"]
        assert {p.name for p in folder.iterdir()} <= {"record.json", "notebook.ipynb"}
        assert record["wall_s"] > 0
        assert (folder / "notebook.ipynb").exists()

    # Final endings stay byte for byte; the others run again.
    kept = {s: (ended[s]["run_id"], _bytes(tmp_path, ended[s])) for s in (0, 3)}
    again = mptexp(
        "run", "light.yaml", "--no-report", "--only", "seed=1", "--only", "seed=0", cwd=tmp_path
    )
    assert again.returncode == 1
    assert "1 of 2 runs are done already" in again.stdout
    for seed, (_, content) in kept.items():
        assert _bytes(tmp_path, ended[seed]) == content


def test_a_run_that_hangs_is_ended_and_the_sweep_goes_on(light, tmp_path):
    # All of them hang, so that the limit may be short: what ends well on a busy machine needs more.
    light({"seed": [5]}, repeats=2, timeout_min=0.1)
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert not processes_of(tmp_path)
    ended, _ = store.read_records(SweepDir(tmp_path / "reports/light"))
    assert [(r["status"], r["error"]) for r in ended] == [("timeout", "longer than 0.1 min")] * 2
    for record in ended:
        folder = tmp_path / "reports/light/runs" / record["run_id"]
        assert {p.name for p in folder.iterdir()} <= {"record.json", "notebook.ipynb"}
        assert record["wall_s"] >= 6


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


@pytest.mark.parametrize("thread", [0, -1])
def test_ctrl_c_loses_no_finished_run_and_leaves_no_process(light, gate, tmp_path, thread):
    light({"seed": [13, 14]})
    gate.let(1)
    with started("run", "light.yaml", "--no-report", cwd=tmp_path) as sweep:
        while "[1/2]" not in (line := sweep.stdout.readline()):
            assert line
        kept = {p: p.read_bytes() for p in (tmp_path / "reports/light/runs").rglob("*.json")}
        assert len(kept) == 1
        until(gate.waiting, of=sweep)
        interrupt(sweep, thread)
        _, errors = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 130
    assert "1 of 2 runs finished and kept" in errors
    assert "Traceback" not in errors
    until(lambda: not processes_of(tmp_path))
    assert not list((tmp_path / "reports/light/partial").iterdir())

    gate.let(1)
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0
    assert "1 of 2 runs are done already" in done.stdout
    assert {p: p.read_bytes() for p in kept} == kept
    assert {r["status"] for r in by_seed(tmp_path).values()} == {"ok"}


def test_only_leaves_the_params_file_as_it_is(light, tmp_path):
    path = light({"seed": [0, 4]})
    done = mptexp("run", "light.yaml", "--no-report", "--only", "seed=0", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "reports/light/params.yaml").read_text() == path.read_text()
    planned = json.loads(mptexp("plan", "light.yaml", "--format", "json", cwd=tmp_path).stdout)
    states = {r["parameters"]["seed"]: r["state"] for r in planned["runs"]}
    assert states == {0: "ok", 4: "pending"}
    assert set(planned["runs"][0]) == {"run_id", "state", "parameters", "cost_s"}


def test_to_measure_again_discards_no_other_sweep(light, tmp_path):
    # The loss: whoever measured anew was thereby allowed to delete another sweep's results.
    light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    place = SweepDir(tmp_path / "reports/light")
    before = [path.read_bytes() for path in place.runs.glob("*/*")]
    job = commands.open_sweep(light({"seed": [100]}), place.root)
    with pytest.raises(ParamsError, match="holds the results of another params file"):
        sweep.execute(job, fresh=True)
    assert [path.read_bytes() for path in place.runs.glob("*/*")] == before
