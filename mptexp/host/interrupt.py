"""Ctrl-C, remembered.

Python raises KeyboardInterrupt in whatever is running, which may be a library's callback: there it
is lost, or taken for another error (nbclient: a Jupyter kernel that died).
"""

import signal
import sys
import threading
from typing import Any

AGAIN_S = 0.01

_asked = threading.Event()


def listen() -> None:
    """From now on Ctrl-C, and what else ends a program, is a KeyboardInterrupt and remembered."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores one, a shell's & another
            signal.signal(number, _raise)
    signal.signal(signal.SIGALRM, _raise)
    if sys.unraisablehook is sys.__unraisablehook__:  # not a debugger's or a test's
        sys.unraisablehook = _again


def _raise(*_: Any) -> None:
    _asked.set()
    raise KeyboardInterrupt


def _again(lost: "sys.UnraisableHookArgs") -> None:
    """Raised in a destructor or a callback, it goes no further: it comes again, a moment later."""
    if lost.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(lost)


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
    signal.setitimer(signal.ITIMER_REAL, 0)
    # Python would end itself by the signal, had it come while a string was executed, as where a
    # dataclass is made: it looks at how the last such string has ended.
    exec("")
