"""Starts the process of one run, watches and ends it, and completes the run's record."""

import errno
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from mptexp.execution import concurrent_sweeps, endings, fork_client, processes
from mptexp.execution.fork_client import Servers, Worker
from mptexp.execution.scratch import scratch_folder
from mptexp.host import boot
from mptexp.host.project import child_environment
from mptexp.records import privacy, schema, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import dataset_paths
from mptexp.spec.run import Run
from mptexp.traces import xplane

WATCH_S = 0.02  # between two readings of the memory of a run that has a limit
STOP_S = 0.5  # between two checks of whether the sweep is to stop
# With these no further run could be written either.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class Stopped(Exception):
    """The sweep was stopped: the run has been ended and left nothing."""


def execute(
    run: Run,
    notebook: Path,
    name: str,
    directory: SweepDir,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    marks: Sequence[str] = (),
    stop: threading.Event | None = None,
    invocation: str = "",
    servers: Servers | None = None,
) -> dict[str, Any]:
    """Executes one run in a process of its own and publishes what it left; returns its record.

    Whoever executes it, other sweeps see that it measures, and its record says which measured too.

    Args:
        name: its name in the params file, which is part of the run's id.
        directory: the sweep's, in which the run's folder is published.
        timeout_s: the run is ended after so many seconds, and its record says so.
        environment: variables of the run's processes, such as the GPUs that they may see.
        marks: notes for the record on how the run was executed.
        stop: set by another thread, it ends the run.
        invocation: names the call of `mptexp run`, for the record and for other sweeps.
        servers: where its processes are forked; None: they are started anew.

    Raises:
        Stopped: after `stop`.
        OSError: if the directory takes no files; the record says so if it could be written.
    """
    run_id = run.run_id(name)
    folder = directory.partial.resolve() / run_id
    devices = concurrent_sweeps.devices(run, (environment or {}).get("CUDA_VISIBLE_DEVICES"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    try:
        with (
            scratch_folder() as scratch,
            concurrent_sweeps.announced(devices, invocation) as others,
        ):
            task = {"notebook": str(notebook), "parameters": run.model_dump()}
            (scratch / "task.json").write_text(json.dumps(task))
            given = _environment(scratch, folder, run, name) | dict(environment or {})
            worker = servers and servers.worker(run, name, scratch, given, stop)
            marks = [*marks, fork_client.FALLBACK] if servers and not worker else marks
            worker = worker or _start(scratch, given)
            ended = _wait(worker, scratch, folder, timeout_s, _limit(run), stop)
            marks = [*marks, *others()]
    except BaseException:  # Ctrl-C above all: nothing of this run may stay behind
        processes.end(folder)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        wall_s = time.monotonic() - began
        record = _finish(folder, run, name, ended, wall_s, marks, invocation)
    except OSError as error:
        record = _finish_without_notebook(folder, run, name, error, time.monotonic() - began)
        if error.errno in NO_ROOM:
            directory.publish(run_id)
            raise
    directory.publish(run_id)
    return record


def _environment(scratch: Path, folder: Path, run: Run, name: str) -> dict[str, str]:
    return {
        **child_environment(),
        processes.MARK: str(folder),
        "MPTEXP_NOTEBOOK": name,
        "KERAS_BACKEND": run.backend,
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "TMPDIR": str(scratch),  # what frameworks leave there goes with it
    }


def _start(scratch: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "mptexp.execution.worker", str(scratch)],
        stdin=subprocess.PIPE,  # nothing is written: it closes when this process is gone
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches the sweep alone, which then ends the run
    )


def _limit(run: Run) -> int | None:
    """Bytes of memory that the run's process may take; a GPU's are limited in the framework."""
    on_cpu = run.gpu_model.endswith("(CPU)")
    return int(run.memory_limit_gb * 1e9) if run.memory_limit_gb and on_cpu else None


def _wait(
    worker: subprocess.Popen[bytes] | Worker,
    scratch: Path,
    folder: Path,
    timeout_s: float,
    limit: int | None,
    stop: threading.Event | None,
) -> dict[str, str]:
    """Waits for the worker's end, or ends it; returns status and error.

    Raises:
        Stopped: if `stop` was set.
    """
    kills = processes.kills_for_memory()
    output = processes.Tail(worker.stdout)
    reason = _watch(worker, time.monotonic() + timeout_s, limit, stop)
    processes.end(folder, worker.pid if worker.returncode is None else None)
    worker.wait()
    worker.stdin.close()
    if reason == "stop":
        raise Stopped
    if reason == "timeout":
        return {"status": "timeout", "error": f"longer than {timeout_s / 60:g} min"}
    if reason:
        return {"status": "oom", "error": reason}
    ended = endings.of_process(_written(scratch), worker.returncode, output.lines())
    if ended["status"] == "killed" and processes.kills_for_memory() > kills:
        return {"status": "oom", "error": "the system's OOM killer ended a process meanwhile"}
    return ended


def _written(scratch: Path) -> dict[str, str] | None:
    """How the notebook ended, as the worker wrote it; None where it ended before."""
    try:
        return dict(json.loads((scratch / "outcome.json").read_text()))
    except (OSError, ValueError):
        return None


def _watch(
    worker: subprocess.Popen[bytes] | Worker,
    deadline: float,
    limit: int | None,
    stop: threading.Event | None = None,
) -> str:
    """Waits for the worker: empty if it has ended, else why it must be ended."""
    process: psutil.Process | None = None
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            worker.wait(min(left, WATCH_S if limit else STOP_S))
            return ""
        except subprocess.TimeoutExpired:
            if stop and stop.is_set():
                return "stop"
            if time.monotonic() >= deadline:
                return "timeout"
        if not limit:
            continue
        # At first there is no Jupyter kernel, only passing helpers of the worker's.
        if not processes.resident(process):
            process = processes.largest_child(worker.pid)
        used = processes.resident(process)
        if used > limit:
            allowed = f"memory_limit_gb {limit / 1e9:g} allows"
            return f"{used / 1e9:.2f} GB were in use, more than {allowed}"


def _finish(
    folder: Path,
    run: Run,
    name: str,
    ended: Mapping[str, str],
    wall_s: float,
    marks: Sequence[str],
    invocation: str,
) -> dict[str, Any]:
    """Completes the record that the notebook wrote, or makes one if it wrote none."""
    path = folder / "record.json"
    record = schema.bare(run, name) | dict(ended)
    if ended["status"] == "ok":
        try:
            record = store.read_record(path)
        except store.RecordError as error:
            why = f"the notebook's record is no record: {str(error).removeprefix(f'{path}: ')}"
            none = "the notebook ended without writing a record"
            record |= {"status": "failed", "error": why if path.exists() else none}
        given = {"dataset": dataset_paths.published(record["parameters"].get("dataset", ""))}
        if record["parameters"] | given != run.published().model_dump():
            record |= {"status": "failed", "error": "the notebook changed its parameters"}
    record = privacy.without_path(record, run.dataset) | schema.bare(run, name)
    if not record.get("profile"):  # a trace whose record says nothing of it
        (folder / xplane.FILE).unlink(missing_ok=True)
    _clean(folder / "notebook.ipynb", run.dataset)
    record["wall_s"], record["ended_at"] = wall_s, schema.now()
    record["boot"] = boot.name()  # whose memory it was, of a run that ran out of it, too
    record["marks"], record["invocation"] = [*record.get("marks", []), *marks], invocation
    store.write_record(path, record)
    return record


def _finish_without_notebook(
    folder: Path, run: Run, name: str, error: OSError, wall_s: float
) -> dict[str, Any]:
    """Writes at least a record that says why there is no more, such as a full disk.

    Raises:
        OSError: if not even that can be written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    failed = {"status": "failed", "error": f"the results could not be written: {error.strerror}"}
    record = schema.bare(run, name) | failed | {"wall_s": wall_s, "ended_at": schema.now()}
    store.write_record(folder / "record.json", record)
    return record


def _clean(notebook: Path, dataset: str) -> None:
    """Takes private names out of an executed notebook; removes one whose writing was cut off."""
    try:
        content = json.loads(notebook.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        notebook.unlink()
        return
    known = content.get("metadata", {}).get("papermill", {})
    # Where papermill read and wrote it, of which the last part is what others may know.
    known |= {
        name: Path(known[name]).name for name in ("input_path", "output_path") if known.get(name)
    }
    clean = privacy.scrub(privacy.without_path(content, dataset))
    store.write_text(notebook, json.dumps(clean, indent=1, ensure_ascii=False))
