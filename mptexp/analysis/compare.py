"""Two sweeps side by side: the same points joined, and what else differs between them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from scipy import stats

from mptexp.analysis import contrast, identity, speedups, sweep_tables
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.records.tables import history_table
from mptexp.spec import params
from mptexp.spec.run import Run

# The device may differ: that is often what is compared.
JOINED = [name for name in POINT if name != "gpu_model"] + ["policy"]
# What wanders by itself says nothing of what differs.
WANDERING = ("load", "swap_used_bytes", "clean")


def load(a: SweepDir, b: SweepDir) -> tuple[Tables, Tables]:
    """Both sweeps, with settings named so that they differ between the two as well.

    Raises:
        params.ParamsError: where a directory holds no record.
    """
    records = [store.read_records(place)[0] for place in (a, b)]
    for place, own in zip((a, b), records, strict=True):
        if not own:
            raise params.ParamsError(
                f"{place.root}: holds no record of a run; give the directory of a sweep, such as "
                "reports/quickstart"
            )
    return _tables(a, records[0], records[1]), _tables(b, records[1], records[0])


def disjoint(a: Tables, b: Tables) -> dict[str, tuple[list[str], list[str]]]:
    """The parameters that have no value in common, with the values of both sides.

    They are why no point can be joined.
    """
    sides = [[r["parameters"] for r in side.records] for side in (a, b)]
    apart = {}
    for name in Run.model_fields:
        left, right = (sorted({str(run[name]) for run in side}) for side in sides)
        if name not in ("gpu_model", "seed", "block") and not set(left) & set(right):
            apart[name] = (left, right)
    return apart


def _tables(place: SweepDir, own: Sequence[dict], other: Sequence[dict]) -> Tables:
    results = sweep_tables.flagged(own, place.name, beside=other)
    ratios, history = speedups.at_same_batch(results), history_table(own)
    return Tables(results, history, ratios, list(own), [], sweep_tables.options(place))


def points(a: Tables, b: Tables) -> pd.DataFrame:
    """The points that both sweeps measured, for each pair of devices.

    A device that both sweeps have is compared with itself alone.

    The runs of two sweeps share no block, and each sweep is one session: their ratio is shown, and
    no interval of it is claimed.

    Returns:
        Columns of JOINED, device_a, device_b, step_s_a, step_s_b (seconds, geometric means), ratio
        (step_s_a / step_s_b: above 1, B is faster), low, high (empty), runs_a, runs_b,
        val_accuracy_a, val_accuracy_b (means), peak_memory_bytes_a, peak_memory_bytes_b
        (medians), and cost_per_million_images_a and _b where the params file of both has a
        price_per_hour.
    """
    sides = [dict(list(side.ok.groupby([*JOINED, "gpu_model"]))) for side in (a, b)]
    rows = [
        dict(zip(JOINED, left[:-1], strict=True))
        | {"device_a": left[-1], "device_b": right[-1]}
        | _compared(sides[0][left], sides[1][right], a, b)
        for left in sides[0]
        for right in sides[1]
        if left[:-1] == right[:-1] and _comparable(left, right, sides)
    ]
    rows.sort(key=lambda row: [str(row[n]).zfill(9) for n in JOINED[:-1]])
    return pd.DataFrame(rows)


def _comparable(left: tuple, right: tuple, sides: Sequence[Mapping[tuple, Any]]) -> bool:
    """A device is compared with itself where both sweeps have it, else with every other."""
    return left == right or (left not in sides[1] and right not in sides[0])


def _compared(left: pd.DataFrame, right: pd.DataFrame, a: Tables, b: Tables) -> dict[str, Any]:
    left, right = (side.assign(step_s=pd.to_numeric(side.step_s)) for side in (left, right))
    # Each sweep is one session. How much a day matters, a session does not say: an interval from
    # its runs would call 18 to 72 % of sweeps of like machines different, at drifts of 1 to 5 %.
    ratio = contrast.unpaired(left.step_s, right.step_s).estimate
    row: dict[str, Any] = {"ratio": ratio, "low": math.nan, "high": math.nan}
    for name, side, tables in (("a", left, a), ("b", right, b)):
        row |= {
            f"step_s_{name}": stats.gmean(side.step_s),
            f"runs_{name}": len(side),
            f"val_accuracy_{name}": side.val_accuracy.mean(),
            f"peak_memory_bytes_{name}": side.peak_memory_bytes.median(),
        }
        if a.options.price_per_hour and b.options.price_per_hour:
            hours = 1e6 / side.images_per_s.median() / 3600
            row[f"cost_per_million_images_{name}"] = hours * tables.options.price_per_hour
    return row


def differences(a: Tables, b: Tables) -> pd.DataFrame:
    """What differs between environments and identities: columns what, a, b; values as text.

    A sweep whose runs differ among themselves shows all their values; one without identities says
    that they are not recorded.
    """
    cards = [
        [_flat(r["environment"]) for r in side.records if "environment" in r]
        + [_flat(_own(r)) for r in side.records]
        for side in (a, b)
    ]
    names = dict.fromkeys(name for side in cards for card in side for name in card)
    rows = []
    for name in names:
        values = [
            " · ".join(sorted({card[name] for card in side if name in card})) or "–"
            for side in cards
        ]
        if values[0] != values[1] or identity.NOT_RECORDED in values:
            rows.append({"what": name, "a": values[0], "b": values[1]})
    return pd.DataFrame(rows, columns=["what", "a", "b"])


def _own(record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a record's identity, what its environment does not say already."""
    known = identity.of(record)
    if known is None:
        return {"identity": identity.NOT_RECORDED}
    names = ("code", "notebook", "model_source", "data", "keras_config")
    return {"identity": "recorded"} | {name: known.get(name) for name in names}


def _flat(card: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in card.items():
        if isinstance(value, Mapping):
            flat |= {str(inner): str(v) for inner, v in value.items()}
        elif name not in WANDERING:
            flat[name.replace("_", " ")] = (
                " ".join(map(str, value))
                if value and isinstance(value, list)
                else str(value if value not in (None, []) else "–")
            )
    return flat
