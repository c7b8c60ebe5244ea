from dataclasses import replace

import pytest

from mptexp.diagnosis import recording
from mptexp.diagnosis.causes import LABELS
from mptexp.diagnosis.recording import Comparison, Recording
from mptexp.traces.operations import Operation, Trace

CONV = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x128x8_ffma"
HALF = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"


def made(kernel=CONV, times=(0.1, 0.11, 0.12), layer="conv2d", file="a", **seconds):
    """A recording whose step has the seconds of these causes."""
    rows = [
        Operation("op", layer, "forward", "conv2d", kernel, seconds.get("matrix", 0.0), 1),
        Operation("op", layer, "forward", "relu", "", seconds.get("memory", 0.0), 1),
        Operation("op", "", "optimizer", "add_", "", seconds.get("optimizer", 0.0), 1),
        Operation("op", layer, "forward", "", "mystery_v7", seconds.get("unknown", 0.0), 1),
        Operation("input", seconds=seconds.get("input", 0.0)),
        Operation("host", seconds=seconds.get("host", 0.0)),
    ]
    rows = [row for row in rows if row.seconds]
    total = sum(row.seconds for row in rows)
    trace = Trace(len(times), total, "gpu", 0.0, rows, times, "marks", gpu="GPU:0")
    return Recording(file, trace)


def test_what_takes_most_of_the_step_bounds_the_training():
    assert made(input=0.06, matrix=0.05).bound == ("input", pytest.approx(6 / 11))
    assert made(host=0.06, matrix=0.05).bound[0] == "host"
    assert made(memory=0.04, optimizer=0.03, matrix=0.06).bound[0] == "memory"


def test_every_cause_of_the_breakdown_can_bound_a_training():
    known = [cause for causes in recording.BOUNDS.values() for cause in causes]
    assert sorted(known) == sorted(LABELS)


def test_rows_are_of_the_median_step():
    one = made(times=(0.1, 0.2, 0.9), matrix=0.3, host=0.1)
    assert sum(one.by_cause) == pytest.approx(0.2)
    assert one.share("matrix") == pytest.approx(0.75)


def test_a_kernel_that_no_rule_knows_is_unexplained_in_a_layer_too():
    one = made(matrix=0.05, unknown=0.05)
    assert one.share("unexplained") == pytest.approx(0.5)
    assert one.share("memory") == 0


def test_layers_are_shares_of_the_device_s_time():
    one = made(matrix=0.03, memory=0.03, optimizer=0.02, host=0.5)
    assert one.layer_share == pytest.approx(0.75)
    assert one.named_layer_share == 1
    assert list(one.by_layer.index) == ["conv2d", "optimizer"]


def test_arithmetic_is_of_matrix_work():
    row = made(HALF, matrix=0.01, memory=0.09).arithmetic.iloc[0]
    assert (row.type, row.tensor_cores, row.share) == ("float16", True, 1)
    assert made(matrix=0.01).low_share == 0
    assert made(memory=0.01).arithmetic.empty


def test_two_recordings_have_the_ratio_of_medians_and_the_spread_of_steps():
    slow, fast = made(times=(0.2, 0.22, 0.3), matrix=1.0), made(times=(0.1, 0.11), matrix=1.0)
    both = Comparison(slow, fast)
    assert both.speedup == pytest.approx(0.22 / 0.105)
    assert both.spread == (pytest.approx(0.2 / 0.11), pytest.approx(0.3 / 0.1))


def test_what_16_bits_did_not_shrink_and_the_best_they_could_give():
    before = made(times=(0.1,), matrix=0.06, memory=0.02, optimizer=0.01, host=0.01)
    after = made(HALF, times=(0.06,), matrix=0.02, memory=0.02, optimizer=0.01, host=0.01)
    both = Comparison(before, after)
    assert list(both.unshrunk.index) == ["memory", "optimizer"]
    assert both.baseline.best == pytest.approx(1 / (1 - 0.06 / 0.1 - 0.01 / 0.1))
    assert both.by_cause.loc["matrix", "difference_s"] == pytest.approx(-0.04)


def test_a_model_that_was_built_twice_is_joined_by_the_order_of_its_layers():
    first, second = (
        made(layer="block/conv2d_12", matrix=0.1),
        made(layer="block/conv2d", matrix=0.2),
    )
    joined = Comparison(first, second).joined
    assert len(joined) == 1
    rows = recording.numbered(first.rows.assign(layer=["a_3/b", *[""] * (len(first.rows) - 1)]))
    assert rows.layer.iloc[0] == "a_0/b_0"


def test_another_framework_does_not_hide_another_model():
    def of(framework, count, **seconds):
        one = made(**seconds)
        rows = [row._replace(count=count) for row in one.trace.operations]
        return Recording(framework, replace(one.trace, operations=rows, framework=framework))

    resnet = of("PyTorch", 160, matrix=0.1)
    assert Comparison(resnet, of("TensorFlow", 120, matrix=0.1)).comparable
    other = Comparison(resnet, of("TensorFlow", 15, matrix=0.1))
    assert other.works == {"matrix operations": ("160", "15")}
    assert not Comparison(resnet, of("TensorFlow", 160, memory=0.1)).comparable
    # What is unexplained may be products.
    assert Comparison(resnet, of("TensorFlow", 160, unknown=0.05, memory=0.05)).comparable


def test_a_micro_batch_is_not_compared_with_a_whole_step():
    # The lie: "mixed is 2.00x faster", of a recording with accumulated gradients beside one
    # without.
    whole, part = made(matrix=0.1), made(matrix=0.05, times=(0.05, 0.05))
    part = Recording("b", replace(part.trace, accumulated=True))
    assert Comparison(whole, made(matrix=0.05, times=(0.05,))).comparable
    assert not Comparison(whole, part).comparable
    assert Comparison(whole, part).works == {"a step": ("with the optimizer", "of one micro-batch")}
    assert Comparison(part, replace(part, file="c")).comparable
