"""Programs and commands in processes of their own that begin where what they need is imported.

To import TensorFlow and Keras takes six seconds, what a report needs five: most of what a small
training or a command takes. So each process is forked from one that has imported and done nothing
else: no operation was executed in it, no policy set. `python tests/forked.py KIND` is such a
process; those that run tests beside one another share it, and it ends with the last of them.
"""

import atexit
import ctypes
import fcntl
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

# What the processes of a kind find imported.
KINDS = {
    "tensorflow": ("keras", "tensorflow", "pandas", "pydantic", "sklearn.datasets"),
    "jax": ("keras", "jax", "pandas", "pydantic", "sklearn.datasets"),
    "command": (
        "great_tables", "itables", "jupytext", "nbclient", "nbconvert", "nh3", "pandas",
        "papermill", "psutil", "rich.progress", "rich.table", "ruamel.yaml", "scipy.stats",
        "seaborn", "sklearn.datasets", "mptexp.api.commands", "mptexp.api.diagnosing",
        "mptexp.cli", "mptexp.report.export", "mptexp.report.pages.page",
        "mptexp.report.pages.site",
    ),
}  # fmt: skip
REQUEST = 2**17  # bytes at most
# Variables that are read where a process starts or imports: by the loader of libraries, by what
# allocates memory, by Python, Keras and JAX. A test that sets one gets a process that starts anew;
# where the run itself decides what TensorFlow then reads, it sets ANEW.
AT_START = ("LD_", "MALLOC_", "PYTHON", "KERAS_HOME", "JAX_", "TF_ENABLE_ONEDNN", "ANEW")


def at_start(environ):
    """What of an environment only a process that starts heeds; a fork extends its path itself."""
    chosen = {name: value for name, value in environ.items() if name.startswith(AT_START)}
    return {name: value for name, value in chosen.items() if name != "PYTHONPATH"}


BEFORE = at_start(os.environ)


def of_kind(kind):
    """The variable by which Keras is that of a kind, in a process that starts anew as in a fork."""
    return {"KERAS_BACKEND": kind} if "keras" in KINDS.get(kind, ()) else {}


def python(program, *words, cwd=None, **environ):
    """Runs a program as `python -c` does, where the backend is imported that its first run names.

    A word that is no text becomes JSON.

    Returns:
        A CompletedProcess with its output as text.
    """
    texts = [word if isinstance(word, str) else json.dumps(word) for word in words]
    run_of = next((word for word in words if isinstance(word, dict)), {})
    kind = run_of.get("backend", os.environ.get("KERAS_BACKEND", "tensorflow"))
    return run(kind, ["-c", program, *texts], cwd or Path.cwd(), os.environ | environ)


def run(kind, words, cwd, environ, timeout=600):
    """Runs Python with words in a folder and an environment; see `python`."""
    if kind not in KINDS or at_start(environ) != BEFORE:
        return subprocess.run(
            [sys.executable, *words],
            cwd=cwd, env=environ | of_kind(kind), capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=os.environ["MPTEXP_TESTS"]) as folder:
        paths = [Path(folder) / name for name in ("stdout", "stderr")]
        status = _status(kind, {"words": words, "cwd": str(cwd), "environ": {**environ}}, paths)
        return CompletedProcess(words, status, *(path.read_text() for path in paths))


def _status(kind, request, paths):
    """The exit status of a forked process whose output goes to files."""
    server, files = connection(kind), [path.open("wb") for path in paths]
    socket.send_fds(server, [json.dumps(request).encode()], [file.fileno() for file in files])
    for file in files:
        file.close()
    return int(server.recv(16))


@cache
def connection(kind):
    """A connection to the process from which those of a kind are forked; starts it if need be."""
    path = Path(os.environ["MPTEXP_TESTS"], f"{kind}.socket")
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _greeted(path) or _start(kind, path)


def _greeted(path):
    """A connection to the process that answers at a socket, or None."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        made.connect(str(path))
        if made.recv(16) == b"ready":
            atexit.register(made.close)
            return made
    except OSError:
        pass
    made.close()
    return None


def _start(kind, path):
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(64)
        os.set_inheritable(listener.fileno(), True)
        environ = os.environ | of_kind(kind)
        command = [sys.executable, __file__, kind, str(listener.fileno())]
        os.posix_spawn(sys.executable, command, environ, setsid=True)
    made = _greeted(path)
    assert made, f"no process to fork from: {kind}"
    return made


# --- the process that is forked ------------------------------------------------------------------


def main():
    kind, listener = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[0] = str(Path(__file__).parent.parent)
    _import(KINDS[kind])
    work = _serve(listener)
    if work:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work()


def _import(names):
    from mptexp.execution.jupyter_kernel import UNUSED
    from mptexp.host import imports

    sys.modules.update(dict.fromkeys(UNUSED))  # seconds, for checks that nobody needs
    with imports.uncollected():
        for name in names:
            importlib.import_module(name)
    for name in UNUSED:
        del sys.modules[name]
    if "jax" in names:
        _keep_compiled(Path(os.environ["MPTEXP_TESTS"], "jax"))


def _keep_compiled(folder):
    """Has what JAX compiles in one test serve the others: most of what a small training takes."""
    import jax
    from jax._src.lru_cache import LRUCache

    # At each new entry it would read when all others were last used: 80 ms among 2,000.
    LRUCache._evict_if_needed = lambda self, additional_size=0: None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", 2**30)  # with it there is a lock
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _serve(listener):
    """Forks for each request and tells how each ended; in a forked process, what it is to do."""
    clients, working = set(), {}  # by pidfd: pid, and who asked
    while True:
        for ready in select.select([listener, *clients, *working], [], [])[0]:
            if ready is listener:
                client = listener.accept()[0]
                client.send(b"ready")
                clients.add(client)
            elif ready in working:
                pid, client = working.pop(ready)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(ready)
                client.send(str(status).encode())
            else:
                request, files, *_ = socket.recv_fds(ready, REQUEST, 2)
                if not request:
                    clients.remove(ready)
                    ready.close()
                    if not clients:
                        return None
                    continue
                with warnings.catch_warnings():  # of Python 3.12 and JAX, because there are threads
                    warnings.simplefilter("ignore")
                    pid = os.fork()
                if not pid:
                    for held in (listener, *clients):
                        held.close()
                    return lambda request=request, files=files: _work(json.loads(request), files)
                for file in files:
                    os.close(file)
                working[os.pidfd_open(pid)] = pid, ready


def _work(request, files):
    """Becomes `python` with the words that a request names, and ends."""
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None
    random.seed()
    sys.path[:1] = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    status = _ended(request["words"])
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)  # what libraries have printed
    finally:
        os._exit(status)  # libraries would wait for threads that a fork does not have


def _ended(words):
    """Does what the words name; returns its exit status."""
    try:
        _do(*words)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _do(option, what, *words):
    if option == "-m":
        sys.argv, sys.path[:0] = [what, *words], [os.getcwd()]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = [option, *words], [""]
        # This file is not the program's, and so not part of what identifies a run.
        program = types.ModuleType("__main__")
        sys.modules |= dict.fromkeys(("__main__", "__mp_main__"), program)
        exec(compile(what, "<string>", "exec"), program.__dict__)


if __name__ == "__main__":
    main()
