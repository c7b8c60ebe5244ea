"""How many repeats an advice asks for."""

import pandas as pd
import pytest

from mptexp.report.answers import repeats_needed
from mptexp.report.text import task_words

IMAGES = task_words.of("digits")


def row(half, least=0.0, blocks=3, margin=0.01):
    """A difference of accuracy that is not decided."""
    ends = {"low": -half, "high": half, "least_half": least}
    return pd.DataFrame([ends | {"blocks": blocks, "margin": margin}])


def test_an_interval_needs_three_repeats():
    assert repeats_needed.to_halve(2) == (
        "it takes at least 3 repeats that end well, not 2, for an interval"
    )
    assert repeats_needed.of_accuracies(row(float("nan"), blocks=2), IMAGES) == (
        repeats_needed.to_halve(2)
    )


@pytest.mark.parametrize(
    ("half", "least", "said"),
    [
        (0.02, 0.0, "it takes about 5 repeats, not 3, to halve the intervals"),
        (
            0.147,
            0.0,
            "it takes about 5 repeats, not 3, to halve the intervals, and about 137 to tell "
            "1 percentage point",
        ),
        (
            0.1,
            0.02,
            "it takes about 6 repeats, not 3, to halve the intervals, and more validation images "
            "to tell 1 percentage point",
        ),
        (
            0.03,
            0.02,
            "it takes more validation images: on these, repeats without end would leave "
            "2.0 percentage points either way",
        ),
        (20.0, 0.0, "it takes about 5 repeats, not 3, to halve the intervals"),
    ],
)
def test_repeats_are_asked_for_as_far_as_they_narrow(half, least, said):
    assert repeats_needed.of_accuracies(row(half, least), IMAGES) == said


def test_of_several_the_narrowest_decides():
    both = pd.concat([row(0.147), row(0.02)], ignore_index=True)
    assert "to tell" not in repeats_needed.of_accuracies(both, IMAGES)
