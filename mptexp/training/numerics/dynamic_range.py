"""Dynamic range of a training: exponents of weights, activations, gradients and updates.

A histogram of exponents says of every format and every loss scale how much is lost: scaling by a
power of two moves it, no more. Source: P. Micikevicius et al., Mixed precision training, 2018,
arXiv 1710.03740, section 3.2.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from mptexp.errors import ParamsError
from mptexp.spec.number_formats import FORMATS
from mptexp.training import backends
from mptexp.training.numerics import gradients
from mptexp.training.numerics.quantization import INTEGER, quantize

ZEROS = 256  # the bin behind the 256 exponents of float32
SIXTEEN = ("float16", "bfloat16")
Histograms = dict[tuple[str, str], tuple[np.ndarray, float]]  # (kind, layer) -> counts, largest


def histogram(x: Any) -> tuple[Any, Any]:
    """How many values have which exponent, and the largest finite magnitude.

    Returns:
        Integers of shape (257,): values with each biased exponent of float32 (0: below 2^-126; 255:
        infinite or NaN), zeros last; and a float32 scalar.
    """
    x = ops.reshape(ops.cast(x, "float32"), (-1,))
    bits = ops.view(x, "int32")
    exponent = ops.bitwise_and(ops.right_shift(bits, 23), 255)
    zero = ops.equal(ops.bitwise_and(bits, 0x7FFFFFFF), 0)
    places = ops.where(zero, ZEROS, exponent)
    counted = ops.segment_sum(ops.ones_like(places, dtype=INTEGER), places, ZEROS + 1)
    return counted, ops.max(ops.where(exponent < 255, ops.absolute(x), 0.0))


def _unscaled(kind: str, tensor: Any, scale: Any) -> tuple[Any, Any]:
    tensor = ops.cast(tensor, "float32")
    return histogram(tensor / scale if kind.endswith("gradients") else tensor)


def _changes(before: list[Any], after: list[Any]) -> list[Any]:
    """Of each variable: histograms of its update and of update / weight; updates lost in SIXTEEN.

    An update is lost to rounding where a weight of that format plus the update rounds to the same
    weight.
    """
    changes = []
    for old, new in zip(before, after, strict=True):
        old, new = ops.cast(old, "float32"), ops.cast(new, "float32")
        update = new - old
        ratio = ops.where(old == 0, 0.0, update / ops.where(old == 0, 1.0, old))
        lost = [_lost(old, update, name) for name in SIXTEEN]
        changes.append((histogram(update), histogram(ratio), ops.stack(lost)))
    return changes


def _lost(weight: Any, update: Any, name: str) -> Any:
    stored = quantize(weight, FORMATS[name])
    same = ops.equal(quantize(stored + update, FORMATS[name]), stored)
    return ops.sum(ops.cast(ops.logical_and(same, update != 0), INTEGER))


class ExponentHistograms(keras.callbacks.Callback):
    """Histograms, every so many steps, of the exponents of what a training step computes.

    For any compiled Keras model: `fit(..., callbacks=[ExponentHistograms(batch)])`. A sample is one
    more forward and backward pass on a batch of its own, and changes nothing. Gradients are those
    of the loss without its scale. An update is what the optimizer really added; one that was
    skipped, because its gradients were not finite, counts as zeros. What a sample costs is in
    `benchmarks/measuring_overhead.py`.

    Args:
        batch: step -> (x, y) as `fit` takes them, of one shape; `lambda step: (x[:32], y[:32])`.
        every: steps from one sample to the next; the first is before the first step.

    Attributes:
        samples: a dict per sample: step, loss_scale (a number or "none"), kinds (kind -> histogram
            of all layers), and from the next step on swallowed (float16, bfloat16 -> how many
            updates that are not zero would be lost to rounding in weights of that format).
        layers: (kind, layer) -> counts and largest magnitude over all samples; layers of one name,
            as models within a model may have them, are one.

    Raises:
        ParamsError: where `every` is below 1, or a batch is not (x, y).
    """

    def __init__(self, batch: Callable[[int], tuple[Any, Any]], every: int = 100) -> None:
        super().__init__()
        if every < 1:
            raise ParamsError(f"every: {every}; allowed: 1 or more steps between two samples")
        self.batch = batch
        self.every = every
        self.samples: list[dict[str, Any]] = []
        self.layers: Histograms = {}
        self._probe: gradients.Probe | None = None
        self._changes = backends.current().compiled(_changes)
        self._before: list[Any] = []
        self._next = 0
        self._steps = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if self.wants(self._steps):
            self.look(self.model, self._steps)
        self._steps += 1

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        self.end(self.model)

    def wants(self, step: int) -> bool:
        """Whether a sample, or the update after one, is due before this step."""
        return step >= self._next or bool(self._before)

    def look(self, model: keras.Model, step: int) -> None:
        """Samples what the step before this one added, and what this one will compute."""
        backends.current().sync_variables(model)
        self.end(model)
        if step < self._next:
            return
        self._next = (step // self.every + 1) * self.every
        scale = gradients.loss_scale(model)
        self._probe = self._probe or gradients.Probe(model, _unscaled)
        given = self.batch(step)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise ParamsError(
                "batch: gives no pair; allowed: (x, y), without weights of the samples"
            )
        tensors = self._probe(*given, scale)
        kinds = self._added([row for row in tensors if row[0] != "loss"])
        self.samples.append({"step": step, "loss_scale": scale, "kinds": kinds})
        self._before = [ops.copy(v.value) for v in gradients.weights(model)]

    def end(self, model: keras.Model) -> None:
        """Completes the last sample with the update that followed it."""
        if not self._before:
            return
        after = [v.value for v in gradients.weights(model)]
        changes = tree.map_structure(ops.convert_to_numpy, self._changes(self._before, after))
        self._before = []
        names = [gradients.layer_of(model, v) for v in gradients.weights(model)]
        updates, ratios, losses = zip(*changes, strict=True)
        rows = [("updates", *row) for row in zip(names, updates, strict=True)]
        rows += [("update_ratios", *row) for row in zip(names, ratios, strict=True)]
        self.samples[-1]["kinds"] |= self._added(rows)
        lost = sum(losses)
        self.samples[-1]["swallowed"] = dict(zip(SIXTEEN, map(int, lost), strict=True))

    def _added(self, rows: list[gradients.Reduced]) -> dict[str, dict[str, Any]]:
        """Adds histograms to those of the layers; returns the sum of each kind as a record's."""
        kinds: Histograms = {}
        for kind, layer, (new_counts, new_largest) in rows:
            for total, key in ((self.layers, (kind, layer)), (kinds, (kind, ""))):
                counts, largest = total.get(key, (0, 0.0))
                total[key] = counts + new_counts.astype("int64"), max(largest, float(new_largest))
        return {kind: as_record(*total) for (kind, _), total in kinds.items()}

    def record(self) -> dict[str, Any]:
        """What a record holds: every, samples, layers (a row per kind and layer)."""
        rows = [{"kind": k, "layer": n, **as_record(*s)} for (k, n), s in self.layers.items()]
        return {"every": self.every, "samples": self.samples, "layers": rows}


