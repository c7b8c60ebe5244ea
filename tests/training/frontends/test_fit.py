"""Keras's own `fit` as a frontend; whole trainings by it are in test_run.py."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest


@pytest.mark.parametrize(("loss", "stops"), [(0.5, False), (float("nan"), True), (1e400, True)])
def test_a_training_whose_loss_is_not_finite_ends(loss, stops):
    from mptexp.training.frontends.fit import StopWhenNotFinite

    callback = StopWhenNotFinite()
    callback.set_model(SimpleNamespace(stop_training=False))
    callback.on_epoch_end(0, {"loss": loss})
    assert callback.model.stop_training is stops


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
