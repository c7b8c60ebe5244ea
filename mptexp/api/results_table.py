"""The table of a sweep's runs as a cell has it: short to look at, whole on request."""

import math
from typing import ClassVar

import pandas as pd

from mptexp.analysis.sweep_tables import Tables
from mptexp.report.text import wording
from mptexp.spec import tasks

# What may tell runs apart, and what was measured of them, in the order shown.
AXES = ("dataset", "model", "gpu_model", "backend", "policy", "batch_size", "replicas", "jit")
AXES += ("input_mode", "phase", "setting", "block")
MEASURED = ("status", "step_s", *tasks.RATES, "peak_memory_bytes")
MEASURED += tuple(task.column for task in tasks.TASKS.values())


class Results(pd.DataFrame):
    """One row per run, as results.csv has them.

    A cell shows a few columns; `.whole` is all of it. What is taken of it is a DataFrame.

    Attributes:
        history: one row per run and epoch, as history.csv has them.
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


def speedups(tables: Tables) -> pd.DataFrame:
    """The table of speedups.csv, with what a page says of each row, see `wording.finding`."""
    said = [wording.finding(row) for row in tables.claims.to_dict("records")]
    return filled(tables.speedups).assign(finding=said)


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose columns without any value are columns of numbers."""
    return table.fillna(math.nan).infer_objects()
