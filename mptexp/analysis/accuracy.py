"""What a policy does to accuracy: differences with intervals, equivalence, time to a target."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from mptexp.analysis import contrast, points, validity
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.spec.policies import POLICIES

# Verdicts of comparisons that cannot say anything, whatever their interval.
UNDECIDABLE = ("too few repeats", "not trained", "not valid", "too few images")


def differences(tables: Tables, margin: float, confidence: float = 0.95) -> pd.DataFrame:
    """Difference of every policy's last validation accuracy from its baselines'.

    Differences are formed within a block; low and high are Student's t interval over the blocks,
    empty below three. A policy is `equal` where the whole interval lies within the margin, which
    is the test of equivalence by two one-sided tests at half of (1 - confidence) each (Schuirmann
    1987); else `lower` or `higher` where the interval leaves zero out, else `undecided`. It is
    never equal where the baseline is at chance level (`not trained`) or where so few images were
    validated with that they could not show a difference of the margin (`too few images`). What
    is not valid of a run's accuracy for other reasons makes the verdict `not valid`.

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
    trained = validity.comparable(trained)
    flags = trained.groupby([*POINT, "policy"])["flags"].agg(validity.together).to_dict()
    images = {r["run_id"]: r.get("in_force", {}).get("validation_images") for r in tables.records}
    fewest = trained.assign(images=trained.run_id.map(images)).groupby(POINT).images.min().to_dict()
    for point, default, table in points.by_block(trained, "val_accuracy"):
        for baseline in points.baselines(default, table):
            for candidate in [p for p in POLICIES if p in table and p != baseline]:
                over = contrast.paired(table[candidate], table[baseline], "difference", confidence)
                if over.n:
                    figures = over.columns("difference").values()
                    both = [flags[*point, p] for p in (baseline, candidate)]
                    allowed = _not_allowed(both, fewest.get(point), margin)
                    ends = [margin, allowed or verdict(over.low, over.high, margin)]
                    rows.append([*point, baseline, candidate, *figures, *ends])
    return pd.DataFrame(rows, columns=[*POINT, "baseline", "candidate", *names])


def _not_allowed(flags: Sequence[str], images: float | None, margin: float) -> str:
    """Why nothing may be said of a difference, as a verdict; empty where something may.

    Args:
        flags: of the baseline's runs and of the candidate's. A candidate at chance level beside a
            baseline that learned is lower; only the baseline's own failure forbids a comparison.
        images: the fewest that were validated with; None where it is not known.
        margin: largest difference that counts as equal.
    """
    names = [[flag.name for flag in validity.invalid(side, "accuracy")] for side in flags]
    if "not trained" in names[0]:
        return "not trained"
    if any(name != "not trained" for side in names for name in side):
        return "not valid"
    # Of n images without a single difference, the true share that differs may be 3 / n (the rule
    # of three, at 95 %).
    known = images is not None and not math.isnan(images)
    return "too few images" if known and 3 / max(images, 1) > margin else ""


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
    if len(validity.without(tables.trained, "not trained")) < len(tables.trained):
        return None  # a level that guessing reaches is none
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
