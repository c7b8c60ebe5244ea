"""Ratios to one baseline: what is proven is the title; what is not is inconclusive."""

import numpy as np
import pandas as pd
import pytest
from builders import record, tables

from mptexp.report.first_screen import ratios


def opened(*ends, **more):
    """The subject of ratios, each of an estimate and its interval."""
    rows = pd.DataFrame(ends, columns=["speedup", "low", "high"])
    rows = rows.assign(flags="", blocks=3, policy="float32")
    labels = [f"setup {k}" for k in range(len(rows))]
    made = ratios.of(rows, labels, "the usual", tables([record()]), "None is better than", **more)
    return next(made, None)


def test_the_furthest_on_each_side_are_the_title():
    made = opened((0.5, 0.4, 0.6), (0.8, 0.7, 0.9), (1.5, 1.4, 1.6), (1.1, 0.9, 1.3), choose=True)
    assert made.title == "setup 0 is 2.00× slower and setup 2 is 1.50× faster than the usual"
    assert made.advice == "use setup 2."
    assert [bar.finding for bar in made.bars] == ["slower", "slower", "inconclusive", "faster"]


def test_what_is_proven_and_rounds_to_1_is_no_title_beside_more():
    # The lie: "setup 0 is 2.00× slower and setup 1 is 1.00× as fast as", and "use setup 1".
    made = opened((0.5, 0.4, 0.6), (1.002, 1.001, 1.003), choose=True)
    assert made.title == "setup 0 is 2.00× slower than the usual"
    assert made.advice == ""
    alone = opened((1.002, 1.001, 1.003), choose=True)
    assert alone.title == "setup 0 is 1.00× as fast as the usual"
    assert alone.advice == ""


def test_nothing_proven_is_a_span_that_is_inconclusive():
    made = opened((1.1, 0.9, 1.3), (1.2, 0.8, 1.6), otherwise="keep it")
    assert (
        made.title == "None is better than the usual: 1.10× to 1.20×, but all intervals include 1"
    )
    assert made.advice.startswith("keep it; ")
    one = opened((1.1, 0.9, 1.3))
    assert one.title == "None is better than the usual: 1.10×, but its interval includes 1"


@pytest.mark.parametrize(
    ("flags", "why"), [("", "n = 1, no interval"), ("interference", "not valid")]
)
def test_what_is_not_claimed_is_provisional(flags, why):
    rows = pd.DataFrame({"speedup": [1.1], "low": np.nan, "high": np.nan, "flags": flags})
    rows = rows.assign(blocks=1, policy="float32")
    (made,) = ratios.of(rows, ["a"], "b", tables([record()]), "None is better than")
    assert made.title == f"Provisional ({why}): a is 1.10× as fast as b"


def test_nothing_is_said_where_nothing_was_measured():
    assert opened((np.nan, np.nan, np.nan)) is None


def test_of_many_ratios_the_fastest_are_not_lost():
    # The lie: the twelve slowest of 24 were all that title, sentences and advice knew.
    ends = [(1 + k / 10, 0.9 + k / 10, 1.1 + k / 10) for k in range(24)]
    made = opened(*ends, choose=True)
    assert made.title == "setup 23 is 3.30× faster than the usual"
    assert made.advice == "use setup 23."
    assert [bar.label for bar in made.drawn[6:8]] == ["setup 6", "setup 17"]
