"""Named model builders, the user's own model, and a model that reads one resident batch.

Import after `precision.use`: Keras reads its backend when it is imported.
"""

import hashlib
import importlib
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from mptexp.spec import imports
from mptexp.spec.errors import UserError
from mptexp.spec.run import Run
from mptexp.training import costs, initial_weights
from mptexp.training.backends import replicas
from mptexp.training.numerics import emulation


class ModelError(UserError, ValueError):
    """A model that cannot be used as the run asks; the message is one sentence for the user."""


# --- from pictures to probabilities -----------------------------------------------------------


def build(run: Run, shape: tuple[int, int, int], classes: int) -> keras.Model:
    """The run's model with initial weights that depend on the seed alone, not on the policy.

    Nor on the backend, where all weights come from Keras's default initializers: see
    initial_weights.py.

    Pictures enter channels last; with data_format channels_first the model transposes them once,
    behind the augmentation. Channels first runs on a CPU under every backend, except float16 on
    TensorFlow without XLA, which has no gradient of a convolution there (`precision.use` says so).
    TensorFlow's CPU pools channels last in any case, between two transpositions.

    Args:
        shape: height, width, channels of a picture; uint8 values from 0 to 255, or with input_mode
            keydana float32 values from 0 to 1.
        classes: number of classes.

    Raises:
        ModelError: where the model does not fit the pictures or cannot be made.
    """
    policy, data_format = keras.config.dtype_policy(), keras.config.image_data_format()
    if run.data_format != "auto":
        keras.config.set_image_data_format(run.data_format)
    try:
        made = varied(run, _numbered(_built(run, policy, shape, classes)))
        return emulation.emulated(_checked(run, made), made)
    finally:
        keras.config.set_dtype_policy(policy)
        keras.config.set_image_data_format(data_format)


def _checked(run: Run, model: keras.Model) -> Run:
    """The run, whose model can have the run's formats.

    Raises:
        ModelError: where a layer would need a range for each of its uses, or takes several inputs.
    """
    used = [call.layer for call in costs.calls(model) if isinstance(call.layer, layers.Layer)]
    twice = [layer.name for layer in used if used.count(layer) > 1 and layer.weights]
    if twice and run.propagation.startswith("dynamic"):
        raise ModelError(
            f"model {run.model} uses {twice[0]} more than once, and {run.propagation} has one "
            "range per layer; take another propagation"
        )
    several = [c.layer for c in costs.calls(model) if len(c.inputs) > 1 and _has_weights(c.layer)]
    if several and run.propagation != "policy":
        raise ModelError(
            f"{several[0].name} in model {run.model} takes several inputs, and propagation "
            f"{run.propagation} is emulated for layers of one; take propagation policy"
        )
    return run


def _has_weights(layer: Any) -> bool:
    return isinstance(layer, layers.Layer) and bool(layer.weights)


def _built(
    run: Run, policy: keras.DTypePolicy, shape: tuple[int, int, int], classes: int
) -> keras.Model:
    if policy.variable_dtype == "float32":
        return _drawn(_seeded(run, shape, classes))
    # A 16-bit draw differs from a rounded 32-bit draw: draw in float32, then round.
    keras.config.set_dtype_policy("float32")
    weights = _drawn(_seeded(run, shape, classes)).get_weights()
    keras.config.set_dtype_policy(policy)
    model = _seeded(run, shape, classes)
    model.set_weights(weights)
    return model


def _drawn(model: keras.Model) -> keras.Model:
    """The model with kernels as TensorFlow draws them, whatever the backend."""
    if keras.backend.backend() == "tensorflow":
        return model
    for layer in model._flatten_layers(include_self=False):
        for name, start in list(vars(layer).items()):
            kernel = _initialized(layer, name.removesuffix("_initializer"))
            if _is_uniform(start) and isinstance(kernel, keras.Variable):
                kernel.assign(
                    initial_weights.glorot_uniform(
                        kernel.shape, start.scale, start.mode, start.seed
                    )
                )
    return model


def _initialized(layer: layers.Layer, name: str) -> Any:
    """The variable of an initializer: Keras names the two alike, but for separable kernels."""
    names = (name, f"{name}_kernel", *["kernel"] * (name == "depthwise"))
    return next((v for v in (getattr(layer, n, None) for n in names) if v is not None), None)


def _is_uniform(start: Any) -> bool:
    scaling = isinstance(start, keras.initializers.VarianceScaling)
    known = scaling and start.distribution == "uniform" and isinstance(start.seed, int)
    return known and start.input_axes is None


def _numbered(model: keras.Model) -> keras.Model:
    """Numbers the layers that Keras named from the beginning, however many models came before."""
    met: dict[str, int] = {}
    for leaf in costs.leaves(model):
        name = re.sub(r"_\d+$", "", leaf.layer.name)
        if name.replace("_", "") == type(leaf.layer).__name__.lower():
            number = met[name] = met.get(name, -1) + 1
            leaf.layer.name = f"{name}_{number}" if number else name
    return model


