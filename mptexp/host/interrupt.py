"""Ctrl-C, remembered; what is said of it is in `cli.common`, and what was kept in `errors`.

Python raises KeyboardInterrupt in whatever is running, which may be a library's callback: there it
is lost, or taken for another error (nbclient: a Jupyter kernel that died).
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AGAIN_S = 0.01
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_asked = threading.Event()


def listen() -> None:
    """From now on Ctrl-C, and what else ends a program, is a KeyboardInterrupt and remembered."""
    for number in SIGNALS:
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


@contextmanager
def held() -> Iterator[None]:
    """Within it Ctrl-C waits: around what ends the work, which a second one would break off.

    Where something ends by a first one it has its effect already, and the second is forgotten.

    Raises:
        KeyboardInterrupt: afterwards, if the user has asked for it within, and nothing ends.
    """
    if threading.current_thread() is not threading.main_thread():  # which no signal interrupts
        yield
        return
    ends, came = sys.exc_info()[0] is not None, threading.Event()

    def remember(*_: Any) -> None:
        came.set()
        if _raise in before.values():
            _asked.set()

    before = {n: h for n in SIGNALS if callable(h := signal.getsignal(n))}
    for number in before:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came.is_set() and not ends:
        raise KeyboardInterrupt


def ignore() -> None:
    """From now on nothing interrupts: what follows is short, and says how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    # Python would end itself by the signal, had it come while a string was executed, as where a
    # dataclass is made: it looks at how the last such string has ended.
    exec("")
