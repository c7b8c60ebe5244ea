"""Reads the traces that runs kept where xprof was missing, and completes their records."""

from pathlib import Path

from mptexp.errors import ParamsError
from mptexp.execution import directory
from mptexp.host import imports
from mptexp.host.project import install
from mptexp.records import store
from mptexp.records.store import RecordError
from mptexp.records.sweep_dir import SweepDir, leads_out
from mptexp.traces import xplane


def read(place: SweepDir) -> tuple[int, list[str]]:
    """Reads every trace that lies beside a record of a sweep, also one that was read before.

    Returns:
        How many were read, and a sentence for each that could not be.

    Raises:
        ParamsError: where there is no trace, xprof is not installed, or a sweep is at work there.
        OSError: where a record cannot be written.
    """
    parts = (place, place.diagnosis)
    files = [file for part in parts for file in sorted(part.runs.glob(f"*/{xplane.FILE}"))]
    if not files:
        if not place.root.exists():
            raise store.refusal(place, [])
        raise ParamsError(
            f"{place.root}: holds no trace; runs with profile true keep theirs where xprof is not "
            "installed, else it is read at once"
        )
    try:
        with imports.quiet():
            import xprof.convert  # noqa: F401
    except ImportError as error:
        why = f"xprof, which reads traces, is not installed: {error}; {install('profile')}"
        raise ParamsError(why) from None
    with directory.locked(place):
        faults = [f"{file}: {fault}" for file in files if (fault := _complete(file))]
    return len(files) - len(faults), faults


def _complete(file: Path) -> str:
    """Puts what a trace says into the record beside it; why not, where it cannot."""
    if leads_out(file):
        return "a link that leads out of the sweep's directory"
    path = file.with_name("record.json")
    try:
        record = store.read_record(path)
    except RecordError as error:
        return str(error)
    kept = record.get("profile") or {}
    if "trace" not in kept or not record.get("timing", {}).get("step_s"):
        return "its record does not say how to read it"
    try:
        profile = xplane.read(file, **kept["trace"]).profile(record["timing"]["step_s"])
    except Exception as error:  # the file may come from anywhere, and xprof fails in its own ways
        return f"is not a trace that can be read: {error}"
    store.amend_record(path, record, profile=kept | profile)
    return ""
