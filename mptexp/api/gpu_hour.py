"""`mptexp gpu-hour`: what an hour on a rented GPU is worth most for, in that order.

Each step is a command of mptexp in a process of its own, which is interrupted at the deadline:
finished runs are kept, and the same command goes on. After every step there is a whole archive.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptexp.api import archive
from mptexp.api.archive import INSTRUMENTS
from mptexp.api.commands import check_backend, installed_backends, open_sweep, writing
from mptexp.errors import Interrupted, ParamsError, Stopped
from mptexp.execution import processes
from mptexp.execution.directory import locked
from mptexp.host.devices import local_device
from mptexp.host.files import text as text_of
from mptexp.host.project import child_environment, studies
from mptexp.records import privacy, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.backends import BACKENDS

LEAST_S = 20.0  # with less time left nothing is begun: a run takes longer to start and end
ENDING_S = 20.0  # what a sweep needs to end its runs when it is interrupted
CHECK_S = 150.0  # what the instruments need; with less they would take the time and say nothing
MOST_MIN = 1440.0
HOUR = "hour.json"
MAKER = "mptexp gpu-hour"
ANSWERS = (0, 1)  # exit statuses of a command that did its work, though some of it failed
REFUSED = 2
# Becomes a command that ends with its parent: killed without a word, this one leaves nothing at
# work on the GPU. A program of its own, since a fork of a process that has used JAX may hang; 1 is
# PR_SET_PDEATHSIG of Linux's prctl.
DIES_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
os.execv(sys.argv[1], sys.argv[1:])
"""


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
        backend: by default the first of `installed_backends`.
        overrides: `key=value` for all studies, such as image_size=64 to try it out.
        say: is told each step, a sentence.

    Raises:
        ParamsError: if there is no such backend or it is not installed, minutes are no such number,
            or the folder is in use, or holds something else, or what was begun otherwise.
        Stopped: if the folder then holds no record of a run, or one that cannot be packed, or the
            disk is full.
        Interrupted: by Ctrl-C; the archive then holds what was measured until then.
    """
    began = time.monotonic()
    if not 0 < minutes <= MOST_MIN:
        raise ParamsError(f"--minutes {minutes:g}: allowed: more than 0, up to {MOST_MIN:g}")
    backend = _installed(backend)
    folder = folder.resolve()
    _check_words(folder, backend, overrides)
    with locked(SweepDir(folder)), writing(folder):
        asked = {"backend": backend, "set": list(map(_published, overrides))}
        hour = _Hour(folder, began + 60 * minutes, _begun(folder, asked), overrides, say)
        say(_device())
        try:
            return hour.measure()
        except KeyboardInterrupt:
            raise Interrupted(f"finished runs are kept, also in {hour.pack()}") from None


def _published(override: str) -> str:
    """A `key=value` as it may stand in the archive, which is for others to read."""
    name, _, value = override.partition("=")
    return f"{name}={privacy.published_params(f'{name}: {value}').partition(': ')[2].strip()}"


def _device() -> str:
    """Which device the time is spent on: whoever rents a GPU should see at once that it is idle."""
    name = local_device()
    none = "; no GPU is seen here, so the CPU is measured" * name.endswith("(CPU)")
    return f"device: {name}{none}"


def _installed(backend: str | None) -> str:
    """The backend that was asked for, or the first that is there."""
    check_backend(backend or BACKENDS[0])
    names = installed_backends()
    if not names:
        raise ParamsError(f"no backend is installed; allowed: one of {', '.join(BACKENDS)}")
    if backend not in (None, *names):
        raise ParamsError(f"--backend {backend}: is not installed; allowed: {', '.join(names)}")
    return backend or names[0]


def _check_words(folder: Path, backend: str, overrides: Sequence[str]) -> None:
    """Refuses, before any minute is spent, what no study takes and what would be overwritten."""
    refusals = []
    for step in STEPS:
        try:
            open_sweep(studies()[step.study], folder, [f"backend={backend}", *overrides])
        except ParamsError as error:
            refusals.append(error)
    if len(refusals) == len(STEPS):
        raise refusals[0]
    if _is_new(folder) and folder.name and os.path.lexists(archive.target(folder)):
        raise ParamsError(
            f"{archive.target(folder)}: exists already; move it away, or give another --out"
        )


def _is_new(folder: Path) -> bool:
    """Whether nothing is there yet, or no folder."""
    return not (folder.is_dir() and any(folder.iterdir()))


def _begun(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the folder's marker says, which is written where the folder is new.

    The folder is packed whole, for others to read: nothing else may lie in it.

    Raises:
        ParamsError: if the folder is not this command's, or was begun with something else.
    """
    file = folder / HOUR
    store.remove_begun(file)
    if _is_new(folder):
        _write(file, begun := {"made_by": MAKER, **asked})
        return begun
    known: Any = None
    with suppress(OSError, ValueError):
        known = json.loads(text_of(file))
    if not isinstance(known, dict) or known.get("made_by") != MAKER:
        raise ParamsError(
            f"--out {folder}: holds something else; allowed: a new folder, or one that gpu-hour "
            "made"
        )
    for name, value in asked.items():
        if known.get(name) != value:
            raise ParamsError(
                f"--out {folder}: was begun with --{name} {_words(known.get(name))}, not "
                f"{_words(value)}; give the same, or another --out"
            )
    return known


