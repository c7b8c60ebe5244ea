"""The verdict: ranked causes of why a policy was faster, or why it was not, from records alone."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from mptexp.analysis.sweep_tables import Tables
from mptexp.diagnosis import ablations, arithmetic, breakdown
from mptexp.diagnosis.ablations import ACCUSED, Experiment, Pair
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.run import Run

ADAM_TOUCHES = 7  # arrays of the parameters' size that Adam reads or writes in a step
LOW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Effect:
    """What a counter-experiment changed, over blocks.

    Attributes:
        gains: policy -> (time before / time after, low, high, blocks), per picture: above 1, the
            change made it faster.
        speedup: baseline over candidate with the change made to both, low, high, blocks.
        failed: why it has no result, where it has none.
    """

    experiment: Experiment
    gains: dict[str, tuple[float, float, float, int]] = field(default_factory=dict)
    speedup: tuple[float, float, float, int] | None = None
    failed: str = ""


@dataclass(frozen=True)
class Cause:
    """A cause, the seconds of the candidate's step that it accounts for, and what speaks for it."""

    name: str
    seconds: float
    share: float
    evidence: str
    change: str


@dataclass(frozen=True)
class Verdict:
    """All that is known of a pair of policies at a point.

    Attributes:
        speedup: baseline over candidate, low, high, blocks.
        possible: what the device would allow, baseline over candidate; NaN where it is not known.
        causes: the largest first; those below ACCUSED are not accused.
        unexplained: share of the step that no rule names; NaN without a ledger.
    """

    pair: Pair
    baseline: Mapping[str, Any] | None
    candidate: Mapping[str, Any] | None
    speedup: tuple[float, float, float, int]
    step_s: float
    possible: float
    causes: list[Cause]
    effects: list[Effect]
    unexplained: float
    missing: str = ""

    @property
    def accused(self) -> list[Cause]:
        """The causes that are large enough to be named."""
        return [cause for cause in self.causes if cause.share >= ACCUSED]

    @property
    def records(self) -> dict[str, Mapping[str, Any]]:
        """The traced records of the pair by policy, the baseline's first."""
        both = zip(self.pair.policies, (self.baseline, self.candidate), strict=True)
        return {run.policy: record for run, record in both if record is not None}

    @property
    def traced(self) -> bool:
        """Whether both policies' steps were traced and read; without xprof they are not."""
        records = self.records.values()
        return len(records) == 2 and not any(breakdown.rows(r).empty for r in records)


def verdicts(directory: SweepDir, tables: Tables) -> list[Verdict]:
    """A verdict for every pair of the sweep that was diagnosed, or that holds its own experiments.

    Those are the pairs with a profiled run, or with an experiment among the sweep's own runs.
    """
    records = known(directory, tables)
    made = [verdict(pair, tables, records) for pair in ablations.pairs(tables)]
    return [found for found in made if found.candidate is not None or found.effects]


def known(directory: SweepDir, tables: Tables) -> dict[str, dict[str, Any]]:
    """The records of the sweep and of its diagnosis by run id."""
    extra, _ = store.read_records(directory.diagnosis)
    return {record["run_id"]: record for record in [*tables.records, *extra]}


def verdict(pair: Pair, tables: Tables, records: Mapping[str, dict[str, Any]]) -> Verdict:
    """The verdict on a pair; what was not measured is left open."""
    notebook = next(iter(records.values()), {}).get("notebook", "train")
    traced = [records.get(ablations.profiled(pair, run).run_id(notebook)) for run in pair.policies]
    both = tuple(r for r in traced if r and r["status"] == "ok")
    both = both if len(both) == 2 else None
    baseline, candidate = both or (None, None)
    effects = [
        found
        for experiment in _experiments(pair, both)
        if (found := effect(pair, experiment, records, notebook))
    ]
    found = causes(pair, *both, effects) if both else _blind(pair, effects)
    shares = breakdown.by_cause(candidate) / candidate["timing"]["step_s"] if candidate else {}
    return Verdict(
        pair=pair,
        baseline=baseline,
        candidate=candidate,
        speedup=pair.speedup,
        step_s=pair.step_s,
        possible=possible(*both) if both else math.nan,
        causes=sorted(found, key=lambda cause: -cause.seconds),
        effects=effects,
        unexplained=float(shares["unexplained"]) if len(shares) else math.nan,
        missing=_missing(traced),
    )


