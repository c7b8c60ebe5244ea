"""One run in a process of its own: its memory, its trace, its notebook."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support import mptexp, processes_of

from mptexp.execution import supervisor
from mptexp.records import schema, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.run import Run
from mptexp.traces import xplane


def test_a_notebook_that_was_cut_off_is_dropped(tmp_path):
    path = tmp_path / "notebook.ipynb"
    path.write_text('{"cells": [')
    supervisor._clean(path, "digits")
    assert not path.exists()


def test_a_notebook_does_not_say_in_which_folder_it_was_executed(tmp_path):
    path = tmp_path / "notebook.ipynb"
    paths = {"input_path": "/srv/of/mine/train.ipynb", "output_path": f"{path}", "version": "2.7"}
    path.write_text(json.dumps({"cells": [], "metadata": {"papermill": paths}}))
    supervisor._clean(path, "digits")
    kept = json.loads(path.read_text())["metadata"]["papermill"]
    wanted = {"input_path": "train.ipynb", "output_path": "notebook.ipynb", "version": "2.7"}
    assert kept == wanted
    path.write_text(json.dumps({"cells": [], "metadata": {}}))  # not papermill's
    supervisor._clean(path, "digits")
    assert json.loads(path.read_text()) == {"cells": [], "metadata": {}}


def test_a_trace_goes_with_the_record_that_tells_how_to_read_it(tmp_path):
    run, kept = Run(gpu_model="x", profile=True), tmp_path / xplane.FILE
    made = schema.bare(run, "train") | {"status": "ok", "profile": {"missing": "not read"}}
    for status, stays in (("ok", True), ("timeout", False)):
        kept.write_bytes(b"half of a trace")
        store.write_record(tmp_path / "record.json", made)
        supervisor._finish(tmp_path, run, "train", {"status": status, "error": ""}, 1.0, [], "now")
        assert kept.exists() == stays


def test_a_run_that_takes_more_memory_than_it_may_is_out_of_memory(tmp_path):
    # A real framework: importing it fits, a batch of large images does not.
    (tmp_path / "x.yaml").write_text(
        "defaults: {dataset: synthetic, image_size: 256, synthetic_length: 1024, epochs: 8,\n"
        "  width: 0.25, max_steps: 7, memory_limit_gb: 1.35}\n"
        "matrix: {batch_size: [1, 128]}\n"
    )
    done = mptexp("run", "x.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    read, _ = store.read_records(SweepDir(tmp_path / "reports/x"))
    by_size = {r["parameters"]["batch_size"]: r for r in read}
    assert by_size[1]["status"] == "ok", by_size[1]["error"]
    assert by_size[1]["timing"]["ended_by"] == "max_steps"
    assert by_size[1]["peak_memory_bytes"] < 1.35e9
    assert by_size[128]["status"] == "oom"
    assert "more than memory_limit_gb 1.35 allows" in by_size[128]["error"]
    assert not processes_of(tmp_path)


def test_a_passing_helper_of_the_worker_is_not_taken_for_the_kernel():
    # Importing jupytext asks pandoc its version where there is one: a child before the kernel.
    program = (
        "import subprocess, sys; subprocess.run(['sleep', '0.2']); "
        "subprocess.run([sys.executable, '-c', "
        "'import time; x = bytearray(300_000_000); time.sleep(600)'])"
    )
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as started:
        try:
            ended = supervisor._watch(started, time.monotonic() + 600, 100_000_000)
        finally:
            os.killpg(started.pid, signal.SIGKILL)
    assert "more than memory_limit_gb 0.1 allows" in ended


ENDS = """\
# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---
# %% tags=["parameters"]
# %%
import ctypes, os, signal, time
"""
ALLOCATES = """\
take = ctypes.CDLL("libstdc++.so.6")._Znwm
take.argtypes = [ctypes.c_size_t]
take(2**62)
"""
SAID = "W0000 autotuner.cc:42] RESOURCE_EXHAUSTED: no failure, another algorithm is used"
WARNS = f"""\
os.write(2, b"{SAID}\\n")
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("cell", "ending"),
    [
        (ALLOCATES, ("oom", "what():  std::bad_alloc")),
        (WARNS, ("killed", "the Jupyter kernel was ended by SIGKILL")),
    ],
)
def test_a_kernel_that_ran_out_of_memory_is_told_from_one_that_was_killed(cell, ending, tmp_path):
    (tmp_path / "n.py").write_text(ENDS + cell)
    run, directory = Run().resolved(), SweepDir(tmp_path / "sweep")
    record = supervisor.execute(run, tmp_path / "n.py", "n.py", directory, 600)
    assert (record["status"], record["error"]) == ending
