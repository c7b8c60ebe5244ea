"""Verdicts for readers: the sentence that answers why, and the tables that support it."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from mptexp.analysis import published
from mptexp.diagnosis import arithmetic, breakdown
from mptexp.diagnosis import verdict as diagnose
from mptexp.diagnosis.verdict import Cause, Effect, Verdict
from mptexp.report import wording
from mptexp.spec.run import Run, defaults

REMARK = {
    "input": "waits for input",
    "host": "is host and launch overhead",
    "idle": "passes with an idle device",
    "optimizer": "is the optimizer, which precision does not shrink",
    "loss scaling": "is loss scaling",
    "on the host": "is work that ran on the CPU instead of the GPU",
    "emulated": "is 16-bit work that the device emulates, beyond what float32 takes",
    "memory": "is memory-bound work that 16 bits did not halve",
    "casts": "is additional casts and layout changes",
    "held": "is lost in layers held in float32",
    "no tensor cores": "is lost in matrix work without Tensor Cores",
}


def sentence(found: Verdict, among: Sequence[Verdict] = ()) -> str:
    """Why a policy was faster or was not, in one sentence with numbers.

    Args:
        among: the verdicts beside which the sentence stands.
    """
    run, settings = found.pair.candidate, _settings(found, among)
    settings = f" {wording.verbatim(settings.strip())}" if settings else ""
    head = (
        f"Why: **{run.policy}**{settings} at batch size {run.batch_size} is "
        f"{diagnose.ratio(found.speedup)} as fast as "
        f"{wording.default_name(found.pair.baseline.policy)}{_allowed(found)}"
    )
    if found.candidate is None and not found.effects:
        return f"{head}; why, was not looked into: {wording.verbatim(found.missing)}."
    accused = found.accused
    if not accused:
        rest = ""
        if found.unexplained >= diagnose.ACCUSED:
            rest = f"; {_percent(found.unexplained)} of the step is unexplained"
        elif found.missing:
            rest = f" ({wording.verbatim(found.missing)})"
        least = _percent(diagnose.ACCUSED)
        return f"{head}: nothing that was looked for takes {least} of the step or more{rest}."
    parts = [_part(cause, found, first=i == 0) for i, cause in enumerate(accused[:3])]
    remainder = ""
    if found.unexplained >= 0.03:
        remainder = f"; {_percent(found.unexplained)} of the step is unexplained"
    return f"{head}: {'; then '.join(parts)}{remainder}."


def _allowed(found: Verdict) -> str:
    if math.isnan(found.possible):
        return ""
    if found.possible < 1:
        return f", where its layers alone reach about {found.possible:.2g}× on this device"
    return f", where the device would allow about {found.possible:.2g}×"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _part(cause: Cause, found: Verdict, first: bool) -> str:
    of = " of the step" if first else ""
    took = wording.digits(cause.seconds * 1e3)
    text = f"{_percent(cause.share)}{of} ({took} ms) {REMARK[cause.name]}"
    proof = [
        f"with {wording.verbatim(effect.experiment.name)} it is {diagnose.ratio(effect.speedup)}"
        for effect in found.effects
        if effect.experiment.cause == cause.name and effect.speedup
    ]
    return text + (f" ({'; '.join(proof)})" if proof else "")


CAUSES, LEDGER = "Causes", "Where the time of a step goes"
EXPERIMENTS, LAYERS = "Counter-experiments", "Layers"
CEILINGS, CENSUS = "What the device does at best", "Which arithmetic was used"
CORES = "Matrix work and Tensor Cores, by layer"
NOTES = {
    CAUSES: "What the step lost to what, largest first. A wait is lost in full, and so is what "
    "precision cannot shrink; memory-bound work as far as it took more than half of the "
    "baseline's. Where a counter-experiment removed a cause, its figure stands in place of the "
    "ledger's. *Speedup then*: over the baseline as it is, were the cause gone.",
    LEDGER: "From a trace of steps that follow the timed ones. Every instant belongs to the "
    "operations active at that instant, in equal shares; instants without any are input, host or "
    "idle. Tracing makes steps longer: on a GPU the waits are scaled to the timed step and kernels "
    "keep their time, on a CPU all rows are scaled alike.",
    EXPERIMENTS: "Each is a run with a record of its own, compared within its block with a run "
    "that differs in nothing else; per picture. Above 1, the change makes steps faster. *n* = 1: "
    "the first block showed it to be slower, and it was not repeated.",
    LAYERS: "*At best*: what the layer takes alone at its own shapes (with a kernel), or its bytes "
    "at the measured copy bandwidth. Forward and backward.",
    CEILINGS: "Measured on this device through this backend, the best of several tries; beside it, "
    "where it is known, the share of what is published of the device (published.csv). MFU: "
    "arithmetic of the model's step, from its shapes, over that of a large matrix product in the "
    "same type. Least traffic: inputs, outputs and weights, each once per pass. A dot above its "
    "roof: libraries skip the arithmetic on padding, which shapes count.",
    CENSUS: "On a GPU from the kernels' names; what they do not tell is unknown. On a CPU as "
    "oneDNN says; work that oneDNN does not take (float16, on a CPU without it) is not in it.",
    CORES: "ms of a step under the candidate's policy. *Unknown*: the kernels' names do not tell.",
}


def title(found: Verdict, among: Sequence[Verdict] = ()) -> str:
    """The pair in a few words; among as in `sentence`."""
    baseline = wording.default_name(found.pair.baseline.policy)
    run = found.pair.candidate
    model = "" if "model" in _varying(among) else f", {run.model}"
    return f"{run.policy} against {baseline}{model}{_settings(found, among)}"


def _varying(among: Sequence[Verdict]) -> list[str]:
    runs = [verdict.pair.candidate for verdict in among]
    names = ("gpu_model", "dataset", "model", "phase", "replicas")
    return [name for name in names if len({getattr(run, name) for run in runs}) > 1]


def _settings(found: Verdict, among: Sequence[Verdict]) -> str:
    """What tells the pair apart from others of the sweep, in brackets."""
    run, usual = found.pair.candidate, defaults()
    names = [n for n in ("input_mode", "backend") if getattr(run, n) != usual[n]]
    names += _varying(among)
    told = [f"{n.replace('_', ' ')} {getattr(run, n)}" for n in names]
    if run.jit != usual["jit"]:
        told.insert(0, wording.XLA[run.jit == "on"])
    return f" ({', '.join(told)})" if told else ""


def safe_sentence(found: Verdict, among: Sequence[Verdict] = ()) -> str:
    """The sentence for Markdown: a value that looks like a tag is shown, not obeyed."""
    return escape(sentence(found, among), quote=False)


def tables(found: Verdict) -> dict[str, pd.DataFrame]:
    """The tables behind a verdict by heading, in the order of reading; empty ones left out."""
    made = {
        CAUSES: cause_rows(found),
        EXPERIMENTS: effect_rows(found),
        LEDGER: ledger_rows(found),
        LAYERS: layer_rows(found),
        CEILINGS: ceiling_rows([found]),
        CENSUS: census_rows(found),
        CORES: core_rows(found),
    }
    return {heading: table for heading, table in made.items() if not table.empty}


def cause_rows(found: Verdict) -> pd.DataFrame:
    """The ranked causes as text."""
    return pd.DataFrame(
        [
            {
                "Cause": diagnose.NAMES[cause.name],
                "ms of a step": wording.digits(cause.seconds * 1e3),
                "Share": _percent(cause.share),
                "Evidence": cause.evidence,
                "What to change": cause.change,
                "Speedup then": f"up to {diagnose.without(cause, found):.2f}×",
            }
            for cause in found.causes
            if cause.share >= 0.01
        ]
    )


def effect_rows(found: Verdict) -> pd.DataFrame:
    """The counter-experiments as text."""
    return pd.DataFrame([_effect_row(effect, found) for effect in found.effects])


def _effect_row(effect: Effect, found: Verdict) -> dict[str, str]:
    names = {run.policy: "" for run in found.pair.policies}
    gains = names | {policy: wording.ratio(*gain) for policy, gain in effect.gains.items()}
    return {
        "Experiment": effect.experiment.name,
        "Why": effect.experiment.reason or "in the sweep",
        **{
            f"makes {policy} faster by": gain or effect.failed or "–"
            for policy, gain in gains.items()
        },
        "Speedup with it": wording.ratio(*effect.speedup) if effect.speedup else "–",
    }


def ledger_rows(found: Verdict) -> pd.DataFrame:
    """Where the step's time goes under both policies, by cause, as text."""
    if not found.traced:
        return pd.DataFrame()
    both = [breakdown.by_cause(record) for record in (found.baseline, found.candidate)]
    names = [run.policy for run in found.pair.policies]
    rows = [
        {"Where the time goes": what}
        | {
            f"{policy}, ms": f"{table[key] * 1e3:.3f} ({_percent(table[key] / table.sum())})"
            for policy, table in zip(names, both, strict=True)
        }
        for key, what in breakdown.CAUSES.items()
        if max(table[key] / table.sum() for table in both) >= 0.0005
    ]
    total = {"Where the time goes": "the step"} | {
        f"{policy}, ms": f"{table.sum() * 1e3:.3f}"
        for policy, table in zip(names, both, strict=True)
    }
    return pd.DataFrame([*rows, total])


