"""By which weights a host multiplies in a step."""

import pytest
from builders import gpu_steps, host

from mptexp.traces import kineto, weight_products

LINEAR = {"Input Dims": [[8, 512], [128, 512], [128]]}


def weights(*more, steps=3):
    return dict(kineto.read(gpu_steps(steps, *more), {}).weights)


def in_each(name, start, length, steps=3, **args):
    return [host(name, n * 1000 + start, length, **args) for n in range(steps)]


@pytest.mark.parametrize(
    ("name", "shapes", "shape"),
    [
        ("aten::conv2d", [[32, 3, 224, 224], [64, 3, 7, 7], []], "64x3x7x7"),
        ("aten::linear", [[8, 512], [128, 512]], "128x512"),
        ("aten::addmm", [[128], [8, 512], [512, 128]], "128x512"),
        ("aten::addmm", [[128], [8, 512]], ""),
        ("aten::mm", [[8, 512], [512, 128]], ""),
        ("aten::conv2d", [[1], ["a"]], ""),
        ("aten::conv2d", "text", ""),
        ("aten::bmm", [[1, 2, 3], [1, 3, 2]], ""),
    ],
)
def test_weights_are_the_second_factor(name, shapes, shape):
    assert weight_products.shape(name, shapes) == shape


def test_each_product_with_weights_counts_once():
    assert weights() == {"": 1}  # of the made step's convolution, without shapes
    linear = in_each("aten::linear", 320, 30, **LINEAR)
    within = in_each("aten::addmm", 325, 20)
    assert weights(*linear, *within) == {"": 1, "128x512": 1}
    # In one type the attention is one kernel, in another two products: neither is of weights.
    attention = in_each("aten::scaled_dot_product_attention", 320, 30)
    assert weights(*attention, *within) == {"": 1}
    recomputed = in_each("autograd::engine::evaluate_function: MmBackward0", 320, 30)
    assert weights(*recomputed, *within) == {"": 1}


def test_nothing_is_told_where_steps_differ_or_products_are_hidden():
    assert weights(host("aten::linear", 320, 30, **LINEAR)) == {}
    assert weights(host("CompiledFunction", 320, 30)) == {}
    unmarked = [e for e in gpu_steps(4) if not e["name"].startswith(("Profiler", "Optimizer"))]
    assert kineto.read(unmarked, {}).weights == {}
    assert weights(*in_each("cudaGraphLaunch", 320, 9, cat="cuda_runtime")) == {}
