"""The command line: thin commands, imports inside them so that help is immediate."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from mptexp.execution.merge import Merged
    from mptexp.execution.sweep import Execution, Planned
    from mptexp.records.sweep_dir import SweepDir
    from mptexp.spec.grid import Sweep
    from mptexp.spec.run import Run

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="What does reduced precision buy on this device, in speed, memory and accuracy?",
    epilog="Example: mptexp plan params/quickstart.yaml, then mptexp run params/quickstart.yaml",
)
WIDEST = 16  # characters of a table's cell that are not wrapped
MANY = 500  # runs of a plan that are more than a terminal's table
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A params file.", show_default=False)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a default or a top-level key."),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="KEY=VALUE", help="Keep only the runs that match."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Results directory; default reports/<name of FILE>."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where downloads and prepared pictures lie; default ~/tensorflow_datasets and "
        "~/.cache/mptexp.",
    ),
]


@contextmanager
def _user_errors() -> Iterator[None]:
    """A mistake of the user's is a sentence and exit status 2, never a traceback."""
    from mptexp.spec.devices import DeviceError
    from mptexp.spec.errors import ParamsError

    try:
        yield
    except (ParamsError, DeviceError) as error:
        for line in str(error).splitlines():
            err.print(f"[bold red]error[/] {_plain(line)}", soft_wrap=True)
        raise typer.Exit(2) from None


def _allow(format: str, *allowed: str) -> None:
    from mptexp.spec.errors import ParamsError

    if format not in allowed:
        raise ParamsError(f"--format {format}: unknown; allowed: {', '.join(allowed)}")


def _plain(text: str) -> str:
    from mptexp.spec.terminal import plain

    return plain(text)


def _open(
    file: Path, overrides: list[str] | None, chosen: Path | None
) -> "tuple[Sweep, str, SweepDir, Path]":
    from mptexp.execution import max_batch, sweep
    from mptexp.records.sweep_dir import SweepDir
    from mptexp.spec import params

    found, text = params.read(file, overrides or [])
    notebook = sweep.notebook_path(found.notebook, file)
    max_batch.check(found)
    return found, text, SweepDir(chosen or Path("reports") / file.stem), notebook


@app.command(epilog="Example: mptexp plan params/quickstart.yaml --only policy=float32")
def plan(
    file: File,
    only: Only = None,
    overrides: Set = None,
    directory: Out = None,
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
) -> None:
    """Show the runs of a params file, their state and estimated cost. Executes nothing."""
    from mptexp.execution import sweep

    with _user_errors():
        _allow(format, "table", "json")
        found, _, place, notebook = _open(file, overrides, directory)
        planned = sweep.plan(found, place)
        shown = sweep.only(planned, only or [])
    if format == "json":
        runs = [
            {"run_id": p.run_id, "state": p.state, "parameters": p.run.model_dump()} for p in shown
        ]
        code = {"notebook": str(notebook), "functions": _functions(shown)}
        print(json.dumps({"runs": runs, "executes": code}, indent=1))
        return
    out.print(_plain(f"notebook: {notebook}"), soft_wrap=True)
    for name in _functions(shown):
        out.print(_plain(f"model function: {name}"), soft_wrap=True)
    _print_plan(shown, planned, found)


def _functions(shown: "list[Planned]") -> list[str]:
    """The functions of the user's own that runs call for their model, as module:function."""
    from mptexp.spec.names import MODELS

    return sorted({p.run.model for p in shown} - set(MODELS))


def _print_plan(shown: "list[Planned]", planned: "list[Planned]", found: "Sweep") -> None:
    from mptexp.execution import sweep

    axes = found.axes()
    costs, rows = sweep.Costs(planned, found), []
    for p in shown:
        cost = costs.run_s(sweep.point(p.run)) if p.due else p.wall_s
        values = [str(getattr(p.run, name)) for name in axes]
        price = "?" if cost is None else f"{'about ' if p.due else ''}{cost:.0f} s"
        rows.append([p.run_id, *values, str(p.run.block), p.state, price])
    names = ["run", *axes, "block", "state", "cost"]
    _print_many([names, *rows]) if len(rows) > MANY else _print_few(names, rows)
    due = [p for p in shown if p.due]
    out.print(f"{len(shown)} runs, {len(due)} to execute; time: {_expected(shown, found)}")


