"""Reads the events of a trace in JSON one by one, so that a large file needs little memory.

The format: Google, Trace Event Format. PyTorch's Kineto and the trace viewers of TensorFlow and JAX
write it, as an object with a list `traceEvents` among other things, or as that list alone.
"""

import codecs
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from mptexp.errors import ParamsError
from mptexp.traces.step_bounds import Interval

MOST_TEXT = 4 * 2**30  # bytes of unpacked JSON that are read; a minute on a slow machine
MOST_EVENT = 2**22  # characters of an event; the longest known, with a stack in it, has some KiB
MOST_HEAD = 2**24  # characters before the events
CHUNK = 2**20
_MARK, _ITEM = re.compile(r"\S"), re.compile(r"[^\s,]")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a character: JSON can hold one alone
_DECODER = json.JSONDecoder(strict=False)


def instants(event: Mapping[str, Any]) -> Interval:
    """Begin and end of an event in microseconds; a negative duration counts as none.

    Raises:
        ParamsError: where one of them is no number.
    """
    begin, took = _number(event.get("ts")), _number(event.get("dur"))
    return begin, begin + max(took, 0.0)


def ends_before_it_begins(event: Mapping[str, Any]) -> bool:
    """Whether the duration of an event is negative, as where a clock jumps."""
    return _number(event.get("dur")) < 0


def _number(value: Any) -> float:
    try:
        number = float(value or 0)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ParamsError(f"the time of an event is {str(value)[:40]!r}, no number")
    return number


def details(event: Mapping[str, Any]) -> dict[str, Any]:
    """What stands under `args`; empty where that is no object."""
    args = event.get("args")
    return args if isinstance(args, dict) else {}


class _Text:
    """The text of a file, of which only a window is in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._read, self.text, self.at, self.ended = file, 0, "", 0, False
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace")  # with a BOM or not

    def more(self) -> bool:
        """Reads on; what was dealt with is forgotten."""
        if self.ended:
            return False
        content = self._file.read(CHUNK)
        self.ended = not content
        self._read += len(content)
        if self._read > MOST_TEXT:
            raise ParamsError(f"larger than {MOST_TEXT >> 30} GiB when unpacked; trace fewer steps")
        self.text = self.text[self.at :] + self._decode.decode(content, self.ended)
        self.at = 0
        return not self.ended

    def peek(self, wanted: re.Pattern[str] = _MARK) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            if mark := wanted.search(self.text, self.at):
                self.at = mark.start()
                return mark[0]
            self.at = len(self.text)
            if not self.more():
                return ""

    def value(self, most: int = 0) -> Any:
        """The next JSON value, of at most so many characters; by default those of an event."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
                # A number may go on in what was not read yet.
                if end == len(self.text) and isinstance(value, int | float) and self.more():
                    continue
                halves, self.at = _HALF.search(self.text, self.at, end), end
                return _without_halves(value) if halves else value
            except RecursionError:
                raise ParamsError("it is nested too deeply to be a trace") from None
            except ValueError as error:
                if len(self.text) - self.at > (most or MOST_EVENT):
                    raise ParamsError("it is not JSON that a profiler writes") from error
                if not self.more():
                    raise ParamsError("it was cut off, or is no JSON") from error


def _without_halves(value: Any) -> Any:
    """A value whose texts can be written: of a character that is half a question mark."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "replace"))


def events(file: BinaryIO, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a trace in the order of the file.

    Args:
        file: of JSON, not compressed.
        about: gets what stands beside the events, such as `deviceProperties`, once all are read.

    Raises:
        ParamsError: where the text ends early, is no JSON, holds no events or is too large.
    """
    text = _Text(file)
    if text.peek() == "[":
        yield from _list(text)
        return
    if text.peek() != "{":
        raise ParamsError("it is no trace in JSON")
    text.at += 1
    known = False
    while text.peek() != "}":
        name = text.value()
        if text.peek() != ":":
            raise ParamsError("it was cut off, or is no JSON")
        text.at += 1
        if name == "traceEvents" and text.peek() == "[":
            known = True
            yield from _list(text)
        else:
            about[str(name)] = text.value(MOST_HEAD)
        if text.peek() == ",":
            text.at += 1
        elif text.peek() != "}":
            raise ParamsError("it was cut off, or is no JSON")
    if not known:
        raise ParamsError("it is JSON without traceEvents, so no trace")


def _list(text: _Text) -> Iterator[dict[str, Any]]:
    text.at += 1
    while (mark := text.peek(_ITEM)) != "]":
        if not mark:
            raise ParamsError("it was cut off in the middle of its events")
        event = text.value()
        if isinstance(event, dict):
            yield event
    text.at += 1
