"""Images in class folders on disk, as a source."""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from mptexp.records import store
from mptexp.spec import files, places
from mptexp.training.data import decoding
from mptexp.training.data.sources import (
    DataError,
    Example,
    Source,
    cache_dir,
    digest,
    some,
    stratified,
)


def source(dataset: str, validation_split: float) -> Source:
    """The images of a tree of class folders, with or without `train` and `val` above them.

    Without, a stratified split with a fixed seed keeps `validation_split` of each class for
    validation.

    Args:
        dataset: "folder:PATH"; a relative path begins at the working directory, or else at the
            project.
        validation_split: fraction of 1.

    Raises:
        DataError: where there is no such tree, or its parts do not fit together.
    """
    root = path_of(dataset)
    train, val = _trees(root)
    by_class, empty = _by_class(train, dataset)
    classes = list(by_class)
    lists = {"train": _listing(by_class.values())}
    if val:
        lists["val"] = _validation(val, classes, dataset)
    else:
        lists = _split(lists["train"], classes, validation_split, dataset)
    counts = {part: len(paths) for part, (paths, _) in lists.items()}
    with _unchanged(dataset):
        states = {path: _state(path) for paths, _ in lists.values() for path in paths}
        content = _content(root, states)

    def examples(part: str) -> Iterator[Example]:
        for path, label in zip(*lists[part], strict=True):
            name = str(path.relative_to(root))
            with _unchanged(dataset):
                data, state = _bytes(path), _state(path)
            if state != states[path]:
                raise DataError(
                    f"dataset {dataset}: {name} was changed while it was read; try again"
                )
            yield name, data or b"", label

    left_out = {"class folders without images": empty, **_left_out(root)}
    return Source(
        name=dataset,
        classes=tuple(classes),
        color_mode="rgb",
        counts=counts,
        identity={
            "files": content,
            "parts": counts,
            "split": None if val else validation_split,
            "classes": classes,
        },
        examples=examples,
        notes=[f"left out as {what}: {some(names)}" for what, names in left_out.items() if names],
    )


def classes(dataset: str) -> list[str]:
    """The names of the classes of a dataset `folder:PATH`; raises as `source` does."""
    return list(_by_class(_trees(path_of(dataset))[0], dataset)[0])


UNREADABLE = "unreadable"
SETTLED_NS = 2 * 10**9  # the coarsest clock of a file system, FAT's
HOLDS = {"folder": "a folder per class", "idx": "the four idx files"}


def path_of(dataset: str) -> Path:
    """The folder of a dataset `folder:PATH` or `idx:PATH`.

    Raises:
        DataError: where there is none, or it cannot be read.
    """
    given, found = Path(os.path.expanduser(places.path(dataset))), places.candidates(dataset)
    folder = next((place for place in found if place.is_dir()), None)
    if folder is None:
        what = "is a file" if any(p.is_file() for p in found) else "does not exist"
        holds = HOLDS[dataset.partition(":")[0]]
        raise DataError(f"dataset {dataset}: {given} {what}; give a folder with {holds}")
    if not _may_be_read(folder):
        raise DataError(f"dataset {dataset}: {given} may not be read by this user")
    return folder


Listing = tuple[list[Path], list[int]]


def _trees(root: Path) -> tuple[Path, Path | None]:
    """The folders of training and of validation classes; None where there is no split."""
    there = {p.name.lower(): p for p in sorted(root.iterdir()) if p.is_dir()}
    for name in ("train", "training"):
        train = there.get(name)
        if train and any(p.is_dir() for p in train.iterdir()):
            break
    else:
        return root, None  # also where "train" is a class of vehicles
    names = ("val", "validation", "valid", "test", "testing")
    return train, next((there[name] for name in names if name in there), None)


def _by_class(root: Path, dataset: str) -> tuple[dict[str, list[Path]], list[str]]:
    """Images by class in the order of names, and the names of the empty class folders."""
    folders = _class_folders(root)
    full = {name: files for name, files in folders.items() if files}
    if len(full) < 2:
        there = f"only the class {next(iter(full))}" if full else "no class folder with images"
        raise DataError(
            f"dataset {dataset}: {root.name} has {there}; a classifier needs two or more folders, "
            f"each with images ({', '.join(decoding.SUFFIXES)})"
        )
    return full, [name for name in folders if name not in full]


def _class_folders(root: Path) -> dict[str, list[Path]]:
    """Images by folder in the order of names; hidden folders are no classes."""
    names = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    return {name: _images(root / name) for name in names}


