"""A sweep from a notebook's cell: plan it, run it, load what it measured, look at one record.

What `mptexp plan` and `mptexp run` do, as functions. A relative path begins in the working folder
or, where that has no such folder, in the one above it: JupyterLab starts a kernel in the folder of
its notebook.
"""

import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from mptexp.analysis import sweep_tables
from mptexp.execution import max_batch, progress, sweep
from mptexp.execution.sweep import Execution, Planned
from mptexp.records import store
from mptexp.records.columns import COLUMNS
from mptexp.records.sweep_dir import SweepDir
from mptexp.records.tables import results_table
from mptexp.spec import params as files
from mptexp.spec.errors import ParamsError, UserError
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run
from mptexp.spec.terminal import visible

if TYPE_CHECKING:
    from mptexp.report.explanation import Explanation

Place = str | os.PathLike[str]
TABLES = ("runs", "epochs", "speedups")


class Interrupted(UserError, KeyboardInterrupt):
    """The cell was interrupted: the run at work has been ended, finished ones are kept."""


class Record(dict[str, Any]):
    """What one run wrote, as a dict; a notebook's cell shows its figures with their meaning."""

    def _repr_html_(self) -> str:
        known = results_table([self], "").iloc[0].drop("sweep").dropna()
        known = known[known.astype(str) != ""]
        table = pd.DataFrame(
            {"value": known.map(_figure), "meaning": [COLUMNS[n].meaning for n in known.index]}
        )
        hints = ("display.max_colwidth", None, "display.html.use_mathjax", False)
        with pd.option_context(*hints):
            return str(table.to_html())


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else visible(str(value))


def load(directory: Place, table: str = "runs") -> pd.DataFrame:
    """A finished sweep as a tidy table, from its records: `load("reports/quickstart")`.

    Args:
        directory: the sweep's, or one to which records were copied.
        table: `runs` (a row per run; columns and units in `mptexp.records.columns.COLUMNS`),
            `epochs` (a row per run and epoch) or `speedups` (a row per point and policy: baseline
            time over candidate time, above 1 is faster, with its 95 % interval from `low` to
            `high`).

    Raises:
        ParamsError: where the directory holds no record, or there is no such table.
    """
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
    made = {"runs": tables.results, "epochs": tables.epochs, "speedups": tables.speedups}[table]
    return made.fillna(math.nan).infer_objects()  # a column without any value is one of numbers


def record(directory: Place, run_id: str) -> Record:
    """What one run of a sweep wrote: `record("reports/quickstart", "2f82d9d75f24")`.

    Raises:
        ParamsError: where there is no such record, or it is damaged.
    """
    try:
        return Record(store.read_record(SweepDir(resolved(directory)).record(run_id)))
    except store.RecordError as error:
        raise ParamsError(visible(str(error))) from None


