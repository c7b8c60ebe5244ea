"""What the command line calls: a sweep is opened as a job, which the other functions take.

What only some of them need is imported inside them: pandas alone takes half a second.
"""

import errno
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptexp.errors import ParamsError, Stopped
from mptexp.execution import directory, max_batch, plan, preparation, remeasuring
from mptexp.execution.job import Job, notebook_path, report_notebook
from mptexp.execution.plan import Planned
from mptexp.host import imports, project
from mptexp.host.project import child_environment
from mptexp.host.terminal import visible
from mptexp.records import privacy, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import data_folders, dataset_paths
from mptexp.spec import params as files
from mptexp.spec.backends import BACKENDS, PREFERRED
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run
from mptexp.spec.strict_model import shown

if TYPE_CHECKING:
    import pandas as pd

    from mptexp.diagnosis.foreign_traces import Recording
    from mptexp.execution.merge import Merged
    from mptexp.report.measured_sweep import MeasuredSweep
    from mptexp.report.trackers import Tracked


def open_sweep(
    params: Path | Sweep,
    out: Path | None = None,
    overrides: Sequence[str] = (),
    to_run: bool = True,
) -> Job:
    """Reads a params file and finds its notebook and the directory of its results.

    Args:
        params: a params file, the name of a study that mptexp ships, or a Sweep.
        out: the results' directory; by default reports/<name of the file>.
        overrides: `key=value` for each value that replaces the file's.
        to_run: whether points that cannot work with the data that lie here are refused.

    Raises:
        ParamsError: if the file, an override or the notebook is wrong.
    """
    if isinstance(params, Sweep):
        if out is None:
            raise ParamsError("out is None; a Sweep needs the directory for its results")
        file = Path("Sweep")
        opened, text = files.parse(files.text(params), "Sweep", overrides, to_run)
    else:
        file = named(params)
        opened, text = files.read(file, overrides, to_run)
    notebook = notebook_path(opened.notebook, file)
    max_batch.check(opened, file)
    return Job(opened, text, notebook, SweepDir(out or Path("reports") / file.stem))


def named(params: Path) -> Path:
    """The params file of a study that is given by its name; any other path as it is."""
    return params if params.is_file() else project.studies().get(str(params), params)


def init(folder: Path, study: str = "") -> list[Path]:
    """Writes a params file to begin with, its model, and the schema that editors check it by.

    Args:
        folder: where; it is made if need be.
        study: the name of one that mptexp ships, to begin with it.

    Returns:
        The files.

    Raises:
        ParamsError: if there is no such study, or a file is there already; nothing is written.
    """
    if study and study not in project.studies():
        raise ParamsError(f"--study {study}: unknown; allowed: {', '.join(project.studies())}")
    texts = {folder / name: text for name, text in project.template(study).items()}
    there = [file for file, text in texts.items() if not is_free(file, text)]
    if there:
        raise ParamsError(f"{there[0]}: is there already; give another folder, or move it away")
    with writing(folder):
        for file, text in texts.items():
            store.write_text(file, text)
    return list(texts)


def is_free(file: Path, text: str) -> bool:
    """Whether a text can be written there: nothing is there, or the text itself."""
    return not os.path.lexists(file) or (file.is_file() and file.read_bytes() == text.encode())


def planned(
    job: Job, only: Sequence[str] = (), repair: Collection[str] = ()
) -> tuple[list[Planned], list[dict[str, Any]], plan.Costs, bool]:
    """The chosen runs of a sweep, a row for each, what runs cost, and whether some are at work.

    The costs are those that all runs of the directory tell, also those that were not chosen.
    Beside a command that is at work there, nothing is said to be measured again: its blocks are
    not whole because it has not ended.

    Raises:
        ParamsError: if a filter is wrong, or the directory takes no results of this sweep, in which
            `execute` refuses it too.
    """
    directory.check(job.directory, job.text)
    everything = plan.runs(job.sweep, job.directory)
    busy = directory.is_at_work(job.directory)
    chosen = plan.select(everything, only) if busy else remeasuring.chosen(job, only, repair)
    costs, axes = plan.Costs(everything, job.sweep), [*job.sweep.axes(), "block"]
    rows = [
        {"run_id": p.run_id}
        | {name: getattr(p.run, name) for name in axes}
        | {"state": p.state, "cost_s": costs.run_s(plan.point(p.run)) if p.due else p.wall_s}
        for p in chosen
    ]
    return chosen, rows, costs, busy


def absent(runs: Iterable[Run]) -> list[str]:
    """Returns a sentence for each backend of some runs that is not installed here.

    Their runs would end as unsupported, and be tried again once it is installed.
    """
    names = sorted({run.backend for run in runs})
    return [
        f"{name} is not installed here, and runs that need it end as unsupported until it is: "
        f"mptexp doctor --backend {name} says what to install first"
        for name in names
        if importlib.util.find_spec(name) is None
    ]


