"""Reads exports of Nsight Systems (`nsys export --type sqlite`).

After NVIDIA's documentation, "Nsight Systems Export Database Schema": no real export was at hand.
Kernels and copies are tied to the calls that launched them by their correlation, as in PyTorch's
traces; what the host was doing stands in NVTX ranges: those of PyTorch's `emit_nvtx`
(`aten::conv2d, seq = 7`), of people (`step 3`).
"""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from mptexp.spec.errors import ParamsError
from mptexp.traces import kineto
from mptexp.traces.kineto import Event
from mptexp.traces.operations import Trace

KERNELS, COPIES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS, CALLS = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_RUNTIME"
COPY_KINDS = {1: "MemcpyHtoD", 2: "MemcpyDtoH", 8: "MemcpyDtoD", 10: "MemcpyPtoP"}
OF_PYTORCH = re.compile(r"^(?P<name>[\w:#.<>()~ ]+?), (?:seq|op_id) = (?P<number>\d+)")


def read(file: Path) -> Trace:
    """The table of operations of an export.

    Raises:
        ParamsError: where the database holds no kernels.
        sqlite3.Error: where it is none, or is damaged.
    """
    with closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as database:
        database.row_factory = sqlite3.Row
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
        if KERNELS not in tables:
            raise ParamsError(
                "it is a database without CUDA kernels; record with --trace=cuda,nvtx"
            )
        events: list[Event] = []
        for event in _events(database, tables):
            events.append(event)
            if len(events) > kineto.MOST_EVENTS:
                most = f"{kineto.MOST_EVENTS:,}"
                raise ParamsError(f"it holds more than {most} events; trace fewer steps")
        models = _models(database, tables)
    of_pytorch = any(event.name.startswith("aten::") for event in events)
    return kineto.of_events(events, models, "PyTorch" if of_pytorch else "")


def _events(database: sqlite3.Connection, tables: set[str]) -> Iterator[Event]:
    strings = dict(map(tuple, database.execute("SELECT id, value FROM StringIds")))
    for row in _rows(database, KERNELS, "demangledName", "shortName"):
        number = row["demangledName"] if row["demangledName"] is not None else row["shortName"]
        yield _event("kernel", str(strings.get(number, "")), row)
    if COPIES in tables:
        for row in _rows(database, COPIES, "copyKind"):
            yield _event("copy", COPY_KINDS.get(row["copyKind"], "Memcpy"), row)
    if FILLS in tables:
        for row in _rows(database, FILLS):
            yield _event("kernel", "Memset", row)
    if CALLS in tables:
        columns = "start, end, globalTid, correlationId, nameId"
        for row in database.execute(f"SELECT {columns} FROM {CALLS}"):
            # `cudaLaunchKernel_v7000`
            name = re.sub(r"_v\d+$", "", str(strings.get(row["nameId"], "")))
            args = {"correlation": row["correlationId"]}
            yield Event("launch", name, row["globalTid"], *_times(row), args)
    if "NVTX_EVENTS" in tables:
        columns = "start, end, globalTid, text, textId"
        for row in database.execute(f"SELECT {columns} FROM NVTX_EVENTS WHERE end IS NOT NULL"):
            text = row["text"] if row["text"] is not None else strings.get(row["textId"], "")
            yield _range(str(text or ""), row)


def _rows(database: sqlite3.Connection, table: str, *more: str) -> Iterator[sqlite3.Row]:
    columns = ", ".join(("start", "end", "deviceId", "correlationId", *more))
    yield from database.execute(f"SELECT {columns} FROM {table}")


def _event(kind: str, name: str, row: sqlite3.Row) -> Event:
    args = {"device": row["deviceId"], "correlation": row["correlationId"]}
    return Event(kind, name, None, *_times(row), args)


def _range(text: str, row: sqlite3.Row) -> Event:
    """A range of NVTX as an operation of the host."""
    args: dict[str, Any] = {}
    if match := OF_PYTORCH.match(text):
        text = match["name"]
        if ", seq = " in match[0]:
            args["sequence"] = int(match["number"])
    return Event("op", text, row["globalTid"], *_times(row), args)


def _times(row: sqlite3.Row) -> Sequence[float]:
    """Start and end in microseconds; the database has nanoseconds."""
    if not isinstance(row["start"], int) or not isinstance(row["end"], int):
        raise ParamsError("an event of it has a time that is no number")
    return row["start"] / 1e3, max(row["end"], row["start"]) / 1e3


def _models(database: sqlite3.Connection, tables: set[str]) -> dict[str, str]:
    """The names of the GPUs by number."""
    if "TARGET_INFO_GPU" not in tables:
        return {}
    rows = database.execute("SELECT id, name FROM TARGET_INFO_GPU")
    return {str(number): str(name) for number, name in rows}
