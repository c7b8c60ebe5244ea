"""The report's section on quantized inference: what integers for weights cost and save."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import (
    accuracy,
    contrast,
    points,
    simultaneous_intervals,
    validation_variance,
    validity,
)
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers.comparisons import Section
from mptexp.report.text import task_words, wording
from mptexp.report.text.column_formats import BLANK
from mptexp.spec import tasks

TITLE = "Quantized inference"
PARTS = ("before", "after")
NAMED = 3  # policies that a sentence lists
KEPT = ("equal", "higher", "")  # verdicts that don't speak against a policy; of what isn't known
INVALID = ("not valid", "not trained")  # verdicts on what shows nothing of the quantization
UNRECORDED = "images not recorded"  # the verdict where nothing is known of single examples
NOTE = (
    "Each run of these trained its model in float32, validated it, quantized it and validated it "
    "again: the difference is that of the same weights, quantized minus trained; its interval is "
    "over repeats and examples, and holds for all rows together. Where runs do not list how they "
    "predicted each example, it is as wide as if the two validations had examples of their own; "
    "where nothing is known of the examples, there is none, and nothing is claimed. Bytes are "
    "those of all weights as they are stored, embeddings and normalizations too, which stay "
    "float32. Times stand in the headline table."
)


@dataclass(frozen=True)
class Quantized:
    """The runs of one policy at one point.

    Attributes:
        policy: of the quantized model; point: the rest in words; dataset: what was trained on.
        key: the policy with the values of POINT.
        before: loss and accuracy of each run's trained model, as its record has them.
        after: those of the same weights, quantized.
        lost: after minus before, formed within each run.
        bytes_before: of all weights, the mean over runs; bytes_after: likewise, quantized.
        flags: what is not valid of the runs, see `validity`.
        images: what the examples add to the variance of `lost`.
        margin: largest difference that counts as equal, a fraction.
        verdict: what may be said of `lost`, as of `accuracy.differences`; empty of what has none.
    """

    policy: str
    point: str
    dataset: str
    key: tuple[Any, ...]
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    lost: Contrast
    bytes_before: float
    bytes_after: float
    flags: str
    images: validation_variance.Spread
    margin: float
    verdict: str = ""

    @property
    def share(self) -> float:
        """Bytes of the quantized weights over those of the trained ones; NaN of none."""
        return self.bytes_after / self.bytes_before if self.bytes_before else math.nan

    @property
    def keeps(self) -> bool:
        """Whether the quantized weights are shown to be as good, or were not validated."""
        return self.verdict in KEPT

    @property
    def loses(self) -> bool:
        """Whether they are shown to be worse by more than the margin."""
        return self.verdict == "lower" and self.lost.high < -self.margin

    @property
    def difference(self) -> str:
        """`+0.4 [-0.2, +1.0] (n = 3)`, of the measure; a dash where nothing was validated."""
        lost = self.lost
        if not lost.n:
            return BLANK
        measure = task_words.of(self.dataset)
        reason = wording.not_valid(self.flags, "accuracy")
        if not reason and self.verdict == UNRECORDED:
            reason = f"{measure.task.example}s not recorded"
        if reason:
            change = measure.change(lost.estimate) * 100
            return f"{wording.signed_range(change, change)} ({reason}, n = {lost.n})"
        return measure.difference(lost.estimate, lost.low, lost.high, lost.n)


def measured(tables: Tables) -> list[Quantized]:
    """What was quantized after its training, a row per point and policy.

    The intervals of what is lost hold for all rows together.
    """
    known = {r["run_id"]: r for r in tables.records if _is_one(r)}
    runs = tables.ok[tables.ok.run_id.isin(list(known))]
    if runs.empty:
        return []
    runs, margin = runs.assign(point=wording.places(runs)), tables.options.equivalence_margin
    return _judged(
        [
            _quantized(own, [known[i] for i in own.run_id], policy, point, dataset, margin)
            for (point, policy, dataset), own in runs.groupby(
                ["point", "policy", "dataset"], sort=False
            )
        ]
    )


def _judged(made: Sequence[Quantized]) -> list[Quantized]:
    """The same with intervals, and verdicts by the rules of every other difference in quality.

    The same examples are in all repeats, which agree on them whatever other examples would show: a
    difference of whose examples nothing is known has neither an interval nor a claim.
    """
    among = [not validity.invalid(o.flags, "accuracy") and o.images.images > 0 for o in made]
    overs = [one.lost for one in made]
    more = [(one.images.variance, one.images.freedom) for one in made]
    wide = simultaneous_intervals.together(overs, more, among)
    by_blocks = simultaneous_intervals.together(overs, among=among)
    return [_concluded(*row) for row in zip(made, wide, by_blocks, strict=True)]


def _concluded(one: Quantized, wide: Contrast, by_blocks: Contrast) -> Quantized:
    """With its interval and what that allows to be said; `by_blocks` is without the examples."""
    lost, repeats = _possible(one, wide), _possible(one, by_blocks)
    if not lost.n:
        return replace(one, lost=lost)
    row = {"dataset": one.dataset, "base_lost": False, "diverged": 0}
    said = accuracy.verdict(repeats.low, repeats.high, one.margin)
    both = (one.flags, one.flags)  # the trained and the quantized weights are of the same runs
    cells = accuracy.concluded(row, lost, said, one.images.images, both, one.margin)
    return replace(one, lost=lost, verdict=cells["verdict"])


def _possible(one: Quantized, lost: Contrast) -> Contrast:
    """What is lost, with an interval that ends where accuracies do: 0 and 1."""
    measure = task_words.of(one.dataset)
    if measure.task is not tasks.IMAGES:
        return lost
    level = float(_quality(one.before, measure).mean())
    low, high = (float(np.clip(end, -level, 1.0 - level)) for end in (lost.low, lost.high))
    return replace(lost, low=low, high=high)


def _is_one(record: dict[str, Any]) -> bool:
    return "after" in (record.get("quantized") or {})


def _quantized(
    runs: pd.DataFrame,
    records: list[dict[str, Any]],
    policy: str,
    point: str,
    dataset: str,
    margin: float,
) -> Quantized:
    made = [record["quantized"] for record in records]
    before, after = ([m[part] for m in made] for part in PARTS)
    measure = task_words.of(dataset)
    lost = contrast.paired(_quality(after, measure), _quality(before, measure), "difference")
    sizes = [sum(m.get(f"bytes_{part}", 0) for m in made) / len(made) for part in PARTS]
    flags = validity.together(runs["flags"])
    key = (policy, *runs[points.POINT].iloc[0])
    left, right = (_as_trainings(records, part, measure) for part in ("after", "before"))
    images = validation_variance.spread(left, right, margin)
    return Quantized(
        policy, point, dataset, key, before, after, lost, *sizes, flags, images, margin
    )


def _as_trainings(
    records: Sequence[dict[str, Any]], part: str, measure: task_words.Measure
) -> dict[int, dict[str, Any]]:
    """A validation of each run as the record of a training, whose last epoch was validated.

    How many sequences there were says nothing of how their losses vary; of images, whose answers
    are right or wrong, their number and the accuracy say it.
    """
    counted = measure.task is tasks.IMAGES
    return {
        k: figures | {"history": [figures], "in_force": record.get("in_force") if counted else {}}
        for k, record in enumerate(records)
        if measure.task.measured(figures := record["quantized"][part]) is not None
    }


def _quality(figures: list[dict[str, Any]], measure: task_words.Measure) -> pd.Series:
    values = [measure.task.measured(m) for m in figures]
    return points.quality(pd.DataFrame({measure.task.column: values}, dtype=float))


# --- in words -------------------------------------------------------------------------------------


def taken(made: Sequence[Quantized]) -> str:
    """`int4 and int8 shrink the weights to 17 to 29 % of their bytes, perplexity +0.1 %`."""
    policies = list(dict.fromkeys(one.policy for one in made))
    known = sorted(one.share for one in made if not math.isnan(one.share))
    ends = " to ".join(dict.fromkeys(f"{share * 100:.0f}" for share in (known[:1] + known[-1:])))
    verb = "shrinks" if len(policies) == 1 else "shrink"
    shrunk = f"{wording.listed(policies)} {verb} the weights to {ends} % of their bytes"
    if not known or known[-1] >= 1:  # small layers take more than they had, with their scales
        took = f"{ends} % of the bytes" if known else "a size that is not recorded"
        shrunk = f"the weights of {wording.listed(policies)} take {took}"
    valid = [one for one in made if one.verdict not in ("", *INVALID)]
    measure = task_words.of(made[0].dataset)
    if not valid or len({task_words.of(one.dataset).name for one in made}) > 1:
        return shrunk
    return f"{shrunk}, {measure.name} {_changed(valid, measure)}"


def _changed(valid: Sequence[Quantized], measure: task_words.Measure) -> str:
    """`+0.0 to +0.1 %`; `undecided, −3.3 [−60.7, +54.0] percentage points`."""
    rows = pd.DataFrame(
        {
            "difference": [one.lost.estimate for one in valid],
            "low": [one.lost.low for one in valid],
            "high": [one.lost.high for one in valid],
            "blocks": [one.lost.n for one in valid],
            "margin": [one.margin for one in valid],
            "verdict": [one.verdict for one in valid],
        }
    )
    open_ = rows.verdict == "undecided"
    if open_.all():
        return measure.open(rows)
    change = measure.between(rows.difference).removesuffix(f" of {measure.name}")
    few = " (fewer than three repeats)" * bool((rows.verdict == "too few repeats").all())
    mean = " in the mean" * bool((rows.verdict == UNRECORDED).all())
    return f"{change}{mean}{few}{_undecided(valid, measure)}"


def _undecided(valid: Sequence[Quantized], measure: task_words.Measure) -> str:
    """`, undecided with int4 (too few validation images)`: of which policies, unless of all."""
    example, said = measure.task.example, ""
    reasons = {
        "undecided": "",
        "too few images": f" (too few validation {example}s)",
        UNRECORDED: f" ({unrecorded(measure)})",
    }
    for verdict, reason in reasons.items():
        names = [one.policy for one in valid if one.verdict == verdict]
        which = f" with {wording.listed([*dict.fromkeys(names)])}" * (len(names) < len(valid))
        said += f", {wording.UNDECIDED}{which}{reason}" * bool(names)
    return said


def unrecorded(measure: task_words.Measure) -> str:
    """Why nothing is claimed where records have the figures alone."""
    return f"how each {measure.task.example} was predicted is not recorded"


def sentences(made: Sequence[Quantized]) -> list[str]:
    """Bytes and what quantizing the same weights changed, in one sentence.

    What is worse comes first, then what is not shown to be as good; of these the fewest bytes.
    """
    order = sorted(made, key=lambda one: (one.verdict != "lower", one.keeps, one.share))
    known = [one for one in order if one.lost.n]
    if not known:
        return []
    several = len({one.point for one in made}) > 1
    sizes = [
        f"**{one.policy}**{f' ({one.point})' * several} {one.share * 100:.0f} %, "
        + _in_sentence(one)
        for one in known[:NAMED]
    ]
    sizes += [f"{len(known) - NAMED} more"] * (len(known) > NAMED)
    return [
        f"Bytes of the weights, of which embeddings and normalizations stay float32, and what "
        f"quantizing changed: {'; '.join(sizes)}."
    ]


def _in_sentence(one: Quantized) -> str:
    """`accuracy +0.1 [−0.1, +0.3] percentage points`; a reason why it says nothing comes last."""
    measure = task_words.of(one.dataset)
    value, _, reason = one.difference.partition(" (")
    behind = f" ({reason}" * (not reason.startswith("n ="))
    return f"{measure.name} {value} {measure.unit.partition(' of ')[0]}{behind}"


def sections(tables: Tables) -> list[Section]:
    """The section on quantized inference; none where no run quantized a trained model."""
    made = measured(tables)
    if not made:
        return []
    rows = pd.DataFrame([_row(one) for one in made])
    if rows.Point.nunique() == 1:
        rows = rows.drop(columns="Point")
    known = {r["parameters"]["policy"]: r["quantized"] for r in tables.records if _is_one(r)}
    said = [
        f"{name} is calibrated on {text}."
        for name, row in known.items()
        if (text := row.get("calibration"))
    ]
    return [Section(TITLE, NOTE, said, rows)]


def _row(one: Quantized) -> dict[str, str]:
    measure = task_words.of(one.dataset)
    sizes = [f"{size / 2**20:.1f} MiB" for size in (one.bytes_before, one.bytes_after)]
    return {
        "Point": one.point,
        "Policy": one.policy,
        f"{measure.heading}, trained": _mean(one.before, measure),
        f"{measure.heading}, quantized": _mean(one.after, measure),
        measure.head: one.difference,
        "Weights": " to ".join(sizes),
        "of their bytes": BLANK if math.isnan(one.share) else f"{one.share * 100:.0f} %",
    }


def _mean(figures: list[dict[str, Any]], measure: task_words.Measure) -> str:
    values = [value for m in figures if (value := measure.task.measured(m)) is not None]
    if not values:
        return BLANK
    return measure.mean(measure.task.mean(values), min(values), max(values), len(values))
