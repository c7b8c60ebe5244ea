"""Reads the traces of PyTorch's profiler (Kineto): the JSON of `export_chrome_trace`.

Categories have two sets of names: those of PyTorch 1.8 to 1.12 (`Operator`, `Kernel`, `Runtime`,
`Memcpy`) and later ones (`cpu_op`, `kernel`, `cuda_runtime`, `gpu_memcpy`), which are read alike.

A kernel belongs to what the host was doing when it launched it: the operation, the module
(`nn.Module: Linear_5`, with `with_modules` or `with_stack`), the optimizer. The launch is found by
the kernel's correlation; where it is missing, the operation by its external id. The backward pass
runs elsewhere: its operations bear the "Sequence number" of the forward ones that made them.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mptexp.spec.errors import ParamsError
from mptexp.traces import counters, json_events, operations, steps
from mptexp.traces.operations import Operation, Span, Trace
from mptexp.traces.steps import Steps
from mptexp.traces.xla_names import LAYER

MOST_EVENTS = 3_000_000  # that are held; some 2 GB
KINDS = {
    "operator": "op", "cpu_op": "op", "user_annotation": "op",
    "kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy",
    "gpu_memset": "kernel", "memset": "kernel", "cuda_profiler_range": "counted",
    "runtime": "launch", "cuda_runtime": "launch", "hip_runtime": "launch",
    "cuda_driver": "launch", "hip_driver": "launch", "python_function": "python",
    "privateuse1_runtime": "launch", "xpu_runtime": "launch",
}  # fmt: skip
MODULE = "nn.Module: "
# The ranges of mptexp's own traces, and the file that they are written to.
OWN_STEP, OWN_LOSS = "Optimizer.step#keras", "mptexp loss"
OWN_INPUT, OWN_FILE = "enumerate(DataLoader)#mptexp", "own.trace.json"
STEP = re.compile(r"^ProfilerStep\s*#\s*\d+$")
RANGE = re.compile(  # what people call the range of a step, with or without its number
    r"^(train(ing)?[ _-]?)?(step|iter(ation)?|batch)[ _#:=-]*\d*$", re.IGNORECASE
)
INPUT = re.compile(r"^enumerate\(DataLoader\)|dataloader_next|dataloader\.py\(\d+\): __next__")
IDLE = re.compile(r"(Device|Stream|Event|Context|Ctx)Synchronize$")
OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#")
BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$|^torch::autograd::")
SCALING = re.compile(r"^aten::_amp_")
OWN_RANGE = re.compile(rf"^{OWN_LOSS}$")
LOSS = re.compile(r"loss", re.IGNORECASE)
# Operations that allocate, make views or call others: what they take themselves is the host's.
DISPATCH = re.compile(
    r"^(aten::)?(empty\w*|new_\w+|resolve_(conj|neg)|view\w*|_unsafe_view|as_strided_?|t|transpose"
    r"|permute|expand\w*|reshape\w*|flatten|detach_?|alias|select|slice|unsqueeze|squeeze|narrow"
    r"|unbind|chunk|split\w*|to|_to_copy|contiguous|clone|item|is_nonzero|_local_scalar_dense|resize_"
    r"|set_|lift_fresh|result_type|_has_compatible_shallow_copy_type|record_stream)$"
    r"|^(autograd|torch::autograd)::|Backward\d+$|^Optimizer\.|^detach$"
)
COUNTER = re.compile(r"__\w+\.(sum|avg|max|min)")


class Event(NamedTuple):
    """An event with a duration; times in microseconds."""

    kind: str
    name: str
    thread: Any
    start: float
    end: float
    args: Mapping[str, Any]


def is_kineto(event: Mapping[str, Any]) -> bool:
    """Whether an event is one of PyTorch's."""
    return str(event.get("cat", "")).lower() in KINDS and event.get("ph") == "X"


def read(events: Iterable[Mapping[str, Any]], about: Mapping[str, Any]) -> Trace:
    """The table of operations of a trace.

    Args:
        events: of the file, in any order.
        about: what stands beside them; complete once the events were read.

    Raises:
        ParamsError: where it holds nothing of a training.
    """
    known = list(_known(events))  # `about` is complete from here
    return of_events(known, _models(about), "PyTorch")


