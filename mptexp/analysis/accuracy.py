"""What a policy does to accuracy or perplexity: differences, equivalence, time to a target."""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import (
    contrast,
    points,
    simultaneous_intervals,
    speedups,
    summary,
    validation_variance,
    validity,
)
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables, once
from mptexp.spec import tasks
from mptexp.spec.policies import POLICIES

# Verdicts of comparisons that cannot say anything, whatever their interval.
UNDECIDABLE = (
    "diverged",
    "baseline diverged",
    "too few repeats",
    "not trained",
    "not valid",
    "too few images",
    "images not recorded",
)
SINGLE = 2.0**-24  # by which Keras's float32 is off: 324 of 360 images are 0.8999999762
LAST = 5  # epochs whose differences say how much the last one says
MARGINS = 10  # that the interval of what looks equal may reach
FREE = ("policy", "loss_scale", "seed", "block")
COMPARED = ["baseline", "candidate", "difference", "low", "high", "blocks", "images", "margin"]
COMPARED += ["verdict", "flags", "least_half"]


@once
def differences(tables: Tables) -> pd.DataFrame:
    """Difference of every policy's last validation from its baselines'.

    Of accuracy, or of a text of minus the loss per token (see `points.quality`); of its sequences
    holds what is said here of images.

    Differences are formed within a block and image by image. The interval is over blocks and
    images (see `validation_variance`), empty below three blocks, and holds for all differences of
    the sweep together (see `simultaneous_intervals`); of runs that do not say which images they got
    right it is as wide as if each had images of its own. A policy is `equal` where the whole
    interval lies within the margin, which is the test of equivalence by two one-sided tests at
    2.5 % each (Schuirmann 1987); else `lower` or `higher` where the interval leaves zero out, else
    `undecided`. It is never equal where the baseline is at chance level (`not trained`), where so
    few images were validated with that they could not show a difference of the margin, where the
    blocks alone would exclude one (`too few images`: with more of them it may be equal), or it is
    not known how many (`images not recorded`). Where runs of the policy diverged, the others alone
    say nothing of it: `diverged`, also where all did, a row without a difference; where runs of the
    baseline did, nothing is said of the policy: `baseline diverged`. What is not valid of a run's
    accuracy for other reasons makes the verdict `not valid`. Trainings with several loss scales are
    left to `loss_scale.table`, so that a comparison has one interval.

    The margin, the options' equivalence_margin, is a fraction: 0.01 is one percentage point; of a
    text's loss in nats, hence a factor exp(0.01) of perplexity, one percent.

    Returns:
        Columns of POINT, then COMPARED: difference (candidate - baseline, a fraction), images (0
        where it is not known).
    """
    margin = tables.options.equivalence_margin
    trained = _compared(tables)
    trained = trained[~trained.run_id.isin(with_several_scales(tables.records))]
    keys, lost = [*POINT, "policy"], summary.ended(tables.results, "diverged")
    flags = trained.groupby(keys)["flags"].agg(validity.together).to_dict()
    first = trained.drop_duplicates([*keys, "block"])
    records = {key: tables.records_by_block(own) for key, own in first.groupby(keys)}
    rows = []
    for point, default, table in points.by_block(trained, "quality"):
        for baseline in points.baselines(default, table):
            for candidate in [p for p in POLICIES if p != baseline]:
                base, own = (*point, baseline), (*point, candidate)
                over, spread = Contrast(), validation_variance.Spread()
                if candidate in table:
                    over = contrast.paired(table[candidate], table[baseline], "difference")
                if over.n:
                    spread = validation_variance.spread(records[own], records[base], margin)
                if over.n or (own in lost and candidate not in table):
                    row = dict(zip(POINT, point, strict=True)) | {"margin": margin}
                    row |= {"baseline": baseline, "candidate": candidate, "images": spread.images}
                    row |= {"base_lost": base in lost, "diverged": own in lost, "over": over}
                    row |= {"spread": spread, "both": [flags.get(side, "") for side in (base, own)]}
                    rows.append(row)
    return pd.DataFrame(claimed(rows, margin), columns=[*POINT, *COMPARED])


