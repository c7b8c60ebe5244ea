"""`mptexp doctor --check`: the instruments of a machine prove themselves, in about two minutes."""

import tempfile
from pathlib import Path
from typing import Any

from mptexp.api.commands import asked, check_backend, open_sweep
from mptexp.errors import ParamsError
from mptexp.execution.progress import Output
from mptexp.execution.sweep import execute
from mptexp.records import instrument_checks, store
from mptexp.records.instrument_checks import Check
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.grid import Sweep

TIMEOUT_MIN = 5.0
DIRECT = "mptexp.training.measure.check_on_known_work"


def check_instruments(backend: str = "tensorflow", output: Output | None = None) -> list[Check]:
    """Tests the instruments on work whose answer is known, and keeps what came out.

    Beside other programs nothing is proven, and nothing is kept.

    Records made from now on with the same code, versions and device hold it: see
    `records.instrument_checks`.

    Raises:
        ParamsError: if there is no such backend, or nothing could be checked.
        Interrupted, Stopped: as `sweep.execute` does.
    """
    # The table of kernels takes pandas, which only this command needs.
    from mptexp.diagnosis import check_on_records as on_records

    check_backend(backend)
    output = output or Output()
    output.say("instruments: clock, load and memory")
    checks: list[Check] = asked(DIRECT, backend, "doctor --check")
    with tempfile.TemporaryDirectory(prefix="mptexp-check-") as folder:
        root = Path(folder)
        point = on_records.repeated(backend)
        records = _made(root / "points", on_records.points(backend), output)
        (first,) = _made(root / "first", [point], output)
        (again,) = _made(root / "again", [point], output)
    checks += on_records.of_records(records, first, again)
    identities = [r["identity"] for r in (first, again, *records) if r.get("identity")]
    if not identities:
        raise ParamsError(f"doctor --check: no run came to its end: {first.get('error', '')}")
    if instrument_checks.is_quiet(checks):
        instrument_checks.save(identities[0], checks)
    return checks


def _made(folder: Path, points: list[dict[str, Any]], output: Output) -> list[dict[str, Any]]:
    """The records of some runs, each in a Jupyter kernel of its own."""
    job = open_sweep(Sweep(include=points, timeout_min=TIMEOUT_MIN), folder)
    execute(job, output=output)
    return store.read_records(SweepDir(folder))[0]
