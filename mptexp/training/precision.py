"""Precision: one value (policy, loss scale, TF32, XLA), set on the backend and read back from it.

Keras reads its backend once, when it is imported, and layers take the dtype policy when they are
made; so `use` comes before anything that imports Keras, and a process serves one run.
"""

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from mptexp.spec import imports
from mptexp.spec.devices import same_model
from mptexp.spec.errors import UserError
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.training import environment
from mptexp.training.backends import onednn, replicas, switches
from mptexp.training.environment import Unsupported

if TYPE_CHECKING:
    import keras
    import pandas as pd


class NotInForce(UserError, RuntimeError):
    """What was asked for is not what the backend does: the run must not be counted."""


INSTALL = {
    "tensorflow": "pip install tensorflow",
    "jax": "pip install jax",
    "torch": "pip install torch",
}
_used: dict[str, str] = {}


def use(run: Run) -> dict[str, Any]:
    """Selects backend, dtype policy, TF32, determinism and CPU instructions.

    Returns the device's card.

    Raises:
        Unsupported: where the backend is not installed, or it or the device lacks what is asked.
        NotInForce: where this process has used another backend, policy, cpu_isa, determinism,
            memory limit or number of replicas, or runs on another device than the run names.
    """
    once = ("backend", "policy", "cpu_isa", "deterministic", "memory_limit_gb", "replicas")
    for name in once:
        _once(name, str(getattr(run, name)))
    os.environ["KERAS_BACKEND"] = run.backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    onednn.limit(run)
    if run.deterministic:
        switches.ask_for_determinism(run)
    if run.profile:
        switches.show_kernels(run)
    if run.backend == "torch" and environment.has_no_nvidia_driver():
        # PyTorch would take a Mac's GPU, which is not supported here.
        os.environ.setdefault("KERAS_TORCH_DEVICE", "cpu")
    if importlib.util.find_spec(run.backend) is None:
        raise Unsupported(f"{run.backend} is not installed; {_install(run.backend)}")
    # Keras has wrappers for scikit-learn, which takes a second to import.
    with imports.quiet(), imports.without("sklearn"):
        import keras

        if run.memory_limit_gb:
            switches.limit_gpu_memory(run)
        _prepare_replicas(run)
        where = environment.device(run.backend)
    if keras.backend.backend() != run.backend:
        _refuse("backend", keras.backend.backend(), run.backend)
    _check_device(run, where)
    _check_cpu(run, where)
    replicas.use(run, where)
    if run.policy != "tensorfloat32":
        keras.config.set_dtype_policy(run.policy)
    switches.set_tf32(run, where)
    if run.deterministic:
        switches.set_determinism(run)
    return where


def _install(backend: str) -> str:
    # Without its CUDA plugin JAX would run on the CPU of a machine with a GPU.
    needs_plugin = backend == "jax" and not environment.has_no_nvidia_driver()
    return "pip install 'jax[cuda12]'" if needs_plugin else INSTALL[backend]


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
    if not same_model(asked, where["device"]):
        raise NotInForce(
            f"gpu_model is {asked}, but {run.backend} runs on {where['device']}; mptexp doctor "
            "says what is missing"
        )
    if run.policy == "tensorfloat32" and not environment.is_native("tensorfloat32", where):
        raise Unsupported(
            "tensorfloat32 needs an NVIDIA GPU of compute capability 8.0 or later; "
            f"this device is {where['device']}"
        )


def _check_cpu(run: Run, where: dict[str, Any]) -> None:
    if where["kind"] != "cpu":
        if run.cpu_isa != "default":
            raise Unsupported(
                f"cpu_isa {run.cpu_isa} limits a CPU, but this run's device is {where['device']}"
            )
        return
    lacks = run.backend == "tensorflow" and run.jit != "on" and compute_dtype(run) == "float16"
    if lacks and _data_format(run) == "channels_first":
        raise Unsupported(
            "TensorFlow has no channels_first convolution in float16 for a CPU without XLA; "
            "take jit on, channels_last or another policy"
        )


def _data_format(run: Run) -> str:
    import keras

    return keras.config.image_data_format() if run.data_format == "auto" else run.data_format


def _prepare_replicas(run: Run) -> None:
    try:
        replicas.prepare(run)
    except RuntimeError:
        raise NotInForce(
            f"replicas {run.replicas} was asked for in a kernel whose {run.backend} has already "
            "counted its devices; restart the kernel"
        ) from None


