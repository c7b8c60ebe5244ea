"""What a whole sweep comes to: its headline table, its accuracies, what failed, its versions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import speedups, validity
from mptexp.analysis.points import POINT, baselines, rank
from mptexp.analysis.speedups import with_jit
from mptexp.analysis.sweep_tables import Tables, once
from mptexp.spec import tasks
from mptexp.spec.policies import POLICIES

ACHIEVED = ("flops_per_s", "bytes_per_s", "mfu_frac")  # a step's work over the row's time
WINDOWS = ("step_s_low", "step_s_high")  # around the row's time, so formed as it is
LATENCIES = {"latency_p50_s": 0.5, "latency_p99_s": 0.99}  # of the batches of all repeats
# What a run emulates beside its policy, and what emulates nothing.
EMULATES = {"propagation": "policy", "weight_format": "policy", "rounding": "nearest"}


@once
def headline(tables: Tables) -> pd.DataFrame:
    """One row per point and policy: the table of a report.

    Columns: step_s, throughput, flops_per_s, bytes_per_s, mfu_frac, step_s_low, step_s_high (see
    `speedups.row_times`), latency_p50_s, latency_p99_s (of inference only, of the
    batches of all repeats; medians over repeats where records do not list the batches),
    baseline (the device's default where it was measured at this point, else float32, else none),
    speedup/low/high/blocks over it, strict_speedup/strict_low/strict_high/strict_blocks over
    float32, of each task its figure, such as val_accuracy (the task's mean), val_accuracy_low,
    val_accuracy_high (least, most), val_accuracy_n (runs that have it: not those that target_ci
    ended), repeats, peak_memory_bytes, emulated, effective_share (the
    least), default_policy, run_flags (what is not valid of the row's own runs).
    """
    keys = [*POINT, "policy"]
    cut = tables.ok.ended_by == "target_ci"
    figures = {t.column: tables.ok[t.column].mask(cut) for t in _tasks(tables.ok)}
    ok = tables.ok.assign(mfu_frac=_mfu(tables.ok), **figures)
    # What no run has is a column of objects, whose median pandas takes group by group.
    empty = {name: pd.to_numeric(ok[name]) for name in ok if ok[name].isna().all()}
    ok = ok.assign(**empty)
    rows = ok.groupby(keys, sort=True, as_index=False).agg(
        **{name: (name, "median") for name in LATENCIES},
        repeats=("run_id", "count"),
        **_measured(ok),
        peak_memory_bytes=("peak_memory_bytes", "median"),
        emulated=("emulated", "first"),
        effective_share=("effective_share", "min"),
        default_policy=("default_policy", "first"),
        run_flags=("flags", validity.together),
    )
    times = speedups.row_times(ok, keys, (*ACHIEVED, *WINDOWS))
    rows = times.reset_index().merge(rows, on=keys)
    rows = _with_latencies(rows, tables, keys)
    measured = rows.groupby(POINT).policy.transform(lambda names: [set(names)] * len(names))
    firsts = [
        next(iter(baselines(default, names)), "")
        for default, names in zip(rows.default_policy, measured, strict=True)
    ]
    rows["baseline"] = pd.Series(firsts, rows.index, dtype=object)  # of no rows it has no type
    ratios = tables.claims.rename(columns={"candidate": "policy"})
    rows = rows.merge(ratios, "left", [*keys, "baseline"])
    figures = ["speedup", "low", "high", "blocks", "flags"]
    strict = ratios[ratios.baseline == "float32"].drop(columns="baseline")
    strict = strict.rename(columns={name: f"strict_{name}" for name in figures})
    rows = rows.merge(strict, "left", keys)
    return rows.sort_values(keys, key=rank, kind="stable", ignore_index=True)


def _with_latencies(rows: pd.DataFrame, tables: Tables, keys: list[str]) -> pd.DataFrame:
    """The same with the latencies of the batches of all repeats, where records list them."""
    groups = tables.latencies.groupby(keys).latency_s
    of_rows = pd.MultiIndex.from_frame(rows[keys])
    pooled = {n: groups.quantile(q).reindex(of_rows).to_numpy() for n, q in LATENCIES.items()}
    return rows.assign(**{n: rows[n].where(np.isnan(v), v) for n, v in pooled.items()})


def _mfu(runs: pd.DataFrame) -> pd.Series:
    """Arithmetic over the measured peak; nowhere on a device of which a run exceeded its peak.

    Other programs were at work when that was measured, and the same holds of its other peaks.
    """
    exceeded = runs.flops_per_s.notna() & runs.mfu_frac.isna()
    return runs.mfu_frac.mask(runs.gpu_model.isin(set(runs.gpu_model[exceeded])))


def _measured(runs: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """The task's mean, least, most and number of the figure of each task that the runs have."""
    ends = {"_low": "min", "_high": "max", "_n": "count"}
    return {
        f"{task.column}{end}": (task.column, way)
        for task in _tasks(runs)
        for end, way in {"": task.mean, **ends}.items()
    }


def _tasks(table: pd.DataFrame) -> list[tasks.Task]:
    return [task for task in tasks.TASKS.values() if task.column in table]


def accuracy_range(tables: Tables, task: tasks.Task = tasks.IMAGES) -> pd.DataFrame:
    """Least and most of the policies' means of a task's figure at a point, and their difference.

    Only points that two policies reached with one.
    """
    table = headline(tables)
    if task.column not in table:
        return pd.DataFrame()
    means = table.dropna(subset=task.column).groupby(POINT)[task.column]
    spread = pd.DataFrame({"least": means.min(), "most": means.max()})
    return spread.assign(difference=spread.most - spread.least)[means.count() > 1]


def emulated(runs: pd.DataFrame) -> set[str]:
    """The policies that the device only emulates, of runs that ended well."""
    return set(runs.policy[runs.emulated.eq(True)])


def by_format(tables: Tables) -> pd.DataFrame:
    """All runs, with what they emulate in columns of its own, EMULATES, and not in `setting`.

    Where a run ended before it was known whether XLA was on, that tells no runs apart.
    """
    runs = with_jit(tables.results)
    if not runs.jit.isin([True, False]).all():
        runs = runs.assign(jit=False)
    asked = [tables.records_by_id[run_id]["parameters"] for run_id in runs.run_id]
    formats = {name: [known.get(name, EMULATES[name]) for known in asked] for name in EMULATES}
    parts = runs.setting.str.split(", ")
    others = [[p for p in own if p.partition(" ")[0] not in EMULATES] for own in parts]
    return runs.assign(setting=list(map(", ".join, others)), **formats)


def ended(results: pd.DataFrame, status: str) -> dict[tuple, int]:
    """How many runs ended with a status, by POINT and policy."""
    lost = with_jit(results)
    return lost[lost.status == status].groupby([*POINT, "policy"]).run_id.count().to_dict()


def left_out(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """How many runs of each policy, and what it emulates, did not end well.

    Args:
        runs: as `by_format` gives them, with `place`, which names their points.

    Returns:
        Of each policy and status: policy, EMULATES, status, left, runs, places (those of the runs
        that did not end well), of (how many places the policy has).
    """
    keys, rows = ["policy", *EMULATES], []
    for names, own in runs.groupby(keys, sort=False):
        for status, lost in own[own.status != "ok"].groupby("status"):
            row = dict(zip(keys, names, strict=True)) | {"status": status, "left": len(lost)}
            row |= {"runs": len(own), "places": [*dict.fromkeys(lost.place)]}
            rows.append(row | {"of": own.place.nunique()})
    return sorted(rows, key=lambda row: POLICIES.index(row["policy"]))


def starts_agree(results: pd.DataFrame, records: Sequence[dict]) -> bool:
    """Whether all runs of a block with float32 variables began from the same weights and order."""
    started = {
        r["run_id"]: (r["in_force"].get("initial_weights"), r["in_force"].get("data_order"))
        for r in records
        if r["status"] == "ok" and r.get("in_force", {}).get("variable_dtype") == "float32"
    }
    rows = results[results.run_id.isin(list(started))]
    groups = rows.groupby([*POINT, "block"]).run_id
    return all(len({started[run_id] for run_id in group}) == 1 for _, group in groups)


def versions(records: Sequence[dict]) -> list[str]:
    """The distinct mptexp versions and commits of the records; more than one is worth a warning."""
    cards = [r["environment"] for r in records if r.get("environment")]
    named = {
        f"{c['packages'].get('mptexp', '')} {(c['commit'] or '')[:12]}".strip() or "?"
        for c in cards
    }
    return sorted(named)
