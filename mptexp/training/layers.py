"""Layers and models of our own: preprocessing, variants of a network, images on the device."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from mptexp.errors import UserError
from mptexp.spec.run import Run
from mptexp.training import costs
from mptexp.training.backends import current


class ModelError(UserError, ValueError):
    """A model that cannot be used as the run asks; the message is one sentence for the user."""


def scaled(run: Run, count: int) -> int:
    """A number of filters or units, times the width, rounded up to the run's multiple."""
    return -(-max(1, round(count * run.width)) // run.width_multiple) * run.width_multiple


# --- preprocessing, in the model ---------------------------------------------------------------


def augmented(run: Run, x: keras.KerasTensor) -> keras.KerasTensor:
    """The images, shape (batch, height, width, channels), changed at random while training.

    The layers compute in float32 and have seeds of their own, so that the random stream is the
    same under every policy. flip mirrors each image with probability 1/2; crop moves the whole
    batch by up to an eighth of the image's side.
    """
    if "flip" in run.augmentation:
        flip = layers.RandomFlip(
            "horizontal", seed=run.seed + 101, data_format="channels_last", dtype="float32"
        )
        x = flip(x)
    if "crop" in run.augmentation:
        x = Crop(max(1, run.image_size // 8), seed=run.seed + 102, dtype="float32")(x)
    return x


class Crop(layers.Layer):
    """Pads images with zeros and cuts their size out again, at one random place per batch.

    At inference it gives the middle, which is the image itself. Keras's RandomCrop (3.15) gives
    the padded image there, in another size, and turns XLA off.
    """

    def __init__(self, padding: int, seed: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.padding = padding
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, images: Any, training: bool = False) -> Any:
        if not training:
            return images
        edge = (self.padding, self.padding)
        x = ops.pad(images, ((0, 0), edge, edge, (0, 0)))
        first = keras.random.randint((2,), 0, 2 * self.padding + 1, seed=self.generator)
        # Not a slice: with a random start TensorFlow's XLA compiles anew at every step.
        for axis in (1, 2):
            x = ops.take(x, first[axis - 1] + ops.arange(images.shape[axis]), axis)
        return x


# --- variants of a network ---------------------------------------------------------------------


def varied(run: Run, model: keras.Model) -> keras.Model:
    """The model with other batch normalization, or with its float32 fallback, if the run asks so.

    The layers named in `float32_layers` then compute in float32 under every policy. All other
    layers, weights included, are shared with `model`.

    Raises:
        ModelError: where the model has no such layer, or none that can be fused.
    """
    named = [name.strip() for name in run.float32_layers.split(",") if name.strip()]
    every = [leaf.layer for leaf in costs.leaves(model)]
    known = [layer.name for layer in every]
    unknown = [name for name in named if name not in known]
    if unknown:
        raise ModelError(
            f"float32_layers names {unknown[0]}, which model {run.model} has not; allowed: "
            f"{', '.join(known)}"
        )
    if not named and run.normalization == "batch":
        return model

    normalizations = [x for x in every if isinstance(x, layers.BatchNormalization)]
    if run.normalization == "fused":
        _check_fusible(run, normalizations)

    def changed(layer: layers.Layer) -> layers.Layer:
        normalizes = layer in normalizations
        if run.normalization == "none" and normalizes:
            return Passed(name=layer.name, dtype=layer.dtype_policy)
        kind = FusedBatchNormalization if run.normalization == "fused" and normalizes else None
        if layer.name not in named and not kind:
            return layer
        copied = kind or type(layer)
        return _wide(run, layer, copied) if layer.name in named else _copied(layer, copied)

    return keras.models.clone_model(model, clone_function=changed, recursive=True)


def _copied(layer: layers.Layer, kind: type, **changes: Any) -> layers.Layer:
    """A layer of a class, with another one's configuration and values of its weights."""
    copy = kind.from_config(layer.get_config() | changes)
    copy.build(layer.input.shape)
    copy.set_weights(layer.get_weights())
    return copy


def _wide(run: Run, layer: layers.Layer, kind: type) -> layers.Layer:
    """A copy that computes in float32."""
    try:
        copy = _copied(layer, kind, dtype="float32")
    except Exception as error:  # of a class of the user's
        what = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(". ")
        raise ModelError(
            f"float32_layers names {layer.name} in model {run.model}, of which no copy in float32 "
            f"can be made ({what}); {kind.__name__} must give its arguments in get_config, and "
            "accept **kwargs, dtype among them, for keras.layers.Layer"
        ) from error
    _check_wide(run, copy)
    return copy


def _check_wide(run: Run, layer: layers.Layer) -> None:
    """Refuses a layer of float32_layers that holds layers which stay in the policy's type."""
    for inner in layer._flatten_layers(include_self=False):
        if inner.weights and inner.compute_dtype != "float32":
            raise ModelError(
                f"float32_layers names {layer.name}, whose own layer {inner.name} in model "
                f"{run.model} stays in {inner.compute_dtype}; give it dtype=self.dtype_policy"
            )


def _check_fusible(run: Run, normalizations: Sequence[layers.BatchNormalization]) -> None:
    """Refuses a model without batch normalization, or with one that the operation does not have."""
    if not normalizations:
        raise ModelError(f"normalization fused: model {run.model} has no batch normalization")
    for layer in normalizations:
        shape = layer.input.shape
        if len(shape) != 4 or layer.renorm or layer.synchronized or not layer.trainable:
            raise ModelError(
                f"normalization fused: {layer.name} in model {run.model} takes {shape}; what is "
                "fused is the plain batch normalization of images, (batch, height, width, "
                "channels), without renorm, synchronized or frozen weights: take normalization "
                "batch"
            )


class FusedBatchNormalization(layers.BatchNormalization):
    """Batch normalization in the backend's one fused operation, as TensorFlow 2.1 did it.

    Images go in and come out in the compute dtype; the statistics are float32. Keras 3 casts the
    images to float32 and computes the mean, the variance and the rest each in an operation of its
    own. As in TensorFlow 2.1 and PyTorch the moving variance is that of a sample, n / (n - 1) times
    Keras's, where n counts the pixels of a batch.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        x, dtype = ops.cast(inputs, self.compute_dtype), self.moving_mean.dtype
        channels = (x.shape[self.axis],)
        known = [self.gamma if self.scale else ops.ones(channels)]
        known += [self.beta if self.center else ops.zeros(channels)]
        known += [] if training else [self.moving_mean, self.moving_variance]
        scale, offset, *moving = [ops.cast(value, "float32") for value in known]
        y, mean, variance = current().fused_batch_norm(
            x, scale, offset, moving, self.epsilon, channels_first=self.axis == 1
        )
        if training:
            for average, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
                old = ops.cast(average, "float32") * self.momentum
                average.assign(ops.cast(old + new * (1 - self.momentum), dtype))
        return y


class Passed(layers.Layer):
    """Stands where a normalization was left out and gives its input unchanged.

    Keras's Identity does not take the arguments with which a normalization is called.
    """

    def call(self, x: Any, training: bool = False, mask: Any = None) -> Any:
        return x


# --- images that stay on the device --------------------------------------------------------------


def resident(model: keras.Model, x: np.ndarray, y: np.ndarray) -> keras.Model:
    """The model, reading one batch from the device's memory instead of its input.

    It shows what a step costs without an input path. Every step trains on the same images: for
    timing, not for learning. The weights are shared with `model`: compile the result, and validate
    with `model`.

    Args:
        x: examples in the shape and type that the model takes.
        y: labels, shape (batch,), or for each place of a sequence.

    Returns:
        A model whose input is a placeholder: uint8 of shape (batch,), whatever its values. `fit`
        needs no labels; those it is given are ignored.
    """
    nothing = layers.Input((), dtype="uint8")
    trained = Resident(nothing, model(ResidentBatch(x)(nothing)))
    trained.labels = current().constant(np.asarray(y, current().LABELS))
    return trained


class ResidentBatch(layers.Layer):
    """Ignores its input and gives the images that it holds, to each replica its own part."""

    def __init__(self, x: np.ndarray, **settings: Any) -> None:
        super().__init__(**settings)
        # A variable: XLA would compile a constant into the program.
        self.images = current().variable(x)

    def call(self, nothing: Any) -> Any:
        return current().own(self.images)


class Resident(keras.Model):
    """A model that takes its labels from the device too.

    They are a constant, not a variable: Keras's JAX trainer empties all variables during `fit` and
    hands the metrics none but their own.
    """

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        return super().compute_loss(x, current().own(self.labels), y_pred, sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().compute_metrics(x, current().own(self.labels), y_pred, sample_weight)
