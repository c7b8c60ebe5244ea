"""The report of a sweep: data files, pages of the runs' notebooks, and the page that shows all."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path

from mptexp.errors import Stopped
from mptexp.execution import endings, jupyter_kernel
from mptexp.execution.scratch import scratch_folder
from mptexp.host import files
from mptexp.host.project import user_cache
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir, leads_out
from mptexp.report import measured_sweep
from mptexp.report.figures import all_figures, drawn_ahead
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.pages import checksums, data_files, first_screen_html, rendering
from mptexp.report.tables import text_tables

# Of a run's notebook: mptexp's own have a quarter; a page takes 30 times it.
MOST_BYTES = 20 * 2**20


def build(
    sweep: MeasuredSweep,
    notebook: Path,
    shared: Mapping[str, str] | None = None,
    up: tuple[str, str] | None = None,
    beside: Sequence[tuple[str, str]] = (),
) -> Path:
    """Writes the report of a sweep from its records: index.html and the files beside it.

    Args:
        notebook: the report notebook.
        shared: Open Graph's properties beside those of `first_screen_html.card`: addresses on a
            site.
        up: address and name of the page that lists this report.
        beside: the same of reports on the same network.
    """
    directory = sweep.directory
    checksums.remove(directory.root)
    jupyter_kernel.spare()
    with scratch_folder() as scratch, _drawing(sweep, scratch):
        data_files.write(sweep)
        for place in (directory, directory.diagnosis):
            _render_runs(place, directory.index)
        # Before the notebook's fork: what it computes, both have.
        card = first_screen_html.card(sweep) | dict(shared or {})
        executed = _executed(sweep, notebook, scratch)
        page = rendering.report_page(executed, first_screen_html.title(sweep), card, up, beside)
    store.write_text(directory.index, page)
    checksums.write(directory.root, data_files.WRITTEN)
    return directory.index


def _drawing(sweep: MeasuredSweep, folder: Path) -> AbstractContextManager[None]:
    """Draws the figures of the page beside what else is done within, where there may be a fork."""
    figures = partial(all_figures.figures, sweep)
    return drawn_ahead.drawing(figures, folder) if jupyter_kernel.can_fork() else nullcontext()


def _executed(sweep: MeasuredSweep, notebook: Path, scratch: Path) -> Path:
    """The notebook of a report, executed.

    Raises:
        Stopped: where it cannot be.
    """
    directory, executed = sweep.directory, scratch / "executed.ipynb"
    with measured_sweep.handed(sweep), drawn_ahead.into(scratch):
        kernel = jupyter_kernel.forked()
    with kernel or nullcontext():
        parameters = {"sweep_dir": str(directory.root.resolve())}
        # Not in the working folder: matplotlib alone takes settings from a file there.
        try:
            jupyter_kernel.execute(
                notebook, executed, parameters, scratch, scratch, kernel, save_cells=False
            )
        except OSError:
            raise
        except Exception as error:  # of the notebook, or its Jupyter kernel was killed
            why = endings.of_error(error)["error"]
            raise Stopped(f"{directory.root}: no report was made: {why}; try again") from None
    return executed


def _render_runs(place: SweepDir, index: Path) -> None:
    """Renders each run's executed notebook beside it, unless they are more than a table shows.

    Each takes a third of a second, so what was rendered here before is kept. A page of that name
    which was not, is removed: somebody else's may run scripts, and it would be linked.
    """
    notebooks = [p for p in sorted(place.runs.glob("*/notebook.ipynb")) if _is_bounded(p)]
    few = len(notebooks) <= text_tables.ROWS
    kept = {page for page in map(_page, notebooks) if _was_rendered_here(page)}
    for page in {*place.runs.glob("*/notebook.html")} - kept:
        if not page.is_dir() and not leads_out(page.with_name("record.json")):
            page.unlink()  # a link itself, not what it leads to
    for notebook in notebooks if few else ():
        if not leads_out(notebook) and _page(notebook) not in kept:
            _render_run(notebook, os.path.relpath(index, notebook.parent))


def _is_bounded(notebook: Path) -> bool:
    with suppress(OSError):
        return notebook.stat().st_size <= MOST_BYTES
    return False


def _page(notebook: Path) -> Path:
    return notebook.with_suffix(".html")


def _render_run(notebook: Path, report: str) -> None:
    try:
        text = rendering.run_page(notebook, f"Run {notebook.parent.name}", (report, "The report"))
    except Exception:  # whatever another's notebook holds, the report is made, without its page
        return
    store.write_text(_page(notebook), text)
    with suppress(OSError):  # without it, the page is rendered anew each time
        proof = _proof(_page(notebook))
        proof.parent.mkdir(parents=True, exist_ok=True)
        proof.touch()


def _was_rendered_here(page: Path) -> bool:
    try:
        return not page.is_symlink() and _proof(page).exists()
    except OSError:  # no page, no notebook, or neither may be read
        return False


def _proof(page: Path) -> Path:
    """An empty file of the user's cache, where only this user writes, named by the content.

    A time, or a digest within the page, could be somebody else's.
    """
    total = hashlib.sha256(_renderer())
    for path in (page, page.with_suffix(".ipynb")):
        total.update(hashlib.sha256(files.content(path)).digest())
    return user_cache() / "pages" / total.hexdigest()[:32]


@cache
def _renderer() -> bytes:
    """What pages are rendered by: another version renders them anew."""
    files = [Path(rendering.__file__), *sorted(rendering.TEMPLATES.rglob("*.*"))]
    return b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)
