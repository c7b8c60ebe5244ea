"""Reads the traces of TensorFlow's and JAX's profilers (`*.xplane.pb`).

The events come through xprof, as the JSON of its trace viewer, which TensorFlow and JAX also write
themselves (`*.trace.json.gz`). A machine without xprof keeps the trace beside the record (`FILE`),
and another one reads it.
"""

import gzip
import io
import math
import os
import re
import tempfile
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from mptexp.errors import ParamsError
from mptexp.host import imports
from mptexp.traces import json_events, operations
from mptexp.traces import step_bounds as recognized
from mptexp.traces.operations import (
    COPY,
    LEAST_ON_HOST_US,
    ON_HOST,
    UNNAMED,
    Operation,
    Span,
    Trace,
)
from mptexp.traces.step_bounds import Interval, Steps
from mptexp.traces.xla_names import GRADIENT_OF, Naming, full_name

FILE = "trace.xplane.pb.gz"  # beside the record of a run whose trace was not read there
MOST_BYTES = 2**28  # of a trace that is unpacked; a second of GPU kernels has some megabytes
MOST_EVENTS = 20_000_000  # that xprof is asked for
MOST_HELD = 4_000_000  # that are held, some 3 GB
MARK = "train"  # the name of mptexp's own step markers
INPUT = "mptexp input"  # the annotation around the wait for a batch, where the framework has none

# Operations that only hold others: their time is that of what is in them.
CONTAINERS = {"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase"}
CONTAINERS |= {"PartitionedCall", "StatefulPartitionedCall", "_Send", "_Recv", "NoOp"}
CONTAINERS |= {"_HostSend", "_HostRecv", "RemoteCall", "EagerRemoteCall"}
CONTAINERS |= {"_XlaRun", "XlaLaunch", "XlaLaunchV2", "_XlaCompile"}  # of clusters of XLA's
INPUT_EVENTS = (INPUT, "IteratorGetNext", "Iterator::Root", "MultiDeviceIteratorGetNext")
# A function that tf.data runs, whose operations run on the threads of any other (tf_Compute).
INPUT_FUNCTIONS = ("InstantiatedCapturedFunction::", "CapturedFunction")
GETS_NEXT = "tf_data_iterator_get_next"  # of tf.data's threads the one that works for the step
IDLE_EVENTS = ("Await", "BlockHostUntilDone", "SynchronizeAllActivity", "cuStreamSynchronize")
IDLE_EVENTS += ("cuCtxSynchronize", "hipStreamSynchronize", "hipDeviceSynchronize")
IDLE_EVENTS += ("np.asarray(jax.Array)", "block_until_ready")
# What Keras's trainers call for each batch, or for several.
EVALUATION = re.compile(r"(?i)\b_?(test|eval|valid|predict)")  # names of marks, not of training
KERAS_STEPS = re.compile(
    r"^(train_function|one_step_on_data(_distributed)?|multi_step_on_(iterator|data))$"
)
EAGER = " but eager ones, of which the CPU's are not recorded one by one; compile it (tf.function)"

MOSTLY_NAMED = 0.75  # of what a GPU ran: so much of it says from which operation of a program it is


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
    def of_gpu(self) -> bool:
        return "/device:GPU" in self.process

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


def read(
    file: Path,
    optimizers: Sequence[str],
    scaled: bool,
    every: int = 1,
    loss_layers: Sequence[str] = (),
    sums: Mapping[str, Sequence[str]] | None = None,
    recomputed: Sequence[str] = (),
) -> Trace:
    """The table of operations of the steps that mptexp marked in a trace.

    Args:
        file: as the profiler wrote it, or compressed by `pack`.
        optimizers: names under which the optimizer's operations stand.
        scaled: whether the loss is scaled.
        every: steps that a marker spans: as many as one call of the backend executes.
        loss_layers: layers without weights that add to the loss.
        sums, recomputed: of the graph, as of `Naming`.

    Raises:
        ImportError: where xprof is not installed.
        OSError, ValueError: where the file holds no such trace, or no step is marked. xprof fails
            in further ways of its own.
    """
    events = from_viewer(_unpacked(file) if file.suffix == ".gz" else _viewer(file))
    graph = {"loss_layers": loss_layers, "sums": sums or {}, "recomputed": frozenset(recomputed)}
    naming = Naming(optimizers, scaled, **graph)
    return _trace(events, _by_gpu(events), _own_steps(events), naming, every)


