"""Which steps, waits and updates of a training its host's events show; what is left out of them."""

import math
import re
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from mptexp.traces import kernel_names, operations, step_bounds
from mptexp.traces.launching_layers import (
    BACKWARD,
    GRAPH_LAUNCH,
    LAUNCHES,
    ON_DEVICE,
    OPTIMIZER,
    RANGE,
    SCALING,
    STEP,
    STEPPED,
    Event,
    Host,
    outermost,
    passes,
    reads,
)
from mptexp.traces.operations import Operation, Span
from mptexp.traces.step_bounds import Interval, Launched, Steps

IDLE = re.compile(  # of CUDA and HIP; of Intel's
    r"(Device|Stream|Event|Context|Ctx)Synchronize$|^ze\w*Synchronize$|^ur(EventWait|QueueFinish)$"
)
ALLOCATES = re.compile(
    r"^(cuda|hip)(Malloc|Free|Host(Alloc|Free|Malloc))|^(cu|hip)Mem(Alloc|Free|Create|(Un)?[Mm]ap"
    r"|Release|SetAccess|Address(Reserve|Free))"
)
GRADIENT = re.compile(r"wgrad|dgrad|backward|_bwd", re.IGNORECASE)  # in kernels' names
SEVERAL = 1.5  # times the number of steps: so often an optimizer steps in several of them
MARKS = (STEP, RANGE, OPTIMIZER)  # what a thread that trains bears
MARKED, BY_OPTIMIZER = ("ProfilerStep#N", "ranges named as steps"), "the optimizer's steps"
# Of the calls of a step: a first one with fewer, by more than may follow the optimizer's step,
# began before the recording.
WHOLE_STEP, MAY_FOLLOW = 0.95, 5
BEGUN_BEFORE = ", without the first, of which the recording lacks the beginning"
ONE_OPTIMIZER = (
    "a step is one of the optimizer's: if there are two of one class, it is a part of a step; "
    "profiler.step() marks steps"
)
# Of a step: a shorter wait for what was launched before the recording stays in it.
UNFINISHED = 0.05
EARLIER = (
    "{:.3g} ms are left out of the first step, until it had waited for what the device was given "
    "before the recording; leave more steps to the schedule's warm-up"
)


def of(
    events: Sequence[Event],
    spans: Sequence[Span],
    launched: Launched,
    waited: Sequence[Interval],
    gradients: Sequence[float],
    graphs: Sequence[float],
    copies: Launched = (),
) -> Steps:
    """The steps, by the first that there is: marks, the optimizer's steps, what repeats.

    Args:
        launched: kernels, on the stream that computes most; `copies`, on that one too.
        gradients: when kernels were launched that only a training has.
        graphs: when CUDA graphs were launched, which may hold a backward pass.
    """
    backward = passes(events)
    trained = [*(event.start for event in backward), *gradients]
    if not _launches_any(backward, graphs):
        trained += graphs
    updated = [event.start for event in _stepping(events)]
    for pattern, how in zip((STEP, RANGE), MARKED, strict=True):
        named = [e for e in events if e.kind == "op" and pattern.match(e.name)]
        marks = _of_one_name(named, sorted(trained))
        if marks:
            busy, whole = operations.busy(spans), pattern is STEP
            return step_bounds.marked(
                marks, busy, how, launched, trained, whole, waited, graphs, updated, copies
            )
    return _unmarked(events, spans, launched, waited, copies)


