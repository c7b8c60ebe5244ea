import json
import sys

import keras
import numpy as np
import pytest
from forked import python
from keras import layers
from support import PROJECT

from mptexp.spec import names as spec
from mptexp.spec.run import Run
from mptexp.training import costs, models, precision

TINY = {"width": 0.1, "image_size": 16}


@pytest.fixture(autouse=True)
def policy():
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy("float32")


def pictures(count=4, size=16, channels=1, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, channels), np.uint8)


# --- the named models ---------------------------------------------------------------------------


def test_the_registry_has_the_names_that_a_run_may_give():
    assert set(models.MODELS) == set(spec.MODELS)
    assert set(models.SMALLEST) <= set(spec.MODELS)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("keydana_cnn", (256, 256, 3), 10, 1_096_394),
        ("banerjee_cnn", (200, 200, 1), 27, 17_393_627),
        ("resnet50", (224, 224, 3), 1000, 25_636_712),
        ("banerjee_resnet50", (200, 200, 1), 27, 23_636_763),
        ("alexnet", (224, 224, 3), 1000, 61_100_840),
        ("mlp", (28, 28, 1), 10, 1_796_010),
        ("mlp_bn", (28, 28, 1), 10, 36_868_146),
        ("lenet", (28, 28, 1), 10, 37_610),
    ],
)
def test_a_named_model_is_the_published_network(name, shape, classes, parameters):
    model = models.build(Run(model=name), shape, classes)
    assert model.count_params() == parameters
    assert model.output_shape == (None, classes)
    assert model.inputs[0].dtype == "uint8"
    dropout = {"banerjee_cnn": [0.25, 0.5], "banerjee_resnet50": [0.25], "alexnet": [0.5, 0.5]}
    found = [layer.rate for layer in model.layers if isinstance(layer, layers.Dropout)]
    assert found == dropout.get(name, [])


def test_width_multiplies_the_filters():
    model = models.build(Run(width=0.25), (32, 32, 1), 10)
    filters = [layer.filters for layer in model.layers if isinstance(layer, layers.Conv2D)]
    assert filters == [8, 16, 32]
    with pytest.raises(models.ModelError, match=r"model resnet50 has no width; width is 0\.5"):
        models.build(Run(model="resnet50", width=0.5), (32, 32, 3), 10)


def test_widths_are_rounded_up_to_a_multiple():
    model = models.build(Run(width=0.3, width_multiple=8), (32, 32, 1), 10)
    assert [x.filters for x in model.layers if isinstance(x, layers.Conv2D)] == [16, 24, 40]


@pytest.mark.parametrize("name", ["keydana_cnn", "resnet50"])
def test_normalization_can_be_left_out(name):
    run = Run(model=name, image_size=32)
    model = models.build(run, (32, 32, 3), 10)
    bare = models.build(run.model_copy(update={"normalization": "none"}), (32, 32, 3), 10)
    assert any(isinstance(x, layers.BatchNormalization) for x in model.layers)
    assert not any(isinstance(x, layers.BatchNormalization) for x in bare.layers)
    kernels = [x.layer.name for x in costs.leaves(bare) if hasattr(x.layer, "kernel")]
    for name in kernels:
        assert np.array_equal(
            bare.get_layer(name).get_weights()[0], model.get_layer(name).get_weights()[0]
        )


def test_named_layers_compute_in_float32_with_the_same_weights(policy):
    policy("mixed_bfloat16")
    run = Run(policy="mixed_bfloat16", **TINY)
    model = models.build(run, (16, 16, 1), 10)
    name = next(x.layer.name for x in costs.leaves(model) if isinstance(x.layer, layers.Conv2D))
    held = models.varied(run.model_copy(update={"float32_layers": name}), model)
    types = {x.layer.name: x.layer.compute_dtype for x in costs.leaves(held)}
    assert types.pop(name) == "float32"
    assert types.pop("dense" if "dense" in types else next(n for n in types if "dense" in n))
    assert set(types.values()) == {"bfloat16", "float32"}  # the softmax is float32 in any case
    assert held.get_layer(name) is not model.get_layer(name)
    x = pictures()
    assert np.allclose(held.predict(x, verbose=0), model.predict(x, verbose=0), atol=0.02)


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(models.ModelError, match="float32_layers names nose, which model keydana"):
        models.build(Run(float32_layers="nose", **TINY), (16, 16, 1), 10)


