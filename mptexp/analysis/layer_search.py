"""Which layers must stay in float32 for a policy to train as float32 does, by short trainings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mptexp.analysis import out_of_range, range_advice, short_trainings
from mptexp.analysis.out_of_range import GRADIENTS, DynamicRange
from mptexp.spec import params
from mptexp.spec.grid import Sweep
from mptexp.spec.number_formats import FORMATS
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run

BLOCKS = 2  # trainings of every choice of layers, each with a seed of its own


@dataclass(frozen=True)
class Trial:
    """Short trainings with some layers in float32.

    Attributes:
        layers: their names.
        loss: the last epoch's training loss, the mean over blocks; None where a training diverged.
        keeps_up: whether each of them was as good as float32's of its seed.
    """

    layers: tuple[str, ...]
    loss: float | None
    keeps_up: bool


@dataclass(frozen=True)
class Needed:
    """What a search came to.

    Attributes:
        policy: what the other layers compute in.
        layers: those that suffice in float32: without any one of them it fails. Empty: none.
        of: how many layers the model has.
        float32_loss: the last epoch's training loss in float32, the mean over blocks.
        trials: what was tried, in this order.
    """

    policy: str
    layers: tuple[str, ...]
    of: int
    float32_loss: float
    trials: tuple[Trial, ...]


def irreducible(
    names: Sequence[str], keeps_up: Callable[[Sequence[str]], bool]
) -> list[str] | None:
    """Layers that suffice in float32, of which none can be left out; None where none do.

    Others may suffice as well, and fewer. That a layer more in float32 does no harm is taken for
    granted, but what is returned was tried. The search is QuickXplain: it halves what is left, and
    of n layers that hold k it tries some 2 k log2(n / k) choices. Source: U. Junker, QuickXplain:
    preferred explanations and relaxations for over-constrained problems, AAAI 2004, pages 167 to
    172.

    Args:
        names: of all layers; those that are likely to be needed first.
        keeps_up: whether a training with these layers in float32 is as good as float32's; asked
            once of each choice.
    """
    known: dict[frozenset[str], bool] = {}

    def tried(layers: Sequence[str]) -> bool:
        key = frozenset(layers)
        if key not in known:
            known[key] = keeps_up(layers)
        return known[key]

    if tried([]):
        return []
    if not tried(names):
        return None
    needed = set(_needed([], [], list(names), tried))
    found = [name for name in names if name in needed]
    return found if tried(found) else None


def _needed(
    kept: list[str], added: list[str], names: list[str], keeps_up: Callable[[Sequence[str]], bool]
) -> list[str]:
    """Those of `names` that are needed beside `kept`, of which `added` came last."""
    if added and keeps_up(kept):
        return []
    if len(names) == 1:
        return names
    half = len(names) // 2
    likely, rest = names[:half], names[half:]
    of_rest = _needed([*kept, *likely], likely, rest, keeps_up)
    return [*_needed([*kept, *of_rest], of_rest, likely, keeps_up), *of_rest]


def by_need(names: Sequence[str], measured: DynamicRange, policy: str) -> list[str]:
    """The layers by the share of their values that the policy's type loses, the most first.

    Lost are those that are flushed to zero or too large, gradients at the largest loss scale at
    which they stay finite. Of layers that lose alike, as all do in bfloat16, the last comes first.
    """
    target = FORMATS[POLICY_ROWS[policy].compute_dtype]
    scale = out_of_range.scales(measured, target)[1] or 1.0

    def lost(name: str) -> float:
        shares = [
            out_of_range.shares(histogram, target, scale if kind in GRADIENTS else 1.0)
            for (kind, layer), histogram in measured.layers.items()
            if layer == name and kind in ("activations", *GRADIENTS)
        ]
        return max((share["flushed"] + share["above"] for share in shares), default=0.0)

    backwards = list(reversed(names))
    return sorted(backwards, key=lost, reverse=True)


def sweep(
    run: Run, notebook: str, policy: str, layers: Sequence[str], steps: int, timeout_min: float
) -> tuple[Sweep, str]:
    """A sweep of short trainings with some layers in float32, and the text of its params file."""
    changed = {"policy": policy, "float32_layers": ",".join(layers), "exponents_every": 0}
    if policy == "float32":
        changed |= range_advice.sampled(steps)
    return short_trainings.short(
        run,
        notebook,
        changed,
        steps,
        timeout_min,
        BLOCKS,
        question=question(policy),
        expected="the loss of short trainings says it.",
    )


def question(policy: str) -> str:
    """What the trainings of a search ask; the params file of each opens with it."""
    return f"Does the training keep up with float32's in {policy} with these layers in it?"


QUESTIONS = tuple(map(question, ("float32", *short_trainings.NARROW)))


def mean(of_blocks: Mapping[int, float] | None) -> float | None:
    """The mean of `short_trainings.losses`, to show; None where a training diverged."""
    return None if of_blocks is None else float(np.mean([*of_blocks.values()]))


def proof(sweep: Sweep, run: Run, needed: Needed) -> str:
    """The text of a params file that measures whether accuracy is equal, and what it costs.

    Args:
        sweep: what was asked about.
        run: its first run, whose length and data are kept.
        needed: what the search came to.
    """
    layers = ",".join(needed.layers)
    varied = {"policy", "float32_layers", "gpu_model", "block", "seed", "phase", "frontend"}
    shared = run.model_dump(exclude_defaults=True, exclude=varied)
    seed = run.seed - run.block
    mixed = [{"policy": needed.policy}]
    if needed.layers:
        mixed.append({"policy": needed.policy, "float32_layers": layers})
    asked = Sweep(
        notebook=sweep.notebook,
        defaults=shared | ({"seed": seed} if seed else {}),
        include=[{"policy": "float32"}, *mixed],
        repeats=5,
        timeout_min=sweep.timeout_min,
    )
    count = len(needed.layers)
    named = f" with {count} {'layer' if count == 1 else 'layers'} in float32" if count else ""
    return (
        f"# Question: Does {needed.policy}{named} train as well as float32, and how much faster?\n"
        f"# Cost: {5 * len(asked.include)} trainings.\n"
        "# Expected: accuracy as in float32, as short trainings had it.\n"
        f"{params.text(asked)}"
    )
