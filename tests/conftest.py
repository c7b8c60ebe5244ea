"""What the tests share: a tiny real sweep, notebooks without a framework, and the rule on skips."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

PROJECT = Path(__file__).resolve().parent.parent
# Ceilings that tests measure beside one another must not become the user's.
os.environ["XDG_CACHE_HOME"] = str(PROJECT / ".pytest_cache/user")

TINY = """\
# Question: Does the whole path work?
# Cost: under a minute
# Expected: two runs that end well and one that this CPU does not support
defaults: {image_size: 8, width: 0.125, epochs: 2, batch_norm_momentum: 0.9, batch_size: 64}
matrix:
  policy: [float32, mixed_bfloat16, tensorfloat32]
repeats: 1
timeout_min: 5
"""

# A notebook whose ending depends on its seed; it imports no framework, so a run takes seconds.
LIGHT = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---
# %% tags=["parameters"]
{parameters}
# %%
import json, math, os, signal, time
from pathlib import Path
from mptexp import store
from mptexp.spec import Run
run = Run.read(globals())
folder = Path(os.environ["MPTEXP_RUN_DIR"])
def raises(): raise ValueError("the second value is odd\\nand more")
def killed(): os.kill(os.getpid(), signal.SIGKILL)
def memory(): raise MemoryError("no more")
def silent(): raise SystemExit if False else None
def hangs(): time.sleep(600)
def sleeps(): time.sleep(3)
def leaves(): os._exit(0)
def exits(): raise SystemExit
def prints(): print("x" * 50_000_000)
def floods():
    os.system("sleep 600 &")
    while True: print("flood " * 100)
def fills(): (folder / "much").write_bytes(bytes(8_000_000))
def grows(): bytearray(600_000_000)
ending = [lambda: None, raises, killed, memory, lambda: False, hangs, sleeps]
ending += [leaves, exits, prints, floods, fills, grows]
ending = ending[run.seed - run.block] if run.seed < 100 else lambda: time.sleep(run.seed / 1e3)
print("home is", Path.home())
began = time.time()
if ending() is not False:
    store.write_record(folder / "record.json", {{
        "schema": store.SCHEMA, "run_id": run.run_id(os.environ["MPTEXP_NOTEBOOK"]),
        "parameters": run.model_dump(), "status": "ok", "error": "", "history": [],
        "timing": {{"step_s": 0.001}}, "in_force": {{"default_policy": "float32"}},
        "home": str(Path.home() / "x"), "not a number": [math.nan, math.inf],
        "seen": os.environ.get("CUDA_VISIBLE_DEVICES"), "span": [began, time.time()],
    }})
"""


def mptexp(*words, cwd, **environment):
    """Runs the command line in a child process, as a user would."""
    command = [sys.executable, "-m", "mptexp", *map(str, words)]
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def passes_under(backend, file, *options):
    """Runs a file's tests under another backend, in a child process."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, *options]
    command += ["-W", "ignore:__array__:DeprecationWarning"]  # of PyTorch, within Keras
    environment = os.environ | {"KERAS_BACKEND": backend, "MPTEXP_SKIPS_FAIL": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def nvml_library(folder, source):
    """Compiles C functions that answer as NVML's do; returns the folder of the library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "nvml.c").write_text(source)
    command = [compiler, "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "nvml.c"]
    subprocess.run(command, cwd=folder, check=True)
    return folder


def processes_of(folder):
    """The processes of runs whose results go somewhere below a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MPTEXP_RUN_DIR", "").startswith(str(folder)):
                found.append(process)
        except psutil.Error:
            continue
    return found


def until(condition, seconds=60):
    """Waits until a condition holds; an assertion error where it does not come to hold."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The folder of a user who has run the tiny sweep: params file, results, report.

    Tests read it and change nothing in it: all processes of one pytest share it.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "user"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "log.txt").exists():
            (folder / "tiny.yaml").write_text(TINY)
            done = mptexp("run", "tiny.yaml", cwd=folder)
            assert done.returncode == 0, done.stdout + done.stderr
            (folder / "log.txt").write_text(done.stdout)
    return folder


