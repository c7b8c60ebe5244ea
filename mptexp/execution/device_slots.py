"""The devices of this machine as slots: a run takes one GPU, or as many as it has replicas."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mptexp.errors import ParamsError
from mptexp.host.devices import local_devices, same_model
from mptexp.spec.run import Run

MOST_PARALLEL = 1024  # runs at a time on a CPU


@dataclass(frozen=True)
class Slot:
    """A place for one run at a time: a GPU, or a share of a CPU (then the uuid is empty)."""

    model: str
    uuid: str
    number: int = 0


def slots(parallel: int = 1) -> list[Slot]:
    """Returns one slot for each visible GPU; without GPUs, `parallel` slots of the CPU.

    Raises:
        ParamsError: if a GPU is to be shared.
    """
    whole = [Slot(model, uuid) for model, uuid in local_devices()]
    if not 1 <= parallel <= MOST_PARALLEL:
        raise ParamsError(f"--parallel {parallel}: allowed: 1 to {MOST_PARALLEL}")
    if parallel == 1:
        return whole
    if whole[0].uuid:
        raise ParamsError(
            f"--parallel {parallel}: each of the {len(whole)} GPUs here takes one run at a time "
            "already; allowed: --parallel on a CPU, for sweeps of which only accuracy is wanted"
        )
    return [Slot(whole[0].model, "", number) for number in range(parallel)]


def taken(run: Run, free: Sequence[Slot], every: Sequence[Slot]) -> list[Slot]:
    """Returns the free slots that a run takes; none if it must wait.

    A run with more replicas than there are devices takes them all, and then says so itself.
    """
    fitting = [slot for slot in free if same_model(run.gpu_model, slot.model)]
    present = sum(same_model(run.gpu_model, slot.model) for slot in every)
    needed = min(run.replicas, present) if any(slot.uuid for slot in every) else 1
    return fitting[:needed] if len(fitting) >= needed else []


def found(runs: Iterable[Run]) -> list[str]:
    """A sentence for each name of a device in some runs that is not the one it has here."""
    asked = dict.fromkeys(run.gpu_model for run in runs)
    here = dict.fromkeys(name for name, _ in local_devices())
    return [
        f"gpu_model {one} is {name} here"
        for one in asked
        for name in here
        if one != name and same_model(one, name)
    ]


def environment(chosen: Sequence[Slot]) -> dict[str, str]:
    """Returns the variables that make a run see the GPUs of its slots, and no others."""
    uuids = [slot.uuid for slot in chosen if slot.uuid]
    return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)} if uuids else {}
