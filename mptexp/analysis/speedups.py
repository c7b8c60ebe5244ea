"""Speedups of policies with intervals: at the same batch size, and at each policy's best one.

Above 1, the candidate is faster.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mptexp.analysis import contrast, points, simultaneous_intervals, validity
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.points import POINT, baselines, by_block
from mptexp.records.schema import FITTED
from mptexp.spec.policies import POLICIES

if TYPE_CHECKING:
    from mptexp.analysis.sweep_tables import Tables

COMPARED = ["baseline", "candidate", "speedup", "low", "high", "claim_low", "claim_high"]
COMPARED += ["blocks", "flags"]
TIMES = ("step_s", "throughput")  # what a row of any table says of its runs' time
Sides = tuple[frozenset[str], frozenset[str]]  # run ids, those that stand above the line first
Ends = tuple[float, float]
Point = tuple[tuple, str, dict[str, np.ndarray]]  # as `by_block` gives it


def row_times(runs: pd.DataFrame, keys: Sequence[str], more: Sequence[str] = ()) -> pd.DataFrame:
    """The time and the rate of each row of a table, which every table and caption takes from here.

    Geometric means over the runs `of_row`, so that where two rows have the same blocks their
    quotient is the ratio beside them.

    Args:
        runs: those of all rows, that ended well.
        keys: the columns that name a row.
        more: further columns that follow from a run's time.

    Returns:
        TIMES and those columns by the keys; NaN where no run has a valid time.
    """
    names = [*TIMES, *more]
    runs = runs.assign(throughput=points.throughput(runs))
    logs = runs.assign(**{name: np.log(pd.to_numeric(runs[name])) for name in names})
    chosen = (logs, validity.timed_together(logs))  # as `of_row` has it, of all rows at once
    every, together = (table.groupby(list(keys))[names].mean() for table in chosen)
    return np.exp(together.reindex(every.index).fillna(every))


def of_row(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of one row whose times it shows: those that may form a ratio, all without any."""
    together = validity.timed_together(runs)
    return together if len(together) else runs


def times_of_row(runs: pd.DataFrame) -> dict[str, float]:
    """The same of the runs of one row; NaN of none."""
    table = row_times(runs.assign(row=0), ["row"])
    return dict.fromkeys(TIMES, np.nan) if table.empty else table.iloc[0].to_dict()


def at_same_batch(results: pd.DataFrame, superseded: pd.DataFrame | None = None) -> pd.DataFrame:
    """Speedup of every policy over strict float32 and over the device's default.

    Ratios are formed within a block, so that drift of the machine cancels; the run is the unit.
    The estimate is the geometric mean of the blocks' ratios; low and high are Student's t interval
    of their logarithms. Fewer than three blocks claim no interval (low and high are empty). What
    is claimed must hold for all points of the sweep together: see `simultaneous_intervals`. Runs
    that are not comparable, or were measured apart, form no ratio; what else is not valid of a run
    takes the claim away. What is claimed holds of the blocks that were measured again, too.

    Args:
        results: one row per run, the columns of COLUMNS.
        superseded: see `sweep_tables.Tables`.

    Returns:
        Columns of POINT, then COMPARED: speedup is baseline time / candidate time; claim_low and
        claim_high are empty where nothing may be claimed.
    """
    rows, logs, measured = [], [], []
    ok = validity.timed_together(results[results.status == "ok"])
    flags = ok.groupby([*POINT, "policy"])["flags"].agg(validity.together).to_dict()
    known = list(by_block(ok, "step_s"))
    every = _with_superseded(known, ok, superseded, "step_s", POINT)
    for point, default, times in known:
        for baseline in baselines(default, times):
            for candidate in [p for p in times if p != baseline]:
                over = contrast.paired(times[baseline], times[candidate])
                if over.n:
                    both = validity.together(flags[*point, p] for p in (baseline, candidate))
                    figures = over.columns("speedup")
                    rows.append([*point, baseline, candidate, *figures.values(), both])
                    logs.append(over.values)
                    measured.append(every(point, baseline, candidate))
    unclaimed = [*POINT, "baseline", "candidate", "speedup", "low", "high", "blocks", "flags"]
    table = pd.DataFrame(rows, columns=unclaimed)
    ends = _ends(table["flags"].tolist(), logs, measured)
    return table.assign(claim_low=ends[:, 0], claim_high=ends[:, 1])[[*POINT, *COMPARED]]


