"""The one table of operations that any trace is read into: batches, weights, waits, all work.

A profile's format is read by one module that returns a `Trace`: `xplane` is that of TensorFlow and
JAX, `kineto` PyTorch's, `nsight` that of Nsight Systems. The reader names what ran (`Span`),
`of_steps` makes the table, and the time breakdown works on it without knowing where it came from.
"""

import math
import re
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from mptexp.errors import ParamsError
from mptexp.traces import kernel_names
from mptexp.traces.step_bounds import Interval, Steps, holds

LONGEST_S = 7200.0  # of a step; no profiler records for so long
LEAST_S = 1e-9  # of a step; ratios of less would leave what floats can hold
ON_HOST = "(on the host)"  # stands for the kernel of an operation that no GPU kernel came from
# What a CPU's program of XLA computes in threads of its own, which no event names.
UNNAMED = "XLA's own threads"
LEAST_ON_HOST_US = 50.0  # of an operation on the host: launching one takes less
CAPABILITY = "compute capability"  # of the GPU that is explained, among what a trace recorded
# An instant without any operation belongs to the first of these that is going on, else to host.
WAITS = ("another GPU", "retracing", "input", "loop", "idle", "allocation", "host")
# In the names of copies; Intel's call the host's memory M.
TO_DEVICE = re.compile(r"H2D|HtoD|HostToDevice|(Memcpy|\()M2D")
COPY = re.compile(r"^(Memcpy|Memset)|rocclr_(copy|fill)", re.IGNORECASE)  # copies and fills
COMMON = 0.9  # of the operations with a layer: what so many begin with is the model's name
OF_BATCH = 2  # copies between other products: its inputs and its labels
FORWARD = ("forward", "loss", "other")  # parts of its products; without the stack they have none
LOOP_PAUSE_US = 1000.0  # beside other work a longer one between operations of loops is not theirs
# Operations of TensorFlow that carry what a loop takes and gives: they stand at its ends.
IN_LOOP = re.compile(r"^Tensor(List|Array)")
# Python called from a graph: TensorFlow's operations, JAX's callbacks.
PYTHON = re.compile(r"PyFunc|(pure|io|python\w*)_callback")
GROUPS = 5  # of consecutive steps: by how much they differ says how certain a trace is


class Operation(NamedTuple):
    """A row of the table: all events of the traced steps that agree in the first five fields.

    Attributes:
        state: op; for the time without any operation another GPU (of the process works),
            retracing (a function is traced anew), input (a batch is awaited or copied to the
            device), loop (between two operations of a layer's loop), idle (the host awaits the
            device), allocation (it allocates or frees memory) or host (it is at work itself).
        layer: the model's layer that it belongs to; empty where it belongs to none.
        part: forward, backward, loop (of either, within a loop of a layer), optimizer, updates (of
            gradients and weights beside it), loss scaling, loss, other; empty unless state is op.
        op: the operation as the framework names it, such as `Conv2D` or `loop_add_fusion`.
        kernel: the GPU kernel's name; `ON_HOST` for an operation that ran on the CPU instead; empty
            where a CPU was traced.
        seconds: of a step. The rows of a trace sum to its step.
        count: events in a step.
        groups: seconds of a step in each group of consecutive steps, see `GROUPS`.
    """

    state: str
    layer: str = ""
    part: str = ""
    op: str = ""
    kernel: str = ""
    seconds: float = 0.0
    count: float = 0.0
    groups: tuple[float, ...] = ()


# Parts until `with_sources` says whose they are: what autodiff added, and what stands in no scope.
AUTODIFF, LOOSE = "autodiff", "loose"
# Of a loose operation within the backward pass: what metrics do, and gradients hardly.
COUNTS = re.compile(
    r"^(Arg(Max|Min)|(Not)?Equal|In?TopK\w*|Logical\w+|Bit\w+|Pack|DivNoNan)(V\d)?$"
)
BATCH = "batch"  # the part of a copy that is known to be of a batch
GAP, WORKING = Operation("gap"), Operation("op")  # between two steps; anything at all


