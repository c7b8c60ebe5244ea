"""Prepared data: images decoded and resized once, texts as tokens, shared by all runs.

A folder under the cache, named by its content, holds a file for training and one for validation
(of images `train.u8` and `val.u8`, one image after another, each height x width x channels bytes)
and `meta.json`. It is made under another name, while
a lock is held, and then renamed, so that it is whole or absent; a damaged one is made again.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mptexp.host.terminal import visible
from mptexp.records import store
from mptexp.training.data import decoding
from mptexp.training.data.decoding import Broken
from mptexp.training.data.sources import DataError, Example, Source, cache_dir, digest, some
from mptexp.training.machine_state import cores

VERSION = 3  # of the way images are decoded and stored: another one takes another folder
CHUNK = 256  # encoded images that are read before they are decoded together
CHUNK_BYTES = 2**26
TOGETHER = 16  # of them, at most, by one thread
PARTS = ("train", "val")
ALIGNMENT = 64  # bytes; TensorFlow's and JAX's on all processors


class Stored:
    """Images in a file, read when they are indexed: uint8, shape (n, height, width, channels).

    It is no np.memmap, whose pages would count as this process's memory once they were touched, and
    which copies a batch under Python's lock. Reads are thread-safe.
    """

    def __init__(self, path: Path, shape: tuple[int, int, int, int]) -> None:
        self.shape, self.dtype = shape, np.dtype(np.uint8)
        self._indices = np.arange(shape[0])
        self._file = os.open(path, os.O_RDONLY)
        self._size = int(np.prod(shape[1:]))

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> np.ndarray:
        """The images at a slice, or at an array of indices of any shape (k,)."""
        indices = self._indices[chosen]
        batch = aligned(indices.size * self._size)
        rows = memoryview(batch)
        for place, index in enumerate(indices.reshape(-1).tolist()):
            row = rows[place * self._size : (place + 1) * self._size]
            self._read(row, index * self._size)
        return batch.reshape(*indices.shape, *self.shape[1:])

    def _read(self, row: memoryview, offset: int) -> None:
        done = 0
        while done < len(row):  # a read may be short
            got = os.preadv(self._file, [row[done:]], offset + done)
            if not got:
                raise OSError("the prepared images end too early; they were cut off in use")
            done += got


def aligned(size: int) -> np.ndarray:
    """So many bytes, that begin where frameworks take an array over as it is, without a copy."""
    room = np.empty(size + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    return room[begin : begin + size]


@dataclass(frozen=True)
class Prepared:
    """A folder of prepared data, such as a source's images; `meta` is what meta.json holds."""

    folder: Path
    meta: dict[str, Any]

    def images(self, part: str) -> Stored:
        """The images of "train" or "val"."""
        n = len(self.meta["labels"][part])
        return Stored(self.folder / f"{part}.u8", (n, *self.meta["shape"]))

    def labels(self, part: str) -> np.ndarray:
        """The labels of "train" or "val", int64, shape (n,)."""
        return np.array(self.meta["labels"][part], np.int64)


def prepare(source: Source, image_size: int, color_mode: str, on_broken: str) -> Prepared:
    """The prepared images of a source, made now if they are absent or damaged.

    It prints what it makes and how large that will be before it makes it, and which images cannot
    be read: `on_broken` "skip" leaves them out, "refuse" raises.

    Raises:
        DataError: where there is no room, a class has no readable image, or broken images are
            refused.
    """
    shape = [image_size, image_size, decoding.CHANNELS[color_mode]]
    count = sum(source.counts.values())
    what = (
        f"{count:,} images of {source.name} at {'x'.join(map(str, shape))} "
        f"({source.counts['train']:,} to train on, {source.counts['val']:,} to validate with; "
        f"{len(source.classes)} classes: {some(source.classes)})"
    )
    prepared = kept(
        source.name,
        digest([VERSION, source.identity, shape]),
        what,
        count * int(np.prod(shape)),
        lambda partial: _write(partial, source, shape, color_mode),
    )
    if broken := prepared.meta["broken"]:
        _report_broken(source, broken, on_broken)
    return prepared


