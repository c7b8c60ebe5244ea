"""The process of one run: it executes the run's notebook and says how that ended.

Where the process is gone, or the system ended one for want of memory, `supervisor` says it.

`python -m mptexp.execution.worker FOLDER` reads FOLDER/task.json, executes the notebook into the
run's folder and writes FOLDER/outcome.json. It is a process of its own so that nothing a notebook
does can harm the sweep, and it ends, with its Jupyter kernel, when the sweep's process is gone.
"""

import errno
import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

from mptexp.execution import jupyter_kernel, processes

OUT_OF_MEMORY = ("ResourceExhaustedError", "OutOfMemoryError", "MemoryError")
# Said by XLA; by TensorFlow on a GPU when a copy to the device finds no room; by PyTorch on a CPU;
# by C++ when nobody catches the exception.
NO_MEMORY = ("RESOURCE_EXHAUSTED", "Dst tensor is not initialized", "can't allocate memory")
NO_MEMORY += ("std::bad_alloc",)
# What TensorFlow calls a ResourceExhaustedError too, after the system's own word for it (Abseil's
# ErrnoToStatusCode): the disk, files and the like, of which nothing says that memory ran out.
NOT_MEMORY = tuple(
    os.strerror(number)
    for number in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.EMLINK,
        errno.ENOBUFS,
        errno.EUSERS,
    )
)
# oneDNN has no implementation of this type for this CPU: trying again will not help.
NO_PRIMITIVE = "could not create a primitive descriptor"


def says_no_memory(text: str) -> bool:
    """Whether a framework says in these words that memory ran out, and not a disk."""
    return any(words in text for words in NO_MEMORY) and not _says_another(text)


def _says_another(text: str) -> bool:
    return any(words in text for words in NOT_MEMORY)


def outcome(error: Exception) -> dict[str, str]:
    """Returns the status of a run whose notebook ended in an error, and the error's first line."""
    name = getattr(error, "ename", type(error).__name__)
    text = str(getattr(error, "evalue", error)).strip()
    first = _telling_line(text)
    if name == "DeadKernelError":
        return _died(getattr(error, "exit_status", None))
    if says_no_memory(text) or (name in OUT_OF_MEMORY and not _says_another(text)):
        return {"status": "oom", "error": f"{name}: {first}"}
    if NO_PRIMITIVE in text:
        return {"status": "unsupported", "error": f"{name}: {first}"}
    if name == "Unsupported":
        return {"status": "unsupported", "error": first}
    return {"status": "failed", "error": f"{name}: {first}"}


def _died(exit_status: int | None) -> dict[str, str]:
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


def main() -> None:
    """Executes the task in the folder named on the command line; never raises for a notebook."""
    scratch = Path(sys.argv[1])
    folder = Path(os.environ[processes.MARK])
    threading.Thread(target=_end_with_the_sweep, args=(scratch, folder), daemon=True).start()
    task = json.loads((scratch / "task.json").read_text())
    try:
        output = folder / "notebook.ipynb"
        jupyter_kernel.execute(Path(task["notebook"]), output, task["parameters"], scratch)
        ended = {"status": "ok", "error": ""}
    except Exception as error:  # whatever a notebook does becomes a record
        ended = outcome(error)
    (scratch / "outcome.json").write_text(json.dumps(ended))


def _end_with_the_sweep(scratch: Path, folder: Path) -> None:
    """Waits until standard input closes, whose other end only the sweep's process holds.

    A sweep that was killed then leaves no Jupyter kernel behind that keeps a GPU.
    """
    os.read(0, 1)
    processes.end(folder, os.getpid())
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main()
