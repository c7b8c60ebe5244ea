"""Training in plain PyTorch: `torch.autocast`, `torch.amp.GradScaler`, eager or `torch.compile`.

Weights are float32; autocast chooses the type of each operation by PyTorch's own lists. Images keep
their layout, channels last, which PyTorch calls a memory format; kernels have it too.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mptexp.training.backends import torch as backend
from mptexp.training.frontends import Scale
from mptexp.training.frontends.loop import Batch, Recipe
from mptexp.training.frontends.network import Network

CHANNELS_LAST = torch.channels_last
# Axes of Keras's kernels in PyTorch's order, and of PyTorch's in Keras's.
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


class Add(nn.Module):
    """The sum of its inputs."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return sum(inputs[1:], inputs[0])


class Flat(nn.Module):
    """Flattens images channels last, as Keras orders the inputs of the layer that follows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).flatten(1)


class Mean(nn.Module):
    """The mean over height and width."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


class Scaled(nn.Module):
    """Integers as float32, scaled; autocast casts them where it needs to."""

    def __init__(self, scale: float, offset: float) -> None:
        super().__init__()
        self.scale, self.offset = scale, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() * self.scale + self.offset


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


def _max_pool(layer: Any) -> nn.Module:
    same = Same(layer.pool_size, layer.strides, (1, 1), -math.inf)
    pads = [same] if layer.padding == "same" else []
    return nn.Sequential(*pads, nn.MaxPool2d(tuple(layer.pool_size), tuple(layer.strides)))


def _zero_pad(layer: Any) -> nn.Module:
    (top, bottom), (left, right) = layer.padding
    return nn.ZeroPad2d((left, right, top, bottom))


ROWS: dict[str, Callable[[Any], nn.Module]] = {
    "Rescaling": lambda layer: Scaled(layer.scale, layer.offset),
    "Conv2D": _conv,
    "Dense": _dense,
    "BatchNormalization": _batch_norm,
    "Activation": _activated,
    "ReLU": lambda layer: nn.ReLU(),
    "MaxPooling2D": _max_pool,
    "GlobalAveragePooling2D": lambda layer: Mean(),
    "ZeroPadding2D": _zero_pad,
    "Dropout": lambda layer: nn.Dropout(layer.rate),
    "Flatten": lambda layer: Flat(),
    "Add": lambda layer: Add(),
    "Passed": lambda layer: nn.Identity(),
}


class Net(nn.Module):
    """The network, from images (batch, channels, height, width) to logits."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        made = {
            node.layer.name: ROWS[type(node.layer).__name__](node.layer) for node in network.nodes
        }
        self.layers = nn.ModuleDict(made)
        self.path = [(n.layer.name, n.inputs, n.output) for n in network.nodes]
        self.logits = network.logits

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tensors = {0: images}
        for name, inputs, output in self.path:
            tensors[output] = self.layers[name](*[tensors[place] for place in inputs])
        return tensors[self.logits]


# --- optimizers -----------------------------------------------------------------------------------


class Adam(torch.optim.Adam):
    """PyTorch's, with Keras's epsilon, which is added before the second moment is corrected.

    That is `epsilon / sqrt(1 - beta_2^t)` of PyTorch's.
    """

    def __init__(self, weights: Any, keras: Any) -> None:
        betas = (keras.beta_1, keras.beta_2)
        super().__init__(weights, float(keras.learning_rate), betas, keras.epsilon)
        self.epsilon, self.applied = keras.epsilon, 0
        self.register_step_pre_hook(self._next)  # not called for a step that GradScaler skips

    def _next(self, *_: Any) -> None:
        self.applied += 1
        for group in self.param_groups:
            group["eps"] = self.epsilon / math.sqrt(1 - group["betas"][1] ** self.applied)


class SGD(torch.optim.SGD):
    """PyTorch's: at a constant learning rate its Nesterov momentum is Keras's."""

    def __init__(self, weights: Any, keras: Any) -> None:
        rate, kept = float(keras.learning_rate), keras.momentum
        super().__init__(weights, rate, kept, nesterov=keras.nesterov)
        self.applied = 0
        self.register_step_pre_hook(self._next)

    def _next(self, *_: Any) -> None:
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
            given = variable.value.detach()
            self.places[id(variable)].data.copy_(given.permute(TO_TORCH.get(given.dim(), (0,))))
        self.net = net.to(self.device, memory_format=CHANNELS_LAST)
        self.trained = [self.places[id(w)] for w in recipe.trained]
        self.optimizer = OPTIMIZERS[type(recipe.optimizer).__name__](self.trained, recipe.optimizer)
        dynamic = recipe.dynamic
        self.scaler = torch.amp.GradScaler(
            self.device.type,
            init_scale=dynamic.initial_scale if dynamic else 1.0,
            growth_interval=dynamic.dynamic_growth_steps if dynamic else 1,
            enabled=dynamic is not None,
        )
        self.jit = recipe.jit == "on"
        self.compiled = torch.compile(self.net) if self.jit else self.net
        self.loss, self.hits = (torch.zeros((), device=self.device) for _ in range(2))

    def put(self, x: np.ndarray, y: np.ndarray) -> Batch:
        images, labels = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.asarray(y))
        images = images.to(self.device, non_blocking=True).permute(0, 3, 1, 2)  # a view
        return images, labels.to(self.device, torch.int64, non_blocking=True)

    def step(self, x: Any, y: Any) -> None:
        self.net.train()
        loss, classes = self._loss(self.compiled, x, y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._count(loss.detach(), classes, y)

    @torch.no_grad()
    def look(self, x: Any, y: Any) -> Any:
        self.net.eval()
        loss, classes = self._loss(self.net, x, y)
        self._count(loss, classes, y)
        return classes.cpu()

    def totals(self) -> tuple[float, float]:
        known = float(self.loss), float(self.hits)
        self.loss.zero_()
        self.hits.zero_()
        return known

    def gradients(self, x: Any, y: Any) -> tuple[float, list[np.ndarray]]:
        self.net.train()
        loss, _ = self._loss(self.net, x, y)
        found = torch.autograd.grad(self.scaler.scale(loss), self.trained)
        scale = self.scaler.get_scale()
        return float(loss.detach()), [_keras(g / scale) for g in found]

    def products(self, x: Any, y: Any) -> list[tuple[str, float]]:
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
        return [_keras(self.places[id(w)]) for w in self.recipe.weights]

    def synchronize(self) -> None:
        backend.synchronize(None)

    def _loss(self, net: Callable[..., Any], x: Any, y: Any) -> tuple[Any, Any]:
        """Mean loss of a batch, and the class that each image is given."""
        dtype = getattr(torch, self.recipe.compute_dtype)
        mixed = dtype is not torch.float32
        with torch.autocast(self.device.type, dtype if mixed else None, enabled=mixed):
            logits = net(x)
            loss = functional.cross_entropy(logits.float(), y)
        return loss, logits.detach().argmax(1)

    def _count(self, loss: Any, classes: Any, y: Any) -> None:
        self.loss += loss * len(y)
        self.hits += (classes == y).sum()


NAMES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
NAMES |= {"moving_mean": "running_mean", "moving_variance": "running_var"}


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


def _keras(tensor: torch.Tensor) -> np.ndarray:
    """A weight or its gradient with the axes in Keras's order."""
    order = TO_KERAS.get(tensor.dim(), (0,))
    return tensor.detach().permute(order).float().cpu().numpy()
