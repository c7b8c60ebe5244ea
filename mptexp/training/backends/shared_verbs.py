"""Verbs that are the same for several backends; their modules import them from here.

All of them are for one device, or for a step that is one program over all devices.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mptexp.host import imports

if TYPE_CHECKING:
    import keras
else:  # imported at first use
    keras = imports.Lazy("keras")

Batch = tuple[np.ndarray, np.ndarray]  # images and labels as `fit` takes them
Products = list[tuple[str, float]]  # type and FLOPs of each
Tap = Callable[[str, Any], Any]  # (name of a layer, a tensor that it gives) -> what goes on
Forward = Callable[[Sequence[Any], Tap], Any]  # (weights, tap) -> loss
AHEAD = 2  # batches that are read before the step that needs them


class Node(NamedTuple):
    """An operation of a graph: what it is, the type of its first result, what it takes."""

    name: str
    kind: str
    dtype: str
    terms: tuple[str, ...]


def set_seed(seed: int) -> None:
    """Seeds all but TensorFlow.

    Keras seeds TensorFlow too where it happens to be installed: seconds and 0.4 GB for nothing
    under another backend. Keras then takes it for absent as long as the process lives.
    """
    with imports.without("tensorflow"):
        keras.utils.set_random_seed(seed)


def holds_new() -> bool:
    """It waits for all."""
    return True


def event_seconds(function: Callable[[], Any]) -> float | None:
    """It gives no events of the device to a program."""
    return None


def graph(model: "keras.Model", batch: Batch) -> list[Node]:
    """Empty: the names of what a trace holds tell."""
    return []


def sync_variables(model: "keras.Model") -> None:
    """Nothing to do: `fit` trains the model's own variables."""


def widest(dtypes: Iterable[str]) -> str:
    """The type of a product whose operands have these: the widest of the floating ones."""
    # The first number of a name: of float8_e4m3fn the others are not its size.
    sizes = {name: int((re.findall(r"\d+", name) or [8])[0]) for name in dtypes}
    floats = {name: size for name, size in sizes.items() if "float" in name}
    return max(floats or sizes, key=sizes.__getitem__)


def batches(x: Any, y: np.ndarray, order: np.ndarray) -> Any:
    """As a generator that a thread reads ahead for."""
    with ThreadPoolExecutor(1) as pool:
        waiting: deque = deque()
        for chosen in order:
            waiting.append((pool.submit(x.__getitem__, chosen), y[chosen]))
            if len(waiting) > AHEAD:
                images, labels = waiting.popleft()
                yield images.result(), labels
        for images, labels in waiting:
            yield images.result(), labels


def shown(batches: Any, waiting: Callable[[], AbstractContextManager[Any]]) -> Iterator[Any]:
    """The batches, with the wait for each of them in such a context."""
    stream = iter(batches)
    while True:
        with waiting():
            batch = next(stream, None)
        if batch is None:
            return
        yield batch


def placeholders(batch_size: int, steps: int) -> Any:
    """On the device already, so never copied."""
    nothing = keras.ops.zeros(batch_size, "uint8")
    return ((nothing, nothing) for _ in range(steps))


def variable(x: np.ndarray) -> Any:
    """A Keras variable."""
    return keras.Variable(x, dtype=str(x.dtype), trainable=False)


def constant(x: np.ndarray) -> Any:
    """A tensor."""
    return keras.ops.convert_to_tensor(x)


def own(held: Any) -> Any:
    """All of it."""
    return keras.ops.convert_to_tensor(held)


def dynamic_loss_scale(optimizer: "keras.Optimizer") -> "keras.Optimizer":
    """Keras's own: a step sees the gradients of the whole batch."""
    return keras.optimizers.LossScaleOptimizer(optimizer)
