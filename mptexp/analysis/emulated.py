"""What emulated low precision does to accuracy, against float32 of the same network.

A loss is error minus float32's error of the same block, in percentage points: above zero is worse.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import contrast, simultaneous_intervals, validation_variance, validity
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.sweep_tables import Tables, once
from mptexp.spec import number_formats, tasks
from mptexp.spec.policies import POLICY_ROWS

FORMATS = ["policy", "propagation", "weight_format", "rounding", "loss_scale"]
USUAL = ("auto", "none", 1.0)  # loss scales that leave float32 as it is
LITTLE = 2.0  # percentage points that count as a small loss


@dataclass(frozen=True)
class Point:
    """The runs of one network in one choice of formats.

    Attributes:
        network: what its runs share apart from the formats, as text.
        choice: the parameters of FORMATS.
        errors: validation error in percent by block, of the runs that ended well.
        loss: errors minus float32's; n = 0 of float32, and where there is none of the network.
        lost_updates: mean share of the updates lost to rounding, or NaN.
        statuses: how every run ended.
        runs: the ids by block of those that ended well.
        flags: what is not valid of its runs or of float32's, see `validity`.
        images: the fewest that it and float32 were validated with; 0 where that is not recorded.
        base_lost: whether runs of float32 diverged, so that none of the formats is to blame.
    """

    network: str
    choice: dict[str, Any]
    errors: pd.Series
    loss: Contrast
    lost_updates: float
    statuses: list[str]
    runs: dict[int, str]
    flags: str = ""
    images: int = 0
    base_lost: bool = False

    @property
    def is_float32(self) -> bool:
        """Whether it is the network without low precision, at a loss scale that changes nothing."""
        plain = self.choice["propagation"] == "policy" and self.choice["policy"] == "float32"
        usual = self.choice["loss_scale"] in USUAL
        return plain and usual and self.choice["weight_format"] in ("policy", "float32")

    @property
    def size(self) -> str:
        """Whether the loss is small or large, by its interval, or undecided; else why none is told.

        It is incomplete, not small, where a run did not end well: the interval is of the others.
        Where all runs diverged there is no loss, and the answer is that.
        """
        if self.base_lost:
            return "baseline diverged"
        if set(self.statuses) == {"diverged"}:
            return "diverged"
        if validity.invalid(self.flags, "accuracy"):
            return "not valid"
        if math.isnan(self.loss.low):
            return "incomplete" if "diverged" in self.statuses else "too few repeats"
        if not self.images:
            return "images not recorded"
        if self.loss.high < LITTLE:
            return "small" if set(self.statuses) == {"ok"} else "incomplete"
        return "large" if self.loss.low > LITTLE else "undecided"

    @property
    def fixed_point(self) -> number_formats.Fixed | None:
        """The fixed-point format of activations and weights, if they have the same; else None."""
        if self.choice["weight_format"] != self.choice["propagation"]:
            return None
        own = number_formats.activation_format(self.choice["propagation"])
        return own if isinstance(own, number_formats.Fixed) else None

    @property
    def bits(self) -> int:
        """Bits of an activation: of its format, else of the type that the policy computes in."""
        dtype = POLICY_ROWS[self.choice["policy"]].compute_dtype
        own = number_formats.activation_format(self.choice["propagation"])
        return (own or number_formats.FORMATS[dtype]).bits

    @property
    def weight_bits(self) -> int | None:
        """Bits of a weight between steps, where its format is emulated; else None."""
        own = number_formats.storage_format(self.choice["weight_format"])
        return own.bits if own else None

    @property
    def lacks_master_weights(self) -> bool:
        """Whether a mixed policy's weights are kept in its 16-bit type, not in float32."""
        policy = self.choice["policy"]
        kept = policy.removeprefix("mixed_")
        return policy.startswith("mixed_") and kept == self.choice["weight_format"]

    def sibling(self, among: Sequence["Point"], **changed: str) -> "Point | None":
        """The point of the same network whose choice differs in what is named alone."""
        wanted = self.choice | changed
        same = (p for p in among if p.network == self.network and p.choice == wanted)
        return next(same, None)

    def differs_by_one(self, other: "Point") -> bool:
        """Whether another point of the same network differs in one choice of formats."""
        unlike = [name for name in FORMATS if self.choice[name] != other.choice[name]]
        return self.network == other.network and len(unlike) == 1


