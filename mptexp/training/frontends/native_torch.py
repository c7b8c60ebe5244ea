"""Plain PyTorch: `torch.autocast`, `torch.amp.GradScaler`, eager or `torch.compile`.

Weights are float32; autocast chooses the type of each operation by PyTorch's own lists, so that the
sums along a transformer's residual path stay float32. Images keep their layout, channels last,
which PyTorch calls a memory format; kernels have it too.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mptexp.training.backends import torch as backend
from mptexp.training.backends.shared_verbs import Products
from mptexp.training.frontends import Scale
from mptexp.training.frontends.loop import Batch, Recipe
from mptexp.training.frontends.network import Network

# Axes of Keras's kernels in PyTorch's order, and of PyTorch's in Keras's; other weights have one.
TO_TORCH, TO_KERAS = {4: (3, 2, 0, 1), 2: (1, 0)}, {4: (2, 3, 1, 0), 2: (1, 0)}

# --- the network: a module per kind of layer ------------------------------------------------------


class Same(nn.Module):
    """Pads as Keras's `same` does: one more behind than before, where it is odd."""

    def __init__(self, kernel: Any, strides: Any, dilation: Any, value: float = 0.0) -> None:
        super().__init__()
        self.spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        self.strides, self.value = tuple(strides), value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        edges: list[int] = []
        for size, span, stride in zip(x.shape[2:], self.spans, self.strides, strict=True):
            total = max((math.ceil(size / stride) - 1) * stride + span - size, 0)
            edges = [total // 2, total - total // 2, *edges]  # the last axis comes first
        return functional.pad(x, edges, value=self.value) if any(edges) else x


class Function(nn.Module):
    """A layer that has no weights."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    """Images as Keras orders them for the layer that follows."""
    return x.permute(0, 2, 3, 1) if x.dim() == 4 else x


def _shaped(layer: Any) -> nn.Module:
    shape = tuple(layer.target_shape)

    def shaped(x: torch.Tensor) -> torch.Tensor:
        x = _channels_last(x).reshape(len(x), *shape)
        return x.permute(0, 3, 1, 2) if x.dim() == 4 else x

    return Function(shaped)


def _rescaled(layer: Any) -> nn.Module:
    """Integers as float32; autocast casts them where it needs to."""
    scale, offset = layer.scale, layer.offset
    return Function(lambda x: x.float() * scale + offset)


class Vocabulary(nn.Module):
    """Features of tokens, or logits of features."""

    def __init__(self, tokens: int, features: int, tied: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(tokens, features))
        self.reverse = None if tied else nn.Parameter(torch.empty(features, tokens))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return functional.embedding(x, self.weight)
        return functional.linear(x, self.weight) if self.reverse is None else x @ self.reverse


class Positions(nn.Module):
    """Adds a learned vector to each place."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight[: x.shape[1]]


class ClassToken(Positions):
    """Puts a learned vector in front of a sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.weight.expand(len(x), -1, -1), x], 1)


class Attention(nn.Module):
    """Softmax attention of heads whose queries, keys and values lie side by side."""

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
        return y.transpose(1, 2).flatten(2)


def _activated(layer: Any, *modules: nn.Module) -> nn.Module:
    named = getattr(layer, "activation", None)
    relu = [nn.ReLU()] if named is not None and named.__name__ == "relu" else []
    return nn.Sequential(*modules, *relu)


def _conv(layer: Any) -> nn.Module:
    *window, channels, filters = layer.kernel.shape
    conv = nn.Conv2d(
        channels * layer.groups,
        filters,
        window,
        layer.strides,
        dilation=layer.dilation_rate,
        groups=layer.groups,
        bias=layer.use_bias,
    )
    same = layer.padding == "same"
    pads = [Same(window, layer.strides, layer.dilation_rate)] if same else []
    return _activated(layer, *pads, conv)


def _dense(layer: Any) -> nn.Module:
    return _activated(layer, nn.Linear(*layer.kernel.shape, bias=layer.use_bias))


def _batch_norm(layer: Any) -> nn.Module:
    kind = nn.BatchNorm2d if len(layer.input.shape) == 4 else nn.BatchNorm1d
    return kind(layer.moving_mean.shape[0], layer.epsilon, 1 - layer.momentum)


def _layer_norm(layer: Any) -> nn.Module:
    return nn.LayerNorm(layer.input.shape[-1], layer.epsilon)


def _max_pool(layer: Any) -> nn.Module:
    same = Same(layer.pool_size, layer.strides, (1, 1), -math.inf)
    pads = [same] if layer.padding == "same" else []
    return nn.Sequential(*pads, nn.MaxPool2d(tuple(layer.pool_size), tuple(layer.strides)))


def _zero_pad(layer: Any) -> nn.Module:
    (top, bottom), (left, right) = layer.padding
    return nn.ZeroPad2d((left, right, top, bottom))


ROWS: dict[str, Callable[[Any], nn.Module]] = {
    "Rescaling": _rescaled,
    "Conv2D": _conv,
    "Dense": _dense,
    "BatchNormalization": _batch_norm,
    "Activation": _activated,
    "ReLU": lambda layer: nn.ReLU(),
    "MaxPooling2D": _max_pool,
    "GlobalAveragePooling2D": lambda layer: Function(lambda x: x.mean((2, 3))),
    "ZeroPadding2D": _zero_pad,
    "Dropout": lambda layer: nn.Dropout(layer.rate),
    "Flatten": lambda layer: Function(lambda x: _channels_last(x).flatten(1)),
    "Add": lambda layer: Function(lambda *inputs: sum(inputs[1:], inputs[0])),
    "LayerNormalization": _layer_norm,
    "Reshape": _shaped,
    "Vocabulary": lambda layer: Vocabulary(*layer.embeddings.shape, layer.tie_weights),
    "Positions": lambda layer: Positions(*layer.positions.shape),
    "ClassToken": lambda layer: ClassToken(*layer.token.shape),
    "ClassPlace": lambda layer: Function(lambda x: x[:, 0]),
    "Attention": lambda layer: Attention(layer.heads, layer.causal),
    "Gelu": lambda layer: nn.GELU("tanh" if layer.approximate else "none"),
    "Passed": lambda layer: nn.Identity(),
}


class Net(nn.Module):
    """From images (batch, channels, height, width), or tokens (batch, time), to logits."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        made = {
            node.layer.name: ROWS[type(node.layer).__name__](node.layer) for node in network.nodes
        }
        self.layers = nn.ModuleDict(made)
        self.path = [(n.layer.name, n.inputs, n.output) for n in network.nodes]
        self.logits = network.logits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tensors = {0: x}
        for name, inputs, output in self.path:
            tensors[output] = self.layers[name](*[tensors[place] for place in inputs])
        return tensors[self.logits]


