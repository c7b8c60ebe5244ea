"""Merges the directories that several machines made of one params file into one."""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptexp.errors import ParamsError
from mptexp.execution import directory, plan
from mptexp.host import files
from mptexp.host.devices import local_device
from mptexp.records import schema, store, tables
from mptexp.records.store import RecordError
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params
from mptexp.spec.grid import REPORT_KEYS
from mptexp.spec.run import defaults
from mptexp.traces import xplane

# The files of a run that are copied. The page beside a notebook is made again from the notebook.
FILES = ("record.json", "notebook.ipynb", xplane.FILE)


@dataclass(frozen=True)
class Copy:
    """A run as one of the directories holds it.

    Attributes:
        place: the directory that was given.
        number: of the part of it that holds the run: itself, or its search or diagnosis.
        device: on which it was measured, a CPU by its name and cores; empty where unknown.
        digests: of those of FILES that it has; of the record without what is read from the trace.
        traced: whether the record holds what was read from the trace.
        changed: whether it is another record than the one that was written.
        ended_at: when the run ended; empty where that is unknown.
    """

    place: SweepDir
    number: int
    run_id: str
    status: str
    parameters: dict[str, Any]
    device: str
    digests: dict[str, str]
    traced: bool
    changed: bool
    ended_at: str

    @property
    def part(self) -> SweepDir:
        return self.place.parts[self.number]

    @property
    def record(self) -> Path:
        return self.part.record(self.run_id)


@dataclass(frozen=True)
class Merged:
    """What a merge did.

    Attributes:
        copied: directory as it was given -> how many runs were taken from it.
        present: how many runs the result had already.
        faults: a sentence for each record that could not be read, and so was not merged, and for
            each that was changed since it was written, whether or not it is the only one of its
            run, was replaced, or is that of a run which was measured again.
        missing: device -> how many of its runs have no final result yet.
        unused: how many other results of the same runs were kept as superseded.
    """

    copied: dict[str, int]
    present: int
    faults: list[str]
    missing: dict[str, int]
    unused: int = 0


def merge(sources: Sequence[Path], target: Path, prefer: Path | None = None) -> Merged:
    """Copies the runs of several directories of one params file into one.

    A run that several hold is taken once; one that came to an end goes before one that runs again,
    and a record that is as it was written before one that was changed. Other results of the run are
    kept as superseded, and counted: whoever takes the better of two measurements has made two.

    Args:
        sources: sweeps' directories.
        target: one of them, a new or an empty directory, or the result of an earlier merge.
        prefer: the one of them that decides where two hold different records of a run, and whose
            params file is taken where theirs change the report.

    Raises:
        ParamsError: if a directory holds no sweep or another one, or if records or what the report
            says conflict; nothing is written then.
        OSError: if the result cannot be written; the runs copied so far are complete.
    """
    out = SweepDir(target)
    places = _places(sources, out)
    if prefer is not None and not any(_same_place(prefer, place) for place in places):
        raise ParamsError(f"--prefer {prefer}: is none of the directories to merge")
    text = _params_text(places, prefer)
    with ExitStack() as locks:
        if out.root.exists():  # a sweep may be at work in it
            locks.enter_context(directory.locked(out))
        copies, faults = _read(places)
        chosen = _decide(copies, prefer)
        others = _others(copies, chosen)
        if not out.root.exists():  # nothing is written before all is decided
            locks.enter_context(directory.locked(out))
        directory.prepare(out, text)
        if out.params_text != text:  # another question, which is a comment
            store.write_text(out.params, text)
        for one in others:
            kept = out.parts[one.number].superseded_as(one.run_id, one.record.read_bytes())
            _copy_files(one.record.parent, kept)
        known = {(out.parts[one.number], one.digests[FILES[0]]) for one in (*chosen, *others)}
        for place in places:
            _keep_superseded(place, out, known)
        wanted = [pair for pair in zip(chosen, copies, strict=True) if pair[0].place != out]
        for one, alike in wanted:
            faults += _copy(one, alike, out.parts[one.number])
        for ours, *theirs in zip(out.parts, *(place.parts for place in places), strict=True):
            ours.add_measured(theirs)
    copied = Counter(str(one.place.root) for one, _ in wanted)
    faults += [f"{one.record}: {store.CHANGED}; merged as it is" for one in chosen if one.changed]
    for taken, alike in zip(chosen, copies, strict=True):
        faults += [
            f"{one.record}: {store.CHANGED}; left out, for {taken.record} is not"
            for one in alike
            if one.changed and not taken.changed and one.place != out  # of which `_copy` tells
        ]
    present = len(chosen) - len(wanted)
    devices = {one.parameters["gpu_model"] for one in chosen}
    return Merged(dict(copied), present, faults, _missing(out, devices), len(others))