class Span(NamedTuple):
    """An event: from when to when, in microseconds, and what it was.

    Of the operation only the first five fields count. A copy between host and device has the state
    copy, which `shares` resolves; a part only where it is known whether it is of a batch.
    """

    start: float
    end: float
    operation: Operation


@dataclass(frozen=True)
class Trace:
    """Traced training steps.

    Attributes:
        steps: how many were traced.
        step_s: mean seconds of one of them, made longer by the tracing.
        device: cpu or gpu.
        input_busy_s: seconds of a step in which the input pipeline worked, awaited or not.
        operations: the table, the longest row first.
        step_times: seconds of each step, as the host or the device marks them.
        how: how the steps were recognized.
        warm_up, unusual, untrained, untrained_s, after_s: what was left out, as of
            `step_bounds.Steps`.
        left: seconds by state of each of the first two kinds, the warm-up first.
        outside_s: seconds of work on the device in the trace, but outside the steps.
        hidden_s: seconds of a step in which other work hid communication between devices.
        framework: that wrote the trace; empty where it does not tell.
        gpu: the GPU that is explained, with its model where the trace tells; empty of a CPU.
        gpus: seconds of work of each GPU of the trace by its name.
        counters: what hardware counters say against the kernels' names.
        timed: whether durations in it are measured; with hardware counters they are made up.
        trains: whether it has a backward pass or an optimizer in it; None where it does not tell.
        input_shape: of the first product of a step, such as 32x3x224x224, where the trace tells.
        weights: how often each shape of weights is multiplied in a step, as `weight_products.of`.
        accumulated: whether gradients are accumulated, so that a step is that of a micro-batch.
        graphed: whether steps replay CUDA graphs.
        awaited: how often the host awaits the device in a step.
        loaded_s: seconds of a step in which it awaits batches, whatever the device does meanwhile.
        in_use: words of what to try that its events show to be in use.
        updates: how often the optimizer steps in a step; None where the trace does not tell.
        recorded: what else it tells of the machine and of the recording, such as CUDA's version.
        notes: what else a reader has to know of the trace, as sentences.
    """

    steps: int
    step_s: float
    device: str
    input_busy_s: float
    operations: list[Operation]
    step_times: tuple[float, ...]
    how: str
    warm_up: int = 0
    unusual: int = 0
    untrained: int = 0
    untrained_s: float = 0.0
    after_s: float = 0.0
    left: tuple[Mapping[str, float], ...] = ()
    outside_s: float = 0.0
    hidden_s: float = 0.0
    framework: str = ""
    gpu: str = ""
    gpus: Mapping[str, float] = field(default_factory=dict)
    counters: "Counters | None" = None
    timed: bool = True
    trains: bool | None = None
    input_shape: str = ""
    weights: Mapping[str, int] = field(default_factory=dict)
    accumulated: bool = False
    graphed: bool = False
    awaited: float = 0.0
    loaded_s: float = 0.0
    in_use: tuple[str, ...] = ()
    updates: float | None = None
    recorded: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def median_s(self) -> float:
        """The median step, seconds."""
        return statistics.median(self.step_times)

    def profile(self, timed_s: float) -> dict[str, Any]:
        """The trace as the `profile` of a record.

        Args:
            timed_s: seconds of a step that was not traced; `slowdown` is the traced step over it.
        """
        return {
            "steps": self.steps,
            "step_s": self.step_s,
            "device": self.device,
            "input_busy_s": self.input_busy_s,
            "rows": [row._asdict() for row in self.operations],
            "slowdown": self.step_s / timed_s,
            "missing": "",
        }


@dataclass(frozen=True)
class Counters:
    """Hardware counters of kernels beside what the kernels' names say.

    Attributes:
        kernels: how many kernels that multiply have counters.
        disagreements: kernels whose counters say otherwise than their names, with the reason.
    """

    kernels: int
    disagreements: tuple[str, ...]


