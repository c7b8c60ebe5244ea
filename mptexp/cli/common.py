"""What all commands share: the app, the options they have in common, and how they say and end."""

import functools
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from mptexp import api
from mptexp.errors import Interrupted, ParamsError, Stopped, UserError
from mptexp.host import interrupt, shell_limits
from mptexp.host.terminal import HALF, plain, without_markdown

if TYPE_CHECKING:
    from rich.console import Console


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,  # rich's help takes as long to import as all the rest
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: mptexp plan quickstart, then mptexp run quickstart",
)


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
    Path, Argument(metavar="FILE", help="A params file, or a study's name: quickstart, ...")
]
Dir = Annotated[Path, Argument(metavar="DIR", help="A sweep's directory.")]
Set = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Set a parameter of all points, or a top-level key."),
]
Only = Annotated[
    list[str] | None, Option("--only", metavar="KEY=VALUE", help="Keep only the runs that match.")
]
Out = Annotated[
    Path | None,
    Option("--out", metavar="DIR", help="Results directory; default reports/<name of FILE>."),
]
DataDir = Annotated[
    Path | None,
    Option(
        metavar="DIR",
        help="Where downloads and prepared images lie; default ~/tensorflow_datasets and "
        "~/.cache/mptexp.",
    ),
]
Repair = Annotated[
    bool,
    Option("--repair", help="Measure again, as whole blocks, what is not valid and can be cured."),
]
Notebook = Annotated[
    Path | None,
    Option(metavar="FILE", help="A notebook that makes the report, in place of mptexp's."),
]
NoReport = Annotated[bool, Option("--no-report", help="Make no report.")]


def _keyword(name: str, default: Any, option: Any) -> inspect.Parameter:
    kind = Annotated[type(default), option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


COMMON = (
    _keyword("quiet", False, Option("--quiet", "-q", help="Print results and errors alone.")),
    _keyword("verbose", False, Option("--verbose", "-v", help="Show where an error came from.")),
    _keyword("no_color", False, Option("--no-color", help="No colours; so does NO_COLOR.")),
)


def command(
    example: str, formats: Sequence[str] = ("text", "json")
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a command, whose mistakes and interruptions end in a sentence and a status.

    Args:
        example: of its words; the first is its name.
        formats: in which it prints its results, the default first.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def guarded(
            *words: Any, format: str, quiet: bool, verbose: bool, no_color: bool, **options: Any
        ) -> None:
            interrupt.listen()
            if quiet:
                progress().quiet = True
            if no_color:
                os.environ["NO_COLOR"] = "1"  # for the processes that it starts as well
            try:
                _check_surroundings()
                _print_as(format, formats)
                found = {name: _below_home(value) for name, value in options.items()}
                function(*map(_below_home, words), **found)
            except (Exception, KeyboardInterrupt) as error:
                _end(error, verbose)

        own = inspect.signature(function)
        *others, last = formats
        printed = Option("--format", help=f"{', '.join(others)} or {last}.")
        common = [_keyword("format", formats[0], printed), *COMMON]
        guarded.__signature__ = own.replace(parameters=[*own.parameters.values(), *common])
        guarded.__annotations__ |= {each.name: each.annotation for each in common}
        name = example.split()[0]
        return app.command(name, epilog=f"Example: mptexp {example}")(guarded)

    return register


def _below_home(value: Any) -> Any:
    """A command's word with ~ written out in paths: bash leaves it in `--out=~/x` and in quotes."""
    if isinstance(value, list):
        return [_below_home(each) for each in value]
    return Path(os.path.expanduser(value)) if isinstance(value, Path) else value


def _check_surroundings() -> None:
    """Refuses what no command can work with, once for all of them.

    Raises:
        ParamsError: where a word or the working directory is not text, that directory is gone, or
            there is no home directory, in which caches and settings lie, or too few files may be
            open.
    """
    shell_limits.widen()
    if os.environ.get("COLUMNS") == "0":  # as some programs set it: rich would print nothing
        del os.environ["COLUMNS"]
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
        bool,
        Option("--version", callback=_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """What does reduced precision buy on this device, in speed, memory and accuracy?"""


def _end(error: BaseException, verbose: bool = False) -> None:
    """Ends the command where an error's message says all: never with a traceback."""
    if isinstance(error, Interrupted):
        without = " without --fresh" * error.fresh
        err().print(f"stopped: {error.kept}; the same command{without} goes on")
        raise typer.Exit(130) from None
    if interrupt.asked() or isinstance(error, KeyboardInterrupt):
        err().print("stopped; the same command can be given again")
        raise typer.Exit(130) from None
    if isinstance(error, OSError) and error.filename:  # a name too long, a folder without rights
        error = ParamsError(f"{error.filename2 or error.filename}: {error.strerror}")
    tight = shell_limits.tight() if not isinstance(error, ParamsError) else ""
    if not isinstance(error, UserError):
        if not tight:
            raise error
        error = Stopped(f"{type(error).__name__}: {error}")
    if verbose:
        traceback.print_exception(error)
    for line in str(error).splitlines():
        err().print(f"[bold red]error[/] {plain(line)}", soft_wrap=True)
    if tight:
        err().print(tight)
    raise typer.Exit(1 if isinstance(error, Stopped) else 2) from None


def _print_as(format: str, formats: Sequence[str]) -> None:
    """Has results printed in a format, and with JSON nothing else on standard output.

    Raises:
        ParamsError: where the command does not print it.
    """
    if format not in formats:
        raise ParamsError(f"--format {format}: unknown; allowed: {', '.join(formats)}")
    output.format = format
    if format == "json":
        out().quiet, progress().file = True, sys.stderr


output = SimpleNamespace(format="text")  # how this process's one command prints its results


def in_json() -> bool:
    """Whether results are printed as JSON."""
    return bool(output.format == "json")


def result(content: Mapping[str, Any] | Sequence[Any], indent: int | None = 1) -> None:
    """Prints results as JSON where that was asked for; their text is not printed then.

    Args:
        content: what the command found; docs/guide.md lists the keys of each.
        indent: None for one of several lines.
    """
    if in_json():
        print(json.dumps(content, indent=indent, default=str), flush=True)


def caution(sentence: str) -> None:
    """Prints what a reader of the results should know: with JSON to standard error."""
    console = err() if in_json() else out()
    console.print(f"[yellow]{plain(sentence)}[/]", soft_wrap=True)


def say(text: str) -> None:
    """Prints a line of results, however long, with its control characters shown."""
    out().print(plain(text), soft_wrap=True)


def left_out(sentences: Sequence[str], what: str) -> None:
    """Prints what was left out, to standard error; exit status 1 where something was."""
    for sentence in sentences:
        err().print(f"[yellow]{what}[/] {plain(sentence)}", soft_wrap=True)
    if sentences:
        raise typer.Exit(1)


@contextmanager
def working(text: str) -> Iterator[None]:
    """Shows on a terminal what takes a while; no thread moves it, since processes are forked."""
    if not progress().is_terminal:
        yield
        return
    from rich.live import Live

    with Live(plain(text) + " ...", console=progress(), auto_refresh=False, transient=True):
        yield


def show_report(directory: Path, notebook: Path | None = None) -> dict[str, Any]:
    """Makes the report of a sweep; says where it is, and what of it is not valid.

    Returns:
        Both, as `result` takes them.
    """
    with working("making the report"):
        index, warnings = api.report(directory, notebook)
    sentences = [without_markdown(sentence) for sentence in warnings]
    for sentence in sentences:
        caution(sentence)
    say(f"report: {index}")
    return {"report": index, "not_valid": sentences}
