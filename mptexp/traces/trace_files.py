"""Tells what a file with a trace is by its content, and reads it.

A user's file may come from anywhere: whatever is in it, reading ends in a trace or in one sentence,
within bounded memory and time.
"""

import codecs
import gc
import gzip
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from mptexp.errors import ParamsError
from mptexp.host.project import install
from mptexp.traces import json_events, kineto, nsight, xplane
from mptexp.traces.operations import Trace

MOST_FOR_VIEWER = 10**6  # events, which TensorFlow and JAX write to a *.trace.json.gz at most
GZIP, SQLITE, BOM = b"\x1f\x8b", b"SQLite format 3\0", b"\xef\xbb\xbf"
# What people give in a trace's place, by how it begins or how its name ends.
OTHERS = {
    b"PK\x03\x04": "it is a ZIP archive; unpack it first",
    b"BZh": "it is packed with bzip2; unpack it first",
    b"\xfd7zXZ": "it is packed with xz; unpack it first",
    b"\x28\xb5\x2f\xfd": "it is packed with zstd; unpack it first",
    GZIP: "it is packed with gzip twice; unpack it first",
    codecs.BOM_UTF16_LE: "it is text in UTF-16; save it in UTF-8",
    codecs.BOM_UTF16_BE: "it is text in UTF-16; save it in UTF-8",
    b"version https://git-lfs": "it is a pointer of Git LFS; git lfs pull fetches the file",
}
REPORTS = {
    (".nsys-rep", ".qdrep"): "it is a report of Nsight Systems; "
    "nsys export --type sqlite makes of it what can be read",
    (".ncu-rep",): "it is a report of Nsight Compute, which holds no steps of a training",
}
ENDINGS = (".xplane.pb", ".xplane.pb.gz", ".json", ".json.gz", ".sqlite")
PERFETTO = ("perfetto_trace.json.gz", "perfetto_trace.json")  # beside JAX's own
MOST_FILES = 20_000  # of a directory that is searched
ALLOWED = (
    "a trace of TensorFlow or JAX (*.xplane.pb), of PyTorch (*.json), each also as .gz, an Nsight "
    "Systems export (*.sqlite), or a directory that holds one"
)


def read(path: Path) -> tuple[Path, Trace]:
    """The trace in a file, or the newest in a directory, and the file that holds it.

    Raises:
        ParamsError: where there is none, or it cannot be read; one sentence.
    """
    file, others = _newest(path) if path.is_dir() else (path, 0)
    try:
        with _uncollected():
            trace = _read(file)
    except ImportError:
        why = f"xprof, which reads {file.name}, is not installed: {install('profile')}"
        raise ParamsError(why) from None
    except MemoryError:
        raise ParamsError(
            f"{file}: it needs more memory than there is; trace fewer steps"
        ) from None
    except Exception as error:  # whatever is in the file; xprof fails in ways of its own
        raise ParamsError(f"{file}: cannot be read: {_sentence(error)}") from None
    if others:
        note = f"the newest of {others + 1} traces in {path}"
        trace = replace(trace, notes=(*trace.notes, note))
    return file, trace


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keeps the collector of reference cycles, of which events have none, from going over them.

    They are so many that it would take a third of the time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _sentence(error: Exception) -> str:
    text = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"


def _newest(folder: Path) -> tuple[Path, int]:
    """The newest trace below a directory, and how many others there are.

    A profiler of TensorFlow or JAX writes its trace in other forms too, beside it.
    """
    traces = []
    for place, _, names in os.walk(folder):
        traces += [Path(place, name) for name in names if name.endswith(ENDINGS)]
        if len(traces) > MOST_FILES:
            raise ParamsError(f"{folder}: holds more than {MOST_FILES:,} files; name one of them")
    planes = [file for file in traces if ".xplane.pb" in file.name]
    again = {
        Path(file.parent, name)
        for file in planes
        for name in (f"{file.name.partition('.xplane.pb')[0]}.trace.json.gz", *PERFETTO)
    }
    known = [file for file in traces if file not in again and _is_trace(file)]
    if not known:
        raise ParamsError(f"{folder}: holds no trace; allowed: {ALLOWED}")
    return max(known, key=lambda file: (file.stat().st_mtime, str(file))), len(known) - 1


