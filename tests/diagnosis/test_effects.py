import dataclasses
import math

import pytest

from mptexp.diagnosis import ablations, effects
from mptexp.diagnosis.pairs import Pair
from mptexp.spec.run import Run

BASE = Run(gpu_model="GPU", policy="float32")
PAIR = Pair(BASE, BASE.model_copy(update={"policy": "mixed_bfloat16"}), 0.01)


def made(run, rates, status="ok"):
    """A record of each block: images per second."""
    records = {}
    for block, rate in enumerate(rates):
        again = run.model_copy(update={"block": block, "seed": block})
        records[again.run_id()] = {
            "status": status, "error": "why", "timing": {"images_per_s": rate}
        }  # fmt: skip
    return records


def known(ablation, before, after):
    runs = [*PAIR.controls, *ablation.variants(*PAIR.controls)]
    records = {}
    for run, rates in zip(runs, [*before, *after], strict=True):
        records |= made(run, rates)
    return records


def test_an_effect_is_formed_within_blocks():
    # The machine is half as fast in the third block: the ratios do not notice.
    records = known(
        ablations.INPUT,
        [[100, 100, 50], [110, 110, 55]],
        [[120, 120, 60], [240, 240, 120]],
    )
    effect = effects.effect(PAIR, ablations.INPUT, records, "train")
    assert dataclasses.astuple(effect.gains["float32"]) == pytest.approx((1.2, 1.2, 1.2, 3))
    assert effect.gains["mixed_bfloat16"].estimate == pytest.approx(240 / 110)
    assert dataclasses.astuple(effect.speedup) == pytest.approx((2, 2, 2, 3))


def test_one_block_claims_no_interval():
    records = known(ablations.INPUT, [[100], [110]], [[120], [240]])
    effect = effects.effect(PAIR, ablations.INPUT, records, "train")
    assert effect.speedup.estimate == pytest.approx(2)
    assert math.isnan(effect.speedup.low)


def test_an_ablation_that_was_not_made_or_failed_has_no_effect():
    assert effects.effect(PAIR, ablations.INPUT, {}, "train") is None
    variants = ablations.XLA_ON.variants(*PAIR.controls)
    records = {}
    for control in PAIR.controls:
        records |= made(control, [1])
    records |= made(variants[0], [1], "oom")
    assert effects.effect(PAIR, ablations.XLA_ON, records, "train").failed == "oom: why"
