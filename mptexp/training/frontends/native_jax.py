"""Plain JAX: pure functions of weights under `jax.jit`, types cast as jmp does.

Weights are float32; a step casts them and the images to the policy's compute type, all but those of
normalizations, which compute in float32, and takes the loss in float32. Source of the way of
casting and of scaling the loss: google-deepmind/jmp.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mptexp.training.backends import jax as backend
from mptexp.training.backends.shared_verbs import Products
from mptexp.training.frontends import Scale
from mptexp.training.frontends.loop import Batch, Recipe
from mptexp.training.frontends.network import Network

Weights = dict[str, dict[str, Any]]  # layer -> name -> array
Others = dict[tuple[str, str], Any]  # (layer, name) -> array, of weights that are not trained
State = dict[str, Any]


# --- the network: a row per kind of layer ---------------------------------------------------------


class Pass:
    """What a layer sees of a pass beside its weights and inputs.

    Attributes:
        training: whether dropout drops and batch normalization takes the statistics of the batch.
        key: of what is drawn at random in this pass.
        moved: layer -> the new moving averages.
    """

    def __init__(self, training: bool, key: Any) -> None:
        self.training, self.key = training, key
        self.moved: Weights = {}


def _activated(layer: Any, y: Any) -> Any:
    return jax.nn.relu(y) if layer.activation.__name__ == "relu" else y


def _conv(layer: Any, w: dict[str, Any], _: Pass, x: Any) -> Any:
    y = lax.conv_general_dilated(
        x,
        w["kernel"],
        layer.strides,
        layer.padding.upper(),
        rhs_dilation=layer.dilation_rate,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=layer.groups,
    )
    return _activated(layer, y + w["bias"] if layer.use_bias else y)


def _dense(layer: Any, w: dict[str, Any], _: Pass, x: Any) -> Any:
    y = x @ w["kernel"]
    return _activated(layer, y + w["bias"] if layer.use_bias else y)


def _batch_norm(layer: Any, w: dict[str, Any], now: Pass, x: Any) -> Any:
    wide = x.astype("float32")
    mean, variance = w["moving_mean"], w["moving_variance"]
    if now.training:
        axes = tuple(range(x.ndim - 1))
        moving, kept = (mean, variance), layer.momentum
        mean, variance = wide.mean(axes), wide.var(axes)
        pairs = zip(moving, lax.stop_gradient((mean, variance)), strict=True)
        new = [old * kept + value * (1 - kept) for old, value in pairs]
        now.moved[layer.name] = dict(zip(("moving_mean", "moving_variance"), new, strict=True))
    scale = lax.rsqrt(variance + layer.epsilon) * w.get("gamma", 1.0)
    return ((wide - mean) * scale + w.get("beta", 0.0)).astype(x.dtype)


def _layer_norm(layer: Any, w: dict[str, Any], _: Pass, x: Any) -> Any:
    wide = x.astype("float32")
    mean, variance = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    scale = lax.rsqrt(variance + layer.epsilon) * w.get("gamma", 1.0)
    return ((wide - mean) * scale + w.get("beta", 0.0)).astype(x.dtype)


def _vocabulary(layer: Any, w: dict[str, Any], _: Pass, x: Any) -> Any:
    """Features of tokens, or logits of features."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        return w["embeddings"][x]
    return x @ (w["embeddings"].T if layer.tie_weights else w["reverse_embeddings"])


def _attention(layer: Any, w: dict[str, Any], _: Pass, x: Any) -> Any:
    batch, time, width = x.shape
    heads = x.reshape(batch, time, 3 * layer.heads, width // 3 // layer.heads)
    parts = jnp.split(heads, 3, axis=2)
    return jax.nn.dot_product_attention(*parts, is_causal=layer.causal).reshape(batch, time, -1)


def _class_token(layer: Any, w: dict[str, Any], _: Pass, x: Any) -> Any:
    return jnp.concatenate([jnp.tile(w["token"], (len(x), 1, 1)), x], axis=1)


def _max_pool(layer: Any, w: dict[str, Any], _: Pass, x: Any) -> Any:
    window, strides = ((1, *pair, 1) for pair in (layer.pool_size, layer.strides))
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, layer.padding.upper())


