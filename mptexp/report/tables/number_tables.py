"""Tables of numbers for programs: speedups.csv, and the CSV files of an export beside it."""

from dataclasses import dataclass

import pandas as pd

from mptexp.analysis import accuracy, points, summary
from mptexp.analysis import speedups as ratios
from mptexp.analysis.sweep_tables import Tables
from mptexp.records.csv_columns import COLUMNS as OF_RESULTS
from mptexp.report.text import wording
from mptexp.spec import tasks

SPEEDUPS, TABLE = "speedups.csv", "table.csv"
BEST, ACCURACY = "best_batch_size.csv", "accuracy.csv"
FILES = (SPEEDUPS, TABLE, BEST, ACCURACY)
# `low` and `high` are of a point alone, as in speedups.csv; of a whole sweep is a claim.
CLAIM = {"low": "claim_low", "high": "claim_high"}
STRICT_CLAIM = {f"strict_{name}": f"strict_{claim}" for name, claim in CLAIM.items()}


@dataclass(frozen=True)
class Column:
    """A column of some of FILES; empty where a row has no such value.

    Args:
        name: SI units, with the unit in the name.
        meaning: what it holds, for a reader.
        files: those that have it.
    """

    name: str
    meaning: str
    files: tuple[str, ...] = FILES


def _as_in_results(names: str, meaning: str, *files: str) -> list[Column]:
    """Columns of results.csv, each with its meaning there and what it is of several runs."""
    found = [(name, OF_RESULTS[name].meaning) for name in names.split()]
    return [Column(name, meaning.format(known), files or FILES) for name, known in found]


def _of_figures() -> list[Column]:
    """Each task's figure in table.csv."""
    made = []
    for task in tasks.TASKS.values():
        known = f"{task.measure} of the last validation"
        mean = "mean" if task is tasks.IMAGES else "geometric mean"
        made += [
            Column(task.column, f"{known}, {mean} over repeats", (TABLE,)),
            Column(f"{task.column}_low", f"{known}, least of the repeats", (TABLE,)),
            Column(f"{task.column}_high", f"{known}, most of the repeats", (TABLE,)),
            Column(f"{task.column}_n", f"repeats that have {task.column}", (TABLE,)),
        ]
    return made


WITH_SPEEDUP = (SPEEDUPS, TABLE, BEST)
MEAN, MEDIAN = "{}; geometric mean over repeats", "{}; median over repeats"
POOLED = "{}; of the batches of all repeats"
COLUMNS = {
    column.name: column
    for column in (
        *_as_in_results(" ".join(n for n in points.POINT if n != "batch_size"), "{}"),
        Column("batch_size", "images, or sequences, per step, over all replicas"),
        Column("policy", "precision policy that the row is about", (TABLE, BEST)),
        Column("candidate", "precision policy that the row is about", (SPEEDUPS, ACCURACY)),
        Column("baseline", "precision policy that it is compared with; empty where none is"),
        Column("speedup", "baseline time / policy time: above 1 is faster", WITH_SPEEDUP),
        Column("difference", "accuracy - that of the baseline, a fraction; of a text minus the "
               "difference in loss per token", (ACCURACY,)),
        Column("low", "lower end of the speedup's 95 % interval for this row alone", (SPEEDUPS,)),
        Column("high", "upper end of the same", (SPEEDUPS,)),
        Column("claim_low", "lower end of the 95 % interval of speedup or difference that holds "
               "for the whole sweep together: claims rest on it"),
        Column("claim_high", "upper end of the same"),
        Column("blocks", "repeats in which both were measured"),
        Column("flags", "what is not valid of the comparison, separated by ;"),
        Column("finding", "what the page says: faster, slower, inconclusive, no interval or not "
               "valid", (SPEEDUPS,)),
        *_as_in_results("step_s", MEAN, TABLE),
        *_as_in_results(" ".join(tasks.RATES), MEAN, TABLE, BEST),
        *_as_in_results(" ".join((*summary.ACHIEVED, *summary.WINDOWS)), MEAN, TABLE),
        *_as_in_results(" ".join(summary.LATENCIES), POOLED, TABLE),
        Column("repeats", "runs that ended well", (TABLE,)),
        *_of_figures(),
        *_as_in_results("peak_memory_bytes", MEDIAN, TABLE),
        *_as_in_results("emulated default_policy", "{}", TABLE),
        *_as_in_results("effective_share", "{}; least of the repeats", TABLE),
        Column("run_flags", "what is not valid of the row's own runs, separated by ;", (TABLE,)),
        Column("strict_speedup", "speedup over strict float32, TF32 off", (TABLE,)),
        Column("strict_claim_low", "claim_low of strict_speedup", (TABLE,)),
        Column("strict_claim_high", "claim_high of strict_speedup", (TABLE,)),
        Column("strict_blocks", "blocks of strict_speedup", (TABLE,)),
        Column("strict_flags", "flags of strict_speedup", (TABLE,)),
        Column("largest", "largest batch size that ran", (BEST,)),
        Column("too_large", "smallest batch size above it that ran out of memory", (BEST,)),
        Column("images", "validation images, or sequences, that are compared; 0: not known",
               (ACCURACY,)),
        Column("margin", "difference within which the two are called equal", (ACCURACY,)),
        Column("verdict", "equal, lower, higher, undecided, or why nothing can be said",
               (ACCURACY,)),
    )
}  # fmt: skip


def speedups(tables: Tables) -> pd.DataFrame:
    """The table of speedups.csv: every ratio with both its intervals, and what the page says."""
    said = [wording.finding(row) for row in tables.claims.to_dict("records")]
    return tables.speedups.assign(finding=pd.Series(said, tables.speedups.index, dtype=object))


def headline(tables: Tables) -> pd.DataFrame:
    """The headline table in numbers: a row per point and policy."""
    return _with_rates(summary.headline(tables)).rename(columns=CLAIM | STRICT_CLAIM)


def best_batch_sizes(tables: Tables) -> pd.DataFrame:
    """Every policy at its best batch size; empty where one size was measured."""
    return _with_rates(ratios.at_best_batch(tables)).rename(columns=CLAIM)


def accuracies(tables: Tables) -> pd.DataFrame:
    """Differences in accuracy, or in a text's loss: a row per point and pair."""
    return accuracy.differences(tables).drop(columns="least_half").rename(columns=CLAIM)


def _with_rates(table: pd.DataFrame) -> pd.DataFrame:
    """A table with its throughput in a column for each unit that rows have, as in results.csv."""
    units = table.dataset.map(tasks.of)
    known = {
        task.rate: table.throughput.where(units == task)
        for task in tasks.TASKS.values()
        if (units == task).any()
    }
    names = [n for name in table for n in (known if name == "throughput" else [name])]
    return table.assign(**known)[names]