def read_own(file: Path, optimizers: Sequence[str], scaled: bool, every: int = 1) -> Trace:
    """The table of operations of the steps that mptexp marked, as `xplane.read` gives it.

    Args:
        file: as the backend wrote it.
        optimizers, scaled, every: as of `xplane.read`; ranges say what they say there.

    Raises:
        OSError, ValueError: where the file holds no such trace.
    """
    with file.open("rb") as content:
        trace = read(json_events.events(content, {}), {})
    return replace(
        trace,
        operations=[
            row._replace(layer=(re.findall(rf"([^/]+){re.escape(LAYER)}", row.layer) or [""])[-1])
            for row in trace.operations
        ],
    )


def of_events(events: Sequence[Event], models: Mapping[str, str], framework: str) -> Trace:
    """The table of operations of a host that launches kernels and of the devices that run them.

    Args:
        models: of the devices by number.

    Raises:
        ParamsError: where nothing ran.
    """
    devices, host = _by_device(events), _Host(events)
    name = max(devices, key=lambda n: (_work_s(devices[n]), n), default="")
    ran = devices.get(name, [])
    spans = [host.span(event) for event in ran] or list(host.on_cpu())
    if not spans:
        raise ParamsError("it holds no operation and no kernel")
    trace = operations.of_steps(
        operations.without_root(spans),
        _waits(events),
        _waits(events, ("input",)),
        _steps(events, spans),
        "gpu" if devices else "cpu",
    )
    return replace(
        trace,
        framework=framework,
        gpu=_device_name(name, models) if devices else "",
        gpus={_device_name(n, models): _work_s(of) for n, of in devices.items()},
        counters=counters.compared((event.name, _counts(event.args)) for event in ran),
        notes=tuple(_notes(ran, host)),
    )


