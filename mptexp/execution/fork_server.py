"""A process that has imported what runs import, from which their processes are forked.

`python -m mptexp.execution.fork_server CHANNEL [MODULE RUN]` imports ipykernel and what
MODULE.preload(RUN) imports. Then it forks a worker for each request on the socket CHANNEL, and the
worker forks its Jupyter kernel before it imports anything more. It ends when the socket's other
end, the sweep's, has closed and its workers have ended.

Importing is all that it does: it computes nothing, reads no data and runs no code of the user's. Of
mptexp it keeps no module, so that each process imports the sources as they are when it starts. A
Jupyter kernel makes its own what it shares with this process (see `_resident`): the memory that it
holds, and what its first writes cost, are then those of a process that imported everything itself.
"""

import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

ROOM = "MPTEXP_ROOM"  # a variable that only makes room in the first environment: see `_show`
REQUEST = 2**16  # bytes at most
POPULATE_READ, POPULATE_WRITE = 22, 23  # advice to madvise, Linux 5.14
PRESENT, OF_A_FILE = 63, 61  # bits of an entry of /proc/PID/pagemap

Pages = Sequence[tuple[int, int, int]]  # address, bytes, advice


def main() -> None:
    """Imports, then forks for each request; returns in the processes that it has forked."""
    channel, given = socket.socket(fileno=int(sys.argv[1])), dict(os.environ)
    for name in ("ipykernel.ipkernel", "ipykernel.zmqshell", "ipykernel.kernelapp"):
        importlib.import_module(name)
    if sys.argv[2:]:
        if not os.environ.get("MPLBACKEND"):  # as ipykernel does, before matplotlib is imported
            os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
        given |= importlib.import_module(sys.argv[2]).preload(json.loads(sys.argv[3]))
    for name in [name for name in sys.modules if name.partition(".")[0] == "mptexp"]:
        del sys.modules[name]
    gc.collect()
    if threading.active_count() > 1:
        raise SystemExit("an import has started a thread of Python's, which no fork would have")
    pages = _resident()
    _advise(pages[:1])  # an older Linux refuses it: then nothing is forked
    work = _serve(channel, given, pages)
    if work:
        work()


def _serve(
    channel: socket.socket, given: Mapping[str, str], pages: Pages
) -> Callable[[], None] | None:
    """Forks and reports exit statuses until all is over; in a forked process, what it is to do."""
    workers: dict[int, tuple[int, int]] = {}  # by pidfd: pid, and where its end is reported
    listening = True
    while listening or workers:
        for ready in select.select([*workers, *([channel] if listening else [])], [], [])[0]:
            if ready is not channel:
                pid, report = workers.pop(ready)
                _report(report, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(report)
                os.close(ready)
                continue
            request, files, *_ = socket.recv_fds(channel, REQUEST, 3)
            if not request:
                listening = False
                continue
            for held in files:  # not for what runs start themselves
                os.set_inheritable(held, False)
            pid = _forked()
            if not pid:
                for held in (*workers, *(report for _, report in workers.values())):
                    os.close(held)
                channel.close()
                return lambda: _work(json.loads(request), files, given, pages)
            for held in files[:2]:
                os.close(held)
            workers[os.pidfd_open(pid)] = pid, files[2]
    return None


def _forked() -> int:
    with warnings.catch_warnings():  # of Python 3.12 and JAX, because there are threads
        warnings.simplefilter("ignore")
        return os.fork()


def _report(descriptor: int, number: int) -> None:
    with suppress(OSError):  # nobody wants to know any more
        os.write(descriptor, number.to_bytes(4, "little", signed=True))


# --- a worker ------------------------------------------------------------------------------------


def _work(
    request: Mapping[str, Any], files: Sequence[int], given: Mapping[str, str], pages: Pages
) -> None:
    """Becomes the worker that a request describes, as if it had been started for it."""
    standard_input, output, report = files
    os.setsid()
    for number, file in enumerate((standard_input, output, output)):
        os.dup2(file, number)
    os.close(standard_input)
    os.close(output)
    _begin({**given, **request["environment"]}, request["cwd"])
    _show()
    give(Kernel(pages, report))
    # Not before it can be found and ended. It stays open: that it closes is how the sweep learns
    # that this process has ended, where the server was killed meanwhile.
    _report(report, os.getpid())
    sys.argv = ["worker", request["scratch"]]
    _end_as(importlib.import_module("mptexp.execution.worker").main)


def _begin(environment: Mapping[str, str], cwd: str) -> None:
    """What differs between processes from their start: environment, folder, random numbers."""
    os.environ.clear()
    os.environ.update({name: value for name, value in environment.items() if name != ROOM})
    os.chdir(cwd)
    tempfile.tempdir = None
    random.seed()
    np.random.seed()


def _show() -> None:
    """Writes this process's environment where /proc/PID/environ reads it.

    By it the processes of a run are found. What is read there are the bytes that a program was
    given when it began, so a forked process shows its parent's unless it overwrites them.
    """
    content = b"".join(b"%b=%b\0" % pair for pair in os.environb.items())
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, content, min(len(content), end - start - 1))


# --- its Jupyter kernel --------------------------------------------------------------------------


