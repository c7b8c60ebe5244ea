"""Random kills of kernels, workers and sweeps: the records are those of an undisturbed sweep.

`make soak` does it and prints what was killed. What is killed when is a matter of luck and of how
busy the machine is; tests/system/test_survival.py kills each of them once, at a known moment.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest
from builders import written_sweep
from support import is_kernel, mptexp, processes_of, until, write_images

from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir

pytestmark = pytest.mark.soak
RUNS = int(os.environ.get("MPTEXP_SOAK_RUNS", "200"))
# What the clock decides, how often a run had to be tried, and by which command.
PASSING = ("wall_s", "span", "marks", "ended_at", "invocation")
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
    differs = {
        (run_id, name, str(record.get(name)), str(quiet[run_id].get(name)))
        for run_id, record in disturbed.items()
        for name in {*record, *quiet[run_id]}
        if record.get(name) != quiet[run_id].get(name)
    }
    assert not differs
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
        found["kernel" if is_kernel(process) else "worker"].append(process.pid)
    what = min(found, key=lambda what: (kills[what], chance.random()))
    if not found[what]:
        return "nothing"
    try:
        psutil.Process(chance.choice(found[what])).kill()
    except psutil.Error:
        return "nothing"
    return what


# --- kills while files are written ---------------------------------------------------------------

QUICK = """\
# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---
# %% tags=["parameters"]
sweep_dir = ""
# %%
print("a report")
"""
PREPARES = """
import sys
from mptexp.training.data import cache, image_folders
prepared = cache.prepare(image_folders.source("folder:images", 0.2), 32, "rgb", "skip")
print(prepared.meta["content"], len(prepared.images("train")[:]))
"""
MPTEXP = [sys.executable, "-m", "mptexp"]
REPORTS = ["--notebook", "quick.py"]
# What is killed, and a file that shows that it is at work on one of its own.
COMMANDS = {
    "report": ([*MPTEXP, "report", "sweep", *REPORTS], "sweep/.*"),
    "publish": ([*MPTEXP, "publish", "sweep", "--to", "site", *REPORTS], "site/**/.*"),
    "cache": ([sys.executable, "-c", PREPARES], "cache/mptexp/**/*.partial/*"),
    "index": ([sys.executable, "-c", PREPARES], "cache/mptexp/index/.*"),
    "record": ([*MPTEXP, "run", "light.yaml", "--no-report"], "reports/light/**/.record.json*"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_kill_while_files_are_written_leaves_nothing_half(light, tmp_path, capsys, name):
    light({"seed": [0]})
    (tmp_path / "quick.py").write_text(QUICK)
    written_sweep(tmp_path / "sweep", "GPU", 1)
    write_images(tmp_path / "images/a", 200)
    write_images(tmp_path / "images/b", 200)
    command, sign = COMMANDS[name]
    began = time.monotonic()
    usual = _done(command, tmp_path)
    usual_s = time.monotonic() - began
    chance, killed = random.Random(name), Counter()
    for number in range(max(2, RUNS // 10)):
        for made in ("site", "cache", "reports"):
            if chance.random() < 0.7:  # else it goes on from what there is
                shutil.rmtree(tmp_path / made, ignore_errors=True)
        after = None if number % 2 else chance.uniform(0, usual_s)
        killed[_killed(command, tmp_path, sign, after, 3 * usual_s)] += 1
        until(lambda: not processes_of(tmp_path))
        again = _done(command, tmp_path)
        assert again == usual, name
    with capsys.disabled():
        print(f"\n{name}: {dict(killed)}")


@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name][0][1] == "-m"])
def test_ctrl_c_at_any_moment_is_a_line_and_the_same_command_goes_on(light, tmp_path, capsys, name):
    light({"seed": [100, 101]})
    written_sweep(tmp_path / "sweep", "GPU", 1)
    command = [word for word in COMMANDS[name][0] if word not in REPORTS]  # the usual report
    began = time.monotonic()
    _done(command, tmp_path)
    usual_s = time.monotonic() - began
    chance, ended = random.Random(name), Counter()
    for _ in range(max(2, RUNS // 10)):
        for made in ("site", "reports"):
            if chance.random() < 0.7:
                shutil.rmtree(tmp_path / made, ignore_errors=True)
        ended[_interrupted(command, tmp_path, chance.uniform(0.05, usual_s))] += 1
        until(lambda: not processes_of(tmp_path))
    _done(command, tmp_path)
    with capsys.disabled():
        print(f"\n{name}, Ctrl-C: {dict(ended)}")


def _interrupted(command, folder, after):
    """The exit status of a command whose whole group of processes gets Ctrl-C's signal."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        command, cwd=folder, env=_own(folder), start_new_session=True, **pipes
    ) as started:
        time.sleep(after)
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGINT)
        _, errors = started.communicate()
    assert started.returncode in (0, 130), errors
    assert len(errors.splitlines()) == (started.returncode == 130), errors
    return started.returncode