def _is_trace(file: Path) -> bool:
    """Whether a file of a directory may be one: JSON of other programs is left aside.

    What is damaged may be one; that is said of it where it is the newest.
    """
    if not file.is_file():
        return False
    if ".json" not in file.name:
        return True
    try:
        with _opened(file) as content:
            return b"traceEvents" in content.read(json_events.MOST_HEAD)
    except (OSError, ParamsError):
        return True


def _read(file: Path) -> Trace:
    if not file.exists():
        raise ParamsError("there is no such file or directory")
    if not file.is_file():
        raise ParamsError(f"it is no file; allowed: {ALLOWED}")
    with _opened(file) as content:
        head = content.read(4096)
    if not head:
        raise ParamsError("it is empty")
    if head.startswith(SQLITE):
        return _sqlite(file)
    if head.removeprefix(BOM).lstrip()[:1] in (b"{", b"["):
        with _opened(file) as content:
            return _json(content)
    _refuse_other(file, head)
    with _plain(file) as plain:
        return xplane.explain(xplane.of_file(plain))


def _refuse_other(file: Path, head: bytes) -> None:
    """Refuses what is known to be no trace."""
    named = [why for endings, why in REPORTS.items() if file.name.endswith(endings)]
    if said := named or [why for begin, why in OTHERS.items() if head.startswith(begin)]:
        raise ParamsError(said[0])


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """The content of a file, unpacked."""
    with file.open("rb") as raw:
        packed = raw.read(2) == GZIP
        raw.seek(0)
        if not packed:
            yield raw
            return
        with gzip.open(raw) as content:
            try:
                yield content  # type: ignore[misc]
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ParamsError(f"it is damaged or was cut off: {error}") from error


def _sqlite(file: Path) -> Trace:
    try:
        with _plain(file) as plain:
            return nsight.read(plain)
    except sqlite3.Error as error:
        raise ParamsError(f"it is no export of Nsight Systems: {error}") from error


@contextmanager
def _plain(file: Path) -> Iterator[Path]:
    """A file that is not compressed, under a name that xprof takes."""
    with tempfile.TemporaryDirectory() as name, _opened(file) as content:
        plain, size = Path(name, "trace.xplane.pb"), 0
        with plain.open("wb") as target:
            while part := content.read(2**20):
                size += len(part)
                if size > xplane.MOST_BYTES:
                    limit = xplane.MOST_BYTES >> 20
                    raise ParamsError(f"larger than {limit} MiB when unpacked; trace fewer steps")
                target.write(part)
        yield plain


def _json(content: BinaryIO) -> Trace:
    """PyTorch's trace, or what TensorFlow and JAX write for a viewer; told by its events."""
    about: dict[str, Any] = {}
    events = json_events.events(content, about)
    first = list(islice(events, 10_000))
    if not first:
        raise ParamsError("it holds no events")
    rest = chain(first, events)
    if kineto.is_kineto(first, about):
        return kineto.read(rest, about)
    if any(_of_xla(event) for event in first):
        return xplane.explain(xplane.timed(_whole(rest)))
    raise ParamsError("it is JSON with events that neither PyTorch nor TensorFlow or JAX writes")


def _whole(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events of a file of TensorFlow's or JAX's, which hold the first million alone.

    Raises:
        ParamsError: where just as many are there.
    """
    timed = 0
    for event in events:
        timed += event.get("ph") == "X"
        yield event
    if timed == MOST_FOR_VIEWER:
        raise ParamsError(
            "it is cut off at a million events, as TensorFlow and JAX write it; take the "
            "*.xplane.pb beside it, or trace fewer steps"
        )


def _of_xla(event: Mapping[str, Any]) -> bool:
    name = str(json_events.details(event).get("name", ""))
    return event.get("name") == "process_name" and name.startswith(("/host:", "/device:"))
