import gzip
import resource
import struct

import numpy as np
import pytest

from mptexp.spec.run import Run
from mptexp.training.data import batches, datasets, idx
from mptexp.training.data.sources import DataError


def encoded(array, kind=8):
    head = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write(folder, names="{}-{}-idx{}-ubyte", pack=lambda data: data, counts=(12, 6)):
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    made = {}
    for part, n in zip(("train", "t10k"), counts, strict=True):
        x, y = random.integers(0, 256, (n, 28, 28)), np.arange(n) % 3
        for kind, array in (("images", x), ("labels", y)):
            (folder / names.format(part, kind, array.ndim)).write_bytes(pack(encoded(array)))
        made[part] = (x, y)
    return made


@pytest.mark.parametrize(
    ("names", "pack"),
    [
        ("{}-{}-idx{}-ubyte", bytes),
        ("{}-{}-idx{}-ubyte.gz", gzip.compress),
        ("{}-{}.idx{}-ubyte", bytes),
        ("{}-{}.idx{}-ubyte.gz", gzip.compress),
    ],
)
def test_mnists_files_are_read_under_all_their_names(tmp_path, names, pack):
    made = write(tmp_path / "my digits", names, pack)
    images = datasets.load(Run(dataset=f"idx:{tmp_path}/my digits", image_size=28))
    x, y = made["train"]
    assert np.array_equal(images.train_x[..., 0], x)  # not resized
    assert np.array_equal(images.train_y, y)
    assert np.array_equal(images.val_x[..., 0], made["t10k"][0])
    assert (images.shape, images.classes) == ((28, 28, 1), ("0", "1", "2"))
    assert images.train_y.dtype == np.int64


def test_copies_among_the_images_to_validate_with_are_counted(tmp_path):
    made = write(tmp_path)
    images = datasets.load(Run(dataset=f"idx:{tmp_path}", image_size=28))
    assert batches.repeated(images) == 0
    one = np.repeat(made["t10k"][0][:1], 6, 0)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(encoded(one))
    images = datasets.load(Run(dataset=f"idx:{tmp_path}", image_size=28))
    assert batches.repeated(images) == 5


def test_images_take_the_runs_size_and_colors(tmp_path):
    write(tmp_path)
    run = Run(dataset=f"idx:{tmp_path}", image_size=16, color_mode="rgb")
    images = datasets.load(run)
    assert images.train_x.shape == (12, 16, 16, 3)
    same = datasets.load(run.model_copy(update={"color_mode": "grayscale"}))
    assert np.array_equal(images.train_x[..., :1], same.train_x)
    assert images.content != same.content
    assert images.content == datasets.load(run).content


DAMAGES = {
    "no file train-labels": lambda f: f("train-labels", None),
    "is no idx file of bytes with 3 axes": lambda f: f("train-images", lambda b: b"\x89PNG" + b),
    "idx file of bytes with 1 axis": lambda f: f("t10k-labels", lambda b: b[:2] + b"\x0d" + b[3:]),
    "9,407 values, but its head says 9,408": lambda f: f("train-images", lambda b: b[:-1]),
    "more values, but its head says 12": lambda f: f("train-labels", lambda b: b + b"\0"),
    "is no idx file of": lambda f: f("t10k-images", lambda b: b[:9]),
    "12 images and 11 labels": lambda f: f("train-labels", lambda b: encoded(np.arange(11) % 3)),
    "has the label 2": lambda f: f("train-labels", lambda b: encoded(np.arange(12) % 2)),
    "has the label 1": lambda f: f("train-labels", lambda b: encoded(np.arange(12) % 2 * 2)),
    "28 x 28 to train on, of 9 x 9": lambda f: f(
        "t10k-images", lambda b: encoded(np.ones((6, 9, 9)))
    ),
    "holds no images": lambda f: [
        f("t10k-images", lambda b: encoded(np.ones((0, 28, 28)))),
        f("t10k-labels", lambda b: encoded(np.ones(0))),
    ],
}


@pytest.mark.parametrize("said", DAMAGES)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path, said):
    write(tmp_path)

    def change(stem, how):
        (path,) = tmp_path.glob(f"{stem}*")
        content = path.read_bytes()
        path.unlink() if how is None else path.write_bytes(how(content))

    DAMAGES[said](change)
    with pytest.raises(DataError, match=said) as caught:
        idx.read(f"idx:{tmp_path}")
    assert "\n" not in str(caught.value)


def test_a_damaged_archive_and_a_missing_folder_are_said(tmp_path):
    write(tmp_path, "{}-{}-idx{}-ubyte.gz", gzip.compress)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for broken in (whole[:-20], b"no archive", whole[:50] + bytes(100) + whole[150:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz cannot be read"):
            idx.read(f"idx:{tmp_path}")
    with pytest.raises(DataError, match="does not exist; give a folder with the four idx files"):
        idx.read(f"idx:{tmp_path}/nowhere")


def test_a_home_folder_is_not_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Run(dataset=f"idx:{tmp_path}/mnist").resolved().dataset == "idx:~/mnist"
    write(tmp_path / "mnist")
    assert len(idx.read("idx:~/mnist")["train"].x) == 12
    with pytest.raises(ValueError, match="idx:PATH"):
        Run(dataset="idx:")


@pytest.mark.parametrize("shape", [(12, 28, 28), (2**32 - 1, 2**16, 2**16)])
def test_an_archive_that_unfolds_to_gigabytes_is_not_unfolded(tmp_path, shape):
    write(tmp_path, "{}-{}-idx{}-ubyte.gz", gzip.compress)
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", *shape)
    packed = gzip.compress(head) + 128 * gzip.compress(bytes(2**24))  # 2 MB for 2 GiB
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(packed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"its head says 9,408|at most 536,870,912 are read"):
        idx.read(f"idx:{tmp_path}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20


def test_images_that_no_memory_holds_are_refused_in_a_sentence(tmp_path, monkeypatch):
    def none(*words):
        raise MemoryError

    monkeypatch.setattr(datasets.np, "empty", none)
    with pytest.raises(DataError, match=r"60,000 images of 224 x 224 take 3\.0 GB of memory"):
        datasets._resized(np.zeros((60_000, 1, 1), np.uint8), Run(dataset="idx:x", image_size=224))