def _print_few(names: list[str], rows: list[list[str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in ("block", "cost") else "left")
    for *values, state, price in rows:
        told = f"[{_colour(state)}]{state}[/]"
        table.add_row(*map(_plain, values), told, price)
    out.print(table)


def _print_many(lines: list[list[str]]) -> None:
    """Rows as aligned text: a table that fits itself to the terminal takes a millisecond a row."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        print("  ".join(padded).rstrip())


def _colour(state: str) -> str:
    return {"ok": "green", "pending": "cyan", "elsewhere": "dim"}.get(state, "red")


def _expected(planned: "list[Planned]", found: "Sweep") -> str:
    from mptexp.execution import sweep

    seconds = sweep.remaining_s(planned, found)
    return "unknown until the first run has ended" if seconds is None else f"about {_time(seconds)}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@app.command(
    epilog="Example: mptexp run params/quickstart.yaml --set epochs=2 --only batch_size=32 "
    "--out reports/try"
)
def run(
    file: File,
    only: Only = None,
    overrides: Set = None,
    directory: Out = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard earlier results.")] = False,
    retries: Annotated[
        int, typer.Option(metavar="N", min=0, help="Try a run that failed again, N times.")
    ] = 0,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast/--keep-going", help="Stop at the first run that failed.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="MIN", min=0.01, help="End a run after MIN minutes; see timeout_min."),
    ] = None,
    parallel: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="N runs at a time on a CPU: their timings are void."),
    ] = 1,
    executor: Annotated[
        str, typer.Option(help="local, or ray: on the devices of a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of the Ray cluster's head, or auto.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Make no report.")] = False,
    data_dir: DataDir = None,
    format: Annotated[
        str, typer.Option(help="text, or json: a line of JSON per ended run; the text to stderr.")
    ] = "text",
) -> None:
    """Execute the runs of a params file that are missing, then make the report.

    A machine's GPUs each take one run at a time.

    Exit status: 0 when every run came to an end, 1 when some failed and would run again, 2 for
    wrong input, 130 when stopped with Ctrl-C; the same command then goes on.
    """
    from mptexp.execution import cluster, devices, sweep

    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _as_interrupt)
    with _user_errors():
        _allow(format, "text", "json")
        if format == "json":
            out.file = sys.stderr
        found, text, place, notebook = _open(file, overrides, directory)
        devices.slots(parallel)  # refuses what cannot be
        seconds = (timeout or found.timeout_min) * 60
        how = sweep.Execution(seconds, retries, parallel, executor, data_dir, fail_fast)
        cluster.check(how, address, found.max_batch)
        on_ray = executor == "ray"
        # Wrong filters, data and models end here, nothing written.
        before = sweep.only(sweep.plan(found, place, on_ray), only or [])
        wanted = [p for p in before if p.due or fresh]
        if on_ray:
            cluster.connect(address, [p.run.gpu_model for p in wanted])
        else:
            sweep.make_ready(wanted, data_dir)
        with sweep.locked(place):
            sweep.prepare(place, text, fresh and not only)
            if fresh:
                sweep.discard(sweep.only(sweep.plan(found, place), only or []), place, on_ray)
            searched = _search(found, before, notebook, place, fresh)
            chosen = sweep.only(sweep.plan(found, place, on_ray), only or [])
            _name_damaged(chosen, place)
            _execute(
                chosen, found, notebook, place, how, told=_as_json if format == "json" else None
            )
    if not no_report and any(place.runs.iterdir()):
        with _user_errors():
            _report(place)
    _exit(found, place, only, searched, on_ray)


def _exit(
    found: "Sweep", place: "SweepDir", only: list[str] | None, searched: bool, everywhere: bool
) -> None:
    """Says what is left to do; exit status 1 where something is."""
    from mptexp.execution import sweep

    chosen = sweep.only(sweep.plan(found, place, everywhere), only or [])
    left = [p for p in chosen if p.due]
    if not searched:
        out.print("the search for the largest batch did not end; the same command goes on with it")
    if left:
        out.print(f"{len(left)} of {len(chosen)} runs failed; the same command tries them again")
    if left or not searched:
        raise typer.Exit(1)


def _search(
    found: "Sweep", chosen: "list[Planned]", notebook: Path, place: "SweepDir", fresh: bool
) -> bool:
    """Finds the largest batch for the chosen runs' points; returns whether all searches ended."""
    from mptexp.execution import max_batch

    if not found.max_batch:
        return True
    runs = [p.run for p in chosen]
    if fresh:
        max_batch.forget(found, runs, place)
    ended = True
    try:
        for run, record in max_batch.search(found, runs, notebook, place, found.timeout_min * 60):
            if record is None:
                continue
            told = {"ok": "fits", "diverged": "fits"}.get(record["status"])
            ended &= record["status"] in max_batch.FITS
            words = told or f"{record['status']}: {record['error']}"
            text = f"largest batch: {run.policy}, batch size {run.batch_size}: {words}"
            out.print(_plain(text), soft_wrap=True, style=None if told else "yellow")
    except KeyboardInterrupt:
        err.print("stopped: the attempts made so far are kept; the same command goes on")
        raise typer.Exit(130) from None
    except OSError as error:
        _no_room(place, error)
    return ended


def _as_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _name_damaged(chosen: "list[Planned]", place: "SweepDir") -> None:
    from mptexp.records import outcomes, store

    for path in [place.record(p.run_id) for p in chosen if p.state == outcomes.DAMAGED]:
        try:
            store.read_record(path)
        except store.RecordError as error:
            out.print(f"{_plain(str(error))}: the run is executed again", soft_wrap=True)


def _execute(
    chosen: "list[Planned]",
    found: "Sweep",
    notebook: Path,
    place: "SweepDir",
    how: "Execution",
    told: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    due = [p for p in chosen if p.due]
    done = len(chosen) - len(due)
    if done:
        out.print(f"{done} of {len(chosen)} runs are done already or belong elsewhere")
    if not due:
        return
    what = f"{len(due)} {'run' if len(due) == 1 else 'runs'} of {_plain(notebook.stem)}"
    out.print(
        f"{what} into {_plain(str(place.root))}, {_expected(chosen, found)} "
        "(Ctrl-C stops; the same command goes on)",
        soft_wrap=True,
    )
    _execute_all(due, found, notebook, place, how, told)


def _execute_all(
    due: "list[Planned]",
    found: "Sweep",
    notebook: Path,
    place: "SweepDir",
    how: "Execution",
    told: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Executes runs and shows their progress; `told` takes the record of each that has ended."""
    from mptexp.execution import remote, sweep
    from mptexp.execution.progress import Progress
    from mptexp.records import schema

    execute = remote.execute if how.executor == "ray" else sweep.execute
    progress = Progress(out, due, found)
    try:
        with progress:
            for planned, record in execute(due, notebook, found.notebook, place, how):
                progress.show(planned, record)
                if record and told:
                    told(record)
                if how.fail_fast and record and record["status"] not in schema.FINAL:
                    left = len(due) - progress.ended
                    out.print(f"stopped at the first run that failed, {left} not executed")
                    break
    except KeyboardInterrupt:
        ready = f"{progress.ended} of {len(due)} runs finished and kept"
        err.print(f"stopped: {ready}; the same command goes on")
        raise typer.Exit(130) from None
    except remote.NodesLost as error:
        err.print(f"[bold red]error[/] {_plain(str(error))}; the same command goes on with them")
        raise typer.Exit(1) from None
    except OSError as error:
        _no_room(place, error)


def _as_json(record: dict[str, Any]) -> None:
    names = ("run_id", "status", "error", "wall_s", "parameters", "timing")
    print(json.dumps({name: record.get(name) for name in names}), flush=True)


def _no_room(place: "SweepDir", error: OSError) -> None:
    """Ends a sweep whose directory takes no more files."""
    reason = f"{place.root}: no result can be written: {error.strerror or error}"
    kept = "what is finished is kept; mend this, and the same command goes on"
    err.print(f"[bold red]error[/] {_plain(reason)}; {kept}", soft_wrap=True)
    raise typer.Exit(1) from None


@app.command(
    epilog="Example: mptexp diagnose params/quickstart.yaml, or mptexp diagnose reports/quickstart"
)
def diagnose(
    target: Annotated[
        Path, typer.Argument(metavar="FILE|DIR", help="A params file, or a sweep's directory.")
    ],
    only: Only = None,
    overrides: Set = None,
    directory: Out = None,
    traces_only: Annotated[
        bool, typer.Option("--traces-only", help="Trace steps; make no ablations.")
    ] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Make no report.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Find out why a policy was faster, or why it was not: time breakdown, ablations, verdict.

    Of a params file, runs what is missing of its sweep first. Every point is diagnosed at the
    largest batch size that both policies reached; --only chooses others. Exit status as of run.
    """
    from mptexp.execution import sweep
    from mptexp.records.sweep_dir import SweepDir

    finished = target.is_dir()
    with _user_errors():
        file = SweepDir(target).params if finished else target
        found, text, place, notebook = _open(file, overrides, target if finished else directory)
        before = sweep.only(sweep.plan(found, place), only or [])
        sweep.make_ready(before, data_dir)
        with sweep.locked(place):
            sweep.prepare(place, text, fresh=False)
            if not finished:
                how = sweep.Execution(found.timeout_min * 60)
                _execute(before, found, notebook, place, how)
            ended = _diagnose(found, before, notebook, place, traces_only)
    if not no_report:
        with _user_errors():
            _report(place)
    if not ended:
        out.print("some runs of the diagnosis failed; the same command tries them again")
        raise typer.Exit(1)


def _diagnose(
    found: "Sweep",
    chosen: "list[Planned]",
    notebook: Path,
    place: "SweepDir",
    traces_only: bool,
) -> bool:
    """Traces steps, then makes the ablations that the traces ask for; whether all runs ended."""
    from mptexp.analysis import sweep_tables
    from mptexp.diagnosis import proposals
    from mptexp.diagnosis.pairs import pairs as pairs_of
    from mptexp.report.why_tables import reason
    from mptexp.spec.errors import ParamsError

    tables = sweep_tables.load(place)
    pairs = pairs_of(tables, [p.run_id for p in chosen])
    if not pairs:
        raise ParamsError(
            f"{place.root}: no point was trained well under both a baseline (the device's default "
            "or float32) and another policy, so there is nothing to diagnose; see its results.csv"
        )
    traced = [run for pair in pairs for run in pair.traced]
    ended = _extra("runs whose steps are traced", traced, found, notebook, place)
    if traces_only:
        return ended
    asked = [(pair, proposals.proposed(pair, place, tables)) for pair in pairs]
    for pair, wanted in asked:
        for ablation in wanted:
            what = f"worth trying, {pair.candidate.policy}: {ablation.name} ({reason(ablation)})"
            out.print(_plain(what), soft_wrap=True)
    for block in range(found.repeats):
        runs = [run for pair, wanted in asked for run in proposals.runs(pair, wanted, block)]
        of = f"ablations and controls, block {block + 1} of {found.repeats}"
        ended &= _extra(of, runs, found, notebook, place)
        asked = [(p, proposals.promising(p, wanted, place, tables)) for p, wanted in asked]
    return ended


def _extra(what: str, runs: "list[Run]", found: "Sweep", notebook: Path, place: "SweepDir") -> bool:
    """Executes runs of the diagnosis that are missing, their cost said first; whether all ended."""
    from mptexp.execution import sweep

    runs = list(dict.fromkeys(runs))
    before = sweep.states(runs, found, place.diagnosis)
    due = [p for p in before if p.due]
    elsewhere = {p.run.gpu_model for p in before if p.state == "elsewhere"}
    for device in sorted(elsewhere):
        out.print(f"diagnosis: {what} on {_plain(device)} can be made on such a device only")
    if due:
        known = [*sweep.plan(found, place), *before]
        costs = sweep.Costs(known, found)
        seconds = [costs.run_s(sweep.point(p.run)) or 0 for p in due]
        out.print(f"diagnosis: {len(due)} {what}, {_about(sum(seconds))}")
        how = sweep.Execution(found.timeout_min * 60)
        _execute_all(due, found, notebook, place.diagnosis, how)
    return not any(p.due for p in sweep.states(runs, found, place.diagnosis))


def _about(seconds: float) -> str:
    return f"about {_time(seconds)}" if seconds else "time unknown"


@app.command(
    epilog="Example: mptexp advise params/mine.yaml, or with --set model=my_models:build "
    "--set dataset=folder:photos"
)
def advise(
    file: File,
    only: Only = None,
    overrides: Set = None,
    directory: Out = None,
    steps: Annotated[
        int, typer.Option(metavar="N", min=25, help="Steps of the probe, in float32.")
    ] = 100,
    data_dir: DataDir = None,
) -> None:
    """Say which policy and loss scale a model needs on its data, from a short training in float32.

    Of a params file, probes the first run, or the first that matches --only. The gradients'
    exponents, which are the evidence, are in the report; default reports/<name of FILE>-advice.
    """
    from mptexp.analysis import advice, exponent_range, sweep_tables
    from mptexp.execution import sweep
    from mptexp.records.sweep_dir import SweepDir
    from mptexp.spec.run import Run

    with _user_errors():
        place = directory or Path("reports") / f"{file.stem}-advice"
        found, _, _, notebook = _open(file, overrides, place)
        planned = sweep.only(sweep.plan(found, SweepDir(place)), only or [])
        order = [Run(**point).resolved().run_id(found.notebook) for point in found.points()]
        asked = min((p for p in planned if p.run_id in order), key=lambda p: order.index(p.run_id))
        probe, text = advice.probe(asked.run, found.notebook, steps, found.timeout_min)
        chosen = sweep.plan(probe, SweepDir(place))
        sweep.make_ready(chosen, data_dir)
        with sweep.locked(SweepDir(place)):
            sweep.prepare(SweepDir(place), text, fresh=False)
            how = sweep.Execution(probe.timeout_min * 60)
            _execute(chosen, probe, notebook, SweepDir(place), how)
        _report(SweepDir(place))
    seen = exponent_range.seen(sweep_tables.load(SweepDir(place)).records)
    if not seen:
        out.print("the probe did not end well, so there is no advice; see its report")
        raise typer.Exit(1)
    told = advice.advise(seen[0])
    out.print(f"[bold]{_plain(told.sentence)}[/]", soft_wrap=True)
    for sentence in [*told.reasons, *exponent_range.sentences(seen[0])]:
        out.print(f"  {_plain(sentence)}", soft_wrap=True)


@app.command(epilog="Example: mptexp report reports/quickstart")
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's directory.")],
) -> None:
    """Make the report of a sweep again, from its records alone."""
    from mptexp.records.sweep_dir import SweepDir

    with _user_errors():
        _report(SweepDir(directory))


def _report(place: "SweepDir") -> None:
    from mptexp.execution import sweep
    from mptexp.report import page as reports
    from mptexp.spec.errors import ParamsError

    with _working("making the report"):
        try:
            index = reports.build(place, sweep.notebook_path("report", place.params))
        except OSError as error:
            raise ParamsError(f"{place.root}: no report could be written: {error}") from None
    out.print(f"report: {_plain(str(index))}", soft_wrap=True)


@app.command(epilog="Example: mptexp traces reports/why_no_speedup")
def traces(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's directory.")],
) -> None:
    """Read the traces that runs with profile kept where xprof is missing; make the report again.

    Exit status 1 where a trace could not be read; its record stays as it was.
    """
    from mptexp.execution import read_traces
    from mptexp.records.sweep_dir import SweepDir
    from mptexp.report import wording

    place = SweepDir(directory)
    with _user_errors(), _written(directory):
        with _working("reading traces"):
            number, faults = read_traces.read(place)
        out.print(_plain(f"{directory}: {wording.count(number, 'trace')} read"), soft_wrap=True)
        _warn(faults, "not read")
        _report(place)
    if faults:
        raise typer.Exit(1)


@contextmanager
def _working(text: str) -> Iterator[None]:
    """Says on a terminal what takes a while."""
    with out.status(text) if out.is_terminal else nullcontext():
        yield


@app.command(
    epilog="Example: mptexp publish reports/published --to site --url https://me.github.io/mptexp"
)
def publish(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Sweeps' directories, or folders of them."),
    ],
    site: Annotated[
        Path, typer.Option("--to", metavar="SITE", help="A new folder, or an earlier site.")
    ],
    url: Annotated[
        str,
        typer.Option(metavar="URL", help="Where the site will be: shared links show a figure."),
    ] = "",
) -> None:
    """Make a static site: an index of all reports, each report, its notebooks and its data.

    Made from the records alone, the same bytes for the same records. Exit status 1 where a record
    is damaged and was left out.
    """
    from mptexp.execution import sweep
    from mptexp.report import site as publishing

    with _user_errors(), _written(site):
        notebook = sweep.notebook_path("report", directories[0])
        with _working("making the site"):
            damaged = publishing.publish(directories, site, notebook, url)
    out.print(f"site: {_plain(str(site / 'index.html'))}", soft_wrap=True)
    _left_out(damaged, "not published")


@app.command(epilog="Example: mptexp export reports/quickstart --to article")
def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's directory.")],
    folder: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Where the files go.")],
) -> None:
    """Write tables as Markdown and CSV, figures as SVG and PNG, and a draft that shows them.

    Exit status 1 where a record is damaged and was left out.
    """
    from mptexp.records.sweep_dir import SweepDir
    from mptexp.report import export as exporting

    with _user_errors(), _written(folder):
        damaged = exporting.export(SweepDir(directory), folder)
    out.print(f"draft: {_plain(str(folder / 'draft.md'))}", soft_wrap=True)
    _left_out(damaged, "not exported")


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    """Says in a sentence that a folder takes no files."""
    from mptexp.spec.errors import ParamsError

    try:
        yield
    except OSError as error:
        raise ParamsError(f"{folder}: could not be written: {error}") from None


def _left_out(damaged: list[str], what: str) -> None:
    _warn(damaged, what)
    if damaged:
        raise typer.Exit(1)


def _warn(damaged: list[str], what: str) -> None:
    for sentence in damaged:
        err.print(f"[yellow]{what}[/] {_plain(sentence)}", soft_wrap=True)


@app.command(epilog="Example: mptexp compare reports/a100 reports/h100 --format markdown")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A sweep's directory.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another's: other device, versions.")],
    format: Annotated[str, typer.Option(help="table, markdown or json.")] = "table",
) -> None:
    """Set two sweeps side by side: the points that both measured, and what else differs."""
    from mptexp.analysis import compare as compared
    from mptexp.records.sweep_dir import SweepDir
    from mptexp.spec.errors import ParamsError

    with _user_errors():
        _allow(format, "table", "markdown", "json")
        left, right = compared.load(SweepDir(a), SweepDir(b))
        points, differences = compared.points(left, right), compared.differences(left, right)
        if points.empty:
            why = compared.obstacles(left, right) or "see their results.csv"
            raise ParamsError(f"{a} and {b}: no point was measured well in both: {why}")
    if format == "json":
        told = {"points": points, "differences": differences}
        shown = {name: json.loads(t.to_json(orient="records")) for name, t in told.items()}
        print(json.dumps({"a": str(a), "b": str(b), **shown}, indent=1))
        return
    _print_rows(f"A is {a}, B is {b}", compared.table(points), format)
    if differences.empty:
        out.print("Nothing else differs.")
    else:
        print()
        _print_rows("What else differs", differences, format)


