"""A name for the machine that measures, which leads to no machine."""

import hashlib
from pathlib import Path

DRAWN = Path("/proc/sys/kernel/random/boot_id")


def boot() -> str:
    """Names the machine from its start to its end, and nothing else; empty where it has no name.

    The system draws it at random when it starts, and the digest of it leads to no machine.
    """
    try:
        drawn = DRAWN.read_text().strip()
    except OSError:
        return ""
    return hashlib.sha256(f"mptexp {drawn}".encode()).hexdigest()[:12] if drawn else ""
