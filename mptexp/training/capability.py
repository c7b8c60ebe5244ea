"""What the device can do, and the two errors of a run that asks for more."""

import math
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from mptexp.errors import UserError
from mptexp.host.devices import cpuinfo, has_tensor_cores, nvidia_handle
from mptexp.spec.backends import BACKEND_ROWS
from mptexp.spec.policies import ARITHMETICS, POLICY_ROWS

# Flags of /proc/cpuinfo (x86, then Arm) that matter to 16-bit arithmetic and vector width.
INSTRUCTION_SETS = [
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni",
    "amx_tile", "amx_bf16", "amx_fp16",
    "asimd", "fphp", "asimdhp", "bf16", "sve", "i8mm",
]  # fmt: skip
# The types below float32 in which a policy's layers compute, such as float16.
NARROW = list(dict.fromkeys(r.compute_dtype for r in POLICY_ROWS.values() if r.tf32 is None))


class Unsupported(UserError, RuntimeError):
    """The device or this installation cannot do what the run asks for. A result, not a failure."""


class SettingNotApplied(UserError, RuntimeError):
    """What was asked for is not what the backend does: the run must not be counted."""


@cache
def instruction_sets() -> list[str]:
    """Those of INSTRUCTION_SETS that this CPU has; empty where the system does not tell."""
    present = set(cpuinfo("flags", "Features").split())
    return [name for name in INSTRUCTION_SETS if name in present]


@cache
def driver() -> str | None:
    """Version of the NVIDIA driver of this machine; None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no NVML library, no driver, no device: each has its own exception
        return None


def gpu_memory_bytes() -> int | None:
    """Memory of the GPU that this process uses, by NVML; None where it does not tell."""
    import pynvml

    handle = nvidia_handle()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) if handle else None
    except pynvml.NVMLError:  # not supported, where a GPU shares the memory of the machine
        return None


def is_native(dtype: str, device: Mapping[str, Any], cpu_isa: str = "default") -> bool:
    """Whether the device of a card computes in this type with instructions of its own.

    Args:
        dtype: a key of `policies.ARITHMETICS`.
        device: a card, or the part of it that `environment.device` gives.
        cpu_isa: the limit that a run sets on a CPU, see `devices.CPU_ISAS`.
    """
    arithmetic = ARITHMETICS[dtype]
    if device["kind"] == "cpu":
        return arithmetic.is_native_on_cpu(instruction_sets(), cpu_isa)
    return arithmetic.is_native_on_gpu(device["capability"])


def default_policy(
    device: Mapping[str, Any], backend: str, convolutions_frac: float = math.nan
) -> str:
    """What a user who sets nothing gets: TF32 from capability 8.0, else float32.

    PyTorch turns TF32 on for convolutions and leaves matrix products in strict float32.

    Args:
        convolutions_frac: share of a model's arithmetic; NaN, of which nothing is known, counts as
            convolutions.
    """
    has_tf32 = device["kind"] == "gpu" and is_native("tensorfloat32", device)
    has_tf32 &= not tf32_is_overridden()
    taken = BACKEND_ROWS[backend].has_tf32_products or not convolutions_frac < 0.5
    return "tensorfloat32" if has_tf32 and taken else "float32"


def tf32_is_overridden() -> bool:
    """Whether NVIDIA's libraries are told to leave TF32 off, whatever a framework asks for."""
    return os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"


def tensor_cores(device: Mapping[str, Any]) -> str:
    """yes, no (with the reason) or unknown, as reports have it: see `devices.has_tensor_cores`."""
    if device["kind"] == "cpu":
        return "no"
    has = has_tensor_cores(device)
    if has is None:
        return "unknown"
    below = device["capability"][0] < 7
    why = "capability below 7.0" if below else "one of Turing's small chips"
    return "yes" if has else f"no ({why})"
