"""Reads the traces of PyTorch's profiler (Kineto): the JSON of `export_chrome_trace`."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mptexp.errors import ParamsError
from mptexp.traces import counters, json_events, launches, weight_products
from mptexp.traces.launching_layers import COMPILED, INPUT, MODULE, ON_DEVICE, RANGE, Event
from mptexp.traces.operations import TO_DEVICE, Operation, Trace, capability
from mptexp.traces.xla_names import LAYER

# Categories have two sets of names: those of PyTorch 1.8 to 1.12 (`Operator`, `Kernel`, `Runtime`,
# `Memcpy`) and later ones (`cpu_op`, `kernel`, `cuda_runtime`, `gpu_memcpy`), which are read alike.
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
# Timed events beside what ran: of the profiler itself, and what stands a second time in the trace.
ASIDE = {"trace", "overhead", "gpu_user_annotation", "cuda_sync", "cpu_instant_event"}
UNREAD = 0.1  # of the events that are read: so many of other kinds are work that is not known
ASCEND = ("Ascend Hardware", "CANN")  # names of processes in a trace of Huawei's NPUs
PLAIN = (str, int, float)  # not null, and nothing that cannot be a key
DETAILS = {
    "correlation": "correlation", "external id": "external", "External id": "external",
    "Sequence number": "sequence",
}  # fmt: skip
# The ranges of mptexp's own traces, and the file that they are written to.
OWN_STEP = "Optimizer.step#keras"
OWN_INPUT, OWN_FILE = "enumerate(DataLoader)#mptexp", "own.trace.json"
# What PyTorch writes as people's own ranges, and is an operation.
OPERATIONS = re.compile(rf"^(gloo:|mpi:|{re.escape(COMPILED)}$)")
PRODUCT = re.compile(r"^aten::(conv\w*|_convolution|linear|addmm|mm|bmm|matmul)$")
BACKWARDS = 0.01  # of the events of a device: so few may end before they begin


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
    known = launches.held(_known(events, seen))  # `about` is complete from here
    backwards = _backwards(seen)
    _refuse_unread(seen)
    models = _models(about)
    trace = launches.of_events(known, models, "PyTorch")
    return replace(
        trace,
        in_use=tuple(_in_use(known)),
        recorded=_recorded(about, seen) | capability(_properties(about), trace.gpu),
        notes=(*trace.notes, *backwards, *_unseen(trace, models)),
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


def _known(events: Iterable[Mapping[str, Any]], seen: Counter[str]) -> Iterator[Event]:
    """The events that say what ran, was launched or was awaited; Python's frames are left out.

    Args:
        seen: gets how many `frames` of Python there were, how many events of a `device`, how
            many of these end before they begin (`backwards`), how many are `known` and how many
            timed ones are of other kinds (`unread`).
    """
    for event in events:
        kind = _kind(event.get("cat")) if event.get("ph") == "X" else None
        if kind is None:
            _refuse_ascend(event)
            aside = str(event.get("cat")).lower() in ASIDE
            seen["unread"] += event.get("ph") == "X" and not aside
            continue
        seen["known"] += 1
        name = str(event.get("name", ""))
        seen["frames"] += kind == "python"
        if kind == "python" and not name.startswith(MODULE) and not INPUT.search(name):
            continue
        if name.startswith(COMPILED):
            name = COMPILED  # a digest follows, in which there may be words
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
    own = str(event.get("cat")) == "user_annotation" and not OPERATIONS.match(name)
    if own or RANGE.match(name):
        kept["range"] = True
    if kind == "op" and PRODUCT.match(name):
        shapes = args.get("Input Dims", args.get("Input dims"))
        # The first input of addmm is the bias.
        kept["shape"] = weight_products.axes(shapes, int(name == "aten::addmm"))
        kept["weights"] = weight_products.shape(name, shapes)
    if kind in ON_DEVICE:
        device = args.get("device", event.get("pid"))
        kept |= {"device": device} if isinstance(device, PLAIN) else {}
        kept |= counters.among(args)
    return kept


def _models(about: Mapping[str, Any]) -> dict[str, str]:
    """The names of the GPUs by number."""
    rows = _properties(about)
    return {number: str(row.get("name", "")) for number, row in rows.items()}


def _properties(about: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What stands about the GPUs, by number."""
    listed = about.get("deviceProperties")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return {str(row.get("id")): row for row in rows}


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


def _in_use(events: Iterable[Event]) -> Iterator[str]:
    """Of what could be tried, that most of what is copied to the device lies in pinned memory."""
    sent = [e for e in events if e.kind == "copy" and TO_DEVICE.search(e.name)]
    pinned = (event.end - event.start for event in sent if "Pinned" in event.name)
    if sum(pinned) > sum(event.end - event.start for event in sent) / 2:
        yield "pin_memory"


def _refuse_ascend(event: Mapping[str, Any]) -> None:
    """Refuses a trace with the work of Huawei's NPUs, by the names of its processes."""
    named = event.get("name") == "process_name" and json_events.details(event).get("name")
    if named in ASCEND:
        raise ParamsError("it is of an Ascend NPU, whose work is not read")


def _refuse_unread(seen: Mapping[str, int]) -> None:
    """Refuses a CPU's trace with much of other kinds: a device that is not known may have worked.

    Its work would be missing, and the host would look as if it waited.
    """
    if not seen["device"] and seen["unread"] > UNREAD * seen["known"]:
        raise ParamsError(
            f"it holds no kernel of a GPU, and {seen['unread']} timed events of kinds that are "
            "not read: it may be of a device that is not known"
        )


def _backwards(seen: Mapping[str, int]) -> list[str]:
    """Says where a few events of a device end before they begin; refuses many.

    Their time would be in no share.
    """
    said = f"{seen['backwards']} of {seen['device']} events of the device end before they begin"
    if seen["backwards"] > BACKWARDS * seen["device"]:
        raise ParamsError(f"{said}: its clock jumped")
    return [f"{said}; they count as if they took no time"] if seen["backwards"] else []


def _unseen(trace: Trace, models: Mapping[str, str]) -> Iterator[str]:
    """Says where a machine has GPUs of which nothing was recorded."""
    if trace.device == "cpu" and models:
        yield (
            f"the machine has a GPU, {next(iter(models.values()))}, and no kernel of it was "
            "recorded: if the training ran there, these are times of the host alone; record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
