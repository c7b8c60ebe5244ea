"""What all openings share."""

from dataclasses import replace

import pytest
from builders import three

from mptexp.report.first_screen import subject
from mptexp.report.text import measures


@pytest.mark.parametrize(
    ("clauses", "said"),
    [([], ""), (["a", "b, c"], "a; b, c"), (["a", "b", "c", "d", "e"], "a; b; c; 2 more")],
)
def test_of_many_clauses_the_first_are_said_and_the_rest_counted(clauses, said):
    assert subject.first(clauses) == said


def test_equal_within_more_than_usual_says_within_what():
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    wide = replace(made, options=replace(made.options, equivalence_margin=0.05))
    measure = measures.of("digits")
    assert subject.equal(made, measure) == "equal"
    assert subject.equal(wide, measure) == "equal within 5 percentage points"


def test_what_is_not_claimed_says_so_once():
    assert subject.unclaimed([]) == []
    first, second = subject.unclaimed(["one.", "two."])
    assert first.endswith(". one.")
    assert second == "two."
