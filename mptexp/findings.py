"""Sentences and tables for readers, generated from an analysis: what a report and a README say."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from great_tables import GT, html

from mptexp import analysis
from mptexp.analysis import Tables

EMULATED = "emulated: slower is expected"
NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


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


def default_name(policy: str) -> str:
    """A device's default as readers know it."""
    return "TF32" if policy == "tensorfloat32" else policy


def answer(tables: Tables) -> list[str]:
    """One sentence per device and policy: the answer that opens a report."""
    missing = [_left_out(row) for row in analysis.left_out(tables.results).to_dict("records")]
    if tables.ok.empty:
        return ["No run of this sweep succeeded, so there is nothing to compare yet.", *missing]
    table = analysis.headline(tables)
    sentences = [
        _policy_answer(panel, policy, rows)
        for (panel, policy), rows in table.assign(panel=analysis.panels(table)).groupby(
            ["panel", "policy"], sort=False
        )
        if rows.speedup.notna().any()
    ]
    return [*(sentences or [_without_baseline(table)]), *_accuracy_answer(tables), *missing]


def _left_out(row: Mapping[str, Any]) -> str:
    return (
        f"Left out of the figures: {row['left']} of {count(row['runs'], 'run')} of "
        f"{row['policy']}, which ended as *{row['status']}*."
    )


def _policy_answer(panel: str, policy: str, rows: pd.DataFrame) -> str:
    rows = rows[rows.speedup.notna()]
    clauses = [
        f"{ratio(r['speedup'], r['low'], r['high'], r['blocks'])} at batch size {r['batch_size']}"
        for r in rows.to_dict("records")
    ]
    return (
        f"On {panel}, **{policy}** {_verdict(rows)} than {_baseline(rows)}: "
        f"{listed(clauses)}.{_reason(rows)}"
    )


def _baseline(rows: pd.DataFrame) -> str:
    """The baseline of some rows, and whether it is what users have."""
    baseline, default = rows.baseline.iloc[0], rows.default_policy.iloc[0]
    if baseline == default:
        return f"{NAMES[rows.backend.iloc[0]]}'s default there, {default_name(baseline)}"
    return f"strict {baseline} (the default there, {default_name(default)}, was not measured)"


def _verdict(rows: pd.DataFrame) -> str:
    """What the intervals allow to be said of all batch sizes together."""
    if rows.low.isna().all():
        return "was measured too few times (three repeats are needed) to be called faster or slower"
    steps = "training steps" if rows.phase.iloc[0] == "train" else "inference batches"
    faster, slower = (rows.low > 1).sum(), (rows.high < 1).sum()
    if faster == len(rows):
        return f"makes {steps} faster"
    if slower == len(rows):
        return f"makes {steps} slower"
    if not faster and not slower:
        return f"makes {steps} neither measurably faster nor slower"
    ways = [f"faster at {faster}" if faster else "", f"slower at {slower}" if slower else ""]
    sizes = count(len(rows), "batch size")
    return f"makes {steps} {listed([w for w in ways if w])} of {sizes}"


def _reason(rows: pd.DataFrame) -> str:
    if rows.emulated.iloc[0] and (rows.speedup < 1).any():
        return " This device has no instructions for the type and emulates it: slower is expected."
    return ""


def _without_baseline(table: pd.DataFrame) -> str:
    names = listed(sorted(set(table.policy)))
    return (
        f"This sweep measured {names}, but no two policies at the same point; a speedup needs "
        "float32 or the device's default beside a policy."
    )


def _accuracy_answer(tables: Tables) -> list[str]:
    spread = analysis.accuracy_range(tables)
    if spread.empty:
        return []
    points = spread.difference.max() * 100
    return [
        "Mean validation accuracy differs between policies by at most "
        f"{points:.1f} percentage points at the same batch size and is "
        f"{spread.least.min() * 100:.1f} % or more everywhere."
    ]


def caption_speedup(tables: Tables, baseline: str) -> str:
    """What the figure of speedups over one baseline shows."""
    table = tables.speedups[tables.speedups.baseline == baseline]
    best = table.loc[table.speedup.idxmax()]
    found = ratio(best.speedup, best.low, best.high, best.blocks)
    faster = int((table.low > 1).sum())
    is_faster = {0: "none is", 1: "1 is"}.get(faster, f"{faster} are")
    bars = " Bars are 95 % intervals over blocks." if table.low.notna().any() else ""
    return (
        f"Of {count(len(table), 'point')} compared, {is_faster} measurably faster than "
        f"{default_name(baseline)}; the best is {best.candidate} at batch size {best.batch_size} "
        f"with {found}.{bars} Above 1 is faster."
    )


def caption_accuracy(tables: Tables) -> str:
    """What the accuracy figure shows."""
    repeats = count(tables.ok.block.nunique(), "repeat")
    opening = f"Faint lines are single runs ({repeats} a policy), strong ones their mean."
    spread = analysis.accuracy_range(tables)
    if spread.empty:
        return opening
    points = spread.difference.max() * 100
    return (
        f"{opening} At the last epoch the policies' means differ by at most {points:.1f} "
        "percentage points at the same point."
    )


def caption_memory(tables: Tables) -> str:
    """What the memory figure shows."""
    table = analysis.headline(tables).dropna(subset="peak_memory_bytes")
    least = table.loc[table.peak_memory_bytes.idxmin()]
    most = table.loc[table.peak_memory_bytes.idxmax()]
    return (
        f"From {least.peak_memory_bytes / 2**20:,.0f} MiB ({least.policy}, batch size "
        f"{least.batch_size}) to {most.peak_memory_bytes / 2**20:,.0f} MiB ({most.policy}, batch "
        f"size {most.batch_size}). On a CPU this is the whole process, framework included; on a "
        "GPU, the framework's allocator."
    )


