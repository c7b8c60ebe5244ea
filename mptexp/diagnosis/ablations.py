"""Ablations: what to change to see whether a suspected cause is the cause, a row each.

An ablation is a run like any other, with a record of its own. Which are worth a run is decided in
`proposals`, by what the time breakdown says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mptexp.spec.run import Run


@dataclass(frozen=True)
class Ablation:
    """A change of parameters that takes a suspected cause away.

    Attributes:
        name: what the change is, such as `XLA on`.
        change: parameters and what they are set to; a batch size is multiplied instead, and layers
            in float32 come to those that are.
        reason: says of a share of the step why that makes the change worth a run.
        only: which run of a pair is changed: baseline, candidate, or both where it is empty.
        share: of the candidate's step, for that reason; NaN where no trace tells it, None where
            nothing asked for it.
    """

    name: str
    change: Mapping[str, Any]
    reason: str
    only: str = ""
    share: float | None = None

    def variants(self, baseline: Run, candidate: Run) -> tuple[Run, Run]:
        """A pair with the change made."""
        return (
            baseline if self.only == "candidate" else self._changed(baseline),
            candidate if self.only == "baseline" else self._changed(candidate),
        )

    def label(self, backend: str) -> str:
        """The name, as users of a backend call it: PyTorch has a compiler of its own."""
        return self.name.replace("XLA", "torch.compile") if backend == "torch" else self.name

    def _changed(self, run: Run) -> Run:
        factor = self.change.get("batch_size")
        own = {"batch_size": run.batch_size * factor} if factor else {}
        if (more := self.change.get("float32_layers")) and run.float32_layers:
            own["float32_layers"] = f"{run.float32_layers},{more}"
        return run.model_copy(update={**self.change, **own})


LAUNCHES = "is host and launch overhead"
INPUT = Ablation(
    "the batch on the device",
    {"input_mode": "resident"},
    "waits for input or runs beside its pipeline",
)
# What input can be changed to for good, where it is the study's own.
PIPELINE = Ablation("images prepared ahead", {"input_mode": "pipeline"}, "is input of the study's")
XLA_ON = Ablation("XLA on", {"jit": "on"}, "is memory-bound work, casts and launches")
XLA_OFF = Ablation("XLA off", {"jit": "off"}, "is compiled by XLA")
STRICT = Ablation(
    "strict float32", {"policy": "float32"}, "is compared with one in TF32", only="baseline"
)
BATCH = Ablation("the batch doubled", {"batch_size": 2}, LAUNCHES)
EXECUTION = Ablation("16 steps per execution", {"steps_per_execution": 16}, LAUNCHES)
NO_NORMALIZATION = Ablation("no normalization", {"normalization": "none"}, "is batch normalization")
# A compiler takes the one operation apart, which is refused where it may be on.
FUSED = Ablation(
    "fused normalization", {"normalization": "fused", "jit": "off"}, "is batch normalization"
)
PADDED = Ablation(
    "widths padded to multiples of 8",
    {"width_multiple": 8},
    "is matrix work, some of it at odd widths",
)
NO_FALLBACK = Ablation(
    "no layer kept in float32",
    {"float32_layers": ""},
    "runs with layers kept in float32",
    only="candidate",
)


def in_float32(layer: str, baseline: str, share: float) -> Ablation:
    """Float32 for the one layer that lost most time over the baseline's policy."""
    reason = f"is what {layer} takes longer than under {baseline}"
    change = {"float32_layers": layer}
    return Ablation(f"{layer} in float32", change, reason, only="candidate", share=share)
