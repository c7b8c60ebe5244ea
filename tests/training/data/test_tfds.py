"""Real builders of tensorflow-datasets on an archive of Imagenette's layout, made here."""

import io
import os
import tarfile
import tempfile
from contextlib import contextmanager

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from mptexp.spec.run import Run
from mptexp.training.data import batches, cache, datasets, sources
from mptexp.training.data import tfds as downloads
from mptexp.training.data.sources import DataError

URL = "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz"
CLASSES = [
    "n01440764", "n02102040", "n02979186", "n03000684", "n03028079",
    "n03394916", "n03417042", "n03425413", "n03445777", "n03888257",
]  # fmt: skip
FLOWERS = ("daisy", "dandelion", "roses", "sunflowers", "tulips")


def jpeg(seed):
    noise = np.random.default_rng(seed).integers(0, 256, (30 + seed, 40), np.uint8)
    image = Image.fromarray(noise).convert("L" if seed % 5 == 0 else "RGB")
    buffer = io.BytesIO()
    image.save(buffer, "JPEG")
    return buffer.getvalue()


def pack(path, contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A data directory in which the user has put an archive with 3 and 1 images a class."""
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path))
    contents = {
        f"imagenette2-320/{'val' if i == 3 else 'train'}/{name}/{name}_{i}.JPEG": jpeg(4 * k + i)
        for k, name in enumerate(CLASSES)
        for i in range(4)
    }
    pack(tmp_path / "downloads/manual/imagenette2-320.tgz", contents)
    return tmp_path


@contextmanager
def registered(builder, url, archive):
    """The builder, with the checksum of the archive made here in place of the original's."""
    before = dict(builder.url_infos)
    builder.url_infos[url] = tfds.download.checksums.compute_url_info(archive)
    yield builder
    builder.url_infos.clear()
    builder.url_infos.update(before)


@pytest.fixture
def builder(place):
    archive = place / "downloads/manual/imagenette2-320.tgz"
    with registered(downloads.builder("imagenette/320px-v2"), URL, archive) as made:
        yield made


def test_the_temporary_folder_is_left_as_it_was(place, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    downloads.builder("imagenette/320px-v2")
    assert list((tmp_path / "temporary").iterdir()) == []
    assert tempfile.tempdir == str(tmp_path / "temporary")


def test_imagenette_is_prepared_from_an_archive_without_network(builder):
    found = downloads.source(builder, 0.2)
    assert found.counts == {"train": 30, "val": 10}
    assert found.classes[:2] == ("n01440764", "n02102040")
    examples = list(found.examples("val"))
    assert sorted(label for _, _, label in examples) == list(range(10))
    wanted = {jpeg(4 * k + 3) for k in range(10)}
    assert {content for _, content, _ in examples} == wanted  # the bytes of the archive, not ours


def test_its_images_are_prepared_grey_ones_too(builder):
    made = cache.prepare(downloads.source(builder, 0.2), 32, "rgb", "refuse")
    assert made.images("train").shape == (30, 32, 32, 3)
    assert np.bincount(made.labels("train")).tolist() == [3] * 10


def test_a_run_uses_what_was_prepared(builder):
    downloads.source(builder, 0.2)
    run = Run(dataset="imagenette/320px-v2", image_size=16, batch_size=10, epochs=1)
    images = datasets.load(run)  # through a builder of its own
    assert images.shape == (16, 16, 3)
    keydana = run.model_copy(update={"input_mode": "keydana"})
    steps = [(x.numpy(), y.numpy()) for x, y in batches.training(images, keydana)]
    assert [x.shape for x, _ in steps] == [(10, 16, 16, 3)] * 3
    assert sorted(y for _, labels in steps for y in labels) == sorted(images.train_y.tolist())


def test_prepared_files_that_were_cut_off_are_refused_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path))
    archive = tmp_path / "downloads/manual/flower_photos.tgz"
    pack(archive, {f"flower_photos/{c}/{i}.jpg": jpeg(i) for c in FLOWERS for i in range(10)})
    builder = downloads.builder("tf_flowers")
    (url,) = builder.url_infos
    with registered(builder, url, archive):
        found = downloads.source(builder, 0.2)
    for path in (tmp_path / "tf_flowers").rglob("*.tfrecord*"):
        os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(
        DataError, match=r"prepared files in .* cannot be read: .*; remove that fol"
    ):
        list(found.examples("train"))


def test_a_wrong_archive_is_refused_by_its_checksum(place):
    with pytest.raises(DataError, match=r"imagenette2-320.tgz is not the registered archive") as e:
        downloads.source(downloads.builder("imagenette/320px-v2"), 0.2)
    assert "registered is 569b4497c98db6dd29f335d1f109cf315fe127053cedf69010d047f0188e158c" in str(
        e.value
    )


def test_without_network_and_archive_it_says_where_to_put_the_archive(tmp_path, monkeypatch):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path))
    builder = downloads.builder("imagenette/160px")
    before = dict(builder.url_infos)
    # A host that no network knows (RFC 2606), so that the test says the same everywhere.
    url = URL.replace("s3.amazonaws.com", "nowhere.invalid")
    info = next(iter(before.values()))
    builder.url_infos.clear()
    builder.url_infos[url.replace("imagenette2-320", "imagenette-160")] = type(info)(
        size=info.size, checksum=info.checksum, filename="imagenette-160.tgz"
    )
    try:
        with pytest.raises(DataError, match=r"nowhere.invalid cannot be reached; with its archive"):
            downloads.source(builder, 0.2)
        with pytest.raises(DataError, match=r"\(imagenette-160.tgz\) in .*downloads/manual"):
            downloads.source(builder, 0.2)
    finally:
        builder.url_infos.clear()
        builder.url_infos.update(before)


def test_a_set_without_validation_is_split(tmp_path, monkeypatch):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path))
    archive = tmp_path / "downloads/manual/flower_photos.tgz"
    pack(archive, {f"flower_photos/{c}/{i}.jpg": jpeg(i) for c in FLOWERS for i in range(10)})
    builder = downloads.builder("tf_flowers")
    (url,) = builder.url_infos
    with registered(builder, url, archive):
        found = downloads.source(builder, 0.2)
    assert found.counts == {"train": 40, "val": 10}
    names = {part: [n for n, _, _ in found.examples(part)] for part in ("train", "val")}
    assert [len(names["train"]), len(names["val"])] == [40, 10]
    assert not set(names["train"]) & set(names["val"])
    assert sorted(label for _, _, label in found.examples("val")) == sorted([*range(5)] * 2)
    assert found.notes == ["20% of its images are kept for validation"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("imagenette/321px", r"no configuration 321px; allowed: .*did you mean imagenette/320px"),
        ("imdb_reviews", "is not an image-classification set: it gives text, label"),
        ("no_such_set", "tensorflow-datasets has none of this name"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(tmp_path, monkeypatch, name, message):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path))
    with pytest.raises(DataError, match=message) as error:
        downloads.source(downloads.builder(name), 0.2)
    assert "\n" not in str(error.value)


def test_the_place_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path))
    assert sources.data_dir() == tmp_path
    monkeypatch.delenv("MPTEXP_DATA_DIR")
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert sources.data_dir().name == "tensorflow_datasets"
    assert sources.cache_dir() == tmp_path / "c/mptexp"
