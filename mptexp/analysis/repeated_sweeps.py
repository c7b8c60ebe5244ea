"""Whether sweeps that measured the same comparison on the same device agree.

A report is of one sweep: side by side, one may claim what another leaves open.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from mptexp.analysis import comparability
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.records import consistency

# Of an identity what another measurement of the same comparison may differ in: weights and order
# follow from the seed, and most commits change nothing that a run does.
MAY_DIFFER = (*comparability.WITHIN_BLOCK, "code", "notebook")
# What a ratio is between, or what leaves the time of a step as it is.
LEFT_OUT = ("policy", "block", "seed", "epochs", "max_steps", "target_ci")


@dataclass(frozen=True)
class Ratio:
    """A speedup that a sweep claims.

    Attributes:
        work: device and parameters of its runs but LEFT_OUT, and the identities of both policies'
            runs but MAY_DIFFER, as JSON: equal where two sweeps measured the same.
        setting: those that vary within its sweep and are no other column of POINT, as text.
        baseline, candidate: policies; speedup: time of the first over that of the second.
        low, high: its interval, which holds for the whole sweep.
        runs: a digest of what was measured in each of its runs, and of the calls they were made in,
            where known: a sweep that went on, was split or was merged has some in common with
            others.
    """

    work: str
    setting: str
    baseline: str
    candidate: str
    speedup: float
    low: float
    high: float
    runs: Sequence[str] = ()

    def overlaps(self, other: "Ratio") -> bool:
        """Whether the two intervals have a value in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Repetition:
    """The comparisons that two sweeps share: their names, and the ratios of both in pairs."""

    first: str
    second: str
    ratios: Sequence[tuple[Ratio, Ratio]]

    @property
    def disjoint(self) -> int:
        """In how many pairs the intervals have no value in common."""
        return sum(not one.overlaps(other) for one, other in self.ratios)


def ratios(tables: Tables) -> list[Ratio]:
    """The speedups of a sweep that have a valid interval."""
    claims = tables.claims.dropna(subset=["low", "high"])
    if claims.empty:
        return []
    run_ids = tables.ok.groupby([*POINT, "policy"]).run_id.agg(list)
    records = run_ids.map(lambda ids: [tables.records_by_id[run_id] for run_id in ids]).to_dict()
    made = []
    for row in claims.to_dict("records"):
        point = tuple(row[name] for name in POINT)
        before, after = (records[*point, row[name]] for name in ("baseline", "candidate"))
        known = {n: v for n, v in after[0]["parameters"].items() if n not in LEFT_OUT}
        known |= {"gpu_model": row["gpu_model"], "jit": bool(row["jit"])}
        were = [comparability.of(side[0]) or {} for side in (before, after)]
        known["was"] = [{n: v for n, v in was.items() if n not in MAY_DIFFER} for was in were]
        figures = {name: float(row[name]) for name in ("speedup", "low", "high")}
        names = {name: row[name] for name in ("setting", "baseline", "candidate")}
        work = json.dumps(known, sort_keys=True, default=str)
        both = (*before, *after)
        measured = filter(None, map(consistency.measurement, both))
        shared = [*measured, *comparability.calls(both)]  # the halves of a call repeat nothing
        made.append(Ratio(work, **names, **figures, runs=[*map(_digest, shared)]))
    return made


def _digest(times: tuple[Any, ...]) -> str:
    return hashlib.sha256(repr(times).encode()).hexdigest()[:16]


def repetitions(sweeps: Mapping[str, Sequence[Ratio]]) -> list[Repetition]:
    """Every two sweeps that share comparisons; what rests on the same runs repeats nothing."""
    made = []
    for first, second in combinations(sweeps, 2):
        known = {_question(ratio): ratio for ratio in sweeps[second]}
        pairs = [(r, known[_question(r)]) for r in sweeps[first] if _question(r) in known]
        pairs = [(one, other) for one, other in pairs if set(one.runs).isdisjoint(other.runs)]
        if pairs:
            made.append(Repetition(first, second, pairs))
    return made


def _question(ratio: Ratio) -> tuple[str, str, str]:
    return ratio.work, ratio.baseline, ratio.candidate
