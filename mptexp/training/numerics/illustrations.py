"""What happens to numbers in few bits: the figures of notebooks/numerics.py, with their sliders.

All numbers are drawn at random and rounded by `quantization`; nothing is measured on a device.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import ml_dtypes
import numpy as np
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mptexp.host import imports
from mptexp.spec.number_formats import FORMATS, Float, Format

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with imports.framework("keras"):
    from keras import ops, random

    from mptexp.training.numerics.quantization import Rounding, Seed, quantize

try:
    import ipywidgets
except ImportError:  # it comes with JupyterLab; without it the figures stand still
    ipywidgets = None

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = {"float16": "#e69f00", "bfloat16": "#009e73", "float32": "#7f7f7f"}
COLOURS |= {"float8_e4m3fn": "#cc79a7", "float8_e5m2": "#56b4e9"}
NEAREST, STOCHASTIC, OVERFLOW = "#d55e00", "#0072b2", "#7f7f7f"
HALF = FORMATS["float16"]


def explore(draw: Callable[..., Figure], seed: int | None = None, **sliders: Any) -> None:
    """Shows what `draw` draws and, where ipywidgets is installed, a slider for each argument.

    Args:
        draw: a function of this module.
        seed: of its random numbers, where it has one.
        sliders: argument -> (values, the one to begin with).
    """
    fixed = {} if seed is None else {"seed": seed}
    figure = display(
        draw(**fixed, **{name: start for name, (_, start) in sliders.items()}), display_id=True
    )
    if ipywidgets is None:
        return
    widgets = {name: _slider(name, *choice) for name, choice in sliders.items()}

    def redraw(_: Any) -> None:
        figure.update(draw(**fixed, **{name: widget.value for name, widget in widgets.items()}))

    for widget in widgets.values():
        widget.observe(redraw, "value")
    display(ipywidgets.VBox(list(widgets.values())))


def _slider(name: str, values: Sequence[Any], start: Any) -> Any:
    return ipywidgets.SelectionSlider(
        options=list(values),
        value=start,
        description=name.replace("_", " "),
        continuous_update=False,
        style={"description_width": "8em"},
    )


def _panels(title: str, *widths: int) -> tuple[Figure, list[Axes]]:
    """A figure of panels of these relative widths under one title."""
    figure, axes = plt.subplots(
        1, len(widths), figsize=(9, 3.4), width_ratios=widths, squeeze=False
    )
    figure.suptitle(title, fontsize=11)
    return figure, list(axes[0])


def _finished(figure: Figure) -> Figure:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.close(figure)  # or the notebook would show it a second time
    return figure


def _rounded(
    x: Any, target: Format, rounding: Rounding = "nearest", seed: Seed = None
) -> np.ndarray:
    return ops.convert_to_numpy(quantize(np.float32(x), target, rounding, seed))


# --- spacing -------------------------------------------------------------------------------------


def spacing(exponent_bits: int, mantissa_bits: int) -> Figure:
    """Values of a small format on a line; its spacing relative to the value, beside others'."""
    own = Float(exponent_bits, mantissa_bits)
    figure, (line, relative) = _panels(
        f"{exponent_bits} exponent and {mantissa_bits} mantissa bits: spacing {own.spacing(1):.3g} "
        f"from 1 on, largest {own.largest:.3g}, smallest {own.smallest_subnormal:.2g}",
        *(2, 3),
    )
    values = np.unique(_rounded(np.linspace(0, 16 * own.smallest_normal, 20_000), own))
    normal = values >= own.smallest_normal
    for part, colour, label in ((~normal, NEAREST, "subnormal"), (normal, STOCHASTIC, "normal")):
        x = values[part] / own.smallest_normal
        line.vlines(x, 0, 1, color=colour, linewidth=1, label=label)
    line.set(xlabel="value / smallest normal number", yticks=[], ylim=(0, 1.6), xlim=(0, 16))
    line.legend(frameon=False, ncols=2, loc="upper right")
    line.spines["left"].set_visible(False)
    shown = {name: (FORMATS[name], colour) for name, colour in COLOURS.items() if name != "float32"}
    for name, (target, colour) in {**shown, "this one": (own, "black")}.items():
        x = 2.0 ** np.arange(-30, 20, 0.02)
        x = x[(x >= target.smallest_subnormal) & (x <= target.largest)]
        share = [target.spacing(value) / value for value in x]
        relative.loglog(x, share, color=colour, linewidth=1, label=name, base=2)
    relative.set(xlabel="value", ylabel="spacing / value")
    relative.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return _finished(figure)


# --- rounding ------------------------------------------------------------------------------------


