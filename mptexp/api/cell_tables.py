"""Tables of a sweep's runs, and of two sweeps, as a cell has them: short to look at, yet whole."""

import math
from collections.abc import Hashable, Sequence
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
        as_made: the columns that it was made with; all others were added in a cell.
    """

    _metadata: ClassVar[list[str]] = ["history", "speedups", "as_made"]
    history: pd.DataFrame
    speedups: pd.DataFrame
    as_made: tuple[str, ...] = ()

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    @classmethod
    def of(cls, tables: Tables) -> "Results":
        """The results of a sweep with its other tables."""
        made = cls(filled(tables.results))
        made.history, made.speedups = filled(tables.epochs), speedups(tables)
        made.as_made = tuple(made.columns)
        return made

    @property
    def whole(self) -> pd.DataFrame:
        """The whole table, as results.csv has it."""
        return pd.DataFrame(self)

    def short(self) -> pd.DataFrame:
        """What varies between runs, what was measured of them, and what of it is not valid.

        Columns that a cell added come last. All of it, where a cell gave it columns or values of
        which that cannot be told.
        """
        if not self.columns.is_unique:
            return self.whole
        try:
            chosen = list(dict.fromkeys([*self._told(), *self._added()]))
        except Exception:  # whatever a cell put in, as lists: a display shows it and never raises
            return self.whole
        return self.whole[chosen] if chosen else self.whole

    def _told(self) -> list[str]:
        axes = [name for name in AXES if name in self and self[name].nunique() > 1]
        measured = [name for name in MEASURED if name in self and self[name].notna().any()]
        flags = ["flags"] if "flags" in self and self["flags"].astype(bool).any() else []
        return [*axes, *measured, *flags]

    def _added(self) -> list[Hashable]:
        return [name for name in self.columns if name not in self.as_made]

    def _repr_html_(self) -> str | None:
        short = self.short()
        more = f"<p>{self._more()}</p>" if short.shape[1] < self.shape[1] else ""
        shown = pd.DataFrame._repr_html_(short)
        return None if shown is None else shown + more  # None: pandas' options want text

    def __repr__(self) -> str:
        short = self.short()
        more = f"\n{self._more()}" if short.shape[1] < self.shape[1] else ""
        with pd.option_context("display.width", 120, "display.max_columns", None):
            return f"{short!r}{more}"

    def _more(self) -> str:
        chosen = "vary, were measured or were added" if self._added() else "vary or were measured"
        return (
            f"The columns that {chosen}, of {self.shape[1]} in .whole; also .history and .speedups"
        )


class ComparedSweeps(pd.DataFrame):
    """The points that two sweeps measured well, a row each, see `analysis.two_sweeps.points`.

    A cell shows what `mptexp compare` prints: ratios with their intervals, or why they have none,
    and what else is to be known of them. What is taken of it is a DataFrame; once its rows or
    values were changed it is shown as one, as those sentences are of what was compared.

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
        table = cls(made.points.copy())  # which a cell may change
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

    def _repr_html_(self) -> str | None:
        if not self._as_made():
            return pd.DataFrame(self)._repr_html_()
        parts = [part if isinstance(part, str) else _printable(part) for part in self._parts()]
        with pd.option_context("display.max_colwidth", None, "display.html.use_mathjax", False):
            return "".join(
                f"<p>{escape(part)}</p>" if isinstance(part, str) else part.to_html(index=False)
                for part in parts
            )

    def __repr__(self) -> str:
        if not self._as_made():
            return repr(pd.DataFrame(self))
        texts = [
            part if isinstance(part, str) else _printable(part).to_string(index=False)
            for part in self._parts()
        ]
        return "\n\n".join(texts)

    def _as_made(self) -> bool:
        """Whether its rows, columns and values are still those that were compared."""
        try:
            return bool(self.equals(self.made.points))
        except Exception:  # whatever a cell put in: what cannot be compared was put in
            return False

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
