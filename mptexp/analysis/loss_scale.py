"""Which loss scales a training bears: accuracy, divergence, skipped steps by policy and scale."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from mptexp.analysis import accuracy, contrast
from mptexp.analysis.sweep_tables import Tables
from mptexp.spec.policies import POLICIES

FREE = ("policy", "loss_scale", "seed", "block")


def table(tables: Tables) -> pd.DataFrame:
    """A row per policy and loss scale of the points where a policy was measured with several.

    Returns:
        Columns: point (what else the runs share, as JSON), policy, loss_scale (as asked for: a
        number, "none" or "dynamic"), runs, diverged (how many did), first_not_finite (what
        the first of them says), val_accuracy, val_accuracy_low, val_accuracy_high (mean, least,
        most of those that did not diverge), difference, low, high, blocks (from float32 within a
        block, see contrast.paired), verdict (see accuracy.verdict; or diverged), skipped
        (median of the steps that were left out).
    """
    runs = _runs(tables)
    rows = []
    for point, group in runs.groupby("point", sort=False):
        if group.groupby("policy").loss_scale.nunique().max() > 1:
            base = _baseline(group)
            for (policy, scale), own in group.groupby(["policy", "loss_scale"], sort=False):
                measured = _row(own, base, tables.options.equivalence_margin)
                rows.append({"point": point, "policy": policy, "loss_scale": scale} | measured)
    made = pd.DataFrame(rows)
    if made.empty:
        return made
    return made.sort_values(
        ["point", "policy", "loss_scale"], key=_order, kind="stable", ignore_index=True
    )


def _runs(tables: Tables) -> pd.DataFrame:
    rows = []
    for record in tables.records:
        if record["status"] not in ("ok", "diverged"):
            continue
        asked = record["parameters"]
        if asked["propagation"] != "policy" or asked["weight_format"] != "policy":
            continue  # analysis.emulated compares these
        point = {name: value for name, value in asked.items() if name not in FREE}
        last = (record.get("history") or [{}])[-1]
        rows.append(
            {
                "point": json.dumps(point, sort_keys=True),
                "policy": asked["policy"],
                "loss_scale": _scale(asked),
                "block": asked["block"],
                "status": record["status"],
                "error": record.get("error", ""),
                "val_accuracy": last.get("val_accuracy"),
                "skipped": record.get("skipped_steps"),
            }
        )
    columns = ["point", "policy", "loss_scale", "block", "status", "error", "val_accuracy"]
    return pd.DataFrame(rows, columns=[*columns, "skipped"])


def _scale(asked: Mapping[str, Any]) -> float | str:
    """The loss scale that was asked for; auto is what Keras makes of it."""
    if asked["loss_scale"] != "auto":
        return asked["loss_scale"]
    return "dynamic" if asked["policy"] == "mixed_float16" else "none"


def _baseline(group: pd.DataFrame) -> pd.Series:
    """Validation accuracy of float32 by block, without a loss scale where that was measured."""
    known = group[(group.policy == "float32") & (group.status == "ok")]
    scales = [s for s in ("none", 1.0) if s in set(known.loss_scale)]
    chosen = scales[0] if scales else (known.loss_scale.iloc[0] if len(known) else "none")
    return known[known.loss_scale == chosen].set_index("block").val_accuracy.astype(float)


def _row(rows: pd.DataFrame, base: pd.Series, margin: float) -> dict[str, Any]:
    bad = rows[rows.status == "diverged"]
    good = rows[rows.status == "ok"].set_index("block").val_accuracy.astype(float)
    over = contrast.paired(good, base, "difference")
    verdict = "diverged" if len(bad) else accuracy.verdict(over.low, over.high, margin)
    return {
        "runs": len(rows),
        "diverged": len(bad),
        "first_not_finite": bad.error.iloc[0] if len(bad) else "",
        "val_accuracy": good.mean(),
        "val_accuracy_low": good.min(),
        "val_accuracy_high": good.max(),
        **over.columns("difference"),
        "verdict": verdict,
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


BEHIND = 0.05  # less accuracy than float32 by so much is behind it, where no interval decides


def trained(row: Any) -> bool:
    """Whether a row's runs trained as float32 did, as far as their number lets one say."""
    if row.verdict in ("equal", "higher"):
        return True
    return row.verdict in ("undecided", "too few repeats") and bool(row.difference > -BEHIND)


def ranges(rows: pd.DataFrame) -> tuple[list[float], list[float], list[float]]:
    """The fixed scales of one policy: that stall, that train as float32 does, that diverge.

    Args:
        rows: of `table`, of one point and policy; scales without a float32 run are left out.
    """
    fixed = rows[rows.loss_scale != "dynamic"]
    stall, good, diverge = set(), set(), set()
    for row in fixed[fixed.blocks.gt(0) | (fixed.verdict == "diverged")].itertuples():
        kind = diverge if row.verdict == "diverged" else good if trained(row) else stall
        kind.add(number(row.loss_scale))
    return sorted(stall), sorted(good), sorted(diverge)


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
