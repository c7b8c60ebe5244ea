import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from mptexp.spec.run import Run
from mptexp.training.data import batches, datasets


def test_digits_are_real_images_in_a_stratified_split(images):
    assert images.train_x.shape == (1437, 32, 32, 1)
    assert images.val_x.shape == (360, 32, 32, 1)
    assert images.train_x.dtype == np.uint8
    assert (images.train_x.min(), images.train_x.max()) == (0, 255)
    assert set(np.bincount(images.val_y)) <= {34, 35, 36, 37}


def test_the_digits_are_scikit_learns_in_its_split():
    bundled = load_digits()
    parts = train_test_split(
        bundled.images, bundled.target, test_size=360, stratify=bundled.target, random_state=0
    )
    with np.load(datasets.DIGITS) as ours:
        for name, part in zip(("train_x", "val_x", "train_y", "val_y"), parts, strict=True):
            assert np.array_equal(ours[name], part), name


def test_the_split_is_the_same_for_every_run_and_size(images):
    small = datasets.load(Run(image_size=8, seed=5))
    assert np.array_equal(small.train_y, images.train_y)
    joint = {p.tobytes() for p in small.train_x} & {p.tobytes() for p in small.val_x}
    assert not joint


def test_synthetic_has_the_shape_and_length_that_were_asked_for(got):
    run = Run(
        dataset="synthetic",
        image_size=24,
        synthetic_classes=7,
        synthetic_length=1000,
        batch_size=90,
    )
    images = datasets.load(run)
    assert images.train_x.shape == (1000, 24, 24, 3)
    assert len(images.classes) == 7
    assert set(images.train_y) == set(range(7))
    assert batches.validation(images, run) == {}
    steps = got(images, run.model_copy(update={"epochs": 1}))
    assert [x.shape for x, _ in steps] == [(90, 24, 24, 3)] * 11
    assert datasets.load(run.model_copy(update={"color_mode": "grayscale"})).shape == (24, 24, 1)
    same = datasets.load(run.model_copy(update={"policy": "mixed_float16", "seed": 4}))
    assert np.array_equal(same.train_x[:5], images.train_x[:5])


@pytest.mark.parametrize(("bits", "said"), [(12, True), (16, False)])
def test_images_that_are_all_but_black_are_said_to_be(tmp_path, monkeypatch, bits, said):
    # Scans of 12 bits in files of 16 kept 16 levels of 256, without a word.
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path / "cache"))
    ramp = np.linspace(0, 2**bits - 1, 64).reshape(8, 8).astype(np.uint16)
    for name in ("a", "b"):
        (tmp_path / "x" / name).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(ramp).save(tmp_path / "x" / name / f"{number}.png")
    images = datasets.load(Run(dataset=f"folder:{tmp_path / 'x'}", image_size=8))
    assert [note[:60] for note in images.notes if "brighter" in note] == [
        "no pixel of any image is brighter than 15 of 255: values tha"
    ] * said
