"""Which other sweeps measure on the devices of this machine: each leaves a file that others see.

Two sweeps at once disturb one another though each may take less than the share of the processor
that sensors notice. While a run is at work, its sweep locks a file for each of its devices in this
user's cache; the system releases the lock of a process that is gone. The file holds when that run
began or ended, so that a sweep also sees a run that began and ended during one of its own.

Several machines may share the cache, and a clock may be set: so a file is one machine's, from its
start to its end, and its time is that of the clock since then.
"""

import fcntl
import hashlib
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from mptexp.host import boot
from mptexp.host.devices import DeviceError, nvidia_handles
from mptexp.host.project import user_cache
from mptexp.records.schema import AT_ONCE
from mptexp.spec.run import Run

OLD_S = 7 * 86400.0  # no run began so long ago
MOST_FILES = 1024  # of a sweep on one device: one for each run at work
TIME_BYTES = 32


def devices(run: Run, visible: str | None = None) -> list[str]:
    """The devices that a run takes: the UUIDs of GPUs; of the CPU, an empty one.

    Args:
        visible: CUDA_VISIBLE_DEVICES of its processes; None: as this process has it. The UUIDs of
            GPUs, or their numbers, as Ray gives them.
    """
    if run.gpu_model.endswith("(CPU)"):
        return [""]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if visible is None else visible
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if names and not all(name.isdigit() for name in names):
        return names
    return _uuids() or names or [""]


def _uuids() -> list[str]:
    """Those of the GPUs that this process sees, asked anew: Ray gives a process others later."""
    import pynvml

    try:
        return [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in nvidia_handles()]
    except (DeviceError, pynvml.NVMLError):
        return []


@contextmanager
def announced(devices: Iterable[str], sweep: str = "") -> Iterator[Callable[[], list[str]]]:
    """Lets other sweeps see that a run of this one is at work; without a cache, nothing.

    Args:
        devices: UUIDs of GPUs; an empty one for the CPU.
        sweep: names the call that the run is part of, whose other runs are no other sweep.

    Yields:
        What gives the notes for the run's record, at its end: see `marks`.
    """
    taken, sweep, since = set(devices), sweep or secrets.token_hex(6), boot.since_s()
    with ExitStack() as held:
        own = [file for device in taken if (file := _locked(device, sweep))]
        for file in own:
            held.enter_context(file)
            _note_time(file)
        _remove_old()
        before = marks(taken, sweep=sweep)  # one that is killed meanwhile leaves no time of its end
        try:
            yield lambda: before or marks(taken, since, sweep)
        finally:
            for file in own:
                _note_time(file)


def marks(devices: Iterable[str], since_s: float | None = None, sweep: str = "") -> list[str]:
    """What a record says of other sweeps that measured on its devices; empty where none did.

    Args:
        devices: UUIDs of GPUs; an empty one for the CPU.
        since_s: of `boot.since_s`; now by default.
        sweep: the one that asks, as it was announced.
    """
    since_s = boot.since_s() if since_s is None else since_s
    paths = [path for device in devices for path in _folder().glob(f"{_key(device)}-*")]
    others = [path for path in paths if not sweep or path.name.split("-")[1] != sweep]
    return [AT_ONCE] if any(_was_at_work(path, since_s) for path in others) else []


def _was_at_work(path: Path, since_s: float) -> bool:
    with suppress(OSError, ValueError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        # Nothing was at work later than now.
        return since_s <= float(file.read(TIME_BYTES)) <= boot.since_s()
    return False


def _locked(device: str, sweep: str) -> IO[bytes] | None:
    """A file for a run, locked until it is closed; None where the cache takes none.

    It is the first that no other run of the sweep holds: so a sweep leaves few files.
    """
    with suppress(OSError):
        _folder().mkdir(parents=True, exist_ok=True)
        for number in range(MOST_FILES):
            path = _folder() / f"{_key(device)}-{sweep}-{number}"
            path.touch()
            file = path.open("r+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except OSError as error:
                file.close()
                if not isinstance(error, BlockingIOError):
                    raise
    return None


def _note_time(file: IO[bytes]) -> None:
    """Says that a run of this sweep was at work now."""
    with suppress(OSError):
        os.pwrite(file.fileno(), f"{boot.since_s():.6f}".ljust(TIME_BYTES).encode(), 0)


def _remove_old() -> None:
    now_s = boot.since_s()
    for path in _folder().glob("*"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - OLD_S and not _was_at_work(path, now_s):
                path.unlink()


def _folder() -> Path:
    return user_cache() / "measuring"


def _key(device: str) -> str:
    """Names a device of this machine, until the machine is started again."""
    here = boot.name() or platform.node()
    return hashlib.sha256(f"{here} {device}".encode()).hexdigest()[:12]
