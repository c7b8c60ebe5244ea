"""Outputs of layers and gradients of one batch, with the weights as they are; nothing is changed.

Keras has no backward pass of its own, so each backend differentiates in its own way what Keras
computes alike: the model runs as a function of its weights, and its layers tell their outputs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
from keras import tree

# In the order in which a step computes them; gradients run from the last layer to the first.
KINDS = ("weights", "activations", "loss", "activation_gradients", "weight_gradients")
Told = tuple[str, str, Any]


class Probe:
    """What a training step computes inside, reduced to something small where it is computed.

    Augmentation and dropout draw what the next step will draw; moving averages and seeds stay as
    they are. Gradients are those of the scaled loss. A layer that the loss does not depend on has
    zeros as gradient. Integers are left out.

    Args:
        model: compiled.
        reduce: (kind, tensor, scale) -> what to tell of it: small tensors. It is compiled.
    """

    def __init__(self, model: keras.Model, reduce: Callable[[str, Any, Any], Any]) -> None:
        self.model = model
        self.reduce = reduce
        self.keys: list[tuple[str, str]] = []
        self._measured = compiled(self._measure)

    def __call__(self, x: Any, y: Any, scale: float = 1.0) -> list[Told]:
        """Kind (see KINDS), layer, and what `reduce` tells of the tensor, as numpy has it.

        Args:
            x: a batch as `fit` takes it.
            y: its targets.
            scale: factor of the loss.
        """
        synced(self.model)
        x, y = tree.map_structure(keras.ops.convert_to_tensor, (x, y))
        values = [keras.ops.convert_to_tensor(v.value) for v in self.model.variables]
        found = self._measured(values, keras.ops.convert_to_tensor(scale, "float32"), x, y)
        told = tree.map_structure(keras.ops.convert_to_numpy, found)
        return [(*key, value) for key, value in zip(self.keys, told, strict=True)]

    def _measure(self, values: list[Any], scale: Any, x: Any, y: Any) -> list[Any]:
        variables = self.model.variables
        place = {id(variable): i for i, variable in enumerate(variables)}
        learning = [place[id(v)] for v in weights(self.model)]

        def forward(trained: Sequence[Any], tap: Callable[[keras.Layer, Any], Any]) -> Any:
            held = dict(zip(learning, trained, strict=True))
            now = [held.get(i, value) for i, value in enumerate(values)]
            mapping = list(zip(variables, now, strict=True))
            with keras.StatelessScope(state_mapping=mapping), _tapped(self.model, tap):
                output = self.model(x, training=True)
                loss = self.model.compute_loss(x, y, output, None, training=True)
            return loss * keras.ops.cast(scale, loss.dtype)

        trained = [values[i] for i in learning]
        names = [layer_of(self.model, variables[i]) for i in learning]
        loss, outputs, gradients = DIFFERENTIATE[keras.backend.backend()](forward, trained)
        loss = loss / keras.ops.cast(scale, loss.dtype)
        told = _in_order(names, trained, outputs, loss, gradients)
        self.keys = [(kind, name) for kind, name, _ in told]
        return [self.reduce(kind, tensor, scale) for kind, _, tensor in told]


def _in_order(
    names: list[str], trained: list[Any], outputs: list[Any], loss: Any, gradients: list[Any]
) -> list[Told]:
    """Everything in the order in which a step meets it: a layer's gradients after its output's.

    What comes before the first layer with weights has no gradient: training computes none.
    """
    forward = [("weights", name, weight) for name, weight in zip(names, trained, strict=True)]
    forward += [("activations", name, output) for name, output in outputs]
    ends = [("activation_gradients", name) for name, _ in outputs]
    ends += [("weight_gradients", name) for name in names]
    backward = [(*end, gradient) for end, gradient in zip(ends, gradients, strict=True)]
    order = {name: place for place, (name, _) in enumerate(outputs)}
    first = min((order.get(name, 0) for name in names), default=0)
    backward = [told for told in backward if order.get(told[1], first) >= first]
    backward.sort(key=lambda told: (-order.get(told[1], -1), told[0]))
    return [*forward, ("loss", "loss", loss), *backward]


def weights(model: keras.Model) -> list[keras.Variable]:
    """The trainable weights; not what Keras overwrites with a gradient, such as scales."""
    found = model.trainable_variables
    return [v for v in found if not getattr(v, "overwrite_with_gradient", False)]


def layer_of(model: keras.Model, variable: keras.Variable) -> str:
    """Name of the layer that holds a variable."""
    holders = [layer for layer in _leaves(model) if any(w is variable for w in layer.variables)]
    return holders[0].name if holders else variable.path


def _leaves(model: keras.Model) -> list[keras.Layer]:
    """Layers that hold no others, in the order in which they were made."""
    found = model._flatten_layers(include_self=False)
    inputs = keras.layers.InputLayer
    return [layer for layer in found if not layer._layers and not isinstance(layer, inputs)]


@contextmanager
def _tapped(model: keras.Model, tap: Callable[[keras.Layer, Any], Any]) -> Iterator[None]:
    """Lets what a layer gives pass through `tap`, nested and subclassed models too."""
    leaves = _leaves(model)

    def through(layer: keras.Layer) -> Callable[..., Any]:
        call = type(layer).call
        return lambda *given, **named: tap(layer, call(layer, *given, **named))

    for layer in leaves:
        vars(layer)["call"] = through(layer)  # not through Keras, which would track it
    try:
        yield
    finally:
        for layer in leaves:
            del vars(layer)["call"]


def is_float(tensor: Any) -> bool:
    """Whether a tensor holds floats of any width."""
    return hasattr(tensor, "dtype") and "float" in keras.backend.standardize_dtype(tensor.dtype)


# --- each backend: (forward, trained) -> loss, outputs by layer, gradients of both in turn -----


def _tensorflow(forward: Callable[..., Any], trained: list[Any]) -> tuple[Any, list, list]:
    import tensorflow as tf

    outputs: list[tuple[str, Any]] = []

    def tap(layer: keras.Layer, output: Any) -> Any:
        outputs.extend((layer.name, part) for part in tree.flatten(output) if is_float(part))
        return output

    with tf.GradientTape() as tape:
        trained = [tf.identity(value) for value in trained]
        tape.watch(trained)
        loss = forward(trained, tap)
    ends = [part for _, part in outputs] + trained
    return loss, outputs, tape.gradient(loss, ends, unconnected_gradients="zero")


def _jax(forward: Callable[..., Any], trained: list[Any]) -> tuple[Any, list, list]:
    import jax

    # The gradient of what a layer gives is that of a zero that is added to it.
    names: list[str] = []

    def added(trained: list[Any], zeros: list[Any] | None) -> tuple[Any, list[Any]]:
        outputs: list[Any] = []

        def plus(part: Any) -> Any:
            if not is_float(part):
                return part
            outputs.append(part if zeros is None else part + zeros[len(outputs)])
            return outputs[-1]

        def tap(layer: keras.Layer, output: Any) -> Any:
            found = tree.map_structure(plus, output)
            names.extend([layer.name] * (len(outputs) - len(names)))
            return found

        return forward(trained, tap), outputs

    _, shapes = jax.eval_shape(lambda values: added(values, None), trained)
    zeros = [jax.numpy.zeros(part.shape, part.dtype) for part in shapes]
    names.clear()
    differentiated = jax.value_and_grad(added, argnums=(0, 1), has_aux=True)
    (loss, outputs), (of_trained, of_outputs) = differentiated(trained, zeros)
    return loss, list(zip(names, outputs, strict=True)), [*of_outputs, *of_trained]


def _torch(forward: Callable[..., Any], trained: list[Any]) -> tuple[Any, list, list]:
    import torch

    outputs: list[tuple[str, Any]] = []

    def tap(layer: keras.Layer, output: Any) -> Any:
        outputs.extend((layer.name, part) for part in tree.flatten(output) if is_float(part))
        return output

    trained = [value.detach().clone().requires_grad_() for value in trained]
    # Dropout without a seed of its own draws from the global stream.
    with torch.random.fork_rng(), torch.enable_grad():
        loss = forward(trained, tap)
    ends = [part for _, part in outputs] + trained
    learns = [end for end in ends if end.requires_grad]
    found = torch.autograd.grad(loss, learns, allow_unused=True)
    by_end = {id(end): gradient for end, gradient in zip(learns, found, strict=True)}
    gradients = [by_end.get(id(end)) for end in ends]
    pairs = zip(gradients, ends, strict=True)
    gradients = [torch.zeros_like(end) if g is None else g for g, end in pairs]
    return loss.detach(), [(n, part.detach()) for n, part in outputs], gradients


DIFFERENTIATE = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled by the backend where that is its way."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    if backend == "jax":
        import jax

        return jax.jit(function)
    return function


def synced(model: keras.Model) -> None:
    """Puts the weights into the model's variables, which JAX's `fit` keeps elsewhere."""
    if getattr(model, "_jax_state", None):
        model.jax_state_sync()
