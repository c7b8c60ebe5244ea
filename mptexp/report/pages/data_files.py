"""The files beside a report: its numbers as CSV, its headline table and figure."""

import io
import tempfile
from pathlib import Path

import pandas as pd

from mptexp.analysis import accuracy
from mptexp.analysis.sweep_tables import Tables
from mptexp.records import store
from mptexp.report.answers.measured import MeasuredSweep
from mptexp.report.figures import output, style
from mptexp.report.pages import lead
from mptexp.report.tables import text_tables
from mptexp.spec import files

ROUNDING = 1e-6  # relative
TABLES = ("results", "history", "speedups")


def write_tables(tables: Tables, folder: Path) -> None:
    """Writes runs, epochs and speedups as CSV."""
    for name in TABLES:
        store.write_csv(folder / f"{name}.csv", getattr(tables, name))


def out_of_step(sweep: MeasuredSweep) -> list[str]:
    """A sentence for each table beside the page whose numbers are not those of the records."""
    with tempfile.TemporaryDirectory(prefix="mptexp") as folder:
        write_tables(sweep.tables, Path(folder))
        pairs = [(sweep.directory.root / f"{n}.csv", Path(folder) / f"{n}.csv") for n in TABLES]
        other = [file for file, now in pairs if file.is_file() and not _agree(file, now)]
    return [
        f"{file}: is not what the records give, and the page beside it was made with it: "
        "`mptexp report` makes both again"
        for file in other
    ]


def _agree(one: Path, other: Path) -> bool:
    """Whether two tables hold the same, but for how another machine rounds and names the folder."""
    try:
        sides = [pd.read_csv(io.StringIO(files.text(path))) for path in (one, other)]
        tables = [side.drop(columns="sweep", errors="ignore") for side in sides]
        pd.testing.assert_frame_equal(*tables, check_dtype=False, rtol=ROUNDING)
    except (AssertionError, OSError, ValueError):
        return False
    return True


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
