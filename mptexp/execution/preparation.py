"""Data and models are prepared before any run starts, in a child process.

What is wrong with them is then said once, and the time of no run includes a download.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mptexp.errors import ParamsError
from mptexp.execution import processes
from mptexp.execution.scratch import NoScratch, scratch_folder
from mptexp.host.project import child_environment
from mptexp.spec.names import DATASETS, MODELS, TEXTS
from mptexp.spec.run import Run

ENDS_S = 5.0  # in which a preparation that is to end has put away what it had begun


def prepare(runs: Iterable[Run], data_dir: Path | None = None) -> None:
    """Downloads and converts the data of some runs, and builds the user's own models once.

    The child's progress goes to the terminal.

    Args:
        data_dir: where data are kept, as of --data-dir; it holds for this process from now on.

    Raises:
        ParamsError: the child's sentence about what is wrong.
    """
    identities(_needed(runs), data_dir, quiet=False)


def look(runs: Iterable[Run]) -> None:
    """Looks at the data of some runs and builds the user's own models; prepares no images.

    Raises:
        ParamsError: the child's sentence about what is wrong.
    """
    if needed := _needed(runs):
        _prepare(needed, True, "--look")


def _needed(runs: Iterable[Run]) -> list[Run]:
    """A run for each preparation."""
    needed: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        needed.setdefault(key(run), run)
    needed.pop((), None)
    return list(needed.values())


def identities(
    runs: Sequence[Run], data_dir: Path | None = None, quiet: bool = True
) -> list[dict[str, Any]]:
    """Prepares each of some runs; returns what is known of their identities before they start.

    Args:
        quiet: whether to hide the child's progress: what was prepared before takes no time.

    Raises:
        ParamsError: the child's sentence about what is wrong.
    """
    if data_dir is not None:
        os.environ["MPTEXP_DATA_DIR"] = str(data_dir.expanduser().resolve())
    if not runs:
        return []
    return _prepare(runs, quiet)


def _prepare(runs: Sequence[Run], quiet: bool, *words: str) -> list[dict[str, Any]]:
    try:
        with scratch_folder() as scratch:
            return _in_a_child(runs, scratch, quiet, *words)
    except NoScratch as error:
        raise ParamsError(error.strerror) from None


def _in_a_child(
    runs: Sequence[Run], scratch: Path, quiet: bool, *words: str
) -> list[dict[str, Any]]:
    parameters = [run.model_dump() for run in runs]
    (scratch / "runs.json").write_text(json.dumps(parameters))
    command = [sys.executable, "-m", "mptexp.training.prepare", str(scratch), *words]
    # Of a session of its own: a terminal's Ctrl-C while Python starts would be a traceback.
    output = subprocess.DEVNULL if quiet else None
    status = processes.ended_with(command, ENDS_S, env=child_environment(), stdout=output)
    error, made = scratch / "error.txt", scratch / "identities.json"
    if error.exists():
        raise ParamsError(error.read_text("utf-8"))
    if status or not made.exists():
        raise ParamsError(f"{_prepared(runs)} could not be prepared: {_ended(status)}")
    known: list[dict[str, Any]] = json.loads(made.read_text())
    return known


def _prepared(runs: Sequence[Run]) -> str:
    """`model ex:build, dataset digits`: what a child process was asked to prepare."""
    models = dict.fromkeys(f"model {run.model}" for run in runs if run.model not in MODELS)
    return ", ".join([*models, *dict.fromkeys(f"dataset {run.dataset}" for run in runs)])


def _ended(status: int) -> str:
    """How a child process ended that said nothing of it."""
    if status < 0:
        return f"the process was killed by {signal.Signals(-status).name}"
    return f"the process ended by itself, with status {status}"


def key(run: Run) -> tuple[Any, ...]:
    """What runs share that one preparation serves; empty if none is needed.

    It consists of the model, if it is to be built once, and of what decides the prepared data.
    """
    built = (run.model, run.from_logits, run.data_format, run.normalization, run.float32_layers)
    model = (*built, run.depth) if run.names_own else None
    data = (run.dataset, run.image_size, run.color_mode, run.validation_split, run.on_broken)
    data += (run.sequence_length, run.tokenizer, run.vocabulary)
    ready = run.dataset in DATASETS and run.dataset not in TEXTS
    return () if ready and not model else (model, *data)
