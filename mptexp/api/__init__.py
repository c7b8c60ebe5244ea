"""What notebook cells and the command line both call.

`cells` is for notebooks, which find it in the package itself: `mptexp.run(...)`; `commands` is for
the command line; both execute a sweep by `execution.sweep` and a diagnosis by `diagnosing`.

What is asked for is imported then: a plan needs nothing of what executes.
"""

from importlib import import_module
from typing import Any

PARTS = {
    "mptexp.api.advising": "advise advise_layers",
    "mptexp.api.archive": "open_archive",
    "mptexp.api.cells": "answer compare diagnose explain load plan policies record run",
    "mptexp.api.doctor_check": "check_instruments",
    "mptexp.api.commands": (
        "TRACKERS absent changed checked claims compared curable doctor export idle init "
        "installed_backends merge open_sweep planned publish read_traces recordings "
        "report track unlike write_page"
    ),
    "mptexp.api.diagnosing": "execute_diagnosis open_diagnosis verdicts",
    "mptexp.api.gpu_hour": "measure_hour",
    "mptexp.execution.local_executor": "Execution",
    "mptexp.execution.plan": "remaining_s",
    "mptexp.execution.preparation": "look",
    "mptexp.execution.progress": "Output expected",
    "mptexp.execution.sweep": "execute",
}
HOMES = {name: part for part, names in PARTS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Imports what is asked for."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
