"""What only the plain loop in JAX does; it beside Keras is in test_loop.py."""

from types import SimpleNamespace

import pytest

jax = pytest.importorskip("jax", reason="jax is not installed; pip install jax")


def test_the_scale_halves_after_a_skipped_step_and_doubles_after_so_many_others():
    from mptexp.training.frontends.native_jax import Trained

    trained = object.__new__(Trained)
    trained.recipe = SimpleNamespace(dynamic=SimpleNamespace(dynamic_growth_steps=3))
    state, scales = {"scale": jax.numpy.float32(8), "since": jax.numpy.int32(0)}, []
    for finite in (True, False, True, True, True, True):
        state |= trained._rescaled(state, jax.numpy.array(finite))
        scales.append(float(state["scale"]))
    assert scales == [8, 4, 4, 4, 8, 8]


def test_it_computes_without_jit_too(side_by_side):
    asked = {"backend": "jax", "jit": "off", "epochs": 1, "max_steps": 7, "image_size": 8}
    (said,) = side_by_side(asked, {"model": "mlp", "width": 0.02})
    assert said["settings"]["jit"] is False
    assert said["gradients"] < 1e-5
    (said,) = side_by_side(asked | {"phase": "inference"}, {"model": "mlp", "width": 0.02})
    assert said["settings"]["jit"] is False
    assert said["in_a_row"] < 1e-5
