import dataclasses
import math

import pytest

from mptexp.records import timed_windows
from mptexp.spec.run import Run
from mptexp.training.outcome import Outcome

WINDOWS = [timed_windows.Window(0, 1, 5.0), *(timed_windows.Window(i, 1, 0.1) for i in range(1, 9))]
TIMING = timed_windows.timing(WINDOWS) | {"images_per_s": 320.0, "ended_by": "epochs"}


def outcome(losses, **changes):
    epochs = [
        {"epoch": i, "loss": x, "accuracy": 0.5, "elapsed_s": i / 2}
        for i, x in enumerate(losses, 1)
    ]
    return Outcome(Run(), {}, WINDOWS, epochs, TIMING | changes, 2**20, 1.0)


def test_a_loss_that_is_not_finite_makes_the_run_diverged():
    assert (outcome([1.0, 0.5]).status, outcome([]).status) == ("ok", "ok")
    bad = outcome([1.0, math.inf, math.nan])
    assert (bad.status, bad.diverged_epoch) == ("diverged", 2)


def test_a_training_before_an_inference_with_integers_can_diverge():
    # The lie: `ok`, and all of its epochs, of a float32 training that ended in the first.
    before = {"history": [{"loss": math.nan}], "trained_epochs": 1}
    said = dataclasses.replace(outcome([]), quantized=before)
    assert (said.status, said.diverged_epoch) == ("diverged", 1)


def test_weights_that_are_not_finite_make_the_run_diverged():
    broken = dataclasses.replace(outcome([1.0, 0.5]), broken_layer="dense")
    assert (broken.status, broken.diverged_epoch) == ("diverged", None)


def test_windows_of_the_warm_up_do_not_count():
    steps = outcome([1.0]).steps
    assert steps.counts.tolist() == [False] + [True] * 8
    assert steps.ms_per_step.tolist() == pytest.approx([5000.0] + [100.0] * 8)


def test_the_summary_is_that_of_a_training_or_of_an_inference():
    trained = outcome([1.0]).summary
    assert trained["median step"] == "100.00 ms"
    assert trained["peak memory"] == "1 MiB"
    assert trained["accuracy, training"] == "0.500"
    assert "accuracy, validation" not in trained
    # The lies: fit_s, with a minute in which a pipeline closes; "0 MiB" of what is not known.
    assert trained["training, with validation"] == "0.5 s"
    assert "peak memory" not in dataclasses.replace(outcome([1.0]), peak_memory_bytes=None).summary
    inferred = outcome([], latency_p50_s=0.01, latency_p99_s=0.02).summary
    assert inferred["latency, 99th percentile"] == "20.00 ms"


def test_the_history_is_a_row_per_epoch():
    assert outcome([1.0, 0.5]).history.loss.to_dict() == {1: 1.0, 2: 0.5}
