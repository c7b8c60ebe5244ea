"""Counter-experiments: what to change to see whether a suspected cause is the cause.

Each is a run like any other, with a record; what to try follows from the ledger.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mptexp.analysis import contrast, points
from mptexp.analysis.sweep_tables import Tables
from mptexp.diagnosis import breakdown
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.names import MODELS
from mptexp.spec.run import Run

ACCUSED = 0.10  # share of the step from which a cause is named, and worth an experiment
CERTAIN = 0.02  # an experiment ends once its median step is so certain
RUN_S, FEWEST, MOST = 4.0, 128, 1024  # or after about so long, in steps
SLOWER = 0.9  # a change that makes both policies slower than this is not tried in further blocks


@dataclass(frozen=True)
class Pair:
    """A point of a sweep: the same run under the baseline's and a candidate's policy.

    `step_s` is the candidate's median step; `speedup` baseline over candidate, low, high, blocks.
    """

    baseline: Run
    candidate: Run
    step_s: float
    speedup: tuple[float, float, float, int] = (math.nan, math.nan, math.nan, 0)

    @property
    def policies(self) -> tuple[Run, Run]:
        return self.baseline, self.candidate


@dataclass(frozen=True)
class Experiment:
    """A change of parameters, what it is called, the cause it tests, and why it is worth trying.

    `alone` says which run of a pair is changed: baseline, candidate, or both where it is empty.
    """

    name: str
    cause: str
    change: Mapping[str, Any]
    alone: str = ""
    reason: str = ""

    def arms(self, baseline: Run, candidate: Run) -> tuple[Run, Run]:
        """The pair with the change made."""
        return (
            baseline if self.alone == "candidate" else self._on(baseline),
            candidate if self.alone == "baseline" else self._on(candidate),
        )

    def _on(self, run: Run) -> Run:
        """A batch is doubled, not set."""
        doubled = {"batch_size": run.batch_size * 2} if "batch_size" in self.change else {}
        return run.model_copy(update={**self.change, **doubled})


INPUT = Experiment("the batch on the device", "input", {"input_mode": "resident"})
XLA_ON = Experiment("XLA on", "memory", {"jit": "on"})
XLA_OFF = Experiment("XLA off", "memory", {"jit": "off"})
STRICT = Experiment("strict float32", "tf32", {"policy": "float32"}, "baseline")
BATCH = Experiment("the batch doubled", "host", {"batch_size": 2})
EXECUTION = Experiment("16 steps per execution", "host", {"steps_per_execution": 16})
NO_NORMALIZATION = Experiment("no normalization", "memory", {"normalization": "none"})
PADDED = Experiment("widths padded to multiples of 8", "matrix", {"width_multiple": 8})
ALL_LOW = Experiment("no layer kept in float32", "held", {"float32_layers": ""}, "candidate")


def pairs(tables: Tables, chosen: Iterable[str] = ()) -> list[Pair]:
    """Every point that two policies reached, at the largest batch size that both did.

    The baseline is the device's default where it was measured, else strict float32.

    Args:
        chosen: ids of the runs to look at; all of the sweep's where there are none.
    """
    chosen = set(chosen)
    ok = tables.ok[tables.ok.run_id.isin(chosen)] if chosen else tables.ok
    ok = ok[ok.phase == "train"]
    keys = [name for name in points.POINT if name not in ("batch_size", "jit")]
    found: dict[tuple[Any, ...], Pair] = {}
    asked = {r["run_id"]: r["parameters"] for r in tables.records}
    ok = ok.assign(asked_jit=[asked[run_id]["jit"] for run_id in ok.run_id])
    keys = [*keys, "asked_jit", "batch_size"]
    own = [*keys, "policy"]
    first = ok.sort_values("block", kind="stable").drop_duplicates(own).set_index(own).run_id
    first = first.to_dict()
    for point, default, times in points.by_block(ok, "step_s", keys):
        baseline = next(iter(points.baselines(default, times)), None)
        for policy in [p for p in times if baseline and p != baseline]:
            # A record of a later version has further parameters.
            runs = [Run.model_construct(**asked[first[(*point, p)]]) for p in (baseline, policy)]
            ratio = interval(times[baseline], times[policy])
            # Sorted by batch size: the last that both policies reached stays.
            found[(*point[:-1], policy)] = Pair(*runs, float(np.nanmedian(times[policy])), ratio)
    return list(found.values())


def interval(left: contrast.Values, right: contrast.Values) -> tuple[float, float, float, int]:
    """Mean ratio over the blocks that have both, low, high, and how many those are."""
    over = contrast.paired(left, right)
    return over.estimate, over.low, over.high, over.n


def control(pair: Pair, run: Run) -> Run:
    """The run itself, at the length of an experiment: compared with in the same block."""
    steps = 2 ** math.ceil(math.log2(RUN_S / pair.step_s))
    length = max(FEWEST, min(MOST, steps))
    first = in_block(run, 0)
    return first.model_copy(update={"max_steps": length, "target_ci": CERTAIN})


def profiled(pair: Pair, run: Run) -> Run:
    """The run whose steps are traced."""
    return control(pair, run).model_copy(update={"profile": True})


def in_block(run: Run, block: int) -> Run:
    """The same point in another block: the seed follows from it."""
    return run.model_copy(update={"block": block, "seed": run.seed - run.block + block})


def worthwhile(pair: Pair, baseline: Mapping, candidate: Mapping) -> list[Experiment]:
    """The experiments that the pair's ledgers make worth trying, with the reason.

    Input, XLA and TF32 are tried where there is no ledger, too.

    Args:
        baseline: record of the profiled run of the baseline's policy.
        candidate: record of that of the candidate's.
    """
    run = pair.candidate
    share = breakdown.by_cause(candidate) / candidate["timing"]["step_s"]
    blind = share.empty
    busy = 0.0 if blind else _input_busy(candidate)
    found = []

    def propose(experiment: Experiment, of: float, what: str) -> None:
        if blind or of >= ACCUSED:
            reason = "there is no ledger" if blind else f"{of * 100:.0f} % of the step {what}"
            found.append(replace(experiment, reason=reason))

    part = share.to_dict() if not blind else {}
    host = part.get("host", 0) + part.get("idle", 0)
    if run.input_mode != "resident":
        waits = max(part.get("input", 0), busy)
        propose(INPUT, waits, "waits for input or runs beside its pipeline")
    compiled = candidate["in_force"].get("jit")
    propose(
        XLA_OFF if compiled else XLA_ON,
        1.0 if compiled else part.get("memory", 0) + part.get("casts", 0) + host,
        "is compiled by XLA" if compiled else "is memory-bound work, casts and launches",
    )
    if pair.baseline.policy == "tensorfloat32":
        found.append(replace(STRICT, reason="the baseline computes in TF32"))
    if blind:
        return found
    propose(BATCH, host, "is host and launch overhead")
    if run.backend != "torch" and run.steps_per_execution == 1:
        propose(EXECUTION, host, "is host and launch overhead")
    if run.normalization == "batch":
        propose(NO_NORMALIZATION, _normalization(candidate), "is batch normalization")
    if run.float32_layers:
        propose(ALL_LOW, 1.0, "runs with layers kept in float32")
    ours = run.model in MODELS and "resnet50" not in run.model  # others have widths of their own
    if ours and run.width_multiple == 1 and _odd_widths(candidate):
        propose(PADDED, part.get("matrix", 0), "is matrix work, some of it at odd widths")
    emulated = candidate["in_force"]["emulated"]  # then every layer is slower, and it is known why
    return found if emulated else found + _suspicious(pair, baseline, candidate)


def _input_busy(record: Mapping) -> float:
    profile = record["profile"]
    return profile.get("input_busy_s", 0.0) / profile["step_s"]


def _normalization(record: Mapping) -> float:
    """Share of the step in batch normalization."""
    kinds = {layer["layer"]: layer["kind"] for layer in record["work"]["layers"]}
    rows = breakdown.rows(record)
    return float(rows[rows.layer.map(kinds) == "BatchNormalization"].share.sum())


def _odd_widths(record: Mapping) -> bool:
    """Whether a layer with a kernel gives a number of channels that is no multiple of 8."""
    widths = [layer.get("channels") for layer in record["work"]["layers"] if layer.get("alone_s")]
    return any(width and width % 8 for width in widths[:-1])  # the last is the number of classes


def _suspicious(pair: Pair, baseline: Mapping, candidate: Mapping) -> list[Experiment]:
    """Float32 for the one layer that lost most time under the candidate's policy, if one did."""
    if breakdown.rows(baseline).empty:  # its trace was not read: nothing to compare with
        return []
    both = breakdown.joined(baseline, candidate)
    lost = both[both.layer != ""].groupby("layer").difference_s.sum().sort_values()
    if lost.empty or lost.iloc[-1] < ACCUSED * candidate["timing"]["step_s"]:
        return []
    layer, seconds = lost.index[-1], lost.iloc[-1]
    reason = f"{layer} takes {seconds * 1e3:.2f} ms longer than under {pair.baseline.policy}"
    change = {"float32_layers": layer}
    return [Experiment(f"{layer} in float32", "slower layer", change, "candidate", reason)]


