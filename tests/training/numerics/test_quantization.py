import math
from functools import cache
from statistics import NormalDist

import keras
import ml_dtypes
import numpy as np
import pytest
from autodiff import compiled, gradient
from keras import ops
from support import passes_under

from mptexp.spec.number_formats import BLOCKS, FLOAT32_MAX, FORMATS, Dynamic, Fixed, Float, named
from mptexp.training.numerics import quantization
from mptexp.training.numerics.quantization import quantize

# The tests of this module run on TensorFlow, and again in a child process on each other backend.
BACKEND = keras.backend.backend()
OTHERS = FORMATS.keys() - {"float32", "tensorfloat32"}
TYPES = {name: getattr(ml_dtypes, name, getattr(np, name, None)) for name in OTHERS}
OWN = [Float(8, 10), Float(8, 4, saturate=True), Float(6, 9), Float(2, 1, "fn"), Float(7, 23)]
OWN += [Float(4, 3, "fn", saturate=True), Float(5, 2, saturate=True), FORMATS["float32"]]
OWN += [Fixed(2, 14), Fixed(8, 8), Fixed(0, 8), Fixed(-3, 10), Fixed(14, -2), Fixed(1, 1)]


def bits(x):
    return np.asarray(x, np.float32).view(np.uint32)


def rounded(x, target, **how):
    return ops.convert_to_numpy(quantize(x, target, **how))


def differing(x, found, wanted):
    """Inputs for which two results differ in a bit; any NaN equals any other."""
    same = (bits(found) == bits(wanted)) | (np.isnan(found) & np.isnan(wanted))
    return x[~same][:5]