def _print_rows(title: str, rows: "pd.DataFrame", format: str) -> None:
    from mptexp.report import text_tables

    if format == "markdown":
        print(f"**{title}**\n\n{text_tables.markdown(rows)}")
        return
    cells = [[_plain(str(v)) for v in values] for values in rows.to_numpy().tolist()]
    if not _fits(rows):
        cells = [[_stacked(cell) for cell in line] for line in cells]
    table = Table(
        title=_plain(title), title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for name, column in zip(rows, zip(*cells, strict=True), strict=True):
        widest = max(len(line) for cell in column for line in cell.split("\n"))
        least = min(widest, WIDEST)  # rather than a value, a heading is wrapped
        table.add_column(_plain(str(name)), overflow="fold", min_width=least)
    for line in cells:
        table.add_row(*line)
    out.print(table)


def _fits(rows: "pd.DataFrame") -> bool:
    """Whether every row can stand in a line of the terminal, two spaces between columns."""
    widest = [rows[name].astype(str).str.len().max() + 2 for name in rows]
    return sum(widest) <= out.width


def _stacked(cell: str) -> str:
    """A's value above B's; ratio, interval and n below one another."""
    return re.sub(r" (\\?[\[(])(?=\d|n = )", r"\n\1", cell.replace(" | ", "\n"))


@app.command(epilog="Example: mptexp merge reports/a100 reports/h100 --out reports/all")
def merge(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Directories of one params file.")
    ],
    directory: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="One of them, a new or an empty one.")
    ],
    prefer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The one that decides where records differ."),
    ] = None,
) -> None:
    """Copy the directories that several machines made of one params file together into one.

    A run that came to an end goes before one that would run again. Where two hold different
    records of a run, nothing is written and the exit status is 2; it is 1 where a record is damaged
    and was left out.
    """
    from mptexp.execution import merge as merging

    with _user_errors():
        try:
            done = merging.merge(directories, directory, prefer)
        except OSError as error:
            err.print(f"[bold red]error[/] {_plain(str(directory))}: {_plain(str(error))}")
            raise typer.Exit(1) from None
        missing = dict(merging.missing(directory))
    _print_merged(done, missing, directory)
    if done.damaged:
        raise typer.Exit(1)


