"""Several devices in one run, and the same run under several backends.

A process serves one backend and one number of replicas; each of these trains in every input mode.
"""

import importlib.util
import json
import re
from functools import cache

import pytest
from forked import python
from support import mptexp

from mptexp.errors import ParamsError
from mptexp.spec.params import read
from mptexp.spec.run import Run
from mptexp.training import precision
from mptexp.training.backends import backend
from mptexp.training.capability import Unsupported
from mptexp.training.record import LOGICAL

PROGRAM = """
import json, sys
import numpy as np
from mptexp import Run, training
from mptexp.training.backends import backend
from mptexp.training.capability import SettingNotApplied
asked = {"model": "mlp", "width": 0.03, "image_size": 8, "batch_size": 128, "epochs": 2}
asked |= json.loads(sys.argv[1])
run = Run(**asked)
device = training.use(run)
own = backend(run.backend)
from mptexp.training.effective_settings import effective
from mptexp.training.measure import step_clock
from mptexp.training.record import record
losses = []
step_clock.StepClock.on_train_batch_end = lambda clock, batch, logs: losses.append(
    float(logs["loss"])
)
images = training.load_images(run)
said = {}
for mode in ("pipeline", "resident", "keydana")[: 3 if run.backend == "tensorflow" else 2]:
    losses.clear()
    this = run.model_copy(update={"input_mode": mode})
    made = training.execute(this, training.build(this, images), images, device)
    said[mode] = record(made) | {"losses": list(losses)}
this = run.model_copy(update={"phase": "inference"})
model = training.build(this, images)
said["inference"] = record(training.execute(this, model, images, device))
given = own.shared(images.val_x[:128])
said["probabilities"] = model.predict_on_batch(given).tolist()
held = own.variable(np.zeros((8, 3), "uint8"))
if run.replicas > 1 and run.backend == "tensorflow":
    import tensorflow as tf
    strategy = tf.distribute.get_strategy()
    parts = strategy.experimental_local_results(strategy.run(lambda: own.own(held)))
    said["parts"] = [part.shape[0] for part in parts]
elif run.replicas > 1:
    import keras
    said["parts"] = [part.data.shape[0] for part in held.value.addressable_shards]
    shared = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    alone = training.build(run, images)
    from mptexp.training import precision
    precision.compile_model(alone, run)
    try:
        keras.distribution.set_distribution(shared)
        effective(alone, run, device)
    except SettingNotApplied as error:
        said["alone"] = str(error)
print(json.dumps(said))
"""


def run_python(program, *words):
    said = python(program, *words)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout.splitlines()[-1])


@cache
def trained(backend, count=1):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    return run_python(PROGRAM, {"backend": backend, "replicas": count})


TWICE = ["tensorflow", "jax"]
MODES = [("tensorflow", "pipeline"), ("tensorflow", "resident"), ("tensorflow", "keydana")]
MODES += [("jax", "pipeline"), ("jax", "resident")]
LATER = 1e-4  # of losses after updates


@pytest.mark.parametrize(("backend", "mode"), MODES)
def test_two_replicas_see_what_one_sees(backend, mode):
    one, two = (trained(backend, n)[mode] for n in (1, 2))
    for name in ("initial_weights", "data_order"):
        assert one["in_force"][name] == two["in_force"][name]
    assert two["losses"][0] == pytest.approx(one["losses"][0], rel=1e-6)
    # Later steps show that the gradients are those of the whole batch, not of a part. Adam makes
    # much of the last digits of small ones, which products of other shapes round otherwise.
    assert two["losses"][10] == pytest.approx(one["losses"][10], rel=LATER)
    assert two["losses"][0] != two["losses"][10]


@pytest.mark.parametrize("backend", TWICE)
def test_replicas_are_validated_with_the_same_images(backend):
    for first, second in zip(
        *(trained(backend, n)["pipeline"]["history"] for n in (1, 2)), strict=True
    ):
        assert second["val_loss"] == pytest.approx(first["val_loss"], rel=LATER)
        assert second["val_accuracy"] == pytest.approx(first["val_accuracy"], abs=1 / 360 + 1e-6)
        assert (first["val_accuracy"] * 360) == pytest.approx(round(first["val_accuracy"] * 360))


@pytest.mark.parametrize("backend", TWICE)
def test_a_batch_is_shared_and_the_record_says_by_how_many(backend):
    for mode in ("pipeline", "resident", "inference"):
        one, two = (trained(backend, n)[mode] for n in (1, 2))
        assert (two["in_force"]["replicas"], two["in_force"]["batch_per_replica"]) == (2, 64)
        assert (one["in_force"]["replicas"], one["in_force"]["batch_per_replica"]) == (1, 128)
        assert LOGICAL in two["marks"]
        assert LOGICAL not in one["marks"]
        assert two["timing"]["images_per_s"] == pytest.approx(128 / two["timing"]["step_s"])
    assert trained(backend, 2)["parts"] == [4, 4]


@pytest.mark.parametrize("backend", TWICE)
def test_single_batches_are_shared_too(backend):
    one, two = (trained(backend, n)["probabilities"] for n in (1, 2))
    assert len(one) == len(two) == 128
    for first, second in zip(one, two, strict=True):
        assert second == pytest.approx(first, rel=1e-4)
    assert trained(backend, 2)["inference"]["latencies_s"]


