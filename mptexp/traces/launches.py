"""Makes the table of what a host launched and its GPUs ran, of PyTorch's events and Nsight's."""

import re
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from typing import Any

from mptexp.errors import ParamsError
from mptexp.traces import (
    counters,
    kernel_names,
    operations,
    step_bounds,
    steps_from_host,
    weight_products,
)
from mptexp.traces.launching_layers import (
    COMPILED,
    GRAPH,
    GRAPH_LAUNCH,
    LAUNCHES,
    ON_DEVICE,
    STEP,
    Event,
    Host,
    plain_range,
)
from mptexp.traces.operations import Span, Trace
from mptexp.traces.step_bounds import REPEATED, WHOLE, Launched, Steps

MOST_EVENTS = 3_000_000  # that are held; some 2 GB
# Operations that only GPUs have; PyTorch's profiler does not trace Apple's.
OF_GPU = re.compile(
    r"^aten::(_?(cudnn|miopen|mps)_|_efficient_attention|_flash_attention|_fused_\w+_cuda)"
)
OF_APPLE = re.compile(r"^aten::_?mps_")
OF_OTHERS = re.compile(r"^(npu|hpu|xla)::")  # Ascend's, Gaudi's, TPUs
WAITS_FOR_ALL = re.compile(r"(Device|Context|Ctx)Synchronize$")  # not for one stream
CAPTURES = re.compile(r"Stream(Begin|End)Capture")  # in between, launches only make a graph
LOST = 0.01  # of the kernels that were launched: so few may be missing
STRAY = 0.01  # of the launches: so few with another process's number are no other process
LEAST_WITHIN = 0.5  # of the time of what was launched in the steps: so much ran in them
NEARLY = 0.9  # of the busiest GPU's work: with so much another one is nearly as busy
MOST_SHAPES = 3  # of batches that are named
SKEW_US = 50.0  # by so much two clocks may differ, unsaid
CLOCKS = "its device ran at another time than its host launched: the clocks of the two differ"


