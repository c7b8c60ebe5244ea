"""A model of the user's own, from a module in the current directory."""

import importlib.util
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers
from support import noise

from mptexp.errors import ParamsError
from mptexp.spec.run import Run
from mptexp.training import costs, effective_settings, models, user_model
from mptexp.training import layers as own_layers

OWN = """
import keras
from keras import layers

def good(shape, classes):
    inputs = layers.Input(shape)
    x = layers.Conv2D(4, 3, activation="relu")(inputs)
    x = layers.GlobalAveragePooling2D()(x + x)
    return keras.Model(inputs, layers.Dense(classes, activation="softmax", dtype="float32")(x))

def listed(shape, classes):
    head = layers.Dense(classes), layers.Activation("softmax", dtype="float32")
    return keras.Sequential([layers.Flatten(), *head])

def normalized(shape, classes):
    inner = [layers.Conv2D(4, 3, name="c1"), layers.BatchNormalization(name="bn")]
    head = [layers.Flatten(), layers.Dense(classes, activation="softmax", dtype="float32")]
    return keras.Sequential([layers.Input(shape), *inner, *head])

def attentive(shape, classes):
    x = inputs = layers.Input(shape)
    x = layers.Reshape((shape[0], -1))(x)
    x = layers.Flatten()(layers.MultiHeadAttention(2, 4)(x, x))
    return keras.Model(inputs, layers.Dense(classes, activation="softmax", dtype="float32")(x))

def raises(shape, classes):
    raise KeyError("no such file")

def calls_wrongly(shape, classes):
    return layers.Conv2D(4, kernel=3)

def headed(shape, classes, head, **how):
    dense = layers.Dense(classes, **how)
    return keras.Sequential([layers.Input(shape), layers.Flatten(), dense, head])

def logits(shape, classes):
    return headed(shape, classes, layers.Identity())

def wide_logits(shape, classes):
    return headed(shape, classes, layers.Identity(dtype="float32"))

def sigmoids(shape, classes):
    head = layers.Activation("sigmoid", dtype="float32")
    return headed(shape, classes, head, kernel_initializer="zeros")

def rectified(shape, classes):
    return headed(shape, classes, layers.Activation("relu", dtype="float32"))

def log_probabilities(shape, classes):
    return headed(shape, classes, layers.Activation("log_softmax", dtype="float32"))

def softmax_twice(shape, classes):
    softmax = layers.Activation("softmax", dtype="float32")
    return headed(shape, classes, keras.Sequential([softmax, softmax]))

def nothing(shape, classes):
    return None

def wrong_classes(shape, classes):
    return good(shape, classes + 1)

def sixteen(shape, classes):
    return keras.Sequential([layers.Flatten(), layers.Dense(classes, activation="softmax")])

def other_images(shape, classes):
    return good((8, 8, 5), classes)

def two_outputs(shape, classes):
    inputs = layers.Input(shape)
    x = layers.Flatten()(inputs)
    return keras.Model(inputs, [layers.Dense(classes)(x), layers.Dense(classes)(x)])

number = 3

class OnlyCalls(keras.Model):
    def call(self, x):
        return super().call(x)

class OwnStep(keras.Model):
    def train_step(self, data):
        raise RuntimeError("never called")

    def test_step(self, data):
        raise RuntimeError("never called")

class OwnLoss(keras.Model):
    def compute_loss(self, *tensors, **named):
        return 0.0

class Late(OwnLoss):
    pass

def of_class(kind, shape, classes):
    model = good(shape, classes)
    return kind(model.inputs, model.outputs[0])

def only_calls(shape, classes):
    return of_class(OnlyCalls, shape, classes)

def own_step(shape, classes):
    return of_class(OwnStep, shape, classes)

def own_loss(shape, classes):
    return of_class(Late, shape, classes)

def compiled(shape, classes):
    model = good(shape, classes)
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model

def without_graph(shape, classes):
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.flat, self.head = layers.Flatten(), layers.Dense(classes, dtype="float32")

        def call(self, x):
            return keras.ops.softmax(self.head(self.flat(x)))

    return Subclassed()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Builds the function of this name from a module in the current directory."""
    module = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{module}.py").write_text(OWN)
    (tmp_path / f"{module}_broken.py").write_text("import no_such_package")
    (tmp_path / f"{module}_syntax.py").write_text("\ndef x(:")
    monkeypatch.chdir(tmp_path)

    def build(name, classes=10, **parameters):
        model = f"{module}{name}" if ":" in name else f"{module}:{name}"
        made.append(Run(model=model, image_size=16, **parameters))
        return models.build(made[-1], (16, 16, 1), classes)

    made = build.asked = []
    before = list(sys.path)
    yield build
    added = [place for place in sys.path if place not in before]
    assert sys.path == before + added  # last, for what it imports as it is trained
    assert added in ([], [str(tmp_path)])
    sys.path[:] = before


