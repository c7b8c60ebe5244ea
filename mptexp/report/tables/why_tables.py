"""The tables behind a verdict, as text: causes, ablations, time breakdown, layers, peaks."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from mptexp.analysis import published
from mptexp.analysis.contrast import Contrast
from mptexp.diagnosis import breakdown, cause_times, kernel_arithmetic, roofline
from mptexp.diagnosis.ablations import Ablation
from mptexp.diagnosis.cause_times import Loss
from mptexp.diagnosis.causes import BREAKDOWN
from mptexp.diagnosis.effects import SPEEDUP, Effect
from mptexp.diagnosis.verdict import Verdict
from mptexp.records.tables import valid_peak
from mptexp.report.text import wording
from mptexp.spec.run import Run

LEAST_SHOWN = 0.01  # of the step, or of what a table divides
NO_PEAK = "no valid peak"
MOST_LAYERS = 15
Record = Mapping[str, Any]


def percent(share: float) -> str:
    """A share as text: `14 %`."""
    return f"{share * 100:.0f} %"


def milliseconds(seconds: float) -> str:
    """Seconds as text in ms, to three digits."""
    return f"{wording.digits(seconds * 1e3)} ms"


def gain(over: Contrast, flags: str = "", base: str = "") -> str:
    """What a change gave: `2.40× faster [2.31, 2.49]`, or why the ratio has no interval.

    With the baseline's name `1.08× faster than float32 [1.06, 1.10]`.
    """
    row = _row(over, flags)
    number, interval = wording.speed_parts(row)
    if math.isnan(over.low) and not wording.not_valid(flags):
        interval = f"(n = {over.n})"
    word = wording.direction(row)
    than = f" {wording.than(word)} {base}" if base else ""
    return f"{number}× {word}{than} {interval}"


def _row(over: Contrast, flags: str) -> dict[str, Any]:
    """A ratio as a row of a table of them."""
    ends = {"low": over.low, "high": over.high}
    return {"speedup": over.estimate, **ends, "blocks": over.n, "flags": flags}


def _milli(seconds: float | None) -> str:
    return "–" if seconds is None or math.isnan(seconds) else f"{seconds * 1e3:.3f}"


# --- causes and ablations -------------------------------------------------------------------------


def cause_rows(verdict: Verdict) -> pd.DataFrame:
    """The ranked causes."""
    return pd.DataFrame(
        [
            {
                "Cause": loss.cause.label,
                "ms of a step": wording.digits(loss.seconds * 1e3),
                "Share": _share(loss),
                "Evidence": evidence(loss, verdict),
                "What to change": _remedies(loss, verdict),
                "Projected speedup of the step if fixed": f"up to {factor}×",
            }
            for loss in verdict.losses
            for factor in [wording.factor(verdict.projected(loss))]
            if loss.share >= LEAST_SHOWN
        ]
    )


def _share(loss: Loss) -> str:
    """A share, and what it may be as little as, where that is known and makes it less certain."""
    if math.isnan(loss.least) or loss.share - loss.least < LEAST_SHOWN:
        return percent(loss.share)
    return f"{percent(loss.share)} (at least {percent(max(loss.least, 0.0))})"


def _remedies(loss: Loss, verdict: Verdict) -> str:
    """What to change, and what it gave where it was measured; nothing that was shown to hurt."""
    texts = [
        f"{text} (measured: {gain(over)})" if over else text
        for text, over in verdict.remedies(loss)
    ]
    return (
        "; ".join(texts) or "nothing more: what is known to help was measured, or is done already"
    )


def evidence(loss: Loss, verdict: Verdict) -> str:
    """What speaks for a cause: the time breakdown, ablations, what oneDNN says it ran."""
    named = [layer or "no layer" for layer in loss.layers]
    layers = f", mostly in {wording.listed(named)}" if named else ""
    parts = []
    if not math.isnan(loss.spent_s):
        before = f" ({verdict.pair.baseline.policy}: {milliseconds(loss.baseline_s)})"
        before = "" if math.isnan(loss.baseline_s) else before
        spent = milliseconds(loss.spent_s)
        parts.append(f"{loss.cause.spent_on}: {spent}{layers}{before}")
    for effect in loss.effects:
        gains = [
            f"{policy} {gain(over, effect.flags_of(policy))}"
            for policy, over in effect.gains.items()
        ]
        named = effect.ablation.label(verdict.pair.candidate.backend)
        parts.append(f"with {named}: {wording.listed(gains)}")
    if loss.cause.name in ("emulated", "reference code") and verdict.candidate is not None:
        used = kernel_arithmetic.instructions(verdict.candidate)
        for row in used.head(1).itertuples():
            share = f"{percent(row.share)} of its time"
            parts.append(f"oneDNN: {share} in {row.instructions}, {row.dtype}")
    return "; ".join(parts)


def reason(ablation: Ablation) -> str:
    """Why an ablation is worth a run."""
    if ablation.share is None:
        return "in the sweep"
    if math.isnan(ablation.share):
        return "there is no time breakdown"
    whole = ablation.share == 1
    return f"{'the step' if whole else f'{percent(ablation.share)} of the step'} {ablation.reason}"


def _why(effect: Effect) -> str:
    """As `reason`; what no trace asked for, a diagnosis of another pair may have made."""
    asked = effect.ablation.share is not None or effect.of_sweep
    return reason(effect.ablation) if asked else "in the diagnosis"


def ablation_rows(verdict: Verdict) -> pd.DataFrame:
    """What the ablations changed."""
    return pd.DataFrame([_ablation_row(effect, verdict) for effect in verdict.effects])


def _ablation_row(effect: Effect, verdict: Verdict) -> dict[str, str]:
    policies = [run.policy for run in verdict.pair.policies]
    baseline, candidate = map(wording.default_name, policies)
    return {
        "Ablation": effect.ablation.label(verdict.pair.candidate.backend),
        "Why": _why(effect),
        **{
            f"{wording.default_name(policy)} with it": _changed(effect, policy)
            or effect.failed
            or "–"
            for policy in policies
        },
        "Shows": _shown(effect.gains.get(policies[1]), effect.flags_of(policies[1])),
        f"{candidate} against {baseline} with it": _changed(effect, SPEEDUP) or "–",
    }


def _changed(effect: Effect, name: str) -> str:
    """One of an effect's contrasts; where fewer blocks count than were measured, why.

    `1.47× as fast (no interval, n = 2 of 3: 1 block was measured in two calls)`; empty where it is
    not known.
    """
    over, apart = effect.contrasts.get(name), effect.apart.get(name, 0)
    if over is None:
        return ""
    text, n = wording.ratio_of(_row(over, effect.flags_of(name))), f"n = {over.n}"
    left = (
        f"{wording.count(apart, 'block')} {'was' if apart == 1 else 'were'} measured in two calls"
    )
    return text.replace(n, f"{n} of {over.n + apart}: {left}") if apart else text


def _shown(gain: Contrast | None, flags: str) -> str:
    """What an ablation proves of the candidate: without proof, which gains are excluded."""
    if gain is None:
        return "–"
    if wording.not_valid(flags):
        return "nothing: not valid"
    if math.isnan(gain.low):
        return f"nothing: n = {gain.n}"
    if gain.low > 1 or gain.high < 1:
        return "faster" if gain.low > 1 else "slower"
    return f"inconclusive: gains above {wording.factor(gain.high)}× are excluded"


# --- the time breakdown ---------------------------------------------------------------------------


def breakdown_rows(verdict: Verdict) -> pd.DataFrame:
    """Where the step's time goes under both policies, by category."""
    return by_cause(seconds_by_cause(verdict)) if verdict.traced else pd.DataFrame()


