"""Which other sweeps measure on the devices of this machine: each leaves a file that others see.

Two sweeps at once disturb one another though each may take less than the share of the processor
that sensors notice. A file for each sweep and device lies in this user's cache, locked while the
sweep measures; the system releases the lock of a process that is gone. Its time of modification is
that of the sweep's last run, so that a sweep also sees one that began and ended during a run.
"""

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from mptexp.host.project import user_cache
from mptexp.records.schema import AT_ONCE

OLD_S = 7 * 86400.0  # no run began so long ago


@contextmanager
def announced(devices: Iterable[str]) -> Iterator[frozenset[Path]]:
    """Lets other sweeps see that this one measures on some devices; without a cache, nothing.

    Args:
        devices: UUIDs of GPUs; empty for the CPU.

    Yields:
        The files of this sweep.
    """
    token, own = secrets.token_hex(6), set()
    with ExitStack() as held:
        for device in set(devices):
            with suppress(OSError):
                path = _folder() / f"{_key(device)}-{token}"
                path.parent.mkdir(parents=True, exist_ok=True)
                file = held.enter_context(path.open("wb"))
                fcntl.flock(file, fcntl.LOCK_EX)
                own.add(path)
        _remove_old()
        try:
            yield frozenset(own)
        finally:
            touch(own)


def touch(own: Iterable[Path]) -> None:
    """Says that this sweep measured until now."""
    for path in own:
        with suppress(OSError):
            os.utime(path)


def marks(
    devices: Iterable[str], since: float | None = None, own: Iterable[Path] = ()
) -> list[str]:
    """What a record says of other sweeps that measured on its devices; empty where none did.

    Args:
        devices: UUIDs of GPUs; empty for the CPU.
        since: seconds of `time.time()`; now by default.
        own: the files of this sweep.
    """
    since = time.time() if since is None else since
    paths = {path for device in devices for path in _folder().glob(f"{_key(device)}-*")}
    return [AT_ONCE] if any(_was_at_work(path, since) for path in paths - set(own)) else []


def _was_at_work(path: Path, since: float) -> bool:
    with suppress(OSError), path.open("rb") as file:
        if os.fstat(file.fileno()).st_mtime >= since:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _remove_old() -> None:
    for path in _folder().glob("*"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - OLD_S and not _was_at_work(path, time.time()):
                path.unlink()


def _folder() -> Path:
    return user_cache() / "measuring"


def _key(device: str) -> str:
    return hashlib.sha256(device.encode()).hexdigest()[:12]
