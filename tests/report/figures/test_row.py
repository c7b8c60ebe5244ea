import pytest
from matplotlib.figure import Figure

from mptexp.report.figures.row import FigureRow, single

PARTS = {
    "name": "memory",
    "section": "memory",
    "title": "Peak memory",
    "alt": "Peak memory by batch size.",
    "cases": lambda sweep: single(sweep, True),
    "draw": lambda data: Figure(),
    "caption": str,
}


def test_a_whole_row_is_accepted():
    assert FigureRow(**PARTS).caption(3) == "3"


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("name", " ", "its name is empty"),
        ("title", "", "figure 'memory': its title is empty"),
        ("alt", "", "its alt is empty"),
        ("cases", None, "its cases is no function"),
        ("draw", "memory", "its draw is no function"),
        ("caption", "a caption", "its caption is no function"),
        ("section", "memories", "section 'memories'; allowed: answer, speedups"),
    ],
)
def test_a_row_that_lacks_a_part_is_refused(part, value, message):
    with pytest.raises(ValueError, match=message):
        FigureRow(**PARTS | {part: value})


def test_a_figure_that_does_not_apply_has_no_case():
    assert single("data", True) == {"": "data"}
    assert single("data", False) == {}