def _dropout(layer: Any, w: dict[str, Any], now: Pass, x: Any) -> Any:
    if not now.training or not layer.rate:
        return x
    now.key, key = jax.random.split(now.key)
    kept = jax.random.bernoulli(key, 1 - layer.rate, x.shape)
    return jnp.where(kept, x / (1 - layer.rate), 0)


ROWS: dict[str, Callable[..., Any]] = {
    "Rescaling": lambda layer, w, now, x: x * layer.scale + layer.offset,
    "Conv2D": _conv,
    "Dense": _dense,
    "BatchNormalization": _batch_norm,
    "Activation": lambda layer, w, now, x: _activated(layer, x),
    "ReLU": lambda layer, w, now, x: jax.nn.relu(x),
    "MaxPooling2D": _max_pool,
    "GlobalAveragePooling2D": lambda layer, w, now, x: x.mean((1, 2)),
    "ZeroPadding2D": lambda layer, w, now, x: jnp.pad(x, ((0, 0), *layer.padding, (0, 0))),
    "Dropout": _dropout,
    "Flatten": lambda layer, w, now, x: x.reshape(len(x), -1),
    "Add": lambda layer, w, now, *inputs: sum(inputs[1:], inputs[0]),
    "LayerNormalization": _layer_norm,
    "Reshape": lambda layer, w, now, x: x.reshape(len(x), *layer.target_shape),
    "Vocabulary": _vocabulary,
    "Positions": lambda layer, w, now, x: x + w["positions"][: x.shape[1]],
    "ClassToken": _class_token,
    "ClassPlace": lambda layer, w, now, x: x[:, 0],
    "Attention": _attention,
    "Gelu": lambda layer, w, now, x: jax.nn.gelu(x, approximate=layer.approximate),
    "Passed": lambda layer, w, now, x: x,
}


def logits(network: Network, weights: Weights, now: Pass, x: Any) -> Any:
    """What the network gives for tokens, or for images that have the compute type already."""
    tensors = {0: x}
    for node in network.nodes:
        row, inputs = ROWS[type(node.layer).__name__], (tensors[place] for place in node.inputs)
        tensors[node.output] = row(node.layer, weights.get(node.layer.name, {}), now, *inputs)
    return tensors[network.logits]


# --- optimizers: (settings of Keras's, rate, gradients, slots, weights, step) -> slots, weights ---


def _adam(
    keras: Any, rate: Any, gradients: Any, slots: Any, weights: Any, step: Any
) -> tuple[Any, Any]:
    first, second = slots
    b1, b2 = keras.beta_1, keras.beta_2
    first = jax.tree.map(lambda m, g: m + (g - m) * (1 - b1), first, gradients)
    second = jax.tree.map(lambda v, g: v + (g * g - v) * (1 - b2), second, gradients)
    count = step.astype("float32") + 1
    alpha = rate * jnp.sqrt(1 - b2**count) / (1 - b1**count)
    moved = jax.tree.map(
        lambda w, m, v: w - m * alpha / (jnp.sqrt(v) + keras.epsilon), weights, first, second
    )
    return (first, second), moved


def _sgd(
    keras: Any, rate: Any, gradients: Any, slots: Any, weights: Any, step: Any
) -> tuple[Any, Any]:
    kept, (speed,) = keras.momentum, slots
    speed = jax.tree.map(lambda v, g: v * kept - g * rate, speed, gradients)
    moved = jax.tree.map(lambda w, v, g: w + v * kept - g * rate, weights, speed, gradients)
    return (speed,), moved


OPTIMIZERS = {"Adam": (_adam, 2), "SGD": (_sgd, 1)}  # and how many slots each has


def _clipped(gradients: list[Any], most: float) -> list[Any]:
    norm = jnp.sqrt(sum((g * g).sum() for g in gradients))
    return [g * (most / jnp.maximum(norm, most)) for g in gradients]


