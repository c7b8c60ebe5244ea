"""Datasets that are named by a path, and how they are named where a stranger may read it.

A record, a run's id and whatever is published hold the last part of the path alone: what lies above
it names a person or a project, and is another on each machine. Which images were meant is told by
the digest of their content, which stands in the record beside it.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from mptexp.errors import ParamsError
from mptexp.host.project import PROJECT
from mptexp.spec.names import PLACES


def path(dataset: str) -> str:
    """The path of a dataset `folder:PATH` or `idx:PATH` as it was given; empty for any other.

    Blanks at its ends are part of it: there may be a folder without them.
    """
    kind, _, place = dataset.partition(":")
    return place if kind in PLACES and place.strip() else ""


def full(dataset: str) -> str:
    """The same as an absolute path, on this machine; of ~ this user's alone is looked up."""
    place = path(dataset)
    own = place == "~" or place.startswith("~/")
    return os.path.abspath(os.path.expanduser(place) if own else place)


def absolute(dataset: str) -> str:
    """The dataset with its path as an absolute one: equal of all that name one place."""
    return f"{dataset.partition(':')[0]}:{full(dataset)}" if path(dataset) else dataset


def candidates(dataset: str) -> list[Path]:
    """Where a dataset's path may lead: from the working folder, else from the project; or none."""
    given = os.path.expanduser(path(dataset))  # Path's own raises for an unknown user
    return [Path.cwd() / given, PROJECT / given] if given else []


def published(dataset: str) -> str:
    """The dataset as records have it: of a path the last part, the same on every system."""
    if not path(dataset):
        return dataset
    last = os.path.basename(os.path.normpath(path(dataset)))
    if path(dataset).startswith(("/", "~")) and full(dataset) == os.path.expanduser("~"):
        last = "~"  # its last part names its owner
    elif last in ("", ".", ".."):
        last = os.path.basename(full(dataset)) or "/"
    return f"{dataset.partition(':')[0]}:{unicodedata.normalize('NFC', last)}"


def published_notebook(notebook: str) -> str:
    """A notebook's name as records have it: of an absolute path the last part.

    Which notebook was meant is told by the digest of its content.
    """
    return os.path.basename(notebook) if os.path.isabs(notebook) else notebook


# An absolute path of several parts in free text, on any system; not what follows a URL's host.
PART = r"""[^\s/\\'"`<>,;:()\[\]{}|#]+"""
ABSOLUTE = re.compile(
    rf"(?<![\w./~])(?:~[\w.-]*)?(?:/{PART})+/({PART})/?"
    rf"|(?<!\w)[A-Za-z]:(?:[\\/]{PART})+[\\/]({PART})"
)


def shortened(text: str) -> str:
    """A text in which of each absolute path the last part is left."""
    return ABSOLUTE.sub(lambda found: found[1] or found[2], text)


def everywhere(
    value: Any, change: Callable[[str], str] = published, kept: Collection[str] = ()
) -> Any:
    """Data in plain Python with each text changed; by default datasets are as records have them.

    What stands under a key that is to be `kept` stays as it is.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {k: v if k in kept else everywhere(v, change, kept) for k, v in value.items()}
    return [everywhere(v, change, kept) for v in value] if isinstance(value, list) else value


def known(datasets: Iterable[str]) -> dict[str, str]:
    """Where the datasets of a sweep lie, by the names that its records have for them.

    Raises:
        ParamsError: where two folders have one name, so that their runs would have one id.
    """
    found: dict[str, str] = {}
    for dataset in datasets:
        other = found.setdefault(published(dataset), dataset)
        if path(dataset) and full(other) != full(dataset):
            raise ParamsError(
                f"{other} and {dataset} have the same last part, by which their runs are named; "
                "rename one of the folders, or give a link to it that has another name"
            )
    return found
