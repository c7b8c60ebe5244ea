"""The directory of a sweep: locked, prepared for one params file, and cleared of results."""

import errno
import fcntl
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mptexp.errors import ParamsError
from mptexp.execution import processes
from mptexp.execution.plan import Planned
from mptexp.host import boot, files
from mptexp.host.devices import is_here
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir, remove_runs
from mptexp.spec import dataset_paths, params, yaml_documents
from mptexp.spec.run import Run

# Errors of a path where something else is, which is named; of others the directory is to be mended.
IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR)

MARK = re.compile("[0-9a-f]{12}|")  # the name of a machine; empty where its writing was killed
RENEWED_S = 15.0
# Of a machine's mark, from when it was last renewed: several renewals may be missed on a busy
# network. Clocks of machines that are further apart than this hide it.
FRESH_S = 120.0


@contextmanager
def locked(directory: SweepDir) -> Iterator[None]:
    """Holds the sweep's directory, so that no other process executes runs in it.

    The lock is on the directory itself. A lock file, such as the package filelock leaves, would
    stay among the results, and be copied, merged and published with them. Of a directory on NFS,
    such a lock holds on one machine alone, see `_marked`.

    Raises:
        ParamsError: if another process, or another machine, holds it, or it cannot be made.
    """
    root = directory.root
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _refusal(root, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            said = "another mptexp command is at work here; wait for it to end"
            raise ParamsError(f"{root}: {said}") from None
        with _marked(directory):
            yield
    finally:
        os.close(descriptor)  # gives the lock back; so does the end of the process


def is_at_work(directory: SweepDir) -> bool:
    """Whether a command executes runs in a sweep's directory, here or on another machine."""
    try:
        descriptor = os.open(directory.root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        # Shared, and for a moment alone: another look does not take it for a command at work.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return _held_s(directory.at_work, boot.name()) > 0


@contextmanager
def _marked(directory: SweepDir) -> Iterator[None]:
    """Shows other machines that share the directory, while it lasts, that one is at work in it.

    By a file beside it whose time is renewed. One that is left by a kill stops no call on the same
    machine, and on others none once it is old.

    Raises:
        ParamsError: if another machine shows so.
    """
    mark, own = directory.at_work, boot.name()
    left_s = _held_s(mark, own)
    if left_s > 0:
        raise ParamsError(
            f"{directory.root}: an mptexp command on another machine is at work here; wait for it "
            f"to end. If that machine is gone, wait {left_s:.0f} s, or delete {mark}"
        )
    if not own or not _write_mark(mark, own):
        yield
        return
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(mark, ended), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        with suppress(OSError):
            if files.text(mark) in (own, ""):  # empty on a full disk
                mark.unlink()


def _held_s(mark: Path, own: str) -> float:
    """For how many seconds more another machine's mark holds; 0 where there is none.

    One from before this machine started may be its own, of before: another machine at work would
    have renewed it since.
    """
    try:
        marked = files.text(mark)  # read first: opening it refreshes what NFS knows of its time
        if not own or marked in (own, "") or not MARK.fullmatch(marked):
            return 0.0
        age_s = _now(mark.parent) - mark.lstat().st_mtime
    except OSError:
        return 0.0
    latest_s = min(FRESH_S, boot.since_s())
    return FRESH_S - age_s if -FRESH_S < age_s < latest_s else 0.0


def _now(folder: Path) -> float:
    """The time by the clock that dates the files of a folder, which may be a server's."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime
    return time.time()


def _write_mark(mark: Path, own: str) -> bool:
    """Whether a mark could be written: not where nobody may write, nor over another file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        if os.path.lexists(mark) and not MARK.fullmatch(files.text(mark)):
            return False
        descriptor = os.open(mark, flags, 0o644)
    except OSError:
        return False
    with suppress(OSError), open(descriptor, "w", encoding="ascii") as file:
        file.write(own)
    return True


def _renew(mark: Path, ended: threading.Event) -> None:
    """Renews the time of a mark until its command has ended."""
    while not ended.wait(RENEWED_S):
        with suppress(OSError):
            os.utime(mark, follow_symlinks=False)


def _refusal(root: Path, error: OSError) -> ParamsError:
    return ParamsError(f"{root}: cannot hold results ({error.strerror}); choose another")


def prepare(directory: SweepDir, text: str, discard: bool = False) -> None:
    """Makes the sweep's directory, which holds the params file as executed.

    Args:
        directory: the directory; it must be locked.
        discard: whether the results of another params file may be deleted.

    Raises:
        ParamsError: if the directory holds another sweep or something else, or is not writable; if
            a link or a file stands for the folder of what was measured again.
    """
    check(directory, text, discard)
    if difference(directory, text):
        directory.clear()
    # A run that outlived its sweep would take time and memory from what is measured now.
    for part in directory.parts:
        for folder in part.partial.glob("*"):
            processes.end(folder.resolve())
    kept = directory.superseded
    if kept.is_symlink() or kept.is_file():  # another disk may lie behind it, or what others keep
        kind = "link" if kept.is_symlink() else "file"
        raise ParamsError(
            f"{kept}: is a {kind}; make it a folder: what is measured again is moved there"
        )
    try:
        directory.mark()  # first: whatever the next call finds here is then known as mptexp's
        if not directory.params.exists() or _content(directory.params_text) != _content(text):
            store.write_text(directory.params, text)
        _publish_whole(directory)
        remove_runs(directory.partial)
        directory.runs.mkdir(exist_ok=True)
    except OSError as error:
        where = unwritable(directory, error)
        raise ParamsError(f"{where}: cannot be written: {error.strerror}") from None


def unwritable(directory: SweepDir, error: OSError) -> Path:
    """What an error of writing there is about: what is in the way, else the directory."""
    return Path(error.filename) if error.errno in IN_THE_WAY else directory.root


def check(directory: SweepDir, text: str, discard: bool = False) -> None:
    """Refuses a directory in which the runs of a params file cannot be executed.

    Raises:
        ParamsError: if the directory holds another sweep or something else.
    """
    root, other = directory.root, difference(directory, text)
    if other and not discard:
        advice = (
            "give another directory with --out; `mptexp run --fresh` without --only discards them"
        )
        if other.startswith("repeats"):  # nothing else: what is there need not be discarded
            advice = (
                "whoever changes them once results are known chooses by these; give another "
                "directory with --out"
            )
        raise ParamsError(
            f"{root}: holds the results of another params file ({directory.params}): {other}; "
            f"{advice}"
        )
    if other and not directory.is_marked:
        raise ParamsError(
            f"{root}: has no {directory.marker.name} of mptexp's, so --fresh deletes nothing "
            "in it; choose another --out, or empty it yourself"
        )
    if not (other or directory.is_marked or _is_empty(root) or _holds_records(directory)):
        raise ParamsError(f"{root}: is neither empty nor a sweep's directory; choose another --out")


def _is_empty(root: Path) -> bool:
    """Whether nothing is there but what a call left that was ended before it had begun."""
    try:
        return not root.exists() or {path.name for path in root.iterdir()} <= {"sweep.new"}
    except OSError as error:
        raise _refusal(root, error) from None


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
        if whole:  # an earlier attempt gives way to it, as it would have a moment later
            directory.publish(run_id)


def discard(planned: Sequence[Planned], directory: SweepDir, everywhere: bool = False) -> None:
    """Removes the results of this machine's runs, or of all, so that they are pending again.

    Raises:
        ParamsError: where one cannot be removed.
    """
    for one in planned:
        if everywhere or is_here(one.run.gpu_model):
            for folder in directory.of_run(one.run_id):
                shutil.rmtree(folder, ignore_errors=True)
                if folder.exists():
                    raise ParamsError(
                        f"{folder}: cannot be removed, as --fresh asks; allowed: a directory that "
                        "this user may write to"
                    )


def difference(directory: SweepDir, text: str) -> str:
    """What a params file asks for otherwise than that of a directory, in words; empty if nothing.

    What changes no run may differ: comments, the order, time limits, what the report says.
    """
    if not directory.params.exists() or _content(directory.params_text) == _content(text):
        return ""
    try:
        there = _asked(directory.params_text)
    except ParamsError:  # of an older version, or not mptexp's
        return "this version cannot read it"
    here = _asked(text)
    points, now = there.pop("points"), here.pop("points")
    if points != now:
        return f"{len(points & now)} of its {len(points)} points are among the {len(now)} asked for"
    changed = [name for name in here if there[name] != here[name]]
    return ", ".join(f"{name} {there[name]} there, {here[name]} asked for" for name in changed)


def _asked(text: str) -> dict[str, Any]:
    """What decides the ids of a params file's runs, the repeats last.

    Raises:
        ParamsError: where it cannot be read.
    """
    sweep, _ = params.parse(text, "params.yaml")
    points = (Run(**point).resolved().published() for point in sweep.points())
    return {
        "points": frozenset(point.model_dump_json() for point in points),
        "notebook": dataset_paths.published_notebook(sweep.notebook),
        "max_batch": sweep.max_batch,
        "repeats": sweep.repeats,
    }


def _content(text: str) -> Any:
    """A params file in plain Python; data may have been moved, or lie elsewhere."""
    return dataset_paths.everywhere(yaml_documents.content(text))
