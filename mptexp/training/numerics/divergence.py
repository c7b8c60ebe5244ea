"""Which step of a training was the first with a number that is not finite, and where in it.

A training is not watched at every step, which would slow what is measured. One that diverged is
made again, step by step: weights, order of images and random draws follow from the seed.
"""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from mptexp.training.numerics import gradients
from mptexp.training.numerics.loss_scale import loss_scale

WORDS = {
    "weights": "the weights of {}",
    "activations": "the output of {}",
    "loss": "the loss",
    "activation_gradients": "the gradient of the output of {}",
    "weight_gradients": "the gradient of the weights of {}",
}


def first_not_finite(
    model: keras.Model, batches: Iterable[tuple[Any, Any]]
) -> dict[str, Any] | None:
    """Trains on batches until a number is not finite, and says which came first.

    Under a dynamic loss scale gradients may overflow: their step is skipped, and they do not count.

    Args:
        model: compiled, its weights as at the beginning.
        batches: (x, y) of one shape.

    Returns:
        step (the first is 1), kind (see gradients.KINDS), layer; None where all stayed finite.
    """
    dynamic = hasattr(model.optimizer, "initial_scale")
    look = gradients.Probe(model, _all_finite)
    for step, (x, y) in enumerate(batches, 1):
        scale = loss_scale(model)
        told = look(x, y, 1.0 if isinstance(scale, str) else scale)
        bad = [(k, n) for k, n, finite in told if not (finite or (dynamic and "gradient" in k))]
        if bad:
            return {"step": step, "kind": bad[0][0], "layer": bad[0][1]}
        model.train_on_batch(x, y)
    return None


def _all_finite(kind: str, tensor: Any, scale: Any) -> Any:
    return ops.all(ops.isfinite(ops.cast(tensor, "float32")))


def sentence(found: dict[str, Any] | None) -> str:
    """Where the first number was that was not finite, for a record's error."""
    if found is None:
        return "trained again step by step, all stayed finite"
    where = WORDS[found["kind"]].format(found["layer"])
    first = f"the first tensor that was not finite was {where}, in step {found['step']}"
    return f"trained again step by step, {first}"
