"""One notebook in one Jupyter kernel, by papermill.

`python -m mptexp.execution.kernel FOLDER` is a run's worker: it reads FOLDER/task.json, executes
into the run's folder and says in FOLDER/outcome.json how it ended. It is a process of its own so
that nothing a notebook does can harm the sweep, and it ends, with its kernel, when the sweep is
gone.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mptexp.execution import processes

OUT_OF_MEMORY = ("ResourceExhaustedError", "OutOfMemoryError", "MemoryError")
# Of XLA, of TensorFlow on a GPU where a copy to the device finds no room, of PyTorch on a CPU, of
# C++ where nobody catches it.
NO_MEMORY = ("RESOURCE_EXHAUSTED", "Dst tensor is not initialized", "can't allocate memory")
NO_MEMORY += ("std::bad_alloc",)
# What nbformat's validator and papermill import where it happens to be installed (with JupyterLab,
# with xprof): a second each, for checks that notebooks do not need and storage that is not used.
UNUSED = ("rfc3987_syntax", "gcsfs", "pyarrow.fs")
NAMED = {"Unsupported": "unsupported"}
# oneDNN's way to say that it has no kernel of this type for this CPU: trying again will not help.
NO_KERNEL = "could not create a primitive descriptor"


def execute(notebook: Path, output: Path, parameters: Mapping[str, Any], scratch: Path) -> None:
    """Executes a notebook (py:percent or ipynb) in the current folder and writes it as ipynb.

    Args:
        scratch: a folder with a short path (a socket's has 107 characters at most); the caller
            removes it.

    Raises:
        papermill.PapermillExecutionError: where a notebook cell raised.
        nbclient.exceptions.DeadKernelError: where the kernel died.
    """
    for name in UNUSED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    import jupytext
    import papermill
    from traitlets.config import Config

    from mptexp.execution import engine

    # papermill takes no script, and would copy a notebook given as an object into its metadata.
    source = scratch / f"{notebook.stem}.ipynb"
    jupytext.write(jupytext.read(notebook), source)
    # Sockets in a folder instead of TCP ports: no race for a port, nothing to listen to; without a
    # path of their own they would lie in the working folder, and two kernels would share them. A
    # kernel that has run its notebook is ended at once: a framework takes a second to leave.
    local = Config(
        {
            "KernelManager": {"transport": "ipc", "ip": str(scratch / "kernel")},
            "NotebookClient": {"shutdown_kernel": "immediate"},
        }
    )
    os.environ["JUPYTER_RUNTIME_DIR"] = str(scratch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine.register()
        papermill.execute_notebook(
            source,
            output,
            dict(parameters),
            engine_name=engine.NAME,
            progress_bar=False,
            config=local,
        )


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for one execution, removed afterwards; its path is short on macOS too."""
    short = "/tmp" if Path("/tmp").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="mptexp", dir=short) as folder:
        yield Path(folder)


def outcome(error: Exception) -> dict[str, str]:
    """Status and first line of the error that ended a notebook."""
    name = getattr(error, "ename", type(error).__name__)
    text = str(getattr(error, "evalue", error)).strip()
    first = _telling_line(text)
    if name == "DeadKernelError":
        return _died(getattr(error, "exit_status", None))
    if name in OUT_OF_MEMORY or any(words in text for words in NO_MEMORY):
        return {"status": "oom", "error": f"{name}: {first}"}
    if NO_KERNEL in text:
        return {"status": "unsupported", "error": f"{name}: {first}"}
    if name in NAMED:
        return {"status": NAMED[name], "error": first}
    return {"status": "failed", "error": f"{name}: {first}"}


def _died(exit_status: int | None) -> dict[str, str]:
    """How a kernel that is gone ended: by a signal, or by leaving."""
    if exit_status is None:
        return {"status": "killed", "error": "the kernel died"}
    if exit_status < 0:
        name = signal.Signals(-exit_status).name
        return {"status": "killed", "error": f"the kernel was ended by {name}"}
    left = f"the kernel left with exit status {exit_status} before its notebook had ended"
    return {"status": "failed", "error": left}


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
        execute(Path(task["notebook"]), output, task["parameters"], scratch)
        ended = {"status": "ok", "error": ""}
    except Exception as error:  # whatever a notebook does becomes a record
        ended = outcome(error)
    (scratch / "outcome.json").write_text(json.dumps(ended))


def _end_with_the_sweep(scratch: Path, folder: Path) -> None:
    """Waits until standard input closes, whose other end only the sweep's process holds.

    A sweep that was killed leaves no kernel behind that keeps a GPU.
    """
    os.read(0, 1)
    processes.end(folder, os.getpid())
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main()
