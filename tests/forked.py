"""Programs in processes of their own that begin where TensorFlow and Keras are imported.

To import them takes five seconds, which is most of what a small training takes. Each process is
forked from one that has done so and nothing else: no operation was executed in it, no policy set.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["keras"])


def python(program, *words, cwd=None, **environ):
    """Runs a program as `python -c` does; one for another backend begins with nothing imported.

    A word that is no text becomes JSON; the program is for the backend that one of them names.

    Returns:
        A CompletedProcess with its output as text.
    """
    told = [word if isinstance(word, str) else json.dumps(word) for word in words]
    backends = {word.get("backend") for word in words if isinstance(word, dict)} & {"jax", "torch"}
    if backends or "KERAS_BACKEND" in os.environ:
        command = [sys.executable, "-c", program, *told]
        environ = os.environ | environ
        return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("stdout", "stderr")]
        words = (program, told, str(cwd or Path.cwd()), os.environ | environ, paths)
        process = CONTEXT.Process(target=_run, args=words)
        process.start()
        process.join()
        texts = [path.read_text() if path.exists() else "" for path in paths]
        return CompletedProcess(told, process.exitcode, *texts)


def _run(program, words, folder, environ, paths):
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.path[:0] = [folder, *environ.get("PYTHONPATH", "").split(os.pathsep)]
    for number, path in enumerate(paths, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["-c", *words]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
