"""Precision: one value (policy, loss scale, TF32, XLA), set on the backend and read back from it.

Keras reads its backend once, when it is imported, and layers take the dtype policy when they are
made; so `use` comes before anything that imports Keras, and a process serves one run.
"""

import importlib.util
import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from mptexp import environment
from mptexp.environment import Unsupported
from mptexp.spec import CPU_ISAS, Run, cpuinfo

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
# What oneDNN's verbose mode calls the instruction sets (versions 3.7 and 3.12).
ONEDNN_NAMES = {
    "Intel SSE4.1": "sse41",
    "Intel AVX": "avx",
    "Intel AVX2": "avx2",
    "Intel AVX2 with Intel DL Boost": "avx2_vnni",
    "Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions": "avx512_core",
    "Intel AVX-512 with Intel DL Boost": "avx512_core_vnni",
    "Intel AVX-512 with Intel DL Boost and bfloat16 support": "avx512_core_bf16",
    "Intel AVX-512 with float16, Intel DL Boost and bfloat16 support": "avx512_core_fp16",
    "Intel AVX 10.1": "avx512_core_fp16",
    "Intel AVX-512 with float16, Intel DL Boost and bfloat16 support and Intel AMX with bfloat16 "
    "and 8-bit integer support": "avx512_core_amx",
    "Intel AVX10.1 and Intel AMX with bfloat16 and 8-bit integer support": "avx512_core_amx",
}
# A convolution large enough for PyTorch to leave it to oneDNN, which then says what it uses.
ONEDNN_PROGRAMS = {
    "tensorflow": "import tensorflow as t; t.nn.conv2d(t.ones((4, 32, 32, 16)), "
    "t.ones((3, 3, 16, 16)), 1, 'SAME')",
    "torch": "import torch as t; t.nn.functional.conv2d(t.ones(4, 16, 32, 32), "
    "t.ones(16, 16, 3, 3))",
}
_used: dict[str, str] = {}


def use(run: Run) -> dict[str, Any]:
    """Selects backend, dtype policy, TF32 and CPU instructions; returns the device's card.

    Raises:
        Unsupported: where the backend is not installed, or it or the device lacks what is asked.
        NotInForce: where this process has used another backend, policy or cpu_isa, or runs on
            another device than the run names.
    """
    for name in ("backend", "policy", "cpu_isa"):
        _once(name, getattr(run, name))
    os.environ["KERAS_BACKEND"] = run.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _limit_cpu(run)
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
    _check_cpu(run, where)
    _check_replicas(run, where)
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


def _limit_cpu(run: Run) -> None:
    """Tells oneDNN, which reads this when the framework starts, how much of the CPU to use.

    That is convolutions and, under TensorFlow, matrix products; what else a framework computes
    keeps the instructions that it was compiled for.

    Raises:
        Unsupported: where oneDNN would not be what computes, or the CPU has no such instructions.
    """
    if run.cpu_isa == "default":
        return
    asked = f"cpu_isa {run.cpu_isa} limits oneDNN"
    if run.backend == "jax":
        raise Unsupported(f"{asked}, to which JAX leaves only some products; XLA compiles the rest")
    if run.backend == "tensorflow" and run.jit == "on":
        raise Unsupported(f"{asked}, to which XLA leaves only some products; take jit auto or off")
    if run.backend == "tensorflow" and os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        raise Unsupported(f"{asked}, which TF_ENABLE_ONEDNN_OPTS=0 turns off")
    if CPU_ISAS[run.cpu_isa] not in cpuinfo("flags", "Features").split():
        raise Unsupported(f"cpu_isa {run.cpu_isa} is asked for, but this CPU does not have it")
    # TensorFlow turns it on by itself only where the CPU has AVX512_VNNI, AVX_VNNI or later.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ["ONEDNN_MAX_CPU_ISA"] = run.cpu_isa.upper()


def _check_cpu(run: Run, where: dict[str, Any]) -> None:
    if where["kind"] != "cpu":
        if run.cpu_isa != "default":
            raise Unsupported(
                f"cpu_isa {run.cpu_isa} limits a CPU, but this run's device is {where['device']}"
            )
        return
    lacks = run.backend == "tensorflow" and run.jit != "on" and _matrix_dtype(run) == "float16"
    if lacks and _data_format(run) == "channels_first":
        raise Unsupported(
            "TensorFlow has no channels_first convolution in float16 for a CPU without XLA; "
            "take jit on, channels_last or another policy"
        )


def _data_format(run: Run) -> str:
    import keras

    return keras.config.image_data_format() if run.data_format == "auto" else run.data_format


def _check_replicas(run: Run, where: dict[str, Any]) -> None:
    if run.replicas == 1:
        return
    seen = _device_count(run.backend, where["kind"])
    if seen < run.replicas:
        devices = "1 device" if seen == 1 else f"{seen} devices"
        raise Unsupported(f"replicas {run.replicas} asked for; {run.backend} sees {devices} here")
    raise Unsupported(
        f"replicas {run.replicas} asked for; several devices in one run are not supported yet"
    )


def _device_count(backend: str, kind: str) -> int:
    if backend == "tensorflow":
        import tensorflow as tf

        return len(tf.config.list_physical_devices(kind.upper()))
    if backend == "jax":
        import jax

        return jax.device_count()
    import torch

    return torch.cuda.device_count() if kind == "gpu" else 1


