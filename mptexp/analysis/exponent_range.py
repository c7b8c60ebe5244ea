"""What a number format loses of a training: shares of values below and above its range.

From the histograms of exponents in the records. A loss scale multiplies gradients, which moves
their histogram; so from one training in float32 follows what any format loses at any scale.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from mptexp.spec.formats import FORMATS, Float
from mptexp.spec.run import defaults

SHOWN = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
GRADIENTS = ("activation_gradients", "weight_gradients")
KINDS = {
    "weights": "weights",
    "activations": "activations",
    "activation_gradients": "gradients of activations",
    "weight_gradients": "gradients of weights",
    "updates": "updates of weights",
    "update_ratios": "updates / weights",
}
TOLERATED = 1e-3  # of the values that are not zero: what the source below calls all but 0.1 %
LOWEST, BINS = -127, 255  # of float32's exponents: the first bin, and how many are finite
# What runs may differ in whose values are added up: each sees another part of the same training.
FREE = ("policy", "loss_scale", "seed", "block", "exponents_every")
WIDEST = ("float32", "tensorfloat32", "bfloat16", "mixed_bfloat16", "mixed_float16", "float16")


@dataclass(frozen=True)
class Histogram:
    """Values by exponent: counts[i] have 2^(LOWEST + i) <= |x| < 2^(LOWEST + i + 1)."""

    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    zeros: int = 0
    not_finite: int = 0
    largest: float = 0.0

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Histogram":
        """From what a record holds: see exponents.as_record."""
        counts = np.zeros(BINS, np.int64)
        first = told["lowest"] - LOWEST
        counts[first : first + len(told["counts"])] = told["counts"]
        return cls(counts, told["zeros"], told["not_finite"], told["largest"])

    def __add__(self, other: "Histogram") -> "Histogram":
        return Histogram(
            self.counts + other.counts,
            self.zeros + other.zeros,
            self.not_finite + other.not_finite,
            max(self.largest, other.largest),
        )

    @property
    def total(self) -> int:
        """How many values there were, zeros and infinities too."""
        return int(self.counts.sum()) + self.zeros + self.not_finite

    def below(self, limit: float) -> float:
        """Share of all values that are not zero but smaller in magnitude than a power of two."""
        exponent = math.frexp(limit)[1] - 1
        return float(self.counts[: max(0, exponent - LOWEST)].sum()) / max(1, self.total)


@dataclass(frozen=True)
class Seen:
    """What was seen of one model, data set and batch size.

    Attributes:
        parameters: of one of its runs.
        policy: the policy of the runs whose values are told: the widest there is.
        runs: how many they are.
        kinds: kind (see KINDS) -> histogram over layers, looks and runs.
        layers: (kind, layer) -> histogram over looks and runs.
        swallowed: format -> share of the updates that are not zero which would leave a weight of
            that format as it is.
        looks: how often a run was looked at.
        card: environment of one of the runs.
    """

    parameters: dict[str, Any]
    policy: str
    runs: int
    kinds: dict[str, Histogram]
    layers: dict[tuple[str, str], Histogram]
    swallowed: dict[str, float]
    looks: int
    card: dict[str, Any]


def seen(records: Sequence[Mapping[str, Any]]) -> list[Seen]:
    """What the runs that were looked into saw, one for each model, data set and batch size."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record.get("exponents") and record["status"] == "ok":
            fixed = {k: v for k, v in _parameters(record).items() if k not in FREE}
            groups.setdefault(json.dumps(fixed, sort_keys=True, default=str), []).append(record)
    return [_seen(group) for group in groups.values()]


def _parameters(record: Mapping[str, Any]) -> dict[str, Any]:
    return defaults() | record["parameters"]


def _seen(group: Sequence[Mapping[str, Any]]) -> Seen:
    policy = min((r["parameters"]["policy"] for r in group), key=WIDEST.index)
    runs = [r for r in group if r["parameters"]["policy"] == policy]
    kinds: dict[str, Histogram] = {}
    layers: dict[tuple[str, str], Histogram] = {}
    for row in (row for run in runs for row in run["exponents"]["layers"]):
        found = Histogram.read(row)
        for table, key in ((kinds, row["kind"]), (layers, (row["kind"], row["layer"]))):
            table[key] = table[key] + found if key in table else found
    samples = [s for run in runs for s in run["exponents"]["samples"] if "swallowed" in s]
    lost = pd.DataFrame([s["swallowed"] for s in samples]).sum()
    updates = kinds.get("updates", Histogram())
    moved = max(1, updates.total - updates.zeros)
    return Seen(
        _parameters(runs[0]),
        policy,
        len(runs),
        kinds,
        layers,
        {name: float(n) / moved for name, n in lost.items()},
        len(runs[0]["exponents"]["samples"]),
        runs[0].get("environment") or {},
    )