def seconds_by_cause(verdict: Verdict) -> dict[str, pd.Series]:
    """Seconds of a step by cause, by policy."""
    return {policy: breakdown.by_cause(record) for policy, record in verdict.records.items()}


def by_cause(steps: Mapping[str, pd.Series]) -> pd.DataFrame:
    """Seconds of steps by cause as text, a column for each step under its name."""
    rows = [
        {"Where the time goes": row.label}
        | {
            f"{name}, ms": f"{s.get(row.name, 0.0) * 1e3:.3f} "
            f"({percent(s.get(row.name, 0.0) / s.sum())})"
            for name, s in steps.items()
        }
        for row in BREAKDOWN
        if max(s.get(row.name, 0.0) / s.sum() for s in steps.values()) >= 0.0005
    ]
    total = {f"{name}, ms": f"{s.sum() * 1e3:.3f}" for name, s in steps.items()}
    return pd.DataFrame([*rows, {"Where the time goes": "the step"} | total])


def layer_rows(verdict: Verdict) -> pd.DataFrame:
    """The layers that take longest, both policies side by side, with what the device needs.

    Empty where the trace tells no layers apart.
    """
    if not verdict.traced or not names_layers(verdict):
        return pd.DataFrame()
    took = {policy: _by_layer(record) for policy, record in verdict.records.items()}
    needs = needs_by_layer(verdict) if has_peak(verdict) else {}
    candidate = verdict.pair.candidate.policy
    bounds = {"Bound by": needs[candidate].bound} if needs else {}
    ordered = took[candidate].sort_values(ascending=False).index
    rows = [
        {
            "Layer": layer,
            **{f"{policy}, ms": _milli(t.get(layer)) for policy, t in took.items()},
            **{f"{p}, alone": _milli(t.seconds.get(layer)) for p, t in needs.items()},
            **{name: bound.get(layer, "–") for name, bound in bounds.items()},
        }
        for layer in ordered[:MOST_LAYERS]
    ]
    if len(others := ordered[MOST_LAYERS:]):
        left = {f"{p}, ms": _milli(t.reindex(others).sum()) for p, t in took.items()}
        rows.append({"Layer": wording.count(len(others), "other layer")} | left)
    return pd.DataFrame(rows).fillna("–")


