"""What is in a model, layer by layer, and what each layer costs in arithmetic and bytes."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import pandas as pd
from keras import layers

from mptexp.training.numerics.emulation import Rounded

INTEGERS = ("int8", "uint8")  # types of quantized weights


def parameters(layer: keras.Operation) -> int:
    """How many numbers the layer's weights hold, trainable or not; bytes of images are none."""
    return sum(math.prod(w.shape) for w in getattr(layer, "weights", ()) if is_weight(w))


def _integer_bytes(layer: keras.Operation) -> int:
    """Bytes of weights that were quantized; int4 is packed, two in a byte."""
    weights = getattr(layer, "weights", ())
    return sum(math.prod(w.shape) for w in weights if w.dtype in INTEGERS)


def is_weight(variable: keras.Variable) -> bool:
    """Whether a variable holds weights: images, seeds, counters, scales and ranges are none."""
    return "float" in variable.dtype and not variable.overwrite_with_gradient


class Call(NamedTuple):
    """One use of a layer, or of an operation such as `a + b`, in a model's graph.

    Attributes:
        arguments: positional and named ones of its call, the inputs among them in their order.
    """

    layer: keras.Operation
    inputs: list[keras.KerasTensor]
    outputs: list[keras.KerasTensor]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]


def calls(model: keras.Model) -> Iterator[Call]:
    """Every use of a layer from the images to the probabilities, nested models flattened.

    A layer that is used twice comes twice. A model that is a subclass without a graph, or a layer
    made of layers, comes as one. Input layers are left out.
    """
    # Sequential has no nodes of its own, so each model is taken as a graph between its ends.
    graph = keras.Model(model.inputs, model.outputs)
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if isinstance(node.operation, keras.Model) and getattr(node.operation, "inputs", None):
                yield from calls(node.operation)
            elif not node.is_input:
                given = node.arguments
                ends = node.input_tensors, node.outputs
                yield Call(inside(node.operation), *ends, (given.args, given.kwargs))


def inside(layer: keras.Operation) -> keras.Operation:
    """The layer that computes, where another one of ours was put around it to round."""
    return layer.layer if isinstance(layer, Rounded) else layer


def leaves(model: keras.Model) -> list[Call]:
    """The first use of every layer, in order: `calls` without operations and repetitions."""
    first_uses: dict[int, Call] = {}
    for call in calls(model):
        if isinstance(call.layer, layers.Layer):
            first_uses.setdefault(id(call.layer), call)
    return list(first_uses.values())


def table(model: keras.Model) -> pd.DataFrame:
    """Arithmetic and bytes of every use of a layer, per image, from shapes alone.

    A multiplication and an addition are two operations (FLOP). Kernels count without bias and
    activation, as He et al. (2015) count them. What works element by element (activations,
    normalization, pooling, sums) counts one FLOP per element of its largest tensor, what only
    moves elements counts none. What no rule knows is NaN, and so is what depends on a size that
    the model leaves open: no number is made up.

    Training adds as much again for the gradient of the weights, and as much again for that of the
    input, which is not needed until a layer with weights has come before: 2 times forward for the
    first kernel, 3 times for those that follow. (Only the first of several kernels side by side is
    counted so.) The optimizer is left out.

    Returns:
        Index: the layer's name. Columns: kind; elements (of the output); parameters (at the first
        use); flops_forward; flops_training; bytes_forward (inputs, outputs and weights, each once,
        floats in the layer's compute dtype); bytes_weights (the part of it that a batch shares);
        compute_dtype.
    """
    rows, counted, trained = [], set(), False
    for call in calls(model):
        # A product of two activations has a gradient of each, as one with weights has.
        learns = bool(getattr(call.layer, "trainable_variables", ())) or _is_attention(call)
        row = _row(call, passes=1 + learns + trained)
        row["parameters"] *= id(call.layer) not in counted
        rows.append(row)
        counted.add(id(call.layer))
        trained = trained or learns
    return pd.DataFrame(rows).set_index("layer").rename_axis(None)


def convolutions_frac(model: keras.Model) -> float:
    """Share of a model's arithmetic in convolutions; NaN without a graph or arithmetic.

    Where no rule knows the arithmetic of a layer: 0 of a model that holds no convolution, NaN of
    another.
    """
    uses = table(model) if getattr(model, "inputs", None) else pd.DataFrame()
    whole = uses.flops_forward.sum(skipna=False) if len(uses) else math.nan
    if math.isnan(whole):
        names = [type(layer).__name__ for layer in model._flatten_layers()]
        return math.nan if any("Conv" in name for name in names) else 0.0
    convolved = uses.flops_forward[uses.kind.str.contains("Conv")].sum()
    return float(convolved / whole) if whole else math.nan


