"""Short trainings of one point, which advice asks for: how they are made, when one keeps up."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mptexp.analysis import validity
from mptexp.spec.grid import Sweep
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run

# A training keeps up with float32's of the same seed where its loss lies at most so far above, as a
# share of it or in nats: two trainings that differ in rounding alone differ by a few percent.
SHARE, NATS = 0.05, 0.02
# Policies that compute in fewer bits than float32.
NARROW = tuple(name for name, row in POLICY_ROWS.items() if row.compute_dtype != "float32")
# What a training in another policy may differ in from the one that it is tried beside.
VARIED = ("policy", "loss_scale", "exponents_every")


@dataclass(frozen=True)
class Tried:
    """A short training in a policy beside the same one in float32.

    Attributes:
        policy: that was tried.
        status: how its training ended: ok, diverged, or what kept it from being made.
        error: why it could not be made, or what diverged; else empty.
        steps: of each training.
        skipped: steps that the dynamic loss scale left out.
        loss: the last epoch's training loss; None where it has none.
        float32_loss: the same in float32.
        keeps_up: whether the loss is as good as float32's, see `keeps_up`.
        learned: whether float32 came above chance, so that keeping up with it means something.
        beyond_guessing: see `beyond_guessing`.
    """

    policy: str
    status: str
    error: str
    steps: int
    skipped: int
    loss: float | None
    float32_loss: float
    keeps_up: bool
    learned: bool
    beyond_guessing: bool = False

    @property
    def fails(self) -> bool:
        """Whether it does not train as float32 does, which had room, time and no error.

        Of one that was killed from outside nothing is known.
        """
        return not self.keeps_up and self.status != "killed"


def short(
    run: Run,
    notebook: str,
    changed: Mapping[str, Any],
    steps: int,
    timeout_min: float,
    blocks: int = 1,
    *,
    question: str,
    expected: str,
) -> tuple[Sweep, str]:
    """A sweep of short trainings at one point, and the text of its params file.

    Args:
        run: what is asked about.
        changed: what of it is changed, beside its length.
        steps: of each training.
        blocks: how many trainings, each with a seed of its own.
        question: of the params file, as its expected outcome is.
    """
    ended = {"profile": False, "phase": "train", "max_steps": steps, "target_ci": None}
    # A plain loop has the same network, and neither exponents nor layers in float32.
    ended |= {"block": 0, "seed": run.seed - run.block, "frontend": "keras"}
    point = run.model_copy(update=ended | dict(changed))
    own = point.model_dump(exclude_defaults=True, exclude={"gpu_model"})
    content = {"notebook": notebook, "include": [own], "timeout_min": timeout_min}
    content |= {"repeats": blocks} if blocks > 1 else {}
    text = (
        f"# Question: {question}\n"
        f"# Cost: {blocks * steps} steps.\n"
        f"# Expected: {expected}\n"
        f"{json.dumps(content, indent=1)}\n"
    )
    return Sweep(**content), text


def losses(records: Sequence[Mapping[str, Any]]) -> dict[int, float] | None:
    """The last epoch's training loss of each block; None where a training diverged."""
    if any(record["status"] == "diverged" for record in records):
        return None
    return {record["parameters"]["block"]: record["history"][-1]["loss"] for record in records}


def learned(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a training came above chance, so that keeping up with it means something."""
    return not all("not trained" in validity.of_record(record) for record in records)


def guessing(records: Sequence[Mapping[str, Any]]) -> float:
    """The loss of guessing, in nats: of labels as frequent as they are; infinite if not known."""
    known = records[0].get("in_force") or {}
    if "chance_loss" in known:
        return float(known["chance_loss"])
    # The share of the most frequent label: guessing by all frequencies costs no less.
    share = known.get("chance_accuracy") or 1.0
    return -math.log(share) if share < 1 else math.inf


def beyond_guessing(float32: Mapping[int, float], guessing: float) -> bool:
    """Whether a loss is more than twice that of guessing, so that keeping up with it says little.

    Terms of the model's own, such as regularizers, make up most of it, or float32 goes astray.
    """
    return any(loss > 2 * guessing for loss in float32.values())


def keeps_up(own: Mapping[int, float] | None, float32: Mapping[int, float]) -> bool:
    """Whether the losses of all blocks are no more than SHARE or NATS above float32's.

    Each beside that of its own seed: a mean over blocks would let one that gained make up for one
    that failed.
    """
    if own is None:
        return False
    pairs = [(own[block], float32[block]) for block in float32]
    return all(one - other <= max(SHARE * abs(other), NATS) for one, other in pairs)


def tried(
    parameters: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    trials: Sequence[Mapping[str, Any]],
) -> Tried | None:
    """The training that was tried beside the one with these parameters; None where none was.

    Args:
        parameters: of a training in float32.
        records: in which it is.
        trials: the records of trainings that were tried.
    """
    float32 = [r for r in records if r["parameters"] == parameters and r["status"] == "ok"]
    beside = [r for r in trials if _fixed(r["parameters"]) == _fixed(parameters)]
    beside = [r for r in beside if r["parameters"]["policy"] in NARROW]
    known = losses(float32[:1])
    if not known or not beside:
        return None
    own = beside[0]
    reached = losses([own]) if own["status"] == "ok" else None
    return Tried(
        own["parameters"]["policy"],
        own["status"],
        own.get("error", ""),
        own["parameters"]["max_steps"],
        own.get("skipped_steps") or 0,
        next(iter(reached.values())) if reached else None,
        next(iter(known.values())),
        keeps_up(reached, known),
        learned(float32[:1]),
        beyond_guessing(known, guessing(float32)),
    )


def _fixed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name not in VARIED}
