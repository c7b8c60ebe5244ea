"""The command line: each command parses its words, calls `api` and prints what it returns.

Imports of what is heavy are inside the functions, so that help is immediate.
"""

import importlib
import sys

from mptexp.cli.common import app, err
from mptexp.spec import terminal
from mptexp.spec.errors import Stopped
from mptexp.spec.terminal import Stdout

for _part in ("sweeps", "results", "machine"):  # each registers its commands; the help's order
    importlib.import_module(f"{__name__}.{_part}")


def main() -> None:
    """Entry point of the `mptexp` command."""
    terminal.open_standard_streams()
    sys.stdout = Stdout(sys.stdout)
    try:
        app(prog_name="mptexp")
    finally:
        try:  # while it can be said, not when Python ends
            sys.stdout.flush()
        except Stopped as error:
            err().print(f"[bold red]error[/] {error}")
            sys.exit(1)
