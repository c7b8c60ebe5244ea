"""The chart of the answer, as it is drawn."""

import random
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from builders import published

from mptexp.report.figures import answer, output, style
from mptexp.report.first_screen.subject import Bar, Subject

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


def test_what_is_not_valid_is_hollow_and_has_no_interval():
    figure = answer.comparisons_at_a_glance(chart(bar(2.0, 1.9, 2.1), bar(2.0)))
    interval, filled, hollow = figure.axes[0].lines
    assert interval.get_xdata().tolist() == [1.9, 2.1]
    assert (filled.get_markerfacecolor(), hollow.get_markerfacecolor()) != ("none", "none")
    assert hollow.get_markerfacecolor() == "none"


@pytest.mark.parametrize("inches", [style.LEAD_WIDTH, style.PHONE_WIDTH])
@pytest.mark.parametrize("policies", [["mixed_float16"], ["mixed_float16", "mixed_bfloat16"]])
def test_no_words_cover_others_or_a_marker_or_leave_the_figure(inches, policies):
    long = "weights float16, rounded stochastically, loss scale dynamic, gradients clipped"
    bars = [
        bar(1.2 + k, 1.1, 9, policy, f"{policy}, {long if k in (2, 3) else 'short'}")
        for policy in policies
        for k in range(6)
    ]
    with style.width(inches):
        figure = answer.comparisons_at_a_glance(chart(*bars, scale="error"))
    figure.draw_without_rendering()
    (axis,) = figure.axes
    words = [text.get_window_extent() for text in axis.texts]
    marks = [line.get_window_extent() for line in axis.lines]
    for box, other in combinations([*words, *marks], 2):
        shared = box in marks and other in marks
        assert shared or not box.overlaps(other)
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in words)
    assert axis.xaxis.label.get_window_extent().x1 <= figure.bbox.x1
    headings = [text.get_text() for text in axis.texts if text.get_weight() == "bold"]
    assert headings == policies * (len(policies) > 1)


def test_the_axis_of_many_rows_stands_above_them():
    few, many = (
        answer.comparisons_at_a_glance(chart(*[bar(2.0, 1.9, 2.1)] * n)).axes[0]
        for n in (answer.LONG, answer.LONG + 1)
    )
    assert few.xaxis.get_label_position() == "bottom"
    assert many.xaxis.get_label_position() == "top"


def test_the_colour_of_a_row_is_its_finding():
    rows = [
        Bar("a", "mixed_bfloat16", 1.2, 1.1, 1.3, "faster", "1.20×"),
        Bar("b", "mixed_bfloat16", 1.1, 0.9, 1.3, "inconclusive", "1.10×"),
    ]
    proven, open_one = answer.comparisons_at_a_glance(chart(*rows)).axes[0].lines[1::2]
    assert proven.get_color() == style.COLOURS["mixed_bfloat16"]
    assert open_one.get_color() == answer.GREY
    assert "Grey: inconclusive." in answer._caption(chart(*rows))


def test_points_are_on_both_sides_of_zero():
    figure = answer.comparisons_at_a_glance(chart(bar(88.0), bar(-0.2), scale="error"))
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["0", "+2", "+10", "+100"]


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


def test_the_caption_counts_the_findings_of_many():
    caption = answer._caption(chart(*[bar(2.0, 1.9, 2.1)] * 4))
    assert caption.startswith("Of 4 comparisons: 4 faster. Bars and brackets: simultaneous 95 %")
    assert answer._caption(chart(bar(2.0, 1.9, 2.1))).startswith(
        "Bars and brackets: 95 % intervals"
    )


def test_of_repeats_that_were_measured_again_an_interval_holds_of_both():
    # The puzzle: 1.61× [0.92, 2.18], an interval that is not around its ratio.
    sweep = published("imagenette-64px-cpu")
    assert len(sweep.tables.superseded)
    caption = answer._caption(sweep.subject)
    assert "from 3 repeats; some repeats were measured twice, and intervals" in caption
    assert "twice" not in answer._caption(published("gpt-cpu").subject)


def test_how_many_repeats_is_said_once_where_all_have_as_many():
    rows = [
        Bar("a", "float16", 2.0, 1.9, 2.1, "faster", f"2.00× [1.9, 2.1] (n = {n})")
        for n in (3, 3, 5)
    ]
    alike, unlike = chart(*rows[:2]), chart(*rows)
    assert "from 3 repeats." in answer._caption(alike)
    assert "n: repeats." in answer._caption(unlike)
    assert [row.finding for row in answer._rows(alike)] == ["2.00× [1.9, 2.1]"] * 2
    assert [row.finding for row in answer._rows(unlike)][2] == "2.00× [1.9, 2.1] (n = 5)"


@pytest.mark.parametrize(
    ("scale", "end"), [("error", "at 2 points, beyond"), ("accuracy", "n: repeats")]
)
def test_the_caption_says_what_is_inconclusive_on_its_scale(scale, end):
    caption = answer._caption(chart(bar(0.3, -0.1, 0.6), scale=scale))
    assert end in caption
    assert "the line" not in caption


