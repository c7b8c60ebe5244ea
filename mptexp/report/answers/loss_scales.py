"""What is said of the loss scales that a training bears: sentences and a table of text."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy, contrast, loss_scale
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import caveats, repeats_needed
from mptexp.report.text import column_formats, task_words, wording
from mptexp.report.text.column_formats import BLANK
from mptexp.report.text.parameter_values import in_words
from mptexp.report.text.task_words import Measure

MIXED = "mixed_float16"
NAMED = 4  # scales, each with its number; of more the range is said
RETRY = "find settings with which float32 trains, such as a lower learning rate."
FAILS = ("stall", "diverge")  # outcomes
HELPLESS = "none of the loss scales that were measured makes it train as float32 does"
STEP = ", in step "  # before its number, in what a run that diverged says
BASE_LOST = "baseline diverged"  # then nothing is said of any scale
TRAINS = "trains as float32 does"
# What a policy does with the scales of an outcome.
WITH = {
    "stall": "falls behind float32 with",
    "diverge": "diverges with",
    "at times": "diverges in some runs with",
}


def by_point(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each point, behind what tells it apart from the others: empty of a single one."""
    groups = list(table.groupby("point", sort=False)) if len(table) else []
    points = [json.loads(point) for point, _ in groups]
    names = dict.fromkeys(name for point in points for name in point)
    varying = [n for n in names if len({str(point.get(n)) for point in points}) > 1]
    titles = [", ".join(in_words(n, point.get(n)) for n in varying) for point in points]
    return [(title, rows) for title, (_, rows) in zip(titles, groups, strict=True)]


def where(title: str) -> str:
    """`with model mlp: `, `without XLA: `: what is said of a point opens with it."""
    opens = title.startswith(("with ", "without "))
    return f"{'' if opens else 'with '}{title}: " if title else ""


def sentences(rows: pd.DataFrame, title: str = "") -> list[str]:
    """What each policy bears, a sentence per policy; rows and title as `by_point` gives them."""
    head, made = wording.capitalized(where(wording.verbatim(title))), []
    if base_untrained(rows) or lacks_float32(rows):
        why = "float32 learned nothing" if base_untrained(rows) else "No float32 beside it"
        said = [f"**{own.policy.iloc[0]}** {levels}" for own in _policies(rows)
                if (levels := _levels(own))]  # fmt: skip
        return [f"{head}{why}: no scale is compared with it. {'; '.join(said)}."] if said else []
    for own in _policies(rows):
        dynamic, parts = _dynamic(own), []
        if good := loss_scale.ranges(own)["train"]:
            trains = _trains(own[own.loss_scale != "dynamic"])
            parts.append(f"{trains} {_with_scales(good, own)}")
            if dynamic.startswith(f"{trains} under"):
                parts[0] += f" and {dynamic.removeprefix(trains).strip()}"
                dynamic = ""
        parts += filter(None, [*_open(own), *_fails(own), dynamic])
        if parts:
            said = f"{head}**{own.policy.iloc[0]}** {wording.listed(parts)}."
            made.append(said + " Without a loss scale it fares as with 1." * _fares_as_with_1(own))
    return made


def base_untrained(rows: pd.DataFrame) -> bool:
    """Whether float32 itself is at chance, so that no scale is compared with anything."""
    base = rows[rows.policy == "float32"]
    return bool(len(base) and (base.verdict == "not trained").all())


def _levels(own: pd.DataFrame) -> str:
    """`ends at 9.9 % without a loss scale, 90.0 % with 1024`: means, of few scales each."""
    known = own.dropna(subset="figure")
    if known.empty or len(known) > 2 * NAMED:
        return ""
    (measure,) = task_words.met(known)
    tried = _numbers(own)
    each = [
        f"{measure.level(known.figure[i])} {_with_all(known.loc[[i]], tried)}" for i in known.index
    ]
    lost = own[own.diverged == own.runs]
    failed = f"; diverges {_with_all(lost, tried)}" * bool(len(lost))
    return f"ends in the mean at {wording.listed(each)}{failed}"


