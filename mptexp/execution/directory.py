"""The directory of a sweep: locked, prepared for one params file, and cleared of results."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mptexp.execution import processes
from mptexp.execution.plan import Planned
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir, remove_runs
from mptexp.spec import documents, places
from mptexp.spec.devices import is_here
from mptexp.spec.errors import ParamsError
from mptexp.spec.grid import REPORT_KEYS


@contextmanager
def locked(directory: SweepDir) -> Iterator[None]:
    """Holds the sweep's directory, so that no other process executes runs in it.

    The lock is on the directory itself. A lock file, such as the package filelock leaves, would
    stay among the results, and be copied, merged and published with them.

    Raises:
        ParamsError: if another process holds it, or it cannot be made.
    """
    root = directory.root
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ParamsError(
            f"{root}: cannot hold results ({error.strerror}); choose another"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            said = "another mptexp command is at work here; wait for it to end"
            raise ParamsError(f"{root}: {said}") from None
        yield
    finally:
        os.close(descriptor)  # gives the lock back; so does the end of the process


def prepare(directory: SweepDir, text: str, fresh: bool) -> None:
    """Makes the sweep's directory, which holds the params file as executed.

    Args:
        directory: the directory; it must be locked.
        text: the params file.
        fresh: whether the results of another params file may be discarded.

    Raises:
        ParamsError: if the directory holds another sweep or something else, or is not writable.
    """
    root = directory.root
    if directory.params.exists() and not same(directory, text):
        if not fresh:
            raise ParamsError(
                f"{root}: holds the results of another params file ({directory.params}); "
                "give another directory with --out, or --fresh to discard them"
            )
        if not directory.is_marked:
            raise ParamsError(
                f"{root}: has no {directory.marker.name} of mptexp's, so --fresh deletes nothing "
                "in it; choose another --out, or empty it yourself"
            )
        directory.clear()
    elif not (directory.is_marked or _is_empty(root) or _holds_records(directory)):
        raise ParamsError(f"{root}: is neither empty nor a sweep's directory; choose another --out")
    # A run that outlived its sweep would take time and memory from what is measured now.
    for part in directory.parts:
        for folder in part.partial.glob("*"):
            processes.end(folder.resolve())
    try:
        directory.mark()  # first: whatever the next call finds here is then known as mptexp's
        if not directory.params.exists() or _split(directory.params_text)[1] != _split(text)[1]:
            store.write_text(directory.params, text)
        _publish_whole(directory)
        remove_runs(directory.partial)
        directory.runs.mkdir(exist_ok=True)
    except OSError as error:
        raise ParamsError(f"{root}: cannot be written: {error.strerror}") from None


def _is_empty(root: Path) -> bool:
    """Whether nothing is there but what a call left that was ended before it had begun."""
    return not root.exists() or {path.name for path in root.iterdir()} <= {"sweep.new"}


def _holds_records(directory: SweepDir) -> bool:
    """Whether this is a sweep's directory without a marker: a published one, or an old one."""
    for path in directory.runs.glob("*/record.json") if directory.params.exists() else ():
        with suppress(store.RecordError):
            return bool(store.read_record(path))
    return False


def _publish_whole(directory: SweepDir) -> None:
    """Publishes what a kill left complete in `partial`, between two renamings."""
    for path in list(directory.partial.glob("*/record.json")):
        run_id = path.parent.name
        try:
            whole = "ended_at" in store.read_record(path)
        except store.RecordError:
            continue
        if whole and not directory.record(run_id).exists():
            directory.publish(run_id)


def discard(planned: Sequence[Planned], directory: SweepDir, everywhere: bool = False) -> None:
    """Removes the results of this machine's runs, or of all, so that they are pending again."""
    for one in planned:
        if everywhere or is_here(one.run.gpu_model):
            for folder in directory.of_run(one.run_id):
                shutil.rmtree(folder, ignore_errors=True)


def same(directory: SweepDir, text: str) -> bool:
    """Whether two params files ask for the same runs; comments and the report may differ."""
    return _split(directory.params_text)[0] == _split(text)[0]


def _split(text: str) -> tuple[Any, dict[str, Any]]:
    """The keys of a params file that decide its runs, and those that change its report alone."""
    # Data may have been moved, or lie elsewhere.
    content = places.everywhere(documents.content(text))
    if not isinstance(content, dict):
        return content, {}
    report = {name: content.pop(name) for name in REPORT_KEYS if name in content}
    return content, report
