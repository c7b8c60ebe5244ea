"""The record of a run that came to its end, and where it is written."""

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mptexp.host import boot
from mptexp.host.project import PROJECT
from mptexp.records import instrument_checks, interference, privacy, schema, store, timed_windows
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import tasks
from mptexp.traces import xplane
from mptexp.training import effective_arithmetic, environment, machine_state
from mptexp.training.identity import identity
from mptexp.training.numerics import emulation
from mptexp.training.outcome import Outcome

LOGICAL = "replicas are logical devices of one CPU: their scaling says nothing of hardware"


def save(outcome: Outcome) -> Path:
    """Writes the record where the sweep wants it or below reports/interactive; returns its path.

    A trace that was not read is written beside it.
    """
    notebook = os.environ.get("MPTEXP_NOTEBOOK", "train")
    content = record(outcome, notebook)
    folder = os.environ.get("MPTEXP_RUN_DIR")
    place = SweepDir(_interactive())
    path = Path(folder) if folder else place.partial / content["run_id"]
    if not folder:  # a sweep says when its runs ended; by hand nobody else does
        content |= {"ended_at": schema.now(), "wall_s": content["fit_s"]}
    trace = path / xplane.FILE
    trace.unlink(missing_ok=True)  # of an earlier run of the same parameters
    if outcome.trace:
        trace.parent.mkdir(parents=True, exist_ok=True)
        trace.write_bytes(outcome.trace)
    content = privacy.without_path(content, outcome.run.dataset)
    store.write_record(path / "record.json", content)
    if folder:
        return path / "record.json"
    return place.publish_alone(content["run_id"])  # an earlier result is kept, and counted


def _interactive() -> Path:
    """In the project, also when a notebook's folder is the working one."""
    root = PROJECT if (PROJECT / "notebooks").is_dir() else Path.cwd()
    return root / "reports/interactive"


def record(outcome: Outcome, notebook: str = "train") -> dict[str, Any]:
    """The record of a run; its status is ok, or diverged. The notebook is part of the run's id."""
    run = outcome.run.resolved()
    what = identity(run, outcome.card, outcome.effective)
    checks = instrument_checks.known(what)
    samples, thinned = timed_windows.thinned(outcome.samples)
    return {
        **schema.bare(run, notebook),
        "in_force": outcome.effective,
        "status": outcome.status,
        "error": _error(outcome),
        "environment": outcome.card,
        "boot": boot.name(),
        **({"gpus": gpus} if (gpus := machine_state.gpus()) else {}),
        "identity": what,
        **({"instruments": checks} if checks else {}),
        "timing": outcome.timing,
        "windows": [asdict(window) for window in outcome.windows],
        **({"latencies_s": outcome.latencies_s} if outcome.latencies_s else {}),
        "history": outcome.epochs,
        **({"validated": outcome.validated} if outcome.validated else {}),
        "marks": [
            *_flags(outcome),
            *effective_arithmetic.flags(outcome.run, outcome.effective),
            *interference.marks(outcome.sensors),
            *timed_windows.shortened(1, thinned),
            *_unequal(outcome),
            *outcome.notes,
        ],
        "readings": _sensors(outcome),
        "samples": samples,
        "work": outcome.work,
        **({"profile": outcome.profile} if outcome.profile else {}),
        **({"exponents": outcome.exponents} if outcome.exponents else {}),
        **_loss_scales(outcome),
        **({"quantized": outcome.quantized} if outcome.quantized else {}),
        **({"diverged_step": outcome.diverged.get("step")} if outcome.diverged else {}),
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "swallowed_updates_frac": outcome.lost_updates_frac,
        "fit_s": outcome.fit_s,
    }


def _error(outcome: Outcome) -> str:
    epoch, layer = outcome.diverged_epoch, outcome.broken_layer
    if not (epoch or layer):
        return ""
    loss = f"the loss was not finite in epoch {epoch}"
    weights = f"the weights of {layer} were not finite after the training, though the loss was"
    found = [outcome.diverged["sentence"]] if outcome.diverged.get("sentence") else []
    return "; ".join([loss if epoch else weights, *found])


def _flags(outcome: Outcome) -> list[str]:
    """What a reader must know of how the run was made."""
    run = outcome.run
    cases = {
        "made from a tree with uncommitted changes": outcome.card["clean"] is False,
        LOGICAL: run.replicas > 1 and outcome.card["kind"] == "cpu",
        emulation.NOTE: {run.propagation, run.weight_format} != {"policy"},
    }
    told = [text for text, holds in cases.items() if holds]
    return told + environment.without_onednn(run.backend, outcome.card)


def _unequal(outcome: Outcome) -> list[str]:
    """Rates, and what energy and cost are formed with, are of the median step."""
    return timed_windows.unequal(outcome.windows) if outcome.windows else []


def _sensors(outcome: Outcome) -> dict[str, Any]:
    """The summary with energy per image and processor time; watts are those of one GPU."""
    watts = outcome.sensors["power_w"]
    several = outcome.run.replicas > 1 and outcome.card["kind"] == "gpu"
    task = tasks.of(outcome.run.dataset)
    joules = None if watts is None or several else watts / outcome.timing[task.rate]
    used = [sample["own_cpu_s"] for sample in outcome.samples] or [math.nan]
    return outcome.sensors | {f"energy_per_{task.unit}_j": joules, "cpu_s": used[-1] - used[0]}


def _loss_scales(outcome: Outcome) -> dict[str, Any]:
    scales = outcome.loss_scales
    return {"loss_scales": scales, "skipped_steps": scales[-1]["skipped"]} if scales else {}
