import keras
import numpy as np
import pytest
from keras import layers

from mptexp.training import foreign_model


def backbone(policy, units=16, seed=None):
    """A model in which all but the head lies in another model."""
    entry = keras.Input((8,))
    inner, kernel = entry, keras.initializers.GlorotUniform(seed)
    for _ in range(3):
        dense = layers.Dense(units, kernel_initializer=kernel, dtype=policy)
        inner = dense(inner)
    head = [layers.Dense(2, dtype="float32"), layers.Dense(2, dtype="float32")]
    return keras.Sequential([keras.Input((8,)), keras.Model(entry, inner), *head])


class Own(keras.Model):
    """A model of a subclass: Keras has no graph of it."""

    def __init__(self, policy="mixed_bfloat16", window=3):
        super().__init__(dtype=policy)
        self.inner = [layers.Conv2D(8, window, dtype=policy), layers.Conv2D(8, 3, dtype="float32")]

    def call(self, x):
        for layer in self.inner:
            x = layer(x)
        return x


def built(model, size=12):
    model(np.zeros((1, size, size, 8), "float32"))
    return model


def test_layers_in_layers_hold_weights_and_have_policies():
    # The lie: "float32", of two small layers beside a backbone in bfloat16, which was not looked
    # into.
    model = backbone("mixed_bfloat16")
    assert sum(foreign_model.holders(model).values()) == model.count_params()
    assert foreign_model.policies(model).most_common()[0][0] == "mixed_bfloat16"


def test_weights_of_a_layer_made_of_layers_count_once():
    entry = keras.Input((5, 8))
    model = keras.Model(entry, layers.MultiHeadAttention(2, 4)(entry, entry))
    assert sum(foreign_model.holders(model).values()) == model.count_params()


def test_a_mixture_is_named_by_its_arithmetic_or_where_that_is_unknown_by_its_parameters():
    what, shares = foreign_model.shares(backbone("mixed_bfloat16", units=8))
    assert what == "arithmetic"
    assert shares["bfloat16"] + shares["float32"] == pytest.approx(1)
    assert 0.5 < shares["bfloat16"] < 1
    own = built(Own())
    assert foreign_model.shares(own) == ("parameters", {"bfloat16": 0.5, "float32": 0.5})
    assert foreign_model.policies(own) == {"mixed_bfloat16": 584, "float32": 584}


def test_a_fingerprint_is_of_the_network_and_not_of_its_types():
    one = foreign_model.fingerprint(backbone("float32"))
    assert one == foreign_model.fingerprint(backbone("mixed_bfloat16", seed=7))
    assert one != foreign_model.fingerprint(backbone("float32", units=17))
    own = foreign_model.fingerprint(built(Own()))
    assert own == foreign_model.fingerprint(built(Own("float32")))
    assert own != foreign_model.fingerprint(built(Own(window=1)))
    assert own != foreign_model.fingerprint(
        built(Own(), size=16)
    )  # the same weights, another input


def test_the_examples_of_an_epoch_are_counted():
    model = backbone("float32")
    assert foreign_model.examples(model) is None
    model.compile("sgd", "mse")
    model.fit(np.zeros((50, 8)), np.zeros((50, 2)), batch_size=16, verbose=0)
    assert foreign_model.examples(model) == 50


def test_a_training_step_of_the_users_own_tells_no_examples():
    # The lie: "trained on 1 images in 1 step", by a metric that a user's step lets count steps.
    class Stepped(keras.Model):
        def train_step(self, *words):
            return super().train_step(*words)

    entry = keras.Input((8,))
    for kind, told in ((keras.Model, 32), (Stepped, None)):
        model = kind(entry, layers.Dense(2)(entry))
        model.compile("sgd", "mse")
        model.fit(np.zeros((32, 8)), np.zeros((32, 2)), verbose=0)
        assert foreign_model.examples(model) == told


def test_what_compile_was_told_is_part_of_a_models_state():
    # The lie: 2.47 ms of a `fit` whose steps take 4.5, by windows of one before another metric.
    model = built(keras.Sequential([keras.layers.Dense(4)]))

    def told(loss="mse", optimizer="sgd", **more):
        model.compile(optimizer, loss, **more)
        return foreign_model.state(model)

    plain = told()
    assert told() == plain
    assert told("mae") != plain
    assert told(metrics=["mae"]) != plain
    assert told(metrics=[keras.metrics.Mean()]) == told(metrics=[keras.metrics.Mean()])
    assert told(optimizer=keras.optimizers.SGD(gradient_accumulation_steps=2)) != plain
