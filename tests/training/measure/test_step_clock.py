import json
import os
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

from mptexp.training.backends import backend
from mptexp.training.measure import step_clock
from mptexp.training.measure.step_clock import StepClock, Window

pytestmark = pytest.mark.alone


def windows(rates, steps=1):
    return [Window(i * steps, steps, r * steps) for i, r in enumerate(rates)]


def test_compilation_and_warm_up_are_left_out():
    timing = step_clock.timing(windows([5.0, 0.9, 0.4] + [0.1] * 20))
    assert timing["step_s"] == pytest.approx(0.1)
    assert timing["warmup_steps"] == 3
    assert timing["first_step_s"] == 5.0
    assert timing["steps_timed"] == 20


def test_a_quick_step_in_the_middle_of_the_warm_up_does_not_end_it():
    assert step_clock.warmup_windows(windows([5, 0.1, 3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])) == 3


def test_a_slow_step_later_is_kept():
    timing = step_clock.timing(windows([5.0] + [0.1] * 30 + [2.0] + [0.1] * 30))
    assert timing["steps_timed"] == 61
    assert timing["step_s"] == pytest.approx(0.1)


@pytest.mark.parametrize("rates", [[1.0], [5.0, 1.0], [4.0, 3.0, 2.0, 1.0]])
def test_something_is_always_left(rates):
    timing = step_clock.timing(windows(rates))
    assert timing["steps_timed"] >= 1
    assert timing["step_s"] > 0


def test_windows_count_by_their_steps():
    mixed = [Window(0, 1, 1.0), *[Window(1 + i, 1, 0.12) for i in range(3)], Window(4, 16, 1.6)]
    assert step_clock.timing(mixed)["step_s"] == pytest.approx(0.1)


def test_percentiles_are_of_windows():
    timing = step_clock.timing(windows([0.1] * 10 + [0.2] * 80 + [0.22] * 10))
    assert timing["step_s_low"] == pytest.approx(0.1)
    assert timing["step_s_high"] == pytest.approx(0.22)


class Sleeps(keras.layers.Layer):
    """Takes a known time on the device's side of the call, and writes down when it began."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.began = []

    def call(self, x):
        import tensorflow as tf

        def wait(value):
            self.began.append(time.perf_counter())
            time.sleep(self.seconds)
            return value

        y = tf.py_function(wait, [x], x.dtype)
        y.set_shape(x.shape)
        return y + 0 * x


def fit(seconds, steps=20, epochs=2, **limits):
    model = keras.Sequential([keras.layers.Input((4,)), Sleeps(seconds), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=limits.get("per_call", 1))
    clock = StepClock(backend("tensorflow").synchronize, **limits)
    x = np.ones((8 * steps, 4), "float32")
    y = np.ones(8 * steps)
    model.fit(
        x, y, batch_size=8, epochs=epochs, validation_data=(x, y), callbacks=[clock], verbose=0
    )
    return clock


def test_a_step_of_a_known_time_is_read_within_two_percent():
    clock = fit(0.05, steps=30, epochs=1)
    truth = np.median(np.diff(clock.model.layers[0].began[:30]))
    # A sleep is never short, and validation sleeps as well: counted in, as in Keras's own ms/step,
    # it would double the figure.
    assert truth >= 0.05
    assert step_clock.timing(clock.windows)["step_s"] == pytest.approx(truth, rel=0.02)


def test_several_steps_in_one_call_are_read_as_steps():
    clock = fit(0.02, steps=42, epochs=2, per_call=4)
    began = clock.model.layers[0].began
    truth = (began[39] - began[0]) / 39
    assert truth >= 0.02
    assert step_clock.timing(clock.windows)["step_s"] == pytest.approx(truth, rel=0.1)
    assert {w.first_step % 4 for w in clock.windows if w.first_step < 42} == {0}
    # The last call of an epoch, of two steps, belongs to no window.
    assert sum(w.steps for w in clock.windows) == 2 * 40


def test_a_clock_may_end_before_the_training_does():
    clock = fit(0.001, steps=30, epochs=2, max_steps=10, ends_training=False)
    assert clock.ended_by == "max_steps"
    assert sum(w.steps for w in clock.windows) == 9
    assert len(clock.epochs) == 2


# Under JAX a step is dispatched and goes on by itself: `fit` is ahead of the device.
JAX = """
import json, time
import jax, keras, numpy as np
from mptexp.training.backends import backend
from mptexp.training.measure import step_clock
began = []

def wait(value):
    began.append(time.perf_counter())
    time.sleep(0.05)
    return value

