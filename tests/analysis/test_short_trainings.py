"""Short trainings beside float32's: what keeps up, and what is said of one that was tried."""

import math

import pytest

from mptexp.analysis import short_trainings
from mptexp.report.answers import dynamic_range


def trained(*losses):
    """The records of a training for each block, which ended with these losses."""
    return [
        {"status": "ok", "parameters": {"block": b}, "history": [{"loss": 9.0}, {"loss": loss}]}
        for b, loss in enumerate(losses)
    ]


@pytest.mark.parametrize(
    ("own", "float32", "as_good"),
    [
        (None, 1.0, False),
        (1.049, 1.0, True),
        (1.06, 1.0, False),
        (0.019, 0.0, True),
        (0.03, 0.001, False),
        (0.1, 1.0, True),
    ],
)
def test_a_loss_keeps_up_within_the_margin_that_is_said(own, float32, as_good):
    losses = None if own is None else {0: own}
    assert short_trainings.keeps_up(losses, {0: float32}) is as_good


def test_keeping_up_with_a_loss_beyond_guessing_says_little():
    # The lie: "77.9, float32 at 77.3: it keeps up", where a regularizer that nothing trains adds 75
    # to both, and one has learned and the other not.
    assert short_trainings.beyond_guessing({0: 77.3}, 2.3)
    assert not short_trainings.beyond_guessing({0: 2.5}, 2.3)
    float32 = record(77.3)
    float32["in_force"] = {"chance_accuracy": 0.1}
    tried = short_trainings.tried(float32["parameters"], [float32], [record(77.9, **FLOAT16)])
    assert tried.beyond_guessing
    assert not tried.fails
    (said,) = dynamic_range._of_trial(tried)
    assert "more than twice what guessing costs: terms of the model's own" in said
    assert "or float32 goes astray" in said  # whose own loss may be as high
    worse = short_trainings.tried(float32["parameters"], [float32], [record(99.0, **FLOAT16)])
    assert worse.fails
    images, text = {"chance_accuracy": 0.1}, {"chance_loss": 3.2}
    assert short_trainings.guessing([{"in_force": images}]) == pytest.approx(2.303, abs=1e-3)
    assert short_trainings.guessing([{"in_force": text}]) == 3.2
    assert short_trainings.guessing([{"in_force": {}}]) == math.inf


def test_a_seed_that_gains_does_not_make_up_for_one_that_fails():
    # The lie: "In mixed_float16 no layer must stay in float32", of 0.30 and 0.74 beside 0.5 twice.
    float32 = short_trainings.losses(trained(0.5, 0.5))
    assert not short_trainings.keeps_up(short_trainings.losses(trained(0.30, 0.74)), float32)
    assert short_trainings.keeps_up(short_trainings.losses(trained(0.30, 0.51)), float32)
    # Seeds may differ more than policies do, and records come in any order.
    apart = short_trainings.losses(trained(0.3, 0.9))
    assert short_trainings.keeps_up(short_trainings.losses(trained(0.31, 0.89)[::-1]), apart)


PARAMETERS = {"policy": "float32", "loss_scale": "none", "exponents_every": 12, "max_steps": 60}


def record(loss, status="ok", **changed):
    """The record of a short training, with parameters that are changed."""
    parameters = PARAMETERS | {"block": 0} | changed
    ended = {"status": status, "history": [{"loss": loss}], "error": "why"}
    return {"run_id": "a", "parameters": parameters} | ended


FLOAT16 = {"policy": "mixed_float16", "loss_scale": "dynamic", "exponents_every": 0}


@pytest.mark.parametrize(
    ("trial", "fails"),
    [
        (record(1.01, **FLOAT16), False),
        (record(1.3, **FLOAT16), True),
        (record(9.0, "diverged", **FLOAT16), True),
        (record(9.0, "unsupported", **FLOAT16), True),  # advised once, where no run of it is made
        (record(9.0, "failed", **FLOAT16), True),
        (record(9.0, "oom", **FLOAT16), True),  # advised once, where only float32 had room
        (record(9.0, "timeout", **FLOAT16), True),
        (record(9.0, "killed", **FLOAT16), False),  # of which nothing is known
    ],
)
def test_a_training_that_was_tried_fails_where_it_trains_worse(trial, fails):
    float32 = record(1.0)
    tried = short_trainings.tried(float32["parameters"], [float32], [trial])
    assert tried.fails is fails
    assert (tried.policy, tried.steps, tried.float32_loss) == ("mixed_float16", 60, 1.0)
    assert (tried.loss is None) is (trial["status"] != "ok")


def test_only_the_same_training_in_another_policy_was_tried():
    float32 = record(1.0)
    for others in ([], [record(1.0)], [record(1.0, **FLOAT16, batch_size=7)]):
        assert short_trainings.tried(float32["parameters"], [float32], others) is None
    lost = record(1.0, "failed")
    assert short_trainings.tried(lost["parameters"], [lost], [record(1.0, **FLOAT16)]) is None
