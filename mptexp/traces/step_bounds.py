"""Which part of a trace is which training step: by marks, or by what repeats.

Which events are marks is said by who reads them: `steps_from_host` of PyTorch's and Nsight's,
`xplane` of TensorFlow's and JAX's.
"""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

Interval = tuple[float, float]  # first and last instant, in microseconds
Launched = Sequence[tuple[float, Interval]]  # when something was launched, and when it ran
# A step that takes so many times as long as the others: a first one compiles and tunes, a single
# later one has an evaluation, a checkpoint or another compilation in it.
UNUSUAL = 3.0
# Work that the device still has to do when the last step's mark ends, as a share of the steps: from
# here the marks end too early, for the host is ahead of the device.
LAG = 0.05
BEHIND = 0.01  # of a step: from here on a device is behind its host
ALIKE = 1.1  # times: two long steps of which one may stand for the other
MOSTLY = 0.5  # of what a long step takes beyond the others: a wait that is part of the training
AHEAD = 0.5  # of a step: from here the marks say how long launching takes, not a step
FILLED = 0.75  # of the time from one mark to the next: marks that last shorter are not whole steps
PAUSE = 0.02  # of a step: a device that rests for longer has come to the end of its work
AFTER = 0.05  # of a step: what it goes on for after its function ended, from where it is cut off
REPEATED = "the repetition of its operations"
WHOLE = "nothing: the whole trace is taken as one step"
RAN_ELSEWHERE = (
    "most of what its host launched in the steps ran outside of them, and nothing tells what of it "
    "is of which step; trace more steps, and wait for the device after the last one"
)
# Of the kinds of kernels, and of their time: how much must repeat as often as the steps do.
LEAST_KINDS, LEAST_TIME = 0.8, 0.9
LEAST_AROUND = 0.005  # of their time: so much takes what runs once a step around equal layers


@dataclass(frozen=True)
class Steps:
    """The steps of a trace.

    Attributes:
        intervals: of the steps in their order; they overlap nowhere. Between two of them lies what
            belongs to no step.
        how: how they were recognized, such as `ProfilerStep#N`.
        warm_up: how many first steps were left out.
        unusual: how many later ones were, for one took much longer than the others.
        left: from when to when these two kinds lasted, the warm-up first.
        untrained: how many were, for they have no backward pass and others have one.
        untrained_s: seconds of these.
        other_kind: how many were, for most others replay CUDA graphs and they do not, or not.
        after_s: mean seconds that were cut off each step's end, see `ending_with`.
        on_host: from when to when the host launched them, where the device ran them later.
    """

    intervals: tuple[Interval, ...]
    how: str
    warm_up: int = 0
    unusual: int = 0
    untrained: int = 0
    untrained_s: float = 0.0
    other_kind: int = 0
    after_s: float = 0.0
    on_host: tuple[Interval, ...] = ()
    left: tuple[Interval, ...] = ()

    @property
    def found(self) -> int:
        """How many there are with those that were left out."""
        left = self.warm_up + self.unusual + self.untrained + self.other_kind
        return len(self.intervals) + left

    @property
    def launched(self) -> Interval:
        """First and last instant of all on the host."""
        intervals = self.on_host or self.intervals
        return intervals[0][0], intervals[-1][1]

    @property
    def between(self) -> Interval:
        """First and last instant of all."""
        return self.intervals[0][0], self.intervals[-1][1]

    @property
    def gaps(self) -> tuple[Interval, ...]:
        """What lies between two steps and belongs to none."""
        pairs = pairwise(self.intervals)
        return tuple((end, begin) for (_, end), (begin, _) in pairs if begin > end)

    def seconds(self) -> tuple[float, ...]:
        """Of each step."""
        return tuple((end - begin) / 1e6 for begin, end in self.intervals)


def adjoining(marks: Sequence[Interval], how: str) -> Steps:
    """Steps of which each lasts until the next one begins, the last until the end of its mark."""
    ends = [*(begin for begin, _ in marks[1:]), marks[-1][1]]
    return Steps(tuple((b, e) for (b, _), e in zip(marks, ends, strict=True)), how)


