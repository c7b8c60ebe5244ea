"""Which ablations are worth a run, from what the traced steps of a pair say."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mptexp.analysis.comparability import Record
from mptexp.analysis.sweep_tables import Tables
from mptexp.diagnosis import ablations, breakdown
from mptexp.diagnosis.ablations import Ablation
from mptexp.diagnosis.cause_times import LEAST_SHARE
from mptexp.diagnosis.pairs import Pair, in_block
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import feasible, tasks
from mptexp.spec.backends import BACKEND_ROWS
from mptexp.spec.names import MODELS
from mptexp.spec.run import Run
from mptexp.spec.run_order import balanced

SLOWER = 0.9  # a change that makes both policies slower than this is not tried in further blocks
Shares = Mapping[str, float]  # of the candidate's step by cause; nothing without a trace
Asked = list[tuple[Ablation, float]]  # and the share of the step that speaks for it


def worthwhile(pair: Pair, baseline: Record, candidate: Record) -> list[Ablation]:
    """The ablations that the traced steps of a pair make worth a run, each with its share.

    Where no trace was read, those are worth it that need none to be understood: input, XLA, TF32.

    Args:
        pair: what the ablations are to change.
        baseline: record of the traced run of the baseline's policy.
        candidate: record of that of the candidate's.
    """
    part = breakdown.by_cause(candidate) / candidate["timing"]["step_s"]
    asked = _without_trace(pair, candidate, part)
    if part.empty:
        return [replace(a, share=1.0 if share == 1 else math.nan) for a, share in asked]
    asked += _with_trace(pair, candidate, part)
    made = [replace(a, share=share) for a, share in asked if share >= LEAST_SHARE]
    # Emulation makes every layer slower, and needs no further proof.
    return made if candidate["in_force"]["emulated"] else made + _slowest(pair, baseline, candidate)


def _waits(part: Shares) -> float:
    return part.get("host", 0.0) + part.get("idle", 0.0)


def _without_trace(pair: Pair, candidate: Record, part: Shares) -> Asked:
    asked = []
    if pair.candidate.input_mode != "resident":
        busy = 0.0
        if len(part):
            busy = candidate["profile"]["input_busy_s"] / candidate["profile"]["step_s"]
        asked.append((ablations.INPUT, max(part.get("input", 0.0), busy)))
    if candidate["in_force"]["jit"]:
        asked.append((ablations.XLA_OFF, 1.0))
    else:
        fused = part.get("memory", 0.0) + part.get("casts", 0.0) + _waits(part)
        asked.append((ablations.XLA_ON, fused))
    if pair.baseline.policy == "tensorfloat32":
        asked.append((ablations.STRICT, 1.0))
    return asked


def _with_trace(pair: Pair, candidate: Record, part: Shares) -> Asked:
    run = pair.candidate
    asked = [(ablations.BATCH, _waits(part))]
    if run.backend != "torch" and run.steps_per_execution == 1:
        asked.append((ablations.EXECUTION, _waits(part)))
    if run.normalization == "batch":
        share = batch_normalization(candidate)
        asked.append((ablations.NO_NORMALIZATION, share))
        if BACKEND_ROWS[run.backend].fuses_batch_norm and not candidate["in_force"]["jit"]:
            asked.append((ablations.FUSED, share))
    if run.float32_layers:
        asked.append((ablations.NO_FALLBACK, 1.0))
    ours = run.model in MODELS and "resnet50" not in run.model  # others have widths of their own
    if ours and run.width_multiple == 1 and _odd_widths(candidate):
        asked.append((ablations.PADDED, part["matrix"]))
    return asked


def batch_normalization(record: Record) -> float:
    """Share of the step in batch normalization; 0 without a time breakdown."""
    rows = breakdown.rows(record)
    if rows.empty:
        return 0.0
    kinds = {layer["layer"]: layer.get("kind", "") for layer in record["work"]["layers"]}
    return float(rows[rows.layer.map(kinds) == "BatchNormalization"].share.sum())


def _odd_widths(record: Record) -> bool:
    """Whether a layer with a kernel gives a number of channels that is no multiple of 8."""
    widths = [layer["channels"] for layer in record["work"]["layers"] if layer["alone_s"]]
    return any(width and width % 8 for width in widths[:-1])  # the last is the number of classes


def _slowest(pair: Pair, baseline: Record, candidate: Record) -> list[Ablation]:
    """Float32 for the layer that lost most time over the baseline, if one lost enough."""
    before = breakdown.rows(baseline)
    if before.empty:  # its trace was not read: nothing to compare with
        return []
    both = breakdown.joined(before, breakdown.rows(candidate))
    lost = both[both.layer != ""].groupby("layer").difference_s.sum().sort_values()
    share = 0.0 if lost.empty else lost.iloc[-1] / candidate["timing"]["step_s"]
    if share < LEAST_SHARE:
        return []
    return [ablations.in_float32(lost.index[-1], pair.baseline.policy, float(share))]


def proposed(pair: Pair, directory: SweepDir, tables: Tables) -> list[Ablation]:
    """The ablations worth a run for a pair whose steps were traced; none without those records.

    Without those that the sweep's own runs are already: input or XLA as an axis of its matrix.
    """
    notebook = tables.records[0]["notebook"]
    own = {record["run_id"] for record in tables.records}
    baseline, candidate = (_ended_well(directory, run.run_id(notebook)) for run in pair.traced)
    if baseline is None or candidate is None:
        return []
    return [
        ablation
        for ablation in worthwhile(pair, baseline, candidate)
        if not own.issuperset(run.run_id(notebook) for run in ablation.variants(*pair.policies))
        and not any(map(_cannot_be_timed, ablation.variants(*pair.controls)))
    ]


def _cannot_be_timed(run: Run) -> bool:
    """Whether so few steps are known to be in an epoch that several at once leave none to time."""
    images = feasible.training_images(run)
    return images is not None and bool(feasible.fault(run, images))


def _ended_well(directory: SweepDir, run_id: str) -> dict[str, Any] | None:
    """A record of a diagnosis, if it is there and tells of a run that went well."""
    try:
        record = store.read_record(directory.diagnosis.record(run_id))
    except store.RecordError:
        return None
    return record if record["status"] == "ok" else None


def runs(
    pair: Pair, asked: Sequence[Ablation], block: int, blocks: int = 1, seed: int = 0
) -> list[Run]:
    """The controls and the ablations under both policies, in one block; none where none is.

    Both policies follow one another. The controls stand among the ablations that are compared with
    them: over the blocks each has each place equally often, as a sweep's policies have, for a
    machine that drifts would make faster or slower whatever always runs last.

    Args:
        pair: what is diagnosed.
        asked: the ablations.
        block: which of the blocks.
        blocks: how many there are.
        seed: of the order, see `SweepDir.order_seed`.
    """
    if not asked:
        return []
    chance = random.Random(seed)
    groups = [pair.controls, *(ablation.variants(*pair.controls) for ablation in asked)]
    sides = balanced((0, 1), blocks, chance)[block]
    groups = balanced(groups, blocks, chance)[block]
    return [in_block(group[side], block) for group in groups for side in sides]


def promising(
    pair: Pair, asked: Sequence[Ablation], directory: SweepDir, tables: Tables
) -> list[Ablation]:
    """Those that the first block does not show to make both policies plainly slower."""
    notebook = tables.records[0]["notebook"]

    def rate(run: Run) -> float:
        record = _ended_well(directory, run.run_id(notebook))
        return record["timing"][tasks.of(run.dataset).rate] if record else math.nan

    before = [rate(control) for control in pair.controls]

    def helps(ablation: Ablation) -> bool:
        variants = ablation.variants(*pair.controls)
        gains = [rate(run) / b for run, b in zip(variants, before, strict=True)]
        return variants != pair.controls and any(gain > SLOWER for gain in gains)

    return [ablation for ablation in asked if helps(ablation)]
