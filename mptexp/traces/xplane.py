"""A profile trace as a table: to what each instant of the traced steps belonged.

Reads the raw events through xprof (its trace viewer's JSON), with the names that Keras's layers
had while they were traced. Classifies nothing: what an operation was for is said by `ledger`.
A machine without xprof keeps the trace beside the record, and another one reads it.
"""

import gzip
import json
import os
import re
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mptexp.spec import imports

FILE = "trace.xplane.pb.gz"  # beside the record of a run whose trace was not read there
MOST_BYTES = 2**30  # of a trace that is unpacked; a second of GPU kernels has some megabytes
MOST_EVENTS = 20_000_000  # that xprof is asked for
MARK = "train"  # the name of the step markers
INPUT = "mptexp input"  # the annotation around the wait for a batch, where the framework has none
LAYER = ".layer"  # what traced layers' names end in: TensorFlow appends numbers of its own to names

# Instants without an operation belong to the first of these that is going on.
STATES = ("input", "idle", "host")
CONTAINERS = {"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase"}
CONTAINERS |= {"PartitionedCall", "StatefulPartitionedCall", "_Send", "_Recv", "NoOp"}
INPUT_EVENTS = (INPUT, "IteratorGetNext", "Iterator::Root")
WAIT_EVENTS = ("Await", "BlockHostUntilDone", "SynchronizeAllActivity", "cuStreamSynchronize")
WAIT_EVENTS += ("np.asarray(jax.Array)",)
# The end of a path that names a scope, not an operation: XLA gives a fusion the path that all
# operations in it have in common.
SCOPE = re.compile(
    rf"\)$|{re.escape(LAYER)}(_\d+)?$|^(while|body|cond|branch_\d+_fun|closed_call|xla_run)$"
)


class Key(NamedTuple):
    """What the rows of a ledger are told apart by; see `table`."""

    state: str
    layer: str = ""
    part: str = ""
    op: str = ""
    kernel: str = ""


class Span(NamedTuple):
    """An event: what it belongs to, from when to when, in microseconds."""

    start: float
    end: float
    key: Key

    @classmethod
    def of(cls, event: Mapping[str, Any], key: Key) -> "Span":
        return cls(event["ts"], event["ts"] + event["dur"], key)


def left(folder: Path) -> Path | None:
    """The trace that a profiler left under a folder; None where it left none."""
    return max(folder.rglob("*.xplane.pb"), default=None)


def read(file: Path) -> list[dict[str, Any]]:
    """The events of a trace, as xprof's trace viewer gives them.

    Raises:
        ImportError: where xprof is not installed.
        ValueError: where xprof says that it cannot read it; it fails in other ways, too.
    """
    with imports.quiet():
        from xprof.convert import raw_to_tool_data

        # Else only the first million events are given, without a word.
        os.environ.setdefault("TF_PROFILER_TRACE_VIEWER_MAX_EVENTS", str(MOST_EVENTS))
        text, _ = raw_to_tool_data.xspace_to_tool_data([str(file)], "trace_viewer", {})
    events = json.loads(text or "{}").get("traceEvents")
    if events is None:
        raise ValueError("xprof cannot read it")
    return events


def pack(file: Path) -> bytes:
    """A trace, compressed, to be kept."""
    return gzip.compress(file.read_bytes())


def unpack(file: Path) -> list[dict[str, Any]]:
    """The events of a trace that was kept; see `read`.

    Raises:
        OSError, ValueError: where the file holds no compressed trace; besides what `read` raises.
    """
    with tempfile.TemporaryDirectory() as name, gzip.open(file) as packed:
        try:
            content = packed.read(MOST_BYTES + 1)
        except (EOFError, zlib.error) as error:
            raise ValueError(f"damaged: {error}") from None
        if len(content) > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES // 2**20} MiB when unpacked")
        file = Path(name, "kept.xplane.pb")
        file.write_bytes(content)
        return read(file)


def per_step(
    events: Iterable[Mapping[str, Any]], how: Mapping[str, Any], timed_s: float
) -> dict[str, Any]:
    """A record's `profile`: see `table` for its keys.

    Besides: slowdown (traced step over timed step, above 1 is slower), missing (empty: see
    profile.captured).

    Args:
        events: of a trace viewer.
        how: optimizers and scaled as `table` takes them; every: steps that a marker spans, which
            are what one call of the backend executes.
        timed_s: seconds of a step that was not traced.
    """
    found = table(events, how["optimizers"], how["scaled"])
    every = how["every"]
    for row in found["rows"]:
        row |= {"seconds": row["seconds"] / every, "count": row["count"] / every}
    found |= {"steps": found["steps"] * every, "step_s": found["step_s"] / every}
    return found | {"slowdown": found["step_s"] / timed_s, "missing": ""}


