"""The control groups that this process is in, in which Linux limits and counts what it takes."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mptexp.host import files


def own(controller: str, root: Path = Path("/")) -> list[Path]:
    """The folders that tell of a controller of this process's own group, of which one may exist.

    Args:
        controller: cpu or memory, as version 1 names its folder.
    """
    return [base / inside for base, inside in _places(controller, root)]


def with_those_above(controller: str, root: Path = Path("/")) -> list[Path]:
    """The same and the folders above, the innermost first: a limit of any of them holds.

    In a container the own one may have the name that the machine around it gives it, and not be
    seen: what is seen is then one of those above.
    """
    places = _places(controller, root)
    every = [base / part for base, inside in places for part in (inside, *inside.parents)]
    return [*dict.fromkeys([*every, *_bases("", root), *_bases(controller, root)])]


def _places(controller: str, root: Path) -> list[tuple[Path, PurePosixPath]]:
    """Where hierarchies are mounted that have a controller, and the process's place in each."""
    return [
        (base, PurePosixPath(path.lstrip("/")))
        for controllers, path in _groups(root)
        if controller in controllers.split(",") or not controllers
        for base in _bases(controllers and controller, root)
    ]


def _bases(controller: str, root: Path) -> list[Path]:
    """Where a controller of version 1 is mounted; of version 2, alone or beside version 1."""
    every = root / "sys/fs/cgroup"
    return [every / controller] if controller else [every, every / "unified"]


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """The controllers of each hierarchy, none of version 2, and the path of the process's group."""
    for line in files.lines(root / "proc/self/cgroup"):  # none where this is not Linux
        if line.count(":") >= 2:
            _, controllers, path = line.split(":", 2)
            yield controllers, path