def _ends(
    flags: Sequence[str],
    logs: Sequence[Sequence[float]],
    measured: Sequence[np.ndarray],
    known: Sequence[Ends | None] = (),
) -> np.ndarray:
    """Ends of the intervals of ratios that hold for all valid ones together; NaN of the others.

    Args:
        known: of each the ends that another family gives it, which then is none of these.
    """
    known = known or [None] * len(flags)
    valid = [
        len(values) > 0 and not validity.invalid(names, "time")
        for values, names in zip(logs, flags, strict=True)
    ]
    own = [ok and ends is None for ok, ends in zip(valid, known, strict=True)]
    made = np.full((len(flags), 2), np.nan)
    if any(own):
        wanted = ([v for v, ok in zip(some, own, strict=True) if ok] for some in (logs, measured))
        made[np.array(own, bool)] = np.exp(simultaneous_intervals.of_ratios(*wanted))
    for place, (ok, ends) in enumerate(zip(valid, known, strict=True)):
        if ok and ends is not None:
            made[place] = ends
    return made


def ends_by_runs(ok: pd.DataFrame, claims: pd.DataFrame) -> dict[Sides, Ends]:
    """The intervals of ratios at the same batch size by the runs that they rest on, both ways.

    For what compares these runs again, such as instruction sets: one comparison has one interval.

    Args:
        ok: the runs that ended well.
        claims: as `Tables.claims` gives them.
    """
    timed = validity.timed_together(ok).dropna(subset="step_s")
    groups = timed.groupby([*POINT, "policy"]) if len(timed) else ()
    ids = {key: dict(zip(own.block, own.run_id, strict=True)) for key, own in groups}
    made: dict[Sides, Ends] = {}
    columns = claims[[*POINT, "baseline", "candidate", "low", "high"]]
    for *point, baseline, candidate, low, high in columns.itertuples(index=False, name=None):
        both = [ids.get((*point, policy), {}) for policy in (candidate, baseline)]
        sides = sides_of(*both)
        made[sides] = low, high
        made.setdefault(sides[::-1], (1 / high, 1 / low))
    return made


def sides_of(left: Mapping[Hashable, str], right: Mapping[Hashable, str]) -> Sides:
    """The runs of the blocks that two sides share, each given by block."""
    met = left.keys() & right.keys()
    return frozenset(left[block] for block in met), frozenset(right[block] for block in met)


def _with_superseded(
    own: Iterable[Point],
    runs: pd.DataFrame,
    superseded: pd.DataFrame | None,
    value: str,
    keys: Sequence[str],
) -> Callable[[tuple, str, str], np.ndarray]:
    """Gives the logarithms of a point's ratios of two policies in all blocks ever measured.

    Args:
        own: what `by_block` gives of the runs themselves.
    """
    if superseded is not None and len(superseded):
        named = runs.assign(block=runs.block.astype(str))
        own = by_block(pd.concat([named, superseded]), value, keys)
    every = {point: values for point, _, values in own}
    return lambda point, left, right: contrast.by_block(every[point][left], every[point][right])


def at_best_batch(tables: "Tables") -> pd.DataFrame:
    """Every policy at its best batch size: `best_batches` without what tells families apart."""
    return tables.best_batches.drop(columns="claimed")


