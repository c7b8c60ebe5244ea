"""The report's section on quantized inference: what integers for weights cost and save."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from mptexp.analysis import contrast, points
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers.comparisons import Section
from mptexp.report.text import measures, wording
from mptexp.report.text.columns import BLANK

TITLE = "Quantized inference"
NOTE = (
    "Each run trained its model in float32, validated it, quantized it and validated it again: the "
    "difference is that of the same weights, quantized minus trained, and its interval is over "
    "repeats. Bytes are those of all weights as they are stored, embeddings and normalizations "
    "too, which stay float32. Times stand in the headline table."
)


def sections(tables: Tables) -> list[Section]:
    """The section on quantized inference; none where no run quantized a trained model."""
    known = {r["run_id"]: r["quantized"] for r in tables.records if _is_one(r)}
    runs = tables.ok[tables.ok.run_id.isin(list(known))]
    if runs.empty:
        return []
    rows = pd.DataFrame(_rows(runs, known))
    if rows.Point.nunique() == 1:
        rows = rows.drop(columns="Point")
    said = {known[i].get("calibration", ""): name for i, name in runs[["run_id", "policy"]].values}
    sentences = [f"{name} is calibrated on {text}." for text, name in said.items() if text]
    return [Section(TITLE, NOTE, sentences, rows)]


def _is_one(record: dict[str, Any]) -> bool:
    return "after" in (record.get("quantized") or {})


def _rows(runs: pd.DataFrame, known: dict[str, dict[str, Any]]) -> Iterator[dict[str, str]]:
    """A row per point and policy."""
    runs = runs.assign(point=wording.places(runs))
    for (point, policy, dataset), own in runs.groupby(["point", "policy", "dataset"], sort=False):
        made = [known[run_id] for run_id in own.run_id]
        measure = measures.of(dataset)
        before, after = (_quality(made, part, measure) for part in ("before", "after"))
        lost = contrast.paired(after, before, "difference")
        sizes = [sum(m.get(f"bytes_{part}", 0) for m in made) for part in ("before", "after")]
        yield {
            "Point": point,
            "Policy": policy,
            f"{measure.heading}, trained": _mean(made, "before", measure),
            f"{measure.heading}, quantized": _mean(made, "after", measure),
            measure.head: measure.difference(lost.estimate, lost.low, lost.high, lost.n)
            if lost.n
            else BLANK,
            "Weights": " to ".join(f"{size / len(made) / 2**20:.1f} MiB" for size in sizes),
            "of their bytes": f"{sizes[1] / sizes[0] * 100:.0f} %" if sizes[0] else BLANK,
        }


def _quality(made: list[dict[str, Any]], part: str, measure: measures.Measure) -> pd.Series:
    values = [measure.task.measured(m[part]) for m in made]
    return points.quality(pd.DataFrame({measure.task.column: values}, dtype=float))


def _mean(made: list[dict[str, Any]], part: str, measure: measures.Measure) -> str:
    values = [measure.task.measured(m[part]) for m in made]
    values = [value for value in values if value is not None]
    if not values:
        return BLANK
    return measure.mean(sum(values) / len(values), min(values), max(values), len(values))
