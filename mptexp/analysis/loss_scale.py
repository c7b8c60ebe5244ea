"""Which loss scales a training bears: accuracy or perplexity, divergence, skipped steps."""

import math
from typing import Any

import pandas as pd

from mptexp.analysis import accuracy, contrast, image_pairs, points, simultaneous, validity
from mptexp.analysis.sweep_tables import Tables, once
from mptexp.spec import tasks
from mptexp.spec.policies import POLICIES


@once
def table(tables: Tables) -> pd.DataFrame:
    """A row per policy and loss scale of the points where a policy was measured with several.

    Returns:
        Columns: point (what else the runs share, as JSON), dataset, policy, loss_scale (as asked
        for: a number, "none" or "dynamic"), runs, run_ids, diverged (how many did),
        first_not_finite (what the first of them says), figure, figure_low, figure_high (the last
        validation's accuracy or perplexity: mean, least, most of those that did not diverge),
        difference, low, high, blocks (of quality, see `points.quality`, from float32 within a
        block, with intervals that hold for all rows together), verdict (see accuracy.verdict; or
        diverged), flags, skipped (median of the steps that were left out).
    """
    runs = _runs(tables)
    rows = []
    for point, group in runs.groupby("point", sort=False):
        base = _baseline(group)
        for (policy, scale), own in group.groupby(["policy", "loss_scale"], sort=False):
            measured = _row(own, base, tables.options.equivalence_margin)
            named = {"dataset": own.dataset.iloc[0], "policy": policy, "loss_scale": scale}
            rows.append({"point": point} | named | measured)
    made = pd.DataFrame(_claimed(rows, tables.options.equivalence_margin))
    if made.empty:
        return made
    return made.sort_values(
        ["point", "policy", "loss_scale"], key=_order, kind="stable", ignore_index=True
    )


def _runs(tables: Tables) -> pd.DataFrame:
    rows, results = [], tables.results
    flags = dict(zip(results.run_id, results["flags"], strict=True))
    quality = dict(zip(results.run_id, points.quality(results), strict=True))
    scaled = accuracy.with_several_scales(tables.records)
    trained = set(tables.trained.run_id)
    for record in [r for r in tables.records if r["run_id"] in scaled]:
        # A run that ended early, or saw one batch only, tells of a scale where it diverged.
        if record["status"] == "ok" and record["run_id"] not in trained:
            continue
        asked = record["parameters"]
        last = (record.get("history") or [{}])[-1]
        rows.append(
            {
                "point": scaled[record["run_id"]],
                "dataset": asked["dataset"],
                "policy": asked["policy"],
                "loss_scale": accuracy.scale(asked),
                "block": asked["block"],
                "status": record["status"],
                "error": record.get("error", ""),
                "quality": quality.get(record["run_id"]),
                "figure": tasks.of(asked["dataset"]).measured(last),
                "skipped": record.get("skipped_steps"),
                "run_id": record["run_id"],
                "flags": flags.get(record["run_id"], ""),
                "record": record,
            }
        )
    columns = ["point", "dataset", "policy", "loss_scale", "block", "status", "error", "quality"]
    columns += ["figure", "skipped", "run_id", "flags", "record"]
    made = pd.DataFrame(rows, columns=columns)
    return validity.comparable(made)


def _baseline(group: pd.DataFrame) -> pd.DataFrame:
    """The runs of float32 by block, without a loss scale where that was measured."""
    known = group[(group.policy == "float32") & (group.status == "ok")]
    scales = [s for s in ("none", 1.0) if s in set(known.loss_scale)]
    chosen = scales[0] if scales else (known.loss_scale.iloc[0] if len(known) else "none")
    return known[known.loss_scale == chosen].set_index("block")


def _claimed(rows: list[dict[str, Any]], margin: float) -> list[dict[str, Any]]:
    """The rows with their differences in columns, whose intervals hold for all together."""
    overs, spreads, flags = ([row.pop(n) for row in rows] for n in ("over", "spread", "both"))
    # Float32 against itself is no comparison.
    asked = [k for k, row in enumerate(rows) if not row.pop("is_base")]
    more = [(spreads[k].variance, spreads[k].freedom) for k in asked]
    wide = simultaneous.together([overs[k] for k in asked], more)
    for k, over in zip(asked, wide, strict=True):
        overs[k] = over
    for row, over, spread, both in zip(rows, overs, spreads, flags, strict=True):
        low, high, known = accuracy.bounded(row["dataset"], over.low, over.high, spread.images)
        forbidden = accuracy.not_allowed(both, known, margin) if over.n else ""
        said = forbidden or accuracy.verdict(low, high, margin)
        row |= over.columns("difference") | {"flags": validity.together(both)}
        row |= {"low": low, "high": high, "verdict": "diverged" if row["diverged"] else said}
    return rows


def _row(rows: pd.DataFrame, base: pd.DataFrame, margin: float) -> dict[str, Any]:
    bad = rows[rows.status == "diverged"]
    ended = rows[rows.status == "ok"].set_index("block")
    good, others = (side.quality.astype(float) for side in (ended, base))
    figure = ended.figure.astype(float)
    blocks = ended.index.intersection(base.index)
    sides = [side.record[blocks].to_dict() for side in (ended, base)]
    differs = bool(validity.across(*sides, ("policy", "loss_scale")))
    return {
        "runs": len(rows),
        "run_ids": tuple(rows.run_id),
        "diverged": len(bad),
        "first_not_finite": bad.error.iloc[0] if len(bad) else "",
        "figure": figure.mean(),
        "figure_low": figure.min(),
        "figure_high": figure.max(),
        "over": contrast.paired(good, others, "difference"),
        "spread": image_pairs.spread(*(list(side.values()) for side in sides), margin),
        "both": [
            validity.together([*side["flags"], *["not comparable"] * differs])
            for side in (base, ended)
        ],
        "is_base": ended.run_id.tolist() == base.run_id.tolist(),
        "skipped": rows.skipped.astype(float).median(),
    }


def number(scale: float | str) -> float:
    """A loss scale for sorting and axes: none is 1, dynamic comes behind all others."""
    return {"none": 1.0, "dynamic": math.inf}.get(scale, scale)  # type: ignore[arg-type]


def _order(column: pd.Series) -> pd.Series:
    if column.name == "policy":
        return column.map(POLICIES.index)
    if column.name == "loss_scale":
        return column.map(lambda s: (number(s), s != "none"))
    return column


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