def hard_inputs(values=(1.0, 1.5, 2.0)):
    """Special, subnormal and random patterns, values, their middles, and float32's next to both.

    Args:
        values: positive finite ones of a format, sorted.
    """
    # One of two numbers of inputs, so that JAX compiles few times.
    count = 2**20 if len(values) > 2**12 else 2**19
    values = np.append(values, 2 * values[-1] - values[-2])
    near = np.concatenate([values, (values[1:] + values[:-1]) / 2, values[:4] / 2])
    near = near[near < FLOAT32_MAX].astype(np.float32)
    near = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(0))]
    special = np.float32([0.0, math.inf, math.nan, FLOAT32_MAX, 2.0**-149])
    upper = np.arange(2**16, dtype=np.uint32) << 16
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    chosen = np.concatenate([special, *near])
    chosen = np.concatenate([chosen, -chosen, upper.view(np.float32), halves])
    chosen = np.concatenate([chosen, (upper | 0x8000).view(np.float32)])
    assert chosen.size < 0.8 * count
    random = np.random.default_rng(7).integers(0, 2**32, count - chosen.size, np.uint32)
    random[: random.size // 8] &= 0x807FFFFF  # subnormals
    return np.concatenate([chosen, random.view(np.float32)])


@pytest.mark.parametrize("name", sorted(TYPES))
def test_rounding_equals_ml_dtypes_in_every_bit(name):
    kind, target = TYPES[name], FORMATS[name]
    codes = np.arange(2 ** (8 * kind(0).itemsize)).astype(f"u{kind(0).itemsize}")
    with np.errstate(over="ignore", invalid="ignore"):
        values = codes.view(kind).astype(np.float64)
        values = np.unique(values[np.isfinite(values) & (values >= 0)])
        x = hard_inputs(values)
        wanted = x.astype(kind).astype(np.float32)
    if target.special == "none":
        wanted[np.isnan(x)] = np.nan  # ml_dtypes makes it zero
    assert not differing(x, rounded(x, target), wanted).size


def reference(x, target):
    """Nearest-even in float64, for formats that ml_dtypes has not."""
    wide = x.astype(np.float64)
    spacing = target.smallest_subnormal
    if isinstance(target, Float):
        spacing = np.maximum(spacing, 2.0 ** (np.frexp(wide)[1] - 1 - target.mantissa_bits))
    found = np.rint(wide / spacing) * spacing
    low = target.lowest if target.overflow == target.largest else -target.overflow
    found = np.where(found > target.largest, target.overflow, found)
    found = np.where(found < target.lowest, low, found)
    return (found if target.negative_zero else found + 0.0).astype(np.float32)


@pytest.mark.parametrize("target", OWN, ids=str)
def test_rounding_to_any_format_equals_float64(target):
    near = target.smallest_subnormal * np.arange(1.0, 600.0)
    top = np.linspace(target.largest / 2, target.largest, 300)
    values = np.concatenate([near, top]).astype(np.float32)
    values = np.unique(rounded(values, target)).astype(np.float64)
    x = hard_inputs(values[np.isfinite(values)])
    with np.errstate(all="ignore"):
        wanted = reference(x, target)
    assert not differing(x, rounded(x, target), wanted).size


def test_fixed_point_has_its_range():
    target = Fixed(8, 8)
    assert (target.lowest, target.largest) == (-128, 127.99609375)
    x = np.array([1e30, -1e30, math.inf, -math.inf, -1e-9, 0.001953125, 0.005859375], np.float32)
    found = rounded(x, target)
    assert found.tolist() == [127.99609375, -128, 127.99609375, -128, 0, 0, 0.0078125]
    assert not np.signbit(found[4])
    assert math.isnan(rounded(np.float32(math.nan), target))


def test_other_floats_are_taken_and_shapes_kept():
    half = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(4, -1)
    found = rounded(ops.convert_to_tensor(half), FORMATS["float16"])
    assert (found.dtype, found.shape) == (np.float32, half.shape)
    assert not differing(half.ravel(), found.ravel(), half.astype(np.float32).ravel()).size
    assert rounded(3.3, Fixed(4, 1)) == 3.5
    assert rounded(np.zeros((0, 3), np.float32), FORMATS["bfloat16"]).shape == (0, 3)


# --- blocks ----------------------------------------------------------------------------------

ELEMENTS = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp6_e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp6_e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp4_e2m1": ml_dtypes.float4_e2m1fn,
}


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_blocks_have_the_powers_of_the_specification_and_the_elements_of_ml_dtypes(name):
    kind, random = ELEMENTS[name], np.random.default_rng(0)
    largest = float(ml_dtypes.finfo(kind).max)
    x = random.normal(size=(50, 100)) * 2.0 ** random.integers(-80, 118, (50, 1))
    x = (x * 2.0 ** random.integers(-6, 1, x.shape)).astype("float32")
    x[3], x[4, :32], x[5, ::7] = 0, 2.0**-10, -(2.0**12)
    wanted = np.zeros_like(x)
    for place in range(0, 100, 32):  # the last block has four values
        block = x[:, place : place + 32]
        most = np.abs(block).max(axis=1, keepdims=True)
        scale = np.ldexp(1.0, np.frexp(np.where(most, most, 1))[1] - math.frexp(largest)[1])
        codes = np.clip(block / scale, -largest, largest).astype(kind)
        wanted[:, place : place + 32] = codes.astype("float32") * scale
    found = ops.convert_to_numpy(quantization.rounded(x, BLOCKS[name])[0])
    assert not differing(x, found, wanted).size
    turned = compiled(lambda x: quantization.rounded(x, BLOCKS[name], axis=-2)[0])(x.T.copy())
    assert not differing(x, ops.convert_to_numpy(turned).T, wanted).size


def test_a_block_with_an_infinity_keeps_it_and_the_power_of_the_others():
    x = np.full((1, 32), 1.03, np.float32)
    x[0, 1], x[0, 2] = math.inf, math.nan
    found = ops.convert_to_numpy(quantization.rounded(x, BLOCKS["mxfp8_e4m3"])[0])[0]
    assert (found[0], found[1], math.isnan(found[2])) == (1.0, math.inf, True)


# --- stochastic rounding ---------------------------------------------------------------------

DRAWS = 200_000
# Each check below may fail for a right implementation with this probability (by its seed).
ERROR = 1e-6


def is_unbiased(found, chance):
    """Whether the share of the larger value agrees with a chance, by the normal approximation."""
    share = np.mean(found == found.max()) if np.ptp(found) else float(chance > 0.5)
    allowed = NormalDist().inv_cdf(1 - ERROR / 2) * math.sqrt(chance * (1 - chance) / DRAWS)
    return abs(share - chance) <= allowed


