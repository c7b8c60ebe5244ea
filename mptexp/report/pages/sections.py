"""The sections of a report, as its notebook shows them: a function each, in order of reading.

A section whose data a sweep does not have shows nothing.
"""

from collections.abc import Sequence

import pandas as pd
from IPython import display

from mptexp.analysis import accuracy, loss_scale, out_of_range, range_advice
from mptexp.report.answers import (
    caveats,
    comparisons,
    dynamic_range,
    instrument_answers,
    loss_scales,
    low_precision,
    quantized_inference,
    studies,
    why,
)
from mptexp.report.figures import all_figures
from mptexp.report.figures.row import Section
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.pages import first_screen_html, notes, provenance, sortable
from mptexp.report.tables import summary_tables, text_tables
from mptexp.report.text import markdown, task_words, wording
from mptexp.report.text.markdown import bullets, safe

# The figure that stands below a table of a verdict.
BELOW: dict[why.Section, Section] = {why.BREAKDOWN: "time breakdown", why.PEAKS: "roofline"}


# --- what sections are made of -------------------------------------------------------------------


def show_text(text: str) -> None:
    """Shows a text in Markdown, if there is any."""
    if text:
        display.display(display.Markdown(text))


def show_table(rows: pd.DataFrame, links: Sequence[str] = (), id: str | None = None) -> None:
    """Shows a table of text, if it has a row; the columns named in links hold HTML."""
    if not rows.empty:
        display.display(text_tables.plain_table(rows, links=links, id=id))


def show_figures(sweep: MeasuredSweep, section: Section, case: str | None = None) -> None:
    """Shows the figures of a section, or those of one case in it."""
    for figure in all_figures.figures(sweep, section):
        if case in (None, figure.case):
            display.display(display.HTML(figure.html()))


# --- answer and speed ----------------------------------------------------------------------------


def show_answer(sweep: MeasuredSweep) -> None:
    """The first screen: the finding, on what it rests, its chart, what to do."""
    display.display(display.HTML(first_screen_html.html(sweep)))


def show_headline(sweep: MeasuredSweep) -> None:
    """The headline table: each policy at each batch size, with its speedup."""
    tables = sweep.tables
    if tables.ok.empty:
        return
    learned = wording.capitalized(task_words.listed(tables.ok))
    show_text("## Time per step" if tables.ok.step_s.notna().any() else f"## {learned}")
    table, note = summary_tables.headline(tables)
    display.display(table)
    show_text(note + notes.headline(tables))


def show_speedups(sweep: MeasuredSweep) -> None:
    """A figure of speedups for each baseline."""
    show_figures(sweep, "speedups")


def show_details(sweep: MeasuredSweep) -> None:
    """What else is known of the headline table's rows."""
    rows = summary_tables.details(sweep.tables)
    if not rows.empty:
        show_text("### More of the same runs")
        show_table(rows)
        show_text(notes.details(sweep.tables))


def show_throughput(sweep: MeasuredSweep) -> None:
    """Images per second, and where memory ran out."""
    show_figures(sweep, "throughput")
    rows = text_tables.without_memory(sweep.tables)
    if not rows.empty:
        show_text("### Out of memory")
        show_table(rows)


def show_step_times(sweep: MeasuredSweep) -> None:
    """The step time of every run."""
    show_figures(sweep, "step times")


def show_reasons(sweep: MeasuredSweep) -> None:
    """Why each diagnosed pair of policies differs in speed, or that none was diagnosed."""
    if not sweep.verdicts and sweep.can_be_diagnosed:
        show_text(f"## Why\n\n{notes.NOT_DIAGNOSED}")
    explained: set[why.Section] = set()
    for number, verdict in enumerate(sweep.verdicts, 1):
        show_text(f"## Why: {safe(why.title(verdict, sweep.verdicts))}")
        show_text(markdown.sentence(why.sentence(verdict, sweep.verdicts)))
        for section, rows in why.tables(verdict).items():
            noted = section.noted(verdict, section not in explained)
            show_text(f"### {section.heading}\n\n{noted}")
            explained.add(section)
            show_table(rows)
            if section in BELOW:
                show_figures(sweep, BELOW[section], str(number))


def show_latency(sweep: MeasuredSweep) -> None:
    """How long single batches of inference take."""
    if not sweep.tables.latencies.empty:
        show_text("## Latency")
        show_figures(sweep, "latency")


# --- learning and numerics -----------------------------------------------------------------------


def show_learning(sweep: MeasuredSweep) -> None:
    """Accuracy and loss, and whether accuracies differ."""
    if sweep.tables.ok.empty:
        return
    rows, note = summary_tables.accuracy_rows(sweep.tables)
    says_nothing = rows.empty or rows.Finding.isin(accuracy.UNDECIDABLE).all()
    if says_nothing and not any(all_figures.figures(sweep, "learning")):
        return
    show_text("## Learning")
    show_figures(sweep, "learning")
    show_text(notes.starting_points(sweep.tables))
    if not rows.empty:
        show_text(f"### Differences in {task_words.listed(sweep.tables.ok)} at the last epoch")
        show_table(rows)
        show_text(note + notes.ACCURACY)


def show_low_precision(sweep: MeasuredSweep) -> None:
    """What emulated formats did to learning, and integers to a model that was trained."""
    parts = [low_precision.sections(sweep.tables), quantized_inference.sections(sweep.tables)]
    _show_parts([part for made in parts for part in made])