def asked(pair: Pair, directory: SweepDir, tables: Tables) -> list[Experiment]:
    """The experiments worth making for a pair whose steps were traced.

    Without those that the sweep's own runs are already: input or XLA as an axis of its matrix.
    """
    notebook = tables.records[0]["notebook"]
    own = {record["run_id"] for record in tables.records}
    traced = [
        _read(directory.diagnosis.record(profiled(pair, run).run_id(notebook)))
        for run in pair.policies
    ]
    if any(record is None for record in traced):
        return []
    found = worthwhile(pair, *traced)
    arms = [[arm.run_id(notebook) for arm in e.arms(*pair.policies)] for e in found]
    return [e for e, made in zip(found, arms, strict=True) if not own.issuperset(made)]


def _read(path: Path) -> dict[str, Any] | None:
    """A record, if it is there and tells of a run that went well."""
    try:
        record = store.read_record(path)
    except store.RecordError:
        return None
    return record if record["status"] == "ok" else None


def runs(pair: Pair, experiments: Sequence[Experiment], block: int) -> list[Run]:
    """The controls and the experiments under both policies, in one block; none where none is."""
    bases = [control(pair, run) for run in pair.policies]
    wanted = [run for experiment in experiments for run in experiment.arms(*bases)]
    return [in_block(run, block) for run in [*bases, *wanted] if wanted]


def promising(
    pair: Pair, experiments: Sequence[Experiment], directory: SweepDir, tables: Tables
) -> list[Experiment]:
    """Those that the first block does not show to make things plainly slower."""
    notebook = tables.records[0]["notebook"]

    def rate(run: Run) -> float:
        record = _read(directory.diagnosis.record(run.run_id(notebook)))
        return record["timing"]["images_per_s"] if record else math.nan

    bases = (control(pair, pair.baseline), control(pair, pair.candidate))
    before = [rate(base) for base in bases]

    def faster(experiment: Experiment) -> bool:
        arms = experiment.arms(*bases)
        gains = [rate(arm) / b for arm, b in zip(arms, before, strict=True)]
        return arms != bases and any(gain > SLOWER for gain in gains)

    return [experiment for experiment in experiments if faster(experiment)]
