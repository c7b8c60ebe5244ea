"""Which step of a training was the first with a number that is not finite, and where in it.

A training is not watched at every step, which would slow what is measured. One that diverged is
repeated step by step: weights, order of images and random draws follow from the seed.
"""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from mptexp.training.numerics import gradients

WORDS = {
    "weights": "the weights of {}",
    "activations": "the output of {}",
    "loss": "the loss",
    "activation_gradients": "the gradient of the output of {}",
    "weight_gradients": "the gradient of the weights of {}",
    "updated_weights": "the weights of {} after their update",
}


def first_not_finite(
    model: keras.Model, batches: Iterable[tuple[Any, Any]]
) -> dict[str, Any] | None:
    """Trains on batches until a number is not finite, and returns the first such one.

    Under a dynamic loss scale gradients may overflow: their step is skipped, and they do not count.

    Args:
        model: compiled, its weights as at the beginning.
        batches: (x, y) of one shape.

    Returns:
        step (the first is 1), kind (see WORDS), layer; None where all stayed finite.
    """
    dynamic = hasattr(model.optimizer, "initial_scale")
    probe = gradients.Probe(model, _all_finite)
    step = 0
    for step, (x, y) in enumerate(batches, 1):
        for kind, layer, finite in probe(x, y, gradients.loss_scale(model)):
            if not (finite or (dynamic and "gradient" in kind)):
                return {"step": step, "kind": kind, "layer": layer}
        model.train_on_batch(x, y)
    layer = broken(model)
    return {"step": step, "kind": "updated_weights", "layer": layer} if layer else None


def broken(model: keras.Model) -> str:
    """The first layer with a weight that is not finite, moving averages too; empty without one.

    The loss of an epoch does not show it: it is that of the weights before the last update, and
    the maximum of a pooling layer or a comparison may hide a NaN altogether.
    """
    for variable in model.weights:
        if gradients.is_float(variable) and not bool(_all_finite("", variable.value, 1.0)):
            return gradients.layer_of(model, variable)
    return ""


def _all_finite(kind: str, tensor: Any, scale: Any) -> Any:
    return ops.all(ops.isfinite(ops.cast(tensor, "float32")))


def sentence(first: dict[str, Any] | None) -> str:
    """What `first_not_finite` returned, in words, for a record's error."""
    if first is None:
        return "trained again step by step, all stayed finite"
    where = WORDS[first["kind"]].format(first["layer"])
    return (
        "trained again step by step, the first tensor that was not finite was "
        f"{where}, in step {first['step']}"
    )