class _Recorded:
    """What a host did, and what the device ran that is explained, see `_explained`."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.host, self.devices = Host(events), _by_device(events)
        self.operations = any(event.kind == "op" for event in events)
        self.name = _explained(self.devices)
        self.ran = self.devices.get(self.name, [])
        ran = [self.host.span(event) for event in self.ran]
        self.spans = [*ran, *self.host.beside_gpu()] if ran else list(self.host.on_cpu())
        calls = [(call, event) for event in self.ran if (call := self.host.launch(event))]
        self.launched = [(call.start, (event.start, event.end)) for call, event in calls]
        main = _main_stream(self.ran)
        kernels = [(c.start, e.thread, (e.start, e.end)) for c, e in calls if e.kind != "copy"]
        copies = [(c.start, e) for c, e in calls if e.kind == "copy" and e.thread == main]
        self.copies = [(at, (event.start, event.end)) for at, event in copies]
        self.computed = [(at, ran) for at, stream, ran in kernels if stream == main]
        trained = [event for event in self.ran if steps_from_host.of_training(event, self.host)]
        gradients = any(steps_from_host.GRADIENT.search(event.name) for event in trained)
        self.unnamed = gradients or _graphed(self.host, self.ran)
        self.gradients = [call.start for event in trained if (call := self.host.launch(event))]
        launches = (event for event in events if event.kind == "launch")
        self.graphs = [event.start for event in launches if GRAPH_LAUNCH.search(event.name)]
        self.waits = steps_from_host.waits(events)
        self.awaited = [wait for wait in self.waits if wait.operation.state == "input"]


def held(events: Iterable[Event]) -> list[Event]:
    """Events in memory, which has room for so many.

    Raises:
        ParamsError: where there are more.
    """
    known = list(islice(events, MOST_EVENTS + 1))
    if len(known) > MOST_EVENTS:
        raise ParamsError(f"it holds more than {MOST_EVENTS:,} events; trace fewer steps")
    return known


def of_events(events: Sequence[Event], models: Mapping[str, str], framework: str) -> Trace:
    """The table of operations of a host that launches kernels and of the devices that run them.

    Args:
        models: of the devices by number.

    Raises:
        ParamsError: where nothing ran.
    """
    events = [plain_range(event) for event in events]
    _refuse_merged(events)
    recorded = _Recorded(events)
    if not recorded.devices:
        _refuse_untraced_gpu(events)
    if not recorded.spans:
        raise ParamsError("it holds no operation and no kernel")
    late = _late_us(events, recorded.launched)
    found = _steps(events, recorded, late)
    lost = _lost(events, found)
    graphed = bool(step_bounds.holding(found, recorded.graphs))
    weights = {} if graphed else weight_products.of(events, found)
    shapes = _input_shapes(events, found)
    earlier = steps_from_host.earlier(events, found, recorded.waits) if recorded.devices else []
    marked, found = found, steps_from_host.begun(found, earlier)
    left_out = found.intervals[0][0] - marked.intervals[0][0]
    updates = steps_from_host.updates(events, recorded.ran, found)
    return replace(
        _table(recorded, found, models),
        framework=framework,
        trains=steps_from_host.trains(events, recorded.ran, found, recorded.unnamed),
        input_shape=_shared(shapes),
        weights=weights,
        graphed=graphed,
        accumulated=steps_from_host.accumulates(updates, found),
        updates=None if updates is None else sum(updates) / len(found.intervals),
        notes=(
            *_notes(recorded),
            *lost,
            *_skew(recorded.launched, late),
            *steps_from_host.notes(events, updates, found, recorded.graphs, left_out),
            *_unequal(shapes),
            *([] if recorded.devices else _compiled(recorded.spans)),
        ),
    )


def _steps(events: Sequence[Event], recorded: _Recorded, late: float) -> Steps:
    """The steps, of a trace whose clocks agree so far that these can be told."""
    awaited, computed = operations.busy(recorded.awaited), recorded.computed
    gradients, graphs = recorded.gradients, recorded.graphs
    found = steps_from_host.of(
        events,
        recorded.spans,
        computed,
        awaited,
        gradients,
        graphs,
        recorded.copies,
    )
    _refuse_elsewhere(found, recorded.launched, late)
    if not recorded.launched and step_bounds.outrun(found, operations.busy(recorded.ran)):
        raise ParamsError(step_bounds.RAN_ELSEWHERE)
    if late > step_bounds.AHEAD * 1e6 * statistics.median(found.seconds()):
        raise ParamsError(CLOCKS)
    return found


def _table(recorded: _Recorded, found: Steps, models: Mapping[str, str]) -> Trace:
    """What the device ran and the host awaited in the steps, and how long each device worked."""
    devices, name, ran = recorded.devices, recorded.name, recorded.ran
    trace = operations.of_steps(
        operations.without_root(recorded.spans),
        (*recorded.waits, *operations.elsewhere(devices, name)),
        recorded.awaited,
        found,
        "gpu" if devices else "cpu",
    )
    return replace(
        trace,
        timed=not _replayed(ran),
        gpu=_device_name(name, models) if devices else "",
        gpus={_device_name(n, models): _work_s(of) for n, of in devices.items()},
        counters=counters.compared((event.name, counters.among(event.args)) for event in ran),
    )


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


def _explained(devices: Mapping[str, Sequence[Event]]) -> str:
    """The number of the GPU that is explained: the first of those that are nearly the busiest.

    So it is the same one in two traces of one training, whose busiest GPU may differ by chance.
    """
    work = {number: _work_s(ran) for number, ran in devices.items()}
    most = max(work.values(), default=0.0)
    busy = [number for number, seconds in work.items() if seconds >= NEARLY * most]
    return min(busy, key=lambda number: (len(number), number), default="")


def _work_s(events: Iterable[Event]) -> float:
    """Seconds of kernels, without copies."""
    work = (e for e in events if e.kind != "copy" and not e.name.startswith("Mem"))
    return sum(e.end - e.start for e in work) / 1e6


def _main_stream(events: Iterable[Event]) -> Any:
    """The stream whose kernels take longest: what others copy ahead is of another step."""
    took: Counter[Any] = Counter()
    for event in events:
        if kernel_names.work(event.name) != "communication":
            took[event.thread] += _work_s([event])
    return max(took, key=lambda stream: took[stream], default=None)


def _device_name(number: str, models: Mapping[str, str]) -> str:
    """A device with its model, where that is known."""
    return f"GPU:{number} {models.get(number, '')}".strip()


def _notes(recorded: _Recorded) -> Iterator[str]:
    """Says of which kernels the trace does not tell what they were launched for."""
    host, known = recorded.host, [event for event in recorded.ran if event.kind != "copy"]
    if known and not recorded.operations:
        yield (
            "no operation of the host was recorded: a wait for a batch cannot be told from the "
            "host's other work; record the CPU too"
        )
    missing = sum(1 for event in known if host.launch(event) is None)
    if missing:
        yield f"the launches of {missing} of {len(known)} kernels are not in the trace"
    graphs = sum(1 for event in known if event.name == GRAPH)
    if graphs:
        yield (
            f"{graphs} CUDA graphs were recorded as a whole, without their kernels: what they did "
            "is unexplained; record with --cuda-graph-trace=node"
        )
    replays = sum(1 for event in known if host.replays(event))
    if replays:
        yield (
            f"{replays} of {len(known)} kernels ran in CUDA graphs, whose launch says neither "
            "layer nor operation"
        )


def _lost(events: Sequence[Event], found: Steps) -> list[str]:
    """Says where kernels that were launched in the steps are not in the trace; refuses many.

    Their time would be the host's, in which the device has no work. Nothing is said where no event
    of a device bears the number of its launch.
    """
    ran = {e.args["correlation"] for e in events if e.kind in ON_DEVICE and "correlation" in e.args}
    begin, end = found.launched
    calls = [number for at, number in _launches(events, ran) if begin <= at < end]
    lost = sum(1 for number in calls if number not in ran) if ran else 0
    said = f"{lost} of {len(calls)} kernels that were launched in the steps were not recorded"
    if lost > LOST * len(calls):
        raise ParamsError(f"{said}: the profiler lost them; trace fewer steps")
    return [f"{said}; their time counts as if the device had no work"] if lost else []


def _launches(events: Iterable[Event], ran: Container[Any]) -> Iterator[tuple[float, Any]]:
    """When kernels were launched to be run, and the numbers that tie them to it.

    What is captured is a stream, into which other threads launch too, as autograd's does: while one
    captures, a launch of theirs counts if its number is among those that `ran`.
    """
    capturing: set[Any] = set()
    for event in sorted((e for e in events if e.kind == "launch"), key=lambda e: e.start):
        number = event.args.get("correlation")
        runs = LAUNCHES.search(event.name) and event.thread not in capturing
        if match := CAPTURES.search(event.name):
            (capturing.add if match[1] == "Begin" else capturing.discard)(event.thread)
        elif runs and number is not None and (not capturing or number in ran):
            yield event.start, number


def _compiled(spans: Iterable[Span]) -> Iterator[str]:
    """Says where code of torch.compile ran on the CPU, whose operations the trace does not name."""
    if any(span.operation.op.startswith(COMPILED) for span in spans):
        yield (
            "a CPU's code of torch.compile is recorded as a whole: what it computes is unexplained "
            "(torch._inductor.config.cpp.enable_kernel_profile names its parts)"
        )


def _replayed(events: Sequence[Event]) -> bool:
    """Whether kernels were run again and again for their hardware counters, and not timed.

    Kineto then writes the same duration with each kernel, or ranges of the profiler instead.
    """
    known = [event for event in events if event.kind != "copy"]
    lengths = {round(event.end - event.start, 3) for event in known}
    counted = any(counters.among(event.args) for event in known)
    return counted and (known[0].kind == "counted" or (len(lengths) == 1 and len(known) > 2))


def _graphed(host: Host, ran: Sequence[Event]) -> bool:
    """Whether most of a device's time is CUDA graphs, of which the host's names tell nothing."""
    of_graphs = _work_s(event for event in ran if event.name == GRAPH or host.replays(event))
    return of_graphs > _work_s(ran) / 2


def _input_shapes(events: Iterable[Event], found: Steps) -> list[str]:
    """The shapes of what the first product of each step reads, as far as they were recorded.

    Of steps that nothing on the host tells apart that of the first product of all.
    """
    begin = found.launched[0]
    known = (e for e in events if e.start >= begin and e.args.get("shape"))
    with_shapes = sorted(known, key=lambda event: event.start)
    if found.how in (WHOLE, REPEATED):
        return [_shape(event) for event in with_shapes[:1]]
    number = step_bounds.numbered(found)
    first: dict[int, str] = {}
    for event in with_shapes:
        if (n := number(event.start)) is not None:
            first.setdefault(n, _shape(event))
    return list(first.values())


def _shape(event: Event) -> str:
    return "x".join(map(str, event.args["shape"]))


def _shared(shapes: Sequence[str]) -> str:
    """The only shape; of several each with its share of the steps: `32x64 in 2/3, 32x128 in 1/3`.

    Those of most steps first; the same text for the same shares of any number of steps.
    """
    counts = sorted(Counter(shapes).items(), key=lambda item: (-item[1], item[0]))
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(f"{shape} in {Fraction(n, len(shapes))}" for shape, n in counts)


def _unequal(shapes: Sequence[str]) -> Iterator[str]:
    """Says where the batches of the steps are of unequal shape."""
    counts = Counter(shapes).most_common()
    if len(counts) > 1:
        read = first_shapes(counts)
        yield (
            "batches are of unequal shape, and steps so of unequal work: the first product reads "
            f"{read} of {len(shapes)} steps"
        )


def first_shapes(counts: Iterable[tuple[str, object]]) -> str:
    """`32x64 in 5 and 32x128 in 3`: shapes with how often each is read; of many the first."""
    parts = [f"{shape} in {n}" for shape, n in counts]
    if len(parts) > MOST_SHAPES:
        parts = [*parts[:MOST_SHAPES], "others in the rest"]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _refuse_merged(events: Iterable[Event]) -> None:
    """Refuses traces of several processes in one file: numbers that tie events are not unique.

    Nsight's are of one process here, and their threads are plain numbers.
    """
    known = [event for event in events if isinstance(event.thread, tuple)]
    marks = {event.thread[0] for event in known if STEP.match(event.name)}
    calls = Counter(event.thread[0] for event in known if event.kind == "launch")
    ranks = marks | {process for process, n in calls.items() if n > STRAY * calls.total()}
    if len(ranks) > 1:
        raise ParamsError(
            f"it holds the work of {len(ranks)} processes in one file; give the trace of one rank"
        )


def _refuse_elsewhere(found: Steps, launched: Launched, late: float) -> None:
    """Refuses a trace whose device ran the steps at another time than its host launched them."""
    (begin, end), (first, last) = found.between, found.launched
    ran = [interval for at, interval in launched if first <= at <= last]
    total = sum(e - b for b, e in ran)
    if step_bounds.took_within(ran, begin, end) < LEAST_WITHIN * total:
        raise ParamsError(
            CLOCKS if late > SKEW_US or _early_us(launched) else step_bounds.RAN_ELSEWHERE
        )


def _late_us(events: Iterable[Event], launched: Launched) -> float:
    """How much later than a wait for it the device had done its work, by its clock.

    The least of all waits for the whole device; 0 where there was none.
    """
    ordered = sorted(launched)
    calls = [at for at, _ in ordered]
    late = [
        ordered[place - 1][1][1] - event.end
        for event in events
        if event.kind == "launch" and WAITS_FOR_ALL.search(event.name)
        if (place := bisect_left(calls, event.start))
    ]
    return min(late, default=0.0)


def _skew(launched: Launched, late: float) -> Iterator[str]:
    """Says where kernels begin before they were launched, or end after they were awaited."""
    if late > SKEW_US:
        yield (
            f"the device ends its work {late / 1e3:.3g} ms after the calls that wait for it: the "
            "clocks of host and device differ, and waits are only roughly right"
        )
    if early := _early_us(launched):
        yield (
            f"kernels begin {early / 1e3:.3g} ms before the calls that launch "
            "them: the clocks of host and device differ, and waits are only roughly right"
        )


def _early_us(launched: Launched) -> float:
    """How much earlier than they were launched kernels begin; 0 where most do not."""
    early = [at - begin for at, (begin, _) in launched if at - begin > SKEW_US]
    return statistics.median(early) if len(early) > len(launched) / 2 else 0.0


def _refuse_untraced_gpu(events: Iterable[Event]) -> None:
    """Refuses a training on a GPU of which only the host was traced."""
    names = {event.name for event in events if event.kind in ("op", "launch")}
    if any(OF_APPLE.match(name) for name in names):
        raise ParamsError(
            "it is of an Apple GPU (MPS), whose work PyTorch's profiler does not record"
        )
    if others := {match[1] for name in names if (match := OF_OTHERS.match(name))}:
        raise ParamsError(f"it is of a device ({', '.join(sorted(others))}) whose work is not read")
    if any(OF_GPU.match(name) or "LaunchKernel" in name for name in names):
        raise ParamsError(
            "it ran on a GPU and holds none of its kernels; record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
