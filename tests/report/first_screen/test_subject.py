"""What all openings share."""

from dataclasses import replace

import pytest
from builders import three

from mptexp.report.first_screen import subject
from mptexp.report.text import task_words


@pytest.mark.parametrize(
    ("clauses", "said"),
    [([], ""), (["a", "b, c"], "a; b, c"), (["a", "b", "c", "d", "e"], "a; b; c; 2 more")],
)
def test_of_many_clauses_the_first_are_said_and_the_rest_counted(clauses, said):
    assert subject.first(clauses) == said


def test_equal_within_more_than_usual_says_within_what():
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    wide = replace(made, options=replace(made.options, equivalence_margin=0.05))
    measure = task_words.of("digits")
    assert subject.equal(made, measure) == "equal"
    assert subject.equal(wide, measure) == "equal within 5 percentage points"


def test_what_is_not_claimed_says_so_once():
    assert subject.unclaimed([]) == []
    first, second = subject.unclaimed(["one.", "two."])
    assert first.endswith(". one.")
    assert second == "two."


def test_the_rows_of_a_chart_are_the_ends_of_each_heading_and_of_what_is_proven():
    def bar(policy, value, finding="inconclusive"):
        return subject.Bar(f"{policy}, {value}", policy, value, 0.5, 2.0, finding, "")

    wide = [bar("bfloat16", k / 100) for k in range(50, 90)]  # beyond all that is proven
    proven = [bar("bfloat16", 0.95, "slower"), bar("bfloat16", 0.85, "slower")]
    rest = [bar("float16", 1.2, "faster")]  # cut off, once, or drawn twice
    made = subject.Subject("", [], [*wide, *proven, *rest])
    drawn = made.drawn
    assert len(drawn) == len(set(drawn)) == subject.MOST
    assert {proven[1], rest[0], wide[0]} <= set(drawn)
    assert drawn == [bar for bar in made.bars if bar in drawn]
    assert replace(made, bars=proven).drawn == proven