# --- training -------------------------------------------------------------------------------------


class Trained:
    """See loop.Native. All that a step changes is one tree of arrays, passed from step to step."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.update, slots = OPTIMIZERS[type(recipe.optimizer).__name__]
        layers = [node.layer for node in recipe.network.nodes]
        paths = {id(w): (layer.name, w.name) for layer in layers for w in layer.weights}
        self.trained = [paths[id(w)] for w in recipe.trained]
        self.order = [paths[id(w)] for w in recipe.weights]
        # Copies where it trains: a step gives its arrays' memory to those that take their places.
        known = {paths[id(w)]: jnp.array(w.value, copy=recipe.trains) for w in recipe.weights}
        weights = [known[path] for path in self.trained]
        scale = recipe.dynamic.initial_scale if recipe.dynamic else 1.0
        self.state: State = {
            "weights": weights,
            "others": {path: known[path] for path in self.order if path not in self.trained},
            "slots": tuple(
                [jnp.zeros_like(w) for w in weights] for _ in range(slots * recipe.trains)
            ),
            "applied": jnp.int32(0),
            "scale": jnp.float32(scale),
            "since": jnp.int32(0),  # steps since the scale changed
            "key": jax.random.key(recipe.run.seed),
            "loss": jnp.float32(0),
            "hits": jnp.int32(0),
        }
        self.jit = recipe.run.jit != "off"
        compiled = partial(jax.jit, donate_argnums=0) if self.jit else lambda function: function
        self._step, self._look = compiled(self._stepped), compiled(self._looked)
        self._predict = jax.jit(self._predicted) if self.jit else self._predicted
        self.given: Any = None  # what was predicted last

    def put(self, x: np.ndarray, y: np.ndarray) -> Batch:
        return jax.device_put((x, y.astype("int32")))

    def examples(self, x: np.ndarray) -> Any:
        return jax.device_put(x)

    def predict(self, x: Any) -> Any:
        self.given = self._predict(self.state["weights"], self.state["others"], x)
        return self.given

    def fetched(self, given: Any) -> np.ndarray:
        return np.asarray(given)

    def step(self, x: Any, y: Any) -> None:
        self.state = self._step(self.state, x, y)

    def look(self, x: Any, y: Any) -> Any:
        self.state, kept = self._look(self.state, x, y)
        return kept

    def totals(self) -> tuple[float, float]:
        loss, hits = float(self.state["loss"]), float(self.state["hits"])
        self.state |= {"loss": jnp.float32(0), "hits": jnp.int32(0)}
        return loss, hits

    def gradients(self, x: Any, y: Any) -> tuple[float, list[np.ndarray]]:
        differentiated = jax.jit(self._differentiated) if self.jit else self._differentiated
        (_, (loss, *_)), gradients = differentiated(self.state, x, y)
        return float(loss), [np.asarray(g / self.state["scale"]) for g in gradients]

    def products(self, x: Any, y: Any) -> Products:
        if not self.recipe.trains:
            known = self.state["weights"], self.state["others"]
            return backend.traced_products(self._predicted, *known, x)
        return backend.traced_products(lambda *a: self._differentiated(*a)[1], self.state, x, y)

    def scale(self) -> Scale | None:
        if not self.recipe.dynamic:
            return None
        return float(self.state["scale"]), int(self.state["applied"])

    def settings(self) -> dict[str, Any]:
        types = sorted({str(w.dtype) for w in self.state["weights"]})
        compute_dtype = self.recipe.compute_dtype
        return {"compute_dtype": compute_dtype, "variable_dtype": types[0], "jit": self.jit}

    def weights(self) -> list[np.ndarray]:
        known = dict(zip(self.trained, self.state["weights"], strict=True)) | self.state["others"]
        return [np.asarray(known[path]) for path in self.order]

    def synchronize(self) -> None:
        jax.block_until_ready((self.state, self.given))

    def _logits(self, trained: list[Any], others: Others, now: Pass, x: Any) -> Any:
        """In float32, from weights in float32 and examples as they are."""
        known = dict(zip(self.trained, trained, strict=True)) | others
        normalizing = {n.layer.name for n in self.recipe.network.nodes if _normalizes(n.layer)}
        weights: Weights = {}
        for (layer, name), value in known.items():
            narrow = value if layer in normalizing else value.astype(self.recipe.compute_dtype)
            weights.setdefault(layer, {})[name] = narrow
        x = x if self.recipe.sequences else x.astype(self.recipe.compute_dtype)
        return logits(self.recipe.network, weights, now, x).astype("float32")

    def _predicted(self, trained: list[Any], others: Others, x: Any) -> Any:
        return jax.nn.softmax(self._logits(trained, others, Pass(False, None), x))

    def _losses(self, trained: list[Any], state: State, now: Pass, x: Any, y: Any) -> tuple:
        """The loss of each label, and the class that is given in its place."""
        given = self._logits(trained, state["others"], now, x)
        right = jnp.take_along_axis(jax.nn.log_softmax(given), y[..., None], -1)
        return -right[..., 0], given.argmax(-1)

    def _differentiated(self, state: State, x: Any, y: Any) -> tuple[tuple, list[Any]]:
        """The scaled loss with what it computed on the way, and the gradients of it."""

        def scaled(trained: list[Any]) -> tuple[Any, tuple]:
            now = Pass(True, state["key"])
            losses, classes = self._losses(trained, state, now, x, y)
            loss = losses.mean()
            return loss * state["scale"], (loss, classes, now.moved, now.key)

        return jax.value_and_grad(scaled, has_aux=True)(state["weights"])

    def _stepped(self, state: State, x: Any, y: Any) -> State:
        (_, (loss, classes, moved, key)), gradients = self._differentiated(state, x, y)
        others = state["others"].items()
        others = {(layer, name): moved.get(layer, {}).get(name, w) for (layer, name), w in others}
        state = self._counted(state, loss, classes, y) | {"others": others, "key": key}
        if not self.recipe.dynamic:
            return self._updated(state, gradients)
        gradients = [g / state["scale"] for g in gradients]
        finite = jnp.stack([jnp.isfinite(g).all() for g in gradients]).all()
        state = lax.cond(finite, self._updated, lambda state, _: state, state, gradients)
        return state | self._rescaled(state, finite)

    def _updated(self, state: State, gradients: list[Any]) -> State:
        recipe, done = self.recipe, state["applied"]
        if recipe.run.clip_norm:
            gradients = _clipped(gradients, recipe.run.clip_norm)
        rate, slots, weights = recipe.rate_at(done, jnp), state["slots"], state["weights"]
        slots, weights = self.update(recipe.optimizer, rate, gradients, slots, weights, done)
        return state | {"slots": slots, "weights": weights, "applied": done + 1}

    def _rescaled(self, state: State, finite: Any) -> State:
        """Half the scale after a step that was skipped, twice it after so many that were not."""
        scale, since = state["scale"], state["since"] + 1
        grows = since == self.recipe.dynamic.dynamic_growth_steps
        scale = jnp.where(finite, jnp.where(grows, scale * 2, scale), scale / 2)
        return {"scale": scale, "since": jnp.where(finite & ~grows, since, 0)}

    def _looked(self, state: State, x: Any, y: Any) -> tuple[State, Any]:
        losses, classes = self._losses(state["weights"], state, Pass(False, None), x, y)
        kept = losses.mean(1) if self.recipe.sequences else classes
        return self._counted(state, losses.mean(), classes, y), kept

    def _counted(self, state: State, loss: Any, classes: Any, y: Any) -> State:
        hits = state["hits"] + (classes == y).sum()
        return state | {"loss": state["loss"] + loss * len(y), "hits": hits}


def _normalizes(layer: Any) -> bool:
    return type(layer).__name__ in ("BatchNormalization", "LayerNormalization")
