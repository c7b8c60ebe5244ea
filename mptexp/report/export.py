"""What somebody who writes about a sweep needs: its tables and figures as files, and a draft."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from mptexp.analysis.sweep_tables import Tables
from mptexp.errors import ParamsError
from mptexp.host import files
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep
from mptexp.report.answers import caveats
from mptexp.report.figures import all_figures, output
from mptexp.report.figures.all_figures import SweepFigure
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.pages import data_files, first_screen_html
from mptexp.report.tables import number_tables, text_tables
from mptexp.report.text.markdown import bullets, safe

NOTED = "exported.json"  # what an export wrote into a folder: file -> SHA-256 of its content


def export(directory: SweepDir, folder: Path) -> list[str]:
    """Writes a sweep's tables as Markdown and CSV, its figures as SVG and PNG, and draft.md.

    A table's CSV holds numbers in SI units, its Markdown what a report shows.

    Args:
        directory: a sweep's directory with at least one record.
        folder: what an earlier export wrote there, and nobody edited, is replaced; other files are
            left alone.

    Returns:
        A sentence for each damaged record, whose run is in none of the files.

    Raises:
        ParamsError: where the directory holds no record, the folder lies among its runs, or has a
            file of such a name that was edited since, or is another's; nothing is written then.
        OSError: where the folder takes no files.
    """
    sweep = measured_sweep.load(directory)
    runs, target = (Path(os.path.realpath(place)) for place in (directory.runs, folder))
    if target.is_relative_to(runs):
        raise ParamsError(f"--to {folder}: lies among the sweep's runs; allowed: another folder")
    with tempfile.TemporaryDirectory(prefix="mptexp") as made:
        _write(sweep, Path(made))
        _move(Path(made), folder)
    return sweep.tables.damaged


def _write(sweep: MeasuredSweep, folder: Path) -> None:
    tables = sweep.tables
    data_files.write_tables(tables, folder)
    shown = "" if tables.ok.empty else _tables(tables, folder)
    drawn = [_figure(figure, folder) for figure in all_figures.figures(sweep)]
    head = f"# {safe(first_screen_html.title(sweep))}\n\n*{safe(sweep.question)}*"
    findings = first_screen_html.findings(sweep)
    warnings = [*caveats.sentences(tables, findings), *caveats.incomplete(tables)]
    sentences = bullets([*warnings, *first_screen_html.alone(sweep)])
    draft = "\n\n".join(part for part in (head, sentences, shown, *drawn) if part)
    store.write_text(folder / "draft.md", draft + "\n")


# --- into a folder of the user's ----------------------------------------------------------------


def _move(made: Path, folder: Path) -> None:
    """Moves files to a folder in which somebody may be at work on what was exported before."""
    noted = _noted(folder)
    names = sorted(path.name for path in made.iterdir())
    for name in names:
        if os.path.lexists(folder / name) and not _as_written(folder / name, noted):
            raise ParamsError(
                f"{folder / name}: was edited since it was exported, or is another's; move it "
                "away, or give another --to"
            )
    folder.mkdir(parents=True, exist_ok=True)
    new = {name: [_digest(made / name)] for name in names}
    # First with both digests: what was begun can be gone on with.
    _note(folder, noted | {name: [*noted.get(name, []), *own] for name, own in new.items()})
    for name in noted.keys() - set(names):  # such as a figure that is no longer drawn
        if _as_written(folder / name, noted):
            (folder / name).unlink()
    for name in names:
        _copy(made / name, folder / name)
    _note(folder, new)


def _copy(source: Path, target: Path) -> None:
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, beside)
        beside.replace(target)  # a link itself, not what it leads to
    finally:
        beside.unlink(missing_ok=True)


def _noted(folder: Path) -> dict[str, Sequence[str]]:
    """What earlier exports wrote into a folder; nothing where that cannot be read."""
    try:
        content = json.loads(files.text(folder / NOTED))
    except (OSError, ValueError):
        return {}
    known = content.items() if isinstance(content, dict) else ()
    return {n: v for n, v in known if Path(n).name == n and isinstance(v, list)}


def _note(folder: Path, written: dict[str, Sequence[str]]) -> None:
    store.write_text(folder / NOTED, json.dumps(written, indent=1, sort_keys=True) + "\n")


def _as_written(file: Path, noted: dict[str, Sequence[str]]) -> bool:
    try:
        return _digest(file) in noted.get(file.name, ())
    except OSError:  # a folder, or no file at all
        return False


def _digest(file: Path) -> str:
    return hashlib.sha256(files.content(file)).hexdigest()


# --- tables and figures ---------------------------------------------------------------------------


def _tables(tables: Tables, folder: Path) -> str:
    """Writes the tables; returns the one that opens a report."""
    pairs: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = {
        "table": (number_tables.headline(tables), text_tables.headline_rows(tables)),
        "best_batch_size": (number_tables.best_batch_sizes(tables), text_tables.best_rows(tables)),
        "accuracy": (number_tables.accuracies(tables), text_tables.accuracy_rows(tables)),
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
    store.write_text(folder / f"{figure.name}.svg", output.svg(drawn, themed=False))
    return f"![{figure.alt}]({figure.name}.svg)\n\n*{figure.title}. {caption}*"