def of_steps(
    operations: Iterable[Span],
    waits: Iterable[Span],
    pipeline: Iterable[Span],
    steps: Steps,
    device: str,
    every: int = 1,
    fed: bool = False,
) -> Trace:
    """The table of what ran in the steps of a trace, and how much lies outside them.

    Args:
        operations: what ran on the traced device, and copies to and from it.
        waits: what the host did meanwhile, with a state of `WAITS`.
        pipeline: when the input pipeline worked.
        every: steps that an interval holds.
        fed: whether nothing but batches is copied to the device in no layer.

    Raises:
        ParamsError: where a step takes hours, or no time.
    """
    spans, waits, number = list(operations), list(waits), len(steps.intervals) * every
    spans = spans if fed else list(_without_weights(spans, waits, steps))
    waits = [*waits, *_in_loops(spans)]
    if max(steps.seconds()) > LONGEST_S:
        hours = max(steps.seconds()) / 3600
        raise ParamsError(f"a step in it takes {hours:,.0f} hours: the clock of its events jumped")
    if statistics.median(steps.seconds()) < LEAST_S:
        raise ParamsError("a step in it takes no time")
    begin, end = steps.between
    inside, gaps = [s for s in spans if s.end > begin and s.start < end], steps.gaps
    between = [s for s in inside if holds(gaps, s.start, s.end)]
    counts = Counter(_resolved(s.operation) for s in inside)
    counts.subtract(_resolved(s.operation) for s in between)
    before_or_after = [s for s in spans if s.end <= begin or s.start >= end]
    groups = _owned(inside, waits, steps, GROUPS)
    owned: Counter[Operation] = Counter()
    for seconds, _ in groups:
        owned.update(seconds)
    read = [wait for wait in waits if wait.operation.state == "input"]
    sent = [span._replace(operation=WORKING) for span in inside if _communicates(span.operation)]
    shown = sum(us for owner, us in owned.items() if _communicates(owner))
    return Trace(
        steps=number,
        step_s=sum(steps.seconds()) / number,
        device=device,
        input_busy_s=_busy_s((s._replace(operation=WORKING) for s in pipeline), steps) / number,
        operations=[
            owner._replace(
                seconds=us / number / 1e6,
                count=counts[owner] / number,
                groups=tuple(
                    round(seconds.get(owner, 0.0) / steps_in / every / 1e6, 9)
                    for seconds, steps_in in groups
                ),
            )
            for owner, us in sorted(owned.items(), key=lambda item: -item[1])
        ],
        step_times=tuple(seconds / every for seconds in steps.seconds()),
        how=steps.how,
        warm_up=steps.warm_up,
        unusual=steps.unusual,
        untrained=steps.untrained,
        untrained_s=steps.untrained_s,
        after_s=steps.after_s / every,
        left=_left(spans, waits, steps.left),
        outside_s=sum(s.end - s.start for s in (*before_or_after, *between)) / 1e6,
        awaited=sum(begin <= w.start < end for w in waits if w.operation.state == "idle") / number,
        loaded_s=_busy_s((w._replace(operation=WORKING) for w in read), steps) / number,
        hidden_s=max(0.0, _busy_s(sent, steps) - shown / 1e6) / number,
    )


def _left(
    spans: Sequence[Span], waits: Sequence[Span], intervals: Sequence[Interval]
) -> tuple[Mapping[str, float], ...]:
    """Seconds by state of steps that were left out."""
    if not intervals:
        return ()
    edges = [edge for interval in intervals for edge in interval]
    made = []
    for owned in shares(spans, waits, edges)[::2]:
        states: Counter[str] = Counter()
        for operation, us in owned.items():
            states[operation.state] += us / 1e6
        made.append(dict(states))
    return tuple(made)


