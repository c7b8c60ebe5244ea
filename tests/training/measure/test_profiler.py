import json
import os
import subprocess
import sys

import keras
import pytest
import tensorflow as tf
from forked import python

from mptexp.diagnosis import breakdown
from mptexp.records import store
from mptexp.spec.run import Run
from mptexp.traces import xplane
from mptexp.training.measure import profiler

PROGRAM = """\
import importlib.util, json, os, sys
from mptexp.spec.run import Run
run = Run(**json.loads(sys.argv[1])).resolved()
from mptexp import training
device = training.use(run)
from mptexp.training.measure import profiler
if sys.argv[2] != "oneDNN":
    profiler.primitives = lambda *_: []  # a process of its own, which takes as long as all the rest
if sys.argv[2] == "without xprof":
    found = importlib.util.find_spec
    profiler.importlib.util.find_spec = lambda name: None if name == "xprof" else found(name)
if sys.argv[2] == "broken xprof":
    def broken(file, **how):
        raise RuntimeError("Status: 13")
    profiler.xplane.read = broken
images = training.load_images(run)
outcome = training.execute(run, training.build(run, images), images, device)
os.environ["MPTEXP_RUN_DIR"] = sys.argv[3]
training.save(outcome)
"""
TINY = {"image_size": 8, "width": 0.125, "epochs": 1, "batch_size": 64, "profile": True}


@pytest.fixture
def traced(tmp_path):
    return lambda how="", **parameters: _traced(tmp_path, how, parameters)


