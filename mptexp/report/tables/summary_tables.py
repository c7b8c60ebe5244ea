"""What stands in a report in place of a table that is too long to be read.

Up to ROWS rows a table is shown whole. Above, it says what the whole comes to, and where that is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from great_tables import GT

from mptexp.analysis import accuracy, points, summary, validity
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.tables import text_tables
from mptexp.report.tables.text_tables import ROWS
from mptexp.report.text import column_formats, task_words, wording
from mptexp.report.text.column_formats import BLANK, without_blanks


def headline(tables: Tables) -> tuple[GT, str]:
    """The headline table, and what to say where it is not whole.

    Of more than ROWS rows, one stands for all batch sizes; of more than that, for all points of a
    device and a data set.
    """
    table = summary.headline(tables)
    if len(table) <= ROWS:
        return text_tables.headline_html(tables), ""
    names = [n for n in points.POINT if n != "batch_size" and table[n].nunique() > 1]
    if len(table[[*names, "policy"]].drop_duplicates()) > ROWS:
        # What a unit and a policy's notes hang on stays apart.
        names = [n for n in ("gpu_model", "dataset") if table[n].nunique() > 1]
    table = table.assign(where=_where(table, names))
    groups = table.groupby([*names, "policy"], sort=False)
    rows = [dict(zip(names, point, strict=False)) | _headline(group) for point, group in groups]
    shown = pd.DataFrame(rows)
    named = pd.DataFrame(wording.headed(shown, names), index=shown.index)
    shown = pd.concat([named, shown.drop(columns=names)], axis=1)
    interval = " [95 % interval]"
    heads = {"Speed": text_tables.baseline_head(table).removesuffix(interval)}
    heads |= {name: name + interval for name in ("Least", "Largest")}
    shown = shown.rename(columns=heads)
    note = (
        f"A row stands for all points of a policy{' and what is named with it' if names else ''}."
        " Faster and slower: points whose whole interval lies above or below 1; what is not valid "
        "is counted in the last column alone. All "
        f"{len(table):,} rows, one for each point and policy, are in [table.md](table.md), costs "
        "and time to an accuracy below them, all "
        "ratios in [speedups.csv](speedups.csv).\n\nOf table.md: "
    )
    return text_tables.plain_table(without_blanks(shown)), note


def details(tables: Tables) -> pd.DataFrame:
    """What else is known of the headline table's rows; where that is a summary, table.md has it."""
    rows = text_tables.detail_rows(tables) if not tables.ok.empty else pd.DataFrame()
    return rows if len(rows) <= ROWS else pd.DataFrame()


def _where(table: pd.DataFrame, named: Sequence[str]) -> list[str]:
    """What tells a row apart from the others of its group."""
    names = [n for n in points.POINT if n not in named and table[n].nunique() > 1]
    return wording.joined(wording.named(table[n], ("model", "setting")) for n in names)


def _headline(group: pd.DataFrame) -> dict[str, Any]:
    first, compared = group.iloc[0], group.dropna(subset="speedup")
    found = compared.apply(wording.finding, axis=1) if len(compared) else compared.policy
    over = compared[found != "not valid"]
    spoiled = (group.run_flags != "") | group.index.isin(compared.index.difference(over.index))
    measure = task_words.of(first.dataset)
    task = measure.task
    own = text_tables.over_baseline(first) if first.policy == first.baseline else BLANK
    cells = {
        "Policy": text_tables.policy(first),
        "Points": f"{len(group):,}",
        "Faster": f"{(found == 'faster').sum():,}" if len(over) else BLANK,
        "Slower": f"{(found == 'slower').sum():,}" if len(over) else BLANK,
        "Speed": _middle(over, found) if len(over) else own,
        "Least": BLANK,
        "Largest": BLANK,
        f"Most {task.unit}s/s": column_formats.cell(task.rate, _most(group)),
    }
    if len(over):
        ends = (over.speedup.idxmin(), over.speedup.idxmax())
        cells |= {n: _end(over.loc[k]) for n, k in zip(("Least", "Largest"), ends, strict=True)}
    learned = group[task.column].dropna()
    ends = [measure.level(value) for value in (learned.min(), learned.max())]
    ends[0] = ends[0].removesuffix(" %")
    cells[measure.heading] = "–".join(ends) if len(learned) else BLANK
    cells["Not valid"] = f"{spoiled.sum():,} of {len(group):,}" if spoiled.any() else BLANK
    return cells


