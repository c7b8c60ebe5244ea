import math

import numpy as np
import pytest
from scipy import special, stats

from mptexp.analysis import contrast, simultaneous_intervals


def noise(points, blocks, seed, spread=1.0):
    """Log ratios of policies that do not differ: two runs a block, 2 % noise each."""
    random = np.random.default_rng(seed)
    return random.normal(0, 0.02 * math.sqrt(2), (points, blocks)) * spread


def claims(values):
    halves = simultaneous_intervals.half_widths(values)
    return [abs(np.mean(v)) > half for v, half in zip(values, halves, strict=True)]


def test_one_comparison_has_its_own_interval():
    values = [0.1, 0.2, 0.4]
    (half,) = simultaneous_intervals.half_widths([values])
    assert half == pytest.approx(stats.t.ppf(0.975, 2) * stats.sem(values))


def test_fewer_than_three_blocks_claim_nothing():
    halves = simultaneous_intervals.half_widths([[0.1, 0.1], [0.1, 0.2, 0.3], [0.2]])
    assert [math.isnan(half) for half in halves] == [True, False, True]


def test_of_a_mean_of_which_nothing_is_known_there_is_no_interval():
    # The lie: of a text of one sequence the interval of its blocks alone, "equal within 1 %".
    own = [contrast.paired([v, v, 1.01 * v], [0.0, 0.0, 0.0], "difference") for v in (0.01, 0.02)]
    both = simultaneous_intervals.together(own, [(math.inf, 1.0), (0.0, 1.0)])
    assert math.isnan(both[0].low)
    assert both[0].estimate == own[0].estimate
    assert math.isfinite(both[1].low)


@pytest.mark.parametrize(("points", "blocks"), [(4, 3), (40, 3), (40, 5)])
def test_few_sweeps_of_pure_noise_claim_anything(points, blocks):
    # Binomial: with a true rate of 5 % more than 48 of 600 happen once in a thousand times; the
    # seeds are fixed, so this never depends on luck.
    lying = sum(any(claims(noise(points, blocks, seed))) for seed in range(600))
    assert lying <= 48
    # Each by its own interval, most sweeps of 40 points would lie.
    own = sum(
        bool((abs(stats.ttest_1samp(noise(40, 3, s), 0, axis=1).pvalue) < 0.05).any())
        for s in range(100)
    )
    assert own > 70


def test_a_noisy_point_among_quiet_ones_claims_no_more_than_alone():
    lying = 0
    for seed in range(400):
        values = noise(8, 3, seed)
        values[0] *= 6
        lying += claims(values)[0]
    assert lying <= 30


def test_what_is_there_is_seen():
    # Five batch sizes, five blocks, runs that vary by 1 %: the 1.07 of the first study.
    seen = [claims(noise(5, 5, seed, 0.5) + math.log(1.07)) for seed in range(50)]
    assert np.mean(seen) > 0.95


def test_like_comparisons_lend_one_another_their_certainty():
    # With three blocks alone, Bonferroni's interval for 20 comparisons is 11 standard errors wide.
    values = noise(20, 3, 0)
    alone = stats.t.ppf(1 - 0.025 / 20, 2) * stats.sem(values, axis=1)
    assert np.median(simultaneous_intervals.half_widths(values)) < 0.5 * np.median(alone)


def test_an_interval_is_never_narrower_than_the_points_own():
    values = noise(30, 4, 1, spread=np.random.default_rng(2).lognormal(0, 1, (30, 1)))
    own = stats.t.ppf(0.975, 3) * stats.sem(values, axis=1)
    assert (np.array(simultaneous_intervals.half_widths(values)) >= own - 1e-15).all()


def test_together_an_interval_is_never_narrower_than_by_blocks_alone():
    # The lie: float16 "lower" by [-11.69, -1.18] points, by blocks alone [-13.15, +0.28]: what the
    # images add to the variance brought degrees of freedom along.
    values = noise(7, 3, 0, spread=np.linspace(0.2, 3, 7)[:, None])
    alone = np.array(simultaneous_intervals.half_widths(values))
    for variance in (0.0, 1e-5, 1e-4, 1e-3):
        both = np.array(simultaneous_intervals.half_widths(values, more=[(variance, 361.0)] * 7))
        assert (both >= alone - 1e-15).all()


def test_ratios_that_are_exactly_alike_have_an_interval():
    assert all(
        math.isfinite(half) for half in simultaneous_intervals.half_widths([[0.1] * 3, [0.2] * 3])
    )


@pytest.mark.parametrize("value", [1e-3, 0.3, 1.0, 40.0])
def test_the_inverse_of_trigamma(value):
    x = simultaneous_intervals._inverse_trigamma(value)
    assert special.polygamma(1, x) == pytest.approx(value, rel=1e-8)


def test_intervals_reach_over_those_of_all_that_was_measured():
    last, others = [0.30, 0.31, 0.32], [-0.4, 0.0, 0.4]
    ((low, high),) = simultaneous_intervals.of_ratios([last], [last])
    assert low > 0.2
    ((least, most),) = simultaneous_intervals.of_ratios([last], [[*last, *others]])
    assert least < 0 < low < high < most
    assert np.isnan(simultaneous_intervals.of_ratios([last[:2]], [last])).all()
