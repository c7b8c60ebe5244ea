"""What a task needs of a framework: how its examples enter a model, and what guessing gives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers

from mptexp.spec import tasks
from mptexp.spec.run import Run
from mptexp.training.backends import current
from mptexp.training.data.datasets import Examples, Images
from mptexp.training.layers import augmented

Entry = tuple[keras.KerasTensor, keras.KerasTensor]
Shape = tuple[int, ...]
AT_ONCE = 4096  # sequences that are counted together


@dataclass(frozen=True)
class Task:
    """A row.

    Attributes:
        entry: (run, shape of an example) -> the model's input, and what a network gets of it.
        output: (shape of an example, classes) -> shape of an example's probabilities.
        chance: dataset -> what guessing gives, by its name in a record; nothing where there is
            nothing to validate with.
        kept: (probabilities, labels) -> a value for each example, of which `listed` makes what
            says how well it was predicted.
        listed: (all values, labels) -> their part of a record, see `validation_images`.
    """

    entry: Callable[[Run, Shape], Entry]
    output: Callable[[Shape, int], Shape]
    chance: Callable[[Images], dict[str, Any]]
    kept: Callable[[np.ndarray, np.ndarray], np.ndarray]
    listed: Callable[[np.ndarray, np.ndarray], dict[str, Any]]


def of(run: Run) -> Task:
    """The task of a run."""
    return TASKS[tasks.of(run.dataset).name]


# --- image classification -------------------------------------------------------------------------


def _images(run: Run, shape: Shape) -> Entry:
    """uint8 from 0 to 255, or of input_mode keydana floats from 0 to 1; channels as Keras has it.

    They are transposed behind the augmentation, which is channels last.
    """
    ready = run.input_mode == "keydana"
    images = layers.Input(shape, dtype="float32" if ready else "uint8")
    x = augmented(run, images if ready else layers.Rescaling(1 / 255)(images))
    if keras.config.image_data_format() == "channels_first":
        x = layers.Permute((3, 1, 2))(x)
    return images, x


def _commonest(images: Images) -> dict[str, Any]:
    """Validation images by class, and what naming always the commonest gets right, if any."""
    if not len(images.val_y):
        return {}
    counts = np.bincount(images.val_y)
    chance = float(counts.max() / len(images.val_y))
    return {"validation_labels": counts.tolist(), "chance_accuracy": chance}


def _classes(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.argmax(probabilities, axis=-1)


def _bits(classes: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """A bit for each image, the first the highest of its byte, as hexadecimal digits.

    Nothing that is looked for in records to take names out can occur in them.
    """
    return {"correct": np.packbits(classes == labels).tobytes().hex()}


# --- prediction of the next token -----------------------------------------------------------------


def _tokens(run: Run, shape: Shape) -> Entry:
    """Numbers of tokens, shape (batch, time)."""
    tokens = layers.Input(shape, dtype="int32")
    return tokens, tokens


def _unigram(text: Images) -> dict[str, float]:
    """The loss of who knows how often each token occurs in training, and nothing of order.

    Each token is counted once more than it occurs (Laplace), so that none has probability zero.
    """
    if not len(text.val_y):
        return {}
    trained, validated = (_counts(y, len(text.classes)) for y in (text.train_y, text.val_y))
    shares = (trained + 1) / (trained + 1).sum()
    return {"chance_loss": float(-(validated * np.log(shares)).sum() / validated.sum())}


def _counts(sequences: Examples, tokens: int) -> np.ndarray:
    """How often each token occurs, some sequences at a time."""
    parts = (sequences[k : k + AT_ONCE].ravel() for k in range(0, len(sequences), AT_ONCE))
    return sum(np.bincount(part, minlength=tokens) for part in parts)


def _losses(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The mean loss of each sequence, in nats; probabilities as small as Keras clips them.

    With TensorFlow Keras reads the logits and clips nothing; a float32 ends somewhere.
    """
    clips = current().CLIPS_LOSS
    least = keras.config.epsilon() if clips else float(np.finfo(np.float32).smallest_subnormal)
    chosen = np.take_along_axis(probabilities, labels[..., None], axis=-1)[..., 0]
    return -np.log(np.maximum(chosen.astype(np.float64), least)).mean(axis=1)


TASKS = {
    "images": Task(_images, lambda shape, classes: (classes,), _commonest, _classes, _bits),
    "tokens": Task(
        _tokens,
        lambda shape, classes: (*shape, classes),
        _unigram,
        _losses,
        lambda losses, labels: {"losses": [float(loss) for loss in losses]},
    ),
}