def as_record(counts: np.ndarray, largest: float) -> dict[str, Any]:
    """A histogram without its empty ends: zeros, not_finite, lowest (exponent), counts, largest.

    counts[i] values x have 2^(lowest + i) <= |x| < 2^(lowest + i + 1); below 2^-126, at -127.
    """
    filled = np.flatnonzero(counts[:255])
    first, last = (filled[0], filled[-1] + 1) if len(filled) else (0, 0)
    return {
        "zeros": int(counts[ZEROS]),
        "not_finite": int(counts[255]),
        "lowest": int(first) - 127,
        "counts": [int(n) for n in counts[first:last]],
        "largest": largest,
    }


class ScaleTrace:
    """The dynamic loss scale, and how many steps it skipped, at some steps of a training.

    Attributes:
        samples: a dict per sample: step, loss_scale, skipped (steps so far whose gradients were
            not finite, so that the weights stayed as they were; Keras keeps no count of them).

    Args:
        now: the scale and how many steps were applied; None where the scale is not dynamic.
    """

    def __init__(self, now: Callable[[keras.Model], tuple[float, int] | None]) -> None:
        self.now = now
        self.samples: list[dict[str, Any]] = []

    def wants(self, step: int) -> bool:
        """Asks for no step of its own: it samples when another watcher does."""
        return False

    def look(self, model: keras.Model, step: int) -> None:
        """Reads scale and applied steps; nothing where the scale is not dynamic."""
        if known := self.now(model):
            scale, applied = known
            self.samples.append({"step": step, "loss_scale": scale, "skipped": step - applied})


def scale_of(model: keras.Model) -> tuple[float, int] | None:
    """The dynamic scale of Keras's optimizer, and how many steps it applied."""
    optimizer = model.optimizer
    if not hasattr(optimizer, "dynamic_scale") or not optimizer.built:
        return None
    scale, applied = (_now(model, v) for v in (optimizer.dynamic_scale, optimizer.iterations))
    return float(scale), int(applied)


def changes(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A trace's first sample, its last, and each that differs in scale or skipped steps."""
    values = [(sample["loss_scale"], sample["skipped"]) for sample in samples]
    ends = {0, len(samples) - 1}
    return [s for i, s in enumerate(samples) if i in ends or values[i] != values[i - 1]]


def _now(model: keras.Model, variable: keras.Variable) -> Any:
    """An optimizer's variable; during JAX's `fit` it lives in the trainer's state."""
    state = getattr(model, "_jax_state", None)
    if not state:
        value = variable.value
        # A copy on each replica is no array before it is read.
        return ops.convert_to_numpy(value.read_value() if hasattr(value, "read_value") else value)
    place = [v is variable for v in model.optimizer.variables].index(True)
    return np.asarray(state["optimizer_variables"][place])
