"""Where this package lies, its notebooks, and what its child processes may import."""

import os
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
PROJECT = PACKAGE.parent
IS_CHECKOUT = (PROJECT / "pyproject.toml").is_file()


def notebooks() -> dict[str, Path]:
    """The package's own notebooks by name: those in the wheel, or in the checkout around it.

    Never those of the working directory, which may be a folder that somebody else has packed.
    """
    shipped = PACKAGE / "notebooks"
    folder = shipped if shipped.is_dir() else PROJECT / "notebooks"
    known = (shipped.is_dir() or IS_CHECKOUT) and folder.is_dir()
    return {path.stem: path for path in sorted(folder.glob("*.py"))} if known else {}


def user_cache() -> Path:
    """Where this user's caches lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mptexp"


def child_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a child process that imports nothing from its working directory.

    Python and IPython put that directory on the import path, and so does an entry of PYTHONPATH
    that is empty or relative. A user's own model is found by `training.user_model`.
    """
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    places = [place for place in given if os.path.isabs(place)]
    places += [str(PROJECT)] if IS_CHECKOUT else []
    # ipykernel's launcher takes the first entry for the working directory where they are the same.
    path = os.pathsep.join([os.devnull, *places])
    return {**environment, "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
