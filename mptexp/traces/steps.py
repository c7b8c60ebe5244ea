"""Which part of a trace is which training step: by marks, or by what repeats."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

Interval = tuple[float, float]  # first and last instant, in microseconds
# A first step that takes so many times as long as the others is a warm-up.
WARM_UP = 3.0
# Work that the device still has to do when the last step's mark ends, as a share of the steps: from
# here the marks end too early, for the host is ahead of the device.
LAG = 0.05
PAUSE = 0.02  # of a step: a device that rests for longer has come to the end of its work
# Of the kinds of kernels, and of their time: how much must repeat as often as the steps do.
LEAST_KINDS, LEAST_TIME = 0.8, 0.9


@dataclass(frozen=True)
class Steps:
    """The steps of a trace.

    Attributes:
        intervals: of the steps in their order; they may overlap nowhere.
        how: how they were recognized, such as `ProfilerStep#N`.
        warm_up: how many first steps were left out.
    """

    intervals: tuple[Interval, ...]
    how: str
    warm_up: int = 0

    @property
    def between(self) -> Interval:
        """First and last instant of all."""
        return self.intervals[0][0], self.intervals[-1][1]

    def seconds(self) -> tuple[float, ...]:
        """Of each step: until the next one begins, the last until its own end."""
        ends = [*(start for start, _ in self.intervals[1:]), self.intervals[-1][1]]
        return tuple((e - s) / 1e6 for (s, _), e in zip(self.intervals, ends, strict=True))


def marked(marks: Sequence[Interval], busy: Sequence[Interval], how: str) -> Steps:
    """Steps that the host marked; the last one ends when the device has done its work.

    Args:
        marks: one or more, of the host's clock.
        busy: when the device worked.
    """
    ordered = sorted(marks)
    kept = [ordered[0]]
    for mark in ordered[1:]:
        if mark[0] >= kept[-1][1] - (kept[-1][1] - kept[-1][0]) / 2:  # not nested in the one before
            kept.append(mark)
    begin, end = kept[0][0], max(e for _, e in kept)
    worked = _worked_until(end, busy, (end - begin) / len(kept) * PAUSE)
    if worked - end > LAG * (end - begin):
        kept[-1] = (kept[-1][0], worked)
    return without_warm_up(Steps(tuple(kept), how))


def _worked_until(end: float, busy: Sequence[Interval], pause: float) -> float:
    """Until when a device went on with what it was doing at an instant."""
    until = end
    for begins, ends in sorted(busy):
        if ends > until and begins <= until + pause:
            until = ends
    return until


def without_warm_up(steps: Steps) -> Steps:
    """The steps without first ones that compile, tune or fill caches."""
    times, first = steps.seconds(), 0
    while first + 1 < len(times) and times[first] > WARM_UP * statistics.median(times[first + 1 :]):
        first += 1
    return Steps(steps.intervals[first:], steps.how, steps.warm_up + first)


def repeated(work: Sequence[tuple[Interval, Hashable]]) -> Steps | None:
    """Steps as what a device repeats; None where it repeats nothing.

    Of n steps nearly every kind of kernel runs n times or a multiple of n. Layers that are alike
    repeat too, but embeddings, losses and the optimizer do not repeat with them.

    Args:
        work: when something ran and of what kind it is.
    """
    counts: Counter[Hashable] = Counter()
    took: dict[Hashable, float] = defaultdict(float)
    for (begins, ends), kind in work:
        counts[kind] += 1
        took[kind] += ends - begins
    total = sum(took.values())
    for n in sorted({count for count in counts.values() if count > 1}, reverse=True):
        whole = [kind for kind, count in counts.items() if count % n == 0]
        share = sum(took[kind] for kind in whole) / total if total else 0.0
        if len(whole) >= LEAST_KINDS * len(counts) and share >= LEAST_TIME:
            return without_warm_up(_cut(sorted(work, key=lambda item: item[0]), counts, n))
    return None


def _cut(work: Sequence[tuple[Interval, Hashable]], counts: Counter[Hashable], n: int) -> Steps:
    """Steps that begin where the first kind of kernel runs that runs once in each."""
    anchor = next((kind for _, kind in work if counts[kind] == n), None)
    if anchor is None:  # each kind runs several times in a step
        anchor = next(kind for _, kind in work if counts[kind] % n == 0)
    every = counts[anchor] // n
    starts = [interval[0] for interval, kind in work if kind == anchor][::every]
    last = max(ends for (_, ends), _ in work)
    return Steps(
        tuple(zip(starts, [*starts[1:], last], strict=True)), "the repetition of its operations"
    )


def whole(begin: float, end: float) -> Steps:
    """A trace without marks in which nothing repeats, as one step."""
    return Steps(((begin, end),), "nothing: the whole trace is taken as one step")