def _fares_as_with_1(own: pd.DataFrame) -> bool:
    """Whether no scale and a scale of 1, which sentences name alike, trained alike to the bit."""
    losses = own.set_index("loss_scale").losses
    return {"none", 1.0} <= {*losses.index} and losses["none"] == losses[1.0] != {}


def trained_alike(rows: pd.DataFrame) -> str:
    """Which scales trained alike to the last bit: each of them is no evidence of its own."""
    said = [
        f"**{policy}** {_with_all(same, _numbers(own))}{_and_none(same)}"
        for policy, own in rows.groupby("policy", sort=False)
        for same in loss_scale.alike(own)
    ]
    if not said:
        return ""
    return (
        "Bit for bit the same losses in every epoch of the blocks in which none diverged: "
        f"{'; '.join(said)}. A power of two changes no rounding, unless a gradient leaves the "
        "type's range: these scales are one training, not several."
    )


def _numbers(rows: pd.DataFrame) -> list[float]:
    """The fixed scales of some rows, compared or not, in order."""
    return sorted({loss_scale.number(scale) for scale in rows.loss_scale if scale != "dynamic"})


def _and_none(rows: pd.DataFrame) -> str:
    """That one of the rows is without a loss scale, which numbers name like a scale of 1."""
    others = set(rows.loss_scale) - {"none", "dynamic"}
    told = _is_bare(rows) or not others
    return ", and without one" * bool((rows.loss_scale == "none").any() and not told)


def _is_bare(rows: pd.DataFrame) -> bool:
    """Whether `_with_all` says of rows that some are without a loss scale: few, none with 1."""
    fixed = set(rows.loss_scale) - {"dynamic"}
    return "none" in fixed and 1.0 not in fixed and len(_numbers(rows)) <= NAMED


def _trains(own: pd.DataFrame) -> str:
    """What the rows do that train: as float32 does, or better, by their intervals."""
    better = {row.verdict == "higher" for row in _ending(own, "train").itertuples()}
    if better == {True}:
        return "trains better than float32"
    return TRAINS + " or better" * (True in better)


def of_training(tables: Tables, asked: Mapping[str, Any]) -> list[str]:
    """As `sentences`, of mixed_float16 in one training; empty where that shows nothing.

    Args:
        asked: the parameters of one of its runs.
    """
    table = loss_scale.table(tables)
    if table.empty or caveats.doubts(tables, "accuracy"):
        return []
    return sentences(table[(table.point == accuracy.shared(asked)) & (table.policy == MIXED)])


def _fails(own: pd.DataFrame, named: bool = False) -> list[str]:
    """With which scales a policy falls behind, and with which it diverges, always or at times.

    The first says that these are loss scales, where they are to be `named` so.
    """
    unscaled = set(own.loss_scale) >= {"none"} and 1.0 not in set(own.loss_scale)
    made = []
    for does, failed in _failing(own):
        bare = unscaled and 1.0 in failed
        both = 1.0 in failed and _fails_alike(own)
        each = ["without a loss scale"] * both
        each += _parts(failed, _tried(own), bare, named and not made)
        made.append(f"{does.removesuffix('with')}{wording.listed(each)}{_behind(own, does)}")
    return made


def _fails_alike(own: pd.DataFrame) -> bool:
    """Whether no scale and a scale of 1 were both tried, and end alike."""
    ends = {row.loss_scale: loss_scale.outcome(row) for row in own.itertuples()}
    return {"none", 1.0} <= ends.keys() and ends["none"] == ends[1.0]


def _behind(own: pd.DataFrame, does: str) -> str:
    """` (−67.7 percentage points)`: how far the runs fall behind, with which scale ever."""
    rows = _ending(own[own.loss_scale != "dynamic"], "stall")
    if does != WITH["stall"] or rows.difference.isna().any():
        return ""
    (measure,) = task_words.met(rows)
    return f" ({measure.between(rows.difference)})"


