"""Reads the traces of PyTorch's profiler (Kineto): the JSON of `export_chrome_trace`.

Categories have two sets of names: those of PyTorch 1.8 to 1.12 (`Operator`, `Kernel`, `Runtime`,
`Memcpy`) and later ones (`cpu_op`, `kernel`, `cuda_runtime`, `gpu_memcpy`), which are read alike.
"""

import math
import re
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from mptexp.spec.errors import ParamsError
from mptexp.traces import counters, json_events, kernels, operations, steps
from mptexp.traces.host import (
    BACKWARD,
    GRAPH,
    GRAPH_LAUNCH,
    INPUT,
    MODULE,
    OPTIMIZER,
    SCALING,
    STEP,
    Event,
    Host,
)
from mptexp.traces.operations import Operation, Span, Trace
from mptexp.traces.steps import Interval, Launched, Steps
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
# Categories as PyTorch alone writes them. "Operator", "Kernel" and "Memcpy" are PaddlePaddle's and
# ONNX Runtime's too: of the older versions of PyTorch "Runtime" tells, or an operator's name.
OWN = {*KINDS} - {"operator", "memcpy", "memset", "runtime"} | {"Runtime"}
PLAIN = (str, int, float)  # not null, and nothing that cannot be a key
ON_DEVICE = ("kernel", "copy", "counted")
DETAILS = {
    "correlation": "correlation", "external id": "external", "External id": "external",
    "Sequence number": "sequence",
}  # fmt: skip
# The ranges of mptexp's own traces, and the file that they are written to.
OWN_STEP = "Optimizer.step#keras"
OWN_INPUT, OWN_FILE = "enumerate(DataLoader)#mptexp", "own.trace.json"
RANGE = re.compile(  # what people call the range of a step, with or without its number
    r"^(train(ing)?[ _-]?)?(step|iter(ation)?|batch)[ _#:=-]*\d*$", re.IGNORECASE
)
IDLE = re.compile(r"(Device|Stream|Event|Context|Ctx)Synchronize$")
ALLOCATES = re.compile(
    r"^(cuda|hip)(Malloc|Free|Host(Alloc|Free|Malloc))|^(cu|hip)Mem(Alloc|Free|Create|(Un)?[Mm]ap"
    r"|Release|SetAccess|Address(Reserve|Free))"
)
WAITS_FOR_ALL = re.compile(r"(Device|Context|Ctx)Synchronize$")  # not for one stream
# Operations that only GPUs have; PyTorch's profiler does not trace Apple's.
OF_GPU = re.compile(
    r"^aten::(_?(cudnn|miopen|mps)_|_efficient_attention|_flash_attention|_fused_\w+_cuda)"
)
OF_APPLE = re.compile(r"^aten::_?mps_")
GRADIENT = re.compile(r"wgrad|dgrad|backward|_bwd", re.IGNORECASE)  # in kernels' names
PRODUCT = re.compile(r"^aten::(conv\w*|_convolution|linear|addmm|mm|bmm|matmul)$")
STEPPED = "Optimizer.step#"
SEVERAL = 1.5  # times the number of steps: so often an optimizer steps in several of them
BACKWARDS = 0.01  # of the events of a device: so few may end before they begin
LEAST_WITHIN = 0.5  # of the time of what was launched in the steps: so much ran in them
# What launches a kernel; fills (memset) are not recorded by every version.
LAUNCHES = re.compile(r"Launch\w*Kernel")
CAPTURES = re.compile(r"Stream(Begin|End)Capture")  # in between, launches only make a graph
LOST = 0.01  # of the kernels that were launched: so few may be missing
MARKED, BY_OPTIMIZER = ("ProfilerStep#N", "ranges named as steps"), "the optimizer's steps"
ONE_OPTIMIZER = (
    "a step is one of the optimizer's: if there are two of one class, it is a part of a step; "
    "profiler.step() marks steps"
)
STRAY = 0.01  # of the launches: so few with another process's number are no other process
# Of a step: a shorter wait for what was launched before the recording stays in it.
UNFINISHED = 0.05
EARLIER = (
    "{:.3g} ms are left out of the first step, in which it waited for what the device was given "
    "before the recording; leave more steps to the schedule's warm-up"
)
SKEW_US = 50.0  # by so much two clocks may differ, unsaid
CLOCKS = "its device ran at another time than its host launched: the clocks of the two differ"
COMPILED = "## Call CompiledFxGraph"  # the range around code that torch.compile made
COUNTER = re.compile(r"__\w+\.(sum|avg|max|min)")  # such as smsp__inst_executed.sum


