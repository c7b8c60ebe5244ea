"""What is not valid of a run's figures: one list of flags, each saying what it invalidates.

A flag takes the claim from every comparison that the run is part of; the number stays, and the flag
stands beside it wherever it is shown: page, table, terminal, CSV, export.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pandas as pd

from mptexp.analysis import comparability, steadiness
from mptexp.analysis.comparability import Record
from mptexp.analysis.points import POINT
from mptexp.records import consistency, instrument_checks, interference
from mptexp.records.schema import AT_ONCE, REPEATED, SEEN, VOID
from mptexp.records.store import CHANGED
from mptexp.records.tables import devices
from mptexp.records.timed_windows import UNEQUAL_STEPS
from mptexp.spec import run_order, tasks
from mptexp.spec.run import Run

ALL = ("time", "memory", "accuracy", "training time")
SEPARATOR = "; "
# What is computed of another figure, and not valid where that is not: power over images per second.
COMPUTED_OF = {"energy": "time"}
SHARE_MATTERS = 0.1  # of the validation images; data sets hold a few twice
# Standard errors above guessing by which an accuracy must lie: one run of a thousand that learned
# nothing gets there.
SIGMAS = 3.0
# Between two runs of a comparison; what lies between them otherwise takes seconds.
PAUSE_S = 600.0
LEAST_NATS = 0.01  # per token, by which a text's loss must be below that of guessing
REPAIR = "`mptexp run --repair`"  # what is said in its place names the sweep: answers.commands


@dataclass(frozen=True)
class Flag:
    """Why figures of a run are not valid.

    Attributes:
        name: in CSV files, JSON and beside a number.
        meaning: why, as a clause.
        remedy: what to do, as a clause.
        invalidates: of ALL, where training time is that of a whole training, time that of a step;
            or of what else `instruments.PROVEN` names.
        curable: whether the same run, measured again, may be without it.
        told_by: flags that say what to do where they are too: this one only shows that something
            was at work, and not what.
    """

    name: str
    meaning: str
    remedy: str
    invalidates: tuple[str, ...] = ("time", "training time")
    curable: bool = True
    told_by: tuple[str, ...] = ()


# What makes repeats differ, and is known.
AT_WORK = ("in parallel", "sweeps at once", "interference", "throttled", "other clocks")
# The name of the flag of runs between which the time of day alone shows a pause.
CLOCK_SET = "pause or clock set"
# The name of the flag of a time breakdown.
NOT_THE_STEPS = "trace not of these steps"


def unproven(name: str) -> str:
    """The name of the flag of what rests on a failed instrument, see `instruments.PROVEN`."""
    return f"{name} not proven"


FLAGS = {
    flag.name: flag
    for flag in (
        Flag(
            "not comparable",
            "something else differed than what is compared",
            f"undo what was changed, and {REPAIR} measures them again; or --fresh",
            invalidates=ALL,
        ),
        Flag(
            comparability.NOT_RECORDED,
            "the record does not say which code, data, versions and machine the run had",
            f"{REPAIR} measures them again",
            invalidates=ALL,
        ),
        Flag(
            CHANGED,
            "the record is not what the run wrote",
            f"{REPAIR} measures them again",
            invalidates=ALL,
        ),
        Flag(
            "same measurement",
            "another run holds the same times to the last digit: one of them is a copy",
            f"{REPAIR} measures both again",
            invalidates=ALL,
        ),
        Flag(
            "measured apart",
            "others of the same comparison and block were measured in another call, elsewhere, or "
            "more than ten minutes before or after",
            f"{REPAIR} measures the block again as a whole",
        ),
        Flag(
            CLOCK_SET,
            "by the time of day, others of the same comparison and block were measured more than "
            "ten minutes before or after, which no other clock shows: the machine slept, something "
            "else was done, or its time was set",
            f"{REPAIR} measures the block again as a whole",
        ),
        Flag(
            "in parallel",
            "runs shared the machine",
            f"{REPAIR} without `--parallel` measures them again",
            invalidates=("time", "memory", "training time"),
        ),
        Flag(
            "sweeps at once",
            "another sweep measured on the same device at the same time",
            f"let one sweep end before the next begins, and {REPAIR} measures the block again",
        ),
        Flag(
            "interference",
            "other programs were at work",
            f"end other programs, and {REPAIR} measures the block again",
        ),
        Flag(
            "interrupted",
            "the process was stopped, or its processors or priority changed, or the machine slept",
            f"leave the runs alone, and {REPAIR} measures the block again",
        ),
        Flag(
            "unwatched",
            "nothing watched for other programs while steps were timed",
            f"{REPAIR} measures the block again",
        ),
        Flag(
            "throttled",
            "the device lowered its clocks, or a processor limit held it up",
            f"by its reasons in the record: cool it, lock its clocks lower, or raise the "
            f"container's processor limit; {REPAIR} then measures the block again",
        ),
        Flag(
            "repeats apart",
            "repeats of one setting, compared with the runs beside them, differ by more than a "
            "quarter",
            f"find out what else the machine does, and {REPAIR} measures the blocks again",
            told_by=AT_WORK,
        ),
        Flag(
            "other clocks",
            "the device ran at another clock than in the other runs of the point",
            f"fix its clocks (nvidia-smi -lgc, a frequency governor), and {REPAIR} measures again",
        ),
        Flag(
            "uneven utilization",
            "repeats of one setting used shares of the device that differ by more than a fifth",
            f"find out what these runs waited for, and {REPAIR} measures the blocks again",
            told_by=AT_WORK,
        ),
        Flag(
            NOT_THE_STEPS,
            "the traced runs were disturbed, changed afterwards, or of other code, data or devices "
            "than the sweep's, or their steps took a quarter longer or shorter, or what was traced "
            "in them half again as long as the step that was timed",
            "end other programs, delete the directory `diagnosis` of the sweep and diagnose again",
            invalidates=("time breakdown",),
            curable=False,
        ),
        Flag(
            "unequal steps",
            "steps are so unequal that their median leaves out what many of them take",
            "end other programs and look at what recurs; in a script of one's own time that as one "
            "step, such as an update with all of its batches",
            curable=False,
        ),
        Flag(
            "too few windows",
            "fewer than ten windows of steps were timed",
            "take more epochs or a larger max_steps, which makes other runs",
            invalidates=("time",),
            curable=False,
        ),
        Flag(
            "seen in training",
            "a tenth of the validation images or more are among those that are trained on",
            "take them out of one of the two",
            invalidates=("accuracy",),
            curable=False,
        ),
        Flag(
            "copies in validation",
            "a tenth of the validation images or more are copies, and counted as if they were not",
            "leave one of each",
            invalidates=("accuracy",),
            curable=False,
        ),
        *(
            Flag(
                unproven(name),
                f"what they rest on ({name}) failed `mptexp doctor --check` on this device",
                "end other programs and check again; if it stays so, trust none of it from here",
                invalidates=what,
                curable=False,
            )
            for name, what in instrument_checks.PROVEN.items()
        ),
        Flag(
            "not trained",
            "validation at chance level shows no policy equal to another",
            "train for more epochs, or with another learning rate",
            invalidates=("accuracy",),
            curable=False,
        ),
    )
}


def of_runs(
    results: pd.DataFrame, records: Sequence[Record], beside: Sequence[Record] = ()
) -> pd.Series:
    """The names of each run's flags, separated by `; `; empty for a run that is valid.

    Args:
        results: one row per run.
        records: the same runs, in any order.
        beside: those of other sweeps that are at hand.
    """
    by_id = {record["run_id"]: record for record in records}
    unlike, parted = incomparable(results, records), apart(records)
    overlapping = at_once([*records, *beside])
    unsteady, copied = steadiness.flags(results), consistency.repeated(records)
    flags = [
        together(
            [
                *["not comparable"] * (run_id in unlike),
                parted.get(run_id, ""),
                *["same measurement"] * (run_id in copied),
                *["sweeps at once"] * (_call(by_id[run_id]) in overlapping),
                *unsteady.get(run_id, ()),
                *of_record(by_id[run_id]),
            ]
        )
        if status == "ok"
        else ""
        for run_id, status in zip(results.run_id, results.status, strict=True)
    ]
    return pd.Series(flags, results.index, dtype=object)


def made_for_accuracy(results: pd.DataFrame, records: Sequence[Record]) -> bool:
    """Whether a sweep shared the machine on purpose: no time of it is valid, and none is shown.

    Each run was beside others of its sweep or at a lowered priority, and some trained for long
    enough that what they learned is known.
    """
    nices = {r["run_id"]: (comparability.of(r) or {}).get("nice") for r in records}
    niced = {run_id for run_id, nice in nices.items() if isinstance(nice, int) and nice > 0}
    ok = results[results.status == "ok"]
    if ok.empty or not all(invalid(flags, "time") for flags in ok["flags"]):
        return False
    parallel = ok["flags"].map(lambda flags: "in parallel" in names_of(flags))
    learned = ok[(ok.ended_by != "target_ci") & (ok.phase == "train")]
    figures = [task.column for task in tasks.TASKS.values() if task.column in learned]
    shared = (parallel | ok.run_id.isin(niced)).all()
    return bool(shared and learned[figures].notna().any(axis=None))


def of_record(record: Record) -> list[str]:
    """The names of the flags that a record shows by itself."""
    marks = {*record.get("marks", []), *interference.marks(record.get("readings") or {})}
    timed = record.get("timing", {}).get("step_s") is not None
    broken = instrument_checks.failed(record.get("instruments", ()))
    failed = {instrument.proves for instrument in broken}
    if not record.get("profile"):  # nothing of an untraced run rests on a trace
        failed -= {"trace"}
    cases = {
        comparability.NOT_RECORDED: comparability.of(record) is None,
        CHANGED: bool(record.get("changed")),
        "in parallel": any(mark.startswith(VOID) for mark in marks),
        "sweeps at once": AT_ONCE in marks,
        **{
            name: any(mark.startswith(openings) for mark in marks)
            for name, openings in interference.OPENINGS.items()
        },
        "unequal steps": any(mark.startswith(UNEQUAL_STEPS) for mark in marks),
        "too few windows": timed and record["timing"].get("step_ci") is None,
        **{unproven(name): name in failed for name in instrument_checks.PROVEN},
        "seen in training": _of_a_share(marks, SEEN),
        "copies in validation": _of_a_share(marks, REPEATED),
        "not trained": _at_chance(record),
    }
    return [name for name, holds in cases.items() if holds]


def is_repeat(record: Record, now: Record) -> bool:
    """Whether a run that was measured again is a valid time of what it is now."""
    sides = [comparability.of(one) for one in (record, now)]
    if record.get("status") != "ok" or None in sides:
        return False
    alike = len({comparability.shared(side) for side in sides if side}) == 1
    return alike and not invalid(SEPARATOR.join(of_record(record)), "time")


def _of_a_share(marks: Iterable[str], end: str) -> bool:
    """Whether a mark that ends so says it of a share of the validation images that matters."""
    known = [re.match(r"(\d+) of (\d+) ", mark) for mark in marks if mark.endswith(end)]
    return any(int(m[1]) >= SHARE_MATTERS * int(m[2]) for m in known if m)


def _at_chance(record: Record) -> bool:
    """Whether a training's validation is what guessing gives, see the task's `guess`.

    Not one that ended once its step time was known: of it no accuracy is compared or shown.
    """
    if (record.get("timing") or {}).get("ended_by") == "target_ci":
        return False
    trained = (record.get("quantized") or {}).get("before", {})  # of a model quantized afterwards
    epoch = (record.get("history") or [trained])[-1]
    loss, guessed = epoch.get("val_loss"), record.get("in_force", {}).get("chance_loss")
    if loss is not None and guessed is not None:
        return bool(loss > guessed - LEAST_NATS)
    last = epoch.get("val_accuracy")
    chance = record.get("in_force", {}).get("chance_accuracy")
    images = record.get("in_force", {}).get("validation_images")
    if last is None or chance is None or not images:
        return False
    return bool(last <= chance + SIGMAS * math.sqrt(chance * (1 - chance) / images))


def incomparable(
    results: pd.DataFrame, records: Sequence[Record]
) -> dict[str, list[comparability.Difference]]:
    """The runs that differ from the others of their point in more than the policy.

    Returns:
        By run id, what each differs in; `left` is the run's value, `right` that of the others.
    """
    known = {r["run_id"]: (comparability.of(r), r) for r in records if r.get("status") == "ok"}
    has_identity = [known.get(run_id, (None,))[0] is not None for run_id in results.run_id]
    rows = results[np.array(has_identity, bool)]
    unlike: dict[str, list[comparability.Difference]] = {}
    for _, group in rows.groupby(POINT, sort=False):
        runs = sorted(group.run_id, key=lambda run_id: str(known[run_id][1].get("ended_at", "")))
        identities = [known[run_id][0] for run_id in runs]
        alike = comparability.largest_alike(identities)
        for place, run_id in enumerate(runs):
            if place not in alike:
                found = comparability.differences(identities[place], identities[alike[-1]])
                unlike[run_id] = [d for d in found if d.name not in comparability.WITHIN_BLOCK]
        kept = group[group.run_id.isin([runs[place] for place in alike])]
        for _, block in kept.groupby("block"):
            unlike |= _started_otherwise([known[run_id][1] for run_id in block.run_id])
    return unlike


def _started_otherwise(records: Sequence[Record]) -> dict[str, list[comparability.Difference]]:
    """The runs of a block that differ from the first in weights, order or validation images.

    Weights in 16 bits are those of float32 rounded, so only float32 weights are compared.
    """
    unlike = {}
    for name in ("data_order", "initial_weights", "validation"):
        alike = [r for r in records if name != "initial_weights" or _holds_float32(r)]
        known = [record["identity"] | {"validation": _validation(record)} for record in alike]
        values = [str(own.get(name, "")) for own in known]
        for record, value in zip(alike, values, strict=True):
            if value != values[0]:
                unlike[record["run_id"]] = [comparability.Difference(name, value, values[0])]
    return unlike


def _validation(record: Record) -> str:
    """How many examples were validated with, and what guessing gets right of them."""
    known = record.get("in_force") or {}
    example = tasks.of(record["parameters"]["dataset"]).example
    named = {"validation_images": f"{{:,}} {example}s", "chance_accuracy": "{:.4%} by guessing"}
    return ", ".join(t.format(known[n]) for n, t in named.items() if known.get(n) is not None)


def _holds_float32(record: Record) -> bool:
    """Whether the weights are as they were drawn, not rounded to fewer bits."""
    kept = record["parameters"].get("weight_format", "policy")
    in_float32 = record.get("in_force", {}).get("variable_dtype") == "float32"
    return in_float32 and kept in ("policy", "float32")


class Part(NamedTuple):
    """What is equal of runs that were made next to one another.

    Attributes:
        invocation: names the call of `mptexp run`.
        boot: names the machine.
        pauses: how many lie before them by the clock that counts from the machine's start, or since
            another run of the call.
        dated: how many the time of day alone shows.
    """

    invocation: str
    boot: str
    pauses: int = 0
    dated: int = 0


def parts(records: Sequence[Record]) -> dict[str, Part]:
    """Which runs that went well were made next to one another, by id: those of an equal value.

    Of one call of `mptexp run` on one machine, between whose runs, of all that a ratio may compare
    within a block, it neither slept nor did something else for long.
    """
    blocks: dict[Hashable, dict[tuple[str, str], list[Record]]] = {}
    for record, device, run in _ended_well(records):
        calls = blocks.setdefault((device, run_order.comparison(run)), {})
        calls.setdefault(_process_of(record), []).append(record)
    return {
        record["run_id"]: Part(*process, pauses, dated)
        for calls in blocks.values()
        for process, own in calls.items()
        for record, pauses, dated in _paused(own)
    }


def apart(records: Sequence[Record]) -> dict[str, str]:
    """The runs that were not made next to the others of their block, each with the flag for it.

    Another call of `mptexp run` measured them, or another machine, or a pause lies between. Of the
    policies that a ratio may compare within a block, the larger part stays; of equal ones, the one
    that ended last. Ratios between other settings, such as input modes, look for the blocks that
    one call measured whole, see `in_one_call`.
    """
    of, points = parts(records), dict[Hashable, dict[Part, list[Record]]]()
    for record, device, run in _ended_well(records):
        by_part = points.setdefault((device, run_order.point(run)), {})
        by_part.setdefault(of[record["run_id"]], []).append(record)
    parted = dict[str, str]()
    for by_part in points.values():
        ranked = sorted(by_part.items(), key=lambda one: (len(one[1]), max(map(_said_end, one[1]))))
        *others, (kept, _) = ranked
        for one, own in others:
            parted |= {record["run_id"]: _between(one, kept) for record in own}
    return parted


def _between(one: Part, other: Part) -> str:
    """The flag of runs of two parts: the time of day proves no pause, as it may be set."""
    if one == other:
        return ""
    return CLOCK_SET if one[:-1] == other[:-1] else "measured apart"


def _ended_well(records: Sequence[Record]) -> Iterator[tuple[Record, str, Run]]:
    """The records of runs that ended well, each with its device and its parameters as a run."""
    for record, device in zip(records, devices(records), strict=True):
        if record["status"] == "ok":
            yield record, device, Run.model_construct(**record["parameters"])


def _said_end(record: Record) -> str:
    return str(record.get("ended_at", ""))


def _paused(records: Sequence[Record]) -> Iterator[tuple[Record, int, int]]:
    """The runs of one call in order, each with how many pauses lie before it.

    Those that the clock shows which counts from the machine's start, which nobody sets; and those
    that the time of day alone shows.
    """
    counted = all(record.get("boot") and record.get("measured_at") for record in records)
    pauses = dated = 0
    before: Record | None = None
    for record in sorted(records, key=_measured_until if counted else _said_end):
        if before and counted and _pause_s(before, record, _measured_until) > PAUSE_S:
            pauses += 1
        elif before and _pause_s(before, record, _moment) > PAUSE_S:
            dated += 1
        yield record, pauses, dated
        before = record


def _pause_s(before: Record, record: Record, ended: Callable[[Record], float | None]) -> float:
    """Seconds from a run's end to the start of the next by a clock; 0 where one is not known."""
    ends = ended(before), ended(record)
    return 0.0 if None in ends else ends[1] - (record.get("wall_s") or 0.0) - ends[0]


