"""The kernel census: which arithmetic each kernel used, and whether it ran on Tensor Cores.

On a GPU from the kernels' names, by the rules below; what they do not know is unknown, never
counted as something. On a CPU from what oneDNN said of its primitives.

Sources: NVIDIA's CUTLASS documentation, "CUTLASS Profiler" and "Layouts and Tensors" (operation
names: simt, tensorop, wmma_tensorop; the type before the instruction's shape, s1688, s16816,
s64x128x16, h884, ...); the PTX ISA, sections on mma, wgmma and tcgen05 (which shapes belong to
which type: m8n8k4 float16 on Volta, m16n8k8 float16 on Turing and TF32 on Ampere, m16n8k16 float16
and bfloat16 on Ampere, wgmma on Hopper, tcgen05 on Blackwell); the names that kernels bear in
public traces of TensorFlow, JAX and PyTorch (tests/recorded_kernels.csv).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from mptexp.diagnosis import breakdown
from mptexp.traces.xplane import ON_HOST

LOW = ("float16", "bfloat16", "tf32", "float8")


class Kernel(NamedTuple):
    """What a kernel's name tells: arithmetic, and whether on Tensor Cores (None: not known)."""

    arithmetic: str
    tensor_cores: bool | None


UNKNOWN = Kernel("unknown", None)
TYPES = {"f16": "float16", "fp16": "float16", "bf16": "bfloat16", "tf32": "tf32"}
TYPES |= {"f32": "float32", "f64": "float64", "i8": "int8", "s8": "int8", "int8": "int8"}
TYPES |= {"e4m3": "float8", "e5m2": "float8"}
TYPE = r"bf16|fp16|f16|tf32|f32|f64|i8|s8|int8|e4m3|e5m2"
LETTERS = {"h": "float16", "s": "float32", "d": "float64", "c": "float32", "z": "float64"}


def _xmma(found: re.Match) -> Kernel:
    """`gemm_f32f32_tf32f32_f32`: operands, types of products and sums, result.

    A first layer's has one type of sums instead: `first_layer_f16f16_f32_f16`.
    """
    arithmetic = TYPES[found["math"] if found["sums"] else found["operand"]]
    return Kernel(arithmetic, arithmetic not in ("float32", "float64"))


def _hmma(found: re.Match) -> Kernel:
    """`Ampere_hmma_fp32_traits`: sums in float32 of half products, where no other type is named."""
    named = {"bf16": "bfloat16", "tf32": "tf32"}
    return Kernel(named.get(found["type"], "float16"), True)


def _mangled(found: re.Match) -> Kernel:
    named = {"tfloat32_t": "tf32", "half_t": "float16", "bfloat16_t": "bfloat16"}
    return Kernel(named[found["type"]], True)


def _nvjet(found: re.Match) -> Kernel:
    """Tensor Cores always; `hsh` are half operands and result, `tst` bfloat16, `qq` 8 bits."""
    code = found["code"]
    if found["tf32"]:
        return Kernel("tf32", True)
    first = "float8" if code.startswith("qq") else {"h": "float16", "t": "bfloat16"}.get(code[0])
    return Kernel(first or "unknown", True)


def _tensorop(found: re.Match) -> Kernel:
    """The types in the name; m16n8k8 without a type multiplies in TF32 (float16 is named)."""
    named = re.findall(rf"(?<![a-z0-9])(?:{TYPE})(?![0-9])", found.string[found.start() :])
    named += [found["fast"]] if found["fast"] else []
    low = [TYPES[name] for name in named if TYPES[name] in (*LOW, "int8")]
    if low:
        return Kernel(low[0], True)
    if found["letter"] == "h":
        return Kernel("float16", True)
    return Kernel("tf32" if found["shape"].startswith("1688") else "unknown", True)


def _sass(found: re.Match) -> Kernel:
    """Of cuBLAS and cuDNN: `ampere_bf16_s16816gemm_bf16`, `volta_sgemm`, `turing_h1688gemm`.

    The shape is that of a Tensor Core's instruction; without one the letter is the arithmetic, and
    a type before it only that of the data.
    """
    if not found["shape"]:
        return Kernel(LETTERS.get(found["letter"], "unknown"), False)
    named = TYPES.get(found["type"] or "") or TYPES.get(found["result"] or "")
    usual = {"h": "float16", "s": "tf32", "d": "float64", "i": "int8"}
    if found["shape"] == "884" and found["letter"] == "s":  # of Volta, which has no TF32
        usual["s"] = "float16"
    return Kernel(named or usual.get(found["letter"], "unknown"), True)


def _by_letter(found: re.Match) -> Kernel:
    return Kernel(LETTERS[found["letter"]], False)


def _by_argument(found: re.Match) -> Kernel:
    """A vector kernel: no Tensor Cores; the type is a template argument."""
    text = found.string
    for word, arithmetic in (("bfloat16", "bfloat16"), ("half", "float16"), ("float", "float32")):
        if word in text:
            return Kernel(arithmetic, False)
    return UNKNOWN


def _attention(found: re.Match) -> Kernel:
    """CuDNN's own say f16 of bfloat16 too."""
    if found["cudnn"]:
        return Kernel("unknown", True)
    half = "bfloat16" if re.search(r"bf16|bfloat16", found.string) else "float16"
    return Kernel(half, True) if re.search(r"half_t|f16|bfloat16", found.string) else UNKNOWN


def _by_convolve(found: re.Match) -> Kernel:
    return Kernel(LETTERS[found["letter"] or found["magma"]], False)


def _float32(_: re.Match) -> Kernel:
    """Engines that multiply in float32 with ordinary instructions, whatever the data are in."""
    return Kernel("float32", False)