def best_batches(tables: "Tables") -> pd.DataFrame:
    """Every policy at the batch size that gives it the most images, or tokens, per second.

    Where a point was measured at several batch sizes: a 16-bit policy may have room for a batch
    that float32 has not. No policy is best at a batch size at which a run of it was out of memory;
    where another run had memory for it, what is best is open, and there is no ratio.
    Between two batch sizes the machine may have been left alone, and the model edited: a ratio is
    of the blocks in which one call measured both (without any, it has the flag "measured apart"),
    and there is none where their identity differs in more. Nor is there one where
    the slower policy was not measured at, and not out of memory for, the batch size that won.

    Returns:
        Columns of POINT without batch_size, policy, batch_size (its best), largest (the largest
        that a run had memory for), too_large (the smallest above it for which a run or an attempt
        had none, or NaN), throughput (see `row_times`), baseline, speedup (throughput over the
        baseline's at its own best batch size, above 1 is faster; NaN for the baseline), low, high
        (for all of the table together, and of what was measured again; where both are best at one
        batch size, as `Tables.claims` has them), blocks, flags, claimed (whether low and high are
        those of `Tables.claims`).
    """
    keys = [name for name in POINT if name != "batch_size"]
    own = [*keys, "policy"]
    ended = tables.results[tables.results.status.isin(["ok", "oom"])]
    ended = with_jit(validity.timed_together(ended))
    ended = ended.assign(throughput=points.throughput(ended))
    ended = ended[ended.groupby(keys).batch_size.transform("nunique") > 1]
    out, ok = (ended[ended.status == status] for status in ("oom", "ok"))
    sizes, lost = (pd.MultiIndex.from_frame(t[[*own, "batch_size"]]) for t in (ok, out))
    at_times = sizes.isin(lost)
    ran = ok[~at_times].dropna(subset="throughput")  # not valid of runs in parallel
    fits = with_jit(validity.timed_together(tables.results[tables.results.status.isin(FITTED)]))
    largest = fits.groupby(own).batch_size.max().to_dict()
    best = _fastest(ran, own)
    best = best.assign(largest=[largest[key] for key in _keys(best, own)])
    at_best = ran.merge(best[[*own, "batch_size"]])
    sized = best.set_index(own).to_dict("index")
    flags = at_best.groupby(own)["flags"].agg(validity.together).to_dict()
    larger = ok[at_times].groupby(own).batch_size.max()
    chosen = best.set_index(own).batch_size
    open_ = {key for key, size in larger.items() if size > chosen.get(key, np.inf)}
    pairs = _AtBest(at_best, ended, tables, own, largest)
    rows, overs, measured, same = [], [], [], []
    again = tables.superseded
    if len(again):
        again = again.assign(throughput=points.throughput(again))
        again = again.merge(best[[*own, "batch_size"]])
    known = list(by_block(at_best, "throughput", keys))
    every = _with_superseded(known, at_best, again, "throughput", keys)
    for point, default, rates in known:
        baseline = next(iter(baselines(default, rates)), "")
        for policy in [p for p in POLICIES if p in rates]:
            named = dict(zip(own, (*point, policy), strict=True)) | {"baseline": baseline}
            least = {"too_large": pairs.least_too_large((*point, policy), np.nan)}
            known = open_.isdisjoint({(*point, policy), (*point, baseline)})
            other = bool(baseline) and policy != baseline and known
            compared = pairs.ratio(point, policy, baseline) if other else (Contrast(), "", None)
            over, why, ends = compared
            both = [flags[*point, p] for p in {policy, baseline or policy}]
            named |= sized[(*point, policy)] | least | {"flags": validity.together([*both, why])}
            rows.append(named)
            overs.append(over)
            same.append(ends)
            measured.append(every(point, policy, baseline) if over.n else np.empty(0))
    low, high = _ends([r["flags"] for r in rows], [o.values for o in overs], measured, same).T
    ratios = {"speedup": [o.estimate for o in overs], "low": low, "high": high}
    columns = [*own, "batch_size", "largest", "too_large", "throughput", "baseline", "flags"]
    table = pd.DataFrame(rows, columns=columns)
    more = {"blocks": [o.n or np.nan for o in overs], "claimed": [e is not None for e in same]}
    return table.assign(**ratios, **more)[[*columns[:-1], *ratios, "blocks", "flags", "claimed"]]


ASKED = {"on": True, "off": False}  # what a run was told of jit -> whether XLA is on


