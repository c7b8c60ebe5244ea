"""The precision policies: a row for each, with its look, and the arithmetic of their products.

Adding a policy touches this file and its test; one in a new type needs a row of `ARITHMETICS` too.
The order of the rows is the order of every table and figure; a row without one of its parts is
refused when this module is imported.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mptexp.host.devices import CPU_ISAS


@dataclass(frozen=True)
class Arithmetic:
    """A type in which matrix products are computed, and the devices with instructions for it.

    Args:
        name: of the type, as in `number_formats.FORMATS`.
        mantissa_bits: explicit ones, by which the numeric probe knows it.
        cpu_flags: flags of /proc/cpuinfo (x86, then Arm) any one of which means that the CPU
            computes in this type; each with the lowest limit (a key of `devices.CPU_ISAS`) under
            which oneDNN still uses it, or None where it uses it only without a limit.
        gpu_capability: lowest compute capability of the NVIDIA GPUs that compute in this type.
        everywhere: whether every device computes in this type.
    """

    name: str
    mantissa_bits: int
    cpu_flags: Mapping[str, str | None]
    gpu_capability: tuple[int, int]
    everywhere: bool = False

    def is_native_on_cpu(self, flags: Collection[str], limit: str = "default") -> bool:
        """Whether a CPU of these flags computes in this type under a limit on instructions."""
        used = [least for flag, least in self.cpu_flags.items() if flag in flags]
        if self.everywhere or limit == "default":
            return self.everywhere or bool(used)
        ranks = list(CPU_ISAS)
        return any(least and ranks.index(least) <= ranks.index(limit) for least in used)

    def is_native_on_gpu(self, capability: Sequence[int] | None) -> bool:
        """Whether an NVIDIA GPU computes in this type; without a known capability only float32."""
        return tuple(capability or (0, 0)) >= self.gpu_capability


@dataclass(frozen=True)
class Policy:
    """A policy of a run, and how figures draw it.

    Args:
        name: in params files, records, tables and figures.
        compute_dtype: the type that layers compute in.
        variable_dtype: the type that layers keep their weights in.
        arithmetic: in which products are computed: a key of ARITHMETICS. TF32 is arithmetic on
            float32 values, and a quantized policy's on values of the compute type; for every other
            policy it is the compute type.
        quantization: of Dense and EinsumDense by Keras's `Model.quantize`, see
            training.quantized_layers. Under float8 they multiply numbers of the arithmetic's type;
            under the others what was trained before is stored as integers. Empty where there is
            none.
        colour: in figures, as #rrggbb: distinct to colour-blind readers on white and on black.
        marker: in figures, one of Matplotlib's.

    Raises:
        ValueError: where the arithmetic is not known or the colour is none.
    """

    name: str
    compute_dtype: str
    variable_dtype: str
    arithmetic: str
    quantization: str = field(default="", kw_only=True)
    colour: str = field(kw_only=True)
    marker: str = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.arithmetic not in ARITHMETICS:
            raise ValueError(f"arithmetic of policy {self.name} is {self.arithmetic}")
        if not re.fullmatch("#[0-9a-f]{6}", self.colour) or len(self.marker) != 1:
            raise ValueError(f"policy {self.name} has colour {self.colour}, marker {self.marker}")

    @property
    def tf32(self) -> bool | None:
        """Whether products of float32 must use TF32; None: as the backend has it by default."""
        if self.compute_dtype != "float32":
            return None
        return self.arithmetic == "tensorfloat32"

    @property
    def keras_name(self) -> str:
        """Keras's name of the policy that layers are made with, before any is quantized."""
        mixed = self.compute_dtype != self.variable_dtype
        return f"mixed_{self.compute_dtype}" if mixed else self.compute_dtype

    @property
    def inference_only(self) -> bool:
        """Whether weights are integers, which are not trained."""
        return self.quantization.startswith("int")

    @property
    def promised(self) -> str:
        """The type of the products that the policy promises; those of TF32 are called float32."""
        if self.inference_only:
            return self.quantization.replace("_", " ")
        return self.arithmetic if self.quantization else self.compute_dtype

    @property
    def promise(self) -> str:
        """The same in words: Keras rounds no inputs under int4."""
        return self.promised + " weights" * (self.name == "int4")


