"""Reading files that may come from anybody: plain ones only, and of a bearable size."""

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 64 * 2**20  # of a file that is read whole; the largest record so far has 0.2 MiB


def content(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """What a plain file holds.

    Opening a FIFO would wait for somebody to write, and a device such as /dev/zero has no end.

    Raises:
        OSError: where it cannot be read, is no plain file or is larger than `most`; its `strerror`
            says which.
    """
    try:
        file = open(path, "rb", opener=_at_once)  # noqa: SIM115  closed below
    except ValueError as error:  # a name with a null character
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    with file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "Is not a plain file", str(path))
        data = file.read(min(state.st_size, most) + 1)  # room for `most` takes time to be made
        if len(data) > state.st_size:  # it has grown, or lies in /proc, where sizes are 0
            data += file.read(most + 1 - len(data))
    if len(data) > most:
        size = f"{most / 2**20:g} MiB"
        raise OSError(errno.EFBIG, f"Is larger than {size}, the most that is read", str(path))
    return data


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def text(path: Path, most: int = MOST_BYTES) -> str:
    """The text of a plain file in UTF-8, without the mark that some editors put before it.

    Raises:
        OSError: as `content`, and where it is not UTF-8.
    """
    try:
        return content(path, most).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "Is not UTF-8 text", str(path)) from None


def lines(path: Path) -> list[str]:
    """The lines of a file of the system's, such as one in /proc; none where it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def is_file(path: Path) -> bool:
    """Whether there is a plain file; false where the name is too long or may not be looked at."""
    try:
        return path.is_file()
    except OSError:
        return False


def real(path: Path) -> Path:
    """The path without links; of a loop of links the path as it is, where Path.resolve raises."""
    return Path(os.path.realpath(path))
