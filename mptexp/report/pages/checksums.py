"""The checksums of what a report wrote, by which files that were edited or removed are known.

`sha256sum --check` reads them too. They are no seal: whoever edits a file may write them anew.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mptexp.host import files
from mptexp.records import store
from mptexp.records.sweep_dir import SUMS

MOST_BYTES = 2**32  # of a file: epochs of very large sweeps
LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def write(root: Path, names: Iterable[str]) -> None:
    """Writes the checksums of those of the files in a folder that are there.

    Raises:
        OSError: if one cannot be read, or they cannot be written.
    """
    lines = [f"{_sum(root / name)}  {name}\n" for name in names if (root / name).is_file()]
    store.write_text(root / SUMS, "".join(lines))


def remove(root: Path) -> None:
    """Removes them: until a report is whole, its files are of two reports."""
    (root / SUMS).unlink(missing_ok=True)


def edited(root: Path, names: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Each of the files that is not as its report wrote it, and what became of it.

    Nothing of a report without checksums, such as one of an earlier version.
    """
    try:
        text = files.text(root / SUMS)
    except FileNotFoundError:
        return
    except OSError as error:
        yield root / SUMS, f"cannot be read: {error.strerror}"
        return
    lines = [LINE.fullmatch(line) for line in text.splitlines()]
    sums = {line[2]: line[1] for line in lines if line}
    for name in names:
        if name in sums and not (root / name).exists():
            yield root / name, "was removed after its report was made"
        elif name in sums and _sum_or_none(root / name) != sums[name]:
            yield root / name, "was edited after its report was made"


def _sum_or_none(path: Path) -> str | None:
    try:
        return _sum(path)
    except OSError:  # a folder in its place, or one that may not be read
        return None


def _sum(path: Path) -> str:
    """Of the content with the line ends that it was written with, whatever git made of them."""
    return hashlib.sha256(files.content(path, MOST_BYTES).replace(b"\r\n", b"\n")).hexdigest()