def not_valid(value):
    return Bar("some", "mixed_float16", value, NAN, NAN, "not valid", f"{value:.2f}× (why, n = 3)")


def words(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_that_nothing_is_valid_is_said_once():
    figure = answer.comparisons_at_a_glance(chart(not_valid(2.0), not_valid(3.0)))
    assert words(figure) == ["some", "2.00×", "some", "3.00×"]
    assert figure.axes[0].get_xlabel().endswith("; not valid")
    caption = answer._caption(chart(not_valid(2.0), not_valid(3.0)))
    assert caption == "Hollow: not valid."


def test_of_some_that_are_valid_those_that_are_not_say_so():
    mixed = chart(bar(2.0, 1.9, 2.1), not_valid(3.0))
    figure = answer.comparisons_at_a_glance(mixed)
    assert words(figure) == ["some", "2.00×", "some", "3.00×, not valid"]
    assert "valid" not in figure.axes[0].get_xlabel()
    assert answer._caption(mixed).endswith(" Hollow: not valid.")


def test_a_few_points_stand_on_a_linear_axis():
    few = answer.comparisons_at_a_glance(chart(bar(-4.8, -19.5, 9.8), scale="accuracy")).axes[0]
    far = answer.comparisons_at_a_glance(chart(bar(-40.0, -60, 9.8), scale="accuracy")).axes[0]
    assert (few.get_xscale(), far.get_xscale()) == ("linear", "symlog")
    assert "logarithmic" in answer._caption(chart(bar(-40.0, -60, 9.8), scale="accuracy"))


def emulated(value, *ends):
    ends = ends or (value * 0.9, value * 1.1)
    return Bar("float16", "float16", value, *ends, "slower", f"{value:.2f}× x", emulated=True)


def test_what_is_emulated_and_far_away_is_an_arrow_at_the_edge():
    near, far = chart(bar(1.2, 1.1, 1.3), emulated(0.9)), chart(bar(1.2, 1.1, 1.3), emulated(0.05))
    for one, arrows in ((near, 0), (far, 1)):
        (axis,) = answer.comparisons_at_a_glance(one).axes
        marks = [line for line in axis.lines if line.get_marker() == "<"]
        assert len(marks) == arrows
        assert ("Arrow: " in answer._caption(one)) == bool(arrows)
    assert marks[0].get_xdata()[0] == axis.get_xlim()[0] > 0.5
    assert "0.05×" in words(axis.figure)
    assert axis.get_xlim()[0] < 1 / 1.02  # no effect is within the view
    (alone,) = answer.comparisons_at_a_glance(chart(emulated(0.05))).axes
    assert alone.get_xlim()[0] < 0.05  # nothing else would be seen better


def test_groups_are_headings_and_name_their_baselines():
    rows = [replace(bar(2.0, 1.9, 2.1, label=name), group=f"{name} against x") for name in "ab"]
    two = Subject("", [], rows, "")
    assert words(answer.comparisons_at_a_glance(two))[::3] == ["a against x", "b against x"]
    assert answer._axis_label(two) == "speed against the baseline in each heading"
    assert "simultaneous 95 % intervals under each heading" in answer._caption(two)
    # The lie: so too of ratios of which some hold with those of another table.
    assert "brackets: 95 % intervals" in answer._caption(replace(two, together=False))
    assert answer._values(two).startswith("a against x, a: ")


def test_many_rows_stand_closer():
    few, many = (answer._rows(chart(*[bar(2.0)] * n)) for n in (2, answer.DENSE_ROWS + 1))
    assert many[0].height < few[0].height


@pytest.mark.parametrize(
    ("finding", "said"), [("not valid", "not valid"), ("no interval", "without an interval")]
)
def test_what_is_hollow_is_named(finding, said):
    # The lie: "Hollow: not valid.", under every valid sweep of one repeat.
    caption = answer._caption(chart(replace(bar(1.4), finding=finding)))
    assert caption.endswith(f"Hollow: {said}.")


def test_a_name_that_the_font_cannot_write_is_drawn_as_escapes_with_a_key():
    names = ["float16, folder:猫", "float16, folder:犬"]
    made = chart(*(bar(2.0, 1.5, 2.5, "float16", name) for name in names))
    figure = answer.comparisons_at_a_glance(made)
    output.svg(figure)  # of a letter that is missing it warns, which is an error here
    shown = {text.get_text() for axis in figure.axes for text in axis.texts}
    assert {"folder:\\u732b", "folder:\\u72ac"} <= shown
    (row,) = answer.FIGURES
    assert "\\u732b: 猫, \\u72ac: 犬." in row.caption(made)


def test_no_interval_of_a_row_in_view_ends_at_the_edge():
    # "1.01× slower [0.64, 1.59]" as a bar from 0.92 to 1.20, the view of what is native.
    wide, far = emulated(0.99, 0.64, 1.59), emulated(0.02)
    (axis,) = answer.comparisons_at_a_glance(chart(bar(1.05, 1.0, 1.1), wide, far)).axes
    low, high = axis.get_xlim()
    assert 0.02 < low < 0.64
    assert high > 1.59
