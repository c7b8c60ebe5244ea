"""A Keras model and its native counterpart beside one another, in a process of one backend."""

import json

import pytest
from forked import python
from support import PROJECT

# Every kind of layer with a counterpart, with the settings that are easy to get wrong: `same` with
# even and odd strides, groups, dilation, no bias, no gamma, odd sizes, a model within the model.
OWN = """
import keras
from keras import layers

def every(shape, classes):
    x = images = layers.Input(shape)
    x = layers.ZeroPadding2D(((1, 2), (0, 3)))(x)
    x = layers.Conv2D(8, (3, 2), (2, 1), "same", use_bias=False)(x)
    x = layers.BatchNormalization(scale=False, momentum=0.8)(x)
    x = layers.ReLU()(x)
    y = layers.Conv2D(8, 3, 1, "same", groups=2, dilation_rate=2, activation="relu")(x)
    x = layers.Add()([x, y])
    x = layers.MaxPooling2D(3, 2, "same")(x)
    x = layers.BatchNormalization(center=False, epsilon=0.01)(x)
    inner = keras.Sequential([layers.Conv2D(6, 3, 2, "same"), layers.Activation("relu")])
    x = layers.MaxPooling2D()(inner(x))
    x = layers.Dropout(0.0)(layers.Flatten()(x))
    return keras.Model(images, layers.Dense(classes)(layers.Dense(12, activation="relu")(x)))

def lost(shape, classes):
    return keras.Sequential([layers.Flatten(), layers.Dropout(0.5), layers.Dense(classes)])

def _refused(layer):
    return lambda shape, classes: keras.Sequential(
        [layers.Input(shape), layer(), layers.Flatten(), layers.Dense(classes)]
    )

normed = _refused(lambda: layers.GroupNormalization(1))
curved = _refused(lambda: layers.Conv2D(2, 3, activation="gelu"))
heavy = _refused(lambda: layers.Conv2D(2, 3, kernel_regularizer="l2"))
frozen = _refused(lambda: layers.Conv2D(2, 3, trainable=False))

def wide(shape, classes):
    return keras.Sequential(
        [layers.Input(shape), layers.Dense(4), layers.Flatten(), layers.Dense(classes)]
    )

def ranks(shape, classes):
    images = layers.Input(shape)
    x = layers.Dense(48)(layers.Flatten()(images))
    x = layers.Conv2D(3, 3)(layers.Reshape((4, 4, 3))(x))
    x = layers.LayerNormalization(scale=False)(layers.Reshape((-1, 3))(x))
    return keras.Model(images, layers.Dense(classes)(layers.Flatten()(x)))

def twice(shape, classes):
    dense, images = layers.Dense(classes), layers.Input(shape)
    return keras.Model(images, dense(dense(layers.Dense(classes)(layers.Flatten()(images)))))

def fused(shape, classes):
    return keras.Sequential([layers.Flatten(), layers.Dense(classes, "softmax")])
"""

