import math
from dataclasses import replace

import numpy as np
import pytest
from builders import IDENTITY, published

from mptexp.analysis import validity
from mptexp.diagnosis import ablations, effects
from mptexp.diagnosis.pairs import Pair, in_block
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


def ends(over):
    return over.estimate, over.low, over.high, over.n


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
    # Ratios that are equal to the digit keep the resolution of a run's time as their interval.
    assert ends(effect.gains["float32"]) == pytest.approx((1.2, 1.2, 1.2, 3), rel=0.003)
    assert effect.gains["mixed_bfloat16"].estimate == pytest.approx(240 / 110)
    assert ends(effect.speedup) == pytest.approx((2, 2, 2, 3), rel=0.003)


def test_a_control_and_an_ablation_of_two_calls_form_no_ratio():
    records = known(ablations.INPUT, [[100, 100], [110, 110]], [[120, 240], [240, 480]])
    for one in records.values():
        one["invocation"] = "first"
    for run in ablations.INPUT.variants(*PAIR.controls):
        records[in_block(run, 1).run_id()]["invocation"] = "second"
    effect = effects.effect(PAIR, ablations.INPUT, records, "train")
    assert ends(effect.gains["float32"])[::3] == pytest.approx((1.2, 1))
    assert effect.speedup.n == 2  # the two policies of either block were measured in one call


def test_a_change_to_what_was_in_force_is_none():
    # The lie: "Ablations: XLA off", of runs with jit auto, in which it was off.
    records = known(ablations.XLA_OFF, [[100] * 3, [110] * 3], [[100] * 3, [110] * 3])
    assert effects.effect(PAIR, ablations.XLA_OFF, records, "train") is not None
    for one in records.values():
        one["in_force"] = {"jit": False}
    assert effects.effect(PAIR, ablations.XLA_OFF, records, "train") is None


def test_one_block_claims_no_interval():
    records = known(ablations.INPUT, [[100], [110]], [[120], [240]])
    effect = effects.effect(PAIR, ablations.INPUT, records, "train")
    assert effect.speedup.estimate == pytest.approx(2)
    assert math.isnan(effect.speedup.low)


def test_an_effect_of_runs_that_others_show_to_be_disturbed_is_not_valid():
    records = known(ablations.INPUT, [[1, 1, 1], [1, 1, 1]], [[2, 2, 2], [3, 3, 3]])
    for record in records.values():
        record["identity"] = IDENTITY
    control = in_block(PAIR.controls[0], 2).run_id()
    for flags, valid in (({}, True), ({"other": "repeats apart"}, True),
                         ({control: "repeats apart"}, False)):  # fmt: skip
        effect = effects.effect(PAIR, ablations.INPUT, records, "train", effects.Said(flags))
        assert effect.is_valid("float32") is valid
        # The lie: "not valid: repeats apart", of the other policy's runs, none of which was.
        assert effect.is_valid("mixed_bfloat16")
        assert effect.is_valid(effects.SPEEDUP)
        assert effect.flags == validity.together(flags.get(control, "").split("; "))


def test_a_speedup_that_the_sweep_claims_has_its_interval_there():
    # The lie: "1.36x [0.97, 1.77]: inconclusive" in the table, and in the sentence that says why
    # "with XLA off it is 1.36x faster [1.03, 1.79]", of the same runs.
    records = known(ablations.INPUT, [[10, 11, 10], [11, 12, 10]], [[12, 13, 12], [24, 25, 27]])
    for record in records.values():
        record["identity"] = IDENTITY
    base, candidate = (
        frozenset(in_block(run, block).run_id() for block in range(3))
        for run in ablations.INPUT.variants(*PAIR.controls)
    )
    said = effects.Said(ends={(candidate, base): (0.9, 2.5)})
    made = effects.effect(PAIR, ablations.INPUT, records, "train", said)
    (wide,) = effects.together([made])
    assert (wide.speedup.low, wide.speedup.high) == (0.9, 2.5)
    # What remains is a family of two, as if there were no speedup.
    (own,) = effects.together([replace(made, speedup=None)])
    assert wide.gains == own.gains
    (disturbed,) = effects.together([replace(made, flags="interference", flags_by={})])
    assert math.isnan(disturbed.speedup.low)


