"""The devices of this machine by name: NVIDIA GPUs as NVML names them, else the CPU."""

import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mptexp.errors import UserError

# What oneDNN's ONEDNN_MAX_CPU_ISA takes, in lower case, and the flag of the CPU each one needs.
CPU_ISAS = {
    "sse41": "sse4_1",
    "avx": "avx",
    "avx2": "avx2",
    "avx2_vnni": "avx_vnni",
    "avx512_core": "avx512bw",
    "avx512_core_vnni": "avx512_vnni",
    "avx512_core_bf16": "avx512_bf16",
    "avx512_core_fp16": "avx512_fp16",
    "avx512_core_amx": "amx_tile",
}


# Words that make another model of what stands beside them: an RTX 3090 Ti is no RTX 3090, and a MIG
# slice of an A100 no A100.
VARIANTS = {"ti", "super", "pro", "max", "ultra", "ada", "sff", "laptop", "mobile", "nvl"}
VARIANTS |= {"d", "mig"}


# What follows a card's name in that of a virtual GPU: gigabytes and licence (10C, 24Q, 3B4, 5CME).
# Programs on one share the card, and see a part of its memory.
SHARE = re.compile(r"\d{1,3}([aq]|b4?|c(me)?)")


# Turing's small chips (TU116, TU117) have capability 7.5 and no Tensor Cores.
WITHOUT_CORES = re.compile(r"\b(GTX 16\d\d|MX[45]\d0|T[456]00|T550|T[12][02]00)\b")


class DeviceError(UserError, ValueError):
    """A device was named that does not exist here."""


def has_tensor_cores(card: Mapping[str, Any]) -> bool | None:
    """Whether a GPU has Tensor Cores; None where its capability is not known.

    Args:
        card: with its `device` and `capability`, as a record's `environment` has them.
    """
    if not (capability := card.get("capability")):
        return None
    return capability[0] >= 7 and not WITHOUT_CORES.search(card.get("device") or "")


def same_model(asked: str, name: str) -> bool:
    """Whether a device of this name is the model that was `asked` for.

    A short name stands for every device whose name holds its words, and of VARIANTS and SHARE none
    besides: V100 for Tesla V100-SXM2-16GB, A100-40G for NVIDIA A100-SXM4-40GB, but L4 not for
    NVIDIA L40, nor RTX 3090 for NVIDIA GeForce RTX 3090 Ti, nor A100 for GRID A100-10C.
    """
    implied = set(_words(name)) - set(_words(asked))
    others = {word for word in implied if word in VARIANTS or SHARE.fullmatch(word)}
    return holds_words(asked, name) and not others


def holds_words(asked: str, name: str) -> bool:
    """Whether the name of a device holds all words of another."""
    has = set(_words(name)) | {word.removesuffix("b") for word in _words(name)}
    return asked == name or (bool(_words(asked)) and set(_words(asked)) <= has)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


@cache
def local_devices() -> tuple[tuple[str, str], ...]:
    """Name and UUID of each GPU that CUDA programs see here; else of the CPU, with no UUID.

    Asks NVML, not a framework: the parent process of a sweep must not hold GPU memory.
    """
    return _gpus() or ((cpu_name(), ""),)


def local_device() -> str:
    """Name of the device that a run on this machine uses, as NVML or the kernel spells it."""
    return local_devices()[0][0]


def is_here(gpu_model: str) -> bool:
    """Whether this machine has a device of a model."""
    return any(same_model(gpu_model, name) for name, _ in local_devices())


def _gpus() -> tuple[tuple[str, str], ...]:
    import pynvml

    return tuple(
        (str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle)))
        for handle in nvidia_handles()
    )


def nvidia_handles() -> list[Any]:
    """NVML's handles of the GPUs that CUDA programs see here, the first one first.

    Raises:
        DeviceError: where CUDA_VISIBLE_DEVICES names a GPU that does not exist.
    """
    import pynvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return []
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return []
    named = range(count) if visible is None else visible.split(",")
    try:
        return [_handle(str(name).strip()) for name in named] if count else []
    except pynvml.NVMLError:
        raise DeviceError(
            f"CUDA_VISIBLE_DEVICES is {visible}; allowed: numbers below {count}, the GPUs that "
            "NVML sees here, or their UUIDs"
        ) from None


