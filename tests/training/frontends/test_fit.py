"""Keras's own `fit` as a frontend; whole trainings by it are in test_measured_run.py."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from forked import python
from support import write_images


@pytest.mark.parametrize(("loss", "stops"), [(0.5, False), (float("nan"), True), (1e400, True)])
def test_a_training_whose_loss_is_not_finite_ends(loss, stops):
    from mptexp.training.frontends.fit import StopWhenNotFinite

    callback = StopWhenNotFinite()
    callback.set_model(SimpleNamespace(stop_training=False))
    callback.on_epoch_end(0, {"loss": loss})
    assert callback.model.stop_training is stops


TRAIN = """
import json, shutil, sys
from mptexp import Run, training
from mptexp.training import frontends, precision
from mptexp.training.measure.step_clock import StepClock
run = Run(**json.loads(sys.argv[1]))
training.use(run)
images = training.load_images(run)
model = training.build(run, images)
precision.compile_model(model, run)
trainer = frontends.trainer(run, model, images)
shutil.rmtree(sys.argv[2])
clock = StepClock(trainer.synchronize)
trainer.fit(clock)
print(len(clock.epochs), sum(window.steps for window in clock.windows))
"""


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_studys_input_reads_its_cache_from_the_first_step_on(tmp_path, replicas):
    # The lie: 120 of 296 steps, all of which decode and resize, beside times of the 20th epoch,
    # which reads the cache: "44 % of the step would be saved without the input pipeline".
    for part, count in (("train", 20), ("val", 4)):
        for name in "ab":
            write_images(tmp_path / "images" / part / name, count)
    asked = {"dataset": f"folder:{tmp_path}/images", "image_size": 8, "batch_size": 8}
    asked |= {"input_mode": "keydana", "model": "mlp", "width": 0.03, "epochs": 2}
    said = python(
        TRAIN,
        asked | {"replicas": replicas},
        f"{tmp_path}/images/train",
        MPTEXP_DATA_DIR=str(tmp_path / "cache"),
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.split()[-2:] == ["2", "8"]  # the last step of an epoch is in no window


def test_an_inference_keeps_the_outputs_of_its_last_step_alone():
    # The lie: a peak memory that grew with the number of steps: all outputs were kept.
    from mptexp.training.frontends import fit

    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Softmax()(x))
    kept = []
    watch = keras.callbacks.LambdaCallback()
    watch.on_predict_batch_end = lambda batch, logs: kept.append(logs["outputs"])
    given = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    with fit._last_alone(model) as last:
        model.predict(given, batch_size=8, callbacks=[watch], verbose=0)
    assert kept == [()] * 5  # Keras was given none to keep
    whole = model.predict(given, batch_size=8, verbose=0)
    assert np.array_equal(keras.ops.convert_to_numpy(last[0]), whole[32:])
