"""Outputs of layers and gradients of one batch, with the weights as they are; nothing is changed.

Keras has no backward pass of its own, so each backend differentiates in its own way what Keras
computes alike: the model runs as a function of its weights, and a tap sees what its layers give.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
from keras import tree

from mptexp.training import backends

# In the order in which a step computes them; gradients run from the last layer to the first.
KINDS = ("weights", "activations", "loss", "activation_gradients", "weight_gradients")
Reduced = tuple[str, str, Any]  # kind, layer, what `reduce` makes of the tensor


class Probe:
    """What a training step computes inside, reduced to something small where it is computed.

    Augmentation and dropout draw what the next step will draw; moving averages and seeds stay as
    they are. Gradients are those of the scaled loss. What the loss does not depend on has none,
    such as a softmax whose logits TensorFlow's loss reads. Integers are left out. A recurrent layer
    is seen at its output alone, its cell is part of it.

    Args:
        model: compiled.
        reduce: (kind, tensor, scale) -> small tensors that stand for it. It is compiled.
    """

    def __init__(self, model: keras.Model, reduce: Callable[[str, Any, Any], Any]) -> None:
        self.model = model
        self.reduce = reduce
        self.keys: list[tuple[str, str]] = []
        self._measured = backends.current().compiled(self._measure)

    def __call__(self, x: Any, y: Any, scale: float | str = 1.0) -> list[Reduced]:
        """Kind (see KINDS), layer, and what `reduce` makes of the tensor, as numpy arrays.

        The batch is as `fit` takes it; the scale is a factor of the loss, or "none".
        """
        backends.current().sync_variables(self.model)
        x, y = tree.map_structure(keras.ops.convert_to_tensor, (x, y))
        values = [keras.ops.convert_to_tensor(v.value) for v in self.model.variables]
        factor = keras.ops.convert_to_tensor(1.0 if scale == "none" else scale, "float32")
        tensors = self._measured(values, factor, x, y)
        arrays = tree.map_structure(keras.ops.convert_to_numpy, tensors)
        return [(*key, array) for key, array in zip(self.keys, arrays, strict=True)]

    def _measure(self, values: list[Any], scale: Any, x: Any, y: Any) -> list[Any]:
        variables = self.model.variables
        place = {id(variable): i for i, variable in enumerate(variables)}
        learning = [place[id(v)] for v in weights(self.model)]

        def forward(trained: Sequence[Any], tap: Callable[[str, Any], Any]) -> Any:
            given = dict(zip(learning, trained, strict=True))
            now = [given.get(i, value) for i, value in enumerate(values)]
            mapping = list(zip(variables, now, strict=True))
            with keras.StatelessScope(state_mapping=mapping), _tapped(self.model, tap):
                output = self.model(x, training=True)
                loss = self.model.compute_loss(x, y, output, None, training=True)
            return loss * keras.ops.cast(scale, loss.dtype)

        trained = [values[i] for i in learning]
        names = [layer_of(self.model, variables[i]) for i in learning]
        loss, outputs, gradients = backends.current().differentiated(forward, trained)
        loss = loss / keras.ops.cast(scale, loss.dtype)
        tensors = _in_order(names, trained, outputs, loss, gradients)
        self.keys = [(kind, name) for kind, name, _ in tensors]
        return [self.reduce(kind, tensor, scale) for kind, _, tensor in tensors]


def _in_order(
    names: list[str], trained: list[Any], outputs: list[Any], loss: Any, gradients: list[Any]
) -> list[Reduced]:
    """Everything in the order in which a step meets it: a layer's gradients after its output's.

    What comes before the first layer with weights has no gradient: training computes none. Nor has
    what the loss does not depend on, where the backend says so.
    """
    forward = [("weights", name, weight) for name, weight in zip(names, trained, strict=True)]
    forward += [("activations", name, output) for name, output in outputs]
    ends = [("activation_gradients", name) for name, _ in outputs]
    ends += [("weight_gradients", name) for name in names]
    pairs = zip(ends, gradients, strict=True)
    backward = [(*end, gradient) for end, gradient in pairs if gradient is not None]
    order = {name: place for place, (name, _) in enumerate(outputs)}
    first = min((order.get(name, 0) for name in names), default=0)
    backward = [row for row in backward if order.get(row[1], first) >= first]
    backward.sort(key=lambda row: (-order.get(row[1], -1), row[0]))
    return [*forward, ("loss", "loss", loss), *backward]


def loss_scale(model: keras.Model) -> float | str:
    """The factor that multiplies the loss of a compiled model now, or "none"."""
    optimizer = model.optimizer
    if hasattr(optimizer, "initial_scale"):  # a LossScaleOptimizer; built by the first step
        built = optimizer.built
        return float(optimizer.dynamic_scale.numpy() if built else optimizer.initial_scale)
    return float(optimizer.loss_scale_factor) if optimizer.loss_scale_factor else "none"


def weights(model: keras.Model) -> list[keras.Variable]:
    """The trainable weights; not what Keras overwrites with a gradient: scales, dynamic ranges."""
    return [v for v in model.trainable_variables if not v.overwrite_with_gradient]


def layer_of(model: keras.Model, variable: keras.Variable) -> str:
    """Name of the layer that holds a variable."""
    holders = [layer for layer in _leaves(model) if any(w is variable for w in layer.variables)]
    return holders[0].name if holders else variable.path


def _leaves(model: keras.Model) -> list[keras.Layer]:
    """Layers that hold no others, in the order in which they were made; recurrent ones as a whole.

    What a cell gives does not exist outside of the loop over time in which the backend calls it.
    """
    layers = model._flatten_layers(include_self=False)
    layers = [layer for layer in layers if not isinstance(layer, keras.layers.InputLayer)]
    loops = [layer for layer in layers if isinstance(layer, keras.layers.RNN)]
    cells = {id(part) for loop in loops for part in loop._flatten_layers(include_self=False)}
    outer = [layer for layer in layers if id(layer) not in cells]
    return [layer for layer in outer if not layer._layers or layer in loops]


@contextmanager
def _tapped(model: keras.Model, tap: Callable[[str, Any], Any]) -> Iterator[None]:
    """Lets the floats that a layer gives pass through `tap`, nested and subclassed models too."""
    leaves = _leaves(model)

    def through(layer: keras.Layer) -> Callable[..., Any]:
        call = getattr(type(layer), _verb(layer))

        def tapped(*args: Any, **named: Any) -> Any:
            output = call(layer, *args, **named)
            return tree.map_structure(lambda x: tap(layer.name, x) if is_float(x) else x, output)

        return tapped

    for layer in leaves:
        vars(layer)[_verb(layer)] = through(layer)  # not through Keras, which would track it
    try:
        yield
    finally:
        for layer in leaves:
            del vars(layer)[_verb(layer)]


def _verb(layer: keras.Layer) -> str:
    """The method in which a layer computes."""
    return "quantized_call" if layer.quantization_mode else "call"


def is_float(tensor: Any) -> bool:
    """Whether a tensor holds floats of any width."""
    return hasattr(tensor, "dtype") and "float" in keras.backend.standardize_dtype(tensor.dtype)
