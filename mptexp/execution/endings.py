"""How a run ended: its status, from the notebook's error, an exit status and what was printed."""

import os
import signal
from collections.abc import Mapping, Sequence
from errno import EDQUOT, EMFILE, EMLINK, ENFILE, ENOBUFS, ENOSPC, EUSERS

OUT_OF_MEMORY = ("ResourceExhaustedError", "OutOfMemoryError", "MemoryError")
# Said by XLA; by TensorFlow on a GPU when a copy to the device finds no room; by PyTorch on a CPU;
# by C++ when nobody catches the exception.
NO_MEMORY = ("RESOURCE_EXHAUSTED", "Dst tensor is not initialized", "can't allocate memory")
NO_MEMORY += ("std::bad_alloc",)
# What TensorFlow calls a ResourceExhaustedError too, after the system's own word for it (Abseil's
# ErrnoToStatusCode): the disk, files and the like, of which nothing says that memory ran out.
NOT_MEMORY = tuple(map(os.strerror, (ENOSPC, EDQUOT, EMFILE, ENFILE, EMLINK, ENOBUFS, EUSERS)))
# oneDNN has no implementation of this type for this CPU: trying again will not help.
NO_PRIMITIVE = "could not create a primitive descriptor"
LAST_LINES = 10  # of a process that ended itself, in which it says why; its threads speak at once
# What follows of a fatal error: the stack of each of Python's threads.
AFTER_THE_LAST = "Fatal Python error:"
STACK = ("*** Check failure stack trace", "@ ")  # of C++, in between


def says_no_memory(text: str) -> bool:
    """Whether a framework says in these words that memory ran out, and not a disk."""
    return any(words in text for words in NO_MEMORY) and not _says_another(text)


def _says_another(text: str) -> bool:
    return any(words in text for words in NOT_MEMORY)


def of_error(error: Exception) -> dict[str, str]:
    """Returns the status of a run whose notebook ended in an error, and the error's first line."""
    name = getattr(error, "ename", type(error).__name__)
    text = str(getattr(error, "evalue", error)).strip()
    first = _telling_line(text)
    if name == "DeadKernelError":
        return _of_kernel(getattr(error, "exit_status", None))
    if says_no_memory(text) or (name in OUT_OF_MEMORY and not _says_another(text)):
        return {"status": "oom", "error": f"{name}: {first}"}
    if NO_PRIMITIVE in text:
        return {"status": "unsupported", "error": f"{name}: {first}"}
    if name == "Unsupported":
        return {"status": "unsupported", "error": first}
    return {"status": "failed", "error": f"{name}: {first}"}


def _of_kernel(exit_status: int | None) -> dict[str, str]:
    """How a Jupyter kernel that is gone ended: by a signal, which is named, or by leaving."""
    if exit_status is None:
        return {"status": "killed", "error": "the Jupyter kernel died"}
    if exit_status < 0:
        name = signal.Signals(-exit_status).name
        why = f"the Jupyter kernel was ended by {name}"
        return {"status": "killed", "error": why, "signal": name}
    left = f"left with exit status {exit_status} before its notebook had ended"
    return {"status": "failed", "error": f"the Jupyter kernel {left}"}


def _telling_line(text: str) -> str:
    """The first line of an error; TensorFlow's opens with a heading and where it was."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    where = ("Detected at node", "<stack traces", "[[{{node", "File ", "defined at")
    after = [line for line in lines[1:] if not line.startswith(where)]
    return after[0] if lines[0] == "Graph execution error:" and after else lines[0]


def of_process(
    written: Mapping[str, str] | None, exit_status: int, lines: Sequence[str]
) -> dict[str, str]:
    """Status and error of a run whose processes are gone.

    Args:
        written: what the worker wrote of its notebook's end; None where it wrote nothing.
        exit_status: the worker's, negative where a signal ended it.
        lines: the last that its processes printed.
    """
    ended = dict(written or _of_worker(exit_status, lines))
    # A framework may end its process itself. To one that others ended a printed line is no cause.
    aborted = ended.pop("signal", "") == signal.SIGABRT.name
    proof = [line for line in _last(lines) if says_no_memory(line)] if aborted else []
    return {"status": "oom", "error": proof[-1]} if proof else ended


def _of_worker(exit_status: int, lines: Sequence[str]) -> dict[str, str]:
    if exit_status < 0:
        name = signal.Signals(-exit_status).name
        return {"status": "killed", "error": f"the worker was ended by {name}", "signal": name}
    last = lines[-1] if lines else "the worker ended without a word"
    return {"status": "failed", "error": last}


def _last(lines: Sequence[str]) -> list[str]:
    """The last that a process said before it ended itself, without its threads' stacks."""
    fatal = [number for number, line in enumerate(lines) if line.startswith(AFTER_THE_LAST)]
    said = lines[: fatal[-1]] if fatal else lines
    return [line for line in said if not line.startswith(STACK)][-LAST_LINES:]
