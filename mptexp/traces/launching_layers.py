"""Which layer the host was in when it launched a kernel, of PyTorch's traces and Nsight's.

A kernel belongs to what the host was doing then: the operation, the module (`nn.Module: Linear_5`,
recorded by `with_stack`), the optimizer. The launch is found by the kernel's
correlation; where it is missing, the operation by its external id. The backward pass runs
elsewhere: its operations bear the "Sequence number" of the forward ones that made them.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from mptexp.traces.operations import BATCH, LEAST_ON_HOST_US, ON_HOST, TO_DEVICE, Operation, Span
from mptexp.traces.step_bounds import Interval

OWN_LOSS = "mptexp loss"  # the range around the loss in mptexp's own traces
MODULE = "nn.Module: "
# A module that moves its inputs to the device before it calls the model that it wraps.
WRAPPER = re.compile(r"^(Distributed)?DataParallel(_\d+)?$")
GRAPH = "(a CUDA graph)"  # stands for the kernels of a graph that was traced as a whole
PAGES = "MemcpyHtoD(pages)"  # of unified memory, which the device asks for as it needs them
GRAPH_LAUNCH = re.compile(r"GraphLaunch")  # of CUDA, its driver, and HIP
# What launches a kernel; fills (memset) are not recorded by every version.
LAUNCHES = re.compile(r"Launch\w*Kernel")
ON_DEVICE = ("kernel", "copy", "counted")  # kinds of events
STEP = re.compile(r"^ProfilerStep\s*#\s*\d+$")
RANGE = re.compile(  # what people call the range of a step, with or without its number
    r"^(train(ing)?[ _-]?)?(step|iter(ation)?|batch)[ _#:=-]*\d*$", re.IGNORECASE
)
# Frames of Python in which a batch is awaited, unless they lie in a part of the training, or
# around one: of anybody's iterator, of queues. Other locks are no wait for a batch.
READS = re.compile(
    r"\.py\(\d+\): __next__$|(^|[/\\])queues?\.py\(\d+\): get$|(^|[/\\])pool\.py\(\d+\): next$"
)
INPUT = re.compile(
    r"^enumerate\(DataLoader\)|dataloader_next|dataloader\.py\(\d+\): __next__"
    rf"|{READS.pattern}"
)
STEPPED = "Optimizer.step#"
# The range around code that torch.compile made: an operation, or an annotation in later versions.
COMPILED = "## Call CompiledFxGraph"
OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#")
BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$|^torch::autograd::")
SCALING = re.compile(r"^aten::_amp_")
# As a word: NLLLoss_0, nll_loss, NllLossBackward0; no GlossDecoder, nothing lossless.
LOSS = re.compile(r"(?<![A-Za-z])loss(es)?(?![a-z])|Loss(es)?(?![a-z])|LOSS")
# Of operations over many tensors at once: what clips gradients or averages weights; what only an
# optimizer computes, and what may be one's own.
CLIPS = re.compile(r"^_foreach_(norm|mul_|clamp\w*|lerp_)$")
UPDATES = re.compile(r"^aten::_foreach_(addcdiv|addcmul|sqrt)_?$")
OF_OPTIMIZERS = re.compile(r"^_foreach_(?!copy_|norm|clamp|zero_)")
# Operations that allocate, make views or call others: what they take themselves is the host's.
DISPATCH = re.compile(
    r"^(aten::)?(empty\w*|new_\w+|resolve_(conj|neg)|view\w*|_unsafe_view|as_strided_?|t|transpose"
    r"|permute|expand\w*|_?reshape\w*|flatten|detach_?|alias|select|slice|unsqueeze|squeeze|narrow"
    r"|unbind|chunk|split\w*|to|_to_copy|contiguous|clone|item|is_nonzero|_local_scalar_dense|resize_"
    r"|set_|lift_fresh|result_type|_has_compatible_shallow_copy_type|record_stream)$"
    r"|^(autograd|torch::autograd)::|Backward\d+$|^Optimizer\.|^detach$"
    r"|^(CompiledFunction(Backward)?|Pregraph bytecode)$"  # of torch.compile
    r"|^(Torch-Compiled|TorchDynamo|AOTDispatcher) "
)


# What the names around a kernel say that it is for.
ROLES = {
    "input": INPUT, "optimizer": OPTIMIZER, "backward": BACKWARD, "scaling": SCALING,
    "loss": re.compile(rf"^{OWN_LOSS}$"),
    "around": re.compile(rf"^{MODULE}|{STEP.pattern}|^{OWN_LOSS}$"),  # no operation itself
}  # fmt: skip


class Event(NamedTuple):
    """An event with a duration; times in microseconds."""

    kind: str
    name: str
    thread: Any
    start: float
    end: float
    args: Mapping[str, Any]


def plain_range(event: Event) -> Event:
    """A range that the user opened, whose name says nothing of the operations in it.

    One called `ForwardBackward` is no backward pass: a space ends the likeness.
    """
    named = "range" in event.args and BACKWARD.search(event.name)
    return event._replace(name=f"{event.name} ") if named else event


@lru_cache(2**14)
def _roles(name: str) -> frozenset[str]:
    """Which of `ROLES` a name has; a trace has few names, and each very often."""
    return frozenset(role for role, pattern in ROLES.items() if pattern.search(name))


@dataclass(frozen=True)
class Context:
    """What went on in a thread at an instant, the outermost first."""

    events: tuple[Event, ...] = ()
    instant: float = 0.0

    @property
    def op(self) -> str:
        """The innermost operation; what a range is called says nothing of a kernel in it."""
        for event in reversed(self.events):
            named = "range" in event.args or "around" in _roles(event.name)
            if event.kind == "op" and not named:
                return event.name
        return ""

    @property
    def module(self) -> str:
        """The modules around it as a path."""
        names = [e.name.removeprefix(MODULE) for e in self.events if e.name.startswith(MODULE)]
        return "/".join(names)

    @property
    def optimizes(self) -> bool:
        """Whether it is an optimizer's own: what calls a module within its step is a closure."""
        names = [e.name for e in self.events if e.kind == "op" or e.name.startswith(MODULE)]
        known = [n for n in names if n.startswith(MODULE) or "optimizer" in _roles(n)]
        return bool(known) and not known[-1].startswith(MODULE)

    @property
    def sequence(self) -> Any:
        """The number that ties the backward operation to the forward one."""
        return next((e.args["sequence"] for e in self.events if "sequence" in e.args), None)

    @property
    def roles(self) -> frozenset[str]:
        """What its operations are for, of `ROLES`."""
        return frozenset().union(*(_roles(e.name) for e in self.events if e.kind == "op"))


