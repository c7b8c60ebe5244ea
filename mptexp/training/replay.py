"""The batches of a training once more: for looks at its numbers, and for where it diverged."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from mptexp.spec.run import Run
from mptexp.training.data import batches
from mptexp.training.data.datasets import Images
from mptexp.training.numerics import divergence, dynamic_range

ELSEWHERE = (
    "in which step, is looked for with one replica, input_mode pipeline and frontend keras alone"
)

NOT_KNOWN = "in which step, is not known: to train it again step by step raised {}"


def histograms(run: Run, images: Images) -> dynamic_range.ExponentHistograms | None:
    """Looks at the exponents of the very batches that are trained on; None where none are asked."""
    if not run.exponents_every:
        return None
    order = batches.order(images, run)
    return dynamic_range.ExponentHistograms(
        lambda step: batch(run, images, order[step % len(order)]), run.exponents_every
    )


def batch(run: Run, images: Images, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels as the run's model takes them."""
    y = images.train_y[chosen]
    if run.input_mode == "resident":  # placeholders
        return np.zeros(len(chosen), np.uint8), y
    return images.train_x[chosen], y


def first_not_finite(
    run: Run,
    images: Images,
    steps: int,
    compiled: Callable[[Run], keras.Model],
) -> dict[str, Any]:
    """Where a training that diverged did so: it is made again, step by step.

    Args:
        steps: how many the training had.
        compiled: makes and compiles the model anew.

    Returns:
        `sentence` and, where it is known, the keys of divergence.first_not_finite. It raises
        nothing: that the training diverged is known, and what fails here does not change it.
    """
    if run.replicas > 1 or run.input_mode == "keydana" or run.frontend != "keras":
        return {"sentence": ELSEWHERE}
    try:
        model = compiled(run.model_copy(update={"steps_per_execution": 1}))
        order = batches.order(images, run)[:steps]
        again = (batch(run, images, chosen) for chosen in order)
        first = divergence.first_not_finite(model, again)
    except Exception as error:
        return {"sentence": NOT_KNOWN.format(type(error).__name__)}
    return {"sentence": divergence.sentence(first), **(first or {})}
