import json

import pytest
from forked import python

from mptexp.diagnosis import breakdown
from mptexp.diagnosis.causes import LABELS
from mptexp.traces.operations import ON_HOST


def row(op="", layer="", part="", state="op", kernel="", seconds=1.0):
    return {"state": state, "layer": layer, "part": part, "op": op, "kernel": kernel,
            "seconds": seconds, "count": 1.0}  # fmt: skip


def cause_of(row, kind=""):
    return breakdown.cause(*(row[name] for name in ("state", "part", "op", "kernel")), kind)


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (row("Conv2DBackpropFilterWithBias", "conv", "backward"), "matrix"),
        (row("FusedMatMul", "dense", "forward"), "matrix"),
        (row("conv_general_dilated", "conv", "forward"), "matrix"),
        (row("custom-call", kernel="nvjet_hsh_128x256_64x4"), "matrix"),
        (row("Cast", "norm", "forward"), "casts"),
        (row("convert_element_type", "norm", "forward"), "casts"),
        (row("transpose_copy_fusion"), "casts"),
        (row("SquaredDifference", "norm", "forward"), "memory"),
        (row("Sum", part="loss"), "loss"),
        (row("Cast", part="loss"), "loss"),
        (row("Novelty", "odd", "forward"), "unexplained"),
        (row("CheckNumericsV2", "conv", "forward"), "checks"),
        (row("Assert", part="other"), "checks"),
        (row("PrintV2", part="other"), "checks"),
        (row("ImageProjectiveTransformV3", "turn", "forward"), "preprocessing"),
        (row("pure_callback", "odd", "forward"), "python"),
        (row("loop_add_fusion"), "memory"),
        (row("Mul", part="optimizer"), "optimizer"),
        (row("Cast", part="optimizer"), "optimizer"),
        (row("IsFinite", part="loss scaling"), "loss scaling"),
        (row("Digamma", "odd", "forward", kernel=ON_HOST), "on the host"),
        (row(state="input"), "input"),
        (row(state="idle"), "idle"),
        (row("ynn_fusion", part="other"), "unexplained"),
        (row("EagerPyFunc", "odd", "forward"), "python"),
        (row("Novelty", part="other"), "unexplained"),
        (row("ResizeBilinear", "grow", "forward"), "preprocessing"),
        (row("IsFinite", "conv", "forward"), "checks"),
        (row("TensorArrayReadV3", "lstm", "forward"), "loop"),
        (row("UpperBound", "rank", "forward"), "no 16 bits"),
        (row("SpaceToBatchND", "dilated", "forward"), "casts"),
        (row("Lgamma", "odd", "forward"), "unexplained"),
        (row("Mul", part="updates"), "updates"),
        (row("_foreach_lerp_", part="updates"), "updates"),
        (row("_foreach_lerp_", part="other"), "memory"),
        (row("_foreach_copy_", part="other"), "casts"),
        (row("MemcpyD2H", part=""), "copies"),
        (row(state="retracing"), "retracing"),
        (row(state="loop"), "loop"),
        (row("linalg_vector_norm", part="other"), "memory"),  # as of gradients that are clipped
        (row("linalg_solve", part="other"), "no 16 bits"),
        (row("FakeQuantWithMinMaxVarsGradient", "conv", "backward"), "no 16 bits"),
        (row("QuantizeAndDequantizeV4", "conv", "forward"), "no 16 bits"),
        (row("Erfinv", "warped", "forward"), "no 16 bits"),
        (row("isneginf", "attention", "forward"), "memory"),
        (row("eq", "relu", "forward"), "memory"),
        # Between devices, in whichever scope.
        (
            row("Mul", part="optimizer", kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
            "communication",
        ),
        (row("CollectiveReduceV2", part="optimizer"), "communication"),
        (row("NcclAllReduce", part="loss"), "communication"),
        (row("all-reduce-start.1", "dense", "backward"), "communication"),
        (row("c10d::allreduce_", part="other"), "communication"),
        (row("MemcpyPtoP", part="other"), "communication"),
    ],
)
def test_every_row_has_a_cause(found, cause):
    assert cause_of(found) == cause


REGISTERED = """
import json, re
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import kernels, op_def_registry
from mptexp.diagnosis import breakdown
types = {}
for kernel in kernels.get_all_registered_kernels().kernel:
    if re.search(breakdown.KERNELS_IN_32_BITS, kernel.op):
        of = types.setdefault(kernel.op, set())
        of.update(*(constraint.allowed_values.list.type for constraint in kernel.constraint))
        of.update(put.type for put in op_def_registry.get(kernel.op).input_arg)
names = types_pb2.DataType.Name
print(json.dumps({op: [names(number) for number in sorted(of)] for op, of in types.items()}))
"""


