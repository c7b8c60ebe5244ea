"""Random kills of kernels, workers and sweeps: the records are those of an undisturbed sweep.

`make soak` does it and prints what was killed. What is killed when is a matter of luck and of how
busy the machine is; tests/system/test_survival.py kills each of them once, at a known moment.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest
from support import mptexp, processes_of, until

from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir

pytestmark = pytest.mark.soak
RUNS = int(os.environ.get("MPTEXP_SOAK_RUNS", "200"))
# What the clock decides, and how often a run had to be tried.
PASSING = ("wall_s", "span", "marks", "ended_at")
PARALLEL = ("--parallel", "2")


def test_a_sweep_survives_random_kills(light, tmp_path, capsys):
    light({"seed": list(range(100, 100 + RUNS))})
    began = time.monotonic()
    quiet = ("--no-report", "--out", "quiet")
    assert mptexp("run", "light.yaml", *PARALLEL, *quiet, cwd=tmp_path).returncode == 0
    usual_s = (time.monotonic() - began) / RUNS
    chance = random.Random(0)
    kills, sweeps, done = Counter(), 0, None
    while done != 0:
        sweeps += 1
        command = [sys.executable, "-m", "mptexp", "run", "light.yaml", "--no-report", *PARALLEL]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as started:
            while started.poll() is None:
                time.sleep(usual_s * chance.uniform(0.5, 4))
                kills[_kill_one(started, tmp_path, chance, kills)] += 1
            done = started.returncode
        assert done in (0, 1, -9), done
        assert sweeps < RUNS * 2
    until(lambda: not processes_of(tmp_path))
    quiet, disturbed = (_records(tmp_path / name) for name in ("quiet", "reports/light"))
    assert len(disturbed) == RUNS
    assert disturbed == quiet
    assert all(kills[what] for what in ("kernel", "worker", "sweep")), kills
    with capsys.disabled():
        print(f"\n{RUNS} runs, {sweeps} sweeps, killed: {dict(kills)}")


def _records(folder):
    found, damaged = store.read_records(SweepDir(folder))
    assert not damaged
    return {r["run_id"]: {k: v for k, v in r.items() if k not in PASSING} for r in found}


def _kill_one(started, folder, chance, kills):
    """Kills the sweep, a worker or a kernel, whichever was killed least often so far.

    Returns which, or nothing where none was there.
    """
    found = {"sweep": [started.pid], "worker": [], "kernel": []}
    for process in processes_of(folder):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        found["worker" if "mptexp.execution.worker" in words else "kernel"].append(process.pid)
    what = min(found, key=lambda what: (kills[what], chance.random()))
    if not found[what]:
        return "nothing"
    try:
        psutil.Process(chance.choice(found[what])).kill()
    except psutil.Error:
        return "nothing"
    return what
