"""The stream of batches of a run, which is the same under every policy, and its validation."""

import hashlib
import os
import re
from typing import Any

import numpy as np

from mptexp.records.schema import REPEATED, SEEN
from mptexp.spec import tasks
from mptexp.spec.run import Run
from mptexp.training.backends import backend
from mptexp.training.data import cache, keydana, texts
from mptexp.training.data.datasets import FREE, Images

FIRST = 32  # images whose pixels are part of a run's fingerprint


def steps_per_epoch(images: Images, run: Run) -> int:
    """Batches in one pass over the training images: full ones; keydana's last may be smaller.

    Where one execution holds several steps, the steps are those of whole executions: Keras would
    otherwise begin another execution and run it in full.
    """
    n, size = len(images.train_x), run.batch_size
    steps = -(-n // size) if run.input_mode == "keydana" else max(1, n // size)
    return steps - steps % run.steps_per_execution or steps


def order(images: Images, run: Run) -> np.ndarray:
    """Indices of the training images in the order in which the run uses them, shape (steps, batch).

    The order is one seeded permutation after another. What does not fill a batch at the end of a
    pass opens the next epoch, so nothing is dropped and all batches have one shape (one
    compilation). It depends on the seed, never on the policy or the backend.
    """
    n = len(images.train_x)
    steps = max(1, n // run.batch_size) * run.epochs
    passes = -(-steps * run.batch_size // n)
    random = np.random.default_rng(run.seed)
    stream = np.empty(passes * n, np.int64)
    for k in range(passes):
        stream[k * n : (k + 1) * n] = random.permutation(n)
    return stream[: steps * run.batch_size].reshape(steps, run.batch_size)


def order_digest(images: Images, run: Run) -> str:
    """12 hex digits of the order in which the run's input mode feeds the training images."""
    feeds = run.input_mode == "keydana" and run.phase == "train"
    fed = keydana.order(len(images.train_x), run) if feeds else order(images, run)
    return hashlib.sha256(np.ascontiguousarray(fed)).hexdigest()[:12]


def fingerprint(images: Images, run: Run) -> str:
    """12 hex digits of the first training and validation images, as a model gets them.

    The prepared images have a digest of their own; an input mode may read others.
    """
    digest = hashlib.sha256()
    for part in ("train", "val"):
        if run.input_mode == "keydana" and len(images.part(part)[1]):
            x, y = next(keydana.scaled(images, run, part).batch(FIRST).as_numpy_iterator())
        else:
            x, y = (values[:FIRST] for values in images.part(part))
        digest.update(f"{x.dtype} {x.shape}".encode() + x.tobytes() + y.tobytes())
    return digest.hexdigest()[:12]


def may_be_shown(run: Run) -> bool:
    """Whether a reader may look at the data: in a sweep, whose notebooks are published, not all.

    Only what is one of `datasets.FREE`.
    """
    name = re.split("[:/]", run.dataset)[0]
    return name in FREE or "MPTEXP_RUN_DIR" not in os.environ


def samples(images: Images, run: Run) -> tuple[np.ndarray, list[str]]:
    """Up to 16 images of the first batch and the names of their classes, for a reader to look at.

    None where they may not be shown.
    """
    first = order(images, run)[0][: 16 if may_be_shown(run) else 0]
    return images.train_x[first], [images.classes[label] for label in images.train_y[first]]


# --- training: input mode -> (images, run) -> what `fit` takes ---------------------------------


def training(images: Images, run: Run) -> Any:
    """The training batches of the run's input mode, in the form `fit` takes."""
    return INPUT_MODES[run.input_mode](images, run)


def pipeline(images: Images, run: Run) -> Any:
    """The batches of all epochs in `order`: uint8 images and labels, read ahead of their step."""
    return backend(run.backend).batches(images.train_x, images.train_y, order(images, run))


def resident(images: Images, run: Run) -> Any:
    """Placeholders in place of images, which `layers.resident` holds on the device."""
    steps = steps_per_epoch(images, run) * run.epochs
    return backend(run.backend).placeholders(run.batch_size, steps)


INPUT_MODES = {"pipeline": pipeline, "keydana": keydana.stream, "resident": resident}


# --- validation ----------------------------------------------------------------------------------


def validation(images: Images, run: Run) -> dict[str, Any]:
    """`fit`'s arguments for validation; none where there is nothing to validate with."""
    import keras

    n, size = validation_count(images, run), run.batch_size
    if not n or run.input_mode == "resident":
        return {}
    if run.input_mode == "keydana":
        return {"validation_data": keydana.validation(images, run, n)}

    class Validation(keras.utils.PyDataset):
        """Not a generator: Keras opens a generator once and would go on where it had stopped."""

        def __len__(self) -> int:
            return -(-n // size)

        def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
            chosen = slice(i * size, min((i + 1) * size, n))
            return images.val_x[chosen], images.val_y[chosen]

    return {"validation_data": Validation()}


def validation_count(images: Images, run: Run) -> int:
    """How many examples are validated with: replicas take none but equal parts of a batch.

    They are the first of the validation's, and all that a record says of it is said of them.
    """
    return len(images.val_x) - len(images.val_x) % run.replicas


def notes(images: Images, run: Run) -> tuple[str, ...]:
    """What a reader should know of the dataset and of how the run uses it, as sentences."""
    if run.phase != "train" or run.input_mode == "resident":
        return images.notes
    of = len(images.val_x)
    n = of - validation_count(images, run)
    seen, looked = seen_in_training(images)
    copies = repeated(images)
    what = f"{tasks.of(run.dataset).example}s"
    shared = f"they cannot be shared equally by {run.replicas} replicas"
    cases = {
        f"{n} of {of} {what} not validated with: {shared}": n,
        f"{seen} of {looked} validation {what} {SEEN}": seen,
        f"{copies} of {of} validation {what} {REPEATED}": copies,
    }
    return (*images.notes, *(text for text, holds in cases.items() if holds))


def seen_in_training(images: Images) -> tuple[int, int]:
    """How many validation examples are, value for value, among those trained on, and of how many.

    Of a text, where its tokens stand anywhere in the text that is trained on.
    """
    seen, (x, _), (val, _) = images.seen, images.part("train"), images.part("val")
    if isinstance(x, texts.Windows):
        seen = texts.seen(x, val)
    elif seen is None and len(val):
        known = set(map(cache.fingerprint, x))
        seen = sum(image in known for image in map(cache.fingerprint, val))
    return seen or 0, len(val)


def repeated(images: Images) -> int:
    """How many validation images are, pixel for pixel, another one of them once more.

    They say no more than the first of each does. None of a text: short sequences recur in any.
    """
    if images.repeated is not None or isinstance(images.train_x, texts.Windows):
        return images.repeated or 0
    return len(images.val_x) - len(set(map(cache.fingerprint, images.val_x)))
