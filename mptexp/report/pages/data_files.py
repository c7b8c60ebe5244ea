"""The files beside a report: its numbers as CSV, its headline table and figure."""

import io
import re
import tempfile
from pathlib import Path

import pandas as pd

from mptexp.analysis import accuracy
from mptexp.analysis.sweep_tables import Tables
from mptexp.host import files
from mptexp.records import store
from mptexp.report.figures import output, style
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.pages import first_screen_html
from mptexp.report.tables import text_tables

ROUNDING = 1e-6  # relative
TABLES = ("results", "history", "speedups")
SOME = ("accuracy.csv", "table.md", "answer.svg")  # that not every report has
# What a table for people claims: numbers, their signs, and verdicts.
CLAIMED = re.compile(
    r"[+\N{MINUS SIGN}]?\d+(?:\.\d+)?|faster|slower|inconclusive|valid|emulated|lower|higher|equal"
)


def write_tables(tables: Tables, folder: Path) -> None:
    """Writes runs, epochs and speedups as CSV."""
    for name in TABLES:
        store.write_csv(folder / f"{name}.csv", getattr(tables, name))


def out_of_step(sweep: MeasuredSweep) -> list[str]:
    """A sentence for each table beside the page whose numbers are not those of the records."""
    root = sweep.directory.root
    with tempfile.TemporaryDirectory(prefix="mptexp") as folder:
        write_tables(sweep.tables, Path(folder))
        _write_some(sweep.tables, Path(folder))
        names = [*(f"{name}.csv" for name in TABLES), *SOME[:2]]
        pairs = [(root / name, Path(folder) / name) for name in names]
        other = [file for file, now in pairs if file.is_file() and not _agree(file, now)]
    return [
        f"{file}: is not what the records give, and the page beside it was made with it: "
        "`mptexp report` makes both again"
        for file in other
    ]


def _agree(one: Path, other: Path) -> bool:
    """Whether two tables hold the same, but for how another machine rounds and names the folder.

    Of a table for people what it claims: other words change from version to version.
    """
    try:
        texts = [files.text(path) for path in (one, other)]
        if one.suffix == ".md":
            return CLAIMED.findall(texts[0]) == CLAIMED.findall(texts[1])
        sides = [pd.read_csv(io.StringIO(text)) for text in texts]
        tables = [side.drop(columns="sweep", errors="ignore") for side in sides]
        pd.testing.assert_frame_equal(*tables, check_dtype=False, rtol=ROUNDING)
    except (AssertionError, OSError, ValueError):
        return False
    return True


def write(sweep: MeasuredSweep) -> None:
    """Writes results.csv, history.csv, speedups.csv, table.md and answer.svg.

    Where the report does not show all differences in accuracy, accuracy.csv holds them. What an
    earlier report wrote and this one does not is removed: its numbers are of other records.
    """
    root, tables = sweep.directory.root, sweep.tables
    write_tables(tables, root)
    written = _write_some(tables, root)
    figure = first_screen_html.figure(sweep)
    if figure:
        with style.width(style.LEAD_WIDTH):
            drawn, _ = figure.draw()
        store.write_text(root / "answer.svg", output.svg(drawn))
        written.add("answer.svg")
    for name in set(SOME) - written if sweep.directory.is_marked else ():
        if (root / name).is_file():
            (root / name).unlink()


def _write_some(tables: Tables, folder: Path) -> set[str]:
    """Writes table.md and accuracy.csv where there is something for them; which."""
    written = set[str]()
    differences = accuracy.differences(tables)
    if len(differences) > text_tables.ROWS:
        store.write_csv(folder / "accuracy.csv", differences)
        written.add("accuracy.csv")
    if not tables.ok.empty:
        parts = [text_tables.headline_rows(tables)]
        if len(parts[0]) > text_tables.ROWS:  # then the page has neither
            parts.append(text_tables.detail_rows(tables))
        text = "\n".join(text_tables.markdown(rows) for rows in parts if not rows.empty)
        store.write_text(folder / "table.md", text)
        written.add("table.md")
    return written
