"""Preprocessing, variants and images on the device, on every backend."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from forked import python
from keras import layers
from support import PROJECT, noise

from mptexp.spec.run import Run
from mptexp.training import costs, models, precision
from mptexp.training import layers as own_layers

TINY = {"width": 0.1, "image_size": 16}


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
    held = own_layers.varied(run.model_copy(update={"float32_layers": name}), model)
    types = {x.layer.name: x.layer.compute_dtype for x in costs.leaves(held)}
    assert types.pop(name) == "float32"
    assert types.pop("dense" if "dense" in types else next(n for n in types if "dense" in n))
    assert set(types.values()) == {"bfloat16", "float32"}  # the softmax is float32 in any case
    assert held.get_layer(name) is not model.get_layer(name)
    x = noise()
    assert np.allclose(held.predict(x, verbose=0), model.predict(x, verbose=0), atol=0.02)


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(models.ModelError, match="float32_layers names nose, which model keydana"):
        models.build(Run(float32_layers="nose", **TINY), (16, 16, 1), 10)


class Block(layers.Layer):
    def __init__(self, **words):
        super().__init__(**words)
        self.inner = layers.Dense(4, name="inner")

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x)


def test_a_layer_whose_own_layers_would_stay_in_16_bits_is_refused(policy):
    # The lie: "all N layers must stay in float32", of products that never were in it.
    policy("mixed_float16")
    x = keras.Input((3,))
    model = keras.Model(x, Block(name="block")(x))
    run = Run(policy="mixed_float16", float32_layers="block")
    with pytest.raises(
        models.ModelError, match=r"whose own layer inner in model \S+ stays in float16"
    ):
        own_layers.varied(run, model)


class Scale(layers.Layer):
    """As users write it: without a word of Keras's."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, x):
        return x * self.factor


def test_a_layer_that_cannot_be_copied_is_refused():
    # It ended in a traceback.
    x = keras.Input((3,))
    model = keras.Model(x, Scale(2.0)(x))
    run = Run(float32_layers=model.layers[-1].name)
    said = (
        r"float32_layers names scale.* \(TypeError.*Scale must give its arguments in get_config, a"
    )
    with pytest.raises(models.ModelError, match=said):
        own_layers.varied(run, model)


# --- batch normalization in one operation ---------------------------------------------------------

# Of values of order 1: two units in the last place of the compute dtype, and of float32 what a sum
# of 288 values rounds by at the most, in whatever order a processor takes them.
WEIGHTS = [np.linspace(0.5, 2, 6), np.linspace(-1, 1, 6), np.full(6, 0.2), np.full(6, 3.0)]
CLOSE = {"float32": 288 * 2.0**-24, "mixed_float16": 2e-3, "mixed_bfloat16": 2e-2}


def both_ways(layer, x):
    """Output, loss and gradients of a layer in training, its moving averages, and inference."""
    with tf.GradientTape() as tape:
        x = tf.cast(x, layer.compute_dtype)
        tape.watch(x)
        y = layer(x, training=True)
        weights = tf.cast(tf.reshape(tf.range(tf.size(y)) % 7 - 3, y.shape), "float32")
        loss = tf.reduce_mean(weights * tf.cast(y, "float32"))
    ends = tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])
    moving = [np.asarray(layer.moving_mean), np.asarray(layer.moving_variance)]
    layer.set_weights(WEIGHTS)
    return [np.asarray(v, "float32") for v in (y, *ends, *moving, layer(x, training=False))]


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("name", CLOSE)
def test_fused_normalization_is_keras_own_within_rounding(policy, name, axis):
    policy(name)
    x = np.random.default_rng(1).normal(0.5, 2, (8, 6, 6, 6)).astype("float32")
    plain, fused = (
        kind(axis=axis, momentum=0.9)
        for kind in (layers.BatchNormalization, own_layers.FusedBatchNormalization)
    )
    for layer in (plain, fused):
        layer.build(x.shape)
        layer.set_weights(WEIGHTS)
    keras_own, own = both_ways(plain, x), both_ways(fused, x)
    n = x.size // 6
    keras_own[5] += 0.1 * np.var(x, (0, 2, 3) if axis == 1 else (0, 1, 2)) / (n - 1)
    names = ("y", "dx", "dgamma", "dbeta", "mean", "variance", "inference")
    for what, a, b in zip(names, keras_own, own, strict=True):
        scale = np.abs(a).max()
        assert np.abs(a - b).max() <= CLOSE[name] * scale, what
    assert fused.compute_dtype == plain.compute_dtype
    assert fused(tf.cast(x, fused.compute_dtype)).dtype == fused.compute_dtype


