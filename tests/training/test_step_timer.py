"""The clock for trainings that mptexp does not run: in child processes, as a user's script is."""

import copy
import json
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import numpy as np
import psutil
import pytest
from builders import record, tables
from forked import python
from support import mptexp

from mptexp.analysis import sweep_tables, two_sweeps
from mptexp.api import cells
from mptexp.diagnosis import pairs
from mptexp.errors import ParamsError
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.pages import first_screen_html
from mptexp.spec.backends import BACKENDS
from mptexp.training import environment, foreign_policy, onednn, step_timer
from mptexp.training.measure import sensors
from mptexp.training.step_timer import BESIDE, StepTimer

KERAS = """
import os
os.environ["KERAS_BACKEND"] = "{backend}"
import keras, numpy as np
import mptexp
keras.mixed_precision.set_global_policy("{policy}")
model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3),
                          keras.layers.GlobalAveragePooling2D(),
                          keras.layers.Dense(10, dtype="float32")])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
timer = mptexp.StepTimer(batch_size=16)
model.fit(np.random.rand(320, 8, 8, 1), np.zeros(320), batch_size=16, epochs=3, verbose=0,
          callbacks=[timer])
print(timer.record("{sweep}"))
"""

SILENT = type("Silent", (), {"samples": [], "is_alive": lambda self: True})()  # reads no sensors


OTHER = SimpleNamespace(synchronize=lambda _: None, holds_new=lambda: True)  # a framework


