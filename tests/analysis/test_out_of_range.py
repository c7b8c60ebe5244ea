"""Shares of values that a format loses, against counting the values themselves."""

import numpy as np
import pytest
from histograms import VALUES, histogram

from mptexp.analysis import out_of_range
from mptexp.spec.number_formats import FORMATS


@pytest.mark.parametrize("scale", [1.0, 1024.0, 2.0**20])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e5m2"])
def test_shares_are_those_of_the_values(name, scale):
    target, x = FORMATS[name], VALUES * scale
    told = out_of_range.shares(histogram(VALUES), target, scale)
    assert told["zeros"] == 500 / 20_000
    flushed = (x > 0) & (x < target.smallest_subnormal / 2)
    assert told["flushed"] == pytest.approx(np.mean(flushed))
    subnormal = (x >= target.smallest_subnormal / 2) & (x < target.smallest_normal)
    assert told["subnormal"] == pytest.approx(np.mean(subnormal))
    above = x >= 2.0 ** np.ceil(np.log2(target.largest))
    assert told["above"] == pytest.approx(np.mean(above))


def test_the_smallest_sufficient_scale_flushes_one_in_a_thousand_at_most():
    target = FORMATS["float16"]
    scale = out_of_range.smallest_sufficient_scale(histogram(VALUES), target)
    some = VALUES[VALUES > 0]

    def flushed(by):
        return np.mean(some * by < target.smallest_subnormal / 2)

    assert flushed(scale) <= 1e-3 < flushed(scale / 2)
    assert out_of_range.smallest_sufficient_scale(histogram(VALUES), FORMATS["bfloat16"]) == 1


def test_flushed_is_what_numpy_rounds_to_zero():
    x = np.float32(2.0) ** np.linspace(-28, -20, 40_001, dtype=np.float32)
    rounded = np.mean(x.astype(np.float16) == 0)
    lost = out_of_range.shares(histogram(x), FORMATS["float16"])["flushed"]
    assert lost == pytest.approx(rounded, abs=1e-4)  # 2^-25 itself goes to even, which is zero


def test_the_largest_safe_scale_keeps_the_largest_value_finite():
    scale = out_of_range.largest_safe_scale(histogram(VALUES), FORMATS["float16"])
    with np.errstate(over="ignore"):
        assert np.isfinite(np.float16(VALUES.max() * scale))
        assert np.isinf(np.float16(VALUES.max() * scale * 2))


def test_histograms_add_up():
    both = histogram(VALUES) + histogram(VALUES * 4)
    assert both.total == 40_000
    assert both.largest == VALUES.max() * 4
    assert both.below(2.0**-24) == pytest.approx(
        np.mean([np.mean((v > 0) & (v < 2.0**-24)) for v in (VALUES, VALUES * 4)])
    )
