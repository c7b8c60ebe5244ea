import math
from dataclasses import replace

import numpy as np
import pytest
from builders import FIXED, STOCHASTIC, emulated_runs, record, tables, tables_of

from mptexp.analysis import emulated
from mptexp.report.answers import low_precision
from mptexp.report.first_screen import question
from mptexp.report.pages import notes


def points(*groups):
    return emulated.points(tables_of(*groups))


def test_a_loss_is_formed_within_blocks():
    base, fixed = points(emulated_runs([2, 4, 6]), emulated_runs([3, 5.5, 6.5], lost=0.25, **FIXED))
    assert (base.is_float32, fixed.is_float32) == (True, False)
    # Differences 1, 1.5 and 0.5: their mean, and 4.303 standard errors to each side.
    assert fixed.loss.estimate == pytest.approx(1)
    assert (fixed.loss.low, fixed.loss.high) == (
        pytest.approx(-0.24, abs=0.01),
        pytest.approx(2.24, abs=0.01),
    )
    assert fixed.lost_updates == 0.25
    assert emulated.emulates([base, fixed])
    assert not emulated.emulates([base])


@pytest.mark.parametrize(
    ("errors", "size"),
    [
        ([1.1, 1.2, 1.3], "small"),
        ([31, 32, 33], "large"),
        ([1, 30, 1], "undecided"),
        ([1.1, 1.2], "too few repeats"),
    ],
)
def test_the_size_of_a_loss_is_decided_by_its_interval(errors, size):
    assert points(emulated_runs([1, 1, 1]), emulated_runs(errors, **FIXED))[1].size == size


def test_a_loss_is_not_small_where_a_run_diverged():
    bad = list(emulated_runs([1], status="diverged", **FIXED))
    bad[0]["run_id"] += "bad"
    bad[0]["parameters"]["block"] = 3
    assert (
        points(emulated_runs([1, 1, 1]), [*emulated_runs([1.1, 1.2, 1.3], **FIXED), *bad])[1].size
        == "incomplete"
    )


def test_an_interval_ends_where_errors_do():
    # The lie: +83.8 [+56.4, +100.0] points beside a float32 whose error is 1.9 %, not 0.
    found = points(
        emulated_runs([2, 1, 3]),
        emulated_runs([20, 98, 97], **FIXED),
        emulated_runs([60, 2, 97], **STOCHASTIC),
    )
    _, nearest, stochastic = found
    assert (nearest.loss.low, nearest.loss.high) == pytest.approx((-2, 98))
    assert (stochastic.loss.low, stochastic.loss.high) == pytest.approx((-2, 98))


def test_float32_is_no_comparison_with_itself():
    # The lie: 17 comparisons, of which two were float32 beside itself, exactly equal.
    made = tables_of(emulated_runs([2, 4, 6]), emulated_runs([3, 5.5, 6.5], **FIXED))
    assert [point.loss.n for point in emulated.points(made)] == [0, 3]
    assert "errors of emulated formats (1)" in notes.families(made)


def test_a_network_without_float32_has_no_loss():
    (alone,) = points(emulated_runs([1, 1, 1], **FIXED))
    assert alone.loss.n == 0
    assert math.isnan(alone.loss.estimate)


def test_choices_that_differ_in_rounding_alone_are_siblings():
    both = points(emulated_runs([1, 1, 1], **FIXED), emulated_runs([1, 1, 1], **STOCHASTIC))
    assert both[0].sibling(both, rounding="stochastic") is both[1]
    assert both[0].sibling(both, rounding="other") is None
    assert both[0].fixed_point.bits == 16


def test_master_weights_are_lacking_where_weights_are_kept_in_16_bits():
    half = {"policy": "mixed_float16"}
    plain, without = points(
        emulated_runs([1], **half), emulated_runs([1], weight_format="float16", **half)
    )
    assert (plain.lacks_master_weights, without.lacks_master_weights) == (False, True)