def _images(tree: Path) -> list[Path]:
    return sorted(p for p in _files(tree) if p.suffix.lower() in decoding.SUFFIXES)


def _files(tree: Path) -> Iterator[Path]:
    """All files below a folder but hidden ones, and those of folders that `_skipped` names."""
    for folder, inner, names in os.walk(tree):
        if not _may_be_read(folder):
            inner.clear()
            continue
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        yield from (path for path in paths if path.is_file())


def _may_be_read(folder: str | Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _skipped(root: Path) -> dict[str, list[str]]:
    """The folders whose images are left out, by the reason; a class folder itself may be a link."""
    refused, links = [], []
    classes = [path for tree in filter(None, _trees(root)) for path in (tree, *tree.iterdir())]
    linked = [path for path in classes if path.is_symlink() and path.is_dir()]
    for folder, inner, _ in chain.from_iterable(map(os.walk, (root, *linked))):
        if not _may_be_read(folder):
            inner.clear()
            refused.append(Path(folder))
        inside = [Path(folder, name) for name in inner]
        links += [path for path in inside if path.is_symlink() and path not in classes]
    reasons = {"folders that may not be read": refused, "links to folders": links}
    return {why: sorted(str(p.relative_to(root)) for p in left) for why, left in reasons.items()}


def _listing(by_label: Iterable[list[Path]]) -> Listing:
    pairs = [(path, label) for label, paths in enumerate(by_label) for path in paths]
    return [path for path, _ in pairs], [label for _, label in pairs]


def _validation(root: Path, classes: Sequence[str], dataset: str) -> Listing:
    full = {name: files for name, files in _class_folders(root).items() if files}
    if not full:
        raise DataError(f"dataset {dataset}: {root.name} holds no images to validate with")
    if unknown := sorted(set(full) - set(classes)):
        raise DataError(
            f"dataset {dataset}: {root.name} has classes that train has not: {', '.join(unknown)}"
        )
    return _listing(full.get(name, []) for name in classes)


def _left_out(root: Path) -> dict[str, list[str]]:
    """What lies in a folder and is no image of the dataset, by the reason."""
    others = (p for p in _files(root) if p.suffix.lower() not in decoding.SUFFIXES)
    named = sorted(str(p.relative_to(root)) for p in others)
    return {"no images by their names": named, **_skipped(root)}


def _split(
    files: Listing, classes: Sequence[str], share: float, dataset: str
) -> dict[str, Listing]:
    train, val = stratified(files[1], share, classes, dataset)
    return {
        part: ([files[0][i] for i in chosen], [files[1][i] for i in chosen])
        for part, chosen in (("train", train), ("val", val))
    }


@contextlib.contextmanager
def _unchanged(dataset: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(
            f"dataset {dataset}: {error.filename} was removed while it was read; try again"
        ) from None


def _bytes(path: Path) -> bytes | None:
    """A file's content; None where it cannot be read, which is then a broken image."""
    try:
        return files.content(path)
    except FileNotFoundError:
        raise
    except OSError:  # without rights, or larger than any image
        return None


State = tuple[int, int, int, int]


def _state(path: Path) -> State:
    """What the system changes whenever a file's content or rights change, as git's index has it.

    A time of modification can be set; the time of the last change of the inode cannot.
    """
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _content(root: Path, states: Mapping[Path, State]) -> str:
    """Hash of names and bytes of all files.

    Reading everything at every start would cost minutes with a large set, so the hash is kept
    under the files' names and states, as git keeps it in its index. It is not where a file could
    not be read, nor where one is so new that a further change might leave its time as it is.
    """
    listed = [(str(path.relative_to(root)), *state) for path, state in states.items()]
    key = digest([str(root), sorted(listed)])
    known = cache_dir() / "index" / key
    if content := _indexed(known):
        return content
    settled = time.time_ns() - max(state[2] for state in states.values()) > SETTLED_NS
    hashes = {str(p.relative_to(root)): _hash(p) for p in states}
    content = digest(sorted(hashes.items()))
    if settled and UNREADABLE not in hashes.values():
        with contextlib.suppress(OSError):  # only speed is lost; preparing will say what is wrong
            store.write_text(known, f"{content} {digest([key, content])}")
    return content


def _hash(path: Path) -> str:
    data = _bytes(path)
    return UNREADABLE if data is None else hashlib.sha256(data).hexdigest()


def _indexed(path: Path) -> str:
    """The hash of the content that the index holds; empty where it holds none, or a damaged one."""
    with contextlib.suppress(OSError, ValueError):
        content, check = path.read_text(encoding="ascii").split()
        return content if check == digest([path.name, content]) else ""
    return ""
