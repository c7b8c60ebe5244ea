"""The form of a figure's row in `all_figures`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from matplotlib.figure import Figure

from mptexp.report.measured_sweep import MeasuredSweep

# The section of a report in which a figure stands; a section shows all figures of its name.
Section = Literal[
    "answer", "speedups", "throughput", "step times", "latency", "learning", "time breakdown",
    "roofline", "exponents", "loss scale", "memory", "device",
]  # fmt: skip


@dataclass(frozen=True)
class FigureRow:
    """One kind of figure: what it draws, what it says, and where it applies.

    What `cases` selects is the one argument of `draw` and of `caption`, so that the two cannot
    disagree.

    Attributes:
        name: the stem of its files; of several in one sweep, `{}` in it stands for the case.
        section: of the report.
        title: a few words; `{}` in it stands for the case.
        alt: what is drawn, for whoever cannot see it; `{}` in it stands for the case.
        cases: the data of each figure of this kind that a sweep has, by what sets them apart; one
            figure has the key "", and a sweep without its data has none.
        draw: draws the data.
        caption: states what the data show.
        values: the data in words, behind `alt`; None where a table of the page has them.

    Raises:
        ValueError: where a part is missing.
    """

    name: str
    section: Section
    title: str
    alt: str
    cases: Callable[[MeasuredSweep], Mapping[str, Any]]
    draw: Callable[[Any], Figure]
    caption: Callable[[Any], str]
    values: Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        for part in ("name", "title", "alt"):
            if not str(getattr(self, part)).strip():
                raise ValueError(f"figure {self.name!r}: its {part} is empty")
        for part in ("cases", "draw", "caption"):
            if not callable(getattr(self, part)):
                raise ValueError(f"figure {self.name!r}: its {part} is no function")
        if self.section not in get_args(Section):
            allowed = ", ".join(get_args(Section))
            raise ValueError(f"figure {self.name!r}: section {self.section!r}; allowed: {allowed}")


def single(data: Any, applies: bool) -> dict[str, Any]:
    """The cases of a figure of which a sweep has one or none."""
    return {"": data} if applies else {}