@pytest.mark.parametrize("name", sorted(models.SMALLEST))
def test_a_picture_too_small_is_refused_in_one_sentence(name):
    least, width = models.SMALLEST[name], 1.0 if "resnet50" in name else 0.05
    run = Run(model=name, width=width, image_size=least)
    assert models.build(run, (least, least, 3), 10).output_shape == (None, 10)
    with pytest.raises(ValueError, match=rf"model {name} needs pictures of at least {least} x"):
        models.build(run, (least, least - 1, 3), 10)


def test_a_picture_of_64_pixels_suits_every_model():
    for name in ("keydana_cnn", "banerjee_cnn", "alexnet", "mlp"):
        run = Run(model=name, width=0.05, image_size=64)
        assert models.build(run, (64, 64, 3), 10).predict(pictures(2, 64, 3), verbose=0).shape == (
            2,
            10,
        )


@pytest.mark.parametrize("name", ["banerjee_cnn", "alexnet"])
def test_the_smallest_picture_is_no_larger_than_it_must_be(name):
    side = models.SMALLEST[name] - 1
    with pytest.raises(ValueError, match=r"negative|empty|smaller|Computed output size"):
        models.MODELS[name](Run(model=name, width=0.05), layers.Input((side, side, 1)), 10)


@pytest.mark.parametrize("name", ["keydana_cnn", "resnet50"])
def test_the_momentum_of_batch_normalization_takes_effect(name):
    moved = {}
    for momentum in (0.5, 0.99):
        run = Run(model=name, image_size=32, batch_norm_momentum=momentum)
        model = models.build(run, (32, 32, 1), 10)
        norms = [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)]
        assert {norm.momentum for norm in norms} == {momentum}
        model(pictures(4, 32), training=True)
        moved[momentum] = np.asarray(norms[0].moving_variance)
    assert np.allclose((moved[0.5] - 1) / 0.5, (moved[0.99] - 1) / 0.01, atol=1e-4)
    assert not np.allclose(moved[0.5], moved[0.99], atol=1e-3)


# --- precision ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_the_head_is_float32_under_every_policy(policy, name):
    policy(name)
    model = models.build(Run(**TINY), (16, 16, 1), 10)
    assert model.outputs[0].dtype == "float32"
    table = precision.dtypes(model)
    assert table.compute_dtype.iloc[-1] == "float32"
    assert set(table.compute_dtype.iloc[:-1]) == {name.removeprefix("mixed_")}
    assert set(table.variable_dtype.iloc[:-1]) == {"float32" if name.startswith("mixed") else name}


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_only_the_softmax_is_float32_in_every_model(policy, name):
    policy("mixed_float16")
    width = 1.0 if "resnet50" in name else 0.05
    model = models.build(Run(model=name, width=width, image_size=64), (64, 64, 3), 10)
    table = precision.dtypes(model)
    assert table.kind.iloc[-1] == "Activation"
    assert list(table.compute_dtype).count("float32") == 1
    assert model.outputs[0].dtype == "float32"


def test_initial_weights_depend_on_the_seed_not_on_the_policy(policy):
    run = Run(**TINY, seed=3, augmentation="flip_crop")
    start = models.build(run, (16, 16, 1), 10)
    policy("mixed_bfloat16")
    mixed = models.build(run, (16, 16, 1), 10)
    assert models.fingerprint(mixed) == models.fingerprint(start)
    other = models.build(run.model_copy(update={"seed": 4}), (16, 16, 1), 10)
    assert models.fingerprint(other) != models.fingerprint(start)


def test_pure_policies_begin_from_the_same_draw_rounded(policy):
    run = Run(**TINY, seed=3)
    start = models.build(run, (16, 16, 1), 10).get_weights()
    policy("float16")
    pure = models.build(run, (16, 16, 1), 10).get_weights()
    for single, half in zip(start, pure, strict=True):
        assert np.array_equal(np.asarray(single).astype("float16"), np.asarray(half))


# --- the entry ----------------------------------------------------------------------------------


def test_scaled_pictures_enter_as_they_are():
    run = Run(**TINY)
    bytes_ = models.build(run, (16, 16, 1), 10)
    scaled = models.build(run.model_copy(update={"input_mode": "keydana"}), (16, 16, 1), 10)
    assert scaled.inputs[0].dtype == "float32"
    assert "Rescaling" not in {type(layer).__name__ for layer in scaled.layers}
    x = pictures()
    same = scaled.predict(x.astype("float32") / 255, verbose=0)
    assert np.allclose(bytes_.predict(x, verbose=0), same, atol=1e-6)


def changed(x, training, **parameters):
    """What the augmentation of a run makes of pictures."""
    entry = layers.Input(x.shape[1:])
    run = Run(image_size=x.shape[1], **parameters)
    return np.asarray(keras.Model(entry, models.augmented(run, entry))(x, training=training))


