import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from mptexp.spec.run import Run
from mptexp.training.data import datasets


@pytest.fixture(scope="module")
def images():
    return datasets.load(Run(image_size=32))


def test_digits_are_real_pictures_in_a_stratified_split(images):
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


def test_the_order_depends_on_the_seed_alone(images):
    run = Run(batch_size=100, epochs=3)
    first = datasets.order(images, run)
    same = datasets.order(
        images, run.model_copy(update={"policy": "mixed_float16", "backend": "jax"})
    )
    assert np.array_equal(first, same)
    assert not np.array_equal(first, datasets.order(images, run.model_copy(update={"seed": 1})))


def test_nothing_is_dropped(images):
    # 14 batches of 100 an epoch leave 37 pictures over: they open the next epoch.
    order = datasets.order(images, Run(batch_size=100, epochs=3))
    assert order.shape == (42, 100)
    counts = np.bincount(order.ravel()[: 2 * 1437], minlength=1437)
    assert set(counts) == {2}


def got(images, run):
    return [(np.asarray(x), np.asarray(y)) for x, y in datasets.batches(images, run)]


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_batches_follow_the_order(images, backend):
    run = Run(batch_size=500, epochs=2, backend=backend)
    order, steps = datasets.order(images, run), got(images, run)
    assert len(steps) == len(order) == 4
    for (x, y), chosen in zip(steps, order, strict=True):
        assert (x.dtype, x.shape) == (np.uint8, (500, 32, 32, 1))
        assert np.array_equal(x, images.train_x[chosen])
        assert np.array_equal(y, images.train_y[chosen])


@pytest.fixture
def photographs(tree):
    return datasets.load(Run(dataset=f"folder:{tree}", image_size=16))


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_folder_gives_the_same_batches_to_every_backend(photographs, backend):
    run = Run(batch_size=10, epochs=3, backend=backend)
    everything = photographs.train_x[:]
    for (x, y), chosen in zip(got(photographs, run), datasets.order(photographs, run), strict=True):
        assert np.array_equal(x, everything[chosen])
        assert np.array_equal(y, photographs.train_y[chosen])


@pytest.mark.parametrize("replicas", [1, 2])
def test_validation_is_one_whole_pass_of_equal_parts(photographs, replicas):
    run = Run(batch_size=4, replicas=replicas)
    n = len(photographs.val_x) - len(photographs.val_x) % replicas
    given = datasets.validation(photographs, run)["validation_data"]
    steps = [given[i] for i in range(len(given))]
    assert all(len(x) % replicas == 0 for x, _ in steps)
    assert np.array_equal(np.concatenate([x for x, _ in steps]), photographs.val_x[:n])
    assert np.array_equal(np.concatenate([y for _, y in steps]), photographs.val_y[:n])


def test_pictures_that_replicas_cannot_share_are_told(photographs):
    said = "1 of 6 pictures not validated with: they cannot be shared equally by 5 replicas"
    assert datasets.notes(photographs, Run(batch_size=5, replicas=5)) == (*photographs.notes, said)
    assert datasets.notes(photographs, Run()) == photographs.notes


def test_keydana_is_the_pipeline_of_the_study(photographs):
    run = Run(batch_size=10, image_size=16, input_mode="keydana", seed=3)
    stream = datasets.batches(photographs, run)
    steps = [(x.numpy(), y.numpy()) for x, y in stream]
    assert [len(x) for x, _ in steps] == [10, 10, 4]  # the last batch is smaller, none dropped
    assert datasets.steps_per_epoch(photographs, run) == 3
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
    again = [x.numpy() for x, _ in datasets.batches(photographs, run)]
    assert np.array_equal(np.concatenate(again), x)
    later = np.concatenate([x.numpy() for x, _ in stream])
    assert not np.array_equal(later, x)  # another order in the next epoch


def test_keydana_leaves_out_broken_pictures(tree):
    (tree / "Käse/letter.jpg").write_text("not a picture")
    run = Run(dataset=f"folder:{tree}", image_size=16, batch_size=10, input_mode="keydana")
    images = datasets.load(run)
    assert sum(len(y) for _, y in got(images, run)) == len(images.train_x)
    assert images.notes == ("1 picture of the dataset could not be read",)


def test_keydana_serves_arrays_and_grey_pictures_too(images, tree):
    run = Run(batch_size=1000, image_size=24, input_mode="keydana")
    assert [x.shape for x, _ in got(images, run)] == [(1000, 24, 24, 1), (437, 24, 24, 1)]
    grey = Run(
        dataset=f"folder:{tree}", image_size=16, color_mode="grayscale", input_mode="keydana"
    )
    assert got(datasets.load(grey), grey)[0][0].shape == (24, 16, 16, 1)


def test_resident_feeds_nothing_of_the_size_of_pictures(images):
    for backend in ("tensorflow", "jax"):
        run = Run(batch_size=500, epochs=2, backend=backend, input_mode="resident")
        if backend == "tensorflow":
            steps = got(images, run)
            assert len(steps) == 4
            assert all(x.nbytes + y.nbytes == 1000 for x, y in steps)
        assert datasets.validation(images, run) == {}


def test_synthetic_has_the_shape_and_length_that_were_asked_for():
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
    assert datasets.validation(images, run) == {}
    steps = got(images, run.model_copy(update={"epochs": 1}))
    assert [x.shape for x, _ in steps] == [(90, 24, 24, 3)] * 11
    assert datasets.load(run.model_copy(update={"color_mode": "grayscale"})).shape == (24, 24, 1)
    same = datasets.load(run.model_copy(update={"policy": "mixed_float16", "seed": 4}))
    assert np.array_equal(same.train_x[:5], images.train_x[:5])


def test_pictures_of_unknown_terms_are_not_shown_in_a_sweep(photographs, images, tree, monkeypatch):
    folder, digits = Run(dataset=f"folder:{tree}"), Run()
    assert len(datasets.samples(photographs, folder)[0]) == 16
    monkeypatch.setenv("MPTEXP_RUN_DIR", str(tree))
    assert len(datasets.samples(photographs, folder)[0]) == 0
    shown, names = datasets.samples(images, digits)
    assert len(shown) == len(names) == 16
    for name in ("folder:a/flower_photos/", "folder:~/sign-language-digits", "tf_flowers"):
        assert len(datasets.samples(images, Run(dataset=name))[0]) == 16
    for name in ("imagenette/320px", "folder:imagenette2"):
        assert len(datasets.samples(images, Run(dataset=name))[0]) == 0
