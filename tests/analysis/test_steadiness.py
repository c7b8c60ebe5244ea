import math

import numpy as np
import pytest
from builders import record, tables

from mptexp.analysis import steadiness


def flags(*records):
    made = tables(list(records))
    return steadiness.flags(made.results)


def both(times, mixed=(0.05, 0.05, 0.05)):
    for block, (step_s, other) in enumerate(zip(times, mixed, strict=True)):
        yield record(block=block, step_s=step_s)
        yield record("mixed_float16", block, other)


def test_repeats_that_the_clock_does_not_explain_are_apart():
    # Published once: repeats 51 % apart, and the headline claimed.
    found = flags(*both((0.1, 0.151, 0.1)))
    assert set(map(tuple, found.values())) == {("repeats apart",)}
    assert len(found) == 6  # of two sides, nothing says which one is odd
    third = [record("mixed_bfloat16", block, 0.06) for block in range(3)]
    odd = flags(*both((0.1, 0.151, 0.1)), *third)
    assert set(odd) == {record(block=block)["run_id"] for block in range(3)}
    assert flags(*both((0.1, 0.11, 0.12))) == {}


def test_two_times_are_apart_by_more_than_a_quarter_and_what_the_clock_leaves_open():
    assert not steadiness.are_apart(0.124, 0.1, 0.0)
    assert steadiness.are_apart(0.126, 0.1, 0.0)
    assert steadiness.are_apart(0.1, 0.126, 0.0)
    assert not steadiness.are_apart(0.126, 0.1, 0.01)
    assert not steadiness.are_apart(0.126, math.nan, 0.0)


def test_a_drift_that_all_policies_of_a_block_share_is_none():
    slow = (1, 1.5, 2.25)
    assert flags(*both([0.1 * k for k in slow], [0.05 * k for k in slow])) == {}
    # So is one that all points of a block share.
    points = [
        record(block=b, step_s=0.1 * k, batch_size=n) for b, k in enumerate(slow) for n in (8, 16)
    ]
    assert flags(*points) == {}
    # Of one policy alone nothing tells it from interference.
    assert len(flags(*(record(block=b, step_s=0.1 * k) for b, k in enumerate(slow)))) == 3


def test_what_the_clock_itself_is_unsure_of_is_allowed():
    wide = list(both((0.1, 0.14, 0.1)))
    for made in wide:
        made["timing"]["step_ci"] = 0.2
    assert flags(*wide) == {}


@pytest.mark.parametrize(("clock_hz", "flagged"), [(1.9e9, 0), (1.6e9, 6), (None, 0)])
def test_sides_at_other_clocks_are_not_compared(clock_hz, flagged):
    runs = list(both((0.1, 0.1, 0.1)))
    for made in runs:
        mixed = made["parameters"]["policy"] == "mixed_float16"
        made["readings"] = {"clock_hz": clock_hz if mixed else 2e9}
    assert len(flags(*runs)) == flagged


def test_one_run_at_another_clock_is_the_one_that_is_flagged():
    runs = list(both((0.1, 0.1, 0.1)))
    for k, made in enumerate(runs):
        made["readings"] = {"clock_hz": 2e9 if k else 1.2e9}
    assert list(flags(*runs)) == [runs[0]["run_id"]]


def test_repeats_that_used_the_device_to_other_shares_are_uneven():
    runs = list(both((0.1, 0.1, 0.1)))
    for made in runs:
        made["readings"] = {"utilization_frac": 0.95}
    runs[0]["readings"]["utilization_frac"] = 0.58
    assert set(map(tuple, flags(*runs).values())) == {("uneven utilization",)}
    # Policies may differ: one of them waits more.
    for made in runs:
        mixed = made["parameters"]["policy"] == "mixed_float16"
        made["readings"] = {"utilization_frac": 0.58 if mixed else 0.95}
    assert flags(*runs) == {}


def test_few_quiet_sweeps_have_a_flag():
    random, flagged = np.random.default_rng(0), 0
    quiet = tables(list(both([0.1] * 5, [0.1] * 5)))
    for _ in range(50):
        times = 0.1 * np.exp(random.normal(0, 0.03, len(quiet.results)))
        noisy = quiet.results.assign(step_s=times)
        flagged += bool(steadiness.flags(noisy))
    assert flagged <= 1