def _unmarked(
    events: Sequence[Event],
    spans: Sequence[Span],
    launched: Launched,
    waited: Sequence[Interval],
    copies: Launched,
) -> Steps:
    """The steps by the optimizer's, or by what repeats."""
    work = [
        ((s.start, s.end), (s.operation.kernel or s.operation.op))
        for s in spans
        if s.operation.state == "op" and not s.operation.op.startswith("Mem")
    ]
    first, last = min(s.start for s in spans), max(s.end for s in spans)
    host = min([first, *(e.start for e in events if e.kind in ("op", "launch"))])
    ended = _optimized(events)
    if not ended:
        kinds = step_bounds.repeated(work, first=host, waited=waited)
        return kinds if kinds and _train(kinds, spans) else step_bounds.whole(first, last)
    every = _round(events, ended)
    pairs = list(pairwise([host, *ended][len(ended) % every :: every]))
    how = BY_OPTIMIZER if every == 1 else f"every {every} steps of the optimizer"
    if _began_before(events, pairs):
        pairs, how = pairs[1:], f"{how}{BEGUN_BEFORE}"
    busy = operations.busy(spans)
    return step_bounds.marked(pairs, busy, how, launched, waited=waited, copies=copies)


def _train(steps: Steps, spans: Iterable[Span]) -> bool:
    """Whether most of what repeats has a backward pass, where there is one at all.

    Layers that are alike repeat too, within one step.
    """
    backward = [span.start for span in spans if span.operation.part == "backward"]
    return not backward or 2 * len(step_bounds.holding(steps, backward)) >= len(steps.intervals)


def _began_before(events: Iterable[Event], steps: Sequence[Interval]) -> bool:
    """Whether the host calls less in the first of several steps than in the others."""
    starts = sorted(event.start for event in events if event.kind in ("op", "launch"))
    did = [bisect_left(starts, end) - bisect_left(starts, begin) for begin, end in steps]
    usual = statistics.median(did[1:]) if len(did) > 1 else 0
    return did[0] < WHOLE_STEP * usual and did[0] + MAY_FOLLOW < usual


def _launches_any(backward: Iterable[Event], graphs: Iterable[float]) -> bool:
    """Whether a backward pass that the host names launches any CUDA graph, as compiled ones do.

    Then no other graph holds one, and a step that replays only such others is an evaluation.
    """
    ordered = sorted((event.start, event.end) for event in backward)
    until = [-math.inf, *accumulate((end for _, end in ordered), max)]
    return any(at < until[bisect_right(ordered, (at, math.inf))] for at in graphs)


def _of_one_name(events: Sequence[Event], trained: Sequence[float]) -> list[Interval]:
    """The marks of one name, numbers left out: of that with which most backward passes begin.

    So an evaluation with more ranges, of another name, is not explained instead of its training. Of
    several such names that which most marks have, then the one that comes first: a range around
    reading a batch, followed by one around the step, are one step together.

    Args:
        trained: when some part of a backward pass began, in order.
    """
    by_name: dict[str, list[Interval]] = {}
    for event in sorted(events, key=lambda event: event.start):
        by_name.setdefault(re.sub(r"\d+", "", event.name), []).append((event.start, event.end))

    def rank(marks: Sequence[Interval]) -> tuple[int, int]:
        return len(step_bounds.holding(_to_next(marks), trained)), len(marks)

    return max(by_name.values(), key=rank, default=[])


def _to_next(marks: Sequence[Interval]) -> Steps:
    """Steps from each mark to the next; the last one lasts at least as long as that before it."""
    begins = [begin for begin, _ in marks]
    (last, end), before = marks[-1], begins[-2:][0]
    return step_bounds.adjoining([*marks[:-1], (last, max(end, 2 * last - before))], "")


def _stepping(events: Iterable[Event]) -> list[Event]:
    """The steps of optimizers but those that another calls, as one that shards or sums does.

    Nor those of one parameter each, which a backward pass calls as soon as it has the gradient.
    """
    ops = [event for event in events if event.kind == "op"]
    stepped = list(outermost(e for e in ops if e.name.startswith(STEPPED)))
    if not stepped:
        return []
    backward: dict[Any, list[Interval]] = defaultdict(list)
    for event in outermost(passes(ops)):
        backward[event.thread].append((event.start, event.end))
    return [s for s in stepped if not step_bounds.holds(backward[s.thread], s.start, s.end)]