PROGRAM = """
import json, sys
import numpy as np
from mptexp.spec.run import Run
from mptexp.training import precision

shared, each = map(json.loads, sys.argv[1:3])
run = Run(**{"image_size": 18, "batch_size": 128, "frontend": "native", "width": 0.25, **shared})
precision.use(run)
import keras
from mptexp.training import effective_arithmetic, frontends, models, task_models
from mptexp.training import measured_run as whole
from mptexp.training.data import batches, datasets
from mptexp.training.measure.step_clock import StepClock
from mptexp.training.numerics import gradients

def far(ours, theirs):
    wide = [[np.asarray(x, "float64") for x in side] for side in (ours, theirs)]
    gaps = sum(((a - b) ** 2).sum() for a, b in zip(*wide, strict=True))
    return float(np.sqrt(gaps / max(sum((b**2).sum() for b in wide[1]), 1e-30)))

def predicted(run, model, images):
    random = np.random.default_rng(0)
    for w in model.weights:  # moving averages too, which a new model has at 0 and 1
        if "float" in w.dtype:
            factor, added = random.uniform(0.8, 1.2, w.shape), random.uniform(-0.02, 0.02, w.shape)
            w.assign(w.numpy() * factor + added)
    held, order = [w.numpy() for w in model.weights], batches.order(images, run)
    said, given = {}, {}
    for frontend in ("keras", "native"):
        own = run.model_copy(update={"frontend": frontend})
        compiled = whole._compiled(own, model, images)
        loop = frontends.trainer(own, compiled, images)
        clock = whole._clock(own, len(order), loop.synchronize)
        resident = run.input_mode == "resident"
        last = order[(run.max_steps or len(order)) - 1]
        x = np.zeros(len(last), "uint8") if resident else images.train_x[last]
        alone = loop.predict_on_batch(x)
        given[frontend] = alone, loop.predict(clock), sum(flops for _, flops in loop.products())
        said[frontend] = {"windows": len(clock.windows), "ended_by": clock.ended_by}
    native, keras_own = given["native"], given["keras"]
    shares = effective_arithmetic.shares(loop.products())
    said |= {"settings": loop.settings(), "arithmetic": shares}
    said["shapes"] = [[list(given.shape) for given in side[:2]] for side in (native, keras_own)]
    said["alone"], said["in_a_row"] = (far([native[k]], [keras_own[k]]) for k in (0, 1))
    said["last"] = far([native[0]], [native[1]])
    said |= {"sum": float(native[1].sum(-1).mean()), "flops": native[2] / keras_own[2]}
    said["moved"] = far([w.numpy() for w in model.weights], held)
    said["trains"] = hasattr(loop.native, "optimizer") or bool(
        getattr(loop.native, "state", {}).get("slots"))
    return said

def answered(run):
    images = datasets.load(run)
    model = models.build(run, images.shape, len(images.classes))
    if run.phase == "inference":
        return predicted(run, model, images)
    steps = batches.steps_per_epoch(images, run)
    precision.compile_model(model, run, steps)
    loop = frontends.trainer(run, model, images)
    native, order = loop.native, batches.order(images, run)
    said = {"settings": loop.settings(), "arithmetic": effective_arithmetic.shares(loop.products())}
    both = loop.products(), effective_arithmetic.products(run, model)
    ours, theirs = (sum(flops for _, flops in found) for found in both)
    said["flops"] = ours / theirs
    x, y = images.train_x[order[0]], images.train_y[order[0]].astype("int32")
    probe = gradients.Probe(model, lambda kind, tensor, scale: tensor)(x, y.astype(
        "int64" if run.backend == "torch" else "int32"))
    known = {}
    for kind, layer, tensor in probe:
        if kind == "weight_gradients":
            known.setdefault(layer, []).append(tensor)
    theirs = [known[gradients.layer_of(model, w)].pop(0) for w in model.trainable_variables]
    loss, ours = native.gradients(*native.put(x, y))
    said |= {"loss": loss, "keras_loss": float(next(t for k, n, t in probe if k == "loss"))}
    said |= {"gradients": far(ours, theirs), "values": [g.ravel()[:50].tolist() for g in ours]}
    before = [w.numpy() for w in model.trainable_variables]
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    precision.compile_model(twin, run, steps)
    clock = StepClock(loop.synchronize, max_steps=run.max_steps)
    loop.fit(clock)
    losses = []
    for chosen in order[: clock.begun]:
        logs = twin.train_on_batch(images.train_x[chosen], images.train_y[chosen], return_dict=True)
        losses.append(float(logs["loss"]))
    said["keras_loss_of_epoch"] = float(np.mean(losses[:steps]))
    after = [[w.numpy() - b for w, b in zip(m.trainable_variables, before)] for m in (model, twin)]
    said |= {"steps": clock.begun, "updates": far(*after), "epochs": clock.epochs}
    said["scale"] = native.scale()
    data = batches.validation(images, run)["validation_data"]
    keep = task_models.of(run).kept(model)
    kept = np.concatenate([keep(*map(np.asarray, batch)) for batch in data])
    said["alike"] = float(np.isclose(loop.predicted(data), kept, rtol=1e-3).mean())
    return said

answers = []
for parameters in each:
    try:
        answers.append(answered(run.model_copy(update=parameters)))
    except models.ModelError as error:
        answers.append({"error": str(error)})
print(json.dumps(answers))
"""


NOT_OPTIMIZED = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


@pytest.fixture(scope="session")
def side_by_side(tmp_path_factory):
    """What a process answers for runs that share some parameters."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mynets.py").write_text(OWN)

    def asked(shared, *each):
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(folder)
            environ = {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
            if "depth" in each[0]:  # of no convolutions, compiling is all that takes time
                environ["XLA_FLAGS"] = NOT_OPTIMIZED
            done = python(PROGRAM, shared, json.dumps(each), **environ)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return asked
