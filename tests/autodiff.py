"""Gradients and compiled functions under the backend that is running."""

import keras
import numpy as np
from keras import ops

BACKEND = keras.backend.backend()


def gradient(function, x):
    """Of the sum of a function of an array times 1, 2, 3, ..., with respect to the array."""
    weights = np.arange(1, x.size + 1, dtype=np.float32)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        x = tf.Variable(x)
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(function(x) * weights)
        return tape.gradient(y, x)
    if BACKEND == "jax":
        import jax

        return np.asarray(jax.grad(lambda x: (function(x) * weights).sum())(x))
    x = ops.convert_to_tensor(x).requires_grad_()
    (function(x) * ops.convert_to_tensor(weights)).sum().backward()
    return x.grad


def compiled(function):
    """A function compiled as the backend does it for training; PyTorch does not."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    return function
