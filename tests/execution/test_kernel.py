import json

import pytest

from mptexp.execution import kernel

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
    with kernel.scratch_folder() as folder:
        yield folder
    assert not folder.exists()


def test_a_script_is_executed_with_its_parameters(tmp_path, scratch):
    notebook = tmp_path / "with a space é.py"
    notebook.write_text(SCRIPT)
    kernel.execute(notebook, tmp_path / "done.ipynb", {"x": "<b>'\"$(ls)\n"}, scratch)
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
    kernel.execute(notebook, tmp_path / "done.ipynb", {}, scratch)
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    assert "".join(cells[-1]["outputs"][0]["text"]) == "ipc ['127.0.0.1']\n"


class Told(Exception):
    def __init__(self, ename, evalue):
        self.ename, self.evalue = ename, evalue


class DeadKernelError(Exception):
    pass


# As TensorFlow 2.21 says that oneDNN has no bfloat16 convolution for an instruction set.
ABORTED = """Graph execution error:

Detected at node StatefulPartitionedCall/conv2d_1/Relu defined at (most recent call last):
<stack traces unavailable>
Operation received an exception:Status: 3, message: could not create a primitive descriptor
 [[{{node StatefulPartitionedCall/conv2d_1/Relu}}]] [Op:__inference_multi_step_on_iterator_3068]
"""


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (Told("ValueError", "odd\nmore"), "failed", "ValueError: odd"),
        (Told("ResourceExhaustedError", "OOM when"), "oom", "ResourceExhaustedError: OOM when"),
        (Told("InternalError", "Dst tensor is not initialized."), "oom", "InternalError: Dst"),
        (Told("RuntimeError", "can't allocate memory: you"), "oom", "RuntimeError: can't"),
        (Told("OutOfMemoryError", "CUDA"), "oom", "OutOfMemoryError: CUDA"),
        (Told("XlaRuntimeError", "RESOURCE_EXHAUSTED: x"), "oom", "XlaRuntimeError: RESOURCE"),
        (Told("Unsupported", "needs a GPU"), "unsupported", "needs a GPU"),
        (Told("NotInForce", "jit is off"), "failed", "NotInForce: jit is off"),
        (DeadKernelError("x"), "killed", "the kernel died"),
        (Told("AbortedError", ABORTED), "unsupported", "AbortedError: Operation"),
    ],
)
def test_how_a_notebook_ended(error, status, line):
    told = kernel.outcome(error)
    assert told["status"] == status
    assert told["error"].startswith(line)
