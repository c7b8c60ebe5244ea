import keras
import pytest

from mptexp.training.numerics.loss_scale import loss_scale


@pytest.mark.parametrize(
    ("optimizer", "scale"),
    [
        (keras.optimizers.SGD(), "none"),
        (keras.optimizers.SGD(loss_scale_factor=128.0), 128.0),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=64.0), 64.0),
    ],
)
def test_the_scale_is_read_from_the_optimizer(optimizer, scale):
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", auto_scale_loss=False)
    assert loss_scale(model) == scale
    optimizer.build(model.trainable_variables)
    assert loss_scale(model) == scale