def _failing(own: pd.DataFrame) -> list[tuple[str, list[float]]]:
    """What a policy does with scales with which it fails, in the order of WITH, and these."""
    scales = loss_scale.ranges(own)
    diverged = own[(own.verdict == "diverged") & (own.loss_scale != "dynamic")]
    always = {loss_scale.number(s) for s in diverged.loss_scale[diverged.diverged == diverged.runs]}
    failed = {
        "stall": list(scales["stall"]),
        "diverge": [scale for scale in scales["diverge"] if scale in always],
        "at times": [scale for scale in scales["diverge"] if scale not in always],
    }
    counts = {loss_scale.number(r.loss_scale): (r.diverged, r.runs) for r in diverged.itertuples()}
    words = dict(WITH)
    if len(failed["at times"]) == 1:
        lost, runs = counts[failed["at times"][0]]
        words["at times"] = words["at times"].replace("some", f"{lost} of {runs}")
    return [(words[name], failed[name]) for name in WITH if failed[name]]


def _open(own: pd.DataFrame) -> list[str]:
    """What is not decided with which scales: how far off at most, or by how much in the mean."""
    rows, tried = _undecided(own), _tried(own)
    near = accuracy.looks_equal(rows)
    few = ~near & (rows.verdict == "too few images")
    says = {_within: rows[near], _few_images: rows[few], _not_shown: rows[~near & ~few]}
    return [say(found, tried) for say, found in says.items() if len(found)]


def _within(rows: pd.DataFrame, tried: Sequence[float]) -> str:
    (measure,) = task_words.met(rows)
    near = measure.near(rows, "float32's")
    return f"is {near} {_with_all(rows, tried)}"


def _few_images(rows: pd.DataFrame, tried: Sequence[float]) -> str:
    """Of some scales images alone are lacking, of others more repeats."""
    (measure,) = task_words.met(rows)
    by = measure.between(rows.difference)
    why = f"({by}: too few validation {measure.task.example}s)"
    return f"is {wording.UNDECIDED} {_with_all(rows, tried)} {why}"


def _not_shown(rows: pd.DataFrame, tried: Sequence[float]) -> str:
    """By how much the means differ of what an interval does not show, of few with which scale."""
    (measure,) = task_words.met(rows)
    each = [rows.loc[[i]] for i in rows.index] if len(rows) <= NAMED else [rows]
    unit, (short, _, what) = f" {measure.unit}", measure.unit.partition(" of ")
    base = "float32" + f"'s {what}" * bool(what)
    first, *more = [f"{measure.between(r.difference)} {_with_all(r, tried)}" for r in each]
    first = first.replace(unit, f" {short} from {base}", 1)
    ends = wording.listed([first, *(other.replace(unit, "", 1) for other in more)])
    mean = "in the mean " * bool((rows.blocks > 1).any())
    return f"is {wording.UNDECIDED} ({wording.repeats(rows.blocks)}), {mean}{ends}"


def _undecided(own: pd.DataFrame) -> pd.DataFrame:
    """The rows that were compared and show neither that a scale trains nor that it does not."""
    known = [loss_scale.outcome(row) == "" and row.blocks > 0 for row in own.itertuples()]
    return own[np.array(known, bool) & (own.verdict != BASE_LOST)]


def by_means(rows: pd.DataFrame, margin: float) -> pd.DataFrame:
    """The rows with verdicts by their means alone, for what is provisional."""
    near = (rows.difference >= -margin).map({True: "equal", False: "lower"})
    kept = rows.verdict.isin(["diverged", BASE_LOST]) | rows.difference.isna()
    return rows.assign(verdict=rows.verdict.where(kept, near))


def title(rows: pd.DataFrame) -> str:
    """Of the policy that bears least and still trains, with which scales it does.

    Where none is shown to, what fails.

    One that trains with all that were tried, which may be a single one, decides nothing beside one
    that does not.
    """
    if without_baseline(rows):
        too = " too" * bool((rows.diverged[rows.policy != "float32"] > 0).any())
        return f"float32 diverges{too}: nothing is shown of loss scales"
    if base_untrained(rows):
        return "float32 learned nothing: nothing is shown of loss scales"
    trains = [(own, good) for own in _policies(rows) if len(good := _ending(own, "train"))]
    if not trains:
        return _by_failure(rows) or _not_one(rows)
    own, good = min(trains, key=lambda one: (len(one[1]) == len(one[0]), len(one[1])))
    policy, lost = own.policy.iloc[0], _hopeless(rows)
    others = f"; no measured scale makes {wording.listed(lost)} do so" * bool(lost)
    if len(good) == len(own) > 1:
        return f"{policy} {_trains(own)} with every loss scale that was measured{others}"
    unnamed = set(good.loss_scale) <= {"none", "dynamic"}  # no number that is said to be a scale
    fails = [*_fails(own, named=unnamed), *_dynamic_fails(own)]
    trained = f"{policy} {_trains(own)} {_with_all(good, _tried(own), named=True)}"
    return (f"{trained}, and {wording.listed(fails)}" if fails else trained) + others


