"""What integers take; whole runs under such policies are in test_measured_run.py."""

import keras
import pytest
from keras import layers

from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.training import quantize_after_training, quantized_layers
from mptexp.training.quantize_after_training import CALIBRATION

BIAS, SCALES = 4 * 64, 4 * 64
STORED = {
    "float32": 4 * 256 * 64 + BIAS,
    "int8": 256 * 64 + SCALES + BIAS,
    "int8_weights": 256 * 64 + SCALES + BIAS,
    # Two numbers in a byte; a scale and a zero point for 128 inputs, and the block of each input.
    "int4": 256 * 32 + 2 * SCALES + 2 * 64 + 4 * 256 + BIAS,
}


# Keras reads a variable as numpy did before its version 2.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("policy", STORED)
def test_weights_are_counted_as_they_are_stored(policy):
    model = keras.Sequential([layers.Input((256,)), layers.Dense(64)])
    quantized_layers.quantized(Run(policy=policy, phase="inference"), model)
    assert quantize_after_training.weight_bytes(model) == STORED[policy]


def test_every_policy_of_integers_says_how_it_is_calibrated():
    integers = {name for name, row in POLICY_ROWS.items() if row.inference_only}
    assert integers == set(CALIBRATION) == set(quantized_layers.MODES) - {"float8"}
