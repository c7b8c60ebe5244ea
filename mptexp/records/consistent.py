"""Whether the figures of a record are those that follow from its own samples.

A digest shows that a record was edited; it shows nothing where it was made anew. But a run keeps
what its figures were made of: the windows of steps, the latencies, the images it got right. A
figure that does not follow from them was not measured by that run.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from mptexp.records import step_times
from mptexp.records.step_times import Window

ROUNDING = 1e-6  # relative: far above that of floats, far below any effect
# Of the validation images: predicting once more may round a few otherwise, and a model with noise
# of its own gets others right. Four standard errors of two such counts, and never less than this.
OFF, SIGMAS = 0.01, 4.0
LEAST_TIMES = 3  # that agree to the last digit, of two runs that are one


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
    return _other_epochs(record) or _other_images(record)


def _expected(record: Mapping[str, Any], timing: Mapping[str, Any]) -> dict[str, Any]:
    """Each figure that can be made again, with its value in the record and the expected one."""
    figures: dict[str, Any] = {}
    step_s = timing.get("step_s")
    if record.get("windows"):
        windows = [Window(w["first_step"], w["steps"], w["seconds"]) for w in record["windows"]]
        made = step_times.timing(windows)
        figures |= {f"timing.{name}": (timing.get(name), made[name]) for name in made}
    batch_size = record["parameters"].get("batch_size")
    if step_s and batch_size:
        figures["timing.images_per_s"] = (timing.get("images_per_s"), batch_size / step_s)
    latencies = record.get("latencies_s") or []
    if latencies:
        warmup = step_times.warmup_windows([Window(0, 1, seconds) for seconds in latencies])
        figures["timing.latency_warmup"] = (timing.get("latency_warmup"), warmup)
        median = statistics.median(latencies[warmup:])
        figures["timing.latency_p50_s"] = (timing.get("latency_p50_s"), median)
    return figures


def _other_epochs(record: Mapping[str, Any]) -> str:
    """What is wrong where epochs end before they begin, or are not as many as were asked for."""
    history, asked = record.get("history") or [], record["parameters"].get("epochs")
    ended = [epoch["elapsed_s"] for epoch in history if epoch.get("elapsed_s") is not None]
    for earlier, later in pairwise([0.0, *ended, record.get("fit_s") or math.inf]):
        if later < earlier * (1 - ROUNDING):
            return f"history: {later:.6g} s follow {earlier:.6g} s in elapsed_s and fit_s"
    timing = record.get("timing") or {}
    whole = record.get("status") == "ok" and timing.get("ended_by") == "epochs"
    if whole and history and asked is not None and len(history) != asked:
        return f"history holds {len(history)} epochs, but the run had {asked}"
    return ""


def _other_images(record: Mapping[str, Any]) -> str:
    """What is wrong where the images that a run got right are not as many as its accuracy says."""
    known = record.get("validated")
    accuracy = (record.get("history") or [{}])[-1].get("val_accuracy")
    if not known or accuracy is None or record.get("status") != "ok":
        return ""
    images = known["images"]
    counted = (record.get("in_force") or {}).get("validation_images")
    if counted not in (None, images):
        return f"validation_images is {counted:,}, but {images:,} images are listed"
    right = (int(known["correct"], 16) >> (-images % 8)).bit_count()  # without what fills a byte
    error = math.sqrt(2 * accuracy * (1 - accuracy) * images)
    if abs(right - accuracy * images) <= max(2, OFF * images, SIGMAS * error):
        return ""
    return f"val_accuracy is {accuracy:.4g}, but {right:,} of {images:,} images are listed as right"


def measurement(record: Mapping[str, Any]) -> tuple[float, ...]:
    """What no two runs have in common: seconds to the last digit; empty where not recorded."""
    timing, readings = record.get("timing") or {}, record.get("readings") or {}
    times = [timing.get("step_s"), timing.get("first_step_s")]
    known = [s for s in (*times, record.get("fit_s"), readings.get("cpu_s")) if s is not None]
    return tuple(known) if len(known) >= LEAST_TIMES else ()


def repeated(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """The runs that hold the same measurement as another: one of them was copied."""
    known = [(record["run_id"], measurement(record)) for record in records]
    times = Counter(measured for _, measured in known)
    return {run_id for run_id, measured in known if measured and times[measured] > 1}