def _middle(over: pd.DataFrame, found: pd.Series) -> str:
    """`1.15× faster (median)`; a direction only where it is proven of every point."""
    words, middle = {*found[over.index]}, over.speedup.median()
    proven = words in ({"faster"}, {"slower"})
    said = wording.times(middle) if proven else f"{wording.factor(middle)}× {wording.AS_FAST}"
    return f"{said} (median)"


def _most(group: pd.DataFrame) -> float:
    """The largest throughput of the points whose times are valid."""
    valid = [not validity.invalid(flags, "time") for flags in group.run_flags]
    return float(group.throughput[valid].max())


def _end(row: Mapping[str, Any]) -> str:
    return f"{wording.ratio_of(row)}: {row['where']}"


def accuracy_rows(tables: Tables) -> tuple[pd.DataFrame, str]:
    """Differences in accuracy as text, and what to say where the table is not whole."""
    rows = text_tables.accuracy_rows(tables)
    if len(rows) <= ROWS:
        return rows, ""
    table = accuracy.differences(tables)
    lost = table.verdict.isin(["diverged", "baseline diverged"])
    keys = {"lost": ~lost, "equal": table.verdict == "equal", "size": -table.difference.abs()}
    order = pd.DataFrame(keys).sort_values([*keys], kind="stable").index
    first = "those of runs that diverged come first, then " if lost.any() else ""
    note = (
        f"Of {len(rows):,} differences, {first}those that are not equal"
        f"{'' if first else ' come first'}, the largest before the others; all are in "
        "[accuracy.csv](accuracy.csv). "
    )
    return rows.loc[order], note


def failed(results: pd.DataFrame) -> pd.DataFrame:
    """The runs without a result; of more than ROWS, a row for all that ended alike."""
    rows = results[results.status != "ok"]
    names = ["status", "policy", "batch_size", "block", "error", "run_id"]
    if len(rows) <= ROWS:
        point = pd.DataFrame(wording.told_apart(rows), rows.index)
        named = rows[names].rename(columns=_heading)
        return pd.concat([named.iloc[:, :2], point, named.iloc[:, 2:]], axis=1)
    alike = rows.groupby(["status", "policy", "error"], sort=False, dropna=False).agg(
        runs=("run_id", "count"), batch_size=("batch_size", _range), run_id=("run_id", "first")
    )
    alike = alike.reset_index().sort_values("runs", ascending=False, kind="stable")
    return alike.rename(columns={**{n: _heading(n) for n in alike}, "run_id": "One of them"})


def _range(sizes: pd.Series) -> str:
    return f"{sizes.min()}–{sizes.max()}" if sizes.nunique() > 1 else str(sizes.iloc[0])


def _heading(name: str) -> str:
    return {"run_id": "Run"}.get(name, wording.title(name))


def runs(results: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The runs to list, and what to say where they are not all.

    Of more than ROWS runs, those that did not end well, are marked or have a flag.
    """
    if len(results) <= ROWS:
        return results, ""
    # Failures first: of the table that is made of them, too, only ROWS rows are shown.
    listed = results[(results.status != "ok") | (results.marks != "") | (results["flags"] != "")]
    listed = listed.sort_values("status", key=lambda s: s == "ok", kind="stable")
    note = (
        f"Of {len(results):,} runs, the {len(listed):,} that did not end well, are marked or "
        "have a flag are listed here; [results.csv](results.csv) holds all. A run's record is "
        "`runs/<run_id>/record.json`, and beside it lies its executed notebook, `notebook.ipynb`; "
        f"of more than {ROWS} runs the notebooks are not rendered as HTML."
    )
    return listed, note