def marked(
    marks: Sequence[Interval],
    busy: Sequence[Interval],
    how: str,
    launched: Launched = (),
    trained: Sequence[float] = (),
    whole: bool = True,
    waited: Sequence[Interval] = (),
    replayed: Sequence[float] = (),
    updated: Sequence[float] = (),
    copies: Launched = (),
) -> Steps:
    """Steps that the host marked; the last one ends when the device has done its work.

    Where the host is far ahead, its marks say how long launching takes: there the steps are what
    the device ran of each.

    Args:
        marks: one or more, of the host's clock.
        busy: when the device worked.
        launched: when the host launched something and when it ran on the stream that computes
            most, as far as that is known. What another one does then is of the next step.
        trained: when the host began some part of a backward pass, as far as that is known.
        replayed: when it launched a CUDA graph.
        updated: when an optimizer's step began.
        copies: the same of copies on that stream, with which a step's own work may begin.
        whole: whether a mark lasts as long as its step. Of others the last is left out, if they
            are shorter than what lies from one to the next: nothing says when its step ends.
        waited: when the host waited for a batch, as far as that is known.
    """
    ordered = sorted(marks)
    kept = [ordered[0]]
    for mark in ordered[1:]:
        begin, end = kept[-1]
        nested = mark[1] <= end or mark[0] < end - (end - begin) / 2
        if not nested:
            kept.append(mark)

    def explained(steps: Steps) -> Steps:
        return usual(of_one_kind(training(steps, trained), replayed), waited, updated)

    begin, end = kept[0][0], max(e for _, e in kept)
    last = max([end, *(ran[1] for at, ran in launched if kept[-1][0] <= at <= end)])
    worked = _worked_until(end, busy, (last - begin) / len(kept) * PAUSE)
    ahead = max(last, worked) - end
    runs_ahead = ahead > AHEAD * (end - begin) / len(kept) or _waits(kept, launched)
    partial = not whole and _filled(kept) < FILLED
    to_next = adjoining(kept, f"{how}, from one to the next")
    known = range(len(kept) - partial)
    if done := _done(kept, launched, copies):
        on_host = to_next.intervals if partial else tuple(kept)
        steps = to_next if partial else adjoining(kept, how)
        steps = replace(steps, intervals=done, on_host=on_host)
        steps = replace(steps, how=f"{how}, as the device ran them") if runs_ahead else steps
        return explained(_only(steps, known))
    if partial:
        return explained(_only(to_next, known))
    if worked - end > LAG * (end - begin):
        kept[-1] = (kept[-1][0], worked)
    return explained(adjoining(kept, how))


def _done(marks: Sequence[Interval], launched: Launched, copies: Launched) -> tuple[Interval, ...]:
    """Until when the device had done what was launched in each mark, from the one before on.

    So a step has its own work where the device is behind the host at its mark: what it still does
    of a step before the first is not in the trace, and what it does of the last after its mark is.
    The first begins as much later than its mark as it ends, unless its own work begins before.
    Nothing where the device is not behind, did not run each in its turn, or is far behind in the
    only one.
    """
    intervals = adjoining(marks, "").intervals
    ends, ran = [end for _, end in intervals], _run(marks, launched)
    if ran is None:
        return ()
    until = accumulate((done for _, done in ran), max)
    done = [max(pair) for pair in zip(ends, until, strict=True)]
    behind = [late - end for late, end in zip(done, ends, strict=True)]
    step = (ends[-1] - marks[0][0]) / len(marks)
    if max(behind) < BEHIND * step or (len(marks) == 1 and behind[0] > AHEAD * step):
        return ()
    begin = marks[0][0]
    sent = [run[0] for at, run in copies if begin <= at <= ends[0]]
    begins = [max(begin, min([begin + behind[0], ran[0][0], *sent])), *done[:-1]]
    made = tuple(zip(begins, done, strict=True))
    return made if all(b < e for b, e in made) else ()


