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

from mptexp.spec.number_formats import FORMATS, Float
from mptexp.spec.policies import POLICY_ROWS

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
MOST_SCALE = 2.0**40  # of loss scales that are looked at
# First those whose weights are float32: others keep no update that is lost.
WIDEST = ("float32", "tensorfloat32", "mixed_bfloat16", "bfloat16", "mixed_float16", "float16")


@dataclass(frozen=True)
class Histogram:
    """Values by exponent: counts[i] have 2^(LOWEST + i) <= |x| < 2^(LOWEST + i + 1)."""

    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    zeros: int = 0
    not_finite: int = 0
    largest: float = 0.0

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> "Histogram":
        """From what a record holds: see dynamic_range.as_record."""
        counts = np.zeros(BINS, np.int64)
        first = row["lowest"] - LOWEST
        counts[first : first + len(row["counts"])] = row["counts"]
        return cls(counts, row["zeros"], row["not_finite"], row["largest"])

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

    @property
    def finite(self) -> float:
        """Share of all values that are neither zero nor infinite."""
        return float(self.counts.sum()) / max(1, self.total)

    def below(self, limit: float) -> float:
        """Share of all values that are not zero but smaller in magnitude than a power of two."""
        exponent = math.frexp(limit)[1] - 1
        return float(self.counts[: max(0, exponent - LOWEST)].sum()) / max(1, self.total)


@dataclass(frozen=True)
class DynamicRange:
    """The values of one model, data set and batch size by exponent.

    Attributes:
        parameters: of one of its runs.
        policy: the policy of the runs whose values are counted: the widest there is.
        runs: how many they are.
        kinds: kind (see KINDS) -> histogram over layers, samples and runs.
        layers: (kind, layer) -> histogram over samples and runs.
        lost_updates: format -> share of the updates that are not zero which would leave a weight
            of that format as it is.
        samples: how often a run was sampled.
        environment: of one of the runs.
    """

    parameters: dict[str, Any]
    policy: str
    runs: int
    kinds: dict[str, Histogram]
    layers: dict[tuple[str, str], Histogram]
    lost_updates: dict[str, float]
    samples: int
    environment: dict[str, Any]

    @property
    def gradients(self) -> list[Histogram]:
        """The histograms of GRADIENTS, of those that were sampled."""
        return [self.kinds[kind] for kind in GRADIENTS if kind in self.kinds]

    def counted(self, kind: str) -> bool:
        """Whether any values of a kind were counted that are neither zero nor infinite."""
        return kind in self.kinds and bool(self.kinds[kind].counts.any())


