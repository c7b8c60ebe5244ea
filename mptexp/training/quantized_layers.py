"""float8, int8 and int4: which layers of a run's model Keras quantizes, and what is read back.

Under float8 a Dense or EinsumDense layer rounds what it multiplies, forward to e4m3 and the
gradient to e5m2, each divided by a scale that follows the largest magnitudes of the steps before
(delayed scaling), and then multiplies in the compute type. Only a compiler may make one product in
float8 of it. Source: P. Micikevicius et al., FP8 formats for deep learning, 2022, arXiv 2209.05433.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import layers

from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run

KINDS = (layers.Dense, layers.EinsumDense)  # by exact type: Keras refuses subclasses
OF_FLOAT8 = ("inputs", "kernel", "outputs_grad")  # what has a scale and a history of magnitudes
# What `Model.quantize` is called with, by the quantization of a policy; Keras's own defaults.
MODES: dict[str, Callable[[], dict[str, Any]]] = {
    "float8": lambda: {"mode": "float8"},
    "int8": lambda: {"mode": "int8"},
    "int8_weights": lambda: {
        "config": keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    },
    "int4": lambda: {"mode": "int4"},
}
MOST_LAYERS = 256  # of a model whose scales a record holds


def quantized(run: Run, model: keras.Model) -> keras.Model:
    """The model, its layers quantized where the policy asks for it.

    Those that compute in another type than the policy's, such as a head in float32, stay as they
    are, and so does what no Dense or EinsumDense layer multiplies.
    """
    if asked := POLICY_ROWS[run.policy].quantization:
        chosen = {id(layer) for layer in reached(run, model)}
        model.quantize(**MODES[asked](), filters=lambda layer: id(layer) in chosen)
    return model


def reached(run: Run, model: keras.Model) -> list[keras.Layer]:
    """The layers that the policy quantizes, whether they are quantized already or not."""
    dtype, kept = POLICY_ROWS[run.policy].compute_dtype, run.float32_layers.split(",")
    return [
        layer
        for layer in _known(model)
        if layer.compute_dtype == dtype and layer.name not in map(str.strip, kept)
    ]


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """The quantized layers, in the order in which they were made, those within others too."""
    return [layer for layer in _known(model) if layer.quantization_mode]


def _known(model: keras.Model) -> list[keras.Layer]:
    inner = model._flatten_layers(include_self=False)
    return [layer for layer in inner if type(layer) in KINDS]


@contextmanager
def marked(quantized_layers: Sequence[keras.Layer]) -> Iterator[None]:
    """Lets these layers multiply in another type, not quantized: a trace tells their products."""
    before = [layer.dtype_policy for layer in quantized_layers]
    for layer in quantized_layers:
        vars(layer)["call"] = _in_own_type(layer, layer.compute_dtype)  # Keras would track it
        other = "bfloat16" if layer.compute_dtype == "float32" else "float16"
        layer.dtype_policy = f"mixed_{other}"
    try:
        yield
    finally:
        for layer, policy in zip(quantized_layers, before, strict=True):
            del vars(layer)["call"]
            layer.dtype_policy = policy


def _in_own_type(layer: keras.Layer, dtype: str) -> Callable[..., Any]:
    """Computes the layer and gives its output in a type: what multiplies it next has no mark."""
    return lambda *args, **named: keras.ops.cast(type(layer).call(layer, *args, **named), dtype)


# --- read back -----------------------------------------------------------------------------------


def state(model: keras.Model) -> dict[str, Any]:
    """The scales of float8 and the magnitudes that they follow, as plain JSON types.

    Nothing of a model without such layers. Keys: layers (a row for each of the first MOST_LAYERS),
    layers_left_out. A row: layer; of what it multiplies (inputs, kernel, outputs_grad) scale, amax
    (the largest magnitude of the history), latest (that of the last step) and steps (how many of
    the history, of 1024 at most); None is what is not a finite number.
    """
    known = [layer for layer in layers_of(model) if layer.quantization_mode == "float8"]
    if not known:
        return {}
    rows = [{"layer": layer.name, **_scales(layer)} for layer in known[:MOST_LAYERS]]
    return {"layers": rows, "layers_left_out": max(0, len(known) - MOST_LAYERS)}


def _scales(layer: keras.Layer) -> dict[str, dict[str, float | int | None]]:
    scales = {}
    for name in OF_FLOAT8:
        history = np.asarray(getattr(layer, f"{name}_amax_history").numpy())
        scales[name] = {
            "scale": _finite(getattr(layer, f"{name}_scale").numpy()),
            "amax": _finite(history.max()),
            "latest": _finite(history[0]),
            "steps": int(np.count_nonzero(history)),
        }
    return scales


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
