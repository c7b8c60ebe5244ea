"""Tables of a sweep's runs, and of two sweeps, as a cell has them: short to look at, yet whole."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pandas as pd

from mptexp.analysis.sweep_tables import Tables
from mptexp.host.terminal import visible
from mptexp.report.answers import comparisons
from mptexp.report.text import wording
from mptexp.spec import tasks

if TYPE_CHECKING:
    from mptexp.api.commands import Compared

# What may tell runs apart, and what was measured of them, in the order shown.
AXES = ("dataset", "model", "gpu_model", "backend", "policy", "batch_size", "replicas", "jit")
AXES += ("input_mode", "phase", "setting", "block")
MEASURED = ("status", "step_s", *tasks.RATES, "peak_memory_bytes")
MEASURED += tuple(task.column for task in tasks.TASKS.values())


class Results(pd.DataFrame):
    """One row per run, as results.csv has them.

    A cell shows a few columns; `.whole` is all of it. What is taken of it is a DataFrame. What is
    not valid of each run is the column `results["flags"]`: `results.flags` is pandas' own.

    Attributes:
        history: one row per run and epoch, with the columns of history.csv beside the run's own.
        speedups: one row per point and policy, as speedups.csv has them, and `finding`.
    """

    _metadata: ClassVar[list[str]] = ["history", "speedups"]
    history: pd.DataFrame
    speedups: pd.DataFrame

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    @classmethod
    def of(cls, tables: Tables) -> "Results":
        """The results of a sweep with its other tables."""
        made = cls(filled(tables.results))
        made.history, made.speedups = filled(tables.epochs), speedups(tables)
        return made

    @property
    def whole(self) -> pd.DataFrame:
        """The whole table, as results.csv has it."""
        return pd.DataFrame(self)

    def short(self) -> pd.DataFrame:
        """What varies between runs, what was measured of them, and what of it is not valid."""
        axes = [name for name in AXES if name in self and self[name].nunique() > 1]
        measured = [name for name in MEASURED if name in self and self[name].notna().any()]
        flags = ["flags"] if "flags" in self and self["flags"].astype(bool).any() else []
        return self.whole[[*axes, *measured, *flags]]

    def _repr_html_(self) -> str:
        shown = pd.DataFrame._repr_html_(self.short())
        return f"{shown}<p>{self._more()}</p>"

    def __repr__(self) -> str:
        with pd.option_context("display.width", 120, "display.max_columns", None):
            return f"{self.short()!r}\n{self._more()}"

    def _more(self) -> str:
        return (
            f"The columns that vary or were measured, of {self.shape[1]} in .whole; "
            "also .history and .speedups"
        )


class ComparedSweeps(pd.DataFrame):
    """The points that two sweeps measured well, a row each, see `analysis.two_sweeps.points`.

    A cell shows what `mptexp compare` prints: ratios with their intervals, or why they have none,
    and what else is to be known of them. What is taken of it is a DataFrame.

    Attributes:
        sides: what A and B are.
        made: the comparison of which this is the table.
    """

    _metadata: ClassVar[list[str]] = ["sides", "made"]
    sides: str
    made: "Compared"

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    @classmethod
    def of(cls, made: "Compared", a: Sequence[Path], b: Sequence[Path]) -> "ComparedSweeps":
        """A comparison of some sessions with others."""
        table = cls(made.points)
        names = [visible(", ".join(map(str, side))) for side in (a, b)]
        table.made, table.sides = made, f"A is {names[0]}, B is {names[1]}"
        return table

    @property
    def advice(self) -> list[str]:
        """What the ratios cannot exclude, and how to measure so that they do, in sentences."""
        return self.made.advice

    @property
    def not_compared(self) -> pd.DataFrame:
        """The points of which one side at least has no run that ended well."""
        return self.made.not_compared

    @property
    def differences(self) -> pd.DataFrame:
        """What else differs between the sides: columns what, a, b."""
        return self.made.differences

    def _repr_html_(self) -> str:
        parts = [part if isinstance(part, str) else _printable(part) for part in self._parts()]
        with pd.option_context("display.max_colwidth", None, "display.html.use_mathjax", False):
            return "".join(
                f"<p>{escape(part)}</p>" if isinstance(part, str) else part.to_html(index=False)
                for part in parts
            )

    def __repr__(self) -> str:
        texts = [p if isinstance(p, str) else _as_text(p) for p in self._parts()]
        return "\n\n".join(texts)

    def _parts(self) -> list[str | pd.DataFrame]:
        """The sentences and tables of text that the command prints, in its order."""
        made = self.made
        parts = [self.sides, comparisons.side_by_side(made.points), *made.advice]
        if not made.not_compared.empty:
            rows = comparisons.not_compared(made.not_compared, made.points)
            parts += ["Not compared", rows]
        if made.alike:
            parts.append(comparisons.NOTHING_ELSE)
        if not made.differences.empty:
            parts += ["What else differs", made.differences]
        return parts


def _as_text(table: pd.DataFrame) -> str:
    return str(_printable(table).to_string(index=False))


def _printable(table: pd.DataFrame) -> pd.DataFrame:
    """A table of text of others, whose control characters are shown."""
    return table.map(lambda cell: visible(str(cell)))


def speedups(tables: Tables) -> pd.DataFrame:
    """The table of speedups.csv, with what a page says of each row, see `wording.finding`."""
    said = [wording.finding(row) for row in tables.claims.to_dict("records")]
    return filled(tables.speedups).assign(finding=said)


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose columns without any value are columns of numbers."""
    return table.fillna(math.nan).infer_objects()
