"""Folders of files on disk: what of them is read, what is left out, and which hold a split.

Asked by those who plan and by those who read, so that both count the same images.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

# Case does not matter. Files of other names are left out, and a note says so.
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
# Words of a folder's name, as in Training, training_set, seg_train, val2017, the preferred first.
TRAIN = ("train", "training")
VALIDATE = ("val", "validation", "valid", "validate", "dev", "eval", "test", "testing")
# A folder called so and nothing else is hardly a class, as "valid" beside "invalid" may be.
HELD_OUT = ("val", "validation", "test", "testing")
SYSTEM = ("@eadir", "#recycle")  # a NAS's folders of thumbnails and of removed files
LeftOut = dict[str, list[Path]]  # by the reason
LINKS = "links to folders"
CLOSED = "folders that may not be read"


def below(folder: Path, left_out: LeftOut | None = None) -> Iterator[str]:
    """All files below a folder, without hidden ones and those of folders that are left out.

    As texts: of a million files a `Path` each would take longer to make than the system to list.

    What has a name and is no folder is a file: if it had to exist, the images behind links to a
    disk that is not there would vanish without a word.

    Args:
        folder: it may itself be a link.
        left_out: gets the folders that are not entered, by the reason.
    """
    left_out = {} if left_out is None else left_out

    def unread(error: OSError) -> None:
        denied = isinstance(error, PermissionError)
        why = CLOSED if denied else f"folders not read ({error.strerror})"
        left_out.setdefault(why, []).append(Path(error.filename))

    for place, inner, names in os.walk(folder, onerror=unread):
        here = Path(place)
        if not may_be_read(here):  # it can be listed, and not entered
            left_out.setdefault(CLOSED, []).append(here)
            inner.clear()
            continue
        for name in [*inner]:
            link = LINKS if os.path.islink(here / name) else ""
            if why := "hidden folders" if _hidden(name) else link:
                left_out.setdefault(why, []).append(here / name)
                inner.remove(name)
        yield from (os.path.join(place, name) for name in names if not name.startswith("."))


def may_be_read(folder: Path) -> bool:
    """Whether this user may list a folder and enter it."""
    return os.access(folder, os.R_OK | os.X_OK)


def folders(place: Path) -> list[Path]:
    """The folders of classes in a folder, in the order of names; hidden ones are none.

    A link is one too, unless it leads to this folder, to one above it, or to or into another class:
    the images would be there once more, as a class of their own.
    """
    there = _folders(place)
    known = {folder.resolve() for folder in there if not folder.is_symlink()}
    own, found = place.resolve(), []
    for folder in there:
        target = folder.resolve()
        if folder.is_symlink():
            if own.is_relative_to(target) or known & {target, *target.parents}:
                continue
            known.add(target)
        found.append(folder)
    return found


def _folders(place: Path) -> list[Path]:
    return sorted(p for p in place.iterdir() if p.is_dir() and not _hidden(p.name))


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM


def images(folder: Path) -> Iterator[str]:
    """The files below a folder that are images by their names."""
    return (path for path in below(folder) if is_image(path))


def is_utf8(name: str) -> bool:
    """Whether a name that the system gave is text: a file may be named by any bytes."""
    return not any("\ud800" <= c <= "\udfff" for c in name)


def is_image(path: str) -> bool:
    """Whether a file is one by its name."""
    return os.path.splitext(path)[1].lower() in IMAGES


def in_order(paths: Iterable[str]) -> list[str]:
    """The paths folder by folder: a/b before a-b/c, as the names of the folders are sorted."""
    return sorted(paths, key=lambda path: path.split(os.sep))


def parts(root: Path) -> tuple[Path, Path | None]:
    """The folders of training and of validation classes; root and None where there is no split.

    Parts of a dataset hold folders of the same names; which is which, their own names say.

    Raises:
        ValueError: where folders may be parts or classes; the message names them.
    """
    there = _folders(root)
    full = [folder for folder in there if next(images(folder), None)]
    classes = {folder: frozenset(_full_names(folder)) for folder in full}
    train = [folder for folder in full if classes[folder] and _place(folder, TRAIN) is not None]
    val = [folder for folder in there if _place(folder, VALIDATE) is not None]
    if len(train) == 1 and (val or full == train):
        return train[0], min(val, key=lambda folder: _place(folder, VALIDATE) or 0, default=None)
    alike = [f for f in full if len(classes[f]) > 1 and [*classes.values()].count(classes[f]) > 1]
    if doubtful := list(dict.fromkeys([*train, *alike])):
        raise ValueError(
            f"{root.name} has folders that may be classes or parts with classes in them: "
            f"{', '.join(folder.name for folder in doubtful)}; allowed: two parts called train and "
            "val, or a folder per class whose images lie right in it"
        )
    if held_out := [folder.name for folder in full if _is_held_out(folder.name)]:
        raise ValueError(
            f"{root.name} has folders that may be classes or images kept to validate or test with: "
            f"{', '.join(held_out)}; allowed: two parts called train and val, each with a folder "
            "per class, or a folder per class of which none is called so"
        )
    return root, None


def _is_held_out(name: str) -> bool:
    words = re.findall(r"[^\W\d_]+", name.lower())
    return bool(words) and {*words} <= {*HELD_OUT}


def like_parts(classes: Iterable[str]) -> list[str]:
    """The classes whose names have a word that a part's may have."""
    return [name for name in classes if {*_words(name)} & {*TRAIN, *VALIDATE}]


def _full_names(folder: Path) -> list[str]:
    return [inner.name for inner in folders(folder) if next(images(inner), None)]


def _place(folder: Path, words: tuple[str, ...]) -> int | None:
    """Where the first of a folder's words stands among some; None where it has none of them."""
    own = _words(folder.name)
    return next((place for place, word in enumerate(words) if word in own), None)


def _words(name: str) -> list[str]:
    return re.findall("[a-z]+", name.lower())
