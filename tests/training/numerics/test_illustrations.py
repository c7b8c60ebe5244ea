import matplotlib.pyplot as plt
import numpy as np
import pytest

from mptexp.training.numerics import illustrations


def title(figure):
    return figure.get_suptitle()


@pytest.mark.parametrize(
    ("draw", "arguments"),
    [
        (illustrations.spacing, {"exponent_bits": 3, "mantissa_bits": 1}),
        (illustrations.rounding, {"seed": 1, "mantissa_bits": 2, "draws": 10}),
        (illustrations.fused, {"seed": 1, "cancelled_bits": 3}),
        (illustrations.accumulation, {"seed": 1, "mean": 0.25}),
        (illustrations.loss_scale, {"seed": 1, "log2_scale": 10, "spread": 2}),
        (illustrations.update, {"seed": 1, "log2_update": -9, "number_format": "bfloat16"}),
    ],
)
def test_a_figure_depends_on_its_arguments_alone_and_is_shown_once(draw, arguments):
    figure, again = draw(**arguments), draw(**arguments)
    assert title(figure) == title(again)
    assert all(axis.get_xlabel() for axis in figure.axes)
    assert not plt.get_fignums()


def test_the_spacing_of_a_format_is_told():
    drawn = title(illustrations.spacing(4, 2))
    assert "spacing 0.25 from 1 on, largest 224, smallest 0.0039" in drawn


def test_sixteen_bits_stall_a_sum_and_float32_does_not():
    drawn = title(illustrations.accumulation(0, 0.5))
    totals = [float(n.replace(",", "").split()[-1]) for n in drawn.split(": ")[1].split(", ")]
    half, brain, single, exact = totals
    assert brain < half < 0.5 * exact
    assert single == pytest.approx(exact, rel=1e-3)


def test_a_scale_brings_lost_gradients_back():
    assert "safe from" in title(illustrations.loss_scale(0, 0, 3))
    assert "no scale is safe" in title(illustrations.loss_scale(0, 0, 12))


def test_an_update_below_half_a_spacing_moves_a_weight_by_chance_only():
    figure = illustrations.update(0, -13, "float16")
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert np.ptp(lines["nearest"]) == 0
    exact = lines["master weight in float32"]
    assert exact[-1] == 1 + 300 * 2.0**-13
    stochastic = lines["stochastic, mean of 40 weights"]
    assert stochastic[-1] == pytest.approx(exact[-1], abs=0.005)
