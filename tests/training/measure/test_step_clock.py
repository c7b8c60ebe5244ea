import time

import keras
import numpy as np
import pytest
from forked import python

from mptexp.records import timed_windows
from mptexp.training.backends import backend
from mptexp.training.measure import step_clock
from mptexp.training.measure.step_clock import StepClock


class Device(keras.layers.Layer):
    """Takes a known time in every step, on the device's side of the call.

    It is the time that the clock reads, too: a step takes neither more nor less, whatever else the
    machine does, and what the clock reads too early or too late shows in the last digit.

    Args:
        step_s: seconds of a step, or a function from the step's number to them.
    """

    def __init__(self, step_s):
        super().__init__()
        self.step_s = step_s if callable(step_s) else lambda step: step_s
        self.now, self.steps = 100.0, 0

    def perf_counter(self):
        return self.now

    def call(self, x):
        import tensorflow as tf

        def work(value):
            time.sleep(0.001)  # long enough for a clock that does not wait to be ahead
            self.now += self.step_s(self.steps)
            self.steps += 1
            return value

        y = tf.py_function(work, [x], x.dtype)
        y.set_shape(x.shape)
        return y + 0 * x


@pytest.fixture
def fit(monkeypatch):
    """Trains on a device whose steps take known times; returns the clock and the device."""

    def fitted(step_s, steps=20, epochs=2, **limits):
        device = Device(step_s)
        monkeypatch.setattr(step_clock, "time", device)
        model = keras.Sequential([keras.layers.Input((4,)), device, keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=limits.get("per_call", 1))
        clock = StepClock(backend("tensorflow").synchronize, **limits)
        x, y = np.ones((8 * steps, 4), "float32"), np.ones(8 * steps)
        data = {"validation_data": (x, y), "callbacks": [clock]}
        model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, **data)
        return clock, device

    return fitted


EXACTLY = {"rel": 1e-9}


def test_a_step_of_a_known_time_is_read_as_such(fit):
    # Validation takes as long again: counted in, as in Keras's own ms/step, it would double this.
    clock, device = fit(0.05, steps=30, epochs=1)
    assert device.steps == 2 * 30
    assert timed_windows.timing(clock.windows)["step_s"] == pytest.approx(0.05, **EXACTLY)
    for window, opened in zip(clock.windows, clock.opened, strict=True):
        assert opened == pytest.approx(100 + 0.05 * window.first_step, **EXACTLY)
        assert window.seconds == pytest.approx(0.05 * window.steps, **EXACTLY)


def test_several_steps_in_one_call_are_read_as_steps(fit):
    clock, _ = fit(0.02, steps=42, epochs=2, per_call=4)
    assert timed_windows.timing(clock.windows)["step_s"] == pytest.approx(0.02, **EXACTLY)
    assert {w.first_step % 4 for w in clock.windows if w.first_step < 42} == {0}
    # The last call of an epoch, of two steps, belongs to no window.
    assert sum(w.steps for w in clock.windows) == 2 * 40


