"""The report of a sweep: data files, pages of the runs' notebooks, and the page that shows all."""

import os
from collections.abc import Mapping
from pathlib import Path

from mptexp.execution import jupyter_kernel
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir, leads_out
from mptexp.report import answer, data_files, rendering, text_tables
from mptexp.report.measured import MeasuredSweep


def build(
    sweep: MeasuredSweep,
    notebook: Path,
    shared: Mapping[str, str] | None = None,
    up: tuple[str, str] | None = None,
) -> Path:
    """Writes the report of a sweep from its records: index.html and the files beside it.

    Args:
        sweep: what `measured.load` gives of its directory.
        notebook: the report notebook.
        shared: Open Graph's properties beside those of `answer.card`: addresses on a site.
        up: address and name of the page that lists this report.
    """
    directory = sweep.directory
    data_files.write(sweep)
    for place in (directory, directory.diagnosis):
        _render_runs(place, directory.index)
    with jupyter_kernel.scratch_folder() as scratch:
        executed = scratch / "executed.ipynb"
        parameters = {"sweep_dir": str(directory.root.resolve())}
        # Not in the working folder: matplotlib alone takes settings from a file there.
        jupyter_kernel.execute(notebook, executed, parameters, scratch, folder=scratch)
        card = answer.card(sweep) | dict(shared or {})
        page = rendering.report_page(executed, answer.title(sweep), card, up)
    store.write_text(directory.index, page)
    return directory.index


def _render_runs(place: SweepDir, index: Path) -> None:
    """Renders each run's executed notebook beside it, unless they are more than a table shows.

    Each takes a third of a second; a page that is newer than its notebook is kept.
    """
    notebooks = sorted(place.runs.glob("*/notebook.ipynb"))
    for notebook in notebooks if len(notebooks) <= text_tables.ROWS else ():
        page = notebook.with_suffix(".html")
        if leads_out(notebook) or page.is_symlink():
            continue
        if not page.exists() or page.stat().st_mtime < notebook.stat().st_mtime:
            _render_run(notebook, page, os.path.relpath(index, notebook.parent))


def _render_run(notebook: Path, page: Path, report: str) -> None:
    try:
        text = rendering.run_page(notebook, f"Run {notebook.parent.name}", (report, "The report"))
    except Exception:  # whatever another's notebook holds, the report is made, without its page
        return
    store.write_text(page, text)
