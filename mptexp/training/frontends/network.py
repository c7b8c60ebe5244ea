"""A Keras model as a list of layers with their inputs, which a native loop computes in its own way.

No model is defined twice: each native module has a row for each kind of layer in KINDS, with the
settings that are allowed here, and takes the weights from the Keras model.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

from mptexp.spec.run import Run
from mptexp.training import transformers
from mptexp.training.layers import ModelError, Passed

KINDS = (
    layers.Rescaling, layers.Conv2D, layers.Dense, layers.BatchNormalization, layers.Activation,
    layers.ReLU, layers.MaxPooling2D, layers.GlobalAveragePooling2D, layers.ZeroPadding2D,
    layers.Dropout, layers.Flatten, layers.Add, layers.LayerNormalization, layers.Reshape,
    transformers.Vocabulary, transformers.Positions, transformers.ClassToken,
    transformers.ClassPlace, transformers.Attention, transformers.Gelu, Passed,
)  # fmt: skip
ACTIVATIONS = ("linear", "relu")  # of a layer; the softmax at the end belongs to the loss
# Of a layer's configuration, values that the rows heed no others of.
ALLOWED = {
    "data_format": ("channels_last",),
    "padding": ("same", "valid"),
    "activation": ACTIVATIONS,
    "renorm": (False,),
    "synchronized": (False,),
    "max_value": (None,),
    "negative_slope": (0.0,),
    "threshold": (0.0,),
    "noise_shape": (None,),
    "keepdims": (False,),
    "lora_rank": (None,),
    "trainable": (True,),
    "rms_scaling": (False,),
    "mask_zero": (False,),
    "logit_soft_cap": (None,),
}


# Axes of an input, where the last of them is not the channels in every plain loop.
RANKS = {"Dense": (2, 3), "LayerNormalization": (2, 3), "BatchNormalization": (2, 4)}


@dataclass(frozen=True)
class Node:
    """One layer of a network.

    Attributes:
        layer: of Keras, built, with its settings and weights.
        inputs: places of the tensors that it takes; 0 is the images or the tokens.
        output: place of the tensor that it gives.
    """

    layer: keras.Layer
    inputs: tuple[int, ...]
    output: int


@dataclass(frozen=True)
class Network:
    """The layers of a network in the order of computing.

    Attributes:
        nodes: see Node.
        logits: place of what goes into the softmax.
    """

    nodes: tuple[Node, ...]
    logits: int


def network(run: Run, model: keras.Model) -> Network:
    """The layers of a model from the images to the logits, nested models flattened.

    Raises:
        ModelError: where a native loop has no counterpart of a layer or of a setting of it, where
            a layer with weights is used twice, or where the model does not end in a softmax.
    """
    places: dict[int, int] = {id(tensor): 0 for tensor in model.inputs}
    nodes: list[Node] = []
    _walk(run, model, places, nodes)
    last = nodes.pop()
    if not _is_softmax(last.layer):
        raise ModelError(
            f"frontend native: model {run.model} ends in {last.layer.name}; a plain loop takes the "
            "loss of logits, so the softmax must be a layer of its own (from_logits true adds it)"
        )
    weighed = {id(node.layer): node.layer.name for node in nodes if node.layer.weights}
    names = Counter(weighed.values())
    if names and max(names.values()) > 1:  # in models within the model
        name, number = names.most_common(1)[0]
        raise ModelError(
            f"frontend native: {number} layers of model {run.model} are called {name}; a plain "
            "loop knows weights by their layer's name: name them apart, or take frontend keras"
        )
    for node in nodes:
        _check(run, node.layer, [other.layer for other in nodes].count(node.layer))
    return Network(tuple(nodes), last.inputs[0])


def _walk(run: Run, model: keras.Model, places: dict[int, int], nodes: list[Node]) -> None:
    """Adds the layers of a model, whose inputs have places already; gives its outputs places."""
    graph = keras.Model(model.inputs, model.outputs)  # Sequential has no nodes of its own
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            layer, inputs = node.operation, node.input_tensors
            if node.is_input:
                continue
            if isinstance(layer, keras.Model) and getattr(layer, "inputs", None):
                for inner, outer in zip(layer.inputs, inputs, strict=True):
                    places[id(inner)] = places[id(outer)]
                _walk(run, layer, places, nodes)
                for inner, outer in zip(layer.outputs, node.outputs, strict=True):
                    places[id(outer)] = places[id(inner)]
                continue
            place = max(places.values()) + 1
            nodes.append(Node(layer, tuple(places[id(x)] for x in inputs), place))
            places |= {id(output): place for output in node.outputs}


def _is_softmax(layer: Any) -> bool:
    plain = type(layer) is layers.Softmax and layer.axis == -1
    return plain or (type(layer) is layers.Activation and _named(layer.activation) == "softmax")


def _named(value: Any) -> Any:
    """An activation as the name of its function; any other setting as it is."""
    return getattr(value, "__name__", value)


def _check(run: Run, layer: Any, uses: int) -> None:
    where = f"frontend native: {layer.name} in model {run.model}"
    if type(layer) not in KINDS:
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise ModelError(
            f"{where} is {_article(type(layer).__name__)}, of which no plain loop here has a "
            f"counterpart; allowed: {known}, or frontend keras"
        )
    # A vocabulary is both ends of a network of text; which one, the type of its input tells.
    if uses > 1 and layer.weights and type(layer) is not transformers.Vocabulary:
        raise ModelError(f"{where} is used {uses} times; take frontend keras")
    for name, value in layer.get_config().items():
        value = _named(getattr(layer, name, value)) if name == "activation" else value
        extra = name.endswith(("_regularizer", "_constraint", "quantization_config")) and value
        known = ALLOWED.get(name) if not isinstance(value, tuple | list) else None
        value = value["class_name"] if extra and isinstance(value, dict) else value
        if extra or (known and value not in known):
            allowed = "none" if extra else ", ".join(map(str, known or ()))
            raise ModelError(
                f"{where} has {name} {value}, which no plain loop here has; allowed: {allowed}, "
                "or frontend keras"
            )
    kind = type(layer).__name__
    if kind in RANKS and (axes := len(layer.input.shape)) not in RANKS[kind]:
        least, most = RANKS[kind]
        raise ModelError(
            f"{where} is {_article(kind)} of an input with {axes} axes, of which no plain loop has "
            f"a counterpart; allowed: {least} or {most} axes, or frontend keras"
        )
    normalizes = isinstance(layer, layers.BatchNormalization | layers.LayerNormalization)
    if normalizes and layer.axis not in (last := len(layer.input.shape) - 1, -1, [last], [-1]):
        raise ModelError(f"{where} normalizes axis {layer.axis}; allowed: the last")


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
