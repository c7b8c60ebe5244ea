"""The arithmetic and the bytes of a step, beside what its devices reach at best."""

from typing import Any

import keras

from mptexp.spec.run import Run
from mptexp.training import costs
from mptexp.training.measure import ceilings


def of_step(run: Run, model: keras.Model, card: dict[str, Any]) -> dict[str, Any]:
    """What a step costs in arithmetic and bytes, and the measured peaks of its devices.

    Keys: flops_per_step, bytes_per_step, ceilings (see ceilings.measured; of all GPUs together); of
    a profiled run also layers: the rows of costs.per_step with alone_s (see
    ceilings.layer_seconds), alone_low_s (see ceilings.low_seconds) and channels. Where GPUs share a
    batch, the rows are of one of them, as the trace is.
    """
    devices = run.replicas if card["kind"] == "gpu" else 1
    each = run.model_copy(update={"batch_size": run.batch_size // devices})
    layers = costs.per_step(model, each.batch_size, run.phase == "train")
    peaks = ceilings.measured(run, card)
    work: dict[str, Any] = {
        "flops_per_step": float(layers.flops.sum(skipna=False)) * devices,
        "bytes_per_step": float(layers.bytes.sum(skipna=False)) * devices,
        "ceilings": {k: v * devices if isinstance(v, float) else v for k, v in peaks.items()},
    }
    if run.profile:
        seconds = ceilings.layer_seconds(each, model, card)
        low = ceilings.low_seconds(each, model, card)
        layers["alone_s"] = [seconds.get(name) for name in layers.index]
        layers["alone_low_s"] = [low.get(name) for name in layers.index]
        layers["channels"] = layers.index.map(costs.widths(model))
        work["layers"] = layers.rename_axis("layer").reset_index().to_dict("records")
    return work
