"""Executes one notebook in one Jupyter kernel, by papermill."""

import gc
import hashlib
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptexp.host import imports

if TYPE_CHECKING:
    from mptexp.execution.fork_server import Kernel

# What nbformat's validator and papermill import where it happens to be installed (with JupyterLab,
# with xprof): a second each, for checks that notebooks do not need and storage that is not used.
UNUSED = ("rfc3987_syntax", "gcsfs", "pyarrow.fs")
# Of a notebook that names none: jupytext's header may be lacking in a script.
PYTHON = {"name": "python3", "display_name": "Python 3", "language": "python"}
# Of a process that has imported one, it is not known that it can be forked.
FRAMEWORKS = {"tensorflow", "jax", "torch", "ray"}


def digest(notebook: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that name the code of a notebook, its parameters' cell left out."""
    cells = [
        cell["source"]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and "parameters" not in cell["metadata"].get("tags", [])
    ]
    return hashlib.sha256("\0".join(cells).encode()).hexdigest()[:12]


def spare() -> None:
    """Leaves out of later imports what nothing here uses."""
    for name in UNUSED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def can_fork() -> bool:
    """Whether this process can be forked: on Linux, without other threads, without a framework."""
    alone = threading.active_count() == 1
    return sys.platform == "linux" and alone and not FRAMEWORKS & {*sys.modules}


def forked() -> "Kernel | None":
    """A Jupyter kernel forked from this process: it has what is imported and loaded here.

    None where forking is not safe, and where this process imports from its working directory, as no
    kernel does.
    """
    foreign = not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()])
    if foreign or not can_fork():
        return None
    spare()
    import ipykernel.ipkernel
    import ipykernel.kernelapp
    import ipykernel.zmqshell  # noqa: F401

    from mptexp.execution import fork_server

    if not can_fork():  # what was imported has started a thread
        return None
    gc.collect()
    gc.freeze()  # what is shared is looked through by no collection in the kernel
    try:
        return fork_server.Kernel()
    except OSError:
        return None
    finally:
        gc.unfreeze()


def execute(
    notebook: Path,
    output: Path,
    parameters: Mapping[str, Any],
    scratch: Path,
    folder: Path | None = None,
    kernel: "Kernel | None" = None,
    save_cells: bool = True,
) -> None:
    """Executes a notebook (py:percent or ipynb) and writes it as ipynb.

    Nothing is imported from the folder in which it is executed.

    Args:
        scratch: a folder with a short path (a socket's has 107 characters at most); the caller
            removes it.
        folder: in which it is executed; by default the current one.
        kernel: a forked one that executes it; by default one is started.
        save_cells: whether it is written after each cell, for who looks at it while it runs.

    Raises:
        papermill.PapermillExecutionError: if a notebook cell raised.
        nbclient.exceptions.DeadKernelError: if the Jupyter kernel died.
    """
    spare()
    with imports.without("jupyter_server"):  # a third of its time, to serve scripts
        import jupytext
    import papermill
    from traitlets.config import Config

    from mptexp.execution import papermill_engine

    if kernel:
        from mptexp.execution import fork_server

        fork_server.give(kernel)
    # papermill takes no script, and would copy a notebook given as an object into its metadata.
    source = scratch / f"{notebook.stem}.ipynb"
    content = jupytext.read(notebook)
    content.metadata.setdefault("kernelspec", PYTHON)
    jupytext.write(content, source)
    os.environ["MPTEXP_NOTEBOOK_DIGEST"] = digest(content)  # part of the record's identity
    # Sockets in a folder instead of TCP ports: no race for a port, nothing that listens; without a
    # path of their own they would lie in the working folder, shared by two Jupyter kernels. One
    # that has run its notebook is ended at once: a framework takes a second to leave.
    local = Config(
        {
            "KernelManager": {
                "transport": "ipc",
                "ip": str(scratch / "kernel"),
                "connection_file": str(scratch / "kernel.json"),  # else it stays in /tmp
            },
            "NotebookClient": {
                "shutdown_kernel": "immediate",
                "extra_arguments": [
                    # IPython before 9.7 does not heed PYTHONSAFEPATH.
                    "--InteractiveShellApp.ignore_cwd=True",
                    # What the kernel fails in itself, as for want of memory, would be a traceback
                    # on the terminal; that it failed is said by whoever waits for it.
                    "--IPKernelApp.log_level=CRITICAL",
                ],
            },
        }
    )
    os.environ["JUPYTER_RUNTIME_DIR"] = str(scratch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        papermill_engine.register()
        papermill.execute_notebook(
            source,
            output,
            dict(parameters),
            engine_name=papermill_engine.NAME,
            request_save_on_cell_execute=save_cells,
            progress_bar=False,
            config=local,
            cwd=folder,
        )