def timed(folder, policy, backend="tensorflow", sweep="sweep"):
    """Runs a script of a user's in a child process; returns its last line."""
    program = KERAS.format(backend=backend, policy=policy, sweep=sweep)
    done = python(program, {"backend": backend}, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_what_onednn_has_no_kernel_for_stands_in_a_record(tmp_path):
    made = store.read_record(tmp_path / timed(tmp_path, "mixed_float16"))
    native = "float16" in made["environment"]["native"]
    lacking = [*onednn.reference("tensorflow", "float16").values()] if native else []
    assert made["in_force"].get("reference", []) == lacking
    assert any("no float16 kernel here" in mark for mark in made["marks"]) is bool(lacking)


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_callback_of_keras_writes_a_record(tmp_path, backend):
    path = timed(tmp_path, "mixed_bfloat16", backend)
    record = store.read_record(tmp_path / path)
    assert record["parameters"]["policy"] == "mixed_bfloat16"
    assert record["parameters"]["backend"] == backend
    assert "bfloat16" in record["in_force"]["compute_dtype"]
    native = "bfloat16" in record["environment"]["native"]
    assert record["in_force"]["emulated"] is not native
    # Each epoch's last step belongs to no window.
    assert sum(w["steps"] for w in record["windows"]) == 3 * 19
    assert record["timing"]["first_step_s"] > 0
    assert record["peak_memory_bytes"] > 2**20
    assert "identity" not in record
    assert {"data", "initial_weights"} <= set(record["lacks"])


def test_report_takes_the_record_and_claims_nothing(tmp_path):
    for policy in ("float32", "mixed_bfloat16"):
        timed(tmp_path, policy)
    done = mptexp("report", "sweep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # The lie: "float32 (emulated: slower is expected)", of every policy.
    table = (tmp_path / "sweep" / "table.md").read_text().splitlines()
    assert [row for row in table if "float32" in row]
    assert not [row for row in table if "float32" in row and "emulated" in row]
    checked = mptexp("report", "sweep", "--check", cwd=tmp_path)
    assert checked.returncode == 1
    assert "identity not recorded" in checked.stdout
    # The lies: remedies that there are not, settings that nobody chose.
    said = checked.stdout + (tmp_path / "sweep" / "index.html").read_text()
    for false in ("--repair", "measures them again", "diagnose", "Reproduce this", "32 pixels"):
        assert false not in said
    assert "et mptexp run the training" in checked.stdout
    assert "Keras 3" in said
    compared = mptexp("compare", "sweep", "sweep", "--format", "json", cwd=tmp_path)
    assert compared.returncode in (0, 1)
    points = json.loads(compared.stdout)["points"] if compared.stdout else []
    assert all(point["low"] is None for point in points)


def test_float32_and_mixed_precision_timed_in_two_scripts_are_compared(tmp_path):
    for policy in ("float32", "mixed_bfloat16"):
        timed(tmp_path, policy, sweep=policy)
    done = mptexp("compare", "float32", "mixed_bfloat16", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["points"]
    assert point["policy"] == "float32 | mixed_bfloat16"
    assert point["ratio"] == pytest.approx(point["step_s_a"] / point["step_s_b"])
    assert point["low"] is None  # nothing is claimed of one session a side without identity


class Clock:
    """The time that a timer reads, of which a test says how much went by."""

    now = 100.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """Time that passes where a test says so, and whatever else the machine does nowhere else."""
    made = Clock()
    monkeypatch.setattr(step_timer, "time", made)
    return made


def test_a_loop_is_timed_in_windows_that_wait_for_the_device(clock):
    waited = []
    timer = StepTimer(synchronize=lambda: waited.append(1), batch_size=4, backend="torch")
    timer._sampler = SILENT
    loop(timer, 40, lambda _: None, clock)
    assert [w["steps"] for w in timer.windows] == [*[1] * 6, 2, 4, 8, 16]
    # Before and after each window, and before the one that did not end; not before a step was made.
    assert len(waited) == 2 * len(timer.windows)
    assert timer.timing()["step_s"] == pytest.approx(0.001)


def test_a_loop_in_jax_is_refused_without_what_it_waits_for():
    # The lie: 0.007 ms a step of 11 ms: launches, in a record without a word.
    timer = StepTimer(batch_size=4, backend="jax")
    with pytest.raises(ParamsError, match="launches are timed, not steps"), timer.step():
        pass
    assert timer._sampler is None


JAX = """
import time
import jax, jax.numpy as jnp
from mptexp import StepTimer
def step(w, x):
    for _ in range(6):
        w = w + 1e-3 * jnp.tanh(x @ w) @ w
    return w
step = jax.jit(step, donate_argnums={donated})
x, w, count = jnp.full((600, 600), 0.01), jnp.eye(600), 20
w = step(w, x).block_until_ready()
old, live = jnp.ones(3), jax.live_arrays
scratch = [jnp.full(3, k) for k in range(count)]
old.delete()
jax.live_arrays = lambda: [old, *live()]  # another thread has deleted it meanwhile
timer = StepTimer(synchronize=x.block_until_ready, batch_size=4)
began = time.perf_counter()
for _ in range(count):
    with timer.step():
        w = step(w, x)
    scratch.pop().delete()
w.block_until_ready()
whole = (time.perf_counter() - began) / count
timed = timer.windows
print(sum(w["seconds"] for w in timed) / sum(w["steps"] for w in timed) / whole)
timer._end()
"""


@pytest.mark.parametrize("donated", ["()", "(0,)"])
def test_a_loop_in_jax_that_waits_for_an_old_array_is_timed_by_its_steps(tmp_path, donated):
    # The lie: 0.016 ms a step of 213 ms: launches, as what was waited for was ready before.
    done = python(JAX.replace("{donated}", donated), {"backend": "jax"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0.3 < float(done.stdout) < 3, done.stdout


DROPPING = """
import jax, jax.numpy as jnp
from mptexp import StepTimer
predict = jax.jit(lambda w, x: jnp.tanh(x @ w))
w, x = jnp.eye(300), jnp.ones((300, 300))
timer = StepTimer(synchronize=lambda: jax.block_until_ready(w), batch_size=4, policy="float32")
for _ in range(30):
    with timer.step():
        {step}
print(timer.record("sweep"))
"""


@pytest.mark.parametrize(
    ("step", "is_said"), [("predict(w, x)", True), ("y = predict(w, x)", False)]
)
def test_results_in_jax_that_nobody_holds_are_said_not_to_be_waited_for(tmp_path, step, is_said):
    # The lie: 0.01 ms a step of 42 ms, and not a word.
    done = python(DROPPING.replace("{step}", step), {"backend": "jax"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    marks = store.read_record(tmp_path / done.stdout.splitlines()[-1])["marks"]
    assert (step_timer.DROPPED in marks) is is_said


@pytest.fixture
def alone(monkeypatch):
    """A process that has imported no framework, as far as the timer can see."""
    for name in BACKENDS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return lambda name: monkeypatch.setitem(sys.modules, name, ModuleType(name))


@pytest.mark.parametrize("other", ["tensorflow", "torch"])
def test_a_framework_is_not_guessed_where_another_is_imported(alone, other):
    # The lie: a loop in JAX in no time, as it was taken for the other framework's.
    alone("jax"), alone(other)
    timer = StepTimer(batch_size=4, policy="float32")
    with (
        pytest.raises(ParamsError, match=r"backend is None, and \w+ and \w+ are imported"),
        timer.step(),
    ):
        pass
    assert timer._sampler is None


def test_a_framework_that_the_first_step_imports_is_known(alone, monkeypatch):
    def second(*names, **words):
        timer = StepTimer(batch_size=4, **words)
        for name in (None, *names):
            with timer.step():
                alone(name or "unknown")
        return timer

    monkeypatch.setattr(step_timer, "backend", lambda name: OTHER)
    monkeypatch.setattr(StepTimer, "_kind", lambda timer: "cpu")  # of a framework without devices
    with pytest.raises(ParamsError, match="launches are timed, not steps"):
        second("jax", "jax")
    with pytest.raises(ParamsError, match=r"jax and torch are imported"):
        second("torch", "torch", synchronize=lambda: None)
    assert second("jax", "jax", backend="torch").backend == "torch"


def test_steps_before_any_framework_are_recorded_as_none_of_it(alone, tmp_path):
    timer = StepTimer(batch_size=4, policy="float32")
    loop(timer, 12, lambda _: None)
    alone("tensorflow")
    with pytest.raises(ParamsError, match=r"no framework was imported before \d+ windows ended"):
        timer.record(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_loop_on_a_gpu_waits_by_its_frameworks_own_means(clock, monkeypatch):
    waited = []
    own = SimpleNamespace(synchronize=waited.append, holds_new=lambda: True)  # there is no GPU here
    monkeypatch.setattr(step_timer, "backend", {"torch": own}.__getitem__)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    timer = StepTimer(batch_size=4, backend="torch")
    timer._sampler = SILENT
    loop(timer, 9, lambda _: None, clock)
    assert len(waited) == 2 * len(timer.windows) + 1


def test_a_loop_that_has_not_used_the_gpu_is_not_recorded_as_of_it(clock, monkeypatch, tmp_path):
    # The lie: an H100 in the record of a loop that computed on the CPU, or on another GPU.
    own = SimpleNamespace(**vars(OTHER), peak_memory_bytes=lambda: 0)  # no GPU here
    monkeypatch.setattr(step_timer, "backend", {"torch": own}.__getitem__)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    card = {"device": "NVIDIA H100", "kind": "gpu"}
    monkeypatch.setattr(environment, "card", lambda name: card)
    timer = StepTimer(batch_size=4, backend="torch", policy="float32")
    timer._sampler = SILENT
    loop(timer, 99, lambda _: None, clock)
    timer._sampler = None
    with pytest.raises(ParamsError, match="no step has used NVIDIA H100, the GPU that torch takes"):
        timer.record(tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def loop(timer, steps, between, clock=time):
    for number in range(steps):
        with timer.step():
            clock.sleep(0.001)
        between(number)


def test_what_lies_between_two_steps_counts_in_every_window_of_a_loop(clock):
    timer = StepTimer(batch_size=4, backend="torch")
    timer._sampler = SILENT
    loop(timer, 30, lambda _: clock.sleep(0.004), clock)  # the wait for a batch
    assert len({w["steps"] for w in timer.windows}) > 1
    for window in timer.windows:
        assert window["seconds"] == pytest.approx(0.005 * window["steps"])


def test_windows_are_of_the_machines_clock():
    timer = StepTimer(batch_size=4, backend="torch")
    timer._sampler = SILENT
    began = time.perf_counter()
    loop(timer, 30, lambda _: time.sleep(0.004))
    took = time.perf_counter() - began
    assert all(w["seconds"] >= 0.005 * w["steps"] for w in timer.windows)  # no sleep is short
    assert sum(w["seconds"] for w in timer.windows) <= took


def test_a_pause_and_an_exception_belong_to_no_window(clock):
    timer = StepTimer(batch_size=4, backend="torch")
    timer._sampler = SILENT
    loop(timer, 12, lambda n: None if n % 4 < 3 else (timer.pause(), clock.sleep(0.5)), clock)
    with pytest.raises(ZeroDivisionError), timer.step():
        1 / 0  # noqa: B018
    clock.sleep(0.5)
    loop(timer, 12, lambda _: None, clock)
    assert max(w["seconds"] for w in timer.windows) < 0.5


def test_to_record_between_two_steps_is_no_step(clock, tmp_path, monkeypatch):
    # The lie: 5.5 s of writing a record, and of starting the sensors anew, as a step's.
    timer = StepTimer(batch_size=4, backend="tensorflow", policy="float32")
    monkeypatch.setattr(StepTimer, "_write", lambda *_: clock.sleep(5.5))
    monkeypatch.setattr(StepTimer, "_kind", lambda timer: clock.sleep(0.5) or "cpu")
    loop(timer, 80, lambda n: timer.record(tmp_path) if n % 10 == 9 else None, clock)
    assert timer.windows[-1]["first_step"] >= 70
    for window in timer.windows:
        assert window["seconds"] == pytest.approx(0.001 * window["steps"])


def test_a_step_within_another_is_refused_and_the_next_is_timed(clock):
    # The lie: half the time of a step, of two that overlap.
    timer = StepTimer(batch_size=4, backend="torch")
    timer._sampler = SILENT
    refused = pytest.raises(ParamsError, match="a step of this timer has not ended")
    with refused, timer.step(), timer.step():
        pass
    with ThreadPoolExecutor(1) as pool, timer.step():
        other = pool.submit(loop, timer, 1, lambda _: None, clock)
        assert "has not ended" in str(other.exception())
    loop(timer, 12, lambda _: None, clock)
    assert timer.timing()["step_s"] == pytest.approx(0.001)


def test_fits_of_one_timer_count_steps_of_several_at_once_and_not_what_lies_between(clock):
    class Model:
        steps_per_execution = 5

    timer = StepTimer(batch_size=4, backend="torch", synchronize=lambda: None)
    timer.model, timer._sampler, timer.params = Model(), SILENT, {"steps": 20}
    for _ in range(2):  # the first of them is interrupted in its last steps, by an exception
        timer.on_train_begin()
        for batch in (0, 5, 10, 15):
            timer.on_train_batch_begin(batch)
            clock.sleep(0.01)
        clock.sleep(0.5)
    assert [w["steps"] for w in timer.windows] == [5] * 6
    assert [w["first_step"] for w in timer.windows] == [0, 5, 10, 20, 25, 30]
    assert [w["seconds"] for w in timer.windows] == pytest.approx([0.01] * 6)


def test_an_epoch_of_unknown_length_is_timed_in_windows_of_several_steps(clock):
    timer = StepTimer(batch_size=4, backend="torch", synchronize=lambda: None)
    timer._sampler, timer.params = SILENT, {"steps": None}
    for batch in range(60):
        timer.on_train_batch_begin(batch)
        clock.sleep(0.001)
    assert timer.windows[-1]["steps"] > 1


def test_too_few_steps_and_wrong_words_are_one_sentence(tmp_path):
    with pytest.raises(ParamsError, match="policy 'half': unknown; allowed: float32"):
        StepTimer(policy="half")
    timer = StepTimer(backend="torch")
    with pytest.raises(ParamsError, match="batch_size is None"):
        timer.record(tmp_path)
    timer = StepTimer(backend="torch", batch_size=2)
    with pytest.raises(ParamsError, match="0 windows of steps were timed; allowed: at least 7"):
        timer.record(tmp_path)
    assert list(tmp_path.iterdir()) == []
    for words, why in (
        ({"batch_size": 0}, "batch_size is 0; allowed: an integer of at least 1 and of at most"),
        ({"batch_size": 10**7}, "batch_size is 10000000; allowed: an integer"),
        ({"batch_size": True}, "batch_size is true; allowed: an integer"),
        ({"policy": "int8"}, "policy 'int8': unknown; allowed: float32"),
        ({"backend": "mxnet"}, "backend 'mxnet': unknown; allowed: tensorflow"),
        ({"synchronize": True}, "synchronize is True; allowed: a function"),
        # The fault: a bare TypeError of `jax.block_until_ready` itself, after the first steps.
        ({"synchronize": np.shape}, "synchronize is .*: missing a required argument: 'a'; allowed"),
    ):
        with pytest.raises(ParamsError, match=why):
            StepTimer(**words)
    for passes in (time.time, lambda state=None: state, np.zeros(1).copy):  # the first tells none
        StepTimer(synchronize=passes)


def test_what_a_step_makes_is_not_waited_for_before_there_is_any(clock):
    # The fault: "name 'loss' is not defined", at the first step.
    made = []
    timer = StepTimer(synchronize=lambda: made[-1], batch_size=np.int64(4), backend="jax")
    timer._sampler = SILENT
    loop(timer, 12, made.append, clock)
    assert timer.timing()["step_s"] == pytest.approx(0.001)


def test_a_record_lies_where_it_is_looked_for(tmp_path, monkeypatch):
    # The faults: a folder named ~; one below the notebooks' folder, beside the one that is read.
    (tmp_path / "notebooks").mkdir(), (tmp_path / "reports").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    timer = StepTimer(batch_size=4, backend="tensorflow", policy="float32")
    loop(timer, 12, lambda _: None)
    for given in ("~/mine", "reports/mine"):
        assert timer.record(given).exists()
        assert len(cells.load(given)) == 1
    assert not [*(tmp_path / "notebooks").iterdir()]
    assert (tmp_path / "home/mine/runs").is_dir()
    for wrong in (None, 5, b"mine", "a\0b", "x" * 300):
        with pytest.raises(ParamsError, match="path"):
            timer.record(wrong)


def test_where_nothing_can_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    timer = StepTimer(batch_size=4, backend="tensorflow", policy="float32")
    timer._sampler = SILENT
    loop(timer, 12, lambda _: None)
    timer._sampler = None
    with pytest.raises(ParamsError, match="file: cannot be written: Not a directory"):
        timer.record(tmp_path / "file")


def test_what_was_recorded_before_is_kept_and_counted(tmp_path):
    # The loss: a second script's record took the place of the first's without a word.
    def timer():
        made = StepTimer(batch_size=4, backend="tensorflow", policy="float32")
        made._sampler = SILENT
        loop(made, 12, lambda _: None)
        made._sampler = None
        return made

    place, first = SweepDir(tmp_path), timer()
    path = first.record(tmp_path)
    before = path.read_text()
    first.record(tmp_path)  # the same once more, and with further steps
    first._sampler = SILENT
    loop(first, 4, lambda _: None)
    first._sampler = None
    assert first.record(tmp_path) == path
    assert len(store.read_record(path)["windows"]) > len(json.loads(before)["windows"])
    assert place.superseded_runs() == 0
    longer = path.read_text()
    assert timer().record(tmp_path) == path
    (kept,) = place.superseded.glob("*/record.json")
    assert kept.read_text() == longer != path.read_text()
    assert not place.partial.exists()
    assert place.discarded_runs() == 0
    path.unlink()
    assert place.discarded_runs() == 1


def test_a_training_of_hours_is_recorded_in_short(tmp_path):
    # The loss: a record of 80 MiB, which is more than is read.
    timer = StepTimer(batch_size=4, backend="tensorflow", policy="float32")
    loop(timer, 12, lambda _: None)
    timer._end()
    first, began = timer._samples[0], timer._opened[0]
    timer._samples = [{**first, "time": began + k / 4} for k in range(172_800)]
    timer.windows = [{"first_step": k, "steps": 1, "seconds": 0.2} for k in range(216_000)]
    timer._opened = [began + 0.2 * k for k in range(216_000)]
    path = timer.record(tmp_path)
    assert path.stat().st_size < 8 * 2**20
    kept = store.read_record(path)
    recorded = (
        "recorded in short, as it was long: 22 windows of steps are one, 1 of 18 readings is kept"
    )
    assert recorded in kept["marks"]
    assert kept["timing"] == timer.timing() | {"images_per_s": kept["timing"]["images_per_s"]}
    timer.windows.append({"first_step": 216_000, "steps": 1, "seconds": 0.2})
    timer._opened.append(began + 43_200)
    timer.record(tmp_path)  # goes on
    assert SweepDir(tmp_path).superseded_runs() == 0


def test_a_loop_without_a_policy_is_not_called_float32(tmp_path):
    # The lie: a loop under autocast, recorded as float32 beside the loop that is.
    timer = StepTimer(batch_size=4, backend="tensorflow")
    timer._sampler = SILENT
    loop(timer, 12, lambda _: None)
    timer._sampler = None
    with pytest.raises(ParamsError, match=r"policy is None, and of a loop nothing tells it"):
        timer.record(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_the_steps_of_another_model_are_not_counted_to_this_one():
    # The lie: 10 ms a step of a model of 30, timed by the timer of the one before.
    import keras

    timer = StepTimer(batch_size=4)
    first, second = (keras.Sequential([keras.layers.Dense(1)]) for _ in range(2))
    timer.set_model(first)
    timer._sampler = SILENT
    for batch in range(12):
        timer.on_train_batch_begin(batch)
    timer._sampler = None
    windows = len(timer.windows)
    timer.set_model(first)  # `fit` once more
    assert len(timer.windows) == windows > 0
    timer.set_model(second)
    assert timer.windows == []


def test_a_timer_is_of_a_loop_or_of_a_model():
    # The lies: 30 ms a step of a model of 1 ms, as a loop's steps were counted to it; the reverse.
    import keras

    model, timer = keras.Sequential([keras.layers.Dense(1)]), StepTimer(batch_size=4)
    timer.set_model(model)
    with pytest.raises(ParamsError, match="the steps of `fit` were timed by it"), timer.step():
        pass
    timer = StepTimer(batch_size=4, backend="torch")
    timer._sampler = SILENT
    loop(timer, 2, lambda _: None)
    with pytest.raises(ParamsError, match="the steps of a loop were timed by it"):
        timer.set_model(model)


def test_steps_of_what_a_model_was_before_are_forgotten(tmp_path):
    # The lies: windows of float32 in a record of bfloat16, eager ones beside compiled ones.
    timer = fitted(StepTimer(batch_size=16), "float32")
    model, x, y = timer.model, np.zeros((160, 8)), np.zeros((160, 2))

    def kept_after(**words):
        """Whether windows from before another training are still there after it."""
        before = timer.windows[0]
        model.compile("sgd", "mse", **words)
        model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[timer])
        return any(window is before for window in timer.windows)

    assert kept_after()  # all is as it was
    for layer in model.layers:
        layer.dtype_policy = "mixed_bfloat16"
    assert not kept_after()
    assert not kept_after(run_eagerly=True)
    model.layers[0].trainable = False
    assert not kept_after()
    model.layers[-1].dtype_policy = "float16"
    with pytest.raises(ParamsError, match="were changed since its steps were timed"):
        timer.record(tmp_path)


def fitted(timer, inner="mixed_bfloat16", units=64, batch_size=16, images=160, told=1):
    """A short training of a backbone with a float32 head, timed."""
    import keras

    entry = keras.Input((8,))
    backbone = keras.Model(entry, keras.layers.Dense(units, dtype=inner)(entry))
    head = [keras.layers.Dense(2, dtype="float32"), keras.layers.Dense(2, dtype="float32")]
    model = keras.Sequential([backbone, *head])
    model.compile("sgd", "mse")
    x, y = np.zeros((images, 8)), np.zeros((images, 2))
    validation = (x[:32], y[:32])  # which Keras's own count of the images then holds
    model.fit(x, y, batch_size=batch_size, epochs=3, verbose=0, callbacks=[timer] * told,
              validation_data=validation)  # fmt: skip
    return timer


def test_a_backbone_in_another_policy_than_its_head_is_the_policy(tmp_path):
    # The lie: "float32" of a model that computes in bfloat16 but for its head.
    record = store.read_record(fitted(StepTimer(batch_size=16)).record(tmp_path))
    assert record["parameters"]["policy"] == "mixed_bfloat16"
    assert record["in_force"]["compute_dtype"] == "bfloat16, float32"
    assert 0.5 < record["in_force"]["effective_share"] < 0.95  # named beside the policy


def test_a_layer_that_casts_nothing_computes_in_what_it_is_given(tmp_path):
    # The lie: "97 % of the arithmetic in bfloat16" of a model whose products are all in float32.
    import keras

    model = keras.Sequential(
        [keras.Input((8,))]
        + [keras.layers.Dense(n, dtype="mixed_bfloat16", autocast=False) for n in (64, 2)]
    )
    model.compile("sgd", "mse")
    timer = StepTimer(batch_size=16)
    x, y = np.zeros((160, 8)), np.zeros((160, 2))
    model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[timer])
    record = store.read_record(timer.record(tmp_path))
    assert record["parameters"]["policy"] == "mixed_bfloat16"
    assert record["in_force"]["effective_share"] == 0


def test_steps_without_a_graph_are_said_to_be(tmp_path):
    import keras

    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse", run_eagerly=True)
    timer = StepTimer(batch_size=16)
    model.fit(np.zeros((320, 8)), np.zeros((320, 2)), batch_size=16, verbose=0, callbacks=[timer])
    assert foreign_policy.EAGER in store.read_record(timer.record(tmp_path))["marks"]


def test_a_table_that_is_looked_up_in_is_no_arithmetic(tmp_path):
    # The lie: "float32", of a model that multiplies in bfloat16 and has a large vocabulary.
    import keras

    class Texts(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = keras.layers.Embedding(10_000, 16, dtype="float32")
            self.body = keras.layers.Dense(64, dtype="mixed_bfloat16")
            self.head = keras.layers.Dense(2, dtype="float32")

        def call(self, x):
            return self.head(self.body(keras.ops.mean(self.table(x), 1)))

    model, timer = Texts(), StepTimer(batch_size=16)
    model.compile("sgd", "mse")
    x, y = np.zeros((320, 8), "int32"), np.zeros((320, 2))
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[timer])
    assert store.read_record(timer.record(tmp_path))["parameters"]["policy"] == "mixed_bfloat16"


def test_steps_of_two_timers_at_once_are_said_to_be(tmp_path):
    # The lie: two models trained by turns, each with the time of both: "1.00x" of 8.9x.
    both = [StepTimer(batch_size=4, policy="float32", backend="tensorflow") for _ in range(2)]
    for timer in both:  # one after the other
        loop(timer, 20, lambda k: time.sleep(0.001))
    for timer in both:
        assert BESIDE not in store.read_record(timer.record(tmp_path / "apart"))["marks"]
    both = [StepTimer(batch_size=4, policy="float32", backend="tensorflow") for _ in range(2)]
    for _ in range(20):
        for timer in both:
            with timer.step():
                time.sleep(0.001)
    for timer in both:
        assert BESIDE in store.read_record(timer.record(tmp_path / "by turns"))["marks"]


def test_a_copy_of_a_timer_has_timed_nothing(tmp_path):
    # Once "cannot pickle '_thread.lock' object": tuners copy the callbacks of each trial.
    timer = StepTimer(batch_size=4, policy="float32", backend="tensorflow")
    loop(timer, 20, lambda k: None)
    other = copy.deepcopy({"callbacks": [timer]})["callbacks"][0]
    assert other.windows == [] != timer.windows
    loop(other, 20, lambda k: None)
    record = store.read_record(other.record(tmp_path))
    assert (record["parameters"]["batch_size"], record["parameters"]["policy"]) == (4, "float32")


def test_another_policy_than_that_of_the_model_is_refused(tmp_path):
    # The lie: "mixed_bfloat16" of a model in float32, as somebody had said so.
    timer = fitted(StepTimer(batch_size=16, policy="mixed_bfloat16"), "float32")
    with pytest.raises(ParamsError, match=r"policy is mixed_bfloat16, but the model's is float32"):
        timer.record(tmp_path)
    assert not [*tmp_path.iterdir()]
    timer = fitted(StepTimer(batch_size=16, policy="mixed_bfloat16"))
    record = store.read_record(timer.record(tmp_path))
    assert record["parameters"]["policy"] == "mixed_bfloat16"


def test_another_batch_size_than_that_of_fit_is_refused(tmp_path):
    # The lie: images per second too low by four, of batches of 128 called 32.
    timer = fitted(StepTimer(batch_size=16), batch_size=64, images=600)
    with pytest.raises(
        ParamsError, match="batch_size is 16, but `fit` trained on 64 images in 1 step;"
    ):
        timer.record(tmp_path)
    assert not [*tmp_path.iterdir()]
    last_is_smaller = fitted(StepTimer(batch_size=64), batch_size=64, images=600)
    assert last_is_smaller.record(tmp_path).exists()


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_another_batch_size_is_refused_of_short_epochs_too(tmp_path, backend):
    # The lie: images per second too high by a half: 60 images in 3 steps may be batches of 29.
    program = KERAS.replace("320", "60").replace("batch_size=16,", "batch_size=20,")
    program = program.replace("epochs=3", "epochs=8").replace("batch_size=16)", "batch_size=29)")
    program = program.format(backend=backend, policy="float32", sweep="sweep")
    done = python(program, {"backend": backend}, cwd=tmp_path)
    assert "batch_size is 29, but `fit` trained on 20 images in 1 step" in done.stderr
    right = python(program.replace("29", "20"), {"backend": backend}, cwd=tmp_path)
    assert right.returncode == 0, right.stderr[-2000:]


def plain(**words):
    """A small model, compiled, and a timer of batches of 16."""
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", **words)
    return model, StepTimer(batch_size=16)


def batches(count, images=16):
    for _ in range(count):
        yield np.zeros((images, 8)), np.zeros((images, 2))


FOREVER = 10**6


def train(model, timer, data, steps):
    """One epoch, of whose end Keras warns where the data say it."""
    with warnings.catch_warnings(action="ignore"):
        model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[timer])


@pytest.mark.parametrize(
    ("count", "steps", "at_once", "timed"),
    [(20, None, 1, 20), (90, None, 7, 84), (FOREVER, 60, 7, 56), (20, 30, 1, 20)],
)
def test_the_right_batch_size_is_not_refused_of_data_of_any_length(
    tmp_path, count, steps, at_once, timed
):
    # The lies: "320 images in 21 steps" of 20, "1008 images in 60 steps" of 63; in the time, of a
    # window of 7 steps that had 6, as the data ended.
    model, timer = plain(steps_per_execution=at_once)
    train(model, timer, batches(count), steps)
    kept = store.read_record(timer.record(tmp_path))
    assert not [mark for mark in kept["marks"] if mark.startswith("its batch size of")]
    assert all(w["first_step"] + w["steps"] <= timed for w in timer.windows)


@pytest.mark.parametrize("steps", [None, 60])
def test_another_batch_size_is_refused_of_data_of_any_length(tmp_path, steps):
    for at_once, images in ((1, 15), (1, 17), (7, 15), (7, 17)):
        model, timer = plain(steps_per_execution=at_once)
        data = batches(FOREVER if steps else 60, images)
        train(model, timer, data, steps)
        said = f"`fit` trained on {images * at_once} images in {at_once} step"
        with pytest.raises(ParamsError, match=said):
            timer.record(tmp_path)


@pytest.mark.parametrize("steps", [None, 60])
def test_batches_that_grow_within_an_epoch_are_refused(tmp_path, steps):
    def growing():
        yield from batches(30)
        yield from batches(30, 32)

    model, timer = plain()
    train(model, timer, growing(), steps)
    with pytest.raises(ParamsError, match=r"trained on \d+ images in at most \d+ steps;"):
        timer.record(tmp_path)


def test_a_smaller_last_batch_of_data_of_unknown_length_is_in_no_window():
    # The lie: 1,134 images a second, of images that take a millisecond each to make.
    def data():
        yield from batches(3)
        yield from batches(1, 2)

    model, timer = plain()
    for _ in range(12):
        train(model, timer, data(), None)
    assert sum(window["steps"] for window in timer.windows) >= 12
    # Of 3 full batches, the smaller one and a step that was begun in vain.
    firsts = [window["first_step"] % 5 for window in timer.windows]
    ends = [n + window["steps"] for n, window in zip(firsts, timer.windows, strict=True)]
    assert max(ends) <= 3


@pytest.mark.parametrize("told", ["never", "of validation"])
def test_a_callbacks_evaluation_within_an_epoch_refuses_no_right_batch_size(tmp_path, told):
    # The lie: "trained on 180 images in at most 11 steps", of 12 steps of 16; nothing recorded.
    import keras

    model, timer = plain()
    x, y = np.zeros((192, 8)), np.zeros((192, 2))

    def evaluate(batch, logs):
        if batch == 5:
            model.evaluate(x[:100], y[:100], verbose=0)

    other = keras.callbacks.LambdaCallback(on_train_batch_end=evaluate)
    more = {"validation_data": (x[:16], y[:16])} if told == "of validation" else {}
    model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[other, timer], **more)
    if more:  # then a count that disagrees may be that of other batches
        with pytest.raises(ParamsError, match="batch_size is 16, but `fit` trained on"):
            timer.record(tmp_path)
        return
    marks = store.read_record(timer.record(tmp_path))["marks"]
    assert any("is that of its first steps: Keras counted 180 images" in mark for mark in marks)


def test_integers_beside_layers_that_train_are_no_float32(tmp_path):
    # The lie: policy float32, of a model that has 99 % of its products in int8.
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((4, 4, 1)), layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(64)]
    )
    with warnings.catch_warnings(action="ignore"):  # of the convolution, which it leaves as it is
        model.quantize("int8")
    model.compile("sgd", "mse")
    timer = StepTimer(batch_size=16)
    x, y = np.zeros((320, 4, 4, 1)), np.zeros((320, 64))
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[timer])
    with pytest.raises(ParamsError, match="layers of the model are quantized to int8, the policy"):
        timer.record(tmp_path)


def test_a_peak_is_not_that_of_a_callback_before_the_timer(monkeypatch):
    # The lie: 2,749 MiB, of predictions at an epoch's end; the steps had 848.
    import keras

    held = [1000]
    monkeypatch.setattr(StepTimer, "_peak_now", lambda timer: max(held))
    model, timer = plain()
    grown = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: held.append(1111),
        on_epoch_end=lambda epoch, logs: held.append(3000),
    )
    x, y = np.zeros((160, 8)), np.zeros((160, 2))
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[grown, timer])
    assert timer._peak in (None, 1111)


@pytest.mark.parametrize("what", ["evaluate", "predict"])
@pytest.mark.parametrize("first", [False, True])
def test_an_evaluation_with_the_same_timer_leaves_the_steps_of_fit_alone(tmp_path, what, first):
    # The lies: "320 images in 4 steps" of 20, by the length of the evaluation's data; "64 images
    # in 20 steps", of an evaluation by a callback before the timer.
    import keras

    model, timer = plain()
    own = [] if first else [timer]
    other = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: getattr(model, what)(
            np.zeros((64, 8)), *[np.zeros((64, 2))] * (what == "evaluate"),
            batch_size=16, verbose=0, callbacks=own,
        )
    )  # fmt: skip
    x, y = np.zeros((320, 8)), np.zeros((320, 2))
    told = [other, timer] if first else [timer, other]
    model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=told)
    assert timer._total == 20  # by which an epoch's last steps are known, and its windows end
    assert timer.record(tmp_path).exists()
    assert sum(w["steps"] for w in timer.windows) == 3 * 19


