"""The command line: each command parses its words, calls `api` and prints what it returns.

Imports of what is heavy are inside the functions, so that help is immediate.
"""

import gc
import importlib
import sys
from contextlib import suppress

from mptexp.cli.common import app, err
from mptexp.errors import Stopped
from mptexp.host import interrupt, terminal
from mptexp.host.terminal import Stdout

for _part in ("sweeps", "results", "machine"):  # each registers its commands; the help's order
    importlib.import_module(f"{__name__}.{_part}")


def main() -> None:
    """Entry point of the `mptexp` command."""
    terminal.open_standard_streams()
    sys.stdout = stdout = Stdout(sys.stdout)
    status: str | int | None = 0
    try:
        app(prog_name="mptexp")
    except Stopped:  # outside of a command, as by --version
        pass
    except SystemExit as ended:
        status = ended.code
    interrupt.ignore()
    told = stdout.lost if status else None  # by the command itself
    with suppress(Stopped):  # while it can be said, not when Python ends
        stdout.flush()
    if stdout.lost is not told:
        err().print(f"[bold red]error[/] {stdout.lost}")
        status = 1
    gc.freeze()  # else Python looks through all that is held here, as it ends
    sys.exit(status)
