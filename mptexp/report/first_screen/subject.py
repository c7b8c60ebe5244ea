"""What each module here returns: the title, comparisons, sentences and advice of one question."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from typing import Literal

import pandas as pd

from mptexp.analysis.sweep_tables import Options, Tables
from mptexp.report.text import wording
from mptexp.report.text.task_words import Measure
from mptexp.report.text.wording import listed

Scale = Literal["speed", "error", "accuracy", "perplexity"]
MOST = 14  # rows of the chart, which a screen holds; of more, the ends of each heading
PROVEN = ("faster", "slower", "small", "large", "lower", "higher", "equal")  # findings
MARGIN = Options.equivalence_margin  # of accuracies that a title calls equal without a word more
NAMED = 3  # comparisons that a sentence lists
UNPROVEN = ("no interval", "not valid")  # findings of ratios of which nothing is claimed
RESIDENT = "resident"  # an input mode in which nobody can train: one batch, again and again
SAME = 1.02  # ratios of which the largest is no more times the smallest are one ratio


@dataclass(frozen=True)
class Bar:
    """A comparison: a row of the chart.

    Attributes:
        label: what is compared with the baseline.
        policy: whose colour and marker the row has.
        value: a speedup, or a difference in percentage points; low, high: its interval, NaN where
            nothing is claimed.
        finding: faster, slower, small, large, equal, lower, ..., inconclusive, not valid.
        text: the same in words, as the report's table has it.
        group: the heading under which the row stands; empty under that of its policy.
        emulated: whether the device only emulates the policy: where it lies far from what the
            device has instructions for, the chart says so in words.
    """

    label: str
    policy: str
    value: float
    low: float
    high: float
    finding: str
    text: str
    group: str = ""
    emulated: bool = False


@dataclass(frozen=True)
class Subject:
    """What opens a report.

    Attributes:
        title: the finding in a few words, plain text.
        bars: all comparisons with one baseline; empty where there are none. Those of several have
            groups that name them.
        baseline: its name; empty of several.
        scale: of the bars.
        sentences: Markdown, the best proven first.
        advice: what to do, Markdown; empty where nothing follows.
        figure: the section of `figures.all_figures` whose first figure is the chart.
        case: of that figure, where the section has several; empty of the first.
        usual: what holds of every bar whose label does not say otherwise; empty of nothing.
        again: whether repeats were measured again, so that an interval, which holds of both, need
            not lie around its ratio, which is of the later.
        together: whether the intervals of all bars hold together: those of two families do not.
    """

    title: str
    sentences: Sequence[str]
    bars: Sequence[Bar] = ()
    baseline: str = ""
    scale: Scale = "speed"
    advice: str = ""
    figure: str = "answer"
    case: str = ""
    usual: str = ""
    again: bool = False
    together: bool = True

    @cached_property
    def drawn(self) -> list[Bar]:
        """The rows of the chart in the order of the bars: all, or MOST of them.

        These are the least and the largest of what is proven, whatever heading they have, then
        those of each heading in turn.
        """
        if len(self.bars) <= MOST:
            return [*self.bars]
        ordered = sorted(self.bars, key=lambda bar: bar.value)
        proven = [bar for bar in ordered if bar.finding in PROVEN]
        headings: dict[str, list[Bar]] = {}
        for bar in ordered:
            headings.setdefault(bar.group or bar.policy, []).append(bar)
        # The least, the largest, the second least, ...: each of a heading stands there twice.
        ends = [chain.from_iterable(zip(own, own[::-1], strict=True)) for own in headings.values()]
        turns = [bar for turn in zip_longest(*ends) for bar in turn if bar]
        chosen = list(dict.fromkeys([*proven[:1], *proven[-1:], *turns]))[:MOST]
        return [bar for bar in self.bars if bar in chosen]


def device(tables: Tables) -> str:
    """The names of the devices: `AMD EPYC (2 cores)`."""
    return listed(sorted(set(tables.results.gpu_model)))


def provisional(title: str, why: str = "") -> str:
    """A title of what was measured, but cannot be claimed: `Provisional (not valid): ...`."""
    return f"{wording.PROVISIONAL}{f' ({why})' * bool(why)}: {title}"


def unproven(rows: pd.DataFrame) -> str:
    """Why no ratio of a table is claimed: `n = 2, no interval`, `not valid`, or both.

    Args:
        rows: with finding and blocks.
    """
    few = rows[rows.finding == "no interval"]
    why = [f"{wording.repeats(few.blocks)}, no interval"] if len(few) else []
    return "; ".join([*why, *["not valid"] * bool((rows.finding == "not valid").any())])


def opening(title: str) -> str:
    """`Provisional (not valid): `, with which a title opens of what cannot be claimed; else empty.

    What follows may hold a colon.
    """
    return found[0] if (found := re.match(rf"{wording.PROVISIONAL}( \([^)]*\))?: ", title)) else ""


def unclaimed(sentences: Sequence[str]) -> list[str]:
    """Sentences on what was measured; the first says that nothing of it is claimed."""
    return [f"{wording.NOT_VALID}. {sentences[0]}", *sentences[1:]] if sentences else []


def equal(tables: Tables, measure: Measure) -> str:
    """`equal`; within what, where the params file allows more: in 90 points all are."""
    margin = tables.options.equivalence_margin
    return "equal" + f" within {measure.margin(margin)}" * (margin > MARGIN)


def first(clauses: Sequence[str]) -> str:
    """The first NAMED clauses, which may hold commas, and how many more there are."""
    if len(clauses) <= NAMED + 1:
        return "; ".join(clauses)
    return "; ".join([*clauses[:NAMED], f"{len(clauses) - NAMED} more"])
