"""What emulated low precision does to accuracy, beside float32 of the same network; from records.

A difference is error minus float32's error of the same block, in percentage points: above zero is
worse. Its interval is Student's t over blocks (contrast.paired).
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from mptexp.analysis import contrast
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.scaling import Section
from mptexp.analysis.sweep_tables import Tables
from mptexp.report import wording
from mptexp.spec.run import defaults

FORMATS = ["policy", "propagation", "weight_format", "rounding", "loss_scale"]
LITTLE = 2.0  # percentage points that count as a small loss
TITLE = "Low precision, emulated"
NOTE = (
    "Values are rounded exactly to the format; the arithmetic between them is float32's, so that a "
    "dot product is converted once, at its end, and step times say nothing of hardware with such "
    "formats. *Passes*: weights as used, outputs of layers and the gradients of both. *Weights* "
    "are kept in that format between steps; momenta and the statistics of batch normalization stay "
    "float32. A *swallowed* update was not zero and left the weight as it was; under stochastic "
    "rounding many are, without a loss on the average. The difference is validation error minus "
    "that of float32 in the same block: above zero is worse. Gradients are those of the mean loss "
    "of a batch. Below, a loss is called small where its whole interval is below "
    f"{LITTLE:g} points."
)


@dataclass(frozen=True)
class Point:
    """The runs of one network in one choice of formats.

    Attributes:
        network: what its runs share beside the formats, as text.
        choice: the parameters of FORMATS.
        errors: validation error in percent by block, of the runs that ended well.
        loss: errors minus float32's; n = 0 where there is no float32 beside it.
        swallowed: mean share of swallowed updates, or NaN.
        statuses: how every run ended.
    """

    network: str
    choice: dict[str, Any]
    errors: pd.Series
    loss: Contrast
    swallowed: float
    statuses: list[str]

    @property
    def is_float32(self) -> bool:
        """Whether it is the network without any low precision."""
        plain = self.choice["propagation"] == "policy" and self.choice["policy"] == "float32"
        return plain and self.choice["weight_format"] in ("policy", "float32")


def sections(tables: Tables) -> list[Section]:
    """The section on emulated low precision; none where no run emulates any."""
    found = points(tables)
    if all(p.choice["propagation"] == p.choice["weight_format"] == "policy" for p in found):
        return []
    sentences = [
        sentence for told in (_gupta, _dynamic, _binary, _masters) for sentence in told(found)
    ]
    return [Section(TITLE, NOTE, sentences, _rows(found))]


def points(tables: Tables) -> list[Point]:
    """Every choice of formats of every network that was trained, in the order of the records."""
    known = defaults()
    parameters = {r["run_id"]: known | r["parameters"] for r in tables.records}
    runs = tables.results[tables.results.phase.fillna("train") == "train"]
    runs = runs[runs.run_id.isin(parameters)]
    if runs.empty:
        return []
    runs = runs.assign(
        error=(1 - runs.val_accuracy.where(runs.status == "ok")) * 100,
        network=_networks([parameters[run_id] for run_id in runs.run_id]),
        choice=[json.dumps({n: parameters[i][n] for n in FORMATS}) for i in runs.run_id],
    )
    groups = runs.groupby(["network", "choice"], sort=False)
    made = [_point(network, json.loads(choice), rows) for (network, choice), rows in groups]
    return [_compared(point, made) for point in made]


def _networks(runs: list[dict[str, Any]]) -> list[str]:
    """What identifies the network and its training: the model, and further parameters that vary."""
    free = {*FORMATS, "block", "seed", "model"}
    names = [n for n in runs[0] if n not in free and len({str(run[n]) for run in runs}) > 1]
    # What differs between models alone is told by the model's name.
    by_model: dict[str, set[str]] = {}
    for run in runs:
        by_model.setdefault(run["model"], set()).add(json.dumps([run[n] for n in names]))
    full = any(len(kinds) > 1 for kinds in by_model.values())
    return [", ".join([run["model"], *(f"{n} {run[n]}" for n in names if full)]) for run in runs]


def _point(network: str, choice: dict[str, Any], runs: pd.DataFrame) -> Point:
    errors = runs.groupby("block").error.mean().dropna()
    swallowed = runs.swallowed_updates_frac.astype(float).mean()
    return Point(network, choice, errors, Contrast(), swallowed, runs.status.tolist())


def _compared(point: Point, others: list[Point]) -> Point:
    bases = [p for p in others if p.network == point.network and p.is_float32]
    if not bases:
        return point
    return replace(point, loss=contrast.paired(point.errors, bases[0].errors, "difference"))


# --- as text --------------------------------------------------------------------------------------


def _rows(found: list[Point]) -> pd.DataFrame:
    order = sorted(found, key=lambda p: (p.network, not p.is_float32, str(p.choice)))
    columns = {
        "Network": [p.network for p in order],
        "Policy": [p.choice["policy"] for p in order],
        "Passes": [_dash(p.choice["propagation"]) for p in order],
        "Weights": [_dash(p.choice["weight_format"]) for p in order],
        "Rounding": [p.choice["rounding"] if _rounds(p) else "–" for p in order],
        "Loss scale": [_dash(str(p.choice["loss_scale"]), "auto") for p in order],
        "Validation error, % (least to most)": [_error(p) for p in order],
        "Difference from float32, percentage points [95 % interval]": [_loss(p) for p in order],
        "Swallowed updates": [_percent(p.swallowed) for p in order],
        "Runs": [_ended(p.statuses) for p in order],
    }
    return wording.without_blanks(pd.DataFrame(columns))


def _dash(name: str, plain: str = "policy") -> str:
    return "–" if name == plain else name


def _rounds(point: Point) -> bool:
    names = {point.choice["propagation"], point.choice["weight_format"]}
    return not names <= {"policy", "binary", "float32"}


def _error(point: Point) -> str:
    if point.errors.empty:
        return "–"
    return f"{point.errors.mean():.2f} ({point.errors.min():.2f} to {point.errors.max():.2f})"


def _loss(point: Point) -> str:
    if point.is_float32:
        return "0 (it is float32)"
    loss = point.loss
    if not loss.n:
        return "–"
    if math.isnan(loss.low):
        return f"{loss.estimate:+.2f} (no interval, n = {loss.n})"
    return f"{loss.estimate:+.2f} [{loss.low:+.2f}, {loss.high:+.2f}] (n = {loss.n})"


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share * 100:.3g} %"


def _ended(statuses: list[str]) -> str:
    """How many runs there were, and how those ended that did not end well."""
    bad = [s for s in statuses if s != "ok"]
    told = [f"{bad.count(status)} {status}" for status in dict.fromkeys(bad)]
    return f"{len(statuses)} ({', '.join(told)})" if told else f"{len(statuses)}"


# --- beside the papers ----------------------------------------------------------------------------


def _gupta(found: list[Point]) -> Iterator[str]:
    for point in found:
        name = point.choice["propagation"]
        if point.choice["rounding"] == "stochastic" and _bits(name) == 16 and point.loss.n:
            nearest = _other(found, point, rounding="nearest")
            yield (
                "Gupta et al. (2015) train in 16-bit fixed point with little to no loss if "
                f"rounding is stochastic. Here {point.network} in {name} changes the error by "
                f"{_points(point)} with stochastic rounding {_of_nearest(nearest)}: "
                f"{_on_rounding(point, nearest)}."
            )


def _of_nearest(nearest: Point | None) -> str:
    if nearest is None:
        return "and nearest was not run"
    if nearest.loss.n:
        return f"and by {_points(nearest)} to nearest"
    return f"and none of {wording.count(len(nearest.statuses), 'run')} to nearest ended well"


def _on_rounding(stochastic: Point, nearest: Point | None) -> str:
    size = _size(stochastic)
    if size != "small" or nearest is None:
        return _agreement(size)
    if not nearest.loss.n:
        return "this agrees, and nearest rounding is worse"
    if contrast.paired(nearest.errors, stochastic.errors, "difference").low > 0:
        return "this agrees, and nearest rounding is worse"
    return "this agrees; that nearest rounding is worse is not shown"


def _dynamic(found: list[Point]) -> Iterator[str]:
    for point in found:
        if point.choice["propagation"] == "dynamic<10>" and point.loss.n:
            kept = point.choice["weight_format"]
            yield (
                "Courbariaux et al. (2014) train with multiplications of 10 bits in dynamic fixed "
                f"point. Here {point.network} with weights in {kept} changes the error by "
                f"{_points(point)}: {_agreement(_size(point))}."
            )


def _binary(found: list[Point]) -> Iterator[str]:
    for point in found:
        if point.choice["propagation"] == "binary" and point.loss.n:
            yield (
                "BinaryNet (2016) trains with binary weights and activations, to an error of "
                "0.96 % on MNIST with a larger network and longer training. Here "
                f"{point.network} reaches {point.errors.mean():.2f} % and changes the error by "
                f"{_points(point)}: {_agreement(_size(point))}."
            )


def _masters(found: list[Point]) -> Iterator[str]:
    for point in found:
        kept, policy = point.choice["weight_format"], point.choice["policy"]
        lacks = policy.startswith("mixed_") and kept == policy.removeprefix("mixed_")
        if lacks and point.choice["rounding"] == "nearest" and point.loss.n:
            scale = point.choice["loss_scale"]
            other = _other(found, point, rounding="stochastic")
            stochastic = other if other and other.loss.n else None
            rest = (
                f", by {_points(stochastic)} if it is rounded stochastically" if stochastic else ""
            )
            yield (
                "Micikevicius et al. (2018) keep float32 master weights so that no accuracy is "
                f"lost. Here {point.network} with {kept} weights (loss scale {scale}) swallows "
                f"{_percent(point.swallowed)} of the updates and changes the error by "
                f"{_points(point)} if the update is rounded to nearest{rest}: {_on_masters(point)}."
            )


def _on_masters(point: Point) -> str:
    low, high = point.loss.low, point.loss.high
    if math.isnan(low):
        return "too few repeats to say whether this agrees"
    if low > 0:
        return "this agrees"
    return "here they are not needed" if high < LITTLE else "whether this agrees is undecided"


def _other(found: list[Point], point: Point, **changed: str) -> Point | None:
    wanted = point.choice | changed
    same = (p for p in found if p.network == point.network and p.choice == wanted)
    return next(same, None)


def _bits(name: str) -> int | None:
    """Of a fixed-point format, by its name."""
    found = re.fullmatch(r"<(-?\d+),\s*(-?\d+)>", name)
    return sum(map(int, found.groups())) if found else None


def _points(point: Point) -> str:
    return _loss(point).replace(" [", " points [", 1).replace(" (no", " points (no", 1)


def _size(point: Point) -> str:
    """Whether a loss is small, large or undecided, by its interval.

    It is not small where a run did not end well: the interval is of the others.
    """
    low, high = point.loss.low, point.loss.high
    if math.isnan(low):
        return "unknown"
    small = high < LITTLE and set(point.statuses) == {"ok"}
    return "small" if small else "large" if low > LITTLE else "undecided"


def _agreement(size: str) -> str:
    return {
        "small": "this agrees",
        "large": "this does not agree",
        "undecided": "whether this agrees is undecided",
        "unknown": "too few repeats to say whether this agrees",
    }[size]