def _without_weights(spans: Sequence[Span], waits: Sequence[Span], steps: Steps) -> Iterator[Span]:
    """Spans in which what is copied to the device again and again within a batch is no batch.

    Such as weights that are kept on the host and sent layer by layer. A batch is what is copied
    before the first product of a step, or of a micro-batch in it; after the last one it may be the
    next.
    """
    products = sorted(s for s in spans if kernel_names.work(s.operation.kernel) == "matrix")
    instants = [product.start for product in products]
    (begin, end), number = steps.between, len(steps.intervals)
    sent = [s for s in spans if begin <= s.start < end and _may_be_batch(s.operation)]
    places = {bisect_right(instants, span.start) for span in sent}
    anew = {n for n in _begun_anew(products) if begin < instants[n] < end}
    read = _places_read(waits, instants, steps)
    if len(places) <= OF_BATCH * max(number, len(anew) + 1, len(read)):
        yield from spans
        return
    edges = {bisect_left(instants, edge) for interval in steps.intervals for edge in interval}
    beside_batches = edges | anew
    ends = [end for _, end in steps.intervals]
    for span in spans:
        step = bisect_right(ends, span.start)
        within = step < number and steps.intervals[step][0] <= span.start
        amid = within and bisect_right(instants, span.start) not in beside_batches
        if amid and _may_be_batch(span.operation):
            span = span._replace(operation=span.operation._replace(part="other"))
        yield span


def _begun_anew(products: Sequence[Span]) -> Iterator[int]:
    """The places of products with which a forward pass begins after a backward pass."""
    for place, (before, product) in enumerate(pairwise(products), 1):
        if before.operation.part == "backward" and product.operation.part in FORWARD:
            yield place


def _places_read(waits: Iterable[Span], instants: Sequence[float], steps: Steps) -> set[int]:
    """Before which products the host awaited batches in the steps.

    It may be ahead of the device: how many these are is known, not before which each batch ran.
    """
    begin, end = steps.between
    read = [w for w in waits if w.operation.state == "input" and begin <= w.start < end]
    places, until = set(), -math.inf
    for wait in sorted(read, key=lambda wait: (wait.start, -wait.end)):
        if wait.start >= until:  # else it is within another, which awaits the same batch
            places.add(bisect_right(instants, wait.end))
            until = wait.end
    return places


def _may_be_batch(operation: Operation) -> bool:
    """Whether an operation is a copy to the device of which nothing says what it copies."""
    return operation.state == "copy" and not operation.part and bool(TO_DEVICE.search(operation.op))


def _in_loops(spans: Sequence[Span]) -> Iterator[Span]:
    """The pauses between operations of loops, which launching each of them takes.

    However long where nothing else has run since the one before, else short ones.
    """
    if not any(_in_loop(span.operation) for span in spans):
        return  # sorting a long trace takes seconds
    latest, until = -math.inf, -math.inf  # ends of the loops' operations, and of all
    for span in sorted(spans):
        if _in_loop(span.operation):
            pause = span.start - latest
            if pause > 0 and (until <= latest or pause <= LOOP_PAUSE_US) and latest > -math.inf:
                yield Span(latest, span.start, Operation("loop"))
            latest = max(latest, span.end)
        until = max(until, span.end)


def _in_loop(operation: Operation) -> bool:
    return operation.part == "loop" or bool(IN_LOOP.match(operation.op))