# The first rule whose pattern is found in the lower-cased name decides.
RULES: tuple[tuple[str, Callable[[re.Match], Kernel]], ...] = (
    (rf"xmma_.*?_(?P<operand>{TYPE})(?:{TYPE})_(?P<math>{TYPE})(?P<sums>{TYPE})?", _xmma),
    (r"nvjet_(?:sm\d+_)?(?P<code>[a-z]+)_(?P<tf32>tf32)?", _nvjet),
    (r"simt_(?P<letter>[shdcz])(?:gemm|fprop|dgrad|wgrad)", _by_letter),
    (
        r"tensorop_(?:(?:bf16|f16|tf32|e4m3|e5m2)_)*(?P<letter>[shdi])(?P<shape>\d[\dx]*)"
        r"(?P<fast>bf16|f16|tf32)?(?:gemm|fprop|dgrad|wgrad|implicit_gemm|_conv3d)",
        _tensorop,
    ),
    (
        r"(?:volta|turing|ampere|hopper|maxwell|pascal)_(?:(?P<type>fp16|bf16|int8)_)?"
        r"(?P<letter>[shdicz])(?P<shape>\d{3,5})?(?:gemm|cudnn)(?:_(?P<result>fp16|bf16))?",
        _sass,
    ),
    (r"(?<![a-z])hmma(?:_(?P<type>bf16|tf32))?", _hmma),
    (r"cutlass.*?(?P<type>tfloat32_t|bfloat16_t|half_t).*mmatensorop", _mangled),
    (r"(?P<cudnn>sdpa_sm\d+_flash)|flash_(?:fwd|bwd)|fmha", _attention),
    (r"gemv|dot_kernel", _by_argument),
    (r"convolve_(?P<letter>[shd])gemm|magma_(?P<magma>[shd])gemm", _by_convolve),
    (r"convolve_common_engine_float|convolvend_\w*float_engine|gcgemm", _float32),
    (r"winograd|fft2d|(?:vector|regular)_fft|(?:dgrad|wgrad)\w*_engine\w*<|_engineif", _float32),
    (r"(?:conv|dgrad|wgrad)2d_grouped_direct|(?:dgrad|wgrad)2d_alg1", _by_argument),
    (r"(?<![a-z])(?P<letter>[sd])gemm", _by_letter),
    # Code made at run time: triton, gemm_fusion, cudnn_generated: its name does not tell.
)


def kernel(name: str) -> Kernel:
    """Arithmetic (float16, bfloat16, tf32, float32, float64, float8, int8, unknown) of a kernel.

    And whether it ran on Tensor Cores: None where the name does not tell.
    """
    lowered = name.lower()
    if breakdown.KERNELS["casts"].search(lowered) or breakdown.KERNELS["memory"].search(lowered):
        return UNKNOWN  # it multiplies nothing
    for pattern, rule in RULES:
        if found := re.search(pattern, lowered):
            return rule(found)
    return UNKNOWN


def table(record: Mapping[str, Any]) -> pd.DataFrame:
    """Every kernel of a traced GPU step.

    Returns:
        Columns: kernel, arithmetic, tensor_cores (yes, no, unknown), cause, layer, seconds, share;
        the longest first; empty where no GPU was traced.
    """
    rows = breakdown.rows(record)
    rows = rows[(rows.kernel != "") & (rows.kernel != ON_HOST)]
    known = [kernel(name) for name in rows.kernel]
    words = {True: "yes", False: "no", None: "unknown"}
    rows = rows.assign(
        arithmetic=[found.arithmetic for found in known],
        tensor_cores=[words[found.tensor_cores] for found in known],
    )
    columns = ["kernel", "arithmetic", "tensor_cores", "cause", "layer", "seconds", "share"]
    return rows[columns].sort_values("seconds", ascending=False, ignore_index=True)


def tensor_core_shares(record: Mapping[str, Any]) -> pd.DataFrame:
    """Matrix work by whether it ran on Tensor Cores, by layer.

    Returns:
        Index: layer. Columns: yes, no, unknown: seconds of a step.
    """
    eligible = table(record)
    eligible = eligible[eligible.cause == "matrix"]
    wide = eligible.pivot_table("seconds", "layer", "tensor_cores", "sum", 0.0)
    return wide.reindex(columns=["yes", "no", "unknown"], fill_value=0.0)


def missed(record: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of each layer's matrix work that surely ran without Tensor Cores, though its policy
    computes in a type that they know; empty where none did."""
    if record["parameters"]["policy"] == "float32" or table(record).empty:
        return {}
    without = tensor_core_shares(record).no
    return {str(layer): float(s) for layer, s in without.items() if s > 0}


def instructions(record: Mapping[str, Any]) -> pd.DataFrame:
    """What oneDNN ran on a CPU, from its verbose log.

    Returns:
        Columns: primitive, instructions (the widest set that the implementation names, or its
        name), dtype (of source, weights, destination), seconds, share (of oneDNN's time), count;
        the longest first; empty where oneDNN said nothing.
    """
    columns = ["primitive", "instructions", "dtype", "seconds", "share", "count"]
    rows = pd.DataFrame((record.get("profile") or {}).get("primitives", []))
    if rows.empty:
        return pd.DataFrame(columns=columns)
    rows["instructions"] = [name.rpartition(":")[2] or name for name in rows.implementation]
    keys = ["primitive", "instructions", "dtype"]
    found = rows.groupby(keys, as_index=False)[["seconds", "count"]].sum()
    found["share"] = found.seconds / found.seconds.sum()
    return found[columns].sort_values("seconds", ascending=False, ignore_index=True)
