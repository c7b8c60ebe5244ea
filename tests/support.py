"""What tests call: the command line as a user runs it, made images, traces and libraries."""

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import forked
import numpy as np
import psutil
import pytest
from PIL import Image

PROJECT = Path(__file__).resolve().parent.parent
# Ceilings that tests measure beside one another must not become the user's. Processes of pytest
# share them, but do not see one another's sweeps measure.
SHARED = PROJECT / ".pytest_cache/user/mptexp"
CACHE = PROJECT / f".pytest_cache/user{os.environ.get('PYTEST_XDIST_WORKER', '-alone')}"
for _name in ("ceilings", "pages"):
    (SHARED / _name).mkdir(parents=True, exist_ok=True)
    (CACHE / "mptexp").mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (CACHE / "mptexp" / _name).symlink_to(SHARED / _name)
os.environ["XDG_CACHE_HOME"] = str(CACHE)

# What a test waits for at most: long, for it only ends what would hang, however slow the machine.
PATIENCE_S = 600

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
from mptexp.records import schema, store
from mptexp.spec.run import Run
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
def waits():  # until a test gives it leave: see support.Gate
    gate = Path(os.environ["MPTEXP_TEST_GATE"])
    here = gate / f"{{os.getpid()}} {{os.environ.get('CUDA_VISIBLE_DEVICES', '')}}.here"
    here.touch()
    while True:
        for leave in gate.glob("leave-*"):
            try: leave.unlink()
            except FileNotFoundError: continue  # another run has taken it
            return here.unlink()
        time.sleep(0.02)
def prints(): print("x" * 50_000_000)
def floods():
    os.system("sleep 600 &")
    while True: print("flood " * 100)
def fills(): (folder / "much").write_bytes(bytes(8_000_000))
def grows(): bytearray(600_000_000)
ending = [lambda: None, raises, killed, memory, lambda: False, hangs, sleeps]
ending += [leaves, exits, prints, floods, fills, grows, *[waits] * 3]
ending = ending[run.seed - run.block] if run.seed < 100 else lambda: time.sleep(run.seed / 1e3)
print("home is", Path.home())
began = time.time()
if ending() is not False:
    store.write_record(folder / "record.json", {{
        "schema": schema.SCHEMA, "run_id": run.run_id(os.environ["MPTEXP_NOTEBOOK"]),
        "parameters": run.model_dump(), "status": "ok", "error": "", "history": [],
        "timing": {{"step_s": 0.001}}, "in_force": {{"default_policy": "float32"}},
        "identity": {{"notebook": "light"}},
        "home": str(Path.home() / "x"), "not a number": [math.nan, math.inf],
        "seen": os.environ.get("CUDA_VISIBLE_DEVICES"), "span": [began, time.time()],
    }})