# --- optimizers -----------------------------------------------------------------------------------


class Adam(torch.optim.Adam):
    """PyTorch's, with Keras's epsilon, which is added before the second moment is corrected.

    That is `epsilon / sqrt(1 - beta_2^t)` of PyTorch's.
    """

    def __init__(self, weights: Any, recipe: Recipe) -> None:
        keras = recipe.optimizer
        betas = (keras.beta_1, keras.beta_2)
        super().__init__(weights, recipe.run.learning_rate, betas, keras.epsilon)
        self.recipe, self.applied = recipe, 0
        self.register_step_pre_hook(self._next)  # not called for a step that GradScaler skips

    def _next(self, *_: Any) -> None:
        rate = float(self.recipe.rate_at(self.applied, np))
        self.applied += 1
        for group in self.param_groups:
            correction = math.sqrt(1 - group["betas"][1] ** self.applied)
            group |= {"lr": rate, "eps": self.recipe.optimizer.epsilon / correction}


class SGD(torch.optim.SGD):
    """PyTorch's: at a constant learning rate its Nesterov momentum is Keras's."""

    def __init__(self, weights: Any, recipe: Recipe) -> None:
        keras = recipe.optimizer
        super().__init__(weights, recipe.run.learning_rate, keras.momentum, nesterov=keras.nesterov)
        self.recipe, self.applied = recipe, 0
        self.register_step_pre_hook(self._next)

    def _next(self, *_: Any) -> None:
        for group in self.param_groups:
            group["lr"] = float(self.recipe.rate_at(self.applied, np))
        self.applied += 1


OPTIMIZERS = {"Adam": Adam, "SGD": SGD}

# --- training -------------------------------------------------------------------------------------


