"""The switches of a backend that no Keras function covers: set, and read back.

TF32, op determinism, the share of a GPU's memory.
"""

import os
from typing import Any

from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.training import environment

XLA_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


def set_tf32(run: Run, where: dict[str, Any]) -> None:
    """Strict for float32, on for tensorfloat32, else as the backend has it (what users have)."""
    wanted = POLICY_ROWS[run.policy].tf32
    if where["kind"] != "gpu" or wanted is None:
        return
    if run.backend == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(wanted)
    elif run.backend == "jax":
        import jax

        precision = "tensorfloat32" if wanted else "float32"
        jax.config.update("jax_default_matmul_precision", precision)
    else:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = wanted
        torch.backends.cudnn.allow_tf32 = wanted


def tf32_enabled(run: Run, where: dict[str, Any]) -> bool:
    """Whether float32 matrix units use TF32 now: the backend's flag is on and the device has it."""
    if where["kind"] != "gpu" or not environment.is_native("tensorfloat32", where):
        return False
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return False
    if run.backend == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.experimental.tensor_float_32_execution_enabled())
    if run.backend == "jax":
        import jax

        return jax.config.jax_default_matmul_precision in (None, "default", "tensorfloat32")
    import torch

    return bool(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)


def ask_for_determinism(run: Run) -> None:
    """What must stand in the environment before the backend is imported."""
    if run.backend == "jax":
        before = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{before} {XLA_DETERMINISTIC}".strip()
    elif run.backend == "torch":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def show_kernels(run: Run) -> None:
    """Keeps XLA from launching kernels as one command buffer, which hides them from a trace."""
    if run.backend != "torch":
        before = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{before} --xla_gpu_enable_command_buffer=".strip()


def set_determinism(run: Run) -> None:
    """Makes the backend take only ops that give the same result each time; slower, most often."""
    if run.backend == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    elif run.backend == "torch":
        import torch

        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def deterministic(backend: str) -> bool:
    """Whether the backend was told to give the same result each time."""
    if backend == "tensorflow":
        from tensorflow.python.framework import config  # as Keras does; there is no public question

        by_environment = os.environ.get("TF_DETERMINISTIC_OPS", "").lower() in ("1", "true")
        return bool(config.is_op_determinism_enabled()) or by_environment
    if backend == "jax":
        return XLA_DETERMINISTIC in os.environ.get("XLA_FLAGS", "")
    import torch

    return bool(torch.are_deterministic_algorithms_enabled())


def limit_gpu_memory(run: Run) -> None:
    """Lets the framework's allocator have so much of a GPU; on a CPU the sweep watches the run."""
    limit = int((run.memory_limit_gb or 0) * 1e9)
    if environment.has_no_nvidia_driver():
        return
    if run.backend == "tensorflow":
        import tensorflow as tf

        for gpu in tf.config.list_physical_devices("GPU")[: run.replicas]:
            part = tf.config.LogicalDeviceConfiguration(memory_limit=limit / 2**20)
            tf.config.set_logical_device_configuration(gpu, [part])
    elif run.backend == "jax":
        # Read when JAX first looks at the GPU, which importing Keras does not do.
        share = limit / (environment.gpu_memory_bytes() or limit)
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{min(1.0, share):.4f}"
    else:
        import torch

        if torch.cuda.is_available():
            share = limit / torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, share))
