"""Executes what a sweep lacks, from preparing its directory to counting what is left to do."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from mptexp.errors import Interrupted, ParamsError, Stopped
from mptexp.execution import (
    concurrent_sweeps,
    device_slots,
    directory,
    local_executor,
    max_batch,
    plan,
    preparation,
    ray_cluster,
    ray_executor,
    remeasuring,
)
from mptexp.execution.job import Job
from mptexp.execution.local_executor import Execution
from mptexp.execution.plan import Planned
from mptexp.execution.progress import Output, Progress, bar
from mptexp.host import interrupt
from mptexp.records import schema, store

BESIDE = (
    "another sweep of mptexp measures on this device: the times of both are not valid while they "
    "do; wait for it to end"
)


@dataclass(frozen=True)
class Remaining:
    """What is left of a sweep after a call.

    Attributes:
        runs: how many runs were chosen.
        due: how many of them the next call executes: they failed, or this one did not get to them.
        waiting: how many of these it did not get to.
        searched: whether every search for a largest batch came to an end.
        elsewhere: how many have no result, and are for a device that this machine lacks.
    """

    runs: int
    due: int
    searched: bool = True
    waiting: int = 0
    elsewhere: int = 0

    @property
    def done(self) -> int:
        """How many came to an end, here or, copied from there, on another machine."""
        return self.runs - self.due - self.elsewhere


def execute(
    job: Job,
    only: Sequence[str] = (),
    fresh: bool = False,
    how: Execution | None = None,
    address: str | None = None,
    output: Output | None = None,
    repair: Collection[str] = (),
    lock: bool = True,
    discard: bool = False,
) -> Remaining:
    """Executes the runs of a sweep that are missing.

    Args:
        fresh: whether to measure the chosen runs again and discard their earlier results.
        how: how runs are executed; by default locally, with the sweep's own time limit.
        repair: ids of runs whose whole comparison, of that block, is measured again.
        lock: whether to hold the directory; not where the caller does, see `directory.locked`.
        discard: whether the directory may become this sweep's where it is another's, whose results
            are then deleted: what a user alone may ask for, by --fresh of the whole sweep.

    Raises:
        ParamsError: if something is wrong with the input, or none of the chosen runs has a result
            or can be executed here; nothing is written then.
        Interrupted: after Ctrl-C.
        Stopped: if the runs cannot be executed to the end.
    """
    how = how or Execution(job.sweep.timeout_min * 60)
    device_slots.slots(how.parallel)  # refuses to share a GPU
    ray_cluster.check(how, address, job.sweep.max_batch)
    output = replace(output or Output(), fresh=fresh)
    place, on_ray = job.directory, how.executor == "ray"
    chosen = partial(remeasuring.chosen, job, only, everywhere=on_ray)
    with _says_how_to_go_on(fresh):
        # Wrong filters, devices, data and models are refused here, before anything is written.
        asked = chosen(repair)
        if why := plan.impossible(asked):
            raise ParamsError(why)
        wanted = [p.run for p in asked if p.due or fresh]
        if on_ray:
            ray_cluster.connect(address, [run.gpu_model for run in wanted])
        elif not how.prepared:
            preparation.prepare(wanted, how.data_dir)
        with directory.locked(place) if lock else nullcontext():
            directory.prepare(place, job.text, discard)
            if fresh:
                directory.discard(chosen(), place, on_ray)
            searched = not job.sweep.max_batch or _search(job, chosen(), fresh, how, output)
            now = chosen(repair)  # with the largest batches that were found
            _name_damaged(now, job, output)
            execute_due(now, job, how, output)
            left = chosen()
            apart = [p for p in left if p.state == plan.INTERRUPTED]
            # A run that had failed came to an end: now its whole block is measured in one go.
            if apart and not any(p.state == "pending" for p in left):
                anew = replace(how, invocation=local_executor.invocation())
                execute_due(apart, job, anew, output)
                left = chosen()
        waiting = sum(p.state in ("pending", plan.INTERRUPTED) for p in left)
        known = plan.counts(left)
        return Remaining(len(left), known["due"], searched, waiting, known[plan.ELSEWHERE])


@contextmanager
def _says_how_to_go_on(fresh: bool) -> Iterator[None]:
    """Within it Ctrl-C is Interrupted, which says how the same command goes on."""
    try:
        yield
    except Interrupted as error:
        raise Interrupted(error.kept, fresh) from None
    except KeyboardInterrupt:
        raise Interrupted("finished runs are kept", fresh) from None


def _search(
    job: Job, chosen: Sequence[Planned], fresh: bool, how: Execution, output: Output
) -> bool:
    """Finds the largest batch for the points of the chosen runs; whether all searches ended."""
    runs = [p.run for p in chosen]
    if fresh:
        max_batch.forget(job.sweep, runs, job.directory)
    ended = True
    try:
        for run, record in max_batch.search(job, runs, how.timeout_s):
            fits = max_batch.FITS.get(record["status"])
            ended &= fits is not None
            result = "fits" if fits else f"{record['status']}: {record['error']}"
            text = f"largest batch: {run.policy}, batch size {run.batch_size}: {result}"
            beside = schema.AT_ONCE in record.get("marks", [])  # whose memory it may have lacked
            text += " (another sweep of mptexp measured on this device)" * beside
            output.say(text, style=None if fits else "yellow")
    except KeyboardInterrupt:
        raise Interrupted("the attempts made so far are kept") from None
    except OSError as error:
        raise _no_room(job, error) from None
    return ended


def _name_damaged(chosen: Sequence[Planned], job: Job, output: Output) -> None:
    for path in [job.directory.record(p.run_id) for p in chosen if p.state == plan.DAMAGED]:
        try:
            store.read_record(path)
        except store.RecordError as error:
            output.say(f"{error}: the run is executed again")


def execute_due(chosen: Sequence[Planned], job: Job, how: Execution, output: Output) -> None:
    """Executes those of the chosen runs that are due, and shows their progress.

    The directory must be locked and prepared.

    Raises:
        Interrupted, Stopped: as `execute` does.
    """
    due = [p for p in chosen if p.due]
    costs = plan.Costs(_with_others(chosen, job) if due else (), job.sweep)
    output.announce(chosen, job, costs)
    if not due:
        return
    beside = _is_beside_another(how)
    if beside:
        output.say(BESIDE, style="yellow")
    executor = ray_executor if how.executor == "ray" else local_executor
    progress = Progress(output.console, due, job.sweep, costs)
    try:
        with bar(output.console, len(due)) as progress.bar:
            for planned, record in executor.execute(due, job, how):
                progress.show(planned, record)
                if not beside and record and schema.AT_ONCE in record.get("marks", []):
                    beside = True  # one that began later, or on a node of Ray's
                    output.say(BESIDE, style="yellow")
                if record and output.on_record:
                    output.on_record(record)
                interrupt.check()
                if how.fail_fast and record and record["status"] not in schema.FINAL:
                    left = len(due) - progress.ended
                    output.say(f"stopped at the first run that failed, {left} not executed")
                    break
    except KeyboardInterrupt:
        raise Interrupted(f"{progress.ended} of {len(due)} runs finished and kept") from None
    except ray_executor.NodesLost as error:
        raise Stopped(f"{error}; the same command goes on with them") from None
    except OSError as error:
        raise _no_room(job, error) from None


def _is_beside_another(how: Execution) -> bool:
    """Whether another sweep is at work on the devices here, which Ray's nodes need not have."""
    uuids = [slot.uuid for slot in device_slots.slots(how.parallel)]
    return how.executor != "ray" and bool(concurrent_sweeps.marks(uuids))


def _with_others(chosen: Sequence[Planned], job: Job) -> list[Planned]:
    """The chosen runs with all others of the directory, whose costs are known as well."""
    known = {p.run_id for p in chosen}
    every = plan.asked(job.sweep, job.directory)
    others = [run for run in every if run.run_id(job.sweep.notebook) not in known]
    return [*chosen, *plan.states(others, job.sweep, job.directory)]


def _no_room(job: Job, error: OSError) -> Stopped:
    where = directory.unwritable(job.directory, error)
    return Stopped(
        f"{where}: no result can be written: {error.strerror or error}; what is "
        "finished is kept; mend this, and the same command goes on"
    )