def layer_rows(found: Verdict, most: int = 15) -> pd.DataFrame:
    """The layers that take longest, both policies side by side, with what the device needs."""
    if not found.traced:
        return pd.DataFrame()
    records = (found.baseline, found.candidate)
    tables = diagnose.needs_of(*records)
    took = [_took(record) for record in records]
    if not any(layer["layer"] in took[1] for layer in records[1]["work"]["layers"]):
        return pd.DataFrame()  # such as XLA's on a CPU, whose trace knows no layers
    order = took[1].sort_values(ascending=False).index[:most]
    names = [run.policy for run in found.pair.policies]
    return pd.DataFrame(
        [
            {
                "Layer": layer,
                **{f"{p}, ms": _milli(t.get(layer)) for p, t in zip(names, took, strict=True)},
                **{
                    f"{p}, at best": _milli(t.seconds.get(layer))
                    for p, t in zip(names, tables, strict=True)
                },
                "Bound by": tables[1].bound.get(layer, "–"),
            }
            for layer in order
        ]
    )


def _took(record: Mapping[str, Any]) -> pd.Series:
    return breakdown.by_layer(record).sum(axis=1).drop("(no operation)", errors="ignore")


def _milli(seconds: float | None) -> str:
    return "–" if seconds is None or math.isnan(seconds) else f"{seconds * 1e3:.3f}"