def test_weights_on_one_device_are_not_taken_for_two_replicas():
    assert trained("jax", 2)["alone"] == "replicas is 1, but the run asked for 2"


OVERFLOW = """
import json
import re
import numpy as np
from mptexp.training import precision
from mptexp.training.backends import backend
from mptexp.training.numerics.gradients import loss_scale
from mptexp.spec.run import Run
run = Run(replicas=2, batch_size=4, policy="mixed_float16")
precision.use(run)
import keras, tensorflow as tf
found = {}
for bad in (None, 0, 3):  # an image of neither replica, of the first, of the second
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, dtype="float32")])
    optimizer = backend("tensorflow").dynamic_loss_scale(keras.optimizers.SGD(0.1))
    model.compile(optimizer, "mse", auto_scale_loss=False)
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
    if bad is not None:
        y[bad] = 3e38
    before = model.layers[0].kernel.numpy()
    model.fit(tf.data.Dataset.from_tensors((x, y)), shuffle=False, verbose=0)
    after = model.layers[0].kernel.numpy()
    found[str(bad)] = [bool((before == after).all()), bool(np.isfinite(after).all()),
                       float(optimizer.dynamic_scale.numpy())]
from mptexp.training import models
model = models.build(Run(width=0.1, image_size=8), (8, 8, 1), 10)
precision.compile_model(model, run)
found["kind"] = type(model.optimizer).__mro__[1].__name__
found["scale"] = loss_scale(model)
model.fit(np.zeros((8, 8, 8, 1), "uint8"), np.zeros(8), batch_size=4, shuffle=False, verbose=0)
found["scale after"] = loss_scale(model)
from mptexp.training.numerics import dynamic_range
found["traced"] = dynamic_range.scale_of(model)
print(json.dumps(found))
"""


def test_an_overflow_on_any_replica_skips_the_step():
    # Keras's own LossScaleOptimizer (3.15) takes the step where the second replica overflows.
    found = run_python(OVERFLOW)
    assert found["None"] == [False, True, 32768.0]
    assert found["0"] == found["3"] == [True, True, 16384.0]
    assert found["kind"] == "LossScaleOptimizer"
    assert (found["scale"], found["scale after"]) == (32768.0, 32768.0)
    assert found["traced"] == [32768.0, 2]  # a copy on each replica was no array, and an error


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"backend": "torch"}, "Keras shares no batch among devices under PyTorch"),
        ({"jit": "on"}, "under TensorFlow Keras compiles a step for one device alone"),
        ({"steps_per_execution": 4}, "TensorFlow executes one step at a time for several replicas"),
    ],
)
def test_what_replicas_cannot_do_is_unsupported(parameters, reason):
    run = Run(replicas=2, **parameters)
    told = backend(run.backend).unsupported(run, "cpu", "channels_last")
    assert re.search(f"replicas 2 asked for.*{reason}", told)


def test_more_replicas_than_gpus_are_unsupported(monkeypatch):
    tensorflow = backend("tensorflow")
    monkeypatch.setattr(tensorflow, "device_count", lambda kind: 1)
    with pytest.raises(Unsupported, match="replicas 8 asked for; tensorflow sees 1 device here"):
        precision._share_batches(Run(replicas=8), tensorflow, "gpu")


def test_replicas_after_a_look_at_the_devices_need_another_kernel():
    program = (
        "import json, jax; jax.devices()\n"
        "from mptexp.training import precision; from mptexp.spec.run import Run\n"
        "try: precision.use(Run(backend='jax', replicas=2))\n"
        "except precision.SettingNotApplied as error: print(json.dumps(str(error)))"
    )
    said = run_python(program)
    assert said.startswith("replicas 2 was asked for in a kernel whose jax has already counted")
    assert said.endswith("restart the kernel")


def test_a_batch_that_cannot_be_shared_is_refused_before_anything_runs(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("defaults: {batch_size: 33}\nmatrix:\n  replicas: [1, 2]\n")
    done = mptexp("run", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 2
    sentence = "batch_size 33 cannot be shared equally by 2 replicas; allowed: a multiple"
    assert sentence in " ".join((done.stdout + done.stderr).split())
    assert not (tmp_path / "reports").exists()


def test_a_batch_that_cannot_be_shared_can_be_excluded(tmp_path):
    path = tmp_path / "mine.yaml"
    text = "defaults: {batch_size: 33}\nmatrix:\n  replicas: [1, 2, 3]\n"
    path.write_text(text)
    with pytest.raises(ParamsError, match="cannot be shared equally by 2 replicas"):
        read(path)
    path.write_text(text + "exclude: [{replicas: 2}]\n")
    sweep, _ = read(path)
    assert [point["replicas"] for point in sweep.points()] == [1, 3]


# --- the same run under several backends ----------------------------------------------------------


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_every_backend_begins_alike_and_takes_the_same_first_step(backend):
    known, other = (trained(name)["pipeline"] for name in ("tensorflow", backend))
    for name in ("initial_weights", "data_order", "data"):
        assert other["in_force"][name] == known["in_force"][name]
    assert other["losses"][0] == pytest.approx(known["losses"][0], rel=1e-6)
    assert other["losses"][1] == pytest.approx(known["losses"][1], rel=LATER)