def _missing(out: SweepDir, there: Collection[str]) -> dict[str, int]:
    """How many runs of each device have no final result yet.

    `local` is each device `there` that the params file does not name: those of the machines that
    measured, not of the one that merges.
    """
    sweep, _ = params.read(out.params)
    asked = sweep.devices()
    local = set(there) - asked or {local_device()}
    runs = [
        run.model_copy(update={"gpu_model": device})
        for run in (planned.run for planned in plan.runs(sweep, out))
        for device in (local if run.gpu_model not in asked else [run.gpu_model])
    ]
    left = Counter(
        p.run.gpu_model for p in plan.states(runs, sweep, out) if p.state not in schema.FINAL
    )
    return dict(sorted(left.items()))


def _places(sources: Sequence[Path], out: SweepDir) -> list[SweepDir]:
    """The directories, each once, that of the result first if it holds a sweep.

    Raises:
        ParamsError: if one holds no sweep, or another than the first, or holds the result.
    """
    for path in sources:
        if files.real(path) in files.real(out.root).parents:
            raise ParamsError(f"{out.root}: lies in {path}, which is merged; give another folder")
    ours = [out] if out.params.exists() else []
    others = {files.real(path): SweepDir(path) for path in reversed(sources)}
    others.pop(files.real(out.root), None)
    places = [*ours, *reversed(others.values())] or [out]
    for place in places:
        if not place.params.is_file():
            raise ParamsError(f"{place.root}: holds no params.yaml; give a sweep's directory")
    params.read(places[0].params)
    text = places[0].params_text
    for place in places[1:]:
        if other := directory.difference(place, text):
            raise ParamsError(
                f"{place.params}: asks for other runs than {places[0].params}: {other} there; "
                "directories can be merged whose params files ask for the same runs"
            )
    return places


def _params_text(places: Sequence[SweepDir], prefer: Path | None) -> str:
    """The params file of the result.

    Raises:
        ParamsError: naming what files differ in that change the report, none of them preferred.
    """
    known = [_reported(place.params_text) for place in places]
    differing = [name for name in known[0] if len({options[name] for options in known}) > 1]
    if not differing:
        return places[0].params_text
    if prefer is not None:
        return next(place.params_text for place in places if _same_place(prefer, place))
    said = [_in_each(places, name, [options[name] for options in known]) for name in differing]
    advice = "nothing was merged; --prefer DIR says whose params file is taken"
    raise ParamsError("\n".join([*said, advice]))


def _reported(text: str) -> dict[str, Any]:
    """What a params file says of its report alone: its question and the options."""
    sweep, _ = params.parse(text, "params.yaml")
    options = {name: getattr(sweep, name) for name in REPORT_KEYS}
    return {"question": params.header(text).get("question"), **options}


def _in_each(places: Sequence[SweepDir], name: str, values: Sequence[Any]) -> str:
    """`price_per_hour differs: 2 in a/params.yaml, none in b/params.yaml`."""
    said = [
        f"{'none' if value is None else value} in {place.params}"
        for place, value in zip(places, values, strict=True)
    ]
    return f"{name} differs: {', '.join(said)}"


def _same_place(path: Path, place: SweepDir) -> bool:
    return files.real(path) == files.real(place.root)


def _read(places: Sequence[SweepDir]) -> tuple[list[list[Copy]], list[str]]:
    """The copies of every run, and a sentence for each damaged record."""
    copies: dict[tuple[int, str], list[Copy]] = {}
    faults = []
    for place in places:
        for number, part in enumerate(place.parts):
            damaged: list[str] = []
            for path, record in store.readable(part.runs, damaged):
                copies.setdefault((number, record["run_id"]), []).append(
                    _as_copy(place, number, path.parent, record)
                )
            faults += [f"{text}; not merged" for text in damaged]
            earlier = store.superseded_records(part)
            faults += [f"{text}; kept as it is" for text in earlier.damaged + earlier.changed]
    return list(copies.values()), faults


def _as_copy(place: SweepDir, number: int, folder: Path, record: dict[str, Any]) -> Copy:
    """What decides about a record, without the rest: ten thousand records take gigabytes."""
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in _files(folder)}
    return Copy(
        place,
        number,
        record["run_id"],
        record["status"],
        record["parameters"],
        tables.device(record),
        digests | {FILES[0]: _digest(record)},
        traced=bool((record.get("profile") or {}).get("rows")),
        changed="changed" in record,
        ended_at=record.get("ended_at") or "",
    )


