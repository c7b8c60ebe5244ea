"""What interfered with a run while its steps were timed, as its sensors' readings have it.

A run marks itself by them, and a reader does again: a mark that was deleted leaves its reading.
"""

from collections.abc import Mapping
from typing import Any

OTHERS_MATTER = 0.1  # share of the processor that other programs may use before a run is flagged
LEAST_STOPPED_S = 0.25  # as sensors are apart; less is none

PROCESSOR_USED = "measured while other programs used the processor"
GPU_USED = "measured while other processes used the GPU"
STOPPED = "measured while the process was stopped or the machine asleep"
LIMITS_CHANGED = "measured while its processors or its priority were changed"
THROTTLED = "measured while the device was throttled"
UNWATCHED = "measured while nothing watched for other programs"
# How marks open, by the flag that a run has for them: see `mptexp.analysis.validity`.
OPENINGS = {
    "interference": (PROCESSOR_USED, GPU_USED),
    "interrupted": (STOPPED, LIMITS_CHANGED),
    "throttled": (THROTTLED,),
    "unwatched": (UNWATCHED,),
}


def marks(readings: Mapping[str, Any]) -> list[str]:
    """What a reader of a run's numbers must know of how it was measured.

    Args:
        readings: of a record, see `training.measure.sensors.summary`; older ones have fewer.
    """
    reasons = ", ".join(readings.get("throttle_reasons") or [])
    stopped_s = readings.get("stopped_s") or 0.0
    digits = 1 if stopped_s < 10 else 0  # not "0 s" of what is a mark
    cases = {
        PROCESSOR_USED: (readings.get("other_load_frac") or 0) > OTHERS_MATTER,
        GPU_USED: bool(readings.get("other_processes")),
        f"{STOPPED} ({stopped_s:.{digits}f} s)": stopped_s > LEAST_STOPPED_S,
        LIMITS_CHANGED: bool(readings.get("limits_changed")),
        f"{THROTTLED} ({reasons})": bool(readings.get("throttled_frac")),
        UNWATCHED: bool(readings.get("unwatched")),
        "measured without any reading of its GPU by NVML": bool(readings.get("gpu_unread")),
    }
    return [text for text, holds in cases.items() if holds]
