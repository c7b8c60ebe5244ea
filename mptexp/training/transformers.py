"""The transformers: an image classifier and a decoder of text, and the layers that they need.

Dense layers hold nearly all of their weights, one product each, so that tables of layers, emulated
formats and quantization meet what they know. Attention itself has no weights.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from mptexp.spec.names import POSITIONS
from mptexp.spec.run import Run
from mptexp.training.layers import scaled

HEAD = 64  # features of an attention head, in GPT-2 and in every ViT
DEPTH = 12  # blocks of GPT-2 small, ViT-Ti, ViT-S and ViT-B
STDDEV = 0.02  # of initial weights: GPT-2's, and BERT's before it


def vit(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """ViT with a class token and learned positions: ViT-Ti at width 1, ViT-S at 2, ViT-B at 4.

    5,717,416 parameters at 224 x 224 x 3, patches of 16, 1000 classes and width 1; 22,050,664 at
    width 2. Source: A. Dosovitskiy et al., An image is worth 16x16 words, 2020, arXiv 2010.11929;
    H. Touvron et al., Training data-efficient image transformers, 2020, arXiv 2012.12877, table 1.
    """
    first = keras.config.image_data_format() == "channels_first"
    height, width = x.shape[2:] if first else x.shape[1:3]
    patch, dim = run.patch_size, _features(run, 192)
    x = layers.Conv2D(dim, patch, patch, kernel_initializer=Normal())(x)
    x = layers.Permute((2, 3, 1))(x) if first else x
    x = layers.Reshape((height // patch * (width // patch), dim))(x)
    x = Positions(x.shape[1] + 1)(ClassToken()(x))
    x = _blocks(run, x, causal=False, epsilon=1e-6)
    return layers.Dense(classes, kernel_initializer=Normal())(ClassPlace()(x))


def gpt(run: Run, x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """GPT-2's decoder without dropout: pre-norm, causal attention, learned positions.

    124,439,808 parameters with 50,257 tokens and width 1, GPT-2 small's. With `tied_head` the
    embedding's transpose gives the logits. Source: A. Radford et al., Language models are
    unsupervised multitask learners, 2019, and its code, src/model.py.

    Args:
        run: its sequences are no longer than POSITIONS.
        x: numbers of tokens, shape (batch, time).

    Returns:
        Logits of the next token at each place, shape (batch, time, vocabulary).
    """
    embedding = Vocabulary(
        classes, _features(run, 768), tie_weights=run.tied_head, embeddings_initializer=Normal()
    )
    x = Positions(POSITIONS)(embedding(x))
    return embedding(_blocks(run, x, causal=True, epsilon=1e-5), reverse=True)


def _features(run: Run, count: int) -> int:
    """A number of features times the width: heads of HEAD features, or a single smaller one."""
    features = scaled(run, count)
    unit = math.lcm(HEAD, run.width_multiple)
    return features if features <= HEAD else -(-features // unit) * unit


def _blocks(run: Run, x: keras.KerasTensor, causal: bool, epsilon: float) -> keras.KerasTensor:
    """Attention and a dense pair, each behind a normalization and beside a residual path.

    What ends on the residual path begins smaller, so that its variance does not grow with depth:
    by the root of the number of such ends, as in GPT-2.
    """
    depth, dim = run.depth or DEPTH, x.shape[-1]
    ending = STDDEV / math.sqrt(2 * depth)
    for _ in range(depth):
        y = layers.LayerNormalization(epsilon=epsilon)(x)
        y = layers.Dense(3 * dim, kernel_initializer=Normal())(y)
        y = Attention(max(1, dim // HEAD), causal)(y)
        x = layers.Add()([x, layers.Dense(dim, kernel_initializer=Normal(ending))(y)])
        y = layers.LayerNormalization(epsilon=epsilon)(x)
        y = layers.Dense(4 * dim, kernel_initializer=Normal())(y)
        y = Gelu(approximate=causal)(y)
        x = layers.Add()([x, layers.Dense(dim, kernel_initializer=Normal(ending))(y)])
    return layers.LayerNormalization(epsilon=epsilon)(x)


@keras.saving.register_keras_serializable("mptexp")
class Normal(keras.initializers.TruncatedNormal):
    """A normal distribution cut off at two deviations, drawn in numpy.

    Each backend draws other numbers from a seed of Keras; numpy gives all of them the same.
    """

    def __init__(self, stddev: float = STDDEV, mean: float = 0.0, seed: int | None = None) -> None:
        super().__init__(mean, stddev, seed)

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        random = np.random.default_rng(self.seed)
        values = random.standard_normal(shape, np.float32)
        while (far := np.abs(values) > 2).any():
            values[far] = random.standard_normal(int(far.sum()), np.float32)
        return ops.convert_to_tensor(values * self.stddev + self.mean, dtype)


@keras.saving.register_keras_serializable("mptexp")
class Vocabulary(layers.ReversibleEmbedding):
    """The embedding of tokens and, in reverse, the product that gives their logits.

    In the compute dtype: under a mixed policy Keras's own (3.15) multiplies in float32, because an
    embedding keeps its weights from being cast.
    """

    def __init__(self, *sizes: int, **settings: Any) -> None:
        super().__init__(*sizes, **settings | {"reverse_dtype": None})
        self.reverse_dtype = self.compute_dtype


class Attention(layers.Layer):
    """Softmax attention: queries, keys and values of all heads, side by side, shape (..., 3 dim).

    Not keras.layers.MultiHeadAttention, whose four products would be one layer in every table.
    """

    def __init__(self, heads: int, causal: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self.heads, self.causal = heads, causal

    def call(self, x: Any) -> Any:
        time, dim = x.shape[1], x.shape[2] // 3
        parts = ops.split(ops.reshape(x, (-1, time, 3 * self.heads, dim // self.heads)), 3, axis=2)
        return ops.reshape(
            ops.dot_product_attention(*parts, is_causal=self.causal), (-1, time, dim)
        )

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"heads": self.heads, "causal": self.causal}


class Gelu(layers.Layer):
    """The Gaussian error linear unit, with or without its approximation by tanh."""

    def __init__(self, approximate: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self.approximate = approximate

    def call(self, x: Any) -> Any:
        return ops.gelu(x, approximate=self.approximate)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"approximate": self.approximate}


class Positions(layers.Layer):
    """Adds a learned vector to each place of a sequence that has at most so many."""

    def __init__(self, places: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.places = places

    def build(self, shape: Any) -> None:
        self.positions = self.add_weight((self.places, shape[-1]), Normal(), name="positions")

    def call(self, x: Any) -> Any:
        return x + self.positions[: x.shape[1]]

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"places": self.places}


class ClassToken(layers.Layer):
    """Puts a learned vector in front of a sequence; the image's class is read from its place."""

    def build(self, shape: Any) -> None:
        self.token = self.add_weight((1, 1, shape[-1]), Normal(), name="token")

    def call(self, x: Any) -> Any:
        token = ops.tile(ops.cast(self.token, x.dtype), (ops.shape(x)[0], 1, 1))
        return ops.concatenate([token, x], axis=1)


class ClassPlace(layers.Layer):
    """What stands in the place of the class token."""

    def call(self, x: Any) -> Any:
        return x[:, 0]