def compile_model(model: "keras.Model", run: Run, steps_per_epoch: int = 1) -> None:
    """Compiles the model with the run's optimizer, loss scale and XLA choice.

    The steps of an epoch matter where the learning rate decays.

    Keras wraps the optimizer in a LossScaleOptimizer by itself only where the model's own policy
    is mixed_float16; under any other `dynamic` must be asked for. A fixed scale is silently
    dropped unless `auto_scale_loss` is off.
    """
    import keras

    from mptexp.training.numerics import emulation

    if run.steps_per_execution > 1 and run.backend == "torch":
        raise Unsupported("steps_per_execution above 1 is asked for; PyTorch in Keras has only 1")
    rate = run.learning_rate
    if run.learning_rate_decay == "cosine":
        rate = keras.optimizers.schedules.CosineDecay(rate, run.epochs * steps_per_epoch)
    optimizer = {
        "adam": lambda: emulation.optimizer(keras.optimizers.Adam, run)(rate),
        "sgd": lambda: emulation.optimizer(keras.optimizers.SGD, run)(
            rate, momentum=0.9, nesterov=True
        ),
    }[run.optimizer]()
    auto = run.loss_scale == "auto"
    if run.loss_scale == "dynamic" or (auto and model.dtype_policy.name == "mixed_float16"):
        optimizer = replicas.dynamic_loss_scale(optimizer)
    elif isinstance(run.loss_scale, float):
        optimizer.loss_scale_factor = run.loss_scale
    model.compile(
        optimizer,
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        auto_scale_loss=auto,
        steps_per_execution=run.steps_per_execution,
        jit_compile={"auto": "auto", "on": True, "off": False}[run.jit],
    )


def dtypes(model: "keras.Model") -> "pd.DataFrame":
    """What the built model says of itself: a row per layer, in order, nested models flattened.

    Index: the layer's name. Columns: kind, output_shape, parameters, compute_dtype, variable_dtype.
    """
    import keras
    import pandas as pd

    from mptexp.training import costs

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
    jit, deterministic, tf32, emulated, cpu_isa (what oneDNN says where the run limits it, else
    "default"), replicas (devices that hold the weights and share a batch), batch_per_replica,
    default_policy, propagation, weight_format (see emulation.in_force).

    Raises:
        NotInForce: where dtype, emulated formats, data format, XLA, determinism, TF32, CPU
            instructions or replicas are not what the run asked for.
    """
    from mptexp.training import costs
    from mptexp.training.numerics import emulation

    arithmetic = POLICY_ROWS[run.policy].arithmetic
    leaves = [leaf.layer for leaf in costs.leaves(model)]
    shared_by = replicas.in_force(model, run.backend)
    holders = [layer for layer in leaves if costs.parameters(layer)]
    found = {
        "compute_dtype": _one({layer.compute_dtype for layer in holders}),
        "variable_dtype": _one({layer.variable_dtype for layer in holders}),
        "head_dtype": str(model.outputs[0].dtype),
        "data_format": _one(_data_formats(leaves)) or "none",
        "loss_scale": loss_scale(model),
        "jit": bool(model.jit_compile),
        "deterministic": switches.deterministic(run.backend),
        "tf32": switches.tf32_enabled(run, where),
        "emulated": not environment.is_native(arithmetic, where, run.cpu_isa),
        "cpu_isa": "default" if run.cpu_isa == "default" else onednn.isa(run.backend),
        "replicas": shared_by,
        "batch_per_replica": run.batch_size // shared_by,
        "default_policy": environment.default_policy(where),
        **emulation.in_force(model),
    }
    _check_in_force(found, run)
    return found


def _data_formats(leaves: "list[keras.layers.Layer]") -> set[str]:
    """Without augmentation, which comes before the pictures are transposed."""
    import keras

    body = [layer for layer in leaves if not isinstance(layer, keras.layers.RandomFlip)]
    return {layer.data_format for layer in body if hasattr(layer, "data_format")}


def compute_dtype(run: Run) -> str:
    """The type that the run's layers compute in; TF32 is arithmetic on float32."""
    return POLICY_ROWS[run.policy].compute_dtype


def _one(names: set[str]) -> str:
    return names.pop() if len(names) == 1 else ", ".join(sorted(names))


def _check_in_force(found: dict[str, Any], run: Run) -> None:
    policy = POLICY_ROWS[run.policy]
    wanted = {
        "compute_dtype": policy.compute_dtype,
        "variable_dtype": policy.variable_dtype,
        "head_dtype": "float32",
        "deterministic": run.deterministic,
        "replicas": run.replicas,
        "propagation": run.propagation,
        "weight_format": run.weight_format,
        **({"jit": run.jit == "on"} if run.jit != "auto" else {}),
        **({"cpu_isa": run.cpu_isa} if run.cpu_isa != "default" else {}),
        **({"data_format": run.data_format} if _has_format(found, run) else {}),
        **({} if policy.tf32 is None else {"tf32": policy.tf32}),
    }
    for name, value in wanted.items():
        if not _agrees(found[name], value, own=":" in run.model or bool(run.float32_layers)):
            asked = f"{name} is {found[name]}, but the run asked for {value}"
            raise NotInForce(asked + _why(name, run, found))


def _why(name: str, run: Run, found: dict[str, Any]) -> str:
    """What is known to have caused it."""
    if name == "jit" and found["deterministic"] and run.backend == "tensorflow":
        return ": Keras turns XLA off under op determinism; take jit auto or off, or no determinism"
    if name == "deterministic" and found[name]:
        return ": the environment asks for it (TF_DETERMINISTIC_OPS or XLA_FLAGS)"
    if name == "tf32" and os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return ": NVIDIA_TF32_OVERRIDE=0 turns it off"
    return ""


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
        built = optimizer.built
        return float(optimizer.dynamic_scale.numpy() if built else optimizer.initial_scale)
    return float(optimizer.loss_scale_factor) if optimizer.loss_scale_factor else "none"
