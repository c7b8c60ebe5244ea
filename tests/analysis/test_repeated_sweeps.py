"""Comparisons that two sweeps share."""

import json

import pytest
from builders import record, tables

from mptexp.analysis import repeated_sweeps


def sweep(step_s, policy="mixed_bfloat16", **more):
    """The claimed ratios of three blocks of float32 at 0.1 s a step and of a policy."""
    rows = []
    for block in range(3):
        rows.append(record("float32", block, 0.1 * (1 + block / 1000), **more))
        rows.append(record(policy, block, step_s, **more))
    return repeated_sweeps.ratios(tables(rows))


def test_what_two_sweeps_share_is_joined_whatever_else_they_measured():
    both = sweep(0.05) + sweep(0.2, "float8")
    (shared,) = repeated_sweeps.repetitions({"one": both, "other": sweep(0.0501)})
    assert (shared.first, shared.second, len(shared.ratios)) == ("one", "other", 1)
    assert shared.ratios[0][0].candidate == "mixed_bfloat16"
    assert shared.disjoint == 0


def test_intervals_without_a_value_in_common_are_disjoint():
    (shared,) = repeated_sweeps.repetitions({"one": sweep(0.05), "other": sweep(0.09)})
    assert shared.disjoint == 1
    one, other = shared.ratios[0]
    assert not one.overlaps(other)
    assert not other.overlaps(one)


@pytest.mark.parametrize("more", [{"batch_size": 64}, {"width": 2.0}])
def test_other_work_is_another_question(more):
    assert repeated_sweeps.repetitions({"one": sweep(0.05), "other": sweep(0.0501, **more)}) == []


def known_as(step_s, **identity):
    """The ratios of a sweep whose runs have an identity."""
    rows = []
    for block in range(3):
        for policy, took in (("float32", 0.1 * (1 + block / 1000)), ("float8", step_s)):
            made = record(policy, block, took)
            rows.append(made | {"identity": made["identity"] | identity})
    return repeated_sweeps.ratios(tables(rows))


@pytest.mark.parametrize(
    ("name", "is_another"),
    [
        # The lies: "the same comparison", of a function that was edited in between; on 1 thread
        # and on 16; with XLA's flags and without.
        ("model_source", True),
        ("threads", True),
        ("variables", True),
        ("code", False),  # of mptexp, which is another in each version
    ],
)
def test_runs_that_were_otherwise_answer_another_question(name, is_another):
    first, second = known_as(0.05, **{name: "a"}), known_as(0.0501, **{name: "b"})
    assert bool(repeated_sweeps.repetitions({"one": first, "other": second})) != is_another
    assert repeated_sweeps.repetitions({"one": first, "other": known_as(0.0501, **{name: "a"})})


def test_what_rests_on_runs_of_another_repeats_nothing():
    # The lie: "Consistent, the intervals overlap: 2.00× and 2.04×", of a sweep and of the same
    # after one more repeat.
    rows = [
        record(p, b, s + b / 1e5) for b in range(4) for p, s in (("float32", 0.1), ("float8", 0.05))
    ]
    one, longer = (repeated_sweeps.ratios(tables(made)) for made in (rows[:6], rows))
    assert one[0].speedup != longer[0].speedup
    assert repeated_sweeps.repetitions({"one": one, "copy": one}) == []
    assert repeated_sweeps.repetitions({"one": one, "longer": longer}) == []
    assert repeated_sweeps.repetitions({"one": sweep(0.05), "again": sweep(0.05)})
    # Nor do the halves of one call repeat one another.
    call = {"boot": "b", "invocation": "20261130-120000"}
    rows = [record(p, b, s + b / 1e5) | call
            for b in range(6) for p, s in (("float32", 0.1), ("float8", 0.05))]  # fmt: skip
    first, second = (repeated_sweeps.ratios(tables(half)) for half in (rows[:6], rows[6:]))
    assert first
    assert second
    assert repeated_sweeps.repetitions({"first": first, "second": second}) == []


def test_what_is_not_claimed_is_not_compared():
    two = [record(p, b) for p in ("float32", "mixed_bfloat16") for b in range(2)]
    assert repeated_sweeps.ratios(tables(two)) == []


def test_a_ratio_can_be_noted_and_read_again():
    (ratio,) = sweep(0.05)
    assert repeated_sweeps.Ratio(**json.loads(json.dumps(vars(ratio)))) == ratio
    assert json.loads(ratio.work)["batch_size"] == 32
    assert "epochs" not in json.loads(ratio.work)