def _files(folder: Path) -> list[Path]:
    """Those of FILES that a run has, without links, which may lead out of the directory."""
    paths = [folder / name for name in FILES]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _digest(record: dict[str, Any]) -> str:
    """The digest of a result; whether its trace was read does not make it another one."""
    unread = (record.get("profile") or {}).get("trace")
    whole = json.dumps(record | {"profile": unread} if unread else record, sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def _decide(runs: Sequence[list[Copy]], prefer: Path | None) -> list[Copy]:
    """Which copy of each run to take.

    Raises:
        ParamsError: naming every run whose copies differ, none of them preferred; or that was
            measured on two devices, of which neither result takes the place of the other.
    """
    chosen, conflicts, apart = [], [], []
    for copies in runs:
        left = [one for one in copies if one.status in schema.FINAL]
        left = [one for one in left if not one.changed] or left
        if not left:  # attempts, of which none is a result: the run is executed again
            chosen.append(max(copies, key=lambda one: (not one.changed, one.ended_at)))
            continue
        if len({one.device for one in left} - {""}) > 1:
            places = ", ".join(f"{one.device or 'unknown'} in {one.part.root}" for one in left)
            apart.append(f"{_named(left[0])} was measured on several devices: {places}")
            continue
        if prefer is not None and not _alike(left):
            left = [one for one in left if _same_place(prefer, one.place)] or left
        if _alike(left):
            chosen.append(max(left, key=lambda one: (one.traced, len(one.digests))))
        else:
            places = ", ".join(f"{one.part.root} ({one.status})" for one in left)
            conflicts.append(f"{_named(left[0])} differs between {places}")
    if apart:
        advice = (
            "nothing was merged; a directory holds one result of each run: leave the folders as "
            "they are, and mptexp compare sets them side by side"
        )
        raise ParamsError("\n".join([*apart, advice]))
    if conflicts:
        advice = "nothing was merged; --prefer DIR says which of the directories decides"
        raise ParamsError("\n".join([*conflicts, advice]))
    return chosen


def _others(runs: Sequence[list[Copy]], chosen: Sequence[Copy]) -> list[Copy]:
    """The copies that hold another result of a run than the one that was chosen, each once."""
    others = {}
    for copies, taken in zip(runs, chosen, strict=True):
        for one in copies:
            result = one.digests[FILES[0]]
            if one.status in schema.FINAL and not one.changed and result != taken.digests[FILES[0]]:
                others[one.run_id, result] = one
    return list(others.values())


def _alike(copies: Sequence[Copy]) -> bool:
    """Whether all have the same files, but for those that some lack."""
    return all(len({c.digests[n] for c in copies if n in c.digests}) <= 1 for n in FILES)


def _named(one: Copy) -> str:
    usual = defaults()
    given = one.parameters.items()
    named = [f"{n} {v}" for n, v in given if n != "seed" and v != usual.get(n)]
    return f"run {one.run_id} ({', '.join(named)})"


def _keep_superseded(place: SweepDir, out: SweepDir, known: Collection[tuple]) -> None:
    """Copies the runs that were measured again, which a page counts, to those of the result.

    Args:
        known: results that it has already, each as its part and the digest of its record: what one
            directory measured again may be what another still holds, and is chosen.
    """
    for part, ours in zip(place.parts, out.parts, strict=True):
        for path in [] if part.superseded.is_symlink() else part.superseded.glob("*/record.json"):
            folder = path.parent
            if not folder.is_symlink() and (ours, _digest_of(path)) not in known:
                _copy_files(folder, ours.superseded / folder.name)


def _digest_of(path: Path) -> str:
    """The digest of the record in a file; empty where it cannot be read."""
    try:
        return _digest(store.read_record(path))
    except RecordError:
        return ""


def _copy_files(run: Path, kept: Path) -> None:
    """Copies a run's files beside their place, then moves them there together.

    What is there stays where it is whole. A merge of an earlier version that a full disk or a kill
    ended may have left a part of it.
    """
    named = _files(run)
    if all(_same_size(path, kept / path.name) for path in named):
        return
    folder = SweepDir(kept.parent.parent).partial / "superseded" / kept.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in named:
        shutil.copyfile(path, folder / path.name)
    kept.parent.mkdir(exist_ok=True)
    shutil.rmtree(kept, ignore_errors=True)
    folder.rename(kept)
    shutil.rmtree(folder.parent, ignore_errors=True)


def _same_size(path: Path, copied: Path) -> bool:
    """Whether a file is there in its whole length: its folder's name tells its content."""
    try:
        return path.stat().st_size <= copied.stat().st_size
    except OSError:
        return False


def _copy(one: Copy, copies: Sequence[Copy], out: SweepDir) -> list[str]:
    """Copies a run's files beside their place, then moves them there together.

    A notebook that the copy lacks is taken from another copy of the same result.

    Returns:
        A sentence where that takes the place of what no other directory holds.
    """
    folder = out.partial / one.run_id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    alike = [c for c in copies if c.digests[FILES[0]] == one.digests[FILES[0]]]
    for name, source in {n: c for c in (*alike, one) for n in c.digests}.items():
        shutil.copyfile(source.record.with_name(name), folder / name)
    said = _replaced(one, out)
    out.publish(one.run_id, keep=False)  # what an earlier result was is superseded by now
    return said


def _replaced(one: Copy, out: SweepDir) -> list[str]:
    """Keeps a record of the result's own that was changed, or cannot be read; says where."""
    path = out.record(one.run_id)
    if not os.path.lexists(path):
        return []
    try:
        if "changed" not in store.read_record(path):
            return []
        why = store.CHANGED
    except RecordError:  # which `_read` has named
        why = "cannot be read"
    kept = out.replace(one.run_id)
    return [f"{path}: {why}; replaced by that of {one.part.root}, and kept as {kept}"]
