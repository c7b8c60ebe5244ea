"""Text as sequences of tokens: of each the next one is learned.

A text is cut into sequences that touch and do not overlap; its last part is kept for validation,
since sequences drawn at random would stand beside their own continuation. Tokens are bytes, or
those of byte-pair encoding (Sennrich et al. 2016) by Hugging Face's `tokenizers`, trained on the
part that is trained on: no vocabulary is downloaded.
"""

import hashlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mptexp.host import files as disk
from mptexp.host.project import here
from mptexp.host.terminal import visible
from mptexp.spec import data_folders, dataset_paths, feasible
from mptexp.spec.run import Run
from mptexp.training.data import cache
from mptexp.training.data.datasets import Images
from mptexp.training.data.sources import DataError, digest, notes

VERSION = 1  # of the way texts are cut and stored: another one takes another folder
SUFFIXES = feasible.TEXTS
MOST_BYTES = 2**30  # of a text: its tokens stay in memory
BYTES = tuple(str(number) for number in range(256))
EMBEDDED = Path(__file__).parent
# Of the search for sequences in a text: an odd number whose powers fill 64 bits, and one over it;
# tokens at a time.
BASE, ONE, SHIFT, SEARCHED = np.uint64(0x9E3779B97F4A7C15), np.uint64(1), np.uint64(44), 2**20
INVERSE = np.uint64(pow(int(BASE), -1, 2**64))
LEAST = 64  # tokens that are searched for in a row
TOKEN = np.dtype("<u2")  # in the cache: of at most 65,536 tokens


