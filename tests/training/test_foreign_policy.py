"""The precision of a training that mptexp does not run."""

import keras
import pytest

from mptexp.errors import ParamsError
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.run import Run
from mptexp.training import foreign_policy

CARD = {"kind": "cpu", "capability": None, "native": [], "instruction_sets": []}


def test_of_a_loop_it_is_what_was_said():
    assert foreign_policy.named("mixed_float16", None, "torch", CARD) == "mixed_float16"
    with pytest.raises(ParamsError, match="of a loop nothing tells it"):
        foreign_policy.named(None, None, "torch", CARD)
    assert foreign_policy.partly(None, POLICY_ROWS["mixed_float16"], {}) == []
    known = foreign_policy.effective(Run(backend="torch", policy="float32"), None, CARD)
    assert known["emulated"] is False
    assert "compute_dtype" not in known


def test_of_a_model_it_is_read():
    layer = keras.layers.Dense(3, dtype="mixed_bfloat16")
    model = keras.Sequential([keras.Input((8,)), layer])
    for said in (None, "mixed_bfloat16"):
        assert foreign_policy.named(said, model, "tensorflow", CARD) == "mixed_bfloat16"
    with pytest.raises(ParamsError, match="policy is float32, but the model's is mixed_bfloat16"):
        foreign_policy.named("float32", model, "tensorflow", CARD)
    layer.dtype_policy = "float64"
    with pytest.raises(ParamsError, match="the model's policy is float64; allowed: float32"):
        foreign_policy.named(None, model, "tensorflow", CARD)