CASES = [
    ("float16", 1.0, 0.25),
    ("float16", -3.0, 0.7),
    ("float16", 2.0**-24, 0.5),  # among subnormals
    ("float16", 0.0, 0.01),  # below the smallest
    ("bfloat16", 1e-39, 0.3),  # float32's subnormals too
    ("bfloat16", -1.0, 0.05),
    ("tensorfloat32", 1000.0, 0.5),
    ("float8_e4m3fn", 0.1, 0.9),
    ("float8_e5m2", -0.0, 0.125),
    ("<2,14>", -0.5, 0.3),
    ("<8,8>", 0.0, 0.6),
]


@pytest.mark.parametrize(("name", "start", "share"), CASES)
def test_stochastic_rounding_is_unbiased_and_knows_two_neighbours(name, start, share):
    target = named(name)
    lower = float(rounded(np.float32(start), target))
    upper = lower + math.copysign(target.spacing(lower), start)
    x = np.float32(lower + share * (upper - lower))
    found = rounded(np.full(DRAWS, x), target, rounding="stochastic", seed=5)
    ends = np.float32([lower, upper])
    assert np.isin(found, ends).all()
    chance = (float(x) - lower) / (upper - lower)
    assert is_unbiased(np.abs(found), chance)
    assert not is_unbiased(np.abs(rounded(np.full(DRAWS, x), target)), chance)
    if not start:
        assert (np.signbit(found[found == 0]) == np.signbit(x)).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float4_e2m1fn"])
def test_representable_values_stay(name):
    kind = TYPES[name]
    codes = np.arange(2 ** (8 * kind(0).itemsize)).astype(f"u{kind(0).itemsize}")
    values = np.resize(codes.view(kind).astype(np.float32), 2**16)
    found = rounded(values, FORMATS[name], rounding="stochastic", seed=1)
    assert not differing(values, found, values).size


@pytest.mark.parametrize("target", [*FORMATS.values(), *OWN[1:-1]], ids=str)
def test_random_floats_round_to_a_neighbour(target):
    x = np.random.default_rng(3).integers(0, 2**32, 2**14, np.uint32).view(np.float32)
    x = np.where(np.abs(x) <= target.largest, x, np.float32(0))
    found = rounded(x, target, rounding="stochastic", seed=2)
    assert not differing(found, rounded(found, target), found).size
    spacing = np.array([target.spacing(float(value)) for value in x])
    assert (np.abs(found - x.astype(float)) < spacing)[np.isfinite(found)].all()


def test_what_is_beyond_the_largest_rounds_to_it_or_overflows():
    x = np.full(1000, 65520, np.float32)
    found = rounded(x, FORMATS["float16"], rounding="stochastic", seed=1)
    assert set(found.tolist()) == {65504, math.inf}
    assert set(rounded(-x, Fixed(8, 8), rounding="stochastic", seed=1).tolist()) == {-128}
    x = np.float32([math.nan, math.inf, -math.inf])
    for target, wanted in (("float16", x), ("bfloat16", x), ("float8_e4m3fn", x * math.nan)):
        found = rounded(x, named(target), rounding="stochastic", seed=1)
        np.testing.assert_array_equal(found, wanted)


def test_draws_are_seeded():
    x, target = np.full(1000, 1.0003, np.float32), FORMATS["float16"]

    def draw(seed):
        return rounded(x, target, rounding="stochastic", seed=seed).tolist()

    assert draw(1) == draw(1) != draw(2)
    first, second = keras.random.SeedGenerator(1), keras.random.SeedGenerator(1)
    drawn = [draw(first), draw(first)]
    assert drawn[0] != drawn[1]
    assert drawn == [draw(second), draw(second)]
    assert draw(None) != draw(None)


# --- gradients and compiled code -------------------------------------------------------------


def test_quantize_alone_passes_no_gradient():
    x = np.float32([0.3, -0.7])
    passed = gradient(lambda x: x + quantize(x, FORMATS["float16"]), x)
    assert np.asarray(passed).tolist() == [1, 2]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fnuz", "<2,14>"])