class Windows:
    """Sequences of a text's tokens, indexed like an array: int32 of shape (n, length).

    Sequence i begins at token i * length + shift: with shift 1 it is what follows each token.
    """

    def __init__(self, tokens: np.ndarray, length: int, shift: int = 0) -> None:
        self.tokens, self.shift, self.dtype = tokens, shift, np.dtype("int32")
        self.shape = ((len(tokens) - 1) // length, length)
        self._indices = np.arange(self.shape[0])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> np.ndarray:
        first = self._indices[chosen] * self.shape[1] + self.shift
        return self.tokens[np.asarray(first)[..., None] + np.arange(self.shape[1])].astype("int32")


def seen(trained: Windows, held: Windows) -> int:
    """How many sequences stand, token for token, anywhere in a text, at whatever token they begin.

    Short ones recur in any text, so that they are searched for several in a row.
    """
    row = -(-LEAST // held.shape[1])
    n, length = len(held) // row, held.shape[1] * row
    own = np.zeros(n, np.uint64)
    for column in held.tokens[: n * length].reshape(n, length).T[::-1]:
        own = own * BASE + column + ONE
    wanted = np.unique(own)
    slots = np.zeros(2**20, bool)  # the first bits of those wanted: few others are searched for
    slots[wanted >> SHIFT] = True
    found = np.zeros(len(wanted), bool)
    for begin in range(0, len(trained.tokens), SEARCHED):
        here = _hashes(trained.tokens[begin : begin + SEARCHED + length - 1], length)
        here = here[slots[here >> SHIFT]]
        places = np.searchsorted(wanted, here).clip(max=len(wanted) - 1)
        found[places[wanted[places] == here]] = True
    return row * int(found[np.searchsorted(wanted, own)].sum())


def _hashes(tokens: np.ndarray, length: int) -> np.ndarray:
    """Of so many tokens from each one on: a polynomial in BASE, modulo 2^64.

    It is a difference of two sums from the beginning on, over the power of its first token. Source:
    R. M. Karp, M. O. Rabin, Efficient randomized pattern-matching algorithms, 1987.
    """
    powers = np.full(len(tokens), BASE).cumprod()
    sums = np.concatenate([np.zeros(1, np.uint64), ((tokens + ONE) * powers).cumsum()])
    differences = sums[length:] - sums[:-length]
    return differences * np.full(len(differences), INVERSE).cumprod()


def load(run: Run) -> Images:
    """The text that the run names, as sequences of its sequence_length.

    Raises:
        DataError: where it is absent, is not UTF-8, is too short, or has too few tokens.
    """
    paths, said = files(run.dataset)
    text = _read(run.dataset, paths)
    parts = _split(text, run.validation_split)
    how = {"tokenizer": run.tokenizer, "split": run.validation_split}
    how |= {"vocabulary": run.vocabulary} if run.tokenizer == "bpe" else {}
    identity = [VERSION, hashlib.sha256(text.encode()).hexdigest(), how]

    def make(folder: Path) -> dict[str, Any]:
        names, tokens = TOKENIZERS[run.tokenizer](run, parts)
        written = {
            f"{part}.u2": numbers.astype(TOKEN).tobytes() for part, numbers in tokens.items()
        }
        for name, content in written.items():
            (folder / name).write_bytes(content)
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in written.items()}
        return {"classes": list(names), "sha256": hashes}

    size = TOKEN.itemsize * len(text.encode())
    what = f"{len(text):,} characters of {run.dataset} as {run.tokenizer}"
    kept = cache.kept(run.dataset, digest(identity), what, size, make)
    tokens = {part: np.fromfile(kept.folder / f"{part}.u2", TOKEN) for part in parts}
    for part, numbers in tokens.items():
        _check_length(run, part, len(numbers))
    arrays = [Windows(tokens[part], run.sequence_length, k) for part in parts for k in (0, 1)]
    content = digest([kept.meta["sha256"], run.sequence_length])
    return Images(*arrays, tuple(kept.meta["classes"]), content, said)


def _check_length(run: Run, part: str, count: int) -> None:
    if count > run.sequence_length:
        return
    which = {"train": "to train on", "val": "to validate with"}[part]
    shorter = f", or a sequence_length of at most {count - 1:,}" if count > 2 else ""
    raise DataError(
        f"dataset {run.dataset}: has {count:,} tokens {which}, too few for a sequence of "
        f"{run.sequence_length} and the token that follows; allowed: a longer text{shorter}"
    )


def files(dataset: str) -> tuple[list[Path], tuple[str, ...]]:
    """The files of a text in the order of their names, and what a reader should know of them.

    Raises:
        DataError: where there are none.
    """
    if not dataset.startswith("text:"):
        return [EMBEDDED / f"{dataset}.txt"], ()
    given = Path(os.path.expanduser(dataset_paths.path(dataset)))
    root = next((p for p in dataset_paths.candidates(dataset) if os.path.exists(p)), None)
    if root is None:
        raise DataError(f"dataset {dataset}: {given} does not exist; give a file or a folder")
    if not os.access(root, os.R_OK):
        raise DataError(f"dataset {dataset}: {given} may not be read by this user")
    if not root.is_dir():
        return [root], ()
    left_out: data_folders.LeftOut = {"no texts by their names": []}
    texts = []
    for path in sorted(map(Path, data_folders.below(root, left_out))):
        known = path.suffix.lower() in SUFFIXES
        (texts if known else left_out["no texts by their names"]).append(path)
    if not texts:
        raise DataError(
            f"dataset {dataset}: {given} holds no text ({', '.join(SUFFIXES)}); give a folder "
            "with such files, or a file"
        )
    return texts, tuple(notes(root, left_out))


def _read(dataset: str, paths: list[Path]) -> str:
    """All files, one after another, a line's end between them."""
    try:
        total = sum(path.stat().st_size for path in paths)
    except OSError as error:  # a link to nothing
        raise _unread(dataset, Path(error.filename), error) from None
    if total > MOST_BYTES:
        raise DataError(
            f"dataset {dataset}: holds {total:,} bytes; at most {MOST_BYTES:,} are read"
        )
    return "\n".join(_decoded(dataset, path) for path in paths)


def _unread(dataset: str, path: Path, error: OSError) -> DataError:
    return DataError(f"dataset {dataset}: {visible(path.name)}: {error.strerror}")


def _decoded(dataset: str, path: Path) -> str:
    try:
        return disk.content(path, MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        byte, at = error.object[error.start], error.start
        raise DataError(
            f"dataset {dataset}: {visible(path.name)} is not UTF-8: byte 0x{byte:02x} at {at:,}; "
            "convert it"
        ) from None
    except OSError as error:
        raise _unread(dataset, path, error) from None


def _split(text: str, share: float) -> dict[str, str]:
    """The text to train on, and its last part."""
    first = feasible.kept_to_train(len(text), share)
    return {"train": text[:first], "val": text[first:]}


# --- tokenizers: (run, parts of the text) -> names of the tokens, tokens of each part -------------

Tokens = tuple[tuple[str, ...], dict[str, np.ndarray]]


def _bytes(run: Run, parts: dict[str, str]) -> Tokens:
    return BYTES, {part: np.frombuffer(text.encode(), np.uint8) for part, text in parts.items()}


def _bpe(run: Run, parts: dict[str, str]) -> Tokens:
    """Byte-pair encoding on bytes, as GPT-2's: every text can be written in it."""
    if importlib.util.find_spec("tokenizers") is None:
        raise DataError(
            "tokenizer bpe takes Hugging Face's tokenizers, which is not installed; "
            f"{here('pip install tokenizers')}, or take tokenizer bytes"
        )
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [parts["train"]],
        trainers.BpeTrainer(
            vocab_size=run.vocabulary, initial_alphabet=sorted(alphabet), show_progress=False
        ),
    )
    size = tokenizer.get_vocab_size()
    if size < run.vocabulary:
        allowed = f"a vocabulary of at most {size:,}" if size > len(BYTES) else "tokenizer bytes"
        raise DataError(
            f"dataset {run.dataset}: vocabulary {run.vocabulary:,} was asked for, but its text "
            f"gives {size:,} tokens; allowed: {allowed}, or a longer text"
        )
    names = tuple(tokenizer.id_to_token(number) for number in range(size))
    return names, {p: np.array(tokenizer.encode(text).ids, TOKEN) for p, text in parts.items()}


TOKENIZERS: dict[str, Callable[[Run, dict[str, str]], Tokens]] = {"bytes": _bytes, "bpe": _bpe}
