"""Paths that are given in a notebook's cell or a script: where they lead, and what is no path."""

import errno
import os
from pathlib import Path
from typing import Any

from mptexp.errors import ParamsError
from mptexp.spec.strict_model import shown

WITHIN = ("runs", "0" * 12, ".record.json.0000000")  # the longest that a sweep's directory holds


def resolved(path: Any) -> Path:
    """Returns a path that begins in the working folder, or in the one above it; of ~ the home.

    The one in which there is such a path, else in which there is a folder for it. JupyterLab starts
    a Jupyter kernel in the folder of its notebook.

    Raises:
        ParamsError: where it is no path, or one that no file system takes.
    """
    wanted = Path(os.path.expanduser(_text(path)))
    for part in (wanted, Path(*wanted.parts[:1])):  # what is still to be made begins where it may
        if part.exists() or (Path("..") / part).exists():
            return wanted if part.exists() else Path("..") / wanted
    return wanted


def _text(path: Any) -> str:
    """A path as a text that the system can look up, whether or not there is such a file."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise ParamsError(f"a path is {shown(path)}; allowed: a text or a pathlib.Path")
    try:
        os.lstat(os.path.join("..", os.path.expanduser(text), *WITHIN))
    except ValueError as error:  # a null character, or half of one
        raise ParamsError(f"path {shown(text)}: {error}; allowed: a path without it") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ParamsError(
                f"path {shown(text)}: {error.strerror}; allowed: what the file system takes"
            ) from None
    return text
