"""The notes below a report's tables: how their numbers were formed, and what limits them."""

from collections.abc import Collection, Sequence

import pandas as pd

from mptexp.analysis import accuracy, emulated, loss_scale, memory, points, rate_ratios, summary
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.diagnosis.verdict import Verdict
from mptexp.report.answers import caveats, quantized_inference
from mptexp.report.text import task_words, wording
from mptexp.report.text.markdown import safe
from mptexp.spec import tasks
from mptexp.spec.policies import POLICY_ROWS

NOT_DIAGNOSED = (
    "Not diagnosed yet. `mptexp diagnose` with this sweep's directory traces some steps, runs the "
    "ablations that the traces call for, and puts a verdict here; reading traces takes "
    "`pip install 'xprof>=2.24'`."
)
ACCURACY = (
    "Differences (policy minus baseline) are formed within a block and image by image (of a text, "
    "sequence by sequence); the interval is over blocks and validation images, and holds for all "
    "differences of this report together. Of runs that do not say which images they classified "
    "correctly, it is as wide as if each had images of its own. *Equal* means that the whole "
    "interval lies within the margin. Where it does not, and holds zero: *about the same in "
    f"the mean*, if the mean difference lies within the margin and the interval within "
    f"{accuracy.MARGINS} of them: more repeats or validation images may show that both are equal; "
    "else *undecided*: it may be anything in the interval."
)
PERPLEXITY = (
    "Perplexity: the exponential of the mean loss per token; guessing evenly gives the number of "
    "tokens, and 1 is certainty. Its means are geometric, differences are of its logarithm."
)
BEST_BATCHES = (
    "The first table of this report compares policies at the same batch size; this one gives every "
    "policy the batch size at which its throughput was highest"
)
AT_TIMES = (
    ", of those for which every run of it had memory. Where some runs had memory for a larger one, "
    "and others had not, that is open, and there is no ratio"
)
LARGER_LEARNS = "A larger batch may need another learning rate to learn as well."
CLAIMS = (
    "What the studies claimed, what this sweep says of it, and the rule that decides between "
    "consistent and inconsistent; between the two it is inconclusive. What it does not test is "
    "left out. Of the runs that decide, six at most are named."
)
FAILED = "What did not succeed is a result too, and stays here."


KINDS = ("", "strong_", "more_")  # of intervals that a row may have

# Why a run ended before its last epoch.
ENDED = {
    "target_ci": "once their step time was known as well as the params file asks (target_ci)",
    "max_steps": "after the number of steps that the params file asks for (max_steps)",
}


def headline(tables: Tables) -> str:
    """How the numbers of the headline table were formed."""
    if tables.ok.step_s.isna().all():
        return _measured(tables)
    lines = [
        "ms per step: geometric mean over repeats of each run's median window. 2× faster: half the "
        "baseline's time; 2× slower: twice; 0.5× as fast: twice too, but not proven."
    ]
    if tables.claims.low.notna().any():
        lines.append(
            "A ratio is the geometric mean of those of each repeat that both policies have. "
            "Brackets: 95 % intervals that hold for all comparisons of the table together."
        )
    lines.append("n: repeats.")
    lines.append(_measured(tables))
    ended = tables.ok.ended_by.value_counts().drop("epochs", errors="ignore")
    lines += [
        f"{n} of {len(tables.ok)} runs ended {ENDED.get(w, safe(w))}." for w, n in ended.items()
    ]
    lines += _emulated(summary.emulated(tables.ok))
    return " ".join(line for line in lines if line)


def best_batches(tables: Tables) -> str:
    """What the table of best batch sizes compares, and where it cannot."""
    ok, out = (set(summary.ended(tables.results, status)) for status in ("ok", "oom"))
    trains = (tables.ok.phase == "train").any()
    first = f"{BEST_BATCHES}{AT_TIMES * bool(ok & out)}."
    return " ".join([first, *[LARGER_LEARNS] * bool(trains)])


