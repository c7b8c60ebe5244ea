import json

import pytest
from nbclient.exceptions import DeadKernelError

from mptexp.execution import jupyter_kernel, papermill_engine
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
"""


def executed(folder, code):
    notebook = folder / "n.py"
    notebook.write_text(f"{SCRIPT}\n# %%\n{code}\n")
    with scratch_folder() as scratch:
        jupyter_kernel.execute(notebook, folder / "done.ipynb", {}, scratch)
    return json.loads((folder / "done.ipynb").read_text())["cells"][-1]["outputs"]


def test_output_beyond_a_limit_is_left_out_and_the_notebook_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(papermill_engine._Client, "left", 2_000)
    code = (
        "import sys\nfor k in range(9): print(k, '.' * 900); sys.stdout.flush()\nopen('end', 'w')"
    )
    monkeypatch.chdir(tmp_path)
    text = "".join("".join(output.get("text", "")) for output in executed(tmp_path, code))
    assert "output beyond" in text
    assert len(text) < 12_000
    assert "8 ." not in text
    assert (tmp_path / "end").exists()


def test_a_dead_jupyter_kernels_exit_status_is_known(tmp_path):
    with pytest.raises(DeadKernelError) as caught:
        executed(tmp_path, "import os; os._exit(3)")
    assert caught.value.exit_status == 3