class Kernel:
    """The process of a Jupyter kernel that waits for its command; it ends with the worker.

    It has those verbs of `subprocess.Popen` that jupyter_client calls.
    """

    stdin = stdout = stderr = returncode = None

    def __init__(self, pages: Pages = (), report: int | None = None) -> None:
        self.channel, theirs = socket.socketpair()
        # Ctrl-C reaches both processes: in the new one it would end nothing but its beginning.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.pid = _forked()
        if not self.pid:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # as ipykernel does later
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        if not self.pid:
            self.channel.close()
            if report is not None:
                os.close(report)
            _end_as(lambda: _become_kernel(theirs, pages))
        theirs.close()
        if not self.channel.recv(1):
            raise ChildProcessError("the Jupyter kernel's process ended before it began")

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it, also where it was never started."""
        self.channel.close()
        self.kill()
        self.wait()

    def start(self, command: Sequence[str], environment: Mapping[str, str], cwd: str) -> None:
        """Lets it execute `python -m MODULE ARGUMENTS`, of which only the module matters."""
        request = {"words": command[command.index("-m") + 1 :], "cwd": cwd}
        self.channel.sendall(json.dumps({**request, "environment": {**environment}}).encode())
        self.channel.shutdown(socket.SHUT_RDWR)  # closed, it may be open in another fork
        self.channel.close()

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _become_kernel(channel: socket.socket, pages: Pages) -> None:
    """Waits for the command and executes it; does not return."""
    os.setsid()  # before anybody knows the process, whose group jupyter_client sends signals to
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    channel.send(b".")
    _advise(pages)
    with channel, channel.makefile() as sent:
        content = sent.read()
    if not content:  # the worker has ended
        os._exit(0)
    request = json.loads(content)
    _begin(request["environment"], request["cwd"])
    # ipykernel has read from the environment, when it was imported, whose end is its own. That
    # process may have ended by now: it is not asked of the system.
    parent = request["environment"]["JPY_PARENT_PID"]
    sys.argv = [*request["words"], f"--IPKernelApp.parent_handle={parent}"]
    if (matplotlib := sys.modules.get("matplotlib")) and "matplotlib.pyplot" not in sys.modules:
        matplotlib.use("module://matplotlib_inline.backend_inline")  # as ipykernel has it
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_as(work: Callable[[], None]) -> None:
    """Does the work of a forked process and ends it: it returns to nothing that its parent began.

    Not as Python ends: libraries would wait for threads that a fork does not have.
    """
    code: object = 1
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException as error:  # its line is what is told; where, a user cannot change
        with suppress(Exception):
            sys.stderr.write("".join(traceback.format_exception_only(error)))
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def give(kernel: Kernel) -> None:
    """Has the next Jupyter kernel that this process starts be this one."""
    Provisioner.forked = kernel
    factory = KernelProvisionerFactory.instance()
    factory.provisioners[__name__] = SimpleNamespace(load=lambda: Provisioner)
    factory.default_provisioner_name = __name__


class Provisioner(LocalProvisioner):
    """Gives jupyter_client the forked process, once, where it asks for this Python's ipykernel."""

    forked: Kernel

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        ours = cmd[0] == sys.executable and "ipykernel_launcher" in cmd
        if not ours or self.forked.channel.fileno() < 0:
            self.forked.channel.close()
            return await super().launch_kernel(cmd, **kwargs)
        environment = kwargs["env"] | {"JPY_PARENT_PID": str(os.getpid())}
        environment["MPTEXP_PROCESS"] = "forked"  # for the record's identity
        self.cwd = str(kwargs.get("cwd") or Path.cwd())
        self.forked.start(cmd, environment, self.cwd)
        self.process, self.pid, self.pgid = self.forked, self.forked.pid, self.forked.pid
        return self.connection_info


# --- memory --------------------------------------------------------------------------------------


def _resident() -> Pages:
    """The memory that this process holds now, as what a forked one has to do to hold it as well.

    A fork lacks the pages of files that its parent has read (most of a framework's code) until it
    reads them too: it would seem to need 0.3 GB less. The other pages it shares until it writes to
    them, which would then be copied while steps are timed.
    """
    pages, size = [], os.sysconf("SC_PAGESIZE")
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb") as table:
        for line in maps.readlines():
            place, rights, *_ = line.split()
            first, last = (int(edge, 16) // size for edge in place.split("-"))
            if "[v" in line or "r" not in rights:  # of the system's own, such as [vdso]
                continue
            table.seek(8 * first)
            entries = np.frombuffer(table.read(8 * (last - first)), np.uint64)
            of_file = (entries >> np.uint64(OF_A_FILE) & np.uint64(1)).astype(bool)
            present = (entries >> np.uint64(PRESENT)).astype(bool)
            for chosen, advice in ((of_file, POPULATE_READ), (~of_file, POPULATE_WRITE)):
                if advice == POPULATE_WRITE and "w" not in rights:
                    continue
                for start, end in _stretches(present & chosen):
                    pages.append(((first + start) * size, (end - start) * size, advice))
    return pages


def _stretches(chosen: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(np.int8), [0]])))
    return edges.reshape(-1, 2).tolist()


def _advise(pages: Pages) -> None:
    """Maps pages as `_resident` says.

    Raises:
        OSError: where the system knows no such advice.
    """
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for page in pages:
        if madvise(*page) and ctypes.get_errno() == 22:
            raise OSError(22, "the system cannot populate pages")


if __name__ == "__main__":
    main()
