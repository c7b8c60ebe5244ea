"""The input pipeline of S. Keydana's study, which is a suspect and so a part of the measurement.

Resize, scale to [0, 1], cache in float32, shuffle with a small buffer, batch; no parallel map, no
prefetch. Source: S. Keydana, First experiments with TensorFlow mixed-precision training, 2020.
"""

from collections.abc import Iterator
from typing import Any

from mptexp.spec.run import Run
from mptexp.training.data import decoding
from mptexp.training.data.datasets import Images


def stream(images: Images, run: Run) -> Any:
    """The study's tf.data stream of one epoch: float32 images in [0, 1] and labels.

    The shuffle buffer holds as many images as an epoch has batches, as in the study.
    """
    import tensorflow as tf

    size, n = (run.image_size, run.image_size), len(images.train_x)
    grey = images.shape[-1] == 1

    def scaled(x: Any, y: Any) -> tuple[Any, Any]:
        x = tf.image.rgb_to_grayscale(x) if grey and x.shape[-1] == 3 else x
        return tf.image.resize(x, size) / 255, y

    with tf.device("CPU"):
        batches = _originals(images).map(scaled).cache()
        batches = batches.shuffle(max(1, (n + 1) // run.batch_size), run.seed).batch(run.batch_size)
    return _in_the_same_order(batches) if run.replicas > 1 else batches


def _in_the_same_order(batches: Any) -> Any:
    """The stream, shared among replicas, in the order in which one replica gets it.

    Each opening of the stream shuffles anew, and under a strategy Keras opens it once before it
    trains, to learn what a batch looks like. That first opening gives one blank image.
    """
    import tensorflow as tf

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


def _originals(images: Images) -> Any:
    """A tf.data stream of whole images, uint8 at their own sizes, and labels."""
    import tensorflow as tf

    source = images.source
    if source is None:
        return tf.data.Dataset.from_tensor_slices((images.train_x[:], images.train_y))
    if source.stream:
        return source.stream("train")

    def readable() -> Iterator[tuple[bytes, int]]:
        for name, data, label in source.examples("train"):
            if name not in images.broken:
                yield data, label

    def decoded(data: Any, label: Any) -> tuple[Any, Any]:
        x = tf.numpy_function(lambda b: decoding.decode(b, "rgb"), [data], tf.uint8)
        return tf.ensure_shape(x, (None, None, 3)), label

    signature = (tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.int64))
    encoded = tf.data.Dataset.from_generator(readable, output_signature=signature)
    known = tf.data.experimental.assert_cardinality(len(images.train_x))
    return encoded.apply(known).map(decoded)