def _missing(traced: Iterable[Mapping[str, Any] | None]) -> str:
    """Why there is no ledger."""
    for record in traced:
        if record is None:
            return "no steps were traced; mptexp diagnose does"
        if record["status"] != "ok":
            return f"the run to be traced ended as {record['status']}: {record['error']}"
        if record["profile"].get("missing"):
            return record["profile"]["missing"]
    return ""


def _experiments(pair: Pair, both: tuple[Mapping, Mapping] | None) -> list[Experiment]:
    """Those that the ledgers ask for, then those that the sweep may hold itself."""
    asked = ablations.worthwhile(pair, *both) if both else []
    always = [ablations.INPUT, ablations.XLA_ON, ablations.XLA_OFF, ablations.STRICT]
    names = {experiment.name for experiment in asked}
    return asked + [experiment for experiment in always if experiment.name not in names]


# --- counter-experiments --------------------------------------------------------------------------


def effect(
    pair: Pair, experiment: Experiment, records: Mapping[str, dict[str, Any]], notebook: str
) -> Effect | None:
    """What an experiment changed, from the records of the diagnosis, else of the sweep itself.

    Runs are compared within a block and with their own control, never between the two.
    """
    sources = [
        (ablations.control(pair, pair.baseline), ablations.control(pair, pair.candidate)),
        pair.policies,
    ]
    failed = ""
    for bases in sources:
        arms = experiment.arms(*bases)
        if arms == bases:
            continue
        changed = [arm for arm, base in zip(arms, bases, strict=True) if arm != base]
        made = any(ablations.in_block(a, 0).run_id(notebook) in records for a in changed)
        before = [_rates(base, records, notebook) for base in bases if made]
        after = [_rates(arm, records, notebook) for arm in arms if made]
        gains = {
            base.policy: ablations.interval(after[i], before[i])
            for i, base in enumerate(bases if made else ())
            if len((after[i] / before[i]).dropna()) and arms[i] != base
        }
        if gains:
            ratio = ablations.interval(after[1], after[0])
            return Effect(experiment, gains, ratio if ratio[-1] else None, "")
        failed = failed or next(filter(None, (_ending(a, records, notebook) for a in arms)), "")
    return Effect(experiment, failed=failed) if failed else None


def _rates(run: Run, records: Mapping[str, dict[str, Any]], notebook: str) -> pd.Series:
    """Pictures per second by block."""
    found = {}
    for block in range(100):
        record = records.get(ablations.in_block(run, block).run_id(notebook))
        if record is None:
            break
        if record["status"] == "ok":
            found[block] = record.get("timing", {}).get("images_per_s")
    return pd.Series(found, dtype=float)


def _ending(run: Run, records: Mapping[str, dict[str, Any]], notebook: str) -> str:
    record = records.get(run.run_id(notebook), {"status": "ok"})
    return "" if record["status"] == "ok" else f"{record['status']}: {record['error']}"


# --- what the device would allow ------------------------------------------------------------------