class Sleeps(keras.layers.Layer):
    def call(self, x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return x + jax.lax.stop_gradient(jax.pure_callback(wait, shape, jax.lax.stop_gradient(x)))

model = keras.Sequential([keras.layers.Input((4,)), Sleeps(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
clock = step_clock.StepClock(backend("jax").synchronize)
dispatched = []
again = keras.callbacks.LambdaCallback(
    on_train_batch_begin=lambda step, logs: dispatched.append(time.perf_counter())
)
model.fit(np.ones((240, 4)), np.ones(240), batch_size=8, callbacks=[again, clock], verbose=0)
step_s = step_clock.timing(clock.windows)["step_s"]
print(json.dumps([step_s, float(np.median(np.diff(began[-25:])))]))
"""


def test_a_step_that_is_dispatched_asynchronously_is_not_read_as_its_dispatch():
    pytest.importorskip("jax", reason="jax is not installed; pip install jax")
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    command = [sys.executable, "-c", JAX]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    read, truth = json.loads(done.stdout)
    assert truth >= 0.05
    assert read == pytest.approx(truth, rel=0.02)


def test_a_batch_of_a_known_time_is_read_as_such_by_predict():
    layer = Sleeps(0.05)
    model = keras.Sequential([keras.layers.Input((4,)), layer, keras.layers.Dense(1)])
    clock = StepClock(backend("tensorflow").synchronize)
    model.predict(np.ones((240, 4), "float32"), batch_size=8, callbacks=[clock], verbose=0)
    truth = np.median(np.diff(layer.began[-28:]))
    assert step_clock.timing(clock.windows)["step_s"] == pytest.approx(truth, rel=0.02)


def test_windows_do_not_outgrow_their_length():
    # Epochs that end in a short window: a remainder says nothing of how long a full one takes.
    clock = fit(0.02, steps=35, epochs=4)
    assert max(w.seconds for w in clock.windows) < 3 * step_clock.WINDOW_S


def test_a_run_ends_once_its_median_is_certain():
    clock = fit(0.01, steps=400, epochs=1, target_ci=0.2)
    assert clock.ended_by == "target_ci"
    assert 10 <= len(clock.windows) < 399
    assert step_clock.timing(clock.windows)["step_ci"] <= 0.2


def test_a_run_ends_after_the_most_steps_it_may_take():
    clock = fit(0.0, steps=20, epochs=5, target_ci=0.001, max_steps=33)
    assert clock.ended_by == "max_steps"
    assert len(clock.model.layers[0].began) == 33 + 2 * 20  # two validations
    assert clock.windows[-1].first_step + clock.windows[-1].steps == 32
    assert len(clock.epochs) == 2


def test_a_run_without_limits_ends_with_its_epochs():
    assert fit(0.0).ended_by == "epochs"


@pytest.mark.parametrize("n", [10, 30, 100])
def test_the_medians_interval_holds_the_median(n):
    # Of windows that are independent, with a long tail to the right.
    random = np.random.default_rng(n)
    held = 0
    for _ in range(1000):
        rates = 0.1 * np.exp(random.exponential(0.1, n))
        low, _, high = step_clock.median_interval(windows(rates))
        held += low <= 0.1 * np.exp(0.1 * np.log(2)) <= high
    assert held / 1000 > 0.9
    assert step_clock.relative_ci(windows([0.1] * n)) == 0
    assert step_clock.relative_ci(windows([0.1] * 9)) == np.inf


def test_windows_cover_all_steps_but_the_last_of_each_epoch():
    clock = fit(0.0, steps=20, epochs=3)
    covered = [w.first_step + i for w in clock.windows for i in range(w.steps)]
    assert covered == [i for i in range(60) if i % 20 != 19]
    assert max(w.steps for w in clock.windows) > 1
    assert all(w.steps == 1 for w in clock.windows[:5])


@pytest.mark.parametrize("hook", ["on_batch_end", "on_train_batch_end"])
def test_the_clock_lets_keras_dispatch_steps_without_waiting(hook):
    # Keras fetches (and so waits for) every step's logs for a callback that has one of these.
    assert getattr(StepClock, hook) is getattr(keras.callbacks.Callback, hook)


def test_epochs_are_the_history():
    epochs = fit(0.0).epochs
    assert [e["epoch"] for e in epochs] == [1, 2]
    assert set(epochs[0]) == {"epoch", "loss", "val_loss", "elapsed_s"}
    assert 0 < epochs[0]["elapsed_s"] < epochs[1]["elapsed_s"]