def shares(found: Histogram, target: Float, scale: float = 1.0) -> dict[str, float]:
    """What becomes of values in a format, as shares of all.

    Args:
        scale: a power of two that they are multiplied with first.

    Returns:
        zeros: zero already. flushed: smaller than the smallest subnormal, so that they become zero
        (or, from its half on, itself). subnormal: smaller than the smallest normal, with fewer
        bits. above: larger than the largest, to the next power of two.
    """
    flushed = found.below(target.smallest_subnormal / scale)
    over = 2 ** math.ceil(math.log2(target.largest)) / scale
    # Of a scaled histogram what lies above: all that is not below.
    finite = float(found.counts.sum()) / max(1, found.total)
    return {
        "zeros": found.zeros / max(1, found.total),
        "flushed": flushed,
        "subnormal": found.below(target.smallest_normal / scale) - flushed,
        "above": max(0.0, finite - found.below(over)),
    }


def smallest_sufficient_scale(found: Histogram, target: Float) -> float | None:
    """The smallest power of two, from 1, with which a format flushes at most TOLERATED to zero.

    Of the values that are not zero. The measure is that of P. Micikevicius et al., Mixed precision
    training, 2018, section 3.2; None where no scale below 2^40 suffices.
    """
    some = max(1, int(found.counts.sum())) / max(1, found.total)
    for exponent in range(41):
        if shares(found, target, 2.0**exponent)["flushed"] <= TOLERATED * some:
            return 2.0**exponent
    return None


def largest_safe_scale(found: Histogram, target: Float) -> float | None:
    """The largest power of two with which the largest value seen stays finite; None without one."""
    if not found.largest:
        return None
    return 2.0 ** math.floor(math.log2(target.largest / found.largest))


def gradients(found: Seen) -> Histogram:
    """All that a loss scale multiplies: gradients of activations and of weights."""
    return sum((found.kinds[k] for k in GRADIENTS if k in found.kinds), Histogram())


def scales(found: Seen, target: Float = FORMATS["float16"]) -> tuple[float | None, float | None]:
    """Smallest sufficient and largest safe loss scale, for both kinds of gradients each."""
    parts = [found.kinds[k] for k in GRADIENTS if k in found.kinds]
    least = [smallest_sufficient_scale(part, target) for part in parts]
    most = [largest_safe_scale(part, target) for part in parts]
    known = [m for m in most if m is not None]
    return (
        None if None in least or not least else max(least),  # type: ignore[type-var]
        min(known) if known else None,
    )


def table(found: Seen) -> pd.DataFrame:
    """A row per kind, format and scale: what becomes of the values.

    Columns: kind, format, scale (1, and of gradients the smallest sufficient one where that is
    more), and those of `shares`.
    """
    rows = []
    for kind in [k for k in KINDS if k in found.kinds and k != "update_ratios"]:
        for name in SHOWN:
            least = smallest_sufficient_scale(found.kinds[kind], FORMATS[name]) or 1.0
            wanted = {1.0, least} if kind in GRADIENTS else {1.0}
            for scale in sorted(wanted):
                told = shares(found.kinds[kind], FORMATS[name], scale)
                rows.append({"kind": kind, "format": name, "scale": scale, **told})
    return pd.DataFrame(rows)


def small_updates(found: Seen) -> float:
    """Share of the updates that are smaller than 2⁻¹¹ of their weight, zeros left out.

    In float16 such an update is less than half the distance to the next number, or not much more.
    """
    ratios = found.kinds.get("update_ratios", Histogram())
    moved = max(1, ratios.total - ratios.zeros)
    return ratios.below(2.0**-11) * ratios.total / moved


# --- for readers ------------------------------------------------------------------------------