def _killed(command, folder, sign, after, most):
    """Kills a command after some seconds, or when a file of this name is there; which of them."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_own(folder)
    ) as started:
        ends, how = time.monotonic() + (most if after is None else after), "at some time"
        while started.poll() is None and time.monotonic() < ends:
            if after is None and any(folder.glob(sign)):
                how = "while writing"
                break
            time.sleep(0.001)
        if started.poll() is not None:
            return "not at all"
        started.kill()
    return how


def _own(folder):
    return {**os.environ, "MPTEXP_DATA_DIR": str(folder / "cache")}


def _done(command, folder):
    """What a command that is not disturbed leaves: its last line, and the files that stay."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=_own(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for part in ("sweep", "site")
        for path in (folder / part).rglob("*")
        if path.is_file() and not path.name.startswith(".") and path.name != "sweep.json"
    }
    images = done.stdout.splitlines()[-1] if command[1] == "-c" else ""
    runs = store.read_records(SweepDir(folder / "reports/light"))
    return images, files, len(runs[0]), runs[1]


# --- forks of a process that has imported a framework --------------------------------------------

FORKS = """
import os, select, sys, time
from mptexp import training
from mptexp.execution import fork_server
training.preload({"backend": "tensorflow", "cpu_isa": "default"})
import keras, numpy as np, tensorflow as tf
pages = fork_server._resident()
def computes(number):
    fork_server._advise(pages)
    batches = tf.data.Dataset.range(64).map(lambda i: tf.cast(i, "float32"), tf.data.AUTOTUNE)
    batches = batches.batch(8).prefetch(tf.data.AUTOTUNE)
    assert sum(float(tf.reduce_sum(batch)) for batch in batches) == 2016
    product = tf.function(lambda x: tf.linalg.matmul(x, x), autograph=False)(tf.ones((256, 256)))
    assert float(product[0, 0]) == 256
    if number % 10 == 0:
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(batches.map(lambda x: (x[:, None], x)), shuffle=False, verbose=0)
def ended(child, within_s):
    handle = os.pidfd_open(child)
    done = select.select([handle], [], [], within_s)[0]
    os.close(handle)
    return done and os.waitpid(child, 0)[1] == 0
for number in range(int(sys.argv[1])):
    child = fork_server._forked()
    if not child:  # as a worker, which forks its Jupyter kernel
        kernel = fork_server._forked()
        if not kernel:
            computes(number)
            os._exit(0)
        os._exit(0 if ended(kernel, 300) else 1)
    if not ended(child, 330):
        sys.exit(f"fork {number} hung or failed")
    if number % 50 == 49:
        print(number + 1, file=sys.stderr, flush=True)
print("none hung")
"""


def test_no_fork_of_a_process_with_a_framework_hangs():
    forks = os.environ.get("MPTEXP_SOAK_FORKS", "500")
    done = subprocess.run([sys.executable, "-c", FORKS, forks], capture_output=True, text=True)
    assert done.stdout == "none hung\n", done.stderr