def test_compiled_code_gives_the_same_bits(name):
    x = hard_inputs()
    for how in ({}, {"rounding": "stochastic", "seed": 4}):
        found = compiled(lambda x, how=how: quantize(x, named(name), **how))(x)
        assert not differing(x, ops.convert_to_numpy(found), rounded(x, named(name), **how)).size


# --- dynamic fixed point -------------------------------------------------------------------------


@cache
def step():
    return compiled(lambda x, state: quantization.rounded(x, Dynamic(10), state=state)[1])


def follow(shares):
    """Ranges over batches of 1000 values, of which each share lies at its size, else at 0.001."""
    state, ranges = ops.zeros(quantization.STATE), []
    for share in shares:
        x = np.full(1000, 0.001, np.float32)
        for size, count in share.items():
            x[:count] = size
        state = step()(ops.convert_to_tensor(x), state)
        ranges.append(float(state[0]))
    return ranges


def test_the_first_batches_set_the_range():
    assert follow([{0.9: 1}]) == [0]
    assert follow([{1.0: 1}]) == [1]  # the largest value is a little less than 2^r
    assert follow([{0.9: 1}, {3.0: 1}, {0.1: 1}]) == [0, 2, 2]
    nothing = quantization.rounded(ops.zeros(5), Dynamic(8), state=ops.zeros(4))[1]
    assert float(nothing[1]) == 0  # a batch of zeros tells nothing


def test_the_range_follows_the_overflow_rate():
    begin = [{0.9: 1}] * 100  # one of 1000 is in the upper half: nothing changes
    assert follow(begin)[-1] == 0
    assert follow(begin + [{0.9: 1}] * 100)[-1] == 0
    grown = follow(begin + [{1.5: 1}] * 100)
    assert grown[-2:] == [0, 1]  # at the check, not before
    shrunk = follow(begin + [{0.3: 1}] * 300)
    assert [shrunk[k] for k in (199, 299, 399)] == [-1, -1, -1]
    rare = follow(begin + [{1.5: 1}] * 9 + [{0.9: 1}] * 91)  # a rate of 0.9e-4 is no overflow
    assert rare[-1] == 0


def test_dynamic_values_have_their_bits_within_the_range():
    x = ops.convert_to_tensor(np.float32([0.9, 0.5, 0.126, -0.9, 0.0]))
    found, _ = quantization.rounded(x, Dynamic(4), state=ops.zeros(4))
    assert ops.convert_to_numpy(found).tolist() == [0.875, 0.5, 0.125, -0.875, 0.0]
    tiny, _ = quantization.rounded(x * 2**-40, Dynamic(4), state=ops.zeros(4))
    assert (ops.convert_to_numpy(tiny) == ops.convert_to_numpy(found) * 2.0**-40).all()
    beyond, _ = quantization.rounded(
        x * 64, Dynamic(4), state=ops.convert_to_tensor([0.0, 500, 0, 0])
    )
    assert ops.convert_to_numpy(beyond).tolist() == [0.875, 0.875, 0.875, -1.0, 0.0]


def test_dynamic_fixed_point_hides_neither_infinity_nor_nan():
    x = ops.convert_to_tensor(np.float32([math.inf, -math.inf, math.nan, 0.9, 0.5]))
    values, state = quantization.rounded(x, Dynamic(4), state=ops.zeros(4))
    np.testing.assert_array_equal(
        ops.convert_to_numpy(values), np.float32([math.inf, -math.inf, math.nan, 0.875, 0.5])
    )
    assert float(state[0]) == 0  # the range is that of the finite values


# --- bad input, other backends ---------------------------------------------------------------


def test_a_rounding_that_is_none_is_refused():
    with pytest.raises(ValueError, match="allowed: nearest, stochastic"):
        quantize(1.0, Fixed(2, 2), "up")


@pytest.mark.skipif(BACKEND != "tensorflow", reason="runs once")
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_all_this_holds_on_the_other_backends(backend):
    passes_under(backend, __file__)
