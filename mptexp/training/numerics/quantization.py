"""Rounds tensors to number formats exactly: low precision emulated in float32.

The values are those of the format; the arithmetic between them stays the backend's.
"""

import math
from typing import Any, Literal

import keras
from keras import ops

from mptexp.spec.number_formats import FORMATS, Block, Dynamic, Fixed, Float, Format
from mptexp.training import backends

Rounding = Literal["nearest", "stochastic"]
Seed = int | keras.random.SeedGenerator | None
# TensorFlow's GPU kernels add int32 in the host's memory, int64 on the device.
INTEGER = backends.current().INTEGER


def quantize(x: Any, target: Format, rounding: Rounding = "nearest", seed: Seed = None) -> Any:
    """Rounds a tensor to the values of a number format.

    What rounds beyond the largest value, infinities too, becomes `target.overflow`; fixed point
    saturates. NaN stays NaN, also where the format has none, so that nothing is hidden. What
    rounds to zero keeps its sign where the format has a negative zero. No gradient passes.

    Args:
        x: tensor or array; what is not float32 is cast to it by the backend first.
        rounding: nearest: ties to even, as hardware does; those of Gupta et al. (2015) go down.
            stochastic: to either neighbour, up with the chance (x - lower) / spacing (Gupta et
            al.), rounded to a multiple of 2^-24. Also between the largest value and overflow.
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
    """Rounds to a format with float32's lowest exponent: drops the same bits of every float32."""
    unit = 2 ** (23 - target.mantissa_bits)
    bits = ops.cast(ops.view(x, "int32"), INTEGER)
    if rounding == "stochastic":
        noise = keras.random.randint(ops.shape(x), 0, unit, "int32", seed)
        carry = ops.cast(noise, INTEGER)
    else:
        # Half a unit less one, plus the last bit that stays: ties go to even.
        odd = ops.bitwise_and(ops.right_shift(bits, 23 - target.mantissa_bits), 1)
        carry = ops.maximum(unit // 2 - 1 + odd, 0)
    bits = ops.bitwise_and(bits + carry, -unit)
    return ops.where(ops.isnan(x), x, ops.view(ops.cast(bits, "int32"), "float32"))


# --- dynamic fixed point -------------------------------------------------------------------------

# Courbariaux et al. (2014, arXiv 1412.7024) check the ranges every 100 batches, and let this share
# of a tensor's values overflow.
BATCHES_BETWEEN_CHECKS = 100
MOST_OVERFLOW = 1e-4
# The state of a tensor's range holds the range (integer bits without the sign), the batches so far,
# and since the last check the sums of the overflow rates at this range and at half of it.
STATE = 4
FURTHEST = 90  # ranges from 2^-90 to 2^90: the values then are normal float32
NORMAL = 126  # 2^-126 and 2^126 are normal float32, and each is one over the other


def rounded(
    x: Any,
    target: Format | Dynamic | Block | None,
    rounding: Rounding = "nearest",
    seed: Seed = None,
    state: Any = None,
    least: int = -FURTHEST,
    axis: int = -1,
) -> tuple[Any, Any]:
    """A tensor in a format, without a gradient, and the state of its range at the next batch.

    Args:
        target: None leaves the tensor as it is.
        state: of a Dynamic format, shape (STATE,), zeros before the first batch; else passed on.
        least: of a Dynamic format, the least range (as a power of two) that the first batch gives.
        axis: of a Block format, along which its blocks lie.
    """
    if target is None or target == FORMATS["float32"]:
        return ops.stop_gradient(x), state
    if isinstance(target, Block):
        return _in_blocks(x, target, rounding, seed, axis), state
    if not isinstance(target, Dynamic):
        return quantize(x, target, rounding, seed), state
    x = ops.stop_gradient(x)
    # Neither an infinity nor a NaN has a range: they stay, so that a divergence is not hidden.
    finite = ops.isfinite(x)
    power, new_state = _followed(ops.where(finite, x, 0.0), state, least)
    # Multiplied by a power of two, which is exact.
    scaled = quantize(x * _power_of_two(-power), Fixed(1, target.bits - 1), rounding, seed)
    return ops.where(finite, scaled * _power_of_two(power), x), new_state


def _in_blocks(x: Any, target: Block, rounding: Rounding, seed: Seed, axis: int) -> Any:
    """A tensor whose blocks along an axis have a power of two each; the last may be shorter.

    The powers are those of the specification but for 2^-127, which no normal float32 is. What comes
    to less than 2^-126 then is as the backend has it: zero, where its subnormals are.
    """
    x = ops.stop_gradient(ops.cast(ops.convert_to_tensor(x), "float32"))
    moved = ops.moveaxis(x, axis, -1)
    length = moved.shape[-1]
    edges = [(0, 0)] * (len(moved.shape) - 1) + [(0, -length % target.size)]
    padded = ops.pad(moved, edges)
    count = padded.shape[-1] // target.size
    blocks = ops.reshape(padded, (*ops.shape(padded)[:-1], count, target.size))
    # Neither an infinity nor a NaN has a power: they stay, so that a divergence is not hidden.
    finite = ops.isfinite(blocks)
    largest = ops.max(ops.absolute(ops.where(finite, blocks, 0.0)), axis=-1, keepdims=True)
    power = ops.clip(_exponent(largest) - 1 - target.largest_power, -NORMAL, NORMAL)
    scaled = quantize(blocks * _power_of_two(-power), target.element, rounding, seed)
    made = ops.where(finite, scaled * _power_of_two(power), blocks)
    return ops.moveaxis(ops.reshape(made, ops.shape(padded))[..., :length], -1, axis)


def _followed(x: Any, state: Any, least: int) -> tuple[Any, Any]:
    """The range of this batch, as a power of two, and the state at the next.

    From the first batch that is not all zero to the first check, the range grows so that the
    largest value fits; Courbariaux et al. find the first ranges by training in a higher precision.
    At a check it doubles where too many values overflow, halves where few would at half of it.
    """
    power, batches, *sums = (state[i] for i in range(STATE))
    size = ops.absolute(x)
    largest = ops.max(size)
    fits = ops.clip(_exponent(largest), least, FURTHEST)
    power = ops.where(batches == 0, fits, power)
    power = ops.where(batches < BATCHES_BETWEEN_CHECKS, ops.maximum(power, fits), power)
    limit = _power_of_two(power)
    rates = [ops.mean(ops.cast(size >= edge, "float32")) for edge in (limit, limit / 2)]
    batches = ops.where(ops.logical_and(batches == 0, largest == 0), 0.0, batches + 1)
    over, over_half = (old + rate for old, rate in zip(sums, rates, strict=True))
    check = ops.logical_and(batches > 0, batches % BATCHES_BETWEEN_CHECKS == 0)
    most = MOST_OVERFLOW * BATCHES_BETWEEN_CHECKS
    move = ops.where(over > most, 1.0, ops.where(over_half > most, 0.0, -1.0))
    moved = ops.where(check, ops.clip(power + move, -FURTHEST, FURTHEST), power)
    sums = [ops.where(check, 0.0, total) for total in (over, over_half)]
    return power, ops.stop_gradient(ops.stack([moved, batches, *sums]))


def _exponent(x: Any) -> Any:
    """The least power of two above a positive normal float32, as a float32."""
    bits = ops.cast(ops.view(x, "int32"), INTEGER)
    return ops.cast(ops.bitwise_and(ops.right_shift(bits, 23), 255), "float32") - 126.0


def _power_of_two(power: Any) -> Any:
    """Exactly 2^power, which a backend's power function need not give."""
    bits = ops.left_shift(ops.cast(power, INTEGER) + 127, 23)
    return ops.view(ops.cast(bits, "int32"), "float32")