def measured(records: Sequence[Mapping[str, Any]]) -> list[DynamicRange]:
    """From the runs whose exponents were sampled, one for each model, data set and batch size."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record.get("exponents") and record["status"] == "ok":
            fixed = {k: v for k, v in record["parameters"].items() if k not in FREE}
            groups.setdefault(json.dumps(fixed, sort_keys=True, default=str), []).append(record)
    return [_measured(group) for group in groups.values()]


def _measured(group: Sequence[Mapping[str, Any]]) -> DynamicRange:
    policies = {r["parameters"]["policy"] for r in group}
    policy = next((name for name in WIDEST if name in policies), min(policies))
    runs = [r for r in group if r["parameters"]["policy"] == policy]
    kinds: dict[str, Histogram] = {}
    layers: dict[tuple[str, str], Histogram] = {}
    for row in (row for run in runs for row in run["exponents"]["layers"]):
        histogram = Histogram.read(row)
        for table, key in ((kinds, row["kind"]), (layers, (row["kind"], row["layer"]))):
            table[key] = table[key] + histogram if key in table else histogram
    samples = [s for run in runs for s in run["exponents"]["samples"] if "swallowed" in s]
    lost = pd.DataFrame([s["swallowed"] for s in samples]).sum()
    updates = kinds.get("updates", Histogram())
    moved = max(1, updates.total - updates.zeros)
    return DynamicRange(
        runs[0]["parameters"],
        policy,
        len(runs),
        kinds,
        layers,
        {name: float(n) / moved for name, n in lost.items()},
        len(runs[0]["exponents"]["samples"]),
        runs[0].get("environment") or {},
    )


def flushed(histogram: Histogram, target: Float, scale: float = 1.0) -> float:
    """Share of all values that are not zero but round to zero in a format, times a power of two."""
    return histogram.below(target.flushed_below / scale)


def shares(histogram: Histogram, target: Float, scale: float = 1.0) -> dict[str, float]:
    """What becomes of values in a format, as shares of all.

    Args:
        scale: a power of two that they are multiplied with first.

    Returns:
        zeros: zero already. flushed: as `flushed` counts them. subnormal: other values below the
        smallest normal, with fewer bits. above: larger than the largest, to the next power of two.
    """
    lost = flushed(histogram, target, scale)
    over = 2 ** math.ceil(math.log2(target.largest)) / scale
    return {
        "zeros": histogram.zeros / max(1, histogram.total),
        "flushed": lost,
        "subnormal": histogram.below(target.smallest_normal / scale) - lost,
        # Of a scaled histogram what lies above: all that is not below.
        "above": max(0.0, histogram.finite - histogram.below(over)),
    }


def lost_at_most(histogram: Histogram, target: Float) -> float:
    """The largest share of all values that a format may flush to zero or not reach.

    Of the exponents that it has in part all values count: those below the smallest that is counted
    are one, and so are those about the format's largest number.
    """
    below = max(histogram.below(target.flushed_below), histogram.below(2.0 ** (LOWEST + 1)))
    if histogram.largest <= target.largest:
        return below
    return below + histogram.finite - histogram.below(2.0 ** math.floor(math.log2(target.largest)))


def smallest_sufficient_scale(histogram: Histogram, target: Float) -> float | None:
    """The smallest power of two, from 1, with which a format flushes at most TOLERATED to zero.

    Of the values that are not zero. The measure is that of P. Micikevicius et al., Mixed precision
    training, 2018, section 3.2; None where no scale up to MOST_SCALE suffices.
    """
    some = max(1, int(histogram.counts.sum())) / max(1, histogram.total)
    for exponent in range(round(math.log2(MOST_SCALE)) + 1):
        if flushed(histogram, target, 2.0**exponent) <= TOLERATED * some:
            return 2.0**exponent
    return None


def largest_safe_scale(histogram: Histogram, target: Float) -> float | None:
    """The largest power of two with which the largest value stays finite; None without one."""
    if not histogram.largest:
        return None
    return 2.0 ** math.floor(math.log2(target.largest / histogram.largest))


def scales(
    measured: DynamicRange, target: Float = FORMATS["float16"]
) -> tuple[float | None, float | None]:
    """Smallest sufficient and largest safe loss scale, for both kinds of gradients each.

    None is known to be safe where gradients overflowed while they were sampled, and none to be
    sufficient where some may have been flushed before.
    """
    least = [smallest_sufficient_scale(part, target) for part in measured.gradients]
    least = [None] if hidden(measured) else least
    most = [largest_safe_scale(part, target) for part in measured.gradients]
    known = [m for m in most if m is not None]
    return (
        None if None in least or not least else max(least),  # type: ignore[type-var]
        min(known) if known and not overflowed(measured) else None,
    )


def overflowed(measured: DynamicRange) -> bool:
    """Whether some gradients were infinite or NaN when they were sampled: how large is unknown."""
    return any(part.not_finite > 0 for part in measured.gradients)


def hidden(measured: DynamicRange) -> bool:
    """Whether gradients may have been flushed to zero before they were sampled.

    So it is where the policy computes in a type of fewer exponents than float32.
    """
    least = FORMATS[POLICY_ROWS[measured.policy].compute_dtype].smallest_normal
    narrow = least > FORMATS["float32"].smallest_normal
    return narrow and any(part.zeros > 0 for part in measured.gradients)


def table(measured: DynamicRange) -> pd.DataFrame:
    """A row per kind, format and scale: what becomes of the values.

    Columns: kind, format, scale (1, and of gradients the smallest sufficient one where that is
    more), and those of `shares`.
    """
    rows = []
    for kind in [k for k in KINDS if k in measured.kinds and k != "update_ratios"]:
        for name in SHOWN:
            least = smallest_sufficient_scale(measured.kinds[kind], FORMATS[name]) or 1.0
            wanted = {1.0, least} if kind in GRADIENTS else {1.0}
            for scale in sorted(wanted):
                lost = shares(measured.kinds[kind], FORMATS[name], scale)
                rows.append({"kind": kind, "format": name, "scale": scale, **lost})
    return pd.DataFrame(rows)


def small_updates(measured: DynamicRange) -> float:
    """Share of the updates that are smaller than 2⁻¹¹ of their weight, zeros left out.

    In float16 such an update is less than half the distance to the next number, or not much more.
    """
    ratios = measured.kinds.get("update_ratios", Histogram())
    moved = max(1, ratios.total - ratios.zeros)
    return ratios.below(2.0**-11) * ratios.total / moved
