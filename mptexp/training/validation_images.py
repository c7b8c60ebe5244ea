"""Which validation images a trained model classified correctly, for the record.

Two accuracies of the same images differ by the few images on which the models disagree. Compared
image by image, far fewer images show a difference than two percentages could.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from mptexp.spec.run import Run
from mptexp.training.data import batches
from mptexp.training.data.datasets import Images


def validated(
    run: Run, predicted: Callable[[keras.utils.PyDataset], np.ndarray], images: Images
) -> dict[str, Any]:
    """What a model says of each image that it was validated with, as plain JSON types.

    Args:
        run: what was trained.
        predicted: the class of each image of the data.
        images: the dataset.

    Returns:
        images (how many), digest (of these images, their order and labels), correct (a bit for
        each image in that order, the first the highest of its byte, as hexadecimal digits: nothing
        that is looked for in records to take names out can occur in them); nothing where the run
        has no validation.
    """
    arguments = batches.validation(images, run)
    if not arguments or run.profile:
        return {}
    data = arguments["validation_data"]
    total, labels = hashlib.sha256(), []
    for _, batch in zip(range(len(data)), data, strict=False):  # Keras's data has no end
        x, y = map(np.asarray, batch)
        total.update(np.ascontiguousarray(x).tobytes() + y.tobytes())
        labels.append(y)
    right = predicted(data) == np.concatenate(labels)
    return {
        "images": len(right),
        "digest": total.hexdigest()[:12],
        "correct": np.packbits(right).tobytes().hex(),
    }