def _traced(folder, how, parameters):
    done = python(PROGRAM, TINY | parameters, how, str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    return store.read_record(folder / "record.json")


MINE = """\
import keras, tensorflow as tf

class Crops(keras.layers.Layer):
    def call(self, x):
        boxes = tf.tile([[0.1, 0.1, 0.9, 0.9]], [tf.shape(x)[0], 1])
        return tf.image.crop_and_resize(x, boxes, tf.range(tf.shape(x)[0]), x.shape[1:3])

class Again(keras.layers.Layer):
    def call(self, x):
        return tf.recompute_grad(lambda x: tf.sinh(x) * tf.roll(x, 1, 1))(x)

def small(shape, classes):
    x = pictures = keras.Input(shape)
    for layer in (Crops(name="crops"), Again(name="again")):
        x = layer(keras.layers.Conv2D(4, 3, padding="same", kernel_regularizer="l2")(x))
    x = keras.layers.Dense(classes)(keras.layers.GlobalAveragePooling2D()(x))
    return keras.Model(pictures, keras.layers.Softmax(dtype="float32")(x))
"""


def test_what_is_computed_anew_is_no_loss_and_what_has_no_event_no_wait(tmp_path):
    # The lies: 43 % of a step "is the loss, metrics and regularizers", of a part that its gradients
    # compute anew; 23 % "is host and launch overhead", of a crop that TensorFlow does not record.
    (tmp_path / "mine.py").write_text(MINE)
    asked = TINY | {"model": "mine:small", "width": 1.0, "image_size": 16, "jit": "off"}
    done = python(PROGRAM, asked, "", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = breakdown.rows(store.read_record(tmp_path / "record.json"))
    assert set(rows[rows.op == "Sinh"].part) == {"forward", "backward"}
    lost = set(rows[rows.cause == "loss"].op)
    assert lost
    assert not lost & {"Sinh", "Cosh", "Roll"}
    (cropped,) = rows[rows.op == "CropAndResize"].itertuples()
    assert (cropped.layer, cropped.cause) == ("crops", "memory")
    assert "host" not in set(rows.cause)


# What no rule knows of a step, and what takes next to nothing of it: a thousandth.
KEEPING = {"OptionalFromValue", "OptionalHasValue", "Pack"}
RESIDENT = {"input_mode": "resident", "steps_per_execution": 4, "augmentation": "flip_crop"}


@pytest.mark.parametrize(
    ("how", "parameters"),
    [
        ("", {"policy": "mixed_float16", "image_size": 16}),
        ("oneDNN", RESIDENT),
        ("oneDNN", {"input_mode": "keydana", "model": "mlp"}),
    ],
    ids=["float16", "resident", "keydana"],
)
def test_the_breakdown_of_a_traced_run_explains_its_step(traced, tmp_path, how, parameters):
    record = traced(how, **parameters)
    assert record["profile"]["missing"] == ""
    assert not (tmp_path / xplane.FILE).exists()  # it was read, and is not kept
    found = breakdown.by_cause(record)
    assert found.sum() == pytest.approx(record["timing"]["step_s"])
    assert found["matrix"] > 0
    assert (found["loss scaling"] > 0) == (parameters.get("policy") == "mixed_float16")
    rows = breakdown.rows(record)
    assert set(rows[rows.cause == "unexplained"].op) <= KEEPING
    # Every layer with a kernel is found under its own name, forward and backward.
    parts = {(row.layer, row.part) for row in rows[rows.cause == "matrix"].itertuples()}
    kernels = [x["layer"] for x in record["work"]["layers"] if x["alone_s"]]
    assert parts == {(name, part) for name in kernels for part in ("forward", "backward")}
    assert record["profile"]["slowdown"] > 0  # another program may have slowed the timed steps
    ran = any(row["count"] for row in record["profile"]["primitives"])
    assert ran == (how == "oneDNN")


def test_jax_on_a_cpu_says_what_it_cannot_attribute(traced):
    pytest.importorskip("jax")
    record = traced(backend="jax")
    rows = breakdown.rows(record)
    assert breakdown.by_cause(record).sum() == pytest.approx(record["timing"]["step_s"])
    assert set(rows.layer) == {""}


def test_without_xprof_the_trace_is_kept_for_where_it_is(traced, tmp_path):
    record = traced("without xprof", steps_per_execution=2)
    kept = record["profile"]
    assert kept["missing"] == profiler.UNREAD
    assert breakdown.rows(record).empty
    assert "primitives" in kept
    trace = xplane.read(tmp_path / xplane.FILE, **kept["trace"])
    read = trace.profile(record["timing"]["step_s"])
    assert read["steps"] % 2 == 0
    assert sum(row["seconds"] for row in read["rows"]) == pytest.approx(read["step_s"])
    kernels = {x["layer"] for x in record["work"]["layers"] if x["alone_s"]}
    assert kernels <= {row["layer"] for row in read["rows"]}


def test_a_trace_that_xprof_cannot_read_costs_no_timings(traced, tmp_path):
    record = traced("broken xprof")
    assert record["profile"]["missing"].startswith("xprof could not read the trace, which was ke")
    assert record["profile"]["trace"]["every"] == 1
    assert record["timing"]["step_s"] > 0
    assert (tmp_path / xplane.FILE).exists()


def test_a_training_that_diverged_before_says_so(traced):
    record = traced(learning_rate=1e30, epochs=3)
    assert record["status"] == "diverged"
    assert record["profile"] == {"missing": "the training ended before steps could be traced"}


TORCH = """
import json
from mptexp import training
from mptexp.spec.run import Run
run = Run(backend="torch", width=0.125, batch_size=64, epochs=1, profile=True)
device, images = training.use(run), training.load_images(run)
outcome = training.execute(run, training.build(run, images), images, device)
print(json.dumps({"profile": outcome.profile, "layers": outcome.work["layers"]}))
"""


def test_the_traced_steps_of_torch_have_layers_and_parts():
    pytest.importorskip("torch", reason="torch is not installed")
    command, variables = [sys.executable, "-c", TORCH], os.environ | {"KERAS_BACKEND": "torch"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    rows = told["profile"]["rows"]
    assert {"forward", "backward", "optimizer", "loss"} <= {row["part"] for row in rows}
    names = {layer["layer"] for layer in told["layers"]}
    assert {"conv2d", "dense"} <= {row["layer"] for row in rows} <= names | {""}
    keys = [[row[name] for name in ("state", "part", "op", "kernel")] for row in rows]
    causes = [breakdown.cause(*key) for key in keys]
    unexplained = sum(r["seconds"] for r, c in zip(rows, causes, strict=True) if c == "unexplained")
    assert unexplained < 0.03 * told["profile"]["step_s"]


class Penalty(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(x))
        return x


def test_layers_without_weights_that_add_to_the_loss_are_told():
    penalty, dense = Penalty(name="penalty"), keras.layers.Dense(2, activity_regularizer="l2")
    model = keras.Sequential([keras.layers.Input((3,)), penalty, dense, keras.layers.ReLU()])
    with profiler.named(model) as adding:
        assert adding == set()
        model(keras.ops.ones((1, 3)))
        assert len(model.losses) == 2
    assert adding == {"penalty"}
    assert "add_loss" not in vars(penalty)


def test_inference_cannot_be_profiled():
    with pytest.raises(ValueError, match="profile true with phase inference; allowed: phase train"):
        Run(profile=True, phase="inference")


def test_casts_of_a_layers_input_stand_in_its_scope():
    # Keras casts before it opens the layer's scope: the casts belonged to no layer.
    inputs = keras.Input((4,))
    x = keras.layers.Dense(4, dtype="mixed_bfloat16", name="low")(inputs)
    outputs = keras.layers.Dense(4, dtype="float32", name="held")(x)
    model = keras.Model(inputs, outputs)
    called = keras.layers.Layer.__call__
    with profiler.named(model):
        graph = tf.function(lambda x: model(x)).get_concrete_function(tf.zeros((2, 4))).graph
        casts = [op.name for op in graph.get_operations() if op.type == "Cast"]
    assert any("held.layer" in name for name in casts)
    assert all("low.layer" in name or "held.layer" in name for name in casts)
    scopes = [name for op in graph.get_operations() for name in op.name.split("/")]
    assert not [name for name in scopes if name.startswith("held.layer_")]
    assert keras.layers.Layer.__call__ is called
