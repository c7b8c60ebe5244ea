"""What somebody who writes about a sweep needs: its tables and figures as files, and a draft."""

from pathlib import Path

import pandas as pd

from mptexp.analysis import accuracy, speedups, summary
from mptexp.analysis.sweep_tables import Tables
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import caveats, measured
from mptexp.report.figures import output, registry
from mptexp.report.figures.registry import SweepFigure
from mptexp.report.pages import data_files, lead
from mptexp.report.tables import text_tables
from mptexp.report.text.markdown import bullets, safe


def export(directory: SweepDir, folder: Path) -> list[str]:
    """Writes a sweep's tables as Markdown and CSV, its figures as SVG and PNG, and draft.md.

    A table's CSV holds numbers in SI units, its Markdown what a report shows.

    Args:
        directory: a sweep's directory with at least one record.
        folder: files of these names in it are replaced, others left alone.

    Returns:
        A sentence for each damaged record, whose run is in none of the files.

    Raises:
        params.ParamsError: where the directory holds no record.
        OSError: where the folder takes no files.
    """
    sweep = measured.load(directory)
    tables = sweep.tables
    data_files.write_tables(tables, folder)
    shown = "" if tables.ok.empty else _tables(tables, folder)
    drawn = [_figure(figure, folder) for figure in registry.figures(sweep)]
    head = f"# {safe(lead.title(sweep))}\n\n*{safe(sweep.question)}*"
    sentences = bullets([*caveats.sentences(tables), *lead.sentences(sweep)])
    draft = "\n\n".join(part for part in (head, sentences, shown, *drawn) if part)
    store.write_text(folder / "draft.md", draft + "\n")
    return tables.damaged


def _tables(tables: Tables, folder: Path) -> str:
    """Writes the tables; returns the one that opens a report."""
    margin = tables.options.equivalence_margin
    pairs: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = {
        "table": (summary.headline(tables), text_tables.headline_rows(tables)),
        "best_batch_size": (
            speedups.at_best_batch(tables.results, tables.superseded),
            text_tables.best_rows(tables),
        ),
        "accuracy": (accuracy.differences(tables, margin), text_tables.accuracy_rows(tables)),
    }
    for name, (numbers, text) in pairs.items():
        if not numbers.empty:
            store.write_csv(folder / f"{name}.csv", numbers)
            store.write_text(folder / f"{name}.md", text_tables.markdown(text))
    return text_tables.markdown(pairs["table"][1]).strip()


def _figure(figure: SweepFigure, folder: Path) -> str:
    """Writes a figure as PNG and SVG; returns it with its title and caption in Markdown."""
    drawn, caption = figure.draw()
    (folder / f"{figure.name}.png").write_bytes(output.png(drawn))
    store.write_text(folder / f"{figure.name}.svg", output.svg(drawn))
    return f"![{figure.alt}]({figure.name}.svg)\n\n*{figure.title}. {caption}*"
