"""The loss scale of a compiled model, as it is now."""

import keras


def loss_scale(model: keras.Model) -> float | str:
    """The factor that multiplies the loss now, or "none"."""
    optimizer = model.optimizer
    if hasattr(optimizer, "initial_scale"):  # a LossScaleOptimizer; built by the first step
        built = optimizer.built
        return float(optimizer.dynamic_scale.numpy() if built else optimizer.initial_scale)
    return float(optimizer.loss_scale_factor) if optimizer.loss_scale_factor else "none"
