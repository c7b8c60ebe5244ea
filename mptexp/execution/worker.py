"""The process of one run: it executes the run's notebook and says how that ended (`endings`).

`python -m mptexp.execution.worker FOLDER` reads FOLDER/task.json, executes the notebook into the
run's folder and writes FOLDER/outcome.json. It is a process of its own so that nothing a notebook
does can harm the sweep, and it ends, with its Jupyter kernel, when the sweep's process is gone.
"""

import json
import os
import shutil
import sys
import threading
from pathlib import Path

from mptexp.execution import endings, jupyter_kernel, processes


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
        ended = endings.of_error(error)
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
