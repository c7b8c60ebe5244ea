"""Executes runs on a Ray cluster: each is a task on a device of its model.

A task returns the run's files, which are published here. Ray places the tasks and knows which nodes
are alive. What it does not do is done here: it would wait for ever for a device that no node has,
and it does not say when the node of a run was lost.
"""

import atexit
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from mptexp.errors import ParamsError
from mptexp.execution import preparation, ray_cluster, supervisor
from mptexp.execution.job import Job
from mptexp.execution.local_executor import Execution
from mptexp.execution.merge import FILES
from mptexp.execution.plan import Planned
from mptexp.execution.ray_cluster import HeadLost, Place, answer
from mptexp.records import schema, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.run import Run

POLL_S = 1.0  # between two checks of which nodes are alive
STOP_S = 10.0  # for the tasks of a sweep that was stopped to end by themselves
CRASHES = 3  # deaths of a run's Ray worker, on nodes that live on, after which it is killed
READY = "ready"  # noted of data that a node has prepared; anything else is an error message


class NodesLost(RuntimeError):
    """No node is left that could take the runs that remain."""


def execute(
    due: Sequence[Planned], job: Job, how: Execution
) -> Iterator[tuple[Planned, dict[str, Any] | None]]:
    """Executes runs on the cluster that was joined, as many at a time as it has room for.

    Yields each run twice, as `local_executor.execute` does: with None when it starts (again when
    its node was lost), with its record when it has ended. An exception thrown in ends all tasks.

    Raises:
        NodesLost: when no node is left that could take the runs that remain.
    """
    import ray

    task = ray.remote(max_retries=0)(_task)
    data_dir = str(how.data_dir.expanduser().absolute()) if how.data_dir else None
    notebook = (job.notebook.name, job.notebook.read_bytes(), job.sweep.notebook)
    shared = (*notebook, how.timeout_s, data_dir, uuid.uuid4().hex, how.invocation)
    waiting, losses = list(due), Counter[tuple[str, str]]()
    working: dict[Any, tuple[Planned, Place]] = {}
    try:
        available = answer(ray_cluster.places)
        on_cpus = bool(ray_cluster.missing({p.run.gpu_model for p in due}, available))
        while waiting or working:
            places = answer(ray_cluster.places, on_cpus)
            for planned, place in _startable(waiting, list(working.values()), places):
                placed = task.options(**place.options(planned.run))
                ref = answer(placed.remote, planned.run.model_dump(), *shared)
                waiting.remove(planned)
                working[ref] = (planned, place)
                yield planned, None
            if not working:
                models = ", ".join(sorted({p.run.gpu_model for p in waiting}))
                raise _lost(f"no node with {models} is left in the Ray cluster", len(waiting))
            answer(_give_up, working, places)
            for ref in answer(ray.wait, list(working), timeout=POLL_S)[0]:
                planned, _ = working[ref]
                record = _collect(ref, planned, job, how, losses)
                del working[ref]
                if record is None or _again(record, losses["failed", planned.run_id], how):
                    waiting.insert(0, planned)
                else:
                    yield planned, record
    except HeadLost:
        lost = "the head of the Ray cluster does not answer any more"
        raise _lost(lost, len(waiting) + len(working)) from None
    finally:
        _leave(list(working))


def _startable(
    waiting: Sequence[Planned], working: Sequence[tuple[Planned, Place]], places: Sequence[Place]
) -> list[tuple[Planned, Place]]:
    """The runs that there is room for, in order: one that must wait holds up those behind it."""
    free = Counter({place.key: place.room for place in places})
    for planned, place in working:
        free[place.key] -= place.takes(planned.run)
    startable = []
    for planned in waiting:
        if not any(free[place.key] > 0 for place in places):
            break
        fitting = [place for place in places if place.fits(planned.run.gpu_model)]
        best = max(fitting, key=lambda place: free[place.key], default=None)
        if best and free[best.key] >= best.takes(planned.run):
            free[best.key] -= best.takes(planned.run)
            startable.append((planned, best))
        else:
            free.update({place.key: -free[place.key] for place in fitting})
    return startable


def _again(record: Mapping[str, Any], failures: int, how: Execution) -> bool:
    return record["status"] not in schema.FINAL and failures <= how.retries


def _give_up(working: Mapping[Any, tuple[Planned, Place]], places: Sequence[Place]) -> None:
    """Cancels the tasks whose place is gone: Ray would keep them until another one comes."""
    import ray

    alive = {place.key for place in places}
    for ref, (_, place) in working.items():
        if place.key not in alive:
            ray.cancel(ref)


def _lost(why: str, n: int) -> NodesLost:
    return NodesLost(f"{why}: {n} run{'s' if n > 1 else ''} not executed")


