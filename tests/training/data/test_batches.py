import dataclasses

import numpy as np
import pytest

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
def test_batches_follow_the_order(images, backend, got):
    run = Run(batch_size=500, epochs=2, backend=backend)
    order, steps = batches.order(images, run), got(images, run)
    assert len(steps) == len(order) == 4
    for (x, y), chosen in zip(steps, order, strict=True):
        assert (x.dtype, x.shape) == (np.uint8, (500, 32, 32, 1))
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
    for name in ("folder:a/flower_photos/", "folder:~/sign-language-digits", "tf_flowers"):
        assert len(batches.samples(images, Run(dataset=name))[0]) == 16
    for name in ("imagenette/320px", "folder:imagenette2"):
        assert len(batches.samples(images, Run(dataset=name))[0]) == 0


def test_validation_images_that_are_trained_on_are_counted_as_far_as_looked_at(monkeypatch):
    images = datasets.load(Run(image_size=8))
    whole = len(images.val_x)
    assert batches.seen_in_training(images) == (0, whole)
    val = images.val_x.copy()
    val[:3], val[7] = images.train_x[:3], images.train_x[-1]
    leaking = dataclasses.replace(images, val_x=val)
    assert batches.seen_in_training(leaking) == (4, whole)
    monkeypatch.setattr(batches, "LOOKED_AT", 300 * 8 * 8)
    assert batches.seen_in_training(leaking) == (3, 300)


def test_of_folders_class_by_class_the_same_classes_are_looked_at(monkeypatch):
    # The lie: "138 of 2000 are trained on too", of copies of training images throughout.
    images = datasets.load(Run(image_size=8))
    order = np.argsort(images.train_y, kind="stable")
    x, y = images.train_x[order], images.train_y[order]
    copies = dataclasses.replace(images, train_x=x, train_y=y, val_x=x[::4], val_y=y[::4])
    monkeypatch.setattr(batches, "LOOKED_AT", 200 * 8 * 8)
    seen, looked = batches.seen_in_training(copies)
    assert looked == np.isin(y[::4], y[:200]).sum()
    assert seen > 0.6 * looked  # the last of the classes is looked at in part
