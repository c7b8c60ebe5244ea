import pytest

from mptexp.diagnosis import check_on_records

ROW = {"state": "", "layer": "conv", "part": "forward", "op": "Conv2D", "kernel": "", "count": 1.0}
BF16 = {"primitive": "convolution", "implementation": "brg:avx512_core_bf16", "dtype": "bf16, f32"}


def record(policy="mixed_bfloat16", **changes):
    made = {
        "status": "ok",
        "parameters": {"policy": policy},
        "in_force": {"probe": {"product": "bfloat16", "convolution": "bfloat16"}},
        "timing": {"step_s": 0.010},
        "profile": {
            "step_s": 0.0105,
            "rows": [ROW | {"seconds": 0.010}],
            "primitives": [BF16 | {"seconds": 0.009, "count": 1.0}],
        },
        "history": [{"epoch": 1, "loss": 1.5}],
    }
    return made | changes


TOO_LARGE = record(status="oom", parameters={"policy": "float32", "memory_limit_gb": 1.0})
FLOAT32 = {"primitive": "matmul", "implementation": "gemm", "dtype": "f32", "seconds": 0.002}


def failures(records, again=None):
    checks = check_on_records.of_records(records, record(), again or record())
    return [check["instrument"] for check in checks if check["passed"] is False]


def test_instruments_that_read_what_is_true_pass():
    assert failures([record(), TOO_LARGE]) == []


def test_a_share_of_all_is_never_more_than_all():
    seconds = 0.0013  # 100 * seconds / seconds is above 100
    whole = {"primitives": [BF16 | {"seconds": seconds, "count": 1.0}]}
    assert failures([record(profile=record()["profile"] | whole), TOO_LARGE]) == []


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"in_force": {"probe": {"product": "float32", "convolution": "bfloat16"}}}, "product"),
        ({"in_force": {"probe": {"product": "bfloat16", "convolution": "7 bits"}}}, "convolution"),
        ({"profile": record()["profile"] | {"step_s": 0.020}}, "trace"),
        ({"profile": record()["profile"] | {"step_s": 0.005}}, "trace"),
        ({"profile": record()["profile"] | {"primitives": [FLOAT32 | {"count": 1.0}]}}, "kernels"),
    ],
)
def test_a_planted_fault_is_caught(fault, named):
    assert failures([record(**fault), TOO_LARGE]) == [named]


def test_a_limit_that_does_not_end_in_oom_is_caught():
    assert failures([TOO_LARGE | {"status": "killed"}]) == ["memory_limit"]
    assert failures([TOO_LARGE | {"status": "ok"}]) == ["memory_limit"]


def test_a_training_that_is_not_repeated_is_caught():
    other = record(history=[{"epoch": 1, "loss": 1.5000001}])
    assert failures([], other) == ["determinism"]
    checks = check_on_records.of_records(
        [], record(status="killed", history=[], error="?"), record()
    )
    assert checks[-1]["read"] == "killed: ?"
    assert checks[-1]["passed"] is False
    # The lies: "different" of a second training that was killed, "equal" of two that diverged.
    again = check_on_records.of_records(
        [], record(), record(status="killed", history=[], error="?")
    )
    assert again[-1]["read"] == "killed: ?"
    both = [record(status="diverged", error="not finite")] * 2
    assert check_on_records.of_records([], *both)[-1]["passed"] is False


def test_tf32_is_not_asked_of_a_device_without_it():
    checks = check_on_records.of_records(
        [record("tensorfloat32", status="unsupported", error="no GPU")], record(), record()
    )
    assert [(c["policy"], c["read"], c["passed"]) for c in checks[:-1]] == [
        ("tensorfloat32", "no GPU", None)
    ]


@pytest.mark.parametrize(
    ("policy", "read"), [("float32", "tensorfloat32"), ("tensorfloat32", "float32")]
)
def test_tf32_that_is_not_as_asked_is_caught(policy, read):
    probe = {"probe": {"product": read, "convolution": read}}
    kernels = {"primitives": [FLOAT32 | {"count": 1.0}]}
    made = record(policy, in_force=probe, profile=record()["profile"] | kernels)
    assert failures([made]) == ["product", "convolution"]


def test_a_run_that_failed_is_no_pass():
    broken = record(status="failed", error="no kernel", in_force={}, timing={}, profile={})
    assert failures([broken]) == ["product", "convolution"]
