"""Quantized inference: a short training in float32, then integers in place of the weights.

Both are validated, so that the difference is that of one model's weights and of nothing else. Keras
calibrates nothing on data: see CALIBRATION.
"""

import math
from typing import Any

import keras

from mptexp.spec import tasks
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.training import (
    costs,
    effective_arithmetic,
    precision,
    quantized_layers,
    validated_examples,
)
from mptexp.training.backends.shared_verbs import Products
from mptexp.training.data import batches
from mptexp.training.data.datasets import Images
from mptexp.training.frontends.fit import KerasFit, StopWhenNotFinite

# Where the scales come from, by policy: Keras 3.15's defaults.
CALIBRATION = {
    "int8": "no data: weights by the largest magnitude of each output channel, inputs by that of "
    "each row while predicting",
    "int8_weights": "no data: weights by the largest magnitude of each output channel; inputs stay "
    "float32",
    "int4": "no data: weights by the least and the largest of 128 inputs of each output channel, "
    "inputs stay float32",
}


def quantized_after_training(
    run: Run, model: keras.Model, images: Images
) -> tuple[dict[str, Any], Products | None]:
    """Trains, validates, quantizes and validates again; nothing under a policy of floats.

    Returns:
        What a record holds, and the products of a pass (see arithmetic.products). The keys are
        policy; calibration (a sentence); trained_epochs; history (loss and accuracy of each of
        them); before and after (val_loss, val_accuracy and validated, see validated_examples; empty
        where there is nothing to validate with); bytes_before and bytes_after (of all weights, as
        they are stored).

    Raises:
        Unsupported: before the training, where too few of the model's products can be quantized.
    """
    policy, steps = POLICY_ROWS[run.policy], batches.steps_per_epoch(images, run)
    if not policy.inference_only:
        return {}, None
    precision.compile_model(model, run, steps)
    traced = effective_arithmetic.products(run, model, quantized_layers.reached(run, model))
    effective_arithmetic.refuse_few(policy, effective_arithmetic.shares(traced))
    fitted = model.fit(
        batches.training(images, run),
        epochs=run.epochs,
        steps_per_epoch=steps,
        callbacks=[StopWhenNotFinite()],
        shuffle=False,  # as in a run of phase train
        verbose=0,
    )
    rows = zip(*fitted.history.values(), strict=True)
    history = [tasks.recorded(dict(zip(fitted.history, row, strict=True))) for row in rows]
    before, size = _validated(run, model, images), weight_bytes(model)
    quantized_layers.quantized(run, model)
    precision.compile_model(model, run, steps)
    made = {
        "policy": run.policy,
        "calibration": CALIBRATION[run.policy],
        "trained_epochs": len(history),
        "history": history,
        "before": before,
        "after": _validated(run, model, images),
        "bytes_before": size,
        "bytes_after": weight_bytes(model),
    }
    return made, traced


def _validated(run: Run, model: keras.Model, images: Images) -> dict[str, Any]:
    """Loss and accuracy of the validation, if they are finite, and those of its examples."""
    data = batches.validation(images, run)
    if not data:
        return {}
    given = model.evaluate(data["validation_data"], return_dict=True, verbose=0)
    figures = tasks.recorded({f"val_{name}": value for name, value in given.items()})
    finite = {name: value for name, value in figures.items() if math.isfinite(value)}
    listed = validated_examples.validated(run, KerasFit(run, model, images).predicted, images)
    return finite | ({"validated": listed} if listed else {})


def weight_bytes(model: keras.Model) -> int:
    """Bytes of all weights as they are stored, scales and zero points too; no seeds or counters."""
    stored = [w for w in model.weights if "float" in w.dtype or w.dtype in costs.INTEGERS]
    return sum(math.prod(w.shape) * costs.itemsize(w.dtype) for w in stored)