def _owned(
    operations: Iterable[Span], waits: Iterable[Span], steps: Steps, most: int = 1
) -> list[tuple[dict[Operation, float], int]]:
    """Microseconds of the steps that each operation owns; what lies between them left out.

    In groups of consecutive steps, so many at most, and how many steps are in each.
    """
    number = len(steps.intervals)
    starts = sorted({number * group // most for group in range(most)})
    gaps = [Span(begin, end, GAP) for begin, end in steps.gaps]
    edges = [*(steps.intervals[start][0] for start in starts), steps.between[1]]
    owned = shares((*operations, *gaps), waits, edges)
    for group in owned:
        group.pop(GAP, None)
    sizes = [after - start for start, after in zip(starts, [*starts[1:], number], strict=True)]
    return list(zip(owned, sizes, strict=True))


def _busy_s(spans: Iterable[Span], steps: Steps) -> float:
    """Seconds of the steps in which any of some spans, of operation `WORKING`, went on."""
    ((owned, _),) = _owned(spans, (), steps)
    return owned.get(WORKING, 0.0) / 1e6


def busy(ran: Iterable[Any]) -> list[Interval]:
    """When something ran, of spans or events."""
    return [(one.start, one.end) for one in ran]


def elsewhere(gpus: Mapping[str, Iterable[Any]], explained: str) -> Iterator[Span]:
    """When another GPU of the process computed; copies and communication may only wait.

    Args:
        gpus: the events of each by its name.
        explained: the name of the one that is no other.
    """
    for event in (event for name, ran in gpus.items() if name != explained for event in ran):
        if not COPY.search(event.name) and kernel_names.work(event.name) != "communication":
            yield Span(event.start, event.end, Operation("another GPU"))


def with_sources(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans in which what has no scope of its own is of the layer or loss it belongs to.

    What autodiff added, such as sums of the gradients of one tensor, is of the one that ended an
    operation last. So is a loose operation within the backward pass: a gradient that somebody wrote
    (`custom_gradient`, TensorFlow's own of swish). After it they are updates, such as averages of
    weights. What is known to be the backward pass's is of the layer that ended one last.
    """
    known = list(spans)
    named = (s for s in known if s.operation.layer or s.operation.part == "loss")
    sources = sorted(named, key=lambda span: span.end)
    ends = [span.end for span in sources]
    layers = [span for span in sources if span.operation.layer]
    layer_ends = [span.end for span in layers]
    starts = {
        part: sorted(span.start for span in known if span.operation.part == part)
        for part in ("forward", "backward")
    }
    for span in known:
        loose = span.operation.part == LOOSE
        if loose and (COUNTS.match(span.operation.op) or not _goes_on(span, **starts)):
            yield span._replace(operation=span.operation._replace(part="updates"))
        elif loose or span.operation.part == AUTODIFF:
            place = bisect_right(ends, span.start)
            of = sources[place - 1].operation if place else Operation("op", part="other")
            added = span.operation._replace(layer=of.layer, part=of.part)
            yield span._replace(operation=added)
        elif span.operation.part == "backward" and not span.operation.layer:
            place = bisect_right(layer_ends, span.start)
            layer = layers[place - 1].operation.layer if place else ""
            yield span._replace(operation=span.operation._replace(layer=layer))
        else:
            yield span


def _goes_on(span: Span, forward: Sequence[float], backward: Sequence[float]) -> bool:
    """Whether the backward pass goes on after a span begins, by when its operations begin."""
    return _next(backward, span.start) < _next(forward, span.start)


def _next(moments: Sequence[float], moment: float) -> float:
    place = bisect_right(moments, moment)
    return moments[place] if place < len(moments) else math.inf


def without_root(operations: Iterable[Span]) -> list[Span]:
    """Spans whose layers do not begin with what nearly all have in common, such as `model_1`.

    So the same model has the same layers in two traces, however often it was built before.
    """
    spans = list(operations)
    while True:
        layers = [span.operation.layer for span in spans if span.operation.layer]
        roots = Counter(layer.partition("/")[0] for layer in layers if "/" in layer)
        root, times = roots.most_common(1)[0] if roots else ("", 0)
        if not times or times < COMMON * len(layers):
            return spans
        spans = [_shorter(span, root) for span in spans]


def _shorter(span: Span, root: str) -> Span:
    layer = span.operation.layer
    if not layer.startswith(f"{root}/"):
        return span
    return span._replace(operation=span.operation._replace(layer=layer[len(root) + 1 :]))


def shares(
    operations: Iterable[Span], waits: Iterable[Span], edges: Sequence[float]
) -> list[dict[Operation, float]]:
    """Microseconds that each operation owns from each of some instants to the next.

    They sum to what lies between the two. An instant belongs in equal shares to the operations that
    run at it, Python on a CPU before all others; to communication between devices where nothing
    else runs, else to what a GPU's host computes itself, else to copies, else to what XLA computes
    on a CPU without a name, else to one of `WAITS`: what other work hides costs no time.
    """
    # A sweep over the instants at which something begins (1) or ends (-1), begins first; edges
    # have no operation.
    begin, end = edges[0], edges[-1]
    points: list[tuple[float, int, Operation | None]] = [(edge, 0, None) for edge in edges]
    for span in (*operations, *waits):
        if span.end > begin and span.start < end and span.end > span.start:
            points.append((max(begin, span.start), 1, span.operation))
            points.append((min(end, span.end), -1, span.operation))
    points.sort(key=lambda point: (point[0], -point[1]))
    owned: list[dict[Operation, float]] = [defaultdict(float) for _ in edges[1:]]
    active: Counter[Operation] = Counter()
    before, place = begin, -1
    for time, change, operation in points:
        if time > before:
            for owner, share in _owners(active):
                owned[place][owner] += share * (time - before)
            before = time
        if operation is None:
            place += 1
            continue
        active[operation] += change
        if not active[operation]:
            del active[operation]
    return [dict(group) for group in owned]


def _owners(active: Counter[Operation]) -> list[tuple[Operation, float]]:
    """What an instant belongs to, and the share of each."""
    working = [key for key in active if key.state not in WAITS]
    if working:
        first = min(map(_rank, working))
        ran: Counter[Operation] = Counter()
        for key in working:
            ran[_resolved(key)] += active[key] * (_rank(key) == first)
        return [(key, n / ran.total()) for key, n in ran.items() if n]
    going_on = {key.state for key in active}
    return [(Operation(next((s for s in WAITS if s in going_on), "host")), 1.0)]


def _rank(operation: Operation) -> int:
    """Which of the operations at an instant own it: those of the lowest rank.

    On a CPU Python that the step calls goes first: work beside it waits for its processors or
    is done meanwhile, and either way the step lasts until Python has ended.
    """
    if operation.state in ("gap", "copy"):
        return -2 if operation.state == "gap" else 3
    if operation.kernel == ON_HOST:
        return 2
    if operation.op == UNNAMED:  # what it waits for may have a name
        return 4
    if not operation.kernel and _calls_python(operation.op):
        return -1
    return 1 if _communicates(operation) else 0


@lru_cache(2**12)  # a trace has few names, and each very often
def _calls_python(op: str) -> bool:
    return bool(PYTHON.search(op))


def _communicates(operation: Operation) -> bool:
    return operation.state == "op" and kernel_names.work(operation.kernel) == "communication"


def _resolved(operation: Operation) -> Operation:
    """A copy of a batch to the device is input, any other copy an operation of its own.

    What a layer, a backward pass or an optimizer copies there is no batch, and has their part.
    """
    if operation.state == "copy":
        batch = TO_DEVICE.search(operation.op) and operation.part in ("", BATCH)
        return Operation("input") if batch else operation._replace(state="op")
    return operation


def capability(gpus: Mapping[str, Mapping[str, Any]], explained: str) -> dict[str, str]:
    """The compute capability of a GPU, as of `Trace.recorded`; empty where it is not known.

    Args:
        gpus: what a trace says of each, by number; `computeMajor` and `computeMinor` of it.
        explained: the name of the GPU, such as `GPU:0 NVIDIA H100`.
    """
    gpu = gpus.get(explained.partition(" ")[0].removeprefix("GPU:"), {})
    version = [gpu.get("computeMajor"), gpu.get("computeMinor")]
    known = all(isinstance(part, int) for part in version)
    return {CAPABILITY: "{}.{}".format(*version)} if known else {}