def hides_gpus() -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves no GPU for CUDA programs to see.

    CUDA reads it as far as the first name of which there is no GPU.
    """
    import pynvml

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        pynvml.nvmlInit()
        handles = [_handle(str(k)) for k in range(pynvml.nvmlDeviceGetCount())]
        uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError:  # of which GPUs there are, nothing is known
        return False
    if given is None or not uuids:
        return False
    first = given.split(",")[0].strip()
    if first.isdigit():
        return int(first) >= len(uuids)
    # A UUID may be cut short; a part of a GPU (MIG) has another.
    return not (first.startswith("MIG-") or (first and any(u.startswith(first) for u in uuids)))


def _handle(name: str) -> Any:
    import pynvml

    by_number = name.isdigit()
    find = pynvml.nvmlDeviceGetHandleByIndex if by_number else pynvml.nvmlDeviceGetHandleByUUID
    return find(int(name) if by_number else name)


def nvidia_handle() -> Any:
    """NVML's handle of the first GPU that CUDA programs see here; None where there is none.

    None, too, where it is not known which GPU that is, see `_numbered_alike`.

    Raises:
        DeviceError: where CUDA_VISIBLE_DEVICES names a GPU that does not exist.
    """
    handles = nvidia_handles()
    return handles[0] if handles and _numbered_alike() else None


def _numbered_alike() -> bool:
    """Whether CUDA's first GPU is NVML's too.

    NVML numbers GPUs as they stand on the bus, CUDA by default the fastest first, so that of
    several models the first may be another. A UUID names the same GPU to both.
    """
    import pynvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or not visible.isdigit():
        return True
    try:
        handles = [_handle(str(k)) for k in range(pynvml.nvmlDeviceGetCount())]
        return len({str(pynvml.nvmlDeviceGetName(handle)) for handle in handles}) == 1
    except pynvml.NVMLError:  # of a GPU that cannot be asked nothing is known
        return False


# Arm's numbers of its cores, as CPU part in /proc/cpuinfo has them, by their names.
ARM_PARTS = {
    "0xd0c": "Neoverse N1",
    "0xd40": "Neoverse V1",
    "0xd49": "Neoverse N2",
    "0xd4f": "Neoverse V2",
}
ARM = "0x41"  # as CPU implementer; others' cores have numbers of their own


def cpu_name() -> str:
    """Name of this machine's CPU as a device.

    Of an Arm CPU by its numbers: Linux calls nearly all of them ARMv8 Processor, if anything. Of
    POWER the name is `cpu`, of RISC-V `uarch`.
    """
    known = _arm_name() or cpuinfo("model name", "Model Name", "cpu", "uarch")
    return f"{known or platform.processor() or platform.machine()} (CPU)"


def _arm_name() -> str:
    """`Neoverse V1`, or the numbers of an Arm CPU that has no such name; empty of any other."""
    maker, part = cpuinfo("CPU implementer"), cpuinfo("CPU part")
    named = ARM_PARTS.get(part, "") if maker == ARM else ""
    numbers = f"{platform.machine()} implementer {maker} part {part}" if maker and part else ""
    return named or numbers


def cpu_version() -> str:
    """`family 26, model 2, stepping 1`; empty where that is not known.

    Of an Arm CPU its numbers. Virtual machines of several generations call their CPU by one name.
    """
    parts = {"family": "cpu family", "model": "model", "stepping": "stepping"}
    if cpuinfo("CPU implementer"):
        parts = {name: f"CPU {name}" for name in ("implementer", "part", "variant", "revision")}
    known = {part: cpuinfo(line) for part, line in parts.items()}
    return ", ".join(f"{part} {value}" for part, value in known.items() if value)


@cache
def cpuinfo(*names: str) -> str:
    """The first entry of one of these names in /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    entries = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in entries if name.strip() in names), "")
