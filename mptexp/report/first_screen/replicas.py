"""Replicas of a model: several to one."""

from collections.abc import Iterator

import pandas as pd

from mptexp.analysis import scaling
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.first_screen import ratios
from mptexp.report.first_screen.parts import Subject
from mptexp.report.text import wording


def of(tables: Tables) -> Iterator[Subject]:
    """Several replicas to one, the batch of each kept."""
    rows = scaling.by_replicas(tables)
    if len(rows):
        rows = rows[rows.speedup.notna()]
        each = rows.assign(batch_size=rows.batch_per_replica)
        named = zip(wording.places(each), each.batch_size, strict=True)
        labels = pd.Series(
            [place.replace(f"batch size {n}", f"batch size {n} each", 1) for place, n in named],
            rows.index,
            dtype=object,
        )
        if rows.replicas.nunique() == 1:
            labels = f"{rows.replicas.iloc[0]} replicas, " + labels
        labels = labels.str.replace(r"\breplicas (\d+)", r"\1 replicas", regex=True)
        if rows.policy.nunique() > 1:
            labels = rows.policy + ", " + labels
        base = "1 replica with the same batch size per replica"
        nothing = "More replicas are not shown to train more images a second than one"
        otherwise = "keep one replica"
        yield from ratios.of(rows, labels, base, tables, nothing=nothing, otherwise=otherwise)
