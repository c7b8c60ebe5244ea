"""How well a trained model predicted each example that it was validated with, for the record.

Two accuracies of the same images differ by the few images on which the models disagree. Compared
image by image, far fewer images show a difference than two percentages could. The same holds of
the losses of a text's sequences.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from mptexp.spec.run import Run
from mptexp.training import task_models
from mptexp.training.data import batches
from mptexp.training.data.datasets import Images


def validated(
    run: Run, predicted: Callable[[keras.utils.PyDataset], np.ndarray], images: Images
) -> dict[str, Any]:
    """What a model says of each example that it was validated with, as plain JSON types.

    Args:
        predicted: what is kept of the prediction of each example of the data, see tasks.Task.

    Returns:
        images (how many examples), digest (of these, their order and labels), and a value for each
        in that order, as its task has it: correct of images, losses of sequences (see
        tasks.Task.listed); nothing where the run has no validation.
    """
    arguments = batches.validation(images, run)
    if not arguments or run.profile:
        return {}
    data, task = arguments["validation_data"], task_models.of(run)
    total, labels = hashlib.sha256(), []
    for _, batch in zip(range(len(data)), data, strict=False):  # Keras's data has no end
        x, y = map(np.asarray, batch)
        total.update(np.ascontiguousarray(x).tobytes() + y.tobytes())
        labels.append(y)
    kept = task.listed(predicted(data), np.concatenate(labels))
    return {"images": sum(map(len, labels)), "digest": total.hexdigest()[:12], **kept}
