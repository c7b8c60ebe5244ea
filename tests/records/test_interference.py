import pytest

from mptexp.records import interference

QUIET = {
    "other_load_frac": 0.02,
    "other_processes": None,
    "stopped_s": 0.0,
    "limits_changed": False,
    "throttled_frac": 0.0,
    "throttle_reasons": [],
}


def test_a_quiet_run_has_no_mark():
    assert interference.marks(QUIET) == []
    assert interference.marks({}) == []  # of older records


@pytest.mark.parametrize(
    ("reading", "mark"),
    [
        ({"other_load_frac": 0.2}, "measured while other programs used the processor"),
        ({"other_processes": 2}, "measured while other processes used the GPU"),
        ({"stopped_s": 45.2}, "the process was stopped or the machine asleep (45 s)"),
        # "0 s" was said of a third of a second.
        ({"stopped_s": 0.3}, "the process was stopped or the machine asleep (0.3 s)"),
        ({"unwatched": True}, "measured while nothing watched for other programs"),
        ({"gpu_unread": True}, "without any reading of its GPU by NVML"),
        ({"limits_changed": True}, "its processors or its priority were changed"),
        (
            {"throttled_frac": 0.1, "throttle_reasons": ["power cap"]},
            "the device was throttled (power cap)",
        ),
    ],
)
def test_each_disturbance_is_a_mark(reading, mark):
    (found,) = interference.marks(QUIET | reading)
    assert found.endswith(mark)
