"""What a task needs of a framework: how its examples enter a model, and what guessing gives."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers

from mptexp.spec import tasks
from mptexp.spec.run import Run
from mptexp.training.data.datasets import Examples, Images
from mptexp.training.layers import augmented

Entry = tuple[keras.KerasTensor, keras.KerasTensor]
Shape = tuple[int, ...]
Kept = Callable[[Any, Any], np.ndarray]
AT_ONCE = 4096  # sequences that are counted together


@dataclass(frozen=True)
class Task:
    """A row.

    Attributes:
        entry: (run, shape of an example) -> the model's input, and what a network gets of it.
        output: (shape of an example, classes) -> shape of an example's probabilities.
        chance: (dataset, how many examples are validated with) -> what guessing gives, by its name
            in a record; nothing where there are none.
        kept: model -> (batch of examples, its labels) -> a value for each example, of which
            `listed` makes what says how well it was predicted.
        listed: (all values, labels) -> their part of a record, see `validated_examples`.
    """

    entry: Callable[[Run, Shape], Entry]
    output: Callable[[Shape, int], Shape]
    chance: Callable[[Images, int], dict[str, Any]]
    kept: Callable[[keras.Model], Kept]
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


def _commonest(images: Images, validated: int) -> dict[str, Any]:
    """Validation images by class, and what naming always the commonest gets right, if any."""
    if not validated:
        return {}
    counts = np.bincount(images.val_y[:validated])
    chance = float(counts.max() / validated)
    return {"validation_labels": counts.tolist(), "chance_accuracy": chance}


def _classes(model: keras.Model) -> Kept:
    return lambda x, y: np.argmax(model.predict_on_batch(x), axis=-1)


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


def _unigram(text: Images, validated: int) -> dict[str, float]:
    """The loss of who knows how often each token occurs in training, and nothing of order.

    Each token is counted once more than it occurs (Laplace), so that none has probability zero.
    """
    if not validated:
        return {}
    trained = _counts(text.train_y, len(text.train_y), len(text.classes))
    guessed = _counts(text.val_y, validated, len(text.classes))
    shares = (trained + 1) / (trained + 1).sum()
    return {"chance_loss": float(-(guessed * np.log(shares)).sum() / guessed.sum())}


def _counts(sequences: Examples, count: int, tokens: int) -> np.ndarray:
    """How often each token occurs in the first sequences, some of them at a time."""
    parts = (sequences[k : min(k + AT_ONCE, count)].ravel() for k in range(0, count, AT_ONCE))
    return sum(np.bincount(part, minlength=tokens) for part in parts)


def _losses(model: keras.Model) -> Kept:
    """The mean loss of each sequence, in nats, by the function that Keras minimizes.

    Where Keras reads the logits, so does this: probabilities end at 1e-45, losses do not.
    """
    labels = layers.Input(model.output_shape[1:-1], dtype="int32")
    losses = SequenceLoss(dtype="float32")([model.output, labels])
    scoring = keras.Model([*model.inputs, labels], losses)
    scoring.compile(jit_compile=model.jit_compile)
    return lambda x, y: scoring.predict_on_batch([x, y])


class SequenceLoss(layers.Layer):
    """Probabilities and labels of each place -> the mean loss of each sequence."""

    def call(self, inputs: Any) -> Any:
        probabilities, labels = inputs
        losses = keras.losses.sparse_categorical_crossentropy(labels, probabilities)
        return keras.ops.mean(losses, axis=1)


def _known(losses: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Each sequence's loss; None where it was not a finite number."""
    return {"losses": [float(loss) if math.isfinite(loss) else None for loss in losses]}


TASKS = {
    "images": Task(_images, lambda shape, classes: (classes,), _commonest, _classes, _bits),
    "tokens": Task(_tokens, lambda shape, classes: (*shape, classes), _unigram, _losses, _known),
}
