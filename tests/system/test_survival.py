"""What happens to one run harms neither another nor the results."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support import PATIENCE_S, by_seed, is_kernel, mptexp, processes_of, small_disk, started, until

from mptexp.execution.fork_client import FALLBACK


def endings(folder):
    return {seed: (r["status"], r["error"]) for seed, r in by_seed(folder).items()}


def content(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(params=["fresh", "forked"])
def way(request, monkeypatch):
    """How the processes of runs are started."""
    monkeypatch.setenv("MPTEXP_FORK", "1" if request.param == "forked" else "0")
    return request.param


def test_a_notebook_that_leaves_or_says_too_much(light, tmp_path, way):
    light({"seed": [0, 7, 8, 9, 10]})
    # Only what never ends has a limit that a busy machine's other runs might not keep either.
    for only, limit in (((0, 7, 8, 9), "10"), ((10,), "0.15")):
        words = [word for seed in only for word in ("--only", f"seed={seed}")]
        done = mptexp("run", "light.yaml", "--no-report", "--timeout", limit, *words, cwd=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
    left = "the Jupyter kernel left with exit status 0 before its notebook had ended"
    assert endings(tmp_path) == {
        0: ("ok", ""),
        7: ("failed", left),
        8: ("failed", "the notebook ended without writing a record"),
        9: ("ok", ""),  # 50 MB of output
        10: ("timeout", "longer than 0.15 min"),  # output without end, and a process left behind
    }
    assert by_seed(tmp_path)[0]["not a number"] == [None, None]
    for path in (tmp_path / "reports").rglob("*"):
        assert path.is_dir() or path.stat().st_size < 8e6, path
    until(lambda: not processes_of(tmp_path))


@pytest.mark.parametrize(("way", "parallel"), [("fresh", 1), ("forked", 2)], indirect=["way"])
@pytest.mark.parametrize("whom", ["sweep", "worker", "kernel", "machine"])
def test_a_kill_loses_only_the_run_at_work(light, gate, tmp_path, whom, way, parallel):
    light({"seed": [0, 13, 14][: 1 + parallel]})
    command = ("run", "light.yaml", "--no-report", "--parallel", parallel)
    done = mptexp("run", "light.yaml", "--only", "seed=0", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before = content(tmp_path / "reports/light/runs")
    with started(*command, cwd=tmp_path) as sweep:
        until(lambda: len(gate.waiting()) == parallel, of=sweep)
        scratches = {Path(p.environ()["TMPDIR"]) for p in processes_of(tmp_path)}
        children = psutil.Process(sweep.pid).children(recursive=True)
        assert len(scratches) == parallel
        assert all(scratch.is_dir() for scratch in scratches)
        _kill(sweep, tmp_path, whom)
        survives = whom in ("worker", "kernel")
        assert sweep.wait(PATIENCE_S) == (1 if survives else -signal.SIGKILL)
    until(lambda: not processes_of(tmp_path) and not any(p.is_running() for p in children))
    if whom == "sweep":
        until(lambda: not any(scratch.exists() for scratch in scratches))
    if not survives:
        assert list(by_seed(tmp_path)) == [0]
    else:
        named = {"kernel": "Jupyter kernel"}.get(whom, whom)
        killed = ("killed", f"the {named} was ended by SIGKILL")
        assert endings(tmp_path) == {0: ("ok", "")} | dict.fromkeys([13, 14][:parallel], killed)
    assert {p: p.read_bytes() for p in before} == before
    gate.let(parallel)
    done = mptexp(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"1 of {1 + parallel} runs are done already" in done.stdout
    assert set(endings(tmp_path).values()) == {("ok", "")}
    assert len(by_seed(tmp_path)) == 1 + parallel
    assert {p: p.read_bytes() for p in before} == before


def _kill(sweep, folder, whom):
    kinds = {
        process: "kernel" if is_kernel(process) else "worker" for process in processes_of(folder)
    }
    if whom in ("sweep", "machine"):
        sweep.kill()
    for process in [p for p, kind in kinds.items() if whom in ("machine", kind)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # ended with the sweep
            process.kill()


def test_no_run_is_lost_with_the_server_that_forked_it(light, gate, tmp_path, monkeypatch):
    monkeypatch.setenv("MPTEXP_FORK", "1")
    light({"seed": [13, 14]})
    with started("run", "light.yaml", "--no-report", cwd=tmp_path) as sweep:
        until(gate.waiting, of=sweep)
        (server,) = psutil.Process(sweep.pid).children()
        server.kill()
        gate.let(2)
        assert sweep.wait(PATIENCE_S) == 0
    assert sorted(record["marks"] for record in by_seed(tmp_path).values()) == [[], [FALLBACK]]
    until(lambda: not processes_of(tmp_path))


def test_a_full_disk_loses_nothing(light, tmp_path):
    light({"seed": [0, 11]})
    with small_disk(tmp_path / "reports", 4):
        mptexp("run", "light.yaml", "--only", "seed=0", "--no-report", cwd=tmp_path)
        before = content(tmp_path / "reports/light/runs")
        assert len(before) == 2
        done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
        assert done.returncode == 1
        assert endings(tmp_path)[11][0] == "failed"
        assert "No space left on device" in endings(tmp_path)[11][1]
        # Not even the records fit: the sweep ends in a sentence.
        (tmp_path / "reports/ballast").write_bytes(bytes(_free(tmp_path / "reports")))
        done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
        assert done.returncode in (1, 2)
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        assert {p: p.read_bytes() for p in before} == before
        (tmp_path / "reports/ballast").unlink()
        light({"seed": [0, 11]})
        states = json.loads(mptexp("plan", "light.yaml", "--format", "json", cwd=tmp_path).stdout)
        assert {r["parameters"]["seed"]: r["state"] for r in states["runs"]}[0] == "ok"


def _free(folder):
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def test_a_directory_that_becomes_unwritable(light, gate, tmp_path):
    light({"seed": [13, 0]})
    with small_disk(tmp_path / "reports", 4):
        with started("run", "light.yaml", "--no-report", cwd=tmp_path) as sweep:
            until(gate.waiting, of=sweep)
            remount = ["mount", "-o", "remount,ro", str(tmp_path / "reports")]
            until(lambda: subprocess.run(remount).returncode == 0)  # no file is being written
            gate.let(2)
            _, errors = sweep.communicate(timeout=PATIENCE_S)
        assert sweep.returncode == 1
        assert "no result can be written: Read-only file system" in errors
        assert "the same command goes on" in errors
        assert "Traceback" not in errors
        subprocess.run(["mount", "-o", "remount,rw", str(tmp_path / "reports")], check=True)
        done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert endings(tmp_path) == {0: ("ok", ""), 13: ("ok", "")}


@contextlib.contextmanager
def memory_limit(megabytes):
    """A control group that ends what takes more; yields the folder it lies in."""
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, limit = (old, "memory.limit_in_bytes") if old.is_dir() else (new, "memory.max")
    group = root / f"mptexp-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(megabytes * 2**20))
    except OSError:
        shutil.rmtree(group, ignore_errors=True)
        pytest.skip("no control group for memory can be made here")
    try:
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text().split())
        group.rmdir()


@pytest.mark.kernel
def test_the_systems_oom_killer_is_told_from_other_kills(light, tmp_path, way):
    light({"seed": [2, 12]})
    with memory_limit(450) as group:
        inside = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -m mptexp"
        command = ["sh", "-c", f"{inside} run light.yaml --no-report"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
        )
    assert done.returncode == 1, done.stdout + done.stderr
    assert endings(tmp_path) == {
        2: ("killed", "the Jupyter kernel was ended by SIGKILL"),
        12: ("oom", "the system's OOM killer ended a process meanwhile"),
    }


def test_a_damaged_record_is_named_and_run_again(light, tmp_path):
    light({"seed": [0, 4]})
    mptexp("run", "light.yaml", "--no-report", "--only", "seed=0", cwd=tmp_path)
    (path,) = (tmp_path / "reports/light/runs").glob("*/record.json")
    path.write_bytes(path.read_bytes()[:200])
    done = mptexp("run", "light.yaml", "--no-report", "--only", "seed=0", cwd=tmp_path)
    assert done.returncode == 0
    assert f"{path.parent.name}/record.json: not a readable record" in done.stdout
    assert endings(tmp_path) == {0: ("ok", "")}


def test_retries_timeout_and_fail_fast(light, tmp_path):
    command = ("run", "light.yaml", "--no-report")
    light({"seed": [1, 5]})
    done = mptexp(*command, "--fail-fast", "--timeout", "0.07", cwd=tmp_path)
    assert done.returncode == 1
    assert "stopped at the first run that failed, 1 not executed" in done.stdout
    assert "1 of 2 runs failed, 1 of 2 not executed; the same command tries" in done.stdout
    planned = mptexp("plan", "light.yaml", "--format", "json", cwd=tmp_path)  # as it was drawn
    order = [run["parameters"]["seed"] for run in json.loads(planned.stdout)["runs"]]
    assert list(by_seed(tmp_path)) == order[:1]
    for seed, limit in ((1, "10"), (5, "0.07")):  # the one that raises is given time to do so
        again = ("--retries", "1", "--timeout", limit, "--only", f"seed={seed}")
        assert mptexp(*command, *again, cwd=tmp_path).returncode == 1
    ended = by_seed(tmp_path)
    assert ended[5]["error"] == "longer than 0.07 min"
    assert ended[1]["status"] == "failed"
    assert {r["marks"][0] for r in ended.values()} == {"attempt 2, after others had failed"}
