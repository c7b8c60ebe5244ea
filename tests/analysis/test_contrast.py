import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mptexp.analysis.contrast import (
    MOST_REPEATS,
    Contrast,
    paired,
    repeats_to_decide,
    repeats_to_narrow,
    unpaired,
)


def test_fewer_than_three_blocks_claim_no_interval():
    over = paired([2.0, 8.0], [1.0, 1.0])
    assert (over.estimate, over.n) == (pytest.approx(4), 2)
    assert np.isnan(over.low)
    assert np.isnan(over.high)
    assert np.isnan(paired([1.0, 2.0], [0.5, 1.0], "difference").low)


def test_the_interval_of_a_ratio_is_students_on_logarithms():
    ratios = [1.0, 1.1, 1.3]
    over = paired(ratios, [1.0, 1.0, 1.0])
    expected = stats.t.interval(0.95, 2, np.log(ratios).mean(), stats.sem(np.log(ratios)))
    assert (over.low, over.high) == tuple(map(pytest.approx, np.exp(expected)))
    assert over.low < over.estimate < over.high


def test_the_interval_of_a_difference_is_students():
    values = [0.01, 0.03, 0.02, 0.05]
    over = paired(np.add(values, 0.9), np.full(4, 0.9), "difference")
    expected = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (over.low, over.high) == tuple(map(pytest.approx, expected))
    assert over.estimate == pytest.approx(np.mean(values))


def test_only_blocks_with_both_count():
    left = pd.Series([2.0, 4.0, np.nan], [0, 1, 2])
    right = pd.Series([2.0, 1.0, 1.0], [1, 0, 3])
    over = paired(left, right)
    assert (over.estimate, over.n) == (pytest.approx(2), 2)
    nothing = paired(left, right[2:])
    assert nothing.n == 0
    assert np.isnan(nothing.estimate)


def test_drift_of_the_machine_cancels():
    drift = np.array([1.0, 3.0, 9.0])
    over = paired(0.2 * drift, 0.1 * drift)
    assert (over.low, over.estimate, over.high) == pytest.approx((2, 2, 2), rel=2e-3)


def test_cells_of_a_table():
    cells = Contrast(2.0, 1.5, 2.5, 3).columns("speedup")
    assert cells == {"speedup": 2.0, "low": 1.5, "high": 2.5, "blocks": 3}


@pytest.mark.parametrize("blocks", [3, 5, 10])
def test_the_interval_covers(blocks):
    # A block drifts by 3 %, alike for both; a run has noise of 1 %, and one in twenty is slowed by
    # an exponential of mean 10 %. benchmarks/interval_coverage.py compares other methods.
    random = np.random.default_rng(blocks)
    drift = np.exp(random.normal(0, 0.03, (2000, 1, blocks)))
    noise = np.exp(random.normal(0, 0.01, (2000, 2, blocks)))
    slowed = random.random((2000, 2, blocks)) < 0.05
    times = drift * noise * (1 + slowed * random.exponential(0.1, (2000, 2, blocks)))
    assert np.mean([over.low <= 1 <= over.high for over in (paired(*t) for t in times)]) >= 0.93


def test_without_common_blocks_the_interval_is_welchs():
    left, right = np.log([1.0, 1.1, 1.2]), np.log([0.5, 0.5, 0.6, 0.52])
    over = unpaired(np.exp(left), np.exp(right))
    # Degrees of freedom by Welch and Satterthwaite.
    parts = left.var(ddof=1) / 3, right.var(ddof=1) / 4
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 3)
    half = stats.t.ppf(0.975, freedom) * sum(parts) ** 0.5
    assert np.log(over.estimate) == pytest.approx(left.mean() - right.mean())
    ends = np.log(over.estimate) + np.array([-half, half])
    assert np.log([over.low, over.high]) == pytest.approx(ends)
    few = unpaired([1.0, 1.1], [0.5, 0.5, 0.6])
    assert np.isnan(few.low)
    assert np.isnan(few.high)


def test_welchs_interval_covers():
    random = np.random.default_rng(0)
    sides = np.exp(random.normal(0, 0.03, (2000, 2, 4)))
    held = [over.low <= 1 <= over.high for over in (unpaired(*pair) for pair in sides)]
    assert np.mean(held) > 0.93


@pytest.mark.parametrize(("effect", "spread"), [(0.1, 0.05), (0.05, 0.04), (0.3, 0.2)])
def test_the_repeats_that_decide_show_the_effect_four_times_in_five(effect, spread):
    # An interval of three blocks that implies exactly this spread and this effect.
    half = stats.t.ppf(0.975, 2) * spread / np.sqrt(3)
    needed = repeats_to_decide(Contrast(np.exp(effect), n=3).within(half))
    random = np.random.default_rng(needed)
    logs = random.normal(effect, spread, (10_000, needed))
    shown = []
    for blocks in (needed - 1, needed):
        own = logs[:, :blocks]
        halves = stats.t.ppf(0.975, blocks - 1) * own.std(axis=1, ddof=1) / np.sqrt(blocks)
        shown.append((np.abs(own.mean(axis=1)) > halves).mean())
    assert shown[0] < 0.81  # one fewer would not do
    assert shown[1] > 0.79


@pytest.mark.parametrize(
    "found",
    [
        Contrast(1.1, n=2),  # no interval
        Contrast(),
        Contrast(1.001, 0.9, 1.1, 3),  # an effect that nobody asks for
        Contrast(1.01, 0.5, 2.0, 3),  # hundreds of repeats
        Contrast(0.0, 0.0, np.inf, 3),
    ],
)
def test_what_repeats_cannot_decide_has_no_number_of_them(found):
    with np.errstate(divide="ignore"):
        assert repeats_to_decide(found) is None


@pytest.mark.parametrize("kind", ["ratio", "difference"])
def test_repeats_that_decide_are_more_than_were_made_and_not_endless(kind):
    found = Contrast(1.02 if kind == "ratio" else 0.02, n=4, kind=kind).within(0.025)
    assert 4 < repeats_to_decide(found) <= MOST_REPEATS


@pytest.mark.parametrize("blocks", [3, 4, 5, 8])
def test_repeats_that_halve_an_interval_are_the_fewest_that_do(blocks):
    def half(n):
        """Of an interval of n values whose variance is 1."""
        values = np.array([1.0, -1.0] * (n // 2) + [0.0] * (n % 2))
        values = values / values.std(ddof=1)
        return -paired(values, np.zeros(n), "difference").low

    needed = repeats_to_narrow(blocks, 2)
    assert half(needed) <= half(blocks) / 2 < half(needed - 1)
    assert repeats_to_narrow(1, 2) == repeats_to_narrow(2, 2) == 3


def test_repeats_are_counted_however_many_it_takes():
    # Once an array of as many numbers: 65 GB of them at a margin of 0.0001 percentage points.
    assert repeats_to_narrow(3, 1e5) == pytest.approx((1.96 * 1e5 * 3**0.5 / 4.3027) ** 2, rel=1e-4)
