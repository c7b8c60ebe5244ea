"""Whether the figures of a record are those that follow from its own samples.

A digest shows that a record was edited; it shows nothing where it was made anew. But a run keeps
what its figures were made of: the windows of steps, the latencies, the images it got right. A
figure that does not follow from them was not measured by that run.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from mptexp.records import timed_windows
from mptexp.records.interference import OTHERS_MATTER
from mptexp.records.schema import is_foreign
from mptexp.records.timed_windows import Window
from mptexp.spec import tasks

ROUNDING = 1e-6  # relative: far above that of floats, far below any effect
# Of the validation images: predicting once more may round a few otherwise, and a model with noise
# of its own gets others right. Four standard errors of two such counts, and never less than this.
OFF, SIGMAS = 0.01, 4.0
LOADED = 2 * OTHERS_MATTER  # at least, of what was timed: rounding and clocks make no contradiction
OFF_NATS = 0.01  # of a loss in 16 bits, beside OFF of it
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
    return (
        _other_epochs(record)
        or _missing_windows(record)
        or _other_images(record)
        or _other_labels(record)
        or _other_load(record)
    )


def _expected(record: Mapping[str, Any], timing: Mapping[str, Any]) -> dict[str, Any]:
    """Each figure that can be made again, with its value in the record and the expected one."""
    figures: dict[str, Any] = {}
    step_s = timing.get("step_s")
    if record.get("windows"):
        windows = [Window(w["first_step"], w["steps"], w["seconds"]) for w in record["windows"]]
        made = timed_windows.timing(windows)
        figures |= {f"timing.{name}": (timing.get(name), made[name]) for name in made}
    batch_size = record["parameters"].get("batch_size")
    if step_s and batch_size:
        rate = tasks.of(record["parameters"].get("dataset", "")).rate
        expected = batch_size * tasks.units(record["parameters"]) / step_s
        figures[f"timing.{rate}"] = (timing.get(rate), expected)
    latencies = record.get("latencies_s") or []
    if latencies:
        warmup = timed_windows.warmup_windows([Window(0, 1, seconds) for seconds in latencies])
        figures["timing.latency_warmup"] = (timing.get("latency_warmup"), warmup)
        median = statistics.median(latencies[warmup:])
        figures["timing.latency_p50_s"] = (timing.get("latency_p50_s"), median)
    return figures


def _missing_windows(record: Mapping[str, Any]) -> str:
    """What is wrong where windows do not follow one another: whoever picks them picks the fast.

    Between two epochs lies the last execution of the earlier, which belongs to no window.
    """
    windows, asked = record.get("windows") or [], record["parameters"]
    if is_foreign(record) or not windows:
        return ""
    most = asked.get("steps_per_execution", 1)
    pauses = max(len(record.get("history") or []) - 1, 0)
    ended = 0
    for window in windows:
        gap = window["first_step"] - ended
        pauses -= gap > 0
        if not 0 <= gap <= most or pauses < 0:
            return f"windows: step {window['first_step']} follows step {ended - 1}"
        ended = window["first_step"] + window["steps"]
    return ""


def _other_load(record: Mapping[str, Any]) -> str:
    """What is wrong where the samples of the sensors are gone, or show what the summary does not.

    A program may have run beside the training alone, outside of what is timed; of older records,
    without an identity, nothing is claimed.
    """
    if not record.get("identity"):
        return ""
    readings, samples = record.get("readings") or {}, record.get("samples") or []
    measured = (record.get("timing") or {}).get("step_s") is not None
    if measured and record.get("environment") and not samples:
        return "samples: none of its sensors, of which every run has some"
    timed_s = sum(window["seconds"] for window in record.get("windows") or [])
    load, noticed = readings.get("other_load_frac"), _least_load(samples, timed_s)
    if load is None or noticed is None or load > OTHERS_MATTER or noticed < LOADED:
        return ""
    return f"readings.other_load_frac is {load:.6g}, but the samples show {noticed:.6g}"


def _least_load(samples: Sequence[Mapping[str, Any]], timed_s: float) -> float | None:
    """The least share of the processors that others can have taken of what was timed.

    That of the quietest gaps between samples, for half as long as was timed: which of them lie
    within it, no record says, and the first and the last of them only in part.
    """
    names = ("time", "busy_cpu_s", "own_cpu_s", "processors")
    rows = [[s.get(name) for name in names] for s in samples]
    known = [[*map(float, r)] for r in rows if all(isinstance(v, int | float) for v in r)]
    gaps = sorted(
        ((b[1] - a[1] - b[2] + a[2]) / offered, b[0] - a[0])
        for a, b in pairwise(known)
        if b[0] > a[0] and (offered := (b[0] - a[0]) * b[3]) > 0
    )
    total, spent = 0.0, 0.0
    for load, seconds in gaps:
        total, spent = total + load * seconds, spent + seconds
        if spent >= timed_s / 2:
            return total / spent
    return None


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


def _other_labels(record: Mapping[str, Any]) -> str:
    """What is wrong where classes, validation images and the accuracy of guessing disagree."""
    known = record.get("in_force") or {}
    images, chance = known.get("validation_images"), known.get("chance_accuracy")
    counts = known.get("validation_labels")
    if counts is not None and sum(counts) != images:
        return f"validation_images is {images}, but {sum(counts):,} labels are counted"
    if chance is None or not images:
        return ""
    commonest = max(counts) if counts else max(1, round(chance * images))
    if math.isclose(chance, commonest / images, rel_tol=ROUNDING):
        return ""
    return f"chance_accuracy is {chance:.6g}, which no class of {images:,} validation images has"


def _other_images(record: Mapping[str, Any]) -> str:
    """What is wrong where the images that a run got right are not as many as its accuracy says.

    Or where the losses of its sequences are not those of its validation. Of a model that was
    quantized after its training, both validations are held against their own lists.
    """
    if record.get("status") != "ok":
        return ""
    counted = (record.get("in_force") or {}).get("validation_images")
    quantized = record.get("quantized") or {}
    sides = {f"quantized.{part}.": quantized.get(part) or {} for part in ("before", "after")}
    validations = {name: (side, side.get("validated")) for name, side in sides.items()}
    validations[""] = ((record.get("history") or [{}])[-1], record.get("validated"))
    for name, (figures, listed) in validations.items():
        if listed and (wrong := _other_list(figures, listed, counted)):
            return f"{name}{wrong}"
    return ""


def _other_list(figures: Mapping[str, Any], listed: Mapping[str, Any], counted: int | None) -> str:
    """What is wrong where a list of examples is not that of the figures of its validation.

    Args:
        listed: see Validated of the schema.
        counted: how many examples the run says that it validated with.
    """
    images = listed["images"]
    if counted not in (None, images):
        return f"validation_images is {counted:,}, but {images:,} images are listed"
    accuracy, losses = figures.get("val_accuracy"), listed.get("losses")
    if losses and (wrong := _other_losses(figures, losses)):
        return wrong
    if accuracy is None or "correct" not in listed:
        return ""
    right = (int(listed["correct"], 16) >> (-images % 8)).bit_count()  # without what fills a byte
    error = math.sqrt(2 * accuracy * (1 - accuracy) * images)
    if abs(right - accuracy * images) <= max(2, OFF * images, SIGMAS * error):
        return ""
    return f"val_accuracy is {accuracy:.4g}, but {right:,} of {images:,} images are listed as right"


def _other_losses(figures: Mapping[str, Any], losses: Sequence[float | None]) -> str:
    said = figures.get("val_loss")
    if said is None or None in losses:  # not finite: nor is their mean
        return ""
    mean = statistics.fmean(losses)
    if abs(said - mean) <= OFF_NATS + OFF * abs(said):
        return ""
    return f"val_loss is {said:.4g}, but the listed sequences have {mean:.4g}"


def measurement(record: Mapping[str, Any]) -> tuple[float, ...]:
    """What no two runs have in common: seconds to the last digit; empty where not recorded."""
    timing, readings = record.get("timing") or {}, record.get("readings") or {}
    times = [timing.get("step_s"), timing.get("first_step_s")]
    known = [s for s in (*times, record.get("fit_s"), readings.get("cpu_s")) if s is not None]
    return tuple(known) if len(known) >= LEAST_TIMES else ()


def measured_at(record: Mapping[str, Any]) -> list[float]:
    """When its sensors began and ended, in seconds since the machine started; empty if unknown.

    Sensors are read by the clock of Linux that counts from there, in every process alike. It stands
    still while the machine sleeps, so that those seconds are added.
    """
    looks = [(s.get("time"), s.get("asleep_s", 0.0)) for s in record.get("samples") or []]
    times = [sum(pair) for pair in looks if all(isinstance(one, float) for one in pair)]
    return [min(times), max(times)] if times else []


def repeated(records: Iterable[Mapping[str, Any]]) -> set[str]:
    """The runs that hold the same measurement as another: one of them was copied.

    The same times, the same moments, or as repeats of a point the same losses, to the last digit.
    """
    known = [
        (record["run_id"], sign)
        for record in records
        for sign in (measurement(record), record.get("measured_at"), _losses(record))
        if sign
    ]
    times = Counter(str(sign) for _, sign in known)
    return {run_id for run_id, sign in known if times[str(sign)] > 1}


def _losses(record: Mapping[str, Any]) -> list[Any]:
    """The losses of a training with what it shares with its repeats; empty where they are few.

    Repeats have other weights and another order.
    """
    history = record.get("history") or []
    losses = [epoch.get(name) for epoch in history for name in ("loss", "val_loss")]
    known = [loss for loss in losses if loss is not None]
    shared = {n: v for n, v in record["parameters"].items() if n not in ("seed", "block")}
    return [shared, known] if len({*known}) >= LEAST_TIMES else []