def table(
    events: Iterable[Mapping[str, Any]], optimizers: Iterable[str], scaled: bool
) -> dict[str, Any]:
    """To what each instant of the marked steps belonged.

    Each instant belongs to the operations active at that instant, in equal shares where several
    overlap; where a GPU is traced those are its kernels. Copies count where no kernel runs. An
    instant without operation is input, idle (the host waits) or host, so the rows sum to the steps.

    Args:
        events: of a trace viewer, times in microseconds.
        optimizers: names under which the optimizer's operations stand.
        scaled: whether the loss is scaled.

    Returns:
        steps (marked), step_s (their mean), device (cpu or gpu), input_busy_s (the input pipeline
        at work, overlapped or not, per step), rows: state (op, input, idle, host), layer, part
        (forward, backward, optimizer, loss scaling, loss, other), op, kernel, seconds (per step),
        count (of events, per step); the longest first.

    Raises:
        ValueError: where no step is marked.
    """
    lines = _lines(events)
    marks = [e for _, _, e in lines if e["name"].split(" ")[0] == MARK and "step_num" in e["args"]]
    if not marks:
        raise ValueError("the trace holds no marked step")
    begin = min(e["ts"] for e in marks)
    end = max(e["ts"] + e["dur"] for e in marks)
    on_gpu = any("/device:GPU" in process for process, _, _ in lines)
    naming = _Naming(tuple(optimizers), scaled)
    operations = naming.kernels(lines) if on_gpu else naming.host_operations(lines)
    inside = [s for s in operations if s.end > begin and s.start < end]
    found = shares(inside, _states(lines), begin, end)
    counts = Counter(span.key for span in inside)
    steps = len(marks)
    rows = [
        {**key._asdict(), "seconds": us / steps / 1e6, "count": counts[key] / steps}
        for key, us in sorted(found.items(), key=lambda item: -item[1])
    ]
    return {
        "steps": steps,
        "step_s": (end - begin) / steps / 1e6,
        "device": "gpu" if on_gpu else "cpu",
        "input_busy_s": _input_busy(lines, begin, end) / steps / 1e6,
        "rows": rows,
    }


def _input_busy(
    lines: Iterable[tuple[str, str, Mapping[str, Any]]], begin: float, end: float
) -> float:
    """Microseconds in which the input pipeline worked, whether or not the step waited for it."""
    key = Key("op", op="input")
    working = [
        Span.of(e, key)
        for _, thread, e in lines
        if (thread.startswith("tf_data") and e["name"] == "ExecutorState::Process")
        or e["name"].startswith(INPUT_EVENTS)
    ]
    return shares(working, [], begin, end).get(key, 0.0)


