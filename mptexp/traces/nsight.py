"""Reads exports of Nsight Systems (`nsys export --type sqlite`).

The tables and columns are those that Nsight Systems 2022.4 and 2023.4 write, read from exports made
with both (schema 3.7.2 and the one before it), and of CUDA graphs those that NVIDIA documents. Each
table but that of the kernels may be missing, as may a column that only some versions have.

Kernels and copies are tied to the calls that launched them by process and correlation, as in
PyTorch's traces; what the host was doing stands in NVTX ranges: those of PyTorch's `emit_nvtx`
(`aten::conv2d, seq = 7`), of people (`step 3`).
"""

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from mptexp.errors import ParamsError
from mptexp.traces import launches, operations
from mptexp.traces.launching_layers import GRAPH, PAGES, Event
from mptexp.traces.operations import Trace

KERNELS, COPIES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS, CALLS = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPHS, RANGES = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "NVTX_EVENTS"
GPUS, NUMBERED = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"
SM = ("smMajor", "smMinor")
PID = 0xFFFFFF  # of what `_process` gives, whose bits before are of the machine
# ENUM_CUDA_MEMCPY_OPER; of unified memory from 11.
COPY_KINDS = {1: "MemcpyHtoD", 2: "MemcpyDtoH", 8: "MemcpyDtoD", 9: "MemcpyHtoH", 10: "MemcpyPtoP"}
COPY_KINDS |= {11: PAGES, 12: "MemcpyDtoH", 13: "MemcpyDtoD"}
OF_PYTORCH = re.compile(r"^(?P<name>[\w:#.<>()~ ]+?), (?:seq|op_id) = (?P<number>\d+)")
VERSION = re.compile(r"(_pt[sd][sz])?_v\d+$")  # cudaStreamSynchronize_ptsz_v7000


def read(file: Path) -> Trace:
    """The table of operations of an export: of the process whose kernels take longest.

    Raises:
        ParamsError: where the database holds no kernels.
        sqlite3.Error: where it is none, or is damaged.
    """
    with closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as database:
        database.row_factory = sqlite3.Row
        database.text_factory = lambda text: text.decode(errors="replace")  # of people's ranges
        pages = [
            database.execute(f"PRAGMA {of}").fetchone()[0] for of in ("page_count", "page_size")
        ]
        if file.stat().st_size < pages[0] * pages[1]:
            raise ParamsError("it was cut off")
        # A view may compute without end.
        known = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {row[0] for row in known}
        process, share = _busiest(database, tables)
        events = launches.held(_events(database, tables, process))
        gpus = _gpus(database, tables, process)
    of_pytorch = any(event.name.startswith("aten::") for event in events)
    models = {number: str(gpu["name"] or "") for number, gpu in gpus.items()}
    trace = launches.of_events(events, models, "PyTorch" if of_pytorch else "")
    trace = replace(trace, recorded=operations.capability(gpus, trace.gpu))
    if share == 1:
        return trace
    note = f"of several processes that with most kernel time is explained, {share:.0%} of all"
    return replace(trace, notes=(*trace.notes, note))


def _busiest(database: sqlite3.Connection, tables: set[str]) -> tuple[int | None, float]:
    """The process whose kernels take longest, and its share of all kernel time."""
    took: Counter[int | None] = Counter()
    for table in (KERNELS, GRAPHS):
        for row in _rows(database, tables, table, "globalPid"):
            if isinstance(row["start"], int) and isinstance(row["end"], int):
                took[_process(row["globalPid"])] += max(row["end"] - row["start"], 1)
    if not took:
        raise ParamsError("it is a database without CUDA kernels; record with --trace=cuda,nvtx")
    ((process, longest),) = took.most_common(1)
    return process, longest / took.total()


