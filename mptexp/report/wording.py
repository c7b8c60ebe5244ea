"""Sentences for readers, generated from an analysis: what a report and a README say."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from mptexp.analysis import accuracy, summary
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.spec.terminal import visible

SENTENCES = 24  # of the answer: more are not read
CLAUSES = 8  # batch sizes that a sentence lists; of more it says from what to what
EMULATED = "emulated: slower is expected"
XLA = {True: "with XLA", False: "without XLA"}
NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


def verbatim(text: str) -> str:
    """A value for a sentence in Markdown: what looks like a link or like emphasis is shown.

    Tags are left to report.safe, which takes the whole sentence.
    """
    shown = re.sub(r"([\\`*_\[\]~$|!#]|:(?=//))", r"\\\1", visible(str(text)).strip())
    return re.sub(r"^(\d*)([-+=:.)])", r"\1\\\2", shown)  # what opens a list in a line of its own


def count(n: int, noun: str, plural: str | None = None) -> str:
    """`1 run`, `2 runs`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def ratio(value: float, low: float, high: float, n: int) -> str:
    """A ratio with its interval and n; says so where there is no interval."""
    if math.isnan(value):
        return "–"
    if math.isnan(low):
        return f"{value:.2f}× (no interval, n = {n:.0f})"
    return f"{value:.2f}× [{low:.2f}, {high:.2f}] (n = {n:.0f})"


def contrast(over: Contrast) -> str:
    """A ratio that was formed by analysis.contrast."""
    return ratio(over.estimate, over.low, over.high, over.n)


def title(name: str) -> str:
    """A column's name as a heading: `batch_size` is `Batch size`."""
    return {"jit": "XLA", "gpu_model": "Device"}.get(name) or name.replace("_", " ").capitalize()


def headed(table: pd.DataFrame, names: Iterable[str]) -> dict[str, pd.Series]:
    """Columns under their headings; whether XLA was on, which is true or false, in words."""
    return {
        title(name): table[name].map({True: "on", False: "off"}) if name == "jit" else table[name]
        for name in names
    }


def mebibytes(value: float) -> str:
    """Bytes as MiB; a dash where they are not known."""
    return "–" if pd.isna(value) else f"{value / 2**20:,.0f} MiB"


def without_blanks(rows: pd.DataFrame) -> pd.DataFrame:
    """A table of text without the columns in which nothing is known."""
    return rows.drop(columns=[name for name in rows if (rows[name] == "–").all()])


def panels(table: pd.DataFrame) -> pd.Series:
    """What tells the points of a table apart, besides the batch size: the titles of panels."""
    names = [n for n in POINT if n not in ("gpu_model", "batch_size") and table[n].nunique() > 1]
    label = table.gpu_model.astype(str)
    for name in names:
        label = label + ", " + said(table[name], ("backend", "dataset", "model", "setting"))
    return label


def said(values: pd.Series, bare: Sequence[str]) -> pd.Series:
    """Values of a parameter as text, after its name unless that is one of the bare ones."""
    if values.name == "jit":
        return values.map(XLA)
    words = "" if values.name in bare else str(values.name).replace("_", " ") + " "
    return words + values.astype(str)


def digits(value: float) -> str:
    """A number to three digits, a large one without an exponent of ten: 4,310, 18.2, 0.353."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"


def teraflops(rate: float) -> str:
    """A rate in FLOP/s as text."""
    return f"{digits(rate / 1e12)} TFLOP/s"


def gigabytes(rate: float) -> str:
    """A rate in bytes/s as text."""
    return f"{digits(rate / 1e9)} GB/s"


def default_name(policy: str) -> str:
    """A device's default as readers know it."""
    return "TF32" if policy == "tensorfloat32" else policy


def answer(tables: Tables) -> list[str]:
    """One sentence per device and policy: the answer that opens a report."""
    missing = [_left_out(row) for row in summary.left_out(tables.results).to_dict("records")]
    if tables.ok.empty:
        return ["No run of this sweep succeeded, so there is nothing to compare yet.", *missing]
    table = _with_accuracy(summary.headline(tables), tables)
    table = _placed(table, table.policy)
    keys = ["panel", "backend", "phase", "policy", "baseline"]
    margin = percentage_points(tables.options.equivalence_margin)
    sentences = [
        _policy_answer(panel, policy, rows, margin)
        for (panel, _, _, policy, _), rows in table.groupby(keys, sort=False)
        if rows.speedup.notna().any()
    ]
    accuracies = _level(tables) if sentences else _accuracy_answer(tables)
    return [*(sentences or [_without_baseline(table)]), *accuracies, *missing]