def caption_steps(tables: Tables) -> str:
    """What the figure of step times shows."""
    opening = f"Each dot is the median step of one run ({count(len(tables.ok), 'run')})."
    points = tables.ok.groupby([*analysis.POINT, "policy"]).step_s
    spread = (points.max() / points.min())[points.count() > 1]
    if spread.empty:
        return opening
    return (
        f"{opening} The widest spread between repeats of a point is "
        f"{(spread.max() - 1) * 100:.0f} %."
    )


# --- tables ----------------------------------------------------------------------------------


def headline_rows(tables: Tables) -> pd.DataFrame:
    """The headline table as text, a row per batch size and policy, for HTML and Markdown."""
    table = analysis.headline(tables)
    records = table.to_dict("records")
    varying = [n for n in analysis.POINT if table[n].nunique() > 1 and n != "batch_size"]
    columns = {
        **{n.replace("_", " ").capitalize(): table[n] for n in varying},
        "Batch size": table.batch_size,
        "Policy": [_policy(r) for r in records],
        "ms per step": [f"{s * 1e3:.2f}" for s in table.step_s],
        "5–95 %": [f"{r['step_s_low'] * 1e3:.2f}–{r['step_s_high'] * 1e3:.2f}" for r in records],
        "Images/s": [f"{v:,.0f}" for v in table.images_per_s],
        _baseline_head(table): [_over_baseline(r) for r in records],
        "Speedup over strict float32": [_over_strict(r) for r in records],
        "Latency, median (99 %)": [_latency(r) for r in records],
        "Validation accuracy": [_accuracy(r) for r in records],
        "Peak memory": [_mebibytes(b) for b in table.peak_memory_bytes],
    }
    if set(table.baseline) <= {"float32", ""}:
        del columns["Speedup over strict float32"]
    rows = pd.DataFrame(columns)
    empty = [
        name for name in ("Latency, median (99 %)", "Validation accuracy") if _blank(rows[name])
    ]
    return rows.drop(columns=empty)


def _baseline_head(table: pd.DataFrame) -> str:
    """Names the baseline: what users have by default, and whether it was measured."""
    pairs = {(b, d) for b, d in zip(table.baseline, table.default_policy, strict=True) if b}
    if len(pairs) != 1:
        return "Speedup over the default [95 % interval]"
    ((baseline, default),) = pairs
    strict = "strict " if baseline == "float32" else ""
    named = f"{strict}{default_name(baseline)}"
    if baseline == default:
        return f"Speedup over the default, {named} [95 % interval]"
    return f"Speedup over {named} (default {default_name(default)} not measured) [95 % interval]"


def _over_baseline(row: Mapping[str, Any]) -> str:
    if row["policy"] == row["baseline"]:
        return "1 (the default)" if row["policy"] == row["default_policy"] else "1 (baseline)"
    return ratio(row["speedup"], row["low"], row["high"], row["blocks"])


def _over_strict(row: Mapping[str, Any]) -> str:
    if row["policy"] == "float32":
        return "1"
    figures = (row[f"strict_{name}"] for name in ("speedup", "low", "high", "blocks"))
    return ratio(*figures)


def _blank(column: pd.Series) -> bool:
    return bool((column == "–").all())


def _latency(row: Mapping[str, Any]) -> str:
    """Of single batches in inference, from pictures on the host to probabilities on the host."""
    if pd.isna(row["latency_p50_s"]):
        return "–"
    return f"{row['latency_p50_s'] * 1e3:.2f} ms ({row['latency_p99_s'] * 1e3:.2f})"


def _mebibytes(value: float) -> str:
    return "–" if pd.isna(value) else f"{value / 2**20:,.0f} MiB"


def _policy(row: Mapping[str, Any]) -> str:
    return f"{row['policy']} ({EMULATED})" if row["emulated"] else row["policy"]


def _accuracy(row: Mapping[str, Any]) -> str:
    if pd.isna(row["val_accuracy"]):
        return "–"
    low, high = row["val_accuracy_low"], row["val_accuracy_high"]
    spread = f" ({low * 100:.1f}–{high * 100:.1f})" if row["repeats"] > 1 else ""
    return f"{row['val_accuracy'] * 100:.1f} %{spread}"


def headline_html(tables: Tables) -> GT:
    """The headline table for a report."""
    rows = headline_rows(tables)
    words = ("Policy", *(n.replace("_", " ").capitalize() for n in analysis.POINT))
    numbers = [c for c in rows if c not in words or c == "Batch size"]
    table = GT(rows, rowname_col="Policy").tab_stubhead("Policy")
    return _styled(table).cols_align("right", numbers)


def plain_table(rows: pd.DataFrame, links: Sequence[str] = ()) -> GT:
    """Any table of text for a report; columns named in `links` hold HTML."""
    table = _styled(GT(rows))
    return table.fmt(lambda cell: html(cell).text, columns=list(links)) if links else table


def _styled(table: GT) -> GT:
    # Colours and fonts are the page's: great-tables would set light ones of its own.
    return table.tab_options(
        table_background_color="transparent",
        table_font_names="inherit",
        table_font_size="0.86rem",
        table_width="100%",
        table_border_top_style="none",
        data_row_padding="5px",
    ).opt_table_outline("none")


def markdown(rows: pd.DataFrame) -> str:
    """A table of text as Markdown."""
    lines = [list(rows.columns), ["---"] * len(rows.columns), *rows.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(str(c) for c in line) + " |" for line in lines) + "\n"
