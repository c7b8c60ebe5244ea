"""How the validation of each task is written: a row per task, as in `spec.tasks`.

What is compared (`points.quality`) grows where a training is better; what a reader knows may not.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mptexp.analysis import accuracy
from mptexp.report.text import wording
from mptexp.spec import tasks


@dataclass(frozen=True)
class Measure:
    """A row.

    Attributes:
        heading: of a column of its figure.
        mean: (mean, least, most, n) -> a cell.
        change: a difference of quality -> how the figure changed, a fraction; it grows with the
            figure, not with the quality.
        unit: of such a change in percent.
        behind: where a figure lies that is worse than float32's.
        margin: the largest difference that counts as equal, a fraction -> text.
        words: verdicts on the quality -> on the figure.
    """

    task: tasks.Task
    heading: str
    mean: Callable[[float, float, float, int], str]
    change: Callable[[float], float]
    unit: str
    behind: str
    margin: Callable[[float], str]
    words: dict[str, str]

    @property
    def name(self) -> str:
        """`accuracy`."""
        return self.task.measure

    @property
    def head(self) -> str:
        """The heading of a column of differences."""
        return f"Difference, {self.unit} [95 % interval]"

    def level(self, value: float) -> str:
        """A single value."""
        return self.mean(value, value, value, 1)

    def difference(self, value: float, low: float, high: float, n: int) -> str:
        """A difference with its interval and n; says so where there is none."""
        return wording.difference(*self.changed(value, low, high), n)

    def ends(self, row: Any) -> str:
        """`−0.4 [−5.8, +5.0]`: the difference of a row with its interval, without n."""
        return self.difference(row.difference, row.low, row.high, row.blocks).partition(" (")[0]

    def changed(self, value: float, low: float, high: float) -> tuple[float, float, float]:
        """A difference and its interval as `change` gives them, the lower end first."""
        return self.change(value), *sorted((self.change(low), self.change(high)))

    def between(self, differences: pd.Series) -> str:
        """`−0.2 to +0.1 percentage points`."""
        changes = 100 * differences.map(self.change)
        return f"{wording.signed_range(changes.min(), changes.max())} {self.unit}"

    def near(self, rows: pd.DataFrame, of: str = "") -> str:
        """`about the same in the mean as float32's, −0.4 [−5.8, +5.0] percentage points`.

        Args:
            rows: of `accuracy.differences` that look equal; of several the farthest end is said.
            of: whose figure theirs is compared with.
        """
        row, opening = rows.iloc[0], "about the same in the mean" + f" as {of}" * bool(of)
        if len(rows) > 1 or not of:
            return f"{opening}, at most {self.reach(rows)} either way"
        return f"{opening}, {self.ends(row)} {self.unit}"

    def open(self, rows: pd.DataFrame) -> str:
        """What some undecided rows come to, for a title, which has no room for more.

        `undecided, +8.6 [−11.8, +29.1] percentage points`, of several from where to where their
        intervals reach, if there are any; else as `near`.
        """
        if accuracy.looks_equal(rows).all():
            return self.near(rows)
        if rows.low.isna().all():
            return f"{wording.UNDECIDED} ({wording.repeats(rows.blocks)})"
        if len(rows) == 1:
            unit = self.unit.partition(" of ")[0]
            return f"{wording.UNDECIDED}, {self.ends(rows.iloc[0])} {unit}"
        reach = self.between(pd.concat([rows.low, rows.high])).partition(" of ")[0]
        return f"{wording.UNDECIDED}, intervals from {reach}"

    def reach(self, rows: pd.DataFrame) -> str:
        """The farthest end of the intervals of some rows, without a sign."""
        ends = pd.concat([rows.low, rows.high]).map(self.change).abs()
        reach = wording.signed_range(*[ends.max() * 100] * 2).replace("+", "")
        return f"{reach} {self.unit.partition(' of ')[0]}"

    def finding(self, row: Mapping[str, Any]) -> str:
        """A row of `accuracy.differences` in words, for a table's cell."""
        if row["verdict"] == "equal":
            return f"equal within {self.margin(row['margin'])}"
        rows = pd.DataFrame([row])
        if accuracy.looks_equal(rows).all():
            return self.near(rows)
        return self.words.get(row["verdict"], row["verdict"])


def _perplexities(mean: float, low: float, high: float, n: int) -> str:
    """`8.21 (8.15-8.30)`."""
    if pd.isna(mean):
        return "–"
    mean, low, high = map(wording.perplexity, (mean, low, high))
    return mean + f" ({low}–{high})" * (n > 1)


def _of_perplexity(difference: float) -> float:
    """The change of perplexity, a fraction, of minus the loss in nats.

    Of a loss that exploded the ends of an interval are beyond what a float holds, and what is said
    ends before (see `wording.signed`).
    """
    return min(tasks.perplexity(-difference) - 1, wording.MOST_PERCENT / 100)


MEASURES = {
    measure.task.name: measure
    for measure in (
        Measure(
            tasks.IMAGES,
            "Validation accuracy",
            wording.mean_accuracy,
            float,
            "percentage points",
            "below float32",
            wording.percentage_points,
            {},
        ),
        Measure(
            tasks.TOKENS,
            "Validation perplexity",
            _perplexities,
            _of_perplexity,
            "% of perplexity",
            "above float32's perplexity",
            lambda margin: wording.percent(math.expm1(margin)),  # a margin of losses, in nats
            {"lower": "higher (worse)", "higher": "lower (better)"},
        ),
    )
}


def of(dataset: str) -> Measure:
    """The row of a dataset's task."""
    return MEASURES[tasks.of(dataset).name]


def met(table: pd.DataFrame) -> list[Measure]:
    """The rows of the tasks that a table with a column dataset has."""
    names = {tasks.of(dataset).name for dataset in table.dataset.unique()}
    return [measure for name, measure in MEASURES.items() if name in names]


def listed(table: pd.DataFrame) -> str:
    """`accuracy`, `perplexity` or both."""
    return wording.listed([measure.name for measure in met(table)])
