"""Named datasets, and the stream of batches that every policy of a block sees alike."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from mptexp.spec import Run


@dataclass(frozen=True)
class Images:
    """A dataset in memory: uint8 pictures of shape (n, height, width, channels), integer labels.

    Scaling to [0, 1] is the model's first layer: the copy to the device is a quarter of the size.
    """

    train_x: np.ndarray
    train_y: np.ndarray
    val_x: np.ndarray
    val_y: np.ndarray
    classes: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels of one picture."""
        return self.train_x.shape[1:]


def load(run: Run) -> Images:
    """The dataset that the run names, at the run's image size."""
    return DATASETS[run.dataset](run.image_size)


def digits(image_size: int) -> Images:
    """Scikit-learn's 1,797 bundled handwritten digits, 8 x 8 in 16 grey levels, resized.

    The stratified split (1,437 and 360) is seeded and part of the dataset: no run changes it.
    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    source = load_digits()
    pictures = [Image.fromarray(p) for p in np.rint(source.images * (255 / 16)).astype(np.uint8)]
    size = (image_size, image_size)
    x = np.stack([np.asarray(p.resize(size, Image.Resampling.BILINEAR)) for p in pictures])
    split = train_test_split(
        x[..., None], source.target, test_size=360, stratify=source.target, random_state=0
    )
    train_x, val_x, train_y, val_y = split
    return Images(train_x, train_y, val_x, val_y, tuple("0123456789"))


DATASETS = {"digits": digits}


def steps_per_epoch(images: Images, batch_size: int) -> int:
    """Full batches in one pass over the training images; at least 1."""
    return max(1, len(images.train_x) // batch_size)


def order(images: Images, run: Run) -> np.ndarray:
    """Indices of the training images in the order in which the run sees them, shape (steps, batch).

    Seeded permutations, one after another: what does not fill a batch at the end of a pass opens
    the next epoch, so nothing is dropped and all batches have one shape (one compilation). The
    order depends on the seed, never on the policy or the backend.
    """
    n = len(images.train_x)
    steps = steps_per_epoch(images, run.batch_size) * run.epochs
    passes = -(-steps * run.batch_size // n)
    random = np.random.default_rng(run.seed)
    stream = np.concatenate([random.permutation(n) for _ in range(passes)])
    return stream[: steps * run.batch_size].reshape(steps, run.batch_size)


def batches(images: Images, run: Run) -> Any:
    """The training batches of all epochs, one after another, in the form `fit` takes.

    For TensorFlow a tf.data pipeline that gathers and prefetches outside Python; for the other
    backends a generator of NumPy batches. Both yield (uint8 pictures, labels) in `order`.
    """
    indices = order(images, run)
    return (
        _tf_batches(images, indices) if run.backend == "tensorflow" else _generator(images, indices)
    )


def _generator(images: Images, indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for chosen in indices:
        yield images.train_x[chosen], images.train_y[chosen]


def _tf_batches(images: Images, indices: np.ndarray) -> Any:
    import tensorflow as tf

    with tf.device("CPU"):  # the pictures stay on the host; batches are copied, as in real training
        x, y = tf.constant(images.train_x), tf.constant(images.train_y)
        chosen = tf.data.Dataset.from_tensor_slices(indices)
    gather = chosen.map(lambda i: (tf.gather(x, i), tf.gather(y, i)), tf.data.AUTOTUNE)
    return gather.prefetch(tf.data.AUTOTUNE)
