"""For a notebook's cells: plan a sweep, run it, load what it measured, and ask why.

A relative path begins in the working folder or, if that has no such folder, in the one above it:
JupyterLab starts a Jupyter kernel in the folder of its notebook.
"""

import json
import math
import os
import pprint
import warnings
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from mptexp.api import commands, diagnosing
from mptexp.errors import ParamsError
from mptexp.execution import sweep
from mptexp.execution.job import Job
from mptexp.execution.progress import Output
from mptexp.host.terminal import visible
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import yaml_documents
from mptexp.spec.given_paths import resolved
from mptexp.spec.grid import Sweep
from mptexp.spec.strict_model import shown

if TYPE_CHECKING:
    import pandas as pd
    from IPython.display import Markdown

    from mptexp.api.cell_tables import ComparedSweeps, Results
    from mptexp.report.notebook_explanation import Explanation, RecordedExplanation

Place = str | os.PathLike[str]
TABLES = ("results", "history", "speedups")


def policies() -> "pd.DataFrame":
    """Returns the precision policies: a row each, and what numbers their arithmetic has."""
    import pandas as pd

    from mptexp.spec.number_formats import FORMATS
    from mptexp.spec.policies import POLICY_ROWS

    rows = {}
    for policy in POLICY_ROWS.values():
        arithmetic = FORMATS[policy.arithmetic]
        rows[policy.name] = {
            "layers compute in": policy.arithmetic,
            "weights in": policy.promised if policy.inference_only else policy.variable_dtype,
            "first number above 1": 1 + arithmetic.spacing(1),
            "largest number": arithmetic.largest,
            "smallest number": arithmetic.smallest_subnormal,
        }
    # It alone multiplies integers; what they stand for, a scale of each row and channel says.
    rows["int8"] = dict.fromkeys(rows["int8"], math.nan) | {
        "layers compute in": "int8",
        "weights in": "int8",
    }
    return pd.DataFrame.from_dict(rows, orient="index")


# --- a sweep ---------------------------------------------------------------------------------


