"""Precision: one value (policy, loss scale, TF32, XLA), set on the backend and read back from it.

Keras reads its backend once, when it is imported, and layers take the dtype policy when they are
made; so `use` comes before anything that imports Keras, and a process serves one run.
"""

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from mptexp import environment
from mptexp.environment import Unsupported
from mptexp.spec import Run

if TYPE_CHECKING:
    import keras
    import pandas as pd


class NotInForce(RuntimeError):
    """What was asked for is not what the backend does: the run must not be counted."""


INSTALL = {
    "tensorflow": "pip install tensorflow",
    "jax": "pip install jax",
    "torch": "pip install torch",
}
_used: dict[str, str] = {}


def use(run: Run) -> dict[str, Any]:
    """Selects backend, dtype policy and TF32 for this process; returns the device's card.

    Raises:
        Unsupported: where the backend is not installed or the device lacks the policy.
        NotInForce: where this process has used another backend or policy, or runs on another
            device than the run names.
    """
    _once("backend", run.backend)
    _once("policy", run.policy)
    os.environ["KERAS_BACKEND"] = run.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if run.backend == "torch" and environment.has_no_nvidia_driver():
        # PyTorch would take a Mac's GPU, which is not supported here.
        os.environ.setdefault("KERAS_TORCH_DEVICE", "cpu")
    if importlib.util.find_spec(run.backend) is None:
        raise Unsupported(f"{run.backend} is not installed; {INSTALL[run.backend]}")
    with environment.quiet():
        import keras

        where = environment.device(run.backend)
    if keras.backend.backend() != run.backend:
        _refuse("backend", keras.backend.backend(), run.backend)
    _check_device(run, where)
    if run.policy != "tensorfloat32":
        keras.config.set_dtype_policy(run.policy)
    _set_tf32(run, where)
    return where


def _once(name: str, value: str) -> None:
    before = _used.setdefault(name, value)
    if before != value:
        _refuse(name, before, value)


def _refuse(name: str, before: str, value: str) -> None:
    raise NotInForce(
        f"{name} {value} was asked for in a kernel that has already used {before}; "
        "restart the kernel"
    )


def _check_device(run: Run, where: dict[str, Any]) -> None:
    asked = run.resolved().gpu_model
    if where["device"] != asked:
        raise NotInForce(
            f"gpu_model is {asked}, but {run.backend} runs on {where['device']}; mptexp doctor "
            "says what is missing"
        )
    if run.policy == "tensorfloat32" and not environment.is_native("tensorfloat32", where):
        raise Unsupported(
            "tensorfloat32 needs an NVIDIA GPU of compute capability 8.0 or later; "
            f"this device is {where['device']}"
        )


def _set_tf32(run: Run, where: dict[str, Any]) -> None:
    """Strict for float32, on for tensorfloat32, else as the backend has it (what users have)."""
    if where["kind"] != "gpu" or run.policy not in ("float32", "tensorfloat32"):
        return
    wanted = run.policy == "tensorfloat32"
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


def compile_model(model: "keras.Model", run: Run) -> None:
    """Compiles the model with Adam, the run's loss scale and the run's XLA choice.

    Keras wraps the optimizer in a LossScaleOptimizer by itself only where the model's own policy
    is mixed_float16; under any other `dynamic` must be asked for. A fixed scale is silently
    dropped unless `auto_scale_loss` is off.
    """
    import keras

    optimizer = keras.optimizers.Adam(run.learning_rate)
    auto = run.loss_scale == "auto"
    if run.loss_scale == "dynamic":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    elif isinstance(run.loss_scale, float):
        optimizer.loss_scale_factor = run.loss_scale
    model.compile(
        optimizer,
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        auto_scale_loss=auto,
        jit_compile={"auto": "auto", "on": True, "off": False}[run.jit],
    )


def dtypes(model: "keras.Model") -> "pd.DataFrame":
    """What the built model says of itself: a row per layer, in order.

    Index: the layer's name. Columns: kind, output_shape, parameters, compute_dtype, variable_dtype.
    """
    import pandas as pd

    rows = [
        {
            "layer": layer.name,
            "kind": type(layer).__name__,
            "output_shape": str(tuple(layer.output.shape)[1:]),
            "parameters": layer.count_params(),
            "compute_dtype": layer.compute_dtype,
            "variable_dtype": layer.variable_dtype,
        }
        for layer in model.layers
    ]
    return pd.DataFrame(rows).set_index("layer").rename_axis(None)


def in_force(model: "keras.Model", run: Run, where: dict[str, Any]) -> dict[str, Any]:
    """What is really in force, read back from the device and the compiled model.

    Keys: compute_dtype, variable_dtype (of the layers that hold the parameters), head_dtype,
    loss_scale ("none" or the number now), jit, tf32, emulated, default_policy.

    Raises:
        NotInForce: where dtype, XLA or TF32 are not what the run asked for.
    """
    layers = [layer for layer in model.layers if layer.count_params()]
    found = {
        "compute_dtype": _one({layer.compute_dtype for layer in layers}),
        "variable_dtype": _one({layer.variable_dtype for layer in layers}),
        "head_dtype": str(model.outputs[0].dtype),
        "loss_scale": loss_scale(model),
        "jit": bool(model.jit_compile),
        "tf32": tf32_enabled(run, where),
        "emulated": not environment.is_native(_matrix_dtype(run), where),
        "default_policy": environment.default_policy(where),
    }
    _check_in_force(found, run)
    return found


def _matrix_dtype(run: Run) -> str:
    return run.policy.removeprefix("mixed_")


def _one(names: set[str]) -> str:
    return names.pop() if len(names) == 1 else ", ".join(sorted(names))


def _check_in_force(found: dict[str, Any], run: Run) -> None:
    compute = "float32" if run.policy == "tensorfloat32" else _matrix_dtype(run)
    variable = compute if not run.policy.startswith("mixed_") else "float32"
    wanted = {
        "compute_dtype": compute,
        "variable_dtype": variable,
        "head_dtype": "float32",
        **({"jit": run.jit == "on"} if run.jit != "auto" else {}),
        **({"tf32": True} if run.policy == "tensorfloat32" else {}),
        **({"tf32": False} if run.policy == "float32" else {}),
    }
    for name, value in wanted.items():
        if found[name] != value:
            raise NotInForce(f"{name} is {found[name]}, but the run asked for {value}")


def loss_scale(model: "keras.Model") -> float | str:
    """The factor that multiplies the loss now, or "none"."""
    optimizer = model.optimizer
    if hasattr(optimizer, "initial_scale"):  # a LossScaleOptimizer; built by the first step
        return float(optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale)
    return float(optimizer.loss_scale_factor) if optimizer.loss_scale_factor else "none"
