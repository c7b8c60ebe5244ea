"""What the shell allows a program (`ulimit`), where it is less than a command may need."""

import resource

from mptexp.errors import ParamsError

NEEDED = (  # in the resource's unit; most commands manage with less, none is known to need more
    (resource.RLIMIT_NOFILE, "n", 1, 256, "open files"),
    (resource.RLIMIT_AS, "v", 2**20, 8 * 2**30, "MiB of memory"),
    (resource.RLIMIT_DATA, "d", 2**20, 8 * 2**30, "MiB of memory"),
    (resource.RLIMIT_FSIZE, "f", 2**10, 2**30, "KiB in a file"),
    (resource.RLIMIT_NPROC, "u", 1, 256, "processes"),
)
# Fewer files are used up before a Jupyter kernel has begun. One without memory may fail in a thread
# that nobody hears of, and who waits for its answer would wait for ever: with a report's 1.4 GiB of
# addresses none did.
LEAST = {resource.RLIMIT_NOFILE: 128, resource.RLIMIT_AS: 2 * 2**30, resource.RLIMIT_DATA: 2**30}


def widen() -> None:
    """Allows this program as many open files as it may allow itself: many shells say 256.

    Raises:
        ParamsError: where even those are too few, or memory is too little for a Jupyter kernel.
    """
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if most != resource.RLIM_INFINITY and most < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    if any(_is_less(kind, least) for kind, least in LEAST.items()):
        raise ParamsError(tight())


def tight() -> str:
    """Names what is allowed here and may not suffice; empty where nothing is limited so."""
    said = []
    for kind, letter, unit, needed, what in NEEDED:
        if _is_less(kind, needed):
            most = resource.getrlimit(kind)[0] // unit
            said.append(f"{most:,} {what} (ulimit -{letter}; {needed // unit:,} suffice)")
    return f"this shell allows {' and '.join(said)}" if said else ""


def _is_less(kind: int, than: int) -> bool:
    """Whether what is allowed of a resource is less than a number in its unit."""
    most = resource.getrlimit(kind)[0]
    return most != resource.RLIM_INFINITY and most < than
