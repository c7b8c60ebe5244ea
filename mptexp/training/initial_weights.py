"""TensorFlow's uniform random numbers in numpy: every backend begins from the same weights.

Keras gives each initializer a seed that does not depend on the backend, but each backend draws
other numbers from it: of GlorotUniform(seed=42), TensorFlow's first number is -0.403, JAX's 0.124.
Frameworks are compared from the same start, and TensorFlow's draw is the one of plain Keras.
numpy's own Philox works on words of 64 bits and gives other numbers. For ResNet-50's 25.6 million
weights the draw takes 0.8 s on two cores.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011
(Philox 4x32-10), with the key that tf.random.stateless_uniform derives.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from mptexp.training.backends import current

ROUNDS = 10
FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
STEPS = 0x9E3779B9, 0xBB67AE85
KEY = 0x3EC8F720, 0x02461E29  # under which TensorFlow scrambles a seed
LOW = np.uint64(0xFFFFFFFF)
AT_ONCE = 2**20  # blocks of four numbers: more would cost memory


def drawn(model: keras.Model, may_load: bool) -> keras.Model:
    """The model, whose kernels of uniform initializers are as TensorFlow draws them.

    What has another initializer keeps the backend's own draw.

    Args:
        may_load: whether it may have loaded trained weights, as one of a user's may: then a kernel
            is drawn once more, and one that does not hold that draw keeps its values.
    """
    if current().DRAWS_AS_TENSORFLOW:
        return model
    for layer in model._flatten_layers(include_self=False):
        for name, start in list(vars(layer).items()):
            kernel = _initialized(layer, name.removesuffix("_initializer"))
            if not (_is_uniform(start) and isinstance(kernel, keras.Variable)):
                continue
            if not may_load or _holds(kernel, start):
                kernel.assign(glorot_uniform(kernel.shape, start.scale, start.mode, start.seed))
    return model


def _initialized(layer: keras.Layer, name: str) -> Any:
    """The variable of an initializer: Keras names the two alike, but for separable kernels."""
    names = (name, f"{name}_kernel", *["kernel"] * (name == "depthwise"))
    return next((v for v in (getattr(layer, n, None) for n in names) if v is not None), None)


def _holds(kernel: keras.Variable, start: Any) -> bool:
    """Whether a variable is as its initializer drew it, but for what a compiler rounds."""
    again = keras.ops.convert_to_numpy(start(kernel.shape))
    return np.allclose(keras.ops.convert_to_numpy(kernel), again, atol=1e-6)


def _is_uniform(start: Any) -> bool:
    scaling = isinstance(start, keras.initializers.VarianceScaling)
    known = scaling and start.distribution == "uniform" and isinstance(start.seed, int)
    return known and start.input_axes is None


def glorot_uniform(shape: Sequence[int], scale: float, mode: str, seed: int) -> np.ndarray:
    """What a keras.initializers.VarianceScaling of uniform distribution draws under TensorFlow.

    Args:
        shape: of a kernel; its two last axes are inputs and outputs.
        mode: fan_in, fan_out or fan_avg.

    Returns:
        float32 of that shape, to the last bit TensorFlow's.
    """
    places = math.prod(shape[:-2])
    fans = {"fan_in": places * shape[-2], "fan_out": places * shape[-1]}
    fan = fans.get(mode, sum(fans.values()) / 2)
    limit = math.sqrt(3 * scale / max(1.0, fan))
    low, high = np.float32(-limit), np.float32(limit)
    return (_uniform(math.prod(shape), seed) * (high - low) + low).reshape(shape)


def _uniform(count: int, seed: int) -> np.ndarray:
    """tf.random.stateless_uniform([count], [seed, 0]), float32 in [0, 1)."""
    seed %= 2**31 - 2  # as Keras does
    key_low, key_high, *rest = map(int, _philox([seed, 0, 0, 0], KEY))
    blocks = -(-count // 4)
    parts = []
    for first in range(0, blocks, AT_ONCE):
        index = np.arange(first, min(first + AT_ONCE, blocks), dtype=np.uint64)
        words = _philox([index, 0, *rest], (key_low, key_high))
        parts.append(np.stack([word.astype(np.uint32) for word in words], -1).ravel())
    bits = np.concatenate(parts)[:count] & np.uint32(2**23 - 1)
    return (bits | np.uint32(127 << 23)).view(np.float32) - np.float32(1)


def _philox(counter: Sequence[int | np.ndarray], key: tuple[int, int]) -> list[np.ndarray]:
    """Four words of 32 bits for each counter of four words, held in 64 bits."""
    a, b, c, d = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    for turn in range(ROUNDS):
        first, second = (np.uint64((k + turn * s) % 2**32) for k, s in zip(key, STEPS, strict=True))
        ab, cd = a * FACTORS[0], c * FACTORS[1]
        shift = np.uint64(32)
        a, b, c, d = (cd >> shift) ^ b ^ first, cd & LOW, (ab >> shift) ^ d ^ second, ab & LOW
    return [a, b, c, d]
