"""The arithmetic and the bytes of a step, beside what its devices reach at best."""

from collections.abc import Mapping
from typing import Any

import keras

from mptexp.spec.run import Run
from mptexp.training import costs
from mptexp.training.measure import ceilings


def of_step(run: Run, model: keras.Model, card: dict[str, Any]) -> dict[str, Any]:
    """What a step costs in arithmetic and bytes, and the measured peaks of its devices.

    Keys: flops_per_step, bytes_per_step, ceilings (see ceilings.measured; of all GPUs together); of
    a profiled run also layers: the rows of costs.per_step with alone_s and alone_low_s (see
    ceilings.Alone) and channels. Where GPUs share a batch, the rows are of one of them, as the
    trace is.
    """
    devices = _devices(run, card)
    each = run.model_copy(update={"batch_size": run.batch_size // devices})
    layers = costs.per_step(model, each.batch_size, run.phase == "train")
    peaks = ceilings.measured(run, card)
    work: dict[str, Any] = {
        "flops_per_step": float(layers.flops.sum(skipna=False)) * devices,
        "bytes_per_step": float(layers.bytes.sum(skipna=False)) * devices,
        "ceilings": {k: v * devices if isinstance(v, float) else v for k, v in peaks.items()},
    }
    if run.profile:
        alone = ceilings.layers(each, model, card)
        known = [alone.get(name, ceilings.Alone()) for name in layers.index]
        layers["alone_s"] = [layer.seconds for layer in known]
        layers["alone_low_s"] = [layer.low_s for layer in known]
        layers["channels"] = layers.index.map(costs.widths(model))
        work["layers"] = layers.rename_axis("layer").reset_index().to_dict("records")
    return work


def with_float64(
    work: Mapping[str, Any], run: Run, card: dict[str, Any], profile: Mapping[str, Any]
) -> dict[str, Any]:
    """What `of_step` gave, with the peak in 64 bits where the profile names layers that compute so.

    Its key is float64_flops_per_s, among the ceilings.
    """
    wide = [*profile.get("wide_products", {}).values()]
    if not profile.get("float64_layers") and "float64" not in wide:
        return {**work}
    rate = ceilings.product_rate(run, card, "float64") * _devices(run, card)
    return {**work, "ceilings": work["ceilings"] | {"float64_flops_per_s": rate}}


def _devices(run: Run, card: Mapping[str, Any]) -> int:
    """How many devices' peaks add up: GPUs'; logical devices are parts of one CPU."""
    return run.replicas if card["kind"] == "gpu" else 1