def _words(value: Any) -> str:
    return (" ".join(map(str, value)) if isinstance(value, list) else str(value)) or "none"


def _write(file: Path, content: Mapping[str, Any]) -> None:
    store.write_text(file, json.dumps(content, indent=1))


class _Hour:
    """One call of the command."""

    def __init__(
        self,
        folder: Path,
        ends: float,
        begun: dict[str, Any],
        overrides: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.begun, self.overrides = folder, begun, overrides
        self._ends, self._say, self._packing_s = ends, say, 0.0

    def measure(self) -> Path:
        """Does what is due in the time; returns the archive.

        Raises:
            Stopped: if no run has ended, in an earlier call neither.
        """
        packed = self.pack()
        if not (self.folder / INSTRUMENTS).exists():
            self._check()
            packed = self.pack()
        statuses = []
        for number, step in enumerate(STEPS, 1):
            name = f"step {number} of {len(STEPS)}"
            if self._left() < LEAST_S:
                self._say(f"time is up before {name}; the same command goes on")
                break
            self._say(f"{name}: {step.command} {step.study} {' '.join(step.words)}".rstrip())
            statuses.append(_command(self._words(step), self._left()))
            packed = self.pack()
            if statuses[-1] == REFUSED:
                self._say(f"{name} cannot be made here, for the reason above; the next one follows")
            elif statuses[-1] not in (*ANSWERS, 130):
                self._say(f"{name} ended with status {statuses[-1]}; the next one follows")
        if not self._has_records():
            raise Stopped(f"nothing was measured: {_why_nothing(statuses)}; see {packed}")
        return packed

    def _has_records(self) -> bool:
        """Whether any run of any step has ended."""
        return any(any((self.folder / s.study).glob("runs/*/record.json")) for s in STEPS)

    def pack(self) -> Path:
        """Packs the folder; the time that takes is kept free before the end."""
        began = time.monotonic()
        packed = archive.pack(self.folder)
        self._packing_s = time.monotonic() - began
        return packed

    def _left(self) -> float:
        """Seconds until what is at work must be interrupted; results grow, and so does packing."""
        return self._ends - time.monotonic() - ENDING_S - 2 * self._packing_s

    def _words(self, step: Step) -> list[str]:
        settings = [f"backend={self.begun['backend']}", *self.overrides]
        named = [word for text in settings for word in ("--set", text)]
        place = str(self.folder / step.study)
        study = str(studies()[step.study])
        return [step.command, study, *named, *step.words, "--out", place, "--no-report"]

    def _check(self) -> None:
        """Keeps what the instruments read; they are checked once, where there is time for it."""
        needed = max(CHECK_S, 1.5 * self.begun.get("check_interrupted_s", 0.0))
        if self._left() < needed:
            self._say(f"instruments: not checked, which takes {needed / 60:.1f} min")
            return
        self._say("instruments: do they read what is known?")
        file, given = self.folder / INSTRUMENTS, self._left()
        words = ["doctor", "--check", "--backend", self.begun["backend"], "--format", "json"]
        with (self.folder / f".{INSTRUMENTS}").open("w+") as out:
            Path(out.name).unlink()
            status = _command(words, given, out.fileno())
            out.seek(0)
            text = out.read()
        if status in ANSWERS and text:  # passed, or failed: either is an answer
            store.write_text(file, text)
            return
        if self._left() < LEAST_S:
            self.begun["check_interrupted_s"] = given
            _write(self.folder / HOUR, self.begun)
        self._say("the instruments were not checked to their end")


def _why_nothing(statuses: Sequence[int]) -> str:
    """Why no run ended, by the exit statuses of the steps that were begun."""
    if not statuses:
        return "time was up before the first step; give more --minutes"
    if set(statuses) == {REFUSED}:
        return "no step can be made here, for the reasons above"
    return "no run came to its end in time, or each failed to begin; give more --minutes"


def _command(words: Sequence[str], seconds: float, stdout: int | None = None) -> int:
    """The exit status of one of mptexp's commands; at the deadline it is interrupted."""
    dying = [sys.executable, "-I", "-c", DIES_WITH_PARENT]
    command = [*dying, sys.executable, "-m", "mptexp", *words]
    return processes.ended_with(command, ENDING_S, seconds, env=child_environment(), stdout=stdout)