def possible(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> float:
    """The model's best possible speedup: what the device needs under the one over the other policy.

    Amdahl's law over layers: a layer with a kernel takes what it took alone (or in the step, where
    that was less), any other its bytes at the copy bandwidth; the optimizer its variables' bytes.
    """
    before, after = needs_of(baseline, candidate)
    return before.seconds.sum() / after.seconds.sum()


def needs_of(*records: Mapping[str, Any]) -> list[pd.DataFrame]:
    """`needs` of records of the same device, at the best bandwidth that any of them saw."""
    bandwidth = max(record["work"]["ceilings"]["copy_bytes_per_s"] for record in records)
    return [needs(record, bandwidth) for record in records]


def needs(record: Mapping[str, Any], bandwidth: float) -> pd.DataFrame:
    """What the device needs for each layer of a step.

    Returns:
        Index: layer. Columns: seconds, bound (arithmetic or memory), flops, bytes, took_s (in the
        step, from the ledger).
    """
    took = breakdown.rows(record).groupby("layer").seconds.sum()
    peak = record["work"]["ceilings"]["matmul_flops_per_s"]
    found = []
    for layer in record["work"]["layers"]:
        name, flops, moved = layer["layer"], layer["flops"] or 0.0, layer["bytes"] or 0.0
        by_memory, by_arithmetic = moved / bandwidth, flops / peak
        alone = layer.get("alone_low_s") or layer.get("alone_s")
        seconds = min(alone, took.get(name, math.inf)) if pd.notna(alone) else by_memory
        found.append(
            {
                "layer": name,
                "seconds": seconds,
                "bound": "arithmetic" if by_arithmetic > by_memory else "memory",
                "flops": flops,
                "bytes": moved,
                "took_s": took.get(name, math.nan),
            }
        )
    table = pd.DataFrame(found).set_index("layer")
    parameters = sum(layer["parameters"] for layer in record["work"]["layers"])
    variables = 2 if record["in_force"]["variable_dtype"] in LOW else 4
    moved = ADAM_TOUCHES * parameters * variables
    table.loc["optimizer"] = [moved / bandwidth, "memory", 0.0, moved, math.nan]
    return table


# --- causes ---------------------------------------------------------------------------------------


def causes(
    pair: Pair, baseline: Mapping[str, Any], candidate: Mapping[str, Any], effects: list[Effect]
) -> list[Cause]:
    """What the candidate's step lost to what, in seconds of that step.

    A wait is lost in full, and so is what precision cannot shrink (optimizer, loss scaling).
    Memory-bound work is lost as far as it took more than half of the baseline's. Where a
    counter-experiment removed a cause, its figure stands in place of the ledger's.
    """
    seconds = pair.step_s
    step = candidate["timing"]["step_s"]
    before, after = breakdown.by_cause(baseline), breakdown.by_cause(candidate)
    if before.empty or after.empty:
        return _blind(pair, effects)
    after = after / step * seconds
    by_name = {found.experiment.cause: found for found in reversed(effects) if found.gains}
    emulated = candidate["in_force"]["emulated"]
    found = [_input(pair, after["input"], by_name.get("input"))]
    found += [_waits(name, after[name], by_name.get("host")) for name in ("host", "idle")]
    found += [_plain(name, after[name]) for name in ("optimizer", "loss scaling", "on the host")]
    if emulated:
        found.append(_emulated(candidate, before, after))
    else:
        found += [_memory(before, after, effects), _casts(before, after)]
        found += [_held(pair, candidate, by_name.get("held"))]
        found += [_no_tensor_cores(baseline, candidate)]
    return [
        replace(cause, seconds=float(cause.seconds), share=float(cause.seconds / seconds))
        for cause in found
        if cause and cause.seconds > 0
    ]


def _blind(pair: Pair, effects: list[Effect]) -> list[Cause]:
    """Without a ledger: what the experiments alone say."""
    found = {e.experiment.cause: e for e in reversed(effects) if e.gains}
    cause = _input(pair, 0.0, found.get("input"))
    share = cause.seconds / pair.step_s
    return [replace(cause, share=share)] if share else []


def _cause(name: str, seconds: float, evidence: str) -> Cause:
    return Cause(name, seconds, math.nan, evidence, CHANGES[name])


def _ms(seconds: float) -> str:
    return f"{float(f'{seconds * 1e3:.3g}'):,g} ms"


def _input(pair: Pair, waited: float, found: Effect | None) -> Cause:
    policy = pair.candidate.policy
    if found is None or policy not in found.gains:
        return _cause("input", waited, f"ledger: {_ms(waited)} of a step wait for input")
    gain, low, _, _ = found.gains[policy]
    lost = pair.step_s * (1 - 1 / gain) if not low <= 1 else 0.0
    told = f"ledger: {_ms(waited)} wait; with the batch on the device {ratio(found.gains[policy])}"
    return _cause("input", max(0.0, lost), told)


def _waits(name: str, seconds: float, found: Effect | None) -> Cause:
    told = f"ledger: {_ms(seconds)} without any operation"
    if found and found.gains:
        gains = "; ".join(f"{p} {ratio(g)}" for p, g in found.gains.items())
        told += f"; {found.experiment.name}: {gains}"
    return _cause(name, seconds, told)


def _plain(name: str, seconds: float) -> Cause:
    return _cause(name, seconds, f"ledger: {_ms(seconds)}")


def _emulated(candidate: Mapping[str, Any], before: pd.Series, after: pd.Series) -> Cause:
    """What 16-bit work without instructions for it takes longer than float32."""
    kinds = ["matrix", "memory", "casts"]
    lost = float((after[kinds] - before[kinds]).sum())
    dtype = candidate["work"]["ceilings"]["dtype"]
    told = f"ledger: that work took {_ms(before[kinds].sum())} under the baseline, "
    told += f"{_ms(after[kinds].sum())} in {dtype}"
    return _cause("emulated", lost, told + _census(candidate))


def _memory(before: pd.Series, after: pd.Series, effects: list[Effect]) -> Cause:
    lost = after["memory"] - before["memory"] / 2
    told = f"ledger: {_ms(after['memory'])} against {_ms(before['memory'])} under the baseline"
    for found in effects:
        if found.experiment.cause == "memory" and found.speedup:
            told += f"; {found.experiment.name}: speedup {ratio(found.speedup)}"
    return _cause("memory", lost, told)


def _casts(before: pd.Series, after: pd.Series) -> Cause:
    told = f"ledger: {_ms(after['casts'])} against {_ms(before['casts'])} under the baseline"
    return _cause("casts", after["casts"] - before["casts"], told)


def _held(pair: Pair, candidate: Mapping[str, Any], found: Effect | None) -> Cause | None:
    """Layers that compute in float32 though the policy is a 16-bit one."""
    if found and pair.candidate.policy in found.gains:
        gain = found.gains[pair.candidate.policy]
        lost = pair.step_s * (1 - 1 / gain[0])
        return _cause("held", lost, f"without {pair.candidate.float32_layers} there: {ratio(gain)}")
    known = [layer for layer in candidate["work"]["layers"] if pd.notna(layer.get("alone_low_s"))]
    if not known:
        return None
    table = breakdown.rows(candidate)
    took = table[table.cause == "matrix"].groupby("layer").share.sum() * pair.step_s
    # The layer alone, at its own shapes, in 16 bits and as it is.
    lost = {
        layer["layer"]: took.get(layer["layer"], 0.0)
        * max(0.0, 1 - layer["alone_low_s"] / layer["alone_s"])
        for layer in known
    }
    inside = _ms(sum(took.get(name, 0.0) for name in lost))
    told = f"ledger: {inside} in {', '.join(lost)}; alone, in 16 bits, they take that much less"
    return _cause("held", sum(lost.values()), told)


def _no_tensor_cores(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Cause | None:
    """Matrix work that could have run on Tensor Cores and did not."""
    missed = arithmetic.missed(candidate)
    if not missed:
        return None
    peaks = [record["work"]["ceilings"]["matmul_flops_per_s"] for record in (baseline, candidate)]
    seconds = sum(missed.values())
    told = f"census: {_ms(seconds)} in {', '.join(missed)} without Tensor Cores"
    return _cause("no tensor cores", seconds * max(0.0, 1 - peaks[0] / peaks[1]), told)


def _census(record: Mapping[str, Any]) -> str:
    """What oneDNN said of the instructions it used."""
    used = arithmetic.instructions(record)
    if used.empty:
        return ""
    first = used.iloc[0]
    what = f"{first['instructions']}, {first['dtype']}"
    return f"; oneDNN: {first['share'] * 100:.0f} % of its time in {what}"


def ratio(gain: tuple[float, float, float, int]) -> str:
    """`2.40× [2.31, 2.49]`; n where there is no interval."""
    value, low, high, n = gain
    tail = f"[{low:.2f}, {high:.2f}]" if not math.isnan(low) else f"(n = {n})"
    return f"{value:.2f}× {tail}"


NAMES = {
    "input": "the input pipeline",
    "host": "host and launch overhead",
    "idle": "an idle device",
    "optimizer": "the optimizer",
    "loss scaling": "loss scaling",
    "on the host": "operations that ran on the CPU instead of the GPU",
    "emulated": "16-bit arithmetic that the device only emulates",
    "memory": "memory-bound work in float32 that 16 bits do not shrink",
    "casts": "casts and layout changes",
    "held": "layers held in float32",
    "no tensor cores": "matrix work without Tensor Cores",
}
CHANGES = {
    "input": "prepare and read ahead (input_mode pipeline), cache decoded pictures, decode smaller",
    "host": "a larger batch, steps_per_execution, XLA (jit on)",
    "idle": "look for what the host waits for: a larger batch, fewer metrics and callbacks",
    "optimizer": "a larger batch (one update serves more pictures), an optimizer with fewer slots",
    "loss scaling": "mixed_bfloat16 needs none; a fixed loss_scale costs less",
    "on the host": "XLA (jit on), or a newer version that has the kernel; float32 for that layer",
    "emulated": "another policy: this device has no arithmetic for the type",
    "memory": "XLA (jit on), which fuses it; fewer or cheaper normalizations",
    "casts": "XLA (jit on), which fuses them; channels_last; fewer changes of type between layers",
    "held": "let the layers compute in 16 bits, if accuracy allows",
    "no tensor cores": "widths and batch in multiples of 8; a newer cuDNN; channels_last",
}


def without(cause: Cause, found: Verdict) -> float:
    """The speedup over the baseline that is left to gain: the step without the cause."""
    return found.speedup[0] * found.step_s / max(found.step_s - cause.seconds, 1e-12)
