"""Low precision in a model and its optimizer: bits, not words.

The tests of this module run on TensorFlow, and those of what backends do differently again in a
child process on JAX and PyTorch.
"""

import sys

import keras
import numpy as np
import pytest
from autodiff import gradient
from keras import ops
from support import passes_under

from mptexp.spec.number_formats import Fixed
from mptexp.spec.run import Run
from mptexp.training import backends, costs, effective_settings, models, precision, user_model
from mptexp.training.capability import SettingNotApplied
from mptexp.training.numerics import emulation, gradients

BACKEND = keras.backend.backend()
DIFFERENT = (
    "mlp-stochastic or way_back or gradients or model_follow or their_gradient or its_gradient"
)
SHAPE = (8, 8, 1)


def parts(run, classes=10, batch=16, steps=3):
    """A model of the run, trained for a few steps, and images."""
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (steps * batch, *SHAPE), np.uint8)
    y = random.integers(0, classes, steps * batch)
    model = models.build(run, SHAPE, classes)
    precision.compile_model(model, run)
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0, shuffle=False)
    return model, x


def small(**parameters):
    known = {"backend": BACKEND, "model": "mlp", "width": 0.02, "batch_norm_momentum": 0.9}
    return Run(**(known | parameters))


def given(model, x):
    """What a model gives, as arrays."""
    found = model(ops.convert_to_tensor(x), training=False)
    return keras.tree.map_structure(ops.convert_to_numpy, found)


def off_grid(x, fixed):
    x = np.asarray(x, np.float64) / fixed.smallest_subnormal
    return x[(x % 1 != 0) | (x < fixed.lowest / fixed.smallest_subnormal)].size


# --- what passes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "rounding"),
    [("mlp", "stochastic"), ("keydana_cnn", "nearest")],  # the latter has batch normalization
)
def test_outputs_and_weights_are_on_the_grid(model, rounding):
    grid = Fixed(4, 6)
    run = small(model=model, propagation="<4,6>", weight_format="<3,7>", rounding=rounding)
    made, x = parts(run)
    for weight in made.trainable_variables:
        assert not off_grid(weight.numpy(), Fixed(3, 7)), weight.path
    *inside, _ = [leaf.outputs[0] for leaf in costs.leaves(made)]
    for output in given(keras.Model(made.inputs, inside), x):
        assert output.any()
        assert not off_grid(output, grid)
    probabilities = given(made, x)
    assert off_grid(probabilities, grid)  # the softmax at the end is float32's
    assert np.array_equal(probabilities, given(made, x))
    held = [layer for layer in made.layers if isinstance(layer, emulation.Rounded)]
    assert len(held) >= 4


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_gradient_is_rounded_on_the_way_back(rounding):
    grid, x = Fixed(4, 2), np.linspace(-3, 3, 400, dtype=np.float32)
    seeds = [emulation.DrawnSeed(ops.cast([5, k], backends.current().SEEDS)) for k in range(2)]

    def function(x):
        return (
            emulation.rounded_both_ways(x, grid, rounding, seeds) * 0.01
        )  # gradients are 0.01, 0.02, ...

    found = np.asarray(ops.convert_to_numpy(gradient(function, x)))
    wanted = 0.01 * np.arange(1, 401)
    assert not off_grid(found, grid)
    assert np.abs(found - wanted).max() <= (0.126 if rounding == "nearest" else 0.25)
    spread = np.abs(found - np.round(wanted * 4) / 4).max()
    assert spread == 0 or rounding == "stochastic"
    assert abs((found - wanted).mean()) < 0.02


def test_weight_gradients_are_rounded_too():
    # To multiples of 4: of a step of plain descent by 1, nothing but such multiples can remain.
    run = small(propagation="<8,-2>", optimizer="sgd", learning_rate=1.0)
    inner = keras.layers.Dense(3, kernel_initializer="zeros")
    layer = emulation.Rounded(inner, run, 0)
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(keras.optimizers.SGD(1.0), lambda y, z: ops.sum(z * y, -1))
    x = np.float32([[4, 8, 12, 16]] * 2)
    model.fit(x, np.float32([[3, 5, 9]] * 2), batch_size=2, verbose=0)
    # A gradient of z is y / 2, rounded: 1.5 to 0, 2.5 to 4, 4.5 to 4.
    # The kernel's, of 2 images, saturates at 124.
    assert inner.kernel.numpy().T.tolist() == [[0] * 4, *[[-32, -64, -96, -124]] * 2]
    assert inner.bias.numpy().tolist() == [0, -8, -8]


