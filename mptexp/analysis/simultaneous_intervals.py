"""Intervals that hold for all comparisons of a sweep together: they decide what is claimed.

Of forty comparisons of pure noise, two leave 1 out of their own 95 % interval on average, so a
sweep's first sentence would be false in most sweeps. And three blocks alone prove next to nothing
once the intervals are widened for that. Both are met here: each comparison's variance over its
blocks is moderated by those of all others (Smyth 2004, "Linear models and empirical Bayes
methods", which learns from the spread of the variances how alike they are), and the level is
Sidak's for the number of comparisons. The interval is never narrower than the comparison's own.

Measured by `benchmarks/interval_coverage.py`: sweeps of pure noise that claim anything, and power.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import special

from mptexp.analysis.contrast import CONFIDENCE, FEWEST, LEAST, Contrast

# The moderated part takes half of the 5 % that a sweep may err: with three blocks, how unlike the
# variances are cannot be known well, and simulated sweeps of unlike points use up the other half.
ALPHA = 0.025
# Variances are never taken to be more alike than this (variance of their logarithms), divided by
# the number of comparisons: few of them cannot show that they are alike.
LEAST_SPREAD = 4.0
TINY = 1e-16  # a variance of nought would have no logarithm


def together(
    contrasts: Sequence[Contrast],
    more: Sequence[tuple[float, float]] | None = None,
    among: Sequence[bool] | None = None,
) -> list[Contrast]:
    """Contrasts with intervals that hold for all of them together, in their order.

    For the comparisons of one table, of which a reader takes the best. One of whose mean nothing
    is known has none.

    Args:
        more: as in `half_widths`.
        among: of each whether it is one of them; others have no interval. By default all are.
    """
    places = [k for k in range(len(contrasts)) if among is None or among[k]]
    own = [contrasts[k] for k in places]
    made = [replace(over, low=math.nan, high=math.nan) for over in contrasts]
    beyond = more and [more[k] for k in places]
    halves = half_widths([o.values for o in own], beyond, [LEAST[o.kind] for o in own])
    for k, half in zip(places, halves, strict=True):
        if math.isnan(half):
            made[k] = contrasts[k]
        elif math.isfinite(half):
            made[k] = contrasts[k].within(half)
    return made


def of_ratios(
    values: Sequence[Sequence[float]], measured: Sequence[Sequence[float]]
) -> list[tuple[float, float]]:
    """Ends of the intervals of ratios' logarithms that hold together, also of all measurements.

    Blocks that were measured again until repeats agreed were chosen by their outcome: of a pair of
    policies that do not differ, the set that agrees may be the one in which one policy was slow in
    every block. So an interval reaches over that of all that was measured.

    Args:
        values: of each comparison the logarithms within its blocks.
        measured: the same with those of blocks that were measured again.
    """
    sides = []
    for logs in (values, measured):
        means = np.array([np.mean(v) for v in logs])
        halves = np.array(half_widths(logs, least=[LEAST["ratio"]] * len(logs)))
        sides.append((means - halves, means + halves))
    (low, high), (least, most) = sides
    return list(zip(np.minimum(low, least), np.maximum(high, most), strict=True))


def half_widths(
    values: Sequence[Sequence[float]],
    more: Sequence[tuple[float, float]] | None = None,
    least: Sequence[float] | None = None,
) -> list[float]:
    """Half widths of the simultaneous intervals around the mean of each comparison.

    Args:
        values: of each comparison the differences within its blocks (of a ratio: their
            logarithms), without unit.
        more: of each comparison a variance of its mean that its blocks do not show, and the
            degrees of freedom of that; none by default.
        least: of each comparison the least variance of a value, from the resolution of what
            measured it; none by default.

    Returns:
        A half width for each comparison; NaN where it has fewer than three blocks, infinite where
        a variance of its mean is, of which nothing is known then.
    """
    samples = [np.asarray(v, float) for v in values]
    known = [k for k, v in enumerate(samples) if len(v) >= FEWEST]
    halves = [math.nan] * len(samples)
    if not known:
        return halves
    blocks = np.array([len(samples[k]) for k in known])
    freedom = blocks - 1
    floors = [TINY if least is None else max(least[k], TINY) for k in known]
    variance = np.maximum([samples[k].var(ddof=1) for k in known], floors)
    beyond = np.array([(0.0, 1.0) if more is None else more[k] for k in known]).T
    widths = special.stdtrit(freedom, (1 + CONFIDENCE) / 2) * np.sqrt(variance / blocks)
    widths = np.maximum(widths, _width(CONFIDENCE, variance / blocks, freedom, *beyond))
    if len(known) > 1:
        moderated, df = _moderated(variance, freedom)
        level = (1 - ALPHA) ** (1 / len(known))
        # By blocks alone too: what the images add brings degrees of freedom, and might narrow it.
        for more_of in (np.array([0.0, 1.0]), beyond):
            widths = np.maximum(widths, _width(level, moderated / blocks, df, *more_of))
    for k, width in zip(known, widths, strict=True):
        halves[k] = float(width)
    return halves


def _width(
    level: float, variance: np.ndarray, freedom: np.ndarray, more: np.ndarray, its: np.ndarray
) -> np.ndarray:
    """Half width of an interval whose variance has two parts (Satterthwaite 1946)."""
    known = np.where(np.isfinite(more), more, 0.0)
    total = variance + known
    df = total**2 / (variance**2 / freedom + known**2 / its)
    widths = special.stdtrit(df, (1 + level) / 2) * np.sqrt(total)
    return np.where(np.isfinite(more), widths, math.inf)


def _moderated(variance: np.ndarray, freedom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Variances drawn towards their common value, and the degrees of freedom they then have.

    The common value and its weight (`prior`, in degrees of freedom) come from mean and variance of
    the logarithms, Smyth's equations. A variance is never drawn below itself: a comparison that is
    noisier than the others keeps its noise.
    """
    logs = np.log(variance) - special.digamma(freedom / 2) + np.log(freedom / 2)
    by_chance = special.polygamma(1, freedom / 2).mean()
    spread = max(logs.var(ddof=1) - by_chance, LEAST_SPREAD / len(logs))
    half = _inverse_trigamma(spread)
    common = math.exp(logs.mean() + special.digamma(half) - math.log(half))
    prior = 2 * half
    drawn = (prior * common + freedom * variance) / (prior + freedom)
    return np.maximum(drawn, variance), np.minimum(prior + freedom, freedom.sum())


def _inverse_trigamma(value: float) -> float:
    """The x with trigamma(x) = value, by Newton's method as in Smyth's appendix."""
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x