def explain(events: Sequence[Event]) -> Trace:
    """The table of operations of a training that mptexp did not run.

    Args:
        events: of the trace viewer, as `of_file` or `from_viewer` gives them.

    Raises:
        ValueError: where nothing of a training is in the trace.
    """
    gpus = _by_gpu(events)
    others = {_short(e.process) for e in events if e.on_device and not e.of_gpu}
    if others and not gpus:
        named = sorted(others)[0]
        raise ParamsError(f"it is of a device that is no GPU, {named}; allowed: GPUs and CPUs")
    if not gpus and any(map(_needs_gpu, events)):
        raise ParamsError(
            "it ran on a GPU and holds none of its kernels: the profiler had no access to CUPTI"
        )
    naming, name = Naming(), _busiest(gpus)
    steps = _steps(events, gpus, naming)
    trace = _trace(events, gpus, steps, naming)
    if not any(row.state == "op" for row in trace.operations):
        raise ParamsError("no operation of a training ran in its steps")
    return replace(
        trace,
        framework=_framework(events),
        trains=_trains(trace, gpus.get(name, ())),
        in_use=tuple(_in_use(events, gpus.get(name, ()))),
        gpu=_short(name),
        gpus={_short(gpu): _work_s(spans) for gpu, spans in gpus.items()},
    )


def _in_use(events: Iterable[Event], ran: Iterable[Event]) -> Iterator[str]:
    """Of what could be tried that which a pipeline of tf.data or a program of JAX's has already."""
    if any("Iterator::ParallelMap" in event.name for event in events):
        yield "num_parallel_calls"
    if len({event.args.get("hlo_module") for event in ran} - {None}) == 1:
        yield "jit over the whole step"


def of_file(file: Path) -> list[Event]:
    """The events of an `*.xplane.pb`, not compressed."""
    return from_viewer(_viewer(file))


def _viewer(file: Path) -> str:
    """The events of a trace as JSON, as xprof's trace viewer gives them."""
    with imports.quiet():
        from xprof.convert import raw_to_tool_data

        # Else only the first million events are given, without a word.
        os.environ.setdefault("TF_PROFILER_TRACE_VIEWER_MAX_EVENTS", str(MOST_EVENTS))
        text, _ = raw_to_tool_data.xspace_to_tool_data([str(file)], "trace_viewer", {})
    if "traceEvents" not in (text or ""):
        raise ValueError("xprof cannot read it: cut off, or no trace")
    return str(text)


def _unpacked(file: Path) -> str:
    with tempfile.TemporaryDirectory() as name, gzip.open(file) as packed:
        try:
            content = packed.read(MOST_BYTES + 1)
        except (EOFError, zlib.error) as error:
            raise ValueError(f"damaged: {error}") from None
        if len(content) > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES // 2**20} MiB when unpacked")
        unpacked = Path(name, "kept.xplane.pb")
        unpacked.write_bytes(content)
        return _viewer(unpacked)


def from_viewer(text: str) -> list[Event]:
    """The events in the JSON of a trace viewer, those with a duration."""
    return timed(json_events.events(io.BytesIO(text.encode()), {}))


