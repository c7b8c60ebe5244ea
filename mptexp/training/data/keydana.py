"""The input pipeline of S. Keydana's study, which is a suspect and so a part of the measurement.

Resize (tf.image.resize, without antialiasing), scale to [0, 1], cache in float32, shuffle with a
small buffer, batch; no parallel map, no prefetch. The study's times are of late epochs, which read
the cache alone: it is filled before the first step. Validation images are resized alike, and not
cached. Source: S. Keydana, First experiments with TensorFlow mixed-precision
training, 2020.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mptexp.host import imports
from mptexp.spec.run import Run
from mptexp.training.data import decoding
from mptexp.training.data.datasets import Images

if TYPE_CHECKING:
    import tensorflow as tf
else:  # imported at first use
    tf = imports.Lazy("tensorflow")


def stream(images: Images, run: Run) -> Any:
    """The study's tf.data stream of one epoch: float32 images in [0, 1] and labels.

    Its cache is filled here, which takes as long as decoding and resizing all images does.
    The shuffle buffer holds as many images as an epoch has batches, as in the study.
    """
    with tf.device("CPU"):
        images_in_order = scaled(images, run, "train").cache()
        for _ in images_in_order:  # else a run of a few steps would time the filling
            pass
        batches = _shuffled(images_in_order, len(images.train_x), run).batch(run.batch_size)
    return _in_the_same_order(batches) if run.replicas > 1 else batches


def validation(images: Images, run: Run, count: int) -> Any:
    """The first `count` validation images in batches, resized and scaled as those of training."""
    with tf.device("CPU"):
        return scaled(images, run, "val").take(count).batch(run.batch_size)


def scaled(images: Images, run: Run, part: str) -> Any:
    """The images of "train" or "val" one by one: float32 in [0, 1], and labels."""
    size, grey = (run.image_size, run.image_size), images.shape[-1] == 1

    def one(x: Any, y: Any) -> tuple[Any, Any]:
        x = tf.image.rgb_to_grayscale(x) if grey and x.shape[-1] == 3 else x
        x = tf.image.grayscale_to_rgb(x) if not grey and x.shape[-1] == 1 else x
        return tf.image.resize(x, size) / 255, y

    return _originals(images, part).map(one)


def order(n: int, run: Run) -> np.ndarray:
    """Indices of the images in the order in which `stream` gives them, shape (epochs * n,).

    By the same shuffling of the numbers themselves; n is how many images there are.
    """
    with tf.device("CPU"):
        numbers = _shuffled(tf.data.Dataset.range(n), n, run).batch(n)
        epochs = [next(numbers.as_numpy_iterator()) for _ in range(run.epochs)]
    return np.concatenate(epochs)


def _shuffled(elements: Any, n: int, run: Run) -> Any:
    return elements.shuffle(max(1, (n + 1) // run.batch_size), run.seed)


def _in_the_same_order(batches: Any) -> Any:
    """The stream, shared among replicas, in the order in which one replica gets it.

    Each opening of the stream shuffles anew, and under a strategy Keras opens it once before it
    trains, to learn what a batch looks like. That first opening gives one blank image.
    """
    shared = tf.distribute.get_strategy().experimental_distribute_dataset(batches)
    blank = [tf.zeros([1, *spec.shape[1:]], spec.dtype) for spec in batches.element_spec]

    class Stream(type(shared)):  # Keras takes no other kind
        element_spec, cardinality = shared.element_spec, shared.cardinality

        def __init__(self) -> None:
            self.opened = False

        def __iter__(self) -> Iterator[Any]:
            opened, self.opened = self.opened, True
            return iter(shared if opened else [tuple(blank)])

    return Stream()


def _originals(images: Images, part: str) -> Any:
    """A tf.data stream of whole images, uint8 at their own sizes, and labels."""
    source, (x, y) = images.source, images.part(part)
    if source is None:
        return tf.data.Dataset.from_tensor_slices((x[:], y))
    if source.stream:
        return source.stream(part)

    def readable() -> Iterator[tuple[bytes, int]]:
        for name, data, label in source.examples(part):
            if name not in images.broken:
                yield data, label

    def decoded(data: Any, label: Any) -> tuple[Any, Any]:
        x = tf.numpy_function(lambda b: decoding.decode(b, "rgb"), [data], tf.uint8)
        return tf.ensure_shape(x, (None, None, 3)), label

    signature = (tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.int64))
    encoded = tf.data.Dataset.from_generator(readable, output_signature=signature)
    known = tf.data.experimental.assert_cardinality(len(y))
    return encoded.apply(known).map(decoded)
