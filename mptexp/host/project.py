"""Where this package lies, what it ships, and what its child processes may import."""

import hashlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent
PROJECT = PACKAGE.parent
IS_CHECKOUT = (PROJECT / "pyproject.toml").is_file()


def notebooks() -> dict[str, Path]:
    """The package's own notebooks by name."""
    return {path.stem: path for path in sorted(_shipped("notebooks").glob("*.py"))}


def studies() -> dict[str, Path]:
    """The package's own params files by name."""
    return {path.stem: path for path in sorted(_shipped("params").glob("*.yaml"))}


def template(study: str) -> dict[str, str]:
    """The text of each file, by its name, that a folder needs for a study or for one's own."""
    folder = _shipped("params")
    own = [folder / "template/mine.yaml", folder / "template/my_model.py"]
    files = [folder / f"{study}.yaml"] if study else own
    return {path.name: path.read_text("utf-8") for path in (*files, folder / "schema.json")}


def _shipped(name: str) -> Path:
    """A folder of the package's own files: in the wheel, or in the checkout around it.

    Never that of the working directory, which may be a folder that somebody else has packed.
    """
    shipped = PACKAGE / name
    return PROJECT / name if IS_CHECKOUT and not shipped.is_dir() else shipped


def install(extra: str) -> str:
    """The command that installs an extra of mptexp beside it, wherever the user stands.

    It names the packages themselves: `mptexp[profile]` would ask an index for mptexp.
    """
    import importlib.metadata

    try:
        lines = importlib.metadata.requires("mptexp") or []
    except importlib.metadata.PackageNotFoundError:  # imported from a folder, without installing
        lines = []
    parts = [line.partition(";") for line in lines]
    named = [package.strip() for package, _, marker in parts if f"extra == '{extra}'" in marker]
    return here(f"pip install {shlex.join(named or [f'mptexp[{extra}]'])}")


def here(command: str) -> str:
    """A command that begins with `pip install`, for the environment that mptexp runs in."""
    import importlib.util

    python = shlex.quote(sys.executable)
    if shutil.which("pip") == str(Path(sys.executable).with_name("pip")):
        return command
    if importlib.util.find_spec("pip"):
        return command.replace("pip install", f"{python} -m pip install", 1)
    return command.replace("pip install", f"uv pip install --python {python}", 1)


def user_cache() -> Path:
    """Where this user's caches lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mptexp"


def keyed(folder: Path, key: Any) -> Path:
    """The file of a cache that holds what was found for a key: JSON's types, others as text."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    return folder / f"{digest[:16]}.json"


def child_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a child process that imports nothing from its working directory.

    Python and IPython put that directory on the import path, and so does an entry of PYTHONPATH
    that is empty or relative. A user's own model is found by `training.user_model`. Of a virtual
    environment that is activated beside this one IPython would put the packages before ours.
    """
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    places = [place for place in given if os.path.isabs(place)]
    places += [str(PROJECT)] if IS_CHECKOUT else []
    # ipykernel's launcher takes the first entry for the working directory where they are the same.
    path = os.pathsep.join([os.devnull, *places])
    kept = {name: value for name, value in environment.items() if name != "VIRTUAL_ENV"}
    return {**kept, "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
