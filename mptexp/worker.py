"""One run in a process of its own: started, watched, ended, and its record completed."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from mptexp import kernel, store
from mptexp.spec import Run
from mptexp.store import SweepDir

WATCH_S = 0.02  # between looks at the memory of a run that has a limit


def execute(
    run: Run, notebook: Path, name: str, directory: SweepDir, timeout_s: float
) -> dict[str, Any]:
    """Executes one run in a process of its own and publishes what it left; returns its record.

    Args:
        run: its parameters.
        notebook: the notebook's file.
        name: its name in the params file, which is part of the run's id.
        directory: where the run's folder is to stand.
        timeout_s: the run is ended after so many seconds, and its record says so.
    """
    run_id = run.run_id(name)
    folder = directory.partial.resolve() / run_id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    task = {"notebook": str(notebook), "parameters": run.model_dump()}
    began = time.monotonic()
    try:
        with kernel.scratch_folder() as scratch:
            (folder / "task.json").write_text(json.dumps(task | {"scratch": str(scratch)}))
            ended = _wait(_start(folder, run, name), folder, timeout_s, _limit(run))
    except BaseException:  # Ctrl-C above all: nothing of this run may stay behind
        kill(folder)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    record = _finish(folder, run, name, ended, time.monotonic() - began)
    directory.publish(run_id)
    return record


def _start(folder: Path, run: Run, name: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "MPTEXP_RUN_DIR": str(folder),
        "MPTEXP_NOTEBOOK": name,
        "KERAS_BACKEND": run.backend,
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "mptexp.kernel", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the sweep alone, which then ends the run
        )


def _limit(run: Run) -> int | None:
    """Bytes of memory that the run's process may take; a GPU's are limited in the framework."""
    on_cpu = run.gpu_model.endswith("(CPU)")
    return int(run.memory_limit_gb * 1e9) if run.memory_limit_gb and on_cpu else None


def _wait(
    worker: subprocess.Popen[bytes], folder: Path, timeout_s: float, limit: int | None
) -> dict[str, str]:
    """Waits for the worker's end, or ends it; returns status and error."""
    kills = _kills_for_memory()
    ended = _watch(worker, time.monotonic() + timeout_s, limit)
    kill(folder)  # a kernel outlives a worker that was killed
    worker.wait()
    if ended == "timeout":
        return {"status": "timeout", "error": f"longer than {timeout_s / 60:g} min"}
    if ended:
        return {"status": "oom", "error": ended}
    told = _told(worker, folder)
    if told["status"] == "killed" and _kills_for_memory() > kills:
        return {"status": "oom", "error": "the system's OOM killer ended a process meanwhile"}
    return told


def _told(worker: subprocess.Popen[bytes], folder: Path) -> dict[str, str]:
    """Status and error as the worker left them, or as its end tells."""
    try:
        return dict(json.loads((folder / "outcome.json").read_text()))
    except (OSError, ValueError):
        if worker.returncode < 0:
            return {"status": "killed", "error": f"ended by signal {-worker.returncode}"}
        return {"status": "failed", "error": _last_line(folder / "log.txt")}


def _kills_for_memory() -> int:
    """How many processes the kernel has killed so far because memory ran out."""
    path = Path("/proc/vmstat")
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _watch(worker: subprocess.Popen[bytes], deadline: float, limit: int | None) -> str:
    """Returns when the worker has ended (empty) or must be ended (timeout, or why)."""
    process = None
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            worker.wait(min(left, WATCH_S) if limit else left)
            return ""
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return "timeout"
        if not _resident(process):  # none yet, or it was a passing helper of the worker's
            process = _kernel_of(worker)
        used = _resident(process)
        if limit and used > limit:
            allowed = f"memory_limit_gb {limit / 1e9:g} allows"
            return f"{used / 1e9:.2f} GB were in use, more than {allowed}"


def _kernel_of(worker: subprocess.Popen[bytes]) -> psutil.Process | None:
    """The worker's largest child, once there is one: looking for it costs more than asking it."""
    try:
        return max(psutil.Process(worker.pid).children(), key=_resident, default=None)
    except psutil.Error:
        return None


def _resident(process: psutil.Process | None) -> int:
    try:
        return process.memory_info().rss if process else 0
    except psutil.Error:
        return 0


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the worker ended without a word"


def kill(folder: Path) -> None:
    """Ends every process of a run. They are known by their environment, whoever started them."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("MPTEXP_RUN_DIR") == str(folder):
                process.kill()
        except psutil.Error:  # gone by now, or another user's
            continue


def _finish(
    folder: Path, run: Run, name: str, ended: Mapping[str, str], wall_s: float
) -> dict[str, Any]:
    """Completes the record that the notebook wrote, or makes one where it wrote none."""
    path = folder / "record.json"
    record = {
        "schema": store.SCHEMA,
        "run_id": run.run_id(name),
        "notebook": name,
        "parameters": run.model_dump(),
        **ended,
    }
    if ended["status"] == "ok":
        try:
            record = store.read_record(path)
        except store.RecordError:
            record |= {"status": "failed", "error": "the notebook ended without writing a record"}
        if record["parameters"] != run.model_dump():
            record |= {"status": "failed", "error": "the notebook changed its parameters"}
    for extra in ("task.json", "outcome.json", "log.txt"):
        (folder / extra).unlink(missing_ok=True)
    _clean(folder / "notebook.ipynb")
    record["wall_s"] = wall_s
    store.write_record(path, record)
    return record


def _clean(notebook: Path) -> None:
    """Takes private names out of an executed notebook; one that was cut off in writing goes."""
    try:
        content = json.loads(notebook.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        notebook.unlink()
        return
    store.write_text(notebook, json.dumps(store.scrub(content), indent=1, ensure_ascii=False))
