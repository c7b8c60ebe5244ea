"""The files beside a report: its numbers as CSV, its headline table and figure."""

from pathlib import Path

from mptexp.analysis import accuracy
from mptexp.analysis.sweep_tables import Tables
from mptexp.records import store
from mptexp.report.answers.measured import MeasuredSweep
from mptexp.report.figures import output, style
from mptexp.report.pages import lead
from mptexp.report.tables import text_tables

TABLES = ("results", "history", "speedups")


def write_tables(tables: Tables, folder: Path) -> None:
    """Writes runs, epochs and speedups as CSV."""
    for name in TABLES:
        store.write_csv(folder / f"{name}.csv", getattr(tables, name))


def write(sweep: MeasuredSweep) -> None:
    """Writes results.csv, history.csv, speedups.csv, table.md and answer.svg.

    Where the report does not show all differences in accuracy, accuracy.csv holds them.
    """
    root, tables = sweep.directory.root, sweep.tables
    write_tables(tables, root)
    differences = accuracy.differences(tables, tables.options.equivalence_margin)
    if len(differences) > text_tables.ROWS:
        store.write_csv(root / "accuracy.csv", differences)
    if not tables.ok.empty:
        rows = text_tables.headline_rows(tables)
        store.write_text(root / "table.md", text_tables.markdown(rows))
    figure = lead.figure(sweep)
    if figure:
        with style.width(style.LEAD_WIDTH):
            drawn, _ = figure.draw()
        store.write_text(root / "answer.svg", output.svg(drawn))
