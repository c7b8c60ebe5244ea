"""Ratios of speed that are not between policies."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import caveats
from mptexp.report.first_screen import policy_speed, speed_advice
from mptexp.report.first_screen.parts import Bar, Subject, first, provisional
from mptexp.report.text import wording
from mptexp.report.text.wording import INCONCLUSIVE, verbatim


def of(
    rows: pd.DataFrame,
    labels: Any,
    base: str,
    tables: Tables,
    choose: bool = False,
    nothing: str = "Not shown to differ in speed from {}",
    otherwise: str = "",
) -> Iterator[Subject]:
    """Ratios to one baseline: sentences by finding, the largest proven ones as the title.

    Args:
        choose: whether a reader can choose among them, and is told to take the fastest.
        nothing, otherwise: how the title opens, and what to do, where no difference is shown.
    """
    rows = rows.assign(label=labels).dropna(subset="speedup")
    if rows.empty:
        return
    rows = rows.assign(finding=rows.apply(wording.finding, axis=1))
    rows = rows.sort_values("speedup", kind="stable")
    bars = [policy_speed.bar_of(row, row["label"]) for row in rows.to_dict("records")]
    proven = [bar for bar in bars if bar.finding in ("faster", "slower")]
    slower, faster = (
        [bar for bar in proven if bar.finding == word] for word in ("slower", "faster")
    )
    sides = [slower, faster] if slower and faster else [proven or bars]
    most = " and ".join(map(_furthest, sides))
    title = f"{most} {wording.than(most)} {base}"
    if not proven:
        inconclusive = all(bar.finding == INCONCLUSIVE for bar in bars)
        ends = dict.fromkeys(f"{wording.factor(bar.value)}×" for bar in (bars[0], bars[-1]))
        held = "its interval includes" if len(bars) == 1 else "all intervals include"
        said = f"{nothing.format(base)}: {' to '.join(ends)}, but {held} 1"
        title = said if inconclusive else provisional(title)
    sentences = [
        f"{wording.OPENINGS[word].format(base)}: {_named(own)}."
        for word in wording.OPENINGS
        if (own := [bar for bar in bars if bar.finding == word])
    ]
    more = caveats.remedies(tables, "time") or speed_advice.repeats_to_decide(rows, rows.label)
    keep = otherwise * all(bar.finding == INCONCLUSIVE for bar in bars)
    advice = "" if proven else "; ".join(filter(None, [keep, more]))
    if faster and choose:
        advice = f"use {verbatim(max(faster, key=lambda bar: bar.value).label)}."
    advice = advice and f"{advice.rstrip('.')}."
    yield Subject(title, sentences, bars, base, advice=advice)


def _furthest(bars: Sequence[Bar]) -> str:
    """`float32 with sse41 is 5.15× slower`: of some bars the one furthest from no effect."""
    bar = max(bars, key=lambda bar: abs(np.log(bar.value)))
    verb = "are" if re.search(r"\breplicas\b", bar.label) else "is"
    return f"{bar.label} {verb} {bar.text.partition(' [')[0].partition(' (')[0]}"


def _named(bars: Sequence[Bar]) -> str:
    """Comparisons in words, the largest effects first."""
    order = sorted(bars, key=lambda bar: -abs(np.log(bar.value)))
    return first([f"**{verbatim(bar.label)}** {bar.text.partition(' (')[0]}" for bar in order])
