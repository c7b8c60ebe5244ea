"""Runs whose processes are forked: they are what processes that were started anew are."""

import json

import pytest
from support import until

from mptexp.execution import fork_client, supervisor
from mptexp.execution.device_slots import Slot
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.run import Run

# What a notebook can see of the process that it runs in, before and after it has its framework.
PORTRAIT = """\
# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---
# %% tags=["parameters"]
# %%
import json, logging, os, random, resource, signal, sys, tempfile, threading, warnings
from pathlib import Path
from mptexp import training
from mptexp.spec.run import Run
def status(name):
    (line,) = [x for x in open("/proc/self/status") if x.startswith(name + ":")]
    return line.split()[1:]
known = sorted(name for name in sys.modules if name.startswith("mptexp.training."))
training.use(Run(backend=os.environ["KERAS_BACKEND"]))
import keras, matplotlib, numpy as np
from mptexp.training import identity
alike = {
    "mptexp": known, "environment": dict(os.environ), "code": identity.code(),
    "variables": identity.variables(), "cwd": os.getcwd(), "path": sys.path,
    "flags": str(sys.flags), "main": sys.modules["__main__"].__name__,
    "signals": {s.name: str(signal.getsignal(s)).split(" at ")[0] for s in signal.Signals},
    "blocked": status("SigBlk"), "ignored": status("SigIgn"), "umask": status("Umask"),
    "nice": os.nice(0), "limits": [resource.getrlimit(n) for n in range(16)],
    "oom": open("/proc/self/oom_score_adj").read(), "cores": [*os.sched_getaffinity(0)],
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "parent": str(os.getppid()) == os.environ["JPY_PARENT_PID"], "input": os.read(0, 1).decode(),
    "temporary": tempfile.gettempdir() == os.environ["TMPDIR"],
    "threads": sorted(type(t).__name__ for t in threading.enumerate()),
    "logging": [logging.root.level, len(logging.root.handlers)],
    "filters": sorted(map(str, warnings.filters)), "sklearn": "sklearn" in sys.modules,
    "backend": matplotlib.get_backend(), "settings": dict(matplotlib.rcParams)["figure.dpi"],
    "mark": b"MPTEXP_RUN_DIR=" in open("/proc/self/environ", "rb").read(),
}
drawn = [random.random(), float(np.random.rand()), str(keras.random.uniform((1,)))]
keras.Sequential([keras.layers.Dense(1)]).compile("adam", "mse")
portrait = {"alike": alike, "drawn": drawn, "kib": int(status("VmHWM")[0])}
Path(os.environ["MPTEXP_RUN_DIR"]).parent.joinpath("portrait.json").write_text(
    json.dumps(portrait, default=str))
"""
OF_A_RUN = ("JPY_PARENT_PID", "JUPYTER_RUNTIME_DIR", "MPTEXP_RUN_DIR", "TMPDIR", "MPTEXP_PROCESS")


def executed(folder, servers, text=PORTRAIT, notebook="train", block=0):
    """The record of a run of a notebook, and the portrait that it drew."""
    folder.mkdir()
    (folder / "n.py").write_text(text)
    run, directory = Run(block=block).resolved(), SweepDir(folder)
    record = supervisor.execute(run, folder / "n.py", notebook, directory, 600, servers=servers)
    drawn = directory.partial / "portrait.json"
    return record, json.loads(drawn.read_text()) if drawn.exists() else {}


def without_own(portrait):
    kept = {n: v for n, v in portrait["environment"].items() if n not in OF_A_RUN}
    return portrait | {"environment": kept}


def test_a_forked_process_is_as_one_that_was_started_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    _, fresh = executed(tmp_path / "fresh", None)
    with fork_client.Servers() as servers:
        (_, one), (_, two) = (executed(tmp_path / name, servers) for name in ("one", "two"))
    assert one["alike"]["environment"]["MPTEXP_PROCESS"] == "forked"
    for portrait in (one, two):
        assert without_own(portrait["alike"]) == without_own(fresh["alike"])
        # As a fresh process's: a fork that counted only what is its own would read 40 % less. How
        # many arenas its threads allocate from depends on who is at work beside it.
        assert portrait["kib"] == pytest.approx(fresh["kib"], rel=0.2)
    assert not {*map(str, one["drawn"])} & {*map(str, two["drawn"])}


LIGHT = """\
# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---
# %% tags=["parameters"]
# %%
import os, sys
from pathlib import Path
process = os.environ.get("MPTEXP_PROCESS"), "keras" in sys.modules
Path(os.environ["MPTEXP_RUN_DIR"]).parent.joinpath("portrait.json").write_text(
    __import__("json").dumps(process))
"""


def test_one_server_for_a_block_and_none_for_another_environment(tmp_path, monkeypatch):
    with fork_client.Servers() as servers:
        pids = []
        for number, block in enumerate((0, 0, 1, 1)):
            if number == 3:
                monkeypatch.setenv("OMP_NUM_THREADS", "1")
            _, seen = executed(tmp_path / str(number), servers, LIGHT, "mine.py", block)
            assert seen == ["forked", False]  # of a user's notebook no framework is imported
            pids.append(servers.process.pid)
    assert [pid == pids[0] for pid in pids] == [True, True, False, False]
    assert pids[2] != pids[3]
    until(lambda: all(process.poll() is not None for process in servers.ended))
    assert [process.returncode for process in servers.ended] == [0, 0, 0]


def test_a_server_that_does_not_answer_in_time_is_ended_and_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_client, "START_S", 0)
    monkeypatch.setattr(fork_client, "CHECK_S", 0)
    with fork_client.Servers() as servers:
        for name in ("one", "two"):
            record, seen = executed(tmp_path / name, servers, LIGHT, "mine.py")
            assert seen == [None, False]
            assert fork_client.FALLBACK in record["marks"]
        assert [process.wait(60) for process in servers.ended] == [-9]


def test_where_nothing_is_forked(monkeypatch):
    cpu, gpu = Slot("a CPU", ""), Slot("a GPU", "GPU-1")
    for slots, switch, forks in (([cpu], "1", True), ([cpu], "", False), ([gpu], "1", False)):
        monkeypatch.setenv(fork_client.SWITCH, switch)
        with fork_client.servers(slots) as servers:
            assert (servers is not None) == forks
    monkeypatch.setattr(fork_client.sys, "platform", "darwin")
    monkeypatch.setenv(fork_client.SWITCH, "1")
    with fork_client.servers([cpu]) as servers:
        assert servers is None