@pytest.mark.parametrize("name", ["good", "listed"])
def test_a_model_of_ones_own_is_a_model_like_any_other(policy, own, name):
    start = own(name, seed=5)
    policy("mixed_bfloat16")
    mixed = own(name, seed=5, augmentation="flip")
    assert models.fingerprint(mixed) == models.fingerprint(start)
    assert mixed.inputs[0].dtype == "uint8"
    found = mixed.predict(noise(), verbose=0)
    assert np.allclose(found.sum(axis=1), 1, atol=1e-5)
    table = effective_settings.dtypes(mixed)
    assert table.parameters.sum() == mixed.count_params()
    assert {"Rescaling", "RandomFlip", "Dense"} <= set(table.kind)
    assert "InputLayer" not in set(table.kind.iloc[1:])
    assert costs.table(mixed).parameters.sum() == mixed.count_params()


@pytest.mark.parametrize(
    ("asked", "layer", "wanted"),
    [
        ({"float32_layers": "c1"}, "c1", ("Conv2D", "float32")),
        ({"normalization": "none"}, "bn", ("Passed", "bfloat16")),
    ],
)
def test_a_model_of_ones_own_is_changed_as_the_run_asks(policy, own, asked, layer, wanted):
    policy("mixed_bfloat16")
    found = own("normalized", policy="mixed_bfloat16")
    found = own_layers.varied(Run(policy="mixed_bfloat16", model="own:x", **asked), found)
    row = next(x.layer for x in costs.leaves(found) if x.layer.name == layer)
    assert (type(row).__name__, row.compute_dtype) == wanted
    assert found.predict(noise(), verbose=0).shape == (4, 10)


@pytest.mark.parametrize("name", ["only_calls", "without_graph"])
def test_a_subclass_that_says_nothing_of_its_training_is_taken(own, name):
    model = own(name)
    user_model.check_values(own.asked[-1], model)


def test_what_a_model_of_ones_own_has_not_is_refused(own):
    with pytest.raises(models.ModelError, match=r"multi_head_attention in model .* several"):
        own("attentive", propagation="bfloat16")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "raises",
            r":raises\(\(16, 16, 1\), 10\) raised KeyError: 'no such file' \(own_.*, line 27\)$",
        ),
        ("calls_wrongly", r"raised .*'kernel_size' \(own_.*, line 30\)$"),
        ("nothing", "returned a NoneType; it must return a keras.Model$"),
        ("wrong_classes", r"output shape \(None, 11\); it must be \(None, 10\)$"),
        ("two_outputs", r"has output a list; it must be \(None, 10\)$"),
        ("other_images", "does not take such inputs: ValueError: "),
        (
            "own_step",
            r":own_step\(.*\) has train_step and test_step of its own, which would not be ",
        ),
        ("own_loss", r":own_loss\(.*\) has compute_loss of its own, .* that leaves them to Keras$"),
        (
            "compiled",
            r":compiled\(.*\) comes compiled, and its optimizer and loss would not be used",
        ),
        ("missing", "has no function missing$"),
        ("number", "has no function number$"),
        ("_broken:x", r"No module named 'no_such_package' \(own_.*_broken\.py, line 1\)$"),
        ("_syntax:x", r"cannot be imported: SyntaxError: .* \(own_.*_syntax\.py, line 2\)$"),
        (
            "_absent:x",
            "cannot be imported: ModuleNotFoundError: No module named 'own_[^; ]*; searched: /",
        ),
        ("_absent:x", r"; run mptexp in the directory that holds own_\w+_absent$"),
        # The lie: "run mptexp in the directory that holds" it, which it was.
        (".py:x", r"; a module is named without \.py: own_\w+$"),
    ],
)
def test_a_model_that_cannot_be_used_is_told_in_one_sentence(own, name, said):
    with pytest.raises(models.ModelError, match=said) as caught:
        own(name)
    assert "\n" not in str(caught.value)


