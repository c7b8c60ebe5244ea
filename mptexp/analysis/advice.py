"""Which policy and loss scale to use, and why: from what a short training in float32 showed."""

import json
from dataclasses import dataclass

from mptexp.analysis import exponent_range
from mptexp.analysis.exponent_range import Seen
from mptexp.spec.formats import FORMATS
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run

LOOKS = 5  # of a probe
MARGIN = 2.0  # a fixed scale leaves the largest gradient so much room, and more, to grow


@dataclass(frozen=True)
class Advice:
    """A policy, its loss scale, and the reasons as sentences.

    About the range of numbers alone: what becomes of speed and accuracy, a sweep measures.
    """

    policy: str
    loss_scale: str
    reasons: list[str]

    @property
    def sentence(self) -> str:
        """The advice itself."""
        scale = "" if self.loss_scale == "none" else f" with loss_scale {self.loss_scale}"
        return f"Use policy {self.policy}{scale}."


def probe(run: Run, notebook: str, steps: int, timeout_min: float) -> tuple[Sweep, str]:
    """A sweep of one short run in float32 that looks at gradients, and the text of its params file.

    Args:
        run: what is asked about; its model, data, batch size and optimizer are kept.
        steps: of the probe.
    """
    changed = {"policy": "float32", "loss_scale": "auto", "profile": False, "phase": "train"}
    changed |= {"max_steps": steps, "target_ci": None, "block": 0, "seed": run.seed - run.block}
    asked = run.model_copy(update=changed | {"exponents_every": max(1, steps // LOOKS)})
    point = asked.model_dump(exclude_defaults=True, exclude={"gpu_model"})
    content = {"notebook": notebook, "include": [point], "timeout_min": timeout_min}
    text = (
        "# Question: Which policy and loss scale does this training need?\n"
        f"# Cost: {steps} steps in float32.\n"
        "# Expected: the exponents of its gradients say it.\n"
        f"{json.dumps(content, indent=1)}\n"
    )
    return Sweep(**content), text


def advise(found: Seen) -> Advice:
    """Advice from what was seen and from what the device computes in natively."""
    native = found.card.get("native")
    if native is None:
        told = "The records do not say which types the device computes in."
        return Advice("float32", "none", [told])
    if "bfloat16" in native:
        told = (
            "This device computes in bfloat16, whose range is float32's: nothing that was seen is "
            "flushed to zero or too large, so no loss scale is needed."
        )
        return Advice("mixed_bfloat16", "none", [told, *_of_float16(found)])
    if "float16" in native and not _too_large(found):
        return Advice("mixed_float16", "dynamic", _of_float16(found))
    if "float16" in native:
        return Advice("float32", "none", _of_float16(found))
    told = "This device computes in neither 16-bit type natively: neither would be faster."
    return Advice("float32", "none", [told, *_of_float16(found)])


def _too_large(found: Seen) -> list[str]:
    """The kinds of values that are too large for float16; no loss scale helps these."""
    most = FORMATS["float16"].largest
    kinds = ("weights", "activations")
    return [k for k in kinds if k in found.kinds and found.kinds[k].largest > most]


def _of_float16(found: Seen) -> list[str]:
    """What float16 needs."""
    if outside := _too_large(found):
        return [f"Some {' and '.join(outside)} are larger than float16's largest number, 65504."]
    least, most = exponent_range.scales(found)
    if least is None or most is None or least > most / MARGIN:
        return ["For mixed_float16 no fixed loss scale is both large and small enough."]
    ends = f"from {exponent_range.power(least)} to {exponent_range.power(most / MARGIN)}"
    return [
        f"For mixed_float16 the dynamic loss scale serves, or a fixed one {ends}, which leaves the "
        "largest gradient room to double."
    ]
