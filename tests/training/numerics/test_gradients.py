"""On TensorFlow here; test_dynamic_range.py takes the same probe to every backend."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers
from support import PROJECT

from mptexp.training.numerics import gradients

X, Y = np.ones((4, 3), "float32"), np.zeros((4, 1), "float32")


@pytest.fixture
def model():
    keras.utils.clear_session()
    inner = keras.Sequential([layers.Dense(2, use_bias=False, kernel_initializer="ones")])
    last = layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([layers.Input((3,)), inner, last])
    model.compile("sgd", "mse")
    return model


def test_tensors_of_nested_layers_are_those_of_the_scaled_loss(model):
    probe = gradients.Probe(model, lambda kind, tensor, scale: tensor)
    told = {(kind, name): value for kind, name, value in probe(X, Y, 2.0)}
    assert told["activations", "dense"].tolist() == [[3.0, 3.0]] * 4
    assert told["loss", "loss"] == pytest.approx(36.0)
    # d(mean of squares)/d(output) = 2 * 6 / 4 for each of four images, times the scale.
    assert told["activation_gradients", "dense_1"] == pytest.approx(np.full((4, 1), 6.0))
    assert told["activation_gradients", "dense"] == pytest.approx(np.full((4, 2), 6.0))
    assert told["weight_gradients", "dense"] == pytest.approx(np.full((3, 2), 24.0))


def test_what_a_quantized_layer_gives_is_seen_too(model):
    model.quantize("float8", filters=lambda layer: type(layer) is layers.Dense)
    probe = gradients.Probe(model, lambda kind, tensor, scale: tensor)
    told = {(kind, name): value for kind, name, value in probe(X * 1.1, Y)}
    assert told["activations", "dense"].tolist() == [[3.375, 3.375]] * 4  # 1.1 is 1.125 in e4m3
    assert told["activation_gradients", "dense"].shape == (4, 2)
    assert {name for kind, name in told if kind == "weights"} == {"dense", "dense_1"}
    # 3.375 is 3.5 in e4m3; d(mean of squares)/d(output) = 2 * 2 * 3.5 / 4 is a number of e5m2.
    assert told["weight_gradients", "dense"] == pytest.approx(np.full((3, 2), 4 * 1.125 * 3.5))


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_recurrent_layer_is_seen_at_its_output(backend, tmp_path):
    # Its cell is called within a loop of the backend's, whose tensors nothing outside can read.
    pytest.importorskip(backend, reason=f"{backend} is not installed; pip install {backend}")
    environment = os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-c", RECURRENT]
    made = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-2000:]
    seen = eval(made.stdout.splitlines()[-1])
    assert seen["activations", "gru"] == [(4, 5, 2)]
    assert seen["activations", "forward_cells"] == seen["activation_gradients", "backward_cells"]
    assert seen["weight_gradients", "gru"] == [(3, 6), (2, 6), (2, 6)]
    names = {"gru", "forward_cells", "backward_cells", "two_ways", "last"}
    assert {name for kind, name in seen if kind != "loss"} <= names


RECURRENT = """
import collections, keras, numpy
from keras import layers
from mptexp.training.numerics import gradients
cells = layers.RNN([layers.GRUCell(2), layers.LSTMCell(3)], name="cells")
last = layers.Dense(1, name="last")
gru = layers.GRU(2, return_sequences=True, name="gru")
two_ways = layers.Bidirectional(cells, name="two_ways")
model = keras.Sequential([layers.Input((5, 3)), gru, two_ways, last])
model.compile("sgd", "mse")
probe = gradients.Probe(model, lambda kind, tensor, scale: tensor)
seen = collections.defaultdict(list)
for kind, name, value in probe(numpy.ones((4, 5, 3), "float32"), numpy.zeros((4, 1), "float32")):
    seen[kind, name].append(value.shape)
print(dict(seen))
"""


def test_layers_are_as_before_even_after_an_error(model):
    def fails(kind, tensor, scale):
        raise ValueError("no")

    before = [layer.call for layer in gradients._leaves(model)]
    with pytest.raises(ValueError, match="no"):
        gradients.Probe(model, fails)(X, Y)
    assert [layer.call for layer in gradients._leaves(model)] == before


def test_a_variable_is_of_the_layer_that_holds_it(model):
    kernel = model.layers[-1].kernel
    assert gradients.layer_of(model, kernel) == model.layers[-1].name
    assert gradients.layer_of(model, keras.Variable(1.0, name="own")) == "own"


@pytest.mark.parametrize(
    ("optimizer", "scale"),
    [
        (keras.optimizers.SGD(), "none"),
        (keras.optimizers.SGD(loss_scale_factor=128.0), 128.0),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=64.0), 64.0),
    ],
)
def test_the_scale_is_read_from_the_optimizer(optimizer, scale):
    model = keras.Sequential([layers.Input((2,)), layers.Dense(1)])
    model.compile(optimizer, "mse", auto_scale_loss=False)
    assert gradients.loss_scale(model) == scale
    optimizer.build(model.trainable_variables)
    assert gradients.loss_scale(model) == scale
