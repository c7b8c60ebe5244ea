"""A job: a sweep, the notebook that its runs execute and the directory of its results."""

from dataclasses import dataclass
from pathlib import Path

from mptexp.errors import ParamsError
from mptexp.host import files
from mptexp.host.project import notebooks
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.grid import Sweep


@dataclass(frozen=True)
class Job:
    """A sweep that is to be executed.

    Attributes:
        sweep: its runs.
        text: the params file as executed, with the overrides applied.
        notebook: the file of the notebook that each run executes.
        directory: where the results are written.
    """

    sweep: Sweep
    text: str
    notebook: Path
    directory: SweepDir


OF_RUNS = "train"  # the package's own notebook that executes a run


def notebook_path(name: str, params_file: Path) -> Path:
    """Finds the notebook that a params file names: the package's own, or a path beside the file.

    Raises:
        ParamsError: if there is no such notebook.
    """
    if name == OF_RUNS:
        return notebooks()[name]
    path = params_file.parent / name
    if name.endswith((".py", ".ipynb")) and files.is_file(path):
        return path.resolve()
    raise ParamsError(
        f"{params_file}: notebook is {name!r}; allowed: {OF_RUNS}, or "
        "the path of a .py or .ipynb notebook beside the params file"
    )


def report_notebook(given: Path | None) -> Path:
    """The notebook that makes a report: the package's own, unless the user names another.

    Raises:
        ParamsError: if there is no such notebook.
    """
    if given is None:
        return notebooks()["report"]
    if given.suffix not in (".py", ".ipynb") or not files.is_file(given):
        raise ParamsError(
            f"--notebook {given}: allowed: the path of a .py or .ipynb notebook that is there"
        )
    return given.resolve()
