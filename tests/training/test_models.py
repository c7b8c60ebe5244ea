import keras
import numpy as np
import pytest
from keras import layers
from support import noise

from mptexp.spec import names as spec
from mptexp.spec.run import Run
from mptexp.training import effective_settings, models
from mptexp.training.backends import tensorflow
from mptexp.training.numerics import gradients

TINY = {"width": 0.1, "image_size": 16}
LEAST = spec.LEAST_SIDE


# --- the named models ---------------------------------------------------------------------------


def test_the_registry_has_the_names_that_a_run_may_give():
    assert set(models.MODELS) == set(spec.MODELS)


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
        ("mlp_sigmoid", (28, 28, 1), 10, 5_800_010),
        ("lenet", (28, 28, 1), 10, 37_610),
        ("vit", (224, 224, 3), 1000, 5_717_416),
    ],
)
def test_a_named_model_is_the_published_network(name, shape, classes, parameters):
    model = models.build(Run(model=name, image_size=shape[0]), shape, classes)
    assert model.count_params() == parameters
    assert model.output_shape == (None, classes)
    assert model.inputs[0].dtype == "uint8"
    dropout = {"banerjee_cnn": [0.25, 0.5], "banerjee_resnet50": [0.25], "alexnet": [0.5, 0.5]}
    found = [layer.rate for layer in model.layers if isinstance(layer, layers.Dropout)]
    assert found == dropout.get(name, [])


def test_float16_has_no_gradients_of_six_logistic_layers_without_a_loss_scale():
    model = models.build(Run(model="mlp_sigmoid", width=0.128), (28, 28, 1), 10)
    model.compile("sgd", "sparse_categorical_crossentropy")
    probe = gradients.Probe(model, lambda kind, tensor, scale: tensor)
    flushed = {}
    for scale in (1.0, 1024.0):
        told = probe(noise(4096, 28), np.arange(4096) % 10, scale)
        (first,) = [x for kind, at, x in told if (kind, at) == ("activation_gradients", "dense")]
        flushed[scale] = (np.abs(np.asarray(first)) < 2**-25).mean()
    assert flushed[1.0] > 0.5
    assert flushed[1024.0] < 0.01


def test_width_multiplies_the_filters():
    model = models.build(Run(width=0.25), (32, 32, 1), 10)
    filters = [layer.filters for layer in model.layers if isinstance(layer, layers.Conv2D)]
    assert filters == [8, 16, 32]


def test_widths_are_rounded_up_to_a_multiple():
    model = models.build(Run(width=0.3, width_multiple=8), (32, 32, 1), 10)
    assert [x.filters for x in model.layers if isinstance(x, layers.Conv2D)] == [16, 24, 40]


@pytest.mark.parametrize("name", sorted(LEAST))
def test_an_image_of_the_least_size_suits_its_model_and_no_smaller_one(name):
    least, width = LEAST[name], 1.0 if "resnet50" in name else 0.05
    run = Run(model=name, width=width, image_size=least)
    assert models.build(run, (least, least, 3), 10).output_shape == (None, 10)
    with pytest.raises(ValueError, match=rf"with model {name}, .*; allowed: at least {least}$"):
        Run(model=name, width=width, image_size=least - 1)


def test_an_image_of_64_pixels_suits_every_model():
    for name in ("keydana_cnn", "banerjee_cnn", "alexnet", "mlp"):
        run = Run(model=name, width=0.05, image_size=64)
        assert models.build(run, (64, 64, 3), 10).predict(noise(2, 64, 3), verbose=0).shape == (
            2,
            10,
        )


@pytest.mark.parametrize("name", ["banerjee_cnn", "alexnet"])
def test_the_smallest_image_is_no_larger_than_it_must_be(name):
    side = LEAST[name] - 1
    run = Run(model=name, width=0.05, image_size=LEAST[name])
    with pytest.raises(ValueError, match=r"negative|empty|smaller|Computed output size"):
        models.MODELS[name](run, layers.Input((side, side, 1)), 10)


@pytest.mark.parametrize("name", ["keydana_cnn", "resnet50"])
def test_the_momentum_of_batch_normalization_takes_effect(name):
    moved = {}
    for momentum in (0.5, 0.99):
        run = Run(model=name, image_size=32, batch_norm_momentum=momentum)
        model = models.build(run, (32, 32, 1), 10)
        norms = [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)]
        assert {norm.momentum for norm in norms} == {momentum}
        model(noise(4, 32), training=True)
        moved[momentum] = np.asarray(norms[0].moving_variance)
    assert np.allclose((moved[0.5] - 1) / 0.5, (moved[0.99] - 1) / 0.01, atol=1e-4)
    assert not np.allclose(moved[0.5], moved[0.99], atol=1e-3)


# --- precision ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_the_head_is_float32_under_every_policy(policy, name):
    policy(name)
    model = models.build(Run(**TINY), (16, 16, 1), 10)
    assert model.outputs[0].dtype == "float32"
    table = effective_settings.dtypes(model)
    assert table.compute_dtype.iloc[-1] == "float32"
    assert set(table.compute_dtype.iloc[:-1]) == {name.removeprefix("mixed_")}
    assert set(table.variable_dtype.iloc[:-1]) == {"float32" if name.startswith("mixed") else name}


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_only_the_softmax_is_float32_in_every_model(policy, name):
    policy("mixed_float16")
    width = 1.0 if "resnet50" in name else 0.05
    data = {"dataset": "hamlet"} if name in spec.TEXT_MODELS else {}
    shape = (64,) if data else (64, 64, 3)
    model = models.build(Run(model=name, width=width, image_size=64, **data), shape, 10)
    table = effective_settings.dtypes(model)
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


def test_scaled_images_enter_as_they_are():
    run = Run(**TINY)
    bytes_ = models.build(run, (16, 16, 1), 10)
    scaled = models.build(run.model_copy(update={"input_mode": "keydana"}), (16, 16, 1), 10)
    assert scaled.inputs[0].dtype == "float32"
    assert "Rescaling" not in {type(layer).__name__ for layer in scaled.layers}
    x = noise()
    same = scaled.predict(x.astype("float32") / 255, verbose=0)
    assert np.allclose(bytes_.predict(x, verbose=0), same, atol=1e-6)


@pytest.mark.parametrize("name", ["keydana_cnn", "banerjee_cnn", "resnet50", "mlp", "vit"])
def test_channels_first_computes_the_same(name):
    if not tensorflow.uses_onednn():
        pytest.skip("TensorFlow leaves oneDNN off on this CPU")  # runs turn it on
    found, x = {}, noise(2, 32, 3)
    width = 1.0 if name == "resnet50" else 0.1
    for order in ("channels_last", "channels_first"):
        run = Run(model=name, width=width, image_size=32, data_format=order, augmentation="flip")
        model = models.build(run, (32, 32, 3), 10)
        assert model.input_shape == (None, 32, 32, 3)
        assert effective_settings._data_formats(model.layers) == {order}
        found[order] = np.asarray(model(x, training=False))  # without a graph, which takes seconds
    assert keras.config.image_data_format() == "channels_last"
    assert np.allclose(found["channels_last"], found["channels_first"], atol=1e-5)
