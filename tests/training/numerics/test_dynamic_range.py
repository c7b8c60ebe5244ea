"""What the callback sees, on real trainings; in child processes, for a process has one backend."""

import json

import keras
import numpy as np
import pytest
from forked import python

from mptexp.errors import ParamsError
from mptexp.training.numerics import dynamic_range

PROGRAM = """
import json, math, sys
import keras, numpy as np
from keras import layers, ops
from mptexp.training.numerics import divergence, dynamic_range, gradients

x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
y = np.random.default_rng(1).integers(0, 3, 64)

def made(optimizer="adam"):
    keras.utils.clear_session()  # layers are numbered from the beginning
    keras.utils.set_random_seed(0)
    inner = keras.Sequential([layers.Dense(5, "relu"), layers.BatchNormalization()])
    model = keras.Sequential([layers.Input((6,)), layers.Rescaling(2.0), inner,
                              layers.Dropout(0.5), layers.Dense(3),
                              layers.Activation("softmax")])
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model

def fitted(optimizer="adam", callbacks=(), factor=1):
    model = made(optimizer)
    model.fit(x * factor, y, 16, 2, 0, list(callbacks), shuffle=False)
    return model

batch = lambda step: (x[:16], y[:16])
watch = dynamic_range.ExponentHistograms(batch, every=3)
alone, watched = fitted(), fitted(callbacks=[watch])
same = all(np.array_equal(a, b) for a, b in zip(alone.get_weights(), watched.get_weights()))

# The last layer's gradients, by hand.
model = made()
look = gradients.Probe(model, lambda kind, tensor, scale: tensor)
told = {(kind, name): value for kind, name, value in look(x[:16], y[:16], 8.0)}
logits, out = model.layers[-2].name, told["activations", model.layers[-1].name]
off = told["activation_gradients", logits] - (out - np.eye(3)[y[:16]]) / 16 * 8

# A dynamic scale that is far too large, and the count of what it skipped.
scales = dynamic_range.ScaleTrace(dynamic_range.scale_of)
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**127)
class Watch(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        scales.look(self.model, scales.steps)
        scales.steps += 1
scales.steps = 0
scaled = fitted(optimizer, [Watch()], factor=8)
scales.look(scaled, 8)

hot = keras.optimizers.SGD(1e38)
found = divergence.first_not_finite(made(hot), [(x[:16], y[:16])] * 4)
print(json.dumps({
    "same": same,
    "samples": watch.samples,
    "layers": watch.record()["layers"],
    "off": float(np.abs(off).max()),
    "order": [list(key) for key in told],
    "skipped": scales.samples[-1]["skipped"],
    "scale": math.log2(scales.samples[-1]["loss_scale"]),
    "diverged": found,
    "fine": divergence.first_not_finite(made(), [(x[:16], y[:16])] * 4),
}))
"""


@pytest.fixture(scope="module", params=["tensorflow", "jax", "torch"])
def said(request):
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    environ = {"KERAS_BACKEND": request.param, "KERAS_TORCH_DEVICE": "cpu"}
    told = python(PROGRAM, {"backend": request.param}, **environ)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout.splitlines()[-1])


def test_looking_changes_nothing(said):
    assert said["same"]


def test_it_looks_every_so_many_steps_and_at_the_update_after_each(said):
    samples = said["samples"]
    assert [sample["step"] for sample in samples] == [0, 3, 6]
    assert {sample["loss_scale"] for sample in samples} == {"none"}
    kinds = {"weights", "activations", "activation_gradients", "weight_gradients"}
    for sample in samples:
        assert set(sample["kinds"]) == kinds | {"updates", "update_ratios"}
        assert set(sample["swallowed"]) == {"float16", "bfloat16"}
        assert _total(sample["kinds"]["updates"]) == _total(sample["kinds"]["weights"]) == 63


def _total(told):
    return told["zeros"] + told["not_finite"] + sum(told["counts"])


def test_layers_are_told_one_by_one_nested_ones_too(said):
    rows = {(row["kind"], row["layer"]): row for row in said["layers"]}
    assert _total(rows["activations", "dense"]) == 3 * 16 * 5
    assert rows["activations", "dense"]["zeros"] > 0  # rectified
    assert _total(rows["weight_gradients", "dense"]) == 3 * (6 * 5 + 5)
    assert ("activation_gradients", "dropout") in rows
    # Training computes no gradient of what comes before the first weights.
    assert ("activations", "rescaling") in rows
    assert ("activation_gradients", "rescaling") not in rows


def test_gradients_are_those_of_the_scaled_loss(said):
    assert said["off"] < 1e-4


def test_tensors_come_in_the_order_of_a_step(said):
    order = [tuple(key) for key in said["order"]]
    forward = [name for kind, name in order if kind == "activations"]
    backward = [name for kind, name in order if kind == "activation_gradients"]
    # TensorFlow's loss reads the logits: the softmax has no gradient there.
    assert backward == [name for name in forward[:0:-1] if name in backward]
    assert set(forward[1:]) - set(backward) <= {forward[-1]}
    assert order.index(("loss", "loss")) < order.index(("activation_gradients", backward[0]))
    assert order[-1] == ("weight_gradients", "dense")


def test_the_dynamic_scale_is_traced_and_skipped_steps_are_counted(said):
    assert 1 <= said["skipped"] < 8
    assert said["scale"] == 127 - said["skipped"]


def test_the_first_tensor_that_is_not_finite_is_found(said):
    assert said["diverged"]["step"] == 2
    assert said["diverged"]["kind"] == "activations"
    assert said["fine"] is None


def test_a_histogram_counts_every_float():
    x = np.array([0.0, -0.0, 1.0, -1.5, 2.0, 65504, 2.0**-24, 1e-40, np.inf, np.nan], "float32")
    counts, largest = (np.asarray(part) for part in dynamic_range.histogram(x.reshape(2, 5)))
    told = dynamic_range.as_record(counts, float(largest))
    assert told["zeros"] == 2
    assert told["not_finite"] == 2
    assert told["largest"] == 65504
    by_exponent = {told["lowest"] + i: n for i, n in enumerate(told["counts"]) if n}
    assert by_exponent == {-127: 1, -24: 1, 0: 2, 1: 1, 15: 1}


def test_lost_updates_are_those_that_leave_a_weight_as_it_is():
    weight = np.array([1.0, 1.0, 1.0, 1.0], "float32")
    update = np.array([2.0**-12, 2.0**-10, 0.0, 2.0**-8], "float32")
    (_, _, lost), *_ = dynamic_range._changes([weight], [weight + update])
    assert np.asarray(lost).tolist() == [1, 3]  # half a unit in the last place: 2^-11, 2^-8


def test_a_trace_keeps_its_changes():
    seen = [{"step": i, "loss_scale": s, "skipped": 0} for i, s in enumerate([8, 8, 8, 4, 4])]
    assert [s["step"] for s in dynamic_range.changes(seen)] == [0, 3, 4]


def test_what_is_no_batch_or_no_number_of_steps_is_a_sentence():
    with pytest.raises(ParamsError, match="every: 0; allowed: 1 or more"):
        dynamic_range.ExponentHistograms(lambda step: None, every=0)
    x, y = np.zeros((4, 2)), np.zeros(4)
    watch = dynamic_range.ExponentHistograms(lambda step: (x, y, np.ones(4)))
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.build((4, 2))
    with pytest.raises(ParamsError, match="without weights of the samples"):
        watch.look(model, 0)