def plan(
    params: Place | Sweep,
    out: Place | None = None,
    only: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> "pd.DataFrame":
    """Returns the runs of a params file or a Sweep: state and estimated cost. Executes nothing.

    Args:
        params: a params file, the name of a study such as `quickstart`, or a Sweep.
        out: the results' directory; by default reports/<name of the file>.
        only: parameters and the value, or the values, that the runs are to have.
        parameters: values that replace the file's, such as `epochs=2`.

    Returns:
        A row per run: run_id, the parameters that vary, block, state, cost_s (estimated seconds,
        or those that a finished run took).
    """
    import pandas as pd

    return pd.DataFrame(commands.planned(_open(params, out, parameters), _filters(only))[1])


def run(
    params: Place | Sweep,
    out: Place | None = None,
    only: Mapping[str, Any] | None = None,
    fresh: bool = False,
    repair: bool = False,
    **parameters: Any,
) -> "Results":
    """Executes the runs that are missing, each in its own Jupyter kernel, and shows their progress.

    Interrupting the cell ends the run at work; the finished ones are kept, and the same cell goes
    on with the others.

    Args:
        params: a params file, the name of a study such as `quickstart`, or a Sweep.
        out: the results' directory; by default reports/<name of the file>.
        only: parameters and the value, or the values, that the runs are to have.
        fresh: whether to discard earlier results.
        repair: whether to measure again, as whole blocks, what is not valid and can be cured.
        parameters: values that replace the file's, such as `epochs=2`.

    Returns:
        All runs in the directory, as `load(out)` gives them.

    Raises:
        ParamsError: if something is wrong with the input; nothing is executed.
        Interrupted: if the cell was interrupted.
    """
    job = _open(params, out, parameters)
    flagged = commands.curable(job) if repair and not fresh else ()
    for sentence in [] if fresh else commands.changed(job, _filters(only)):
        warnings.warn(visible(sentence), stacklevel=2)
    brief, whole = Output(brief=True), fresh and not only
    sweep.execute(job, _filters(only), fresh, output=brief, repair=flagged, discard=whole)
    return load(job.directory.root)


def _open(params: Place | Sweep, out: Place | None, parameters: Mapping[str, Any]) -> Job:
    """Opens a sweep that a cell names."""
    file = params if isinstance(params, Sweep) else _named(params)
    job = commands.open_sweep(file, None if out is None else resolved(out), _overrides(parameters))
    return job if out else replace(job, directory=SweepDir(resolved(job.directory.root)))


def _named(params: Place) -> Path:
    """A study of this name that mptexp ships, unless there is such a file or folder."""
    path = resolved(params)
    return path if path.exists() else commands.named(Path(params))


def _overrides(parameters: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_yaml(name, value)}" for name, value in parameters.items()]


def _yaml(name: str, value: Any) -> str:
    """A value as YAML in a line: as JSON, but for signs that JSON escapes in halves."""
    try:
        text = json.dumps(yaml_documents.native(value), ensure_ascii=False)
    except (TypeError, RecursionError):  # of another kind, or within itself
        kind = type(value).__name__
        raise ParamsError(
            f"{name} is a {kind}; allowed: a text, a number, True, False, None, or several of them"
        ) from None
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def _filters(only: Mapping[str, Any] | None) -> list[str]:
    if not isinstance(only or {}, Mapping):
        raise ParamsError(
            f"only is a {type(only).__name__}; allowed: parameters and the values that the runs "
            'are to have, such as {"policy": "float32"}'
        )
    return [text for name, given in (only or {}).items() for text in _alternatives(name, given)]


def _alternatives(name: str, given: Any) -> list[str]:
    values = yaml_documents.native(given)
    if values == []:
        raise ParamsError(f"only: {name} has no value, so no run has it; allowed: one or more")
    return [f"{name}={value}" for value in (values if isinstance(values, list) else [values])]


# --- what it measured ------------------------------------------------------------------------


class Record(dict[str, Any]):
    """What one run wrote, as a dict; a notebook's cell shows its figures with their meaning.

    Attributes:
        place: the directory of its sweep, wherever the working folder is later.
    """

    def __init__(self, content: Mapping[str, Any], place: SweepDir) -> None:
        """Takes what the run wrote, and where."""
        super().__init__(content)
        self.place = SweepDir(place.root.absolute())

    @cached_property
    def row(self) -> "pd.Series":
        """Its row of the sweep's table, with the flags and marks that `load` gives it.

        Most flags follow from the runs beside it, all of which are read then.

        Raises:
            ParamsError: if the record is no longer there.
        """
        from mptexp.analysis import sweep_tables

        table = sweep_tables.load(self.place).results
        rows = table[table.run_id == self.get("run_id")]
        if rows.empty:
            raise ParamsError(
                f"{visible(str(self.place.root))}: no longer holds a readable record of the run "
                f"{shown(self.get('run_id'))}, whose row follows from all that are there; allowed: "
                "a record of a sweep that is still where it was read"
            )
        return rows.iloc[0]

    def _repr_html_(self) -> str:
        try:
            return self._figures(self.row)
        except ParamsError as gone:
            # What its dict holds is left to be shown: of a long list no more than that it is one.
            content = pprint.pformat(dict(self), depth=2, compact=True, width=100)
            lines = "\n".join(visible(line) for line in content.splitlines())
            page = f"<p>{escape(str(gone))}</p><pre>{escape(lines)}</pre>"
            return f'<div class="tex2jax_ignore mathjax_ignore">{page}</div>'

    def _figures(self, row: "pd.Series") -> str:
        import pandas as pd

        from mptexp.records.csv_columns import COLUMNS

        row = row.drop("sweep").dropna()
        row = row[row.astype(str) != ""]
        table = pd.DataFrame(
            {"value": row.map(_figure), "meaning": [COLUMNS[name].meaning for name in row.index]}
        )
        hints = ("display.max_colwidth", None, "display.html.use_mathjax", False)
        with pd.option_context(*hints):
            return str(table.to_html())


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else visible(str(value))


@overload
def load(directory: Place, table: Literal["results"] = "results") -> "Results": ...
@overload
def load(directory: Place, table: str) -> "pd.DataFrame": ...
def load(directory: Place, table: str = "results") -> "Results | pd.DataFrame":
    """Returns a finished sweep as a tidy table, from its records: `load("reports/quickstart")`.

    Args:
        directory: the sweep's, or one to which records were copied.
        table: one of the names of its CSV files: `results` (a row per run; columns and units in
            `mptexp.records.csv_columns.COLUMNS`), `history` (a row per run and epoch, the file's
            columns beside the run's own) or
            `speedups` (a row per point and policy: baseline time over candidate time, above 1 is
            faster, with its 95 % interval from `claim_low` to `claim_high`, which holds for all
            rows together; `low` to `high` for the row alone; and `finding`: faster, slower,
            inconclusive, no interval, not valid).

    Returns:
        A DataFrame. That of `results` has the other two as `.history` and `.speedups`, and a cell
        shows of it what varies and was measured; `.whole` is all of it.

    Raises:
        ParamsError: if the directory holds no record, or there is no such table.
    """
    from mptexp.analysis import sweep_tables
    from mptexp.api.cell_tables import Results, filled, speedups

    if not isinstance(table, str) or table not in TABLES:
        raise ParamsError(f"table {shown(table)}: unknown; allowed: {', '.join(TABLES)}")
    place = SweepDir(_existing(directory))
    tables = sweep_tables.load(place)
    for sentence in tables.damaged:
        warnings.warn(f"left out: {visible(sentence)}", stacklevel=2)
    for sentence in tables.changed:
        warnings.warn(visible(sentence), stacklevel=2)
    if not tables.records:
        raise store.refusal(place, tables.damaged)
    if table == "results":
        return Results.of(tables)
    return filled(tables.epochs) if table == "history" else speedups(tables)


def record(directory: Place, run_id: str) -> Record:
    """Returns what one run of a sweep wrote: `record("reports/quickstart", "2f82d9d75f24")`.

    A record that was changed since it was written is a warning, as of `load`; what else is not
    valid of the run, a cell shows beside its figures, and `.row["flags"]` has it.

    Raises:
        ParamsError: if there is no such record, or it is damaged.
    """
    if not isinstance(run_id, str) or Path(run_id).name != run_id or run_id in ("", ".."):
        raise ParamsError(f"run_id is {shown(run_id)}; allowed: a text, as `load` gives them")
    place = SweepDir(_existing(directory))
    try:
        known = store.read_record(place.record(run_id))
    except store.RecordError as error:
        raise ParamsError(visible(str(error))) from None
    for sentence in store.changed([known], place):
        warnings.warn(visible(sentence), stacklevel=2)
    return Record(known, place)


def answer(directory: Place) -> "Markdown":
    """Returns what opens a sweep's report: its title, what is not valid of it, its sentences.

    Raises:
        ParamsError: if the directory holds no record.
    """
    from IPython.display import Markdown

    from mptexp.report import measured_sweep
    from mptexp.report.answers import caveats
    from mptexp.report.pages import first_screen_html
    from mptexp.report.text import markdown

    sweep = measured_sweep.load(_existing(directory))
    title = f"**{markdown.safe(first_screen_html.title(sweep))}**"
    banner = caveats.banner(sweep.tables, more="The report says more")
    return Markdown("\n\n".join([title, *banner, *first_screen_html.alone(sweep)]))


def compare(a: Place | Iterable[Place], b: Place | Iterable[Place]) -> "ComparedSweeps":
    """Compares two sweeps: returns the points that both measured well, a row each.

    A cell shows of it what `mptexp compare` prints. What is not compared, and how its runs ended,
    is a warning too.

    Args:
        a: a sweep's directory, or a list, or the like, of several sessions of it; of three a side,
            the ratios have intervals.
        b: another's.

    Returns:
        A DataFrame of numbers: `ratio` is A's step time over B's, above 1 B is faster; `low` and
        `high` are empty where nothing is claimed. Its `.advice` says what the ratios cannot
        exclude, `.differences` what else differs, `.not_compared` has the other points.

    Raises:
        ParamsError: if no point was measured well in both.
    """
    from mptexp.api.cell_tables import ComparedSweeps
    from mptexp.report.answers import comparisons

    sides = _sessions(a), _sessions(b)
    made = commands.compared(*sides)
    others = comparisons.left_out(made.not_compared, made.points)
    for sentence in (*made.faults, *others):
        warnings.warn(visible(sentence), stacklevel=2)
    return ComparedSweeps.of(made, *sides)


def _sessions(side: Any) -> list[Path]:
    """The directories of one side of a comparison: one, or several in whatever holds them."""
    if isinstance(side, str | os.PathLike):
        return [_existing(side)]
    # A table is no collection of paths, though going over it gives the names of its columns.
    several = isinstance(side, Iterable) and getattr(side, "ndim", 1) == 1
    if not several or isinstance(side, bytes | Mapping):
        raise ParamsError(
            f"a side of a comparison is a {type(side).__name__}; allowed: a sweep's directory, as "
            "a text or a pathlib.Path, or a list of several"
        )
    places = sorted(side, key=str) if isinstance(side, Set) else list(side)
    if not places:
        raise ParamsError("a list of sweeps is empty; allowed: one directory or more")
    return [_existing(place) for place in places]


def _existing(directory: Any) -> Path:
    """The path of a sweep's directory, where there is a directory.

    Raises:
        ParamsError: where it is no path, there is nothing, or a file.
    """
    path = resolved(directory)
    allowed = "allowed: the directory of a sweep, such as reports/quickstart"
    if not path.exists():
        raise ParamsError(
            f"{visible(str(path))}: holds no record of a run, as it does not exist; {allowed}"
        )
    if not path.is_dir():
        raise ParamsError(f"{visible(str(path))}: it is a file; {allowed}")
    return path


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
        params: a params file, the name of a study, a Sweep, or the directory of a finished sweep.
        out: the results' directory; by default reports/<name of the file>.
        only: parameters and the value, or the values, of the runs to diagnose.
        traces_only: whether to trace steps and make no ablations.
        parameters: values that replace the file's, such as `epochs=2`.

    Returns:
        As `explain` does for the first pair of policies.

    Raises:
        ParamsError: if something is wrong with the input; nothing is executed.
        Interrupted: if the cell was interrupted.
    """
    from mptexp.report import notebook_explanation

    target = params if isinstance(params, Sweep) else _named(params)
    place = None if out is None else resolved(out)
    job, finished = diagnosing.open_diagnosis(target, place, _overrides(parameters))
    chosen, brief = _filters(only), Output(brief=True)
    ended = diagnosing.execute_diagnosis(job, chosen, traces_only, finished, output=brief)
    return notebook_explanation.explanation(SweepDir(resolved(job.directory.root)), 0, ended)


def explain(
    place: Place, other: Place | None = None, pair: int = 0
) -> "Explanation | RecordedExplanation":
    """Explains a training from its trace, or a diagnosed sweep.

    Args:
        place: a profiler's trace of any training, in PyTorch, JAX, TensorFlow or Keras, or a
            directory that holds one: `explain("trace.json.gz")`; or the directory of a sweep that
            was diagnosed: `explain("reports/mine")`.
        other: a second trace, such as of the same training in mixed precision.
        pair: of a sweep, which of its pairs of policies, as the result lists them.

    Returns:
        What a notebook's cells show, part by part; of a sweep that was not diagnosed, or never run,
        a sentence that says so.

    Raises:
        ParamsError: if a trace cannot be read, or a file or folder holds none.
    """
    from mptexp.report import notebook_explanation

    if not isinstance(yaml_documents.native(pair), int):
        raise ParamsError(f"pair is {shown(pair)}; allowed: an integer, as the result lists them")
    directory = SweepDir(resolved(place))
    if other is None and _names_a_sweep(directory):
        return notebook_explanation.explanation(directory, pair)
    return notebook_explanation.RecordedExplanation(
        commands.recordings([resolved(p) for p in (place, other) if p is not None])
    )


def _names_a_sweep(place: SweepDir) -> bool:
    """Whether a path leads to a sweep, or to nothing and is called as a folder is, not a file.

    Folders of others have a params.yaml and `runs` too, as those of DVC and TensorBoard: a sweep's
    has its marker, or records.
    """
    if not os.path.lexists(place.root):
        return not place.root.suffix
    return place.is_marked or any(store.record_files(part.runs) for part in place.parts)
