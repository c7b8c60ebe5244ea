import time

import keras
import numpy as np
import pytest

from mptexp import measure
from mptexp.measure import StepClock, Window


def windows(rates, steps=1):
    return [Window(i * steps, steps, r * steps) for i, r in enumerate(rates)]


def test_compilation_and_warm_up_are_left_out():
    timing = measure.timing(windows([5.0, 0.9, 0.4] + [0.1] * 20))
    assert timing["step_s"] == pytest.approx(0.1)
    assert timing["warmup_steps"] == 3
    assert timing["first_step_s"] == 5.0
    assert timing["steps_timed"] == 20


def test_a_quick_step_in_the_middle_of_the_warm_up_does_not_end_it():
    assert measure.warmup_windows(windows([5, 0.1, 3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])) == 3


def test_a_slow_step_later_is_kept():
    timing = measure.timing(windows([5.0] + [0.1] * 30 + [2.0] + [0.1] * 30))
    assert timing["steps_timed"] == 61
    assert timing["step_s"] == pytest.approx(0.1)


@pytest.mark.parametrize("rates", [[1.0], [5.0, 1.0], [4.0, 3.0, 2.0, 1.0]])
def test_something_is_always_left(rates):
    timing = measure.timing(windows(rates))
    assert timing["steps_timed"] >= 1
    assert timing["step_s"] > 0


def test_windows_count_by_their_steps():
    mixed = [Window(0, 1, 1.0), *[Window(1 + i, 1, 0.12) for i in range(3)], Window(4, 16, 1.6)]
    assert measure.timing(mixed)["step_s"] == pytest.approx(0.1)


def test_percentiles_are_of_windows():
    timing = measure.timing(windows([0.1] * 10 + [0.2] * 80 + [0.22] * 10))
    assert timing["step_s_low"] == pytest.approx(0.1)
    assert timing["step_s_high"] == pytest.approx(0.22)


class Sleeps(keras.layers.Layer):
    """Takes a known time on the device's side of the call."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def call(self, x):
        import tensorflow as tf

        def wait(value):
            time.sleep(self.seconds)
            return value

        y = tf.py_function(wait, [x], x.dtype)
        y.set_shape(x.shape)
        return y + 0 * x


def fit(seconds, steps=20, epochs=2):
    model = keras.Sequential([keras.layers.Input((4,)), Sleeps(seconds), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    clock = StepClock(measure.synchronizer("tensorflow"))
    x = np.ones((8 * steps, 4), "float32")
    y = np.ones(8 * steps)
    model.fit(
        x, y, batch_size=8, epochs=epochs, validation_data=(x, y), callbacks=[clock], verbose=0
    )
    return clock


def test_a_step_of_a_known_time_is_read_as_such():
    timing = measure.timing(fit(0.05).windows)
    # A sleep is never short. Validation sleeps as well: counted in, as in Keras's own ms/step, it
    # would double the figure.
    assert 0.05 <= timing["step_s"] < 0.09


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


def test_peak_memory_is_of_this_process():
    before = measure.peak_memory_bytes("tensorflow", "cpu")
    block = np.ones(2**25)  # 256 MiB
    after = measure.peak_memory_bytes("tensorflow", "cpu")
    assert after - before >= block.nbytes * 0.5
