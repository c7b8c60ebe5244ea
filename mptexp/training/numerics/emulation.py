"""Low precision emulated in a model and in its optimizer: activation format and storage format.

The values are those of the format, exactly; the arithmetic between them stays float32, so a dot
product is converted once, at its end (Gupta et al. 2015, arXiv 1502.02551). The optimizer's own
variables, such as momenta, and the statistics of BatchNormalization stay float32.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras import layers, ops

from mptexp.spec.number_formats import (
    Binary,
    Block,
    Dynamic,
    Format,
    activation_format,
    storage_format,
)
from mptexp.spec.run import Run
from mptexp.training import backends
from mptexp.training.numerics import gradients
from mptexp.training.numerics.quantization import FURTHEST, STATE, Rounding, rounded

NOTE = "low precision is emulated in float32: its time says nothing of hardware"
# Layers that give values they were given, or zero: they round nothing.
MOVING = (
    layers.Flatten,
    layers.Reshape,
    layers.Permute,
    layers.ZeroPadding2D,
    layers.MaxPooling2D,
    layers.GlobalMaxPooling2D,
    layers.ReLU,
    layers.Identity,
)
# Operations of a graph, such as `x[:, -1]`, of which the same holds.
MOVING_OPERATIONS = (
    *("GetItem", "Reshape", "Ravel", "Transpose", "Swapaxes", "Moveaxis", "Squeeze", "ExpandDims"),
    *("Split", "Flip", "Repeat", "Tile", "Max"),
)


class DrawnSeed(keras.random.SeedGenerator):
    """A seed that was drawn before, for where no state may change, such as a backward pass."""

    def __init__(self, seed: Any) -> None:
        self.seed = seed

    def next(self, ordered: bool = True) -> Any:
        return self.seed


def _value(x: Any) -> Any:
    """The value now, which is no variable: it stays when the variable is assigned to."""
    return ops.copy(ops.convert_to_tensor(x))


# --- the activation format: weights as used, outputs, and the gradients of both -------------------


def rounded_both_ways(
    x: Any,
    target: Format | Dynamic | Block | None,
    rounding: Rounding = "nearest",
    seeds: tuple[Any, Any] = (None, None),
    states: Any = None,
    least: int = -FURTHEST,
    axis: int = -1,
) -> Any:
    """A tensor rounded to a format, whose gradient is rounded to it too on the way back.

    Args:
        seeds: of the tensor's rounding and of its gradient's.
        states: of a Dynamic format, a trainable variable of shape (2, STATE), one state for the
            tensor and one for its gradient; its gradient is its next value, as of variables with
            `overwrite_with_gradient`.
        least: of a Dynamic format, the tensor's least first range, see quantization.rounded.
        axis: of a Block format, along which the blocks of both lie.
    """
    dynamic = isinstance(target, Dynamic)
    first = states[0] if dynamic else None
    forth, next_first = rounded(x, target, rounding, seeds[0], first, least, axis)

    @ops.custom_gradient
    def both_ways(x: Any, forth: Any, *states: Any) -> tuple[Any, Callable[..., Any]]:
        def gradient(*saved: Any, upstream: Any = None) -> tuple[Any, ...]:
            upstream = saved[0] if upstream is None else upstream  # PyTorch's comes by name
            # TensorFlow's of an embedding is sparse.
            upstream = ops.reshape(upstream, ops.shape(forth))
            second = states[0][1] if states else None
            back, next_second = rounded(upstream, target, rounding, seeds[1], second, axis=axis)
            of_inputs = (back, ops.zeros_like(forth))
            if not states:
                return of_inputs
            return (*of_inputs, ops.stack([states[1], next_second]), ops.zeros_like(states[1]))

        return forth, gradient

    further = (_value(states), next_first) if dynamic else ()
    return both_ways(_value(x), forth, *further)


def sign(x: Any) -> Any:
    """-1 below zero, else +1; the gradient is one where |x| <= 1, else zero (BinaryNet)."""

    @ops.custom_gradient
    def straight(x: Any) -> tuple[Any, Callable[..., Any]]:
        def gradient(*saved: Any, upstream: Any = None) -> Any:
            upstream = saved[0] if upstream is None else upstream
            return ops.where(ops.absolute(x) <= 1, upstream, 0.0)

        signs = ops.where(x >= 0, 1.0, -1.0)
        return ops.where(ops.isnan(x), x, signs), gradient

    return straight(_value(x))


class Rounded(layers.Wrapper):
    """A layer whose weights, as it uses them, and whose output are in a format, gradients too.

    Under `binary` kernels are signs, while biases and the output stay as they are: the activation
    function takes the sign of the output. In inference rounding is to nearest.

    Args:
        ends: whether the layer's activation function gives the model's probabilities. They stay
            float32; what the function is given is rounded in their place.
    """

    def __init__(self, layer: layers.Layer, run: Run, seed: int, ends: bool = False) -> None:
        super().__init__(layer, name=layer.name, dtype=layer.dtype_policy)
        self.propagation = run.propagation
        self.target = activation_format(run.propagation)
        self.rounding = run.rounding
        stochastic = run.rounding == "stochastic"
        self.generator = keras.random.SeedGenerator(seed) if stochastic else None
        self.ranges: list[keras.Variable] = []
        self.ends = ends and run.propagation != "binary"

    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        names = [weight.name for weight in self._weights()] + ["output"]
        if isinstance(self.target, Dynamic):
            self.ranges = [self._range(name) for name in names]

    def _range(self, name: str) -> keras.Variable:
        return self.add_weight(
            name=f"{name}_range",
            shape=(2, STATE),
            initializer="zeros",
            dtype="float32",
            autocast=False,
            overwrite_with_gradient=True,
        )

    def _weights(self) -> list[keras.Variable]:
        normalizes = isinstance(self.layer, layers.BatchNormalization)
        return [] if normalizes else self.layer.trainable_variables

    def call(self, x: Any, training: bool = False, mask: Any = None, **further: Any) -> Any:
        weights, others = self._weights(), self.layer.non_trainable_variables
        used = [(w, self._passed(w, i, training)) for i, w in enumerate(weights)]
        values = used + [(v, ops.convert_to_tensor(v)) for v in others]
        if not weights:
            return self._passed(self.layer(x, **further), -1, training)
        with keras.StatelessScope(state_mapping=values) as scope, self._not_activated():
            y = self.layer(x, **further)
        for variable in others:
            variable.assign(scope.get_current_value(variable))
        if not isinstance(self.target, Binary):
            y = self._passed(y, -1, training)
        return self.layer.activation(y) if self.ends else y

    @contextmanager
    def _not_activated(self) -> Iterator[None]:
        """At the end of a model, lets the layer give what its activation function is to be given.

        For the call alone: the layer's settings say what network it is.
        """
        if not self.ends:
            yield
            return
        function = self.layer.activation
        self.layer.activation = keras.activations.linear
        try:
            yield
        finally:
            self.layer.activation = function

    def _passed(self, x: Any, index: int, training: bool) -> Any:
        if isinstance(self.target, Binary):
            return sign(x) if is_kernel(x) else ops.convert_to_tensor(x)
        stochastic = training and self.generator is not None
        seeds = tuple(DrawnSeed(self.generator.next()) if stochastic else None for _ in range(2))
        rounding = self.rounding if stochastic else "nearest"
        states = self.ranges[index] if self.ranges else None
        least = -FURTHEST if index < 0 else 0  # of an output, of a weight
        axis = self._summed(x, index >= 0)
        return rounded_both_ways(x, self.target, rounding, seeds, states, least, axis)

    def _summed(self, x: Any, is_weight: bool) -> int:
        """The axis that a product sums over, along which blocks lie.

        A kernel's inputs, an output's features. A vocabulary is looked up, and as the head of a
        network summed over its features, as it lies; of a single row the row.
        """
        if not is_weight:
            first = keras.config.image_data_format() == "channels_first" and len(x.shape) == 4
            return 1 if first else -1
        by_row = isinstance(self.layer, layers.Embedding) or not is_kernel(x)
        return -1 if by_row or x.shape[-2] == 1 else -2


def is_kernel(variable: Any) -> bool:
    """Whether a weight is a kernel: kernels have two axes or more, biases one."""
    return len(variable.shape) > 1


def emulated(run: Run, model: keras.Model) -> keras.Model:
    """The model with the run's formats in it; its layers, names and weights are those of `model`.

    Its weights are rounded to nearest once, to begin with. Probabilities are float32 under every
    policy: the layer that gives them stays as it is, or has its logits rounded where it has
    weights. Operations of the graph stay as they are, see `unreached`.
    """
    if run.propagation != "policy":
        end = head(model)
        seeds = iter(range(run.seed + 201, run.seed + 100_000))

        def changed(layer: keras.Operation) -> keras.Operation:
            if not isinstance(layer, layers.Layer):
                return layer
            if run.propagation == "binary":
                _activate_by_sign(layer, end)
            if not _rounds(layer, end, run):
                return layer
            return Rounded(layer, run, next(seeds), layer is end and _activates(layer))

        model = keras.models.clone_model(model, clone_function=changed, recursive=True)
    stored = storage_format(run.weight_format)
    for weight in gradients.weights(model) if stored else ():
        first, _ = rounded(ops.convert_to_tensor(weight), stored, state=ops.zeros(STATE), least=0)
        weight.assign(first)
    return model


def head(model: keras.Model) -> keras.Operation:
    """The layer or operation that gives the probabilities, within the models of which `model` is.

    Behind it there is nothing but what moves them.
    """
    operation, inputs = last(model.outputs[0])
    while moves(operation) and inputs:
        operation, inputs = last(inputs[0])
    return operation


def last(tensor: keras.KerasTensor) -> tuple[keras.Operation, list[keras.KerasTensor]]:
    """What gives a tensor of a graph, within the models that are nested there, and its inputs."""
    operation, node, place = tensor._keras_history
    if isinstance(operation, keras.Model) and getattr(operation, "outputs", None):
        return last(operation.outputs[place])
    return operation, operation._inbound_nodes[node].input_tensors


def moves(operation: keras.Operation) -> bool:
    """Whether a layer or an operation gives values that it was given, or zero."""
    return isinstance(operation, MOVING) or type(operation).__name__ in MOVING_OPERATIONS


def _activates(layer: keras.Operation) -> bool:
    """Whether a layer ends in an activation function that can be told from the rest of it."""
    function = getattr(layer, "activation", None)
    return _is_keras(layer) and function not in (None, keras.activations.linear)


def _is_keras(layer: keras.Operation) -> bool:
    return type(layer).__module__.partition(".")[0] == "keras"


def _rounds(layer: layers.Layer, end: keras.Operation, run: Run) -> bool:
    """Whether a layer is wrapped: under binary, where it has a kernel; else where it computes."""
    if run.propagation == "binary":
        return any(is_kernel(weight) for weight in layer.trainable_variables)
    gives_probabilities = layer is end and not layer.weights
    return not (gives_probabilities or isinstance(layer, (*MOVING, layers.InputLayer)))


# --- what cannot be emulated ----------------------------------------------------------------------


def unreached(run: Run, model: keras.Model, used: list[keras.Operation]) -> str:
    """What in a model a format of what passes between layers would not reach; empty where nothing.

    Args:
        used: its layers and operations, nested models flattened.

    Returns:
        The layer or operation, why, and what to do, as the middle of a sentence.
    """
    if run.propagation == "policy":
        return ""
    end = head(model)
    for operation in used:
        if within := holds_layers(operation):
            return (
                f"the layer {operation.name} holds layers with weights of its own, such as "
                f"{within}, between which nothing would be rounded; build the model of those, by "
                "keras.Model or keras.Sequential"
            )
        if operation is not end and computing(operation):
            return (
                f"its operation {type(operation).__name__} is no layer, and its result would stay "
                "float32; write it as a layer, such as keras.layers.Add for +"
            )
    if run.propagation != "binary" and getattr(end, "weights", None) and not _is_keras(end):
        return (
            f"the layer {end.name} gives the probabilities, which would be rounded with its output;"
            " end the model in Activation('softmax', dtype='float32')"
        )
    return ""


def holds_layers(operation: keras.Operation) -> str:
    """The first layer with weights that a layer holds; empty where what it gives is all there is.

    TimeDistributed gives what the one layer that it holds gives.
    """
    if isinstance(operation, layers.TimeDistributed):
        return holds_layers(operation.layer)
    if not isinstance(operation, layers.Layer):
        return ""
    inner = operation._flatten_layers(include_self=False)
    return next((layer.name for layer in inner if layer.weights), "")


def computing(operation: keras.Operation) -> bool:
    """Whether it is an operation of the graph, such as `a + b`, that gives new floats."""
    if isinstance(operation, layers.Layer) or moves(operation):
        return False
    outputs = (out for node in operation._inbound_nodes for out in node.outputs)
    return any(gradients.is_float(out) for out in outputs)


def without_signs(run: Run, model: keras.Model) -> str:
    """The first layer whose output `binary` would leave as it is; empty where there is none.

    Activations that are layers of their own; the functions of other layers become signs.
    """
    if run.propagation != "binary":
        return ""
    end = head(model)
    own = (layers.ReLU, layers.LeakyReLU, layers.PReLU, layers.ELU, layers.Softmax)
    found = (x for x in model._flatten_layers() if isinstance(x, own) or "elu" in type(x).__name__)
    return next((x.name for x in found if x is not end), "")


def _activate_by_sign(layer: layers.Layer, end: keras.Operation) -> None:
    if isinstance(layer, layers.TimeDistributed):
        return _activate_by_sign(layer.layer, end)
    function = getattr(layer, "activation", None)
    if layer is not end and function not in (None, keras.activations.linear):
        layer.activation = sign


# --- the storage format: weights after each update ------------------------------------------------


def optimizer(kind: type[keras.Optimizer], run: Run) -> type[keras.Optimizer]:
    """The kind of optimizer, whose weights are in the run's storage format after each update.

    Under `binary` kernels are clipped to [-1, 1], where their signs can still change. What the
    kind computes, momenta too, stays float32. `updates` counts the updates that were not zero,
    `lost` those of them that left the weight as it was: they were lost to rounding.
    """
    if run.weight_format == "policy" and run.propagation != "binary":
        return kind
    target, clips = storage_format(run.weight_format), run.propagation == "binary"

    class Rounding(kind):  # type: ignore[misc, valid-type]
        weight_format = run.weight_format

        def build(self, variables: list[keras.Variable]) -> None:
            if self.built:
                return
            super().build(variables)
            self.updates = self.add_variable((), name="updates", dtype="float32")
            self.lost = self.add_variable((), name="lost", dtype="float32")
            self.ranges = [
                self.add_variable((STATE,), name="range", dtype="float32")
                for _ in (variables if isinstance(target, Dynamic) else ())
            ]

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            before = _value(variable)
            # From zero, the variable becomes the update itself, however small beside the weight.
            self.assign(variable, ops.zeros_like(before))
            super().update_step(gradient, variable, learning_rate)
            update = _value(variable)
            after = self._rounded(before + update, self._get_variable_index(variable))
            moves = update != 0
            self._count(self.updates, moves)
            self._count(self.lost, ops.logical_and(moves, after == before))
            after = ops.clip(after, -1.0, 1.0) if clips and is_kernel(variable) else after
            self.assign(variable, after)

        def _count(self, total: keras.Variable, flags: Any) -> None:
            self.assign_add(total, ops.sum(ops.cast(flags, "float32")))

        def _rounded(self, x: Any, index: int) -> Any:
            steps = ops.cast(self.iterations, backends.current().SEEDS)
            first = ops.zeros_like(steps) + (run.seed + 7919 * (index + 1)) % 2**31
            seed = DrawnSeed(ops.stack([first, steps]))
            state = self.ranges[index] if self.ranges else None
            value = None if state is None else ops.convert_to_tensor(state)
            stored, new_state = rounded(x, target, run.rounding, seed, value, 0)
            if state is not None:
                self.assign(state, new_state)
            return stored

    return Rounding


# --- read back -----------------------------------------------------------------------------------


def effective(model: keras.Model) -> dict[str, str]:
    """Which formats are emulated, read from the built model and its optimizer.

    Keys: propagation (several where layers differ), weight_format; "policy" where none is.
    """
    inner = list(model._flatten_layers(include_self=False))
    wrapped = [layer for layer in inner if isinstance(layer, Rounded)]
    emulated_weights = {id(weight) for layer in wrapped for weight in _reached(layer.layer)}
    kernels = [weight for weight in gradients.weights(model) if is_kernel(weight)]
    names = {layer.propagation for layer in wrapped}
    names |= {"policy" for weight in kernels if id(weight) not in emulated_weights}
    return {
        "propagation": ", ".join(sorted(names)) or "policy",
        "weight_format": getattr(_inner(model.optimizer), "weight_format", "policy"),
    }


def _reached(layer: layers.Layer) -> list[keras.Variable]:
    """The weights of a wrapped layer whose products are rounded: not those of layers in it."""
    if isinstance(layer, layers.TimeDistributed):
        return _reached(layer.layer)
    inner = layer._flatten_layers(include_self=False)
    others = {id(weight) for held in inner for weight in held.weights}
    return [weight for weight in layer.weights if id(weight) not in others]


def lost_updates_frac(model: keras.Model) -> float | None:
    """Share of the updates that rounding lost, of those that were not zero.

    None where they were not counted: where no storage format is emulated.
    """
    optimizer = _inner(model.optimizer)
    if not hasattr(optimizer, "lost") or not float(optimizer.updates.numpy()):
        return None
    return float(optimizer.lost.numpy()) / float(optimizer.updates.numpy())


def _inner(optimizer: keras.Optimizer) -> keras.Optimizer:
    """The optimizer that updates, within the one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)
