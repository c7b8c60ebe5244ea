"""What interfered with a run while its steps were timed, as its sensors' readings have it.

A run marks itself by them, and a reader does again: a mark that was deleted leaves its reading.
"""

from collections.abc import Mapping
from typing import Any

OTHERS_MATTER = 0.1  # share of the processor that other programs may use before a run is flagged
LEAST_STOPPED_S = 0.25  # as sensors are apart; less is none


def marks(readings: Mapping[str, Any]) -> list[str]:
    """What a reader of a run's numbers must know of how it was measured.

    Args:
        readings: of a record, see `training.measure.sensors.summary`; older ones have fewer.
    """
    reasons = ", ".join(readings.get("throttle_reasons") or [])
    stopped_s = readings.get("stopped_s") or 0.0
    cases = {
        "measured while other programs used the processor": (readings.get("other_load_frac") or 0)
        > OTHERS_MATTER,
        "measured while other processes used the GPU": bool(readings.get("other_processes")),
        "measured while the process was stopped or the machine asleep "
        f"({stopped_s:.0f} s)": stopped_s > LEAST_STOPPED_S,
        "measured while its processors or its priority were changed": bool(
            readings.get("limits_changed")
        ),
        f"measured while the device was throttled ({reasons})": bool(
            readings.get("throttled_frac")
        ),
    }
    return [text for text, holds in cases.items() if holds]