def test_what_is_said_to_have_kernels_in_32_bits_alone_has_no_others():
    types = json.loads(python(REGISTERED).stdout)
    assert {"FakeQuantWithMinMaxVars", "Erfinv", "QuantizeAndDequantizeV4"} <= types.keys()
    assert all("DT_FLOAT" in of for of in types.values())
    assert not {"DT_HALF", "DT_BFLOAT16"} & set().union(*types.values())


@pytest.mark.parametrize("op", ["Cast", "MatMul", "Mul", "Novelty"])
def test_all_that_a_preprocessing_layer_does_is_preprocessing(op):
    assert cause_of(row(op, "turn", "forward"), "RandomRotation") == "preprocessing"
    assert cause_of(row(op, "norm", "forward"), "LayerNormalization") != "preprocessing"


def test_a_layer_that_enlarges_images_is_no_preprocessing():
    assert cause_of(row("ResizeBilinear", "grow", "forward"), "UpSampling2D") == "memory"


HALF = "void at::native::sbtopk::gatherTopK<{}, unsigned int, 2, false>(TensorInfo<{}>)"


@pytest.mark.parametrize("kind", ["c10::Half", "c10::BFloat16", "__half", "__nv_bfloat16"])
def test_a_sort_or_an_fft_in_16_bits_is_not_said_to_have_none(kind):
    # The lie: "operations that no device has in 16 bits", of kernels that say c10::Half.
    fft = f"void regular_fft<512u, unsigned int, {kind}>(kernel_parameters_t<512u, {kind}>)"
    for op, kernel in (("topk", HALF.format(kind, kind)), ("_fft_r2c", fft)):
        assert cause_of(row(op, part="other", kernel=kernel)) == "memory"
        assert not breakdown.multiplies(op, kernel)
        in_32 = kernel.replace(kind, "float")
        assert cause_of(row(op, part="other", kernel=in_32)) == "no 16 bits"


@pytest.mark.parametrize(
    ("layer", "parts", "cause"),
    [
        # The lie, of a U-Net's decoder: "preprocessing beside the model bounds this training".
        ("unet/up_sampling2d_1", ["forward"], "memory"),
        ("UpSample_0", ["forward"], "memory"),
        ("decoder/grow", ["forward", "backward"], "memory"),
        ("resize_images", ["forward"], "preprocessing"),
        ("group_sampler", ["forward"], "preprocessing"),
    ],
)
def test_a_layer_that_enlarges_what_a_model_computes_is_told_by_its_name_or_gradient(
    layer, parts, cause
):
    ops = {"forward": "ResizeNearestNeighbor", "backward": "ResizeNearestNeighborGrad"}
    made = record([row(ops[part], layer, part) for part in parts])
    for kind in ("", "Decoder"):
        made["work"]["layers"] = [{"layer": layer, "kind": kind}]
        assert set(breakdown.rows(made).cause) == {cause}


def test_a_layer_of_preprocessing_stays_one_where_its_kind_is_known():
    made = record([row("ResizeBilinear", "up_sample", "forward")])
    made["work"]["layers"] = [{"layer": "up_sample", "kind": "Resizing"}]
    assert set(breakdown.rows(made).cause) == {"preprocessing"}


def record(rows, step_s=0.2):
    """A record whose traced step took 0.1 s longer for every 0.1 s of rows, and 0.2 s timed."""
    traced = sum(found["seconds"] for found in rows)
    return {
        "timing": {"step_s": step_s},
        "profile": {"missing": "", "step_s": traced, "rows": rows, "device": "cpu"},
        "work": {"layers": [{"layer": "conv"}, {"layer": "norm"}]},
    }


ROWS = [row("Mul", "norm", "forward", seconds=0.1), row("Conv2D", "conv", "forward", seconds=0.3)]


def test_elementwise_work_of_a_layer_goes_with_what_it_serves():
    served = [row("FFT2D", "odd", seconds=0.3), row("Cast", "odd", seconds=0.1),
              row("MatMul", "odd", seconds=0.5), row("Cast", "norm", seconds=0.1)]  # fmt: skip
    found = breakdown.by_cause(record(served, step_s=1.0))
    assert found["no 16 bits"] == pytest.approx(0.4)
    assert (found["casts"], found["matrix"]) == pytest.approx((0.1, 0.5))
    less = [row("FFT2D", "odd", seconds=0.3), row("Cast", "odd", seconds=0.7)]
    assert breakdown.by_cause(record(less, step_s=1.0))["casts"] == pytest.approx(0.7)


def test_casts_go_with_what_asks_for_them_beside_more_elementwise_work():
    mixed = [row("FFT2D", "odd", seconds=0.3), row("Cast", "odd", seconds=0.2),
             row("Mul", "odd", seconds=0.4)]  # fmt: skip
    found = breakdown.by_cause(record(mixed, step_s=0.9))
    assert (found["no 16 bits"], found["memory"]) == pytest.approx((0.5, 0.4))