def _waits(marks: Sequence[Interval], launched: Launched) -> bool:
    """Whether marks that are long waited for what earlier ones had launched.

    A host that runs ahead and reads a loss now and then waits in that step for all before it: what
    lies between such steps is how long launching takes.
    """
    durations = [end - begin for begin, end in marks]
    usual_s = statistics.median(durations)
    for begin, end in marks:
        if end - begin > UNUSUAL * usual_s:
            earlier = [ran for at, ran in launched if at < begin]
            if took_within(earlier, begin, end) > (end - begin - usual_s) / 2:
                return True
    return False


def _filled(marks: Sequence[Interval]) -> float:
    """What share of the time from one mark to the next a mark lasts; 1 where there is but one."""
    shares = [
        (end - begin) / (after - begin) if after > begin else 1.0
        for (begin, end), (after, _) in pairwise(marks)
    ]
    return statistics.median(shares) if shares else 1.0


def training(steps: Steps, trained: Sequence[float]) -> Steps:
    """The steps with a backward pass, where some have one; the others are evaluations.

    More evaluations than steps of training would make these look like a warm-up.

    Args:
        trained: when the host began some part of a backward pass, or what may hold one, in any
            order.
    """
    only = _only(steps, holding(steps, trained))
    left_s = sum(steps.seconds()) - sum(only.seconds())
    untrained = len(steps.intervals) - len(only.intervals)
    return replace(only, untrained=untrained, untrained_s=left_s)


def of_one_kind(steps: Steps, replayed: Sequence[float]) -> Steps:
    """The steps that replay CUDA graphs or those that do not, whichever are more.

    Those before the first graph warm up and record it: a mean over both kinds is of neither.

    Args:
        replayed: when the host launched a graph, in any order.
    """
    replaying = holding(steps, replayed)
    others = [n for n in range(len(steps.intervals)) if n not in replaying]
    only = _only(steps, max(replaying, others, key=len))
    return replace(only, other_kind=len(steps.intervals) - len(only.intervals))


def holding(steps: Steps, instants: Sequence[float]) -> list[int]:
    """The places of the steps that hold any of some instants of the host."""
    ordered = sorted(instants)
    return [
        n
        for n, (begin, end) in enumerate(steps.on_host or steps.intervals)
        if bisect_left(ordered, begin) < bisect_left(ordered, end)
    ]


def numbered(steps: Steps) -> Callable[[float], int | None]:
    """What gives the number of the step that an instant of the host is in; None of none."""
    intervals = steps.on_host or steps.intervals
    begins = [begin for begin, _ in intervals]

    def number(at: float) -> int | None:
        n = bisect_right(begins, at) - 1
        return n if n >= 0 and at < intervals[n][1] else None

    return number


def outrun(steps: Steps, busy: Sequence[Interval]) -> bool:
    """Whether the device did more work after the steps than within them."""
    begin, end = steps.between
    return sum(e - b for b, e in busy if b >= end) > took_within(busy, begin, end)


def goes_on(steps: Steps, busy: Sequence[Interval]) -> bool:
    """Whether the device goes on after the steps, without a rest, for more than half of one."""
    end, usual_us = steps.between[1], 1e6 * statistics.median(steps.seconds())
    return _worked_until(end, busy, PAUSE * usual_us) - end > AHEAD * usual_us


def took_within(intervals: Iterable[Interval], begin: float, end: float) -> float:
    """How long intervals took between two instants, those that overlap counted each."""
    return sum(max(0.0, min(e, end) - max(b, begin)) for b, e in intervals)


def holds(intervals: Sequence[Interval], begin: float, end: float) -> bool:
    """Whether the last of some ordered intervals that begins before another one holds it."""
    place = bisect_right(intervals, (begin, math.inf))
    return place > 0 and end <= intervals[place - 1][1]


def _run(marks: Sequence[Interval], launched: Launched) -> list[Interval] | None:
    """From when to when the device ran what was launched in each of several marks.

    None where it ran nothing of one of them, or not in their order.
    """
    ran: list[list[Interval]] = [[] for _ in marks]
    begins, last = [begin for begin, _ in marks], max(end for _, end in marks)
    for at, interval in launched:
        if begins[0] <= at <= last:
            ran[bisect_right(begins, at) - 1].append(interval)
    if not all(ran):
        return None
    spans = [(min(b for b, _ in of), max(e for _, e in of)) for of in ran]
    return spans if spans == sorted(spans) and len({b for b, _ in spans}) == len(spans) else None


