"""What is said of a dynamic range, against the values themselves."""

from dataclasses import replace

import numpy as np
import pytest
from builders import record
from histograms import VALUES, histogram, ranges

from mptexp.analysis import out_of_range
from mptexp.report.answers import dynamic_range
from mptexp.report.text import wording
from mptexp.spec.number_formats import FORMATS


def test_what_is_said_agrees_with_the_shares():
    text = " ".join(dynamic_range.sentences(ranges()))
    lost = out_of_range.shares(histogram(VALUES), FORMATS["float16"])["flushed"]
    assert f"flush {wording.share(lost)} more" in text
    assert "rounding to nearest would lose 10 % in float16 and 10 % in bfloat16 of them" in text
    rows = dynamic_range.rows(ranges())
    assert len(rows) == 5 * len(out_of_range.SHOWN)
    half = rows[(rows.Values == "gradients of weights") & (rows.Format == "float16")].iloc[0]
    assert half["Flushed to zero"] == wording.share(lost)
    scale = out_of_range.smallest_sufficient_scale(histogram(VALUES), FORMATS["float16"])
    assert half["Smallest sufficient scale"] == wording.power(scale)


def test_of_gradients_that_overflowed_no_scale_is_called_safe():
    # The lie: "stays finite up to a scale of 2¹⁵", of one that was infinite at that scale.
    over = replace(ranges(gradients=np.float32([1.9, np.inf, 1e-6])), policy="mixed_float16")
    assert out_of_range.scales(over)[1] is None
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
    assert out_of_range.shares(near, half)["flushed"] == 0.5
    assert "smaller than half of the format's smallest subnormal" in dynamic_range.NOTE


BFLOAT16 = ("bfloat16", "float16")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "nothing that was measured is flushed to zero or too large"),
        # Of 3.4e38 bfloat16 makes an infinity; of 1e-41 zero, which one bin of exponents hides.
        ({"activations": np.float32([1, 1, 1, 3.4e38])}, "at most 25 % of a kind of values"),
        ({"gradients": np.float32([1e-41, 2e-41, 1e-3, 1e-3])}, "at most 50 % of a kind of values"),
        ({"activations": np.float32([1, np.inf])}, "Some activations were infinite or NaN"),
        ({"gradients": np.float32([0, 0])}, "All gradients that were sampled are zero"),
    ],
)
def test_of_what_bfloat16_loses_it_is_not_said_that_it_loses_nothing(values, said):
    text = " ".join(dynamic_range.answer(ranges(native=BFLOAT16, **values)))
    assert said in text
    assert ("nothing that was measured" in text) == ("at most" not in said)


def test_gradients_that_overflow_in_float32_are_not_to_be_sampled_in_it():
    # The riddle: "Sample float32 to know it", of gradients that were sampled in float32.
    said = dynamic_range.sentences(ranges(gradients=np.float32([1.9, np.inf])))
    assert "Some gradients were not finite in float32 itself: no loss scale cures that." in said


def test_what_a_narrow_type_flushed_before_is_not_called_zero():
    # The lie: "30 % are zero already; float16 would flush 0 % more", "No loss scale is needed", of
    # gradients of which float32's say that 32 is.
    gradients = np.where(np.arange(1000) < 300, 0, 2.0**-12).astype("float32")
    known = ranges(gradients=gradients)
    assert "30 % are zero already" in " ".join(dynamic_range.sentences(known))
    narrow = replace(known, policy="mixed_float16")
    first, *others = dynamic_range.answer(narrow)
    assert first == "Use policy float32."
    said = " ".join(others)
    assert "30 % are zero under mixed_float16, what it flushed among them" in said
    assert "Which loss scale float16 needs is not known" in said
    assert "No loss scale is needed" not in said
    needs = dynamic_range.rows(narrow)["Smallest sufficient scale"]
    assert set(needs) == {"–", "not known"}
    wide = replace(known, policy="mixed_bfloat16")
    assert dynamic_range.sentences(wide) == dynamic_range.sentences(known)


def test_a_scale_that_does_not_suffice_is_no_sufficient_one():
    # The lie: "Flushed to zero 100 %", "Smallest sufficient scale 1".
    tiny = np.full(1000, 2.0**-70, "float32")
    rows = dynamic_range.rows(ranges(gradients=tiny))
    own = rows[(rows["Values"] == "gradients of weights") & (rows["Format"] == "float16")]
    assert own["Smallest sufficient scale"].tolist() == ["none to 2⁴⁰"]


def test_infinite_gradients_in_float32_are_to_be_found_out_first():
    # The lie: "The numbers allow mixed_bfloat16 … nothing is too large", of infinite gradients.
    row = {"kind": "weight_gradients", "layer": "all", "lowest": -20, "counts": [5, 5]}
    row |= {"zeros": 0, "largest": 2.0**-19}
    for bad, begins in (
        (90, "Find out first why some gradients of weights"),
        (0, "The numbers allow"),
    ):
        sampled = {"samples": [{"step": 0, "swallowed": {}}], "layers": [row | {"not_finite": bad}]}
        made = record("float32", 0, 0.1) | {"exponents": sampled}
        made["environment"] = {"device": "GPU", "native": ["bfloat16"], "packages": {}}
        (measured,) = out_of_range.measured([made])
        first, *others = dynamic_range.answer(measured)
        assert first.startswith(begins)
        assert ("nothing that was finite" in " ".join(others)) is bool(bad)