def _end_without_ray() -> None:
    """Ends this process before Ray's library does, which fails without its head."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _leave(working: Sequence[Any]) -> None:
    """Ends the tasks that are still at work, and with them their runs, and leaves the cluster."""
    import ray

    try:
        answer(_end_tasks, working)
    except HeadLost:
        atexit.unregister(ray.shutdown)  # it would wait for the head
        atexit.register(_end_without_ray)
    except BaseException:
        ray.shutdown()
        raise
    else:
        ray.shutdown()


def _end_tasks(working: Sequence[Any]) -> None:
    import ray

    for ref in working:
        ray.cancel(ref)
    if working:
        ray.wait(list(working), num_returns=len(working), timeout=STOP_S)


def _collect(
    ref: Any, planned: Planned, job: Job, how: Execution, losses: Counter[tuple[str, str]]
) -> dict[str, Any] | None:
    """Publishes the files that a task returned; None if the run is to be executed again.

    `losses` says how often, by ("node", "worker" or "failed", run id), the node of a run was lost,
    its Ray worker died, and the run failed; this adds to it.
    """
    run_id = planned.run_id
    folder = job.directory.partial / run_id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    record = _result(ref, planned, job.sweep.notebook, folder, losses)
    if record is None:
        return None
    lost, failed = losses["node", run_id], losses["failed", run_id]
    marks = [f"started {lost + 1} times: its node was lost"] if lost else []
    marks += [f"attempt {failed + 1}, after others had failed"] if failed else []
    record["marks"], record["invocation"] = [*record.get("marks", []), *marks], how.invocation
    losses["failed", run_id] += record["status"] not in schema.FINAL
    store.write_record(folder / "record.json", record)
    job.directory.publish(run_id)
    return record


def _result(
    ref: Any, planned: Planned, name: str, folder: Path, losses: Counter[tuple[str, str]]
) -> dict[str, Any] | None:
    """The record of a task's run, whose files are left in a folder; None to execute it again.

    That a node ends is no fault of its runs. That a Ray worker dies alone may be one.
    """
    import ray
    from ray import exceptions

    try:
        return _received(answer(ray.get, ref), planned, name, folder)
    except (
        exceptions.NodeDiedError,
        exceptions.TaskUnschedulableError,
        exceptions.ObjectLostError,
        exceptions.TaskCancelledError,
    ):
        losses["node", planned.run_id] += 1
        return None
    except exceptions.RayTaskError as error:  # the node could not even begin: its data, its disk
        return _without(planned, name, "failed", str(error.cause or error))
    except exceptions.OutOfMemoryError:
        return _without(planned, name, "oom", "Ray ended the run: its node ran out of memory")
    except exceptions.RayError as error:
        losses["worker", planned.run_id] += 1
        if losses["worker", planned.run_id] < CRASHES:
            return None
        return _without(planned, name, "killed", f"{CRASHES} Ray workers died with it: {error}")


def _received(
    files: Mapping[str, bytes], planned: Planned, name: str, folder: Path
) -> dict[str, Any]:
    """The record among the files of a run, which are left in a folder."""
    for file in (file for file in FILES if file in files):
        (folder / file).write_bytes(files[file])
    try:
        record = store.read_record(folder / "record.json")
    except store.RecordError as error:
        return _without(planned, name, "failed", str(error))
    asked = planned.run.published().model_dump()
    if record.get("run_id") != planned.run_id or record["parameters"] != asked:
        return _without(planned, name, "failed", "the node sent the record of another run")
    return record


def _without(planned: Planned, name: str, status: str, error: str) -> dict[str, Any]:
    """The record of a run that left none."""
    first = (error.strip().splitlines() or [""])[0]
    return schema.bare(planned.run, name) | {"status": status, "error": first, "wall_s": 0.0}


# --- on a node --------------------------------------------------------------------------------


def _task(
    parameters: Mapping[str, Any],
    file: str,
    text: bytes,
    name: str,
    timeout_s: float,
    data_dir: str | None,
    call: str,
    invocation: str,
) -> dict[str, bytes]:
    """Executes one run on this node, in a process of its own as everywhere; returns its files.

    Args:
        file, text, name: the notebook's file name, its content, its name in the params file.
        data_dir: as of --data-dir, a folder of this node.
        call: what names this call of `execute`, on all nodes.
        invocation: what names the call of `mptexp run`, whose other runs are no other sweep.
    """
    run = Run(**parameters)
    if "OMP_NUM_THREADS" not in psutil.Process().environ():  # nor when this process began
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's: threads as many as it counts CPUs
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if run.gpu_model.endswith("(CPU)") else {}
    _prepare(run, data_dir, call)
    with tempfile.TemporaryDirectory(prefix="mptexp") as made:
        notebook, directory = Path(made) / file, SweepDir(Path(made) / "sweep")
        notebook.write_bytes(text)
        supervisor.execute(run, notebook, name, directory, timeout_s, hidden, invocation=invocation)
        written = (directory.runs / run.run_id(name)).iterdir()
        return {path.name: path.read_bytes() for path in written if path.name in FILES}


def _prepare(run: Run, data_dir: str | None, call: str) -> None:
    """Prepares the data of a run once per node: the first run does it, others wait for it.

    Raises:
        ParamsError: what is wrong with the data, to each of the runs that need it.
    """
    if data_dir:
        os.environ["MPTEXP_DATA_DIR"] = data_dir
    if not (key := preparation.key(run)):
        return
    folder = Path(tempfile.gettempdir()) / f"mptexp-{call}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # The file is both the lock and the result, so that nobody can see one without the other.
    with (folder / hashlib.sha256(repr(key).encode()).hexdigest()).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        result = file.read()
        if not result:
            result = _prepared(run)
            file.write(result)
    if result != READY:
        raise ParamsError(result)


def _prepared(run: Run) -> str:
    try:
        preparation.prepare([run])
    except ParamsError as error:
        return str(error)
    return READY