@pytest.mark.parametrize(("images", "at_once"), [(320, 20), (320, 100), (16, 1)])
def test_an_epoch_of_one_execution_says_why_it_has_no_windows(tmp_path, images, at_once):
    # The lie: "allowed: at least 7, of more steps", of which no number would do.
    model, timer = plain(steps_per_execution=at_once)
    x, y = np.zeros((images, 8)), np.zeros((images, 2))
    model.fit(x, y, batch_size=16, epochs=9, verbose=0, callbacks=[timer])
    with pytest.raises(ParamsError, match=r"0 windows .* at least 7, of epochs with more batches"):
        timer.record(tmp_path)
    model, timer = plain()
    model.fit(x[:1], y[:1], verbose=0)
    with pytest.raises(ParamsError, match="at least 7, of more steps"):
        timer.record(tmp_path)


def test_the_tracing_of_a_later_fit_is_no_step():
    # The lie: "its steps are unequal", by the seconds that a compilation took between two fits.
    import keras

    model, timer = plain()
    x, y = np.zeros((160, 8)), np.zeros((160, 2))

    def first_steps():
        before = timer._step
        model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[timer])
        return [w["first_step"] - before for w in timer.windows if w["first_step"] >= before]

    assert first_steps()[0] == 0  # told as the first step
    assert first_steps()[0] == 0  # nothing is traced
    model.compile(keras.optimizers.SGD(0.1), "mse")
    assert first_steps()[0] == 1
    ordered = sorted(w["seconds"] / w["steps"] for w in timer.windows)
    assert ordered[-1] == timer.windows[0]["seconds"]