def show_dynamic_range(sweep: MeasuredSweep) -> None:
    """Where the values of each training lie, and what 16 bits lose of them."""
    trainings = out_of_range.measured(sweep.tables.records)
    for number, training in enumerate(trainings, 1):
        # What a sweep measured of loss scales goes before what range alone would advise.
        known = loss_scales.of_training(sweep.tables, training.parameters)
        advice, *reasons = dynamic_range.answer(
            training, range_advice.tried(training, sweep.tables)
        )
        measured = [*known, *dynamic_range.sentences(training)]
        show_text(f"## Dynamic range: {safe(dynamic_range.title(training, trainings))}")
        show_text(bullets(measured if known else [f"**{advice}**", *reasons]))
        show_figures(sweep, "exponents", str(number))
        show_table(dynamic_range.rows(training))
        show_text(dynamic_range.NOTE)


def show_loss_scales(sweep: MeasuredSweep) -> None:
    """Which loss scales each training bears, and how the dynamic one moved."""
    first = first_screen_html.figure(sweep)
    points = loss_scales.by_point(loss_scale.table(sweep.tables))
    for number, (title, rows) in enumerate(points, 1):
        show_text("## Loss scale" + f": {safe(title)}" * bool(title))
        reason = caveats.doubts(sweep.tables, "accuracy")
        show_text("" if reason else bullets(loss_scales.sentences(rows)))
        if first is None or (first.row.section, first.case) != ("loss scale", str(number)):
            show_figures(sweep, "loss scale", str(number))
        show_table(loss_scales.text(rows))
        show_text(loss_scales.trained_alike(rows))
    if points and summary_tables.accuracy_rows(sweep.tables)[0].empty:
        show_text(notes.ACCURACY)
    show_figures(sweep, "loss scale", "")


# --- batch sizes, devices, memory ----------------------------------------------------------------


def show_best_batches(sweep: MeasuredSweep) -> None:
    """Every policy at the batch size that is best for it, and how the largest was searched for."""
    rows = text_tables.best_rows(sweep.tables)
    if not rows.empty:
        show_text("## Every policy at its best batch size")
        show_table(rows)
        show_text(notes.best_batches(sweep.tables))
    if not sweep.tables.attempts.empty:
        show_text("### The search for the largest batch")
        show_table(text_tables.attempt_rows(sweep.tables))


def show_scaling(sweep: MeasuredSweep) -> None:
    """Devices, replicas and frameworks side by side."""
    _show_parts(comparisons.sections(sweep.tables))


def _show_parts(parts: Sequence[comparisons.Section]) -> None:
    for part in parts:
        show_text(f"## {part.title}\n\n{part.note}")
        show_table(part.rows)
        show_text(bullets(part.sentences))


def show_memory(sweep: MeasuredSweep) -> None:
    """Peak memory."""
    if any(all_figures.figures(sweep, "memory")):
        show_text("## Memory")
        show_figures(sweep, "memory")


def show_sensors(sweep: MeasuredSweep) -> None:
    """What the device's sensors read, and what interfered."""
    rows = text_tables.sensor_rows(sweep.tables)
    if not rows.empty:
        show_text(f"## Device readings\n\n{notes.sensors(sweep.tables)}")
        show_table(rows)
        show_figures(sweep, "device")


# --- context and provenance ----------------------------------------------------------------------


def show_published(sweep: MeasuredSweep) -> None:
    """Published numbers of the same models beside those of this sweep."""
    part = studies.section(sweep.tables)
    if part is None:
        return
    show_text(f"## Comparison with published results\n\n{part.note}")
    for rows in (part.speeds, part.accuracies):
        show_table(rows, links=["Source"])
    show_text(bullets(part.sentences))
    show_table(part.differences)


def show_claims(sweep: MeasuredSweep) -> None:
    """The studies' claims that this sweep tests, each with what it says of it."""
    rows = provenance.checked_claims(sweep)
    if not rows.empty and not caveats.doubts(sweep.tables, "accuracy"):
        show_text(f"## Claims checked\n\n{notes.CLAIMS}")
        show_table(rows, links=["Runs"])


def show_failures(sweep: MeasuredSweep) -> None:
    """Runs without a result, and records that cannot be read."""
    rows = summary_tables.failed(sweep.tables.results)
    if not rows.empty:
        show_text(f"## Runs without a result\n\n{notes.FAILED}")
        show_table(rows)
    for message in sweep.tables.damaged:
        show_text(f"**Damaged record**: {safe(message)}")
    for message in sweep.tables.changed:
        show_text(f"**Changed record**: {safe(message)}")


def show_runs(sweep: MeasuredSweep) -> None:
    """Every run with links to its notebook and its record, in a table that sorts and filters."""
    rows, note = provenance.runs(sweep)
    show_text(f"## All runs\n\n{note}")
    show_table(rows, links=["Run", "Record"], id=sortable.ID)


def show_environment(sweep: MeasuredSweep) -> None:
    """Device, machine and software, and what makes the sweep less certain."""
    show_text("## Environment")
    show_text(bullets(caveats.sentences(sweep.tables, first_screen_html.findings(sweep))))
    show_text(notes.families(sweep.tables, sweep.verdicts))
    show_table(provenance.environment(sweep))
    if checks := provenance.checks(sweep):
        show_text(f"### Instruments\n\n{instrument_answers.sentence(checks)}")
        show_table(instrument_answers.table(checks))
    show_text(bullets(caveats.remarks(sweep.tables)))


def show_reproduce(sweep: MeasuredSweep) -> None:
    """How to measure all this again; of scripts that mptexp did not run nobody knows."""
    if not sweep.is_foreign:
        show_text(f"## Reproduce this\n\n{provenance.reproduce(sweep)}")
