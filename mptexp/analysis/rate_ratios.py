"""Images per second over a baseline's: replicas, frameworks, frontends, devices, instructions.

A ratio here is images per second over the baseline's: above 1 is faster. Its interval holds for
all ratios of its table together. Where more differs than what is compared there is no ratio.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import (
    accuracy,
    contrast,
    points,
    simultaneous_intervals,
    speedups,
    validation_variance,
    validity,
)
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables, once
from mptexp.records.schema import STATUSES
from mptexp.spec.backends import BACKENDS
from mptexp.spec.run import defaults

# What an axis varies with it; see identity.FOLLOWS.
ALONG = {"replicas": ("replicas", "batch_size"), "backend": ("backend",)}
ALONG |= {"frontend": ("frontend",)}
ALONG |= {"gpu_model": ("gpu_model",), "cpu_isa": ("cpu_isa", "policy")}
FIGURES = ("speedup", "low", "high", "blocks")
# What the other values of an axis are compared with, and what may differ there beside the axis.
BASES = {"replicas": 1, "backend": "tensorflow", "frontend": "native"}
FREE = {"replicas": ["batch_size", "jit"], "backend": ["jit"], "frontend": []}
# How runs end that were tried: what is not supported, such as TensorFlow's plain loop, was not.
TRIED = [status for status in STATUSES if status != "unsupported"]


@once
def by_replicas(tables: Tables) -> pd.DataFrame:
    """Every point and policy that was measured on several numbers of replicas.

    Returns:
        Columns of POINT, policy, batch_per_replica, step_s, throughput (see `speedups.row_times`),
        logical (whether replicas are logical devices of a CPU); speedup, low, high, blocks, flags,
        differs (see `_over`) over one replica with the same batch per replica (weak scaling),
        base_jit (whether XLA was on in that one), efficiency (speedup / replicas); strong_speedup,
        strong_low, strong_high, strong_blocks, strong_flags, strong_differs, strong_base_jit over
        one replica with the same global batch; claimed, strong_claimed (see `_claimed`). NaN where
        there is none.
    """
    rows = []
    for point, group in _groups(tables.results, "replicas", ["batch_size", "jit"]):
        one = group[group.replicas == 1]
        for (replicas, size, jit), runs in group.groupby(["replicas", "batch_size", "jit"]):
            share = size // replicas
            others = one if replicas > 1 else one[:0]
            weak = _over(runs, others[others.batch_size == share], jit, "replicas", tables)
            strong = _over(runs, others[others.batch_size == size], jit, "replicas", tables)
            row = point | {"batch_size": size, "jit": jit, "replicas": replicas}
            row |= {"batch_per_replica": share, **speedups.times_of_row(runs)}
            row |= {"logical": bool((points.devices(runs) < runs.replicas).any()), **weak}
            rows.append(row | {f"strong_{name}": value for name, value in strong.items()})
    rows = _claimed(rows, ("", "strong_"))
    rows = [row | {"efficiency": row["speedup"] / row["replicas"]} for row in rows]
    return _sorted(rows, ["replicas", "batch_size"])


@once
def by_backend(tables: Tables) -> pd.DataFrame:
    """Every point and policy under several backends, over TensorFlow: see `_beside`."""
    groups = _groups(tables.results, "backend", ["jit"])
    rows = _beside(tables, groups, "backend", lambda runs: runs.backend == "tensorflow")
    return _sorted(rows, ["backend"])


@once
def by_frontend(tables: Tables) -> pd.DataFrame:
    """Every point and policy under Keras and under a plain loop, over the loop: see `_beside`.

    Below 1, Keras costs time.
    """
    groups = _groups(_apart(tables, "frontend"), "frontend", [])
    rows = _beside(tables, groups, "frontend", lambda runs: runs.frontend == "native")
    return _sorted(rows, ["frontend"])


@once
def by_device(tables: Tables) -> pd.DataFrame:
    """Every point and policy on several devices, over the slowest device: see `_beside`."""
    timed = tables.results.assign(throughput=points.throughput(tables.results))
    groups = _groups(timed.dropna(subset="throughput"), "gpu_model", ["jit"])
    return _sorted(_beside(tables, groups, "gpu_model", _on_the_slowest), ["gpu_model"])


def _on_the_slowest(runs: pd.DataFrame) -> pd.Series:
    return runs.gpu_model == speedups.row_times(runs, ["gpu_model"]).throughput.idxmin()


@once
def by_isa(tables: Tables) -> pd.DataFrame:
    """Every point under several CPU instruction sets: see `_beside`.

    Over float32 under the default ones.
    """
    ok = _apart(tables, "cpu_isa")
    groups = ok.groupby(POINT) if ok.cpu_isa.nunique() > 1 else ()
    named = [(dict(zip(POINT, point, strict=True)), runs) for point, runs in groups]
    rows = _beside(
        tables, named, "cpu_isa", lambda r: (r.cpu_isa == "default") & (r.policy == "float32")
    )
    return pd.DataFrame(rows)


def _beside(
    tables: Tables,
    groups: Iterable[tuple[dict[str, Any], pd.DataFrame]],
    axis: str,
    is_base: Callable[[pd.DataFrame], pd.Series],
) -> list[dict[str, Any]]:
    """The values of an axis side by side, in each group over the base's runs.

    Returns:
        Rows of POINT, policy, those of ALONG; is_base (whether the row is the base itself), step_s,
        throughput (see `speedups.row_times`); speedup (images per second over the base's), low,
        high, blocks, flags, differs (see `_over`), base_jit (whether XLA was on in the base),
        claimed (see `_claimed`).
    """
    rows = []
    for point, group in groups:
        keys, base = [*ALONG[axis], *["jit"] * ("jit" not in point)], is_base(group)
        for values, runs in group.groupby(keys):
            itself = bool(base[runs.index].all())
            row = point | dict(zip(keys, values, strict=True)) | {"is_base": itself}
            others = group[base & (not itself)]
            jit = row["jit"] if "jit" in keys else bool(runs.jit.iloc[0])
            rows.append(row | speedups.times_of_row(runs) | _over(runs, others, jit, axis, tables))
    return _claimed(rows)


@once
def learned(tables: Tables, axis: str) -> pd.DataFrame:
    """What trainings learned under the base of an axis and under each other value of it.

    Speed is no gain where less is learned. Several replicas stand beside one with the batch of
    each, and beside one with the batch of all, as in `by_replicas`.

    Args:
        axis: replicas, backend or frontend.

    Returns:
        Rows of POINT, policy, those of accuracy.COMPARED: the candidate is the side of which runs
        diverged, else that of the lower mean, so that it is never `higher`; faster (whether it
        takes the shorter steps); sizes (the batch sizes of the candidate and of the other).
    """
    rows = list[dict[str, Any]]()
    for point, group in _groups(_tried(tables, axis), axis, FREE[axis], ["ok", "diverged"]):
        bases = group[group[axis] == BASES[axis]]
        keys = [axis, *FREE[axis]]
        for _, side in group.drop(bases.index).groupby(keys, sort=False):
            beside = _bases_of(side, bases, axis)
            rows += [_learned(point, base, side, axis, tables) for base in beside]
    rows = [row for row in rows if row["over"].n]
    return pd.DataFrame(accuracy.claimed(rows, tables.options.equivalence_margin))


def _bases_of(side: pd.DataFrame, bases: pd.DataFrame, axis: str) -> list[pd.DataFrame]:
    """The runs at the base of an axis with which a side is compared, as in speed: see `_over`."""
    first = side.iloc[0]
    shares = [first.batch_size // first.replicas] * (axis == "replicas")
    found = []
    for size in [*shares, first.batch_size]:
        own = bases[bases.batch_size == size]
        like = own[own.jit == first.jit]
        found += [like if len(like) else own] * bool(len(own))
    return found


def _learned(
    point: dict[str, Any], base: pd.DataFrame, other: pd.DataFrame, axis: str, tables: Tables
) -> dict[str, Any]:
    """A row for `accuracy.claimed`: the side that learned less, or diverged, beside the other."""
    margin = tables.options.equivalence_margin
    sides = [(own, own[own.run_id.isin(tables.trained.run_id)]) for own in (base, other)]
    quality = [points.quality(own).groupby(own.block).mean() for _, own in sides]
    lost = [bool((own.status == "diverged").any()) for own, _ in sides]
    behind = contrast.paired(*quality, "difference").estimate > 0
    if lost[1] if lost[0] != lost[1] else behind:
        sides, quality, lost = sides[::-1], quality[::-1], lost[::-1]
    records = [tables.records_by_block(own) for _, own in sides]
    over = contrast.paired(*quality, "difference")
    apart = ["not comparable"] * bool(over.n and validity.across(*records, ALONG[axis]))
    rates = [speedups.times_of_row(own)["throughput"] for _, own in sides]
    names = [own[axis].iloc[0] for own, _ in sides]
    return point | {
        "candidate": names[0],
        "baseline": names[1],
        "sizes": tuple(int(own.batch_size.iloc[0]) for own, _ in sides),
        "jit": bool(base.jit.isin([True]).any()),  # it is `auto` of what was never compiled
        "margin": margin,
        "over": over,
        "spread": validation_variance.spread(*records, margin)
        if over.n
        else validation_variance.Spread(),
        "both": [validity.together([*own["flags"], *apart]) for _, own in sides[::-1]],
        "base_lost": lost[1],
        "diverged": lost[0],
        "faster": rates[0] > rates[1],
    }


@once
def endings(tables: Tables, axis: str) -> pd.DataFrame:
    """How the runs of each side along an axis ended: a setting that often fails is no gain.

    Args:
        axis: replicas, backend or frontend.

    Returns:
        Rows of POINT, policy, the axis; sizes (the batch size alone), jit; runs (how many were
        tried), lost (how many by status, of those that did not end well), fits (whether not all ran
        out of memory), gains (whether the side is not the slowest of those that it stands beside;
        or fits and has no time).
    """
    rows = []
    keys = [axis, *FREE[axis]]
    for point, group in _groups(_tried(tables, axis), axis, FREE[axis], TRIED):
        sides = [own for _, own in group.groupby(keys, sort=False)]
        rates = [speedups.times_of_row(own)["throughput"] for own in sides]
        for own, rate in zip(sides, rates, strict=True):
            lost = own.status[own.status != "ok"].value_counts().to_dict()
            fits = bool((own.status != "oom").any())
            row = point | {axis: own[axis].iloc[0], "jit": own.jit.iloc[0], "runs": len(own)}
            row |= {"sizes": (int(own.batch_size.iloc[0]),), "lost": lost, "fits": fits}
            gains = fits if np.isnan(rate) else bool(rate > np.nanmin(rates))
            rows.append(row | {"gains": gains})
    return pd.DataFrame(rows)


def _tried(tables: Tables, axis: str) -> pd.DataFrame:
    """All runs, however they ended; of Keras and plain loops no well-ended one without a time."""
    of_keras = axis == "frontend"
    return speedups.with_jit(_apart(tables, axis, tables.results) if of_keras else tables.results)


def begin_alike(tables: Tables) -> bool:
    """Whether the runs of a block had the same initial weights under all backends."""
    began = {r["run_id"]: r.get("in_force", {}).get("initial_weights") for r in tables.records}
    return all(
        runs.run_id.map(began).nunique(dropna=False) == 1
        for _, group in _groups(tables.results, "backend", ["jit"])
        for _, runs in group.groupby("block")
    )


def _apart(tables: Tables, name: str, runs: pd.DataFrame | None = None) -> pd.DataFrame:
    """The timed runs with a parameter in a column of its own, taken out of their setting.

    Args:
        runs: those that are asked for, if not only those that ended well; of these the timed ones.
    """
    usual = defaults()[name]
    asked = {r["run_id"]: r["parameters"].get(name, usual) for r in tables.records}
    runs = validity.comparable(tables.ok if runs is None else runs)
    runs = runs.assign(throughput=points.throughput(runs))
    runs = runs[runs.throughput.notna() | (runs.status != "ok")]
    others = runs.setting.astype(str).str.replace(rf"(, )?{name} \w+", "", regex=True)
    others = others.str.removeprefix(", ")
    return runs.assign(**{name: runs.run_id.map(asked), "setting": others})


def _groups(
    results: pd.DataFrame, axis: str, free: list[str], ended: Sequence[str] = ("ok",)
) -> list[tuple[dict, pd.DataFrame]]:
    """What is alike but for the axis and the free columns, where the axis varies.

    Args:
        ended: the statuses of the runs that count.
    """
    keys = [*(name for name in POINT if name not in (axis, *free)), "policy"]
    ok = validity.comparable(results[results.status.isin(ended)])
    groups = ok.groupby(keys) if len(ok) else []
    return [(dict(zip(keys, p, strict=True)), g) for p, g in groups if g[axis].nunique() > 1]


def _over(
    runs: pd.DataFrame, others: pd.DataFrame, jit: bool, axis: str, tables: Tables
) -> dict[str, Any]:
    """Images per second over those of other runs: with the same use of XLA where there are such.

    Returns:
        over (a Contrast), flags (what is not valid of the runs of both sides), differs (what they
        differ in beyond the axis: then there is no ratio), base_jit, ends (those that
        `Tables.claims` has of these runs, or None).
    """
    like = others[others.jit == jit]
    others = like if len(like) else others
    runs, others = validity.timed_together(runs), validity.timed_together(others)
    sides = [tables.records_by_block(side) for side in (runs, others)]
    apart = ""
    if axis != "gpu_model":  # no call measures two devices beside one another
        # One replica's batch is smaller: its runs are not measured next to those of several.
        kept, apart = validity.in_one_call(*sides, None if axis == "replicas" else tables.parts)
        runs, others = (side[side.block.isin(kept)] for side in (runs, others))
        sides = [{block: side[block] for block in kept} for side in sides]
    differs = validity.across(*sides, ALONG[axis])
    over = Contrast() if differs else contrast.paired(_rates(runs), _rates(others))
    flags = validity.together([*runs["flags"], *others["flags"], apart]) if over.n else ""
    base_jit = others.jit.iloc[0] if over.n else np.nan
    ids = [side.set_index("block").run_id.to_dict() for side in (runs, others)]
    ends = tables.ends_by_runs.get(speedups.sides_of(*ids)) if over.n else None
    made = {"over": over, "flags": flags, "differs": tuple(differs), "base_jit": base_jit}
    return made | {"ends": ends}


def _claimed(rows: Sequence[dict[str, Any]], kinds: Sequence[str] = ("",)) -> list[dict[str, Any]]:
    """The rows with their ratios in columns, whose intervals hold for all valid ones together.

    A ratio of runs that the table of the same batch size compares too has its interval, and is none
    of these: `claimed`.
    """
    places = [(row, kind) for row in rows for kind in kinds]
    valid = [not validity.invalid(row[f"{kind}flags"], "time") for row, kind in places]
    overs, known = ([row.pop(f"{kind}{n}") for row, kind in places] for n in ("over", "ends"))
    own = [ok and ends is None for ok, ends in zip(valid, known, strict=True)]
    wide = simultaneous_intervals.together(overs, among=own)
    for (row, kind), over, ok, ends in zip(places, wide, valid, known, strict=True):
        figures = over.columns("speedup") if over.n else dict.fromkeys(FIGURES, np.nan)
        figures |= {"claimed": ends is not None}
        figures |= dict(zip(("low", "high"), ends, strict=True)) if ok and ends else {}
        row |= {f"{kind}{name}": value for name, value in figures.items()}
    return list(rows)


def _rates(runs: pd.DataFrame) -> pd.Series:
    return points.throughput(runs).groupby(runs.block).mean()


def _sorted(rows: list[dict[str, Any]], last: list[str]) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    if not rows:
        return table
    keys = [*(name for name in POINT if name not in ("jit", *last)), "policy", *last]
    # TensorFlow, with which the others are compared, comes first.
    keyed = table.assign(backend=table.backend.map(BACKENDS.index))
    order = keyed.sort_values(keys, key=points.rank).index
    return table.loc[order].reset_index(drop=True)
