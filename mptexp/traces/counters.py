"""Hardware counters of kernels against what their names say of Tensor Cores.

Nsight Compute's metrics: smsp__sass_thread_inst_executed_op_ffma_pred_on.sum counts multiply-adds
of ordinary instructions, which a product on Tensor Cores does not need; *pipe_tensor* those of
Tensor Cores.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mptexp.traces import kernel_names
from mptexp.traces.operations import Counters

LETTERS = {"float32": "f", "float16": "h", "float64": "d"}
COUNTER = re.compile(r"__\w+\.(sum|avg|max|min)")  # such as smsp__inst_executed.sum


def among(args: Mapping[str, Any]) -> dict[str, float]:
    """The hardware counters among the details of a kernel."""
    return {
        name: float(value)
        for name, value in args.items()
        if "__" in name and COUNTER.search(name) and isinstance(value, int | float)
    }


def compared(counted: Iterable[tuple[str, Mapping[str, float]]]) -> Counters | None:
    """Compares each kernel that multiplies with its counters; None where there are none.

    Args:
        counted: names of kernels with their counters.
    """
    checked, wrong = 0, []
    for name, counts in counted:
        if not any("fma" in metric or "pipe_tensor" in metric for metric in counts):
            continue
        checked += 1
        reason = _against(name, counts)
        if reason:
            wrong.append(f"{name}: {reason}")
    return Counters(checked, tuple(dict.fromkeys(wrong))) if checked else None


def _against(name: str, counts: Mapping[str, float]) -> str:
    """Why a kernel's counters say otherwise than its name; empty where they agree."""
    kernel, matrix = kernel_names.kernel(name), kernel_names.work(name) == "matrix"
    fused = sum(n for metric, n in counts.items() if "fma_pred" in metric)
    other = sum(n for metric, n in counts.items() if "add_pred" in metric or "mul_pred" in metric)
    tensor = [n for metric, n in counts.items() if "pipe_tensor" in metric]
    if kernel.tensor_cores:
        if tensor and not any(tensor):
            return "its name says Tensor Cores, which did nothing"
        ordinary = "its name says Tensor Cores, its work is ordinary multiply-adds"
        return ordinary if fused > other else ""
    if any(tensor):
        return "it ran on Tensor Cores, which its name does not say"
    letter = LETTERS.get(kernel.arithmetic, "")
    own = sum(n for metric, n in counts.items() if f"op_{letter}fma" in metric)
    if matrix and letter and kernel.tensor_cores is False and own == 0:
        return f"its name says products in {kernel.arithmetic}, of which it has none"
    return ""
