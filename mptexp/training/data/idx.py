"""Pictures in idx files, the form in which MNIST is distributed.

Two zero bytes, the type (8: unsigned byte), the number of axes, their lengths as big-endian 32-bit
integers, the values. Source: Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST database of
handwritten digits.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mptexp.training.data import folders
from mptexp.training.data.sources import DataError

PARTS = {"train": "train", "val": "t10k"}
KINDS = {"images": 3, "labels": 1}
UNSIGNED_BYTE = 8


@dataclass(frozen=True)
class Idx:
    """One part of a data set: uint8 pictures, shape (n, height, width), and int64 labels."""

    x: np.ndarray
    y: np.ndarray


def read(dataset: str) -> dict[str, Idx]:
    """The training and the validation part of a dataset `idx:PATH`, by the names of PARTS.

    Files are named as MNIST's, train-images-idx3-ubyte and so on, with a dot or a dash before idx,
    each with or without .gz.

    Raises:
        DataError: where a file is absent or damaged, or the four do not fit together.
    """
    root = folders.path_of(dataset)
    parts = {part: _part(root, stem, dataset) for part, stem in PARTS.items()}
    train, val = parts["train"], parts["val"]
    if train.x.shape[1:] != val.x.shape[1:]:
        raise DataError(
            f"dataset {dataset}: pictures of {_size(train.x)} to train on, of {_size(val.x)} to "
            "validate with; both must be of one size"
        )
    missing = sorted(set(range(int(train.y.max()) + 1)) - set(train.y.tolist()))
    unknown = sorted(set(val.y.tolist()) - set(train.y.tolist()))
    if missing or unknown or not train.y.max():
        odd = missing or unknown or [1]
        raise DataError(f"dataset {dataset}: no training picture has the label {odd[0]}")
    return parts


def _part(root: Path, stem: str, dataset: str) -> Idx:
    x, y = (
        _array(_found(root, f"{stem}-{kind}", axes, dataset), axes, dataset)
        for kind, axes in KINDS.items()
    )
    if len(x) != len(y):
        raise DataError(
            f"dataset {dataset}: {stem} has {len(x)} pictures and {len(y)} labels; both must be as "
            "many"
        )
    if not x.size:
        raise DataError(f"dataset {dataset}: {stem} holds no pictures")
    return Idx(x, y.astype(np.int64))


def _found(root: Path, stem: str, axes: int, dataset: str) -> Path:
    names = [f"{stem}{mark}idx{axes}-ubyte{end}" for end in ("", ".gz") for mark in "-."]
    for name in names:
        if (root / name).is_file():
            return root / name
    raise DataError(f"dataset {dataset}: has no file {names[0]} or {names[0]}.gz")


def _array(path: Path, axes: int, dataset: str) -> np.ndarray:
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"dataset {dataset}: {path.name} cannot be read: {error}") from None
    start = 4 + 4 * axes
    if data[:4] != bytes([0, 0, UNSIGNED_BYTE, axes]) or len(data) < start:
        raise DataError(
            f"dataset {dataset}: {path.name} is no idx file of bytes with {axes} "
            f"{'axes' if axes > 1 else 'axis'}"
        )
    shape = np.frombuffer(data, ">u4", axes, 4).astype(np.int64).tolist()
    wanted = start + int(np.prod(shape, dtype=object))
    if len(data) != wanted:
        raise DataError(
            f"dataset {dataset}: {path.name} has {len(data):,} bytes, but its head says {wanted:,}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _size(x: np.ndarray) -> str:
    return f"{x.shape[1]} x {x.shape[2]}"