def title(found: Seen, among: Sequence[Seen]) -> str:
    """What sets one apart from the others: model, data set, batch size, and what else differs."""
    told = found.parameters
    names = [n for n in told if n not in FREE and len({str(s.parameters[n]) for s in among}) > 1]
    rest = [f"{n} {told[n]}" for n in names if n not in ("model", "dataset", "batch_size")]
    words = [told["model"], told["dataset"], f"batch size {told['batch_size']}", *rest]
    return ", ".join(words)


def percent(share: float) -> str:
    """A share as a percentage of two digits that count; no share is said to be zero that is not."""
    if share == 0:
        return "0 %"
    if share < 1e-5:
        return "< 0.001 %"
    return f"{share * 100:.2g} %" if share < 0.0995 else f"{share * 100:.0f} %"


RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def sentences(found: Seen) -> list[str]:
    """What float16 and bfloat16 lose of the gradients, which scales help, and of the updates."""
    told = []
    for kind in [k for k in GRADIENTS if k in found.kinds]:
        lost = shares(found.kinds[kind], FORMATS["float16"])
        told.append(
            f"Of the {KINDS[kind]}, {percent(lost['zeros'])} are zero already; float16 would flush "
            f"{percent(lost['flushed'])} more to zero without a loss scale, and "
            f"{percent(lost['subnormal'])} would be subnormal, with fewer bits."
        )
    told.append(scale_sentence(found))
    lost_updates = [f"{percent(n)} in {name}" for name, n in found.swallowed.items()]
    if lost_updates:
        told.append(
            f"{percent(small_updates(found))} of the updates are smaller than 2⁻¹¹ of their "
            "weight. Without float32 master weights, rounding to nearest would swallow "
            f"{' and '.join(lost_updates)} of them."
        )
    return told


def scale_sentence(found: Seen) -> str:
    """Which loss scales float16 needs and bears, by what was seen."""
    least, most = scales(found)
    if least is None or most is None:
        return "No loss scale brings the gradients into float16's range."
    if least > most:
        return (
            f"A loss scale of {power(least)} would be needed for float16 to flush at most 0.1 %, "
            f"but from {power(2 * most)} on the largest gradient overflows: no fixed scale does "
            "both."
        )
    need = "No loss scale is needed" if least == 1 else f"A loss scale of {power(least)} suffices"
    return (
        f"{need} for float16 to flush at most 0.1 % of the gradients that are not zero; the "
        f"largest gradient seen stays finite up to a scale of {power(most)}."
    )


def power(scale: float) -> str:
    """A scale as readers know it: 2¹⁵ for 32768, 2⁻⁸ for 1/256, other numbers as they are."""
    mantissa, exponent = math.frexp(scale)
    if mantissa != 0.5 or 1 <= scale <= 1024:
        return f"{scale:g}"
    return "2" + str(exponent - 1).translate(RAISED)


def rows(found: Seen) -> pd.DataFrame:
    """`table` as text: at the smallest sufficient scale also what is flushed and too large then."""
    told = table(found)
    plain, scaled = told[told.scale == 1], told[told.scale > 1].set_index(["kind", "format"])
    keys = list(zip(plain.kind, plain.format, strict=True))
    known = {key: scaled.loc[key] for key in keys if key in scaled.index}
    needs = [
        power(known[k].scale) if k in known else "1" if k[0] in GRADIENTS else "–" for k in keys
    ]

    def then(column: str) -> list[str]:
        return [percent(known[key][column]) if key in known else "–" for key in keys]

    return pd.DataFrame(
        {
            "Values": plain.kind.map(KINDS),
            "Format": plain.format,
            "Zero already": plain.zeros.map(percent),
            "Flushed to zero": plain.flushed.map(percent),
            "Subnormal": plain.subnormal.map(percent),
            "Too large": plain.above.map(percent),
            "Smallest sufficient scale": needs,
            "Flushed then": then("flushed"),
            "Too large then": then("above"),
        }
    ).reset_index(drop=True)


NOTE = (
    "Shares of all values, over all layers, looks and repeats, without loss scale. *Flushed* are "
    "those smaller than the format's smallest subnormal; *subnormal* ones keep fewer bits. The "
    "smallest sufficient scale is the power of two with which at most 0.1 % of the gradients that "
    "are not zero are flushed. Formats of 8 bits are told for comparison: nothing here computes in "
    "them."
)
