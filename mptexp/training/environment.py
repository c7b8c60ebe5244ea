"""The environment card: what a run ran on and with, so that a number can be understood later.

`python -m mptexp.training.environment [BACKEND]` prints the card as JSON; `mptexp doctor`
asks it in a child process, because a framework that has looked at a GPU holds its memory.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from mptexp.spec.devices import cpu_name, cpuinfo, nvidia_handle
from mptexp.spec.errors import UserError
from mptexp.spec.policies import ARITHMETICS, POLICY_ROWS
from mptexp.spec.project import PROJECT
from mptexp.training import machine

PACKAGES = [
    "mptexp",
    "keras",
    "tensorflow",
    "tensorflow-datasets",
    "jax",
    "jaxlib",
    "torch",
    "nvidia-cublas-cu12",
    "nvidia-cublas",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "numpy",
    "pandas",
    "scikit-learn",
    "papermill",
    "ipykernel",
]
# Variables that change speed or numerics; no others are recorded, since they may be secrets.
VARIABLES = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "KERAS_BACKEND",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_DETERMINISTIC_OPS",
    "TF_CUDNN_DETERMINISTIC",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "TF_GPU_ALLOCATOR",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_CUDNN_USE_AUTOTUNE",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
]
# Flags of /proc/cpuinfo (x86, then Arm) that matter to 16-bit arithmetic and vector width.
INSTRUCTION_SETS = [
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_fp16",
    "asimd",
    "fphp",
    "asimdhp",
    "bf16",
    "sve",
    "i8mm",
]
# The types below float32 in which a policy's layers compute, such as float16.
NARROW = list(dict.fromkeys(r.compute_dtype for r in POLICY_ROWS.values() if r.tf32 is None))


class Unsupported(UserError, RuntimeError):
    """The device or this installation cannot do what the run asks for. A result, not a failure."""


def card(backend: str = "tensorflow") -> dict[str, Any]:
    """What this process runs on, as plain JSON types; sizes in bytes. Starts the backend.

    Keys: device (its name), kind (cpu or gpu), capability ([major, minor] or None), cuda, cudnn,
    driver, device_memory_bytes (of a GPU), native (16-bit types that it computes in), cpu,
    instruction_sets, cores, memory_bytes, and what machine.state gives, os, python, packages,
    commit, clean (None outside a git checkout), variables.
    """
    where = device(backend)
    return {
        **where,
        "native": [name for name in NARROW if is_native(name, where)],
        "cpu": cpu_name().removesuffix(" (CPU)"),
        "instruction_sets": instruction_sets(),
        "cores": machine.cores(),
        "memory_bytes": psutil.virtual_memory().total,
        **machine.state(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": versions(),
        **commit(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


@cache
def instruction_sets() -> list[str]:
    """Those of INSTRUCTION_SETS that this CPU has; empty where the system does not tell."""
    present = set(cpuinfo("flags", "Features").split())
    return [name for name in INSTRUCTION_SETS if name in present]


def versions() -> dict[str, str]:
    """Installed versions of PACKAGES; those that are missing are left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@cache
def commit() -> dict[str, Any]:
    """The git commit that mptexp was run from and whether the tree was clean."""
    here = PROJECT
    if not (here / ".git").exists():
        return {"commit": None, "clean": None}
    try:
        head = _git(here, "rev-parse", "HEAD")
        return {"commit": head, "clean": not _git(here, "status", "--porcelain")}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "clean": None}


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=30
    ).stdout.strip()


def device(backend: str) -> dict[str, Any]:
    """Name, kind, capability and libraries of the device that the backend uses.

    Raises:
        Unsupported: where that is neither a CPU nor an NVIDIA GPU.
    """
    found = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[backend]()
    # The CPU's own name, whatever GPU the machine may have: the backend does not see it.
    cpu = {"device": cpu_name(), "kind": "cpu", "capability": None}
    memory = gpu_memory_bytes() if found else None
    versions = {"cuda": None, "cudnn": None, "driver": _driver()}
    return {**versions, "device_memory_bytes": memory, **(found or cpu)}


def _tensorflow() -> dict[str, Any] | None:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    details = tf.config.experimental.get_device_details(gpus[0])
    build = tf.sysconfig.get_build_info()
    return {
        "device": details.get("device_name", "unknown GPU"),
        "kind": "gpu",
        "capability": list(details.get("compute_capability", ())) or None,
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
    }


