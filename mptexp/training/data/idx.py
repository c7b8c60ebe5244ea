"""Images in idx files, the form in which MNIST is distributed.

Two zero bytes, the type (8: unsigned byte), the number of axes, their lengths as big-endian 32-bit
integers, the values. Source: Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST database of
handwritten digits. numpy reads the format in three lines; the rest of this module says what is
wrong with a file, which the readers on PyPI do not.
"""

import gzip
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mptexp.training.data import image_folders
from mptexp.training.data.sources import DataError

PARTS = {"train": "train", "val": "t10k"}
AXES = {"images": 3, "labels": 1}
UNSIGNED_BYTE = 8
MOST_BYTES = 2**29  # that are read of a file: MNIST's largest has 2^26


class Part(NamedTuple):
    """One part of a dataset: uint8 images, shape (n, height, width), and int64 labels."""

    x: np.ndarray
    y: np.ndarray


def read(dataset: str) -> dict[str, Part]:
    """The training and the validation part of a dataset `idx:PATH`, by the names of PARTS.

    Files are named as MNIST's, train-images-idx3-ubyte and so on, with a dot or a dash before idx,
    each with or without .gz.

    Raises:
        DataError: where a file is absent or damaged, or the four do not fit together.
    """
    root = image_folders.path_of(dataset)
    parts = {part: _part(root, stem, dataset) for part, stem in PARTS.items()}
    train, val = parts["train"], parts["val"]
    if train.x.shape[1:] != val.x.shape[1:]:
        sizes = [" x ".join(map(str, part.x.shape[1:])) for part in (train, val)]
        raise DataError(
            f"dataset {dataset}: images of {sizes[0]} to train on, of {sizes[1]} to validate with; "
            "both must be of one size"
        )
    labels = set(train.y.tolist())
    # Labels count from 0 and there are at least two classes, each with a training image.
    needed = {*range(max(labels) + 1), 1, *val.y.tolist()}
    if missing := sorted(needed - labels):
        raise DataError(f"dataset {dataset}: no training image has the label {missing[0]}")
    return parts


def _part(root: Path, stem: str, dataset: str) -> Part:
    x, y = (_array(root, f"{stem}-{kind}", axes, dataset) for kind, axes in AXES.items())
    if len(x) != len(y):
        raise DataError(
            f"dataset {dataset}: {stem} has {len(x)} images and {len(y)} labels; both must be as "
            "many"
        )
    if not x.size:
        raise DataError(f"dataset {dataset}: {stem} holds no images")
    return Part(x, y.astype(np.int64))


def _array(root: Path, stem: str, axes: int, dataset: str) -> np.ndarray:
    """What the file of a part's images or labels holds, uint8."""
    names = [f"{stem}{mark}idx{axes}-ubyte{end}" for end in ("", ".gz") for mark in "-."]
    path = next((root / name for name in names if (root / name).is_file()), None)
    if path is None:
        raise DataError(f"dataset {dataset}: has no file {names[0]} or {names[0]}.gz")
    start = 4 + 4 * axes
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(start)
            shape = np.frombuffer(head[4:], ">u4", len(head[4:]) // 4).astype(np.int64).tolist()
            wanted = int(np.prod(shape, dtype=object))
            # A byte more, and not all that a compressed file may unfold to.
            data = file.read(min(wanted, MOST_BYTES) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"dataset {dataset}: {path.name} cannot be read: {error}") from None
    if head[:4] != bytes([0, 0, UNSIGNED_BYTE, axes]) or len(head) < start:
        raise DataError(
            f"dataset {dataset}: {path.name} is no idx file of bytes with {axes} "
            f"{'axes' if axes > 1 else 'axis'}"
        )
    if wanted > MOST_BYTES:
        raise DataError(
            f"dataset {dataset}: {path.name} holds {wanted:,} values; at most {MOST_BYTES:,} are "
            "read; use folder:PATH"
        )
    if len(data) != wanted:
        has = f"{len(data):,}" if len(data) < wanted else "more"
        raise DataError(
            f"dataset {dataset}: {path.name} has {has} values, but its head says {wanted:,}"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)
