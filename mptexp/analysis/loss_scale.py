"""Which loss scales a training bears: accuracy, divergence, skipped steps by policy and scale."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from mptexp.analysis import accuracy, contrast, exponent_range
from mptexp.analysis.sweep_tables import Tables
from mptexp.report import wording
from mptexp.spec.policies import POLICIES
from mptexp.spec.run import defaults

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
    found = []
    for point, group in runs.groupby("point", sort=False):
        if group.groupby("policy").loss_scale.nunique().max() > 1:
            base = _baseline(group)
            for (policy, scale), rows in group.groupby(["policy", "loss_scale"], sort=False):
                told = _row(rows, base, tables.options.equivalence_margin)
                found.append({"point": point, "policy": policy, "loss_scale": scale, **told})
    made = pd.DataFrame(found)
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
        asked = defaults() | record["parameters"]
        if asked["propagation"] != "policy" or asked["weight_format"] != "policy":
            continue  # lowered.py compares these
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
        rows: of `table`, of one point and policy; what has no float32 beside it tells nothing.
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
        {"run_id": r["run_id"], **{n: r["parameters"][n] for n in ("policy", "block")}, **seen}
        for r in tables.records
        for seen in r.get("loss_scales") or []
    ]
    return pd.DataFrame(
        rows, columns=["run_id", "policy", "block", "step", "loss_scale", "skipped"]
    )


def named(scale: float | str) -> str:
    """A loss scale as readers know it."""
    return scale if isinstance(scale, str) else exponent_range.power(scale)


def by_point(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each point, behind what tells it apart from the others: empty of a single one."""
    groups = list(table.groupby("point", sort=False)) if len(table) else []
    points = [json.loads(point) for point, _ in groups]
    names = dict.fromkeys(name for point in points for name in point)
    varying = [n for n in names if len({str(point.get(n)) for point in points}) > 1]
    titles = [", ".join(f"{n} {point.get(n)}" for n in varying) for point in points]
    return [(title, rows) for title, (_, rows) in zip(titles, groups, strict=True)]


def sentences(rows: pd.DataFrame, title: str = "") -> list[str]:
    """What each policy bears, a sentence per policy; rows and title as `by_point` gives them."""
    told = []
    head = f"With {wording.verbatim(title)}: " if title else ""
    for policy, own in rows[rows.policy != "float32"].groupby("policy", sort=False):
        stall, good, diverge = ranges(own)
        tried = sorted({*stall, *good, *diverge})
        parts = [
            f"trains as float32 does with a loss scale of {_several(good, tried)}" if good else "",
            f"falls behind float32 with {_several(stall, tried)}" if stall else "",
            f"diverges with {_several(diverge, tried)}" if diverge else "",
            _dynamic(own),
        ]
        parts = [part for part in parts if part]
        if parts:
            told.append(f"{head}**{policy}** {wording.listed(parts)}.")
    return told


def _several(found: Sequence[float], tried: Sequence[float]) -> str:
    """Scales in words; those between which all that were tried behave alike, by their ends."""
    spans: list[list[float]] = []
    for scale in found:
        follows = spans and tried.index(scale) == tried.index(spans[-1][-1]) + 1
        spans[-1].append(scale) if follows else spans.append([scale])
    words = [
        [f"{named(s[0])} to {named(s[-1])}"] if len(s) > 2 else [named(scale) for scale in s]
        for s in spans
    ]
    return wording.listed([word for span in words for word in span])


def _dynamic(own: pd.DataFrame) -> str:
    rows = own[own.loss_scale == "dynamic"]
    if rows.empty:
        return ""
    row = next(rows.itertuples())
    if row.verdict == "diverged":
        return "diverges under the dynamic scale"
    if not row.blocks:
        return ""
    skipped = (
        wording.count(round(row.skipped), "skipped step") if row.skipped == row.skipped else ""
    )
    how = "trains" if trained(row) else "falls behind"
    return f"{how} under the dynamic scale" + (f" ({skipped}, median)" if skipped else "")


def text(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `table` of one point as text."""
    return pd.DataFrame(
        {
            "Policy": rows.policy,
            "Loss scale": rows.loss_scale.map(named),
            "Runs": rows.runs.astype(str),
            "Validation accuracy": [_accuracy(row) for row in rows.itertuples()],
            "Percentage points from float32": [_difference(row) for row in rows.itertuples()],
            "Finding": [_finding(row) for row in rows.itertuples()],
            "Skipped steps": ["–" if pd.isna(n) else f"{n:.0f}" for n in rows.skipped],
        }
    )


def _accuracy(row: Any) -> str:
    if pd.isna(row.val_accuracy):
        return "–"
    ends = f"{row.val_accuracy_low * 100:.1f}–{row.val_accuracy_high * 100:.1f}"
    return f"{row.val_accuracy * 100:.1f} % ({ends})" if row.runs > 1 else ends.split("–")[0] + " %"


def _difference(row: Any) -> str:
    if not row.blocks:
        return "–"
    return wording.difference(row.difference, row.low, row.high, row.blocks)


def _finding(row: Any) -> str:
    if row.verdict == "diverged":
        return f"diverged, {row.diverged} of {row.runs}: {row.first_not_finite.partition('; ')[2]}"
    return row.verdict
