"""Named datasets, and the stream of batches that every policy of a block sees alike."""

import os
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from mptexp.spec.run import Run
from mptexp.training.data import cache, decoding, folders, idx, tfds
from mptexp.training.data.sources import Source, digest

DIGITS = Path(__file__).with_name("digits.npz")
SYNTHETIC_POOL = 256  # distinct synthetic pictures: more would cost memory and tell nothing


class Pictures(Protocol):
    """uint8 pictures of shape (n, height, width, channels): an array, or something like one."""

    shape: tuple[int, ...]

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: Any) -> np.ndarray: ...


@dataclass(frozen=True)
class Images:
    """A dataset at one size: uint8 pictures, int64 labels.

    Scaling to [0, 1] is the model's first layer: the copy to the device is a quarter of the size.

    Attributes:
        classes: names of the classes.
        content: hash that names the training and validation pictures.
        notes: what a reader should know, as sentences.
        source: the encoded pictures they were prepared from, where they were.
        broken: names of the source's pictures that could not be read.
    """

    train_x: Pictures
    train_y: np.ndarray
    val_x: Pictures
    val_y: np.ndarray
    classes: tuple[str, ...]
    content: str = ""
    notes: tuple[str, ...] = ()
    source: Source | None = None
    broken: frozenset[str] = field(default_factory=frozenset)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels of one picture."""
        height, width, channels = self.train_x.shape[1:]
        return height, width, channels


def load(run: Run) -> Images:
    """The dataset that the run names, at the run's image size; prepared now where it must be.

    Raises:
        sources.DataError: where it is absent or cannot be used.
    """
    if run.dataset in DATASETS:
        return DATASETS[run.dataset](run)
    if run.dataset.startswith("idx:"):
        return idx_files(run)
    found = source(run)
    color_mode = found.color_mode if run.color_mode == "auto" else run.color_mode
    made = cache.prepare(found, run.image_size, color_mode, run.on_broken)
    broken = [name for name, _ in made.meta["broken"]]
    return Images(
        made.pictures("train"),
        made.labels("train"),
        made.pictures("val"),
        made.labels("val"),
        tuple(made.meta["classes"]),
        made.meta["content"],
        (*found.notes, *_broken_note(broken)),
        found,
        frozenset(broken),
    )


def source(run: Run) -> Source:
    """Where the pictures of the run's dataset come from, before they are prepared."""
    if run.dataset.startswith("folder:"):
        return folders.source(run.dataset, run.validation_split)
    return tfds.source(tfds.builder(run.dataset), run.validation_split)


def _broken_note(broken: list[str]) -> list[str]:
    noun = "picture" if len(broken) == 1 else "pictures"
    return [f"{len(broken)} {noun} of the dataset could not be read"] if broken else []


def digits(run: Run) -> Images:
    """The 1,797 handwritten digits that scikit-learn has too, 8 x 8 in 16 grey levels, resized.

    They lie here in a seeded stratified split (1,437 and 360), since importing scikit-learn takes
    longer than training on them.
    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998, CC BY 4.0.
    """
    with np.load(DIGITS) as bundled:
        train_x, val_x = (
            _resized(np.rint(bundled[name] * (255 / 16)).astype(np.uint8), run)
            for name in ("train_x", "val_x")
        )
        train_y, val_y = (bundled[name].astype(np.int64) for name in ("train_y", "val_y"))
    shape = (len(train_x) + len(val_x), *train_x.shape[1:])
    return Images(train_x, train_y, val_x, val_y, tuple("0123456789"), digest(["digits", shape]))


def idx_files(run: Run) -> Images:
    """The pictures of a dataset `idx:PATH`; its test set is validated with.

    Raises:
        sources.DataError: where it is absent or damaged.
    """
    parts = idx.read(run.dataset)
    train, val = parts["train"], parts["val"]
    content = digest([[zlib.crc32(array.tobytes()) for array in (p.x, p.y)] for p in (train, val)])
    classes = tuple(str(label) for label in range(int(train.y.max()) + 1))
    train_x, val_x = (_resized(part.x, run) for part in (train, val))
    return Images(train_x, train.y, val_x, val.y, classes, digest([content, train_x.shape]))


def _resized(grey: np.ndarray, run: Run) -> np.ndarray:
    """Grey pictures, uint8 of shape (n, height, width), in the run's size and color mode."""
    size = (run.image_size, run.image_size)
    if grey.shape[1:] != size:
        small = map(Image.fromarray, grey)
        grey = np.stack([np.asarray(p.resize(size, Image.Resampling.BILINEAR)) for p in small])
    channels = decoding.CHANNELS["rgb"] if run.color_mode == "rgb" else 1
    return np.repeat(grey[..., None], channels, -1)


