"""The machine since it started: a name, which leads to no machine, and a clock that nobody sets."""

import hashlib
import time
from pathlib import Path

from mptexp.host import files

DRAWN = Path("/proc/sys/kernel/random/boot_id")


def name() -> str:
    """Names the machine from its start to its end, and nothing else; empty where it has no name.

    The system draws it at random when it starts, and the digest of it leads to no machine.
    """
    drawn = "".join(files.lines(DRAWN)).strip()
    return hashlib.sha256(f"mptexp {drawn}".encode()).hexdigest()[:12] if drawn else ""


def since_s() -> float:
    """Seconds since the machine's start, by a clock that all its processes share.

    It goes on while the machine sleeps, where the system has such a clock.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
