"""Plans that cannot work: a batch that is larger than the data, too few steps to time.

Asked of a plan where the number of images is known without reading them, and of a run, by the same
rule: a run that cannot work is refused before a Jupyter kernel starts for it, not in each of them.
"""

import gzip
import itertools
import math
import os
import zlib
from pathlib import Path

from mptexp.host.project import PACKAGE
from mptexp.spec import data_folders, dataset_paths, tasks
from mptexp.spec.run import Run

DIGITS = 1437  # training images of dataset digits
TEXTS = (".txt", ".text", ".md", ".rst")
MOST_FILES = 100_000  # that are counted: of more, no batch is too large
MOST_BYTES = 10**7  # of a text that is counted: reading them takes some milliseconds
LEAST = {True: 5, False: 2}  # calls of the backend that are timed: of one step each, of several


def fault(run: Run, images: int) -> str:
    """Why a run cannot be timed on so many training examples, in a sentence; empty where it can.

    The last call of an epoch belongs to no window, so that an epoch of one call has none to time,
    however many epochs there are.
    """
    size, every = run.batch_size, run.steps_per_execution
    what = f"{tasks.of(run.dataset).example}{'s' * (images != 1)}"
    if size > images:
        allowed = f"allowed: at most {images // 2 or 1}"
        return f"batch_size {size} is larger than the {images} training {what}; {allowed}"
    steps = -(-images // size) if run.input_mode == "keydana" else images // size
    trains = run.phase == "train"
    calls = max(1, steps // every) if trains else steps * run.epochs // every
    timed = (calls - 1) * (run.epochs if trains else 1)
    if run.max_steps and every > 1:
        timed = min(timed, run.max_steps // every - 1)
    if timed >= LEAST[every == 1]:
        return ""
    timings = f"executions of {every} steps" if every > 1 else f"step{'s' * (timed != 1)}"
    smaller = ", or fewer steps per execution" if every > 1 else ""
    helps = not trains or calls > 1
    take = "take a smaller batch" if size > 1 else "take more of them"
    return (
        f"batch_size {size} and epochs {run.epochs} leave {max(timed, 0)} {timings} to time; "
        f"the clock needs {LEAST[every == 1]}: with {images} training {what} {take}"
        f"{' or more epochs' * helps}{smaller}"
        + ("" if helps else " (the last of an epoch is not timed, so more epochs do not help)")
    )


def training_images(run: Run) -> int | None:
    """The number of images that a run trains on; None where only reading the data can tell.

    At most so many: files that turn out to be broken are not known here.
    """
    kind = run.dataset.partition(":")[0]
    if tasks.of(run.dataset) is tasks.TOKENS:
        return _sequences(run)
    if run.dataset == "digits":
        return DIGITS
    if run.dataset == "synthetic":
        return run.synthetic_length
    if kind not in ("idx", "folder"):
        return None
    places = dataset_paths.candidates(run.dataset)
    root = next((place for place in places if os.path.isdir(place)), None)  # never raises
    try:
        return root and (_of_idx(root) if kind == "idx" else _of_folder(root, run))
    except (OSError, EOFError, ValueError, zlib.error):  # who reads it says what is wrong
        return None


def kept_to_train(count: int, share: float) -> int:
    """How many of so many images or characters are trained on, where a share is to validate."""
    return count - math.ceil(count * share)


def _sequences(run: Run) -> int | None:
    """Of a file of bytes; byte pairs and folders are known when they are read.

    So is a text that cannot be used, or is too short for one sequence: who reads it says why.
    """
    own = [PACKAGE / "training/data" / f"{run.dataset}.txt"]
    places = dataset_paths.candidates(run.dataset) or own
    path = next((place for place in places if os.path.isfile(place)), None)
    if path is None or run.tokenizer != "bytes" or path.stat().st_size > MOST_BYTES:
        return None
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    trained = text[: kept_to_train(len(text), run.validation_split)].encode()
    return max(0, len(trained) - 1) // run.sequence_length or None


def _of_idx(root: Path) -> int | None:
    """As the head of the file of training images says."""
    names = [f"train-images{mark}idx3-ubyte{end}" for end in ("", ".gz") for mark in "-."]
    path = next((root / name for name in names if (root / name).is_file()), None)
    if path is None:
        return None
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        head = file.read(8)
    return int.from_bytes(head[4:], "big") if head[:4] == b"\0\0\x08\x03" else None


def _of_folder(root: Path, run: Run) -> int | None:
    """Files in class folders, those of training where there is a split."""
    train, val = data_folders.parts(root)
    found = itertools.chain.from_iterable(map(data_folders.images, data_folders.folders(train)))
    images = sum(1 for _ in itertools.islice(found, MOST_FILES))
    if images == 0 or images == MOST_FILES:
        return None
    return images if val else kept_to_train(images, run.validation_split)
