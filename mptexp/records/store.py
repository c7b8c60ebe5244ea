"""Writing and reading records: atomically, in publishable form, and checked as data."""

import errno
import glob
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from mptexp.errors import ParamsError
from mptexp.host import files
from mptexp.records import consistency, schema, settings_agree, well_formed
from mptexp.records.privacy import scrub
from mptexp.records.sweep_dir import SweepDir, leads_out
from mptexp.spec import dataset_paths
from mptexp.spec.run import defaults, run_id

if TYPE_CHECKING:
    import pandas as pd

# Those of East Asian width too. Apostrophes before it are ours, or would be taken for ours.
FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
ENDLESS = re.compile(rb"[\[,:]\s*-?\d{309}")  # 1.8e308 is the largest float
ABANDONED_S = 600  # no file takes so long to be written
CHANGED = "changed since it was written"


class RecordError(ValueError):
    """A record that cannot be read: the message names the file and the fault."""


def write_text(path: Path, text: str) -> None:
    """Writes beside, then renames: the file is the old one or the new one, never half of either."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_begun(path, time.time() - ABANDONED_S)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def remove_begun(path: Path, before: float = math.inf) -> None:
    """Removes what processes left that were killed while they wrote a file.

    Args:
        before: seconds since the epoch; what was written later may still be at work.
    """
    for begun in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with suppress(OSError):  # another process has removed it
            if begun.suffix[1:].isdecimal() and begun.lstat().st_mtime < before:
                begun.unlink()


def write_csv(path: Path, table: "pd.DataFrame") -> None:
    """Writes a table as CSV none of whose texts is a formula in a spreadsheet.

    Numbers stay as they are. A text that begins as a formula gets an apostrophe before it, see
    OWASP, CSV Injection: records are anybody's, and so are the names and errors in them.
    """
    harmless = {name: _harmless(column) for name, column in table.items()}
    # With "\r\n" at the ends of lines a text that holds either is quoted; else "\r" would begin
    # another row.
    text = table.assign(**harmless).to_csv(index=False, lineterminator="\r\n")
    write_text(path, text.replace("\r\n", "\n"))


def _harmless(column: "pd.Series") -> "pd.Series":
    """A column with an apostrophe before each text that begins as a formula."""
    formulas = [isinstance(value, str) and bool(FORMULA.match(value)) for value in column]
    if not any(formulas):
        return column
    column = column.astype(object)
    return column.where([not formula for formula in formulas], "'" + column.astype(str))


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a record atomically, without host, user and home names, NaN as null.

    Raises:
        OSError: where it cannot be written, or is larger than what is read; nothing is replaced.
    """
    _write(path, scrub(_plain(record)))


def amend_record(path: Path, record: Mapping[str, Any], **changes: Any) -> None:
    """Writes a record that was read, perhaps another machine's, with some keys anew.

    The rest stays as it was: this machine's names stand in it by chance, if at all. Only a number
    beyond floats, which JSON can hold and Python cannot write again, becomes null.
    """
    _write(path, {**_plain(record), **scrub(_plain(changes))})


