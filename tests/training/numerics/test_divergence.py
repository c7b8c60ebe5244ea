import keras
import numpy as np
import pytest

from mptexp.training.numerics import divergence

BATCHES = [(np.ones((8, 4), "float32"), np.zeros(8, "int32"))] * 4


def made(learning_rate):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Input((4,)), keras.layers.Dense(3, name="wide")]
    model = keras.Sequential([*layers, keras.layers.Dense(2, name="last")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(learning_rate), loss)
    return model


def test_the_first_tensor_that_is_not_finite_is_named():
    first = divergence.first_not_finite(made(1e38), BATCHES)
    assert first["step"] == 2
    assert (first["kind"], first["layer"]) == ("activations", "last")
    assert divergence.sentence(first) == (
        "trained again step by step, the first tensor that was not finite was the output of last, "
        "in step 2"
    )


def test_a_recurrent_model_has_one_too():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Input((4,)), keras.layers.Reshape((2, 2)), keras.layers.GRU(3)]
    model = keras.Sequential([*layers, keras.layers.Dense(2, name="last")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e39), loss)
    first = divergence.first_not_finite(model, BATCHES)
    assert (first["step"], first["kind"]) == (2, "weights")


def test_a_training_that_stays_finite_has_none():
    assert divergence.first_not_finite(made(0.01), BATCHES) is None
    assert divergence.sentence(None) == "trained again step by step, all stayed finite"


@pytest.mark.parametrize("name", ["wide", "last"])
def test_a_weight_that_is_not_finite_is_seen_though_the_loss_is(name):
    model = made(0.01)
    assert divergence.broken(model) == ""
    layer = model.get_layer(name)
    bias = np.zeros(layer.bias.shape, "float32")
    bias[1] = np.nan
    layer.bias.assign(bias)
    assert divergence.broken(model) == name


def test_moving_averages_are_weights_too():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.BatchNormalization(name="bn")])
    model.layers[-1].moving_variance.assign([1.0, np.inf, 1.0, 1.0])
    assert divergence.broken(model) == "bn"


def test_an_update_that_breaks_the_weights_after_the_last_batch_is_named():
    first = divergence.first_not_finite(made(1e39), BATCHES[:1])
    assert (first["step"], first["kind"]) == (1, "updated_weights")


@pytest.mark.parametrize("kind", list(divergence.WORDS))
def test_every_kind_of_tensor_has_words(kind):
    first = {"step": 7, "kind": kind, "layer": "wide"}
    assert divergence.sentence(first).endswith(", in step 7")
    assert ("wide" in divergence.sentence(first)) == (kind != "loss")
