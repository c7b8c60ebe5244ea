import numpy as np
import pytest

from mptexp.training.data import sources
from mptexp.training.data.sources import DataError


def test_classes_keep_their_proportions():
    labels = [0] * 80 + [1] * 20
    train, val = sources.stratified(labels, 0.25, ("a", "b"), "mine")
    assert sorted(train + val) == list(range(100))
    assert np.bincount([labels[i] for i in train]).tolist() == [60, 15]
    assert sources.stratified(labels, 0.25, ("a", "b"), "mine") == (train, val)


@pytest.mark.parametrize(
    ("labels", "share", "message"),
    [
        ([0] * 9 + [1], 0.2, r"class b has 1\); allowed: more images"),
        # The lie: no class of two was on both sides, and "no readable training image" of it.
        ([0] * 150 + [1] * 2, 0.9, r"class b has 2\)"),
        ([0] * 150 + [1] * 2, 0.1, r"class b has 2\)"),
        ([0] * 5 + [1] * 5, 0.1, "validation_split 0.1 cannot divide 10 images"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_a_sentence(labels, share, message):
    with pytest.raises(DataError, match=f"^dataset mine: .*{message}"):
        sources.stratified(labels, share, ("a", "b"), "mine")


def test_long_lists_are_cut():
    assert sources.some("abc") == "a, b, c"
    assert sources.some("abcdefg") == "a, b, c, d, e and 2 more"


def test_a_digest_is_of_the_content():
    assert sources.digest({"a": 1, "b": 2}) == sources.digest({"b": 2, "a": 1})
    assert sources.digest({"a": 1}) != sources.digest({"a": "1"})
    assert len(sources.digest("a name that is no UTF-8: \udcff")) == 32
