import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from forked import python
from keras import layers

from mptexp.training import initial_weights


@pytest.mark.parametrize("seed", [0, 1, 999_999_999, 2**31 - 2, 2**31 + 5])
def test_numbers_are_tensorflows_to_the_last_bit(seed):
    expected = tf.random.stateless_uniform([1003], [seed % (2**31 - 2), 0]).numpy()
    assert np.array_equal(initial_weights._uniform(1003, seed), expected)


def test_a_draw_of_many_numbers_is_that_of_its_parts(monkeypatch):
    whole = initial_weights._uniform(100, 7)
    monkeypatch.setattr(initial_weights, "AT_ONCE", 3)
    assert np.array_equal(initial_weights._uniform(100, 7), whole)


@pytest.mark.parametrize("shape", [(5, 5, 3, 8), (17, 4), (3, 4, 6)])
@pytest.mark.parametrize("kind", ["GlorotUniform", "HeUniform", "LecunUniform"])
def test_a_kernel_is_what_keras_draws_under_tensorflow(shape, kind):
    initializer = getattr(keras.initializers, kind)(seed=42)
    found = initial_weights.glorot_uniform(shape, initializer.scale, initializer.mode, 42)
    assert found.dtype == np.float32
    assert np.array_equal(found, np.asarray(initializer(shape)))


@pytest.mark.parametrize(
    "layer", [layers.Conv2D(2, 3), layers.DepthwiseConv2D(3), layers.SeparableConv2D(2, 3)]
)
def test_every_initializer_is_found_a_variable(layer):
    layer.build((None, 8, 8, 2))
    stems = [n.removesuffix("_initializer") for n in vars(layer) if n.endswith("_initializer")]
    found = [initial_weights._initialized(layer, stem) for stem in stems]
    assert {id(variable) for variable in found} == {id(weight) for weight in layer.weights}


PROGRAM = """
import json, sys
import numpy as np
from mptexp import Run
from mptexp.training import precision
run = Run(**json.loads(sys.argv[1]))
precision.use(run)
from mptexp.training import initial_weights, models
first, last = (w for w in models.build(run, (8, 8, 1), 10).weights if w.ndim == 2)
drawn = initial_weights.glorot_uniform(last.shape, 1.0, "fan_avg", run.seed + 7)
print(json.dumps([np.unique(first.numpy()).tolist(), np.array_equal(last.numpy(), drawn)]))
"""
TRAINED = """
import keras
import numpy as np
from keras import layers

def build(shape, classes):
    known, new = layers.Dense(8), layers.Dense(
        classes, kernel_initializer=keras.initializers.GlorotUniform(seed=7))
    head = layers.Activation("softmax", dtype="float32")
    model = keras.Sequential([keras.Input(shape), layers.Flatten(), known, new, head])
    known.set_weights([np.full(w.shape, 0.25) for w in known.weights])
    return model
"""


def test_weights_that_a_model_of_the_users_loads_are_kept(tmp_path):
    # The lie: of JAX and PyTorch "pretrained" was a random draw, of TensorFlow it was not.
    (tmp_path / "trained.py").write_text(TRAINED)
    done = python(PROGRAM, {"model": "trained:build", "backend": "jax"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[0.25], True]
