"""A folder for one execution, which is gone afterwards, however the process that made it ended."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "mptexp"
LOCK = "lock"  # in the folder: held as long as the process that made it lives
YOUNG_S = 60  # a folder so young may be about to be locked
LONGEST = 30  # characters of a place: a socket's path has 107 at most, macOS's own place takes 49
ROOM = 2**20  # bytes that an execution needs at least


class NoScratch(OSError):
    """The temporary folder takes no files; the message names it."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Makes a folder with a short path, and removes what killed processes left of theirs.

    Raises:
        NoScratch: where there is no room for files, or they may not be written.
    """
    try:
        place = tempfile.gettempdir()
    except OSError as error:  # no folder at all takes files
        raise _none(os.environ.get("TMPDIR", "/tmp"), error) from None
    if len(place) > LONGEST and Path("/tmp").is_dir():
        place = "/tmp"
    _remove_orphans(Path(place))
    try:
        made = tempfile.TemporaryDirectory(prefix=PREFIX, dir=place, ignore_cleanup_errors=True)
    except OSError as error:
        raise _none(place, error) from None
    with made as name, (Path(name) / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            lock.write(bytes(ROOM))
            lock.flush()
            lock.truncate(0)
        except OSError as error:
            with suppress(OSError):  # what is left in the buffer does not fit either
                lock.close()
            raise _none(place, error) from None
        yield Path(name)


def _none(place: str, error: OSError) -> NoScratch:
    why = f"the temporary folder {place} takes no files: {error.strerror}"
    return NoScratch(error.errno, f"{why}; make room, or name another with TMPDIR")


def _remove_orphans(place: Path) -> None:
    """Removes this user's folders whose process is gone: the system has released their lock."""
    for lock in place.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):  # another user's, or removed meanwhile
            stat = lock.parent.lstat()
            if stat.st_uid != os.getuid() or time.time() - stat.st_ctime < YOUNG_S:
                continue
            with lock.open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
