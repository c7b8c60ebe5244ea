"""`mptexp gpu-hour`: what an hour on a rented GPU is worth most for, in that order.

Each step is a command of mptexp in a process of its own, which Ctrl-C ends at the deadline:
finished runs are kept, and the same command goes on. After every step there is a whole archive.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mptexp.api import archive
from mptexp.api.commands import check_backend
from mptexp.spec.backends import BACKENDS
from mptexp.spec.errors import ParamsError
from mptexp.spec.project import child_environment, studies

LEAST_S = 20.0  # with less time left nothing is begun: a run takes longer to start and end
ENDING_S = 20.0  # what a sweep needs to end its runs after Ctrl-C
INSTRUMENTS = "instruments.json"


@dataclass(frozen=True)
class Step:
    """A command on a study, whose results lie in a directory of that name.

    Attributes:
        study: of the params files.
        command: run or diagnose.
        words: what the command takes besides.
    """

    study: str
    command: str = "run"
    words: tuple[str, ...] = ()


BATCH = ("--only", "batch_size=256")
TRAINED = (*BATCH, "--only", "phase=train")
# In the order of what each is worth: the first answer, its reason, beside published figures, the
# rest of the grids, accuracy.
STEPS = (
    Step("tf32", words=BATCH),
    Step("tf32", "diagnose", (*BATCH, "--traces-only")),
    Step("resnet50_gpu", words=TRAINED),
    Step("resnet50_gpu", "diagnose", (*TRAINED, "--traces-only")),
    Step("tf32", "diagnose", BATCH),
    Step("tf32"),
    Step("resnet50_gpu"),
    Step("loss_scale"),
)


def measure_hour(
    folder: Path,
    minutes: float,
    backend: str | None = None,
    overrides: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> Path:
    """Measures for so many minutes what is missing in a folder; returns the archive of all of it.

    Args:
        folder: of the results; the archive lies beside it.
        minutes: from now; the archive is written within them.
        backend: by default the first of tensorflow, jax, torch that is installed.
        overrides: `key=value` for all studies, such as image_size=64 to try it out.
        say: is told each step, a sentence.

    Raises:
        ParamsError: if there is no such backend, or none is installed.
        OSError: if nothing can be written there.
    """
    ends = time.monotonic() + 60 * minutes
    backend = backend or _installed()
    check_backend(backend)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / INSTRUMENTS).exists() and _left(ends) > LEAST_S:
        say("instruments: do they read what is known?")
        _check(folder / INSTRUMENTS, backend, _left(ends))
    packed = archive.pack(folder)
    settings = [word for text in (f"backend={backend}", *overrides) for word in ("--set", text)]
    for number, step in enumerate(STEPS, 1):
        if _left(ends) < LEAST_S:
            say(f"time is up before step {number} of {len(STEPS)}; the same command goes on")
            break
        say(f"step {number} of {len(STEPS)}: {step.command} {step.study} {' '.join(step.words)}")
        words = [
            step.command,
            studies()[step.study],
            *settings,
            *step.words,
            "--out",
            folder / step.study,
        ]
        if _command([*map(str, words), "--no-report"], _left(ends)) == 2:
            say(f"step {number} cannot be made here, for the reason above; the next one follows")
        packed = archive.pack(folder)
    return packed


def _installed() -> str:
    names = [name for name in BACKENDS if importlib.util.find_spec(name)]
    if not names:
        raise ParamsError(f"no backend is installed; allowed: one of {', '.join(BACKENDS)}")
    return names[0]


def _left(ends: float) -> float:
    return ends - time.monotonic() - ENDING_S


def _check(file: Path, backend: str, seconds: float) -> None:
    """Keeps what the instruments read; they are checked once."""
    partial = file.with_suffix(".partial")
    with partial.open("w") as out:
        words = ["doctor", "--check", "--backend", backend, "--format", "json"]
        status = _command(words, seconds, out.fileno())
    if status in (0, 1):  # passed, or failed: either is an answer
        os.replace(partial, file)
    partial.unlink(missing_ok=True)


def _command(words: Sequence[str], seconds: float, stdout: int | None = None) -> int:
    """The exit status of one of mptexp's commands; at the deadline it is interrupted."""
    child = subprocess.Popen(
        [sys.executable, "-m", "mptexp", *words],
        env=child_environment(),
        stdout=stdout,
        start_new_session=True,
    )
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return _interrupted(child)
    except BaseException:
        _interrupted(child)
        raise


def _interrupted(child: subprocess.Popen[bytes]) -> int:
    child.send_signal(signal.SIGINT)
    try:
        return child.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
