"""Images per second beside a baseline: several replicas over one, other frameworks over TensorFlow.

A ratio here is images per second over the baseline's: above 1 is faster.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mptexp.analysis import contrast, points
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.report import wording

FIGURES = ("speedup", "low", "high", "blocks")
REPLICAS_NOTE = (
    "Replicas share a batch. *Speedup* is images per second over those of one replica, above 1 is "
    "faster; *efficiency* is the speedup at the same batch per replica divided by the number of "
    "replicas: 1 is perfect. Under TensorFlow batch normalization uses the statistics of each "
    "replica's own part of the batch, under JAX those of the whole batch."
)
LOGICAL_NOTE = (
    " **These replicas are logical devices of one CPU: their scaling says nothing of hardware.**"
)
BACKENDS_NOTE = (
    "The same model, order of pictures and policy in each framework, through Keras. The ratio is "
    "images per second over TensorFlow's: above 1 is faster than TensorFlow."
)
DEVICES_NOTE = (
    "The same point and policy on each device. The ratio is images per second over the slowest "
    "device's, formed between runs of the same block number, which were not made at the same time."
)
ALIKE = {
    True: " All frameworks began from the same initial weights.",
    False: " **The frameworks did not begin from the same initial weights.**",
}


@dataclass(frozen=True)
class Section:
    """A section of the report: a fixed note, sentences, and a table of text."""

    title: str
    note: str
    sentences: list[str]
    rows: pd.DataFrame


def sections(tables: Tables) -> list[Section]:
    """The sections that this sweep gives rise to: devices, replicas, frameworks."""
    replicas, backends = by_replicas(tables.results), by_backend(tables.results)
    devices = by_device(tables.results)
    found = []
    if not devices.empty:
        found.append(Section("Devices side by side", DEVICES_NOTE, [], _device_rows(devices)))
    if not replicas.empty:
        note = REPLICAS_NOTE + LOGICAL_NOTE * bool(replicas.logical.any())
        found.append(Section("Scaling", note, _sentences(replicas), _replica_rows(replicas)))
    if not backends.empty:
        note = BACKENDS_NOTE + ALIKE[_begin_alike(tables)]
        found.append(Section("Frameworks side by side", note, [], _backend_rows(backends)))
    return found


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


def _begin_alike(tables: Tables) -> bool:
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
    return runs.groupby("block").images_per_s.mean()


def _sorted(rows: list[dict[str, Any]], last: list[str]) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    if not rows:
        return table
    keys = [*(name for name in POINT if name not in ("jit", *last)), "policy", *last]
    # TensorFlow, with which the others are compared, comes first.
    keyed = table.assign(backend=table.backend.map(list(wording.NAMES).index))
    order = keyed.sort_values(keys, key=points.rank).index
    return table.loc[order].reset_index(drop=True)


# --- as text --------------------------------------------------------------------------------------


def _sentences(table: pd.DataFrame) -> list[str]:
    """What the most replicas give at the same batch per replica, a sentence per row."""
    known = table[table.speedup.notna()]
    most = known[known.replicas == known.replicas.max()]
    panels = wording.panels(most.assign(replicas=1, jit=False))
    return [
        f"On {panel}, {row['policy']}: {row['replicas']} replicas make {_ratio(row)} the images "
        f"per second of one, with {row['batch_per_replica']} images for each; efficiency "
        f"{row['efficiency']:.2f}."
        for panel, row in zip(panels, most.to_dict("records"), strict=True)
    ]


def _replica_rows(table: pd.DataFrame) -> pd.DataFrame:
    records = table.to_dict("records")
    columns = {
        **_varying(table, ["replicas", "batch_size"]),
        "Policy": table.policy,
        "Replicas": table.replicas,
        "Global batch": table.batch_size,
        "Batch per replica": table.batch_per_replica,
        **_speeds(table),
        "Speedup over 1 replica, same batch per replica [95 % interval]": map(_ratio, records),
        "Efficiency [95 % interval]": map(_efficiency, records),
        "Speedup over 1 replica, same global batch [95 % interval]": [
            _ratio(row, "strong_") for row in records
        ],
        "XLA": [_xla(row, "1 replica", ("base_jit", "strong_base_jit")) for row in records],
    }
    return _text(columns)


def _backend_rows(table: pd.DataFrame) -> pd.DataFrame:
    named = {"Framework": table.backend.map(wording.NAMES)}
    rows = _beside(table, "backend", named, "TensorFlow", table.backend == "tensorflow")
    xla = [_xla(row, "TensorFlow", ("base_jit",)) for row in table.to_dict("records")]
    return rows.assign(XLA=xla)


def _device_rows(table: pd.DataFrame) -> pd.DataFrame:
    named = {"Device": table.gpu_model}
    return _beside(table, "gpu_model", named, "the slowest", table.slowest)


def _beside(
    table: pd.DataFrame, axis: str, named: Mapping[str, pd.Series], base: str, is_base: pd.Series
) -> pd.DataFrame:
    """A row for each value of the axis beside the base, whose own ratio is 1."""
    ratios = map(_ratio, table.to_dict("records"))
    columns = {
        **_varying(table, [axis]),
        "Policy": table.policy,
        "Batch size": table.batch_size,
        **named,
        **_speeds(table),
        f"Images/s over {base}'s [95 % interval]": [
            "1" if itself else ratio for itself, ratio in zip(is_base, ratios, strict=True)
        ],
    }
    return _text(columns)


def _text(columns: Mapping[str, Any]) -> pd.DataFrame:
    made = pd.DataFrame({name: list(values) for name, values in columns.items()})
    return wording.without_blanks(made)


def _varying(table: pd.DataFrame, shown: list[str]) -> dict[str, pd.Series]:
    """What tells points apart and has no column of its own."""
    names = [n for n in POINT if n not in ("jit", "batch_size", *shown)]
    return wording.headed(table, [n for n in names if table[n].nunique() > 1])


def _speeds(table: pd.DataFrame) -> dict[str, list[str]]:
    return {
        "ms per step": ["–" if pd.isna(v) else f"{v * 1e3:,.2f}" for v in table.step_s],
        "Images/s": ["–" if pd.isna(v) else f"{v:,.0f}" for v in table.images_per_s],
    }


def _ratio(row: Mapping[str, Any], kind: str = "") -> str:
    return wording.ratio(*(row[f"{kind}{name}"] for name in FIGURES))


def _efficiency(row: Mapping[str, Any]) -> str:
    if pd.isna(row["efficiency"]):
        return "–"
    low, high = (row[name] / row["replicas"] for name in ("low", "high"))
    known = f" [{low:.2f}, {high:.2f}]" if not pd.isna(low) else ""
    return f"{row['efficiency']:.2f}{known}"


def _xla(row: Mapping[str, Any], base: str, names: tuple[str, ...]) -> str:
    """Whether XLA was on, and in what the row is compared with where that differs."""
    here = "on" if row["jit"] else "off"
    others = {"on" if row[name] else "off" for name in names if not pd.isna(row[name])} - {here}
    return f"{here} ({others.pop()} in {base}, so this ratio is of XLA too)" if others else here
