"""How a report opens of which histograms of exponents alone are the subject."""

import pytest
from builders import record, tables

from mptexp.report.answers import dynamic_range
from mptexp.report.first_screen import question


@pytest.mark.parametrize(
    ("native", "limit", "title"),
    [
        (
            ["float16"],
            "default",
            "The numbers of this training allow mixed_float16 with loss_scale",
        ),
        (["bfloat16"], "default", "The numbers of this training allow mixed_bfloat16"),
        # The lie: "The numbers of this training ask for float32", where the device does.
        ([], "default", "Use float32: this device computes in neither 16-bit type"),
        (["bfloat16"], "avx2", "Use float32: under cpu_isa avx2 this device computes in neither "),
        (None, "default", "Use float32: in which types the device computes is not recorded"),
    ],
)
def test_histograms_alone_open_with_what_they_advise(native, limit, title):
    rows = {"kind": "weight_gradients", "layer": "all", "lowest": -20, "counts": [5, 5]}
    rows |= {"zeros": 0, "not_finite": 0, "largest": 2.0**-19}
    sampled = {"exponents": {"samples": [{"step": 0, "swallowed": {}}], "layers": [rows]}}
    made = record("float32", 0, 0.1) | sampled
    made["parameters"]["cpu_isa"] = limit
    made["environment"] = {"device": "GPU", "native": native, "packages": {}}
    answer = question.of(tables([made]))
    assert answer.title.startswith(title)
    assert answer.figure == "exponents"
    allowed = "allow" in title
    assert answer.advice.startswith("measure what it brings" if allowed else "use policy ")
    # The lie: not a word of speed, which nothing here measured.
    assert answer.sentences[-1] == dynamic_range.OF_RANGE


def test_of_several_trainings_each_has_its_advice():
    def sampled(block, largest, model):
        rows = {"kind": "activations", "layer": "all", "lowest": 0, "counts": [5] * largest}
        rows |= {"zeros": 0, "not_finite": 0, "largest": 2.0 ** (largest - 1)}
        small = {"kind": "weight_gradients", "layer": "all", "lowest": -8, "counts": [5, 5]}
        small |= {"zeros": 0, "not_finite": 0, "largest": 2.0**-7}
        made = record("float32", block, 0.1)
        made["parameters"] |= {"model": model}
        samples = [{"step": 0, "swallowed": {}}]
        made["run_id"] = f"{model}-{block}"
        made["environment"] = {"device": "V100", "native": ["float32", "float16"], "packages": {}}
        return made | {"exponents": {"samples": samples, "layers": [rows, small]}}

    both = [sampled(0, 4, "lenet"), sampled(0, 40, "mlp")]
    answer = question.of(tables(both))
    assert answer.title.startswith("The numbers of 2 trainings, and their devices, allow ")
    assert "lenet" in answer.title
    assert "mlp" in answer.title