def with_several_scales(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The trainings of which a policy was measured with several loss scales, or each with its own.

    Emulated formats are left out, which `emulated` compares.

    Returns:
        By run id, what else than policy, loss scale and block the training shares with others, as
        JSON.
    """
    known, met = {}, dict[str, dict[str, dict[object, object]]]()
    for record in records:
        asked = record["parameters"]
        formats = {asked["propagation"], asked["weight_format"]}
        if record["status"] in ("ok", "diverged") and formats == {"policy"}:
            point = shared(asked)
            known[record["run_id"]] = point
            own = met.setdefault(point, {}).setdefault(asked["policy"], {})
            own[asked["loss_scale"]] = scale(asked)
    several = {point for point, policies in met.items() if _by_scale(policies.values())}
    return {run_id: point for run_id, point in known.items() if point in several}


def _by_scale(policies: Collection[Mapping[object, object]]) -> bool:
    """Whether it is loss scales that one may compare at a point, not policies with one of them.

    Args:
        policies: of each the loss scales that were asked for, with what they are.
    """
    if any(len(set(scales.values())) > 1 for scales in policies):
        return True
    asked = Counter(name for scales in policies for name in scales)
    return len(policies) > 1 and any(
        all(asked[name] == 1 for name in scales) for scales in policies
    )


def shared(asked: Mapping[str, Any]) -> str:
    """What a run shares with those that differ in policy, loss scale and block alone, as JSON."""
    fixed = {name: value for name, value in asked.items() if name not in FREE}
    return json.dumps(fixed, sort_keys=True)


def scale(asked: Mapping[str, Any]) -> float | str:
    """The loss scale that was asked for; auto is what Keras makes of it."""
    if asked["loss_scale"] != "auto":
        return asked["loss_scale"]  # type: ignore[no-any-return]
    return "dynamic" if asked["policy"] == "mixed_float16" else "none"


def _compared(tables: Tables) -> pd.DataFrame:
    """The trainings whose figures may be compared, with their `quality`, see `points`."""
    trained = tables.trained.assign(quality=points.quality(tables.trained))
    return validity.comparable(trained.dropna(subset="quality"))


def in_last_epochs(tables: Tables, row: Mapping[str, Any]) -> pd.Series:
    """The mean differences of a row of `differences` in each of the last epochs, by epoch.

    At a constant learning rate accuracies move from epoch to epoch, and the last is one of them.

    Returns:
        Of accuracy, a fraction: candidate - baseline; empty of texts, and of trainings that had not
        twice as many epochs as LAST, all alike, in the same blocks, each of the last validated.
    """
    none, sides = pd.Series(dtype=float), [row["baseline"], row["candidate"]]
    if tasks.of(row["dataset"]) is not tasks.IMAGES:
        return none
    runs = points.sharing(tables.trained, row)
    runs = runs[runs.policy.isin(sides)]
    blocks = runs.groupby("policy").block.agg(frozenset)
    epochs = tables.epochs[tables.epochs.run_id.isin(runs.run_id)]
    lengths = epochs.groupby("run_id").epoch.max()
    if len(blocks) < len(sides) or blocks.nunique() > 1 or lengths.nunique() != 1:
        return none
    last = epochs[epochs.epoch > lengths.iloc[0] - LAST].astype({"val_accuracy": float})
    if lengths.iloc[0] < 2 * LAST or last.val_accuracy.count() < LAST * len(runs):
        return none
    means = last.groupby(["epoch", "policy"]).val_accuracy.mean().unstack()
    return means[sides[1]] - means[sides[0]]


def claimed(rows: Sequence[dict[str, Any]], margin: float) -> list[dict[str, Any]]:
    """Rows with their differences in columns, whose intervals hold for all of them together.

    Args:
        rows: as `concluded` takes them, with the contrast (`over`), what the images add to its
            variance (`spread`), the flags of `both` sides, and whether it is the baseline itself
            (`is_base`), which is no comparison and has no verdict but of what became of its runs.
        margin: largest difference that counts as equal.
    """
    asked = [not row.pop("is_base", False) for row in rows]
    overs, spreads, flags = ([row.pop(n) for row in rows] for n in ("over", "spread", "both"))
    more = [(spread.variance, spread.freedom) for spread in spreads]
    wide = simultaneous_intervals.together(overs, more, asked)
    by_blocks = [
        verdict(over.low, over.high, margin)
        for over in simultaneous_intervals.together(overs, among=asked)
    ]
    columns = zip(rows, wide, by_blocks, spreads, flags, asked, strict=True)
    return [
        row
        | (concluded(row, over, said, spread.images, both, margin) if other else _itself(row, both))
        | {"least_half": spread.half}
        for row, over, said, spread, both, other in columns
    ]


def _itself(row: Mapping[str, Any], flags: Sequence[str]) -> dict[str, Any]:
    """The cells of the baseline beside itself: of a run and itself no difference is equal."""
    said = "diverged" if row["diverged"] else not_allowed(flags, 1)
    cells = Contrast().columns("difference")
    return cells | {"flags": validity.together(flags), "verdict": said}


def concluded(
    row: Mapping[str, Any],
    over: Contrast,
    by_blocks: str,
    images: int,
    flags: Sequence[str],
    margin: float,
) -> dict[str, Any]:
    """The cells of a difference, with what its interval allows to be said.

    Args:
        row: with `dataset`; and whether runs of the baseline diverged (`base_lost`), and how many
            of the other side (`diverged`).
        over: the difference, with its interval.
        by_blocks: the verdict on the interval that there were with images without end.
        images: the fewest that were validated with; 0 where it is not known.
        flags: of the baseline's runs and of the candidate's.
        margin: largest difference that counts as equal.
    """
    low, high, enough = over.low, over.high, float(images)
    if tasks.of(row["dataset"]) is tasks.IMAGES:  # whose accuracies differ by 1 at most
        low, high = (float(np.clip(end, -1.0, 1.0)) for end in (low, high))
    elif images >= validation_variance.FEWEST:  # of a loss, which is no count, the interval says it
        enough = math.inf
    forbidden = not_allowed(flags, enough) if over.n else ""
    said = forbidden or verdict(low, high, margin)
    if row["base_lost"]:
        said = "baseline diverged"
    elif row["diverged"]:  # beside a baseline that learned
        said = "not trained" if not_allowed(flags, 1) == "not trained" else "diverged"
    # Few images cannot show that nothing is lost; that something is, the interval says of any.
    # Where more of them would show no more, repeats are too few.
    open_ = over.n and said in ("equal", "undecided") and by_blocks == "equal"
    by_images = said == "too few repeats" and by_blocks != said  # of too few nothing is known
    if (open_ or by_images) and validation_variance.NONE_AMONG / enough > margin:
        said = "too few images"
    ends = {"low": low, "high": high, "flags": validity.together(flags), "verdict": said}
    return over.columns("difference") | ends


def not_allowed(flags: Sequence[str], images: float) -> str:
    """Why nothing may be said of a difference, as a verdict; empty where something may.

    Args:
        flags: of the baseline's runs and of the candidate's. A candidate at chance level beside a
            baseline that learned is lower; only the baseline's own failure forbids a comparison.
        images: the fewest that were validated with; 0 where it is not known.
    """
    names = [[flag.name for flag in validity.invalid(side, "accuracy")] for side in flags]
    if "not trained" in names[0]:
        return "not trained"
    if any(name != "not trained" for side in names for name in side):
        return "not valid"
    return "" if images else "images not recorded"


def falls_behind(tables: Tables, own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether runs with other settings are shown to be worth less than those beside them.

    As of a larger batch, or of a baseline with XLA beside a policy without: some of them have no
    result, or the difference within blocks leaves out zero by its own interval.

    Args:
        own: POINT and policy of the runs that are asked about.
        other: the same of those that they would take the place of.
    """
    every = speedups.with_jit(tables.results)
    runs, beside = (points.sharing(every, side, [*POINT, "policy"]) for side in (own, other))
    if (runs.status != "ok").any():
        return True
    trained = _compared(tables)
    means = [
        trained[trained.run_id.isin(side.run_id)].groupby("block").quality.mean()
        for side in (runs, beside)
    ]
    over = contrast.paired(*means, "difference")
    return verdict(over.low, over.high, tables.options.equivalence_margin) == "lower"


def beside_first(table: pd.DataFrame) -> pd.DataFrame:
    """Of `differences`, at each point those from the first baseline.

    That is the device's default where it was measured.
    """
    return table[table.baseline == table.groupby(POINT).baseline.transform("first")]


def verdict(low: float, high: float, margin: float) -> str:
    """What an interval of a difference allows to be said."""
    if math.isnan(low):
        return "too few repeats"
    if -margin < low and high < margin:
        return "equal"
    return "lower" if high < 0 else "higher" if low > 0 else "undecided"


def looks_equal(rows: pd.DataFrame) -> pd.Series:
    """Whether means lie within the margin whose intervals do not, nor reach MARGINS of them.

    Args:
        rows: with `verdict`, `difference`, `low`, `high` and `margin`. Others that are `undecided`
            may be anything that their interval holds. Those with `too few images` look equal the
            more: their repeats alone would show it.
    """
    reach = rows[["low", "high"]].astype(float).abs().max(axis=1, skipna=False)
    small = (rows.difference.abs() <= rows.margin) & (reach <= MARGINS * rows.margin)
    return rows.verdict.isin(["undecided", "too few images"]) & small


def target(tables: Tables) -> float | None:
    """The validation accuracy to reach: the params file's, else what every run reached.

    The latter is rounded down to a whole percentage point; None where nothing was learned, guessing
    reaches it, or the time that it took is not valid.
    """
    if tables.ok.step_s.isna().all():
        return None
    if wanted := tables.options.target_accuracy:
        guessed = [r.get("in_force", {}).get("chance_accuracy", 0.0) for r in tables.records]
        return wanted if wanted > max(guessed, default=0.0) else None
    # A level that guessing reaches is none, and early records do not tell what it reaches.
    ended = [r["in_force"] for r in tables.records if r["status"] == "ok"]
    told = all({"chance_accuracy", "validation_labels"} & known.keys() for known in ended)
    if not told or len(validity.without(tables.trained, "not trained")) < len(tables.trained):
        return None
    classified = tables.trained.dropna(subset="val_accuracy").run_id
    best = tables.history[tables.history.run_id.isin(classified)]
    best = best.groupby("run_id").val_accuracy.max().dropna()
    reached = math.floor((best.min() + SINGLE) * 100) / 100 if len(best) else 0.0
    return reached or None


def seconds_to(tables: Tables, wanted: float) -> pd.Series:
    """Seconds from the first step to the end of the first epoch that reaches an accuracy.

    Compilation and validation included. One value per run that trained, by run_id; infinite where
    the accuracy was not reached, empty where the record does not say when that epoch ended.
    """
    classified = tables.results.dropna(subset="val_accuracy").run_id
    learned = tables.history[tables.history.run_id.isin(classified)].dropna(subset="val_accuracy")
    enough = learned[learned.val_accuracy + SINGLE >= wanted]
    first = enough.sort_values("epoch").drop_duplicates("run_id").set_index("run_id")
    seconds = pd.to_numeric(first.elapsed_s)
    return seconds.reindex(learned.run_id.unique(), fill_value=np.inf)


def training_s(tables: Tables) -> pd.Series:
    """Seconds from the first step to the end of the last epoch, by run_id.

    What follows is no training: a pipeline of TensorFlow's may take a minute to close. Where the
    record says of no epoch when it ended, seconds in fit; where of some, but not of the last, it is
    not known.
    """
    fit_s = pd.to_numeric(tables.results.set_index("run_id").fit_s)
    ends = pd.to_numeric(tables.history.set_index("run_id").elapsed_s)
    last = ends[~ends.index.duplicated(keep="last")].reindex(fit_s.index)
    told = fit_s.index.isin(ends.dropna().index)
    # Empty where timings are not valid.
    return last.where(told, fit_s).where(fit_s.notna())