def structure(model: keras.Model) -> str:
    """12 hex digits of the layers, their settings, shapes and what of them is trained.

    Equal for two models that differ in the types that they compute in alone. A user's function may
    make another network under each policy, or each day.
    """
    parts = [
        [
            type(call.layer).__name__,
            _settings(call.layer),
            [[*w.shape, w.trainable] for w in getattr(call.layer, "weights", ()) if is_weight(w)],
            [list(output.shape) for output in call.outputs],
        ]
        for call in calls(model)
    ]
    text = json.dumps(parts, sort_keys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _settings(layer: keras.Operation) -> Any:
    """A layer's configuration without its types, names and seeds; nothing where it has none."""
    try:
        return _without(layer.get_config())
    except (NotImplementedError, TypeError, ValueError):  # a user's own may lack one
        return {}


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        hidden = ("dtype", "name", "seed")
        return {str(k): _without(v) for k, v in value.items() if k not in hidden}
    return [_without(v) for v in value] if isinstance(value, list | tuple) else value


def input_shape(model: keras.Model) -> tuple[int, ...]:
    """The shape of an example that a model of `models.build` takes, such as an image."""
    if len(model.inputs[0].shape) == 1:
        # A resident model's own input is a placeholder; the model in it takes the examples.
        model = next(layer for layer in model.layers if isinstance(layer, keras.Model))
    return tuple(model.input_shape[1:])


def widths(model: keras.Model) -> dict[str, int]:
    """Channels or units that each layer with a kernel gives."""
    with_kernel = [leaf.layer for leaf in leaves(model) if hasattr(leaf.layer, "kernel")]
    return {layer.name: int(layer.kernel.shape[-1]) for layer in with_kernel}


def per_step(model: keras.Model, batch_size: int, training: bool) -> pd.DataFrame:
    """Arithmetic and least traffic of every layer in a step, uses of the same layer added up.

    Bytes follow the rule of FLOPs: each pass reads or writes inputs, outputs and weights once.

    Returns:
        Index: the layer's name. Columns: kind, flops, bytes, parameters, compute_dtype.
    """
    uses = table(model)
    passes = (uses.flops_training / uses.flops_forward).fillna(1) if training else 1
    traffic = batch_size * (uses.bytes_forward - uses.bytes_weights) + uses.bytes_weights
    flops = uses.flops_training if training else uses.flops_forward
    uses = uses.assign(flops=flops * batch_size, bytes=traffic * passes)
    return uses.groupby(level=0, sort=False).agg(
        kind=("kind", "first"),
        flops=("flops", lambda values: values.sum(skipna=False)),
        bytes=("bytes", lambda values: values.sum(skipna=False)),
        parameters=("parameters", "sum"),
        compute_dtype=("compute_dtype", "first"),
    )


def _row(call: Call, passes: int) -> dict[str, Any]:
    count = parameters(call.layer)
    compute_dtype = getattr(call.layer, "compute_dtype", None) or call.outputs[0].dtype
    weights = count * itemsize(compute_dtype) + _integer_bytes(call.layer)
    moved = sum(_bytes(tensor, compute_dtype) for tensor in (*call.inputs, *call.outputs))
    flops = _flops(call)
    return {
        "layer": call.layer.name,
        "kind": type(call.layer).__name__,
        "elements": sum(map(_elements, call.outputs)),
        "parameters": count,
        "flops_forward": flops,
        "flops_training": flops * passes,
        "bytes_forward": moved + weights,
        "bytes_weights": weights,
        "compute_dtype": compute_dtype,
    }


def _elements(tensor: keras.KerasTensor) -> float:
    """Elements of one image's tensor; NaN where the model leaves a size open."""
    return math.nan if None in tensor.shape[1:] else math.prod(tensor.shape[1:])


def _bytes(tensor: keras.KerasTensor, compute_dtype: str) -> float:
    dtype = compute_dtype if "float" in tensor.dtype else tensor.dtype
    return _elements(tensor) * itemsize(dtype)


def itemsize(dtype: str) -> int:
    """Bytes of a number of this type."""
    bits = re.search(r"\d+", dtype)
    return int(bits.group()) // 8 if bits else 1


def is_known(layer: keras.Operation) -> bool:
    """Whether a layer is Keras's or mptexp's, and computes what its class and settings tell."""
    return type(layer).__module__.partition(".")[0] in ("keras", "mptexp")


def _flops(call: Call) -> float:
    """Forward, per image; NaN where no rule knows the layer."""
    kind = type(call.layer)
    # By exact type: a subclass of Conv2D may compute anything.
    rule = _RULES.get(kind.__name__) if is_known(call.layer) else None
    return float(rule(call)) if rule else math.nan


def _conv(call: Call) -> float:
    *window, channels, _ = call.layer.kernel.shape  # channels: of one group
    return 2 * math.prod(window) * channels * _elements(call.outputs[0])


def _conv_transpose(call: Call) -> float:
    *window, filters, _ = call.layer.kernel.shape  # what falls off the edges is counted too
    return 2 * math.prod(window) * filters * _elements(call.inputs[0])


def _depthwise(call: Call) -> float:
    return 2 * math.prod(call.layer.kernel.shape[:-2]) * _elements(call.outputs[0])


def _separable(call: Call) -> float:
    *window, channels, multiplier = call.layer.depthwise_kernel.shape
    between = channels * multiplier  # of one output place, behind the depthwise half
    places = _elements(call.outputs[0]) / call.layer.pointwise_kernel.shape[-1]
    return 2 * between * (math.prod(window) * places + _elements(call.outputs[0]))


def _dense(call: Call) -> float:
    return 2 * call.layer.kernel.shape[0] * _elements(call.outputs[0])


def _einsum_dense(call: Call) -> float:
    ends, result = call.layer.equation.replace(" ", "").split("->")
    labels = zip(ends.split(",")[1], call.layer.kernel.shape, strict=True)
    summed = math.prod(size for label, size in labels if label not in result)
    return 2 * summed * _elements(call.outputs[0])


def _is_attention(call: Call) -> bool:
    """Of transformers.py, whose import would be a circle; Keras's Attention has no rule."""
    kind = type(call.layer)
    return kind.__name__ == "Attention" and kind.__module__.startswith("mptexp.")


def _attention_core(call: Call) -> float:
    """Two products of all places with all: what a causal mask hides is counted, as is usual."""
    if not _is_attention(call):
        return math.nan
    return 4 * call.outputs[0].shape[1] * _elements(call.outputs[0])


def _embedding(call: Call) -> float:
    """Of a lookup nothing; of its reverse a product with the whole vocabulary."""
    if "int" in call.inputs[0].dtype:
        return 0
    return 2 * call.inputs[0].shape[-1] * _elements(call.outputs[0])


def _attention(call: Call) -> float:
    """Attention on (batch, time, features); masks, other keys, gates and more axes have no rule."""
    query, value, *rest = call.inputs  # the rest may be a mask as well as keys
    config = call.layer.get_config()
    if rest or any(len(tensor.shape) != 3 for tensor in call.inputs) or config["use_gate"]:
        return math.nan
    heads, key_dim, value_dim = config["num_heads"], config["key_dim"], config["value_dim"]
    times, sources, features = query.shape[1], value.shape[1], query.shape[2]
    if None in (times, sources):
        return math.nan
    projections = times * features * key_dim + sources * value.shape[2] * key_dim
    projections += sources * value.shape[2] * value_dim
    projections += times * value_dim * call.outputs[0].shape[2]
    return 2 * heads * (projections + times * sources * (key_dim + value_dim))


def _by_element(call: Call) -> float:
    return max(_elements(tensor) for tensor in (*call.inputs, *call.outputs))


def _none(call: Call) -> float:
    return 0


def _names(rule: Callable[[Call], float], names: str) -> dict[str, Callable[[Call], float]]:
    return dict.fromkeys(names.split(), rule)


_RULES = {
    **_names(_conv, "Conv1D Conv2D Conv3D"),
    **_names(_conv_transpose, "Conv1DTranspose Conv2DTranspose Conv3DTranspose"),
    **_names(_depthwise, "DepthwiseConv1D DepthwiseConv2D"),
    **_names(_separable, "SeparableConv1D SeparableConv2D"),
    **_names(_dense, "Dense"),
    **_names(_einsum_dense, "EinsumDense"),
    **_names(_attention, "MultiHeadAttention"),
    **_names(_attention_core, "Attention"),
    **_names(_embedding, "Embedding ReversibleEmbedding Vocabulary"),
    # Layers, then operations of keras.ops as they stand in a graph.
    **_names(
        _by_element,
        "Activation ReLU LeakyReLU PReLU ELU Softmax Rescaling Normalization BatchNormalization "
        "LayerNormalization GroupNormalization RMSNormalization UnitNormalization Dropout "
        "SpatialDropout1D SpatialDropout2D SpatialDropout3D AlphaDropout GaussianDropout "
        "GaussianNoise AveragePooling1D AveragePooling2D AveragePooling3D MaxPooling1D "
        "MaxPooling2D MaxPooling3D GlobalAveragePooling1D GlobalAveragePooling2D "
        "GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D "
        "FusedBatchNormalization Positions "
        "Add Subtract Multiply Average Maximum Minimum "
        "Divide TrueDivide Negative Absolute Square Sqrt Rsqrt Exp Log Tanh Relu Relu6 Sigmoid "
        "Silu Gelu LeakyRelu Elu Selu Softplus HardSigmoid HardSilu LogSoftmax Mean Sum Max Clip",
    ),
    **_names(
        _none,
        "Flatten Reshape Permute RepeatVector Identity ZeroPadding1D ZeroPadding2D ZeroPadding3D "
        "Passed ClassToken ClassPlace Cropping1D Cropping2D Cropping3D UpSampling1D Concatenate "
        "RandomFlip Crop ResidentBatch Transpose GetItem ExpandDims Squeeze Cast Stack Pad",
    ),
}
