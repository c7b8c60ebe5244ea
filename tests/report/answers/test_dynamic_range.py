"""What is said of a dynamic range, against the values themselves."""

import numpy as np
import pytest
from histograms import VALUES, histogram, ranges

from mptexp.analysis import exponent_range
from mptexp.report.answers import dynamic_range
from mptexp.report.text import wording
from mptexp.spec.number_formats import FORMATS


def test_what_is_said_agrees_with_the_shares():
    text = " ".join(dynamic_range.sentences(ranges()))
    lost = exponent_range.shares(histogram(VALUES), FORMATS["float16"])["flushed"]
    assert f"flush {wording.share(lost)} more" in text
    assert "rounding to nearest would lose 10 % in float16 and 10 % in bfloat16 of them" in text
    rows = dynamic_range.rows(ranges())
    assert len(rows) == 5 * len(exponent_range.SHOWN)
    half = rows[(rows.Values == "gradients of weights") & (rows.Format == "float16")].iloc[0]
    assert half["Flushed to zero"] == wording.share(lost)
    scale = exponent_range.smallest_sufficient_scale(histogram(VALUES), FORMATS["float16"])
    assert half["Smallest sufficient scale"] == wording.power(scale)


def test_of_gradients_that_overflowed_no_scale_is_called_safe():
    # The lie: "stays finite up to a scale of 2¹⁵", of one that was infinite at that scale.
    over = ranges(gradients=np.float32([1.9, np.inf, 1e-6]))
    assert exponent_range.scales(over)[1] is None
    (said,) = [s for s in dynamic_range.sentences(over) if "overflowed" in s]
    assert "which loss scale they bear, is not known" in said
    assert "stays finite" not in " ".join(dynamic_range.sentences(over))


@pytest.mark.parametrize("gradients", [VALUES, VALUES[VALUES > 1e-6]])
def test_of_loss_scales_range_alone_says_what_they_flush_not_what_trains(gradients):
    # The lie: "the dynamic loss scale serves, or a fixed one from 2¹³ to 2¹⁵"; 2¹⁵ diverged.
    said = " ".join(dynamic_range.answer(ranges(gradients=gradients)))
    assert "0.1 % of the gradients" in said
    assert "with which scales it trains, range alone does not say" in said
    assert "serve" not in said


def test_the_note_defines_flushed_as_the_shares_count_it():
    # The lie: "smaller than the format's smallest subnormal", of which half round to it.
    half = FORMATS["float16"]
    near = histogram(np.float32([0.7 * half.smallest_subnormal, 0.3 * half.smallest_subnormal]))
    assert exponent_range.shares(near, half)["flushed"] == 0.5
    assert "smaller than half of the format's smallest subnormal" in dynamic_range.NOTE