"""


def mptexp(*words, cwd, **environment):
    """Runs the command line in a child process that has its imports behind it: see forked.py."""
    environment = {**os.environ, "COLUMNS": "120", **environment}
    return forked.run("command", ["-m", "mptexp", *map(str, words)], cwd, environment)


def mptexp_anew(*words, cwd):
    """Runs the command line in a child process from its start, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "mptexp", *map(str, words)],
        cwd=cwd,
        env=os.environ | {"COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@contextmanager
def started(*words, cwd, **environment):
    """The command line in a child process that works beside the test, and ends with it at last."""
    child = subprocess.Popen(
        [sys.executable, "-m", "mptexp", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def passes_under(backend, file, *options):
    """Runs a file's tests under another backend, in a child process."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    words = ["-q", "-p", "no:cacheprovider", file, *options]
    words += ["-W", "ignore:__array__:DeprecationWarning"]  # of PyTorch, within Keras
    environment = os.environ | {"KERAS_BACKEND": backend, "MPTEXP_SKIPS_FAIL": ""}
    program = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = forked.run(backend, ["-c", program, *words], Path.cwd(), environment)
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


def left_behind(folder):
    """What processes have left in a temporary folder.

    But for what a process that a test has killed could not take with it (a run's folder, functions
    that TensorFlow has rewritten), and for Ray's own.
    """
    known = re.compile(
        r"mptexp\w+|\w+\.(socket|lock)|jax|ray|__pycache__|__autograph_generated_file\w+\.py"
    )
    return sorted(path.name for path in folder.iterdir() if not known.fullmatch(path.name))


def records(folder, name="light"):
    """The records of a sweep below a folder's reports, none of them damaged."""
    from mptexp.records import store, sweep_dir

    read, damaged = store.read_records(sweep_dir.SweepDir(folder / "reports" / name))
    assert not damaged
    return read


def by_seed(folder, name="light"):
    """Its records by the seed that the params file gave them."""
    return {r["parameters"]["seed"] - r["parameters"]["block"]: r for r in records(folder, name)}


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


def is_kernel(process):
    """Whether one of a run's processes is its Jupyter kernel or below it, not the worker."""
    try:
        return "MPTEXP_RUN_DIR" in process.parent().environ()
    except (psutil.Error, AttributeError):
        return False


class Gate:
    """Where runs of the light notebook with seeds 13 to 15 wait, so that no test has to hurry.

    Attributes:
        folder: where a run notes that it waits; runs are told of it as MPTEXP_TEST_GATE.
    """

    def __init__(self, folder):
        self.folder, self.given = folder, 0
        folder.mkdir()

    def waiting(self):
        """The GPUs that each run sees which waits now, by its Jupyter kernel's process id."""
        names = [path.stem.partition(" ") for path in self.folder.glob("*.here")]
        return {int(pid): gpus for pid, _, gpus in names if psutil.pid_exists(int(pid))}

    def let(self, runs=1):
        """Lets so many runs end that wait or will wait."""
        for _ in range(runs):
            self.given += 1
            (self.folder / f"leave-{self.given}").touch()


def until(condition, seconds=PATIENCE_S, of=None):
    """Waits until a condition holds; an assertion error where it does not come to hold.

    It tells what comes late, as on a machine with other things to do, from what never comes.

    Args:
        of: the process that is to bring it about: where it has ended, waiting would be in vain.
    """
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        assert of is None or of.poll() is None, of.communicate()
        time.sleep(0.05)


def interrupt(process, thread=0):
    """Sends Ctrl-C's signal to one thread of a process: 0 is its main one, -1 its youngest.

    The system may give a process's signal to any thread, which Python's main thread must notice.
    """
    chosen = sorted(each.id for each in psutil.Process(process.pid).threads())[thread]
    tgkill = 234 if platform.machine() == "x86_64" else 131  # 131: aarch64
    assert ctypes.CDLL(None).syscall(tgkill, process.pid, chosen, int(signal.SIGINT)) == 0


def heeding_permissions(*words):
    """A command that may read only what permissions grant it, also where root gives it."""
    lost = "-dac_override,-dac_read_search"
    dropped = ["setpriv", f"--bounding-set={lost}", f"--inh-caps={lost}"]
    return [*(dropped if os.geteuid() == 0 else ()), sys.executable, *map(str, words)]


@contextmanager
def small_disk(folder, megabytes):
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def noise(count=4, size=16, channels=1, seed=0):
    """Random images, uint8."""
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, size, size, channels), np.uint8)


def write_images(path, n=4, start=0):
    path.mkdir(parents=True, exist_ok=True)
    for i in range(start, start + n):
        noise = np.random.default_rng([i, len(str(path))]).integers(0, 256, (12, 9, 3), np.uint8)
        Image.fromarray(noise).save(path / f"{i}.png")


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


# --- synthetic traces of a GPU ----------------------------------------------------------------


def gpu_trace(path, events, steps, step_us=1000, mark_us=None):
    """Writes a profiler's trace: marked steps that follow one another, and events on GPU or host.

    A mark lasts as long as its step, or as said.

    An event is ("gpu", "host" or "python", name, start, duration, stats); times in microseconds.
    Steps are marked on the thread "python", others work on "host".
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    host = space.planes.add(name="/host:CPU", id=1)
    python = host.lines.add(id=1, name="python", timestamp_ns=1_000_000)
    executor = host.lines.add(id=2, name="tf_Compute/1", timestamp_ns=1_000_000)
    gpu = space.planes.add(name="/device:GPU:0", id=2)
    stream = gpu.lines.add(id=7, name="Stream #7(Kernel)", timestamp_ns=1_000_000)
    for step in range(steps):
        _event(
            host, python, "train", step * step_us, mark_us or step_us, {"step_num": step, "_r": 1}
        )
    for where, *event in events:
        plane, line = {"gpu": (gpu, stream), "host": (host, executor), "python": (host, python)}[
            where
        ]
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


# --- a GPU that is pretended -------------------------------------------------------------------

# NVML's functions that are asked, with what an H100 might answer; the third call of the power
# reading fails, as it does on cards that lack it.
ONE_GPU = """
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned f) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int e) { return "an error"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)1; return i ? 2 : 0; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) {
  const char *name = "NVIDIA H100"; for (unsigned i = 0; i < 12; i++) s[i] = name[i]; return 0; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) { s[0] = 'G'; s[1] = 0; return 0; }
int nvmlDeviceGetUtilizationRates(void *h, Utilization *u) { u->gpu = 87; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, Memory *m) {
  m->total = 85899345920ull; m->used = 1073741824ull; return 0; }
int nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { return 3; /* not supported */ }
int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *mj) {
  *mj = 123456; return 0; }
int nvmlDeviceGetClockInfo(void *h, int kind, unsigned *mhz) {
  *mhz = kind == 1 ? 1980 : 7; return 0; }
int nvmlDeviceGetTemperature(void *h, int s, unsigned *c) { *c = 61; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, unsigned long long *r) {
  *r = 0x4; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void *h, unsigned long long *r) { *r = 0x4; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, void *p) { *n = 0; return 0; }
"""