class Trained:
    """See loop.Native."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.device = recipe.weights[0].value.device
        net = Net(recipe.network)
        self.places = _places(recipe.network, net)
        for variable in recipe.weights:
            self.places[id(variable)].data.copy_(_ordered(TO_TORCH, variable, variable.value))
        self.net = net.to(self.device, memory_format=torch.channels_last).train(recipe.trains)
        self.trained = [self.places[id(w)] for w in recipe.trained]
        self.jit = recipe.run.jit == "on"
        self.compiled = torch.compile(self.net) if self.jit else self.net
        if recipe.trains:
            self._begin()

    def _begin(self) -> None:
        """Makes what only a training needs."""
        recipe, dynamic = self.recipe, self.recipe.dynamic
        self.optimizer = OPTIMIZERS[type(recipe.optimizer).__name__](self.trained, recipe)
        self.scaler = torch.amp.GradScaler(
            self.device.type,
            init_scale=dynamic.initial_scale if dynamic else 1.0,
            growth_interval=dynamic.dynamic_growth_steps if dynamic else 1,
            enabled=dynamic is not None,
        )
        self.loss, self.hits = (torch.zeros((), device=self.device) for _ in range(2))

    def put(self, x: np.ndarray, y: np.ndarray) -> Batch:
        labels = torch.from_numpy(np.asarray(y)).to(self.device, torch.int64, non_blocking=True)
        return self.examples(x), labels

    def examples(self, x: np.ndarray) -> Any:
        given = torch.from_numpy(np.ascontiguousarray(x)).to(self.device, non_blocking=True)
        return given if self.recipe.sequences else given.permute(0, 3, 1, 2)  # a view

    @torch.inference_mode()
    def predict(self, x: Any) -> Any:
        with self._cast():
            logits = self.compiled(x)
        return logits.float().softmax(-1)

    def fetched(self, given: Any) -> np.ndarray:
        return given.cpu().numpy()

    def step(self, x: Any, y: Any) -> None:
        self.net.train()
        losses, classes = self._losses(self.compiled, x, y)
        loss = losses.mean()
        self.scaler.scale(loss).backward()
        if self.recipe.run.clip_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.trained, self.recipe.run.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._count(loss.detach(), classes, y)

    @torch.no_grad()
    def look(self, x: Any, y: Any) -> Any:
        self.net.eval()
        losses, classes = self._losses(self.net, x, y)
        self._count(losses.mean(), classes, y)
        return (losses.mean(1) if self.recipe.sequences else classes).cpu()

    def totals(self) -> tuple[float, float]:
        known = float(self.loss), float(self.hits)
        self.loss.zero_()
        self.hits.zero_()
        return known

    def gradients(self, x: Any, y: Any) -> tuple[float, list[np.ndarray]]:
        self.net.train()
        loss = self._losses(self.net, x, y)[0].mean()
        found = torch.autograd.grad(self.scaler.scale(loss), self.trained)
        scale = self.scaler.get_scale()
        pairs = zip(self.recipe.trained, found, strict=True)
        return float(loss.detach()), [_keras(variable, g / scale) for variable, g in pairs]

    def products(self, x: Any, y: Any) -> Products:
        if not self.recipe.trains:
            with backend.counted_products() as counted, torch.no_grad(), self._cast():
                self.net(x)
            return counted
        before = [(held, held.detach().clone()) for held in self.net.buffers()]
        with torch.random.fork_rng(), backend.counted_products() as counted:
            self.gradients(x, y)
        for held, value in before:
            held.copy_(value)
        return counted

    def scale(self) -> Scale | None:
        return (self.scaler.get_scale(), self.optimizer.applied) if self.recipe.dynamic else None

    def settings(self) -> dict[str, Any]:
        (variable_dtype,) = {str(w.dtype).removeprefix("torch.") for w in self.trained}
        dtype = self.recipe.compute_dtype
        return {"compute_dtype": dtype, "variable_dtype": variable_dtype, "jit": self.jit}

    def weights(self) -> list[np.ndarray]:
        return [_keras(w, self.places[id(w)]) for w in self.recipe.weights]

    def synchronize(self) -> None:
        backend.synchronize(None)

    def _losses(self, net: Callable[..., Any], x: Any, y: Any) -> tuple[Any, Any]:
        """The loss of each label, and the class that is given in its place."""
        with self._cast():
            logits = net(x)
            wide = logits.float().flatten(0, -2)
            losses = functional.cross_entropy(wide, y.flatten(), reduction="none")
        return losses.view_as(y), logits.detach().argmax(-1)

    def _cast(self) -> torch.autocast:
        dtype = getattr(torch, self.recipe.compute_dtype)
        mixed = dtype is not torch.float32
        return torch.autocast(self.device.type, dtype if mixed else None, enabled=mixed)

    def _count(self, loss: Any, classes: Any, y: Any) -> None:
        self.loss += loss * len(y)
        self.hits += (classes == y).sum()


NAMES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
NAMES |= {"moving_mean": "running_mean", "moving_variance": "running_var"}
NAMES |= {"embeddings": "weight", "reverse_embeddings": "reverse"}
NAMES |= {"positions": "weight", "token": "weight"}


def _places(network: Network, net: Net) -> dict[int, torch.Tensor]:
    """The tensor of the network that stands for a variable of Keras's, by the variable's id."""
    places = {}
    for layer in (node.layer for node in network.nodes):
        inner = net.layers[layer.name]
        holders = [part for part in inner.modules() if getattr(part, "weight", None) is not None]
        for variable in layer.weights:
            if "float" in variable.dtype:
                places[id(variable)] = getattr(holders[0], NAMES[variable.name])
    return places


def _ordered(orders: dict[int, Any], variable: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A weight or its gradient with the axes of the other side, if it stands for a kernel."""
    tensor = tensor.detach()
    return tensor.permute(orders[tensor.dim()]) if variable.name == "kernel" else tensor


def _keras(variable: Any, tensor: torch.Tensor) -> np.ndarray:
    """A weight or its gradient as Keras has it."""
    return _ordered(TO_KERAS, variable, tensor).float().cpu().numpy()
