"""Exponents of drawn values, as a training records them; it imports a framework."""

import numpy as np

from mptexp.analysis.exponent_range import Histogram, Seen
from mptexp.training.numerics import exponents

VALUES = np.exp2(np.random.default_rng(0).normal(-18, 5, 20_000)).astype("float32")
VALUES[:500] = 0


def histogram(values):
    """What is kept of values: how many have which exponent."""
    counts, largest = (np.asarray(part) for part in exponents.histogram(values))
    return Histogram.read(exponents.as_record(counts, float(largest)))


def ranges(native=("float16",), gradients=VALUES, activations=VALUES, swallowed=0.1):
    kinds = {"activations": activations, "activation_gradients": gradients}
    kinds |= {"weight_gradients": gradients, "weights": VALUES, "updates": VALUES}
    card = {} if native is None else {"native": list(native)}
    told = {"float16": swallowed, "bfloat16": swallowed}
    found = {kind: histogram(values) for kind, values in kinds.items()}
    return Seen(
        {"model": "m", "dataset": "d", "batch_size": 8}, "float32", 1, found, {}, told, 2, card
    )
