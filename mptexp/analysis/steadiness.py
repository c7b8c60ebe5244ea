"""What repeats show that a single run cannot: that the machine was not the same all the time.

Each function gives the runs whose own figures are far from those of runs that should be alike.
"""

import math

import numpy as np
import pandas as pd

from mptexp.analysis.points import POINT

# Repeats of one policy, beyond what the clock of each run says and what all policies of a block
# share: a virtual machine's runs differ by a tenth, those beside another program by a half.
APART = 0.25
CLOCKS_APART = 0.10  # between the slowest and the fastest clock of a point
UTILIZATION_APART = 0.20  # of one program on one device, a share


def flags(results: pd.DataFrame) -> dict[str, list[str]]:
    """The names of the flags that runs get from others of their point, by run id.

    Args:
        results: one row per run; only those that ended well count.
    """
    ok = results[results.status == "ok"]
    numbers = {n: pd.to_numeric(ok[n]) for n in ("step_s", "step_ci", "clock_hz")}
    ok = ok.assign(**numbers, utilization_frac=pd.to_numeric(ok.utilization_frac))
    marked = [("repeats apart", ok.run_id[_repeats_apart(ok)])]
    for _, runs in ok.groupby(POINT, sort=False):
        marked.append(("other clocks", runs.run_id[_other_clocks(runs.clock_hz)]))
        marked.append(("uneven utilization", runs.run_id[_uneven(runs)]))
    found: dict[str, list[str]] = {}
    for name, run_ids in marked:
        for run_id in run_ids:
            found.setdefault(run_id, []).append(name)
    return found


def are_apart(step_s: float, other_s: float, clock: float) -> bool:
    """Whether two times of one step differ by more than repeats may; not where one is NaN.

    Args:
        clock: how unsure the clock is of them, a share.
    """
    return abs(math.log(step_s / other_s)) > math.log1p(APART) + 2 * clock


def _repeats_apart(runs: pd.DataFrame) -> np.ndarray:
    """The repeats of each policy and point that are farther apart than their clocks allow.

    What the other policies of the point share in a block, or all other runs of the device in it,
    is drift, which a ratio within the block does not notice.
    """
    point = runs.groupby(POINT, sort=False, dropna=False).ngroup()
    own = [point, runs.policy]
    logs = np.log(runs.step_s)
    centred = logs - logs.groupby(own).transform("mean")
    clock = runs.step_ci.fillna(0).groupby(own).transform("max")
    far = np.ones(len(runs), bool)
    for beside in ([point, runs.block], [runs.gpu_model, runs.block]):
        blocks = centred.groupby(beside)
        others = (blocks.transform("sum") - centred) / (blocks.transform("count") - 1)
        rest = (centred - others.replace([np.inf, -np.inf], np.nan).fillna(0.0)).groupby(own)
        spread = rest.transform("max") - rest.transform("min")
        far &= (spread > np.log1p(APART) + 2 * clock).to_numpy(bool)
    return far


def _other_clocks(clocks: pd.Series) -> np.ndarray:
    """The runs whose clock is not that of the most, where clocks of a point differ."""
    if not clocks.max() > clocks.min() * (1 + CLOCKS_APART):
        return np.zeros(len(clocks), bool)
    far = (clocks / clocks.median() - 1).abs() > CLOCKS_APART / 2
    return far.to_numpy(bool)


def _uneven(runs: pd.DataFrame) -> np.ndarray:
    """The repeats of a policy that used the device to different shares."""
    shares = runs.utilization_frac.groupby(runs.policy)
    apart = shares.transform("max") - shares.transform("min") > UTILIZATION_APART
    return apart.to_numpy(bool)