def _events(database: sqlite3.Connection, tables: set[str], process: int | None) -> Iterator[Event]:
    """What ran and was launched in a process; ranges that did not end are left out."""
    strings: dict[Any, Any] = {}
    if "StringIds" in tables:
        strings = dict(map(tuple, database.execute("SELECT id, value FROM StringIds")))

    def text(*numbers: Any) -> str:
        return next((str(strings[n]) for n in numbers if n in strings), "")

    def rows(table: str, *columns: str) -> Iterator[sqlite3.Row]:
        of = "globalTid" if "globalTid" in columns else "globalPid"
        for row in _rows(database, tables, table, of, *columns):
            ended = isinstance(row["start"], int) and isinstance(row["end"], int)
            if ended and (row[of] is None or _process(row[of]) == process):
                yield row

    on_device = ("deviceId", "correlationId", "streamId")
    for row in rows(KERNELS, *on_device, "demangledName", "shortName"):
        yield _event("kernel", text(row["demangledName"], row["shortName"]), row)
    for row in rows(GRAPHS, *on_device):
        yield _event("kernel", GRAPH, row)
    for row in rows(COPIES, *on_device, "copyKind"):
        yield _event("copy", COPY_KINDS.get(row["copyKind"], "Memcpy"), row)
    for row in rows(FILLS, *on_device):
        yield _event("kernel", "Memset", row)
    for row in rows(CALLS, "globalTid", "correlationId", "nameId"):
        args = {"correlation": row["correlationId"]}
        name = VERSION.sub("", text(row["nameId"]))
        yield Event("launch", name, row["globalTid"], *_times(row), args)
    for row in rows(RANGES, "globalTid", "text", "textId"):
        yield _range(str(row["text"] or text(row["textId"])), row)


def _rows(
    database: sqlite3.Connection, tables: set[str], table: str, *more: str
) -> Iterator[sqlite3.Row]:
    """The rows of a table, none where it is missing; NULL for a column that its version lacks."""
    if table in tables:
        columns = _columns(database, table, more)
        yield from database.execute(f"SELECT start, end, {columns} FROM {table}")


def _columns(database: sqlite3.Connection, table: str, names: Sequence[str]) -> str:
    """Columns to select, NULL for those that a table lacks."""
    has = {row["name"] for row in database.execute(f"PRAGMA table_info({table})")}
    return ", ".join(n if n in has else f"NULL AS {n}" for n in dict.fromkeys(names))


def _process(identifier: int | None) -> int | None:
    """The process of a `globalPid` or `globalTid`, whose last 24 bits are the thread."""
    return None if identifier is None else int(identifier) >> 24


def _event(kind: str, name: str, row: sqlite3.Row) -> Event:
    args = {"device": row["deviceId"], "correlation": row["correlationId"]}
    return Event(kind, name, row["streamId"], *_times(row), args)


def _range(text: str, row: sqlite3.Row) -> Event:
    """A range of NVTX as an operation of the host; people's own are told from PyTorch's."""
    args: dict[str, Any] = {}
    match = OF_PYTORCH.match(text)
    text = match["name"] if match else text
    if match and ", seq = " in match[0]:
        args["sequence"] = int(match["number"])
    elif not text.startswith("aten::") and not (match and "::" in text):
        args["range"] = True
    return Event("op", text, row["globalTid"], *_times(row), args)


def _times(row: Mapping[str, Any] | sqlite3.Row) -> Sequence[float]:
    """Start and end in microseconds; the database has nanoseconds."""
    return row["start"] / 1e3, max(row["end"], row["start"]) / 1e3


def _gpus(
    database: sqlite3.Connection, tables: set[str], process: int | None
) -> dict[str, dict[str, Any]]:
    """What is known of the GPUs, by the numbers that they have in a process.

    CUDA numbers the fastest first, and only those that the process may see; Nsight numbers all.
    Without a table that says which is which, several different ones have no name.
    """
    if GPUS not in tables:
        return {}
    columns = _columns(database, GPUS, ["id", "name", "computeMajor", "computeMinor", *SM])
    known = {row["id"]: _gpu(row) for row in database.execute(f"SELECT {columns} FROM {GPUS}")}
    numbers = _numbers(database, tables, process)
    if numbers and known.keys() >= {*numbers.values()}:
        return {str(number): known[gpu] for number, gpu in numbers.items()}
    alike = len({gpu["name"] for gpu in known.values()}) == 1
    return {str(gpu): about for gpu, about in known.items()} if alike else {}


def _gpu(row: sqlite3.Row) -> dict[str, Any]:
    """A GPU with its compute capability, which some versions name by its multiprocessors."""
    about = dict(row)
    if about["computeMajor"] is None:
        about |= {"computeMajor": about[SM[0]], "computeMinor": about[SM[1]]}
    return about


def _numbers(database: sqlite3.Connection, tables: set[str], process: int | None) -> dict[Any, Any]:
    """Nsight's number of each GPU by CUDA's in a process; empty where that is not told."""
    if NUMBERED not in tables or process is None:
        return {}
    columns = _columns(database, NUMBERED, ["cudaId", "gpuId", "pid"])
    rows = database.execute(f"SELECT {columns} FROM {NUMBERED}")
    return {row["cudaId"]: row["gpuId"] for row in rows if row["pid"] == process & PID}