def timed(events: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Every event with a duration; the names of processes and threads are events of their own."""
    process: dict[Any, str] = {}
    thread: dict[Any, str] = {}
    kept: list[tuple[Any, Any, str, float, float, Mapping[str, Any]]] = []
    for e in events:
        args, pid, tid = json_events.details(e), str(e.get("pid")), str(e.get("tid"))
        if e.get("name") == "process_name":
            process[pid] = str(args.get("name", ""))
        elif e.get("name") == "thread_name":
            thread[pid, tid] = str(args.get("name", ""))
        elif e.get("ph") == "X" and "ts" in e:
            name = str(e.get("name", ""))
            kept.append((pid, tid, name, *json_events.instants(e), args))
            if len(kept) > MOST_HELD:
                raise ValueError(f"it holds more than {MOST_HELD:,} events; trace fewer steps")
    return [
        Event(process.get(pid, ""), thread.get((pid, tid), ""), name, begin, end, args)
        for pid, tid, name, begin, end, args in kept
    ]


# --- devices -------------------------------------------------------------------------------------


def _by_gpu(events: Iterable[Event]) -> dict[str, list[Event]]:
    """What ran on each GPU: kernels and copies."""
    gpus: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.of_gpu and event.thread.startswith("Stream"):
            gpus[event.process].append(event)
    return gpus


def _needs_gpu(event: Event) -> bool:
    """Whether an event of the host is one that only a GPU's driver or its watcher has."""
    return bool(OF_DRIVER.match(event.name)) or event.thread.startswith("tf_GPU_")


def _work_s(events: Iterable[Event]) -> float:
    """Seconds of kernels, without copies."""
    return sum(e.end - e.start for e in events if not COPY.search(e.name)) / 1e6


OF_DRIVER = re.compile(r"(cu|cuda|hip)(Launch|Memcpy|GraphLaunch|ModuleLaunch|StreamSync)")


def _busiest(gpus: Mapping[str, Sequence[Event]]) -> str:
    """The GPU with most work, which need not be the first by name; empty where there is none."""
    return max(gpus, key=lambda name: (_work_s(gpus[name]), name), default="")


def _short(process: str) -> str:
    """`GPU:1` of `/device:GPU:1`."""
    return process.rpartition("/device:")[2]


def _framework(events: Iterable[Event]) -> str:
    """TensorFlow or JAX, by which of them the host calls."""
    for event in events:
        if event.on_device:
            continue
        if event.name.startswith(("PjitFunction", "PjRt", "PJRT")) or "jax/" in event.name:
            return "JAX"
        if event.name.startswith(("ExecutorState", "Eager", "TFE_", "FunctionRun")):
            return "TensorFlow"
    xla = [e for e in events if "hlo_module" in e.args]
    return "JAX" if any(str(e.args["hlo_module"]).startswith("jit_") for e in xla) else "TensorFlow"


# --- steps ---------------------------------------------------------------------------------------


def _own_steps(events: Iterable[Event]) -> Steps:
    marks = [e for e in events if e.name.split(" ")[0] == MARK and "step_num" in e.args]
    if not marks:
        raise ValueError("the trace holds no marked step")
    ordered = sorted((e.start, e.end) for e in marks)
    return recognized.adjoining(ordered, f"the marker {MARK}")


def _steps(events: Sequence[Event], gpus: Mapping[str, Sequence[Event]], naming: Naming) -> Steps:
    """The steps by the first of: markers, xprof's line, Keras's functions, what repeats."""
    name = _busiest(gpus)
    busy = operations.busy(gpus.get(name, ()))
    numbered = [e for e in events if "step_num" in e.args and not e.on_device]
    # Keras and others mark evaluations too: those of training are wanted where both are there.
    trains = [e for e in numbered if not EVALUATION.search(e.name)]
    ways = {
        "the marker with a step_num": trains or numbered,
        "xprof's Steps line": [e for e in events if e.process == name and e.thread == "Steps"],
    }
    functions = [
        e for e in events if KERAS_STEPS.match(e.name) and not e.on_device and not e.in_pipeline
    ]
    calls = [(e.start, e.end) for e in functions]
    waits = _waits(events, _input_runs(events))
    waited = operations.busy(wait for wait in waits if wait.operation.state == "input")
    for how, marks in ways.items():
        if marks:
            launched = _launched(marks, gpus.get(name, ()))
            steps = recognized.marked(operations.busy(marks), busy, how, launched, waited=waited)
            steps = recognized.until(steps, _apart(marks, calls, numbered))
            if name and recognized.outrun(steps, busy):
                work = _work(_on_gpu(events, gpus[name], naming))
                kinds = recognized.repeated(work, first=_first(events), waited=waited)
                if kinds and kinds.found == len(marks):
                    return kinds
            if _are_behind(steps, busy or _crossing(steps, _on_cpu(events, naming)), numbered):
                raise ValueError(recognized.RAN_ELSEWHERE)
            return recognized.ending_with(steps, calls, busy)
    if calls:
        how = Counter(e.name for e in functions).most_common(1)[0][0]
        steps = recognized.marked(calls, busy, how, waited=waited)
        return recognized.ending_with(steps, calls, busy)
    spans = list(_on_gpu(events, gpus[name], naming) if name else _on_cpu(events, naming))
    if not spans:
        eager = any(e.name.startswith("EagerExecute") for e in events)
        raise ValueError("it holds no operation of a training" + EAGER * eager)
    kinds = recognized.repeated(_work(spans), first=_first(events), waited=waited)
    first, last = min(s.start for s in spans), max(s.end for s in spans)
    return kinds or recognized.whole(first, last)


def _apart(
    marks: Sequence[Event], calls: Sequence[Interval], numbered: Iterable[Event]
) -> list[float]:
    """When an evaluation began: by its marks, or by calls of Keras's functions in no mark."""
    ordered = sorted((mark.start, mark.end) for mark in marks)
    ends = list(accumulate((end for _, end in ordered), max))
    held = [bisect_right(ordered, (begin, math.inf)) for begin, _ in calls]
    outside = [b for (b, _), n in zip(calls, held, strict=True) if not n or ends[n - 1] <= b]
    known = [e.start for e in numbered if EVALUATION.search(e.name) and e not in marks]
    return known + (outside if len(outside) < len(calls) else [])


def _are_behind(steps: Steps, busy: Sequence[Interval], marks: Iterable[Event]) -> bool:
    """Whether most work of marked steps was done after them; an evaluation's is none of theirs."""
    evaluated = any(EVALUATION.search(m.name) and m.start >= steps.between[1] for m in marks)
    return not evaluated and recognized.outrun(steps, busy) and recognized.goes_on(steps, busy)


def _crossing(steps: Steps, spans: Iterable[Span]) -> list[Interval]:
    """When a CPU worked; never where none of its operations outlasts the steps.

    Others that follow them may be of steps without marks, for a CPU keeps most hosts waiting.
    """
    busy, end = operations.busy(spans), steps.between[1]
    return busy if any(b < end < e for b, e in busy) else []


def _first(events: Iterable[Event]) -> float:
    """The first instant at which the host did something."""
    return min((e.start for e in events if not e.on_device), default=math.inf)


def _work(spans: Iterable[Span]) -> list[tuple[Interval, Operation]]:
    """When something was computed, and what; copies left out."""
    return [
        ((s.start, s.end), s.operation)
        for s in spans
        if s.operation.state == "op" and not COPY.search(s.operation.kernel or s.operation.op)
    ]


def _launched(marks: Iterable[Event], ran: Iterable[Event]) -> list[tuple[float, Interval]]:
    """When what a GPU ran was launched: with the mark that bears the same number of a group."""
    begins = {e.args["group_id"]: e.start for e in marks if "group_id" in e.args}
    grouped = [(e.args.get("group_id"), (e.start, e.end)) for e in ran]
    return [(begins[group], interval) for group, interval in grouped if group in begins]


def _trains(trace: Trace, ran: Sequence[Event]) -> bool | None:
    """Whether a backward pass or an optimizer ran; None where nothing tells.

    Layers tell, and of JAX, which names none by itself, what its programs are transformed by.
    """
    parts = {row.part for row in trace.operations}
    if parts & {"backward", "optimizer", "loss scaling"}:
        return True
    programs = [event.args for event in ran if "hlo_op" in event.args]
    if any("transpose(" in args.get("name", "") for args in programs):
        return True
    named = sum("name" in args for args in programs) >= MOSTLY_NAMED * len(ran) > 0
    return False if named or any(row.layer for row in trace.operations) else None


def _trace(
    events: Sequence[Event],
    gpus: Mapping[str, Sequence[Event]],
    steps: Steps,
    naming: Naming,
    every: int = 1,
) -> Trace:
    name = _busiest(gpus)
    naming = replace(naming, differentiated=_differentiated(events))
    spans = _on_gpu(events, gpus[name], naming) if name else _on_cpu(events, naming)
    input_runs = _input_runs(events)
    return operations.of_steps(
        operations.with_sources(operations.without_root(spans)),
        (*_waits(events, input_runs), *operations.elsewhere(gpus, name)),
        _pipeline(events, input_runs),
        steps,
        "gpu" if name else "cpu",
        every,
        fed=bool(naming.optimizers),
    )


# --- what ran ------------------------------------------------------------------------------------


def _on_cpu(events: Sequence[Event], naming: Naming) -> Iterator[Span]:
    """Operations that ran on the CPU; not those of the input pipeline, which has no layers."""
    piped = _piped(events)
    for event in events:
        name = full_name(event.name, event.args) or event.args.get("hlo_op", "")
        path, _, op = name.rpartition(":") if ":" in name else ("", "", name)
        if name and not event.in_pipeline and op not in CONTAINERS and id(event) not in piped:
            yield event.as_span(naming.operation(path, op, ""))
        elif event.name == "BlockUntilReady" and not event.in_pipeline:
            yield event.as_span(Operation("op", "", "other", UNNAMED))


def _on_gpu(events: Sequence[Event], kernels: Sequence[Event], naming: Naming) -> Iterator[Span]:
    """Kernels and copies of a GPU, and operations that ran on the CPU instead."""
    launched = set()
    for event in kernels:
        launched.add(event.args.get("tf_op") or event.args.get("long_name"))
        launched.add(event.args.get("level 0"))
        yield event.as_span(naming.gpu_kernel(event.name, event.args))
    piped = _piped(events)
    for event in events:
        # On the host, without a kernel that came from it, and long enough to be the work itself.
        name = full_name(event.name, event.args)
        path, _, op = name.rpartition(":")
        known = name in launched or path in launched or op in CONTAINERS
        if event.on_device or event.in_pipeline or not path or known or id(event) in piped:
            continue
        if event.name.startswith(INPUT_EVENTS):
            continue
        if event.end - event.start >= LEAST_ON_HOST_US:
            yield event.as_span(naming.operation(path, op, ON_HOST))


def _differentiated(events: Iterable[Event]) -> frozenset[str]:
    """The outermost names of what TensorFlow computed gradients of."""
    names = {full_name(e.name, e.args) for e in events}
    return frozenset(match[1] for name in names if (match := GRADIENT_OF.search(name)))


def _input_runs(events: Iterable[Event]) -> set[str]:
    """The executor's numbers of the functions that tf.data runs."""
    return {
        str(e.args["id"]) for e in events if e.name.startswith(INPUT_FUNCTIONS) and "id" in e.args
    }


def _piped(events: Sequence[Event]) -> set[int]:
    """The events that lie within those functions, by their identity."""
    runs = _input_runs(events)
    within: dict[str, list[Interval]] = defaultdict(list)
    for event in events:
        if _runs_input(event, runs):
            within[event.thread].append((event.start, event.end))
    for intervals in within.values():
        intervals.sort()
    known = [event for event in events if event.thread in within]
    return {id(e) for e in known if recognized.holds(within[e.thread], e.start, e.end)}


def _waits(events: Sequence[Event], input_runs: set[str]) -> Iterator[Span]:
    """When the host traced a function anew, waited for a batch, and when for the device.

    What tf.data runs is awaited only where nothing tells when the step waited for a batch: it may
    prepare later ones ahead.
    """
    piped = _piped(events)
    awaited = {id(e) for e in events if _awaits_batch(e, input_runs) and id(e) not in piped} or {
        id(e) for e in events if _runs_input(e, input_runs)
    }
    for event in events:
        if event.on_device:
            continue
        if str(event.args.get("tf_function_call", "")).startswith("traced"):
            yield event.as_span(Operation("retracing"))
        elif id(event) in awaited:
            yield event.as_span(Operation("input"))
        elif any(name in event.name for name in IDLE_EVENTS):
            yield event.as_span(Operation("idle"))


def _awaits_batch(event: Event, input_runs: set[str]) -> bool:
    """Whether a step asks for a batch, not one part of the pipeline another one."""
    ahead = event.in_pipeline and not event.thread.startswith(GETS_NEXT)
    of_pipeline = ahead or str(event.args.get("id")) in input_runs
    return event.name.startswith(INPUT_EVENTS) and not event.on_device and not of_pipeline


def _runs_input(event: Event, input_runs: set[str]) -> bool:
    """Whether a thread of the executor runs a function of tf.data."""
    return event.name == "ExecutorState::Process" and str(event.args.get("id")) in input_runs


def _pipeline(events: Iterable[Event], input_runs: set[str]) -> Iterator[Span]:
    """When the input pipeline worked, whether or not the step waited for it."""
    for event in events:
        working = event.in_pipeline and event.name == "ExecutorState::Process"
        if working or event.name.startswith(INPUT_EVENTS) or _runs_input(event, input_runs):
            yield event.as_span(Operation("input"))
