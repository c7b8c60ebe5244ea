"""A job: a sweep, the notebook that its runs execute and the directory of its results."""

from dataclasses import dataclass
from pathlib import Path

from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.errors import ParamsError
from mptexp.spec.grid import Sweep
from mptexp.spec.project import PACKAGE, PROJECT


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


def notebook_path(name: str, params_file: Path) -> Path:
    """Finds the notebook that a params file names: a project's one, or a path beside the file.

    Raises:
        ParamsError: if there is no such notebook.
    """
    if name.endswith((".py", ".ipynb")):
        candidates = [params_file.parent / name]
    else:
        folders = (Path.cwd(), PROJECT, PACKAGE)
        candidates = [folder / "notebooks" / f"{name}.py" for folder in folders]
    for path in candidates:
        if path.is_file():
            return path.resolve()
    raise ParamsError(
        f"{params_file}: notebook is {name!r}; allowed: a name from notebooks/ such as train, "
        "or the path of a .py or .ipynb notebook beside the params file"
    )