def test_a_gain_that_the_sweep_compares_has_one_interval():
    # The lie: strict float32 0.25× [0.24, 0.26] among ablations, 4.01× slower [3.73, 4.31] above.
    sweep = published("tf32-h200")
    claims = sweep.tables.claims
    claims = claims[(claims.baseline == "tensorfloat32") & (claims.candidate == "float32")]
    made = [effect for verdict in sweep.verdicts for effect in verdict.effects]
    gains = [e.gains["tensorfloat32"] for e in made if e.ablation.name == ablations.STRICT.name]
    assert {(over.low, over.high) for over in gains} == {*zip(claims.low, claims.high, strict=True)}


def test_an_ablation_that_was_not_made_or_failed_has_no_effect():
    assert effects.effect(PAIR, ablations.INPUT, {}, "train") is None
    variants = ablations.XLA_ON.variants(*PAIR.controls)
    records = {}
    for control in PAIR.controls:
        records |= made(control, [1])
    records |= made(variants[0], [1], "oom")
    assert effects.effect(PAIR, ablations.XLA_ON, records, "train").failed == "oom: why"


def noise(seed):
    """Effects of six ablations that change nothing: runs vary by 2 %."""
    random = np.random.default_rng(seed)
    rates = np.exp(random.normal(0, 0.02, (6, 4, 3)))
    tried = (ablations.INPUT, ablations.XLA_ON, ablations.BATCH, ablations.EXECUTION,
             ablations.PADDED, ablations.NO_NORMALIZATION)  # fmt: skip
    for ablation, (a, b, c, d) in zip(tried, rates, strict=True):
        records = known(ablation, [a, b], [c, d])
        for record in records.values():
            record["identity"] = IDENTITY
        yield effects.effect(PAIR, ablation, records, "train")


def test_few_diagnoses_of_noise_claim_that_an_ablation_does_anything():
    together, alone = 0, 0
    for seed in range(60):
        made = list(noise(seed))
        alone += any(over.low > 1 or over.high < 1 for e in made for over in e.contrasts.values())
        wide = effects.together(made)
        together += any(
            over.low > 1 or over.high < 1 for e in wide for over in e.contrasts.values()
        )
    assert alone > 20
    assert together <= 4


@pytest.mark.parametrize(
    ("identity", "flag"),
    [
        (IDENTITY, ""),
        (IDENTITY | {"model_source": "edited"}, "not comparable"),
        (None, "identity not recorded"),
    ],
)
def test_an_ablation_beside_which_more_changed_claims_nothing(identity, flag):
    records = known(ablations.INPUT, [[1, 1, 1], [1, 1, 1]], [[2, 2, 2], [3, 3, 3]])
    changed = {
        in_block(run, block).run_id()
        for run in ablations.INPUT.variants(*PAIR.controls)
        for block in range(3)
    }
    for run_id, record in records.items():
        record["identity"] = identity if run_id in changed else IDENTITY
    effect = effects.effect(PAIR, ablations.INPUT, records, "train")
    assert effect.flags == flag


@pytest.mark.parametrize(("name", "valid"), [("cpu_version", False), ("code", True)])
def test_what_another_device_of_the_name_did_says_nothing_of_the_sweep(name, valid):
    # Published once: "93 % lost to XLA's code", of ablations on another EPYC than the sweep's.
    records = known(ablations.INPUT, [[1, 1, 1], [1, 1, 1]], [[2, 2, 2], [3, 3, 3]])
    for record in records.values():
        record["identity"] = IDENTITY | {name: "another"}
    for policy in PAIR.policies:
        for run_id, one in made(policy, [1, 1, 1]).items():
            records[run_id] = one | {"identity": IDENTITY | {name: "the sweep's"}}
    effect = effects.effect(PAIR, ablations.INPUT, records, "train")
    assert effect.is_valid("float32") is effect.is_valid(effects.SPEEDUP) is valid
    assert not effect.of_sweep
    ablation = {}
    for run, rates in zip(
        ablations.INPUT.variants(*PAIR.policies), [[2] * 3, [3] * 3], strict=True
    ):
        ablation |= made(run, rates)
    for policy in PAIR.policies:
        ablation |= made(policy, [1, 1, 1])
    for one in ablation.values():
        one["identity"] = IDENTITY
    assert effects.effect(PAIR, ablations.INPUT, ablation, "train").of_sweep