def _optimized(events: Iterable[Event]) -> list[float]:
    """When the only optimizer had stepped, in order; none where several step, or one steps once."""
    marks = _stepping(events)
    one = len(marks) > 1 and len({e.name for e in marks}) == 1
    return sorted(e.end for e in marks) if one else []


def _round(events: Iterable[Event], ended: Sequence[float]) -> int:
    """After how many steps of optimizers of one name the same backward passes recur.

    Two of a GAN have backward passes that alternate. Of the first step, the recording may lack a
    part; at least two rounds tell.

    Args:
        ended: when they had stepped, in order.
    """
    backward: list[Counter[str]] = [Counter() for _ in (*ended, "after the last")]
    for event in passes(events):
        backward[bisect_left(ended, event.start)][event.name] += 1
    ran = backward[1:-1]
    return next((n for n in range(1, len(ran) // 2 + 1) if ran[n:] == ran[:-n]), 1)


def waits(events: Sequence[Event]) -> list[Span]:
    """When the threads that train waited for a batch, for the device, for memory, or to copy.

    These launch kernels or bear the marks of steps; all do if none does. What another one awaits,
    such as one that reads batches ahead, keeps no step waiting. It may prepare them on the GPU: a
    batch is awaited by those with marks, where there are any.
    """
    marked = _threads(events, MARKS)
    trainers = marked | _threads(events, (LAUNCHES, GRAPH_LAUNCH)) or {e.thread for e in events}
    readers = marked or trainers
    own = [event for event in events if event.thread in trainers]
    batches = reads([event for event in own if event.thread in readers])
    awaited = [Span(event.start, event.end, Operation("input")) for event in batches]
    return [*awaited, *_waits(own), *_blocked(events, trainers)]


def _threads(events: Sequence[Event], patterns: Iterable[re.Pattern[str]]) -> set[Any]:
    """The threads with an operation or a call of such a name."""
    names = {e.name for e in events if e.kind in ("op", "launch")}
    names = {name for name in names if any(pattern.search(name) for pattern in patterns)}
    return {e.thread for e in events if e.name in names}


def _waits(events: Sequence[Event]) -> Iterator[Span]:
    """When the host waited for the device, and when for memory."""
    for event in events:
        if event.kind == "launch" and IDLE.search(event.name):
            yield Span(event.start, event.end, Operation("idle"))
        elif event.kind == "launch" and ALLOCATES.search(event.name):
            yield Span(event.start, event.end, Operation("allocation"))


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


def earlier(events: Sequence[Event], found: Steps, waits: Iterable[Span]) -> list[Interval]:
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


def begun(found: Steps, waits: Sequence[Interval]) -> Steps:
    """The steps, of which the first begins once the device has done what came before it."""
    (begin, end), *others = found.intervals
    freed = max((e for _, e in waits), default=begin)
    return replace(found, intervals=((freed, end), *others)) if begin < freed < end else found


def updates(events: Sequence[Event], ran: Iterable[Event], found: Steps) -> Sequence[int] | None:
    """How often the optimizer stepped in each of the steps; None where nothing tells.

    Of several optimizers that which stepped most often.

    Args:
        ran: on the device that is explained.
    """
    number = step_bounds.numbered(found)
    stepped: dict[str, Counter[int]] = defaultdict(Counter)
    for event in _stepping(events):
        if (n := number(event.start)) is not None:
            stepped[event.name][n] += 1
    trained = any(number(event.start) is not None for event in passes(events))
    if not stepped and (not trained or any(kernel_names.work(e.name) == "optimizer" for e in ran)):
        return None
    most = max(stepped.values(), key=Counter.total, default=Counter())
    return [most[n] for n in range(len(found.on_host or found.intervals))]


def accumulates(updated: Sequence[int] | None, found: Steps) -> bool:
    """Whether the optimizer stepped in some of several steps alone.

    One step may lack it as it is cut off, or as a loss scaler skipped it, unless no two steps in
    succession have it.
    """
    if not updated or not any(updated):
        return False
    marked = found.how.startswith(MARKED)
    apart = marked and not any(one and after for one, after in pairwise(updated))
    return sum(updated) < len(updated) - (0 if apart else 1)


def trains(
    events: Iterable[Event], ran: Iterable[Event], found: Steps, unnamed: bool
) -> bool | None:
    """Whether a backward pass or an optimizer ran; None where nothing tells.

    Where marks say when the steps were, in these: before them others may have trained.

    Args:
        ran: on the device that is explained.
        unnamed: whether gradients may have run of which the host says nothing, as in a graph.
    """
    marked = found.how.startswith(MARKED)
    begin, end = found.launched if marked else (-math.inf, math.inf)
    first, last = found.between if marked else (-math.inf, math.inf)
    on_device = {event.name for event in ran if first <= event.start < last}
    if any(kernel_names.work(name) == "optimizer" for name in on_device):
        return True
    names: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.kind != "op" or begin <= event.start < end:
            names[event.kind].add(event.name)
    if any(BACKWARD.search(name) or OPTIMIZER.search(name) for name in names["op"]):
        return True
    known = any(name.startswith("aten::") for name in names["op"])
    return False if known and not unnamed else None


def of_training(kernel: Event, host: Host) -> bool:
    """Whether a kernel is one that only a training runs.

    Of a gradient's name only where no forward operation launched it: a transposed convolution is
    computed as the gradient of a convolution, in an inference too.
    """
    if kernel_names.work(kernel.name) == "optimizer":
        return True
    return bool(GRADIENT.search(kernel.name)) and not host.forward(kernel)


def notes(
    events: Iterable[Event],
    updated: Sequence[int] | None,
    found: Steps,
    graphs: Sequence[float],
    left_out: float,
) -> Iterator[str]:
    """Says what a reader has to know of the steps.

    Args:
        updated: how often the optimizer stepped in each.
        graphs: when CUDA graphs were launched.
        left_out: microseconds of the first, see `begun`.
    """
    yield from _stepped(events, updated, found)
    yield from _other_kind(found, graphs)
    if found.how.startswith(BY_OPTIMIZER):
        yield ONE_OPTIMIZER
    if left_out:
        yield EARLIER.format(left_out / 1e3)


def _stepped(events: Iterable[Event], updated: Sequence[int] | None, found: Steps) -> Iterator[str]:
    """Says where the optimizer steps less often, or more often, than the marks say."""
    if updated is None:
        return
    number, stepped = len(updated), sum(updated)
    skips = any(event.kind == "op" and SCALING.search(event.name) for event in events)
    micro = "gradients are accumulated, and a step here is the work on one micro-batch"
    skipped = "the loss scaler skipped the others, or " * skips
    if accumulates(updated, found):
        cut = ", or the recording ends within the last one" * (number == 2 and not updated[-1])
        yield f"the optimizer stepped in {stepped} of {number} steps: {skipped}{micro}{cut}"
    if not stepped:
        yield (
            f"no step of an optimizer was recorded in {number} step{'s' * (number > 1)} with a "
            "backward pass: "
            f"{skipped}{micro}, or the optimizer leaves no mark (compiled, or one's own)"
        )
    if stepped > SEVERAL * number:
        yield (
            f"the optimizer stepped {stepped} times in {number} step{'s' * (number > 1)}: a step "
            "here is several of "
            "the training, or has several optimizers"
        )


def _other_kind(found: Steps, graphs: Sequence[float]) -> Iterator[str]:
    """Says where most steps replay CUDA graphs and others do not, or the other way round."""
    if found.other_kind:
        others, most = ("no", "one") if step_bounds.holding(found, graphs) else ("a", "none")
        left = f"{found.other_kind} of {found.found} steps"
        yield f"{left}, which replay {others} CUDA graph, are left out, as most replay {most}"