def names_layers(verdict: Verdict) -> bool:
    """Whether the trace tells layers apart; that of XLA on a CPU does not."""
    took = breakdown.by_layer(verdict.candidate).index
    return any(layer["layer"] in took for layer in verdict.candidate["work"]["layers"])


def needs_by_layer(verdict: Verdict) -> dict[str, pd.DataFrame]:
    """What each layer needs of the device, by policy, as `roofline.of_pair` gives it."""
    records = verdict.records
    return dict(zip(records, roofline.of_pair(*records.values()), strict=True))


def has_peak(verdict: Verdict) -> bool:
    """Whether the peaks that its runs measured bound anything."""
    return valid_peak(*verdict.records.values())


def _by_layer(record: Record) -> pd.Series:
    return breakdown.by_layer(record).sum(axis=1).drop("(no operation)", errors="ignore")


# --- peaks and arithmetic -------------------------------------------------------------------------


def peak_rows(verdict: Verdict) -> pd.DataFrame:
    """What the device did at its peak, as measured on it, and how far each policy came."""
    valid = has_peak(verdict)
    return pd.DataFrame([_peak_row(record, valid) for record in verdict.records.values()])


def _peak_row(record: Record, valid: bool) -> dict[str, str]:
    work, step_s = record["work"], record["timing"]["step_s"]
    flops, moved, ceilings = work["flops_per_step"], work["bytes_per_step"], work["ceilings"]
    slowdown = record["profile"].get("slowdown")  # none where the trace was not read
    of_type = valid and not cause_times.widened(record)
    run = Run.model_construct(**record["parameters"])
    device = record["environment"]["device"]
    peak, bandwidth = ceilings["matmul_flops_per_s"], ceilings["copy_bytes_per_s"]
    known = published.peak(device, ceilings["dtype"]), published.peak(device)
    matrix = wording.teraflops(peak) + _of_published(peak, known[0] * run.replicas)
    copy = wording.gigabytes(bandwidth) + _of_published(bandwidth, known[1] * run.replicas)
    return {
        "Policy": run.policy,
        "Batch size": str(run.batch_size),
        "Peak of a matrix product": matrix if valid else NO_PEAK,
        "Achieved": wording.teraflops(flops / step_s) if flops else "–",
        "MFU": percent(flops / step_s / peak) if flops and of_type else "–",
        "MFU of the matrix work": _of_matrix(record, peak) if of_type else "–",
        "Peak of a copy": copy if valid else NO_PEAK,
        "Least traffic": wording.gigabytes(moved / step_s) if moved else "–",
        "Tracing slowed the step": f"{wording.factor(slowdown)}×" if slowdown else "–",
    }


