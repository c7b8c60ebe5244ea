"""A sweep: which runs are pending, one kernel process for each, every ending a record."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mptexp.execution import devices, kernel, max_batch, processes, worker
from mptexp.execution.devices import Slot
from mptexp.records import outcomes, schema, store
from mptexp.records.outcomes import Outcome
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params
from mptexp.spec.devices import is_here, local_device
from mptexp.spec.errors import ParamsError
from mptexp.spec.grid import REPORT_KEYS, Sweep
from mptexp.spec.names import DATASETS, MODELS
from mptexp.spec.project import PACKAGE, PROJECT
from mptexp.spec.run import Run


@dataclass(frozen=True)
class Planned:
    """A run and how it stands: a status, `pending`, or `elsewhere` (another machine's device)."""

    run_id: str
    run: Run
    state: str
    wall_s: float | None = None

    @property
    def due(self) -> bool:
        """Whether the next call executes it."""
        return self.state not in (*schema.FINAL, "elsewhere")


def notebook_path(name: str, params_file: Path) -> Path:
    """The notebook that a params file names: one of the project's, or a path beside the file.

    Raises:
        ParamsError: where there is none.
    """
    if name.endswith((".py", ".ipynb")):
        places = [params_file.parent / name]
    else:
        places = [folder / "notebooks" / f"{name}.py" for folder in (Path.cwd(), PROJECT, PACKAGE)]
    found = [place for place in places if place.is_file()]
    if not found:
        raise ParamsError(
            f"{params_file}: notebook is {name!r}; allowed: a name from notebooks/ such as train, "
            "or the path of a .py or .ipynb notebook beside the params file"
        )
    return found[0].resolve()


def plan(sweep: Sweep, directory: SweepDir, everywhere: bool = False) -> list[Planned]:
    """Every run of the sweep with its state, in the order of execution.

    Args:
        sweep: its runs.
        directory: what is finished.
        everywhere: whether runs of devices that this machine has not are due as well.
    """
    found = states(sweep.runs(max_batch.points(sweep, directory)), sweep, directory)
    away = {p.run_id for p in found if everywhere and p.state == "elsewhere"}
    return [replace(p, state="pending") if p.run_id in away else p for p in found]


def states(runs: Sequence[Run], sweep: Sweep, directory: SweepDir) -> list[Planned]:
    """How each of some runs stands in a directory."""
    by_id = {run.run_id(sweep.notebook): run for run in runs}
    ended = outcomes.read(directory, by_id)
    return [_planned(run_id, run, ended.get(run_id)) for run_id, run in by_id.items()]


def _planned(run_id: str, run: Run, ended: Outcome | None) -> Planned:
    due = "pending" if is_here(run.gpu_model) else "elsewhere"
    if ended is None:
        return Planned(run_id, run, due)
    # Another machine's failed run is that machine's to try again.
    again = ended.status not in schema.FINAL and due == "elsewhere"
    return Planned(run_id, run, due if again else ended.status, ended.wall_s)


def only(runs: Sequence[Planned], filters: Sequence[str]) -> list[Planned]:
    """The runs that agree with every `key=value`; several values of one key are alternatives.

    Raises:
        ParamsError: for a filter that is not key=value, names no parameter, or matches no run.
    """
    wanted: dict[str, list[str]] = {}
    for text in filters:
        name, equals, value = text.partition("=")
        if not equals or name not in Run.model_fields:
            raise ParamsError(
                f"--only {text}: not key=value with a parameter's name; allowed names: "
                f"{', '.join(Run.model_fields)}"
            )
        wanted.setdefault(name, []).append(_canonical(name, value))
    kept = runs
    for name, values in wanted.items():
        before = sorted({str(getattr(p.run, name)) for p in kept})
        kept = [p for p in kept if str(getattr(p.run, name)) in values]
        if not kept:
            raise ParamsError(
                f"--only {name}={values[0]}: no run has it; its values here: {', '.join(before)}"
            )
    return list(kept)


def _canonical(name: str, value: str) -> str:
    """As Run would print it, so that learning_rate=1e-3 finds 0.001."""
    if name == "gpu_model" and value == "local":
        return local_device()
    try:
        return str(getattr(Run(**{name: params.load(value)}), name))
    except ValueError:
        return value


def remaining_s(runs: Sequence[Planned], sweep: Sweep) -> float | None:
    """Estimated seconds of the runs that are due; None where nothing is known yet."""
    return Costs(runs, sweep).total_s(point(p.run) for p in runs if p.due)


class Costs:
    """What finished runs took, from which is estimated what others will take.

    From finished runs of the same point (other blocks), else from all finished runs, else from
    the params file's `expected_run_s`.
    """

    def __init__(self, runs: Iterable[Planned], sweep: Sweep) -> None:
        self.expected_s, self.every = sweep.expected_run_s, (0, 0.0)
        self.by_point: dict[str, tuple[int, float]] = {}  # how many runs, seconds of all
        for planned in runs:
            self.add(planned)

    def add(self, planned: Planned) -> None:
        """Takes a run into account, if it came to an end."""
        if planned.state in schema.FINAL and planned.wall_s:
            where, nothing = point(planned.run), (0, 0.0)
            self.by_point[where] = _plus(self.by_point.get(where, nothing), planned.wall_s)
            self.every = _plus(self.every, planned.wall_s)

    def run_s(self, where: str) -> float | None:
        """Estimated seconds of a run at a point; None where nothing is known."""
        n, seconds = self.by_point.get(where, self.every)
        return seconds / n if n else self.expected_s

    def total_s(self, points: Iterable[str]) -> float | None:
        """Estimated seconds of a run at each of some points; None where nothing is known."""
        costs = [self.run_s(where) for where in points]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None


def _plus(known: tuple[int, float], seconds: float) -> tuple[int, float]:
    return known[0] + 1, known[1] + seconds


def point(run: Run) -> str:
    """What a run shares with its repeats in other blocks."""
    return run.model_dump_json(exclude={"block", "seed"})


# --- preparing the directory -----------------------------------------------------------------


def prepare(directory: SweepDir, text: str, fresh: bool) -> None:
    """Makes the sweep's directory, holding the params file as executed.

    Raises:
        ParamsError: where the directory holds another sweep, or something else.
    """
    root = directory.root
    if directory.params.exists() and not same(directory.params, text):
        if not fresh:
            raise ParamsError(
                f"{root}: holds the results of another params file ({directory.params}); "
                "give another directory with --out, or --fresh to discard them"
            )
        directory.clear()
    elif not directory.params.exists() and root.exists() and any(root.iterdir()):
        raise ParamsError(f"{root}: is neither empty nor a sweep's directory; choose another --out")
    # A run whose sweep was killed would disturb what is measured now.
    for place in (directory, directory.search, directory.diagnosis):
        for folder in place.partial.glob("*"):
            processes.end(folder.resolve())
    try:
        if not directory.params.exists() or _split(_text(directory.params))[1] != _split(text)[1]:
            store.write_text(directory.params, text)
        shutil.rmtree(directory.partial, ignore_errors=True)
        directory.runs.mkdir(exist_ok=True)
    except OSError as error:
        raise ParamsError(f"{root}: cannot be written: {error.strerror}") from None


def discard(runs: Sequence[Planned], directory: SweepDir, everywhere: bool = False) -> None:
    """Removes the results of this machine's runs, or of all, so that they are pending again."""
    for planned in (p for p in runs if everywhere or is_here(p.run.gpu_model)):
        shutil.rmtree(directory.runs / planned.run_id, ignore_errors=True)


def same(path: Path, text: str) -> bool:
    """Whether two params files ask for the same runs; comments do not matter."""
    return _split(_text(path))[0] == _split(text)[0]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _split(text: str) -> tuple[Any, dict[str, Any]]:
    """What a params file says of its runs, and of its report."""
    known = params.load(text)
    if not isinstance(known, dict):
        return known, {}
    report = {name: known.pop(name) for name in REPORT_KEYS if name in known}
    return known, report


@contextmanager
def locked(directory: SweepDir) -> Iterator[None]:
    """Holds the sweep's directory, so that no other process executes runs in it.

    Raises:
        ParamsError: where another process holds it.
    """
    root = directory.root
    try:
        root.mkdir(parents=True, exist_ok=True)
        held = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ParamsError(f"{root}: cannot hold results ({error.strerror}); choose --out") from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        message = f"{root}: another mptexp run is at work here; wait for it to end"
        raise ParamsError(message) from None
    try:
        yield
    finally:
        os.close(held)


def make_ready(runs: Sequence[Planned], data_dir: Path | None) -> None:
    """Fetches and prepares the data of runs, and tries models of the user's, in a child process.

    Its progress goes to the terminal. Before any kernel starts, so that what is wrong with the
    data is said once, and no run's time holds a download.

    Raises:
        ParamsError: the child's sentence about what is wrong.
    """
    needs = _needs(runs)
    if data_dir is not None:
        os.environ["MPTEXP_DATA_DIR"] = str(data_dir.expanduser().resolve())
    if not needs:
        return
    with kernel.scratch_folder() as scratch:
        (scratch / "runs.json").write_text(json.dumps(needs))
        child = subprocess.run([sys.executable, "-m", "mptexp.training.prepare", str(scratch)])
        told = scratch / "error.txt"
        if child.returncode:
            text = told.read_text() if told.exists() else f"exit status {child.returncode}"
            raise ParamsError(text)


def _needs(runs: Sequence[Planned]) -> list[dict[str, Any]]:
    """One run for each dataset to prepare and model of the user's to try."""
    found: dict[tuple[Any, ...], Run] = {}
    for run in (p.run for p in runs):
        if wanted := need(run):
            found.setdefault(wanted, run)
    return [run.model_dump() for run in found.values()]


def need(run: Run) -> tuple[Any, ...]:
    """What is the same for all runs that the same preparation serves; empty where none is needed.

    The user's own model, if it is one, and what decides the prepared data.
    """
    own = None if run.model in MODELS else run.model
    data = (run.dataset, run.image_size, run.color_mode, run.validation_split, run.on_broken)
    return (own, *data) if own or run.dataset not in DATASETS else ()


# --- executing -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Execution:
    """How runs are executed, which is no part of what they are.

    Attributes:
        timeout_s: a run is ended after so many seconds.
        retries: how often a run that failed, was killed or took too long is tried again.
        parallel: runs that share a CPU; their timings are void.
        executor: `local`, or `ray`: see remote.
        data_dir: as of --data-dir, where the executor's machines prepare data themselves.
        fail_fast: whether to stop at the first run that failed.
    """

    timeout_s: float
    retries: int = 0
    parallel: int = 1
    executor: str = "local"
    data_dir: Path | None = None
    fail_fast: bool = False

    @property
    def marks(self) -> list[str]:
        """What the records say of it."""
        void = f"{schema.VOID}: {self.parallel} runs shared this machine's processors"
        return [void] if self.parallel > 1 else []


def execute(
    runs: Sequence[Planned], notebook: Path, name: str, directory: SweepDir, how: Execution
) -> Iterator[tuple[Planned, dict[str, Any] | None]]:
    """Executes runs, one at a time on each device, as a generator.

    Yields each run twice: with None when it starts, with its record when it has ended. An
    exception thrown in (Ctrl-C) ends the runs at work and leaves the finished ones as they are.
    A run that needs more devices than are free holds up the later ones of its model: else it
    would wait for ever.
    """
    every = devices.slots(how.parallel)
    free, waiting = list(every), list(runs)
    working: dict[Future[dict[str, Any]], tuple[Planned, list[Slot]]] = {}
    stop = threading.Event()
    with ThreadPoolExecutor(len(every)) as pool:
        try:
            while waiting or working:
                for planned, chosen in _startable(waiting, free, every):
                    waiting.remove(planned)
                    free = [slot for slot in free if slot not in chosen]
                    yield planned, None
                    told = (planned, notebook, name, directory, how, chosen, stop)
                    working[pool.submit(_execute, *told)] = (planned, chosen)
                for ended in wait(working, return_when=FIRST_COMPLETED).done:
                    planned, chosen = working.pop(ended)
                    free += chosen
                    yield planned, ended.result()
        finally:
            stop.set()


def _startable(
    waiting: Sequence[Planned], free: Sequence[Slot], every: Sequence[Slot]
) -> list[tuple[Planned, list[Slot]]]:
    """The runs that can start now, each with its slots: of each model the first ones waiting."""
    found, left, full = [], list(free), set()
    for planned in waiting:
        if not left:
            break
        if planned.run.gpu_model in full:
            continue
        chosen = devices.taken(planned.run, left, every)
        if chosen:
            found.append((planned, chosen))
            left = [slot for slot in left if slot not in chosen]
        else:
            full.add(planned.run.gpu_model)
    return found


def _execute(
    planned: Planned,
    notebook: Path,
    name: str,
    directory: SweepDir,
    how: Execution,
    chosen: Sequence[Slot],
    stop: threading.Event,
) -> dict[str, Any]:
    """One run on its devices, again where it failed and may be tried again; its last record."""
    for attempt in range(1, how.retries + 2):
        again = [f"attempt {attempt}, after others had failed"] if attempt > 1 else []
        record = worker.execute(
            planned.run,
            notebook,
            name,
            directory,
            how.timeout_s,
            devices.environment(chosen),
            [*how.marks, *again],
            stop,
        )
        if record["status"] in schema.FINAL:
            break
    return record
