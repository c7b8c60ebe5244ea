"""Points of a sweep: what runs share to be compared, and their values paired within blocks."""

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mptexp.spec import tasks
from mptexp.spec.policies import POLICIES

# What two runs must share to be compared, or to be repeats of one another under one policy.
POINT = ["gpu_model", "backend", "dataset", "model", "batch_size", "jit", "input_mode", "phase"]
POINT += ["replicas", "setting"]
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?")


def devices(runs: pd.DataFrame) -> pd.Series:
    """How many devices each run takes: one a replica, but for those that are parts of one CPU."""
    on_cpu = runs.device.fillna("").astype(str).str.endswith("(CPU)")
    return runs.replicas.where(~on_cpu, 1)


def by_block(
    runs: pd.DataFrame, value: str, keys: Sequence[str] = POINT
) -> Iterator[tuple[tuple, str, dict[str, np.ndarray]]]:
    """Every point, its default policy, and each policy's values there: one per block, or NaN.

    One pivot for all points, by their numbers: one for each point, or over all keys, takes many
    times as long.
    """
    runs = runs.dropna(subset=[value, *keys])
    if runs.empty:
        return
    runs = runs.assign(point=runs.groupby(list(keys)).ngroup())
    table = runs.pivot_table(index=["point", "block"], columns="policy", values=value)
    places = table.index.get_level_values("point")
    first = np.flatnonzero(~places.duplicated())
    heads = runs.drop_duplicates("point").sort_values("point")
    points = heads[list(keys)].itertuples(index=False, name=None)
    parts = np.split(table.to_numpy(float), first[1:])
    for point, default, rows in zip(points, heads.default_policy, parts, strict=True):
        known = dict(zip(table, rows.T, strict=True))
        yield point, default, {p: v for p, v in known.items() if not np.isnan(v).all()}


def sharing(
    table: pd.DataFrame, row: Mapping[str, Any] | pd.Series, names: Iterable[str] = POINT
) -> pd.DataFrame:
    """The rows of a table that have the values of one in some columns."""
    asked = pd.Series({name: row[name] for name in names})
    return table[(table[[*asked.index]] == asked).all(axis=1)]


def of_task(table: pd.DataFrame, task: tasks.Task) -> pd.DataFrame:
    """The rows of a table with a column dataset that are of a task."""
    return table[np.array([tasks.of(dataset) is task for dataset in table.dataset], bool)]


def throughput(runs: pd.DataFrame) -> pd.Series:
    """Units of each run's task per second, such as images; NaN where timings are not valid."""
    return _first([runs[rate] for rate in tasks.RATES if rate in runs])


def geometric_mean(values: pd.Series | np.ndarray) -> float:
    """The typical one of several times or rates: of two policies' the quotient is their ratio.

    As long as both have the same blocks, for a ratio is the geometric mean of those of the blocks.
    Blocks without a value (NaN) are left out; NaN of none.
    """
    return float(np.exp(np.log(pd.to_numeric(pd.Series(values))).mean()))


def quality(runs: pd.DataFrame) -> pd.Series:
    """What trainings of a task are compared by, more is better.

    Accuracy, a fraction; or minus the loss per token in nats, the logarithm of the perplexity: a
    hundredth of it is a percent of perplexity.
    """
    shown = {"val_accuracy": lambda value: value, "val_perplexity": lambda value: -np.log(value)}
    return _first([of(pd.to_numeric(runs[name])) for name, of in shown.items() if name in runs])


def _first(columns: Sequence[pd.Series]) -> pd.Series:
    """Of several columns the value that a row has."""
    first, *others = (pd.to_numeric(column) for column in columns)
    for other in others:
        first = first.fillna(other)
    return first


def baselines(default: str, times: Container[str]) -> list[str]:
    """The device's default and strict float32, where they are among a point's policies."""
    wanted = dict.fromkeys([default, "float32"])
    return [name for name in wanted if name in times]


def rank(column: pd.Series) -> pd.Series:
    """Sort key for a column: policies in the order of spec.POLICIES, numbers in text by value."""
    if column.name == "policy":
        return column.map(POLICIES.index)
    return column.map(_by_number) if column.name == "setting" else column


def _by_number(text: str) -> tuple[tuple[float, str], ...]:
    """Sorts `loss_scale 8` before `loss_scale 128`, and words behind numbers."""
    words = re.split(r"[ ,]+", text)
    return tuple((float(w), "") if NUMBER.fullmatch(w) else (math.inf, w) for w in words)
