"""Processes of a run and of a command: how they are found and ended, and what memory they take."""

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from mptexp.host import control_groups, files, interrupt

MARK = "MPTEXP_RUN_DIR"  # in the environment of every process of a run: the run's folder
TAIL = 16_384  # bytes that are kept of the output of a run's processes


def of(folder: Path) -> list[psutil.Process]:
    """Returns the processes of a run: their environment shows them, whoever started them."""
    return [process for process in psutil.process_iter() if _run_of(process) == str(folder)]


def _run_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except psutil.Error:  # it has ended meanwhile, or is another user's
        return None


def end(folder: Path, root: int | None = None) -> None:
    """Ends every process of a run but this one, and waits until they are gone.

    Args:
        root: a process that is the run's too, with its descendants, whatever environment they have.
    """
    for _ in range(10):  # a process that was just being started is found the next time
        left = {*of(folder), *_tree(root)} - {psutil.Process()}
        if not left:
            return
        for process in left:
            with suppress(psutil.Error):  # it has ended meanwhile
                process.kill()
        psutil.wait_procs(left, timeout=5)


def _tree(root: int | None) -> list[psutil.Process]:
    try:
        process = psutil.Process(root) if root else None
        return [process, *process.children(recursive=True)] if process else []
    except psutil.Error:
        return []


def largest_child(pid: int) -> psutil.Process | None:
    """Returns the child of a process that holds most memory; None if it has no child."""
    try:
        return max(psutil.Process(pid).children(), key=resident, default=None)
    except psutil.Error:
        return None


def ended_with(
    command: Sequence[str], ends_s: float, seconds: float | None = None, **started: Any
) -> int:
    """The exit status of a command in a session of its own, which ends with this process.

    Args:
        ends_s: seconds in which it has put away what it had begun; then it is killed.
        seconds: after which it is interrupted.
    """
    child = None
    try:
        with interrupt.held():  # else Ctrl-C while it starts would leave it, known to nobody
            child = subprocess.Popen(command, start_new_session=True, **started)
        return child.wait(seconds)
    except BaseException as error:
        status = _interrupted(child, ends_s) if child else 0
        if isinstance(error, subprocess.TimeoutExpired):
            return status
        raise


def _interrupted(child: subprocess.Popen[bytes], seconds: float) -> int:
    """Ends a process of a session of its own as Ctrl-C does, with the session; its exit status.

    A script's background process ignores SIGINT itself.

    Args:
        seconds: in which it has put away what it had begun; then it is killed.
    """
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def resident(process: psutil.Process | None) -> int:
    """Returns the bytes of memory that a process holds; 0 for None and if it has ended."""
    try:
        return process.memory_info().rss if process else 0
    except psutil.Error:
        return 0


def kills_for_memory(root: Path = Path("/")) -> int:
    """Returns how many processes the system has killed so far because memory ran out.

    The number is that of this process's control group if there is one: the whole machine's, which
    a container sees too, may be about somebody else.
    """
    names = ("memory.events", "memory.oom_control")
    places = [place / name for place in control_groups.own("memory", root) for name in names]
    for place in [*places, root / "proc/vmstat"]:
        counts = [line.split()[1] for line in files.lines(place) if line.startswith("oom_kill ")]
        if counts:
            return int(counts[0])
    return 0


class Tail(threading.Thread):
    """Reads the output of a run's processes and keeps the end of it, however much it is.

    Attributes:
        kept: the last bytes.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self.stream, self.kept = stream, b""
        self.start()

    def run(self) -> None:
        while data := os.read(self.stream.fileno(), TAIL):
            self.kept = (self.kept + data)[-TAIL:]
        self.stream.close()

    def lines(self) -> list[str]:
        """Returns the lines that are not blank, once all writers have ended (or a second later)."""
        self.join(timeout=1)
        text = self.kept.decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]
