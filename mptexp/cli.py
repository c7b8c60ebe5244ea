"""The command line: each command parses its words, calls `api` and prints what it returns.

Imports of what is heavy are inside the functions, so that help is immediate.
"""

import functools
import inspect
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptexp.spec import terminal
from mptexp.spec.errors import ParamsError, Stopped, UserError
from mptexp.spec.terminal import Stdout, plain

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from mptexp.execution.job import Job


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,  # rich's help takes as long to import as all the rest
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: mptexp plan quickstart, then mptexp run quickstart",
)
HALF = re.compile("[\ud800-\udfff]")  # as Python reads a byte of a name that is not UTF-8


def _console(**how: bool) -> "Console":
    from rich.console import Console  # only when something is printed: it is slow to import

    return Console(highlight=False, emoji=False, **how)


@cache
def out() -> "Console":
    """The terminal, for results."""
    return _console()


@cache
def progress() -> "Console":
    """The terminal, for what a command says while it works: nothing with --quiet."""
    return _console()


@cache
def err() -> "Console":
    """The terminal, for errors."""
    return _console(stderr=True)


File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A params file, or a study's name: quickstart, ...")
]
Dir = Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's directory.")]
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
        help="Where downloads and prepared images lie; default ~/tensorflow_datasets and "
        "~/.cache/mptexp.",
    ),
]
Repair = Annotated[
    bool,
    typer.Option("--repair", help="Measure comparisons again whose flags that can cure, whole."),
]
Notebook = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A notebook that makes the report, in place of mptexp's."),
]
NoReport = Annotated[bool, typer.Option("--no-report", help="Make no report.")]


COMMON = {
    "quiet": (bool, typer.Option("--quiet", "-q", help="Print results and errors alone.")),
    "verbose": (bool, typer.Option("--verbose", "-v", help="Show where an error came from.")),
    "no_color": (bool, typer.Option("--no-color", help="No colours; so does NO_COLOR.")),
}


def command(example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a command, whose mistakes and interruptions end in a sentence and a status."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def guarded(
            *words: Any, quiet: bool, verbose: bool, no_color: bool, **options: Any
        ) -> None:
            for ending in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(ending) == signal.SIG_DFL:  # nohup ignores one
                    signal.signal(ending, _as_interrupt)
            if quiet:
                progress().quiet = True
            if no_color:
                os.environ["NO_COLOR"] = "1"  # for the processes that it starts as well
            try:
                _check_surroundings()
                function(*words, **options)
            except (Exception, KeyboardInterrupt) as error:
                _end(error, verbose)

        own = inspect.signature(function)
        common = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
            for name, kind in ((n, Annotated[row]) for n, row in COMMON.items())
        ]
        guarded.__signature__ = own.replace(parameters=[*own.parameters.values(), *common])
        guarded.__annotations__ |= {each.name: each.annotation for each in common}
        name = example.split()[0]
        return app.command(name, epilog=f"Example: mptexp {example}")(guarded)

    return register


def _check_surroundings() -> None:
    """Refuses what no command can work with, once for all of them.

    Raises:
        ParamsError: where a word or the working directory is not text, that directory is gone, or
            there is no home directory, in which caches and settings lie.
    """
    try:
        here = os.getcwd()
    except OSError:
        raise ParamsError("the working directory was removed; change to another") from None
    for text in (*sys.argv[1:], here):
        if HALF.search(text):
            raise ParamsError(f"{text}: is not UTF-8; rename it, or set LC_ALL=C.UTF-8")
    if os.path.expanduser("~") == "~":
        raise ParamsError("this user has no home directory; set HOME to a folder")


def _version(asked: bool) -> None:
    if asked:
        from mptexp import __version__

        print(f"mptexp {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it, and end.")
    ] = False,
) -> None:
    """What does reduced precision buy on this device, in speed, memory and accuracy?"""


def _as_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _end(error: BaseException, verbose: bool = False) -> None:
    """Ends the command where an error's message says all: never with a traceback."""
    from mptexp.api import Interrupted

    if isinstance(error, Interrupted):
        err().print(f"stopped: {error.kept}; the same command goes on")
        raise typer.Exit(130) from None
    if isinstance(error, KeyboardInterrupt):
        err().print("stopped; the same command begins anew")
        raise typer.Exit(130) from None
    if isinstance(error, OSError) and error.filename:  # a name too long, a folder without rights
        error = ParamsError(f"{error.filename}: {error.strerror}")
    if not isinstance(error, UserError):
        raise error
    if verbose:
        traceback.print_exception(error)
    for line in str(error).splitlines():
        err().print(f"[bold red]error[/] {plain(line)}", soft_wrap=True)
    raise typer.Exit(1 if isinstance(error, Stopped) else 2) from None