class Thread:
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

    def at(self, instant: float) -> Context:
        place = bisect_right(self.starts, instant) - 1
        chain: list[Event] = []
        while place >= 0:
            if self.events[place].end >= instant:
                chain.append(self.events[place])
            place = self.parents[place]
        return Context(tuple(reversed(chain)), instant)

    def own(self) -> Iterator[tuple[float, float, float]]:
        """When an operation was at work, none within it: start, end, and an instant in it.

        A range that the user opened is no operation: what it takes itself is the host's.
        """
        inner: dict[int, list[Event]] = defaultdict(list)
        for place, event in enumerate(self.events):
            inner[self.parents[place]].append(event)
        for place, event in enumerate(self.events):
            named = STEP.match(event.name) or event.name.startswith(MODULE)
            if event.kind != "op" or named or "range" in event.args:
                continue
            at = event.start
            for child in inner.get(place, ()):
                if child.start > at:
                    yield at, child.start, (at + child.start) / 2
                at = max(at, child.end)
            if event.end > at:
                yield at, event.end, (at + event.end) / 2


def passes(events: Iterable[Event]) -> list[Event]:
    """The operations of backward passes."""
    return [e for e in events if e.kind == "op" and "backward" in _roles(e.name)]


def outermost(events: Iterable[Event]) -> Iterator[Event]:
    """Those of some events that lie in no other of their thread, in their order."""
    until: dict[Any, float] = {}
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        if event.start >= until.get(event.thread, event.start):
            until[event.thread] = event.end
            yield event