def _of_matrix(record: Record, peak: float) -> str:
    """What layers reach of the peak while their products are computed, by the time breakdown.

    Of the layers that it tells: nothing where it tells none, as of XLA on a CPU, or where more was
    computed in the time than can be, as a compiler put some of it elsewhere.
    """
    rows = breakdown.rows(record)
    seconds = rows[(rows.cause == "matrix") & (rows.layer != "")].groupby("layer").seconds.sum()
    layers = record["work"].get("layers", ())
    flops = sum(x["flops"] or 0.0 for x in layers if x["layer"] in seconds.index)
    share = flops / seconds.sum() / peak if len(seconds) else math.nan
    return percent(share) if 0 < share <= 1 else "–"


def _of_published(measured: float, peak: float) -> str:
    return "" if math.isnan(peak) else f" ({percent(measured / peak)} of the published)"


def arithmetic_rows(verdict: Verdict) -> pd.DataFrame:
    """Which arithmetic the kernels used: by Tensor Cores on a GPU, by instructions on a CPU."""
    rows = []
    for policy, record in verdict.records.items():
        rows += _gpu_rows(policy, record) or _cpu_rows(policy, record)
    return pd.DataFrame(rows)


def compiled_rows(verdict: Verdict) -> pd.DataFrame:
    """What the products that XLA compiled for a CPU multiply in; empty where it compiled none."""
    return pd.DataFrame(
        [
            {"Policy": policy, "Products in": dtype, "Number": str(number)}
            for policy, record in verdict.records.items()
            for dtype, number in (record["profile"].get("products") or {}).items()
        ]
    )


def tensor_core_rows(verdict: Verdict) -> pd.DataFrame:
    """Which layers' matrix work ran on Tensor Cores; empty on a CPU."""
    if verdict.candidate is None:
        return pd.DataFrame()
    ran = kernel_arithmetic.table(breakdown.rows(verdict.candidate))
    seconds = kernel_arithmetic.tensor_core_seconds(ran)
    return pd.DataFrame(
        [
            {"Layer": layer or "(none)"} | {name: _milli(row[name]) for name in seconds.columns}
            for layer, row in seconds.iterrows()
        ]
    )


def _gpu_rows(policy: str, record: Record) -> list[dict[str, str]]:
    table = kernel_arithmetic.table(breakdown.rows(record))
    table = table[table.cause == "matrix"]
    grouped = table.groupby(["arithmetic", "tensor_cores"]).seconds.sum()
    return [
        {
            "Policy": policy,
            "Matrix work in": name,
            "Tensor Cores": cores,
            "ms of a step": f"{seconds * 1e3:.3f}",
            "Share of it": percent(seconds / grouped.sum()),
        }
        for (name, cores), seconds in grouped.sort_values(ascending=False).items()
    ]


def _cpu_rows(policy: str, record: Record) -> list[dict[str, str]]:
    table = kernel_arithmetic.instructions(record)
    return [
        {
            "Policy": policy,
            "oneDNN primitive": row.primitive,
            "Instructions": row.instructions,
            "Types": row.dtype,
            "Share of oneDNN's time": percent(row.share),
        }
        for row in table[table.share >= LEAST_SHOWN].itertuples()
    ]
