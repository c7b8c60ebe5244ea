"""Images per second over a baseline's: several replicas, other frameworks, other devices.

A ratio here is images per second over the baseline's: above 1 is faster.
"""

from typing import Any

import pandas as pd

from mptexp.analysis import contrast, points, validity
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.spec.backends import BACKENDS

FIGURES = ("speedup", "low", "high", "blocks")


def by_replicas(results: pd.DataFrame) -> pd.DataFrame:
    """Every point and policy that was measured on several numbers of replicas.

    Args:
        results: one row per run, the columns of COLUMNS.

    Returns:
        Columns of POINT, policy, batch_per_replica, step_s, images_per_s (medians over blocks),
        logical (whether replicas are logical devices of a CPU); speedup, low, high, blocks over one
        replica with the same batch per replica (weak scaling), base_jit (whether XLA was on in
        that one), efficiency (speedup / replicas); strong_speedup, strong_low, strong_high,
        strong_blocks, strong_base_jit over one replica with the same global batch. NaN where there
        is none.
    """
    rows = []
    for point, group in _groups(results, "replicas", ["batch_size", "jit"]):
        one = group[group.replicas == 1]
        for (replicas, size, jit), runs in group.groupby(["replicas", "batch_size", "jit"]):
            share = size // replicas
            others = one if replicas > 1 else one[:0]
            weak = _over(runs, others[others.batch_size == share], jit)
            strong = _over(runs, others[others.batch_size == size], jit)
            row = point | {"batch_size": size, "jit": jit, "replicas": replicas}
            row |= {"batch_per_replica": share, **_medians(runs)}
            row |= {"logical": replicas > 1 and runs.device.str.endswith("(CPU)").any(), **weak}
            row |= {"efficiency": weak["speedup"] / replicas}
            rows.append(row | {f"strong_{name}": value for name, value in strong.items()})
    return _sorted(rows, ["replicas", "batch_size"])


def by_backend(results: pd.DataFrame) -> pd.DataFrame:
    """Every point and policy that was measured under several backends.

    Args:
        results: one row per run, the columns of COLUMNS.

    Returns:
        Columns of POINT, policy, step_s, images_per_s (medians over blocks); speedup (images per
        second over TensorFlow's), low, high, blocks, base_jit (whether XLA was on in TensorFlow).
    """
    rows = []
    for point, group in _groups(results, "backend", ["jit"]):
        known = group[group.backend == "tensorflow"]
        for (backend, jit), runs in group.groupby(["backend", "jit"]):
            others = known[:0] if backend == "tensorflow" else known
            row = point | {"backend": backend, "jit": jit}
            rows.append(row | _medians(runs) | _over(runs, others, jit))
    return _sorted(rows, ["backend"])


def by_device(results: pd.DataFrame) -> pd.DataFrame:
    """Every point and policy that was measured on several devices.

    Returns:
        Columns of POINT, policy, step_s, images_per_s (medians over blocks); speedup (images per
        second over those of the slowest device), low, high, blocks, base_jit; slowest (whether the
        row is that device's).
    """
    rows = []
    for point, group in _groups(results.dropna(subset="images_per_s"), "gpu_model", ["jit"]):
        slowest = group.groupby("gpu_model").images_per_s.median().idxmin()
        for (device, jit), runs in group.groupby(["gpu_model", "jit"]):
            others = group[group.gpu_model == slowest]
            others = others[:0] if device == slowest else others
            row = point | {"gpu_model": device, "jit": jit, "slowest": device == slowest}
            rows.append(row | _medians(runs) | _over(runs, others, jit))
    return _sorted(rows, ["gpu_model"])


def begin_alike(tables: Tables) -> bool:
    """Whether the runs of a block had the same initial weights under all backends."""
    began = {r["run_id"]: r.get("in_force", {}).get("initial_weights") for r in tables.records}
    return all(
        runs.run_id.map(began).nunique(dropna=False) == 1
        for _, group in _groups(tables.results, "backend", ["jit"])
        for _, runs in group.groupby("block")
    )


def _groups(results: pd.DataFrame, axis: str, free: list[str]) -> list[tuple[dict, pd.DataFrame]]:
    """What is alike but for the axis and the free columns, where the axis varies."""
    keys = [*(name for name in POINT if name not in (axis, *free)), "policy"]
    ok = results[results.status == "ok"]
    groups = ok.groupby(keys) if len(ok) else []
    return [(dict(zip(keys, p, strict=True)), g) for p, g in groups if g[axis].nunique() > 1]


def _medians(runs: pd.DataFrame) -> dict[str, float]:
    return {name: runs[name].median() for name in ("step_s", "images_per_s")}


def _over(runs: pd.DataFrame, others: pd.DataFrame, jit: bool) -> dict[str, Any]:
    """Images per second over those of other runs: with the same use of XLA where there are such."""
    like = others[others.jit == jit]
    others = like if len(like) else others
    over = contrast.paired(_rates(runs), _rates(others))
    if not over.n:
        return dict.fromkeys((*FIGURES, "base_jit"), float("nan"))
    return over.columns("speedup") | {"base_jit": others.jit.iloc[0]}


def _rates(runs: pd.DataFrame) -> pd.Series:
    return validity.timed_together(runs).groupby("block").images_per_s.mean()


def _sorted(rows: list[dict[str, Any]], last: list[str]) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    if not rows:
        return table
    keys = [*(name for name in POINT if name not in ("jit", *last)), "policy", *last]
    # TensorFlow, with which the others are compared, comes first.
    keyed = table.assign(backend=table.backend.map(BACKENDS.index))
    order = keyed.sort_values(keys, key=points.rank).index
    return table.loc[order].reset_index(drop=True)