def _known(events: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """The events that say what ran, was launched or was awaited; Python's frames are left out."""
    number = 0
    for event in events:
        kind = KINDS.get(str(event.get("cat", "")).lower())
        name = str(event.get("name", ""))
        if kind is None or event.get("ph") != "X":
            continue
        if kind == "python" and not name.startswith(MODULE) and not INPUT.search(name):
            continue
        number += 1
        if number > MOST_EVENTS:
            raise ParamsError(f"it holds more than {MOST_EVENTS:,} events; trace fewer steps")
        args = event.get("args")
        begin, took = _number(event.get("ts")), _number(event.get("dur"))
        thread = (event.get("pid"), event.get("tid"))
        yield Event(kind, name, thread, begin, begin + max(took, 0.0), _kept(kind, args, event))


def _number(value: Any) -> float:
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        raise ParamsError(f"the time of an event is {str(value)[:40]!r}, no number") from None


def _kept(kind: str, args: Any, event: Mapping[str, Any]) -> dict[str, Any]:
    """The details of an event that are read, under one name each."""
    args = args if isinstance(args, dict) else {}
    kept = {
        "correlation": args.get("correlation"),
        "external": args.get("External id", args.get("external id")),
        "sequence": args.get("Sequence number"),
    }
    if kind in ("kernel", "copy", "counted"):
        kept["device"] = args.get("device", event.get("pid"))
        kept |= {name: value for name, value in args.items() if COUNTER.search(name)}
    return {name: value for name, value in kept.items() if value is not None}


def _counts(args: Mapping[str, Any]) -> dict[str, float]:
    """The hardware counters among the details of a kernel."""
    numbers = {name: value for name, value in args.items() if COUNTER.search(name)}
    return {n: float(value) for n, value in numbers.items() if isinstance(value, int | float)}


# --- devices -------------------------------------------------------------------------------------


def _by_device(events: Iterable[Event]) -> dict[str, list[Event]]:
    """What ran on each GPU; kernels with counters where the trace has no others."""
    devices: dict[str, list[Event]] = defaultdict(list)
    counted: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in ("kernel", "copy"):
            devices[str(event.args.get("device", 0))].append(event)
        elif event.kind == "counted":
            counted[str(event.args.get("device", 0))].append(event)
    return devices or counted


def _work_s(events: Iterable[Event]) -> float:
    """Seconds of kernels, without copies."""
    work = (e for e in events if e.kind != "copy" and not e.name.startswith("Mem"))
    return sum(e.end - e.start for e in work) / 1e6


def _models(about: Mapping[str, Any]) -> dict[str, str]:
    listed = about.get("deviceProperties")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return {str(row.get("id")): str(row.get("name", "")) for row in rows}


def _device_name(number: str, models: Mapping[str, str]) -> str:
    return f"GPU:{number} {models.get(number, '')}".strip()


def _notes(events: Sequence[Event], host: "_Host") -> Iterator[str]:
    kernels = [event for event in events if event.kind != "copy"]
    missing = sum(1 for event in kernels if not host.launches(event))
    if missing:
        yield f"the launches of {missing} of {len(kernels)} kernels are not in the trace"
    lengths = {round(event.end - event.start, 3) for event in kernels}
    if kernels and kernels[0].kind == "counted" and len(lengths) == 1 and len(kernels) > 2:
        yield (
            "every kernel has the same duration, as hardware counters were recorded instead of "
            "times: no share of time in it is a measurement"
        )


# --- steps and waits -----------------------------------------------------------------------------


def _steps(events: Sequence[Event], spans: Sequence[Span]) -> Steps:
    for pattern, how in ((STEP, "ProfilerStep#N"), (RANGE, "ranges named as steps")):
        marks = [(e.start, e.end) for e in events if e.kind == "op" and pattern.match(e.name)]
        if marks:
            return steps.marked(marks, operations.busy(spans), how)
    work = [
        ((s.start, s.end), (s.operation.kernel or s.operation.op))
        for s in spans
        if s.operation.state == "op" and not s.operation.op.startswith("Mem")
    ]
    first, last = min(s.start for s in spans), max(s.end for s in spans)
    known = steps.repeated(work) or _by_optimizer(events, first, spans)
    return known or steps.whole(first, last)


def _by_optimizer(events: Sequence[Event], first: float, spans: Sequence[Span]) -> Steps | None:
    """Steps that end when the optimizer has stepped; None where it did not, or several did."""
    marks = [e for e in events if e.kind == "op" and e.name.startswith("Optimizer.step#")]
    if len(marks) < 2 or len({e.name for e in marks}) > 1:
        return None
    ends = sorted(e.end for e in marks)
    host = [e.start for e in events if e.kind == "op"]
    begins = [min([first, *host]), *ends[:-1]]
    pairs = list(zip(begins, ends, strict=True))
    return steps.marked(pairs, operations.busy(spans), "the optimizer's steps")


def _waits(events: Iterable[Event], states: Sequence[str] = ("input", "idle")) -> Iterator[Span]:
    """When the host waited for a batch, and when for the device."""
    for event in events:
        if event.kind in ("op", "python") and INPUT.search(event.name):
            state = "input"
        elif event.kind == "launch" and IDLE.search(event.name):
            state = "idle"
        else:
            continue
        if state in states:
            yield Span(event.start, event.end, Operation(state))


# --- what the host was doing ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Context:
    """What went on in a thread at an instant, the outermost first."""

    events: tuple[Event, ...] = ()

    @property
    def op(self) -> str:
        """The innermost operation."""
        ops = (e.name for e in self.events if e.kind == "op" and not e.name.startswith(MODULE))
        named = [name for name in ops if not STEP.match(name) and name != OWN_LOSS]
        return named[-1] if named else ""

    @property
    def module(self) -> str:
        """The modules around it as a path."""
        names = [e.name.removeprefix(MODULE) for e in self.events if e.name.startswith(MODULE)]
        return "/".join(names)

    @property
    def sequence(self) -> Any:
        """The number that ties the backward operation to the forward one."""
        numbers = [e.args["sequence"] for e in self.events if "sequence" in e.args]
        return numbers[0] if numbers else None

    def within(self, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(e.name) for e in self.events if e.kind == "op")


class _Thread:
    """The nested events of one thread, to be asked for an instant."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda e: (e.start, -e.end))
        self.parents: list[int] = []
        stack: list[int] = []
        for place, event in enumerate(self.events):
            while stack and self.events[stack[-1]].end <= event.start:
                stack.pop()
            self.parents.append(stack[-1] if stack else -1)
            stack.append(place)
        self.starts = [event.start for event in self.events]

    def at(self, instant: float) -> _Context:
        place = bisect_right(self.starts, instant) - 1
        chain: list[Event] = []
        while place >= 0:
            if self.events[place].end >= instant:
                chain.append(self.events[place])
            place = self.parents[place]
        return _Context(tuple(reversed(chain)))

    def own(self) -> Iterator[tuple[float, float, float]]:
        """When an operation was at work, none within it: start, end, and an instant in it."""
        inner: dict[int, list[Event]] = defaultdict(list)
        for place, event in enumerate(self.events):
            inner[self.parents[place]].append(event)
        for place, event in enumerate(self.events):
            if event.kind != "op" or STEP.match(event.name) or event.name.startswith(MODULE):
                continue
            at = event.start
            for child in inner.get(place, ()):
                if child.start > at:
                    yield at, child.start, (at + child.start) / 2
                at = max(at, child.end)
            if event.end > at:
                yield at, event.end, (at + event.end) / 2


class _Host:
    """What the host did, by which kernels get an operation, a layer and a part."""

    def __init__(self, events: Sequence[Event]) -> None:
        threads: dict[Any, list[Event]] = defaultdict(list)
        self._launch: dict[Any, Event] = {}
        self._external: dict[Any, Event] = {}
        for event in events:
            if event.kind in ("op", "python"):
                threads[event.thread].append(event)
                if event.kind == "op" and "external" in event.args:
                    self._external[event.args["external"]] = event
            elif event.kind == "launch" and "correlation" in event.args:
                self._launch[event.args["correlation"]] = event
        self._threads = {thread: _Thread(of) for thread, of in threads.items()}
        self._forward = dict(self._forward_modules())

    def launches(self, kernel: Event) -> bool:
        """Whether the trace tells what launched a kernel."""
        known = kernel.args.get("correlation") in self._launch
        return known or kernel.args.get("external") in self._external

    def span(self, kernel: Event) -> Span:
        """A kernel or copy as what it was launched for."""
        context = self._context(kernel)
        if kernel.kind == "copy":
            operation = Operation("copy", op=kernel.name.split(" (")[0].replace(" ", ""))
        else:
            operation = self._operation(context, kernel.name)
        return Span(kernel.start, kernel.end, operation)

    def on_cpu(self) -> Iterator[Span]:
        """Operations that ran on the CPU, each without those within it."""
        for thread in self._threads.values():
            for start, end, instant in thread.own():
                context = thread.at(instant)
                if not context.within(INPUT) and not DISPATCH.search(context.op):
                    yield Span(start, end, self._operation(context, ""))

    def _context(self, kernel: Event) -> _Context:
        launch = self._launch.get(kernel.args.get("correlation"))
        if launch is None:
            launch = self._external.get(kernel.args.get("external"))
        thread = self._threads.get(launch.thread) if launch else None
        return thread.at(launch.start) if thread and launch else _Context()

    def _operation(self, context: _Context, kernel: str) -> Operation:
        op = context.op.rpartition("::")[2] if context.op.startswith("aten::") else context.op
        backward = context.within(BACKWARD)
        layer = context.module or (self._forward.get(context.sequence, "") if backward else "")
        part = "backward" if backward else "forward" if layer else "other"
        if context.within(OPTIMIZER):
            layer, part = "", "optimizer"
        elif context.within(SCALING):
            layer, part = "", "loss scaling"
        elif (
            context.within(OWN_RANGE)
            or LOSS.search(layer.rpartition("/")[2])
            or (not layer and LOSS.search(op))
        ):
            layer, part = "", "loss"
        return Operation("op", layer, part, op, kernel)

    def _forward_modules(self) -> Iterator[tuple[Any, str]]:
        """The module of each sequence number; the last operation that bears it made the node."""
        for thread in self._threads.values():
            for event in thread.events:
                if "sequence" not in event.args or BACKWARD.search(event.name):
                    continue
                context = thread.at(event.start)
                if context.module and not context.within(BACKWARD):
                    yield event.args["sequence"], context.module
