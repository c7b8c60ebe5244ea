"""Reads the traces of TensorFlow's and JAX's profilers (`*.xplane.pb`).

The events come through xprof, as the JSON of its trace viewer. A machine without xprof keeps the
trace beside the record (`FILE`), and another one reads it.
"""

import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mptexp.spec import imports
from mptexp.traces import operations
from mptexp.traces.operations import ON_HOST, Operation, Span, Trace
from mptexp.traces.xla_names import Naming, full_name

FILE = "trace.xplane.pb.gz"  # beside the record of a run whose trace was not read there
MOST_BYTES = 2**30  # of a trace that is unpacked; a second of GPU kernels has some megabytes
MOST_EVENTS = 20_000_000  # that xprof is asked for
MARK = "train"  # the name of the step markers
INPUT = "mptexp input"  # the annotation around the wait for a batch, where the framework has none

# Operations that only hold others: their time is that of what is in them.
CONTAINERS = {"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase"}
CONTAINERS |= {"PartitionedCall", "StatefulPartitionedCall", "_Send", "_Recv", "NoOp"}
INPUT_EVENTS = (INPUT, "IteratorGetNext", "Iterator::Root")
IDLE_EVENTS = ("Await", "BlockHostUntilDone", "SynchronizeAllActivity", "cuStreamSynchronize")
IDLE_EVENTS += ("np.asarray(jax.Array)",)
LEAST_FALLBACK_US = 50.0  # launching an operation takes less


class Event(NamedTuple):
    """An event with a duration; times in microseconds."""

    process: str
    thread: str
    name: str
    start: float
    end: float
    args: Mapping[str, Any]

    @property
    def on_device(self) -> bool:
        return "/device:" in self.process

    @property
    def in_pipeline(self) -> bool:
        return self.thread.startswith("tf_data")

    def as_span(self, operation: Operation) -> Span:
        return Span(self.start, self.end, operation)


def latest(folder: Path) -> Path | None:
    """The trace that a profiler wrote last under a folder; None where there is none."""
    return max(folder.rglob("*.xplane.pb"), default=None)


def pack(file: Path) -> bytes:
    """A trace, compressed, to be kept as `FILE`."""
    return gzip.compress(file.read_bytes())


def read(file: Path, optimizers: Sequence[str], scaled: bool, every: int = 1) -> Trace:
    """The table of operations of a trace's marked steps.

    Args:
        file: as the profiler wrote it, or compressed by `pack`.
        optimizers: names under which the optimizer's operations stand.
        scaled: whether the loss is scaled.
        every: steps that a marker spans: as many as one call of the backend executes.

    Raises:
        ImportError: where xprof is not installed.
        OSError, ValueError: where the file holds no such trace, or no step is marked. xprof fails
            in further ways of its own.
    """
    events = _unpacked(file) if file.suffix == ".gz" else _events(file)
    return _trace(list(_timed(events)), Naming(optimizers, scaled), every)


def _events(file: Path) -> list[dict[str, Any]]:
    """The events of a trace, as xprof's trace viewer gives them."""
    with imports.quiet():
        from xprof.convert import raw_to_tool_data

        # Else only the first million events are given, without a word.
        os.environ.setdefault("TF_PROFILER_TRACE_VIEWER_MAX_EVENTS", str(MOST_EVENTS))
        text, _ = raw_to_tool_data.xspace_to_tool_data([str(file)], "trace_viewer", {})
    events = json.loads(text or "{}").get("traceEvents")
    if events is None:
        raise ValueError("xprof cannot read it")
    return events


def _unpacked(file: Path) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name, gzip.open(file) as packed:
        try:
            content = packed.read(MOST_BYTES + 1)
        except (EOFError, zlib.error) as error:
            raise ValueError(f"damaged: {error}") from None
        if len(content) > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES // 2**20} MiB when unpacked")
        unpacked = Path(name, "kept.xplane.pb")
        unpacked.write_bytes(content)
        return _events(unpacked)


def _timed(events: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
    """Every event with a duration; the names of processes and threads are events of their own."""
    process = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    thread = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"
    }
    for e in events:
        if e.get("ph") == "X":
            where = process.get(e["pid"], ""), thread.get((e["pid"], e["tid"]), "")
            yield Event(*where, e["name"], e["ts"], e["ts"] + e["dur"], e.get("args", {}))


def _trace(events: Sequence[Event], naming: Naming, every: int) -> Trace:
    marks = [e for e in events if e.name.split(" ")[0] == MARK and "step_num" in e.args]
    if not marks:
        raise ValueError("the trace holds no marked step")
    on_gpu = any("/device:GPU" in event.process for event in events)
    return operations.traced(
        _on_gpu(events, naming) if on_gpu else _on_cpu(events, naming),
        _waits(events),
        _pipeline(events),
        between=(min(e.start for e in marks), max(e.end for e in marks)),
        steps=len(marks) * every,
        device="gpu" if on_gpu else "cpu",
    )


def _on_cpu(events: Iterable[Event], naming: Naming) -> Iterator[Span]:
    """Operations that ran on the CPU; not those of the input pipeline, which has no layers."""
    for event in events:
        name = full_name(event.name, event.args) or event.args.get("hlo_op", "")
        path, _, op = name.rpartition(":") if ":" in name else ("", "", name)
        if name and not event.in_pipeline and op not in CONTAINERS:
            yield event.as_span(naming.operation(path, op, ""))


def _on_gpu(events: Sequence[Event], naming: Naming) -> Iterator[Span]:
    """Kernels and copies of the first GPU, and operations that ran on the CPU instead."""
    first = min(event.process for event in events if "/device:GPU" in event.process)
    launched = set()
    for event in events:
        if event.process == first and event.thread.startswith("Stream"):
            launched.add(event.args.get("tf_op") or event.args.get("long_name"))
            yield event.as_span(naming.gpu_kernel(event.name, event.args))
    for event in events:
        # On the host, without a kernel that came from it, and long enough to be the work itself.
        name = full_name(event.name, event.args)
        path, _, op = name.rpartition(":")
        known = name in launched or path in launched or op in CONTAINERS
        if event.on_device or event.in_pipeline or not path or known:
            continue
        if event.end - event.start >= LEAST_FALLBACK_US:
            yield event.as_span(naming.operation(path, op, ON_HOST))


def _waits(events: Iterable[Event]) -> Iterator[Span]:
    """When the host waited for a batch, and when for the device."""
    for event in events:
        if event.on_device:
            continue
        if event.name.startswith(INPUT_EVENTS):
            yield event.as_span(Operation("input"))
        elif any(name in event.name for name in IDLE_EVENTS):
            yield event.as_span(Operation("idle"))


def _pipeline(events: Iterable[Event]) -> Iterator[Span]:
    """When the input pipeline worked, whether or not the step waited for it."""
    for event in events:
        working = event.in_pipeline and event.name == "ExecutorState::Process"
        if working or event.name.startswith(INPUT_EVENTS):
            yield event.as_span(Operation("input"))