def _write(path: Path, record: Mapping[str, Any]) -> None:
    signed = {**record, "digest": digest(record)}
    text = json.dumps(signed, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    if len(text.encode()) > files.MOST_BYTES:
        size = f"{files.MOST_BYTES / 2**20:g} MiB"
        raise OSError(errno.EFBIG, f"Is larger than {size}, the most that is read", str(path))
    write_text(path, text)


# What a record is given when it is written or read.
ADDED = ("digest", "changed", "measured_at")


def digest(record: Mapping[str, Any]) -> str:
    """What a record was when it was written, as 64 hexadecimal digits.

    It shows a slip of the hand or a broken disk; whoever wants to deceive can write it anew.
    """
    content = {name: value for name, value in record.items() if name not in ADDED}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_record(path: Path) -> dict[str, Any]:
    """The record in a file, which may come from anybody: it is read as data and checked.

    Its `changed` is true where it is another than the one that was written.

    Raises:
        RecordError: if the file is not a record of this schema; one sentence.
    """
    try:
        if leads_out(path):
            raise ValueError("a link that leads out of the sweep's directory")
        text = files.content(path)
        # Four times as fast as json, and stricter: of text, of depth, of numbers.
        record = from_json(text, allow_inf_nan=False)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RecordError(f"{path}: not a readable record: {why}") from None
    # A run is made in one folder and published in another of the same name.
    folder = path.parent.name if path.parent.parent.name in ("runs", "partial") else ""
    fault = schema.fault(record) or _endless(text) or well_formed.fault(record)
    if not fault and folder not in ("", record["run_id"]):
        fault = f"run_id {record['run_id']} in a folder of another name"
    fault = fault or _other_parameters(record)
    if fault:
        raise RecordError(f"{path}: {fault}")
    # Another program writes none, and no identity either.
    signed = record.pop("digest", None if record.get("identity") else digest(record))
    changed = {"changed": True} if signed != digest(record) else {}
    # As in the run's id, a parameter that is not named is at its default.
    record["parameters"] = defaults() | record["parameters"]
    fault = settings_agree.fault(record) or consistency.fault(record)
    if fault:
        raise RecordError(f"{path}: {fault}")
    return record | changed


def _endless(text: bytes) -> str:
    return "it holds an integer that is larger than any float" * bool(ENDLESS.search(text))


def _other_parameters(record: Mapping[str, Any]) -> str:
    """What is wrong where the parameters of a record are not those of its run id.

    A later version may have parameters whose defaults are not known here: they prove nothing. A
    record of another program may name no notebook, which is a part of the id.
    """
    parameters, notebook = record["parameters"], record.get("notebook")
    if not isinstance(notebook, str) or not set(parameters) <= set(defaults()):
        return ""
    # Of older records, a dataset's whole path is part of the id.
    short = {
        **parameters,
        "dataset": dataset_paths.published(str(parameters.get("dataset", "digits"))),
    }
    if record["run_id"] in (run_id(short, notebook), run_id(parameters, notebook)):
        return ""
    return f"{CHANGED}: its parameters are not those of run {record['run_id']}"


def refusal(directory: SweepDir, damaged: Sequence[str]) -> ParamsError:
    """Why nothing can be said of a directory in which no record can be read."""
    there = "holds no record of a run" if directory.root.exists() else "there is no such directory"
    why = f"{there}; give the directory of a sweep, such as reports/quickstart"
    if damaged:
        why = f"none of its records can be read: {damaged[0]}"
    return ParamsError(f"{directory.root}: {why}")


def changed(records: Iterable[Mapping[str, Any]], directory: SweepDir) -> list[str]:
    """A sentence for each of a sweep's records that is another than the one that was written."""
    paths = [directory.record(record["run_id"]) for record in records if record.get("changed")]
    return [f"{path}: {CHANGED}" for path in paths]


def read_records(
    directory: SweepDir, without: Sequence[str] = ()
) -> tuple[list[dict[str, Any]], list[str]]:
    """All readable records of a sweep, ordered by run id, and a sentence for each damaged one.

    Each has its `measured_at`, see `consistency`.

    Args:
        without: what to leave out of the records.
    """
    damaged: list[str] = []
    records = [_kept(record, without) for _, record in readable(directory.runs, damaged)]
    return records, damaged


class Superseded(NamedTuple):
    """The runs of a sweep that were measured again.

    Attributes:
        records: those that can be read.
        damaged: a sentence for each that cannot.
        changed: a sentence for each that is another than the one that was written.
    """

    records: list[dict[str, Any]]
    damaged: list[str]
    changed: list[str]


def superseded_records(directory: SweepDir, without: Sequence[str] = ()) -> Superseded:
    """The records of the runs that were measured again; without as in `read_records`.

    What is claimed reaches over them, so one that is missing from here must be named. The folder of
    each is named by its content, by which one that was made anew is known as well.
    """
    folder = directory.superseded
    if folder.is_symlink():
        return Superseded([], [f"{folder}: a link, which is not followed"], [])
    records, damaged, others = [], list[str](), []
    for path, record in readable(folder, damaged):
        if path.parent != directory.superseded_as(record["run_id"], path.read_bytes()):
            record["changed"] = True
        others += [f"{path}: {CHANGED}"] * ("changed" in record)
        records.append(_kept(record, without))
    return Superseded(records, damaged, others)


def readable(folder: Path, damaged: list[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each record of a folder of runs that can be read, with its file, in order of their ids.

    Args:
        folder: it holds a folder for each run.
        damaged: gets a sentence for each other one.
    """
    for path in record_files(folder):
        try:
            record = read_record(path)
        except RecordError as error:
            damaged.append(str(error))
            continue
        yield path, record


def record_files(folder: Path) -> list[Path]:
    """The record's file of each run in a folder of runs, in order of their ids.

    What may not be listed stands in the place of what it holds, so that whoever reads it says so:
    a glob takes it for empty.
    """
    try:
        runs = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        return [folder]
    return [path for run in runs if _may_be_there(path := run / "record.json")]


def _may_be_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # such as a folder that may not be searched
        return True
    return True


def _kept(record: Mapping[str, Any], without: Sequence[str]) -> dict[str, Any]:
    """A record without some of its keys, and when it was measured."""
    kept = {name: value for name, value in record.items() if name not in without}
    return kept | {"measured_at": consistency.measured_at(record)}


def _plain(value: Any) -> Any:
    """A value as JSON in UTF-8 can hold it: neither NaN nor half a character, see PEP 383."""
    if isinstance(value, Mapping):
        return {_plain(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
