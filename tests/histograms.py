"""Exponents of drawn values, as a training records them; it imports a framework."""

import numpy as np

from mptexp.analysis.out_of_range import DynamicRange, Histogram
from mptexp.training.numerics import dynamic_range

VALUES = np.exp2(np.random.default_rng(0).normal(-18, 5, 20_000)).astype("float32")
VALUES[:500] = 0


def histogram(values):
    """What is kept of values: how many have which exponent."""
    counts, largest = (np.asarray(part) for part in dynamic_range.histogram(values))
    return Histogram.read(dynamic_range.as_record(counts, float(largest)))


def ranges(native=("float16",), gradients=VALUES, activations=VALUES, lost=0.1):
    """A dynamic range whose weights and updates are VALUES."""
    kinds = {"activations": activations, "activation_gradients": gradients}
    kinds |= {"weight_gradients": gradients, "weights": VALUES, "updates": VALUES}
    return DynamicRange(
        parameters={"model": "m", "dataset": "d", "batch_size": 8},
        policy="float32",
        runs=1,
        kinds={kind: histogram(values) for kind, values in kinds.items()},
        layers={},
        lost_updates={"float16": lost, "bfloat16": lost},
        samples=2,
        environment={} if native is None else {"native": list(native)},
    )
