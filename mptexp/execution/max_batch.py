"""The largest batch that fits, for every policy: by doubling, then bisection, a process each.

An attempt is a run of a few steps with a record of its own under `search`, so that a search that
was stopped goes on, and what ran out of memory can be read.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mptexp.errors import ParamsError
from mptexp.execution import device_slots
from mptexp.execution.job import Job
from mptexp.host.devices import is_here, local_device
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run

LIMIT = Run.model_fields["batch_size"].metadata[1].le  # no run may have more
STEPS = 20  # of an attempt: memory grows little after the first ones
FITS = {"ok": True, "diverged": True, "oom": False, "unsupported": False}


def next_size(tried: Mapping[int, bool], start: int) -> int | None:
    """Returns the batch size to try next, or None once the largest is known.

    It is known to within an eighth: between it and the smallest that does not fit lies no other
    multiple of an eighth of the power of two below it.

    Args:
        tried: batch sizes and whether each fits.
    """
    fits = [size for size, fit in tried.items() if fit]
    fails = [size for size, fit in tried.items() if not fit]
    if not fails:
        wanted = max(fits) * 2 if fits else start
        return wanted if wanted <= LIMIT else None
    if not fits:
        return min(fails) // 2 or None
    low, high = max(fits), min(fails)
    grain = max(1, 2 ** (low.bit_length() - 4))
    between = range((low // grain + 1) * grain, high, grain)
    return between[len(between) // 2] if between else None


def _next(tried: Mapping[int, bool], base: Run) -> int | None:
    """`next_size` among the multiples of the point's replicas."""
    share = {size // base.replicas: fit for size, fit in tried.items()}
    size = next_size(share, base.batch_size // base.replicas)
    return size and size * base.replicas


def check(sweep: Sweep, file: Path) -> None:
    """Refuses a search that would only end with the memory of the machine.

    Raises:
        params.ParamsError: for max_batch on a CPU without memory_limit_gb.
    """
    here = local_device()
    runs = _own(sweep) if sweep.max_batch else []
    if here.endswith("(CPU)") and any(r.gpu_model == here and not r.memory_limit_gb for r in runs):
        raise ParamsError(
            f"{file}: max_batch: on a CPU a batch is too large when the machine has run out of "
            "memory; allowed: with memory_limit_gb in defaults, such as memory_limit_gb: 4"
        )


def points(sweep: Sweep, directory: SweepDir) -> list[Run]:
    """Returns the points with the largest batches found, but for those of the params file."""
    if not sweep.max_batch:
        return []
    own = _own(sweep)
    largest = [_largest(sweep, base, directory) for base in _bases(own)]
    return [run for run in largest if run and run not in own]


def _own(sweep: Sweep) -> list[Run]:
    return [Run(**point).resolved() for point in sweep.points()]


def _bases(runs: Iterable[Run]) -> list[Run]:
    """One run for each point without its batch size: the one with the largest batch."""
    return list({_key(run): run for run in sorted(runs, key=lambda run: run.batch_size)}.values())


def _key(run: Run) -> str:
    """What is the same for all batch sizes and blocks of a point."""
    first = {"block": 0, "seed": run.seed - run.block, "batch_size": 1}
    return run.published().model_copy(update=first).model_dump_json()


def _bases_here(sweep: Sweep, runs: Iterable[Run]) -> list[Run]:
    """The bases of this machine's runs."""
    wanted = {_key(run) for run in runs if is_here(run.gpu_model)}
    return [base for base in _bases(_own(sweep)) if _key(base) in wanted]


def _largest(sweep: Sweep, base: Run, directory: SweepDir) -> Run | None:
    tried = _tried(sweep, base, directory)
    if None in tried.values() or _next(tried, base) is not None:
        return None
    sizes = [size for size, fit in tried.items() if fit]
    return base.model_copy(update={"batch_size": max(sizes)}) if sizes else None


def _tried(sweep: Sweep, base: Run, directory: SweepDir) -> dict[int, bool | None]:
    """Batch sizes and whether they fit, from the records; None for an attempt that failed."""
    tried: dict[int, bool | None] = {}
    while None not in tried.values() and (size := _next(tried, base)):
        run_id = attempt(base, size).run_id(sweep.notebook)
        try:
            record = store.read_record(directory.search.record(run_id))
        except store.RecordError:
            break
        tried |= _result(size, record)
    return tried


def _result(size: int, record: Mapping[str, Any]) -> dict[int, bool | None]:
    """Whether an attempt's batch fits; None if the attempt failed.

    What the device or the backend does not support at all fits at no size, not at 1 either.
    """
    if record["status"] == "unsupported" and not record["error"].startswith("batch_size "):
        return {1: False}
    return {size: FITS.get(record["status"])}


def attempt(base: Run, size: int) -> Run:
    """Returns the run that tries a batch size."""
    return base.model_copy(update={"batch_size": size, "max_steps": STEPS, "target_ci": None})


def forget(sweep: Sweep, runs: Iterable[Run], directory: SweepDir) -> None:
    """Removes the attempts made for the points of some runs."""
    wanted = {_key(attempt(base, 1)) for base in _bases_here(sweep, runs)}
    for record in store.read_records(directory.search)[0]:
        run = Run.model_construct(**record["parameters"])
        if _key(run) in wanted:
            shutil.rmtree(directory.search.record(run.run_id(sweep.notebook)).parent)


def search(job: Job, runs: Iterable[Run], timeout_s: float) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Makes the attempts that are missing for the points of some runs, as a generator.

    Yields each attempt, which is ended after `timeout_s`, and its record when it has ended. A point
    whose attempt fails, which is not to run out of memory, is left; the next call tries it again.
    """
    from mptexp.execution import supervisor  # a plan does without

    sweep, slots = job.sweep, device_slots.slots()
    for base in _bases_here(sweep, runs):
        before = _tried(sweep, base, job.directory).items()
        tried = {size: fit for size, fit in before if fit is not None}
        visible = device_slots.environment(device_slots.taken(base, slots, slots))
        while size := _next(tried, base):
            run = attempt(base, size)
            record = supervisor.execute(
                run, job.notebook, sweep.notebook, job.directory.search, timeout_s, visible
            )
            yield run, record
            result = _result(size, record)
            if None in result.values():
                break
            tried |= result