class Repeated:
    """A few pictures that stand for many: picture i is picture i modulo their number."""

    def __init__(self, pool: np.ndarray, n: int) -> None:
        self.pool, self.shape = pool, (n, *pool.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> np.ndarray:
        return self.pool[np.arange(len(self))[chosen] % len(self.pool)]


def synthetic(run: Run) -> Images:
    """Random pictures with random labels, for throughput; there are none to validate with."""
    random = np.random.default_rng(0)
    channels = decoding.CHANNELS["grayscale" if run.color_mode == "grayscale" else "rgb"]
    shape = (min(run.synthetic_length, SYNTHETIC_POOL), run.image_size, run.image_size, channels)
    pool = random.integers(0, 256, shape, np.uint8)
    labels = random.integers(0, run.synthetic_classes, run.synthetic_length)
    return Images(
        Repeated(pool, run.synthetic_length),
        labels,
        pool[:0],
        labels[:0],
        tuple(map(str, range(run.synthetic_classes))),
        digest(["synthetic", shape, run.synthetic_classes, run.synthetic_length]),
        ("the pictures are random numbers: accuracies mean nothing",),
    )


DATASETS = {"digits": digits, "synthetic": synthetic}

# Pictures that may be shown in what is published; of other sets the owner's terms are not known.
FREE = ("digits", "synthetic", "tf_flowers", "flower_photos", "sign-language-digits")


def samples(images: Images, run: Run, most: int = 16) -> tuple[np.ndarray, list[str]]:
    """Pictures of the first batch and the names of their classes, to be looked at.

    None in a sweep, whose notebooks are published, where the pictures are not known to be free.
    """
    base = run.dataset.partition(":")[2].rstrip("/").rpartition("/")[2]
    free = (base or run.dataset.partition("/")[0]) in FREE
    shown = order(images, run)[0][: most if free or "MPTEXP_RUN_DIR" not in os.environ else 0]
    return images.train_x[shown], [images.classes[label] for label in images.train_y[shown]]


# --- batches ---------------------------------------------------------------------------------


def steps_per_epoch(images: Images, run: Run) -> int:
    """Batches in one pass over the training images: full ones; keydana's last may be smaller.

    Whole executions, where one holds several steps: Keras would begin another one all the same.
    """
    n, size = len(images.train_x), run.batch_size
    steps = -(-n // size) if run.input_mode == "keydana" else max(1, n // size)
    return steps - steps % run.steps_per_execution or steps


def order(images: Images, run: Run) -> np.ndarray:
    """Indices of the training images in the order in which the run sees them, shape (steps, batch).

    Seeded permutations, one after another: what does not fill a batch at the end of a pass opens
    the next epoch, so nothing is dropped and all batches have one shape (one compilation). The
    order depends on the seed, never on the policy or the backend.
    """
    n = len(images.train_x)
    steps = max(1, n // run.batch_size) * run.epochs
    passes = -(-steps * run.batch_size // n)
    random = np.random.default_rng(run.seed)
    stream = np.concatenate([random.permutation(n) for _ in range(passes)])
    return stream[: steps * run.batch_size].reshape(steps, run.batch_size)


def batches(images: Images, run: Run) -> Any:
    """The training batches of the run's input mode, in the form `fit` takes.

    pipeline: those of all epochs one after another, uint8 pictures and labels in `order`, read
    ahead; for TensorFlow a tf.data pipeline, for the other backends a generator.
    keydana: see `keydana`. resident: nothing but the number of pictures; see `models.resident`.
    """
    return INPUT_MODES[run.input_mode](images, run)


def pipeline(images: Images, run: Run) -> Any:
    """Batches in `order`, read ahead of the step that needs them."""
    indices = order(images, run)
    if run.backend != "tensorflow":
        return _read_ahead(images, indices)
    import tensorflow as tf

    def read(i: Any) -> tuple[Any, Any]:
        x = tf.numpy_function(images.train_x.__getitem__, [i], tf.uint8)
        return tf.ensure_shape(x, (run.batch_size, *images.shape)), tf.gather(labels, i)

    with tf.device("CPU"):  # batches are gathered on the host and copied, as in real training
        labels = tf.constant(images.train_y)
        chosen = tf.data.Dataset.from_tensor_slices(indices)
    return chosen.map(read, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _read_ahead(images: Images, indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    with ThreadPoolExecutor(1) as pool:
        waiting: deque = deque()
        for chosen in indices:
            waiting.append(
                (pool.submit(images.train_x.__getitem__, chosen), images.train_y[chosen])
            )
            if len(waiting) > 2:
                x, y = waiting.popleft()
                yield x.result(), y
        for x, y in waiting:
            yield x.result(), y


def keydana(images: Images, run: Run) -> Any:
    """The pipeline of S. Keydana's study, float32 pictures already scaled to [0, 1].

    Resize, scale, cache in float32, shuffle with a small buffer (of as many pictures as there are
    batches), batch; no parallel map, no prefetch. A part of the measurement, because it is a
    suspect. Source: S. Keydana, First experiments with TensorFlow mixed-precision training, 2020.
    """
    import tensorflow as tf

    size, n = (run.image_size, run.image_size), len(images.train_x)
    grey = images.shape[-1] == 1

    def scaled(x: Any, y: Any) -> tuple[Any, Any]:
        x = tf.image.rgb_to_grayscale(x) if grey and x.shape[-1] == 3 else x
        return tf.image.resize(x, size) / 255, y

    with tf.device("CPU"):
        stream = _originals(images).map(scaled).cache()
        stream = stream.shuffle(max(1, (n + 1) // run.batch_size), run.seed).batch(run.batch_size)
    return _in_the_same_order(stream) if run.replicas > 1 else stream


def _in_the_same_order(stream: Any) -> Any:
    """The stream, shared among replicas, in the order in which one replica sees it.

    Each opening of the stream shuffles anew, and under a strategy Keras opens it once before it
    trains, to see what a batch looks like. Then it is given a blank picture.
    """
    import tensorflow as tf

    shared = tf.distribute.get_strategy().experimental_distribute_dataset(stream)
    blank = [tf.zeros([1, *spec.shape[1:]], spec.dtype) for spec in stream.element_spec]

    class Stream(type(shared)):  # Keras takes no other kind
        element_spec, cardinality = shared.element_spec, shared.cardinality

        def __init__(self) -> None:
            self.looked_at = False

        def __iter__(self) -> Iterator[Any]:
            looked_at, self.looked_at = self.looked_at, True
            return iter(shared if looked_at else [tuple(blank)])

    return Stream()


def _originals(images: Images) -> Any:
    """A tf.data stream of whole pictures, uint8 at their own sizes, and labels."""
    import tensorflow as tf

    found = images.source
    if found is None:
        return tf.data.Dataset.from_tensor_slices((images.train_x[:], images.train_y))
    if found.stream:
        return found.stream("train")

    def readable() -> Iterator[tuple[bytes, int]]:
        for name, data, label in found.examples("train"):
            if name not in images.broken:
                yield data, label

    def decoded(data: Any, label: Any) -> tuple[Any, Any]:
        x = tf.numpy_function(lambda b: decoding.decode(b, "rgb"), [data], tf.uint8)
        return tf.ensure_shape(x, (None, None, 3)), label

    kinds = (tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.int64))
    known = tf.data.experimental.assert_cardinality(len(images.train_x))
    return (
        tf.data.Dataset.from_generator(readable, output_signature=kinds).apply(known).map(decoded)
    )


def resident(images: Images, run: Run) -> Any:
    """What `fit` is given where the step reads its pictures from the device: only a batch size."""
    steps = steps_per_epoch(images, run) * run.epochs
    if run.backend == "tensorflow":
        import tensorflow as tf

        nothing = tf.zeros(run.batch_size, tf.uint8)
        return tf.data.Dataset.from_tensors((nothing, nothing)).repeat(steps)
    import keras

    nothing = keras.ops.zeros(run.batch_size, "uint8")  # on the device already, so never copied
    return ((nothing, nothing) for _ in range(steps))


INPUT_MODES = {"pipeline": pipeline, "keydana": keydana, "resident": resident}


def validation(images: Images, run: Run) -> dict[str, Any]:
    """`fit`'s arguments for validation; none where there is nothing to validate with."""
    import keras

    n, size = len(images.val_x) - _left_out(images, run), run.batch_size
    if not n or run.input_mode == "resident":
        return {}
    scale = np.float32(255) if run.input_mode == "keydana" else None

    class Validation(keras.utils.PyDataset):
        """Not a generator: Keras opens that anew for each pass and gets other pictures then."""

        def __len__(self) -> int:
            return -(-n // size)

        def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
            chosen = slice(i * size, min((i + 1) * size, n))
            x = images.val_x[chosen]
            return x if scale is None else x / scale, images.val_y[chosen]

    return {"validation_data": Validation()}


def _left_out(images: Images, run: Run) -> int:
    """How many pictures are not validated with: replicas take none but equal parts of a batch."""
    return len(images.val_x) % run.replicas


def notes(images: Images, run: Run) -> tuple[str, ...]:
    """What a reader should know of the dataset and of how the run uses it, as sentences."""
    n = _left_out(images, run)
    if not n or run.phase != "train" or run.input_mode == "resident":
        return images.notes
    shared = f"they cannot be shared equally by {run.replicas} replicas"
    return (*images.notes, f"{n} of {len(images.val_x)} pictures not validated with: {shared}")
