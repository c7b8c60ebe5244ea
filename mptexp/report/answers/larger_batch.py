"""What a policy gains at a batch size for which its baseline has no memory."""

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy, validity
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables, once
from mptexp.report.text import wording
from mptexp.report.text.wording import verbatim

KEYS = [name for name in POINT if name not in ("batch_size", "jit")]
WORSE = ("lower", "diverged")  # verdicts on accuracy at any batch size that take the gain's worth


@once
def gains(tables: Tables) -> pd.DataFrame:
    """The gains that are proven, the largest first, as rows of `speedups.best_batches`.

    Each policy is at its own best batch size. With base_size, that of the baseline, and place, what
    tells a row from the others. Not of policies that are known to lose accuracy.
    """
    table = tables.best_batches
    names = {"policy": "baseline", "batch_size": "base_size", "too_large": "base_too_large"}
    bases = table[table.policy == table.baseline][[*KEYS, "jit", *names]].rename(columns=names)
    own = table[table.policy != table.baseline].merge(bases, on=[*KEYS, "jit", "baseline"])
    own = own[(own.batch_size >= own.base_too_large) & (own.low > 1) & (own.speedup.round(2) > 1)]
    # As an array: of no rows a list would choose no columns.
    own = own[np.array([not validity.invalid(flags, "time") for flags in own["flags"]], bool)]
    found = accuracy.differences(tables)
    worse = set(found.candidate[found.verdict.isin(WORSE)])
    own = own[~own.policy.isin(worse)].sort_values("speedup", ascending=False, kind="stable")
    places = wording.places(own.assign(batch_size=0)) if len(own) > 1 else [""] * len(own)
    return own.assign(place=[place.removeprefix("batch size 0").strip(", ") for place in places])


def title(tables: Tables) -> str:
    """`bfloat16 trains 2.13× faster than float32 on A100 at batch size 128, for which ...`."""
    best = gains(tables).iloc[0]
    where = f" {wording.at(best.place)}" * bool(best.place)
    return (
        f"{best.policy} {wording.DOES[best.phase]} {wording.factor(best.speedup)}× faster than "
        f"{wording.default_name(best.baseline)} on {best.gpu_model}{where}, {_room(best)}"
    )


def advice(tables: Tables) -> str:
    """What to do about the largest of these gains, of which no accuracy is compared."""
    best = gains(tables).iloc[0]
    own = "training" if best.phase == "train" else "model"
    return (
        f"use **{best.policy}** {_room(best)}, and look at what it learns in your own {own}: "
        "accuracies at two batch sizes were not compared."
    )


def sentence(tables: Tables) -> str:
    """All of these gains with their intervals; empty where there is none."""
    rows = gains(tables).to_dict("records")
    if not rows:
        return ""
    said = [
        f"**{row['policy']}** {wording.DOES[row['phase']]} {wording.factor(row['speedup'])}× faster"
        f"{' ' * bool(row['place'])}{wording.at(verbatim(row['place'])) if row['place'] else ''} "
        f"{_room(pd.Series(row))}, than {wording.default_name(row['baseline'])} at its best, "
        f"{row['base_size']:,} {wording.ends(row['low'], row['high'])}"
        for row in rows
    ]
    return f"Each at its best batch size: {'; '.join(said)}."


def _room(row: pd.Series) -> str:
    """`at batch size 128, for which float32 has no memory`."""
    base = wording.default_name(row.baseline)
    return f"at batch size {row.batch_size:,}, for which {base} has no memory"
