"""Rounds tensors to number formats exactly: low precision emulated in float32.

The values are those of the format; the arithmetic between them stays the backend's.
"""

import math
from typing import Any, Literal

import keras
from keras import ops

from mptexp.spec.formats import Float, Format

Rounding = Literal["nearest", "stochastic"]
Seed = int | keras.random.SeedGenerator | None
# TensorFlow's GPU kernels add int32 in the host's memory, int64 on the device.
INTEGER = "int64" if keras.backend.backend() == "tensorflow" else "int32"


def quantize(x: Any, target: Format, rounding: Rounding = "nearest", seed: Seed = None) -> Any:
    """Rounds a tensor to the values of a number format.

    What rounds beyond the largest value, infinities too, becomes `target.overflow`; fixed point
    saturates. NaN stays NaN, also where the format has none, so that nothing is hidden. What
    rounds to zero keeps its sign where the format has a negative zero. No gradient passes;
    `straight_through` lets it.

    Args:
        x: tensor or array; what is not float32 is cast to it by the backend first.
        rounding: nearest: ties to even. stochastic: to either neighbour, up with the chance
            (x - lower) / spacing (Gupta et al. 2015), rounded to a multiple of 2^-24.
            Also between the largest value and overflow.
        seed: of stochastic rounding. An integer draws the same at every call, None from Keras's
            global generator.

    Returns:
        A float32 tensor of the running backend, of x's shape.
    """
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding is {rounding!r}; allowed: nearest, stochastic")
    x = ops.stop_gradient(ops.cast(ops.convert_to_tensor(x), "float32"))
    # A subnormal float32 must not meet arithmetic: TensorFlow's CPU kernels and XLA make it zero.
    subnormal = target.smallest_subnormal < 2.0**-126
    rounded = (_round_bits if subnormal else _round)(x, target, rounding, seed)
    beyond = target.overflow
    low = target.lowest if beyond == target.largest else -beyond
    rounded = ops.where(rounded > target.largest, beyond, rounded)
    rounded = ops.where(rounded < target.lowest, low, rounded)
    return rounded if target.negative_zero else ops.where(rounded == 0, 0.0, rounded)


def straight_through(
    x: Any, target: Format, rounding: Rounding = "nearest", seed: Seed = None, clip: bool = False
) -> Any:
    """As `quantize`, to the bit, but its gradient is one (Courbariaux et al. 2016).

    Args:
        clip: whether the gradient is zero where x lies outside the format's finite range.
    """

    # x + stop_gradient(q - x) would round a second time, and lose subnormals and infinities.
    @ops.custom_gradient
    def through(x: Any, rounded: Any) -> tuple[Any, Any]:
        def gradient(*saved: Any, upstream: Any = None) -> tuple[Any, Any]:
            upstream = saved[0] if upstream is None else upstream  # PyTorch's comes by name
            inside = ops.logical_and(x >= target.lowest, x <= target.largest)
            passed = ops.where(inside, upstream, 0.0) if clip else upstream
            return passed, ops.zeros_like(rounded)

        return rounded, gradient

    x = ops.cast(ops.convert_to_tensor(x), "float32")
    return through(x, quantize(x, target, rounding, seed))


def _round(x: Any, target: Format, rounding: Rounding, seed: Seed) -> Any:
    """Counts x in spacings, which are powers of two: exact. Beyond the largest, anything larger."""
    spacing = target.smallest_subnormal
    if isinstance(target, Float):
        binade = ops.view(ops.bitwise_and(ops.view(x, "int32"), 0x7F800000), "float32")
        highest = math.ldexp(1, math.frexp(target.largest)[1] - 1)
        binade = ops.clip(binade, target.smallest_normal, highest)
        spacing = binade * 2.0**-target.mantissa_bits
    count = x / spacing
    if rounding == "nearest":
        return ops.round(count) * spacing
    lower = ops.trunc(count)
    chance = ops.round(ops.absolute(count - lower) * 2.0**24)
    noise = keras.random.randint(ops.shape(x), 0, 2**24, "int32", seed)
    up = ops.cast(noise, "float32") < chance
    return ops.where(up, lower + ops.sign(x), lower) * spacing


def _round_bits(x: Any, target: Float, rounding: Rounding, seed: Seed) -> Any:
    """Of a format with float32's lowest exponent: drops the same bits of every float32."""
    unit = 2 ** (23 - target.mantissa_bits)
    bits = ops.cast(ops.view(x, "int32"), INTEGER)
    if rounding == "stochastic":
        noise = keras.random.randint(ops.shape(x), 0, unit, "int32", seed)
        carry = ops.cast(noise, INTEGER)
    else:
        odd = ops.bitwise_and(ops.right_shift(bits, 23 - target.mantissa_bits), 1)
        carry = ops.maximum(unit // 2 - 1 + odd, 0)
    bits = ops.bitwise_and(bits + carry, -unit)
    return ops.where(ops.isnan(x), x, ops.view(ops.cast(bits, "int32"), "float32"))