@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16", "float16"])
def test_a_network_with_fused_normalization_begins_alike_and_learns_alike(policy, name):
    policy(name)
    run = Run(policy=name, jit="off", learning_rate=1e-2, **TINY)
    shape, x, y = (16, 16, 1), noise(32), np.arange(32) % 10
    losses, nets = [], []
    for normalization in ("batch", "fused"):
        one = run.model_copy(update={"normalization": normalization})
        nets.append(models.build(one, shape, 10))
        precision.compile_model(nets[-1], one)
    kinds = [type(layer).__name__ for layer in nets[1].layers]
    assert kinds.count("FusedBatchNormalization") == 3
    assert "BatchNormalization" not in kinds
    assert models.fingerprint(nets[0]) == models.fingerprint(nets[1])
    assert nets[0].count_params() == nets[1].count_params()
    names = [[layer.name for layer in net.layers[1:]] for net in nets]
    assert names[0] == names[1]
    for net in nets:
        losses.append([float(net.train_on_batch(x, y)[0]) for _ in range(4)])
    assert losses[1] == pytest.approx(losses[0], rel={"float32": 1e-3}.get(name, 0.1))
    graph = tf.function(lambda a: nets[1](a, training=True)).get_concrete_function(x).graph
    assert sum(op.type == "FusedBatchNormV3" for op in graph.get_operations()) == 3


def test_what_cannot_be_fused_is_refused_with_a_sentence(ask):
    with pytest.raises(ValueError, match=r"normalization fused with jit auto.*allowed: jit off"):
        Run(normalization="fused")
    fused = {"normalization": "fused", "jit": "off"}
    x = keras.Input((8, 8, 1))
    with pytest.raises(models.ModelError, match="model my:model has no batch normalization"):
        own_layers.varied(Run(model="my:model", **fused), keras.Model(x, layers.Conv2D(2, 3)(x)))
    with pytest.raises(models.ModelError, match="batch_normalization in model mlp_bn takes"):
        models.build(Run(model="mlp_bn", width=0.01, **fused), (28, 28, 1), 10)
    said = ask(json.dumps(fused | {"backend": "jax"}))
    assert "Unsupported: normalization fused is an operation of TensorFlow" in said["error"]
    assert "and backend jax has none" in said["error"]


# --- augmentation -----------------------------------------------------------------------------


def changed(x, training, **parameters):
    """What the augmentation of a run makes of images."""
    entry = layers.Input(x.shape[1:])
    run = Run(image_size=x.shape[1], **parameters)
    return np.asarray(keras.Model(entry, own_layers.augmented(run, entry))(x, training=training))


@pytest.mark.parametrize("kind", ["flip", "crop", "flip_crop"])
def test_augmentation_is_alike_under_every_policy_and_off_at_inference(policy, kind):
    x = noise(32).astype("float32") / 255
    single = changed(x, True, augmentation=kind)
    policy("mixed_float16")
    mixed = changed(x, True, augmentation=kind)
    assert mixed.dtype == np.float32
    assert np.array_equal(mixed, single)
    assert not np.array_equal(single, x)
    assert not np.array_equal(changed(x, True, augmentation=kind, seed=1), single)
    assert np.array_equal(changed(x, False, augmentation=kind), x)


def test_a_flip_mirrors_about_half_of_the_images():
    x = noise(64).astype("float32")
    found = changed(x, True, augmentation="flip")
    mirrored = [np.array_equal(new, old[:, ::-1]) for new, old in zip(found, x, strict=True)]
    kept = [np.array_equal(new, old) for new, old in zip(found, x, strict=True)]
    assert all(a or b for a, b in zip(mirrored, kept, strict=True))
    assert 16 < sum(mirrored) < 48


def test_a_crop_moves_by_an_eighth_at_most_and_pads_with_zeros():
    x = 1 + noise(2).astype("float32")
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    windows = {(i, j): padded[:, i : i + 16, j : j + 16] for i in range(5) for j in range(5)}
    places = set()
    for seed in range(12):
        found = changed(x, True, augmentation="crop", seed=seed)
        fits = [place for place, window in windows.items() if np.array_equal(found, window)]
        assert len(fits) == 1
        places.add(fits[0])
    assert len(places) > 3


# --- a batch on the device ----------------------------------------------------------------------

RESIDENT = """
import json, sys, time
from mptexp.training import precision
from mptexp.spec.run import Run
run = Run(width=0.1, image_size=8, learning_rate=1e-2, augmentation="flip_crop",
          batch_norm_momentum=0.9, input_mode="resident", **json.loads(sys.argv[1]))
where = precision.use(run)
from mptexp.training import effective_settings
import keras, numpy as np
from mptexp.training import costs, layers, models
random = np.random.default_rng(0)
y = random.integers(0, 10, 32)  # brighter is more, so that there is something to learn
x = (25 * y[:, None, None, None] + random.integers(0, 9, (32, 8, 8, 3))).astype(np.uint8)
model = models.build(run, x.shape[1:], 10)
start = models.fingerprint(model)
whole = layers.resident(model, x, y)
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
    "correct": float(history["accuracy"][-1]),
    "force": effective_settings.effective(whole, run, where),
    "costs": int(costs.table(whole).parameters.sum()),
}
print(json.dumps(said))
"""


def check_resident(said):
    assert said["input"] == [[None], "uint8"]  # one byte per image is all that an iterator feeds
    assert said["shape"] == [32, 10]
    assert said["loss"][-1] < 0.6 * said["loss"][0]
    assert said["correct"] > 0.4  # one in ten by chance, and the labels given to fit are all 0
    if said["force"]["jit"]:  # a slice with a random start would be compiled anew at every step
        assert np.median(said["epochs_s"][1:]) < said["epochs_s"][0] / 4
    assert said["moved"]
    assert said["alike"]
    assert said["gap"] < 2e-3  # float16 has 11 bits: near 1 its numbers lie 5e-4 apart
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