def kept(
    dataset: str, key: str, what: str, size: int, make: Callable[[Path], dict[str, Any]]
) -> Prepared:
    """A folder of the cache, made now if it is absent or damaged.

    Args:
        dataset: its name, for messages.
        key: of the folder, a digest of all that decides its content.
        what: what is made, for the line that says so.
        size: bytes that it takes.
        make: writes files into an empty folder, and returns what meta.json is to hold: at least
            sha256, the digest of each file by its name.

    Raises:
        DataError: where it cannot be written, there is no room, or `make` refuses.
    """
    folder = cache_dir() / key
    try:
        with _locked(folder):
            meta = _intact(folder) or _make(folder, dataset, what, size, make)
    except OSError as error:
        # What was prepared can be used where nothing can be written beside it.
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and (known := _intact(folder)):
            return Prepared(folder, known)
        raise DataError(
            f"dataset {dataset}: cannot be prepared in {cache_dir()}: "
            f"{error.strerror or error}; name another place with --data-dir"
        ) from None
    return Prepared(folder, meta)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time makes or checks a folder; the others wait.

    The system releases the lock of a process that dies. filelock's lock on Linux and macOS is this
    very call; with it these four lines would need one more dependency.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another process that prepares the same data", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _intact(folder: Path) -> dict[str, Any] | None:
    """What meta.json holds, or None where the folder is absent or not as it was made."""
    # What nests deeper than Python's stack is a RecursionError.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        signed = meta.pop("digest") == digest(meta) and meta["key"] == folder.name
        if signed and _files_intact(folder, meta):
            return dict(meta)
    return None


def _files_intact(folder: Path, meta: dict[str, Any]) -> bool:
    """Whether the files are as they were made.

    By size, times and inode, which takes no time. Their contents are read, a second for 1 to 2 GB,
    only where those are others, as in a copied cache; where they prove whole, it is noted.
    """
    states = {name: _state(folder / name) for name in meta["sha256"]}
    if states == meta["states"]:
        return True
    if any(_sha256(folder / name) != known for name, known in meta["sha256"].items()):
        return False
    with contextlib.suppress(OSError):  # only speed is lost
        _write_meta(folder, meta | {"states": states})
    return True


