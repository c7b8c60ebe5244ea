"""What a policy does to accuracy: differences with intervals, equivalence, time to a target."""

import math

import numpy as np
import pandas as pd

from mptexp.analysis import contrast, points
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.spec.policies import POLICIES


def differences(tables: Tables, margin: float, confidence: float = 0.95) -> pd.DataFrame:
    """Difference of every policy's last validation accuracy from its baselines'.

    Differences are formed within a block; low and high are Student's t interval over the blocks,
    empty below three. A policy is `equal` where the whole interval lies within the margin, which
    is the test of equivalence by two one-sided tests at half of (1 - confidence) each (Schuirmann
    1987); else `lower` or `higher` where the interval leaves zero out, else `undecided`.

    Args:
        margin: largest difference that counts as equal, a fraction (0.01 is one percentage point).
        confidence: nominal coverage of the interval.

    Returns:
        Columns of POINT, baseline, candidate, difference (candidate - baseline, a fraction), low,
        high, blocks, margin, verdict.
    """
    names = ["difference", "low", "high", "blocks", "margin", "verdict"]
    rows = []
    trained = tables.trained.dropna(subset="val_accuracy")
    for point, default, table in points.by_block(trained, "val_accuracy"):
        for baseline in points.baselines(default, table):
            for candidate in [p for p in POLICIES if p in table and p != baseline]:
                over = contrast.paired(table[candidate], table[baseline], "difference", confidence)
                if over.n:
                    figures = over.columns("difference").values()
                    ends = [margin, verdict(over.low, over.high, margin)]
                    rows.append([*point, baseline, candidate, *figures, *ends])
    return pd.DataFrame(rows, columns=[*POINT, "baseline", "candidate", *names])


def beside_first(table: pd.DataFrame) -> pd.DataFrame:
    """Of `differences`, at each point those from the first baseline.

    That is the device's default where it was measured.
    """
    return table[table.baseline == table.groupby(POINT).baseline.transform("first")]


def verdict(low: float, high: float, margin: float) -> str:
    """What an interval of a difference allows to be said."""
    if math.isnan(low):
        return "too few repeats"
    if -margin < low and high < margin:
        return "equal"
    return "lower" if high < 0 else "higher" if low > 0 else "undecided"


def target(tables: Tables) -> float | None:
    """The validation accuracy to reach: the params file's, else what every run reached.

    The latter is rounded down to a whole percentage point; None where nothing was learned, or the
    time that it took is not valid.
    """
    if tables.ok.step_s.isna().all():
        return None
    if tables.options.target_accuracy:
        return tables.options.target_accuracy
    best = tables.history[tables.history.run_id.isin(tables.trained.run_id)]
    best = best.groupby("run_id").val_accuracy.max().dropna()
    reached = math.floor(best.min() * 100 + 1e-9) / 100 if len(best) else 0.0
    return reached or None


def seconds_to(tables: Tables, wanted: float) -> pd.Series:
    """Seconds from the first step to the end of the first epoch that reaches an accuracy.

    Compilation and validation included. One value per run that trained, by run_id; infinite where
    the accuracy was not reached.
    """
    learned = tables.history.dropna(subset="val_accuracy")
    reached = learned.assign(elapsed_s=learned.elapsed_s.where(learned.val_accuracy >= wanted))
    return reached.groupby("run_id").elapsed_s.min().fillna(np.inf)