def test_a_timer_that_stands_twice_among_the_callbacks_counts_each_step_once():
    # The lie: half the time of a step, twice the images per second, of a cell that was run again.
    timer = fitted(StepTimer(batch_size=16), told=2)
    assert sum(w["steps"] for w in timer.windows) == 3 * 9  # as each epoch's last is in no window
    assert fitted(StepTimer(batch_size=160), batch_size=160, told=2)._step == 3  # one an epoch


def custom(batch_size, counts_steps=False):
    """A training by a step of the user's own: Keras's count of images is left alone, or misused."""
    import keras
    import tensorflow as tf

    class Custom(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            if counts_steps:  # as in Keras's guide
                self.metrics[0].update_state(loss)
            return {"loss": loss}

    entry, timer = keras.Input((8,)), StepTimer(batch_size=batch_size)
    model = Custom(entry, keras.layers.Dense(2)(entry))
    model.compile("sgd", "mse")
    data = np.zeros((160, 8)), np.zeros((160, 2))
    model.fit(*data, batch_size=16, epochs=2, verbose=0, callbacks=[timer], validation_data=data)
    return timer


def test_a_batch_size_that_nothing_could_be_held_against_is_named(tmp_path):
    # The lie: images per second too high by 32, of a training step of the user's own.
    def named(timer):
        marks = store.read_record(timer.record(tmp_path))["marks"]
        return [mark for mark in marks if mark.startswith("its batch size of")]

    (said,) = named(custom(512))
    assert "its batch size of 512 is as it was said" in said
    # The lie: "trained on 1 images in 1 step", of a step in Keras's guide, which counts steps.
    assert len(named(custom(16, counts_steps=True))) == 1
    assert named(fitted(StepTimer(batch_size=16))) == []
    timer = StepTimer(batch_size=4, backend="tensorflow", policy="float32")
    loop(timer, 12, lambda _: None)
    assert named(timer) == []  # of no loop is anything else known


def test_a_peak_is_of_the_steps_that_reached_it(tmp_path, monkeypatch):
    # The lie: 1 GiB of a model of 16 units, which the training before it in the process had held.
    def peak(policy, size):
        timer = StepTimer(batch_size=4, backend="tensorflow", policy=policy)
        loop(timer, 12, lambda _: np.ones(size, np.uint8))
        reached = sensors.peak_memory_bytes("cpu")
        return store.read_record(timer.record(tmp_path))["peak_memory_bytes"], reached

    environment.card("tensorflow")  # imports it, which takes memory too
    np.ones(2**28, np.uint8)  # what the process held before
    left = sensors.peak_memory_bytes("cpu") - psutil.Process().memory_info().rss
    monkeypatch.setattr(StepTimer, "_first", None)  # in this process other tests timed steps
    assert peak("bfloat16", 2**20)[0] is None
    monkeypatch.setattr(StepTimer, "_first", None)
    held, reached = peak("float32", left + 2**26)
    assert 0 <= reached - held < 2**20  # it is asked for later, and a page may have come to it
    assert peak("float16", left + 2**28)[0] is None  # higher, by what was left behind or its own


def test_a_peak_after_the_steps_or_between_them_is_not_theirs(monkeypatch, clock):
    # The lie: 1 GiB of steps that took 20 MiB, by what the process held after the last of them.
    held = [100]
    monkeypatch.setattr(StepTimer, "_first", None)
    monkeypatch.setattr(StepTimer, "_peak_now", lambda timer: max(held))
    timer = StepTimer(batch_size=4, backend="tensorflow", policy="float32")
    loop(timer, 12, lambda n: held.append(100 + n), clock)
    timer.pause()
    held.append(1000)  # an evaluation
    loop(timer, 12, lambda _: None, clock)
    held.append(2000)
    timer._drop(), timer._end()
    assert timer._own_peak() == 111
    timer.pause()
    loop(timer, 12, lambda _: held.append(3000), clock)
    assert timer._own_peak() == 3000


def test_sensors_are_of_the_steps(tmp_path):
    # The lies: "measured while the process was stopped", after the last step or between two fits.
    timer = StepTimer(batch_size=4, backend="tensorflow", policy="float32")
    loop(timer, 40, lambda _: None)
    timer.pause(), timer._end()
    first = timer._samples[0]
    for later in (0.25, 9.0, 9.25):
        timer._samples.append(
            {**first, "time": first["time"] + 9 + later, "nice": first["nice"] + 1}
        )
    kept = store.read_record(timer.record(tmp_path))
    assert kept["readings"]["stopped_s"] == 0
    assert not kept["readings"]["limits_changed"]
    assert not [mark for mark in kept["marks"] if "stopped" in mark or "priority" in mark]


def test_another_model_is_another_point_and_compared_with_nothing(tmp_path):
    # The lies: one run of two models, the first of them superseded; 2048 units over 16.
    def recorded(sweep, inner, units):
        return fitted(StepTimer(batch_size=16), inner, units).record(tmp_path / sweep)

    recorded("one", "float32", 64), recorded("one", "float32", 65)
    assert len([*SweepDir(tmp_path / "one").runs.iterdir()]) == 2
    assert SweepDir(tmp_path / "one").superseded_runs() == 0
    recorded("other", "mixed_bfloat16", 65), recorded("third", "mixed_bfloat16", 66)
    places = {name: [SweepDir(tmp_path / name)] for name in ("one", "other", "third")}
    (point,) = two_sweeps.points(*two_sweeps.load(places["one"], places["other"])).to_dict(
        "records"
    )
    assert point["policy"] == "float32 | mixed_bfloat16"
    assert two_sweeps.points(*two_sweeps.load(places["one"], places["third"])).empty


NUMPY = """
import importlib.util
import sys
import numpy as np
from mptexp import StepTimer
from mptexp.errors import ParamsError
for backend in (None, "torch"):
    timer = StepTimer(batch_size=4, policy="float16", backend=backend)
    for _ in range(20):
        with timer.step():
            np.ones((50, 50)) @ np.ones((50, 50))
    assert timer.timing()["step_s"] > 0
    assert not {"keras", "torch", "jax", "tensorflow"} & sys.modules.keys()
importlib.util.find_spec = lambda name: None  # nothing is installed
for backend in (None, "torch"):
    timer._sampler, timer.backend = None, backend or ""
    try:
        timer.record("sweep")
    except ParamsError as error:
        print(error)
"""


def test_a_loop_without_a_framework_is_timed_and_its_record_asks_for_one(tmp_path):
    # The fault: "No module named 'torch'", of a loop in numpy, at its first step.
    words = [sys.executable, "-c", NUMPY]  # no fork of a process that has imported Keras
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = done.stdout.splitlines()
    assert first.startswith("backend is None, and no framework was imported; a record needs")
    assert second == "backend torch: is not installed, so no step ran in it"


def test_a_default_that_nobody_chose_is_neither_shown_nor_compared(tmp_path):
    # The lies: "at 32 pixels", "Keras 3.15.1" of a plain loop; "epochs 3 against 20; width 0.125
    # against 1", of a script that has neither.
    for policy in ("float32", "mixed_bfloat16"):
        timer = StepTimer(batch_size=4, backend="tensorflow", policy=policy)
        loop(timer, 12, lambda _: None)
        kept = store.read_record(timer.record(tmp_path / "script"))
    assert {"image_size", "epochs", "seed", "frontend"} <= set(kept["lacks"])
    foreign = sweep_tables.load(SweepDir(tmp_path / "script"))
    here = " | ".join(first_screen_html.conditions(foreign))
    assert "pixels" not in here
    assert "Keras" not in here
    assert "TensorFlow" in here
    own = record(width=0.5, seed=3)
    own["parameters"] |= {"epochs": 3, "image_size": 64}
    assert not {"epochs", "width", "seed"} & set(two_sweeps.disjoint(tables([own]), foreign))
    beside = tables([own, *foreign.records]).results.set_index("run_id").setting
    assert set(beside) == {""}
    assert len(foreign.ok) == 2
    assert pairs.pairs(foreign) == []