def reads(events: Sequence[Event]) -> Iterator[Event]:
    """The operations and frames of Python in which the threads of the events await a batch.

    An iterator that trains while it is asked for the next result awaits none, nor does what a
    module or an optimizer iterates over.
    """
    named = [event for event in events if event.kind in ("op", "python")]
    trains: dict[Any, list[Interval]] = defaultdict(list)
    for event in outermost(e for e in named if _trains(e.name)):
        trains[event.thread].append((event.start, event.end))
    for event in (event for event in named if INPUT.search(event.name)):
        apart = event.kind == "op" or not READS.search(event.name)
        if apart or not _meets(event, trains[event.thread]):
            yield event


@lru_cache(2**14)
def _trains(name: str) -> bool:
    return name.startswith(MODULE) or bool(OPTIMIZER.search(name) or BACKWARD.search(name))


def _meets(event: Event, intervals: Sequence[Interval]) -> bool:
    """Whether an event shares an instant with one of some intervals that do not overlap."""
    place = bisect_left(intervals, (event.end,))
    return place > 0 and intervals[place - 1][1] > event.start


def without_closures(events: Sequence[Event]) -> Iterator[Event]:
    """The events, of which an optimizer's step begins after the last backward pass within it.

    What computes the loss may be called in it, forward and backward pass: by PyTorch Lightning, by
    LBFGS, by optimizers that look ahead.
    """
    ran = sorted((event.start, event.end) for event in passes(events))
    begins = [begin for begin, _ in ran]
    for event in events:
        if event.kind == "op" and event.name.startswith(STEPPED):
            within = ran[bisect_left(begins, event.start) : bisect_right(begins, event.end)]
            ended = max((end for _, end in within), default=event.start)
            event = event._replace(start=min(ended, event.end))
        yield event


def _computes(event: Event, calls: Sequence[float]) -> bool:
    """Whether an operation is long and calls nothing of a GPU in its thread."""
    if event.kind != "op" or not event.name.startswith("aten::") or DISPATCH.search(event.name):
        return False
    if event.end - event.start < LEAST_ON_HOST_US:
        return False
    return bisect_left(calls, event.start) == bisect_right(calls, event.end)