def test_without_a_format_a_run_is_as_ever():
    plain = models.build(small(), SHAPE, 10)
    assert not [layer for layer in plain.layers if isinstance(layer, emulation.Rounded)]
    precision.compile_model(plain, small())
    assert type(plain.optimizer).__name__ == "Adam"
    same = models.build(small(propagation="float32"), SHAPE, 10)
    x = np.random.default_rng(1).integers(0, 256, (5, *SHAPE), np.uint8)
    assert np.array_equal(given(plain, x), given(same, x))
    assert models.fingerprint(plain) == models.fingerprint(same)
    assert costs.table(plain).equals(costs.table(same))
    assert effective_settings.dtypes(plain)[1:].equals(effective_settings.dtypes(same)[1:])


# --- dynamic fixed point -------------------------------------------------------------------------


def own_model(body):
    """A run of a user's model in dynamic fixed point, with some body."""

    def network(shape, classes):
        inputs = keras.Input(shape)
        logits = keras.layers.Dense(classes)(body(keras.layers.Flatten()(inputs)))
        head = keras.layers.Activation("softmax", dtype="float32")
        return keras.Model(inputs, head(logits))

    module = type(sys)("model_of_test_emulation")
    module.network = network
    sys.modules[module.__name__] = module
    return small(propagation="dynamic<10>", model=f"{module.__name__}:network", width=1.0)


def test_ranges_of_a_model_follow_training_and_not_validation():
    run = own_model(lambda x: keras.layers.Dense(9, activation="relu", name="mine")(x))
    run = run.model_copy(update={"weight_format": "dynamic<12>"})
    made, x = parts(run)
    held = [h for h in made._flatten_layers() if isinstance(h, emulation.Rounded)]
    (layer,) = [h for h in held if h.name == "mine"]  # within the user's model
    states = [state.numpy() for state in layer.ranges]
    assert [state[:, 1].tolist() for state in states] == [
        [3, 3],
        [2, 3],
        [3, 3],
    ]  # no bias at first
    assert states[2][1, 0] < states[2][0, 0]  # gradients are smaller than outputs
    given(made, x)
    assert np.array_equal(states[2], layer.ranges[2].numpy())
    for weight in gradients.weights(made):
        largest = np.abs(weight.numpy()).max()
        assert not off_grid(weight.numpy(), Fixed(1, 11)), weight.path
        assert largest > 0
    assert len({state.path for state in layer.ranges}) == 3


def test_a_layer_that_is_used_twice_has_no_one_range():
    twice = keras.layers.Dense(4, name="twice")
    run = own_model(lambda x: twice(twice(keras.layers.Dense(4)(x))))
    with pytest.raises(models.ModelError, match="uses twice more than once"):
        models.build(run, SHAPE, 10)
    fixed = run.model_copy(update={"propagation": "<4,8>"})
    assert models.build(fixed, SHAPE, 10).output_shape == (None, 10)


# --- binary --------------------------------------------------------------------------------------


def test_signs_and_their_gradient():
    x = np.float32([-2, -1, -0.5, -0.0, 0.0, 0.5, 1, 2, np.nan])
    signs = ops.convert_to_numpy(emulation.sign(x))
    assert signs[:-1].tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]
    assert np.isnan(signs[-1])
    found = np.asarray(ops.convert_to_numpy(gradient(emulation.sign, x)))
    assert found.tolist() == [0, 2, 3, 4, 5, 6, 7, 0, 0]


def test_binary_weights_are_clipped_and_hidden_activations_are_signs():
    run = small(model="mlp_bn", width=0.005, propagation="binary", learning_rate=0.9)
    made, x = parts(run)
    kernels = [w for w in made.trainable_variables if emulation.is_kernel(w)]
    others = [w for w in made.trainable_variables if not emulation.is_kernel(w)]
    assert len(kernels) == 4
    for kernel in kernels:
        assert np.abs(kernel.numpy()).max() == 1  # so large a rate drives them there
    assert max(np.abs(w.numpy()).max() for w in others) > 1
    leaves = {leaf.layer.name: leaf for leaf in costs.leaves(made)}
    hidden = [leaf.outputs[0] for name, leaf in leaves.items() if "activation" in name]
    first = made.get_layer("dense")
    seen = keras.Model(made.inputs, [*hidden, first.input, first.output])
    *activations, into, out = given(seen, x)
    for values in activations[:-1]:
        assert set(np.unique(values)) == {-1, 1}
    assert len(np.unique(activations[-1])) > 2  # the last ones are probabilities
    signs = np.where(first.layer.kernel.numpy() >= 0, 1, -1)
    np.testing.assert_allclose(out, into @ signs + first.layer.bias.numpy(), atol=1e-4)


