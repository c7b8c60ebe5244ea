"""Replicas of a model: several to one."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from mptexp.analysis import scaling
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.first_screen import ratios
from mptexp.report.first_screen.parts import Subject
from mptexp.report.text import wording

PARTS = "Logical replicas are parts of one CPU: their scaling says nothing of hardware."
NOTHING = "More replicas are not shown to train more images a second than one"


def of(tables: Tables) -> Iterator[Subject]:
    """Several replicas to one, the batch of each kept; the global one where that was not run."""
    rows = scaling.by_replicas(tables)
    if rows.empty:
        return
    each = bool(rows.speedup.notna().any())
    if not each:
        strong = [name for name in rows if name.startswith("strong_")]
        plain = {name: name.removeprefix("strong_") for name in strong}
        rows = rows.drop(columns=plain.values(), errors="ignore").rename(columns=plain)
    rows = rows[rows.speedup.notna()]
    labels = _labels(rows, each)
    same = "batch size per replica" if each else "global batch size"
    base, otherwise = f"1 replica with the same {same}", "keep one replica"
    for subject in ratios.of(rows, labels, base, tables, nothing=NOTHING, otherwise=otherwise):
        said = [*subject.sentences, *[PARTS] * bool(rows.logical.any())]
        yield replace(subject, sentences=said)


def _labels(rows: pd.DataFrame, each: bool) -> pd.Series:
    """`float32, 2 replicas, batch size 32 each`; of parts of one CPU `2 logical replicas`.

    Args:
        each: whether a batch size is that of each replica, not of all together.
    """
    sizes, whose = (rows.batch_per_replica, "each") if each else (rows.batch_size, "in all")
    places = wording.places(rows.assign(batch_size=sizes))
    named = zip(places, sizes, strict=True)
    labels = pd.Series(
        [place.replace(f"batch size {n}", f"batch size {n} {whose}", 1) for place, n in named],
        rows.index,
        dtype=object,
    )
    if rows.replicas.nunique() == 1:
        labels = f"{rows.replicas.iloc[0]} replicas, " + labels
    labels = labels.str.replace(r"\breplicas (\d+)", r"\1 replicas", regex=True)
    logical = labels.str.replace(" replicas", " logical replicas", n=1, regex=False)
    labels = labels.where(~rows.logical.astype(bool), logical)
    return rows.policy + ", " + labels if rows.policy.nunique() > 1 else labels
