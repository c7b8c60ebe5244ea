"""Pairs of policies at a point of a sweep, and the runs from which they are diagnosed."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mptexp.analysis import contrast, points, validity
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.sweep_tables import Tables
from mptexp.records.schema import is_of_timer
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run

CERTAIN = 0.02  # a run of a diagnosis ends once its median step is so certain
RUN_S, FEWEST, MOST = 4.0, 128, 1024  # or after about so long, in steps


@dataclass(frozen=True)
class Pair:
    """A point of a sweep: the same run under the baseline's and a candidate's policy.

    Attributes:
        step_s: the candidate's median step.
        speedup: baseline over candidate, with the interval of the sweep's claims.
        flags: what is not valid of the runs that it rests on, see `validity`.
    """

    baseline: Run
    candidate: Run
    step_s: float
    speedup: Contrast = field(default_factory=Contrast)
    flags: str = ""

    def baseline_step_s(self, otherwise: float) -> float:
        """The baseline's median step in seconds; `otherwise` where there is no speedup."""
        estimate = self.speedup.estimate
        return otherwise if math.isnan(estimate) else self.step_s * estimate

    @property
    def policies(self) -> tuple[Run, Run]:
        """The baseline's run and the candidate's."""
        return self.baseline, self.candidate

    @property
    def controls(self) -> tuple[Run, Run]:
        """Both runs as short as an ablation, which is compared with them in the same block."""
        # A power of two, so that another step time seldom means another run and another record.
        steps = 2 ** math.ceil(math.log2(RUN_S / self.step_s))
        length = {"max_steps": max(FEWEST, min(MOST, steps)), "target_ci": CERTAIN}
        baseline, candidate = (in_block(r, 0).model_copy(update=length) for r in self.policies)
        return baseline, candidate

    @property
    def traced(self) -> tuple[Run, Run]:
        """Both runs as those whose steps are traced."""
        baseline, candidate = (r.model_copy(update={"profile": True}) for r in self.controls)
        return baseline, candidate


def in_block(run: Run, block: int) -> Run:
    """The same point in another block: the seed follows from it."""
    return run.model_copy(update={"block": block, "seed": run.seed - run.block + block})


def pairs(tables: Tables, chosen: Iterable[str] = ()) -> list[Pair]:
    """Every point that two policies reached, at the largest batch size that both did.

    The baseline is the device's default where it was measured, else strict float32. Candidates
    compute in 16 bits or fewer: the causes say why these bring no more. Strict float32 is no
    candidate beside TF32, nor TF32 beside it; nor is a policy that shares no block with the
    baseline.

    Args:
        chosen: ids of the runs to look at; all of the sweep's where there are none.
    """
    chosen = set(chosen)
    ok = tables.ok[tables.ok.run_id.isin(chosen)] if chosen else tables.ok
    parameters = {record["run_id"]: record["parameters"] for record in tables.records}
    # A plain loop has no profile and no ablations, and a script of the user's cannot be run.
    foreign = {record["run_id"] for record in tables.records if is_of_timer(record)}
    by_keras = [
        parameters[run_id].get("frontend", "keras") == "keras" and run_id not in foreign
        for run_id in ok.run_id
    ]
    ok = validity.timed_together(ok[(ok.phase == "train") & np.array(by_keras, bool)])
    # XLA as it was asked for: `auto` may have come out differently for the two policies.
    ok = ok.assign(asked_jit=[parameters[run_id]["jit"] for run_id in ok.run_id])
    keys = [name for name in points.POINT if name not in ("batch_size", "jit")]
    keys += ["asked_jit", "batch_size"]
    own = [*keys, "policy"]
    first = ok.sort_values("block", kind="stable").drop_duplicates(own).set_index(own)
    first_ids = first.run_id.to_dict()
    flags = ok.groupby(own)["flags"].agg(validity.together).to_dict()
    placed = {row[-1]: row[:-1] for row in ok[[*points.POINT, "run_id"]].to_numpy().tolist()}
    named = [*points.POINT, "baseline", "candidate"]
    claims = tables.claims.set_index(named)[["low", "high"]].to_dict("index")
    # Of two policies that form no ratio there, such as one with XLA and one without.
    unclaimed = {"low": math.nan, "high": math.nan}
    made: dict[tuple[Any, ...], Pair] = {}
    for point, default, times in points.by_block(ok, "step_s", keys):
        baseline = next(iter(points.baselines(default, times)), None)
        for policy in [p for p in times if baseline and POLICY_ROWS[p].tf32 is None]:
            runs = [
                Run.model_construct(**parameters[first_ids[(*point, p)]])
                for p in (baseline, policy)
            ]
            own_point = placed[first_ids[(*point, policy)]]
            claim = claims.get((*own_point, baseline, policy), unclaimed)
            speedup = replace(contrast.paired(times[baseline], times[policy]), **claim)
            if not speedup.n:
                continue
            # Points come by batch size: the last that both policies reached stays.
            step_s = points.geometric_mean(times[policy])
            both = validity.together(flags[(*point, p)] for p in (baseline, policy))
            made[(*point[:-1], policy)] = Pair(*runs, step_s, speedup, both)
    return list(made.values())
