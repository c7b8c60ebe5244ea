"""Named model builders. Every head ends in float32, whatever the policy.

Import after `precision.use`: Keras reads its backend when it is imported.
"""

import hashlib

import keras
import numpy as np
from keras import layers

from mptexp.spec import Run


def build(run: Run, shape: tuple[int, int, int], classes: int) -> keras.Model:
    """The run's model with initial weights that depend on the seed alone, not on the policy.

    Args:
        shape: height, width, channels of a picture (uint8 values, 0 to 255).
        classes: number of classes.
    """
    policy = keras.config.dtype_policy()
    weights = None
    if policy.variable_dtype != "float32":
        # A 16-bit draw differs from a rounded 32-bit draw: draw in float32, then round.
        keras.config.set_dtype_policy("float32")
        weights = _seeded(run, shape, classes).get_weights()
        keras.config.set_dtype_policy(policy)
    model = _seeded(run, shape, classes)
    if weights is not None:
        model.set_weights(weights)
    return model


def _seeded(run: Run, shape: tuple[int, int, int], classes: int) -> keras.Model:
    keras.utils.set_random_seed(run.seed)
    return MODELS[run.model](run, shape, classes)


def keydana_cnn(run: Run, shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Three strided convolutions with batch normalization, S. Keydana's network.

    1,096,394 parameters at 256 x 256 x 3, 10 classes and width 1. Source: S. Keydana, First
    experiments with TensorFlow mixed-precision training, 2020.
    """
    model = keras.Sequential([layers.Input(shape, dtype="uint8"), layers.Rescaling(1 / 255)])
    for filters, kernel in ((32, 5), (64, 7), (128, 11)):
        filters = max(1, round(filters * run.width))
        model.add(layers.Conv2D(filters, kernel, 2, "same", activation="relu"))
        model.add(layers.BatchNormalization(momentum=run.batch_norm_momentum))
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(classes))
    model.add(layers.Activation("softmax", dtype="float32"))
    return model


MODELS = {"keydana_cnn": keydana_cnn}


def fingerprint(model: keras.Model) -> str:
    """12 hex digits of the weights as float32: equal across the policies with float32 variables.

    Pure 16-bit policies begin from the same draw, rounded, and so have another one.
    """
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(np.asarray(weight, "float32").tobytes())
    return digest.hexdigest()[:12]