ARITHMETICS = {
    row.name: row
    for row in (
        Arithmetic("float32", 23, {}, (0, 0), everywhere=True),
        Arithmetic("tensorfloat32", 10, {}, (8, 0)),
        Arithmetic(
            "float16",
            10,
            {"avx512_fp16": "avx512_core_fp16", "amx_fp16": None, "asimdhp": None},
            (5, 3),
        ),
        Arithmetic(
            "bfloat16",
            7,
            {"avx512_bf16": "avx512_core_bf16", "amx_bf16": "avx512_core_amx", "bf16": None},
            (8, 0),
        ),
        # What a forward pass multiplies; gradients are float8_e5m2, on the same devices.
        Arithmetic("float8_e4m3fn", 3, {}, (8, 9)),
    )
}


def by_name(*rows: Policy) -> dict[str, Policy]:
    """The rows by name.

    Raises:
        ValueError: where two of them share a name, a colour or a marker.
    """
    for part in ("name", "colour", "marker"):
        values = [getattr(row, part) for row in rows]
        if len(set(values)) < len(values):
            raise ValueError(f"two policies share a {part}: {', '.join(values)}")
    return {row.name: row for row in rows}


def _of_integers(name: str, colour: str, marker: str) -> Policy:
    """What is trained in float32 and then quantized to integers, for inference."""
    return Policy(
        name, "float32", "float32", "float32", quantization=name, colour=colour, marker=marker
    )


# Okabe and Ito's colours (2008), distinct to colour-blind readers, on light and on dark grounds.
POLICY_ROWS = by_name(
    Policy("float32", "float32", "float32", "float32", colour="#7f7f7f", marker="o"),
    Policy("tensorfloat32", "float32", "float32", "tensorfloat32", colour="#cc79a7", marker="s"),
    Policy("mixed_float16", "float16", "float32", "float16", colour="#d55e00", marker="D"),
    Policy("mixed_bfloat16", "bfloat16", "float32", "bfloat16", colour="#0087c8", marker="^"),
    Policy("float16", "float16", "float16", "float16", colour="#e69f00", marker="v"),
    Policy("bfloat16", "bfloat16", "bfloat16", "bfloat16", colour="#009e73", marker="P"),
    Policy(
        "float8",
        "bfloat16",
        "float32",
        "float8_e4m3fn",
        quantization="float8",
        colour="#aa4499",
        marker="X",
    ),
    _of_integers("int8", colour="#56b4e9", marker="p"),
    _of_integers("int8_weights", colour="#999933", marker="h"),
    _of_integers("int4", colour="#cc6677", marker="<"),
)
POLICIES = tuple(POLICY_ROWS)
PolicyName = Literal[POLICIES]
# From this share of a step's FLOPs in the promised type on, a policy is effective.
EFFECTIVE_SHARE = 0.95
# Below this share of a step's FLOPs in layers that can be quantized, a quantized policy is refused.
QUANTIZED_SHARE = 0.5


def share_mark(share: float, what: str, dtype: str) -> str:
    """What is said beside a number where a policy is effective in part alone.

    Args:
        share: of the FLOPs or of the weights, from 0 to 1.
        what: arithmetic or weights.
        dtype: the type that the policy promises.
    """
    # Rounded down: 99.9 % is not all, and what is below the limit does not look as if it met it.
    return f"{math.floor(share * 100)} % of the {what} in {dtype}"


def without_kernels(dtype: str, operations: Collection[str]) -> list[str]:
    """What a reader must know of a type for which oneDNN has too few kernels; else nothing.

    Args:
        operations: that its reference code computes, such as `gradients of the weights of
            convolutions`.
    """
    said = (
        f"oneDNN has no {dtype} kernel here for {' and '.join(operations)}: its reference code "
        "computes them, many times slower"
    )
    return [said] * bool(operations)
