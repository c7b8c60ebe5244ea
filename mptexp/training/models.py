"""The named networks, and how a run's model is built from one of them or from the user's own.

A built-in network is a function here and a name in `spec`. Import this after `precision.use`: Keras
reads its backend when it is imported.
"""

import hashlib
import re
from collections.abc import Callable

import keras
import numpy as np
from keras import layers

from mptexp.spec import names
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.training import costs, initial_weights, quantized_layers, task_models, user_model
from mptexp.training.backends import backend
from mptexp.training.layers import ModelError, scaled, varied
from mptexp.training.numerics import emulation
from mptexp.training.transformers import gpt as gpt
from mptexp.training.transformers import vit as vit

Network = Callable[[Run, keras.KerasTensor, int], keras.KerasTensor]


def build(run: Run, shape: tuple[int, ...], classes: int) -> keras.Model:
    """The run's model with initial weights that depend on the seed alone, not on the policy.

    Nor on the backend, where all weights come from Keras's default initializers: see
    initial_weights.py.

    Images enter channels last; with data_format channels_first the model transposes them once,
    behind the augmentation. Channels first runs on a CPU under every backend, except float16 on
    TensorFlow without XLA, which has no gradient of a convolution there (`precision.use` says so).
    TensorFlow's CPU pools channels last in any case, between two transpositions.

    Args:
        shape: height, width, channels of an image; uint8 values from 0 to 255, or with input_mode
            keydana float32 values from 0 to 1. Of a text, the tokens of a sequence.
        classes: number of classes, or of tokens.

    Raises:
        ModelError: where the model does not fit the images or cannot be made.
    """
    policy, data_format = keras.config.dtype_policy(), keras.config.image_data_format()
    if run.data_format != "auto":
        keras.config.set_image_data_format(run.data_format)
    try:
        model = varied(run, _numbered(_rounded(run, policy, shape, classes)))
        _check_formats(run, model)
        model = emulation.emulated(run, model)
        later = POLICY_ROWS[run.policy].inference_only  # see quantize_after_training
        return model if later else quantized_layers.quantized(run, model)
    finally:
        keras.config.set_dtype_policy(policy)
        keras.config.set_image_data_format(data_format)


def _rounded(
    run: Run, policy: keras.DTypePolicy, shape: tuple[int, ...], classes: int
) -> keras.Model:
    """The model as drawn in float32, its weights rounded to the policy's variable dtype."""
    if policy.variable_dtype == "float32":
        return initial_weights.drawn(_seeded(run, shape, classes), ":" in run.model)
    # A 16-bit draw differs from a rounded 32-bit draw.
    keras.config.set_dtype_policy("float32")
    first = initial_weights.drawn(_seeded(run, shape, classes), ":" in run.model)
    weights = first.get_weights()
    keras.config.set_dtype_policy(policy)
    model = _seeded(run, shape, classes)
    model.set_weights(weights)
    return model


def _seeded(run: Run, shape: tuple[int, ...], classes: int) -> keras.Model:
    """The model from its examples to probabilities, as Keras draws it from the run's seed."""
    backend(run.backend).set_seed(run.seed)
    inputs, x = task_models.of(run).entry(run, shape)
    if ":" in run.model:
        return keras.Model(inputs, user_model.probabilities(run, x, classes))
    logits = MODELS[run.model](run, x, classes)
    # Probabilities near zero need float32's range, whatever the policy.
    return keras.Model(inputs, layers.Activation("softmax", dtype="float32")(logits))


def _numbered(model: keras.Model) -> keras.Model:
    """Numbers the layers that Keras named from the beginning, however many models came before."""
    met: dict[str, int] = {}
    for leaf in costs.leaves(model):
        name = re.sub(r"_\d+$", "", leaf.layer.name)
        if name.replace("_", "") == type(leaf.layer).__name__.lower():
            number = met[name] = met.get(name, -1) + 1
            leaf.layer.name = f"{name}_{number}" if number else name
    return model


def _check_formats(run: Run, model: keras.Model) -> None:
    """Refuses emulated formats that the model cannot have.

    Raises:
        ModelError: where a layer would need a range for each of its uses, or takes several inputs;
            where a part of the model would stay float32, or its probabilities would not.
    """
    calls = [call for call in costs.calls(model) if getattr(call.layer, "weights", None)]
    used = [call.layer for call in calls]
    twice = [layer.name for layer in used if used.count(layer) > 1]
    if twice and run.propagation.startswith("dynamic"):
        raise ModelError(
            f"model {run.model} uses {twice[0]} more than once, and {run.propagation} has one "
            "range per layer; take another propagation"
        )
    if wide := emulation.without_signs(run, model):
        raise ModelError(
            f"propagation binary: the activation {wide} in model {run.model} is a layer of its "
            "own, whose output would stay float32; give it as a layer's activation, or take "
            "another propagation"
        )
    several = [call.layer.name for call in calls if len(call.inputs) > 1]
    if several and run.propagation != "policy":
        raise ModelError(
            f"{several[0]} in model {run.model} takes several inputs, and propagation "
            f"{run.propagation} is emulated for layers of one; take propagation policy"
        )
    if why := emulation.unreached(run, model, [call.layer for call in costs.calls(model)]):
        raise ModelError(
            f"propagation {run.propagation} cannot be emulated in model {run.model}: {why}, or "
            "take propagation policy"
        )


