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
        return f"{value:.2f}× (no interval, n = {n})"
    return f"{value:.2f}× [{low:.2f}, {high:.2f}] (n = {n})"


def default_name(policy: str) -> str:
    """A device's default as readers know it."""
    return "TF32" if policy == "tensorfloat32" else policy


def answer(tables: Tables) -> list[str]:
    """One sentence per device and policy: the answer that opens a report."""
    if tables.ok.empty:
        return ["No run of this sweep succeeded, so there is nothing to compare yet."]
    table = analysis.headline(tables)
    sentences = []
    for (device, backend, policy), rows in table.groupby(["gpu_model", "backend", "policy"]):
        rows = rows[rows.speedup.notna()]
        if len(rows):
            sentences.append(_policy_answer(device, backend, policy, rows))
    if not sentences:
        return [_without_baseline(table)]
    return [*sentences, *_accuracy_answer(tables)]


def _policy_answer(device: str, backend: str, policy: str, rows: pd.DataFrame) -> str:
    clauses = [f"{r['comparison']} at batch size {r['batch_size']}" for r in _compared(rows)]
    default = f"{NAMES[backend]}'s default there, {default_name(rows.default_policy.iloc[0])}"
    return (
        f"On {device}, **{policy}** {_verdict(rows)} than {default}: "
        f"{listed(clauses)}.{_reason(rows)}"
    )


def _compared(rows: pd.DataFrame) -> list[dict[str, Any]]:
    found = rows.to_dict("records")
    return [r | {"comparison": ratio(r["speedup"], r["low"], r["high"], r["n"])} for r in found]


def _verdict(rows: pd.DataFrame) -> str:
    """What the intervals allow to be said of all batch sizes together."""
    if rows.low.isna().all():
        return "was measured too few times (three repeats are needed) to be called faster or slower"
    faster, slower = (rows.low > 1).sum(), (rows.high < 1).sum()
    if faster == len(rows):
        return "makes training steps faster"
    if slower == len(rows):
        return "makes training steps slower"
    if not faster and not slower:
        return "makes training steps neither measurably faster nor slower"
    ways = [f"faster at {faster}" if faster else "", f"slower at {slower}" if slower else ""]
    sizes = count(len(rows), "batch size")
    return f"makes training steps {listed([w for w in ways if w])} of {sizes}"


def _reason(rows: pd.DataFrame) -> str:
    if rows.emulated.iloc[0] and (rows.speedup < 1).any():
        return " This device has no instructions for the type and emulates it: slower is expected."
    return ""


def _without_baseline(table: pd.DataFrame) -> str:
    names = listed(sorted(set(table.policy)))
    return (
        f"This sweep measured {names} alone; a speedup needs float32 or the device's default "
        "beside it."
    )


def _accuracy_answer(tables: Tables) -> list[str]:
    spread = analysis.accuracy_range(tables)
    if len(set(tables.ok.policy)) < 2 or not spread.difference.notna().any():
        return []
    points = spread.difference.max() * 100
    return [
        "Mean validation accuracy differs between policies by at most "
        f"{points:.1f} percentage points at the same batch size and is "
        f"{spread.least.min() * 100:.1f} % or more everywhere."
    ]


def caption_speedup(tables: Tables) -> str:
    """What the speedup figure shows."""
    table = tables.speedups.dropna(subset=["speedup"])
    if table.empty:
        return "No speedup can be formed: no two policies were measured at the same point."
    best = table.loc[table.speedup.idxmax()]
    found = ratio(best.speedup, best.low, best.high, best.blocks)
    over = default_name(best.baseline)
    faster = int((table.low > 1).sum())
    is_faster = {0: "none is", 1: "1 is"}.get(faster, f"{faster} are")
    return (
        f"Of {count(len(table), 'point')} compared, {is_faster} measurably faster than {over}; the "
        f"best is {best.candidate} at batch size {best.batch_size} with {found}. Bars are 95 % "
        "intervals over blocks; above 1 is faster."
    )


def caption_accuracy(tables: Tables) -> str:
    """What the accuracy figure shows."""
    spread = analysis.accuracy_range(tables)
    points = spread.difference.max() * 100
    repeats = tables.ok.block.nunique()
    return (
        f"Faint lines are single runs ({count(repeats, 'repeat')} a policy), strong ones their "
        f"mean. At the last epoch the policies' means differ by at most {points:.1f} percentage "
        "points at the same batch size."
    )


def caption_memory(tables: Tables) -> str:
    """What the memory figure shows."""
    table = analysis.headline(tables)
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
    table = tables.ok
    spread = table.groupby([*analysis.POINT, "policy"]).step_s.agg(lambda s: s.max() / s.min())
    runs = count(len(table), "run")
    return (
        f"Each dot is the median step of one of {runs}; the widest spread between repeats of a "
        f"point is {(spread.max() - 1) * 100:.0f} %."
    )


# --- tables ----------------------------------------------------------------------------------


def headline_rows(tables: Tables) -> pd.DataFrame:
    """The headline table as text, a row per batch size and policy, for HTML and Markdown."""
    table = analysis.headline(tables)
    baseline = listed([default_name(p) for p in sorted(set(table.default_policy))])
    rows = pd.DataFrame(
        {
            "Device": table.gpu_model,
            "Batch size": table.batch_size,
            "Policy": [_policy(r) for r in table.to_dict("records")],
            "ms per step": [f"{s * 1e3:.2f}" for s in table.step_s],
            "5–95 %": [
                f"{a * 1e3:.2f}–{b * 1e3:.2f}"
                for a, b in zip(table.step_s_low, table.step_s_high, strict=True)
            ],
            "Images/s": [f"{v:,.0f}" for v in table.images_per_s],
            f"Speedup over the default, {baseline} [95 % interval]": [
                "1 (the default)"
                if r["policy"] == r["default_policy"]
                else ratio(r["speedup"], r["low"], r["high"], r["n"])
                for r in table.to_dict("records")
            ],
            "Speedup over strict float32": [
                "1"
                if r["policy"] == "float32"
                else ratio(r["strict_speedup"], r["strict_low"], r["strict_high"], r["n"])
                for r in table.to_dict("records")
            ],
            "Validation accuracy": [_accuracy(r) for r in table.to_dict("records")],
            "Peak memory": [f"{b / 2**20:,.0f} MiB" for b in table.peak_memory_bytes],
        }
    )
    same = (table.default_policy == "float32").all()
    rows = rows.drop(columns="Speedup over strict float32") if same else rows
    if same:
        rows = rows.rename(
            columns=lambda c: c.replace("default, float32", "default, strict float32")
        )
    return rows.drop(columns="Device") if table.gpu_model.nunique() == 1 else rows


def _policy(row: Mapping[str, Any]) -> str:
    return f"{row['policy']} ({EMULATED})" if row["emulated"] else row["policy"]


def _accuracy(row: Mapping[str, Any]) -> str:
    low, high = row["val_accuracy_low"], row["val_accuracy_high"]
    spread = f" ({low * 100:.1f}–{high * 100:.1f})" if row["n"] > 1 else ""
    return f"{row['val_accuracy'] * 100:.1f} %{spread}"


def headline_html(tables: Tables) -> GT:
    """The headline table for a report."""
    rows = headline_rows(tables)
    group = "Device" if "Device" in rows else None
    numbers = [c for c in rows if c not in ("Device", "Policy")]
    table = GT(rows, groupname_col=group, rowname_col="Policy").tab_stubhead("Policy")
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