def _print_merged(done: "Merged", missing: dict[str, int], directory: Path) -> None:
    from mptexp.report import wording

    total = wording.count(done.kept + sum(done.copied.values()), "run")
    taken = [f"{n} from {name}" for name, n in done.copied.items()]
    parts = ", ".join([*taken, *([f"{done.kept} were there"] if done.kept else [])])
    out.print(_plain(f"{directory}: {total}{f': {parts}' if parts else ''}"), soft_wrap=True)
    for sentence in done.damaged:
        err.print(f"[yellow]not merged[/] {_plain(sentence)}", soft_wrap=True)
    if missing:
        left = wording.count(sum(missing.values()), "run")
        on = ", ".join(f"{n} on {name}" for name, n in missing.items())
        out.print(_plain(f"{left} without a result yet: {on}"), soft_wrap=True)


@app.command(epilog="Example: mptexp doctor --backend jax")
def doctor(
    backend: Annotated[str, typer.Option(help="tensorflow, jax or torch.")] = "tensorflow",
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
) -> None:
    """Say what this machine has: device, 16-bit support, driver, libraries, versions."""
    from mptexp.spec.errors import ParamsError

    with _user_errors():
        if backend not in ("tensorflow", "jax", "torch"):
            raise ParamsError(f"--backend {backend}: unknown; allowed: tensorflow, jax, torch")
        _allow(format, "table", "json")
        with _working(f"asking {backend} and the system"):
            card = _card(backend)
    print(json.dumps(card, indent=1)) if format == "json" else _print_card(card)


