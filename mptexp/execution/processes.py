"""The processes of a run: finding and ending all of them, and what proves that memory ran out."""

import os
import threading
from pathlib import Path
from typing import IO

import psutil

MARK = "MPTEXP_RUN_DIR"  # in the environment of every process of a run: the run's folder
TAIL = 16_384  # bytes that are kept of what a run's processes say


def of(folder: Path) -> list[psutil.Process]:
    """The processes of a run. They are known by their environment, whoever started them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder):
                found.append(process)
        except psutil.Error:  # gone by now, or another user's
            continue
    return found


def end(folder: Path, root: int | None = None) -> None:
    """Ends every process of a run but this one, and waits until they are gone.

    Args:
        folder: the run's.
        root: a process whose descendants are the run's too, whatever environment they have.
    """
    own = os.getpid()
    for _ in range(10):  # what was just being started is found the next time
        found = {*of(folder), *_descendants(root)} - {psutil.Process(own)}
        if not found:
            return
        for process in found:
            _kill(process)
        psutil.wait_procs(found, timeout=5)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:  # it has ended meanwhile
        return


def _descendants(root: int | None) -> list[psutil.Process]:
    try:
        return psutil.Process(root).children(recursive=True) if root else []
    except psutil.Error:
        return []


def largest_child(pid: int) -> psutil.Process | None:
    """The child of a process that holds most memory, once there is one."""
    try:
        return max(psutil.Process(pid).children(), key=resident, default=None)
    except psutil.Error:
        return None


def resident(process: psutil.Process | None) -> int:
    """Bytes of memory that a process holds; 0 for none and for one that has ended."""
    try:
        return process.memory_info().rss if process else 0
    except psutil.Error:
        return 0


def kills_for_memory(root: Path = Path("/")) -> int:
    """How many processes the system has killed so far because memory ran out.

    Of this process's control group where there is one: the whole machine's number, which a
    container sees too, may be about somebody else.
    """
    lines = _lines(root / "proc/self/cgroup")
    groups = {tuple(line.split(":", 2)[1:]) for line in lines if line.count(":") >= 2}
    places = [root / "proc/vmstat"]
    for controllers, path in groups:
        inside = path.lstrip("/")
        if controllers == "":
            places.insert(0, root / "sys/fs/cgroup" / inside / "memory.events")
        elif "memory" in controllers.split(","):
            places.insert(0, root / "sys/fs/cgroup/memory" / inside / "memory.oom_control")
    for place in places:
        counts = [line.split()[1] for line in _lines(place) if line.startswith("oom_kill ")]
        if counts:
            return int(counts[0])
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


class Tail(threading.Thread):
    """Reads what a run's processes say and keeps the end of it, however much they say.

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

    def lines(self) -> list[str]:
        """Lines that are not blank, once all writers have ended (or a second later)."""
        self.join(timeout=1)
        text = self.kept.decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]
