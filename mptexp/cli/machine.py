"""Commands on the machine: what it has, whether its instruments are right, an hour on a GPU."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from mptexp import api
from mptexp.cli.common import Set, command, err, left_out, out, progress, result, say, working

Backend = Annotated[
    str | None, Option(help="tensorflow, jax or torch; by default what is installed.")
]


@command("doctor --backend jax", ("table", "json"))
def doctor(
    backend: Backend = None,
    check: Annotated[bool, Option("--check", help="Test the instruments.")] = False,
) -> None:
    """Say what this machine has: device, 16-bit support, driver, libraries, versions.

    With --check the instruments prove themselves in about two minutes: clock, memory, utilization,
    energy, arithmetic, trace, determinism, each on work whose answer is known. Reports of runs made
    from then on show the result. Exit status 1 where one failed.
    """
    from mptexp.report.tables import terminal_tables
    from mptexp.spec.backends import BACKENDS

    # Where none is, the first is asked, which says what is missing.
    backend = backend or next(iter(api.installed_backends()), BACKENDS[0])
    if check:
        _check_instruments(backend)
        return
    with working(f"asking {backend} and the system"):
        card = api.doctor(backend)
    terminal_tables.card(out(), card)
    result(card)


def _check_instruments(backend: str) -> None:
    from mptexp.records.instrument_checks import failed
    from mptexp.report.answers import instrument_answers
    from mptexp.report.tables import terminal_tables

    checks = api.check_instruments(backend, api.Output(err(), brief=True))
    rows = instrument_answers.table(checks).drop(columns="Test")
    terminal_tables.rows(out(), "Instruments", rows)
    out().print(instrument_answers.sentence(checks), soft_wrap=True)
    result(checks)
    if failed(checks):
        raise typer.Exit(1)


@command("gpu-hour --minutes 50")
def gpu_hour(
    minutes: Annotated[
        float, Option(help="How long; the archive is whole by then.", min=1, max=1440)
    ] = 50,
    directory: Annotated[
        Path, Option("--out", metavar="DIR", help="Results; the archive lies beside it.")
    ] = Path("gpu-hour"),
    backend: Backend = None,
    overrides: Set = None,
) -> None:
    """Measure on a rented GPU what is worth most, in that order, and pack it to be read elsewhere.

    Given again it goes on. docs/gpu.md lists the steps. `mptexp open` makes the reports.
    """
    said = api.Output(progress()).say
    archive = api.measure_hour(directory, minutes, backend, overrides or [], said)
    say(f"archive: {archive}")
    result({"archive": archive})


@command("open gpu-hour.tar.gz --to from_gpu")
def open_(
    archive: Annotated[Path, Argument(metavar="ARCHIVE", help="What gpu-hour packed.")],
    folder: Annotated[Path, Option("--to", metavar="DIR", help="A new folder for it.")] = Path(
        "from_gpu"
    ),
) -> None:
    """Make the reports of an archive of gpu-hour, on a machine that has what the other lacked.

    Exit status 1 where something in it is not valid.
    """
    with working("unpacking, and making the reports"):
        pages, faults = api.open_archive(archive, folder)
    for page in pages:
        say(f"report: {page}")
    result({"reports": pages, "not_valid": faults})
    left_out(faults, "not valid")