class _AtBest:
    """Ratios of policies each at its own best batch size.

    Args:
        runs: those at each policy's best batch size.
        ended: all that count, those that ran out of memory too.
        tables: of the sweep.
        own: the columns that name a point and its policy.
        largest: the largest batch size that fitted, by `own`.
    """

    def __init__(
        self,
        runs: pd.DataFrame,
        ended: pd.DataFrame,
        tables: "Tables",
        own: Sequence[str],
        largest: Mapping[tuple, int],
    ) -> None:
        self.records = tables.records_by_id
        self.claims = tables.ends_by_runs
        by_block = runs.drop_duplicates([*own, "block"]).set_index("block")
        self.runs = dict(list(by_block.groupby(list(own))))
        self.sizes = ended.groupby(list(own)).batch_size.agg(set).to_dict()
        # Where it is left to the backend whether XLA is on, an attempt that ended before it was
        # compiled does not tell: it is one of both.
        out = [ended[ended.status == "oom"]]
        if len(tables.attempts):
            tried = tables.attempts[tables.attempts.status == "oom"]
            asked = tried.jit.map(
                lambda jit: [ASKED.get(jit, jit)] if jit != "auto" else [*ASKED.values()]
            )
            out.append(tried.assign(jit=asked).explode("jit"))
        every = pd.concat([table for table in out if len(table)] or out)
        fitted = np.array([largest.get(key, 0) for key in _keys(every, own)])
        above = every[every.batch_size > fitted]
        self.too_large = above.groupby(list(own)).batch_size.min().to_dict()

    def ratio(self, point: tuple, policy: str, baseline: str) -> tuple[Contrast, str, Ends | None]:
        """Throughput over the baseline's, the flag that takes its claim, and the ends it has."""
        both = [self.runs[*point, name] for name in (policy, baseline)]
        sides = [{b: self.records[run_id] for b, run_id in own.run_id.items()} for own in both]
        kept, apart = validity.in_one_call(*sides)
        sides = [{block: side[block] for block in kept} for side in sides]
        if validity.across(*sides, ("policy", "batch_size")):
            return Contrast(), "not comparable", None
        over = contrast.paired(*(own.throughput[kept] for own in both))
        won, lost = (0, baseline) if over.estimate > 1 else (1, policy)
        if over.n and not self._tried((*point, lost), both[won].batch_size.iloc[0]):
            return Contrast(), "", None
        ids = [own.run_id[kept].to_dict() for own in both]
        return over, apart, self.claims.get(sides_of(*ids))

    def _tried(self, key: tuple, size: int) -> bool:
        """Whether a policy was measured at a batch size, or had no memory for it."""
        return size in self.sizes[key] or size >= self.least_too_large(key, np.inf)

    def least_too_large(self, key: tuple, unknown: float) -> float:
        """The smallest batch size for which a policy had no memory, above all that fitted."""
        return float(self.too_large.get(tuple(key), unknown))


def _keys(table: pd.DataFrame, names: Sequence[str]) -> Iterable[tuple]:
    """The values of some columns, row by row."""
    return table[[*names]].itertuples(index=False, name=None)


def _fastest(runs: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The batch size with the most throughput, of each of some keys."""
    rates = row_times(runs, [*keys, "batch_size"]).throughput.reset_index()
    return rates.loc[rates.groupby(list(keys)).throughput.idxmax()]


def with_jit(results: pd.DataFrame) -> pd.DataFrame:
    """Fills in the jit of runs that ended before they were compiled: as like runs had it."""
    keys = [name for name in POINT if name not in ("batch_size", "jit")]
    ok = results[results.status == "ok"]
    known = {point: jit.iloc[0] for point, jit in ok.groupby(keys).jit if jit.nunique() == 1}
    points = results[keys].itertuples(index=False, name=None)
    pairs = zip(points, results.jit, strict=True)
    return results.assign(
        jit=[known.get(p, j) if j == "auto" else ASKED.get(j, j) for p, j in pairs]
    )
