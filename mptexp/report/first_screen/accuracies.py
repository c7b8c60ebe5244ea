"""Accuracy, where no time is valid or nothing is compared with a baseline; else what is known."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy, exponent_range, summary
from mptexp.analysis import advice as advices
from mptexp.analysis.points import of_task
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import caveats, dynamic_range, findings
from mptexp.report.first_screen.subject import (
    MORE_REPEATS,
    MOST,
    Bar,
    Scale,
    Subject,
    device,
    equal,
    provisional,
)
from mptexp.report.text import columns, measures, wording
from mptexp.report.text.measures import Measure
from mptexp.report.text.wording import INCONCLUSIVE

DECIDED = ("lower", "higher", "equal")  # verdicts that an interval shows


def of(tables: Tables) -> Iterator[Subject]:
    """Where no time is valid, or nothing is compared with a baseline."""
    table = accuracy.beside_first(accuracy.differences(tables))
    if table.empty:
        yield Subject(_alone(tables), findings.answer(tables))
        return
    bars = [
        _of_accuracy(row, place)
        for row, place in zip(table[:MOST].to_dict("records"), wording.places(table), strict=False)
    ]
    base, verdicts = wording.default_name(table.baseline.iloc[0]), set(table.verdict)
    measure = measures.of(table.dataset.iloc[0])
    figure = measure.name.capitalize()
    title = f"{figure} is {equal(tables, measure)} to {base}'s" if verdicts == {"equal"} else ""
    if not title and verdicts & {"lower", "higher"} and verdicts <= {*DECIDED, "undecided"}:
        title = f"{figure} beside {base}'s is {_counted(table, measure)}"
    between = measure.between(of_task(table, measure.task).difference)
    if not title and verdicts == {"undecided"}:
        one = f"mean difference {bars[0].text.partition(' (')[0]} {measure.unit}"
        found = one if len(bars) == 1 else f"mean differences {between}"
        title = f"{figure} is {INCONCLUSIVE}: {found} from {base}'s"
    title = title or provisional(
        f"mean validation {measure.name} differs from {base}'s by {between}"
    )
    advice = caveats.remedies(tables, "accuracy")
    if not advice and "undecided" in verdicts:
        advice = f"{MORE_REPEATS}."
    # Of times that are not valid the page of accuracies says nothing here: the banner does.
    sentences = [s for s in findings.answer(tables) if not s.startswith(wording.NOT_VALID)]
    scale: Scale = "accuracy" if measure.name == "accuracy" else "perplexity"
    yield Subject(title, sentences, bars, base, scale, advice)


def _counted(table: pd.DataFrame, measure: Measure) -> str:
    """`lower in 1 of 3 settings and equal in 2`: verdicts of which some are a difference."""
    counts = table.verdict.value_counts()
    words = {name: measure.words.get(name, wording.verdict(name)) for name in counts.index}
    if len(counts) == 1:
        between = measure.between(of_task(table, measure.task).difference)
        return f"{words[counts.index[0]]} ({between})"
    first, *more = [
        f"{words[name]} in {counts[name]}" for name in (*DECIDED, "undecided") if name in counts
    ]
    return wording.listed([f"{first} of {wording.count(len(table), 'setting')}", *more])


def _alone(tables: Tables) -> str:
    """What was measured where nothing is compared."""
    rows = tables.ok if tables.ok.empty else summary.headline(tables).dropna(subset="step_s")
    if len(rows) != 1:
        return "Nothing to compare: no policy was measured beside its baseline"
    row, where = rows.iloc[0], device(tables)
    return f"{row.policy} alone: {columns.cell('step_s', row.step_s)} ms per step on {where}"


def of_exponents(tables: Tables) -> Iterator[Subject]:
    """What histograms of exponents advise, where no policies are compared."""
    for training in exponent_range.measured(tables.records)[:1]:
        advised = advices.advise(training)
        reasons = [*dynamic_range.reasons(advised), *dynamic_range.sentences(training)]
        choice = dynamic_range.choice(advised)
        title, to_do = f"The numbers of this training ask for {choice}", f"use policy {choice}."
        yield Subject(title, reasons, advice=to_do, figure="exponents")


def _of_accuracy(row: Mapping[str, Any], place: str) -> Bar:
    measure = measures.of(row["dataset"])
    numbers = [measure.change(row[name]) * 100 for name in ("difference", "low", "high")]
    numbers[1:] = sorted(numbers[1:])
    text = measure.difference(*(row[n] for n in ("difference", "low", "high", "blocks")))
    if row["verdict"] in accuracy.UNDECIDABLE:
        numbers[1:] = [np.nan, np.nan]
    return Bar(f"{row['candidate']}, {place}", row["candidate"], *numbers, row["verdict"], text)
