"""Keras's own `fit` as a frontend; whole trainings by it are in test_run.py."""

from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(("loss", "stops"), [(0.5, False), (float("nan"), True), (1e400, True)])
def test_a_training_whose_loss_is_not_finite_ends(loss, stops):
    from mptexp.training.frontends.fit import StopWhenNotFinite

    callback = StopWhenNotFinite()
    callback.set_model(SimpleNamespace(stop_training=False))
    callback.on_epoch_end(0, {"loss": loss})
    assert callback.model.stop_training is stops
