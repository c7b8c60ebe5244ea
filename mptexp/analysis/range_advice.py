"""Which policy and loss scale to use, from the dynamic range of a short training in float32."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mptexp.analysis import out_of_range, short_trainings
from mptexp.analysis.out_of_range import DynamicRange
from mptexp.analysis.short_trainings import Tried
from mptexp.analysis.sweep_tables import Tables
from mptexp.spec.grid import Sweep
from mptexp.spec.number_formats import FORMATS
from mptexp.spec.policies import ARITHMETICS
from mptexp.spec.run import Run

SAMPLES = 5  # of a probe
QUESTION = "Which policy and loss scale does this training need?"  # its params file opens with it
MARGIN = 2.0  # a fixed scale leaves the largest gradient so much room, and more, to grow


@dataclass(frozen=True)
class Advice:
    """A policy and its loss scale, and what they follow from: range, and a short training in it.

    What becomes of speed and accuracy, a sweep measures.

    Attributes:
        policy: to use.
        loss_scale: none or dynamic.
        native: the types that the device computes in natively; None where that is not known.
        too_large: the kinds of values of which some are too large for float16; no loss scale
            helps these.
        lost: the largest share of the values of a kind that bfloat16 may flush or not reach.
        not_finite: the kinds of values of which some were infinite or NaN when they were sampled.
        fixed_scales: the smallest and the largest fixed loss scale that flush at most
            out_of_range.TOLERATED and leave the largest gradient finite by MARGIN; None where no
            scale does both. Whether a training with them succeeds, this does not say.
        scalable: whether a fixed scale flushes at most out_of_range.TOLERATED and leaves the
            largest gradient that was sampled finite, with no room for a larger one.
        hidden: whether gradients may have been flushed to zero before they were sampled.
        any_gradient: whether any gradient that was sampled was finite and not zero.
        cpu_isa: the limit on the CPU's instructions under which all this holds.
        tried: a training in the policy that the range allows; where it fails, `policy` is float32.
    """

    policy: str
    loss_scale: str
    native: Sequence[str] | None
    too_large: Sequence[str]
    lost: float
    not_finite: Sequence[str]
    fixed_scales: tuple[float, float] | None
    scalable: bool
    any_gradient: bool = True
    hidden: bool = False
    cpu_isa: str = "default"
    tried: Tried | None = None


def probe(run: Run, notebook: str, steps: int, timeout_min: float) -> tuple[Sweep, str]:
    """A sweep of one short run in float32 that samples gradients, and the text of its params file.

    Args:
        run: what is asked about; its model, data, batch size and optimizer are kept.
        steps: of the probe.
    """
    return short_trainings.short(
        run,
        notebook,
        sampled(steps),
        steps,
        timeout_min,
        question=QUESTION,
        expected="the exponents of its gradients say it.",
    )


def sampled(steps: int) -> dict[str, Any]:
    """What a run is changed to so that its exponents are those of float32, SAMPLES times."""
    every = max(1, steps // SAMPLES)
    single = {"steps_per_execution": 1}  # an update is that of one step
    return {"policy": "float32", "loss_scale": "auto", "exponents_every": every, **single}


def trial(
    run: Run, notebook: str, advised: Advice, steps: int, timeout_min: float
) -> tuple[Sweep, str]:
    """A sweep of one training in the policy that is advised, as long as the probe."""
    own = {"policy": advised.policy, "loss_scale": advised.loss_scale, "exponents_every": 0}
    return short_trainings.short(
        run,
        notebook,
        sampled(steps) | own,
        steps,
        timeout_min,
        question=QUESTION,
        expected="its loss follows that of the training in float32.",
    )


def advise(measured: DynamicRange, tried: Tried | None = None) -> Advice:
    """Advice from a dynamic range, what the device computes in natively, and what was tried.

    Range knows the outputs of layers, not what is computed within them.
    """
    advised = _of_range(measured)
    if tried is None or tried.policy != advised.policy:
        return advised
    if tried.fails:
        advised = replace(advised, policy="float32", loss_scale="none")
    return replace(advised, tried=tried)


def tried(measured: DynamicRange, tables: Tables) -> Tried | None:
    """What was tried beside a training whose numbers were looked at; None where nothing was."""
    return short_trainings.tried(measured.parameters, tables.records, tables.tried)


def _of_range(measured: DynamicRange) -> Advice:
    native, too_large = _native(measured), _too_large(measured)
    # None are known where gradients are all zero, or were not finite when they were sampled.
    least, most = out_of_range.scales(measured)
    known = least is not None and most is not None
    scalable = known and least <= most
    fixed_scales = (least, most / MARGIN) if known and least <= most / MARGIN else None
    kinds = {k: h for k, h in measured.kinds.items() if k != "update_ratios"}
    not_finite = [kind for kind, histogram in kinds.items() if histogram.not_finite]
    # Infinite activations may be those of a mask; weights are infinite for no good reason.
    fits = not too_large and "weights" not in not_finite and scalable
    if native and "bfloat16" in native:
        policy, scale = "mixed_bfloat16", "none"  # its range is float32's
    elif native and "float16" in native and fits:
        policy, scale = "mixed_float16", "dynamic"
    else:
        policy, scale = "float32", "none"
    wide = FORMATS["bfloat16"]
    return Advice(
        policy,
        scale,
        native,
        too_large,
        max((out_of_range.lost_at_most(h, wide) for h in kinds.values()), default=0.0),
        not_finite,
        fixed_scales,
        scalable,
        any(map(measured.counted, out_of_range.GRADIENTS)),
        out_of_range.hidden(measured),
        str(measured.parameters.get("cpu_isa", "default")),
    )


def _native(measured: DynamicRange) -> Sequence[str] | None:
    """The types that the device computes in, under the run's limit on its instructions."""
    known, limit = measured.environment.get("native"), measured.parameters.get("cpu_isa", "default")
    if not known or limit == "default":
        return known
    flags = measured.environment.get("instruction_sets") or ()
    return [dtype for dtype in known if ARITHMETICS[dtype].is_native_on_cpu(flags, limit)]


def _too_large(measured: DynamicRange) -> list[str]:
    most = FORMATS["float16"].largest
    kinds = [k for k in ("weights", "activations") if k in measured.kinds]
    return [k for k in kinds if measured.kinds[k].largest > most]
