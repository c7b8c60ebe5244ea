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
        runs: a digest of what was measured in each of its runs, where known: a sweep that went on
            or was merged has some in common with those it was made from.
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
    asked = {record["run_id"]: record["parameters"] for record in tables.records}
    were = {record["run_id"]: comparability.of(record) or {} for record in tables.records}
    runs = tables.ok.drop_duplicates([*POINT, "policy"])
    by_point = runs.set_index([*POINT, "policy"]).run_id.to_dict()
    measured = _measured(tables)
    made = []
    for row in tables.claims.dropna(subset=["low", "high"]).to_dict("records"):
        point = tuple(row[name] for name in POINT)
        run_id = by_point[(*point, row["candidate"])]
        known = {n: v for n, v in asked[run_id].items() if n not in LEFT_OUT}
        known |= {"gpu_model": row["gpu_model"], "jit": bool(row["jit"])}
        known["was"] = [
            {n: v for n, v in were.get(each, {}).items() if n not in MAY_DIFFER}
            for each in (by_point.get((*point, row["baseline"]), ""), run_id)
        ]
        figures = {name: float(row[name]) for name in ("speedup", "low", "high")}
        names = {name: row[name] for name in ("setting", "baseline", "candidate")}
        sides = [measured.get((*point, row[name]), []) for name in ("baseline", "candidate")]
        work = json.dumps(known, sort_keys=True, default=str)
        made.append(Ratio(work, **names, **figures, runs=[*sides[0], *sides[1]]))
    return made


def _measured(tables: Tables) -> dict[tuple[Any, ...], list[str]]:
    """A digest of what was measured in each run that ended well, by point and policy."""
    made: dict[tuple[Any, ...], list[str]] = {}
    keys = tables.ok[[*POINT, "policy"]].itertuples(index=False, name=None)
    for key, run_id in zip(keys, tables.ok.run_id, strict=True):
        own = made.setdefault(key, [])
        if times := consistency.measurement(tables.records_by_id[run_id]):
            own.append(hashlib.sha256(repr(times).encode()).hexdigest()[:16])
    return made


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