def is_kineto(events: Iterable[Mapping[str, Any]], about: Mapping[str, Any]) -> bool:
    """Whether events are PyTorch's, or what stands before them, of a trace in which nothing ran."""
    known = any(_of_pytorch(event) and event.get("ph") == "X" for event in events)
    return known or ("deviceProperties" in about and isinstance(about.get("schemaVersion"), int))


def _of_pytorch(event: Mapping[str, Any]) -> bool:
    category, name = str(event.get("cat")), str(event.get("name"))
    return category in OWN or (category == "Operator" and name.startswith("aten::"))


def read(events: Iterable[Mapping[str, Any]], about: Mapping[str, Any]) -> Trace:
    """The table of operations of a trace.

    Args:
        events: of the file, in any order.
        about: what stands beside them; complete once the events were read.

    Raises:
        ParamsError: where it holds nothing of a training.
    """
    seen: Counter[str] = Counter()
    known = list(_known(events, seen))  # `about` is complete from here
    _refuse_backwards(seen)
    models = _models(about)
    trace = of_events(known, models, "PyTorch")
    return replace(
        trace,
        recorded=_recorded(about, seen),
        notes=(*trace.notes, *_backwards(seen), *_unseen(trace, models)),
    )


def read_own(file: Path, loss_layers: Collection[str]) -> Trace:
    """The table of operations of the steps that mptexp marked, as `xplane.read` gives it.

    The ranges in the file say what else that one is told.

    Args:
        file: as the backend wrote it.
        loss_layers: as of `xplane.read`.

    Raises:
        OSError, ValueError: where the file holds no such trace.
    """
    with file.open("rb") as content:
        trace = read(json_events.events(content, {}), {})
    return replace(trace, operations=[_own(row, loss_layers) for row in trace.operations])


def _own(row: Operation, loss_layers: Collection[str]) -> Operation:
    """With the layer by its own name, and the part of those that add to the loss."""
    layer = (re.findall(rf"([^/]+){re.escape(LAYER)}", row.layer) or [""])[-1]
    return row._replace(layer=layer, part="loss" if layer in loss_layers else row.part)