def _card(backend: str) -> dict[str, Any]:
    """The environment card from a child process: a framework keeps hold of the GPU it looks at."""
    from mptexp.spec.errors import ParamsError

    command = [sys.executable, "-m", "mptexp.training.environment", backend]
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        lines = child.stderr.strip().splitlines() or ["it said nothing"]
        raise ParamsError(f"doctor: {backend} could not be asked: {lines[-1]}")
    return dict(json.loads(child.stdout.strip().splitlines()[-1]))


def _print_card(card: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _card_lines(card):
        table.add_row(name, _plain(value))
    out.print(table)
    for advice in card["advice"]:
        out.print(f"[yellow]note[/] {_plain(advice)}", soft_wrap=True)


def _card_lines(card: dict[str, Any]) -> list[tuple[str, str]]:
    capability = ".".join(map(str, card["capability"] or [])) or "none"
    yes = {True: "native", False: "emulated or absent"}
    return [
        ("device", card["device"]),
        ("compute capability", capability),
        ("Tensor Cores", card["tensor_cores"]),
        ("driver", card["driver"] or "not found"),
        ("CUDA, cuDNN", f"{card['cuda'] or 'not found'}, {card['cudnn'] or 'not found'}"),
        ("CPU", f"{card['cpu']}, {card['cores']} cores in use"),
        ("instruction sets", " ".join(card["instruction_sets"]) or "unknown"),
        *[(name, yes[native]) for name, native in card["native"].items()],
        ("TF32", card["tf32"]),
        ("default policy", card["default_policy"]),
        ("determinism", card["determinism"]),
        ("memory", f"{card['memory_bytes'] / 2**30:.0f} GiB"),
        ("limits of the container", _limits(card)),
        ("frequency governor", card["governor"] or "not told"),
        ("load", f"{card['load']:.1f}"),
        ("system", f"{card['os']}, Python {card['python']}"),
        ("packages", ", ".join(f"{n} {v}" for n, v in card["packages"].items())),
        ("variables", ", ".join(f"{n}={v}" for n, v in card["variables"].items()) or "none set"),
    ]


def _limits(card: dict[str, Any]) -> str:
    cpus, memory = card["container_cpus"], card["container_memory_bytes"]
    found = [f"{cpus:g} processors"] if cpus else []
    found += [f"{memory / 2**30:.1f} GiB"] if memory else []
    return ", ".join(found) or "none"


def main() -> None:
    """Entry point of the `mptexp` command."""
    app(prog_name="mptexp")


if __name__ == "__main__":
    main()
