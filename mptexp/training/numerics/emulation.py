"""Low precision emulated in a model and in its optimizer: activation format and storage format.

The values are those of the format, exactly; the arithmetic between them stays float32, so a dot
product is converted once, at its end (Gupta et al. 2015, arXiv 1502.02551). The optimizer's own
variables, such as momenta, and the statistics of BatchNormalization stay float32.
"""

from collections.abc import Callable
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
    """

    def __init__(self, layer: layers.Layer, run: Run, seed: int) -> None:
        super().__init__(layer, name=layer.name, dtype=layer.dtype_policy)
        self.propagation = run.propagation
        self.target = activation_format(run.propagation)
        self.rounding = run.rounding
        stochastic = run.rounding == "stochastic"
        self.generator = keras.random.SeedGenerator(seed) if stochastic else None
        self.ranges: list[keras.Variable] = []

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
        with keras.StatelessScope(state_mapping=values) as scope:
            y = self.layer(x, **further)
        for variable in others:
            variable.assign(scope.get_current_value(variable))
        return y if isinstance(self.target, Binary) else self._passed(y, -1, training)

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

    Its weights are rounded to nearest once, to begin with. The last layer, where it has no weights,
    stays as it is: probabilities are float32 under every policy.
    """
    if run.propagation != "policy":
        head = model.outputs[0]._keras_history.operation
        seeds = iter(range(run.seed + 201, run.seed + 100_000))

        def changed(layer: layers.Layer) -> layers.Layer:
            if run.propagation == "binary":
                _activate_by_sign(layer, head)
            return Rounded(layer, run, next(seeds)) if _rounds(layer, head, run) else layer

        model = keras.models.clone_model(model, clone_function=changed, recursive=True)
    stored = storage_format(run.weight_format)
    for weight in gradients.weights(model) if stored else ():
        first, _ = rounded(ops.convert_to_tensor(weight), stored, state=ops.zeros(STATE), least=0)
        weight.assign(first)
    return model


def _rounds(layer: layers.Layer, head: layers.Layer, run: Run) -> bool:
    """Whether a layer is wrapped: under binary, where it has a kernel; else where it computes."""
    if run.propagation == "binary":
        return any(is_kernel(weight) for weight in layer.trainable_variables)
    last = layer is head and not layer.weights
    return not (last or isinstance(layer, (*MOVING, layers.InputLayer)))


def without_signs(run: Run, model: keras.Model) -> str:
    """The first layer whose output `binary` would leave as it is; empty where there is none.

    Activations that are layers of their own; the functions of other layers become signs.
    """
    if run.propagation != "binary":
        return ""
    head = model.outputs[0]._keras_history.operation
    own = (layers.ReLU, layers.LeakyReLU, layers.PReLU, layers.ELU, layers.Softmax)
    found = (x for x in model._flatten_layers() if isinstance(x, own) or "elu" in type(x).__name__)
    return next((x.name for x in found if x is not head), "")


def _activate_by_sign(layer: layers.Layer, head: layers.Layer) -> None:
    function = getattr(layer, "activation", None)
    if layer is not head and function not in (None, keras.activations.linear):
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
    emulated_weights = {id(weight) for layer in wrapped for weight in layer.weights}
    kernels = [weight for weight in gradients.weights(model) if is_kernel(weight)]
    names = {layer.propagation for layer in wrapped}
    names |= {"policy" for weight in kernels if id(weight) not in emulated_weights}
    return {
        "propagation": ", ".join(sorted(names)) or "policy",
        "weight_format": getattr(_inner(model.optimizer), "weight_format", "policy"),
    }


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
