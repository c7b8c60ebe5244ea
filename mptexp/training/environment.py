"""The environment card: what a run ran on and with, so that a number can be understood later.

`python -m mptexp.training.environment [BACKEND]` prints the card as JSON; `mptexp doctor`
asks it in a child process, because a framework that has looked at a GPU holds its memory.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import psutil

from mptexp import __version__
from mptexp.host import imports
from mptexp.host.devices import CPU_ISAS, cpu_name, cpu_version, hides_gpus
from mptexp.host.project import PROJECT, here
from mptexp.spec.backends import BACKEND_ROWS
from mptexp.spec.policies import ARITHMETICS, without_kernels
from mptexp.training import capability, machine_state, onednn
from mptexp.training.backends import backend

PACKAGES = [
    "keras", "tensorflow", "tensorflow-datasets", "jax", "jaxlib", "torch",
    "nvidia-cublas-cu12", "nvidia-cublas", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
    "numpy", "pandas", "scikit-learn", "papermill", "ipykernel",
]  # fmt: skip
# Variables that change speed or numerics; no others are recorded, since they may be secrets.
VARIABLES = [
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "KERAS_BACKEND", "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY", "KMP_BLOCKTIME", "OMP_DYNAMIC",
    "MKL_NUM_THREADS", "MKL_DYNAMIC", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "TF_SET_ONEDNN_FPMATH_MODE",
    "TF_ENABLE_ONEDNN_OPTS", "TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC",
    "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_XLA_FLAGS", "XLA_FLAGS",
    "TF_DISABLE_MKL", "TF_GPU_THREAD_MODE", "TF_GPU_THREAD_COUNT", "TF_GPU_ALLOCATOR",
    "TF_FORCE_GPU_ALLOW_GROWTH", "TF_CUDNN_USE_AUTOTUNE",
    "JAX_COMPILATION_CACHE_DIR", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_DISABLE_JIT",
    "JAX_ENABLE_X64", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS",
    # Other allocators change both times and peak memory.
    "LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF", "MALLOC_ARENA_MAX", "PYTHONMALLOC",
]  # fmt: skip
# As they were when this process began, before a run set what it asks for.
GIVEN = {name: os.environ[name] for name in VARIABLES if name in os.environ}


def card(name: str = "tensorflow") -> dict[str, Any]:
    """What this process runs on, as plain JSON types; sizes in bytes. Starts the backend `name`.

    Keys: device (its name), kind (cpu or gpu), capability ([major, minor] or None), cuda, cudnn,
    driver, device_memory_bytes (of a GPU), native (16-bit types that it computes in), cpu,
    cpu_version, instruction_sets, onednn (on a CPU, see Backend.uses_onednn), cores, nice, threads
    (see Backend.threads), memory_bytes, and what machine_state.state gives, os, python, packages,
    commit, clean (None outside a git checkout), variables.
    """
    used = device(name)
    return {
        **used,
        "native": [dtype for dtype in capability.NARROW if capability.is_native(dtype, used)],
        "cpu": cpu_name().removesuffix(" (CPU)"),
        "cpu_version": cpu_version(),
        "instruction_sets": capability.instruction_sets(),
        "onednn": backend(name).uses_onednn() if used["kind"] == "cpu" else None,
        "cores": machine_state.cores(),
        "nice": machine_state.nice(),
        "threads": backend(name).threads(),
        "memory_bytes": psutil.virtual_memory().total,
        **machine_state.state(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": versions(),
        **commit(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def versions() -> dict[str, str]:
    """Installed versions of PACKAGES; those that are missing are left out.

    A checkout need not be installed to run: mptexp's own is that of its source.
    """
    installed = {"mptexp": __version__}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


@cache
def commit() -> dict[str, Any]:
    """The git commit that mptexp was run from and whether the tree was clean."""
    if (PROJECT / ".git").exists():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            head, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
            return {"commit": head, "clean": not changes}
    return {"commit": None, "clean": None}


def _git(*words: str) -> str:
    command = ["git", "-C", str(PROJECT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def device(name: str) -> dict[str, Any]:
    """Name, kind, capability and libraries of the device that the backend `name` uses.

    Raises:
        Unsupported: where that is neither a CPU nor an NVIDIA GPU.
    """
    gpu = backend(name).gpu()
    # The CPU's own name, whatever GPU the machine may have: the backend does not see it.
    cpu = {"device": cpu_name(), "kind": "cpu", "capability": None}
    memory = capability.gpu_memory_bytes() if gpu else None
    libraries = {"cuda": None, "cudnn": None, "driver": capability.driver()}
    return {**libraries, "device_memory_bytes": memory, **(gpu or cpu)}


def install_hint(name: str) -> str:
    """The command that installs a backend, for the GPU where this machine has an NVIDIA driver."""
    return backend(name).INSTALL_FOR_GPU if capability.driver() else backend(name).INSTALL


def diagnosis(name: str) -> dict[str, Any]:
    """The card with what `mptexp doctor` says beyond it.

    Further keys: native (type -> whether the device computes in it), default_policy,
    tensor_cores, tf32, determinism, advice (sentences on what is missing and how to mend it).
    """
    known = card(name)
    has_tf32 = capability.is_native("tensorfloat32", known)
    everywhere = BACKEND_ROWS[name].has_tf32_products
    usual = "on by default" if everywhere else "on by default in convolutions, off in products"
    usual = "off, by NVIDIA_TF32_OVERRIDE" if capability.tf32_is_overridden() else usual
    return known | {
        "native": {d: capability.is_native(d, known, _limit(known)[0]) for d in ARITHMETICS},
        "default_policy": capability.default_policy(known, name),
        "tensor_cores": capability.tensor_cores(known),
        "tf32": usual if has_tf32 else "not on this device",
        "determinism": "on" if backend(name).is_deterministic() else "off",
        "advice": advice(name, known),
    }


def advice(name: str, card: Mapping[str, Any]) -> list[str]:
    """What limits measurements here or interferes with them, each with its remedy."""
    sentences = []
    if card["kind"] == "cpu" and card["driver"] and hides_gpus():
        value = os.environ["CUDA_VISIBLE_DEVICES"]
        sentences.append(
            f"CUDA_VISIBLE_DEVICES is {value!r}, which hides this machine's GPUs: unset it, or "
            "name one that nvidia-smi -L lists"
        )
    elif card["kind"] == "cpu" and card["driver"]:
        sentences.append(
            f"an NVIDIA driver ({card['driver']}) is present, but {name} does not see the GPU: "
            f"{here(backend(name).INSTALL_FOR_GPU)}"
        )
    elif card["kind"] == "cpu":
        sentences.append(
            "no NVIDIA driver was found: runs use the CPU; with a GPU, install its driver"
        )
    limit, variable = _limit(card)
    for dtype in capability.NARROW:
        if not capability.is_native(dtype, card):
            sentences.append(f"{dtype} is emulated on this device: slower is expected")
        elif not capability.is_native(dtype, card, limit):
            sentences.append(
                f"{dtype} is emulated, as {variable} limits oneDNN to {limit}: slower is expected; "
                "unset it"
            )
        elif card["kind"] == "cpu":
            sentences += without_kernels(dtype, onednn.reference(name, dtype).values())
    return [*sentences, *without_onednn(name, card), *machine_state.interference(card)]


def _limit(card: Mapping[str, Any]) -> tuple[str, str]:
    """The limit on instructions that a variable sets for oneDNN, as CPU_ISAS names it, and which.

    oneDNN heeds no name that it does not know, and the second variable where the first is absent.
    """
    names = [n for n in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA") if n in os.environ]
    limit = os.environ[names[0]].lower() if names and card.get("onednn") else "default"
    return (limit, names[0]) if limit in CPU_ISAS else ("default", "")


def without_onednn(name: str, card: Mapping[str, Any]) -> list[str]:
    """What a reader must know where a CPU's backend could use oneDNN and does not."""
    return [backend(name).WITHOUT_ONEDNN] * (card.get("onednn") is False)


def main() -> None:
    """Prints the diagnosis of the backend named on the command line as JSON."""
    name = sys.argv[1] if len(sys.argv) > 1 else "tensorflow"
    if importlib.util.find_spec(name) is None:
        raise SystemExit(f"{name} is not installed; {here(install_hint(name))}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with imports.framework(name):
        importlib.import_module(name)
    print(json.dumps(diagnosis(name)))


if __name__ == "__main__":
    main()
