"""What a policy gains at a batch size for which its baseline has no memory."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy, memory, validity
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables, once
from mptexp.report.answers import quality
from mptexp.report.text import task_words, wording
from mptexp.report.text.wording import verbatim

KEYS = [name for name in POINT if name != "batch_size"]
WORSE = ("lower", "diverged")  # verdicts on accuracy, at any batch size, that make it worthless


@once
def gains(tables: Tables) -> pd.DataFrame:
    """The gains that are proven, the largest first, as rows of `speedups.best_batches`.

    Each policy is at its own best batch size, at which no run of the baseline had room. With
    base_size, that of the baseline, default_policy, the device's, and room, the memory allowed;
    place and device tell a row from the others of the sweep, and are empty where it has one. Not of
    policies that are known to lose accuracy, nor of batch sizes at which they do, or some of their
    runs have no result; none where it is doubtful what had no memory.
    """
    table = _told_apart(tables.best_batches)
    names = {"policy": "baseline", "batch_size": "base_size", "largest": "base_largest"}
    names["too_large"] = "base_too_large"
    bases = table[table.policy == table.baseline][[*KEYS, *names]].rename(columns=names)
    own = table[table.policy != table.baseline].merge(bases, on=[*KEYS, "baseline"])
    own = own[(own.batch_size >= own.base_too_large) & (own.batch_size > own.base_largest)]
    own = own[(own.low > 1) & (own.speedup.round(2) > 1)]
    own = validity.sound(own, "time")
    found = accuracy.differences(tables)
    worse = set(found.candidate[found.verdict.isin(WORSE)])
    own = own[~own.policy.isin(worse) & memory.is_relied_on(tables)]
    fed = own[own.input_mode != "resident"]  # on one batch nobody trains
    own = fed if (tables.ok.input_mode != "resident").any() else own
    behind = [
        accuracy.falls_behind(
            tables, row, row | {"policy": row["baseline"], "batch_size": row["base_size"]}
        )
        for row in own.to_dict("records")
    ]
    own = own[~np.array(behind, bool)]
    defaults = tables.ok.groupby("gpu_model").default_policy.first()
    own = own.assign(default_policy=own.gpu_model.map(defaults))
    own = own.assign(room=quality.room(tables))
    return own.sort_values("speedup", ascending=False, kind="stable")


def _told_apart(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with their place and device, where the table has several."""
    places, devices = wording.places(table.assign(batch_size=0, gpu_model="")), table.gpu_model
    named = [place.removeprefix("batch size 0").strip(", ") for place in places]
    several = devices.nunique() > 1
    return table.assign(place=named, device=devices if several else "")


def title(tables: Tables) -> str:
    """`bfloat16 at batch size 128, where float32 runs out of memory, trains 2.13× faster than ...`.

    Both sides have their batch size: at that of the title there is no other side.
    """
    row = gains(tables).iloc[0].to_dict()
    place = f"{wording.at(row['place'])} " if row["place"] else ""
    own = f"{row['policy']} {place}{_room(row)}, {_faster(row)}"
    return f"{own} than {_base(row)} at {row['base_size']:,} on {row['gpu_model']}"


def advice(tables: Tables) -> str:
    """What to do about the largest of these gains, of which no accuracy is compared."""
    row = gains(tables).iloc[0].to_dict()
    own = "training" if row["phase"] == "train" else "model"
    first = ""
    if row["baseline"] != row["default_policy"]:
        name = verbatim(wording.default_name(row["default_policy"]))
        first = f"measure {name}, the default here, which may gain as much, before you "
    measure = task_words.of(row["dataset"]).name
    what = f"use **{row['policy']}** {_there(row)}{_room(row)}"
    return (
        f"{first}{what}, and look at its {measure} in your own {own}: at that batch size there is "
        "none to compare it with."
    )


def label(row: Mapping[str, Any]) -> str:
    """A gain in a chart whose other bars compare policies at one batch size."""
    base = wording.default_name(row["baseline"])
    place = f", {row['place']}" * bool(row["place"])
    return (
        f"{row['policy']}{place}, batch size {row['batch_size']:,} ({base}: {row['base_size']:,})"
    )


def sentence(tables: Tables) -> str:
    """All of these gains with their intervals; empty where there is none."""
    said = [
        f"**{row['policy']}** {_there(row)}{_room(row)}, {_faster(row)} "
        f"{wording.ends(row['low'], row['high'])} than {_base(row)} at {row['base_size']:,}"
        for row in gains(tables).to_dict("records")
    ]
    return f"Each at its best batch size: {'; '.join(said)}." if said else ""


def _faster(row: Mapping[str, Any]) -> str:
    """`trains 2.13× faster`."""
    return f"{wording.DOES[row['phase']]} {wording.factor(row['speedup'])}× faster"


def _there(row: Mapping[str, Any]) -> str:
    """`on A100 with model vit `, Markdown: what tells the point from others; empty of one alone."""
    device = f"on {verbatim(row['device'])} " * bool(row["device"])
    return device + (f"{wording.at(verbatim(row['place']))} " if row["place"] else "")


def _base(row: Mapping[str, Any]) -> str:
    strict = wording.strict(row["baseline"], row["default_policy"])
    return f"{strict}{wording.default_name(row['baseline'])}"


def _room(row: Mapping[str, Any]) -> str:
    """`at batch size 128, where float32 runs out of memory`; of a limit, `does not fit in 4 GB`."""
    lacks = f"does not fit{row['room']}" if row["room"] else "runs out of memory"
    base = wording.default_name(row["baseline"])
    return f"at batch size {row['batch_size']:,}, where {base} {lacks}"
