"""What notebook cells and the command line both call.

`load`, `record`, `plan`, `run`, `diagnose` and `compare` are for cells: `mptexp.run(...)`.
A relative path begins in the working folder or, if that has no such folder, in the one above it:
JupyterLab starts a Jupyter kernel in the folder of its notebook. The other functions take an opened
sweep (a `Job`) or a path as it is; the command line calls them.

What only some functions need is imported inside them: pandas alone takes half a second.
"""

import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptexp.execution import directory as directories
from mptexp.execution import max_batch, preparation, sweep
from mptexp.execution import plan as plans
from mptexp.execution.job import Job, notebook_path
from mptexp.execution.local_executor import Execution
from mptexp.execution.plan import Planned
from mptexp.execution.progress import Output, duration
from mptexp.execution.sweep import Interrupted, Stopped, execute
from mptexp.records import store
from mptexp.records.columns import COLUMNS
from mptexp.records.sweep_dir import SweepDir
from mptexp.records.tables import results_table
from mptexp.spec import params as files
from mptexp.spec.errors import ParamsError
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run
from mptexp.spec.terminal import visible

if TYPE_CHECKING:
    import pandas as pd

    from mptexp.execution.merge import Merged
    from mptexp.report.explanation import Explanation

# Also for the command line, which calls nothing below this module.
__all__ = ["Execution", "Interrupted", "Stopped", "execute"]
Place = str | os.PathLike[str]
TABLES = ("runs", "epochs", "speedups")
BACKENDS = ("tensorflow", "jax", "torch")


# --- results in a cell -----------------------------------------------------------------------


class Record(dict[str, Any]):
    """What one run wrote, as a dict; a notebook's cell shows its figures with their meaning."""

    def _repr_html_(self) -> str:
        import pandas as pd

        row = results_table([self], "").iloc[0].drop("sweep").dropna()
        row = row[row.astype(str) != ""]
        table = pd.DataFrame(
            {"value": row.map(_figure), "meaning": [COLUMNS[name].meaning for name in row.index]}
        )
        hints = ("display.max_colwidth", None, "display.html.use_mathjax", False)
        with pd.option_context(*hints):
            return str(table.to_html())


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else visible(str(value))


def load(directory: Place, table: str = "runs") -> "pd.DataFrame":
    """Returns a finished sweep as a tidy table, from its records: `load("reports/quickstart")`.

    Args:
        directory: the sweep's, or one to which records were copied.
        table: `runs` (a row per run; columns and units in `mptexp.records.columns.COLUMNS`),
            `epochs` (a row per run and epoch) or `speedups` (a row per point and policy: baseline
            time over candidate time, above 1 is faster, with its 95 % interval from `low` to
            `high`).

    Raises:
        ParamsError: if the directory holds no record, or there is no such table.
    """
    from mptexp.analysis import sweep_tables

    if table not in TABLES:
        raise ParamsError(f"table {table!r}: unknown; allowed: {', '.join(TABLES)}")
    tables = sweep_tables.load(SweepDir(resolved(directory)))
    for sentence in tables.damaged:
        warnings.warn(f"left out: {visible(sentence)}", stacklevel=2)
    if not tables.records:
        raise ParamsError(
            f"{directory}: holds no record of a run; give the directory of a sweep, such as "
            "reports/quickstart"
        )
    asked = {"runs": tables.results, "epochs": tables.epochs, "speedups": tables.speedups}[table]
    return asked.fillna(math.nan).infer_objects()  # a column without any value is one of numbers


def record(directory: Place, run_id: str) -> Record:
    """Returns what one run of a sweep wrote: `record("reports/quickstart", "2f82d9d75f24")`.

    Raises:
        ParamsError: if there is no such record, or it is damaged.
    """
    try:
        return Record(store.read_record(SweepDir(resolved(directory)).record(run_id)))
    except store.RecordError as error:
        raise ParamsError(visible(str(error))) from None