def _measured_until(record: Record) -> float:
    """When a run's last step was timed, by the clock that counts from the machine's start."""
    return float(record["measured_at"][1])


def at_once(records: Iterable[Record]) -> set[tuple[str, str]]:
    """The runs that were measured while another call of `mptexp run` measured on their device.

    By what names the call, and the run's id. Of GPUs only those whose records name them: a machine
    may have several of one name.
    """
    places: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        known = record.get("environment") or {}
        for device in record.get("gpus") or ["cpu"] * (known.get("kind") == "cpu"):
            if record.get("boot") and record.get("measured_at"):
                places.setdefault((record["boot"], device), []).append(record)
    met: set[tuple[str, str]] = set()
    for runs in places.values():
        open_ones: list[Record] = []
        for run in sorted(runs, key=lambda run: run["measured_at"]):
            open_ones = [one for one in open_ones if one["measured_at"][1] > run["measured_at"][0]]
            others = [one for one in open_ones if _call(one)[0] != _call(run)[0]]
            met |= {_call(one) for one in [*others, *([run] if others else [])]}
            open_ones.append(run)
    return met


def _call(record: Record) -> tuple[str, str]:
    return str(record.get("invocation") or record["run_id"]), record["run_id"]


def _moment(record: Record) -> float | None:
    """When a run ended, in seconds; None where its record does not say, or names no such day."""
    try:
        return datetime.fromisoformat(record.get("ended_at", "")).timestamp()
    except ValueError:
        return None


