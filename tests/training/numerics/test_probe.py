"""The probe of arithmetic, on numbers rounded here as hardware would round them."""

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 by it
import numpy as np
import pytest
import tensorflow as tf

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
    probe._given.cache_clear()
    assert probe.readings(dtype, jit) == {"product": dtype, "convolution": dtype}
    probe._given.cache_clear()


@pytest.mark.parametrize("jit", [False, True])
def test_a_quantized_product_is_rounded_here_and_a_convolution_is_not(policy, jit):
    policy("mixed_bfloat16")
    probe._given.cache_clear()
    assert probe.readings("float8", jit) == {"product": "float8_e4m3fn", "convolution": "bfloat16"}
    probe._given.cache_clear()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_engine_that_cuts_its_results_off_is_known(policy, dtype):
    # TensorFlow on a CPU without bfloat16 instructions does, which no type shows.
    random = np.random.default_rng(0)
    left, right = (np.diag(random.normal(0, 3, 256)).astype(dtype) for _ in range(2))
    nearest = np.diag(left.astype("float64") @ right.astype("float64")).astype(dtype)
    given = np.diag(tf.matmul(tf.constant(left), tf.constant(right)).numpy())
    policy(f"mixed_{dtype}")
    probe._given.cache_clear()
    assert ("product" in probe.truncated(f"mixed_{dtype}", False)) is not (given == nearest).all()
    probe._given.cache_clear()


@pytest.mark.parametrize("name", ["mixed_bfloat16", "mixed_float16", "float32"])
def test_results_are_cut_off_or_rounded(name, monkeypatch):
    unit = 2.0 ** -probe.BITS[probe.POLICY_ROWS[name].compute_dtype]
    square = probe._factor(name) ** 2
    cut, rounded = np.floor(square / unit) * unit, np.round(square / unit) * unit
    given = {"product": np.array([1.0, cut]), "convolution": np.array([1.0, rounded])}
    monkeypatch.setattr(probe, "_given", lambda policy, jit: given)
    assert probe.truncated(name, False) == ([] if name == "float32" else ["product"])
