"""The files beside a report: its numbers as CSV, its headline table and figure."""

import io
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from mptexp.analysis import loss_scale, out_of_range
from mptexp.analysis.sweep_tables import Tables
from mptexp.host import files
from mptexp.records import store
from mptexp.report.answers import (
    comparisons,
    dynamic_range,
    loss_scales,
    low_precision,
    quantized_inference,
    why,
)
from mptexp.report.figures import output, style
from mptexp.report.figures.all_figures import SweepFigure
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.pages import check_statements, checksums, first_screen_html
from mptexp.report.tables import number_tables, summary_tables, text_tables
from mptexp.report.text import wording

ROUNDING = 1e-6  # relative
TABLES = ("results", "history", "speedups")
SOME = ("accuracy.csv", "table.md", "answer.svg")  # that not every report has
WRITTEN = ("index.html", *(f"{name}.csv" for name in TABLES), *SOME)
ADDED = ("finding",)  # columns that a CSV file of an earlier version lacks
QUOTED = 120  # letters of what is said to be false


def write_tables(tables: Tables, folder: Path) -> None:
    """Writes runs, epochs and speedups as CSV."""
    for name in TABLES:
        table = number_tables.speedups(tables) if name == "speedups" else getattr(tables, name)
        store.write_csv(folder / f"{name}.csv", table)


def write(sweep: MeasuredSweep) -> None:
    """Writes results.csv, history.csv, speedups.csv, table.md and answer.svg.

    Where the report does not show all differences in accuracy, accuracy.csv holds them. What an
    earlier report wrote and this one does not is removed: its numbers are of other records.
    """
    root, tables = sweep.directory.root, sweep.tables
    write_tables(tables, root)
    written = write_some(tables, root)
    if figure := first_screen_html.figure(sweep):
        store.write_text(root / "answer.svg", _drawn(figure)[0])
        written.add("answer.svg")
    for name in set(SOME) - written if sweep.directory.is_marked else ():
        if (root / name).is_file():
            (root / name).unlink()


def write_some(tables: Tables, folder: Path) -> set[str]:
    """Writes table.md and accuracy.csv where there is something for them; which."""
    written = set[str]()
    differences = number_tables.accuracies(tables)
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


def _drawn(figure: SweepFigure) -> tuple[str, str]:
    """The chart of the answer as SVG, and its caption."""
    with style.width(style.LEAD_WIDTH):
        drawn, caption = figure.draw()
    return output.svg(drawn), caption


# --- are they what the records give? ------------------------------------------------------------


def out_of_step(sweep: MeasuredSweep) -> list[str]:
    """A sentence in Markdown for each file of `wrong`."""
    return [
        f"{file}: {what}: `mptexp report` makes it again" for file, what in wrong(sweep).items()
    ]


def wrong(sweep: MeasuredSweep) -> dict[Path, str]:
    """The files of a report that are not the records', or not as they were written, and how."""
    false = contradicted(sweep).items()
    said = {file: f"is not what the records give{where}" for file, where in false}
    return dict(checksums.edited(sweep.directory.root, WRITTEN)) | said


def contradicted(sweep: MeasuredSweep) -> dict[Path, str]:
    """The files of a report that claim what the records do not give, and where each does."""
    root = sweep.directory.root
    with tempfile.TemporaryDirectory(prefix="mptexp") as folder:
        write_tables(sweep.tables, Path(folder))
        write_some(sweep.tables, Path(folder))
        names = [*(f"{name}.csv" for name in TABLES), *SOME[:2]]
        pairs = [(root / name, Path(folder) / name) for name in names]
        other = [file for file, now in pairs if file.is_file() and not _agree(file, now)]
    # The page was made with its tables, and at the same time.
    return dict.fromkeys(other, ", nor is the page beside it") | _false_statements(sweep)