def test_few_sweeps_of_noise_claim_a_loss():
    # Nine formats that lose 2 points exactly, as much as is called small or large: trainings vary
    # by a third of a point.
    random, lying = np.random.default_rng(5), 0
    truth = np.array([1.0, *[3.0] * 9])[:, None]
    formats = [{}, *(FIXED | {"propagation": f"<8,{bits}>"} for bits in range(1, 10))]
    made = tables_of(*(emulated_runs([1, 1, 1], **chosen) for chosen in formats))
    for _ in range(60):
        errors = truth + random.normal(0, 0.3, (10, 3))
        for run, error in zip(made.records, errors.ravel(), strict=True):
            run["history"][0]["val_accuracy"] = 1 - error / 100
        known = {r["run_id"]: r["history"][0]["val_accuracy"] for r in made.records}
        results = made.results.assign(val_accuracy=made.results.run_id.map(known))
        found = emulated.points(replace(made, results=results))
        lying += any(point.size in ("small", "large") for point in found[1:])
    assert lying <= 5


@pytest.mark.parametrize("name", ["model_source", "data"])
def test_a_format_measured_with_another_model_claims_nothing(name):
    fixed = list(emulated_runs([1.1, 1.2, 1.3], **FIXED))
    for made in fixed:
        made["identity"] = made["identity"] | {name: "other"}
    assert points(emulated_runs([1, 1, 1]), fixed)[1].size == "not valid"


@pytest.mark.parametrize(
    ("kept", "size"),
    [
        ({"weight_format": "float16"}, "small"),  # rounded before the first step
        ({"weight_format": "policy"}, "not valid"),
        ({"weight_format": "float32"}, "not valid"),
    ],
)
def test_weights_kept_in_fewer_bits_begin_from_the_same_ones_rounded(kept, size):
    base = list(emulated_runs([1, 1, 1]))
    other = list(emulated_runs([1.1, 1.2, 1.3], propagation="<8,8>", **kept))
    for rows, weights in ((base, "drawn"), (other, "rounded")):
        for row in rows:
            row["identity"] = row["identity"] | {"initial_weights": weights}
    assert points(base, other)[1].size == size


def test_runs_that_trained_for_other_lengths_have_no_loss():
    # The lie: "little loss", of a format whose runs ended once their step time was known.
    cut = list(emulated_runs([1.1, 1.2, 1.3], **FIXED))
    for made in cut:
        made["timing"]["ended_by"] = "target_ci"
    fixed = points(emulated_runs([1, 1, 1]), cut)[1]
    assert fixed.loss.n == 0
    assert fixed.size == "too few repeats"


@pytest.mark.parametrize("is_first", [True, False])
def test_formats_are_compared_with_float32_at_its_usual_loss_scale(is_first):
    # By the order of run ids one float32 or another: +4.1 points, "inconsistent", or -20.9.
    usual = emulated_runs([5.0, 5.1, 5.2])
    scaled = emulated_runs([30.0, 30.1, 30.2], loss_scale=2.0**-120)
    narrow = emulated_runs([9.1, 9.2, 9.3], **STOCHASTIC)
    floats = [scaled, usual] if is_first else [usual, scaled]
    losses = {
        p.choice["loss_scale"]: p.loss.estimate for p in points(*floats, narrow) if not p.is_float32
    }
    # The other float32 is one of the formats: it said "0 (it is float32)".
    assert losses == {"auto": pytest.approx(4.1), 2.0**-120: pytest.approx(25)}


def test_nothing_is_small_of_images_that_are_not_recorded():
    # "1 of 1 settings train within 2 percentage points", of 20 images as of 10,000.
    small = [emulated_runs([1, 1, 1]), emulated_runs([1.1, 1.2, 1.3], **FIXED)]
    bare = [[record | {"in_force": {}} for record in group] for group in small]
    assert points(*bare)[1].size == "images not recorded"
    (said,) = low_precision.sections(tables_of(*bare))
    head = next(name for name in said.rows if name.startswith("Difference"))
    assert said.rows[head].tolist()[-1] == "+0.20 (images not recorded, n = 3)"
    found = question.of(tables_of(*bare))
    assert "1 is inconclusive (how many images it was validated with" in " ".join(found.sentences)


def test_of_a_sweep_that_emulates_nothing_no_point_is_formed():
    runs = [record(policy, block) for policy in ("float32", "bfloat16") for block in range(3)]
    assert emulated.points(tables(runs)) == []
    runs[0]["parameters"]["weight_format"] = "bfloat16"
    assert len(emulated.points(tables(runs))) == 3