def _allow(format: str, *allowed: str) -> None:
    if format not in allowed:
        raise ParamsError(f"--format {format}: unknown; allowed: {', '.join(allowed)}")


def _say(text: str) -> None:
    out().print(plain(text), soft_wrap=True)


def _left_out(sentences: Sequence[str], what: str) -> None:
    """Prints what was left out, to standard error; exit status 1 where something was."""
    for sentence in sentences:
        err().print(f"[yellow]{what}[/] {plain(sentence)}", soft_wrap=True)
    if sentences:
        raise typer.Exit(1)


@contextmanager
def _working(text: str) -> Iterator[None]:
    """Shows on a terminal what takes a while."""
    with progress().status(text) if progress().is_terminal else nullcontext():
        yield


# --- sweeps ----------------------------------------------------------------------------------


@command("init first, then cd first && mptexp plan mine.yaml")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where; here if not given.")
    ] = Path(),
    study: Annotated[
        str, typer.Option(metavar="NAME", help="Begin with a study that mptexp ships.")
    ] = "",
) -> None:
    """Write a params file to begin with, its model, and the schema that editors check it by."""
    from mptexp import api

    for file in api.init(folder, study):
        print(file)


@command("plan params/quickstart.yaml --only policy=float32")
def plan(
    file: File,
    only: Only = None,
    overrides: Set = None,
    directory: Out = None,
    repair: Repair = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Look at no data of yours, build no model of yours.")
    ] = False,
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
) -> None:
    """Show the runs of a params file, their state and cost.

    Executes none. A model of your own is built and its head checked, and your data looked at, so
    that a mistake costs seconds.
    """
    from mptexp import api
    from mptexp.execution import preparation
    from mptexp.report import terminal_tables
    from mptexp.spec.names import MODELS

    _allow(format, "table", "json")
    job = api.open_sweep(file, directory, overrides or [])
    chosen, rows = api.planned(job, only or [], api.curable(job) if repair else ())
    due = [p.run for p in chosen if p.due]
    if not fast and any(map(preparation.key, due)):
        with _working("looking at data and model"):
            api.look(due)
    # What a params file executes beside the package's own code, for who did not write it.
    functions = sorted({p.run.model for p in chosen} - set(MODELS))
    if format == "json":
        runs = [
            {"run_id": p.run_id, "state": p.state, "parameters": p.run.model_dump()} for p in chosen
        ]
        code: dict[str, Any] = {"notebook": str(job.notebook), "functions": functions}
        code["import_path"] = [str(Path.cwd())] if functions else []
        print(json.dumps({"runs": runs, "executes": code}, indent=1))
        return
    _say(f"notebook: {job.notebook}")
    for name in functions:
        _say(f"model function: {name}")
    if functions:
        _say(f"modules are imported from: {Path.cwd()}")
    terminal_tables.plan(out(), rows)
    out().print(
        f"{len(chosen)} runs, {len(due)} to execute; time: {api.expected(chosen, job.sweep)}"
    )


@command("run params/quickstart.yaml --set epochs=2 --only batch_size=32 --out reports/try")
def run(
    file: File,
    only: Only = None,
    overrides: Set = None,
    directory: Out = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard earlier results.")] = False,
    repair: Repair = False,
    retries: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=1000, help="Try a run that failed again, N times."),
    ] = 0,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast/--keep-going", help="Stop at the first run that failed.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="MIN", min=0.01, max=1e6, help="End a run after MIN minutes; see timeout_min."
        ),
    ] = None,
    parallel: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=1024, help="N runs at a time on a CPU: timings not valid."
        ),
    ] = 1,
    executor: Annotated[
        str, typer.Option(help="local, or ray: on the devices of a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of the Ray cluster's head, or auto.")
    ] = None,
    no_report: NoReport = False,
    data_dir: DataDir = None,
    format: Annotated[
        str,
        typer.Option(help="text, or json: a line per run, then per comparison; text to stderr."),
    ] = "text",
) -> None:
    """Execute the runs of a params file that are missing, then make the report.

    A machine's GPUs each take one run at a time.

    Exit status: 0 when every run came to an end, 1 when some failed and would run again, 2 for
    wrong input, 130 when stopped with Ctrl-C; the same command then goes on.
    """
    from mptexp import api

    _allow(format, "text", "json")
    if format == "json":
        out().file = progress().file = sys.stderr
    job = api.open_sweep(file, directory, overrides or [])
    seconds = (timeout or job.sweep.timeout_min) * 60
    how = api.Execution(seconds, retries, parallel, executor, data_dir, fail_fast)
    output = api.Output(progress(), on_record=_print_json if format == "json" else None)
    flagged = _flagged(job, fresh) if repair else frozenset()
    if not fresh and executor == "local":  # on a cluster each node has an environment of its own
        _name_changes(job, only or [], data_dir)
    left = api.execute(job, only or [], fresh, how, address, output, flagged)
    if format == "json":
        for row in api.claims(job):
            print(json.dumps({"comparison": row}))
    if not no_report and any(job.directory.runs.iterdir()):
        _report(job.directory.root)
    if not left.searched:
        out().print(
            "the search for the largest batch did not end; the same command goes on with it"
        )
    if left.due:
        out().print(f"{left.due} of {left.runs} runs failed; the same command tries them again")
    if left.due or not left.searched:
        raise typer.Exit(1)


