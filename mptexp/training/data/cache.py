"""Prepared pictures: decoded and resized once, kept as raw uint8, shared by all runs.

A folder under the cache, named by its content, holds `train.u8` and `val.u8` (pictures one after
another, each height x width x channels bytes) and `meta.json`. It is made beside, under a lock, and
renamed, so that it is whole or absent; a damaged one is noticed and made again.
"""

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mptexp.records import store
from mptexp.training.data import decoding
from mptexp.training.data.decoding import Broken
from mptexp.training.data.sources import DataError, Example, Source, cache_dir, digest, some
from mptexp.training.machine import cores

VERSION = 1  # of the way pictures are decoded and kept: a change makes another folder
PARTS = ("train", "val")


class Stored:
    """Pictures in a file, read when they are asked for: uint8, shape (n, height, width, channels).

    Not np.memmap: pages that were touched would count as this process's memory, and a batch would
    be copied under Python's lock. Reads are thread-safe.
    """

    def __init__(self, path: Path, shape: tuple[int, int, int, int]) -> None:
        self.shape = shape
        self._file = os.open(path, os.O_RDONLY)
        self._size = int(np.prod(shape[1:]))

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> np.ndarray:
        """The pictures at some places: a slice, or an array of indices of any shape (k,)."""
        places = np.arange(len(self))[chosen]
        batch = np.empty((*places.shape, *self.shape[1:]), np.uint8)
        rows = batch.reshape(-1, self._size)
        for row, place in zip(rows, places.reshape(-1), strict=True):
            self._read(memoryview(row), int(place) * self._size)
        return batch

    def _read(self, row: memoryview, offset: int) -> None:
        done = 0
        while done < len(row):  # a read may be short
            got = os.preadv(self._file, [row[done:]], offset + done)
            if not got:
                raise OSError("the prepared pictures end too early; they were cut off in use")
            done += got


@dataclass(frozen=True)
class Prepared:
    """Prepared pictures of a source at one size; `meta` is what meta.json holds."""

    folder: Path
    meta: dict[str, Any]

    def images(self, part: str) -> Stored:
        """The pictures of "train" or "val"."""
        n = len(self.meta["labels"][part])
        return Stored(self.folder / f"{part}.u8", (n, *self.meta["shape"]))

    def labels(self, part: str) -> np.ndarray:
        """The labels of "train" or "val", int64, shape (n,)."""
        return np.array(self.meta["labels"][part], np.int64)


