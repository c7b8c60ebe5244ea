"""The machine around a measurement: what limits it, and what interferes with it."""

import hashlib
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from mptexp.host import control_groups

FEW_CORES = 4


def cores() -> int:
    """Processors that this process may use, which a container may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def nice() -> int:
    """Priority that the system gives this process, from -20, the highest, to 19."""
    return os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0


def gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Names the GPUs that a sweep gave this process, and nothing else; empty where it gave none."""
    given = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    uuids = [uuid for uuid in given if uuid.startswith(("GPU-", "MIG-"))]
    return [hashlib.sha256(f"mptexp {uuid}".encode()).hexdigest()[:12] for uuid in uuids]


def state(root: Path = Path("/")) -> dict[str, Any]:
    """Limits and state of this machine; None for what the system does not say.

    Keys: container_cpus and container_memory_bytes (limits of a control group), governor (of the
    CPU's clock), hypervisor (whether the machine is a virtual one), on_battery, swap_used_bytes,
    load (mean number of busy programs in the last minute).
    """
    return {
        "container_cpus": _container_cpus(root),
        "container_memory_bytes": _container_memory(root),
        "governor": _read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "hypervisor": is_virtual(root),
        "on_battery": _on_battery(),
        "swap_used_bytes": psutil.swap_memory().used,
        "load": os.getloadavg()[0],
    }


def _on_battery() -> bool | None:
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    # Whether it is plugged in may itself be unknown.
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _container_cpus(root: Path) -> float | None:
    """The least that a control group of this process, or one above it, allows."""
    quotas = map(_quota, control_groups.with_those_above("cpu", root))
    return min(filter(None, quotas), default=None)


def _quota(folder: Path) -> float | None:
    """Of control groups version 2, or 1."""
    quota, _, period = (_read(folder / "cpu.max") or "max").partition(" ")
    if quota == "max":
        quota = _read(folder / "cpu.cfs_quota_us") or "-1"
        period = _read(folder / "cpu.cfs_period_us") or "100000"
    return int(quota) / int(period) if int(quota) > 0 else None


def _container_memory(root: Path) -> int | None:
    names = ("memory.max", "memory.limit_in_bytes")
    groups = control_groups.with_those_above("memory", root)
    places = [group / name for group in groups for name in names]
    limits = [int(limit) for place in places if (limit := _read(place)) not in (None, "max")]
    # Version 1 writes a number beyond any memory where there is no limit.
    return min((n for n in limits if n < psutil.virtual_memory().total), default=None)


@cache
def is_virtual(root: Path = Path("/")) -> bool | None:
    """Whether this machine is a virtual one; None where its system does not say."""
    lines = (_read(root / "proc/cpuinfo") or "").splitlines()
    flags = [line for line in lines if line.startswith("flags")]
    return "hypervisor" in flags[0].split() if flags else None


def interference(card: Mapping[str, Any]) -> list[str]:
    """What interferes with measurements on the machine of a card, each with its remedy."""
    load, cores, swap = card["load"], card["cores"], card["swap_used_bytes"]
    # The load is that of the whole machine, of which the process may use a part.
    processors = psutil.cpu_count() or cores
    quota = card["container_cpus"] or cores
    cases = {
        f"other programs are at work (load {load:.1f} on {processors} processors): timings will be "
        "noisy; end them": load > 0.5 * processors,
        f"the CPU's frequency governor is {card['governor']}: clocks will wander; as root, "
        "cpupower frequency-set -g performance": card["governor"] not in (None, "performance"),
        "the machine runs on its battery and saves power; plug it in": bool(card["on_battery"]),
        f"only {cores} cores: preparing data and training share them, so that input can hide what "
        "a policy buys; input_mode resident takes it out": cores < FEW_CORES,
        f"{swap / 2**20:,.0f} MiB are swapped out: the machine was short of memory; end other "
        "programs": swap > 2**28,
        f"a container or control group limits this to {quota:g} processors of time: it is held up "
        "when it has used them": quota < cores,
        "a virtual machine: its neighbours are not seen and may make timings noisy": bool(
            card["hypervisor"]
        ),
    }
    return [sentence for sentence, holds in cases.items() if holds]