def _flagged(job: "Job", fresh: bool) -> frozenset[str]:
    """The runs that --repair is about; a line where there are none."""
    from mptexp import api

    if fresh:
        raise ParamsError("--repair and --fresh: one keeps what is valid, the other discards all")
    flagged = api.curable(job)
    if not flagged:
        _say(f"{job.directory.root}: no run has a flag that another measurement could cure")
    return flagged


def _name_changes(job: "Job", only: Sequence[str], data_dir: Path | None) -> None:
    """Says what is no longer as it was when the runs in the sweep's directory were measured."""
    from mptexp import api

    if differences := api.changed(job, only, data_dir):
        from mptexp.report import caveats

        for sentence in caveats.changed(str(job.directory.root), differences):
            out().print(f"[yellow]{plain(sentence)}[/]", soft_wrap=True)


def _print_json(record: Mapping[str, Any]) -> None:
    from mptexp.analysis import validity

    names = ("run_id", "status", "error", "wall_s", "parameters", "timing")
    flags = validity.of_record(record) if record.get("status") == "ok" else []
    print(json.dumps({name: record.get(name) for name in names} | {"flags": flags}), flush=True)


@command("diagnose params/quickstart.yaml, or mptexp diagnose reports/quickstart")
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
    no_report: NoReport = False,
    data_dir: DataDir = None,
) -> None:
    """Find out why a policy was faster, or why it was not: time breakdown, ablations, verdict.

    Of a params file, runs what is missing of its sweep first. Every point is diagnosed at the
    largest batch size that both policies reached; --only chooses others. Exit status as of run.
    """
    from mptexp import api

    job, finished = api.open_diagnosis(target, directory, overrides or [])
    ended = api.execute_diagnosis(
        job, only or [], traces_only, finished, data_dir, api.Output(progress())
    )
    if not no_report:
        _report(job.directory.root)
    if not ended:
        out().print("some runs of the diagnosis failed; the same command tries them again")
        raise typer.Exit(1)


@command("explain profile/ or mptexp explain float32.json.gz mixed.json.gz --out page.html")
def explain(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A profiler's trace, or a directory with one.")
    ],
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="A second one: mixed, or after.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write one HTML page.")
    ] = None,
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
) -> None:
    """Say what bounds a training of yours, from a trace of PyTorch, JAX, TensorFlow or Nsight.

    Reads *.xplane.pb, PyTorch's *.json, both also as .gz, Nsight Systems' *.sqlite, or a directory
    that holds some. Two traces are compared, such as float32 with mixed precision.
    """
    from mptexp import api
    from mptexp.report import recordings, terminal_tables

    _allow(format, "table", "json")
    with _working("reading the trace"):
        read = api.recordings([path for path in (trace, other) if path is not None])
    if page is not None:
        api.write_page(page, recordings.page(read))
    if format == "json":
        print(json.dumps(recordings.content(read), indent=1))
        return
    out().print(f"[bold]{plain(recordings.verdict(read))}[/]", soft_wrap=True)
    for each in read:
        for note in recordings.notes(each):
            _say(f"  {each.file if other else 'note'}: {note}")
    for heading, table in recordings.tables(read).items():
        print()
        terminal_tables.rows(out(), heading, table)
    if page is not None:
        _say(f"page: {page}")