def idle(sweep: Sweep) -> list[str]:
    """Returns a sentence for each entry of a sweep's `exclude` that drops no point."""
    entries = [", ".join(f"{n}: {shown(v)}" for n, v in entry.items()) for entry in sweep.idle()]
    return [
        f"exclude: no point of the matrix agrees with {{{entry}}}, so it drops none"
        for entry in entries
    ]


def curable(job: Job) -> frozenset[str]:
    """Returns the ids of a sweep's runs with a flag that another measurement can cure."""
    from mptexp.analysis import sweep_tables, validity

    if not job.directory.runs.exists():
        return frozenset()
    runs = sweep_tables.load(job.directory).ok
    return frozenset(runs.run_id[[validity.curable(flags) for flags in runs["flags"]]])


def claims(job: Job) -> list[dict[str, Any]]:
    """Returns the rows of a sweep's speedups.csv, with their flags, as plain JSON types."""
    from mptexp.analysis import sweep_tables
    from mptexp.report.tables import number_tables

    rows = number_tables.speedups(sweep_tables.load(job.directory))
    return list(json.loads(rows.to_json(orient="records")))


def changed(job: Job, only: Sequence[str] = (), data_dir: Path | None = None) -> list[str]:
    """Returns what differs between runs of a sweep that are there and those that would run now.

    A sentence for each difference.
    Nothing is asked where there is no record yet. Where no run is due, only for a model and data of
    the user's own: whoever edited them and gives the command again expects their results.

    Raises:
        ParamsError: if data or model of a run that is due cannot be used.
    """
    from mptexp.analysis import comparability

    chosen = remeasuring.chosen(job, only)
    due = [p.run for p in chosen if p.due]
    own = [p.run for p in chosen if ":" in p.run.model or dataset_paths.path(p.run.dataset)]
    records = store.read_records(job.directory)[0] if due or own else []
    first = min((str(record.get("ended_at", "")) for record in records), default="")
    asked = due or [run for run in own if ":" in run.model or (first and _newer(run, first))]
    before = comparability.latest(records) if asked else {}
    runs = {comparability.kind(r.published().model_dump()): r for r in asked} if before else {}
    try:
        identities = preparation.identities(list(runs.values()), data_dir)
    except ParamsError:
        if due:
            raise
        return []
    # As records have it: a variable may name a place below the home directory.
    known = privacy.scrub(identities)
    differences = comparability.between(before, dict(zip(runs, known, strict=True)))
    differences = [d for d in differences if due or d.name in ("model_source", "data")]
    if not differences:  # nearly always: what forms the sentences is slow to import
        return []
    from mptexp.report.answers import caveats

    return caveats.changed(str(job.directory.root), differences)


def _newer(run: Run, ended: str) -> bool:
    """Whether anything of a user's own data was touched after a run had ended.

    Then their content is compared, which takes seconds.
    """
    known = next((p for p in dataset_paths.candidates(run.dataset) if p.exists()), None)
    return known is not None and _touched(known) > datetime.fromisoformat(ended).timestamp()


@cache
def _touched(place: Path) -> float:
    """When a file, or anything below a folder, last changed; a folder knows what was removed."""
    files = [*data_folders.below(place)] if place.is_dir() else []
    changes = []
    for name in {str(place), *files, *map(os.path.dirname, files)}:
        with suppress(OSError):  # gone since it was listed
            changes.append(os.lstat(name).st_ctime)
    return max(changes, default=0.0)


# --- results as pages and files ---------------------------------------------------------------


@imports.for_a_report()
def report(directory: Path, notebook: Path | None = None) -> tuple[Path, list[str]]:
    """Makes the report of a sweep, from its records alone.

    Args:
        notebook: what makes the report, in place of the package's own.

    Returns:
        Its page, and what is not valid of it: see `checked`.

    Raises:
        ParamsError: if the directory holds no record, or takes no files.
        Stopped: if the disk is full or fails.
    """
    from mptexp.report import measured_sweep
    from mptexp.report.pages import page

    sweep = measured_sweep.load(directory)
    with writing(directory, "no report could be written"):
        index = page.build(sweep, report_notebook(notebook))
    return index, _not_valid(sweep)


@dataclass(frozen=True)
class Checked:
    """What a check of a sweep found, in sentences.

    Attributes:
        not_valid: what is not comparable or not valid, and damaged records; in Markdown.
        besides: what else a reader should know: results that are missing, failed or discarded.
        compares: whether anything is compared.
    """

    not_valid: list[str]
    besides: list[str]
    compares: bool