def resolved(path: Place) -> Path:
    """Returns a path that begins in the working folder, or in the one above it."""
    wanted = Path(path).expanduser()
    first = Path(*wanted.parts[:1])
    above = not first.exists() and (Path("..") / first).exists()
    return Path("..") / wanted if above else wanted


# --- a sweep ---------------------------------------------------------------------------------


def open_sweep(params: Path | Sweep, out: Path | None = None, overrides: Sequence[str] = ()) -> Job:
    """Reads a params file and finds its notebook and the directory of its results.

    Args:
        params: a params file, or a Sweep.
        out: the results' directory; by default reports/<name of the file>.
        overrides: `key=value` for each value that replaces the file's.

    Raises:
        ParamsError: if the file, an override or the notebook is wrong.
    """
    if isinstance(params, Sweep):
        if out is None:
            raise ParamsError("out is None; a Sweep needs the directory for its results")
        file = Path("Sweep")
        opened, text = files.parse(files.text(params), "Sweep", overrides)
    else:
        file = params
        opened, text = files.read(file, overrides)
    notebook = notebook_path(opened.notebook, file)
    max_batch.check(opened)
    return Job(opened, text, notebook, SweepDir(out or Path("reports") / file.stem))


def open_diagnosis(
    target: Path | Sweep, out: Path | None = None, overrides: Sequence[str] = ()
) -> tuple[Job, bool]:
    """Opens a sweep, or the directory of a finished one, to be diagnosed; whether it is finished.

    Raises:
        ParamsError: as `open_sweep` does.
    """
    if isinstance(target, Sweep) or not target.is_dir():
        return open_sweep(target, out, overrides), False
    return open_sweep(SweepDir(target).params, target, overrides), True


def _open(params: Place | Sweep, out: Place | None, parameters: Mapping[str, Any]) -> Job:
    """Opens a sweep that a cell names."""
    file = params if isinstance(params, Sweep) else resolved(params)
    job = open_sweep(file, None if out is None else resolved(out), _overrides(parameters))
    return job if out else replace(job, directory=SweepDir(resolved(job.directory.root)))