@pytest.mark.parametrize("kind", ["flip", "crop", "flip_crop"])
def test_augmentation_is_alike_under_every_policy_and_off_at_inference(policy, kind):
    x = pictures(32).astype("float32") / 255
    single = changed(x, True, augmentation=kind)
    policy("mixed_float16")
    mixed = changed(x, True, augmentation=kind)
    assert mixed.dtype == np.float32
    assert np.array_equal(mixed, single)
    assert not np.array_equal(single, x)
    assert not np.array_equal(changed(x, True, augmentation=kind, seed=1), single)
    assert np.array_equal(changed(x, False, augmentation=kind), x)


def test_a_flip_mirrors_about_half_of_the_pictures():
    x = pictures(64).astype("float32")
    found = changed(x, True, augmentation="flip")
    mirrored = [np.array_equal(new, old[:, ::-1]) for new, old in zip(found, x, strict=True)]
    kept = [np.array_equal(new, old) for new, old in zip(found, x, strict=True)]
    assert all(a or b for a, b in zip(mirrored, kept, strict=True))
    assert 16 < sum(mirrored) < 48


def test_a_crop_moves_by_an_eighth_at_most_and_pads_with_zeros():
    x = 1 + pictures(2).astype("float32")
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    windows = {(i, j): padded[:, i : i + 16, j : j + 16] for i in range(5) for j in range(5)}
    places = set()
    for seed in range(12):
        found = changed(x, True, augmentation="crop", seed=seed)
        fits = [place for place, window in windows.items() if np.array_equal(found, window)]
        assert len(fits) == 1
        places.add(fits[0])
    assert len(places) > 3


@pytest.mark.parametrize("name", ["keydana_cnn", "banerjee_cnn", "resnet50", "mlp"])
def test_channels_first_computes_the_same(name):
    found, x = {}, pictures(2, 32, 3)
    width = 1.0 if name == "resnet50" else 0.1
    for order in ("channels_last", "channels_first"):
        run = Run(model=name, width=width, image_size=32, data_format=order, augmentation="flip")
        model = models.build(run, (32, 32, 3), 10)
        assert model.input_shape == (None, 32, 32, 3)
        assert precision._data_formats(model.layers) == {order}
        found[order] = model.predict(x, verbose=0)
    assert keras.config.image_data_format() == "channels_last"
    assert np.allclose(found["channels_last"], found["channels_first"], atol=1e-5)


@pytest.mark.parametrize(
    "layer", [layers.Conv2D(2, 3), layers.DepthwiseConv2D(3), layers.SeparableConv2D(2, 3)]
)
def test_every_initializer_is_found_a_variable(layer):
    layer.build((None, 8, 8, 2))
    stems = [n.removesuffix("_initializer") for n in vars(layer) if n.endswith("_initializer")]
    found = [models._initialized(layer, stem) for stem in stems]
    assert {id(variable) for variable in found} == {id(weight) for weight in layer.weights}


# --- the user's own model -----------------------------------------------------------------------

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

def nothing(shape, classes):
    return None

def wrong_classes(shape, classes):
    return good(shape, classes + 1)

def sixteen(shape, classes):
    return keras.Sequential([layers.Flatten(), layers.Dense(classes, activation="softmax")])

def other_pictures(shape, classes):
    return good((8, 8, 5), classes)

def two_outputs(shape, classes):
    inputs = layers.Input(shape)
    x = layers.Flatten()(inputs)
    return keras.Model(inputs, [layers.Dense(classes)(x), layers.Dense(classes)(x)])

