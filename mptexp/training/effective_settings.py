"""What is effective, read back from the device and the built model, and held against the run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mptexp.spec.backends import LABELS as BACKENDS
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.training import capability, onednn
from mptexp.training.backends import backend
from mptexp.training.capability import SettingNotApplied

if TYPE_CHECKING:
    import keras
    import pandas as pd


def dtypes(model: "keras.Model") -> "pd.DataFrame":
    """What the built model says of itself: a row per layer, in order, nested models flattened.

    Index: the layer's name. Columns: kind, output_shape, parameters, compute_dtype, variable_dtype.
    """
    import keras
    import pandas as pd

    from mptexp.training import costs

    inputs = [layer for layer in model.layers if isinstance(layer, keras.layers.InputLayer)]
    layers = [(layer, layer.output) for layer in inputs]
    layers += [(leaf.layer, leaf.outputs[0]) for leaf in costs.leaves(model)]
    rows = [
        {
            "layer": layer.name,
            "kind": type(layer).__name__,
            "output_shape": str(tuple(output.shape)[1:]),
            "parameters": costs.parameters(layer),
            "compute_dtype": _computes(layer),
            "variable_dtype": layer.variable_dtype,
        }
        for layer, output in layers
    ]
    return pd.DataFrame(rows).set_index("layer").rename_axis(None)


def _computes(layer: "keras.Layer") -> str:
    """Its compute type; of a quantized layer after the type that it rounds to."""
    mode = layer.quantization_mode
    return f"{mode} in {layer.compute_dtype}" if mode else layer.compute_dtype


def effective(
    model: "keras.Model", run: Run, device: dict[str, Any], own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The settings that are effective, read back from the device and the compiled model.

    Those in `own` are of a loop that does not leave them to Keras, see frontends.Trainer.settings.

    Keys: compute_dtype (of the layers that hold the parameters; what is computed in it is for
    `arithmetic.of_step` to say), variable_dtype (of the weights), head_dtype, floatx, data_format
    (of the layers that have one, else "none"), loss_scale ("none" or the number now), jit,
    deterministic, tf32, emulated, cpu_isa (what oneDNN logs where the run limits it, else
    "default"), replicas (devices that hold the weights and share a batch), batch_per_replica,
    default_policy, propagation, weight_format (see emulation.effective).

    Raises:
        SettingNotApplied: where nothing is compiled; where dtype, emulated formats, data format,
            XLA, determinism, TF32, CPU instructions or replicas are not what the run asked for.
            Layers of a user's own model may have other types: their share of the arithmetic counts.
    """
    import keras

    from mptexp.training import costs
    from mptexp.training.numerics import emulation, gradients

    layers = [leaf.layer for leaf in costs.leaves(model)]
    holders = [layer for layer in layers if costs.parameters(layer)]
    weights = [*filter(costs.is_weight, model.weights)]
    replicas = _replicas(model, run)
    arithmetic = POLICY_ROWS[run.policy].arithmetic
    if backend(run.backend).is_eager(model):
        raise SettingNotApplied(
            f"{BACKENDS[run.backend]} was told to execute operation by operation, by the model's "
            "own code or by the environment, but steps are compiled; allowed: to leave that out"
        )
    settings = {
        "compute_dtype": _joined({layer.compute_dtype for layer in holders}),
        "variable_dtype": _joined({weight.dtype for weight in weights}),
        "head_dtype": str(model.outputs[0].dtype),
        "floatx": keras.config.floatx(),
        "data_format": _joined(_data_formats(layers)) or "none",
        "loss_scale": gradients.loss_scale(model),
        "jit": bool(model.jit_compile),
        "deterministic": backend(run.backend).is_deterministic(),
        "tf32": _tf32(run, device),
        "emulated": not capability.is_native(arithmetic, device, run.cpu_isa),
        "cpu_isa": "default" if run.cpu_isa == "default" else onednn.isa(run.backend),
        "replicas": replicas,
        "batch_per_replica": run.batch_size // replicas,
        "default_policy": capability.default_policy(
            device, run.backend, costs.convolutions_frac(model)
        ),
        **emulation.effective(model),
        **(own or {}),
    }
    _check(settings, run)
    return settings


def _replicas(model: "keras.Model", run: Run) -> int:
    """How many devices share a batch and hold every weight.

    A model that was made before the batches were shared has its weights on one device.
    """
    framework = backend(run.backend)
    return min([framework.replicas(), *map(framework.copies, model.weights)])


def _data_formats(layers: "list[keras.layers.Layer]") -> set[str]:
    """Without augmentation, which comes before the images are transposed."""
    import keras

    body = [layer for layer in layers if not isinstance(layer, keras.layers.RandomFlip)]
    return {layer.data_format for layer in body if hasattr(layer, "data_format")}


def _tf32(run: Run, device: dict[str, Any]) -> bool:
    """Whether products of float32 use TF32: the backend's flag is on and the device has it."""
    has = device["kind"] == "gpu" and capability.is_native("tensorfloat32", device)
    return has and not capability.tf32_is_overridden() and backend(run.backend).tf32()


def _joined(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _check(settings: dict[str, Any], run: Run) -> None:
    policy = POLICY_ROWS[run.policy]
    has_format = run.data_format != "auto" and settings["data_format"] != "none"
    own = ":" in run.model or run.float32_layers
    dtypes = {"compute_dtype": policy.compute_dtype, "variable_dtype": policy.variable_dtype}
    asked = {
        **({} if own else dtypes),
        "head_dtype": "float32",
        "floatx": "float32",
        "deterministic": run.deterministic,
        "replicas": run.replicas,
        "propagation": run.propagation,
        "weight_format": run.weight_format,
        **({"jit": run.jit == "on"} if run.jit != "auto" else {}),
        **({"cpu_isa": run.cpu_isa} if run.cpu_isa != "default" else {}),
        **({"data_format": run.data_format} if has_format else {}),
        **({} if policy.tf32 is None else {"tf32": policy.tf32}),
    }
    for name, value in asked.items():
        if settings[name] != value:
            message = f"{name} is {settings[name]}, but the run asked for {value}"
            raise SettingNotApplied(message + _cause(name, settings))


def _cause(name: str, settings: dict[str, Any]) -> str:
    """What is known to keep a setting from being effective, as the end of a sentence."""
    if name == "jit" and settings["deterministic"]:
        return ": Keras turns XLA off under op determinism; take jit auto or off, or no determinism"
    if name == "deterministic" and settings[name]:
        return ": the environment asks for it (TF_DETERMINISTIC_OPS or XLA_FLAGS)"
    if name == "tf32" and capability.tf32_is_overridden():
        return ": NVIDIA_TF32_OVERRIDE=0 turns it off"
    return ""
