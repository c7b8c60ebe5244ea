"""The one table of operations that a trace of any origin is read into.

A profile's format is read by one module with a function `read` that returns a `Trace`: `xplane` is
that of TensorFlow and JAX. The reader names what ran (`Span`), `traced` makes the table, and the
time breakdown works on it without knowing where it came from.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

ON_HOST = "(on the host)"  # stands for the kernel of an operation that no GPU kernel came from
# An instant without any operation belongs to the first of these that is going on, else to host.
WAITS = ("input", "idle", "host")


class Operation(NamedTuple):
    """A row of the table: all events of the traced steps that agree in the first five fields.

    Attributes:
        state: op; for the time without any operation input (a batch is awaited or copied to the
            device), idle (the host awaits the device) or host (the host is at work itself).
        layer: the model's layer that it belongs to; empty where it belongs to none.
        part: forward, backward, optimizer, loss scaling, loss, other; empty unless state is op.
        op: the operation as the framework names it, such as `Conv2D` or `loop_add_fusion`.
        kernel: the GPU kernel's name; `ON_HOST` for an operation that ran on the CPU instead; empty
            where a CPU was traced.
        seconds: of a step. The rows of a trace sum to its step.
        count: events in a step.
    """

    state: str
    layer: str = ""
    part: str = ""
    op: str = ""
    kernel: str = ""
    seconds: float = 0.0
    count: float = 0.0


class Span(NamedTuple):
    """An event: from when to when, in microseconds, and what it was.

    Of the operation only the first five fields count. A copy between host and device has the state
    copy, which `shares` resolves.
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
    """

    steps: int
    step_s: float
    device: str
    input_busy_s: float
    operations: list[Operation]

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


def traced(
    operations: Iterable[Span],
    waits: Iterable[Span],
    pipeline: Iterable[Span],
    between: tuple[float, float],
    steps: int,
    device: str,
) -> Trace:
    """The table of what ran between two instants that hold a number of steps.

    Args:
        operations: what ran on the traced device, and copies to and from it.
        waits: what the host did meanwhile, with a state of `WAITS`.
        pipeline: when the input pipeline worked.
        between: first and last instant, in microseconds.
    """
    begin, end = between
    inside = [span for span in operations if span.end > begin and span.start < end]
    counts = Counter(_resolved(span.operation) for span in inside)
    owned = sorted(shares(inside, waits, begin, end).items(), key=lambda item: -item[1])
    working = Operation("op")
    busy = shares((s._replace(operation=working) for s in pipeline), (), begin, end)
    return Trace(
        steps=steps,
        step_s=(end - begin) / steps / 1e6,
        device=device,
        input_busy_s=busy.get(working, 0.0) / steps / 1e6,
        operations=[
            owner._replace(seconds=us / steps / 1e6, count=counts[owner] / steps)
            for owner, us in owned
        ],
    )


def shares(
    operations: Iterable[Span], waits: Iterable[Span], begin: float, end: float
) -> dict[Operation, float]:
    """Microseconds between two instants that each operation owns; they sum to end - begin.

    An instant belongs in equal shares to the operations that run at it, to copies where nothing
    else runs, else to one of `WAITS`.
    """
    # A sweep over the instants at which something begins (1) or ends (-1), begins first.
    points: list[tuple[float, int, Operation | None]] = [(begin, 0, None), (end, 0, None)]
    for span in (*operations, *waits):
        if span.end > begin and span.start < end and span.end > span.start:
            points.append((max(begin, span.start), 1, span.operation))
            points.append((min(end, span.end), -1, span.operation))
    points.sort(key=lambda point: (point[0], -point[1]))
    owned: dict[Operation, float] = defaultdict(float)
    active: Counter[Operation] = Counter()
    before = begin
    for time, change, operation in points:
        if time > before:
            for owner, share in _owners(active):
                owned[owner] += share * (time - before)
            before = time
        if operation is not None:
            active[operation] += change
            if not active[operation]:
                del active[operation]
    return dict(owned)


def _owners(active: Counter[Operation]) -> list[tuple[Operation, float]]:
    """What an instant belongs to, and the share of each."""
    for state in ("op", "copy"):
        working = {key: n for key, n in active.items() if key.state == state}
        if working:
            total = sum(working.values())
            return [(_resolved(key), n / total) for key, n in working.items()]
    going_on = {key.state for key in active}
    return [(Operation(next((s for s in WAITS if s in going_on), "host")), 1.0)]


def _resolved(operation: Operation) -> Operation:
    """A copy of a batch to the device is input, any other copy an operation of its own."""
    if operation.state == "copy":
        return Operation("input") if "H2D" in operation.op else operation._replace(state="op")
    return operation
