"""The devices of this machine as slots: a run takes one GPU, or as many as it has replicas."""

from collections.abc import Sequence
from dataclasses import dataclass

from mptexp.spec.devices import local_devices, same_model
from mptexp.spec.errors import ParamsError
from mptexp.spec.run import Run


@dataclass(frozen=True)
class Slot:
    """A place for one run at a time: a GPU, or a share of a CPU (whose uuid is empty)."""

    model: str
    uuid: str
    number: int = 0


def slots(parallel: int = 1) -> list[Slot]:
    """One slot for each GPU that may be seen; of a CPU one, or as many as are asked for.

    Raises:
        ParamsError: where a GPU is to be shared.
    """
    found = [Slot(model, uuid) for model, uuid in local_devices()]
    if parallel == 1:
        return found
    if found[0].uuid:
        raise ParamsError(
            f"--parallel {parallel}: each of the {len(found)} GPUs here takes one run at a time "
            "already; allowed: --parallel on a CPU, for sweeps of which only accuracy is wanted"
        )
    return [Slot(found[0].model, "", number) for number in range(parallel)]


def taken(run: Run, free: Sequence[Slot], every: Sequence[Slot]) -> list[Slot]:
    """The free slots that a run takes; empty where it must wait.

    A run with more replicas than there are devices takes them all, and then says so itself.
    """
    fitting = [slot for slot in free if same_model(run.gpu_model, slot.model)]
    there = sum(same_model(run.gpu_model, slot.model) for slot in every)
    needed = min(run.replicas, there) if any(slot.uuid for slot in every) else 1
    return fitting[:needed] if len(fitting) >= needed else []


def environment(chosen: Sequence[Slot]) -> dict[str, str]:
    """Variables that show a run the GPUs of its slots, and no others."""
    uuids = [slot.uuid for slot in chosen if slot.uuid]
    return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)} if uuids else {}
