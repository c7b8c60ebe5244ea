"""The directories of one params file from several machines, copied together into one."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptexp.execution import sweep
from mptexp.records import schema, store
from mptexp.records.store import RecordError
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params
from mptexp.spec.errors import ParamsError
from mptexp.spec.run import defaults
from mptexp.traces import xplane

# What is taken of a run. The page beside a notebook is made again here, from the notebook.
FILES = ("record.json", "notebook.ipynb", xplane.FILE)


@dataclass(frozen=True)
class Found:
    """A run as one of the directories holds it.

    Attributes:
        place: the directory that was named.
        part: the sweep in it that holds the run: itself, or its search or diagnosis.
        digests: of those of FILES that it has; of the record without what is read from the trace.
        ledger: whether its record has a ledger.
    """

    place: SweepDir
    part: SweepDir
    run_id: str
    status: str
    parameters: dict[str, Any]
    digests: dict[str, str]
    ledger: bool


@dataclass(frozen=True)
class Merged:
    """What a merge did.

    Attributes:
        copied: directory as it was named -> how many runs were taken from it.
        kept: how many runs the result had already.
        damaged: a sentence for each record that could not be read, and so was not merged.
    """

    copied: dict[str, int]
    kept: int
    damaged: list[str]


def merge(sources: Sequence[Path], target: Path, prefer: Path | None = None) -> Merged:
    """Copies the runs of several directories of one params file into one.

    A run that several hold is taken once; one that came to an end goes before one that runs again.

    Args:
        sources: sweeps' directories.
        target: one of them, a new or an empty directory, or the result of an earlier merge.
        prefer: the one of them that decides where two hold different records of a run.

    Raises:
        ParamsError: where a directory holds no sweep or another one, or where records conflict;
            nothing is written then.
        OSError: where the result cannot be written; what was copied so far is whole.
    """
    out = SweepDir(target)
    places = _places(sources, out)
    if prefer is not None and not any(_same_place(prefer, place) for place in places):
        raise ParamsError(f"--prefer {prefer}: is none of the directories to merge")
    with ExitStack() as held:
        if out.root.exists():  # a sweep may be at work in it
            held.enter_context(sweep.locked(out))
        found, damaged = _read(places)
        chosen = _decide(found, prefer)
        if not out.root.exists():
            held.enter_context(sweep.locked(out))
        first = out if out.params.exists() else places[0]
        sweep.prepare(out, first.params.read_text(encoding="utf-8"), fresh=False)
        wanted = [one for one in chosen if one.place != out]
        for one in wanted:
            _copy(one, _part_of(out, one))
    copied = [str(one.place.root) for one in wanted]
    counts = {name: copied.count(name) for name in dict.fromkeys(copied)}
    return Merged(counts, len(chosen) - len(wanted), damaged)


def _places(sources: Sequence[Path], out: SweepDir) -> list[SweepDir]:
    """The directories, each once, that of the result first if it holds a sweep.

    Raises:
        ParamsError: where one holds no sweep, or another than the first.
    """
    ours = [out] if out.params.exists() else []
    others = {path.resolve(): SweepDir(path) for path in reversed(sources)}
    others.pop(out.root.resolve(), None)
    places = [*ours, *reversed(others.values())] or [out]
    for place in places:
        if not place.params.is_file():
            raise ParamsError(f"{place.root}: holds no params.yaml; give a sweep's directory")
    params.read(places[0].params)
    text = places[0].params.read_text(encoding="utf-8")
    for place in places[1:]:
        if not sweep.same(place.params, text):
            raise ParamsError(
                f"{place.params}: asks for other runs than {places[0].params}; directories of one "
                "params file can be merged, comments and what a report says may differ"
            )
    return places


def _same_place(path: Path, place: SweepDir) -> bool:
    return path.resolve() == place.root.resolve()


def _parts(place: SweepDir) -> tuple[SweepDir, ...]:
    return (place, place.search, place.diagnosis)


def _part_of(out: SweepDir, one: Found) -> SweepDir:
    return _parts(out)[_parts(one.place).index(one.part)]


def _read(places: Sequence[SweepDir]) -> tuple[list[list[Found]], list[str]]:
    """Every run with all that is found of it, and a sentence for each damaged record."""
    found: dict[tuple[int, str], list[Found]] = {}
    damaged = []
    for place in places:
        for number, part in enumerate(_parts(place)):
            for path in sorted(part.runs.glob("*/record.json")):
                try:
                    record = store.read_record(path)
                except RecordError as error:
                    damaged.append(str(error))
                    continue
                # Not the whole record: ten thousand of them take gigabytes.
                run_id, *told = (record[name] for name in ("run_id", "status", "parameters"))
                ledger = bool((record.get("profile") or {}).get("rows"))
                one = Found(place, part, run_id, *told, _digests(path.parent, record), ledger)
                found.setdefault((number, run_id), []).append(one)
    return list(found.values()), damaged


def _digests(folder: Path, record: dict[str, Any]) -> dict[str, str]:
    """What tells results apart: a trace that one machine has read is the other's as well."""
    known = (record.get("profile") or {}).get("trace")
    whole = json.dumps(record | {"profile": known} if known else record, sort_keys=True)
    # Where a record's link leads was looked at when it was read; the others need not be links.
    paths = [path for path in map(folder.joinpath, FILES[1:]) if path.is_file()]
    contents = {path.name: path.read_bytes() for path in paths if not path.is_symlink()}
    contents = {FILES[0]: whole.encode(), **contents}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def _decide(found: Sequence[list[Found]], prefer: Path | None) -> list[Found]:
    """Which of the places to take each run from.

    Raises:
        ParamsError: naming every run of which different records were found, none of them preferred.
    """
    chosen, conflicts = [], []
    for runs in found:
        left = [one for one in runs if one.status in schema.FINAL] or runs
        if prefer is not None and not _alike(left):
            left = [one for one in left if _same_place(prefer, one.place)] or left
        if _alike(left):
            chosen.append(max(left, key=lambda one: (one.ledger, len(one.digests))))
        else:
            conflicts.append(_conflict(left))
    if conflicts:
        advice = "nothing was merged; --prefer DIR says which of the directories decides"
        raise ParamsError("\n".join([*conflicts, advice]))
    return chosen


def _alike(runs: Sequence[Found]) -> bool:
    """Whether all hold the same files, but for those that some lack."""
    return all(len({r.digests[n] for r in runs if n in r.digests}) <= 1 for n in FILES)


def _conflict(runs: Sequence[Found]) -> str:
    usual = defaults()
    given = runs[0].parameters.items()
    named = [f"{n} {v}" for n, v in given if n != "seed" and v != usual.get(n)]
    places = ", ".join(f"{one.part.root} ({one.status})" for one in runs)
    return f"run {runs[0].run_id} ({', '.join(named)}) differs between {places}"


def _copy(one: Found, out: SweepDir) -> None:
    """Copies a run's files beside, then moves them to their place together."""
    made = out.partial / one.run_id
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for name in one.digests:
        shutil.copyfile(one.part.runs / one.run_id / name, made / name)
    out.publish(one.run_id)


def missing(target: Path) -> Iterator[tuple[str, int]]:
    """Devices whose runs have no result yet in a merged directory, and how many each."""
    out = SweepDir(target)
    found, _ = params.read(out.params)
    left = [p.run.gpu_model for p in sweep.plan(found, out) if p.state not in schema.FINAL]
    for name in sorted(set(left)):
        yield name, left.count(name)
