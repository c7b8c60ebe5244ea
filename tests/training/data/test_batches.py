import dataclasses
import shutil

import numpy as np
import pytest
from PIL import Image
from support import write_images as write

from mptexp.records.schema import REPEATED
from mptexp.spec.run import Run
from mptexp.training.data import batches, datasets


def test_the_order_depends_on_the_seed_alone(images):
    run = Run(batch_size=100, epochs=3)
    first = batches.order(images, run)
    same = batches.order(
        images, run.model_copy(update={"policy": "mixed_float16", "backend": "jax"})
    )
    assert np.array_equal(first, same)
    assert not np.array_equal(first, batches.order(images, run.model_copy(update={"seed": 1})))


def test_nothing_is_dropped(images):
    # 14 batches of 100 an epoch leave 37 images over: they open the next epoch.
    order = batches.order(images, Run(batch_size=100, epochs=3))
    assert order.shape == (42, 100)
    counts = np.bincount(order.ravel()[: 2 * 1437], minlength=1437)
    assert set(counts) == {2}


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize("size", [100, 500, 1437])
def test_batches_follow_the_order(images, backend, size, got):
    run = Run(batch_size=size, epochs=2, backend=backend)
    order, steps = batches.order(images, run), got(images, run)
    assert len(steps) == len(order) == 2 * (1437 // size)
    for (x, y), chosen in zip(steps, order, strict=True):
        assert (x.dtype, x.shape) == (np.uint8, (size, 32, 32, 1))
        assert np.array_equal(x, images.train_x[chosen])
        assert np.array_equal(y, images.train_y[chosen])


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_folder_gives_the_same_batches_to_every_backend(photographs, backend, got):
    run = Run(batch_size=10, epochs=3, backend=backend)
    everything = photographs.train_x[:]
    for (x, y), chosen in zip(got(photographs, run), batches.order(photographs, run), strict=True):
        assert np.array_equal(x, everything[chosen])
        assert np.array_equal(y, photographs.train_y[chosen])


@pytest.mark.parametrize("replicas", [1, 2])
def test_validation_is_one_whole_pass_of_equal_parts(photographs, replicas):
    run = Run(batch_size=4, replicas=replicas)
    n = len(photographs.val_x) - len(photographs.val_x) % replicas
    given = batches.validation(photographs, run)["validation_data"]
    steps = [given[i] for i in range(len(given))]
    assert all(len(x) % replicas == 0 for x, _ in steps)
    assert np.array_equal(np.concatenate([x for x, _ in steps]), photographs.val_x[:n])
    assert np.array_equal(np.concatenate([y for _, y in steps]), photographs.val_y[:n])


def test_images_that_replicas_cannot_share_are_told(photographs):
    said = "1 of 6 images not validated with: they cannot be shared equally by 5 replicas"
    assert batches.notes(photographs, Run(batch_size=5, replicas=5)) == (*photographs.notes, said)
    assert batches.notes(photographs, Run()) == photographs.notes


def test_resident_feeds_nothing_of_the_size_of_images(images, got):
    for backend in ("tensorflow", "jax"):
        run = Run(batch_size=500, epochs=2, backend=backend, input_mode="resident")
        if backend == "tensorflow":
            steps = got(images, run)
            assert len(steps) == 4
            assert all(x.nbytes + y.nbytes == 1000 for x, y in steps)
        assert batches.validation(images, run) == {}


def test_images_of_unknown_terms_are_not_shown_in_a_sweep(photographs, images, tree, monkeypatch):
    folder, digits = Run(dataset=f"folder:{tree}"), Run()
    assert len(batches.samples(photographs, folder)[0]) == 16
    monkeypatch.setenv("MPTEXP_RUN_DIR", str(tree))
    assert len(batches.samples(photographs, folder)[0]) == 0
    shown, names = batches.samples(images, digits)
    assert len(shown) == len(names) == 16
    for name in ("tf_flowers", "tf_flowers:3.0.1"):
        assert len(batches.samples(images, Run(dataset=name))[0]) == 16
    # The lie: scans in a folder of the name of a free set were in published notebooks.
    for name in ("imagenette/320px", "folder:bank/digits", "idx:digits", "folder:a/tf_flowers"):
        assert len(batches.samples(images, Run(dataset=name))[0]) == 0


def test_validation_images_that_are_trained_on_are_counted():
    images = datasets.load(Run(image_size=8))
    assert batches.seen_in_training(images) == (0, len(images.val_x))
    val = images.val_x.copy()
    val[:3], val[7] = images.train_x[:3], images.train_x[-1]
    leaking = dataclasses.replace(images, val_x=val)
    assert batches.seen_in_training(leaking) == (4, len(val))


def test_those_of_a_folder_are_counted_when_it_is_prepared(tree):
    for number in (3, 4, 5):
        shutil.copy(tree / "brot & butter/0.png", tree / f"Käse/{number}.png")
    images = datasets.load(Run(dataset=f"folder:{tree}", image_size=16))
    known = {image.tobytes() for image in images.train_x[:]}
    seen = sum(image.tobytes() in known for image in images.val_x[:])
    assert seen
    assert batches.seen_in_training(images) == (seen, len(images.val_x))


def test_validation_images_that_are_stored_several_times_are_counted():
    # The lie: "equal", of 20 images that were each there 20 times.
    images, run = datasets.load(Run(image_size=8)), Run(image_size=8)
    assert batches.repeated(images) == 0
    assert not [note for note in batches.notes(images, run) if REPEATED in note]
    few = dataclasses.replace(
        images, val_x=np.repeat(images.val_x[:20], 18, 0), val_y=np.repeat(images.val_y[:20], 18)
    )
    assert f"340 of 360 validation images {REPEATED}" in batches.notes(few, run)


def test_copies_in_a_folder_to_validate_with_are_counted_when_it_is_prepared(tree):
    for name, shade in (("a", 10), ("bb", 200)):
        write(tree / "train" / name)
        write(tree / "val" / name, 2)
        for number in range(7):  # other files, of one picture
            form = "png" if number % 2 else "bmp"
            grey = Image.new("RGB", (12, 9), (shade, shade, shade))
            grey.save(tree / "val" / name / f"copy {number}.{form}")
    run = Run(dataset=f"folder:{tree}", image_size=16)
    images = datasets.load(run)
    assert images.repeated == 12
    assert f"12 of 18 validation images {REPEATED}" in batches.notes(images, run)


def test_sequences_of_a_text_are_no_copies(tmp_path):
    (tmp_path / "lines.txt").write_text("all alike\n" * 2000)
    text = datasets.load(Run(dataset=f"text:{tmp_path}/lines.txt", model="gpt", sequence_length=10))
    assert len({x.tobytes() for x in text.val_x[:]}) < len(text.val_x)
    assert batches.repeated(text) == 0
