"""Which loss scales a training bears: accuracy or perplexity, divergence, skipped steps."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from mptexp.analysis import accuracy, contrast, points, validation_variance, validity
from mptexp.analysis.sweep_tables import Tables, once
from mptexp.spec import tasks

NO_BASELINE = "no float32 beside it"  # verdict of runs in whose blocks none ended well


@once
def table(tables: Tables) -> pd.DataFrame:
    """A row per policy and loss scale of the points where a policy was measured with several.

    Returns:
        Columns: point (what else the runs share, as JSON), dataset, policy, loss_scale (as asked
        for: a number, "none" or "dynamic"), runs, run_ids, diverged (how many did),
        errors (what each of them says), figure, figure_low, figure_high (the last validation's
        accuracy or perplexity: the task's mean, least, most of those that did not diverge),
        difference, low, high, blocks (of quality, see `points.quality`, from float32
        within a block, with intervals that hold for all rows together; of that float32 itself
        none), margin, verdict (see accuracy.verdict; or diverged; baseline diverged where runs of
        the float32 compared with did; NO_BASELINE; empty of that float32 itself), flags, skipped
        (median of the steps that were left out), losses (of those that did not diverge, by
        block: every epoch's, of training and validation; none where any is not known).
    """
    runs = _runs(tables)
    rows = []
    for point, group in runs.groupby("point", sort=False):
        bare = _baseline(group)
        lost = bool((bare.status == "diverged").any())
        base = _by_block(bare[bare.status == "ok"])
        for (policy, scale), own in group.groupby(["policy", "loss_scale"], sort=False):
            measured = _row(own, base, tables.options.equivalence_margin)
            measured["base_lost"] = lost and policy != "float32"
            measured["is_base"] = bool(own.run_id.isin(bare.run_id).any())
            named = {"dataset": own.dataset.iloc[0], "policy": policy, "loss_scale": scale}
            rows.append({"point": point} | named | measured)
    made = pd.DataFrame(accuracy.claimed(rows, tables.options.equivalence_margin))
    if made.empty:
        return made
    alone = (made.blocks == 0) & (made.verdict == "too few repeats")
    made["verdict"] = made.verdict.mask(alone, NO_BASELINE)
    return made.sort_values(
        ["point", "policy", "loss_scale"], key=_order, kind="stable", ignore_index=True
    )


def _runs(tables: Tables) -> pd.DataFrame:
    scaled = accuracy.with_several_scales(tables.records)
    results = tables.results.assign(quality=points.quality(tables.results))
    runs = results[results.run_id.isin(list(scaled))].sort_values("run_id")
    # A run that ended early, or saw one batch only, tells of a scale where it diverged.
    runs = runs[(runs.status != "ok") | runs.run_id.isin(tables.trained.run_id)]
    records = [tables.records_by_id[run_id] for run_id in runs.run_id]
    last = [(record.get("history") or [{}])[-1] for record in records]
    known = {
        "point": runs.run_id.map(scaled),
        "loss_scale": [accuracy.scale(record["parameters"]) for record in records],
        "error": [record.get("error", "") for record in records],
        "figure": [tasks.of(d).measured(e) for d, e in zip(runs.dataset, last, strict=True)],
        "skipped": [record.get("skipped_steps") for record in records],
        "record": records,
    }
    return validity.comparable(runs.assign(**known))


def _baseline(group: pd.DataFrame) -> pd.DataFrame:
    """The runs of float32, also diverged ones, without a loss scale where that was measured."""
    known = group[(group.policy == "float32") & group.status.isin(["ok", "diverged"])]
    scales = [s for s in ("none", 1.0) if s in set(known.loss_scale)]
    chosen = scales[0] if scales else (known.loss_scale.iloc[0] if len(known) else "none")
    return known[known.loss_scale == chosen]


def _by_block(runs: pd.DataFrame) -> pd.DataFrame:
    """One run of each block: a loss scale that was asked for in two ways is no second repeat."""
    return runs.drop_duplicates("block").set_index("block")


def _row(rows: pd.DataFrame, base: pd.DataFrame, margin: float) -> dict[str, Any]:
    bad = rows[rows.status == "diverged"]
    ended = _by_block(rows[rows.status == "ok"])
    good, others = (side.quality.astype(float) for side in (ended, base))
    figure = ended.figure.astype(float)
    sides = [side.record.to_dict() for side in (ended, base)]
    differs = bool(validity.across(*sides, ("policy", "loss_scale")))
    return {
        "runs": len(rows),
        "run_ids": tuple(rows.run_id),
        "diverged": len(bad),
        "errors": tuple(bad.error),
        "figure": tasks.of(rows.dataset.iloc[0]).mean(figure),
        "figure_low": figure.min(),
        "figure_high": figure.max(),
        "over": contrast.paired(good, others, "difference"),
        "losses": _losses(ended.record),
        "spread": validation_variance.spread(*sides, margin),
        "margin": margin,
        "both": [
            validity.together([*side["flags"], *["not comparable"] * differs])
            for side in (base, ended)
        ],
        "skipped": rows.skipped.astype(float).median(),
    }


def _losses(records: Mapping[int, Mapping[str, Any]]) -> dict[int, list[float]]:
    names = ("loss", "val_loss")
    told = {
        block: [epoch.get(name) for epoch in record.get("history") or () for name in names]
        for block, record in records.items()
    }
    known = all(own and None not in own and not any(map(math.isnan, own)) for own in told.values())
    return told if known else {}


def alike(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of one point and policy that trained alike to the last bit under several scales.

    In all blocks in which none of them diverged. A scale that is a power of two changes no
    rounding, unless a gradient leaves the type's range.
    """
    groups: list[dict[Any, dict[int, list[float]]]] = []
    for index, own in rows.losses.items():
        fitting = [g for g in groups if all(_agree(own, other) for other in g.values())]
        if fitting:
            fitting[0][index] = own
        else:
            groups.append({index: own})
    alike = [rows.loc[[*group]] for group in groups]
    return [own for own in alike if own.loss_scale.map(number).nunique() > 1]


def _agree(one: Mapping[int, Any], other: Mapping[int, Any]) -> bool:
    """Whether two rows have blocks in common, and the same losses in all of them."""
    common = one.keys() & other.keys()
    return bool(common) and all(one[block] == other[block] for block in common)


def number(scale: float | str) -> float:
    """A loss scale for sorting and axes: none is 1, dynamic comes behind all others."""
    return {"none": 1.0, "dynamic": math.inf}.get(scale, scale)  # type: ignore[arg-type]


def _order(column: pd.Series) -> pd.Series:
    if column.name == "loss_scale":
        return column.map(lambda s: (number(s), s != "none"))
    return points.rank(column)


def outcome(row: Any) -> str:
    """Whether a row's runs stall, train as float32 does or diverge; empty where nothing shows it.

    A divergence is a fact; the others are what an interval says.
    """
    if row.verdict == "diverged":
        return "diverge"
    return {"equal": "train", "higher": "train", "lower": "stall"}.get(row.verdict, "")


def ranges(rows: pd.DataFrame) -> dict[str, list[float]]:
    """The fixed scales of one policy by their `outcome`.

    Args:
        rows: of `table`, of one point and policy; scales without a float32 run are left out.
    """
    fixed = rows[rows.loss_scale != "dynamic"]
    scales: dict[str, set[float]] = {"stall": set(), "train": set(), "diverge": set(), "": set()}
    for row in fixed[fixed.blocks.gt(0) | (fixed.verdict == "diverged")].itertuples():
        scales[outcome(row)].add(number(row.loss_scale))
    return {name: sorted(among) for name, among in scales.items()}


def traces(tables: Tables) -> pd.DataFrame:
    """The dynamic loss scale of every run that had one: run_id, policy, block, step, loss_scale."""
    rows = [
        {"run_id": r["run_id"], **{n: r["parameters"][n] for n in ("policy", "block")}, **sample}
        for r in tables.records
        for sample in r.get("loss_scales") or []
    ]
    return pd.DataFrame(
        rows, columns=["run_id", "policy", "block", "step", "loss_scale", "skipped"]
    )