def rounding(seed: int, mantissa_bits: int, draws: int) -> Figure:
    """Numbers rounded to nearest, and the mean of so many stochastic roundings."""
    own = Float(5, mantissa_bits)
    x = np.linspace(0, 4, 401, dtype=np.float32)
    nearest = _rounded(x, own)
    stochastic = _rounded(np.tile(x, (draws, 1)), own, "stochastic", seed).mean(0)
    errors = [abs(nearest - x), abs(stochastic - x)]
    figure, (axis,) = _panels(
        f"Error: nearest {errors[0].mean():.2g} on average, {errors[0].max():.2g} at most; mean of "
        f"{draws} stochastic {errors[1].mean():.2g}, {errors[1].max():.2g} at most",
        1,
    )
    label = f"stochastic, mean of {draws}"
    axis.plot(x, x, color="gray", linewidth=1)
    axis.plot(x, nearest, color=NEAREST, label="nearest")
    axis.plot(x, stochastic, ".", color=STOCHASTIC, markersize=3, label=label)
    axis.set(xlabel="number", ylabel="rounded")
    axis.legend(frameon=False)
    return _finished(figure)


# --- fused multiply-add --------------------------------------------------------------------------


def fused(seed: int, cancelled_bits: int) -> Figure:
    """Relative error of a·b + c in float16 by the leading bits that c cancels."""
    bits = range(1, 12)
    errors = {n: _multiply_add(seed, n) for n in bits}
    twice, once = (np.median(error) for error in errors[cancelled_bits])
    figure, (curve, spread) = _panels(
        f"{cancelled_bits} bits cancelled: median relative error {twice:.2g} rounded twice, "
        f"{once:.2g} fused",
        *(1, 1),
    )
    for place, colour, label in ((0, NEAREST, "rounded twice"), (1, STOCHASTIC, "fused")):
        powers = {n: np.log2(np.maximum(errors[n][place], 2.0**-20)) for n in bits}
        medians = [np.median(powers[n]) for n in bits]
        curve.plot(bits, medians, "o-", color=colour, label=label)
        spread.hist(powers[cancelled_bits], bins=np.arange(-20.5, 3), color=colour, alpha=0.6)
    curve.axvline(cancelled_bits, color="gray", linewidth=1)
    curve.set(xlabel="leading bits cancelled", ylabel="median, power of two (−20: or less)")
    spread.set(xlabel="relative error, power of two (−20: or less)", ylabel="results")
    curve.legend(frameon=False)
    return _finished(figure)


def _multiply_add(seed: int, cancelled_bits: int) -> list[np.ndarray]:
    """Relative errors of a·b + c in float16, rounded twice and once."""
    numbers = np.random.default_rng(seed)
    a, b = numbers.uniform(1, 2, (2, 4000)).astype(np.float16).astype(float)
    c = -(a * b * (1 - 2.0**-cancelled_bits)).astype(np.float16).astype(float)
    exact = a * b + c  # float64 holds it
    twice = (a * b).astype(np.float16).astype(float) + c
    results = [value.astype(np.float16).astype(float) for value in (twice, exact)]
    nonzero = exact != 0
    return [abs((result - exact)[nonzero] / exact[nonzero]) for result in results]


# --- accumulation --------------------------------------------------------------------------------

ACCUMULATORS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
TERMS = 2**14


def accumulation(seed: int, mean: float) -> Figure:
    """Sums of random terms of a mean in three accumulators, and their relative errors."""
    numbers = np.random.default_rng(seed)
    # Terms of 8 bits, which all accumulators hold: errors come from adding alone.
    terms = _rounded(mean + (1 - mean) * numbers.uniform(-1, 1, (TERMS, 50)), Float(5, 7))
    exact = terms.astype(float).cumsum(0)
    sums = {
        name: np.add.accumulate(terms.astype(kind), axis=0).astype(float)
        for name, kind in ACCUMULATORS.items()
    }
    ends = ", ".join(f"{name} {total[-1, 0]:,.0f}" for name, total in sums.items())
    figure, (growth, errors) = _panels(
        f"{TERMS:,} terms of mean {mean}: {ends}, exactly {exact[-1, 0]:,.0f}", *(1, 1)
    )
    for name, total in sums.items():
        label = f"summed in {name}"
        growth.plot(np.arange(TERMS) + 1, total[:, 0], color=COLOURS[name], label=label)
    sums["float32, then float16"] = sums["float32"].astype(np.float16).astype(float)
    shown = np.unique(np.geomspace(1, TERMS, 60).astype(int))
    for name, total in sums.items():
        error = np.median(abs(total - exact) / np.maximum(abs(exact), 2.0**-10), axis=1)
        style = {"color": COLOURS.get(name, "black"), "linestyle": "-" if name in COLOURS else ":"}
        errors.loglog(shown, np.maximum(error[shown - 1], 1e-9), label=name, **style)
    growth.set(xlabel="terms", ylabel="sum")
    errors.set(xlabel="terms", ylabel="relative error, median of 50")
    growth.legend(frameon=False, fontsize=8)
    errors.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return _finished(figure)


