"""Images in class folders on disk, as a source."""

import contextlib
import hashlib
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from mptexp.host import files
from mptexp.host.terminal import visible
from mptexp.records import store
from mptexp.spec import data_folders, dataset_paths
from mptexp.training.data.decoding import Broken
from mptexp.training.data.sources import (
    DataError,
    Example,
    Source,
    cache_dir,
    digest,
    notes,
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

    Raises:
        DataError: where there is no such tree, or its parts do not fit together.
    """
    root = path_of(dataset)
    train, val = _parts(root, dataset)
    by_class, empty = _by_class(train, dataset)
    classes = list(by_class)
    lists = {"train": _listing(by_class.values())}
    if val:
        lists["val"] = _validation(val, classes, dataset)
    else:
        lists = _split(lists["train"], classes, validation_split, dataset)
    lists["train"] = _mixed(lists["train"])
    counts = {part: len(listing) for part, listing in lists.items()}
    names = _names(root, (path for listing in lists.values() for path, _ in listing))
    with _unchanged(dataset):
        states = {path: _state(path) for path in names}
        content, unread = _content(root, names, states)

    def examples(part: str) -> Iterator[Example]:
        for path, label in lists[part]:
            name = visible(names[path])  # on disk it may be any bytes
            with _unchanged(dataset):
                data, state = _bytes(path), _state(path)
            if isinstance(data, Broken) and path not in unread:
                raise DataError(
                    f"dataset {dataset}: {name} cannot be read now ({data}), as it was before; try "
                    "again"
                )
            if state != states[path]:
                raise DataError(
                    f"dataset {dataset}: {name} was changed while it was read; try again"
                )
            yield name, data, label

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
        notes=_notes(root, [train, *filter(None, [val])], empty, states)
        + (_like_parts(classes) if train == root else []),
    )


def classes(dataset: str) -> list[str]:
    """The names of the classes of a dataset `folder:PATH`; raises as `source` does."""
    return list(_by_class(_parts(path_of(dataset), dataset)[0], dataset)[0])


UNREADABLE = "unreadable"
SETTLED_NS = 2 * 10**9  # the coarsest clock of a file system, FAT's
HOLDS = {"folder": "a folder per class", "idx": "the four idx files"}


def path_of(dataset: str) -> Path:
    """The folder of a dataset `folder:PATH` or `idx:PATH`.

    Raises:
        DataError: where there is none, or it cannot be read.
    """
    given, found = (
        Path(os.path.expanduser(dataset_paths.path(dataset))),
        dataset_paths.candidates(dataset),
    )
    # A Path's own tests raise where a name is too long.
    folder = next((place for place in found if os.path.isdir(place)), None)
    if folder is None:
        what = "is a file" if any(os.path.isfile(p) for p in found) else "does not exist"
        holds = HOLDS[dataset.partition(":")[0]]
        raise DataError(f"dataset {dataset}: {given} {what}; give a folder with {holds}")
    if not data_folders.may_be_read(folder):
        raise DataError(f"dataset {dataset}: {given} may not be read by this user")
    return folder


Listing = list[tuple[str, int]]  # path, label


def _parts(root: Path, dataset: str) -> tuple[Path, Path | None]:
    """The folders of training and of validation classes; None where there is no split."""
    try:
        return data_folders.parts(root)
    except ValueError as error:
        raise DataError(f"dataset {dataset}: {error}{_closed(root, [root])}") from None


def _closed(root: Path, places: Iterable[Path]) -> str:
    """Which folders in some places may not be read, to end a message whose reason they may be."""
    left_out: data_folders.LeftOut = {data_folders.CLOSED: []}
    for place in places:
        list(data_folders.below(place, left_out))
    said = notes(root, {data_folders.CLOSED: left_out[data_folders.CLOSED]})
    return "".join(f"; {note}" for note in said)


def _like_parts(classes: Iterable[str]) -> list[str]:
    """Which classes may be parts by their names, as a sentence."""
    found = data_folders.like_parts(classes)
    return [f"taken as classes, though parts may be called so: {some(found)}"] if found else []


def _by_class(part: Path, dataset: str) -> tuple[dict[str, list[str]], list[Path]]:
    """Images by class in the order of names, and the empty class folders."""
    every = _class_folders(part, dataset)
    full = {name: paths for name, paths in every.items() if paths}
    empty = [part / name for name in every if name not in full]
    if len(full) < 2:
        there = f"only the class {next(iter(full))}" if full else "no class folder with images"
        raise DataError(
            f"dataset {dataset}: {part.name} has {there}; a classifier needs two or more folders, "
            f"each with images ({', '.join(data_folders.IMAGES)}){_closed(part, empty)}"
        )
    return full, empty


def _class_folders(part: Path, dataset: str) -> dict[str, list[str]]:
    """Images by folder in the order of names.

    Raises:
        DataError: where they cannot be listed, or the name of one is not UTF-8, as records, tables
            and figures are.
    """
    try:
        every = data_folders.folders(part)
    except PermissionError:
        raise DataError(f"dataset {dataset}: {part.name} may not be read by this user") from None
    if odd := [visible(p.name) for p in every if not data_folders.is_utf8(p.name)]:
        raise DataError(
            f"dataset {dataset}: {part.name} has a class whose name is not UTF-8: {some(odd)}; "
            "rename the folder"
        )
    return {path.name: data_folders.in_order(data_folders.images(path)) for path in every}


def _listing(by_label: Iterable[list[str]]) -> Listing:
    return [(path, label) for label, paths in enumerate(by_label) for path in paths]


def _mixed(files: Listing) -> Listing:
    """A fixed permutation: an input mode may keep an order, and class by class teaches nothing."""
    return [files[i] for i in np.random.default_rng(0).permutation(len(files))]


def _validation(part: Path, classes: Sequence[str], dataset: str) -> Listing:
    full = {name: paths for name, paths in _class_folders(part, dataset).items() if paths}
    if not full:
        raise DataError(
            f"dataset {dataset}: {part.name} holds no images to validate with in class folders"
            f"{_closed(part, [part])}"
        )
    if unknown := sorted(set(full) - set(classes)):
        raise DataError(
            f"dataset {dataset}: {part.name} has classes that train has not: {', '.join(unknown)}"
        )
    return _listing(full.get(name, []) for name in classes)


def _notes(
    root: Path, parts: Sequence[Path], empty: list[Path], used: Collection[str]
) -> list[str]:
    """What lies in a folder and is no image of the dataset, by the reason."""
    entered = {folder for part in parts for folder in (part, *data_folders.folders(part))} - {root}
    linked = [folder for folder in entered if folder.is_symlink()]
    refused: data_folders.LeftOut = {}
    files = [path for place in (root, *linked) for path in data_folders.below(place, refused)]
    unreadable = {path for why in refused if why != data_folders.LINKS for path in refused[why]}
    others = [path for path in files if path not in used]
    images = [path for path in others if data_folders.is_image(path)]
    named = [Path(path) for path in others if not data_folders.is_image(path)]
    gone = [path for path in named if path.is_symlink() and not path.exists()]
    left_out = {
        "class folders without images": [path for path in empty if path not in unreadable],
        "no images by their names": [path for path in named if path not in gone],
        "links to nothing": gone,
        **refused,
        data_folders.LINKS: [
            path for path in refused.get(data_folders.LINKS, []) if path not in linked
        ],
    }
    within = Counter(map(os.path.dirname, images))
    tops = {visible(str(Path(top).relative_to(root.parent))): n for top, n in within.items()}
    outside = [f"{n:,} in {top}" for top, n in sorted(tops.items())]
    beside = [f"left out as images in no class folder: {some(outside)}"] if images else []
    return [*notes(root, left_out), *beside]


def _split(
    files: Listing, classes: Sequence[str], share: float, dataset: str
) -> dict[str, Listing]:
    train, val = stratified([label for _, label in files], share, classes, dataset)
    return {"train": [files[i] for i in train], "val": [files[i] for i in val]}


@contextlib.contextmanager
def _unchanged(dataset: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(
            f"dataset {dataset}: {visible(str(error.filename))} was removed while it was read; "
            "try again"
        ) from None


def _names(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """Each path, and how it is called from the root."""
    above = os.path.join(root, "")
    return {path: path.removeprefix(above) for path in paths}


def _bytes(path: str) -> bytes | Broken:
    """A file's content; where it cannot be read, why, and it is a broken image."""
    try:
        return files.content(path)
    except FileNotFoundError:
        if os.path.islink(path):
            return Broken("a link to nothing")
        raise
    except OSError as error:  # without rights, or larger than any image
        return Broken(error.strerror)


State = tuple[int, int, int, int]


def _state(path: str) -> State:
    """What the system changes whenever a file's content or rights change, as git's index has it.

    A time of modification can be set; the time of the last change of the inode cannot.
    """
    try:
        stat = os.stat(path)
    except OSError:  # what is gone raises again; a link to nothing is there
        stat = os.lstat(path)
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _content(
    root: Path, names: Mapping[str, str], states: Mapping[str, State]
) -> tuple[str, set[str]]:
    """Hash of names and bytes of all files, and the files that could not be read.

    Reading everything at every start would cost minutes with a large set, so the hash is kept
    under the files' names and states, as git keeps it in its index. It is not where a file could
    not be read, nor where one is so new that a further change might leave its time as it is.
    """
    listed = [(names[path], *state) for path, state in states.items()]
    key = digest([str(root), sorted(listed)])
    known = cache_dir() / "index" / key
    if content := _indexed(known):
        return content, set()
    settled = time.time_ns() - max(state[2] for state in states.values()) > SETTLED_NS
    hashes = {path: _hash(path) for path in names}
    content = digest(sorted((names[path], own) for path, own in hashes.items()))
    unread = {path for path, own in hashes.items() if own == UNREADABLE}
    if settled and not unread:
        with contextlib.suppress(OSError):  # only speed is lost; preparing will say what is wrong
            store.write_text(known, f"{content} {digest([key, content])}")
    return content, unread


def _hash(path: str) -> str:
    data = _bytes(path)
    return UNREADABLE if isinstance(data, Broken) else hashlib.sha256(data).hexdigest()


def _indexed(path: Path) -> str:
    """The hash of the content that the index holds; empty where it holds none, or a damaged one."""
    with contextlib.suppress(OSError, ValueError):
        content, check = path.read_text(encoding="ascii").split()
        return content if check == digest([path.name, content]) else ""
    return ""