@imports.for_a_report()
def checked(directory: Path) -> Checked:
    """Checks a sweep.

    Raises:
        ParamsError: if the directory holds no record.
    """
    from mptexp.report import measured_sweep
    from mptexp.report.answers import caveats
    from mptexp.report.pages import data_files, notes, provenance

    sweep = measured_sweep.load(directory)
    tables = sweep.tables
    besides = [*caveats.missing(tables), *caveats.excluded(tables), *caveats.left_out(tables)]
    besides += provenance.measured_again(sweep.directory)
    not_valid = [*_not_valid(sweep), *data_files.out_of_step(sweep)]
    return Checked(not_valid, besides, bool(notes.families(tables)))


def _not_valid(sweep: "MeasuredSweep") -> list[str]:
    from mptexp.report.answers import caveats, why
    from mptexp.report.pages import first_screen_html

    findings = first_screen_html.findings(sweep)
    said = [*caveats.faults(sweep.tables, findings), *why.not_valid(sweep.verdicts)]
    return [*said, *sweep.tables.damaged, *sweep.tables.changed]


@imports.for_a_report()
def publish(
    directories: Sequence[Path], site: Path, url: str = "", notebook: Path | None = None
) -> list[str]:
    """Makes a static site of reports; returns a sentence for each damaged or changed record.

    Raises:
        ParamsError: if there is nothing to publish, or it cannot be written there.
    """
    from mptexp.report.pages import site as sites

    with writing(site):
        return sites.publish(directories, site, report_notebook(notebook), url)


@imports.for_a_report()
def export(directory: Path, folder: Path) -> list[str]:
    """Writes a sweep's tables, figures and a draft; a sentence for each damaged record, left out.

    Raises:
        ParamsError: if there is nothing to export, or it cannot be written there.
    """
    from mptexp.report import export as exports

    with writing(folder):
        return exports.export(SweepDir(directory), folder)


TRACKERS = ("mlflow", "tensorboard")


def track(directory: Path, tracker: str, store: str = "") -> "Tracked":
    """Gives a sweep's runs to a tracker, see `report.trackers.export`.

    Raises:
        ParamsError: if there is nothing to export, the tracker is not installed, or refuses.
    """
    from mptexp.report import trackers

    with writing(store or tracker):
        return trackers.export(SweepDir(directory), tracker, store)


def read_traces(directory: Path) -> tuple[int, list[str]]:
    """Reads the traces that runs kept if xprof was missing, see `execution.read_traces.read`.

    Raises:
        ParamsError: as there, or if a record cannot be written.
    """
    from mptexp.execution import read_traces as traces

    with writing(directory):
        return traces.read(SweepDir(directory))


DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # no fault of what was asked for


@contextmanager
def writing(folder: Path | str, failed: str = "could not be written") -> Iterator[None]:
    """Says in a sentence that a folder takes no files."""
    try:
        yield
    except OSError as error:
        file = error.filename2 or error.filename  # of a copy the second is what is written
        which = f" ({file})" if file else ""
        raise _refusal(error)(f"{folder}: {failed}: {error.strerror or error}{which}") from None


def _refusal(error: OSError) -> type[ParamsError] | type[Stopped]:
    """What a file that cannot be written is: another place to name, or a disk to mend."""
    return Stopped if error.errno in DISK else ParamsError