def _emulated(names: Collection[str]) -> list[str]:
    """What it means that these policies are emulated."""
    lines = []
    if any(not POLICY_ROWS[name].quantization for name in names):
        lines.append(
            "*Emulated*: without arithmetic instructions for this 16-bit type, which the device "
            "has not or the run may not use, frameworks convert to 32 bits and back, so slower is "
            "expected."
        )
    for policy in (row for name, row in POLICY_ROWS.items() if name in names and row.quantization):
        lines.append(
            f"*Emulated* {policy.name}: Keras rounds what Dense and EinsumDense layers multiply "
            f"and then multiplies in {policy.compute_dtype}, so slower is expected."
        )
    return lines


def _measured(tables: Tables) -> str:
    """What the columns of accuracy or perplexity hold; empty where nothing was validated."""
    known = [m for m in task_words.met(tables.ok) if tables.ok[m.task.column].notna().any()]
    shown = [f"{measure.heading}: mean (min–max) over repeats." for measure in known]
    tokens = [PERPLEXITY] * any(measure.task is tasks.TOKENS for measure in known)
    return " ".join([*shown, *tokens])


def families(tables: Tables, verdicts: Sequence[Verdict] = ()) -> str:
    """Which intervals hold together, and what a reader of all of them gets."""
    known = {what: n for what, n in _families(tables, verdicts).items() if n}
    if not known:
        return ""
    listed = wording.listed([f"{what} ({n})" for what, n in known.items()])
    if len(known) == 1:
        return (
            f"Intervals hold for all comparisons of {listed} together: of pure noise, a sweep "
            "claims anything in 5 % of cases at most."
        )
    return (
        f"Intervals hold together within each of {len(known)} families of comparisons: {listed}. "
        "Of pure noise, a family claims anything in 5 % of sweeps at most; who reads all of them "
        f"meets a false claim in up to {5 * len(known)} %."
    )


