"""Commands on what was measured: reports, tables, sites, comparisons, and traces of others."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from mptexp import api
from mptexp.cli.common import (
    Dir,
    Notebook,
    caution,
    command,
    left_out,
    out,
    output,
    result,
    say,
    show_report,
    working,
)
from mptexp.errors import ParamsError
from mptexp.host.terminal import plain, without_markdown

if TYPE_CHECKING:
    import pandas as pd


@command(
    "explain profile/ or mptexp explain float32.json.gz mixed.json.gz --out page.html",
    ("table", "json"),
)
def explain(
    trace: Annotated[
        Path, Argument(metavar="TRACE", help="A profiler's trace, or a directory with one.")
    ],
    other: Annotated[
        Path | None, Argument(metavar="[OTHER]", help="A second one: mixed, or after.")
    ] = None,
    page: Annotated[
        Path | None, Option("--out", metavar="FILE", help="Write one HTML page.")
    ] = None,
) -> None:
    """Say what bounds a training of yours, from a trace of PyTorch, JAX, TensorFlow or Nsight.

    Reads *.xplane.pb, PyTorch's *.json, both also as .gz, Nsight Systems' *.sqlite, or a directory
    that holds some. Two traces are compared, such as float32 with mixed precision.
    """
    from mptexp.report import trace_report
    from mptexp.report.answers import trace_answer
    from mptexp.report.tables import terminal_tables

    with working("reading the trace"):
        read = api.recordings([path for path in (trace, other) if path is not None])
    if page is not None:
        api.write_page(page, trace_report.page(read))
    result(trace_report.content(read) | ({"page": page} if page else {}))
    out().print(f"[bold]{plain(trace_answer.verdict(read))}[/]", soft_wrap=True)
    for each in read:
        for note in trace_answer.notes(each):
            say(f"  {each.file if other else 'note'}: {note}")
    for heading, table in trace_report.tables(read).items():
        out().print()
        terminal_tables.rows(out(), heading, table)
    if page is not None:
        say(f"page: {page}")


@command("report reports/quickstart")
def report(
    directory: Dir,
    check: Annotated[
        bool, Option("--check", help="Make no report; say what is not valid.")
    ] = False,
    notebook: Notebook = None,
) -> None:
    """Make the report of a sweep again, from its records alone.

    Exit status with --check: 1 where anything is not comparable or not valid.
    """
    if not check:
        result(show_report(directory, notebook))
        return
    checked = api.checked(directory)
    not_valid, besides = (
        [without_markdown(sentence) for sentence in said]
        for said in (checked.not_valid, checked.besides)
    )
    result({"not_valid": not_valid, "besides": besides})
    for sentence in (*not_valid, *besides):
        say(sentence)
    if not_valid:
        raise typer.Exit(1)
    what = "every comparison is valid" if checked.compares else "no comparison has an interval"
    say(f"{directory}: {what}")


@command("traces reports/why_no_speedup")
def traces(directory: Dir) -> None:
    """Read the traces that runs with profile kept where xprof is missing; make the report again.

    Exit status 1 where a trace could not be read; its record stays as it was.
    """
    from mptexp.report.text import wording

    with working("reading traces"):
        number, faults = api.read_traces(directory)
    say(f"{directory}: {wording.count(number, 'trace')} read")
    result({"read": number, "not_read": faults} | show_report(directory))
    left_out(faults, "not read")


@command("publish reports/published --to site --url https://me.github.io/mptexp")
def publish(
    directories: Annotated[
        list[Path], Argument(metavar="DIR...", help="Sweeps' directories, or folders of them.")
    ],
    site: Annotated[Path, Option("--to", metavar="SITE", help="A new folder, or an earlier site.")],
    url: Annotated[
        str, Option(metavar="URL", help="Where the site will be: shared links show a figure.")
    ] = "",
    notebook: Notebook = None,
) -> None:
    """Make a static site: an index of all reports, each report, its notebooks and its data.

    Made from the records alone, the same bytes for the same records. Exit status 1 where a record
    is damaged and was left out, or was changed since it was written, or a sweep was left out.
    """
    with working("making the site"):
        faults = api.publish(directories, site, url, notebook)
    say(f"site: {site / 'index.html'}")
    result({"site": site / "index.html", "faults": faults})
    left_out(faults, "record")


@command("export reports/quickstart --to article, or --to mlflow --store sqlite:///mlflow.db")
def export(
    directory: Dir,
    target: Annotated[
        str,
        Option(
            "--to",
            metavar="FOLDER|mlflow|tensorboard",
            help="Where the files go; or the tracker that takes the runs.",
        ),
    ],
    store: Annotated[
        str,
        Option(
            metavar="URI|DIR",
            help="MLflow's tracking URI, or TensorBoard's log directory; default its own, or "
            "logs/<name of DIR>.",
        ),
    ] = "",
) -> None:
    """Write tables as Markdown and CSV, figures as SVG and PNG, and a draft that shows them.

    Or give the runs to MLflow or TensorBoard: parameters, figures, epochs; to MLflow also record,
    notebook and report. Exit status 1 where a record is damaged and was left out.
    """
    from mptexp.report.text import wording

    folder = Path(os.path.expanduser(target))
    if target in api.TRACKERS:
        made = api.track(directory, target, os.path.expanduser(store))
        damaged = made.damaged
        runs = wording.count(len(made.written), "run")
        say(f"{made.store}: {runs} written, {made.present} there already")
        kept = {name: value for name, value in asdict(made).items() if name != "damaged"}
        result(kept | {"not_exported": damaged})
    elif not target.strip():  # the folder that one works in, of an unset variable
        raise ParamsError(f"--to is empty; allowed: a folder, {' or '.join(api.TRACKERS)}")
    elif store:
        raise ParamsError(f"--store {store}: is for --to {' and --to '.join(api.TRACKERS)}")
    else:
        draft, damaged = folder / "draft.md", api.export(directory, folder)
        say(f"draft: {draft}")
        result({"draft": draft, "not_exported": damaged})
    left_out(damaged, "not exported")


@command("compare reports/a100 reports/h100 --format markdown", ("table", "markdown", "json"))
def compare(
    a: Annotated[Path, Argument(metavar="A", help="A sweep's directory.")],
    b: Annotated[Path, Argument(metavar="B", help="Another's: other device, versions.")],
    more_a: Annotated[
        list[Path] | None, Option("--a", metavar="DIR", help="Another session of A.")
    ] = None,
    more_b: Annotated[
        list[Path] | None, Option("--b", metavar="DIR", help="Another session of B.")
    ] = None,
) -> None:
    """Set two sweeps side by side: the points that both measured, the others, what else differs.

    From three sessions a side, in directories of their own, ratios have intervals, with sessions
    as the unit. Exit status 1 where a record is damaged and was left out, or was changed since it
    was written.
    """
    from mptexp.report.answers import comparisons

    made = api.compared([a, *(more_a or [])], [b, *(more_b or [])])
    names = ("points", "not_compared", "differences")
    tables = {name: getattr(made, name) for name in names}
    content = {name: json.loads(t.to_json(orient="records")) for name, t in tables.items()}
    said = {"advice": made.advice, "faults": made.faults}
    result({"a": str(a), "b": str(b), **content, **said})
    _print_table(f"A is {a}, B is {b}", comparisons.side_by_side(made.points))
    for sentence in made.advice:
        out().print(plain(sentence))
    if not made.not_compared.empty:
        out().print()
        _print_table("Not compared", comparisons.not_compared(made.not_compared, made.points))
    if made.alike:
        out().print(comparisons.NOTHING_ELSE)
    if not made.differences.empty:
        out().print()
        _print_table("What else differs", made.differences)
    left_out(made.faults, "record")


def _print_table(title: str, table: "pd.DataFrame") -> None:
    from mptexp.report.tables import terminal_tables, text_tables

    if output.format == "markdown":
        print(f"**{title}**\n\n{text_tables.markdown(table)}")
    else:
        terminal_tables.rows(out(), title, table)


@command("merge reports/a100 reports/h100 --out reports/all")
def merge(
    directories: Annotated[
        list[Path], Argument(metavar="DIR...", help="Directories of one params file.")
    ],
    directory: Annotated[
        Path, Option("--out", metavar="DIR", help="One of them, a new or an empty one.")
    ],
    prefer: Annotated[
        Path | None,
        Option(metavar="DIR", help="The one that decides where records or reports differ."),
    ] = None,
) -> None:
    """Copy the directories that several machines made of one params file together into one.

    A run that came to an end goes before one that would run again. Where two hold different
    records of a run, or ask for different reports, nothing is written and the exit status is 2; it
    is 1 where a record is damaged and was left out, or was changed since it was written.
    """
    from mptexp.report.text import wording

    unlike = api.unlike([directory, *directories])  # also from what it held before
    merged = api.merge(directories, directory, prefer)
    total = wording.count(merged.present + sum(merged.copied.values()), "run")
    parts = [f"{n} from {name}" for name, n in merged.copied.items()]
    parts += [f"{merged.present} were there"] if merged.present else []
    say(f"{directory}: {total}{': ' if parts else ''}{', '.join(parts)}")
    if merged.unused:
        others = wording.count(merged.unused, "other result")
        say(f"{others} of the same runs: kept as superseded, counted and not used")
    if merged.missing:
        left = wording.count(sum(merged.missing.values()), "run")
        devices = ", ".join(f"{n} on {name}" for name, n in merged.missing.items())
        say(f"{left} without a result yet: {devices}")
    for sentence in unlike:
        caution(sentence)
    result({"directory": directory, **asdict(merged), "unlike": unlike})
    left_out(merged.faults, "record")