def of_events(events: Sequence[Event], models: Mapping[str, str], framework: str) -> Trace:
    """The table of operations of a host that launches kernels and of the devices that run them.

    Args:
        models: of the devices by number.

    Raises:
        ParamsError: where nothing ran.
    """
    _refuse_merged(events)
    devices, host = _by_device(events), Host(events)
    if not devices:
        _refuse_untraced_gpu(events)
    name = max(devices, key=lambda n: (_work_s(devices[n]), n), default="")
    ran = devices.get(name, [])
    spans = [host.span(event) for event in ran] or list(host.on_cpu())
    if not spans:
        raise ParamsError("it holds no operation and no kernel")
    calls = [(host.launch(event), (event.start, event.end)) for event in ran]
    launched = [(call.start, interval) for call, interval in calls if call]
    trainers = _trainers(events)
    waits = list(_waits(e for e in events if e.thread in trainers))
    waits += _blocked(events, trainers)
    awaited = [wait for wait in waits if wait.operation.state == "input"]
    graphs = [e.start for e in events if e.kind == "launch" and GRAPH_LAUNCH.search(e.name)]
    gradients = [call.start for event, (call, _) in zip(ran, calls, strict=True)
                 if call and _of_training(event.name)]  # fmt: skip
    found = _steps(events, spans, launched, operations.busy(awaited), gradients, graphs)
    _refuse_skewed(found, launched)
    late = _late_us(events, launched)
    if late > steps.AHEAD * 1e6 * statistics.median(found.seconds()):
        raise ParamsError(CLOCKS)
    lost = _lost(events, found)
    earlier = _earlier(events, found, waits) if devices else []
    found = _begun(found, earlier)
    trace = operations.of_steps(
        operations.without_root(spans),
        (*waits, *operations.elsewhere(devices, name)),
        awaited,
        found,
        "gpu" if devices else "cpu",
    )
    replayed = _replayed(ran)
    stepped = _updates(events, ran, found)
    number, updates = len(found.intervals), None if stepped is None else sum(stepped)
    return replace(
        trace,
        framework=framework,
        timed=not replayed,
        trains=_trains(events, ran, found, _graphed(ran, host)),
        input_shape=_input_shape(events, found),
        graphed=bool(steps.holding(found, graphs)),
        accumulated=_accumulates(stepped, found),
        updates=None if updates is None else updates / number,
        gpu=_device_name(name, models) if devices else "",
        gpus={_device_name(n, models): _work_s(of) for n, of in devices.items()},
        counters=counters.compared((event.name, _counts(event.args)) for event in ran),
        notes=(
            *_notes(ran, host),
            *lost,
            *_skew(launched, late),
            *_stepped(events, stepped, found),
            *_other_kind(found, graphs),
            *([ONE_OPTIMIZER] if found.how.startswith(BY_OPTIMIZER) else []),
            *([EARLIER.format(sum(e - b for b, e in earlier) / 1e3)] if earlier else []),
            *([] if devices else _compiled(spans)),
        ),
    )


def _known(events: Iterable[Mapping[str, Any]], seen: Counter[str]) -> Iterator[Event]:
    """The events that say what ran, was launched or was awaited; Python's frames are left out.

    Args:
        seen: gets how many `frames` of Python there were, how many events of a `device`, and how
            many of these end before they begin (`backwards`).
    """
    number = 0
    for event in events:
        kind = _kind(event.get("cat")) if event.get("ph") == "X" else None
        if kind is None:
            continue
        name = str(event.get("name", ""))
        seen["frames"] += kind == "python"
        if kind == "python" and not name.startswith(MODULE) and not INPUT.search(name):
            continue
        number += 1
        if number > MOST_EVENTS:
            raise ParamsError(f"it holds more than {MOST_EVENTS:,} events; trace fewer steps")
        thread = (str(event.get("pid")), str(event.get("tid")))
        begin, end = json_events.instants(event)
        if kind in ON_DEVICE:
            seen["device"] += 1
            seen["backwards"] += json_events.ends_before_it_begins(event)
        yield Event(kind, name, thread, begin, end, _kept(kind, name, event))


def _kind(category: Any) -> str | None:
    """The kind of the events of a category; None where they are not read."""
    return KINDS.get(str(category or "").lower())


def _kept(kind: str, name: str, event: Mapping[str, Any]) -> dict[str, Any]:
    """The details of an event that are read, under one name each."""
    args = json_events.details(event)
    kept = {short: args[n] for n, short in DETAILS.items() if isinstance(args.get(n), PLAIN)}
    if str(event.get("cat")) == "user_annotation" or RANGE.match(name):
        kept["range"] = True
    if kind == "op" and PRODUCT.match(name):
        kept["shape"] = _shape(name, args.get("Input Dims", args.get("Input dims")))
    if kind in ON_DEVICE:
        device = args.get("device", event.get("pid"))
        kept |= {"device": device} if isinstance(device, PLAIN) else {}
        kept |= _counts(args)
    return kept


