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
# Six figures of what happens to numbers in few bits, and of what saves them: wide accumulators, a
# loss scale, master weights, stochastic rounding. Everything here is drawn at random and rounded
# exactly as the formats are defined; nothing is measured on a device. In JupyterLab, sliders
# redraw the figures (`make lab` installs them); elsewhere the figures stand still.

# %% tags=["parameters"]
seed: int = 0  # of all that is drawn at random

# %%
from mptexp.training.numerics import illustrations

# %% [markdown]
# ## Numbers lie dense near zero, sparse far out
#
# Between two powers of two a float has as many values as between any other two: the distance of
# neighbours, the *spacing*, doubles at each. Relative to the number it stays within a factor of
# two, which the mantissa bits set. The exponent bits set how far down and up this holds. Below the
# smallest normal number come the *subnormals*, evenly spaced down to zero: there precision fades.

# %% alt="Values of a small float format on a line; spacing relative to the value"
illustrations.explore(
    illustrations.spacing, exponent_bits=(range(2, 9), 4), mantissa_bits=(range(1, 6), 2)
)

# %% [markdown]
# ## Rounding to nearest is steady but blind, stochastic rounding is noisy but right on average
#
# Rounding to nearest makes a staircase: all that lies on one step becomes the same number, always,
# and the error of many equal numbers adds up. Stochastic rounding goes up with a chance equal to
# the distance from the lower neighbour, in spacings: each result is worse, their mean is the
# number.

# %% alt="Nearest rounding as a staircase, the mean of stochastic ones near the diagonal"
illustrations.explore(
    illustrations.rounding, seed, mantissa_bits=(range(1, 6), 2), draws=([1, 10, 100, 1000], 100)
)

# %% [markdown]
# ## A fused multiply-add keeps what separate rounding throws away
#
# *a·b + c* in two instructions rounds twice; fused (FMA), once. Mostly that does not matter. Where
# *c* takes most of the product away, what remains is mostly the product's rounding error: the more
# leading bits cancel, the larger the relative error, up to no right digit at all. The fused result
# is always as good as float16 can be, and exact where few enough digits are left.

# %% alt="Relative error by cancelled bits: it grows if rounded twice, not if fused"
illustrations.explore(illustrations.fused, seed, cancelled_bits=(range(1, 12), 8))

# %% [markdown]
# ## Sums need 32 bits: why Tensor Cores multiply in 16 and add in 32
#
# A sum in 16 bits grows until the next term is less than half its spacing; then it stands still,
# however many terms follow. Terms of both signs do not stall it, but errors pile up. Added in
# float32 and rounded to float16 once, at the end, the sum is as good as float16 can be: the
# multiplication may be narrow, the accumulator must not. (float32 only postpones the same fate.)

# %% alt="Sums in 16 bits stand still, one in float32 grows; relative error by terms"
illustrations.explore(
    illustrations.accumulation, seed, mean=([0.0, 0.1, 0.25, 0.5, 0.75, 1.0], 0.5)
)

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
illustrations.explore(
    illustrations.loss_scale, seed, log2_scale=(range(41), 0), spread=([1, 2, 3, 4, 5, 6], 3)
)

# %% [markdown]
# ## Small updates are lost to rounding, unless a master weight or chance keeps them
#
# A weight of 1 in float16 does not move by less than half its spacing: each update is rounded away,
# and the weight stands still for ever, however many updates come. A *master weight* in float32
# collects them. Stochastic rounding does without: most updates vanish, a few move the weight by a
# whole spacing, and on average the weight goes where it should.

# %% alt="A weight by steps: nearest stands still, stochastic is right on average"
illustrations.explore(
    illustrations.update,
    seed,
    log2_update=(range(-16, -6), -13),
    number_format=(["float16", "bfloat16"], "float16"),
)
