import json

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