def _lines(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Process name, thread name and event, for every event with a duration."""
    events = list(events)
    process = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    thread = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"
    }
    return [
        (process.get(e["pid"], ""), thread.get((e["pid"], e["tid"]), ""), {"args": {}, **e})
        for e in events
        if e.get("ph") == "X"
    ]


def shares(
    operations: Iterable[Span], states: Iterable[Span], begin: float, end: float
) -> dict[Key, float]:
    """Microseconds between begin and end that belong to each key; they sum to end - begin."""
    points = [(begin, 0, None), (end, 0, None)]
    for span in (*operations, *states):
        if span.end > begin and span.start < end and span.end > span.start:
            points += [(max(begin, span.start), 1, span.key), (min(end, span.end), -1, span.key)]
    points.sort(key=lambda point: (point[0], -point[1]))
    found: dict[Key, float] = defaultdict(float)
    active: Counter[Key] = Counter()
    before = begin
    for time, change, key in points:
        if time > before:
            for owner, share in _owners(active):
                found[owner] += share * (time - before)
            before = time
        if key is not None:
            active[key] += change
            if not active[key]:
                del active[key]
    return dict(found)


def _owners(active: Counter[Key]) -> list[tuple[Key, float]]:
    """Who an instant belongs to, with their shares: kernels, else copies, else what goes on."""
    for state in ("op", "copy"):
        working = {key: n for key, n in active.items() if key.state == state}
        if working:
            total = sum(working.values())
            return [(_as_op(key), n / total) for key, n in working.items()]
    going_on = {key.state for key in active}
    return [(Key(next((s for s in STATES if s in going_on), "host")), 1.0)]


def _as_op(key: Key) -> Key:
    """A copy of a batch to the device is input, any other copy an operation of its own."""
    if key.state == "copy":
        return Key("input") if "H2D" in key.op else key._replace(state="op")
    return key


def _states(lines: Iterable[tuple[str, str, Mapping[str, Any]]]) -> list[Span]:
    """When the host waited for a batch, and when for the device."""
    found = []
    for process, _, event in lines:
        if "/device:" in process:
            continue
        if event["name"].startswith(INPUT_EVENTS):
            state = "input"
        elif any(name in event["name"] for name in WAIT_EVENTS):
            state = "idle"
        else:
            continue
        found.append(Span.of(event, Key(state)))
    return found


def _full_name(event: Mapping[str, Any]) -> str:
    """Path and type of a TensorFlow operation, such as `model/dense/MatMul:MatMul`; else empty."""
    name = event["args"].get("long_name") or event["name"]
    return name if re.fullmatch(r"[\w.\\/>-]+:\w+", name) else ""


def _launched_for(args: Mapping[str, str]) -> tuple[str, str]:
    """Path and operation that a kernel was launched for; no operation where only a scope is known.

    TensorFlow's own stand under tf_op as path:Type. Under XLA tf_op is the outermost annotation,
    which says XlaModule, and the path stands under name, what all names have in common cut off into
    prefix (openxla/xla, cupti_collector.cc; marin-community/marin, pull request 8691).
    """
    xla = "hlo_op" in args or args.get("tf_op", "").startswith("XlaModule")
    if not xla:
        path = args.get("tf_op") or args.get("long_name") or args.get("name") or ""
        if ":" in path:
            path, _, op = path.rpartition(":")
            return path, op
    else:
        path = "/".join(part for part in (args.get("prefix"), args.get("name")) if part)
    last = path.rpartition("/")[2]
    return path, "" if SCOPE.search(last) else last


def _tells_more(instruction: str, op: str) -> bool:
    """Whether XLA's name of a fusion says what it does, and the path only one operation in it.

    `loop_convert_fusion` is what ends in a cast, whatever else is in it: there the path decides.
    """
    if not re.match(r"(loop|input|wrapped)_", instruction):
        return False
    return instruction != "loop_convert_fusion" or op != "convert_element_type"


def _without_number(name: str) -> str:
    """`loop_add_fusion.3` as `loop_add_fusion`."""
    return re.sub(r"([._]+(\d+|remat\d*|clone))+$", "", name)


class _Naming:
    """Reads layer, part and operation out of the names in a trace."""

    def __init__(self, optimizers: tuple[str, ...], scaled: bool) -> None:
        self.optimizers = optimizers
        self.scaled = scaled

    def host_operations(self, lines: Iterable[tuple[str, str, Mapping[str, Any]]]) -> list[Span]:
        """Operations that ran on the CPU; not those of the input pipeline, which has no layers."""
        found = []
        for _, thread, event in lines:
            name = _full_name(event) or event["args"].get("hlo_op", "")
            path, _, op = name.rpartition(":") if ":" in name else ("", "", name)
            if name and not thread.startswith("tf_data") and op not in CONTAINERS:
                key = self.key(path, op, "")
                found.append(Span.of(event, key))
        return found

    def kernels(self, lines: list[tuple[str, str, Mapping[str, Any]]]) -> list[Span]:
        """Kernels and copies of the first GPU, and operations that ran on the CPU instead."""
        first = min(process for process, _, _ in lines if "/device:GPU" in process)
        found, launched = [], set()
        for process, thread, event in lines:
            if process != first or not thread.startswith("Stream"):
                continue
            launched.add(event["args"].get("tf_op") or event["args"].get("long_name"))
            found.append(Span.of(event, self._kernel(event["args"], event["name"])))
        return found + self._fallen_back(lines, launched)

    def _kernel(self, args: Mapping[str, str], kernel: str) -> Key:
        if kernel.startswith(("Memcpy", "Memset")):
            return Key("copy", op=kernel.split(" ")[0])
        path, op = _launched_for(args)
        plain = kernel if re.fullmatch(r"[a-z][\w-]*", kernel) else ""  # as XLA names its own
        instruction = _without_number(args.get("hlo_op", plain))
        if not op or _tells_more(instruction, op):
            op = instruction
        return self.key(path, op, kernel)

    def _fallen_back(
        self, lines: Iterable[tuple[str, str, Mapping[str, Any]]], launched: set[str]
    ) -> list[Span]:
        """Operations on the host from which no kernel came, long enough to be the work itself."""
        found = []
        for process, thread, event in lines:
            name = _full_name(event)
            path, _, op = name.rpartition(":")
            known = name in launched or path in launched or op in CONTAINERS
            if "/device:" in process or thread.startswith("tf_data") or not path or known:
                continue
            if event["dur"] >= LEAST_FALLBACK_US:
                key = self.key(path, op, ON_HOST)
                found.append(Span.of(event, key))
        return found

    def key(self, path: str, op: str, kernel: str) -> Key:
        """Layer and part of an operation from its path, such as `model/dense.layer/MatMul`."""
        op = re.sub(r"^_Mkl(Native)?", "", op)
        layers = re.findall(r"([^/()]+)" + re.escape(LAYER), path)
        backward = "gradient_tape/" in path or "transpose(" in path
        if layers:
            return Key("op", layers[0], "backward" if backward else "forward", op, kernel)
        return Key("op", "", self._part(path, op), op, kernel)

    def _part(self, path: str, op: str) -> str:
        last = path.rpartition("/")[2]
        words = {re.sub(r"_\d+$", "", word) for word in re.split(r"[/()]", path)}
        if words & set(self.optimizers):
            return "optimizer"
        if self.scaled and (op in SCALING or last in SCALING or "cond" in words):
            return "loss scaling"
        return "loss" if words & {"compile_loss", "compile_metrics"} else "other"


ON_HOST = "(on the host)"
LEAST_FALLBACK_US = 50.0  # launching an operation takes less
SCALING = {"IsFinite", "All", "LogicalAnd", "is_finite", "reduce_and", "and"}
