# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # When are 16 bits enough?
#
# Six pictures of what happens to numbers in few bits, and of what saves them: wide accumulators, a
# loss scale, master weights, stochastic rounding. Everything here is drawn at random and rounded by
# `mptexp.training.numerics.quantization`, exactly as the formats are defined; nothing is measured
# on a device. In JupyterLab the sliders redraw the pictures (`make lab` installs them); elsewhere
# the pictures stand still.

# %% tags=["parameters"]
seed: int = 0  # of all that is drawn at random

# %%
import os

import matplotlib.pyplot as plt
import ml_dtypes
import numpy as np
from IPython.display import display

from mptexp.spec import imports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with imports.quiet():
    from keras import ops, random

    from mptexp.training.numerics.quantization import FORMATS, Float, quantize

try:
    import ipywidgets
except ImportError:
    ipywidgets = None

COLOURS = {"float16": "#e69f00", "bfloat16": "#009e73", "float32": "#7f7f7f"}
COLOURS |= {"float8_e4m3fn": "#cc79a7", "float8_e5m2": "#56b4e9"}
NEAREST, STOCHASTIC = "#d55e00", "#0072b2"


def rounded(x, number_format, rounding="nearest", seed=None):
    """The values of a format that x rounds to, as an array."""
    return ops.convert_to_numpy(quantize(np.float32(x), number_format, rounding, seed))


def explore(draw, **sliders):
    """Shows what draw draws, and a slider for each argument, given as (values, start)."""
    picture = display(
        closed(draw(**{name: start for name, (_, start) in sliders.items()})), display_id=True
    )
    if ipywidgets is None:
        return
    made = {
        name: ipywidgets.SelectionSlider(
            options=list(values),
            value=start,
            description=name.replace("_", " "),
            continuous_update=False,
            style={"description_width": "8em"},
        )
        for name, (values, start) in sliders.items()
    }

    def redraw(_):
        picture.update(closed(draw(**{name: slider.value for name, slider in made.items()})))

    for slider in made.values():
        slider.observe(redraw, "value")
    display(ipywidgets.VBox(list(made.values())))


def closed(figure):
    """A finished figure, which is shown once."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.close(figure)
    return figure


def panels(title, widths=(1, 1)):
    """A figure of two panels under one title."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=widths)
    figure.suptitle(title, fontsize=11)
    return figure, axes


# %% [markdown]
# ## Numbers lie dense near zero, sparse far out
#
# Between two powers of two a float has as many values as everywhere between two powers of two: the
# distance of neighbours, the *spacing*, doubles at each. Relative to the number it stays within a
# factor of two, and mantissa bits set it. Exponent bits set how far down and up this holds. Below
# the smallest normal number come the *subnormals*, evenly spaced down to zero: there precision
# fades.


# %% alt="Values of a small float format on a line; spacing relative to the value"
def spacing(exponent_bits, mantissa_bits):
    own = Float(exponent_bits, mantissa_bits)
    edge = 16 * own.smallest_normal
    title = (
        f"{exponent_bits} exponent and {mantissa_bits} mantissa bits: spacing {own.spacing(1):.3g} "
        f"from 1 on, largest {own.largest:.3g}, smallest {own.smallest_subnormal:.2g}"
    )
    figure, (line, relative) = panels(title, widths=(2, 3))
    values = np.unique(rounded(np.linspace(0, edge, 20_000), own))
    normal = values >= own.smallest_normal
    for part, colour, label in ((~normal, NEAREST, "subnormal"), (normal, STOCHASTIC, "normal")):
        line.vlines(
            values[part] / own.smallest_normal, 0, 1, color=colour, linewidth=1, label=label
        )
    line.set(xlabel="value / smallest normal number", yticks=[], ylim=(0, 1.6), xlim=(0, 16))
    line.legend(frameon=False, ncols=2, loc="upper right")
    line.spines["left"].set_visible(False)
    x = 2.0 ** np.arange(-30, 20, 0.02)
    shown = {name: (FORMATS[name], colour) for name, colour in COLOURS.items() if name != "float32"}
    for name, (number_format, colour) in {**shown, "this one": (own, "black")}.items():
        held = x[(x >= number_format.smallest_subnormal) & (x <= number_format.largest)]
        share = [number_format.spacing(value) / value for value in held]
        relative.loglog(held, share, color=colour, linewidth=1, label=name, base=2)
    relative.set(xlabel="value", ylabel="spacing / value")
    relative.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