def plan(
    params: Place | Sweep,
    out: Place | None = None,
    only: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> pd.DataFrame:
    """The runs of a params file or a Sweep: state and estimated cost. Executes nothing.

    Args:
        params: a params file, or a Sweep.
        out: the results' directory; by default reports/<name of the file>.
        only: parameters and the value, or list of values, that the runs are to have.
        parameters: what is to stand in place of the file's, such as `epochs=2`.

    Returns:
        A row per run: run_id, the parameters that vary, block, state, cost_s (estimated seconds,
        or those that a finished run took).
    """
    found, _, place, _ = _open(params, out, parameters)
    planned = sweep.plan(found, place)
    costs = sweep.Costs(planned, found)
    rows = [
        {"run_id": p.run_id}
        | {name: getattr(p.run, name) for name in [*found.axes(), "block"]}
        | {"state": p.state, "cost_s": costs.run_s(sweep.point(p.run)) if p.due else p.wall_s}
        for p in sweep.only(planned, _filters(only))
    ]
    return pd.DataFrame(rows)


def run(
    params: Place | Sweep,
    out: Place | None = None,
    only: Mapping[str, Any] | None = None,
    fresh: bool = False,
    **parameters: Any,
) -> pd.DataFrame:
    """Executes the runs that are missing, each in a kernel of its own, and shows their progress.

    Interrupting the cell ends the run at work; the finished ones are kept, and the same cell goes
    on with the others.

    Args:
        params: a params file, or a Sweep.
        out: the results' directory; by default reports/<name of the file>.
        only: parameters and the value, or list of values, that the runs are to have.
        fresh: whether to discard earlier results.
        parameters: what is to stand in place of the file's, such as `epochs=2`.

    Returns:
        All runs in the directory, as `load(out)` gives them.

    Raises:
        ParamsError: where something is wrong with the input; nothing is executed.
        Interrupted: where the cell was interrupted.
    """
    found, text, place, notebook = _open(params, out, parameters)
    try:
        chosen = sweep.only(sweep.plan(found, place), _filters(only))
        sweep.make_ready([p for p in chosen if p.due or fresh], None)
        with sweep.locked(place):
            sweep.prepare(place, text, fresh and not only)
            if fresh:
                sweep.discard(chosen, place)
            _search(found, chosen, notebook, place)
            chosen = sweep.only(sweep.plan(found, place), _filters(only))
            _execute([p for p in chosen if p.due], found, notebook, place)
    except KeyboardInterrupt:
        kept = "the run at work was ended, finished runs are kept; run this cell again to go on"
        raise Interrupted(kept) from None
    return load(place.root)


def explain(directory: Place, pair: int = 0) -> "Explanation":
    """Why a policy of a diagnosed sweep was faster or slower: `explain("reports/mine")`.

    Args:
        directory: of a sweep that `mptexp diagnose` has looked into.
        pair: which of its pairs of policies, as the result lists them.

    Returns:
        What a notebook's cells show, part by part, or a sentence that says why there is nothing.
    """
    from mptexp.report import explanation

    return explanation.explanation(SweepDir(resolved(directory)), pair)


def resolved(path: Place) -> Path:
    """Where a relative path begins: in the working folder, or in the one above it."""
    wanted = Path(path).expanduser()
    first = Path(*wanted.parts[:1])
    above = not first.exists() and (Path("..") / first).exists()
    return Path("..") / wanted if above else wanted


def _open(
    given: Place | Sweep, out: Place | None, parameters: Mapping[str, Any]
) -> tuple[Sweep, str, SweepDir, Path]:
    overrides = [f"{name}={json.dumps(value)}" for name, value in parameters.items()]
    if isinstance(given, Sweep):
        if out is None:
            raise ParamsError("out is None; a Sweep needs the directory for its results")
        file = Path("Sweep")
        found, text = files.parse(files.text(given), "Sweep", overrides)
    else:
        file = resolved(given)
        found, text = files.read(file, overrides)
    max_batch.check(found)
    place = resolved(out if out is not None else Path("reports") / file.stem)
    return found, text, SweepDir(place), sweep.notebook_path(found.notebook, file)


def _filters(only: Mapping[str, Any] | None) -> list[str]:
    asked = (only or {}).items()
    return [f"{n}={v}" for n, vs in asked for v in (vs if isinstance(vs, list) else [vs])]


def _search(found: Sweep, chosen: Sequence[Planned], notebook: Path, place: SweepDir) -> None:
    """Finds the largest batches first, where the params file asks for them."""
    if not found.max_batch:
        return
    runs: list[Run] = [p.run for p in chosen]
    for run, made in max_batch.search(found, runs, notebook, place, found.timeout_min * 60):
        if made is not None:
            print(f"largest batch: {run.policy}, batch size {run.batch_size}: {made['status']}")


def _execute(due: Sequence[Planned], found: Sweep, notebook: Path, place: SweepDir) -> None:
    if not due:
        return
    how = Execution(found.timeout_min * 60)
    with progress.Progress(progress.console(), due, found) as shown:
        for planned, made in sweep.execute(due, notebook, found.notebook, place, how):
            shown.show(planned, made)
