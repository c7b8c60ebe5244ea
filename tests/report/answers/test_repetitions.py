"""What is said of comparisons that two sweeps share."""

import json

import pytest

from mptexp.analysis.repeated_sweeps import Ratio, Repetition
from mptexp.report.answers import repetitions
from mptexp.spec.run import defaults


def pair(first, second, **changes):
    work = json.dumps(defaults() | {"gpu_model": "GPU", "jit": False} | changes, default=str)
    ends = [(value, value - 0.25, value + 0.25) for value in (first, second)]
    return tuple(Ratio(work, "", "float32", "mixed_bfloat16", *values) for values in ends)


def test_both_ratios_stand_with_their_intervals_and_the_verdict():
    said = repetitions.sentence(Repetition("a", "b", [pair(1.26, 1.24)]))
    assert said == (
        "Consistent, the intervals overlap: mixed_bfloat16's speed is 1.26× [1.01, 1.51] and "
        "1.24× [0.99, 1.49] that of float32 (batch size 32)."
    )


def test_intervals_that_do_not_overlap_are_inconsistent():
    said = repetitions.sentence(Repetition("a", "b", [pair(1.0, 2.0)]))
    assert said.startswith(
        "Inconsistent, the intervals do not overlap: mixed_bfloat16's speed is 1.00×"
    )
    two = Repetition("a", "b", [pair(1.0, 2.0), pair(1.0, 1.1, input_mode="keydana")])
    said = repetitions.sentence(two)
    assert said.startswith("Inconsistent in 1 of 2 comparisons, the intervals do not overlap: ")
    assert "(input as in Keydana 2020)" in said


@pytest.mark.parametrize(("n", "end"), [(3, "(batch size 3)."), (5, "; 2 more.")])
def test_of_many_the_first_are_named(n, end):
    many = [pair(1.0, 1.1, batch_size=size) for size in range(1, n + 1)]
    assert repetitions.sentence(Repetition("a", "b", many)).endswith(end)