@cache
def onednn_isa(backend: str) -> str:
    """The instructions that oneDNN limits itself to, as oneDNN says, in spec.CPU_ISAS' words.

    A child process with this one's environment is asked, since neither TensorFlow nor PyTorch
    exports oneDNN's own question: its verbose mode tells, and would tell of every step.
    """
    environ = os.environ | {"ONEDNN_VERBOSE": "1"}
    command = [sys.executable, "-c", ONEDNN_PROGRAMS[backend]]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=True, timeout=300
    )
    marker = "info,cpu,isa:"
    said = [line.split(marker)[1].strip() for line in done.stdout.splitlines() if marker in line]
    return ONEDNN_NAMES.get(said[0], said[0]) if said else "oneDNN is not in use"


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
    """Compiles the model with the run's optimizer, loss scale and XLA choice.

    Keras wraps the optimizer in a LossScaleOptimizer by itself only where the model's own policy
    is mixed_float16; under any other `dynamic` must be asked for. A fixed scale is silently
    dropped unless `auto_scale_loss` is off.
    """
    import keras

    optimizer = {
        "adam": lambda: keras.optimizers.Adam(run.learning_rate),
        "sgd": lambda: keras.optimizers.SGD(run.learning_rate, momentum=0.9, nesterov=True),
    }[run.optimizer]()
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
    """What the built model says of itself: a row per layer, in order, nested models flattened.

    Index: the layer's name. Columns: kind, output_shape, parameters, compute_dtype, variable_dtype.
    """
    import keras
    import pandas as pd

    from mptexp import costs

    entry = [layer for layer in model.layers if isinstance(layer, keras.layers.InputLayer)]
    found = [(layer, layer.output) for layer in entry]
    found += [(leaf.layer, leaf.outputs[0]) for leaf in costs.leaves(model)]
    rows = [
        {
            "layer": layer.name,
            "kind": type(layer).__name__,
            "output_shape": str(tuple(output.shape)[1:]),
            "parameters": costs.parameters(layer),
            "compute_dtype": layer.compute_dtype,
            "variable_dtype": layer.variable_dtype,
        }
        for layer, output in found
    ]
    return pd.DataFrame(rows).set_index("layer").rename_axis(None)


def in_force(model: "keras.Model", run: Run, where: dict[str, Any]) -> dict[str, Any]:
    """What is really in force, read back from the device and the compiled model.

    Keys: compute_dtype, variable_dtype (of the layers that hold the parameters), head_dtype,
    data_format (of the layers that have one, else "none"), loss_scale ("none" or the number now),
    jit, tf32, emulated, cpu_isa (what oneDNN says where the run limits it, else "default"),
    default_policy.

    Raises:
        NotInForce: where dtype, data format, XLA, TF32 or CPU instructions are not what the run
            asked for.
    """
    from mptexp import costs

    leaves = [leaf.layer for leaf in costs.leaves(model)]
    holders = [layer for layer in leaves if costs.parameters(layer)]
    found = {
        "compute_dtype": _one({layer.compute_dtype for layer in holders}),
        "variable_dtype": _one({layer.variable_dtype for layer in holders}),
        "head_dtype": str(model.outputs[0].dtype),
        "data_format": _one(_data_formats(leaves)) or "none",
        "loss_scale": loss_scale(model),
        "jit": bool(model.jit_compile),
        "tf32": tf32_enabled(run, where),
        "emulated": not environment.is_native(_matrix_dtype(run), where, run.cpu_isa),
        "cpu_isa": "default" if run.cpu_isa == "default" else onednn_isa(run.backend),
        "default_policy": environment.default_policy(where),
    }
    _check_in_force(found, run)
    return found


def _data_formats(leaves: "list[keras.layers.Layer]") -> set[str]:
    """Without augmentation, which comes before the pictures are transposed."""
    import keras

    body = [layer for layer in leaves if not isinstance(layer, keras.layers.RandomFlip)]
    return {layer.data_format for layer in body if hasattr(layer, "data_format")}


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
        **({"cpu_isa": run.cpu_isa} if run.cpu_isa != "default" else {}),
        **({"data_format": run.data_format} if _has_format(found, run) else {}),
        **({"tf32": True} if run.policy == "tensorfloat32" else {}),
        **({"tf32": False} if run.policy == "float32" else {}),
    }
    for name, value in wanted.items():
        if not _agrees(found[name], value, own=":" in run.model):
            raise NotInForce(f"{name} is {found[name]}, but the run asked for {value}")


def _agrees(found: Any, wanted: Any, own: bool) -> bool:
    """A model of the user's own may keep some layers in float32, such as its last one."""
    if not own or not isinstance(found, str):
        return found == wanted
    return wanted in found.split(", ") and set(found.split(", ")) <= {wanted, "float32"}


def _has_format(found: dict[str, Any], run: Run) -> bool:
    return run.data_format != "auto" and found["data_format"] != "none"


def loss_scale(model: "keras.Model") -> float | str:
    """The factor that multiplies the loss now, or "none"."""
    optimizer = model.optimizer
    if hasattr(optimizer, "initial_scale"):  # a LossScaleOptimizer; built by the first step
        return float(optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale)
    return float(optimizer.loss_scale_factor) if optimizer.loss_scale_factor else "none"