def varied(run: Run, model: keras.Model) -> keras.Model:
    """The model without batch normalization, or with some layers in float32, if the run asks so.

    What these experiments leave as it is, weights included, is shared with `model`.

    Raises:
        ModelError: where the model has no such layer.
    """
    named = [name.strip() for name in run.float32_layers.split(",") if name.strip()]
    known = [leaf.layer.name for leaf in costs.leaves(model)]
    unknown = [name for name in named if name not in known]
    if unknown:
        raise ModelError(
            f"float32_layers names {unknown[0]}, which model {run.model} has not; allowed: "
            f"{', '.join(known)}"
        )
    if not named and run.normalization == "batch":
        return model

    def changed(layer: layers.Layer) -> layers.Layer:
        if run.normalization == "none" and isinstance(layer, layers.BatchNormalization):
            return Passed(name=layer.name, dtype=layer.dtype_policy)
        if layer.name not in named:
            return layer
        made = type(layer).from_config(layer.get_config() | {"dtype": "float32"})
        made.build(layer.input.shape)
        made.set_weights(layer.get_weights())
        return made

    return keras.models.clone_model(model, clone_function=changed, recursive=True)


def _seeded(run: Run, shape: tuple[int, int, int], classes: int) -> keras.Model:
    # Keras seeds TensorFlow too where it happens to be installed: seconds and 0.4 GB for nothing
    # under another backend. Keras then takes it for absent as long as the process lives.
    others = nullcontext() if run.backend == "tensorflow" else imports.without("tensorflow")
    with others:
        keras.utils.set_random_seed(run.seed)
    scaled = run.input_mode == "keydana"
    pictures = layers.Input(shape, dtype="float32" if scaled else "uint8")
    x = pictures if scaled else layers.Rescaling(1 / 255)(pictures)
    x = augmented(run, x)
    if keras.config.image_data_format() == "channels_first":
        x = layers.Permute((3, 1, 2))(x)
    if ":" in run.model:
        return keras.Model(pictures, _own(run, x, classes))
    _check_size(run, shape)
    logits = MODELS[run.model](run, x, classes)
    # Probabilities near zero need float32's range, whatever the policy.
    return keras.Model(pictures, layers.Activation("softmax", dtype="float32")(logits))