def test_a_group_of_steps_is_left_out():
    made = record([row("Conv2D", seconds=2.0) | {"groups": [1.0, 1.0, 4.0]}, 
                   row("Cast", seconds=1.0) | {"groups": [1.0, 1.0, 1.0]}])  # fmt: skip
    assert breakdown.groups(made) == 3
    assert breakdown.groups(record(ROWS)) == 0
    kept = breakdown.without_group(made, 2)
    assert kept["profile"]["step_s"] == pytest.approx(2.0)
    assert breakdown.by_cause(kept)["matrix"] == pytest.approx(0.1)
    assert breakdown.by_cause(made)["matrix"] == pytest.approx(0.2 * 2 / 3)


def test_the_rows_sum_to_the_timed_step():
    found = breakdown.by_cause(record(ROWS))
    assert found.sum() == pytest.approx(0.2)
    assert found["matrix"] == pytest.approx(0.15)
    assert list(found.index) == list(LABELS)


def test_layers_come_in_the_models_order_and_waits_last():
    table = breakdown.by_layer(record([*ROWS, row(state="host")]))
    assert list(table.index) == ["conv", "norm", "(no operation)"]
    assert list(table.columns) == ["matrix", "memory", "host"]


def test_policies_are_joined_on_layer_and_cause_not_on_kernels():
    other = [row("Conv2D", "conv", "forward", kernel="another", seconds=0.1)]
    both = breakdown.joined(*map(breakdown.rows, (record(ROWS), record(other, step_s=0.1))))
    conv = both[both.layer == "conv"].iloc[0]
    assert (conv.baseline_s, conv.candidate_s) == (pytest.approx(0.15), pytest.approx(0.1))
    assert both[both.layer == "norm"].iloc[0].candidate_s == 0


@pytest.mark.parametrize("profile", [None, {}, {"missing": "xprof is not installed"}])
def test_without_a_trace_there_is_no_breakdown(profile):
    known = record(ROWS) | {"profile": profile}
    assert breakdown.rows(known).empty
    assert breakdown.by_cause(known).empty


def test_on_a_gpu_tracing_lengthens_the_waits_and_not_the_kernels():
    # Of a step of 0.4 s, 0.1 s in kernels; while it was traced it took 0.6 s.
    traced = record([row("Conv2D", "conv", seconds=0.1), row(state="host", seconds=0.4),
                     row(state="idle", seconds=0.1)], step_s=0.4)  # fmt: skip
    traced["profile"]["device"] = "gpu"
    found = breakdown.by_cause(traced)
    assert found["matrix"] == pytest.approx(0.1)
    assert found["host"] == pytest.approx(0.24)
    assert found["idle"] == pytest.approx(0.06)
    assert breakdown.rows(traced).share.sum() == pytest.approx(1)
    traced["profile"]["device"] = "cpu"
    assert breakdown.by_cause(traced)["matrix"] == pytest.approx(0.1 * 0.4 / 0.6)


def test_kernels_that_fill_the_timed_step_leave_no_wait():
    rows = [row("Conv2D", seconds=0.3), row("Cast", seconds=0.2), row(state="host", seconds=0.1)]
    traced = record(rows, step_s=0.4)
    traced["profile"]["device"] = "gpu"
    causes = breakdown.by_cause(traced)
    assert causes["host"] == 0
    assert causes["matrix"] == pytest.approx(0.24)
    assert causes["casts"] == pytest.approx(0.16)


def test_a_traced_step_with_batches_in_store_waits_less_than_the_timed_one():
    # Planted: a pipeline of which the step waits for 77 %; named with 49, of three traced steps.
    rows = [row("Conv2D", seconds=0.1), row(state="input", seconds=0.1)]
    causes = breakdown.by_cause(record(rows, step_s=0.4))
    assert (causes["matrix"], causes["input"]) == pytest.approx((0.1, 0.3))
    # Slowed by the trace, or hardly waiting: all alike.
    assert breakdown.by_cause(record(rows, step_s=0.1))["input"] == pytest.approx(0.05)
    few = [row("Conv2D", seconds=0.19), row(state="input", seconds=0.01)]
    assert breakdown.by_cause(record(few, step_s=0.4))["input"] == pytest.approx(0.02)


def test_a_wait_on_either_side_of_a_limit_is_about_the_same():
    # The lie: 39 % was "what layers take longer in 16 bits", of two traces that hardly differ.
    took = []
    for wait in (0.024, 0.026):
        rows = [row("Conv2D", seconds=0.1 - wait), row(state="input", seconds=wait)]
        took.append(breakdown.by_cause(record(rows, step_s=0.2))["input"])
    assert took[1] - took[0] < 0.01
