"""Commands that plan, execute and diagnose a sweep."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from mptexp import api
from mptexp.cli.common import (
    DataDir,
    File,
    NoReport,
    Only,
    Out,
    Repair,
    Set,
    caution,
    command,
    err,
    in_json,
    out,
    progress,
    result,
    say,
    show_report,
    working,
)
from mptexp.errors import ParamsError
from mptexp.host.terminal import plain

if TYPE_CHECKING:
    from mptexp.execution.job import Job
    from mptexp.execution.progress import Output


# Follows an estimate that does not count them.
SEARCH = ", without the search for the largest batches and the runs at those that it finds"


@command("init first, then cd first && mptexp plan mine.yaml")
def init(
    folder: Annotated[Path, Argument(metavar="[DIR]", help="Where; here if not given.")] = Path(),
    study: Annotated[
        str, Option(metavar="NAME", help="Begin with a study that mptexp ships.")
    ] = "",
) -> None:
    """Write a params file to begin with, its model, and the schema that editors check it by."""
    files = api.init(folder, study)
    for file in files:
        say(str(file))
    result({"files": files})


@command("plan params/quickstart.yaml --only policy=float32", ("table", "json"))
def plan(
    file: File,
    only: Only = None,
    overrides: Set = None,
    directory: Out = None,
    repair: Repair = False,
    fast: Annotated[
        bool, Option("--fast", help="Look at no data of yours, build no model of yours.")
    ] = False,
) -> None:
    """Show the runs of a params file, their state and cost.

    Executes none. A model of your own is built and its head checked, and your data looked at, so
    that a mistake costs seconds.
    """
    from mptexp.execution import device_slots, preparation
    from mptexp.execution.plan import ELSEWHERE, counts, impossible
    from mptexp.report.tables import terminal_tables
    from mptexp.spec.names import MODELS

    job = api.open_sweep(file, directory, overrides or [])
    again = api.curable(job) if repair else ()
    chosen, rows, costs, busy = api.planned(job, only or [], again)
    due = [p.run for p in chosen if p.due]
    if not fast and any(map(preparation.key, due)):
        with working("looking at data and model"):
            api.look(due)
    # What a params file executes beside the package's own code, for who did not write it.
    functions = sorted({p.run.model for p in chosen} - set(MODELS))
    runs = [
        {"run_id": p.run_id, "state": p.state, "parameters": p.run.model_dump()}
        | {"cost_s": row["cost_s"]}
        for p, row in zip(chosen, rows, strict=True)
    ]
    code: dict[str, Any] = {"notebook": str(job.notebook), "functions": functions}
    code["import_path"] = [str(Path.cwd())] if functions else []
    numbers = {**counts(chosen), "expected_s": api.remaining_s(chosen, costs)}
    result({"runs": runs, **numbers, "executes": code})
    for sentence in (*api.idle(job.sweep), *api.absent(due)):
        caution(sentence)
    if busy:
        place = job.directory.root
        caution(f"{place}: another mptexp command is at work here; its runs are shown as pending")
    for name, value in job.sweep.unnamed().items():
        say(f"include: {name} {value} where an entry does not name it")
    for sentence in device_slots.found(p.run for p in chosen):
        say(sentence)
    say(f"notebook: {job.notebook}")
    for name in functions:
        say(f"model function: {name}")
    if functions:
        say(f"modules are imported from: {Path.cwd()}")
    terminal_tables.plan(out(), rows)
    time = f"; {api.expected(chosen, costs)}" * bool(due)
    others = f", {numbers[ELSEWHERE]} for other devices" if numbers[ELSEWHERE] else ""
    out().print(
        f"{len(chosen)} run{'s' * (len(chosen) != 1)}, {len(due)} to execute{others}{time}"
        + SEARCH * job.sweep.max_batch
    )
    if why := impossible(chosen):
        caution(why)


@command("run params/quickstart.yaml --set epochs=2 --only batch_size=32 --out reports/try")
def run(
    file: File,
    only: Only = None,
    overrides: Set = None,
    directory: Out = None,
    fresh: Annotated[bool, Option("--fresh", help="Discard earlier results.")] = False,
    repair: Repair = False,
    retries: Annotated[
        int, Option(metavar="N", min=0, max=1000, help="Try a run that failed again, N times.")
    ] = 0,
    fail_fast: Annotated[
        bool, Option("--fail-fast/--keep-going", help="Stop at the first run that failed.")
    ] = False,
    timeout: Annotated[
        float | None,
        Option(
            metavar="MIN", min=0.01, max=1e6, help="End a run after MIN minutes; see timeout_min."
        ),
    ] = None,
    parallel: Annotated[
        int,
        Option(metavar="N", min=1, max=1024, help="N runs at a time on a CPU: timings not valid."),
    ] = 1,
    executor: Annotated[
        str, Option(help="local, or ray: on the devices of a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None, Option(metavar="HOST:PORT", help="Of the Ray cluster's head, or auto.")
    ] = None,
    no_report: NoReport = False,
    data_dir: DataDir = None,
) -> None:
    """Execute the runs of a params file that are missing, then make the report.

    A machine's GPUs each take one run at a time.

    Exit status: 0 when every run that this machine can execute came to an end, 1 when some failed
    and would run again, 2 for wrong input, or where no chosen run has a result or can be executed
    here, 130 when stopped with Ctrl-C; the same command, without --fresh, then goes on.
    """
    job = api.open_sweep(file, directory, overrides or [])
    seconds = (timeout or job.sweep.timeout_min) * 60
    how = api.Execution(seconds, retries, parallel, executor, data_dir, fail_fast)
    output = _output(_print_record if in_json() else None)
    flagged = _flagged(job, fresh) if repair else frozenset()
    for sentence in api.idle(job.sweep):
        caution(sentence)
    if not fresh and executor == "local":  # on a cluster each node has an environment of its own
        for sentence in api.changed(job, only or [], data_dir):
            caution(sentence)
    whole = fresh and not only
    left = api.execute(job, only or [], fresh, how, address, output, flagged, discard=whole)
    if in_json():
        for row in api.claims(job):
            result({"comparison": row}, indent=None)
    measured = not no_report and any(job.directory.runs.iterdir())
    shown = show_report(job.directory.root) if measured else {}
    numbers = {name: getattr(left, name) for name in ("runs", "done", "due", "elsewhere")}
    result(numbers | {"searched": left.searched} | shown, indent=None)
    if not left.searched:
        out().print(
            "the search for the largest batch did not end; the same command goes on with it"
        )
    if left.due:
        failed = left.due - left.waiting
        said = [f"{failed} of {left.runs} runs failed"] * bool(failed)
        said += [f"{left.waiting} of {left.runs} not executed"] * bool(left.waiting)
        again = "tries them again" if failed else "executes them"
        out().print(f"{', '.join(said)}; the same command {again}")
    if left.due or not left.searched:
        raise typer.Exit(1)


def _flagged(job: "Job", fresh: bool) -> frozenset[str]:
    """The runs that --repair is about; a line where there are none."""
    if fresh:
        raise ParamsError("--repair and --fresh: one keeps what is valid, the other discards all")
    flagged = api.curable(job)
    if not flagged:
        say(f"{job.directory.root}: no run has a flag that another measurement could cure")
    return flagged


def _output(on_record: Callable[[Mapping[str, Any]], None] | None = None) -> "Output":
    """Where a command says what it does: with --quiet, why runs failed alone."""
    if progress().quiet:
        on_record = on_record or _print_failure
    return api.Output(progress(), on_record=on_record)


def _print_failure(record: Mapping[str, Any]) -> None:
    from mptexp.records.schema import FINAL

    if record["status"] not in FINAL:
        said = plain(f"run {record['run_id']}: {record['status']}: {record['error']}")
        err().print(f"[bold red]error[/] {said}", soft_wrap=True)


def _print_record(record: Mapping[str, Any]) -> None:
    from mptexp.analysis import validity

    names = ("run_id", "status", "error", "wall_s", "parameters", "timing")
    flags = validity.of_record(record) if record.get("status") == "ok" else []
    result({name: record.get(name) for name in names} | {"flags": flags}, indent=None)


@command("diagnose params/quickstart.yaml, or mptexp diagnose reports/quickstart")
def diagnose(
    target: Annotated[
        Path, Argument(metavar="FILE|DIR", help="A params file, or a sweep's directory.")
    ],
    only: Only = None,
    overrides: Set = None,
    directory: Out = None,
    traces_only: Annotated[
        bool, Option("--traces-only", help="Trace steps; make no ablations.")
    ] = False,
    no_report: NoReport = False,
    data_dir: DataDir = None,
) -> None:
    """Find out why a policy was faster, or why it was not: time breakdown, ablations, verdict.

    Of a params file, runs what is missing of its sweep first. Every point is diagnosed at the
    largest batch size that both policies reached; --only chooses others. Exit status as of run.
    """
    job, finished = api.open_diagnosis(target, directory, overrides or [])
    ended = api.execute_diagnosis(job, only or [], traces_only, finished, data_dir, _output())
    shown = {} if no_report else show_report(job.directory.root)
    result({"ended": ended, "verdicts": api.verdicts(job), **shown})
    if not ended:
        out().print("some runs failed; the same command tries them again")
        raise typer.Exit(1)


@command("advise params/mine.yaml, or with --set model=my_models:build --set dataset=folder:photos")
def advise(
    file: File,
    only: Only = None,
    overrides: Set = None,
    directory: Out = None,
    steps: Annotated[
        int | None,
        Option(metavar="N", min=25, max=10**6, help="Steps of a training; 100, with --layers 300."),
    ] = None,
    layers: Annotated[
        str | None,
        Option(metavar="POLICY", help="Find the layers that must stay in float32 in it."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Say which policy and loss scale a model needs on its data, from a short training in float32.

    Of a params file, probes the first run, or the first that matches --only. A policy of 16 bits
    that the range of its numbers allows is tried for as many steps. The gradients' exponents are
    in the report; default reports/<name of FILE>-advice.

    With --layers, trains shortly with ever other layers in float32, and writes a params file that
    measures those with which POLICY keeps up with it; default reports/<name of FILE>-layers.
    """
    place = directory or Path("reports") / f"{file.stem}-{'layers' if layers else 'advice'}"
    job = api.open_sweep(file, place, overrides or [])
    shown = _output()
    if layers:
        sentences, proof = api.advise_layers(job, layers, only or [], steps or 300, data_dir, shown)
        result({"advice": sentences, "params": proof} | show_report(place))
    else:
        sentences = api.advise(job, only or [], steps or 100, data_dir, shown)
        result({"advice": sentences} | show_report(place))
    if not sentences:
        out().print("the probe did not end well, so there is no advice; see its report")
        raise typer.Exit(1)
    out().print(f"[bold]{plain(sentences[0])}[/]", soft_wrap=True)
    for sentence in sentences[1:]:
        say(f"  {sentence}")
    if layers:
        say(f"what they cost, and whether accuracy is equal, measures: mptexp run {proof}")