# --- loss scale ----------------------------------------------------------------------------------

SCALES = np.arange(0, 41)  # powers of two


def loss_scale(seed: int, log2_scale: int, spread: float) -> Figure:
    """Where scaled gradients lie in float16's range, and what is lost at either end by scale."""
    exponents = np.random.default_rng(seed).normal(-22, spread, 20_000)
    gradients = (2.0**exponents).astype(np.float32)
    scaled = _rounded(gradients * np.float32(2.0) ** SCALES[:, None], HALF)
    zero, infinite = (scaled == 0).mean(1), np.isinf(scaled).mean(1)
    safe = SCALES[(zero < 1e-3) & (infinite == 0)]
    figure, (places, shares) = _panels(
        f"Loss scale 2^{log2_scale}: {zero[log2_scale]:.2%} become zero, "
        f"{infinite[log2_scale]:.2%} overflow; "
        + (f"safe from 2^{safe[0]} to 2^{safe[-1]}" if safe.size else "no scale is safe"),
        *(1, 1),
    )
    _draw_range_of_half(places)
    places.hist(exponents + log2_scale, bins=np.arange(-55, 26), color="black", alpha=0.7)
    places.set(xlabel="scaled gradient, power of two", ylabel="gradients", xlim=(-55, 25))
    places.legend(frameon=False, fontsize=8, loc="upper right")
    shares.semilogy(SCALES, np.maximum(zero, 1e-5), color=NEAREST, label="become zero")
    shares.semilogy(SCALES, np.maximum(infinite, 1e-5), color=OVERFLOW, label="overflow")
    shares.axvline(log2_scale, color="gray", linewidth=1)
    shares.set(xlabel="loss scale, power of two", ylabel="share of gradients (1e-5: none)")
    shares.legend(frameon=False, fontsize=8)
    return _finished(figure)


def _draw_range_of_half(axis: Axes) -> None:
    """Colours what float16 makes of each power of two."""
    edges = np.log2([HALF.smallest_subnormal / 2, HALF.smallest_normal, HALF.largest])
    edges = [-55, *edges, 25]
    labels = ("becomes zero", "subnormal", "normal", "overflows")
    colours = (NEAREST, "#e69f00", "#009e73", OVERFLOW)
    for low, high, colour, label in zip(edges[:-1], edges[1:], colours, labels, strict=True):
        axis.axvspan(low, high, color=colour, alpha=0.2, linewidth=0, label=label)


# --- updates lost to rounding --------------------------------------------------------------------

STEPS, WEIGHTS = 300, 40


def update(seed: int, log2_update: int, number_format: str) -> Figure:
    """A weight of 1 in 16 bits over many equal updates, rounded in either way."""
    target, step = FORMATS[number_format], np.float32(2.0**log2_update)
    drawn = random.SeedGenerator(seed)
    nearest, stochastic = [np.float32(1)], [np.ones(WEIGHTS, np.float32)]
    for _ in range(STEPS):
        nearest.append(_rounded(nearest[-1] + step, target))
        stochastic.append(_rounded(stochastic[-1] + step, target, "stochastic", drawn))
    exact = 1 + float(step) * np.arange(STEPS + 1)
    figure, (axis,) = _panels(
        f"{STEPS} updates of 2^{log2_update} to a {number_format} of spacing "
        f"2^{np.log2(target.spacing(1)):.0f}: nearest {nearest[-1]:.4f}, stochastic "
        f"{np.mean(stochastic[-1]):.4f} on average, exactly {exact[-1]:.4f}",
        1,
    )
    label = f"stochastic, mean of {WEIGHTS} weights"
    axis.plot(stochastic, color=STOCHASTIC, linewidth=0.5, alpha=0.25)
    axis.plot(np.mean(stochastic, 1), color=STOCHASTIC, label=label)
    axis.plot(exact, "--", color="black", linewidth=1, label="master weight in float32")
    axis.plot(nearest, color=NEAREST, label="nearest")
    axis.set(xlabel="step", ylabel="weight")
    axis.legend(frameon=False)
    return _finished(figure)