def prepare(source: Source, image_size: int, color_mode: str, on_broken: str) -> Prepared:
    """The prepared pictures of a source, made now if they are absent or damaged.

    Says what it makes and how large it will be before it makes it, and which pictures cannot be
    read.

    Args:
        source: where the pictures come from.
        image_size: height and width.
        color_mode: rgb or grayscale.
        on_broken: "skip" leaves out the pictures that cannot be read, "refuse" raises.

    Raises:
        DataError: where there is no room, a class has no readable picture, or broken pictures are
            refused.
    """
    shape = [image_size, image_size, decoding.CHANNELS[color_mode]]
    key = digest([VERSION, source.identity, shape])
    folder = cache_dir() / key
    try:
        with _locked(folder):
            meta = _intact(folder) or _make(folder, source, shape, color_mode)
    except OSError as error:
        raise DataError(
            f"dataset {source.name}: cannot be prepared in {cache_dir()}: "
            f"{error.strerror or error}; name another place with --data-dir"
        ) from None
    if meta["broken"]:
        _tell_broken(source, meta["broken"], on_broken)
    return Prepared(folder, meta)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time makes or checks a folder; the others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _intact(folder: Path) -> dict[str, Any] | None:
    """What meta.json says, or None where the folder is absent or not as it was made."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        whole = all(_file_intact(folder / name, meta["files"][name]) for name in _names())
    except (OSError, ValueError, KeyError, TypeError):
        whole = False
    if whole:
        return dict(meta)
    if folder.exists():
        print(f"the prepared pictures in {folder.name} are damaged; they are made again")
    return None


def _names() -> list[str]:
    return [f"{part}.u8" for part in PARTS]


def _file_intact(path: Path, made: dict[str, int]) -> bool:
    """By size and time; the contents are read only where the time is another (a copied cache)."""
    found = path.stat()
    if found.st_size != made["bytes"]:
        return False
    return found.st_mtime_ns == made["mtime_ns"] or _checksum(path) == made["crc32"]


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            found = zlib.crc32(block, found)
    return found


def _make(folder: Path, source: Source, shape: list[int], color_mode: str) -> dict[str, Any]:
    count = sum(source.counts.values())
    size = count * int(np.prod(shape))
    _check_room(folder.parent, source, size)
    what = "x".join(map(str, shape))
    print(
        f"preparing {count:,} pictures of {source.name} at {what}: {_bytes(size)} in "
        f"{folder.parent}",
        flush=True,
    )
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    partial.mkdir()
    try:
        meta = _write(partial, source, shape, color_mode)
        store.write_text(partial / "meta.json", json.dumps(meta, ensure_ascii=False))
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return meta


def _check_room(place: Path, source: Source, size: int) -> None:
    free = shutil.disk_usage(place).free
    if size > free:
        raise DataError(
            f"dataset {source.name}: preparing it takes {_bytes(size)} in {place}, which has "
            f"{_bytes(free)} free; make room, take a smaller image_size, or name another place "
            "with --data-dir"
        )


def _bytes(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"


def _write(folder: Path, source: Source, shape: list[int], color_mode: str) -> dict[str, Any]:
    labels: dict[str, list[int]] = {}
    broken: list[list[str]] = []
    files = {}
    for part in PARTS:
        path, labels[part], crc32 = folder / f"{part}.u8", [], 0
        with path.open("wb") as file:
            for name, label, picture in _decoded(source.examples(part), shape[0], color_mode):
                if isinstance(picture, Broken):
                    broken.append([name, str(picture)])
                    continue
                file.write(picture.data)
                crc32 = zlib.crc32(picture.data, crc32)
                labels[part].append(label)
        found = path.stat()
        files[path.name] = {
            "bytes": found.st_size,
            "crc32": crc32,
            "mtime_ns": found.st_mtime_ns,
        }
    _check_classes(source, labels["train"], broken)
    return {
        "dataset": source.name,
        "classes": list(source.classes),
        "shape": shape,
        "labels": labels,
        "broken": broken,
        "files": files,
        "content": digest([files[name]["crc32"] for name in _names()]),
    }


def _decoded(
    examples: Iterator[Example], image_size: int, color_mode: str
) -> Iterator[tuple[str, int, np.ndarray | Broken]]:
    """Decoded by several threads, in order, a few at a time."""

    def one(example: Example) -> tuple[str, int, np.ndarray | Broken]:
        name, data, label = example
        try:
            picture = decoding.decode(data, color_mode, image_size)
            return name, label, np.ascontiguousarray(picture)
        except Broken as error:
            return name, label, error

    with ThreadPoolExecutor(cores()) as pool:
        while chunk := list(islice(examples, 256)):
            yield from pool.map(one, chunk)


def _check_classes(source: Source, labels: Sequence[int], broken: list[list[str]]) -> None:
    present = set(labels)
    missing = [name for i, name in enumerate(source.classes) if i not in present]
    if missing:
        raise DataError(
            f"dataset {source.name}: no readable training picture in {some(missing)}; "
            f"broken: {some([name for name, _ in broken])}"
        )


def _tell_broken(source: Source, broken: list[list[str]], on_broken: str) -> None:
    shown = some([f"{name} ({why})" for name, why in broken], 10)
    noun, were = ("picture", "was") if len(broken) == 1 else ("pictures", "were")
    if on_broken == "refuse":
        raise DataError(
            f"dataset {source.name}: {len(broken)} {noun} cannot be read: {shown}; mend or remove, "
            "or allow on_broken: skip"
        )
    print(f"{source.name}: {len(broken)} {noun} cannot be read and {were} left out: {shown}")