@once
def points(tables: Tables) -> list[Point]:
    """Every choice of formats of every network that was trained, in the order of the records.

    Of networks that classify: a text has no error in percent. None where no run emulates a format,
    as of most sweeps.
    """
    parameters = {r["run_id"]: r["parameters"] for r in tables.records}
    if not has_formats(tables):
        return []
    runs = tables.results[tables.results.phase.fillna("train") == "train"]
    classify = runs.dataset.map(lambda name: tasks.of(name) is tasks.IMAGES).astype(bool)
    runs = validity.comparable(runs[classify & runs.run_id.isin(parameters)])
    if runs.empty:
        return []
    # Not of runs that were trained for another number of steps each, or on one batch.
    trained = runs.run_id.isin(tables.trained.run_id)
    runs = runs.assign(
        error=(1 - runs.val_accuracy.where(trained)) * 100,
        network=_networks([parameters[run_id] for run_id in runs.run_id]),
        choice=[json.dumps({n: parameters[i][n] for n in FORMATS}) for i in runs.run_id],
    )
    groups = runs.groupby(["network", "choice"], sort=False)
    made = [_point(network, json.loads(choice), rows) for (network, choice), rows in groups]
    return _claimed(made, tables)


def emulates(among: Sequence[Point]) -> bool:
    """Whether a point among some is of emulated precision at all."""
    return any({p.choice["propagation"], p.choice["weight_format"]} != {"policy"} for p in among)


def has_formats(tables: Tables) -> bool:
    """Whether any run of a sweep emulates a format, of activations or of weights."""
    names = ("propagation", "weight_format")
    return any(r["parameters"].get(n, "policy") != "policy" for r in tables.records for n in names)


def _networks(runs: list[dict[str, Any]]) -> list[str]:
    """What identifies the network and its training: the model, and further parameters that vary."""
    free = {*FORMATS, "block", "seed", "model"}
    names = [n for n in runs[0] if n not in free and len({str(run[n]) for run in runs}) > 1]
    # What differs between models alone is named by the model.
    by_model: dict[str, set[str]] = {}
    for run in runs:
        by_model.setdefault(run["model"], set()).add(json.dumps([run[n] for n in names]))
    full = any(len(kinds) > 1 for kinds in by_model.values())
    return [", ".join([run["model"], *(f"{n} {run[n]}" for n in names if full)]) for run in runs]


def _point(network: str, choice: dict[str, Any], runs: pd.DataFrame) -> Point:
    errors = runs.groupby("block").error.mean().dropna()
    lost = runs.swallowed_updates_frac.astype(float).mean()
    ended = runs[runs.error.notna()]
    by_block = dict(zip(ended.block, ended.run_id, strict=True))
    return Point(network, choice, errors, Contrast(), lost, runs.status.tolist(), by_block)


def _claimed(made: Sequence[Point], tables: Tables) -> list[Point]:
    """The points with their losses, whose intervals hold for all of them together."""
    flags = dict(zip(tables.results.run_id, tables.results["flags"], strict=True))
    more, levels = [], []
    made = list(made)
    for k, point in enumerate(made):
        base = _base(point, made)
        blocks = [b for b in point.runs if b in base.runs]
        images = _spread(point, base, tables)
        more.append(_in_points(images))
        levels.append(_level(base, point))
        unlike = validity.across(*_sides(point, base, tables), ("policy", *FORMATS))
        # That a format learned nothing is a finding; float32 has to have learned something.
        names = [flags[base.runs[b]] for b in blocks]
        names += [validity.but(flags[point.runs[b]], "not trained") for b in blocks]
        names += ["not comparable"] * bool(unlike)
        over = contrast.paired(point.errors, base.errors, "difference")
        loss = over if base.is_float32 and not point.is_float32 else point.loss
        lost = base is not point and "diverged" in base.statuses
        known = {"flags": validity.together(names), "images": images.images}
        made[k] = replace(point, loss=loss, base_lost=lost, **known)
    asked = [k for k, point in enumerate(made) if not point.is_float32]
    wide = simultaneous_intervals.together([made[k].loss for k in asked], [more[k] for k in asked])
    for k, over in zip(asked, wide, strict=True):
        made[k] = replace(made[k], loss=_possible(over, levels[k]))
    return made


def _base(point: Point, made: Sequence[Point]) -> Point:
    """The float32 of a point's network; the point itself where there is none."""
    return next((p for p in made if p.network == point.network and p.is_float32), point)


def _level(base: Point, point: Point) -> float:
    """The mean error in percent that a point is compared with, of the blocks that both have."""
    return float(base.errors[base.errors.index.isin(point.errors.index)].mean())


def _possible(loss: Contrast, level: float) -> Contrast:
    """A difference from a mean error in percent, whose interval ends where errors do: 0 and 100."""
    low, high = (float(np.clip(end, -level, 100.0 - level)) for end in (loss.low, loss.high))
    return replace(loss, low=low, high=high)


def _spread(point: Point, base: Point, tables: Tables) -> validation_variance.Spread:
    """What the images add to the variance of a point's mean error minus another's."""
    return validation_variance.spread(*_sides(point, base, tables), LITTLE / 100)


def _in_points(images: validation_variance.Spread) -> tuple[float, float]:
    """What the images add to the variance, in percentage points, and its degrees of freedom."""
    return images.variance * 1e4, images.freedom


def _sides(point: Point, base: Point, tables: Tables) -> list[dict[int, dict]]:
    """The records of both by block."""
    return [{b: tables.records_by_id[i] for b, i in p.runs.items()} for p in (point, base)]
