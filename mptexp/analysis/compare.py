"""Two sweeps side by side: the same points joined, and what else differs between them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from scipy import stats

from mptexp.analysis import contrast, speedups, sweep_tables
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.records.tables import history_table, results_table
from mptexp.report import wording
from mptexp.spec import params
from mptexp.spec.run import Run

# The device may differ: that is often what is compared.
JOINED = [name for name in POINT if name != "gpu_model"] + ["policy"]
# What wanders by itself says nothing of what differs.
WANDERING = ("load", "swap_used_bytes", "clean")


def load(a: SweepDir, b: SweepDir) -> tuple[Tables, Tables]:
    """Both sweeps, their settings told apart together.

    Raises:
        params.ParamsError: where a directory holds no record.
    """
    records = [store.read_records(place)[0] for place in (a, b)]
    for place, found in zip((a, b), records, strict=True):
        if not found:
            raise params.ParamsError(
                f"{place.root}: holds no record of a run; give the directory of a sweep, such as "
                "reports/quickstart"
            )
    return _tables(a, records[0], records[1]), _tables(b, records[1], records[0])


def obstacles(a: Tables, b: Tables) -> str:
    """The parameters that have no value in common, which is why no point can be joined."""
    sides = [[r["parameters"] for r in side.records] for side in (a, b)]
    told = []
    for name in Run.model_fields:
        values = [sorted({str(run[name]) for run in side}) for side in sides]
        if name not in ("gpu_model", "seed", "block") and not set(values[0]) & set(values[1]):
            told.append(f"{name} {', '.join(values[0])} against {', '.join(values[1])}")
    return "; ".join(told)


def _tables(place: SweepDir, own: Sequence[dict], other: Sequence[dict]) -> Tables:
    results = results_table(own, place.name, beside=other)
    ratios, history = speedups.at_same_batch(results), history_table(own)
    return Tables(results, history, ratios, list(own), [], sweep_tables.options(place))


def points(a: Tables, b: Tables) -> pd.DataFrame:
    """The points that both sweeps measured, for each pair of devices.

    A device that both sweeps have is compared with itself alone.

    The runs of two sweeps share no block, so the interval of their ratio is Welch's t interval of
    the difference of mean logarithms; it needs three runs on both sides, else it is empty.

    Returns:
        Columns of JOINED, device_a, device_b, step_s_a, step_s_b (seconds, geometric means), ratio
        (step_s_a / step_s_b: above 1, B is faster), low, high, runs_a, runs_b, val_accuracy_a,
        val_accuracy_b (means), peak_memory_bytes_a, peak_memory_bytes_b (medians), and
        cost_per_million_images_a and _b where the params file of both has a price_per_hour.
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
    over = contrast.unpaired(left.step_s, right.step_s)
    found: dict[str, Any] = {"ratio": over.estimate, "low": over.low, "high": over.high}
    for name, side, tables in (("a", left, a), ("b", right, b)):
        found |= {
            f"step_s_{name}": stats.gmean(side.step_s),
            f"runs_{name}": len(side),
            f"val_accuracy_{name}": side.val_accuracy.mean(),
            f"peak_memory_bytes_{name}": side.peak_memory_bytes.median(),
        }
        if a.options.price_per_hour and b.options.price_per_hour:
            hours = 1e6 / side.images_per_s.median() / 3600
            found[f"cost_per_million_images_{name}"] = hours * tables.options.price_per_hour
    return found


def differences(a: Tables, b: Tables) -> pd.DataFrame:
    """What differs between the environments: columns what, a, b; values as text.

    A sweep whose runs differ among themselves shows all their values.
    """
    cards = [
        [_flat(r["environment"]) for r in side.records if "environment" in r] for side in (a, b)
    ]
    names = dict.fromkeys(name for side in cards for card in side for name in card)
    rows = []
    for name in names:
        told = [" · ".join(sorted({card.get(name, "–") for card in side})) for side in cards]
        if told[0] != told[1]:
            rows.append({"what": name, "a": told[0], "b": told[1]})
    return pd.DataFrame(rows, columns=["what", "a", "b"])


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


def table(found: pd.DataFrame) -> pd.DataFrame:
    """The joined points as text, for a terminal or a page."""
    shown = [n for n in JOINED[:-1] if n == "batch_size" or found[n].nunique() > 1]
    columns = {
        **wording.headed(found, shown),
        **_devices(found),
        "Policy": found.policy,
        "ms per step, A | B": _both(found, "step_s", lambda v: f"{v * 1e3:.2f}"),
        "A / B, above 1: B is faster": [_ratio(row) for row in found.to_dict("records")],
        "Accuracy, A | B": _both(found, "val_accuracy", lambda v: f"{v * 100:.1f} %"),
        "Memory, A | B": _both(found, "peak_memory_bytes", wording.mebibytes),
    }
    if "cost_per_million_images_a" in found:
        costs = _both(found, "cost_per_million_images", wording.digits)
        columns["Cost per million images, A | B"] = costs
    return wording.without_blanks(pd.DataFrame(columns))


def _devices(found: pd.DataFrame) -> dict[str, list[str]]:
    pairs = [f"{a} | {b}" for a, b in zip(found.device_a, found.device_b, strict=True)]
    return {"Device, A | B": pairs} if len(set(pairs)) > 1 else {}


def _both(found: pd.DataFrame, name: str, text: Callable[[float], str]) -> list[str]:
    pairs = zip(found[f"{name}_a"], found[f"{name}_b"], strict=True)
    told = [["–" if pd.isna(value) else text(value) for value in pair] for pair in pairs]
    return ["–" if a == b == "–" else f"{a} | {b}" for a, b in told]


def _ratio(row: Mapping[str, Any]) -> str:
    if pd.isna(row["ratio"]):
        return "–"
    runs = f"(n = {row['runs_a']}, {row['runs_b']})"
    if pd.isna(row["low"]):
        return f"{row['ratio']:.2f}×, no interval {runs}"
    return f"{row['ratio']:.2f}× [{row['low']:.2f}, {row['high']:.2f}] {runs}"