def _families(tables: Tables, verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many comparisons have an interval, by what they compare; families of their own."""
    integers = [one.lost.low for one in quantized_inference.measured(tables)]
    effects = [effect for verdict in verdicts for effect in verdict.effects]
    ablated = [o.low for e in effects for n, o in e.contrasts.items() if n not in e.claimed]
    formats = emulated.points(tables)
    errors = pd.DataFrame({"low": [p.loss.low for p in formats]})
    learned = task_words.listed(tables.ok)
    made = {
        "time at the same batch size": tables.claims,
        "time at each policy's best batch size": tables.best_batches,
        learned: accuracy.differences(tables),
        f"{learned} by loss scale": loss_scale.table(tables),
        "errors of emulated formats": errors if emulated.emulates(formats) else pd.DataFrame(),
        "devices": rate_ratios.by_device(tables),
        "replicas": rate_ratios.by_replicas(tables),
        "frameworks": rate_ratios.by_backend(tables),
        "Keras and plain loops": rate_ratios.by_frontend(tables),
        f"{learned} of replicas": _lower(tables, "replicas"),
        f"{learned} between frameworks": _lower(tables, "backend"),
        f"{learned} of Keras and plain loops": _lower(tables, "frontend"),
        "instruction sets": rate_ratios.by_isa(tables),
        "memory": memory.ratios(tables),
        "what integers for weights change": pd.DataFrame({"low": integers}, dtype=float),
        "ablations": pd.DataFrame({"low": ablated}, dtype=float),
    }
    return {what: sum(_own(table, kind) for kind in KINDS) for what, table in made.items()}


def _lower(tables: Tables, axis: str) -> pd.DataFrame:
    """What trainings along an axis learned, where a page says it: of one that learned less."""
    rows = rate_ratios.learned(tables, axis)
    return rows if len(rows) and (rows.verdict == "lower").any() else pd.DataFrame()


def _own(table: pd.DataFrame, kind: str) -> int:
    """How many intervals of a kind are not those of another table's comparisons."""
    if f"{kind}low" not in table:
        return 0
    elsewhere = table.get(f"{kind}claimed", pd.Series(False, table.index)).astype(bool)
    return int((table[f"{kind}low"].notna() & ~elsewhere).sum())


def details(tables: Tables) -> str:
    """What the columns of the second table are, and how far repeats lie apart."""
    lines = (
        ["5–95 %: percentiles of a run's windows, geometric means over repeats as the step's."]
        if tables.ok.step_s.notna().any()
        else []
    )
    repeats = tables.ok.groupby([*POINT, "policy"]).step_s
    spread = (repeats.max() / repeats.min())[repeats.count() > 1]
    if len(spread):
        apart = f"{(spread.max() - 1) * 100:.0f} %"
        lines.append(f"The widest spread between the median steps of repeats is {apart}.")
    target = accuracy.target(tables)
    if target is not None and not tables.trained.empty:
        well = " that ended well" * bool((tables.results.status != "ok").any())
        reached = f"what every run{well} reached"
        by = "the params file's" if tables.options.target_accuracy else reached
        lines.append(
            f"Time to {target * 100:g} % accuracy (the level is {by}): from the first step to the "
            "end of the first epoch that reached it, compilation and validation included."
        )
    if tables.ok.flops_per_s.notna().any():
        lines.append(
            "Achieved: arithmetic of the model's step, from its shapes, per second; MFU: over that "
            f"of this device's large matrix product in the same type{_ceiling(tables)}, through "
            f"the same framework{_no_peak(tables)}; least traffic: inputs, outputs and weights, "
            "each once per pass, per second."
        )
    if tables.price_per_hour:
        lines.append(f"Cost: at {tables.price_per_hour:g} per hour.")
    elif tables.options.price_per_hour:
        lines.append("Cost is not shown: one price_per_hour cannot hold of several devices.")
    return " ".join(lines)


def _no_peak(tables: Tables) -> str:
    """Why some rows have no share of the peak, where some have none."""
    rows = summary.headline(tables)
    none = rows.mfu_frac.isna() & rows.flops_per_s.notna()
    return " (no valid peak: none was measured, or a run exceeded it)" * bool(none.any())


def _ceiling(tables: Tables) -> str:
    """In which type the product of policies was measured that store integers."""
    known = [(record["parameters"], record.get("work") or {}) for record in tables.records]
    types = {
        parameters["policy"]: work["ceilings"]["dtype"]
        for parameters, work in known
        if "ceilings" in work and POLICY_ROWS[parameters["policy"]].inference_only
    }
    said = [f"{policy}: in {dtype}" for policy, dtype in sorted(types.items())]
    return f" ({wording.listed(said)})" if said else ""


def starting_points(tables: Tables) -> str:
    """Whether validations can be compared: equal initial weights, equal order of the examples."""
    if tables.ok.empty:
        return ""
    seen = wording.listed([f"{m.task.example}s" for m in task_words.met(tables.ok)])
    if summary.starts_agree(tables.results, tables.records):
        return (
            "All policies of a block whose weights are float32 started from the same weights and "
            f"saw the {seen} in the same order (fingerprints in the records agree)."
        )
    return (
        f"**Warning**: policies of one block started from different weights or saw the {seen} in "
        f"another order; compare {task_words.listed(tables.ok)} with care."
    )


def sensors(tables: Tables) -> str:
    """How the device was read, and what interfered with which share of the runs."""
    lines = [
        "Medians over repeats, or the maximum where a heading says at most, of what was read every "
        "quarter of a second while steps were timed. On a CPU, utilization is this process's "
        "processor time over that of the processors it may use."
    ]
    ok = tables.ok
    if ((points.devices(ok) > 1) & ok.power_w.notna()).any():
        lines.append("Of several GPUs the power is that of the first.")
    flags = pd.Series([m for r in tables.records for m in r.get("marks", [])], dtype=object)
    of = wording.count(len(tables.results), "run")
    counts = flags[flags.str.startswith(caveats.MEASURED_WHILE)].value_counts()
    lines += [
        f"**{n} of {of}** {'was' if n == 1 else 'were'} {safe(flag)}." for flag, n in counts.items()
    ]
    return " ".join(lines)
