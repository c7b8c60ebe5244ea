"""The figures of a run from windows whose figures are known."""

from itertools import pairwise

import numpy as np
import pytest

from mptexp.records import timed_windows
from mptexp.records.timed_windows import Window


def windows(rates, steps=1):
    return [Window(i * steps, steps, r * steps) for i, r in enumerate(rates)]


def test_compilation_and_warm_up_are_left_out():
    timing = timed_windows.timing(windows([5.0, 0.9, 0.4] + [0.1] * 20))
    assert timing["step_s"] == pytest.approx(0.1)
    assert timing["warmup_steps"] == 3
    assert timing["first_step_s"] == 5.0
    assert timing["steps_timed"] == 20


def test_a_quick_step_in_the_middle_of_the_warm_up_does_not_end_it():
    assert timed_windows.warmup_windows(windows([5, 0.1, 3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])) == 3


def test_a_slow_step_later_is_kept():
    timing = timed_windows.timing(windows([5.0] + [0.1] * 30 + [2.0] + [0.1] * 30))
    assert timing["steps_timed"] == 61
    assert timing["step_s"] == pytest.approx(0.1)


def test_a_median_that_leaves_out_what_recurs_is_named():
    # The lie: "1.99 times faster", of updates in every fourth step that the median never held.
    (said,) = timed_windows.unequal(windows([0.1, 0.1, 0.1, 0.5] * 20))
    assert said.startswith(timed_windows.UNEQUAL_STEPS)
    assert "2 times" in said
    # The lie: 10.4 ms, of 1,100 steps of which 484 took twice as long.
    (said,) = timed_windows.unequal(windows([0.2] * 60 + [0.1] * 70))
    assert said == "its steps are unequal: the first 60 of 130 took longer, and were left out"
    assert timed_windows.unequal(windows([0.2] * 60 + [0.1] * 130)) == []
    assert timed_windows.unequal(windows([5.0] + [0.1] * 60)) == []  # compilation is left out
    assert timed_windows.unequal(windows([0.1, 0.11] * 20)) == []
    assert timed_windows.unequal(windows([0.1] * 6 + [2.0] + [0.1] * 6)) == []  # a stall
    assert timed_windows.unequal(windows([0.0] * 20)) == []


def test_a_median_above_what_steps_take_on_average_is_named_too():
    # The lies: 335 ms a step of two trainings of 335 and 10 ms; 305 ms of steps of 50 ms, as most
    # windows held an evaluation.
    def two_trainings(short):
        later = [Window(60 + 4 * k, 4, 4 * 0.01) for k in range(short)]
        return [*windows([0.335] * 60), *later]

    (said,) = timed_windows.unequal(two_trainings(10))
    assert said.startswith(timed_windows.UNEQUAL_STEPS)
    assert "0.612 times" in said
    assert timed_windows.unequal(windows([0.305, 0.305, 0.05] * 12))
    assert timed_windows.unequal(two_trainings(2)) == []
    assert timed_windows.unequal(windows([0.1] * 14 + [0.08] * 6)) == []  # a clock that slows


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.4])
def test_steps_that_only_scatter_are_not_called_unequal(spread):
    random = np.random.default_rng(1)
    for steps in (12, 60, 600):
        for rates in (random.lognormal(0, spread, steps), random.normal(1, spread / 2, steps)):
            assert timed_windows.unequal(windows([*np.abs(rates)])) == []


@pytest.mark.parametrize("rates", [[1.0], [5.0, 1.0], [4.0, 3.0, 2.0, 1.0]])
def test_something_is_always_left(rates):
    timing = timed_windows.timing(windows(rates))
    assert timing["steps_timed"] >= 1
    assert timing["step_s"] > 0


def test_windows_count_by_their_steps():
    mixed = [Window(0, 1, 1.0), *[Window(1 + i, 1, 0.12) for i in range(3)], Window(4, 16, 1.6)]
    assert timed_windows.timing(mixed)["step_s"] == pytest.approx(0.1)


def test_percentiles_are_of_windows():
    timing = timed_windows.timing(windows([0.1] * 10 + [0.2] * 80 + [0.22] * 10))
    assert timing["step_s_low"] == pytest.approx(0.1)
    assert timing["step_s_high"] == pytest.approx(0.22)


@pytest.mark.parametrize("n", [10, 30, 100])
def test_the_medians_interval_holds_the_median(n):
    # Of windows that are independent, with a long tail to the right.
    random = np.random.default_rng(n)
    held = 0
    for _ in range(1000):
        rates = 0.1 * np.exp(random.exponential(0.1, n))
        low, _, high = timed_windows.median_interval(windows(rates))
        held += low <= 0.1 * np.exp(0.1 * np.log(2)) <= high
    assert held / 1000 > 0.9
    assert timed_windows.relative_ci(windows([0.1] * n)) == 0
    assert timed_windows.relative_ci(windows([0.1] * 9)) == np.inf


def test_steps_that_are_one_program_compile_together():
    # "First step, with compilation: 0.63 s", of 16 steps that took 10 s.
    windows = [Window(0, 16, 10.0), *(Window(16 + 16 * n, 16, 1.6) for n in range(6))]
    assert timed_windows.timing(windows)["first_step_s"] == 10.0


def test_a_long_trainings_windows_are_joined_and_its_figures_stay():
    random = np.random.default_rng(0)
    made = windows([5.0, 0.9, *random.normal(0.1, 0.004, 216_000)], steps=8)
    kept, several = timed_windows.joined(made)
    assert (several, len(kept)) == (22, 100 + 9814)
    assert sum(w.steps for w in kept) == sum(w.steps for w in made)
    assert sum(w.seconds for w in kept) == pytest.approx(sum(w.seconds for w in made))
    assert all(a.first_step + a.steps == b.first_step for a, b in pairwise(kept))
    before, after = timed_windows.timing(made), timed_windows.timing(kept)
    assert after["step_s"] == pytest.approx(before["step_s"], rel=1e-3)
    assert after["step_ci"] == pytest.approx(before["step_ci"], rel=0.3)
    for name in ("first_step_s", "warmup_steps", "steps_timed"):
        assert after[name] == before[name]
    assert timed_windows.joined(made[:9000]) == (made[:9000], 1)


def test_readings_are_thinned_evenly_to_the_last():
    kept, several = timed_windows.thinned([{"time": k} for k in range(172_800)])
    assert several == 18
    assert len(kept) <= timed_windows.MOST_SAMPLES + 1
    assert [kept[k]["time"] for k in (0, 1, -1)] == [0, 18, 172_799]
    assert timed_windows.thinned([]) == ([], 1)