def ceiling_rows(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """What the device does at best, as measured on it, and how far each policy came."""
    records = {
        (r["parameters"]["policy"], r["parameters"]["batch_size"]): r
        for found in verdicts
        for r in (found.baseline, found.candidate)
        if r is not None
    }
    return pd.DataFrame([_ceiling_row(record) for record in records.values()])


def _ceiling_row(record: Mapping[str, Any]) -> dict[str, str]:
    work, step_s = record["work"], record["timing"]["step_s"]
    flops, moved = work["flops_per_step"], work["bytes_per_step"]
    ceilings, slowdown = work["ceilings"], record["profile"].get("slowdown")
    run = Run.model_construct(**record["parameters"])
    device = record.get("environment", {}).get("device", "")
    peak = published.peak(device, ceilings["dtype"]) * run.replicas
    bandwidth = published.peak(device) * run.replicas
    return {
        "Policy": run.policy,
        "Batch size": str(run.batch_size),
        "Matrix product at best": wording.teraflops(ceilings["matmul_flops_per_s"])
        + _of_published(ceilings["matmul_flops_per_s"], peak),
        "Achieved": wording.teraflops(flops / step_s) if flops else "–",
        "MFU": _percent(flops / step_s / ceilings["matmul_flops_per_s"]) if flops else "–",
        "Copy at best": wording.gigabytes(ceilings["copy_bytes_per_s"])
        + _of_published(ceilings["copy_bytes_per_s"], bandwidth),
        "Least traffic": wording.gigabytes(moved / step_s) if moved else "–",
        "Tracing slowed the step": f"{slowdown:.2f}×" if slowdown else "–",
    }


def _of_published(measured: float, told: float) -> str:
    return "" if math.isnan(told) else f" ({_percent(measured / told)} of the published)"


def census_rows(found: Verdict) -> pd.DataFrame:
    """Which arithmetic the kernels used: by Tensor Cores on a GPU, by instructions on a CPU."""
    rows = []
    for record in (found.baseline, found.candidate):
        if record is not None:
            rows += _gpu_rows(record) or _cpu_rows(record)
    return pd.DataFrame(rows)


def core_rows(found: Verdict) -> pd.DataFrame:
    """Which layers' matrix work ran on Tensor Cores; empty on a CPU."""
    shares = arithmetic.tensor_core_seconds(found.candidate) if found.candidate else pd.DataFrame()
    return pd.DataFrame(
        [
            {"Layer": layer or "(none)"} | {name: _milli(row[name]) for name in shares.columns}
            for layer, row in shares.iterrows()
        ]
    )


def _gpu_rows(record: Mapping[str, Any]) -> list[dict[str, str]]:
    table = arithmetic.table(record)
    table = table[table.cause == "matrix"]
    grouped = table.groupby(["arithmetic", "tensor_cores"]).seconds.sum()
    return [
        {
            "Policy": record["parameters"]["policy"],
            "Matrix work in": arithmetic,
            "Tensor Cores": cores,
            "ms of a step": f"{seconds * 1e3:.3f}",
            "Share of it": _percent(seconds / grouped.sum()),
        }
        for (arithmetic, cores), seconds in grouped.sort_values(ascending=False).items()
    ]


def _cpu_rows(record: Mapping[str, Any]) -> list[dict[str, str]]:
    table = arithmetic.instructions(record)
    return [
        {
            "Policy": record["parameters"]["policy"],
            "oneDNN primitive": row["primitive"],
            "Instructions": row["instructions"],
            "Types": row["dtype"],
            "Share of oneDNN's time": _percent(row["share"]),
        }
        for row in table[table.share >= 0.01].to_dict("records")
    ]
