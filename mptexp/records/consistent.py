"""Whether the figures of a record are those that follow from its own samples.

A digest shows that a record was edited; it shows nothing where it was made anew. But a run keeps
what its figures were made of: the windows of steps, the latencies, the images it got right. A
figure that does not follow from them was not measured by that run.
"""

import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

ROUNDING = 1e-6  # relative: far above that of floats, far below any effect
# Of the validation images: predicting once more may round a few otherwise, and a model with noise
# of its own gets others right. Four standard errors of two such counts, and never less than this.
OFF, SIGMAS = 0.01, 4.0


def fault(record: Mapping[str, Any]) -> str:
    """Which figure contradicts the samples, in a sentence; empty where none does.

    What a record does not have is not asked for. It must have passed the check of the schema.
    """
    timing = record.get("timing") or {}
    given = {name: value for name, value in _expected(record, timing).items() if None not in value}
    for name, (value, expected) in given.items():
        if not math.isclose(value, expected, rel_tol=ROUNDING):
            return f"{name} is {value:.6g}, but {expected:.6g} follows from the record's samples"
    windows_s = sum(window["seconds"] for window in record.get("windows") or ())
    fit_s = record.get("fit_s")
    if fit_s is not None and windows_s > fit_s * (1 + ROUNDING):
        return f"fit_s is {fit_s:.6g}, but its windows took {windows_s:.6g} s together"
    return _other_images(record)


def _expected(record: Mapping[str, Any], timing: Mapping[str, Any]) -> dict[str, Any]:
    """Each figure that can be made again, with its value in the record and the expected one."""
    figures: dict[str, Any] = {}
    step_s, warmup = timing.get("step_s"), timing.get("warmup_steps")
    if record.get("windows") and warmup is not None:
        figures["timing.step_s"] = (step_s, median_step_s(record["windows"], warmup))
    batch_size = record["parameters"].get("batch_size")
    if step_s and batch_size:
        figures["timing.images_per_s"] = (timing.get("images_per_s"), batch_size / step_s)
    latencies = (record.get("latencies_s") or [])[timing.get("latency_warmup") or 0 :]
    if latencies:
        median = statistics.median(latencies)
        figures["timing.latency_p50_s"] = (timing.get("latency_p50_s"), median)
    return figures


def median_step_s(windows: Sequence[Mapping[str, Any]], warmup_steps: int) -> float | None:
    """The median window after the warm-up; None where there is none."""
    steady = [w for w in windows if w["first_step"] >= warmup_steps]
    timed = [(window["seconds"], window["steps"]) for window in steady]
    return percentiles(timed, [50])[0] if timed else None


def percentiles(timed: Iterable[tuple[float, int]], wanted: Iterable[float]) -> list[float]:
    """Percentiles of the seconds a step, each window weighted by its steps.

    A window of 16 steps says more than the remainder of an epoch does.

    Args:
        timed: seconds and steps of each window, of which there must be one.
        wanted: percentiles from 0 to 100.
    """
    rates = sorted((seconds / steps, steps) for seconds, steps in timed)
    shares = list(accumulate(steps for _, steps in rates))
    return [float(rates[bisect_left(shares, p / 100 * shares[-1])][0]) for p in wanted]


def _other_images(record: Mapping[str, Any]) -> str:
    """What is wrong where the images that a run got right are not as many as its accuracy says."""
    known = record.get("validated")
    accuracy = (record.get("history") or [{}])[-1].get("val_accuracy")
    if not known or accuracy is None or record.get("status") != "ok":
        return ""
    images = known["images"]
    right = (int(known["correct"], 16) >> (-images % 8)).bit_count()  # without what fills a byte
    error = math.sqrt(2 * accuracy * (1 - accuracy) * images)
    if abs(right - accuracy * images) <= max(2, OFF * images, SIGMAS * error):
        return ""
    return f"val_accuracy is {accuracy:.4g}, but {right:,} of {images:,} images are listed as right"


def measurement(record: Mapping[str, Any]) -> tuple[float, ...]:
    """What no two runs have in common: seconds to the last digit; empty where not recorded."""
    timing, readings = record.get("timing") or {}, record.get("readings") or {}
    known = [timing.get("step_s"), timing.get("first_step_s")]
    known += [record.get("fit_s"), readings.get("cpu_s")]
    return () if None in known else tuple(known)


def repeated(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """The runs that hold the same measurement as another: one of them was copied."""
    known = [(record["run_id"], measurement(record)) for record in records]
    times = Counter(measured for _, measured in known)
    return {run_id for run_id, measured in known if measured and times[measured] > 1}
