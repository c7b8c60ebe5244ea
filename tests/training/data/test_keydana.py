import numpy as np
import pytest

from mptexp.spec.run import Run
from mptexp.training.data import batches, datasets, decoding, keydana
from mptexp.training.data.sources import Source


def test_keydana_is_the_pipeline_of_the_study(photographs, got):
    run = Run(batch_size=10, image_size=16, input_mode="keydana", seed=3)
    stream = batches.training(photographs, run)
    steps = [(x.numpy(), y.numpy()) for x, y in stream]
    assert [len(x) for x, _ in steps] == [10, 10, 4]  # the last batch is smaller, none dropped
    assert batches.steps_per_epoch(photographs, run) == 3
    x, y = (np.concatenate(part) for part in zip(*steps, strict=True))
    assert (x.dtype, x.shape) == (np.float32, (24, 16, 16, 3))
    assert 0 <= x.min() < 0.2
    assert 0.8 < x.max() <= 1
    assert sorted(y) == sorted(photographs.train_y)
    # Shuffled by a buffer of 25 / 10 elements: nothing comes more than two places too early.
    one = run.model_copy(update={"batch_size": 1000})  # a buffer of one element
    (whole,) = [x for x, _ in got(photographs, one)]
    place = {p.tobytes(): i for i, p in enumerate(whole)}
    moved = [i - place[p.tobytes()] for i, p in enumerate(x)]
    assert min(moved) >= -1
    assert any(moved)
    again = [x.numpy() for x, _ in batches.training(photographs, run)]
    assert np.array_equal(np.concatenate(again), x)
    later = np.concatenate([x.numpy() for x, _ in stream])
    assert not np.array_equal(later, x)  # another order in the next epoch


def test_keydana_leaves_out_broken_images(tree, got):
    (tree / "Käse/letter.jpg").write_text("not an image")
    run = Run(dataset=f"folder:{tree}", image_size=16, batch_size=10, input_mode="keydana")
    images = datasets.load(run)
    assert sum(len(y) for _, y in got(images, run)) == len(images.train_x)
    assert images.notes == ("1 image of the dataset could not be read",)


def test_keydana_serves_arrays_and_grey_images_too(images, tree, got):
    run = Run(batch_size=1000, image_size=24, input_mode="keydana")
    assert [x.shape for x, _ in got(images, run)] == [(1000, 24, 24, 1), (437, 24, 24, 1)]
    grey = Run(
        dataset=f"folder:{tree}", image_size=16, color_mode="grayscale", input_mode="keydana"
    )
    assert got(datasets.load(grey), grey)[0][0].shape == (24, 16, 16, 1)


def test_grey_images_fill_the_channels_that_were_asked_for():
    tf = pytest.importorskip("tensorflow")
    x, y = np.zeros((6, 8, 8, 3), np.uint8), np.arange(6)
    grey = tf.data.Dataset.from_tensor_slices((np.full((6, 9, 9, 1), 51, np.uint8), y))
    source = Source("mine", ("a",), "grayscale", {}, {}, iter, stream=lambda part: grey)
    images = datasets.Images(x, y, x, y, ("a",), source=source)
    run = Run(color_mode="rgb", image_size=8, batch_size=6, input_mode="keydana")
    (fed,) = [x.numpy() for x, _ in batches.training(images, run)]
    assert fed.shape == (6, 8, 8, 3)
    assert np.allclose(fed, 0.2)


def test_validation_is_resized_as_training_is(tree):
    """The same photograph gives the same pixels on both sides; Pillow's would differ."""
    tf = pytest.importorskip("tensorflow")
    run = Run(dataset=f"folder:{tree}", image_size=8, input_mode="keydana", batch_size=4)
    images = datasets.load(run)
    data = batches.validation(images, run)["validation_data"]
    x, y = (np.concatenate(part) for part in zip(*data.as_numpy_iterator(), strict=True))
    whole = [decoding.decode(data, "rgb") for _, data, _ in images.source.examples("val")]
    expected = np.stack([tf.image.resize(image, (8, 8)) / 255 for image in whole])
    assert np.array_equal(x, expected)
    assert np.array_equal(y, images.val_y)
    assert np.abs(x * 255 - images.val_x[:]).mean() > 2  # the pipeline's pixels are others


def test_the_recorded_order_is_what_is_fed(got):
    """Labels that name their image, through the shuffling of three epochs."""
    x = np.zeros((50, 8, 8, 1), np.uint8)
    images = datasets.Images(x, np.arange(50), x[:0], np.arange(0), ("a",))
    run = Run(batch_size=8, epochs=3, seed=5, input_mode="keydana")
    stream = batches.training(images, run)
    fed = np.concatenate([y.numpy() for _ in range(3) for _, y in stream])
    assert np.array_equal(keydana.order(50, run), fed)
    digests = {
        batches.order_digest(images, run.model_copy(update=change))
        for change in ({}, {"seed": 6}, {"input_mode": "pipeline"}, {"batch_size": 16})
    }
    assert len(digests) == 4


def test_a_fingerprint_tells_what_the_model_gets(photographs):
    run = Run(batch_size=10, image_size=16)
    other = run.model_copy(update={"input_mode": "keydana"})
    marks = [batches.fingerprint(photographs, one) for one in (run, other, run, other)]
    assert marks[:2] == marks[2:]
    assert marks[0] != marks[1]