def augmented(run: Run, x: keras.KerasTensor) -> keras.KerasTensor:
    """The pictures, shape (batch, height, width, channels), changed at random while training.

    The layers compute in float32 and have seeds of their own, so that the random stream is the
    same under every policy. flip mirrors each picture with probability 1/2; crop moves the whole
    batch by up to an eighth of the picture.
    """
    if "flip" in run.augmentation:
        flip = layers.RandomFlip(
            "horizontal", seed=run.seed + 101, data_format="channels_last", dtype="float32"
        )
        x = flip(x)
    if "crop" in run.augmentation:
        x = Crop(max(1, run.image_size // 8), seed=run.seed + 102, dtype="float32")(x)
    return x


class Passed(layers.Layer):
    """Stands where a normalization was left out; takes its arguments and gives its input."""

    def call(self, x: Any, training: bool = False, mask: Any = None) -> Any:
        return x


class Crop(layers.Layer):
    """Pads pictures with zeros and cuts their size out again, at one random place per batch.

    At inference it gives the middle, which is the picture itself. Keras's RandomCrop (3.15) gives
    the padded picture there, in another size, and turns XLA off.
    """

    def __init__(self, padding: int, seed: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.padding = padding
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, pictures: Any, training: bool = False) -> Any:
        if not training:
            return pictures
        edge = (self.padding, self.padding)
        x = ops.pad(pictures, ((0, 0), edge, edge, (0, 0)))
        first = keras.random.randint((2,), 0, 2 * self.padding + 1, seed=self.generator)
        # Not a slice: with a random start TensorFlow's XLA compiles anew at every step.
        for axis in (1, 2):
            x = ops.take(x, first[axis - 1] + ops.arange(pictures.shape[axis]), axis)
        return x


SMALLEST = {"banerjee_cnn": 18, "banerjee_resnet50": 32, "resnet50": 32, "alexnet": 63, "lenet": 16}


def _check_size(run: Run, shape: tuple[int, int, int]) -> None:
    least = SMALLEST.get(run.model, 1)
    if min(shape[:2]) < least:
        raise ModelError(
            f"model {run.model} needs pictures of at least {least} x {least} pixels; these have "
            f"{shape[0]} x {shape[1]}"
        )


# --- the bodies: (run, pictures scaled to 0..1, classes) -> logits ------------------------------


def _scaled(run: Run, count: int) -> int:
    """A number of filters or units, times the width, rounded up to the run's multiple."""
    return -(-max(1, round(count * run.width)) // run.width_multiple) * run.width_multiple


def _batch_norm(run: Run) -> layers.BatchNormalization:
    first = keras.config.image_data_format() == "channels_first"
    return layers.BatchNormalization(1 if first else -1, run.batch_norm_momentum)


def keydana_cnn(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Three strided convolutions with batch normalization, S. Keydana's network.

    1,096,394 parameters at 256 x 256 x 3, 10 classes and width 1. Source: S. Keydana, First
    experiments with TensorFlow mixed-precision training, 2020.
    """
    for filters, kernel in ((32, 5), (64, 7), (128, 11)):
        x = layers.Conv2D(_scaled(run, filters), kernel, 2, "same", activation="relu")(x)
        x = _batch_norm(run)(x)
    x = layers.GlobalAveragePooling2D()(x)
    return layers.Dense(classes)(x)


def banerjee_cnn(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Three convolutions and a large dense layer, A. Banerjee's network for hand signs.

    17,393,627 parameters at 200 x 200 x 1, 27 classes and width 1. Source: A. Banerjee, Profiling
    neural networks to improve model training and inference speed, code of its first part.
    """
    x = layers.Conv2D(_scaled(run, 32), 3, activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(_scaled(run, 64), 3, activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(_scaled(run, 64), 3, activation="relu")(x)
    x = layers.Dropout(0.25)(x)
    x = layers.Flatten()(x)
    x = layers.Dense(_scaled(run, 128), activation="relu")(x)
    x = layers.Dropout(0.5)(x)
    return layers.Dense(classes)(x)


def banerjee_resnet50(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """ResNet-50 with dropout before the last layer, A. Banerjee's second network (see above)."""
    x = layers.Dropout(0.25)(_resnet50(run, x))
    return layers.Dense(classes)(x)


def resnet50(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """ResNet-50 as in keras.applications, without its weights.

    25,636,712 parameters with 3 channels and 1000 classes. Source: K. He, X. Zhang, S. Ren, J. Sun,
    Deep residual learning for image recognition, 2015, arXiv 1512.03385, table 1.
    """
    return layers.Dense(classes)(_resnet50(run, x))


def _resnet50(run: Run, x: keras.KerasTensor) -> keras.KerasTensor:
    _refuse_width(run)
    network = keras.applications.ResNet50(include_top=False, weights=None, input_tensor=x)
    for layer in network.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = run.batch_norm_momentum  # it has no argument for this
    return layers.GlobalAveragePooling2D()(network.output)


def _refuse_width(run: Run) -> None:
    if run.width != 1:
        raise ModelError(f"model {run.model} has no width; width is {run.width:g}, allowed: 1")
    if run.width_multiple != 1:
        raise ModelError(
            f"model {run.model} has widths of its own; width_multiple is {run.width_multiple}, "
            "allowed: 1"
        )


def alexnet(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """AlexNet in one tower.

    61,100,840 parameters at 224 x 224 x 3, 1000 classes and width 1, as torchvision's. Source: A.
    Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014, arXiv
    1404.5997.
    """
    x = layers.ZeroPadding2D(2)(x)
    x = layers.Conv2D(_scaled(run, 64), 11, 4, activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Conv2D(_scaled(run, 192), 5, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    for filters in (384, 256, 256):
        x = layers.Conv2D(_scaled(run, filters), 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(0.5)(x)
        x = layers.Dense(_scaled(run, 4096), activation="relu")(x)
    return layers.Dense(classes)(x)


def mlp(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Two hidden layers of 1000 rectified linear units.

    1,796,010 parameters at 28 x 28 x 1, 10 classes and width 1. Source: S. Gupta, A. Agrawal, K.
    Gopalakrishnan, P. Narayanan, Deep learning with limited numerical precision, 2015, arXiv
    1502.02551, section 4.1.
    """
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dense(_scaled(run, 1000), activation="relu")(x)
    return layers.Dense(classes)(x)


def mlp_bn(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Three hidden layers of 4096 units with batch normalization, BinaryNet's for MNIST.

    36,868,146 parameters at 28 x 28 x 1, 10 classes and width 1. Without the dropout of the
    original, whose loss is the squared hinge. Source: M. Courbariaux, I. Hubara, D. Soudry, R.
    El-Yaniv, Y. Bengio, Binarized neural networks, 2016, arXiv 1602.02830, and its code,
    Train-time/mnist.py.
    """
    x = layers.Flatten()(x)
    for _ in range(3):
        x = _batch_norm(run)(layers.Dense(_scaled(run, 4096))(x))
        x = layers.Activation("relu")(x)
    return _batch_norm(run)(layers.Dense(classes)(x))


def lenet(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Two convolutions with pooling and a dense layer: a network like LeNet.

    37,610 parameters at 28 x 28 x 1, 10 classes and width 1. After S. Gupta et al. (see `mlp`).
    """
    for filters in (8, 16):
        x = layers.Conv2D(_scaled(run, filters), 5, activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dense(_scaled(run, 128), activation="relu")(x)
    return layers.Dense(classes)(x)


MODELS = {
    "keydana_cnn": keydana_cnn,
    "banerjee_cnn": banerjee_cnn,
    "banerjee_resnet50": banerjee_resnet50,
    "resnet50": resnet50,
    "alexnet": alexnet,
    "mlp": mlp,
    "mlp_bn": mlp_bn,
    "lenet": lenet,
}


# --- the user's own model -----------------------------------------------------------------------


def _own(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Probabilities from the model that the user's module:function(shape, classes) returns.

    `shape` is that of a picture in the run's data_format, (height, width, channels) unless Keras is
    told otherwise; values are from 0 to 1. Dropout, momentum and the like are the model's own.
    """
    _refuse_width(run)
    shape = tuple(x.shape[1:])
    call = f"{run.model}({shape}, {classes})"
    try:
        network = _function(run.model)(shape, classes)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"model {call} raised {_said(error)}") from error
    if not isinstance(network, keras.Model):
        raise ModelError(f"model {call} returned {_kind(network)}; it must return a keras.Model")
    try:
        found = network(x)
    except Exception as error:
        raise ModelError(f"model {call} does not take such pictures: {_said(error)}") from error
    _check_output(call, found, classes)
    return found


def _function(name: str) -> Callable[..., Any]:
    """The function that module:function names; the current directory is searched first."""
    module_name, function_name = name.split(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        reason = f"module {module_name} cannot be imported: {_said(error)}"
        raise ModelError(f"model {name}: {reason}") from error
    finally:
        sys.path.remove(here)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ModelError(f"model {name}: module {module_name} has no function {function_name}")
    return function


def _check_output(call: str, found: Any, classes: int) -> None:
    shape = getattr(found, "shape", None)
    if shape != (None, classes):
        told = f"has output {_kind(found)}" if shape is None else f"has output shape {shape}"
        raise ModelError(f"model {call} {told}; it must be (None, {classes})")
    if found.dtype in ("float16", "bfloat16"):
        raise ModelError(
            f"model {call} gives probabilities in {found.dtype}; end it in "
            "Activation('softmax', dtype='float32')"
        )


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _kind(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")


# --- a batch that stays on the device -----------------------------------------------------------


def resident(model: keras.Model, x: np.ndarray, y: np.ndarray) -> keras.Model:
    """The model, reading one batch from the device's memory instead of its input.

    Shows what a step costs without an input path. Every step sees the same pictures: for timing,
    not for learning. It shares the model's weights; compile it, and validate with `model`.

    Args:
        x: pictures, shape (batch, height, width, channels), in the type that the model takes.
        y: labels, shape (batch,).

    Returns:
        A model whose input is a placeholder: uint8 of shape (batch,), whatever its values. `fit`
        needs no labels; those it is given are ignored.
    """
    nothing = layers.Input((), dtype="uint8")
    found = Resident(nothing, model(ResidentBatch(x)(nothing)))
    # int32 would live on the host under TensorFlow. JAX has 64 bits only where they are asked for.
    labels = np.asarray(y, "int32" if keras.backend.backend() == "jax" else "int64")
    found.labels = replicas.constant(labels)
    return found


class ResidentBatch(layers.Layer):
    """Ignores its input and gives the pictures that it holds, to each replica its own part."""

    def __init__(self, x: np.ndarray, **settings: Any) -> None:
        super().__init__(**settings)
        # A variable, for XLA would take a constant for a part of the program.
        self.pictures = replicas.variable(x)

    def call(self, nothing: Any) -> Any:
        return replicas.own(self.pictures)


class Resident(keras.Model):
    """Takes its labels from the device too.

    A constant, not a variable: Keras's JAX trainer empties all variables during `fit` and hands
    the metrics none but their own.
    """

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        return super().compute_loss(x, replicas.own(self.labels), y_pred, sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().compute_metrics(x, replicas.own(self.labels), y_pred, sample_weight)


def fingerprint(model: keras.Model) -> str:
    """12 hex digits of the weights as float32: equal across the policies with float32 variables.

    Pure 16-bit policies begin from the same draw, rounded, and so have another one. The pictures
    of a resident batch do not count: they are no weights.
    """
    digest = hashlib.sha256()
    for weight in filter(costs.is_number, model.weights):
        digest.update(np.asarray(weight.numpy(), "float32").tobytes())
    return digest.hexdigest()[:12]
