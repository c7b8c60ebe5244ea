"""How the runs of a sweep ended, without reading every whole record at every call.

The records alone are the truth. What many of them said is kept beside them with each file's size
and time of change, as git keeps it in its index: a record that was changed, damaged or removed is
noticed, and an index that is lost or cannot be read costs time alone.
"""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from mptexp.records import store
from mptexp.records.store import SweepDir

FEW = 200  # so many records are read sooner than an index is worth a file
DAMAGED = "damaged"


class Outcome(NamedTuple):
    """How a run ended: its status, or that its record is damaged; and the seconds it took.

    `size` and `changed_ns` are those of the record's file.
    """

    size: int
    changed_ns: int
    status: Literal[(*store.STATUSES, DAMAGED)]
    wall_s: float | None


INDEX = TypeAdapter(dict[str, Outcome])


def read(directory: SweepDir, run_ids: Iterable[str]) -> dict[str, Outcome]:
    """The outcome of each of these runs that has a record."""
    known = _kept(directory)
    found, news = {}, 0
    for run_id in run_ids:
        path = directory.record(run_id)
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        # The time of change, unlike that of modification, cannot be set back.
        stamp = (stat.st_size, stat.st_ctime_ns)
        kept = known.get(run_id)
        if kept is None or kept[:2] != stamp:
            kept = Outcome(*stamp, *_told(path))
            news += 1
        found[run_id] = kept
    if news > FEW:
        _keep(directory, found)
    return found


def _told(path: Path) -> tuple[str, float | None]:
    try:
        record = store.read_record(path)
    except store.RecordError:
        return DAMAGED, None
    return record["status"], record.get("wall_s")


def _kept(directory: SweepDir) -> dict[str, Outcome]:
    try:
        return INDEX.validate_json(directory.outcomes.read_bytes())
    except (OSError, ValidationError):
        return {}


def _keep(directory: SweepDir, found: dict[str, Outcome]) -> None:
    """Writes the index, without damaged records: what could not be read may be readable later."""
    whole = {run_id: told for run_id, told in found.items() if told.status != DAMAGED}
    with contextlib.suppress(OSError):  # only speed is lost
        store.write_text(directory.outcomes, json.dumps(whole))