def _overrides(parameters: Mapping[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(value)}" for name, value in parameters.items()]


def _filters(only: Mapping[str, Any] | None) -> list[str]:
    asked = (only or {}).items()
    return [f"{n}={v}" for n, vs in asked for v in (vs if isinstance(vs, list) else [vs])]


def planned(job: Job, only: Sequence[str] = ()) -> tuple[list[Planned], list[dict[str, Any]]]:
    """Returns the chosen runs of a sweep, and a row of a table for each, as `plan` describes it."""
    everything = plans.runs(job.sweep, job.directory)
    chosen = plans.select(everything, only)
    costs, axes = plans.Costs(everything, job.sweep), [*job.sweep.axes(), "block"]
    rows = [
        {"run_id": p.run_id}
        | {name: getattr(p.run, name) for name in axes}
        | {"state": p.state, "cost_s": costs.run_s(plans.point(p.run)) if p.due else p.wall_s}
        for p in chosen
    ]
    return chosen, rows


def plan(
    params: Place | Sweep,
    out: Place | None = None,
    only: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> "pd.DataFrame":
    """Returns the runs of a params file or a Sweep: state and estimated cost. Executes nothing.

    Args:
        params: a params file, or a Sweep.
        out: the results' directory; by default reports/<name of the file>.
        only: parameters and the value, or list of values, that the runs are to have.
        parameters: values that replace the file's, such as `epochs=2`.

    Returns:
        A row per run: run_id, the parameters that vary, block, state, cost_s (estimated seconds,
        or those that a finished run took).
    """
    import pandas as pd

    return pd.DataFrame(planned(_open(params, out, parameters), _filters(only))[1])


def run(
    params: Place | Sweep,
    out: Place | None = None,
    only: Mapping[str, Any] | None = None,
    fresh: bool = False,
    **parameters: Any,
) -> "pd.DataFrame":
    """Executes the runs that are missing, each in its own Jupyter kernel, and shows their progress.

    Interrupting the cell ends the run at work; the finished ones are kept, and the same cell goes
    on with the others.

    Args:
        params: a params file, or a Sweep.
        out: the results' directory; by default reports/<name of the file>.
        only: parameters and the value, or list of values, that the runs are to have.
        fresh: whether to discard earlier results.
        parameters: values that replace the file's, such as `epochs=2`.

    Returns:
        All runs in the directory, as `load(out)` gives them.

    Raises:
        ParamsError: if something is wrong with the input; nothing is executed.
        Interrupted: if the cell was interrupted.
    """
    job = _open(params, out, parameters)
    execute(job, _filters(only), fresh, output=Output(brief=True))
    return load(job.directory.root)


# --- why a policy was faster, or was not -----------------------------------------------------


def diagnose(
    params: Place | Sweep,
    out: Place | None = None,
    only: Mapping[str, Any] | None = None,
    traces_only: bool = False,
    **parameters: Any,
) -> "Explanation":
    """Finds out why a policy was faster, or why it was not, by traces and ablations.

    Args:
        params: a params file, a Sweep, or the directory of a finished sweep.
        out: the results' directory; by default reports/<name of the file>.
        only: parameters and the value, or list of values, of the runs to diagnose.
        traces_only: whether to trace steps and make no ablations.
        parameters: values that replace the file's, such as `epochs=2`.

    Returns:
        As `explain` does for the first pair of policies.

    Raises:
        ParamsError: if something is wrong with the input; nothing is executed.
        Interrupted: if the cell was interrupted.
    """
    target = params if isinstance(params, Sweep) else resolved(params)
    place = None if out is None else resolved(out)
    job, finished = open_diagnosis(target, place, _overrides(parameters))
    execute_diagnosis(job, _filters(only), traces_only, finished, output=Output(brief=True))
    return explain(job.directory.root)


def explain(directory: Place, pair: int = 0) -> "Explanation":
    """Explains why a policy of a diagnosed sweep was faster or slower: `explain("reports/mine")`.

    Args:
        directory: of a sweep that was diagnosed.
        pair: which of its pairs of policies, as the result lists them.

    Returns:
        What a notebook's cells show, part by part, or a sentence that says why there is nothing.
    """
    from mptexp.report import explanation

    return explanation.explanation(SweepDir(resolved(directory)), pair)


def execute_diagnosis(
    job: Job,
    only: Sequence[str] = (),
    traces_only: bool = False,
    finished: bool = False,
    data_dir: Path | None = None,
    output: Output | None = None,
) -> bool:
    """Traces steps, then makes the ablations that the traces ask for; whether all runs ended.

    Args:
        job: the sweep.
        only: filters such as `policy=float32`.
        traces_only: whether to make no ablations.
        finished: whether to take the sweep as it is; else what is missing of it runs first.
        data_dir: where data are kept.
        output: where progress is shown.

    Raises:
        ParamsError: if something is wrong with the input, or there is nothing to diagnose.
        Interrupted, Stopped: as `sweep.execute` does.
    """
    output = output or Output()
    chosen = plans.select(plans.runs(job.sweep, job.directory), only)
    preparation.prepare([p.run for p in chosen], data_dir)
    with directories.locked(job.directory):
        directories.prepare(job.directory, job.text, fresh=False)
        if not finished:
            sweep.execute_due(chosen, job, Execution(job.sweep.timeout_min * 60), output)
        ended = True
        for what, runs in _diagnosis(job, [p.run_id for p in chosen], traces_only, output):
            ended &= _execute_batch(what, runs, job, output)
    return ended


def _diagnosis(
    job: Job, run_ids: Sequence[str], traces_only: bool, output: Output
) -> Iterator[tuple[str, list[Run]]]:
    """Yields what to execute next and what it is called; the results decide what comes after."""
    from mptexp.analysis import sweep_tables
    from mptexp.diagnosis import proposals
    from mptexp.diagnosis.pairs import pairs as diagnosed
    from mptexp.report.why_tables import reason

    place = job.directory
    tables = sweep_tables.load(place)
    pairs = diagnosed(tables, run_ids)
    if not pairs:
        raise ParamsError(
            f"{place.root}: no point was trained well under both a baseline (the device's default "
            "or float32) and another policy, so there is nothing to diagnose; see its results.csv"
        )
    traced = [run for pair in pairs for run in pair.traced]
    yield "runs whose steps are traced", traced
    if traces_only:
        return
    asked = [(pair, proposals.proposed(pair, place, tables)) for pair in pairs]
    for pair, wanted in asked:
        for ablation in wanted:
            what = f"{ablation.name} ({reason(ablation)})"
            output.say(f"worth trying, {pair.candidate.policy}: {what}")
    for block in range(job.sweep.repeats):
        runs = [run for pair, wanted in asked for run in proposals.runs(pair, wanted, block)]
        yield f"ablations and controls, block {block + 1} of {job.sweep.repeats}", runs
        asked = [(p, proposals.promising(p, wanted, place, tables)) for p, wanted in asked]


def _execute_batch(what: str, runs: Sequence[Run], job: Job, output: Output) -> bool:
    """Executes what is missing of a diagnosis' runs, their cost said first; whether all ended."""
    place, runs = job.directory.diagnosis, list(dict.fromkeys(runs))
    before = plans.states(runs, job.sweep, place)
    due = [p for p in before if p.due]
    for device in sorted({p.run.gpu_model for p in before if p.state == "elsewhere"}):
        output.say(f"diagnosis: {what} on {device} can be made on such a device only")
    if due:
        costs = plans.Costs([*plans.runs(job.sweep, job.directory), *before], job.sweep)
        seconds = sum(costs.run_s(plans.point(p.run)) or 0 for p in due)
        time = f"about {duration(seconds)}" if seconds else "time unknown"
        output.say(f"diagnosis: {len(due)} {what}, {time}")
        how = Execution(job.sweep.timeout_min * 60)
        brief = replace(output, brief=True)
        sweep.execute_due(due, replace(job, directory=place), how, brief)
    return not any(p.due for p in plans.states(runs, job.sweep, place))


def advise(
    job: Job,
    only: Sequence[str] = (),
    steps: int = 100,
    data_dir: Path | None = None,
    output: Output | None = None,
) -> list[str]:
    """Trains the first chosen run for a few steps in float32; advises on policy and loss scale.

    Args:
        job: the sweep; the results of the short training go to its directory.
        only: filters such as `batch_size=32`.
        steps: how many steps to train.
        data_dir: where data are kept.
        output: where progress is shown.

    Returns:
        The advice and the reasons for it, as sentences; none if the training did not end well.

    Raises:
        ParamsError, Interrupted, Stopped: as `sweep.execute` does.
    """
    from mptexp.analysis import advice, exponent_range, sweep_tables
    from mptexp.report import dynamic_range

    chosen = plans.select(plans.runs(job.sweep, job.directory), only)
    # Blocks are shuffled; the file's own order says which point is the first.
    order = [Run(**point).resolved().run_id(job.sweep.notebook) for point in job.sweep.points()]
    first = min((p for p in chosen if p.run_id in order), key=lambda p: order.index(p.run_id))
    probe, text = advice.probe(first.run, job.sweep.notebook, steps, job.sweep.timeout_min)
    how = Execution(probe.timeout_min * 60, data_dir=data_dir)
    execute(replace(job, sweep=probe, text=text), how=how, output=output)
    measured = exponent_range.measured(sweep_tables.load(job.directory).records)
    return dynamic_range.answer(measured[0]) if measured else []


# --- results as pages and files ---------------------------------------------------------------


def report(directory: Path) -> Path:
    """Makes the report of a sweep, from its records alone; returns its page.

    Raises:
        ParamsError: if the directory holds no record, or the report cannot be written.
    """
    from mptexp.report import page

    place = SweepDir(directory)
    try:
        return page.build(place, notebook_path("report", place.params))
    except OSError as error:
        raise ParamsError(f"{directory}: no report could be written: {error}") from None


def publish(directories: Sequence[Path], site: Path, url: str = "") -> list[str]:
    """Makes a static site of reports; returns a sentence for each damaged record, left out.

    Raises:
        ParamsError: if there is nothing to publish, or it cannot be written there.
    """
    from mptexp.report import site as sites

    with _writing(site):
        return sites.publish(directories, site, notebook_path("report", directories[0]), url)


def export(directory: Path, folder: Path) -> list[str]:
    """Writes a sweep's tables, figures and a draft; a sentence for each damaged record, left out.

    Raises:
        ParamsError: if there is nothing to export, or it cannot be written there.
    """
    from mptexp.report import export as exports

    with _writing(folder):
        return exports.export(SweepDir(directory), folder)


def read_traces(directory: Path) -> tuple[int, list[str]]:
    """Reads the traces that runs kept if xprof was missing.

    Returns:
        How many were read, and a sentence for each that could not be.

    Raises:
        ParamsError: if there is none, xprof is not installed, or a record cannot be written.
    """
    from mptexp.execution import read_traces as traces

    with _writing(directory):
        return traces.read(SweepDir(directory))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Says in a sentence that a folder takes no files."""
    try:
        yield
    except OSError as error:
        raise ParamsError(f"{folder}: could not be written: {error}") from None


# --- several sweeps, and the machine ----------------------------------------------------------


def compare(a: Place, b: Place) -> "pd.DataFrame":
    """Compares two sweeps: returns the points that both measured, a row each.

    Raises:
        ParamsError: if no point was measured well in both.
    """
    return compared(resolved(a), resolved(b))[0]


def compared(a: Path, b: Path) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """Returns the points that two sweeps measured, and what else differs between them.

    Raises:
        ParamsError: if no point was measured well in both.
    """
    from mptexp.analysis import compare as comparison
    from mptexp.report import comparisons

    left, right = comparison.load(SweepDir(a), SweepDir(b))
    points = comparison.points(left, right)
    if points.empty:
        why = comparisons.nothing_joined(comparison.disjoint(left, right))
        why = why or "see their results.csv"
        raise ParamsError(f"{a} and {b}: no point was measured well in both: {why}")
    return points, comparison.differences(left, right)


def merge(directories: Sequence[Path], out: Path, prefer: Path | None = None) -> "Merged":
    """Copies the directories that several machines made of one params file together into one.

    Args:
        directories: sweeps' directories.
        out: one of them, a new or an empty directory.
        prefer: the one of them that decides where two hold different records of a run.

    Raises:
        ParamsError: if one holds no sweep or another one, or if records conflict; nothing is
            written then.
        Stopped: if the result cannot be written.
    """
    from mptexp.execution import merge as merging

    try:
        return merging.merge(directories, out, prefer)
    except OSError as error:
        raise Stopped(f"{out}: {error}") from None


def doctor(backend: str = "tensorflow") -> dict[str, Any]:
    """Returns what this machine has, as a backend sees it: device, libraries, versions.

    It is asked in a child process, because a framework keeps hold of the GPU that it has opened.

    Raises:
        ParamsError: if there is no such backend, or it cannot be asked.
    """
    if backend not in BACKENDS:
        raise ParamsError(f"--backend {backend}: unknown; allowed: {', '.join(BACKENDS)}")
    command = [sys.executable, "-m", "mptexp.training.environment", backend]
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        lines = child.stderr.strip().splitlines() or ["it said nothing"]
        raise ParamsError(f"doctor: {backend} could not be asked: {lines[-1]}")
    return dict(json.loads(child.stdout.strip().splitlines()[-1]))
