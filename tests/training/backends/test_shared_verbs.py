import numpy as np

from mptexp.training.backends import shared_verbs


def test_batches_are_read_ahead_in_order():
    x, y = np.arange(12).reshape(6, 2), np.arange(6)
    order = np.array([[5, 0], [1, 4], [2, 3], [0, 1]])
    given = list(shared_verbs.batches(x, y, order))
    assert [labels.tolist() for _, labels in given] == order.tolist()
    assert [images.tolist() for images, _ in given] == [x[chosen].tolist() for chosen in order]


def test_placeholders_are_batches_of_nothing():
    given = list(shared_verbs.placeholders(3, 2))
    assert [x.shape for x, _ in given] == [(3,), (3,)]


def test_a_variable_is_read_as_it_is():
    x = np.arange(4, dtype="uint8")
    held = shared_verbs.variable(x)
    assert not held.trainable
    assert np.asarray(shared_verbs.own(held)).tolist() == [0, 1, 2, 3]
    assert np.asarray(shared_verbs.constant(x)).tolist() == [0, 1, 2, 3]


def test_the_widest_of_operands_is_told_by_its_bits():
    # Once 843 bits: all digits of float8_e4m3fn.
    assert shared_verbs.widest(["float8_e4m3fn", "float32"]) == "float32"
    assert shared_verbs.widest(["bfloat16", "float8_e5m2"]) == "bfloat16"
    assert shared_verbs.widest(["int8", "float16"]) == "float16"
    assert shared_verbs.widest(["int8", "int32"]) == "int32"
