import json
import os
import subprocess
import sys

import pytest

from mptexp.execution import jupyter_kernel
from mptexp.execution.scratch import scratch_folder

SCRIPT = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---
# %% tags=["parameters"]
x = 1
# %%
print("x is", x)
"""


@pytest.fixture
def scratch():
    with scratch_folder() as folder:
        yield folder
    assert not folder.exists()


def test_a_script_without_jupytexts_header_is_pythons(tmp_path, scratch):
    # Once "ValueError: No kernel name found in notebook and no override provided."
    notebook = tmp_path / "plain.py"
    notebook.write_text(SCRIPT.rpartition("# ---\n")[2])
    jupyter_kernel.execute(notebook, tmp_path / "done.ipynb", {"x": 2}, scratch)
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    assert cells[-1]["outputs"][0]["text"] == ["x is 2\n"]


def test_a_script_is_executed_with_its_parameters(tmp_path, scratch):
    notebook = tmp_path / "with a space é.py"
    notebook.write_text(SCRIPT)
    jupyter_kernel.execute(notebook, tmp_path / "done.ipynb", {"x": "<b>'\"$(ls)\n"}, scratch)
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    assert cells[-1]["outputs"][0]["text"] == ["x is <b>'\"$(ls)\n", "\n"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["done.ipynb", notebook.name]


LOOK = """
# %%
import json, psutil
from ipykernel.connect import get_connection_info
# The one port that is left is ipykernel's own, for the output of processes that it has forked.
hosts = sorted({c.laddr.ip for c in psutil.Process().net_connections()})
print(json.loads(get_connection_info())["transport"], hosts)
"""


def test_the_kernel_talks_over_ipc_and_listens_on_no_public_address(tmp_path, scratch):
    notebook = tmp_path / "n.py"
    notebook.write_text(SCRIPT + LOOK)
    jupyter_kernel.execute(notebook, tmp_path / "done.ipynb", {}, scratch)
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    assert "".join(cells[-1]["outputs"][0]["text"]) == "ipc ['127.0.0.1']\n"


FORKS = """
import json, sys
from pathlib import Path
import mptexp.spec.run
from mptexp.execution import jupyter_kernel
from mptexp.execution.scratch import scratch_folder
mptexp.spec.run.handed = "from its parent"
executed = Path(sys.argv[2])
kernel = jupyter_kernel.forked()
with scratch_folder() as scratch, kernel:
    jupyter_kernel.execute(Path(sys.argv[1]), executed, {"x": 2}, scratch, scratch, kernel)
print(json.loads(executed.read_text())["cells"][-1]["outputs"][0]["text"][0].strip())
print(kernel.returncode)
"""
SAYS = """
# %%
import mptexp.spec.run, os
print(x, mptexp.spec.run.handed, os.environ["MPTEXP_PROCESS"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
def test_a_forked_kernel_has_what_its_parent_has_and_ends_with_its_notebook(tmp_path):
    (tmp_path / "n.py").write_text(SCRIPT + SAYS)
    words = [str(tmp_path / name) for name in ("n.py", "done.ipynb")]
    done = subprocess.run(
        [sys.executable, "-P", "-c", FORKS, *words], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["2 from its parent forked", "-9"], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
def test_a_kernel_that_was_forked_and_never_started_ends():
    program = (
        "from mptexp.execution import jupyter_kernel\n"
        "with jupyter_kernel.forked() as kernel: pass\n"
        "print(kernel.returncode is not None)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_where_no_kernel_is_forked(monkeypatch):
    monkeypatch.setattr(jupyter_kernel.sys, "path", [os.getcwd(), *sys.path])
    assert jupyter_kernel.forked() is None
    monkeypatch.setattr(jupyter_kernel.sys, "path", sys.path[1:])
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    assert jupyter_kernel.forked() is None
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setattr(jupyter_kernel.sys, "platform", "darwin")
    assert jupyter_kernel.forked() is None
