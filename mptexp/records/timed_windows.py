"""A run's windows of steps: which are warm-up and left out, and the figures of the others.

The step clock makes them, and whoever reads a record makes them again: see `consistency`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

LEAST_WINDOWS = 10  # fewer claim no interval of their median
# Of a record: more windows and readings than these, of hours, are joined and thinned.
MOST_WINDOWS, MOST_SAMPLES = 10_000, 10_000
# Times the median that steps take on average, or the reverse, from which some are others.
UNEQUAL = 1.25
MOST_WARM_UP = 50  # steps: where they are a third of all, too, they are no warm-up
RECURS = 3  # windows that take so much longer or shorter: one or two may be a stall
# How the mark begins of steps whose median says little of the training.
UNEQUAL_STEPS = "its steps are unequal"
APART = 100  # windows at the start, of compilation and warm-up, that stay as they are


@dataclass(frozen=True)
class Window:
    """Consecutive steps between two synchronizations of the device; seconds in all."""

    first_step: int
    steps: int
    seconds: float


def timing(windows: Sequence[Window]) -> dict[str, Any]:
    """The figures of a run from its windows, of which there must be one.

    Keys: step_s, step_s_low, step_s_high (median, 5th and 95th percentile window, seconds per
    step, windows weighted by their steps), step_ci (see relative_ci), steps_timed, warmup_steps,
    first_step_s.
    """
    steady = windows[warmup_windows(windows) :]
    low, middle, high = _of_windows(steady, (5, 50, 95))
    return {
        "step_s": middle,
        "step_s_low": low,
        "step_s_high": high,
        "step_ci": relative_ci(steady),
        "steps_timed": sum(w.steps for w in steady),
        "warmup_steps": steady[0].first_step,
        # Several steps that are one program compile together.
        "first_step_s": windows[0].seconds,
    }


def joined(windows: Sequence[Window]) -> tuple[list[Window], int]:
    """Windows as a record holds them, and how many neighbours were joined to one of them.

    Evenly, whatever they took: none is left out, and figures are made of what the record holds. The
    interval of a median stays about as wide, of fewer windows that differ less.
    """
    first, rest = windows[:APART], windows[APART:]
    several = max(1, -(-len(rest) // (MOST_WINDOWS - APART)))
    groups = [rest[k : k + several] for k in range(0, len(rest), several)]
    return [*first, *map(_one, groups)], several


def _one(group: Sequence[Window]) -> Window:
    seconds = sum(window.seconds for window in group)
    return Window(group[0].first_step, sum(window.steps for window in group), seconds)


def thinned(samples: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Readings of sensors as a record holds them, and of how many each is one; the last is kept."""
    several = max(1, -(-len(samples) // MOST_SAMPLES))
    return [*samples[:-1:several], *samples[-1:]], several


def shortened(joined: int, thinned: int) -> list[str]:
    """What the record of a long training says of how it was made short enough to be read."""
    windows, readings = f"{joined} windows of steps are one", f"1 of {thinned} readings is kept"
    said = [windows] * (joined > 1) + [readings] * (thinned > 1)
    return [f"recorded in short, as it was long: {', '.join(said)}"] * bool(said)


def unequal(windows: Sequence[Window]) -> list[str]:
    """What a record says of steps whose median leaves out what recurs in fewer than half of them.

    Such as an update after several batches; or steps that are short beside those with an
    evaluation. Programs beside it lengthen steps too.
    """
    first = warmup_windows(windows)
    steady = windows[first:]
    (median_s,) = _of_windows(steady, (50,))
    warm, steps = (sum(window.steps for window in some) for some in (windows[:first], windows))
    if warm > MOST_WARM_UP and warm > steps / 3:
        return [f"{UNEQUAL_STEPS}: the first {warm} of {steps} took longer, and were left out"]
    if not median_s:
        return []
    times = sum(w.seconds for w in steady) / sum(w.steps for w in steady) / median_s
    others = sum(_far(w.seconds / w.steps / median_s, times > 1) for w in steady)
    if not _far(times, times > 1) or others < RECURS:
        return []
    return [f"{UNEQUAL_STEPS}: on average they take {times:.3g} times their median"]


def _far(times: float, longer: bool) -> bool:
    return times > UNEQUAL if longer else times * UNEQUAL < 1


def warmup_windows(windows: Sequence[Window]) -> int:
    """How many windows at the start are compilation and warm-up.

    Steady are the steps from the first two windows in a row that take at most 1.25 times the
    median of the second half of all windows. Never all of them: the last window always counts.
    """
    rates = [w.seconds / w.steps for w in windows]
    usual = median(rates[len(rates) // 2 :]) * 1.25
    steady = [*(rate <= usual for rate in rates), True]
    both = (k for k, pair in enumerate(pairwise(steady)) if all(pair))
    return next(both, len(windows) - 1)


def relative_ci(windows: Sequence[Window]) -> float:
    """Half width of the median window's 95 % interval, as a fraction of the median.

    The interval lies between two order statistics of the windows, by the normal approximation of
    the binomial distribution of ranks (Conover, Practical Nonparametric Statistics, 3rd ed., 3.2).
    It says when to stop measuring, and nothing of other processes: neighbouring windows are alike,
    and a ratio's interval comes from runs. Infinite for fewer than LEAST_WINDOWS windows, and where
    the median is nought.
    """
    if len(windows) < LEAST_WINDOWS:
        return float("inf")
    low, middle, high = median_interval(windows)
    return (high - low) / 2 / middle if middle else float("inf")


def median_interval(windows: Sequence[Window]) -> tuple[float, float, float]:
    """Lower end, median and upper end of the interval of relative_ci, seconds per step."""
    share = 98 / len(windows) ** 0.5
    low, middle, high = _of_windows(windows, (50 - share, 50, 50 + share))
    return low, middle, high


def _of_windows(windows: Sequence[Window], wanted: Sequence[float]) -> list[float]:
    return percentiles([(w.seconds, w.steps) for w in windows], wanted)


def percentiles(timed: Iterable[tuple[float, int]], wanted: Iterable[float]) -> list[float]:
    """Percentiles of the seconds a step, each window weighted by its steps.

    A window of 16 steps says more than the remainder of an epoch does.

    Args:
        timed: seconds and steps of each window, of which there must be one.
        wanted: percentiles from 0 to 100.
    """
    rates = sorted((seconds / steps, steps) for seconds, steps in timed)
    shares = list(accumulate(steps for _, steps in rates))
    return [float(rates[bisect_left(shares, p / 100 * shares[-1])][0]) for p in wanted]
