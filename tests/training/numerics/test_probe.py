"""The probe of arithmetic, on numbers rounded here as hardware would round them."""

import numpy as np
import pytest

from mptexp.training.numerics import probe


def kept(bits, large=probe.LARGE):
    """The probe's numbers after rounding to so many bits of the mantissa."""
    fraction, exponent = np.frexp(probe._values(32).astype("float64"))
    rounded = np.ldexp(np.round(fraction * 2.0 ** (bits + 1)), exponent - bits - 1)
    rounded[rounded == probe.LARGE] = large
    return rounded


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (kept(23), "float32"),
        (kept(10), "tensorfloat32"),
        (kept(10, np.inf), "float16"),
        (kept(10, np.nan), "float16"),
        (kept(7), "bfloat16"),
        (kept(3), "3 bits"),
        (kept(3, 448), "float8_e4m3fn"),
        # Products of numbers split in two parts, and the errors of a fast convolution in float32.
        (kept(16), "16 bits"),
        (probe._values(32) * (1 + 2.0**-20), "float32"),
        (np.zeros(32), "0 bits"),
    ],
)
def test_a_reading_is_named_by_the_bits_that_are_left(given, name):
    assert probe._name(given) == name
    assert probe.bits(name) == probe.BITS.get(name, int(name.split()[0]) if " " in name else None)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("jit", [False, True])
def test_the_engine_here_computes_in_what_it_is_told(policy, dtype, jit):
    policy(f"mixed_{dtype}" if dtype != "float32" else dtype)
    probe.readings.cache_clear()
    assert probe.readings(dtype, jit) == {"product": dtype, "convolution": dtype}
    probe.readings.cache_clear()


@pytest.mark.parametrize("jit", [False, True])
def test_a_quantized_product_is_rounded_here_and_a_convolution_is_not(policy, jit):
    policy("mixed_bfloat16")
    probe.readings.cache_clear()
    assert probe.readings("float8", jit) == {"product": "float8_e4m3fn", "convolution": "bfloat16"}
    probe.readings.cache_clear()
