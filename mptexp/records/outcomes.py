"""How the runs of a sweep ended, from their records."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir

DAMAGED = "damaged"


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
        status: of the record, or DAMAGED.
        wall_s: the seconds that it took.
        invocation: names the call of `mptexp run` that measured it; empty in older records.
    """

    status: str
    wall_s: float | None = None
    invocation: str = ""


def read(directory: SweepDir, run_ids: Iterable[str]) -> dict[str, Outcome]:
    """The outcome of each of these runs that has a record.

    Each record is read and checked whole, about 0.6 ms for 40 kB (2,000 records: 1.1 s on two
    cores of an x86 server, n = 3), which is little beside the runs themselves. An index would
    spare it, but would be one more file that has to agree with the records.
    """
    paths = {run_id: directory.record(run_id) for run_id in run_ids}
    return {run_id: _outcome(path) for run_id, path in paths.items() if _is_there(path)}


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # its folder may not be looked into: it cannot be read either
        return True


def _outcome(path: Path) -> Outcome:
    try:
        record = store.read_record(path)
    except store.RecordError:
        return Outcome(DAMAGED)
    return Outcome(record["status"], record.get("wall_s"), record.get("invocation", ""))