explore(spacing, exponent_bits=(range(2, 9), 4), mantissa_bits=(range(1, 6), 2))

# %% [markdown]
# ## Rounding to nearest is steady but blind, stochastic rounding is noisy but right on average
#
# Nearest rounding makes a staircase: all that lies on one step becomes the same number, always, and
# the error of many equal numbers adds up. Stochastic rounding goes up with a chance equal to the
# distance from the lower neighbour, in spacings: each result is worse, their mean is the number.


# %% alt="Nearest rounding as a staircase, the mean of stochastic ones near the diagonal"
def rounding(mantissa_bits, draws):
    own = Float(5, mantissa_bits)
    x = np.linspace(0, 4, 401, dtype=np.float32)
    nearest = rounded(x, own)
    drawn = rounded(np.tile(x, (draws, 1)), own, "stochastic", seed).mean(0)
    errors = [abs(nearest - x), abs(drawn - x)]
    title = (
        f"Error: nearest {errors[0].mean():.2g} on average, {errors[0].max():.2g} at most; mean of "
        f"{draws} stochastic {errors[1].mean():.2g}, {errors[1].max():.2g} at most"
    )
    figure, axis = plt.subplots(figsize=(9, 3.4))
    figure.suptitle(title, fontsize=11)
    axis.plot(x, x, color="gray", linewidth=1)
    axis.plot(x, nearest, color=NEAREST, label="nearest")
    axis.plot(x, drawn, ".", color=STOCHASTIC, markersize=3, label=f"stochastic, mean of {draws}")
    axis.set(xlabel="number", ylabel="rounded")
    axis.legend(frameon=False)
    return figure


explore(rounding, mantissa_bits=(range(1, 6), 2), draws=([1, 10, 100, 1000], 100))

# %% [markdown]
# ## A fused multiply-add keeps what separate rounding throws away
#
# *a·b + c* in two instructions rounds twice; fused (FMA), once. Mostly that does not matter. Where
# *c* takes most of the product away, what remains is mostly the product's rounding error: the more
# leading bits cancel, the larger the relative error, up to no right digit at all. The fused result
# is always as good as float16 can be, and exact where it has few enough digits left.


# %% alt="Relative error by cancelled bits: it grows if rounded twice, not if fused"
def multiply_add(bits):
    """Relative errors of a·b + c, rounded twice and once, where so many leading bits cancel."""
    made = np.random.default_rng(seed)
    a, b = made.uniform(1, 2, (2, 4000)).astype(np.float16).astype(float)
    c = -(a * b * (1 - 2.0**-bits)).astype(np.float16).astype(float)
    exact = a * b + c  # float64 holds it
    twice = (a * b).astype(np.float16).astype(float) + c
    kept = exact != 0
    both = [value.astype(np.float16).astype(float) - exact for value in (twice, exact)]
    return [abs(error[kept] / exact[kept]) for error in both]