def _jax() -> dict[str, Any] | None:
    import jax

    first = jax.devices()[0]
    if first.platform == "cpu":
        return None
    if first.platform != "gpu":
        raise Unsupported(f"{first.device_kind} is neither a CPU nor an NVIDIA GPU")
    capability = getattr(first, "compute_capability", "")
    return {
        "device": first.device_kind,
        "kind": "gpu",
        "capability": [int(n) for n in capability.split(".")] if capability else None,
    }


def _torch() -> dict[str, Any] | None:
    import torch

    if not torch.cuda.is_available():
        return None
    return {
        "device": torch.cuda.get_device_name(0),
        "kind": "gpu",
        "capability": list(torch.cuda.get_device_capability(0)),
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()),
    }


def has_no_nvidia_driver() -> bool:
    """Whether this machine has no NVIDIA driver."""
    return _driver() is None


def _driver() -> str | None:
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
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) if handle else None


def is_native(dtype: str, where: dict[str, Any], cpu_isa: str = "default") -> bool:
    """Whether the device of a card computes in this type with instructions of its own.

    Args:
        dtype: a key of `policies.ARITHMETICS`.
        where: a card, or the part of it that `device` gives.
        cpu_isa: what a run allows of a CPU, see spec.CPU_ISAS.
    """
    arithmetic = ARITHMETICS[dtype]
    if where["kind"] == "cpu":
        return arithmetic.is_native_on_cpu(instruction_sets(), cpu_isa)
    return arithmetic.is_native_on_gpu(where["capability"])


def default_policy(where: dict[str, Any]) -> str:
    """What a user who sets nothing gets: TF32 from capability 8.0, else float32.

    PyTorch turns TF32 on for convolutions and leaves matrix products in strict float32; as nearly
    all work of the models here is convolutions, tensorfloat32 stands for its default too.
    """
    has_tf32 = where["kind"] == "gpu" and is_native("tensorfloat32", where)
    return "tensorfloat32" if has_tf32 else "float32"


def diagnosis(backend: str) -> dict[str, Any]:
    """The card with what `mptexp doctor` says beyond it.

    Further keys: native (type -> whether the device computes in it), default_policy,
    tensor_cores, tf32, determinism, advice (sentences on what is missing and how to mend it).
    """
    found = card(backend)
    return found | {
        "native": {name: is_native(name, found) for name in ARITHMETICS},
        "default_policy": default_policy(found),
        "tensor_cores": tensor_cores(found),
        "tf32": _tf32(found),
        "determinism": "on" if os.environ.get("TF_DETERMINISTIC_OPS") == "1" else "off",
        "advice": advice(backend, found),
    }


def tensor_cores(where: dict[str, Any]) -> str:
    """yes, no or unlikely. GTX 16xx cards have capability 7.5 without Tensor Cores."""
    if where["kind"] != "gpu" or not where["capability"]:
        return "no" if where["kind"] == "cpu" else "unknown"
    if "GTX 16" in where["device"]:
        return "no (GTX 16 series)"
    return "yes" if tuple(where["capability"]) >= (7, 0) else "no (capability below 7.0)"


def _tf32(where: dict[str, Any]) -> str:
    return "on by default" if is_native("tensorfloat32", where) else "not on this device"


def advice(backend: str, where: dict[str, Any]) -> list[str]:
    """What spoils or limits measurements here, each with its remedy."""
    found = []
    if where["kind"] == "cpu" and where["driver"]:
        remedy = {
            "tensorflow": "pip install -e '.[cuda]'",
            "jax": "pip install 'jax[cuda12]'",
            "torch": "install a CUDA build of PyTorch",
        }
        found.append(
            f"an NVIDIA driver ({where['driver']}) is present, but {backend} does not see the "
            f"GPU: {remedy[backend]}"
        )
    elif where["kind"] == "cpu":
        found.append("no NVIDIA driver was found: runs use the CPU; with a GPU, install its driver")
    for name in NARROW:
        if not is_native(name, where):
            found.append(f"{name} is emulated on this device: slower is expected")
    return found + machine.spoilers(where)


def main() -> None:
    """Prints the diagnosis of the backend named on the command line as JSON."""
    backend = sys.argv[1] if len(sys.argv) > 1 else "tensorflow"
    if importlib.util.find_spec(backend) is None:
        raise SystemExit(f"{backend} is not installed; pip install {backend}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(json.dumps(diagnosis(backend)))


if __name__ == "__main__":
    main()
