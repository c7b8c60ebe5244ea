"""The studies' claims: confirmed or refuted by intervals, else not tested here."""

import pytest
from builders import record, tables

from mptexp.report import claims


def found(rows, claim):
    (told,) = [f for name, _, f in claims.table(tables(rows)) if claim in name]
    return told


def pairs(policy, speedups, gpu="V100", **more):
    rows = []
    for block, speedup in enumerate(speedups):
        for name, step_s in (("float32", 0.3), (policy, 0.3 / speedup)):
            made = record(name, block, step_s, **more)
            made["parameters"]["gpu_model"] = gpu
            made["environment"] = {"device": gpu, "capability": [7, 0]}
            made["run_id"] = f"{len(rows):012x}"
            rows.append(made)
    return rows


@pytest.mark.parametrize(
    ("speedups", "three", "v100"),
    [
        ([3.5, 3.6, 3.4], "confirmed", "refuted"),
        ([1.08, 1.09, 1.10], "refuted", "confirmed"),
        ([2.7, 3.0, 3.3], "inconclusive", "refuted"),
        ([1.1, 1.15, 1.2], "refuted", "inconclusive"),
        ([3.5, 3.6], "not tested here", "not tested here"),
    ],
)
def test_speed_is_decided_by_its_interval(speedups, three, v100):
    rows = pairs("mixed_float16", speedups)
    assert found(rows, "3 to 4 times").finding == three
    told = found(rows, "V100")
    assert told.finding == v100
    assert len(told.runs) == (0 if v100 == "not tested here" else 6)


def test_a_device_without_tensor_cores_tests_nothing_of_speed():
    rows = pairs("mixed_float16", [1.1, 1.1, 1.1], gpu="Titan")
    for made in rows:
        made["environment"]["capability"] = [6, 1]
    assert found(rows, "3 to 4 times").finding == "not tested here"


@pytest.mark.parametrize(
    ("policy", "claim", "accuracies", "finding"),
    [
        ("mixed_float16", "as accurate", [0.905, 0.906, 0.905], "confirmed"),
        ("mixed_float16", "as accurate", [0.5, 0.51, 0.5], "refuted"),
        ("mixed_float16", "as accurate", [0.8, 0.95, 0.9], "inconclusive"),
        ("float16", "Pure float16", [0.5, 0.51, 0.5], "confirmed"),
        ("float16", "Pure float16", [0.905, 0.906, 0.905], "refuted"),
    ],
)
def test_accuracy_is_decided_by_equivalence(policy, claim, accuracies, finding):
    rows = pairs(policy, [1, 1, 1])
    for made in rows:
        accuracy = 0.905
        if made["parameters"]["policy"] == policy:
            accuracy = accuracies[made["parameters"]["block"]]
        made["history"][-1]["val_accuracy"] = accuracy
    told = found(rows, claim)
    assert told.finding == finding
    assert "percentage points" in told.evidence


def test_float16_that_diverges_has_failed():
    rows = pairs("float16", [1, 1, 1])
    rows[-1]["status"] = "diverged"
    told = found(rows, "Pure float16")
    assert told.finding == "confirmed"
    assert told.runs == (rows[-1]["run_id"],)


def test_a_scale_of_ones_own_is_no_test_of_accuracy():
    rows = pairs("mixed_float16", [1, 1, 1])
    for made in rows:
        made["parameters"]["loss_scale"] = 2.0**-16
        if made["parameters"]["policy"] == "mixed_float16":
            made["history"][-1]["val_accuracy"] = 0.3
    assert found(rows, "as accurate").finding == "not tested here"