def _with_accuracy(table: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """A headline table with difference and verdict of each policy's accuracy."""
    found = accuracy.differences(tables, tables.options.equivalence_margin)
    found = found.rename(columns={"candidate": "policy"})
    keys = [*POINT, "policy", "baseline"]
    return table.merge(found[[*keys, "difference", "verdict"]], "left", keys)


def _placed(table: pd.DataFrame, policies: pd.Series) -> pd.DataFrame:
    """Points with panel: of what a sentence speaks, and place: what sets a point apart there.

    Of more than SENTENCES panels and policies, a sentence speaks of all that a device measured.
    """
    titles = panels(table)
    if titles.nunique() * policies.nunique() <= SENTENCES:
        return table.assign(panel=titles, place="")
    places = panels(table.assign(gpu_model="")).str.removeprefix(", ")
    return table.assign(panel=table.gpu_model, place=places)


def _left_out(row: Mapping[str, Any]) -> str:
    return (
        f"Left out of the figures: {row['left']} of {count(row['runs'], 'run')} of "
        f"{row['policy']}, which ended as *{row['status']}*."
    )


def _policy_answer(panel: str, policy: str, rows: pd.DataFrame, margin: str) -> str:
    rows = rows[rows.speedup.notna()]
    if len(rows) > CLAUSES:
        least, most = rows.loc[rows.speedup.idxmin()], rows.loc[rows.speedup.idxmax()]
        told = f"from {_clause(least)} to {_clause(most)}"
    else:
        told = listed([_clause(row) for row in rows.to_dict("records")])
    return (
        f"On {verbatim(panel)}, **{policy}** {_verdict(rows)} than {_baseline(rows)}: "
        f"{told}{_memory_clause(rows)}{_of_accuracy(rows, margin)}.{_reason(rows)}"
    )


def _memory_clause(rows: pd.DataFrame) -> str:
    """How much less memory a policy takes than its baseline; empty where that is not known."""
    saved = (1 - rows.memory_ratio.dropna()) * 100
    if saved.empty:
        return ""
    if saved.abs().max() < 2:
        return "; it takes about as much memory"
    least, most = sorted((saved.min(), saved.max()), key=abs)
    ends = [f"{abs(v):.0f} %{' less' if v > 0 else ' more'}" for v in (least, most)]
    if least * most > 0:  # one direction is named once
        ends[0] = ends[0].rpartition(" ")[0].removesuffix(" %")
    same = least * most > 0 and f"{abs(least):.0f}" == f"{abs(most):.0f}"
    return f"; it takes {ends[1] if same else ' to '.join(ends)} memory"


def _of_accuracy(rows: pd.DataFrame, margin: str) -> str:
    """What the intervals allow to be said of a policy's accuracy; empty without one."""
    rows = rows.dropna(subset="verdict")
    if rows.empty:
        return ""
    verdicts = rows.verdict.value_counts().to_dict()
    clauses = [_accuracy_clause(v, n, len(rows), margin) for v, n in verdicts.items()]
    return f"; its validation accuracy is {listed(clauses)} ({_between(rows)})"


def _between(rows: pd.DataFrame) -> str:
    least, most = (signed(v) for v in (rows.difference.min(), rows.difference.max()))
    ends = least if least == most else f"{least} to {most}"
    return f"mean difference {ends} percentage points"


def _clause(row: Mapping[str, Any]) -> str:
    found = ratio(row["speedup"], row["low"], row["high"], row["blocks"])
    place = f" ({row['place']})" if row["place"] else ""
    return f"{found} at batch size {row['batch_size']}{place}"


def _baseline(rows: pd.DataFrame) -> str:
    """The baseline of some rows, and whether it is what users have."""
    baseline, default = rows.baseline.iloc[0], rows.default_policy.iloc[0]
    if baseline == default:
        return f"{NAMES[rows.backend.iloc[0]]}'s default there, {default_name(baseline)}"
    named = verbatim(default_name(default))
    return f"strict {baseline} (the default there, {named}, was not measured)"


def _verdict(rows: pd.DataFrame) -> str:
    """What the intervals allow to be said of all batch sizes together."""
    if rows.low.isna().all():
        return "was measured too few times (three repeats are needed) to be called faster or slower"
    steps = "training steps" if rows.phase.iloc[0] == "train" else "inference batches"
    faster, slower = (rows.low > 1).sum(), (rows.high < 1).sum()
    every = f" at all {len(rows):,} points" if any(rows.place) else ""
    if faster == len(rows):
        return f"makes {steps} faster{every}"
    if slower == len(rows):
        return f"makes {steps} slower{every}"
    if not faster and not slower:
        return f"makes {steps} neither measurably faster nor slower"
    ways = [f"faster at {faster}" if faster else "", f"slower at {slower}" if slower else ""]
    sizes = count(len(rows), "point" if any(rows.place) else "batch size")
    return f"makes {steps} {listed([w for w in ways if w])} of {sizes}"


def _reason(rows: pd.DataFrame) -> str:
    if rows.emulated.iloc[0] and (rows.speedup < 1).any():
        return " This device has no instructions for the type and emulates it: slower is expected."
    return ""


def _without_baseline(table: pd.DataFrame) -> str:
    if table.step_s.isna().all():
        return (
            "Runs were executed beside each other on this machine's processors: their timings are "
            "void, and only accuracy is compared."
        )
    names = listed(sorted(set(table.policy)))
    return (
        f"This sweep measured {names}; a speedup needs float32 or the device's default beside "
        "another policy at the same point, and there is none."
    )


def _accuracy_answer(tables: Tables) -> list[str]:
    table = accuracy.differences(tables, tables.options.equivalence_margin)
    if table.empty:
        return []
    table = accuracy.beside_first(table)
    table = _placed(table, table.candidate)
    margin = percentage_points(tables.options.equivalence_margin)
    said = [
        _accuracy_sentence(
            panel if table.panel.nunique() > 1 else "", policy, baseline, rows, margin
        )
        for (panel, policy, baseline), rows in table.groupby(
            ["panel", "candidate", "baseline"], sort=False
        )
    ]
    return [*said, *_level(tables)]


def _level(tables: Tables) -> list[str]:
    """How accurate the policies are that were compared."""
    spread = summary.accuracy_range(tables)
    if spread.empty:
        return []
    ends = [f"{value * 100:.1f} %" for value in (spread.least.min(), spread.most.max())]
    if ends[0] == ends[1]:
        return [f"Mean validation accuracy is {ends[0]} everywhere."]
    return [f"Mean validation accuracy is between {ends[0]} and {ends[1]}."]


def _accuracy_sentence(
    panel: str, policy: str, baseline: str, rows: pd.DataFrame, margin: str
) -> str:
    verdicts = rows.verdict.value_counts().to_dict()
    clauses = [_accuracy_clause(v, n, len(rows), margin) for v, n in verdicts.items()]
    opening = f"On {verbatim(panel)}, validation" if panel else "Validation"
    return (
        f"{opening} accuracy of **{policy}** against {default_name(baseline)}: "
        f"{listed(clauses)} ({_between(rows)})."
    )


def _accuracy_clause(verdict: str, n: int, of: int, margin: str) -> str:
    """What one verdict says of some points."""
    where = "" if n == of else f" at {n} of {of} points"
    return {
        "equal": f"equal within {margin}{where}",
        "lower": f"lower{where}",
        "higher": f"higher{where}",
        "undecided": f"not shown to be equal within {margin}, nor different{where}",
        "too few repeats": f"measured too few times to be called equal within {margin}{where}",
    }[verdict]


def signed(fraction: float) -> str:
    """A difference in percentage points with its sign; what rounds to zero is +0.0."""
    return f"{round(fraction * 100, 1) + 0.0:+.1f}"


def difference(value: float, low: float, high: float, n: int) -> str:
    """A difference in percentage points with its interval and n; says so where there is none."""
    if math.isnan(low):
        return f"{signed(value)} (no interval, n = {n})"
    return f"{signed(value)} [{signed(low)}, {signed(high)}] (n = {n})"


def percentage_points(fraction: float) -> str:
    """`1 percentage point` for 0.01."""
    value = fraction * 100
    return f"{value:g} percentage point{'' if value == 1 else 's'}"
