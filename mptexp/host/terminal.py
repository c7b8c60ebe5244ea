"""Text of others for a terminal: markup and control characters are shown, not obeyed."""

import os
import re
import sys
from typing import Any, TextIO

from mptexp.errors import Stopped

MARKDOWN = re.compile(r"\*\*|\\([\\`*_\[\]~$|!#:=+.)-])")  # as wording.verbatim writes it
HALF = re.compile("[\ud800-\udfff]")  # as Python reads a byte of a name that is not UTF-8


def visible(text: str) -> str:
    """Text with its unprintable characters written as escapes, such as \\x1b.

    They would move a terminal's cursor, change its title or the direction of writing, or cannot be
    written to a file in UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == NARROW else c.encode("unicode_escape").decode() for c in text
    )


def without_markdown(sentence: str) -> str:
    """A sentence of a report as plain text: `mixed_float16` of `**mixed\\_float16**`.

    What `report.text.markdown` escapes is what it was: `<stream end>`.
    """
    from html import unescape

    return unescape(MARKDOWN.sub(lambda found: found[1] or "", sentence))


NARROW = "\u00a0"  # the space between a number and its unit


def plain(text: str) -> str:
    """Text for rich to print as it is."""
    from rich.markup import escape  # a fifth of the time of --help, which prints no such text

    return escape(visible(text))


def open_standard_streams() -> None:
    """Leads each standard stream that is closed to nowhere; what one cannot encode is escaped.

    The number of a closed one would be that of the next file opened, into which child processes
    would then write. A terminal that is not UTF-8 has no × and no minus sign.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")
    if hasattr(sys.stdout, "reconfigure"):  # not of what takes its place in a test
        sys.stdout.reconfigure(errors="backslashreplace")


class Stdout:
    """Standard output whose reader may go away (`| head`) and whose disk may be full.

    It says so as Stopped, which no OSError of a sweep's own files can be mistaken for. What comes
    later goes nowhere.

    Attributes:
        lost: what was raised then; whoever tries out what a stream takes may have caught it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: Stopped | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return int(self._try(self._stream.write, text))

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Any, *words: Any) -> Any:
        try:
            return act(*words)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self.lost = Stopped(f"standard output takes no more: {error.strerror}")
            raise self.lost from None