def fingerprint(model: keras.Model) -> str:
    """12 hex digits of the weights as float32: equal across the policies with float32 variables.

    Pure 16-bit policies begin from the same draw, rounded, and so have another one. The images of
    a resident batch do not count: they are no weights.
    """
    digest = hashlib.sha256()
    for weight in filter(costs.is_weight, model.weights):
        digest.update(np.asarray(weight.numpy(), "float32").tobytes())
    return digest.hexdigest()[:12]


# --- built-in networks: (run, images in [0, 1], classes) -> logits -------------------------------


def _batch_norm(run: Run) -> layers.BatchNormalization:
    first = keras.config.image_data_format() == "channels_first"
    return layers.BatchNormalization(1 if first else -1, run.batch_norm_momentum)


def keydana_cnn(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Three strided convolutions with batch normalization, S. Keydana's network.

    1,096,394 parameters at 256 x 256 x 3, 10 classes and width 1. Source: S. Keydana, First
    experiments with TensorFlow mixed-precision training, 2020.
    """
    for filters, kernel in ((32, 5), (64, 7), (128, 11)):
        x = layers.Conv2D(scaled(run, filters), kernel, 2, "same", activation="relu")(x)
        x = _batch_norm(run)(x)
    x = layers.GlobalAveragePooling2D()(x)
    return layers.Dense(classes)(x)


def banerjee_cnn(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Three convolutions and a large dense layer, A. Banerjee's network for hand signs.

    17,393,627 parameters at 200 x 200 x 1, 27 classes and width 1. Source: A. Banerjee, Profiling
    neural networks to improve model training and inference speed, code of its first part.
    """
    x = layers.Conv2D(scaled(run, 32), 3, activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(scaled(run, 64), 3, activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(scaled(run, 64), 3, activation="relu")(x)
    x = layers.Dropout(0.25)(x)
    x = layers.Flatten()(x)
    x = layers.Dense(scaled(run, 128), activation="relu")(x)
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
    network = keras.applications.ResNet50(include_top=False, weights=None, input_tensor=x)
    for layer in network.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = run.batch_norm_momentum  # it has no argument for this
    return layers.GlobalAveragePooling2D()(network.output)


def alexnet(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """AlexNet in one tower.

    61,100,840 parameters at 224 x 224 x 3, 1000 classes and width 1, as torchvision's. Source: A.
    Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014, arXiv
    1404.5997.
    """
    x = layers.ZeroPadding2D(2)(x)
    x = layers.Conv2D(scaled(run, 64), 11, 4, activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Conv2D(scaled(run, 192), 5, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    for filters in (384, 256, 256):
        x = layers.Conv2D(scaled(run, filters), 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(0.5)(x)
        x = layers.Dense(scaled(run, 4096), activation="relu")(x)
    return layers.Dense(classes)(x)


def mlp(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Two hidden layers of 1000 rectified linear units.

    1,796,010 parameters at 28 x 28 x 1, 10 classes and width 1. Source: S. Gupta, A. Agrawal, K.
    Gopalakrishnan, P. Narayanan, Deep learning with limited numerical precision, 2015, arXiv
    1502.02551, section 4.1.
    """
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dense(scaled(run, 1000), activation="relu")(x)
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
        x = _batch_norm(run)(layers.Dense(scaled(run, 4096))(x))
        x = layers.Activation("relu")(x)
    return _batch_norm(run)(layers.Dense(classes)(x))


def mlp_sigmoid(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Six hidden layers of 1000 logistic units, without normalization.

    5,800,010 parameters at 28 x 28 x 1, 10 classes and width 1. A logistic unit passes on at most a
    quarter of its gradient, so that gradients shrink from layer to layer. After X. Glorot, Y.
    Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010, with up
    to five such layers; their normalized initialization is Keras's default.
    """
    x = layers.Flatten()(x)
    for _ in range(6):
        x = layers.Dense(scaled(run, 1000), activation="sigmoid")(x)
    return layers.Dense(classes)(x)


def lenet(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Two convolutions with pooling and a dense layer: a network like LeNet.

    37,610 parameters at 28 x 28 x 1, 10 classes and width 1. After S. Gupta et al. (see `mlp`).
    """
    for filters in (8, 16):
        x = layers.Conv2D(scaled(run, filters), 5, activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dense(scaled(run, 128), activation="relu")(x)
    return layers.Dense(classes)(x)


# The functions above by the names that a params file may give: a name without one fails here.
MODELS: dict[str, Network] = {name: globals()[name] for name in names.MODELS}