# --- what is kept --------------------------------------------------------------------------------


def steps(run, update, count, size=4000):
    """A variable of ones after some updates of the same size, and the share of swallowed ones."""
    kind = emulation.optimizer(keras.optimizers.SGD, run)
    weight = keras.Variable(np.ones(size, np.float32))
    made = kind(1.0)
    for _ in range(count):
        made.apply([ops.full((size,), -update)], [weight])
    swallowed = float(made.lost.numpy()) / float(made.updates.numpy())
    return weight.numpy(), swallowed


def test_nearest_swallows_and_stochastic_survives_in_expectation():
    ulp = 2.0**-10  # of float16 from one on
    weight, swallowed = steps(small(weight_format="float16"), 0.3 * ulp, 20)
    assert (weight == 1).all()
    assert swallowed == 1
    stochastic = small(weight_format="float16", rounding="stochastic")
    weight, swallowed = steps(stochastic, 0.3 * ulp, 20)
    assert not off_grid(weight, Fixed(8, 10))
    moved = (weight - 1) / ulp
    # 20 x 4000 draws of chance 0.3: six standard errors of the mean.
    assert abs(moved.mean() - 6) < 6 * np.sqrt(20 * 0.3 * 0.7 / 4000)
    assert abs(np.std(moved) - np.sqrt(20 * 0.3 * 0.7)) < 0.2
    assert abs(swallowed - 0.7) < 0.02
    again, _ = steps(stochastic, 0.3 * ulp, 20)
    assert np.array_equal(weight, again)
    other, _ = steps(stochastic.model_copy(update={"seed": 1}), 0.3 * ulp, 20)
    assert not np.array_equal(weight, other)
    weight, swallowed = steps(small(weight_format="float32"), 0.3 * ulp, 20)
    assert weight == pytest.approx(1 + 6 * ulp, rel=1e-6)
    assert swallowed == 0


def test_even_updates_that_float32_swallows_are_counted():
    weight, swallowed = steps(small(weight_format="float32"), 2.0**-30, 3, size=10)
    assert (weight == 1).all()
    assert swallowed == 1
    kind = emulation.optimizer(keras.optimizers.Adam, small(weight_format="float16"))
    made, weight = kind(0.1), keras.Variable(np.ones(3, np.float32))
    made.apply([np.zeros(3, np.float32)], [weight])
    assert float(made.updates.numpy()) == 0  # an update of zero is none


def test_master_weights_leave_the_update_as_it_is():
    plain, _ = parts(small())
    master, _ = parts(small(weight_format="float32"))
    for ours, theirs in zip(master.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    assert 0 <= emulation.lost_updates_frac(master) < 0.5
    assert emulation.lost_updates_frac(plain) is None


def test_weights_without_a_master_copy_under_a_loss_scale():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        run = small(policy="mixed_float16", weight_format="float16", loss_scale="dynamic")
        run = run.model_copy(update={"learning_rate": 1e-4})
        made, _ = parts(run)
    finally:
        keras.config.set_dtype_policy("float32")
    for weight in made.trainable_variables:
        values = weight.numpy()
        assert values.dtype == np.float32
        assert np.array_equal(values, values.astype(np.float16).astype(np.float32))
    assert 0 < emulation.lost_updates_frac(made) < 1
    assert emulation.effective(made) == {"propagation": "policy", "weight_format": "float16"}


# --- read back -----------------------------------------------------------------------------------


def test_what_is_in_force_is_read_from_the_model():
    run = small(propagation="<4,8>", weight_format="<2,10>")
    made = models.build(run, SHAPE, 10)
    precision.compile_model(made, run)
    assert emulation.effective(made) == {"propagation": "<4,8>", "weight_format": "<2,10>"}
    where = {"kind": "cpu", "device": "x", "capability": None, "instruction_sets": []}
    plain = models.build(small(), SHAPE, 10)
    precision.compile_model(plain, small())
    with pytest.raises(SettingNotApplied, match="propagation is policy, but the run asked for"):
        effective_settings.effective(plain, small(propagation="<4,8>"), where)
    outside = keras.layers.Dense(10)(made.outputs[0])
    mixed = keras.Model(made.inputs, outside)
    mixed.compile("adam")
    assert emulation.effective(mixed)["propagation"] == "<4,8>, policy"


def test_a_decoder_is_rounded_in_blocks():
    shape = {
        "model": "gpt",
        "dataset": "hamlet",
        "width": 1 / 24,
        "depth": 1,
        "sequence_length": 16,
    }
    run = Run(propagation="mxfp8_e4m3", **shape)
    made = models.build(run, (16,), 256)
    precision.compile_model(made, run)
    assert emulation.effective(made)["propagation"] == "mxfp8_e4m3"
    x = np.arange(64, dtype="int32").reshape(4, 16)
    plain = models.build(Run(**shape), (16,), 256)
    rough, exact = (np.asarray(model(x)) for model in (made, plain))
    assert 0 < np.abs(rough - exact).max() < 0.1 * exact.max()
    losses = [float(made.train_on_batch(x, x + 1)[0]) for _ in range(20)]
    assert losses[-1] < losses[0]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="runs once")
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_this_holds_on_the_other_backends(backend):
    passes_under(backend, __file__, "-k", DIFFERENT)


