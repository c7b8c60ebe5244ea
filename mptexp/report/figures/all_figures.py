"""The figures of all modules, joined: report, export and site show them.

A figure's row stands in `FIGURES` of the module of its subject.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from mptexp.report.figures import (
    answer,
    device,
    diagnosis,
    drawn_ahead,
    learning,
    numerics,
    output,
    speed,
    style,
)
from mptexp.report.figures.row import FigureRow, Section
from mptexp.report.measured_sweep import MeasuredSweep

# In the order in which they are exported.
FIGURES: tuple[FigureRow, ...] = (
    *answer.FIGURES,
    *speed.FIGURES,
    *learning.FIGURES,
    *diagnosis.FIGURES,
    *numerics.FIGURES,
    *device.FIGURES,
)


def check(rows: tuple[FigureRow, ...]) -> None:
    """Refuses two figures whose files would have the same name."""
    names = [row.name for row in rows]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"figures: more than one is named {', '.join(repeated)}")


check(FIGURES)


@dataclass(frozen=True)
class SweepFigure:
    """One figure of one sweep."""

    row: FigureRow
    case: str
    data: Any

    @property
    def name(self) -> str:
        """The stem of its files."""
        return self.row.name.format(self.case)

    @property
    def title(self) -> str:
        return self.row.title.format(self.case)

    @property
    def alt(self) -> str:
        """The text alternative."""
        values = f" {self.row.values(self.data)}" if self.row.values else ""
        return f"{self.row.alt.format(self.case)}{values}"

    def draw(self) -> tuple[Figure, str]:
        """The drawn figure and its caption, which names what the figure leaves out."""
        with style.ours():
            figure = self.row.draw(self.data)
        return figure, f"{self.row.caption(self.data)} {figure.get_label()}".strip()

    def html(self, inches: float = style.WIDTH, titled: bool = True) -> str:
        """The figure, also as a phone shows it, with text alternative, title and caption."""
        if (inches, titled) == (style.WIDTH, True) and (known := drawn_ahead.html(self.name)):
            return known
        drawn = style.on_both(self.draw, inches)
        documents = [output.svg(figure) for figure, _ in drawn]
        return output.as_html(documents, self.alt, drawn[0][1], self.title * titled)


def figures(sweep: MeasuredSweep, section: Section | None = None) -> Iterator[SweepFigure]:
    """The figures of a sweep, or those of one section of its report."""
    for row in FIGURES:
        if section in (None, row.section):
            for case, data in row.cases(sweep).items():
                yield SweepFigure(row, case, data)