def _not_one(rows: pd.DataFrame) -> str:
    """That nothing is shown of any scale, where no row can show anything for want of repeats."""
    if rows.blocks.max() < contrast.FEWEST:
        return "Nothing is shown of loss scales: fewer than three repeats"
    return "No loss scale is shown to train as float32 does"


def _hopeless(rows: pd.DataFrame) -> list[str]:
    """The policies that are shown to fail with several loss scales, and with every one of them."""
    policies = _policies(rows)
    return [o.policy.iloc[0] for o in policies if len(_ending(o, *FAILS)) == len(o) > 1]


def _policies(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each policy beside float32."""
    return [own for _, own in rows[rows.policy != "float32"].groupby("policy", sort=False)]


def _ending(own: pd.DataFrame, *outcomes: str) -> pd.DataFrame:
    """The rows that end so, the dynamic scale's too."""
    return own[np.array([loss_scale.outcome(row) in outcomes for row in own.itertuples()], bool)]


def _tried(own: pd.DataFrame) -> list[float]:
    """The fixed scales of a policy that were compared with float32 or diverged."""
    return sorted({scale for among in loss_scale.ranges(own).values() for scale in among})


def without_baseline(rows: pd.DataFrame) -> bool:
    """Whether float32 itself diverges, so that no scale can be blamed."""
    return bool((rows.verdict == BASE_LOST).any())


def lacks_float32(rows: pd.DataFrame) -> bool:
    """Whether no run of float32 stands beside any that did not diverge."""
    return bool(rows.verdict.isin([loss_scale.NO_BASELINE, "diverged"]).all())


def _by_failure(rows: pd.DataFrame) -> str:
    """Of the policy that fails with the fewest scales: with which, and what is open of the others.

    By its mean alone no scale is ranked: a title is read without its intervals.
    """
    failing = [(own, bad) for own in _policies(rows) if len(bad := _ending(own, *FAILS))]
    if not failing:
        return ""
    own, _ = min(failing, key=lambda one: len(one[1]))
    fails, open_ = [*_fails(own, named=True), *_dynamic_fails(own)], _undecided(own)
    said = f"{own.policy.iloc[0]} {wording.listed(fails)}"
    if open_.empty:
        return said
    (measure,) = task_words.met(open_)
    near, tried = accuracy.looks_equal(open_), _tried(own)
    if near.any() and not near.all():
        alike = f"{measure.near(open_[near])}, {_with_all(open_[near], tried)}"
        return f"{said}; {alike}; {wording.UNDECIDED} {_with_all(open_[~near], tried)}"
    others = "other loss scale is" if len(open_) == 1 else "other loss scales are"
    return f"{said}; the {others} {measure.open(open_)}"


def advice(rows: pd.DataFrame, margin: float) -> str:
    """Which policy to take with which scale; what would show it, where nothing does so far."""
    if without_baseline(rows) or base_untrained(rows):
        return RETRY
    if lacks_float32(rows):
        return "measure float32 in the same blocks, without which nothing is shown of loss scales."
    parts = []
    for own in _policies(rows):
        policy, good = own.policy.iloc[0], _ending(own, "train")
        if len(good) == len(own) > 1:
            parts.append(f"**{policy}** with any loss scale that was measured")
        elif (good.loss_scale == "dynamic").any():
            parts.append(f"**{policy}** with the dynamic loss scale")
        elif len(good):
            parts.append(f"**{policy}** {_with_all(good, _tried(own), named=True)}")
    if parts:
        lost = wording.listed([f"**{policy}**" for policy in _hopeless(rows)])
        avoid = f"; avoid {lost}: {HELPLESS}" * bool(lost)
        return f"take {' or '.join(parts)}{avoid}."
    undecided = _undecided(rows[rows.policy != "float32"])
    few = undecided.verdict == "too few images"
    if not few.any():
        return _avoided(rows, margin)
    also = " and in more repeats" * bool((~few).any())
    more = f"validate with more images{also} to rule out a small loss of accuracy."
    dynamic = _usable_dynamic(undecided, margin)
    if dynamic.empty:
        return more
    (measure,) = task_words.met(rows)
    by = measure.between(dynamic.difference)
    return (
        f"with **mixed_float16** keep the dynamic loss scale, Keras's default ({by} here); {more}"
    )


def _usable_dynamic(rows: pd.DataFrame, margin: float) -> pd.DataFrame:
    """The dynamic scale of mixed_float16, where its mean is not worse than the margin allows."""
    dynamic = (rows.policy == MIXED) & (rows.loss_scale == "dynamic")
    known = rows.blocks >= contrast.FEWEST  # of fewer that none diverged says little
    usable = ~rows.verdict.isin(["diverged", "lower"]) & (rows.difference >= -margin)
    return rows[dynamic & known & usable]


def _avoided(rows: pd.DataFrame, margin: float) -> str:
    """What is shown to fail, where no scale is shown to train as float32 does."""
    parts = []
    for own in _policies(rows):
        bad, policy = _ending(own, *FAILS), own.policy.iloc[0]
        if len(bad) == len(own):
            parts.append(f"avoid **{policy}**: {HELPLESS}")
        elif len(bad):
            parts.append(f"avoid **{policy}** {_with_all(bad, _tried(own), named=True)}")
            if len(_usable_dynamic(own, margin)):
                parts.append("keep its dynamic scale, Keras's default, with which no run diverged")
    if len(open_ := _undecided(rows)):
        parts.append(repeats_needed.of_accuracies(open_, task_words.met(open_)[0]))
    return f"{'; '.join(parts)}." if parts else ""


def _with_scales(good: Sequence[float], own: pd.DataFrame) -> str:
    """With which scales a policy trains; without one, where 1 was not asked for."""
    bare = 1.0 in good and 1.0 not in set(own.loss_scale)
    return wording.listed(_parts(good, _tried(own), bare, named=True))


def _parts(scales: Sequence[float], tried: Sequence[float], bare: bool, named: bool) -> list[str]:
    """`without a loss scale`, `with loss scales of 8 and 1024`: scales of which 1 may be none.

    Args:
        bare: whether it is; named: whether the words say that these are loss scales.
    """
    left = [scale for scale in scales if not (bare and scale == 1.0)]
    what = f"{_loss_scales(left)} of " * named
    numbers = [f"with {what}{_scales(left, tried)}"] * bool(left)
    return ["without a loss scale"] * bare + numbers


def _loss_scales(scales: Sequence[float]) -> str:
    return "a loss scale" if len(scales) == 1 else "loss scales"


def _with_all(rows: pd.DataFrame, tried: Sequence[float], named: bool = False) -> str:
    """With which scales the rows are, the dynamic one too.

    Args:
        named: whether the words say that these are loss scales.
    """
    numbers = _numbers(rows)
    dynamic = ["the dynamic scale"] * bool((rows.loss_scale == "dynamic").any())
    fixed = set(rows.loss_scale) - {"dynamic"}
    if numbers == [1.0] and (fixed == {"none"} or (tried == [1.0] and not dynamic)):
        return wording.listed(["without a loss scale", *(f"with {text}" for text in dynamic)])
    bare = _is_bare(rows)
    left = [scale for scale in numbers if not (bare and scale == 1.0)]
    what = f"{_loss_scales(left)} of " * named
    scaled = wording.listed([what + _scales(left, tried)] * bool(left) + dynamic)
    return wording.listed(["without a loss scale"] * bare + [f"with {scaled}"] * bool(scaled))


def _scales(scales: Sequence[float], tried: Sequence[float]) -> str:
    """Scales in words; those between which all that were tried behave alike, by their ends."""
    spans: list[list[float]] = []
    for scale in scales:
        follows = spans and tried.index(scale) == tried.index(spans[-1][-1]) + 1
        spans[-1].append(scale) if follows else spans.append([scale])
    words = [
        [f"{wording.power(s[0])} to {wording.power(s[-1])}"]
        if len(s) > 2
        else [wording.power(scale) for scale in s]
        for s in spans
    ]
    return wording.listed([word for span in words for word in span])


def fails(rows: pd.DataFrame) -> bool:
    """Whether any scale of a 16-bit policy is shown to fail."""
    return not _ending(rows[rows.policy != "float32"], *FAILS).empty


def _dynamic_fails(own: pd.DataFrame) -> list[str]:
    """As `_dynamic`, where the dynamic scale fails."""
    text = _dynamic(own) if fails(own[own.loss_scale == "dynamic"]) else ""
    return [text] if text else []


def _dynamic(own: pd.DataFrame) -> str:
    """How a policy trains under the dynamic scale; empty where that was not compared."""
    row = next(own[own.loss_scale == "dynamic"].itertuples(), None)
    if row is not None and row.verdict == "diverged":
        some = f" in {row.diverged} of {row.runs} runs" * (row.diverged < row.runs)
        return f"diverges under the dynamic scale{some}"
    if row is None or not row.blocks:
        return ""
    dynamic = own[own.loss_scale == "dynamic"]
    how = {"train": _trains(dynamic), "stall": "falls behind"}.get(loss_scale.outcome(row))
    if how is None:
        return ""
    known = not pd.isna(row.skipped)
    skipped = f" ({row.skipped:g} skipped step{'s' * (row.skipped != 1)}, median)" if known else ""
    stalls = loss_scale.outcome(row) == "stall"
    by = _behind(dynamic.assign(loss_scale=""), WITH["stall"]) if stalls else ""
    return f"{how} under the dynamic scale{by}{skipped}"


def text(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `loss_scale.table` of one point as text."""
    records = list(rows.itertuples())
    (measure,) = task_words.met(rows)
    return pd.DataFrame(
        {
            "Policy": rows.policy,
            "Loss scale": rows.loss_scale.map(wording.power),
            "Runs": rows.runs.astype(str),
            measure.heading: [
                measure.mean(row.figure, row.figure_low, row.figure_high, row.runs) + _ended(row)
                for row in records
            ],
            f"{wording.capitalized(measure.unit)} from float32": [
                measure.difference(row.difference, row.low, row.high, row.blocks)
                if row.blocks
                else BLANK
                for row in records
            ],
            "Finding": [_finding(row, measure) for row in records],
            **column_formats.shown(rows, "skipped"),
        }
    )


def _ended(row: Any) -> str:
    """` (n = 4)`: of how many runs a figure is, where others diverged."""
    ended = row.runs - row.diverged
    return f" (n = {ended})" * bool(row.diverged and ended)


def _finding(row: Any, measure: Measure) -> str:
    if row.verdict == "diverged":
        return f"diverged, {row.diverged} of {row.runs}: {_not_finite(row.errors)}"
    return measure.finding(row._asdict()) or BLANK


def _with_step(text: str) -> tuple[str, int]:
    """What a run says that diverged, without its step, and that; 0 where it names none."""
    what, _, step = text.rpartition(STEP)
    return (what, int(step)) if step.isdecimal() and what else (text, 0)


def _not_finite(errors: Sequence[str]) -> str:
    """What diverged first in most of some runs, and in which steps of them."""
    told = [_with_step(error.partition("; ")[2] or error) for error in errors]
    what, runs = Counter(text for text, _ in told).most_common(1)[0]
    steps = [step for text, step in told if text == what and step]
    of = f" (in {runs} of the {len(told)})" * (runs < len(told))
    if not steps:
        return f"{what}{of}"
    first, last = min(steps), max(steps)
    when = f"{STEP}{first}" if first == last else f", in steps {first} to {last}"
    return f"{what}{when}{of}"