def test_binary_is_refused_where_an_activation_would_stay_float32(policy):
    # The lie: "trains with 1-bit activations", of a ReLU that is a layer of its own.
    policy("float32")
    x = keras.Input((4,))
    y = keras.layers.ReLU(name="cut")(keras.layers.Dense(3)(x))
    model = keras.Model(x, keras.layers.Dense(2, activation="softmax")(y))
    assert emulation.without_signs(Run(propagation="binary"), model) == "cut"
    assert emulation.without_signs(Run(), model) == ""
    usual = keras.layers.Activation("relu")(keras.layers.Dense(3)(x))
    model = keras.Model(x, keras.layers.Dense(2, activation="softmax")(usual))
    assert emulation.without_signs(Run(propagation="binary"), model) == ""


def test_blocks_lie_along_what_a_product_sums_over(policy):
    # A vocabulary that is the head too was rounded over tokens, its untied twin over features.
    policy("float32")
    run = Run(propagation="mxfp8_e4m3")
    dense, words = keras.layers.Dense(64), keras.layers.Embedding(256, 64)
    dense.build((None, 32))
    words.build((None,))
    wrapped = [emulation.Rounded(layer, run, 0) for layer in (dense, words)]
    assert wrapped[0]._summed(dense.kernel, True) == -2
    assert wrapped[1]._summed(words.embeddings, True) == -1
    assert wrapped[0]._summed(np.zeros((1, 1, 64)), True) == -1  # a token of its own
    assert wrapped[0]._summed(np.zeros((2, 3)), False) == -1


# --- a model of the user's own -------------------------------------------------------------------

SOFTMAX = {"activation": "softmax", "dtype": "float32"}


class Block(keras.layers.Layer):
    """Two Dense layers in one layer, as a block of a library is."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.parts = [keras.layers.Dense(8, activation="relu") for _ in range(2)]

    def build(self, shape):
        for part in self.parts:
            part.build(shape)
            shape = (*shape[:-1], 8)

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x

    def compute_output_shape(self, shape):
        return (*shape[:-1], 8)


class Head(keras.layers.Dense):
    """A class of the user's that gives probabilities."""


def mine(head, body=lambda x: x, **parameters):
    """A run of a user's model: images as rows, a body, ten features and a head."""

    def network(shape, classes):
        inputs = keras.Input(shape)
        x = body(keras.layers.Reshape((8, 8))(inputs))
        x = keras.layers.Flatten()(x) if len(x.shape) > 2 else x
        return keras.Model(inputs, head(keras.layers.Dense(10, name="before")(x)))

    module = type(sys)("mine_of_test_emulation")
    module.network = network
    sys.modules[module.__name__] = module
    return Run(backend=BACKEND, model=f"{module.__name__}:network", **parameters)


def images():
    return np.random.default_rng(0).integers(0, 256, (16, *SHAPE), np.uint8)


HEADS = {
    "activation": lambda x: keras.layers.Activation(**SOFTMAX)(x),
    "layer": lambda x: keras.layers.Softmax()(x),
    "operation": lambda x: keras.ops.softmax(x),
    "moved": lambda x: keras.layers.Identity()(
        keras.layers.Reshape((10,))(keras.layers.Activation(**SOFTMAX)(x))
    ),
    "nested": lambda x: keras.Sequential([keras.layers.Activation(**SOFTMAX)])(x),
    "with weights": lambda x: keras.layers.Dense(10, **SOFTMAX)(x),
}