def _agree(one: Path, other: Path) -> bool:
    """Whether two tables hold the same, but for how another machine rounds and names the folder.

    Of a table for people each row's first cell and claims: other words change from version to
    version.
    """
    try:
        texts = [files.text(path) for path in (one, other)]
        if one.suffix == ".md":
            rows = [[_claimed_row(line) for line in text.splitlines()] for text in texts]
            return rows[0] == rows[1]
        there, now = (pd.read_csv(io.StringIO(text)) for text in texts)
        now = now.drop(columns=[name for name in ADDED if name not in there], errors="ignore")
        if one.name == number_tables.ACCURACY and "low" in there:  # of an earlier version
            there = there.rename(columns=number_tables.CLAIM)
        tables = [side.drop(columns="sweep", errors="ignore") for side in (there, now)]
        pd.testing.assert_frame_equal(*tables, check_dtype=False, rtol=ROUNDING)
    except (AssertionError, OSError, ValueError):
        return False
    return True


def _claimed_row(line: str) -> tuple[str, list[str]]:
    """The first cell of a row in Markdown, which says what it is about, and what the row claims."""
    return line.lstrip("| ").partition(" | ")[0], check_statements.claims(line)


def _false_statements(sweep: MeasuredSweep) -> dict[Path, str]:
    """Where page and figure claim what the records do not give."""
    index, image = sweep.directory.index, sweep.directory.root / "answer.svg"
    if not (index.is_file() or image.is_file()):
        return {}
    figure = first_screen_html.figure(sweep)
    svg, caption = _drawn(figure) if figure else ("", "")
    made = _page(sweep, output.as_html(["", ""], figure.alt, caption) if figure else "")
    checks: dict[Path, Callable[[str], str]] = {
        index: lambda text: _false_in_page(text, made),
        image: lambda text: _false_in_figure(text, svg, made),
    }
    said = {file: _said(file, check) for file, check in checks.items() if file.is_file()}
    return {file: where for file, where in said.items() if where is not None}


def _said(file: Path, check: Callable[[str], str]) -> str | None:
    """Where a file claims what it should not; None where it does not."""
    try:
        false = check(files.text(file))
    except OSError:  # it is no text
        return ""
    shown = wording.verbatim(f"{false[:QUOTED]}…" if len(false) > QUOTED else false)
    return f", where it says “{shown}”" if false else None


def _false_in_page(text: str, made: check_statements.Page) -> str:
    there = check_statements.page(text)
    row = check_statements.contradicted_row(there.tables, made.tables)
    return row or check_statements.contradicted(there.lead, made.lead, made.texts)


def _false_in_figure(text: str, svg: str, made: check_statements.Page) -> str:
    there, now = check_statements.written(text), check_statements.written(svg)
    if there == now:
        return "" if check_statements.is_drawn_alike(text, svg) else " · ".join(there)
    return check_statements.contradicted(there, now, made.texts)


def _page(sweep: MeasuredSweep, chart: str) -> check_statements.Page:
    """First screen and tables of the sweep's page, without executing its notebook.

    Args:
        chart: the chart of the first screen as HTML, of which the words count.
    """
    lead = first_screen_html.screen(
        first_screen_html.title(sweep),
        "",
        first_screen_html.conditions(sweep.tables),
        (),
        chart,
        first_screen_html.sentences(sweep),
        first_screen_html.advice(sweep),
    )
    return check_statements.page(lead + "".join(_tables(sweep)))


def _tables(sweep: MeasuredSweep) -> list[str]:
    """The tables of the page's sections that hold ratios, differences or shares, as HTML."""
    tables = sweep.tables
    parts = [comparisons.sections, low_precision.sections, quantized_inference.sections]
    scales = loss_scales.by_point(loss_scale.table(tables))
    rows = [
        summary_tables.details(tables),
        text_tables.best_rows(tables),
        text_tables.sensor_rows(tables),
        *(table for verdict in sweep.verdicts for table in why.tables(verdict).values()),
        *(part.rows for sections in parts for part in sections(tables)),
        *(loss_scales.text(own) for _, own in scales),
        *(dynamic_range.rows(one) for one in out_of_range.measured(tables.records)),
    ]
    made = [text_tables.plain_table(table) for table in rows if not table.empty]
    if not tables.ok.empty:
        made.append(summary_tables.headline(tables)[0])
        differences, _ = summary_tables.accuracy_rows(tables)
        made += [text_tables.plain_table(differences)] if len(differences) else []
    return [table.as_raw_html() for table in made]
