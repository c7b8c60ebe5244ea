"""What is said of a dynamic range, against the values themselves."""

import numpy as np
from histograms import VALUES, histogram, ranges

from mptexp.analysis import exponent_range
from mptexp.report.answers import dynamic_range
from mptexp.report.text import wording
from mptexp.spec.formats import FORMATS


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
