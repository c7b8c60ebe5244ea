"""Speedups of policies with intervals: at the same batch size, and at each policy's best one.

Above 1, the candidate is faster.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import contrast, simultaneous, validity
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.points import POINT, baselines, by_block
from mptexp.spec.policies import POLICIES

COMPARED = ["baseline", "candidate", "speedup", "low", "high", "claim_low", "claim_high"]
COMPARED += ["blocks", "flags"]


def at_same_batch(results: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """Speedup of every policy over strict float32 and over the device's default.

    Ratios are formed within a block, so that drift of the machine cancels; the run is the unit.
    The estimate is the geometric mean of the blocks' ratios; low and high are Student's t interval
    of their logarithms. Fewer than three blocks claim no interval (low and high are empty). What
    is claimed must hold for all points of the sweep together: see `simultaneous`. Runs that are
    not comparable, or were measured apart, form no ratio; what else is not valid of a run takes
    the claim away.

    Args:
        results: one row per run, the columns of COLUMNS.
        confidence: nominal coverage of the interval.

    Returns:
        Columns of POINT, then COMPARED: speedup is baseline time / candidate time; claim_low and
        claim_high are empty where nothing may be claimed.
    """
    rows, logs = [], []
    ok = validity.timed_together(results[results.status == "ok"])
    flags = ok.groupby([*POINT, "policy"])["flags"].agg(validity.together).to_dict()
    for point, default, times in by_block(ok, "step_s"):
        for baseline in baselines(default, times):
            for candidate in [p for p in times if p != baseline]:
                over = contrast.paired(times[baseline], times[candidate], confidence=confidence)
                if over.n:
                    both = validity.together(flags[*point, p] for p in (baseline, candidate))
                    figures = over.columns("speedup")
                    rows.append([*point, baseline, candidate, *figures.values(), both])
                    logs.append(contrast.by_block(times[baseline], times[candidate]))
    unclaimed = [*POINT, "baseline", "candidate", "speedup", "low", "high", "blocks", "flags"]
    return _claimed(pd.DataFrame(rows, columns=unclaimed), logs)


def _claimed(table: pd.DataFrame, logs: Sequence[np.ndarray]) -> pd.DataFrame:
    """The table with the ends of the simultaneous intervals of what may be claimed."""
    valid = [not validity.invalid(flags, "time") for flags in table["flags"]]
    wanted = [values for values, ok in zip(logs, valid, strict=True) if ok]
    halves = np.full(len(table), np.nan)
    halves[np.array(valid, bool)] = simultaneous.half_widths(wanted)
    ends = {
        "claim_low": table.speedup.astype(float) * np.exp(-halves),
        "claim_high": table.speedup.astype(float) * np.exp(halves),
    }
    return table.assign(**ends)[[*POINT, *COMPARED]]


def at_best_batch(results: pd.DataFrame) -> pd.DataFrame:
    """Every policy at the batch size that gives it the most images per second.

    Where a point was measured at several batch sizes: a 16-bit policy may have room for a batch
    that float32 has not. A batch size with a run that ran out of memory does not count.

    Returns:
        Columns of POINT without batch_size, policy, batch_size (its best), largest (the largest
        that ran), too_large (the smallest that ran out of memory, or NaN), images_per_s (median),
        baseline, speedup (images per second over the baseline's at its own best batch size, above 1
        is faster; NaN for the baseline), low, high (for all of the table together), blocks, flags.
    """
    keys = [name for name in POINT if name != "batch_size"]
    own = [*keys, "policy"]
    ended = with_jit(validity.timed_together(results[results.status.isin(["ok", "oom"])]))
    ended = ended[ended.groupby(keys).batch_size.transform("nunique") > 1]
    out, ok = (ended[ended.status == status] for status in ("oom", "ok"))
    sizes, lost = (pd.MultiIndex.from_frame(t[[*own, "batch_size"]]) for t in (ok, out))
    ran = ok[~sizes.isin(lost)].dropna(subset="images_per_s")  # not valid of runs in parallel
    best = _fastest(ran, own)
    at_best = ran.merge(best[[*own, "batch_size"]])
    sized = best.set_index(own).to_dict("index")
    too_large = out.groupby(own).batch_size.min().to_dict()
    flags = at_best.groupby(own)["flags"].agg(validity.together).to_dict()
    rows, overs = [], []
    for point, default, rates in by_block(at_best, "images_per_s", keys):
        baseline = next(iter(baselines(default, rates)), "")
        for policy in [p for p in POLICIES if p in rates]:
            named = dict(zip(own, (*point, policy), strict=True)) | {"baseline": baseline}
            least = {"too_large": too_large.get((*point, policy), np.nan)}
            both = validity.together(flags[*point, p] for p in {policy, baseline or policy})
            rows.append(named | sized[(*point, policy)] | least | {"flags": both})
            other = bool(baseline) and policy != baseline
            overs.append(contrast.paired(rates[policy], rates[baseline]) if other else Contrast())
    figures = _together(overs, [str(row["flags"]) for row in rows])
    columns = ["batch_size", "largest", "too_large", "images_per_s", "baseline", "speedup", "low"]
    rows = [row | ends for row, ends in zip(rows, figures, strict=True)]
    return pd.DataFrame(rows, columns=[*own, *columns, "high", "blocks", "flags"])


def _together(overs: Sequence[Contrast], flags: Sequence[str]) -> list[dict[str, Any]]:
    """The cells of ratios, whose intervals hold for all that are valid together."""
    valid = [k for k, names in enumerate(flags) if not validity.invalid(names, "time")]
    wide = dict(zip(valid, simultaneous.together([overs[k] for k in valid]), strict=True))
    ends = [wide.get(k, over) for k, over in enumerate(overs)]
    nothing = dict.fromkeys(Contrast().columns("speedup"), np.nan)
    return [over.columns("speedup") if over.n else nothing for over in ends]


def _fastest(runs: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The batch size with the most images per second, and the largest one, of each of some keys."""
    rates = runs.groupby([*keys, "batch_size"], as_index=False).images_per_s.median()
    rates["largest"] = rates.groupby(list(keys)).batch_size.transform("max")
    return rates.loc[rates.groupby(list(keys)).images_per_s.idxmax()]


def with_jit(results: pd.DataFrame) -> pd.DataFrame:
    """Fills in the jit of runs that ended before they were compiled: as like runs had it."""
    asked = {"on": True, "off": False}
    keys = [name for name in POINT if name not in ("batch_size", "jit")]
    ok = results[results.status == "ok"]
    known = {point: jit.iloc[0] for point, jit in ok.groupby(keys).jit if jit.nunique() == 1}
    points = results[keys].itertuples(index=False, name=None)
    pairs = zip(points, results.jit, strict=True)
    return results.assign(
        jit=[known.get(p, j) if j == "auto" else asked.get(j, j) for p, j in pairs]
    )