@command("advise params/mine.yaml, or with --set model=my_models:build --set dataset=folder:photos")
def advise(
    file: File,
    only: Only = None,
    overrides: Set = None,
    directory: Out = None,
    steps: Annotated[
        int, typer.Option(metavar="N", min=25, max=10**6, help="Steps of the probe, in float32.")
    ] = 100,
    data_dir: DataDir = None,
) -> None:
    """Say which policy and loss scale a model needs on its data, from a short training in float32.

    Of a params file, probes the first run, or the first that matches --only. The gradients'
    exponents, which are the evidence, are in the report; default reports/<name of FILE>-advice.
    """
    from mptexp import api

    place = directory or Path("reports") / f"{file.stem}-advice"
    job = api.open_sweep(file, place, overrides or [])
    sentences = api.advise(job, only or [], steps, data_dir, api.Output(progress()))
    _report(place)
    if not sentences:
        out().print("the probe did not end well, so there is no advice; see its report")
        raise typer.Exit(1)
    out().print(f"[bold]{plain(sentences[0])}[/]", soft_wrap=True)
    for sentence in sentences[1:]:
        _say(f"  {sentence}")


# --- reports ---------------------------------------------------------------------------------


@command("report reports/quickstart")
def report(
    directory: Dir,
    check: Annotated[
        bool, typer.Option("--check", help="Make no report; say what is not valid.")
    ] = False,
    notebook: Notebook = None,
) -> None:
    """Make the report of a sweep again, from its records alone.

    Exit status with --check: 1 where anything is not comparable or not valid.
    """
    if not check:
        _report(directory, notebook)
        return
    from mptexp import api

    sentences = api.check(directory)
    for sentence in sentences:
        _say(sentence.replace("**", ""))
    if sentences:
        raise typer.Exit(1)
    _say(f"{directory}: every comparison is valid")


def _report(directory: Path, notebook: Path | None = None) -> None:
    from mptexp import api

    with _working("making the report"):
        index, warnings = api.report(directory, notebook)
    for sentence in warnings:
        out().print(f"[yellow]{plain(sentence.replace('**', ''))}[/]", soft_wrap=True)
    _say(f"report: {index}")


@command("traces reports/why_no_speedup")
def traces(directory: Dir) -> None:
    """Read the traces that runs with profile kept where xprof is missing; make the report again.

    Exit status 1 where a trace could not be read; its record stays as it was.
    """
    from mptexp import api
    from mptexp.report import wording

    with _working("reading traces"):
        number, faults = api.read_traces(directory)
    _say(f"{directory}: {wording.count(number, 'trace')} read")
    _report(directory)
    _left_out(faults, "not read")


@command("publish reports/published --to site --url https://me.github.io/mptexp")
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
    notebook: Notebook = None,
) -> None:
    """Make a static site: an index of all reports, each report, its notebooks and its data.

    Made from the records alone, the same bytes for the same records. Exit status 1 where a record
    is damaged and was left out, or was changed since it was written.
    """
    from mptexp import api

    with _working("making the site"):
        faults = api.publish(directories, site, url, notebook)
    _say(f"site: {site / 'index.html'}")
    _left_out(faults, "record")


@command("export reports/quickstart --to article")
def export(
    directory: Dir,
    folder: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Where the files go.")],
) -> None:
    """Write tables as Markdown and CSV, figures as SVG and PNG, and a draft that shows them.

    Exit status 1 where a record is damaged and was left out.
    """
    from mptexp import api

    damaged = api.export(directory, folder)
    _say(f"draft: {folder / 'draft.md'}")
    _left_out(damaged, "not exported")


# --- several sweeps, and the machine ----------------------------------------------------------


@command("compare reports/a100 reports/h100 --format markdown")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A sweep's directory.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another's: other device, versions.")],
    more_a: Annotated[
        list[Path] | None, typer.Option("--a", metavar="DIR", help="Another session of A.")
    ] = None,
    more_b: Annotated[
        list[Path] | None, typer.Option("--b", metavar="DIR", help="Another session of B.")
    ] = None,
    format: Annotated[str, typer.Option(help="table, markdown or json.")] = "table",
) -> None:
    """Set two sweeps side by side: the points that both measured, and what else differs.

    From three sessions a side, in directories of their own, ratios have intervals, with sessions
    as the unit. Exit status 1 where a record is damaged and was left out, or was changed since it
    was written.
    """
    from mptexp import api
    from mptexp.report import comparisons

    _allow(format, "table", "markdown", "json")
    made = api.compared([a, *(more_a or [])], [b, *(more_b or [])])
    if format == "json":
        tables = {"points": made.points, "differences": made.differences}
        content = {name: json.loads(t.to_json(orient="records")) for name, t in tables.items()}
        said = {"advice": made.advice, "faults": made.faults}
        print(json.dumps({"a": str(a), "b": str(b), **content, **said}, indent=1))
        _left_out(made.faults, "record")
        return
    _print_table(f"A is {a}, B is {b}", comparisons.two_sweeps(made.points), format)
    for sentence in made.advice:
        out().print(plain(sentence))
    if made.differences.empty:
        out().print("Nothing else differs that records and identities hold.")
    else:
        print()
        _print_table("What else differs", made.differences, format)
    _left_out(made.faults, "record")


