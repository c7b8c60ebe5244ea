"""The chart of the answer, as it is drawn."""

import random
from itertools import pairwise

import numpy as np
import pytest

from mptexp.report.answers.subject import Bar, Subject
from mptexp.report.figures import answer, style

NAN = float("nan")


def chart(*bars, scale="speed"):
    return Subject("", [], bars, "float32", scale)


def bar(value, low=NAN, high=NAN, policy="mixed_float16", label="some"):
    return Bar(label, policy, value, low, high, "faster", f"{value:.2f}×")


@pytest.mark.parametrize("inches", [style.LEAD_WIDTH, style.PHONE_WIDTH])
@pytest.mark.parametrize(
    "values",
    [
        [(1.0, 0.999, 1.001)],
        [(1.37, 1.2, 1.5), (0.29, 0.26, 0.34)],
        [(0.001, 0.0005, 0.002), (900, 700, 1100)],
        [(1.05, NAN, NAN)] * 12,
        [(1.16, 0.9, 1.48), (1 / 1.79, 1 / 1.94, 1 / 1.66)],
        [(1.2, 1.02, 1.41)],
        [(0.19, 0.17, 0.21), (1.5, 1.4, 2.0)],
        [(0.8, 0.7, 0.95)],
    ],
)
def test_every_row_is_within_the_view_and_no_tick_covers_another(values, inches):
    with style.width(inches):
        figure = answer.comparisons_at_a_glance(chart(*(bar(*v) for v in values)))
    figure.draw_without_rendering()
    (axis,) = figure.axes
    low, high = axis.get_xlim()
    assert all(low < v < high for row in values for v in (*row, 1) if not np.isnan(v))
    boxes = [label.get_window_extent() for label in axis.get_xticklabels()]
    assert len(boxes) >= answer.FEWEST
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
    assert len([line for line in axis.lines if line.get_marker() in style.MARKERS.values()]) == len(
        values
    )


def test_what_is_not_claimed_is_hollow_and_has_no_interval():
    figure = answer.comparisons_at_a_glance(chart(bar(2.0, 1.9, 2.1), bar(2.0)))
    _, interval, filled, hollow = figure.axes[0].lines
    assert interval.get_xdata().tolist() == [1.9, 2.1]
    assert (filled.get_markerfacecolor(), hollow.get_markerfacecolor()) != ("none", "none")
    assert hollow.get_markerfacecolor() == "none"


@pytest.mark.parametrize("inches", [style.LEAD_WIDTH, style.PHONE_WIDTH])
def test_no_label_covers_another_or_leaves_the_figure(inches):
    long = "mixed_float16, weights float16, stochastic, loss scale dynamic"
    bars = [bar(1.2 + k, label=long if k in (2, 3) else "short") for k in range(9)]
    with style.width(inches):
        figure = answer.comparisons_at_a_glance(chart(*bars, scale="error"))
    figure.draw_without_rendering()
    (axis,) = figure.axes
    boxes = [label.get_window_extent() for label in axis.get_yticklabels()]
    assert all(a.y0 > b.y1 for a, b in pairwise(boxes))
    assert axis.xaxis.label.get_window_extent().x1 <= figure.bbox.x1


def test_points_are_on_both_sides_of_zero():
    figure = answer.comparisons_at_a_glance(chart(bar(88.0), bar(-0.2), scale="error"))
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["0", "+1", "+10", "+100"]


@pytest.mark.parametrize("scale", ["speed", "error"])
def test_any_range_has_three_ticks_with_room(scale):
    draw = random.Random(5)
    for _ in range(150):
        ends = sorted(draw.gauss(0, draw.choice([0.003, 0.1, 1, 3])) for _ in range(3))
        low, value, high = np.exp(ends) if scale == "speed" else np.multiply(ends, 10)
        _, (axis,) = style.new(2)
        answer._scale(axis, chart(bar(value, low, high), scale=scale))
        places = axis.xaxis.get_transform().transform(axis.get_xticks())
        left, right = axis.xaxis.get_transform().transform(axis.get_xlim())
        assert len(places) >= answer.FEWEST, ends
        assert left <= places[0] < places[-1] <= right
        most = answer.MOST["factors" if scale == "speed" else "points"]
        assert np.diff(places).min() > (right - left) / most


def test_the_caption_counts_findings():
    caption = answer._caption(chart(bar(2.0, 1.9, 2.1), bar(2.0, 1.9, 2.1)))
    assert caption.startswith("Of 2 comparisons: 2 faster. Bars and brackets are 95 % intervals")
    assert caption.endswith("An interval across the line at “same” is inconclusive.")


@pytest.mark.parametrize(("scale", "end"), [("error", "2 points is"), ("accuracy", "n is")])
def test_the_caption_says_what_is_inconclusive_on_its_scale(scale, end):
    caption = answer._caption(chart(bar(0.3, -0.1, 0.6), scale=scale))
    assert end in caption
    assert "the line" not in caption


def not_valid(value):
    return Bar("some", "mixed_float16", value, NAN, NAN, "not valid", f"{value:.2f}× (why, n = 3)")


def test_that_nothing_is_claimed_is_said_once():
    figure = answer.comparisons_at_a_glance(chart(not_valid(2.0), not_valid(3.0)))
    (axis,) = figure.axes
    words = [label.get_text() for label in axis.get_yticklabels()]
    assert words == ["some: 2.00×", "some: 3.00×"]
    assert axis.get_xlabel().split()[-3:] == ["measured,", "not", "claimed"]
    caption = answer._caption(chart(not_valid(2.0), not_valid(3.0)))
    assert caption == "Of 2 comparisons: 2 not valid. Hollow markers: measured, not claimed."


def test_of_some_that_are_claimed_those_that_are_not_say_so():
    mixed = chart(bar(2.0, 1.9, 2.1), not_valid(3.0))
    figure = answer.comparisons_at_a_glance(mixed)
    words = [label.get_text().replace("\xa0", " ") for label in figure.axes[0].get_yticklabels()]
    assert words == ["some: 2.00×", "some: 3.00×, no claim"]
    assert "claimed" not in figure.axes[0].get_xlabel()
    assert answer._caption(mixed).endswith(" Hollow markers: measured, not claimed.")
