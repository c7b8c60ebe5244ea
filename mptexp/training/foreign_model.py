"""What a Keras model that mptexp did not make tells of itself: types, layers, batch.

Layers are looked for in layers: a backbone in a model is one layer of it, and holds most of it.
"""

import hashlib
import json
import math
from collections import Counter
from typing import Any

import keras
import numpy as np

from mptexp.spec.policies import POLICY_ROWS
from mptexp.training import costs, effective_arithmetic
from mptexp.training.backends import backend

EXACT = 2**24  # up to which float32 counts, as a metric does


def holders(model: keras.Model) -> dict[keras.Layer, int]:
    """The layers that hold weights of their own, and how many numbers these are."""
    held = {layer: _own_parameters(layer) for layer in model._flatten_layers()}
    return {layer: count for layer, count in held.items() if count}


def _own_parameters(layer: keras.Layer) -> int:
    parts = layer._flatten_layers(include_self=False, recursive=False)
    inner = {id(weight) for part in parts for weight in part.weights}
    own = [w for w in layer.weights if costs.is_weight(w) and id(w) not in inner]
    return sum(math.prod(w.shape) for w in own)


def policies(model: keras.Model) -> Counter[str]:
    """How much of the model is done under each of Keras's policies, or of its quantizations."""
    amounts: Counter[str] = Counter()
    for layer, amount in _weighed(model)[1]:
        amounts[_policy(layer)] += amount
    return amounts


def shares(model: keras.Model) -> tuple[str, dict[str, float]]:
    """The share of each type in what is told first: arithmetic, or where unknown parameters."""
    what, amounts = _weighed(model)
    return what, effective_arithmetic.shares(
        (_promised(layer), amount) for layer, amount in amounts
    )


def traced_shares(model: keras.Model, batch_size: int) -> dict[str, float]:
    """The share of each type in the products of a pass as it is computed, whatever layers say.

    Empty where that cannot be traced: several inputs, open sizes, code that cannot be called so.
    Nor are quantized layers, which round to one type and multiply in another.
    """
    if len(getattr(model, "inputs", None) or ()) != 1 or any(
        x.quantization_mode for x in holders(model)
    ):
        return {}
    entry = model.inputs[0]
    try:
        images = np.zeros((batch_size, *entry.shape[1:]), entry.dtype)
        verb = backend(keras.backend.backend()).products
        return effective_arithmetic.shares(verb(model, (images, np.zeros(batch_size)), False))
    except Exception:  # whatever a model of somebody else's raises
        return {}


def _weighed(model: keras.Model) -> tuple[str, list[tuple[keras.Layer, float]]]:
    """Layers with the FLOPs of their products, by shapes; else with the parameters they hold.

    FLOPs are not known of a model without a graph, or with a layer that no rule knows.
    """
    flops = _flops(model) if getattr(model, "inputs", None) else []
    known = flops and not any(math.isnan(amount) for _, amount in flops)
    if known:
        return "arithmetic", flops
    held = holders(model).items()
    # A table that is looked up in takes no arithmetic, however large it is.
    multiplied = [pair for pair in held if not isinstance(pair[0], keras.layers.Embedding)]
    return "parameters", multiplied or [*held]


def _flops(model: keras.Model) -> list[tuple[keras.Layer, float]]:
    uses = zip(costs.calls(model), costs.table(model).flops_training, strict=True)
    return [(call.layer, float(amount)) for call, amount in uses if _multiplies(call.layer)]


def _policy(layer: keras.Layer) -> str:
    return str(layer.quantization_mode or layer.dtype_policy.name)


def _promised(layer: keras.Layer) -> str:
    """The type of a layer's products."""
    row = POLICY_ROWS.get(_policy(layer))
    return row.promised if row else str(layer.compute_dtype)


def _multiplies(layer: keras.Operation) -> bool:
    """Whether it has a kernel, which a product takes; what has vectors alone, scales and adds."""
    return any(len(w.shape) > 1 for w in getattr(layer, "weights", ()) if costs.is_weight(w))


def fingerprint(model: keras.Model) -> str:
    """12 hex digits of the layers, their shapes and those of the input, whatever they compute in.

    Of a model without a graph how layers are connected is not known.
    """
    inputs = getattr(model, "inputs", None)
    parts: list[Any]
    if inputs:
        parts = [costs.structure(model), *(list(x.shape[1:]) for x in inputs)]
    else:
        parts = [
            [type(layer).__name__, _built(layer), [list(w.shape) for w in layer.weights]]
            for layer in model._flatten_layers()
        ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def state(model: keras.Model) -> str:
    """12 hex digits of what may change between two `fit`s of a model, and the time of its steps.

    Layers with their policies, which of them are trained, and what `compile` was told.
    """
    layers = [
        [type(layer).__name__, layer.name, _policy(layer), bool(layer.trainable)]
        for layer in model._flatten_layers()
    ]
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", None)  # of one that scales the loss
    names = ("jit_compile", "run_eagerly", "steps_per_execution")
    compiled = [type(optimizer).__name__, type(inner).__name__]
    compiled.append(str(getattr(inner or optimizer, "gradient_accumulation_steps", None)))
    told = getattr(getattr(model, "_compile_config", None), "config", {})
    computed = [_kinds(told.get(name)) for name in ("loss", "metrics", "weighted_metrics")]
    parts = [layers, compiled, computed, [str(getattr(model, name, None)) for name in names]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _kinds(told: Any) -> Any:
    """Names as they are, and of objects, which count themselves in their names, their classes."""
    if isinstance(told, dict):
        return {str(key): _kinds(value) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return [*map(_kinds, told)]
    named = told is None or isinstance(told, str)
    return told if named else getattr(told, "__name__", type(told).__name__)


def _built(layer: keras.Layer) -> list[str]:
    """The shapes that a layer was built for, without the batch's dimension."""
    known = layer.get_build_config() or {}
    shapes = known.get("shapes_dict", known).values()
    return [str(tuple(shape)[1:]) for shape in shapes if isinstance(shape, list | tuple)]


def examples(model: keras.Model) -> int | None:
    """How many examples an epoch of `fit` has trained on so far, by the metric of its loss.

    None where it does not tell, as with a training step of the user's own, in which it may count
    steps, or with several replicas.
    """
    step = getattr(model, "train_step", None)
    if getattr(step, "__func__", None) is not keras.Model.train_step:
        return None
    metric = getattr(model, "_loss_tracker", None)
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        return None
    count = int(_now(model, metric.count)) if metric is not None else 0
    return count if 0 < count < EXACT else None


def _now(model: keras.Model, variable: keras.Variable) -> Any:
    """A metric's variable within an epoch too, where JAX's trainer holds its value meanwhile."""
    state = getattr(model, "_jax_state", None) or {}
    pairs = zip(model.metrics_variables, state.get("metrics_variables") or (), strict=False)
    held = [value for own, value in pairs if own is variable]  # the variable has none then
    return held[0] if held else variable.numpy()
