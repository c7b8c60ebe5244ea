import numpy as np
import pytest

from mptexp import data
from mptexp.spec import Run


@pytest.fixture(scope="module")
def images():
    return data.load(Run(image_size=32))


def test_digits_are_real_pictures_in_a_stratified_split(images):
    assert images.train_x.shape == (1437, 32, 32, 1)
    assert images.val_x.shape == (360, 32, 32, 1)
    assert images.train_x.dtype == np.uint8
    assert (images.train_x.min(), images.train_x.max()) == (0, 255)
    assert set(np.bincount(images.val_y)) <= {34, 35, 36, 37}


def test_the_split_is_the_same_for_every_run_and_size(images):
    small = data.load(Run(image_size=8, seed=5))
    assert np.array_equal(small.train_y, images.train_y)
    joint = {p.tobytes() for p in small.train_x} & {p.tobytes() for p in small.val_x}
    assert not joint


def test_the_order_depends_on_the_seed_alone(images):
    run = Run(batch_size=100, epochs=3)
    first = data.order(images, run)
    same = data.order(images, run.model_copy(update={"policy": "mixed_float16", "backend": "jax"}))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, data.order(images, run.model_copy(update={"seed": 1})))


def test_nothing_is_dropped(images):
    # 14 batches of 100 an epoch leave 37 pictures over: they open the next epoch.
    order = data.order(images, Run(batch_size=100, epochs=3))
    assert order.shape == (42, 100)
    counts = np.bincount(order.ravel()[: 2 * 1437], minlength=1437)
    assert set(counts) == {2}


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_batches_follow_the_order(images, backend):
    run = Run(batch_size=500, epochs=2, backend=backend)
    order = data.order(images, run)
    got = [(np.asarray(x), np.asarray(y)) for x, y in data.batches(images, run)]
    assert len(got) == len(order) == 4
    for (x, y), chosen in zip(got, order, strict=True):
        assert np.array_equal(x, images.train_x[chosen])
        assert np.array_equal(y, images.train_y[chosen])
