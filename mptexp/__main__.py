"""The `mptexp` command; `python -m mptexp` is the same."""

import os
import signal
import sys


def main() -> None:
    """Imports the command line and runs it."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    from mptexp.cli import main as command

    command()


def _leave(*_: object) -> None:
    """Ctrl-C while modules are imported, before a command has begun: there is nothing to end."""
    os.write(2, b"stopped; the same command can be given again\n")
    os._exit(130)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, whose pandas.py nobody has asked for
    main()