def until(steps: Steps, others: Sequence[float]) -> Steps:
    """Steps that end where something else begins, such as an evaluation between two of them."""
    ordered, ends = sorted(others), [end for _, end in steps.intervals]
    for n, (begin, end) in enumerate(steps.intervals):
        place = bisect_right(ordered, begin)
        ends[n] = min([end, *ordered[place : place + 1]])
    begins = (begin for begin, _ in steps.intervals)
    return replace(steps, intervals=tuple(zip(begins, ends, strict=True)))


def ending_with(steps: Steps, calls: Sequence[Interval], busy: Sequence[Interval]) -> Steps:
    """Steps that end when the functions called in them and their work on the device have ended.

    What follows, such as the callbacks of Keras and the profiler's own work, is cut off. Steps stay
    as they are where one has no call, or where little follows.
    """
    intervals, ordered = [], sorted(busy)
    for begin, end in steps.intervals:
        ends = [e for b, e in calls if begin <= b < end]
        if not ends:
            return steps
        intervals.append(
            (begin, min(end, _worked_until(max(ends), ordered, (end - begin) * PAUSE)))
        )
    kept = replace(steps, intervals=tuple(intervals))
    after = sum(steps.seconds()) - sum(kept.seconds())
    if after < AFTER * sum(steps.seconds()):
        return steps
    return replace(kept, after_s=after / len(intervals))


def _worked_until(end: float, busy: Sequence[Interval], pause: float) -> float:
    """Until when a device went on with what it was doing at an instant."""
    until = end
    for begins, ends in sorted(busy):
        if ends > until and begins <= until + pause:
            until = ends
    return until


def usual(steps: Steps, waited: Sequence[Interval] = (), updated: Sequence[float] = ()) -> Steps:
    """The steps without first ones that compile, tune or fill caches, and a later one like them.

    What recurs is part of the training: of several long steps all stay, a first one too that took
    as long as a later one, and so does one that is long because it waited for a batch, with such a
    first one. A step in which the optimizer steps
    is held against others of that kind alone: where gradients accumulate, it is the longest by
    nature. Steps that take no time are left out: two marks at one instant make such a step.

    Args:
        waited: when the host waited for a batch.
        updated: when an optimizer's step began.
    """
    steps = _only(steps, [n for n, seconds in enumerate(steps.seconds()) if seconds > 0])
    times, first = steps.seconds(), 0
    every, updating = range(len(times)), {*holding(steps, updated)}
    while times[first] > UNUSUAL * _typical(times, every[first + 1 :], updating, first in updating):
        first += 1
    usual_s = [_typical(times, every[first:], updating, alone) for alone in (False, True)]
    long = [n for n in every[first:] if times[n] > UNUSUAL * usual_s[n in updating]]
    starved = [_starved(interval, usual_s[False], waited) for interval in steps.intervals]
    again = [n for n in long if first and _are_alike(times[first - 1], times[n])]
    if len(long) > 1 or again or any(starved[n] for n in long):
        long = []
        first -= bool(again)
        while first and starved[first - 1]:  # one of them
            first -= 1
    left = [*range(first), *long]
    kept = _only(steps, [n for n in every if n not in left])
    intervals = tuple(steps.intervals[n] for n in left)
    return replace(kept, warm_up=first, unusual=len(long), left=intervals)


def _are_alike(one: float, other: float) -> bool:
    """Whether two long steps are long for one reason: a compilation takes as long as no other."""
    return max(one, other) <= ALIKE * min(one, other)


def _typical(
    times: Sequence[float], places: Iterable[int], updating: Collection[int], alone: bool
) -> float:
    """The median of some steps, of those alone in which the optimizer steps, or of all."""
    like = [times[n] for n in places if n in updating or not alone]
    return statistics.median(like) if like else math.inf


def _starved(step: Interval, usual_s: float, waited: Sequence[Interval]) -> bool:
    """Whether most of what a step takes beyond the others is a wait for a batch."""
    begin, end = step
    return took_within(waited, begin, end) > MOSTLY * (end - begin - usual_s * 1e6)