# --- several sweeps, and the machine ----------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """Two sides of a comparison.

    Attributes:
        points: that both measured well, see `analysis.two_sweeps.points`.
        not_compared: the other points, see `analysis.two_sweeps.not_compared`.
        differences: what else differs between them.
        advice: what the ratios cannot exclude, and how to measure so that they do; sentences.
        faults: a sentence for each record that is damaged or was changed.
    """

    points: "pd.DataFrame"
    not_compared: "pd.DataFrame"
    differences: "pd.DataFrame"
    advice: list[str]
    faults: list[str]

    @property
    def alike(self) -> bool:
        """Whether nothing differs between the sides but what the points say, nor how runs ended."""
        lost = self.points[self.points.lost != ""]
        ended_alike = [(t.ended_a == t.ended_b).all() for t in (lost, self.not_compared)]
        return self.differences.empty and all(ended_alike)


def compared(a: Sequence[Path], b: Sequence[Path]) -> Compared:
    """Sets two sweeps side by side, or several sessions of each.

    Raises:
        ParamsError: if no point was measured well in both.
    """
    from mptexp.analysis import two_sweeps as comparison
    from mptexp.report.answers import comparisons

    left, right = comparison.load([SweepDir(p) for p in a], [SweepDir(p) for p in b])
    points = comparison.points(left, right)
    if points.empty:
        ended = [comparison.ended(side) for side in (left, right)]
        why = comparisons.nothing_joined(comparison.disjoint(left, right), ended)
        raise ParamsError(f"{a[0]} and {b[0]}: no point was measured well in both: {why}")
    advice = comparisons.advice(points, comparison.apart_in_time(left, right))
    advice += filter(None, map(comparisons.measured_again, map(SweepDir, (*a, *b))))
    faults = [text for side in (left, right) for text in (*side.damaged, *side.changed)]
    others = comparison.not_compared(left, right)
    return Compared(points, others, comparison.differences(left, right), advice, faults)


def merge(directories: Sequence[Path], out: Path, prefer: Path | None = None) -> "Merged":
    """Copies the directories of one params file together into one, see `execution.merge.merge`.

    Raises:
        ParamsError: as there, or if nothing can be written there; nothing is written then.
        Stopped: if the disk takes no more.
    """
    from mptexp.execution import merge as merging

    with writing(out):
        return merging.merge(directories, out, prefer)


def unlike(directories: Sequence[Path]) -> list[str]:
    """Returns what keeps the runs of some directories from being compared with one another.

    A sentence for each difference of a directory from the first before it that it differs from, and
    one where runs were measured at once. Those that hold no run are left out.
    """
    from mptexp.analysis import comparability, sweep_tables, validity
    from mptexp.report.answers import caveats

    places = map(SweepDir, directories)
    read = [store.read_records(place, without=sweep_tables.RAW)[0] for place in places]
    known = list(map(comparability.latest, read))
    said = []
    for number, name in enumerate(directories):
        found = [comparability.between(one, known[number]) for one in known[:number]]
        first = next((k for k, differences in enumerate(found) if differences), None)
        if first is not None:
            said += caveats.unlike(str(directories[first]), {str(name): found[first]})
    each = {(r["run_id"], r.get("ended_at")): r for records in read for r in records}
    return [*said, *caveats.at_once(len(validity.at_once([*each.values()])))]


def doctor(backend: str) -> dict[str, Any]:
    """Returns what this machine has, as a backend sees it: device, libraries, versions.

    It is asked in a child process, because a framework keeps hold of the GPU that it has opened.

    Raises:
        ParamsError: as `asked` does.
    """
    return dict(asked("mptexp.training.environment", backend, "doctor"))


def asked(module: str, backend: str, command: str) -> Any:
    """What a module of `training` prints as JSON about a backend, in a process of its own.

    Raises:
        ParamsError: if there is no such backend, or it cannot be asked; it names the command.
    """
    check_backend(backend)
    words = [sys.executable, "-m", module, backend]
    child = subprocess.run(words, env=child_environment(), capture_output=True, text=True)
    if child.returncode:
        lines = child.stderr.strip().splitlines() or ["it said nothing"]
        raise ParamsError(f"{command}: {backend} could not be asked: {lines[-1]}")
    try:
        return json.loads(child.stdout.strip().splitlines()[-1])
    except (LookupError, ValueError):  # a module that it imports may print or end it
        raise ParamsError(f"{command}: {backend} could not be asked: it gave no answer") from None


def check_backend(backend: str) -> None:
    """Refuses a backend that there is not, with ParamsError."""
    if backend not in BACKENDS:
        raise ParamsError(f"--backend {backend}: unknown; allowed: {', '.join(BACKENDS)}")


def installed_backends() -> list[str]:
    """The backends that are installed here, in the order of PREFERRED."""
    return [name for name in PREFERRED if importlib.util.find_spec(name)]


def recordings(traces: Sequence[Path]) -> "list[Recording]":
    """Reads profilers' traces of trainings that mptexp did not run.

    Args:
        traces: files, or directories that hold some; one or two.

    Raises:
        ParamsError: if one cannot be read, or both hold the same recording.
    """
    from mptexp.diagnosis.foreign_traces import Comparison, Recording
    from mptexp.traces import trace_files

    read = [Recording(visible(f.name), trace) for f, trace in map(trace_files.read, traces)]
    if len(read) == 2 and Comparison(*read).identical:
        raise ParamsError(f"{traces[0]} and {traces[1]} hold the same recording; give two")
    return read


def write_page(file: Path, text: str) -> None:
    """Writes a page where a user wants it.

    Raises:
        ParamsError: if that is a directory or a file that is no page, or nothing can be written
            there.
        Stopped: if the disk is full or fails.
    """
    if file.is_dir():
        raise ParamsError(
            f"--out {file}: is a directory; give the name of a file, such as page.html"
        )
    if file.is_file() and not _is_page(file):  # such as the trace of which the page is
        raise ParamsError(
            f"--out {file}: is there already and is no HTML page; give another name, or move it "
            "away"
        )
    try:
        store.write_text(file, text)
    except OSError as error:
        raise _refusal(error)(f"--out {file}: cannot be written: {error.strerror}") from error


def _is_page(file: Path) -> bool:
    """Whether a file is an HTML page, or empty."""
    try:
        with file.open("rb") as stream:
            begun = stream.read(100).lstrip().lower()
    except OSError:
        return False
    return not begun or begun.startswith(b"<!doctype html")
