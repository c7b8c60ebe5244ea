import numpy as np
import pytest

from mptexp.spec.run import Run
from mptexp.training import replay
from mptexp.training.data.datasets import Images

X = np.arange(16, dtype=np.uint8).reshape(4, 2, 2, 1)
IMAGES = Images(X, np.arange(4), X[:0], np.arange(0), ("a", "b", "c", "d"))


def never(run):
    raise AssertionError("no model is needed")


@pytest.mark.parametrize("run", [Run(replicas=2), Run(input_mode="keydana")])
def test_where_batches_cannot_be_had_again_a_sentence_says_so(run):
    found = replay.first_not_finite(run, IMAGES, 4, never)
    assert found == {"sentence": replay.ELSEWHERE}


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
