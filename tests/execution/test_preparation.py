import os
import signal
import subprocess
import sys

import psutil
import pytest
from support import PATIENCE_S, until

from mptexp.errors import ParamsError
from mptexp.execution import preparation
from mptexp.host.project import child_environment
from mptexp.spec.run import Run


def test_runs_that_need_the_same_data_are_prepared_once():
    mine = Run(dataset="folder:photos", image_size=8)
    same = [mine.model_copy(update=c) for c in ({"policy": "bfloat16"}, {"batch_size": 64})]
    assert {preparation.key(run) for run in [mine, *same]} == {preparation.key(mine)}
    for change in ({"image_size": 16}, {"dataset": "folder:others"}, {"model": "mine:build"}):
        assert preparation.key(mine.model_copy(update=change)) != preparation.key(mine)


def test_own_data_and_models_need_no_preparation(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)  # no child is started
    assert preparation.key(Run()) == ()
    preparation.prepare([Run(), Run(model="mlp")])


def test_what_is_wrong_with_data_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParamsError, match="dataset folder:nowhere: nowhere does not exist"):
        preparation.prepare([Run(dataset="folder:nowhere")])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "import sys\nsys.exit(3)\n",
            r"module ending cannot be imported: SystemExit: 3 \(ending.py",
        ),
        ("import os\nos._exit(0)\n", r"model ending:build, dataset digits could not be prepared: "),
        ("import os\nos.kill(os.getpid(), 9)\n", "the process was killed by SIGKILL"),
        ("def build(shape, classes):\n    exit(4)\n", r"raised SystemExit: 4 \(ending.py, line 2"),
    ],
)
def test_a_model_that_ends_the_process_is_named(tmp_path, monkeypatch, source, words):
    # Once "exit status 3", or "identities.json: No such file or directory".
    (tmp_path / "ending.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParamsError, match=words):
        preparation.look([Run(model="ending:build")])


ASKS = """
import sys
from mptexp.execution import preparation
from mptexp.host import interrupt
from mptexp.spec.run import Run
interrupt.listen()
try:
    preparation.look([Run(model="slow:build")])
except KeyboardInterrupt:
    print("ended")
"""


@pytest.mark.parametrize("at", ["start", "work"])
def test_ctrl_c_ends_a_preparation_without_a_traceback(tmp_path, at):
    # A terminal sends it to all: "Could not import runpy module", and Python's traceback.
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\npathlib.Path('works').touch()\ntime.sleep(600)\n"
    )
    how = {"cwd": tmp_path, "env": child_environment(), "start_new_session": True, "text": True}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen([sys.executable, "-c", ASKS], **how, **pipes) as asking:
        children = psutil.Process(asking.pid).children
        until(children if at == "start" else (tmp_path / "works").exists, of=asking)
        prepared = children()
        os.killpg(asking.pid, signal.SIGINT)
        assert asking.communicate(timeout=PATIENCE_S)[0] == "ended\n"
    assert prepared
    assert not any(child.is_running() for child in prepared)


def test_a_model_is_tried_for_all_that_changes_what_is_built():
    mine = Run(model="mine:build")
    layers = ({"float32_layers": "a"}, {"float32_layers": "b"})
    for change in ({"from_logits": True}, {"data_format": "channels_first"}, *layers):
        assert preparation.key(mine.model_copy(update=change)) != preparation.key(mine)