@pytest.fixture
def light(tmp_path):
    """A folder with a notebook without framework; call it with the matrix to get a params file."""
    from mptexp.spec import Run

    lines = [f"{name} = {field.default!r}" for name, field in Run.model_fields.items()]
    (tmp_path / "light.py").write_text(LIGHT.format(parameters="\n".join(lines)))

    def write(matrix, **top):
        path = tmp_path / "light.yaml"
        extra = "".join(f"{name}: {value}\n" for name, value in top.items())
        path.write_text(f"notebook: light.py\nmatrix: {matrix}\n{extra}")
        return path

    return write


def write_pictures(path, n=4, start=0):
    path.mkdir(parents=True, exist_ok=True)
    for i in range(start, start + n):
        noise = np.random.default_rng([i, len(str(path))]).integers(0, 256, (12, 9, 3), np.uint8)
        Image.fromarray(noise).save(path / f"{i}.png")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Two classes in a folder whose path a careless program stumbles over."""
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path / "cache"))
    root = tmp_path / "Bilder für später [1]"
    write_pictures(root / "Käse", 10)
    write_pictures(root / "brot & butter", 20)
    return root


# --- a real browser ----------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser):
    """A page that fails the test where its console reports an error or it asks the network."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    opened, faults = context.new_page(), []
    opened.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("request", lambda r: faults.append(r.url) if "://" in r.url[:8] else None)
    yield opened
    context.close()
    assert [f for f in faults if not f.startswith("file://")] == []


# --- order -----------------------------------------------------------------------------------
# Two processes take a file at a time: the longest first, lest one of them works alone at the end.
LONGEST = (
    "remote",
    "train",
    "without_tensorflow",
    "precision",
    "notebooks",
    "diagnose",
    "survival",
    "replicas",
)
LONGEST += ("sweep", "ready", "cli", "largest", "models", "report", "browser", "ceilings")


def pytest_collection_modifyitems(items):
    order = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


# --- skips -----------------------------------------------------------------------------------
# Where everything can be installed (CI), a skip that is not listed here is a failure: a test that
# never runs proves nothing.
ALLOWED_SKIPS = (
    "torch is not installed",
    "the shared pictures are not here",
    "no Chromium is installed",
    "only root can mount a small disk",
    "no control group for memory can be made here",
)


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("MPTEXP_SKIPS_FAIL") != "1" or reporter is None:
        return
    reasons = [str(report.longrepr) for report in reporter.stats.get("skipped", [])]
    unlisted = [r for r in reasons if not any(allowed in r for allowed in ALLOWED_SKIPS)]
    if unlisted:
        reporter.write_line("skips that are not listed: " + "; ".join(unlisted), red=True)
        session.exitstatus = 1


# --- synthetic traces of a GPU ----------------------------------------------------------------


def gpu_trace(path, events, steps):
    """Writes a profiler's trace: `steps` marked steps of 1000 us and events on GPU or host.

    An event is ("gpu" or "host", name, start, duration, stats); times in microseconds. No real
    trace of a GPU could be had so far; the fields are those that TensorFlow and JAX write.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    host = space.planes.add(name="/host:CPU", id=1)
    python = host.lines.add(id=1, name="python", timestamp_ns=1_000_000)
    executor = host.lines.add(id=2, name="tf_Compute/1", timestamp_ns=1_000_000)
    gpu = space.planes.add(name="/device:GPU:0", id=2)
    stream = gpu.lines.add(id=7, name="Stream #7(Kernel)", timestamp_ns=1_000_000)
    for step in range(steps):
        _event(host, python, "train", step * 1000, 1000, {"step_num": step, "_r": 1})
    for where, *event in events:
        plane, line = (gpu, stream) if where == "gpu" else (host, executor)
        _event(plane, line, *event)
    path.write_bytes(space.SerializeToString())


def _event(plane, line, name, start, duration, stats):
    known = len(plane.event_metadata) + 1
    plane.event_metadata[known].id = known
    plane.event_metadata[known].name = name
    made = line.events.add(
        metadata_id=known, offset_ps=int(start * 1e6), duration_ps=int(duration * 1e6)
    )
    for key, value in stats.items():
        ids = {entry.name: number for number, entry in plane.stat_metadata.items()}
        number = ids.get(key, len(ids) + 1)
        plane.stat_metadata[number].id = number
        plane.stat_metadata[number].name = key
        kind = "int64_value" if isinstance(value, int) else "str_value"
        made.stats.add(metadata_id=number, **{kind: value})