def _counts(args: Mapping[str, Any]) -> dict[str, float]:
    """The hardware counters among the details of a kernel."""
    return {
        name: float(value)
        for name, value in args.items()
        if "__" in name and COUNTER.search(name) and isinstance(value, int | float)
    }


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


def _recorded(about: Mapping[str, Any], seen: Mapping[str, int]) -> dict[str, str]:
    """What a file tells of how it was recorded, beside the GPU, by name."""
    known = {"Python's stack": "recorded" if seen["frames"] else "not recorded"}
    spread, version = about.get("distributedInfo"), about.get("cuda_runtime_version")
    ranks = spread.get("world_size") if isinstance(spread, dict) else None
    if isinstance(ranks, int):
        known["ranks"] = f"{ranks}"
    if isinstance(version, int):
        known["CUDA"] = f"{version // 1000}.{version % 1000 // 10}"
    return known


def _refuse_backwards(seen: Mapping[str, int]) -> None:
    """Refuses a device many of whose events end before they begin: their time is in no share."""
    if seen["backwards"] > BACKWARDS * seen["device"]:
        raise ParamsError(
            f"{seen['backwards']} of {seen['device']} events of the device end before they begin: "
            "its clock jumped"
        )


def _backwards(seen: Mapping[str, int]) -> Iterator[str]:
    """Says where a few do."""
    if seen["backwards"]:
        yield (
            f"{seen['backwards']} of {seen['device']} events of the device end before they begin; "
            "they count as if they took no time"
        )


