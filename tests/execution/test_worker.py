import pytest

from mptexp.execution import worker


class CellError(Exception):
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


# As TensorFlow 2.21 says that a file could not be written, with the class of "out of memory".
FULL = "{{function_node __wrapped__WriteFile}} /dev/full; No space left on device [Op:WriteFile]"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CellError("ValueError", "odd\nmore"), "failed", "ValueError: odd"),
        (
            CellError("ResourceExhaustedError", "OOM when"),
            "oom",
            "ResourceExhaustedError: OOM when",
        ),
        (CellError("InternalError", "Dst tensor is not initialized."), "oom", "InternalError: Dst"),
        (CellError("RuntimeError", "can't allocate memory: you"), "oom", "RuntimeError: can't"),
        (CellError("OutOfMemoryError", "CUDA"), "oom", "OutOfMemoryError: CUDA"),
        (CellError("XlaRuntimeError", "RESOURCE_EXHAUSTED: x"), "oom", "XlaRuntimeError: RESOURCE"),
        # The lie: `oom`, final, exit status 0, of a full disk.
        (CellError("ResourceExhaustedError", FULL), "failed", "ResourceExhaustedError: {{function"),
        (
            CellError("XlaRuntimeError", "RESOURCE_EXHAUSTED: x; Too many open files"),
            "failed",
            "Xla",
        ),
        (CellError("RuntimeError", "RESOURCE_EXHAUSTED: x; Disk quota exceeded"), "failed", "Runt"),
        (CellError("Unsupported", "needs a GPU"), "unsupported", "needs a GPU"),
        (CellError("NotInForce", "jit is off"), "failed", "NotInForce: jit is off"),
        (DeadKernelError("x"), "killed", "the Jupyter kernel died"),
        (CellError("AbortedError", ABORTED), "unsupported", "AbortedError: Operation"),
    ],
)
def test_how_a_notebook_ended(error, status, line):
    ended = worker.outcome(error)
    assert ended["status"] == status
    assert ended["error"].startswith(line)