def test_a_head_in_16_bits_is_told_with_the_remedy(policy, own):
    assert own("sixteen").output_shape == (None, 10)
    policy("mixed_float16")
    with pytest.raises(models.ModelError, match=r"in float16; end it in Activation\('softmax', dt"):
        own("sixteen")


@pytest.mark.parametrize("classes", [10, 2])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("good", ""),
        ("listed", ""),
        ("softmax_twice", ""),
        ("wide_logits", r"values from -.*; end it in Activation\('softmax'.* from_logits true$"),
        ("log_probabilities", r"values from -.*, not probabilities; end it in Activation"),
        ("rectified", r"values from 0 to [\d.]+, not probabilities; end it in Activation"),
        ("sigmoids", r"sums over the classes are .*, not 1; end it in Activation\('softmax', dt"),
    ],
)
def test_a_head_is_checked_by_its_values(policy, own, name, said, classes):
    policy("mixed_bfloat16")
    model, run = own(name, classes=classes), own.asked[-1]
    if not said:
        return user_model.check_values(run, model)
    with pytest.raises(models.ModelError, match=said):
        user_model.check_values(run, model)


@pytest.mark.parametrize("classes", [10, 2])
def test_logits_get_their_softmax_where_the_params_file_says_so(policy, own, classes):
    policy("mixed_float16")
    model, run = own("logits", classes=classes, from_logits=True), own.asked[-1]
    assert model.output.dtype == "float32"
    assert np.allclose(model.predict(noise(), verbose=0).sum(axis=1), 1, atol=1e-5)
    user_model.check_values(run, model)
    model, run = own("listed", classes=classes, from_logits=True), own.asked[-1]
    with pytest.raises(models.ModelError, match="second softmax; leave from_logits out"):
        user_model.check_values(run, model)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["attention", "convolution"])
def test_a_model_of_text_must_not_see_what_it_predicts(policy, kind, causal):
    # The lie: without a mask each token is copied from the place behind, at a perplexity near 1.
    policy("mixed_bfloat16")
    x = inputs = keras.Input((16,), dtype="int32")
    x = layers.Embedding(256, 32)(x)
    if kind == "attention":
        x = layers.MultiHeadAttention(2, 16)(x, x, use_causal_mask=causal)
    else:
        x = layers.Conv1D(32, 3, padding="causal" if causal else "same")(x)
    model = keras.Model(inputs, layers.Dense(256, activation="softmax", dtype="float32")(x))
    run = Run(model="own:text", dataset="hamlet", sequence_length=16)
    if causal:
        return user_model.check_values(run, model)
    with pytest.raises(models.ModelError, match="own:text sees the tokens that it predicts"):
        user_model.check_values(run, model)


def test_a_model_here_has_its_softmax():
    with pytest.raises(ParamsError, match="from_logits true with model mlp, which has its softmax"):
        Run(model="mlp", from_logits=True)


