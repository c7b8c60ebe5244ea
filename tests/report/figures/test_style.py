import matplotlib
import pytest
from builders import published, record, tables
from legible import faults

from mptexp.report.figures import all_figures, learning, output, speed, style
from mptexp.spec.policies import POLICIES


def test_every_policy_has_a_colour_and_a_marker_of_its_own():
    assert set(style.COLOURS) == set(style.MARKERS) == set(POLICIES)
    assert len(set(style.COLOURS.values())) == len(set(style.MARKERS.values())) == len(POLICIES)


@pytest.mark.parametrize("inches", [style.WIDTH, style.PHONE_WIDTH])
def test_a_long_title_stays_within_the_figure(inches):
    long = [record(width=width) for width in (1.0, 2.0)]
    for made in long:
        made["parameters"] |= {"input_mode": "keydana", "normalization": "fused"}
        made["run_id"] += "fused"
    made = tables([*long, *(record(width=width) for width in (1.0, 2.0))])
    with style.width(inches):
        figure = speed.step_time_by_batch_size(made)
    figure.draw_without_rendering()
    titles = [axis.title.get_window_extent() for axis in figure.axes if axis.get_visible()]
    assert max(box.x1 for box in titles) <= figure.bbox.x1


def test_a_panels_title_says_what_no_other_panel_has():
    def titles(*rows):
        made = tables([record(policy, **row) for row in rows for policy in ("float32", "float16")])
        figures = speed.step_time_by_batch_size(made), learning.loss_by_epoch(made)
        shown = [[axis.get_title() for axis in figure.axes] for figure in figures]
        return shown

    assert titles({}) == [["GPU"], ["batch size 32"]]
    assert titles({}, {"batch_size": 64}) == [["GPU"], ["batch size 32", "batch size 64"]]
    assert titles({}, {"width": 2.0}) == [["width 1", "width 2"]] * 2
    both = {"batch_size": 64, "width": 2.0}
    assert titles({}, both)[1] == ["width 1, batch size 32", "width 2, batch size 64"]


@pytest.mark.parametrize(
    ("base", "values", "labels"),
    [
        (10, (0.9, 1.6), {"1", "1.2", "1.4"}),
        (10, (0.97, 1.04), {"0.98", "1", "1.02"}),
        (10, (3.1, 12.3), {"3", "5", "10"}),
        (10, (3.3, 14), {"4", "8", "12"}),
        (2, (2**15, 2**15), {"2¹⁴", "2¹⁵", "2¹⁶"}),
        (10, (0.22, 1.4), {"0.3", "0.5", "1"}),
        (10, (20, 900), {"20", "50", "200", "500"}),
        (10, (2e-3, 5e3), {"0.01", "0.1", "100", "1,000"}),
        (10, (1e-7, 1e8), {"10⁻⁶", "0.01", "10,000", "10⁶"}),
        (2, (2, 2**16), {"4", "2¹⁴"}),
        (10, (1.1e6, 1.9e6), {"1.2·10⁶", "1.4·10⁶"}),  # once 10⁶, both
        (10, (1.1e-5, 1.9e-5), {"1.2·10⁻⁵", "1.4·10⁻⁵"}),
    ],
)
def test_a_logarithmic_axis_has_plain_numbers(base, values, labels):
    figure, (axis,) = style.new(4)
    axis.plot(values, values)
    for name in "xy":
        style.log_scale(axis, name, base)
    assert not [fault for fault in faults(figure) if "with the label" in fault]
    for ticks in (axis.get_xticklabels(), axis.get_yticklabels()):
        assert labels <= {tick.get_text() for tick in ticks}


@pytest.mark.parametrize("inches", [style.WIDTH, style.PHONE_WIDTH])
@pytest.mark.parametrize("widths", [(1.0,), (1.0, 2.0)])
def test_batch_sizes_are_not_written_over_one_another(inches, widths):
    rows = [record(batch_size=2**k, width=width) for width in widths for k in range(17)]
    with style.width(inches):
        figure = speed.step_time_by_batch_size(tables(rows))
    assert not [fault for fault in faults(figure) if fault.startswith("overlap")]
    shown = [label.get_text() for label in figure.axes[0].get_xticklabels() if label.get_text()]
    assert len(shown) >= 4


def test_a_legend_names_what_any_panel_draws_once():
    figure, (left, right) = style.new(2, columns=2)
    left.plot([1, 2], [1, 2], label="float32")
    for label in ("float32", "float16"):
        right.plot([1, 2], [1, 2], label=label)
    style.legend(figure)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["float32", "float16"]


def test_names_in_another_script_are_told_apart():
    # The lie: two data sets in one chart, both of them "folder:" and the same empty box.
    cat, dog = (style.drawable(f"folder:{name}") for name in "猫犬")
    assert (cat, dog) == ("folder:\\u732b", "folder:\\u72ac")
    assert style.drawable("−2⁻⁸ × µ·é, 1\u00a0s") == "−2⁻⁸ × µ·é, 1\u00a0s"
    assert style.key(["猫 a", "b 犬, 猫"]) == "\\u732b: 猫, \\u72ac: 犬"
    assert style.key(["mlp"]) == ""
    assert style.wrapped("folder:猫") == cat


@pytest.mark.parametrize("of", range(1, 12))
def test_however_many_policies_each_stands_nearest_to_its_own_batch_size(of):
    # With ten, dots stood outside the axes and nearer to the next batch size.
    places = [style.offset(index, of) for index in range(of)]
    assert max(map(abs, places)) < 0.5
    assert sum(places) == pytest.approx(0)


def test_figures_are_the_same_whatever_matplotlib_was_told():
    # A legend without its last names under seaborn's theme for posters.
    (figure, *_) = all_figures.figures(published("why-cpu"))
    alone = output.svg(figure.draw()[0])
    with matplotlib.rc_context({"font.size": 24, "axes.xmargin": 0.4, "text.usetex": True}):
        assert output.svg(figure.draw()[0]) == alone
        assert matplotlib.rcParams["font.size"] == 24
