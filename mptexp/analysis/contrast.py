"""One contrast of two conditions: an estimate, its interval, and on how many values it rests.

What a page claims has wider intervals, which hold for all its comparisons together:
`simultaneous_intervals` makes them of these.

Every comparison of a report is formed here: speedups, differences in accuracy, scaling, loss
scales, emulated precision, ablations, two sweeps. The run is the unit, and two runs of the same
block were made next to each other: their ratio or difference cancels the drift of the machine.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import special

Kind = Literal["ratio", "difference"]
Values = Sequence[float] | np.ndarray | pd.Series
CONFIDENCE = 0.95  # of an interval, nominally
FEWEST = 3  # values: of fewer, Student's t interval is wider than any use of it
# A run's time is known no better than this share of it, however alike its repeats are: a window of
# steps takes 0.2 s, and the synchronizations at its edges 0.1 ms.
RESOLUTION = 5e-4
TINY = {"ratio": 0.005, "difference": 5e-4}  # effects that nobody would repeat a sweep for
MOST_REPEATS = 50  # beyond which the answer is another experiment, not more of this one
POWER = 0.8  # chance to show an effect that is there: Cohen's convention
LEAST = {"ratio": 2 * RESOLUTION**2, "difference": 0.0}  # variance of a block's value


@dataclass(frozen=True)
class Contrast:
    """Of two conditions.

    Attributes:
        estimate: geometric mean of the ratios, or mean of the differences; NaN without any.
        low: lower end of the interval; NaN where there are too few values for one.
        high: its upper end.
        n: how many values it rests on: blocks that have both conditions, or, of conditions that
            share no block, runs of the one with fewer.
        kind: ratio or difference.
        values: what it rests on, see `by_block`; empty of conditions that share no block.
    """

    estimate: float = np.nan
    low: float = np.nan
    high: float = np.nan
    n: int = 0
    kind: Kind = "ratio"
    values: tuple[float, ...] = field(default=(), repr=False, compare=False)

    def within(self, half: float) -> "Contrast":
        """The same with an interval of this half width: of a ratio, on its logarithm."""
        if self.kind == "difference":
            return replace(self, low=self.estimate - half, high=self.estimate + half)
        wide = float(np.exp(half))
        return replace(self, low=self.estimate / wide, high=self.estimate * wide)

    def columns(self, name: str) -> dict[str, Any]:
        """The cells of a table's row: the estimate under its name, low, high and blocks."""
        return {name: self.estimate, "low": self.low, "high": self.high, "blocks": self.n}


def paired(left: Values, right: Values, kind: Kind = "ratio") -> Contrast:
    """Left over right, or left minus right, formed within each block.

    The interval is Student's t on the differences or on the logarithms of the ratios: at 3 to 10
    blocks it covers what it says, where a percentile bootstrap covers 71 to 90 %.

    Args:
        left: one value per block; a series by block is aligned with the other. A block in which
            either is NaN is left out.
        right: likewise.
        kind: ratio or difference.
    """
    pairs = by_block(left, right, kind)
    if not len(pairs):
        return Contrast()
    ends = _mean(pairs, LEAST[kind])
    shown = np.exp(ends).tolist() if kind == "ratio" else ends
    return Contrast(*shown, len(pairs), kind, tuple(pairs.tolist()))


def by_block(left: Values, right: Values, kind: Kind = "ratio") -> np.ndarray:
    """What `paired` rests on: a difference for each block, or the logarithm of a ratio."""
    sides = [_once(v) if isinstance(v, pd.Series) else np.asarray(v, float) for v in (left, right)]
    pairs = np.asarray(sides[0] / sides[1] if kind == "ratio" else sides[0] - sides[1], float)
    pairs = pairs[~np.isnan(pairs)]
    return np.log(pairs) if kind == "ratio" else pairs


def _once(values: pd.Series) -> pd.Series:
    """A value per block: of several of one, which pandas would pair with each of the other's."""
    return values if values.index.is_unique else values.groupby(level=0).mean()


def unpaired(left: Values, right: Values, confidence: float = CONFIDENCE) -> Contrast:
    """Geometric mean of left over that of right, of runs that share no block.

    The interval is Welch's for two independent samples, on logarithms, of variances of at least
    RESOLUTION; three runs on both sides are needed for one.
    """
    logs = [np.log(np.asarray(side, float)) for side in (left, right)]
    ratio = float(np.exp(logs[0].mean() - logs[1].mean()))
    fewer = min(len(side) for side in logs)
    if fewer < FEWEST:
        return Contrast(ratio, n=fewer)
    errors = np.array([max(side.var(ddof=1), RESOLUTION**2) / len(side) for side in logs])
    freedom = errors.sum() ** 2 / sum(
        e**2 / (len(s) - 1) for e, s in zip(errors, logs, strict=True)
    )
    half = special.stdtrit(freedom, (1 + confidence) / 2) * np.sqrt(errors.sum())
    return Contrast(ratio, n=fewer).within(float(half))


def repeats_to_decide(found: Contrast) -> int | None:
    """Blocks with which an effect as large as the estimate is shown four times in five.

    The sample size of a paired t test, by its power (the noncentral t distribution), with the
    spread of blocks that the interval's width implies. An interval that holds for several
    comparisons together is wider, and so is what this says.

    Returns:
        More than the contrast's own; None where it has no interval, or where the effect is TINY or
        would take more than MOST_REPEATS.
    """
    ratio = found.kind == "ratio"
    ends = np.array([found.low, found.high, found.estimate], float)
    low, high, effect = np.log(ends) if ratio else ends
    if not np.isfinite([low, high, effect]).all() or abs(effect) < TINY[found.kind]:
        return None
    level = (1 + CONFIDENCE) / 2
    spread = (high - low) / 2 * np.sqrt(found.n) / special.stdtrit(found.n - 1, level)
    more = np.arange(found.n + 1, MOST_REPEATS + 1)
    limit = special.stdtrit(more - 1, level)
    missed = special.nctdtr(more - 1, abs(effect) / spread * np.sqrt(more), limit)
    enough = more[1 - missed >= POWER]
    return int(enough[0]) if len(enough) else None


def repeats_to_narrow(blocks: int, times: float) -> int:
    """Blocks whose t interval is narrower by so many times than that of so many, of equal spread.

    At least FEWEST. Intervals that hold the chance of images too need more.
    """

    def narrow(n: int) -> float:
        return math.sqrt(n) / float(special.stdtrit(n - 1, (1 + CONFIDENCE) / 2))

    wanted = narrow(max(blocks, 2)) * times
    most = math.ceil(max(blocks, 2) * times**2)  # as Student's factor only falls
    return bisect_left(range(most), wanted, lo=FEWEST, key=narrow)


def _mean(values: np.ndarray, least: float) -> tuple[float, float, float]:
    """Mean of values and the ends of Student's t interval, of a variance of at least `least`."""
    mean = float(np.mean(values))
    if len(values) < FEWEST:
        return mean, np.nan, np.nan
    error = np.sqrt(max(np.var(values, ddof=1), least) / len(values))
    half = float(special.stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2) * error)
    return mean, mean - half, mean + half
