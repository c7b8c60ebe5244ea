"""Workers that are forked from a process that has imported everything, instead of started anew.

Of a short training most is imports: 4 to 5 s in each process. See `fork_server` for what is forked,
and `Servers` for where. A worker that cannot be forked is started as ever, and its record says so.
"""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

from mptexp.execution import processes
from mptexp.execution.device_slots import Slot
from mptexp.host import project
from mptexp.spec.run import Run

SWITCH = "MPTEXP_FORK"  # the user's: 1 forks the processes of runs
START_S = 300.0  # in which a server must have imported everything and forked
CHECK_S = 0.5  # between two checks of whether the sweep is to stop
ROOM = 2**13  # bytes that a run's own variables may take beside the server's
# Parameters that decide what is imported, or the environment in which it is.
BEFORE_IMPORT = ("backend", "cpu_isa", "data_format", "deterministic", "profile")
OWN = (processes.MARK, "MPTEXP_NOTEBOOK", "TMPDIR")  # variables that no two runs share
FALLBACK = "started as a new process, because the fork server did not answer"


def servers(slots: Sequence[Slot], timed: bool = True) -> "AbstractContextManager[Servers | None]":
    """The fork servers of sweeps on these devices, or none.

    Never where there is a GPU, whose libraries do not survive a fork.

    Args:
        timed: whether times are compared: then only where the user has turned it on; else unless
            the user has turned it off.
    """
    gpu, wanted = any(slot.uuid for slot in slots), os.environ.get(SWITCH, str(int(not timed)))
    return Servers(timed) if wanted == "1" and not gpu and _is_able() else nullcontext()


def _is_able() -> bool:
    """Whether the system is Linux of 5.14 or later, and tells a process of its own pages."""
    if sys.platform != "linux" or not os.access("/proc/self/pagemap", os.R_OK):
        return False
    return tuple(int(n) for n in re.findall(r"\d+", os.uname().release)[:2]) >= (5, 14)


class Worker:
    """A forked worker, with those verbs of `subprocess.Popen` that its supervisor calls."""

    def __init__(self, stdin: int, stdout: int, reports: int) -> None:
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        self.reports = os.fdopen(reports, "rb", buffering=0)  # its pid, then its exit status
        self.pid, self.returncode = 0, None

    def begin(self, deadline: float, stop: threading.Event | None) -> None:
        """Waits until it can be found and ended.

        Raises:
            OSError: if it does not begin in time, or is to stop meanwhile.
        """
        while not self._reported(CHECK_S):
            if time.monotonic() > deadline or (stop and stop.is_set()):
                self.close()
                raise TimeoutError
        self.pid = self._number()
        if not self.pid:
            self.close()
            raise ChildProcessError

    def close(self) -> None:
        """Closes what connects it with this process."""
        for file in (self.stdin, self.stdout, self.reports):
            file.close()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end and returns the exit status; -9 where its server was killed before.

        Raises:
            subprocess.TimeoutExpired: if it has not ended by then.
        """
        if self.returncode is None:
            if not self._reported(timeout):
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            number = self._number()
            self.returncode = -signal.SIGKILL if number is None else number
            self.reports.close()
        return self.returncode

    def _reported(self, timeout: float | None) -> bool:
        return bool(select.select([self.reports], [], [], timeout)[0])

    def _number(self) -> int | None:
        content = self.reports.read(4)
        return int.from_bytes(content, "little", signed=True) if content else None


class Servers:
    """Gives the runs of sweeps their workers; the fork server ends with it.

    There is one server at a time: for one environment, for one backend with all that must be set
    before it is imported, and, where times are compared, for one block. So runs that are compared
    share the layout of their memory, and it is another one in each block, as it must be where no
    policy may profit from it.
    """

    def __init__(self, timed: bool = True) -> None:
        self.lock, self.broken, self.timed = threading.Lock(), False, timed
        self.key: tuple[Any, ...] | None = None
        self.ended: list[subprocess.Popen[bytes]] = []
        self.told: set[int] = set()  # the workers of the server in use

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for process in self.ended:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def worker(
        self,
        run: Run,
        notebook: str,
        scratch: Path,
        environment: Mapping[str, str],
        stop: threading.Event | None = None,
    ) -> Worker | None:
        """A worker for a run; None where it cannot be forked.

        Args:
            notebook: its notebook's name. Only of the package's own ones is it known that they set
                what must be set before a framework is imported, so for others none is imported.
            scratch: the folder with the worker's task.
            stop: set by another thread, it ends the waiting.
        """
        shared = {name: value for name, value in environment.items() if name not in OWN}
        own = {name: value for name, value in environment.items() if name in OWN}
        given = json.dumps({name: getattr(run, name) for name in BEFORE_IMPORT})
        words = ["mptexp.training", given] if notebook in project.notebooks() else []
        key = (run.block if self.timed else None, *words, *sorted(shared.items()))
        with self.lock:
            if self.broken:  # the runs that are left are started alike, and without waiting
                return None
            if key != self.key:
                self._end()
                self._begin(words, shared)
                self.key = key
            try:
                return self._fork(scratch, own, stop)
            except OSError:
                self._give_up()
                return None

    def _begin(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "mptexp.execution.fork_server", str(theirs.fileno())]
            self.process = subprocess.Popen(
                [*command, *words],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**environment, "MPTEXP_ROOM": "x" * ROOM},
                start_new_session=True,  # Ctrl-C reaches the sweep alone
            )

    def _fork(self, scratch: Path, own: Mapping[str, str], stop: threading.Event | None) -> Worker:
        """Asks for a worker.

        Raises:
            OSError: if the server has ended, or does not answer in time.
        """
        (standard_input, ours), (output, standard_output), (report, told) = (
            os.pipe() for _ in range(3)
        )
        request = {"scratch": str(scratch), "environment": own, "cwd": os.getcwd()}
        worker = Worker(ours, output, report)
        theirs = (standard_input, standard_output, told)
        try:
            socket.send_fds(self.channel, [json.dumps(request).encode()], theirs)
        except OSError:
            worker.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        worker.begin(time.monotonic() + START_S, stop)
        self.told.add(worker.pid)
        return worker

    def _end(self) -> None:
        """Lets the server end once its workers have ended."""
        if self.key is not None:
            self.channel.close()
            self.ended.append(self.process)
        self.key = None
        self.told.clear()

    def _give_up(self) -> None:
        """Ends a server that does not answer and what it forked last, but not the runs at work."""
        with suppress(psutil.Error):
            children = {child.pid for child in psutil.Process(self.process.pid).children()}
            for pid in children - self.told:
                processes.end(Path(), pid)
            if not children & self.told:
                self.process.kill()
        self._end()
        self.broken = True
