"""The names that a params file may use for a dataset, a model and an emulated format."""

import difflib
import importlib.util
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from mptexp.spec import number_formats

# The built-in ones, in the order of documentation: each is the name of a function in
# training/models.py or training/data/datasets.py.
MODELS = (
    "keydana_cnn",
    "banerjee_cnn",
    "banerjee_resnet50",
    "resnet50",
    "alexnet",
    "mlp",
    "mlp_bn",
    "mlp_sigmoid",
    "lenet",
    "vit",
    "gpt",
)
TEXT_MODELS = ("gpt",)  # those of MODELS that read tokens
TRANSFORMERS = ("vit", "gpt")  # those that have attention
_NORMALIZED = ("keydana_cnn", "banerjee_resnet50", "resnet50", "mlp_bn")
# The parameters that a model may lack, and those of MODELS that have them. Not batch_norm_momentum:
# one file sets it for models with and without batch normalization.
HAVE = {
    "patch_size": ("vit",),
    "depth": TRANSFORMERS,
    "tied_head": ("gpt",),
    "normalization": _NORMALIZED,
}
WITHOUT_WIDTH = ("banerjee_resnet50", "resnet50")  # as is a model of the user's own
# Pixels of the height and width that a model needs to have anything left behind its last layer.
LEAST_SIDE = {
    "banerjee_cnn": 18,
    "banerjee_resnet50": 32,
    "resnet50": 32,
    "alexnet": 63,
    "lenet": 16,
}
POSITIONS = 1024  # of gpt, as GPT-2 has them: no sequence is longer
TEXTS = ("hamlet",)  # files of training/data, see training/data/texts.py
DATASETS = ("digits", "synthetic", *TEXTS)
PLACES = ("folder", "idx", "text")  # kinds of dataset whose name goes on with a colon and a path


def meant(given: str, names: Sequence[str]) -> str:
    """What a refusal adds: which of some names is near the given one; empty where none is."""
    near = difflib.get_close_matches(given, names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def known_dataset(name: str) -> str:
    """The name of a dataset, as it was given.

    Raises:
        ValueError: where this installation knows no such dataset; it says what is allowed.
    """
    kind, _, place = name.partition(":")
    base = name.split("/")[0].split(":")[0]
    if name in DATASETS or (kind in PLACES and place.strip()):
        return name
    shape = re.fullmatch(r"[a-z][a-z0-9_]*(/[\w.-]+)?(:[0-9.*]+)?", name)
    if shape and kind not in PLACES and (base in _tfds_names() or not _tfds_names()):
        return name
    hint = meant(base, [*DATASETS, *PLACES, "imagenette", *_tfds_names()])
    raise ValueError(
        f"{', '.join(DATASETS)}, folder:PATH, idx:PATH, text:PATH, or an image-classification "
        f"dataset of tensorflow-datasets such as imagenette/320px-v2{hint}"
    )


@cache
def _tfds_names() -> tuple[str, ...]:
    """Names that tensorflow-datasets knows, from its files: importing it starts TensorFlow."""
    package = importlib.util.find_spec("tensorflow_datasets")
    if package is None or package.origin is None:
        return ()
    root = Path(package.origin).parent
    folders = (root / "datasets", root / "image_classification", root / "url_checksums")
    names = {path.stem for folder in folders if folder.is_dir() for path in folder.iterdir()}
    return tuple(sorted(name for name in names if not name.startswith("_")))


def known_model(name: str) -> str:
    """The name of a model, as it was given.

    Raises:
        ValueError: where it is neither built in nor of the form module:function; it says what is
            allowed.
    """
    if name in MODELS or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
        return name
    hint = meant(name, MODELS)
    raise ValueError(f"{', '.join(MODELS)}, or module:function for a model of yours{hint}")


def known_propagation(name: str) -> str:
    """The name of an activation format, as it was given; raises as formats.activation_format."""
    number_formats.activation_format(name)
    return name


def known_weight_format(name: str) -> str:
    """The name of a storage format, as it was given; raises as formats.storage_format."""
    number_formats.storage_format(name)
    return name
