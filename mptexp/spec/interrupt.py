"""Ctrl-C, remembered.

Python raises KeyboardInterrupt in whatever is running, which may be a library's callback: there it
is printed and lost, or taken for another error (nbclient: a Jupyter kernel that died).
"""

import signal
import threading
from typing import Any

_asked = threading.Event()


def listen() -> None:
    """From now on Ctrl-C, and what else ends a program, is a KeyboardInterrupt and remembered."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores one, a shell's & another
            signal.signal(number, _raise)


def _raise(*_: Any) -> None:
    _asked.set()
    raise KeyboardInterrupt


def asked() -> bool:
    """Whether the user has asked this process to end."""
    return _asked.is_set()


def check() -> None:
    """Between two steps of what takes long.

    Raises:
        KeyboardInterrupt: if the user has asked this process to end.
    """
    if asked():
        raise KeyboardInterrupt


def ignore() -> None:
    """From now on nothing interrupts: what follows is short, and says how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
