"""Image-classification sets of tensorflow-datasets as sources; the library does the work."""

import difflib
import hashlib
import socket
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mptexp.host import imports
from mptexp.host.project import here
from mptexp.training.data.sources import DataError, Example, Source, data_dir, stratified


def builder(name: str) -> Any:
    """The builder of a dataset of tensorflow-datasets, by its name there.

    Raises:
        DataError: where the library, the dataset or its configuration is absent.
    """
    try:
        with imports.framework("tensorflow"):
            import tensorflow  # noqa: F401  reading the prepared files needs it
        with imports.quiet():
            import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(
            f"dataset {name}: comes from tensorflow-datasets, but {error.name} is not installed; "
            f"{here('pip install tensorflow tensorflow-datasets')}, or use folder:PATH"
        ) from None
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        with _temporary_folder():
            return tfds.builder(name, data_dir=data_dir())
    except tfds.core.DatasetNotFoundError:
        raise DataError(f"dataset {name}: tensorflow-datasets has none of this name") from None
    except (ValueError, AssertionError, KeyError) as error:
        raise DataError(f"dataset {name}: {_configurations(tfds, name, error)}") from None


@contextmanager
def _temporary_folder() -> Iterator[None]:
    """One that is removed: the library (4.9.10) leaves a folder there for each set not prepared."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as tempfile.tempdir:
        try:
            yield
        finally:
            tempfile.tempdir = before


def _configurations(tfds: Any, name: str, error: Exception) -> str:
    base, _, given = name.partition("/")
    known = sorted(tfds.builder_cls(base.partition(":")[0]).builder_configs)
    if not known or not given:
        return str(error).splitlines()[0]
    near = difflib.get_close_matches(given, known, 1)
    hint = f"; did you mean {base}/{near[0]}?" if near else ""
    return f"no configuration {given}; allowed: {', '.join(known)}{hint}"


def source(builder: Any, validation_split: float) -> Source:
    """An image-classification set of tensorflow-datasets, downloaded and prepared by it if need be.

    Its own validation split is used, else its test split, else a stratified part of train.

    Raises:
        DataError: where it is no image-classification set, cannot be downloaded, or an archive
            is not the registered one.
    """
    name = builder.info.full_name.rpartition("/")[0]
    image, label = _features(builder, name)
    if not builder.info.splits:
        _download(builder, name)
    splits = builder.info.splits
    val = next((n for n in ("validation", "val", "test") if n in splits), None)
    if "train" not in splits:
        raise DataError(f"dataset {name}: has no split train; it has {', '.join(splits)}")
    classes = tuple(builder.info.features[label].names)
    parts = (
        {"train": ("train", None), "val": (val, None)}
        if val
        else _tfds_split(builder, (image, label), classes, validation_split, name)
    )

    def examples(part: str) -> Iterator[Example]:
        split, kept = parts[part]
        for i, (data, number) in enumerate(_encoded(builder, split, image, label)):
            if kept is None or i in kept:
                yield f"{split} {i}", data, number

    return Source(
        name=name,
        classes=classes,
        color_mode="grayscale" if builder.info.features[image].shape[-1] == 1 else "rgb",
        counts={
            part: splits[split].num_examples if kept is None else len(kept)
            for part, (split, kept) in parts.items()
        },
        identity={
            "tfds": builder.info.full_name,
            "bytes": {n: [s.num_examples, s.num_bytes] for n, s in splits.items()},
            "split": None if val else validation_split,
        },
        examples=examples,
        notes=[] if val else [f"{validation_split:.0%} of its images are kept for validation"],
        stream=(lambda part: builder.as_dataset(split=parts[part][0], as_supervised=True))
        if val
        else None,
    )


def _features(builder: Any, name: str) -> tuple[str, str]:
    import tensorflow_datasets as tfds

    keys, features = builder.info.supervised_keys or (None, None), builder.info.features
    kinds = [type(features[k]) if isinstance(k, str) else None for k in keys[:2]]
    if kinds != [tfds.features.Image, tfds.features.ClassLabel]:
        raise DataError(
            f"dataset {name}: is not an image-classification set: it gives "
            f"{', '.join(map(str, features)) or 'nothing'} instead of an image and its label"
        )
    return keys[0], keys[1]


def _encoded(builder: Any, split: str, image: str, label: str) -> Iterator[tuple[bytes, int]]:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    read = tfds.ReadConfig(shuffle_seed=0, interleave_cycle_length=1, try_autocache=False)
    stream = builder.as_dataset(
        split=split, decoders={image: tfds.decode.SkipDecoding()}, read_config=read
    )
    try:
        for example in stream.as_numpy_iterator():
            yield example[image], int(example[label])
    except tf.errors.OpError as error:  # a file that was cut off, or removed
        raise DataError(
            f"dataset {builder.info.full_name}: its prepared files in {builder.data_dir} cannot be "
            f"read: {_short(error)}; remove that folder, and it is prepared again"
        ) from None


def _tfds_split(
    builder: Any, keys: tuple[str, str], classes: Sequence[str], share: float, name: str
) -> dict[str, tuple[str, set[int]]]:
    labels = [label for _, label in _encoded(builder, "train", *keys)]
    train, val = stratified(labels, share, classes, name)
    return {"train": ("train", set(train)), "val": ("train", set(val))}


def _download(builder: Any, name: str) -> None:
    import tensorflow_datasets as tfds

    manual = data_dir() / "downloads" / "manual"
    _check_network(builder, manual, name)
    settings = tfds.download.DownloadConfig(manual_dir=manual)
    try:
        builder.download_and_prepare(download_config=settings)
    except tfds.download.download_manager.NonMatchingChecksumError as error:
        raise DataError(_wrong_archive(str(error), _archives(builder), manual, name)) from None
    except AssertionError as error:  # a dataset that its owner lets nobody download by program
        raise DataError(f"dataset {name}: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise DataError(
            f"dataset {name}: could not be downloaded or prepared in {data_dir()}: "
            f"{_short(error)}; {_offline(builder, manual)}"
        ) from None


def _archives(builder: Any) -> dict[str, Any]:
    return getattr(builder, "url_infos", None) or {}


def _wrong_archive(text: str, archives: dict[str, Any], manual: Path, name: str) -> str:
    url = next((url for url in archives if url in text), "")
    wanted = archives[url] if url else None
    archive = manual / wanted.filename if wanted else manual
    if not archive.is_file():
        return f"dataset {name}: what {url or 'the network'} gave has not the registered checksum"
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    return (
        f"dataset {name}: {archive} is not the registered archive: its SHA-256 is {checksum}, "
        f"registered is {wanted.checksum} ({wanted.size} bytes); replace or remove it"
    )


def _check_network(builder: Any, manual: Path, name: str) -> None:
    """Refuses a download at once where no host can be reached: the library tries for minutes."""
    archives = _archives(builder)
    hosts = {urllib.parse.urlparse(url).hostname for url in archives}
    here = any((manual / info.filename).is_file() for info in archives.values() if info.filename)
    if here or not hosts or urllib.request.getproxies() or any(_resolves(h) for h in hosts):
        return
    raise DataError(
        f"dataset {name}: must be downloaded, but {hosts.pop()} cannot be reached; "
        f"{_offline(builder, manual)}"
    )


def _resolves(host: str | None) -> bool:
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False


def _offline(builder: Any, manual: Path) -> str:
    names = sorted(i.filename for i in _archives(builder).values() if i.filename)
    # Imagenette registers the archives of all its configurations together.
    own = [n for n in names if n.startswith(f"{getattr(builder.builder_config, 'dirname', n)}.")]
    names = own or names
    which = f"its archive ({', '.join(names[:6])})" if names else "its archive"
    return f"with {which} in {manual} no network is needed"


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