def _print_table(title: str, table: "pd.DataFrame", format: str) -> None:
    from mptexp.report import terminal_tables, text_tables

    if format == "markdown":
        print(f"**{title}**\n\n{text_tables.markdown(table)}")
    else:
        terminal_tables.rows(out(), title, table)


@command("merge reports/a100 reports/h100 --out reports/all")
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
    and was left out, or was changed since it was written.
    """
    from mptexp import api
    from mptexp.report import caveats, wording

    merged = api.merge(directories, directory, prefer)
    unlike = caveats.unlike(str(directories[0]), api.unlike(directories))
    total = wording.count(merged.present + sum(merged.copied.values()), "run")
    parts = [f"{n} from {name}" for name, n in merged.copied.items()]
    parts += [f"{merged.present} were there"] if merged.present else []
    _say(f"{directory}: {total}{': ' if parts else ''}{', '.join(parts)}")
    if merged.missing:
        left = wording.count(sum(merged.missing.values()), "run")
        devices = ", ".join(f"{n} on {name}" for name, n in merged.missing.items())
        _say(f"{left} without a result yet: {devices}")
    for sentence in unlike:
        out().print(f"[yellow]{plain(sentence)}[/]", soft_wrap=True)
    _left_out(merged.faults, "record")


@command("doctor --backend jax")
def doctor(
    backend: Annotated[str, typer.Option(help="tensorflow, jax or torch.")] = "tensorflow",
    check: Annotated[bool, typer.Option("--check", help="Test the instruments.")] = False,
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
) -> None:
    """Say what this machine has: device, 16-bit support, driver, libraries, versions.

    With --check the instruments prove themselves in about two minutes: clock, memory, utilization,
    energy, arithmetic, trace, determinism, each on work whose answer is known. Reports of runs made
    from then on show the result. Exit status 1 where one failed.
    """
    from mptexp import api
    from mptexp.report import terminal_tables

    _allow(format, "table", "json")
    if check:
        _check_instruments(backend, format)
        return
    with _working(f"asking {backend} and the system"):
        card = api.doctor(backend)
    if format == "json":
        print(json.dumps(card, indent=1))
    else:
        terminal_tables.card(out(), card)


def _check_instruments(backend: str, format: str) -> None:
    from mptexp import api
    from mptexp.records.instruments import failed
    from mptexp.report import instruments, terminal_tables

    checks = api.check_instruments(backend, api.Output(err(), brief=True))
    if format == "json":
        print(json.dumps(checks, indent=1))
    else:
        rows = instruments.table(checks).drop(columns="Test")
        terminal_tables.rows(out(), "Instruments", rows)
        out().print(instruments.sentence(checks), soft_wrap=True)
    if failed(checks):
        raise typer.Exit(1)


@command("gpu-hour --minutes 50")
def gpu_hour(
    minutes: Annotated[
        float, typer.Option(help="How long; the archive is whole by then.", min=1, max=1440)
    ] = 50,
    directory: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Results; the archive lies beside it.")
    ] = Path("gpu-hour"),
    backend: Annotated[
        str | None, typer.Option(help="tensorflow, jax or torch; by default what is installed.")
    ] = None,
    overrides: Set = None,
) -> None:
    """Measure on a rented GPU what is worth most, in that order, and pack it to be read elsewhere.

    Given again it goes on. docs/gpu.md lists the steps. `mptexp open` makes the reports.
    """
    from mptexp import api

    _say(f"archive: {api.measure_hour(directory, minutes, backend, overrides or [], _say)}")


@command("open gpu-hour.tar.gz --to from_gpu")
def open_(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="What gpu-hour packed.")],
    folder: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="A new folder for it.")
    ] = Path("from_gpu"),
) -> None:
    """Make the reports of an archive of gpu-hour, on a machine that has what the other lacked.

    Exit status 1 where something in it is not valid.
    """
    from mptexp import api

    with _working("unpacking, and making the reports"):
        pages, faults = api.open_archive(archive, folder)
    for page in pages:
        _say(f"report: {page}")
    _left_out(faults, "not valid")


def main() -> None:
    """Entry point of the `mptexp` command."""
    terminal.open_standard_streams()
    sys.stdout = Stdout(sys.stdout)
    try:
        app(prog_name="mptexp")
    finally:
        try:  # while it can be said, not when Python ends
            sys.stdout.flush()
        except Stopped as error:
            err().print(f"[bold red]error[/] {error}")
            sys.exit(1)
