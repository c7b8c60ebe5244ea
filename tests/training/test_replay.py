import numpy as np
import pytest

from mptexp.spec.run import Run
from mptexp.training import models, replay
from mptexp.training.data.datasets import Images

X = np.arange(16, dtype=np.uint8).reshape(4, 2, 2, 1)
IMAGES = Images(X, np.arange(4), X[:0], np.arange(0), ("a", "b", "c", "d"))


def never(run):
    raise AssertionError("no model is needed")


@pytest.mark.parametrize("run", [Run(replicas=2), Run(input_mode="keydana")])
def test_where_batches_cannot_be_had_again_a_sentence_says_so(run):
    found = replay.first_not_finite(run, IMAGES, 4, never)
    assert found == {"sentence": replay.ELSEWHERE}


@pytest.mark.parametrize("error", [models.ModelError("edited"), MemoryError(), TypeError("loop")])
def test_what_fails_as_it_is_trained_again_leaves_it_diverged(error):
    def fails(run):
        raise error

    (said,) = replay.first_not_finite(Run(batch_size=2), IMAGES, 2, fails).values()
    name = type(error).__name__
    assert said == f"in which step, is not known: to train it again step by step raised {name}"


def test_ctrl_c_ends_the_search_for_the_step():
    def stopped(run):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay.first_not_finite(Run(batch_size=2), IMAGES, 2, stopped)


def test_a_batch_is_what_the_model_was_given():
    chosen = np.array([3, 1])
    x, y = replay.batch(Run(), IMAGES, chosen)
    assert (x.tolist(), y.tolist()) == (X[chosen].tolist(), [3, 1])
    x, _ = replay.batch(Run(input_mode="resident"), IMAGES, chosen)
    assert x.shape == (2,)


def test_histograms_are_made_where_they_are_asked_for():
    assert replay.histograms(Run(), IMAGES) is None
    looks = replay.histograms(Run(exponents_every=2, batch_size=2), IMAGES)
    assert [len(part) for part in looks.batch(5)] == [2, 2]
