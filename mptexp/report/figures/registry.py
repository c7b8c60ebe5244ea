"""All figures of a report: the report, the export and the site show what stands here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from mptexp.report.figures import device, diagnosis, learning, numerics, output, speed
from mptexp.report.figures.row import FigureRow, Section
from mptexp.report.measured import MeasuredSweep

# In the order in which they are exported.
FIGURES: tuple[FigureRow, ...] = (
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
        return self.row.alt.format(self.case)

    def draw(self) -> tuple[Figure, str]:
        """The drawn figure and its caption, which names what the figure leaves out."""
        figure = self.row.draw(self.data)
        return figure, f"{self.row.caption(self.data)} {figure.get_label()}".strip()

    def html(self) -> str:
        """The figure with its text alternative, title and caption."""
        figure, caption = self.draw()
        return output.as_html(output.svg(figure), self.alt, caption, self.title)


def figures(sweep: MeasuredSweep, section: Section | None = None) -> Iterator[SweepFigure]:
    """The figures of a sweep, or those of one section of its report."""
    for row in FIGURES:
        if section in (None, row.section):
            for case, data in row.cases(sweep).items():
                yield SweepFigure(row, case, data)
