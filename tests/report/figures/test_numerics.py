import numpy as np
import pytest
from builders import published

from mptexp.analysis import out_of_range
from mptexp.analysis.out_of_range import DynamicRange
from mptexp.report.figures import all_figures, numerics


@pytest.fixture(scope="module")
def figures():
    sweep = published("loss-scale-cpu")
    return {figure.name: figure for figure in all_figures.figures(sweep)}


def test_each_kind_of_values_is_a_line_and_adds_up_to_all(figures):
    figure, caption = figures["exponents_by_kind_1"].draw()
    lines = [line for line in figure.axes[0].lines if len(line.get_ydata()) > 2]
    assert len(lines) == len(numerics.KIND_COLOURS)
    assert all(sum(line.get_ydata()) == pytest.approx(100) for line in lines)
    assert "0.081 % of the gradients of activations and 0.0018 % of the gradients of" in caption


def test_a_row_stands_for_a_layer(figures):
    figure, caption = figures["exponents_by_layer_1"].draw()
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert "batch_normalization_2" in names
    # The lie: 0.31 % "below float16's range", half of which round to its smallest number.
    worst = "batch_normalization_2 has most that would be flushed to zero in float16: 0.15 %"
    assert worst in caption
    assert figure.axes[0].lines[0].get_xdata()[0] == -25  # where the caption counts from


def test_what_diverged_stands_apart_from_what_was_learned(figures):
    figure, caption = figures["accuracy_by_loss_scale_1"].draw()
    learned, strip = figure.axes
    assert not [line for line in learned.lines if line.get_marker() == "x"]
    assert {line.get_marker() for line in strip.lines} == {"x"}
    assert strip.get_ylabel() == "diverged"
    assert learned.collections  # from the least to the most of the repeats
    assert "24 runs of 240 diverged (crosses)" in caption
    # Of a setting of which some runs diverged the others were not drawn.
    hollow = [line for line in learned.lines if line.get_markerfacecolor() == "none"]
    assert sum(np.isfinite(line.get_ydata()).sum() for line in hollow) == 2
    assert "Hollow: mean of the others." in caption


def test_the_dynamic_scale_is_named_as_a_power_of_two(figures):
    figure, caption = figures["loss_scale_by_step"].draw()
    figure.draw_without_rendering()
    assert "2¹⁵" in {label.get_text() for label in figure.axes[0].get_yticklabels()}
    assert "skipped 6 steps in all" in caption


def test_of_many_layers_the_worst_is_drawn_and_the_rest_is_counted():
    # "layer_43 has most that would be flushed", which was not among the 30 rows.
    usual, small = np.zeros(out_of_range.BINS, np.int64), np.zeros(out_of_range.BINS, np.int64)
    usual[-10 - out_of_range.LOWEST] = 100
    small[-40 - out_of_range.LOWEST] = 100
    layers = {
        ("activation_gradients", f"layer_{k}"): out_of_range.Histogram(small if k == 43 else usual)
        for k in range(45)
    }
    ranges = DynamicRange({}, "float32", 1, {}, layers, {}, 1, {})
    figure = numerics.exponents_by_layer(ranges)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(names) <= numerics.LAYERS
    assert "layer_43" in names
    assert f"{len(names)} of 45 layers are shown" in figure.get_label()