def _state(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_meta(folder: Path, meta: dict[str, Any]) -> None:
    signed = meta | {"digest": digest(meta)}
    store.write_text(folder / "meta.json", json.dumps(signed, ensure_ascii=False))


def _make(
    folder: Path, dataset: str, what: str, size: int, make: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    if os.path.lexists(folder):
        print(f"the prepared data in {folder.name} is damaged; it is made again")
    partial = folder.with_suffix(".partial")
    for left in (partial, folder):  # by a process that was killed, or damaged
        _remove(left)
    _check_room(folder.parent, dataset, size)
    print(visible(f"preparing {what}: {_bytes(size)} in {folder.parent}"), flush=True)
    partial.mkdir()
    try:
        meta = make(partial) | {"key": folder.name}
        meta["states"] = {name: _state(partial / name) for name in meta["sha256"]}
        _write_meta(partial, meta)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return meta


def _remove(left: Path) -> None:
    """Removes what stands in a folder's place; of a link, the link alone."""
    if left.is_dir() and not left.is_symlink():
        shutil.rmtree(left, ignore_errors=True)
    else:
        left.unlink(missing_ok=True)


def _check_room(place: Path, dataset: str, size: int) -> None:
    free = shutil.disk_usage(place).free
    if size > free:
        raise DataError(
            f"dataset {dataset}: preparing it takes {_bytes(size)} in {place}, which has "
            f"{_bytes(free)} free; make room, take smaller images, or name another place "
            "with --data-dir"
        )


def _bytes(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"


def _write(folder: Path, source: Source, shape: list[int], color_mode: str) -> dict[str, Any]:
    """Writes the files of all parts; returns what meta.json is to hold."""
    labels: dict[str, list[int]] = {part: [] for part in PARTS}
    broken: list[list[str]] = []
    known: dict[str, set[bytes]] = {part: set() for part in PARTS}
    hashes, brightest, seen = {}, 0, 0
    for part in PARTS:
        path, content = folder / f"{part}.u8", hashlib.sha256()
        with path.open("wb") as file:
            for several in _decoded(source.examples(part), shape[0], color_mode):
                broken += [[each.name, each.broken] for each in several if each.broken]
                whole = [each for each in several if not each.broken]
                pixels = b"".join(each.pixels for each in whole)
                file.write(pixels)
                content.update(pixels)
                labels[part] += [each.label for each in whole]
                brightest = max([brightest, *(each.brightest for each in whole)])
                known[part].update(each.fingerprint for each in whole)
                if part == "val":
                    seen += sum(each.fingerprint in known["train"] for each in whole)
        hashes[path.name] = content.hexdigest()
    broken.sort()
    _check_classes(source, labels, broken)
    return {
        "dataset": source.name,
        "classes": list(source.classes),
        "shape": shape,
        "labels": labels,
        "broken": broken,
        "brightest": brightest,
        "seen": seen,
        "repeated": len(labels["val"]) - len(known["val"]),
        "sha256": hashes,
        "content": digest([hashes, labels, list(source.classes)]),
    }


def fingerprint(image: np.ndarray) -> bytes:
    """What two images share if, and only if, they are alike pixel for pixel."""
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()


class Decoded(NamedTuple):
    """An image as it is stored, or what is wrong with it, and what is to be known of it."""

    name: str
    label: int
    pixels: bytes = b""
    fingerprint: bytes = b""
    brightest: int = 0
    broken: str = ""


def _decoded(
    examples: Iterator[Example], image_size: int, color_mode: str
) -> Iterator[list[Decoded]]:
    """The images, some at a time, in order, decoded by several threads.

    Some at a time, as a thread that hands one over waits for the others to let go of Python's
    lock: longer, where images are small, than it takes to decode them.
    """

    def one(example: Example) -> Decoded:
        name, data, label = example
        try:
            if isinstance(data, Broken):
                raise data
            image = decoding.decode(data, color_mode, image_size)
        except Broken as error:
            return Decoded(name, label, broken=str(error))
        except MemoryError:  # of this moment, and no fault of the image
            raise DataError(
                f"there is no memory to decode {name}; end other programs, or make it smaller"
            ) from None
        return Decoded(name, label, image.tobytes(), fingerprint(image), int(image.max()))

    def together(examples: list[Example]) -> list[Decoded]:
        return [one(example) for example in examples]

    with ThreadPoolExecutor(cores()) as pool:
        while chunk := _chunk(examples):
            size = min(TOGETHER, -(-len(chunk) // cores()))  # of few large ones each has some
            several = (chunk[i : i + size] for i in range(0, len(chunk), size))
            yield from pool.map(together, several)


def _chunk(examples: Iterator[Example]) -> list[Example]:
    """The next examples: CHUNK of them, or fewer where they are large."""
    chunk, size = [], 0
    for example in islice(examples, CHUNK):
        chunk.append(example)
        size += 0 if isinstance(example[1], Broken) else len(example[1])
        if size > CHUNK_BYTES:
            break
    return chunk


def _check_classes(source: Source, labels: dict[str, list[int]], broken: list[list[str]]) -> None:
    """Refuses data of which what can be read is not enough.

    Raises:
        DataError: where a class has no training image, or there is none to validate with.
    """
    present = set(labels["train"])
    missing = [name for i, name in enumerate(source.classes) if i not in present]
    if missing:
        raise DataError(
            f"dataset {source.name}: no readable training image in {some(missing)}; "
            f"broken: {_shown(broken)}"
        )
    if source.counts["val"] and not labels["val"]:
        raise DataError(
            f"dataset {source.name}: none of its {source.counts['val']} validation images can be "
            f"read: {_shown(broken)}"
        )


def _shown(broken: list[list[str]], most: int = 5) -> str:
    return some([f"{name} ({why})" for name, why in broken], most)


def _report_broken(source: Source, broken: list[list[str]], on_broken: str) -> None:
    shown = _shown(broken, 10)
    noun, were = ("image", "was") if len(broken) == 1 else ("images", "were")
    if on_broken == "refuse":
        raise DataError(
            f"dataset {source.name}: {len(broken)} {noun} cannot be read: {shown}; mend or remove, "
            "or allow on_broken: skip"
        )
    left_out = f"{len(broken)} {noun} cannot be read and {were} left out: {shown}"
    print(visible(f"{source.name}: {left_out}"))
