"""A source of images: encoded bytes with labels, and what names their content."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mptexp.errors import UserError
from mptexp.host.project import user_cache
from mptexp.host.terminal import visible
from mptexp.training.data.decoding import Broken


class DataError(UserError, ValueError):
    """Data that cannot be used: the message says what is wrong, where, and what is allowed."""


# Name, encoded image or why it cannot be read, label.
Example = tuple[str, bytes | Broken, int]


@dataclass(frozen=True)
class Source:
    """The images of a dataset, encoded, in an order of its own.

    Attributes:
        name: as the params file has it.
        classes: names of the classes; a label is an index of them.
        color_mode: rgb or grayscale, the dataset's own.
        counts: number of images in "train" and in "val".
        identity: what names the content, as plain JSON.
        examples: "train" or "val" -> its examples, one after another.
        notes: what a reader should know, as sentences.
        stream: "train" or "val" -> a tf.data.Dataset of whole images (uint8, own sizes) and
            labels, where the library has one of its own.
    """

    name: str
    classes: tuple[str, ...]
    color_mode: str
    counts: dict[str, int]
    identity: dict[str, Any]
    examples: Callable[[str], Iterator[Example]]
    notes: list[str] = field(default_factory=list)
    stream: Callable[[str], Any] | None = None


def data_dir() -> Path:
    """Where tensorflow-datasets keeps what it downloads: --data-dir, or its own default."""
    chosen = os.environ.get("MPTEXP_DATA_DIR") or os.environ.get("TFDS_DATA_DIR")
    return Path(chosen or "~/tensorflow_datasets").expanduser()


def cache_dir() -> Path:
    """Where prepared images lie: below --data-dir, else in the user's cache."""
    if chosen := os.environ.get("MPTEXP_DATA_DIR"):
        return Path(chosen).expanduser() / "mptexp"
    return user_cache()


def stratified(
    labels: Sequence[int], share: float, classes: Sequence[str], dataset: str
) -> tuple[list[int], list[int]]:
    """Indices of the training and of the validation images; classes keep their proportions.

    Raises:
        DataError: where a class has a single image, or the share leaves a side without classes.
    """
    from sklearn.model_selection import train_test_split

    known = np.asarray(labels)
    try:
        sides = train_test_split(
            np.arange(len(known)), test_size=share, stratify=known, random_state=0
        )
        if any(len(set(known[side])) < len(classes) for side in sides):  # of rare classes all
            raise ValueError
    except ValueError:
        count, least = min((list(labels).count(i), i) for i in range(len(classes)))
        raise DataError(
            f"dataset {dataset}: validation_split {share:g} cannot divide {len(labels)} images "
            f"so that all {len(classes)} classes are on both sides (class {classes[least]} has "
            f"{count}); allowed: more images, another share, or folders "
            "train and val"
        ) from None
    train, val = (sorted(map(int, side)) for side in sides)
    return train, val


def notes(root: Path, left_out: Mapping[str, Sequence[Path]]) -> list[str]:
    """What of a folder is left out, a sentence for each reason."""
    names = {w: sorted(visible(str(p.relative_to(root))) for p in left_out[w]) for w in left_out}
    return [f"left out as {why}: {some(there)}" for why, there in sorted(names.items()) if there]


def some(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def digest(value: Any) -> str:
    """The first 32 hex digits of the SHA-256 of a value of plain JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
