"""Preprocessing, variants and images on the device, on every backend."""

import json

import keras
import numpy as np
import pytest
from forked import python
from keras import layers
from support import PROJECT, noise

from mptexp.spec.run import Run
from mptexp.training import costs, models
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
from mptexp.training import effective
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
    "correct": float(history["accuracy"][-1]), "force": effective.effective(whole, run, where),
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