def test_it_reads_the_machines_clock():
    class Sleeps(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            time.sleep(0.01)

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    clock = StepClock(backend("tensorflow").synchronize)
    began = time.perf_counter()
    data = np.ones((160, 4), "float32"), np.ones(160)
    model.fit(*data, batch_size=8, verbose=0, callbacks=[Sleeps(), clock])
    took = time.perf_counter() - began
    assert all(w.seconds >= 0.01 * w.steps for w in clock.windows)  # a sleep is never short
    assert sum(w.seconds for w in clock.windows) <= took
    assert began <= clock.opened[0] <= clock.opened[-1] <= began + took


def test_a_clock_may_end_before_the_training_does(fit):
    clock, _ = fit(0.001, steps=30, epochs=2, max_steps=10, ends_training=False)
    assert clock.ended_by == "max_steps"
    assert sum(w.steps for w in clock.windows) == 9
    assert len(clock.epochs) == 2


# Under JAX a step is dispatched and goes on by itself: `fit` is ahead of the device.
JAX = """
import jax, keras, numpy as np
from mptexp.training.backends import backend
from mptexp.training.measure import step_clock
done, ahead = [], []

class Look(keras.callbacks.Callback):
    def on_train_batch_begin(self, step, logs=None):
        state = getattr(self.model, "_jax_state", None) or {}
        ready = all(v.is_ready() for variables in state.values() for v in variables)
        (done if clock._opened[0] == step else ahead).append(ready)

wide = [keras.layers.Dense(1024) for _ in range(4)]
model = keras.Sequential([keras.layers.Input((4,)), *wide, keras.layers.Dense(1)])
model.compile("sgd", "mse")
clock = step_clock.StepClock(backend("jax").synchronize)
x, y = np.ones((200 * 64, 4)), np.ones(200 * 64)
model.fit(x, y, batch_size=64, callbacks=[clock, Look()], verbose=0)
print(all(done), len(done) > 10, not all(ahead))
"""


def test_a_step_that_is_dispatched_asynchronously_is_waited_for():
    pytest.importorskip("jax", reason="jax is not installed; pip install jax")
    done = python(JAX, {"backend": "jax"}, KERAS_BACKEND="jax")
    assert done.returncode == 0, done.stderr
    # The device has done all steps at the edges of windows; elsewhere, of 178, not at all of them.
    assert done.stdout.split() == ["True"] * 3


def test_a_batch_of_a_known_time_is_read_as_such_by_predict(monkeypatch):
    device = Device(0.05)
    monkeypatch.setattr(step_clock, "time", device)
    model = keras.Sequential([keras.layers.Input((4,)), device, keras.layers.Dense(1)])
    clock = StepClock(backend("tensorflow").synchronize)
    model.predict(np.ones((240, 4), "float32"), batch_size=8, callbacks=[clock], verbose=0)
    assert timed_windows.timing(clock.windows)["step_s"] == pytest.approx(0.05, **EXACTLY)


def test_windows_grow_to_their_length_and_do_not_outgrow_it(fit):
    # Epochs that end in a short window: a remainder says nothing of how long a full one takes.
    clock, _ = fit(0.02, steps=35, epochs=4)
    assert step_clock.WINDOW_S / 2 <= max(w.seconds for w in clock.windows) < step_clock.WINDOW_S


def test_a_run_ends_once_its_median_is_certain(fit):
    times = np.random.default_rng(0).normal(0.01, 0.002, 1000).clip(0.005)
    clock, device = fit(lambda step: times[step % 1000], 800, epochs=1, target_ci=0.03)
    assert clock.ended_by == "target_ci"
    assert len(clock.windows) > 10
    assert device.steps < 2 * 800
    assert timed_windows.timing(clock.windows)["step_ci"] <= 0.03


def test_a_run_ends_after_the_most_steps_it_may_take(fit):
    uneven = {"target_ci": 1e-9, "max_steps": 33}  # no interval is so narrow
    clock, device = fit(lambda step: 0.001 * (1 + step % 2), steps=20, epochs=5, **uneven)
    assert clock.ended_by == "max_steps"
    assert device.steps == 33 + 2 * 20  # two validations
    assert clock.windows[-1].first_step + clock.windows[-1].steps == 32
    assert len(clock.epochs) == 2


def test_a_run_without_limits_ends_with_its_epochs(fit):
    assert fit(0.001)[0].ended_by == "epochs"


def test_windows_cover_all_steps_but_the_last_of_each_epoch(fit):
    clock, _ = fit(0.001, steps=20, epochs=3)
    covered = [w.first_step + i for w in clock.windows for i in range(w.steps)]
    assert covered == [i for i in range(60) if i % 20 != 19]
    assert max(w.steps for w in clock.windows) > 1
    assert all(w.steps == 1 for w in clock.windows[:5])


@pytest.mark.parametrize("hook", ["on_batch_end", "on_train_batch_end"])
def test_the_clock_lets_keras_dispatch_steps_without_waiting(hook):
    # Keras fetches (and so waits for) every step's logs for a callback that has one of these.
    assert getattr(StepClock, hook) is getattr(keras.callbacks.Callback, hook)


def test_epochs_are_the_history(fit):
    epochs = fit(0.001)[0].epochs
    assert [e["epoch"] for e in epochs] == [1, 2]
    assert set(epochs[0]) == {"epoch", "loss", "val_loss", "elapsed_s"}
    # From the first step; an epoch has 20 steps and as many of validation.
    assert [e["elapsed_s"] for e in epochs] == pytest.approx([0.04, 0.08], rel=1e-6)