def test_what_lies_beside_a_model_takes_no_librarys_place(own, tmp_path):
    (tmp_path / "xdrlib2.py").write_text("")
    for name in ("numpy", "keras"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('owned')")
    own("good")
    assert Path(importlib.util.find_spec("scipy").origin).parent.name == "scipy"
    (tmp_path / "scipy.py").write_text("")
    importlib.invalidate_caches()
    assert Path(importlib.util.find_spec("scipy").origin).parent.name == "scipy"
    assert importlib.util.find_spec("xdrlib2").origin == str(tmp_path / "xdrlib2.py")


def test_a_model_that_looks_ahead_within_windows_of_a_text_is_refused(policy):
    # The lie: windows that end at the middle, the only place that was looked at.
    policy("float32")
    x = inputs = keras.Input((16,), dtype="int32")
    x = layers.Embedding(256, 32)(x)
    x = layers.UpSampling1D(2)(layers.AveragePooling1D(2)(x))
    model = keras.Model(inputs, layers.Dense(256, activation="softmax")(x))
    run = Run(model="own:text", dataset="hamlet", sequence_length=16)
    with pytest.raises(models.ModelError, match="own:text sees the tokens that it predicts"):
        user_model.check_values(run, model)


class Weighted(layers.Layer):
    """Multiplies by a weight that begins at zero, as ReZero and zero-initialized layers do."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def build(self, shape):
        self.by = self.add_weight(shape=self.size, initializer="zeros")

    def call(self, x):
        return x * self.by if len(self.size) < 2 else x @ self.by


class Masked(layers.Layer):
    """Sums what came before by a triangle that is kept as a weight which is not trained."""

    def build(self, shape):
        self.mask = self.add_weight(shape=shape[1:2] * 2, initializer="zeros", trainable=False)
        self.mask.assign(np.tri(shape[1], dtype="float32"))

    def call(self, x):
        return keras.ops.cast(self.mask, x.dtype) @ x


class Noisy(layers.Layer):
    """Adds noise whenever it is called, from a generator of its own or from Keras's."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x), dtype=x.dtype, seed=self.seed)


def of_text(*hidden):
    """Adds to each token's embedding what the hidden layers make of them."""
    inputs = keras.Input((16,), dtype="int32")
    x = y = layers.Embedding(256, 32)(inputs)
    for layer in hidden:
        y = layer(y)
    return keras.Model(inputs, layers.Dense(256, activation="softmax", dtype="float32")(x + y))


def looks_ahead():
    return layers.Conv1D(32, 3, padding="same")


def looks_back():
    return layers.Conv1D(32, 3, padding="causal")


TEXT = {"model": "own:text", "dataset": "hamlet", "sequence_length": 16}


@pytest.mark.parametrize("size", [(), (32,), (32, 32)])
def test_a_look_ahead_behind_a_weight_of_zero_is_seen(policy, size):
    # The lie: a perplexity of 1.12 once training had opened the gate.
    policy("mixed_bfloat16")
    with pytest.raises(models.ModelError, match="own:text sees the tokens that it predicts"):
        user_model.check_values(Run(**TEXT), of_text(looks_ahead(), Weighted(size)))
    user_model.check_values(Run(**TEXT), of_text(looks_back(), Weighted(size)))


@pytest.mark.parametrize("own_generator", [True, False])
def test_noise_does_not_hide_a_look_ahead(policy, own_generator):
    policy("mixed_bfloat16")
    noisy = Noisy(keras.random.SeedGenerator(3) if own_generator else None)
    with pytest.raises(models.ModelError, match="own:text sees the tokens that it predicts"):
        user_model.check_values(Run(**TEXT), of_text(looks_ahead(), noisy))
    user_model.check_values(Run(**TEXT), of_text(looks_back(), noisy))


@pytest.mark.parametrize(
    "hidden",
    [(Masked(),), (layers.GRU(32, return_sequences=True),), (layers.BatchNormalization(),)],
)
def test_a_causal_model_of_ones_own_passes(policy, hidden):
    policy("mixed_bfloat16")
    user_model.check_values(Run(**TEXT), of_text(*hidden))


def test_the_gpt_here_sees_no_later_tokens(policy):
    policy("mixed_bfloat16")
    run = Run(model="gpt", dataset="hamlet", sequence_length=64, depth=12, width=0.125)
    user_model.check_values(run, models.build(run, (64,), 256))


def test_logits_are_looked_at_in_the_graph_that_is_used(policy, own):
    # Of a clone the softmax has a node in two graphs: "Output ... is not connected to `inputs`".
    policy("float32")
    for asked in ({"propagation": "<6,10>"}, {"float32_layers": "dense"}):
        model, run = own("logits", from_logits=True, **asked), own.asked[-1]
        user_model.check_values(run, model)
        model, run = own("listed", from_logits=True, **asked), own.asked[-1]
        with pytest.raises(models.ModelError, match="second softmax; leave from_logits out"):
            user_model.check_values(run, model)
