"""Diagnosis of a sweep: steps are traced, then come the ablations that the traces ask for."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptexp.analysis import comparability
from mptexp.api.commands import open_sweep
from mptexp.errors import ParamsError
from mptexp.execution import directory, plan, preparation, remeasuring
from mptexp.execution.job import Job
from mptexp.execution.local_executor import Execution
from mptexp.execution.progress import Output, duration
from mptexp.execution.sweep import execute_due
from mptexp.host import files
from mptexp.host.devices import cpu_version
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run

if TYPE_CHECKING:
    from mptexp.diagnosis.verdict import Verdict


def open_diagnosis(
    target: Path | Sweep, out: Path | None = None, overrides: Sequence[str] = ()
) -> tuple[Job, bool]:
    """Opens a sweep, or the directory of a finished one, to be diagnosed; whether it is finished.

    Raises:
        ParamsError: as `open_sweep` does; or a directory is to be diagnosed in another, or holds
            no record.
    """
    if isinstance(target, Sweep) or not target.is_dir():
        return open_sweep(target, out, overrides), False
    if out and files.real(out) != files.real(target):
        raise ParamsError(f"{target}: a sweep is diagnosed in its own directory; leave out {out}")
    job = open_sweep(SweepDir(target).params, target, overrides, to_run=False)
    if not any(job.directory.runs.glob("*/record.json")):
        raise store.refusal(job.directory, [])
    return job, True


def execute_diagnosis(
    job: Job,
    only: Sequence[str] = (),
    traces_only: bool = False,
    finished: bool = False,
    data_dir: Path | None = None,
    output: Output | None = None,
) -> bool:
    """Traces steps, then makes the ablations that the traces ask for; whether all runs ended.

    Args:
        traces_only: whether to make no ablations.
        finished: whether to take the sweep as it is; else what is missing of it runs first.

    Raises:
        ParamsError: if something is wrong with the input, or there is nothing to diagnose.
        Interrupted, Stopped: as `sweep.execute` does.
    """
    output = output or Output()
    chosen = remeasuring.chosen(job, only)
    trained = {p.run.policy for p in chosen if p.run.phase == "train" and p.run.frontend == "keras"}
    if len(trained) < 2:
        raise ParamsError(
            f"{job.directory.root}: the chosen runs are no training by Keras under two policies, "
            "so there is nothing to diagnose (plain loops and inference are not traced)"
        )
    preparation.prepare([p.run for p in chosen], data_dir)
    with directory.locked(job.directory):
        directory.prepare(job.directory, job.text)
        ended = True
        if not finished:
            execute_due(chosen, job, Execution(job.sweep.timeout_min * 60), output)
            ended = not any(p.due for p in remeasuring.chosen(job, only))
        cpus = _cpus(job.directory)
        if cpus and cpu_version() not in cpus:
            theirs = ", ".join(sorted(cpus))
            output.say(
                f"{job.directory.root} was measured on another CPU ({theirs}; this one: "
                f"{cpu_version()}): what is measured here is not compared with it"
            )
        run_ids = [p.run_id for p in chosen]
        for what, runs in _diagnosis(job, run_ids, traces_only, output, ended):
            ended &= _execute_batch(what, runs, job, output, cpus)
    return ended


def verdicts(job: Job) -> list[dict[str, Any]]:
    """Returns what a diagnosis found of each pair of policies, as plain JSON types.

    The speedup is baseline over candidate, with the interval of the sweep's claims; seconds and
    shares are of the candidate's step; null is what is not known.
    """
    from mptexp.analysis import sweep_tables
    from mptexp.diagnosis import verdict

    return [_plain(v) for v in verdict.verdicts(job.directory, sweep_tables.load(job.directory))]


def _plain(verdict: "Verdict") -> dict[str, Any]:
    pair, over = verdict.pair, verdict.speedup
    numbers = {"step_s": pair.step_s, "speedup": over.estimate, "low": over.low, "high": over.high}
    numbers |= {"possible": verdict.possible, "unexplained_share": verdict.unexplained}
    losses = [
        {"cause": loss.cause.name, "seconds": loss.seconds, "share": loss.share}
        for loss in verdict.losses
    ]
    return {
        "baseline": pair.baseline.policy,
        "candidate": pair.candidate.policy,
        **{name: getattr(pair.candidate, name) for name in ("model", "batch_size", "phase")},
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "flags": verdict.flags,
        "losses": losses,
        "missing": verdict.missing,
    }


def _diagnosis(
    job: Job, run_ids: Sequence[str], traces_only: bool, output: Output, ended: bool = True
) -> Iterator[tuple[str, list[Run]]]:
    """Yields what to execute next and what it is called; the results decide what comes after."""
    from mptexp.analysis import sweep_tables
    from mptexp.diagnosis import proposals
    from mptexp.diagnosis.pairs import pairs as diagnosed
    from mptexp.report.tables.why_tables import reason

    place = job.directory
    tables = sweep_tables.load(place)
    pairs = diagnosed(tables, run_ids)
    if not pairs and not ended:
        return  # once its runs end well, there is something to diagnose
    if not pairs:
        raise ParamsError(
            f"{place.root}: Keras trained no point well under both a baseline (the device's "
            "default or float32) and another policy, so there is nothing to diagnose (plain loops "
            f"and inference are not traced); `mptexp report {place.root}` shows how its runs ended"
        )
    traced = [run for pair in pairs for run in pair.traced]
    yield "runs whose steps are traced", traced
    if traces_only:
        return
    asked = [(pair, proposals.proposed(pair, place, tables)) for pair in pairs]
    for pair, wanted in asked:
        for ablation in wanted:
            what = f"{ablation.name} ({reason(ablation)})"
            output.say(f"worth trying, {pair.candidate.policy}: {what}")
    for block in range(job.sweep.repeats):
        of = (block, job.sweep.repeats, place.order_seed)
        runs = [run for pair, wanted in asked for run in proposals.runs(pair, wanted, *of)]
        yield f"ablations and controls, block {block + 1} of {job.sweep.repeats}", runs
        asked = [(p, proposals.promising(p, wanted, place, tables)) for p, wanted in asked]


def _compared(run: Run) -> tuple[str | int | bool, ...]:
    """What the controls and ablations of a block share; a traced run is compared with none."""
    alone = run.run_id() if run.profile else ""
    return (run.block, alone, run.gpu_model, run.backend, run.dataset, run.model, run.phase)


def _of_another_cpu(diagnosis: SweepDir, cpus: set[str]) -> set[str]:
    """The runs of a diagnosis on another CPU than the sweep's, where this machine has the sweep's.

    The names of CPUs tell them not apart. They are made again: of the sweep they say nothing.
    """
    if cpus != {cpu_version()}:
        return set()
    made, _ = store.read_records(diagnosis)
    known = {r["run_id"]: comparability.of(r) for r in made if r["status"] == "ok"}
    return {i for i, one in known.items() if one and one.get("cpu_version") != cpu_version()}


def _cpus(place: SweepDir) -> set[str]:
    """The versions of the CPUs that a sweep was measured on, as far as its records say."""
    identities = map(comparability.of, store.read_records(place)[0])
    return {one["cpu_version"] for one in identities if one and one.get("cpu_version")}


def _execute_batch(
    what: str, runs: Sequence[Run], job: Job, output: Output, cpus: set[str]
) -> bool:
    """Executes what is missing of a diagnosis' runs, their cost said first; whether all ended."""
    # They were made from records, which do not say where data lie.
    place, runs = job.directory.diagnosis, list(dict.fromkeys(map(job.sweep.located, runs)))
    apart = _of_another_cpu(place, cpus)
    states = plan.states(runs, job.sweep, place)
    states = [replace(p, state=plan.FLAGGED) if p.run_id in apart else p for p in states]
    before = remeasuring.begun_anew(states, comparison=_compared)
    due = [p for p in before if p.due]
    for device in sorted({p.run.gpu_model for p in before if p.state == "elsewhere"}):
        output.say(f"diagnosis: {what} on {device} can be made on such a device only")
    if due:
        costs = plan.Costs([*plan.runs(job.sweep, job.directory), *before], job.sweep)
        seconds = sum(costs.run_s(plan.point(p.run)) or 0 for p in due)
        time = f"about {duration(seconds)}" if seconds else "time unknown"
        output.say(f"diagnosis: {len(due)} {what}, {time}")
        how = Execution(job.sweep.timeout_min * 60)
        brief = replace(output, brief=True)
        execute_due(due, replace(job, directory=place), how, brief)
    return not any(p.due for p in plan.states(runs, job.sweep, place))