@pytest.mark.parametrize(
    ("head", "propagation"),
    [*((head, "<3,2>") for head in HEADS), ("activation", "float8_e5m2"), ("nested", "dynamic<4>")],
)
def test_the_softmax_of_a_users_model_stays_float32(policy, head, propagation):
    # The lie: "not probabilities", of probabilities that the emulation itself had rounded.
    policy("float32")
    run = mine(HEADS[head], propagation=propagation)
    found = given(made := models.build(run, SHAPE, 10), images())
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert off_grid(found, Fixed(3, 6))
    user_model.check_values(run, made)


def test_logits_of_a_head_with_weights_are_rounded_and_its_settings_kept(policy):
    policy("float32")
    made = models.build(mine(HEADS["with weights"], propagation="<3,2>"), SHAPE, 10)
    end = next(h for h in made._flatten_layers() if getattr(h, "ends", False))
    assert end.layer.activation is keras.activations.softmax
    logits = np.log(given(made, images()).astype(np.float64))
    steps = (logits - logits[:, :1]) / Fixed(3, 2).smallest_subnormal
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)


def test_a_head_with_weights_is_trained_where_its_gradient_is_rounded(policy):
    policy("float32")
    made, x = parts(mine(HEADS["with weights"], propagation="<4,6>", rounding="stochastic"))
    np.testing.assert_allclose(given(made, x).sum(axis=1), 1, atol=1e-5)


def test_the_softmax_of_a_users_model_is_no_sign_under_binary(policy):
    policy("float32")
    made = models.build(mine(HEADS["layer"], propagation="binary"), SHAPE, 10)
    np.testing.assert_allclose(given(made, images()).sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("propagation", ["<6,6>", "binary"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            lambda x: Block(name="blk")(x),
            "the layer blk holds layers with weights .* such as dense",
        ),
        (lambda x: keras.layers.GRU(4, name="rnn")(x), "the layer rnn holds .* such as gru_cell"),
        (
            lambda x: keras.layers.Bidirectional(keras.layers.LSTM(4), name="both")(x),
            "the layer both holds layers with weights",
        ),
        (
            lambda x: keras.layers.TimeDistributed(Block(), name="each")(x),
            "the layer each holds layers with weights",
        ),
        (lambda x: x + x, "its operation Add is no layer.* keras.layers.Add for"),
        (lambda x: keras.ops.tanh(x), "its operation Tanh is no layer"),
    ],
)
def test_what_rounding_would_not_reach_is_refused_in_a_sentence(policy, body, said, propagation):
    # The lie: "effective: <6,6>", of four Dense layers in one, between which all was float32.
    policy("float32")
    run = mine(HEADS["activation"], body, propagation=propagation)
    with pytest.raises(
        models.ModelError, match=f"cannot be emulated in model mine.*{said}"
    ) as told:
        models.build(run, SHAPE, 10)
    assert "\n" not in str(told.value)
    usual = run.model_copy(update={"propagation": "policy"})
    assert models.build(usual, SHAPE, 10).output_shape == (None, 10)


def test_a_head_of_the_users_class_is_refused_whose_probabilities_would_be_rounded(policy):
    policy("float32")
    run = mine(lambda x: Head(10, **SOFTMAX, name="mine")(x), propagation="<3,2>")
    with pytest.raises(models.ModelError, match=r"layer mine gives .* end the model in Activation"):
        models.build(run, SHAPE, 10)


def test_operations_that_move_values_are_taken(policy):
    # They were an AttributeError: an operation has no dtype_policy.
    policy("float32")
    run = mine(HEADS["activation"], lambda x: ops.squeeze(x[:, -1:], 1), propagation="<4,6>")
    made = models.build(run, SHAPE, 10)
    precision.compile_model(made, run)
    assert emulation.effective(made)["propagation"] == "<4,6>"


def test_a_layer_at_each_place_is_emulated_as_ever(policy):
    policy("float32")
    run = mine(
        HEADS["activation"],
        lambda x: keras.layers.TimeDistributed(keras.layers.Dense(4, activation="relu"))(x),
        propagation="<4,6>",
    )
    made = models.build(run, SHAPE, 10)
    precision.compile_model(made, run)
    assert emulation.effective(made)["propagation"] == "<4,6>"


def test_a_kernel_in_a_layer_that_is_wrapped_as_a_whole_is_not_read_as_emulated(policy):
    policy("float32")
    x = keras.Input((4,))
    made = keras.Model(x, emulation.Rounded(Block(), Run(propagation="<6,6>"), 0)(x))
    made.compile("adam")
    assert emulation.effective(made)["propagation"] == "<6,6>, policy"