def _unseen(trace: Trace, models: Mapping[str, str]) -> Iterator[str]:
    """Says where a machine has GPUs of which nothing was recorded."""
    if trace.device == "cpu" and models:
        yield (
            f"the machine has a GPU, {next(iter(models.values()))}, and no kernel of it was "
            "recorded: if the training ran there, these are times of the host alone; record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )


def _notes(events: Sequence[Event], host: Host) -> Iterator[str]:
    known = [event for event in events if event.kind != "copy"]
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
    calls = [number for at, number in _launches(events) if begin <= at < end]
    lost = sum(1 for number in calls if number not in ran) if ran else 0
    said = f"{lost} of {len(calls)} kernels that were launched in the steps were not recorded"
    if lost > LOST * len(calls):
        raise ParamsError(f"{said}: the profiler lost them; trace fewer steps")
    return [f"{said}; their time counts as if the device had no work"] if lost else []


def _launches(events: Iterable[Event]) -> Iterator[tuple[float, Any]]:
    """When kernels were launched to be run, and the numbers that tie them to it."""
    capturing: set[Any] = set()
    for event in sorted((e for e in events if e.kind == "launch"), key=lambda e: e.start):
        runs = LAUNCHES.search(event.name) and event.thread not in capturing
        if match := CAPTURES.search(event.name):
            (capturing.add if match[1] == "Begin" else capturing.discard)(event.thread)
        elif runs and "correlation" in event.args:
            yield event.start, event.args["correlation"]


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
    counted = any(_counts(event.args) for event in known)
    return counted and (known[0].kind == "counted" or (len(lengths) == 1 and len(known) > 2))


def _graphed(ran: Sequence[Event], host: Host) -> bool:
    """Whether most of a device's time is CUDA graphs, of which the host's names tell nothing."""
    of_graphs = _work_s(event for event in ran if event.name == GRAPH or host.replays(event))
    return of_graphs > _work_s(ran) / 2


def _trains(
    events: Iterable[Event], ran: Iterable[Event], found: Steps, graphed: bool
) -> bool | None:
    """Whether a backward pass or an optimizer ran; None where nothing tells.

    Where marks say when the steps were, in these: before them others may have trained.

    Args:
        ran: on the device that is explained.
        graphed: whether a graph ran it, which the host says nothing of.
    """
    marked = found.how.startswith(MARKED)
    begin, end = found.launched if marked else (-math.inf, math.inf)
    first, last = found.between if marked else (-math.inf, math.inf)
    on_device = {event.name for event in ran if first <= event.start < last}
    if any(kernels.work(name) == "optimizer" for name in on_device):
        return True
    names: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.kind != "op" or begin <= event.start < end:
            names[event.kind].add(event.name)
    if any(BACKWARD.search(name) or OPTIMIZER.search(name) for name in names["op"]):
        return True
    known = any(name.startswith("aten::") for name in names["op"])
    told = known and not graphed and not any(map(GRADIENT.search, names["kernel"]))
    return False if told else None


def _of_training(kernel: str) -> bool:
    return kernels.work(kernel) == "optimizer" or bool(GRADIENT.search(kernel))


def _shape(product: str, shapes: Any) -> Sequence[Any]:
    """The shape of what a product reads, of those of all its inputs; empty where unavailable."""
    place = product == "aten::addmm"  # whose first input is the bias
    known = isinstance(shapes, list) and len(shapes) > place and isinstance(shapes[place], list)
    return shapes[place] if known else ()


def _input_shape(events: Iterable[Event], found: Steps) -> str:
    """The shape of what the first product of a step reads; empty where shapes were not recorded."""
    begin = found.launched[0]
    with_shapes = [e for e in events if e.start >= begin and e.args.get("shape")]
    first = min(with_shapes, key=lambda event: event.start, default=None)
    return "x".join(map(str, first.args["shape"])) if first else ""


def _updates(events: Iterable[Event], ran: Iterable[Event], found: Steps) -> Sequence[int] | None:
    """How often the optimizer stepped in each of the steps; None where nothing tells.

    Of several optimizers that which stepped most often.

    Args:
        ran: on the device that is explained.
    """
    intervals = found.on_host or found.intervals
    begins, ends = zip(*intervals, strict=True)
    stepped: dict[str, Counter[int]] = defaultdict(Counter)
    trained = False
    for event in events:
        place = bisect_right(begins, event.start) - 1 if event.kind == "op" else -1
        if place >= 0 and event.start < ends[place]:
            if event.name.startswith(STEPPED):
                stepped[event.name][place] += 1
            trained = trained or bool(BACKWARD.search(event.name))
    if not stepped and (not trained or any(kernels.work(e.name) == "optimizer" for e in ran)):
        return None
    most = max(stepped.values(), key=Counter.total, default=Counter())
    return [most[place] for place in range(len(intervals))]


def _accumulates(updates: Sequence[int] | None, found: Steps) -> bool:
    """Whether the optimizer stepped in some of several steps alone.

    One step may lack it as it is cut off, or as a loss scaler skipped it, unless no two steps in
    succession have it.
    """
    if not updates or not any(updates):
        return False
    marked = found.how.startswith(MARKED)
    apart = marked and not any(one and after for one, after in pairwise(updates))
    return sum(updates) < len(updates) - (0 if apart else 1)


def _stepped(events: Iterable[Event], updates: Sequence[int] | None, found: Steps) -> Iterator[str]:
    """Says where the optimizer steps less often, or more often, than the marks say."""
    if updates is None:
        return
    number, stepped = len(updates), sum(updates)
    skips = any(event.kind == "op" and SCALING.search(event.name) for event in events)
    micro = "gradients are accumulated, and a step here is the work on one micro-batch"
    skipped = "the loss scaler skipped the others, or " * skips
    if _accumulates(updates, found):
        cut = ", or the recording ends within the last one" * (number == 2 and not updates[-1])
        yield f"the optimizer stepped in {stepped} of {number} steps: {skipped}{micro}{cut}"
    if not stepped:
        yield (
            f"no step of an optimizer was recorded in {number} steps with a backward pass: "
            f"{skipped}{micro}, or the optimizer leaves no mark (compiled, or one's own)"
        )
    if stepped > SEVERAL * number:
        yield (
            f"the optimizer stepped {stepped} times in {number} steps: a step here is several of "
            "the training, or has several optimizers"
        )


def _other_kind(found: Steps, graphs: Sequence[float]) -> Iterator[str]:
    """Says where most steps replay CUDA graphs and others do not, or the other way round."""
    if found.other_kind:
        others, most = ("no", "one") if steps.holding(found, graphs) else ("a", "none")
        left = f"{found.other_kind} of {found.found} steps"
        yield f"{left}, which replay {others} CUDA graph, are left out, as most replay {most}"


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


def _refuse_skewed(found: Steps, launched: Launched) -> None:
    """Refuses a trace whose device ran the steps at another time than its host launched them."""
    (begin, end), (first, last) = found.between, found.launched
    ran = [interval for at, interval in launched if first <= at <= last]
    total = sum(e - b for b, e in ran)
    if steps.took_within(ran, begin, end) < LEAST_WITHIN * total:
        raise ParamsError(CLOCKS)


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
    early = [at - begin for at, (begin, _) in launched if at - begin > SKEW_US]
    if len(early) > len(launched) / 2:
        yield (
            f"kernels begin {statistics.median(early) / 1e3:.3g} ms before the calls that launch "
            "them: the clocks of host and device differ, and waits are only roughly right"
        )


def _refuse_untraced_gpu(events: Iterable[Event]) -> None:
    """Refuses a training on a GPU of which only the host was traced."""
    names = {event.name for event in events if event.kind in ("op", "launch")}
    if any(OF_APPLE.match(name) for name in names):
        raise ParamsError(
            "it is of an Apple GPU (MPS), whose work PyTorch's profiler does not record"
        )
    if any(OF_GPU.match(name) or "LaunchKernel" in name for name in names):
        raise ParamsError(
            "it ran on a GPU and holds none of its kernels; record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )


# --- steps and waits -----------------------------------------------------------------------------


def _of_one_name(events: Sequence[Event]) -> list[Interval]:
    """The marks of the name that most have, numbers left out; of several the one that comes first.

    A range around reading a batch, followed by one around the step, are one step together.
    """
    by_name: dict[str, list[Interval]] = {}
    for event in sorted(events, key=lambda event: event.start):
        by_name.setdefault(re.sub(r"\d+", "", event.name), []).append((event.start, event.end))
    return max(by_name.values(), key=len, default=[])


def _steps(
    events: Sequence[Event],
    spans: Sequence[Span],
    launched: Launched,
    waited: Sequence[Interval],
    gradients: Sequence[float],
    graphs: Sequence[float],
) -> Steps:
    """The steps, by the first that there is: marks, the optimizer's steps, what repeats.

    Args:
        gradients: when kernels were launched that only a training has.
        graphs: when CUDA graphs were launched, which may hold a backward pass.
    """
    trained = [e.start for e in events if e.kind == "op" and BACKWARD.search(e.name)]
    trained += [*gradients, *graphs]
    updated = [e.start for e in events if e.kind == "op" and e.name.startswith(STEPPED)]
    for pattern, how in zip((STEP, RANGE), MARKED, strict=True):
        named = [e for e in events if e.kind == "op" and pattern.match(e.name)]
        marks = _of_one_name(named)
        if marks:
            busy, whole = operations.busy(spans), pattern is STEP
            return steps.marked(marks, busy, how, launched, trained, whole, waited, graphs, updated)
    work = [
        ((s.start, s.end), (s.operation.kernel or s.operation.op))
        for s in spans
        if s.operation.state == "op" and not s.operation.op.startswith("Mem")
    ]
    first, last = min(s.start for s in spans), max(s.end for s in spans)
    host = min([first, *(e.start for e in events if e.kind in ("op", "launch"))])
    ended = _optimized(events)
    if not ended:
        return steps.repeated(work, first=host, waited=waited) or steps.whole(first, last)
    every = _round(events, ended)
    pairs = list(pairwise([host, *ended][len(ended) % every :: every]))
    how = BY_OPTIMIZER if every == 1 else f"every {every} steps of the optimizer"
    return steps.marked(pairs, operations.busy(spans), how, launched, waited=waited)


def _optimized(events: Iterable[Event]) -> list[float]:
    """When the only optimizer had stepped, in order; none where several step, or one steps once."""
    marks = [e for e in events if e.kind == "op" and e.name.startswith(STEPPED)]
    one = len(marks) > 1 and len({e.name for e in marks}) == 1
    return sorted(e.end for e in marks) if one else []


def _round(events: Iterable[Event], ended: Sequence[float]) -> int:
    """After how many steps of optimizers of one name the same backward passes recur.

    Two of a GAN have backward passes that alternate. Of the first step, the recording may lack a
    part; at least two rounds tell.

    Args:
        ended: when they had stepped, in order.
    """
    passes: list[Counter[str]] = [Counter() for _ in (*ended, "after the last")]
    for event in events:
        if event.kind == "op" and BACKWARD.search(event.name):
            passes[bisect_left(ended, event.start)][event.name] += 1
    ran = passes[1:-1]
    return next((n for n in range(1, len(ran) // 2 + 1) if ran[n:] == ran[:-n]), 1)


def _trainers(events: Sequence[Event]) -> Collection[Any]:
    """The threads that train: they launch kernels or bear the steps' marks; all if none does.

    What another one awaits, such as one that reads batches ahead, keeps no step waiting.
    """
    training = (STEP, RANGE, OPTIMIZER, LAUNCHES, GRAPH_LAUNCH)
    names = {e.name for e in events if e.kind in ("op", "launch")}
    names = {name for name in names if any(pattern.search(name) for pattern in training)}
    return {e.thread for e in events if e.name in names} or {e.thread for e in events}


def _blocked(events: Sequence[Event], trainers: Collection[Any]) -> Iterator[Span]:
    """When a call that copies kept the host until the device came to the copy.

    So it does with memory that is not pinned; other copies begin when their call has returned.
    """
    tied = (e for e in events if "correlation" in e.args)
    copies = {e.args["correlation"]: e for e in tied if e.kind == "copy"}
    for event in (e for e in events if e.thread in trainers):
        copy = copies.get(event.args.get("correlation")) if event.kind == "launch" else None
        if copy is not None and event.start < copy.start < event.end:
            yield Span(event.start, copy.start, Operation("idle"))


def _earlier(events: Sequence[Event], found: Steps, waits: Iterable[Span]) -> list[Interval]:
    """When the first step waited for what the device was given before the recording began.

    None where that is too short to matter.
    """
    first = min((e.start for e in events if e.kind in ON_DEVICE), default=0.0)
    begin = found.launched[0]
    waited = [
        (wait.start, wait.end)
        for wait in waits
        if wait.operation.state == "idle"
        if begin <= wait.start and wait.end <= first
    ]
    least = UNFINISHED * statistics.median(e - b for b, e in found.intervals)
    return waited if sum(e - b for b, e in waited) > least else []


def _begun(found: Steps, waits: Sequence[Interval]) -> Steps:
    """The steps, of which the first begins once the device has done what came before it."""
    (begin, end), *others = found.intervals
    freed = max((e for _, e in waits), default=begin)
    return replace(found, intervals=((freed, end), *others)) if begin < freed < end else found


def _waits(events: Iterable[Event]) -> Iterator[Span]:
    """When the host waited for a batch, when for the device, and when for memory."""
    for event in events:
        if event.kind in ("op", "python") and INPUT.search(event.name):
            yield Span(event.start, event.end, Operation("input"))
        elif event.kind == "launch" and IDLE.search(event.name):
            yield Span(event.start, event.end, Operation("idle"))
        elif event.kind == "launch" and ALLOCATES.search(event.name):
            yield Span(event.start, event.end, Operation("allocation"))