def _only(steps: Steps, kept: Sequence[int]) -> Steps:
    """Some of the steps, by their places; all where there is none of them."""
    if not kept:
        return steps
    intervals = tuple(steps.intervals[n] for n in kept)
    return replace(
        steps, intervals=intervals, on_host=tuple(steps.on_host[n] for n in kept if steps.on_host)
    )


def repeated(
    work: Sequence[tuple[Interval, Hashable]],
    first: float = math.inf,
    waited: Sequence[Interval] = (),
) -> Steps | None:
    """Steps as what a device repeats; None where it repeats nothing.

    Of n steps nearly every kind of kernel runs n times or a multiple of n. Layers that are alike
    repeat too, but embeddings, losses and the optimizer do not repeat with them.

    Args:
        work: when something ran and of what kind it is.
        first: the first instant of the trace, where it holds more than this work.
        waited: as of `usual`.
    """
    counts: Counter[Hashable] = Counter()
    took: dict[Hashable, float] = defaultdict(float)
    for (begins, ends), kind in work:
        counts[kind] += 1
        took[kind] += ends - begins
    n = _repetitions(counts, took)
    if n is None:
        return None
    return usual(_cut(sorted(work, key=lambda item: item[0]), counts, n, first), waited)


def _repetitions(counts: Mapping[Hashable, int], took: Mapping[Hashable, float]) -> int | None:
    """How often nearly all kinds repeat, by how often each ran and how long it took.

    Rather as often as what repeats less often does, where that divides it and takes time: layers
    that are alike are most kinds of a large model's inference. What ran a few times in all, such as
    before the first step, decides nothing.
    """
    total = sum(took.values())
    known = sorted({count for count in counts.values() if count > 1}, reverse=True)

    def whole(n: int) -> list[Hashable]:
        return [kind for kind, count in counts.items() if count % n == 0]

    def share(kinds: Iterable[Hashable]) -> float:
        return sum(took[kind] for kind in kinds) / total if total else 0.0

    for n in known:
        if len(whole(n)) >= LEAST_KINDS * len(counts) and share(whole(n)) >= LEAST_TIME:
            break
    else:
        return None
    for fewer in known[known.index(n) + 1 :]:
        added = {*whole(fewer)} - {*whole(n)}
        if n % fewer == 0 and share(added) >= LEAST_AROUND:
            n = fewer
    return n


def _cut(
    work: Sequence[tuple[Interval, Hashable]], counts: Counter[Hashable], n: int, first: float
) -> Steps:
    """Steps that begin where the one before has done its work, the wait for a batch in between.

    A step's work begins with the first kind of kernel that runs equally often in each. For how long
    the first one waited before, nothing says: for as long as the others, as far as the trace goes.
    Where that kind does not run equally often after all, as an evaluation's does too, with the
    first that runs once in each.
    """
    places = _begun(work, next(kind for _, kind in work if counts[kind] % n == 0), n)
    once = next((kind for _, kind in work if counts[kind] == n), None)
    ran = places if once is None else _begun(work, once, n)
    if len({bisect_right(places, place) for place in ran}) < n:
        places = ran
    begins = [work[place][0][0] for place in places]
    until = list(accumulate((ends for (_, ends), _ in work), max))
    done = [until[place - 1] for place in places[1:]]
    pauses = [max(0.0, begin - end) for begin, end in zip(begins[1:], done, strict=True)]
    pause = statistics.median(pauses) if pauses else 0.0
    starts = [min(begins[0], max(first, begins[0] - pause))]
    starts += [min(pair) for pair in zip(begins[1:], done, strict=True)]
    return adjoining([(start, until[-1]) for start in starts], REPEATED)


def _begun(work: Sequence[tuple[Interval, Hashable]], anchor: Hashable, n: int) -> list[int]:
    """Where each of n equal parts of what ran of a kind begins."""
    places = [place for place, (_, kind) in enumerate(work) if kind == anchor]
    return places[:: len(places) // n]


def whole(begin: float, end: float) -> Steps:
    """A trace without marks in which nothing repeats, as one step."""
    return Steps(((begin, end),), WHOLE)
