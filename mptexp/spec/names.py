"""The names that a params file may use for a dataset, a model and an emulated format."""

import difflib
import importlib.util
import re
from functools import cache
from pathlib import Path

from mptexp.spec import formats

MODELS = ("keydana_cnn", "banerjee_cnn", "banerjee_resnet50", "resnet50", "alexnet", "mlp")
MODELS += ("mlp_bn", "lenet")
DATASETS = ("digits", "synthetic")
PLACES = ("folder", "idx")  # kinds of dataset whose name goes on with a colon and a path


def known_dataset(name: str) -> str:
    """The name of a dataset, as it was given.

    Raises:
        ValueError: saying what is allowed, where the name is none that this installation knows.
    """
    kind, _, place = name.partition(":")
    base = name.split("/")[0].split(":")[0]
    if name in DATASETS or (kind in PLACES and place.strip()):
        return name
    shape = re.fullmatch(r"[a-z][a-z0-9_]*(/[\w.-]+)?(:[0-9.*]+)?", name)
    if shape and kind not in PLACES and (base in _tfds_names() or not _tfds_names()):
        return name
    near = difflib.get_close_matches(base, [*DATASETS, *PLACES, "imagenette", *_tfds_names()], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(
        "digits, synthetic, folder:PATH, idx:PATH, or an image-classification dataset of "
        f"tensorflow-datasets such as imagenette/320px-v2{hint}"
    )


@cache
def _tfds_names() -> tuple[str, ...]:
    """Names that tensorflow-datasets knows, from its files: importing it starts TensorFlow."""
    found = importlib.util.find_spec("tensorflow_datasets")
    if found is None or found.origin is None:
        return ()
    root = Path(found.origin).parent
    folders = (root / "datasets", root / "image_classification", root / "url_checksums")
    names = {path.stem for folder in folders if folder.is_dir() for path in folder.iterdir()}
    return tuple(sorted(name for name in names if not name.startswith("_")))


def known_model(name: str) -> str:
    """The name of a model, as it was given.

    Raises:
        ValueError: saying what is allowed, where it is neither a name nor of the form
            module:function.
    """
    if name in MODELS or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
        return name
    near = difflib.get_close_matches(name, MODELS, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"{', '.join(MODELS)}, or module:function for a model of yours{hint}")


def known_propagation(name: str) -> str:
    """The name of a format that may pass between layers, as it was given (see formats.passing)."""
    formats.passing(name)
    return name


def known_weight_format(name: str) -> str:
    """The name of a format in which weights may be kept, as it was given (see formats.kept)."""
    formats.kept(name)
    return name