def fused(cancelled_bits):
    numbers = range(1, 12)
    errors = {bits: multiply_add(bits) for bits in numbers}
    told = [np.median(error) for error in errors[cancelled_bits]]
    title = (
        f"{cancelled_bits} bits cancelled: median relative error {told[0]:.2g} rounded twice, "
        f"{told[1]:.2g} fused"
    )
    figure, (curve, spread) = panels(title)
    for place, colour, label in ((0, NEAREST, "rounded twice"), (1, STOCHASTIC, "fused")):
        powers = {n: np.log2(np.maximum(errors[n][place], 2.0**-20)) for n in numbers}
        medians = [np.median(powers[n]) for n in numbers]
        curve.plot(numbers, medians, "o-", color=colour, label=label)
        spread.hist(powers[cancelled_bits], bins=np.arange(-20.5, 3), color=colour, alpha=0.6)
    curve.axvline(cancelled_bits, color="gray", linewidth=1)
    curve.set(xlabel="leading bits cancelled", ylabel="median, power of two (−20: or less)")
    spread.set(xlabel="relative error, power of two (−20: or less)", ylabel="results")
    curve.legend(frameon=False)
    return figure


explore(fused, cancelled_bits=(range(1, 12), 8))

# %% [markdown]
# ## Sums need 32 bits: why Tensor Cores multiply in 16 and add in 32
#
# A sum in 16 bits grows until the next term is less than half its spacing; then it stands still,
# however many terms follow. Terms of both signs do not stall it, but errors pile up. Added in
# float32 and rounded to float16 once, at the end, the sum is as good as float16 can be: the
# multiplication may be narrow, the accumulator must not. (float32 only postpones the same fate.)

# %% alt="Sums in 16 bits stand still, one in float32 grows; relative error by terms"
ACCUMULATORS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
LENGTH = 2**14


def accumulation(mean):
    made = np.random.default_rng(seed)
    terms = rounded(mean + (1 - mean) * made.uniform(-1, 1, (LENGTH, 50)), Float(5, 7))
    exact = terms.astype(float).cumsum(0)
    sums = {
        name: np.add.accumulate(terms.astype(kind), axis=0).astype(float)
        for name, kind in ACCUMULATORS.items()
    }
    ends = ", ".join(f"{name} {found[-1, 0]:,.0f}" for name, found in sums.items())
    figure, (growth, errors) = panels(
        f"{LENGTH:,} terms of mean {mean}: {ends}, exactly {exact[-1, 0]:,.0f}"
    )
    lengths = np.arange(LENGTH) + 1
    sums["float32, then float16"] = sums["float32"].astype(np.float16).astype(float)
    for name, found in sums.items():
        colour, style = COLOURS.get(name, "black"), "-" if name in COLOURS else ":"
        if name in COLOURS:
            growth.plot(lengths, found[:, 0], color=colour, label=f"summed in {name}")
        error = np.median(abs(found - exact) / np.maximum(abs(exact), 2.0**-10), axis=1)
        places = np.unique(np.geomspace(1, LENGTH, 60).astype(int)) - 1
        errors.loglog(
            lengths[places], np.maximum(error[places], 1e-9), style, color=colour, label=name
        )
    growth.set(xlabel="terms", ylabel="sum")
    errors.set(xlabel="terms", ylabel="relative error, median of 50")
    growth.legend(frameon=False, fontsize=8)
    errors.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


explore(accumulation, mean=([0.0, 0.1, 0.25, 0.5, 0.75, 1.0], 0.5))

# %% [markdown]
# ## What float16 makes zero, a loss scale brings back
#
# Gradients spread over many powers of two, and float16 ends early below: what is smaller than half
# its smallest subnormal becomes zero. Multiplying the loss by a scale moves all gradients up by the
# same power of two, without any rounding; before the update they are divided by it again, in
# float32. Too large a scale makes infinities at the other end, and the step is lost. Between both
# ends lies the safe range: here less than one gradient in a thousand lost, and no infinity. It
# narrows as gradients spread. bfloat16 has float32's range and needs no scale.

# %% alt="Gradient exponents in float16's range; shares of zeros and overflow by scale"
HALF = FORMATS["float16"]
SCALES = np.arange(0, 41)