number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Builds the function of this name from a module in the current directory."""
    module = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{module}.py").write_text(OWN)
    (tmp_path / f"{module}_broken.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)

    def build(name, **parameters):
        model = f"{module}{name}" if ":" in name else f"{module}:{name}"
        return models.build(Run(model=model, image_size=16, **parameters), (16, 16, 1), 10)

    before = list(sys.path)
    yield build
    assert sys.path == before


@pytest.mark.parametrize("name", ["good", "listed"])
def test_a_model_of_ones_own_is_a_model_like_any_other(policy, own, name):
    start = own(name, seed=5)
    policy("mixed_bfloat16")
    mixed = own(name, seed=5, augmentation="flip")
    assert models.fingerprint(mixed) == models.fingerprint(start)
    assert mixed.inputs[0].dtype == "uint8"
    found = mixed.predict(pictures(), verbose=0)
    assert np.allclose(found.sum(axis=1), 1, atol=1e-5)
    table = precision.dtypes(mixed)
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
    found = models.varied(Run(policy="mixed_bfloat16", model="own:x", **asked), found)
    row = next(x.layer for x in costs.leaves(found) if x.layer.name == layer)
    assert (type(row).__name__, row.compute_dtype) == wanted
    assert found.predict(pictures(), verbose=0).shape == (4, 10)


def test_what_a_model_of_ones_own_has_not_is_refused(own):
    with pytest.raises(models.ModelError, match="has widths of its own; width_multiple is 8"):
        own("good", width_multiple=8)
    with pytest.raises(models.ModelError, match=r"multi_head_attention in model .* several"):
        own("attentive", propagation="bfloat16")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", r":raises\(\(16, 16, 1\), 10\) raised KeyError: 'no such file'$"),
        ("nothing", "returned a NoneType; it must return a keras.Model$"),
        ("wrong_classes", r"output shape \(None, 11\); it must be \(None, 10\)$"),
        ("two_outputs", r"has output a list; it must be \(None, 10\)$"),
        ("other_pictures", "does not take such pictures: ValueError: "),
        ("missing", "has no function missing$"),
        ("number", "has no function number$"),
        ("_broken:x", "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("_absent:x", "cannot be imported: ModuleNotFoundError: No module named 'own_"),
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


def test_the_width_of_a_model_of_ones_own_is_its_own(own):
    with pytest.raises(models.ModelError, match=r"has no width; width is 0\.5, allowed: 1"):
        own("good", width=0.5)


# --- a batch on the device ----------------------------------------------------------------------

RESIDENT = """
import json, sys, time
from mptexp.training import precision
from mptexp.spec.run import Run
run = Run(width=0.1, image_size=8, learning_rate=1e-2, augmentation="flip_crop",
          batch_norm_momentum=0.9, input_mode="resident", **json.loads(sys.argv[1]))
where = precision.use(run)
import keras, numpy as np
from mptexp.training import costs, models
random = np.random.default_rng(0)
y = random.integers(0, 10, 32)  # brighter is more, so that there is something to learn
x = (25 * y[:, None, None, None] + random.integers(0, 9, (32, 8, 8, 3))).astype(np.uint8)
model = models.build(run, x.shape[1:], 10)
start = models.fingerprint(model)
whole = models.resident(model, x, y)
precision.compile_model(whole, run)
nothing = np.zeros(32, np.uint8)
said = {"alike": models.fingerprint(whole) == start, "parameters": model.count_params()}
clock = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: began.append(time.perf_counter()))
began = []
history = whole.fit(
    nothing, nothing, batch_size=32, epochs=30, verbose=0, callbacks=[clock]
).history
inner, outer = model.predict(x, verbose=0), whole.predict(nothing, verbose=0)
said |= {
    "loss": [float(v) for v in history["loss"]], "moved": models.fingerprint(model) != start,
    "gap": float(abs(inner - outer).max()), "shape": list(outer.shape),
    "epochs_s": np.diff(began).tolist(),
    "input": [list(whole.input_shape), whole.inputs[0].dtype],
    "correct": float(history["accuracy"][-1]), "force": precision.in_force(whole, run, where),
    "costs": int(costs.table(whole).parameters.sum()),
}
print(json.dumps(said))
"""


def check_resident(said):
    assert said["input"] == [[None], "uint8"]  # one byte per picture is all that an iterator feeds
    assert said["shape"] == [32, 10]
    assert said["loss"][-1] < 0.6 * said["loss"][0]
    assert said["correct"] > 0.4  # one in ten by chance, and the labels given to fit are all 0
    if said["force"]["jit"]:  # a slice with a random start would be compiled anew at every step
        assert np.median(said["epochs_s"][1:]) < said["epochs_s"][0] / 4
    assert said["moved"]
    assert said["alike"]
    assert said["gap"] < 1e-3
    assert said["costs"] == said["parameters"]
    assert 1 <= said["force"]["loss_scale"] <= 32768.0
    assert said["force"]["compute_dtype"] == "float16"


@pytest.mark.parametrize(
    ("backend", "jit"),
    [("tensorflow", "off"), ("tensorflow", "on"), ("jax", "on"), ("torch", "off")],
)
def test_a_resident_batch_is_learnt_from_nothing_that_is_fed(backend, jit):
    if backend != "tensorflow":
        pytest.importorskip(backend, reason=f"{backend} is not installed")
    parameters = {"backend": backend, "jit": jit, "policy": "mixed_float16"}
    done = python(RESIDENT, parameters, PYTHONPATH=str(PROJECT))
    assert done.returncode == 0, done.stderr[-2000:]
    check_resident(json.loads(done.stdout.splitlines()[-1]))