def timed_together(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs whose times may form a ratio with others of their point and block."""
    return without(without(comparable(runs), "measured apart"), CLOCK_SET)


def in_one_call(
    left: Mapping[int, Record],
    right: Mapping[int, Record],
    made: Mapping[str, Part] | None = None,
) -> tuple[list[int], str]:
    """The blocks in which one call of `mptexp run` measured both sides, as far as records say.

    Where there is none, all blocks that both sides have, and the flag that takes their claim.

    Args:
        left: records of one side by block.
        right: of the other.
        made: see `parts`, of sides that are measured next to one another: then without a pause.
    """

    def part(record: Record) -> Part:
        return (made or {}).get(record["run_id"]) or Part(*_process_of(record))

    flags = {b: _between(part(left[b]), part(right[b])) for b in left if b in right}
    near = [block for block, flag in flags.items() if not flag]
    return near or [*flags], "" if near else together(flags.values())


def _process_of(record: Record) -> tuple[str, str]:
    return record.get("invocation") or "", record.get("boot") or ""


def across(
    left: Mapping[int, Record], right: Mapping[int, Record], axes: Iterable[str]
) -> list[comparability.Difference]:
    """What the runs of two sides differ in beyond the axes of their comparison, block by block.

    Runs without an identity differ in nothing that is known; they have a flag of their own.
    Weights in fewer bits are those of float32 rounded, so only float32 weights are compared.

    Args:
        left: records of one side by block.
        right: of the other.
        axes: the parameters that the comparison is about, see `comparability.FOLLOWS`.
    """
    axes, found = tuple(axes), dict[str, comparability.Difference]()
    for block in left.keys() & right.keys():
        pair = left[block], right[block]
        sides = [comparability.of(record) for record in pair]
        if None in sides:
            continue
        for difference in comparability.differences(*sides, axes):
            if difference.name != "initial_weights" or all(map(_holds_float32, pair)):
                found.setdefault(difference.name, difference)
    return list(found.values())


def comparable(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that may form a ratio or a difference with others of their point."""
    return without(runs, "not comparable")


def without(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """The runs that do not have a flag."""
    return runs[np.array([name not in names_of(flags) for flags in runs["flags"]], bool)]


def together(flags: Iterable[str]) -> str:
    """The flags of several runs as those of a comparison of them, in the order of FLAGS."""
    names = {name for text in flags for name in names_of(text)}
    return SEPARATOR.join(name for name in FLAGS if name in names)


def names_of(flags: str) -> list[str]:
    """The names in a cell of flags."""
    return [name for name in str(flags or "").split(SEPARATOR) if name in FLAGS]


def curable(flags: str) -> bool:
    """Whether a cell of flags has one that another measurement can cure."""
    return any(FLAGS[name].curable for name in names_of(flags))


def but(flags: str, name: str) -> str:
    """A cell of flags without one of them."""
    return SEPARATOR.join(known for known in names_of(flags) if known != name)


def invalid(flags: str, what: str) -> list[Flag]:
    """Those of a cell's flags that invalidate time, memory or accuracy, or what is of them."""
    of = {what, COMPUTED_OF.get(what, what)}
    return [FLAGS[name] for name in names_of(flags) if of.intersection(FLAGS[name].invalidates)]


def sound(runs: pd.DataFrame, what: str) -> pd.DataFrame:
    """The runs whose time, memory or accuracy no flag invalidates."""
    return runs[np.array([not invalid(flags, what) for flags in runs["flags"]], bool)]