def loss_scale(log2_scale, spread):
    made = np.random.default_rng(seed)
    exponents = made.normal(-22, spread, 20_000)
    gradients = (2.0**exponents).astype(np.float32)
    found = rounded(gradients * np.float32(2.0) ** SCALES[:, None], HALF)
    lost, beyond = (found == 0).mean(1), np.isinf(found).mean(1)
    safe = SCALES[(lost < 1e-3) & (beyond == 0)]
    title = (
        f"Loss scale 2^{log2_scale}: {lost[log2_scale]:.2%} become zero, {beyond[log2_scale]:.2%} "
        "overflow; "
    )
    title += f"safe from 2^{safe[0]} to 2^{safe[-1]}" if safe.size else "no scale is safe"
    figure, (places, shares) = panels(title)
    zero, least, normal, most = np.log2(
        [2.0**-55, HALF.smallest_subnormal / 2, HALF.smallest_normal, HALF.largest]
    )
    for low, high, colour, label in (
        (zero, least, NEAREST, "becomes zero"),
        (least, normal, "#e69f00", "subnormal"),
        (normal, most, "#009e73", "normal"),
        (most, 25, "#7f7f7f", "overflows"),
    ):
        places.axvspan(low, high, color=colour, alpha=0.2, linewidth=0, label=label)
    places.hist(exponents + log2_scale, bins=np.arange(-55, 26), color="black", alpha=0.7)
    places.set(xlabel="scaled gradient, power of two", ylabel="gradients", xlim=(zero, 25))
    places.legend(frameon=False, fontsize=8, loc="upper right")
    shares.semilogy(SCALES, np.maximum(lost, 1e-5), color=NEAREST, label="become zero")
    shares.semilogy(SCALES, np.maximum(beyond, 1e-5), color="#7f7f7f", label="overflow")
    shares.axvline(log2_scale, color="gray", linewidth=1)
    shares.set(xlabel="loss scale, power of two", ylabel="share of gradients (1e-5: none)")
    shares.legend(frameon=False, fontsize=8)
    return figure


explore(loss_scale, log2_scale=(SCALES.tolist(), 0), spread=([1, 2, 3, 4, 5, 6], 3))

# %% [markdown]
# ## Small updates are swallowed, unless a master weight or chance keeps them
#
# A weight of 1 in float16 does not move by less than half its spacing: each update is rounded away,
# and the weight stands still for ever, however many updates come. A *master weight* in float32
# collects them. Stochastic rounding does without: most updates vanish, a few move the weight by a
# whole spacing, and on average the weight goes where it should.

# %% alt="A weight by steps: nearest stands still, stochastic is right on average"
STEPS, PATHS = 300, 40


def update(log2_update, number_format):
    target, step = FORMATS[number_format], 2.0**log2_update
    drawn = random.SeedGenerator(seed)
    nearest, weights = [np.float32(1)], [np.ones(PATHS, np.float32)]
    for _ in range(STEPS):
        nearest.append(rounded(nearest[-1] + step, target))
        weights.append(rounded(weights[-1] + np.float32(step), target, "stochastic", drawn))
    exact = 1 + step * np.arange(STEPS + 1)
    title = (
        f"{STEPS} updates of 2^{log2_update} to a {number_format} of spacing "
        f"2^{np.log2(target.spacing(1)):.0f}: nearest {nearest[-1]:.4f}, stochastic "
        f"{np.mean(weights[-1]):.4f} on average, exactly {exact[-1]:.4f}"
    )
    figure, axis = plt.subplots(figsize=(9, 3.4))
    figure.suptitle(title, fontsize=11)
    axis.plot(weights, color=STOCHASTIC, linewidth=0.5, alpha=0.25)
    axis.plot(np.mean(weights, 1), color=STOCHASTIC, label=f"stochastic, mean of {PATHS} weights")
    axis.plot(exact, "--", color="black", linewidth=1, label="master weight in float32")
    axis.plot(nearest, color=NEAREST, label="nearest")
    axis.set(xlabel="step", ylabel="weight")
    axis.legend(frameon=False)
    return figure


explore(
    update, log2_update=(range(-16, -6), -13), number_format=(["float16", "bfloat16"], "float16")
)