class Host:
    """What the host did, by which kernels get an operation, a layer and a part."""

    def __init__(self, events: Sequence[Event]) -> None:
        threads: dict[Any, list[Event]] = defaultdict(list)
        self._launch: dict[Any, Event] = {}
        self._external: dict[Any, Event] = {}
        self._calls: dict[Any, list[float]] = defaultdict(list)  # of a GPU's library, by thread
        known = list(without_closures(events))
        ops = [event for event in known if event.kind == "op"]
        self._stepped = sorted(e.start for e in ops if e.name.startswith(STEPPED))
        self._backward = sorted(event.start for event in passes(known))
        self._own_optimizer = not self._stepped and any(UPDATES.match(e.name) for e in ops)
        for event in known:
            if event.kind in ("op", "python"):
                threads[event.thread].append(event)
                if event.kind == "op" and "external" in event.args:
                    self._external[event.args["external"]] = event
            elif event.kind == "launch":
                self._calls[event.thread].append(event.start)
                if "correlation" in event.args:
                    self._launch[event.args["correlation"]] = event
        self._threads = {thread: Thread(of) for thread, of in threads.items()}
        self._forward = dict(self._forward_modules())
        self._stacked = any(event.name.startswith(MODULE) for event in known)

    def launch(self, kernel: Event) -> Event | None:
        """What launched a kernel; None where the trace does not tell."""
        call = self._launch.get(kernel.args.get("correlation"))
        return call or self._external.get(kernel.args.get("external"))

    def replays(self, kernel: Event) -> bool:
        """Whether a kernel is one of a graph, whose launch is that of all of them."""
        launch = self._launch.get(kernel.args.get("correlation"))
        return launch is not None and bool(GRAPH_LAUNCH.search(launch.name))

    def forward(self, kernel: Event) -> bool:
        """Whether one of PyTorch's operations launched it, and no backward pass is around that."""
        context = self._context(kernel)
        return "::" in context.op and "backward" not in context.roles

    def span(self, kernel: Event) -> Span:
        """A kernel or copy as what it was launched for."""
        context = self._context(kernel)
        if kernel.kind == "copy":
            operation = self._copy(context, kernel.name.split(" (")[0].replace(" ", ""))
        elif kernel.name == GRAPH or self.replays(kernel):
            operation = Operation("op", "", "other", "", kernel.name)
        else:
            operation = self._operation(context, kernel.name)
        return Span(kernel.start, kernel.end, operation)

    def on_cpu(self) -> Iterator[Span]:
        """Operations that ran on the CPU, each without those within it."""
        for thread in self._threads.values():
            for start, end, instant in thread.own():
                context = thread.at(instant)
                if "input" not in context.roles and not DISPATCH.search(context.op):
                    yield Span(start, end, self._operation(context, ""))

    def beside_gpu(self) -> Iterator[Span]:
        """Operations of the training that a thread computed itself, though it launches kernels.

        They are long, in a layer, a backward pass or an optimizer, and call nothing of a GPU.
        """
        for thread, calls in self._calls.items():
            known = self._threads[thread].events if thread in self._threads else []
            calls = sorted(calls)
            for event in outermost(event for event in known if _computes(event, calls)):
                context = self._threads[thread].at(event.start)
                operation = self._operation(context, ON_HOST)
                if operation.part != "other" and "input" not in context.roles:
                    yield Span(event.start, event.end, operation)

    def _context(self, kernel: Event) -> Context:
        launch = self.launch(kernel)
        thread = self._threads.get(launch.thread) if launch else None
        return thread.at(launch.start) if thread and launch else Context()

    def _copy(self, context: Context, name: str) -> Operation:
        """A copy; what a layer, a backward pass or an optimizer sends to the device is theirs.

        Of what stands in none it is certain only with the stack that it is a batch.
        """
        owner = self._operation(context, "")
        wrapped = WRAPPER.match(context.module) and owner.part == "forward"
        if not TO_DEVICE.search(name):
            return Operation("copy", op=name)
        if name == PAGES:
            return Operation("copy", owner.layer, owner.part, name)
        if owner.part in ("other", "loss") or wrapped:
            return Operation("copy", part=BATCH if self._stacked else "", op=name)
        return Operation("copy", owner.layer, owner.part, name)

    def _operation(self, context: Context, kernel: str) -> Operation:
        op = context.op.rpartition("::")[2] if context.op.startswith("aten::") else context.op
        roles = context.roles
        backward = "backward" in roles
        layer = context.module or (self._forward.get(context.sequence, "") if backward else "")
        part = "backward" if backward else "forward" if layer else "other"
        if context.optimizes:
            layer, part = "", "optimizer"
        elif "scaling" in roles:
            layer, part = "", "loss scaling"
        elif (
            "loss" in roles
            or LOSS.search(layer.rpartition("/")[2])
            or (not layer and LOSS.search(op))
        ):
            layer, part = "", "loss"
        elif part == "other" and op.startswith("_foreach_"):
            part = self._beside_backward(op, context.instant)
        return Operation("op", layer, part, op, kernel)

    def _beside_backward(self, op: str, instant: float) -> str:
        """The part of an operation over many tensors in no layer: forward, it is of none.

        It clips or averages between a backward pass and the next, if an optimizer steps there.
        """
        place = bisect_right(self._backward, instant)
        if not place:
            return "other"
        until = self._backward[place] if place < len(self._backward) else math.inf
        stepped = bisect_right(self._stepped, self._backward[place - 1])
        if CLIPS.match(op) and any(at < until for at in self._stepped[stepped : stepped + 1]):
            return "updates"
        return "optimizer" if self._own_optimizer and OF_OPTIMIZERS.match(op) else "other"

    def _forward_modules(self) -> Iterator[tuple[Any, str]]:
        """The module of each sequence number; the last operation that bears it made the node."""
        for thread in self._threads.values():
            for event in thread.events:
                if "sequence" not in event.args or "backward" in _roles(event.name):
                    continue
                context = thread.at(event.start)
                if context.module and "backward" not in context.roles:
                    yield event.args["sequence"], context.module
