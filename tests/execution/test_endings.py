import signal

import pytest

from mptexp.execution import endings


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
    ended = endings.of_error(error)
    assert ended["status"] == status
    assert ended["error"].startswith(line)


SAID = "W0000 autotuner.cc:42] RESOURCE_EXHAUSTED: no failure, another algorithm is used"
ALLOCATION = ["terminate called after throwing an instance of 'std::bad_alloc'", "std::bad_alloc"]
THREADS = ["*** Check failure stack trace: ***", *["@ 0x7f00 f()"] * 20]
THREADS += ["Fatal Python error: Aborted", *["File x.py, line 1 in f"] * 20]


@pytest.mark.parametrize(
    ("number", "lines", "status"),
    [
        (signal.SIGKILL, [SAID], "killed"),  # the lie: `oom`, for what was said a minute before
        (signal.SIGTERM, [SAID], "killed"),
        (signal.SIGKILL, ALLOCATION, "killed"),
        (signal.SIGABRT, ALLOCATION, "oom"),
        (signal.SIGABRT, [*ALLOCATION, *THREADS], "oom"),
        (signal.SIGABRT, [SAID, *["a step"] * endings.LAST_LINES, *THREADS], "killed"),
        (signal.SIGABRT, ["RESOURCE_EXHAUSTED: f; No space left on device"], "killed"),
    ],
)
@pytest.mark.parametrize("whose", ["worker", "kernel"])
def test_what_a_process_printed_proves_only_why_it_ended_itself(whose, number, lines, status):
    died = DeadKernelError("x")
    died.exit_status = -number
    written = endings.of_error(died) if whose == "kernel" else None
    ended = endings.of_process(written, -number, lines)
    assert ended["status"] == status
    assert set(ended) == {"status", "error"}
    assert (number.name in ended["error"]) is (status == "killed")
