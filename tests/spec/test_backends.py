from typing import get_args

from mptexp.spec.backends import BACKEND_ROWS, BACKENDS, BackendName


def test_each_backend_is_one_row_with_a_label_and_packages():
    assert BACKENDS == get_args(BackendName) == ("tensorflow", "jax", "torch")
    assert [row.label for row in BACKEND_ROWS.values()] == ["TensorFlow", "JAX", "PyTorch"]
    assert all(row.name in row.packages for row in BACKEND_ROWS.values())
