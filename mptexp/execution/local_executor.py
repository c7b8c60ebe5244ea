"""Executes runs on the devices of this machine, each device one run at a time."""

import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mptexp.execution import device_slots, fork_client, supervisor
from mptexp.execution.device_slots import Slot
from mptexp.execution.job import Job
from mptexp.execution.plan import Planned
from mptexp.host import interrupt
from mptexp.records import schema

# Between two looks for a signal: Python handles one in the main thread alone, which a lock without
# a limit keeps asleep where the system gave the signal to another thread.
SIGNALS_S = 0.5


def invocation() -> str:
    """Returns what names a call of `mptexp run`: 12 hexadecimal digits, drawn."""
    return secrets.token_hex(6)


@dataclass(frozen=True)
class Execution:
    """How runs are executed, which does not change what they are.

    Attributes:
        timeout_s: a run is ended after so many seconds.
        retries: how often a run that failed, was killed or took too long is tried again.
        parallel: the number of runs that share a CPU; above 1, timings are not valid.
        executor: `local`, or `ray`: see ray_executor.
        data_dir: as of --data-dir, where the executor's machines prepare data themselves.
        fail_fast: whether to stop at the first run that failed.
        invocation: names this call of `mptexp run` in the records: what a ratio compares was
            measured in one.
        servers: where the processes of runs are forked, kept for several sweeps; None: each sweep
            has its own, if the user wants any.
        prepared: whether data and models were prepared just now, by who executes several sweeps.
    """

    timeout_s: float
    retries: int = 0
    parallel: int = 1
    executor: str = "local"
    data_dir: Path | None = None
    fail_fast: bool = False
    invocation: str = field(default_factory=invocation)
    servers: fork_client.Servers | None = None
    prepared: bool = False

    @property
    def marks(self) -> list[str]:
        """What each record says of it."""
        void = f"{schema.VOID}: {self.parallel} runs shared this machine's processors"
        return [void] if self.parallel > 1 else []


def execute(
    due: Sequence[Planned], job: Job, how: Execution
) -> Iterator[tuple[Planned, dict[str, Any] | None]]:
    """Executes runs, one at a time on each device, as a generator.

    Yields each run twice: with None when it starts, with its record when it has ended. An
    exception thrown in (Ctrl-C) ends the runs at work and leaves the finished ones as they are.
    A run that needs more devices than are free holds up the later ones of its model: otherwise
    these would take each device that becomes free, and it would wait for ever.
    """
    slots = device_slots.slots(how.parallel)
    free, waiting = list(slots), list(due)
    working: dict[Future[dict[str, Any]], tuple[Planned, list[Slot]]] = {}
    stop = threading.Event()
    forks = nullcontext(how.servers) if how.servers else fork_client.servers(slots)
    with ExitStack() as ending, forks as servers, ThreadPoolExecutor(len(slots)) as pool:
        try:
            while waiting or working:
                for planned, taken in _startable(waiting, free, slots):
                    waiting.remove(planned)
                    free = [slot for slot in free if slot not in taken]
                    yield planned, None
                    future = pool.submit(_execute, planned, job, how, taken, stop, servers)
                    working[future] = (planned, taken)
                for future in wait(working, SIGNALS_S, FIRST_COMPLETED).done:
                    planned, taken = working.pop(future)
                    free += taken
                    yield planned, future.result()
        finally:
            # Until no run is at work: the directory is free then, and may be executed again.
            ending.enter_context(interrupt.held())
            stop.set()


def _startable(
    waiting: Sequence[Planned], free: Sequence[Slot], slots: Sequence[Slot]
) -> list[tuple[Planned, list[Slot]]]:
    """The runs that can start now, each with its slots: of each model the first ones waiting."""
    startable, left, full = [], list(free), set()
    for planned in waiting:
        if not left:
            break
        if planned.run.gpu_model in full:
            continue
        taken = device_slots.taken(planned.run, left, slots)
        if taken:
            startable.append((planned, taken))
            left = [slot for slot in left if slot not in taken]
        else:
            full.add(planned.run.gpu_model)
    return startable


def _execute(
    planned: Planned,
    job: Job,
    how: Execution,
    taken: Sequence[Slot],
    stop: threading.Event,
    servers: fork_client.Servers | None,
) -> dict[str, Any]:
    """Executes one run on its devices, again as often as `retries` allows; its last record."""
    for attempt in range(1, how.retries + 2):
        again = [f"attempt {attempt}, after others had failed"] if attempt > 1 else []
        record = supervisor.execute(
            planned.run,
            job.notebook,
            job.sweep.notebook,
            job.directory,
            how.timeout_s,
            device_slots.environment(taken),
            [*how.marks, *again],
            stop,
            how.invocation,
            servers,
        )
        if record["status"] in schema.FINAL:
            break
    return record
