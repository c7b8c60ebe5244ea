"""What Keras's float8 computes, beside ml_dtypes; each backend in a process of its own."""

import json

import ml_dtypes
import numpy as np
import pytest
from forked import python

BACKENDS = ("tensorflow", "jax", "torch")
E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
STEPS = 4
PROGRAM = """
import json, sys
import numpy as np
from mptexp.spec.run import Run
from mptexp.training import precision
asked = json.loads(sys.argv[1])
x, kernel, upstream = (np.array(part, "float32") for part in json.loads(sys.argv[2]))
run = Run(policy="float8", model="mlp", **asked)
precision.use(run)
import keras
from keras import layers, ops
from mptexp.training import effective_arithmetic, quantized_layers
from mptexp.training.numerics import probe

dense = layers.Dense(kernel.shape[1], use_bias=False)
exact = layers.Dense(3, dtype="float32", name="exact")
model = keras.Sequential([layers.Input(x.shape[1:]), dense])
dense.set_weights([kernel])
quantized_layers.quantized(run, model)
kept = quantized_layers.quantized(run, keras.Sequential([layers.Input((2,)), exact]))
said = {"left": [layer.name for layer in quantized_layers.layers_of(kept)]}
# Its gradient by the outputs is the labels.
model.compile(keras.optimizers.SGD(1.0), lambda y, given: ops.cast(given, "float32") * y,
              jit_compile={"on": True, "off": False}.get(run.jit, "auto"))
program = precision.backend(run.backend).compiled_program(model, (x, upstream), True)
said["program"] = ["ENTRY" in program, effective_arithmetic.native_products(program)]
given, kernels = [], []
for _ in range(int(sys.argv[3])):
    given.append(np.asarray(model.predict_on_batch(x), "float32").tolist())
    model.train_on_batch(x, upstream * upstream.size)
    kernels.append(np.asarray(dense.kernel.numpy()).tolist())
(row,) = quantized_layers.state(model)["layers"]
said["cut"] = "product" in probe.truncated("mixed_bfloat16", run.jit == "on")
before = [layer.dtype_policy.name for layer in quantized_layers.layers_of(model)]
with quantized_layers.marked(quantized_layers.layers_of(model)):
    marks = [layer.compute_dtype for layer in model.layers]
after = [layer.dtype_policy.name for layer in quantized_layers.layers_of(model)]
print(json.dumps(said | {"given": given, "kernels": kernels, "row": row, "marks": marks,
                         "policies": [before, after]}))
"""


class Scale:
    """Delayed scaling as Keras does it: a scale follows the largest magnitudes of earlier steps."""

    def __init__(self, dtype):
        self.dtype, self.scale, self.history = dtype, np.float32(1), []

    def rounded(self, values):
        """Divided, rounded and multiplied, each in bfloat16 but the rounding."""
        scale, largest = BF16(self.scale), BF16(float(ml_dtypes.finfo(self.dtype).max))
        x = np.clip(values.astype(BF16) / scale, -largest, largest).astype(self.dtype)
        return (x.astype(BF16) * scale).astype("float32")

    def follow(self, values):
        if self.history:
            largest = np.float32(float(ml_dtypes.finfo(self.dtype).max))
            self.scale = 1 / (largest / np.float32(max(self.history)))
        self.history.append(np.abs(values.astype(BF16)).max().astype("float32"))


def trained(x, kernel, upstream, cut):
    """What the layer gives before each step, its kernel after each, and the scales.

    Where an engine cuts the results of its products off, they are not rounded.
    """

    def product(left, right):
        exact = left @ right
        if cut:
            exact = (exact.view("uint32") & 0xFFFF0000).view("float32")
        return exact.astype(BF16).astype("float32")

    inputs, weights, gradients = Scale(E4M3), Scale(E4M3), Scale(E5M2)
    given, kernels = [], []
    for _ in range(STEPS):
        left, right = inputs.rounded(x), weights.rounded(kernel)
        given.append(product(left, right))
        back = product(left.T, gradients.rounded(upstream))
        for scale, values in ((inputs, x), (weights, kernel), (gradients, upstream)):
            scale.follow(values)
        kernel = kernel - back
        kernels.append(kernel)
    return given, kernels, {"inputs": inputs, "kernel": weights, "outputs_grad": gradients}


@pytest.fixture(scope="module")
def tensors():
    """A diagonal of inputs, so that each output is one product; some beyond e4m3's 448."""
    random = np.random.default_rng(0)
    x = np.diag(random.normal(0, 3, 16)).astype("float32")
    x[0, 0] = 700.0
    kernel = random.normal(0, 0.3, (16, 8)).astype("float32")
    upstream = random.normal(0, 0.01, (16, 8)).astype("float32")
    return [part.astype(BF16).astype("float32") for part in (x, kernel, upstream)]


@pytest.mark.parametrize(
    ("backend", "jit"), [*((name, "auto") for name in BACKENDS), ("tensorflow", "on")]
)
def test_float8_is_that_of_ml_dtypes_with_delayed_scales(tensors, backend, jit):
    pytest.importorskip(backend, reason=f"{backend} is not installed; pip install {backend}")
    asked = {"backend": backend, "jit": jit}
    done = python(PROGRAM, asked, json.dumps([part.tolist() for part in tensors]), str(STEPS))
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    given, kernels, scales = trained(*tensors, said["cut"])
    for step in range(STEPS):
        assert np.array_equal(np.array(said["given"][step], "float32"), given[step]), step
        assert np.allclose(said["kernels"][step], kernels[step], rtol=0, atol=1e-6), step
    for name, expected in scales.items():
        row = said["row"][name]
        assert row["scale"] == pytest.approx(expected.scale, rel=1e-6)
        assert row["amax"] == pytest.approx(max(expected.history))
        assert row["latest"] == pytest.approx(expected.history[-1])
        assert row["steps"] == STEPS
    compiled = backend == "jax" or jit == "on"
    assert said["program"] == [compiled, 0]  # no CPU multiplies in float8
    assert said["left"] == []  # float32 was asked for, for that layer
    assert said["marks"] == ["float16"]
    assert said["policies"] == [["float8_from_mixed_bfloat16"]] * 2
