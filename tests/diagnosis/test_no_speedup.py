"""The rows of docs/no-speedup.md, planted in traces of a GPU that are made here.

What a CPU can show is planted for real in tests/system/test_planted.py, too.
"""

import json

import pytest
from builders import KINETO, kineto_step
from support import gpu_trace

from mptexp.analysis.contrast import Contrast
from mptexp.diagnosis import ablations, breakdown, foreign_traces, kernel_arithmetic, verdict
from mptexp.diagnosis.effects import Effect
from mptexp.diagnosis.pairs import Pair
from mptexp.report.answers import trace_answer
from mptexp.spec.run import Run
from mptexp.traces import trace_files, xplane

STEP_S = 0.05
WHOLE = 100_000  # microseconds of the two steps that are traced
F32 = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8"
BF16 = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn"
SIMT = "cutlass_80_simt_sgemm_128x64_8x5_nn_align1"
EIGEN = "void tensorflow::functor::FillPhiloxRandomKernelLaunch<float>(float*)"
PEAKS = {"float32": 1e14, "mixed_bfloat16": 8e14}
CONV = (BF16, "body", "Conv2D")


def kernels(*parts, layer=""):
    """Kernels one after another: name, layer, operation, and their share of the two steps."""
    events, at = [], 0
    for name, layer, op, share in parts:
        path = f"StatefulPartitionedCall/functional_1/{layer}.layer/{op}:{op.rpartition('/')[2]}"
        events.append(("gpu", name, at, WHOLE * share, {"tf_op": path}))
        at += WHOLE * share
    return events


def host(layer, op, at, share):
    path = f"StatefulPartitionedCall/functional_1/{layer}.layer/{op}:{op}"
    return ("host", path, at, WHOLE * share, {})


def record(
    folder, events, policy, peaks=PEAKS, alone=(), kinds=(), flops=2e12, types=(), reference=()
):
    """The record of a run with this trace; of the layers body and odd."""
    folder.mkdir()
    gpu_trace(folder / "a.xplane.pb", events, 2, WHOLE / 2)
    trace = xplane.read(folder / "a.xplane.pb", ["adam"], scaled=True)
    known = {"flops": flops, "bytes": 1e6, "parameters": 10}
    return {
        "parameters": Run(gpu_model="GPU", policy=policy).model_dump(),
        "timing": {"step_s": STEP_S},
        "in_force": {
            "emulated": False, "jit": False, "variable_dtype": "float32", "reference": [*reference]
        },
        "profile": trace.profile(trace.step_s),
        "work": {
            "ceilings": {"matmul_flops_per_s": peaks[policy], "copy_bytes_per_s": 3e12},
            "layers": [
                {"layer": name, "kind": dict(kinds).get(name, "Conv2D"), **known,
                 "compute_dtype": dict(types).get(name, "bfloat16"),
                 "alone_s": dict(alone).get((name, policy)), "alone_low_s": None}
                for name in ("body", "odd")
            ],
        },
    }  # fmt: skip


def losses(tmp_path, before, after, effects=(), **known):
    """What a step lost by these two traces and these ablations, the largest first."""
    both = [
        record(tmp_path / policy, events, policy, **known)
        for policy, events in zip(PEAKS, (before, after), strict=True)
    ]
    pair = Pair(*(Run(**r["parameters"]) for r in both), STEP_S)
    return verdict.losses(pair, *both, effects), both[1]


def check(found, name, share, *layers):
    lost, _ = found
    assert lost[0].cause.name == name, lost
    assert lost[0].share == pytest.approx(share, abs=0.1)
    assert lost[0].layers == layers


FULL = kernels((F32, "body", "MatMul", 1.0))


def test_an_operation_that_fell_back_to_the_cpu(tmp_path):
    after = [*kernels((*CONV, 0.25)), host("odd", "Digamma", 0.35 * WHOLE, 0.6)]
    found = losses(tmp_path, FULL, after)
    check(found, "on the host", 0.6, "odd")
    assert breakdown.by_layer(found[1]).loc["odd", "on the host"] == pytest.approx(0.6 * STEP_S)


def test_convolutions_without_tensor_cores(tmp_path):
    after = kernels((SIMT, "odd", "Conv2D", 0.85), (*CONV, 0.15))
    found = losses(tmp_path, FULL, after)
    check(found, "no tensor cores", 0.85 * (1 - 1 / 8), "odd")
    ran = kernel_arithmetic.table(breakdown.rows(found[1]))
    cores = kernel_arithmetic.tensor_core_seconds(ran).loc["odd"]
    assert cores.to_dict() == pytest.approx({"yes": 0, "no": 0.85 * STEP_S, "unknown": 0})


DEPTHWISE = "void tensorflow::DepthwiseConv2dGPUKernelNHWCSmall<Eigen::half, 0, 3, 8, false>"
HGEMM = "maxwell_hgemm_128x64_nn"


def test_what_no_tensor_core_could_do_lacks_none(tmp_path):
    # The lie: "26 % is lost in matrix work without Tensor Cores; take multiples of 8", of
    # convolutions of each channel alone, which 16 bits halved.
    before = kernels((F32, "body", "Conv2D", 0.4), (F32, "odd", "DepthwiseConv2dNative", 0.6))
    after = kernels((*CONV, 0.1), (DEPTHWISE, "odd", "DepthwiseConv2dNative", 0.3))
    found = losses(tmp_path, before, after)[0]
    assert "no tensor cores" not in {loss.cause.name for loss in found}


@pytest.mark.parametrize(
    "card",
    [
        {"device": "P100", "capability": [6, 0]},
        {"device": "NVIDIA GeForce GTX 1660 Ti", "capability": [7, 5]},
    ],
)
def test_a_device_that_has_none_lacks_none(tmp_path, card):
    after = record(tmp_path / "after", kernels((HGEMM, "body", "Conv2D", 1.0)), "mixed_bfloat16")
    rows = breakdown.rows(after)
    assert kernel_arithmetic.missed(after, rows) == {"body": pytest.approx(STEP_S)}
    assert kernel_arithmetic.missed(after | {"environment": card}, rows) == {}


def test_a_layer_kept_in_float32_has_its_casts_and_no_other_cause(tmp_path):
    cast = ("void Eigen::internal::EigenMetaKernel<Eigen::half>(int)", "odd", "Cast")
    before = kernels((F32, "body", "Conv2D", 0.4), (F32, "odd", "Conv2D", 0.6))
    after = kernels((*CONV, 0.05), (F32, "odd", "Conv2D", 0.8), (*cast, 0.15))
    found = losses(tmp_path, before, after, types={"odd": "float32"})
    check(found, "float32 fallback", 0.8 * (1 - 1 / 8) + 0.15, "odd")
    assert sum(loss.share for loss in found[0]) <= 1


def test_small_kernels_bound_by_their_launch(tmp_path):
    name = {"tf_op": "functional_1/body.layer/Conv2D:Conv2D"}
    small = [("gpu", BF16, start, 10, name) for start in range(0, WHOLE, 50)]
    check(losses(tmp_path, FULL, small), "host", 0.8)


def measured(ablation, times):
    """An ablation that made steps so many times as fast, in three blocks."""
    gain = Contrast(times, 0.98 * times, 1.02 * times, 3)
    return Effect(ablation, dict.fromkeys(PEAKS, gain))


def test_a_step_that_xla_makes_slower(tmp_path):
    after = kernels((*CONV, 0.5), ("fusion_1", "odd", "AddV2", 0.5))
    check(losses(tmp_path, FULL, after, [measured(ablations.XLA_OFF, 10.0)]), "compiled", 0.9)


def test_a_pipeline_that_takes_processors_from_the_step(tmp_path):
    wait = ("host", "IteratorGetNextOp::DoCompute", 0.95 * WHOLE, 0.05 * WHOLE, {})
    after = [*kernels((*CONV, 0.5), ("fusion_1", "odd", "AddV2", 0.45)), wait]
    check(losses(tmp_path, FULL, after, [measured(ablations.INPUT, 10.0)]), "pipeline", 0.9)


def test_a_gpu_that_waits_for_input(tmp_path):
    wait = ("host", "IteratorGetNextOp::DoCompute", 0.25 * WHOLE, 0.75 * WHOLE, {})
    check(losses(tmp_path, FULL, [*kernels((*CONV, 0.25)), wait]), "input", 0.75)


def test_a_gpu_that_waits_for_the_host(tmp_path):
    wait = ("host", "cuStreamSynchronize", 0.25 * WHOLE, 0.75 * WHOLE, {})
    check(losses(tmp_path, FULL, [*kernels((*CONV, 0.25)), wait]), "idle", 0.75)


FILTER = ("odd", "DepthwiseConv2dNativeBackpropFilter")


def test_the_gradient_of_a_depthwise_filter_that_is_slower_in_16_bits(tmp_path):
    slow = "void tensorflow::DepthwiseConv2dBackpropFilterGPUKernelNHWC<Eigen::half, 3, 3>(int)"
    before = kernels((F32, "body", "Conv2D", 0.9), (slow, *FILTER, 0.1))
    after = kernels((*CONV, 0.2), (slow, *FILTER, 0.8))
    check(losses(tmp_path, before, after), "slow layer", 0.7, "odd")


def test_the_reference_code_of_a_type_without_kernels(tmp_path):
    code = "dnnl::impl::cpu::ref_convolution_bwd_weights_t"
    before = kernels((F32, "body", "Conv2D", 0.9), (code, "odd", "Conv2DBackpropFilter", 0.1))
    after = kernels((*CONV, 0.1), (code, "odd", "Conv2DBackpropFilter", 0.9))
    lacking = ["gradients of the weights of convolutions"]
    check(losses(tmp_path, before, after, reference=lacking), "reference code", 0.8, "odd")


def test_a_first_convolution_of_3_channels_that_is_slower_backward_in_16_bits(tmp_path):
    wgrad = "sm80_xmma_wgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
    before = kernels((F32, "body", "Conv2D", 0.9), (F32, "odd", "Conv2DBackpropFilter", 0.1))
    after = kernels((*CONV, 0.4), (wgrad, "odd", "Conv2DBackpropFilter", 0.6))
    check(losses(tmp_path, before, after), "slow layer", 0.5, "odd")


def test_a_convolution_that_is_slow_at_one_shape_under_both_policies(tmp_path):
    # Of 2e12 FLOP each: body takes three times what the peak allows, odd sixteen times.
    before = kernels((F32, "body", "Conv2D", 0.2), (F32, "odd", "Conv2D", 0.8))
    after = kernels((*CONV, 0.15), (BF16, "odd", "Conv2D", 0.8))
    check(losses(tmp_path, before, after), "bad kernel", 0.8 - 0.15, "odd")


def test_a_layer_whose_arithmetic_no_rule_knows_has_no_bad_kernel(tmp_path):
    before = kernels((F32, "body", "Conv2D", 0.2), (F32, "odd", "MatMul", 0.8))
    after = kernels((*CONV, 0.2), (BF16, "odd", "MatMul", 0.8))
    lost, _ = losses(tmp_path, before, after, flops=None)
    assert "bad kernel" not in [loss.cause.name for loss in lost]


def test_a_kernel_that_is_slower_in_the_step_than_alone(tmp_path):
    before = kernels((F32, "body", "Conv2D", 0.2), (F32, "odd", "Conv2D", 0.8))
    alone = {("odd", "float32"): 0.04, ("odd", "mixed_bfloat16"): 0.01}
    after = kernels((*CONV, 0.2), (BF16, "odd", "Conv2D", 0.8))
    check(losses(tmp_path, before, after, alone=alone), "slow layer", 0.6, "odd")


def test_a_device_without_tensor_cores(tmp_path):
    same = dict.fromkeys(PEAKS, 1e14)
    found = losses(tmp_path, FULL, kernels((SIMT, "body", "Conv2D", 1.0)), peaks=same)
    check(found, "no faster type", 1.0)


def test_a_cpu_that_is_slower_in_16_bits(tmp_path):
    # Of the step that takes 1.6 times as long all is matrix work, twice as long by the peaks.
    peaks = {**dict.fromkeys(PEAKS, 1e14), "mixed_bfloat16": 5e13}
    found = losses(tmp_path, FULL, kernels((SIMT, "body", "Conv2D", 1.6)), peaks=peaks)
    check(found, "slower type", 1.0)


def test_batch_normalization_in_float32_that_is_not_fused(tmp_path):
    plain = [("sub", "Sub"), ("mul", "Mul"), ("rsqrt", "Rsqrt"), ("mul", "RealDiv")]
    kernel = "void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<float>>(int)"
    norm = [(kernel, "odd", f"{scope}/{op}", 0.15) for scope, op in plain]
    found = losses(tmp_path, kernels((F32, "body", "Conv2D", 0.4), *norm),
                   kernels((*CONV, 0.1), *[(*row[:3], 0.225) for row in norm]))  # fmt: skip
    check(found, "memory", 0.6, "odd")


@pytest.mark.parametrize(
    ("op", "kernel", "cause"),
    [
        ("EagerPyFunc", "", "python"),
        ("CheckNumericsV2", EIGEN, "checks"),
        ("PrintV2", "", "checks"),
        ("WriteHistogramSummary", "", "checks"),
        ("Cast", "void Eigen::internal::EigenMetaKernel<Eigen::half>(int)", "casts"),
        ("ImageProjectiveTransformV3", EIGEN, "preprocessing"),
        ("DecodeJpeg", "", "preprocessing"),
        ("while/body/_7/functional_1/odd/while/MatMul", "ampere_sgemm_32x32_tn", "loop"),
        ("StatelessRandomUniformV2", EIGEN, "random"),
        ("FFT2D", "void regular_fft<256u, 16u>(kernel_arguments_t<unsigned int>)", "no 16 bits"),
        ("TopKV2", "void tensorflow::impl::TopKKernel<float>(float const*)", "no 16 bits"),
    ],
)
def test_work_that_precision_does_not_shrink(tmp_path, op, kernel, cause):
    def step(share, conv):
        if kernel:
            return kernels((conv, "body", "Conv2D", 1 - share), (kernel, "odd", op, share))
        ran = kernels((conv, "body", "Conv2D", 1 - share))
        return [*ran, host("odd", op, WHOLE * (1 - share), share)]

    check(losses(tmp_path, step(0.4, F32), step(0.6, BF16)), cause, 0.6, "odd")


def test_a_layer_that_prepares_images(tmp_path):
    mul = (EIGEN.replace("Philox", ""), "odd", "Mul")
    before = kernels((F32, "body", "Conv2D", 0.6), (*mul, 0.4))
    after = kernels((*CONV, 0.3), (*mul, 0.7))
    found = losses(tmp_path, before, after, kinds={"odd": "RandomZoom"})
    check(found, "preprocessing", 0.7, "odd")


def test_functions_that_are_traced_anew_in_every_step(tmp_path):
    traced = ("python", "one", 0.25 * WHOLE, 0.75 * WHOLE, {"tf_function_call": "traced-nonXla"})
    called = ("python", "one", 0.0, 0.25 * WHOLE, {"tf_function_call": "notTraced-nonXla"})
    after = [*kernels((*CONV, 0.25)), called, traced]
    check(losses(tmp_path, FULL, after), "retracing", 0.75)


def test_values_that_are_copied_to_the_host_in_every_step(tmp_path):
    copy = ("gpu", "MemcpyD2H", 0.4 * WHOLE, 0.6 * WHOLE, {})
    check(losses(tmp_path, FULL, [*kernels((*CONV, 0.4)), copy]), "copies", 0.6)


@pytest.mark.parametrize("path", ["clip_by_global_norm/mul_3:Mul", "mul_4:Mul"])
def test_clipping_and_averages_of_weights(tmp_path, path):
    gradient = {"tf_op": "gradient_tape/functional_1/body.layer/Conv2D:Conv2D"}
    hint = ("host", gradient["tf_op"], 0, 1, {})
    sums = ("gpu", EIGEN, 0.4 * WHOLE, 0.6 * WHOLE, {"tf_op": path})
    check(losses(tmp_path, FULL, [*kernels((*CONV, 0.4)), hint, sums]), "updates", 0.6)


def grouped(record, bursts=()):
    """The record with five groups of steps; of the layers in bursts one group has all."""
    for row in record["profile"]["rows"]:
        burst = row["layer"] in bursts
        row["groups"] = [0.0] * 4 + [5 * row["seconds"]] if burst else [row["seconds"]] * 5
    return record


@pytest.mark.parametrize(("bursts", "named"), [((), ["casts"]), (("odd",), [])])
def test_what_happened_in_few_steps_alone_is_not_named(tmp_path, bursts, named):
    cast = ("void Eigen::internal::EigenMetaKernel<Eigen::half>(int)", "odd", "Cast")
    after = kernels((*CONV, 0.85), (*cast, 0.15))
    both = [
        grouped(record(tmp_path / "a", FULL, "float32", flops=2e13)),
        grouped(record(tmp_path / "b", after, "mixed_bfloat16", flops=2e13), bursts),
    ]
    pair = Pair(*(Run(**r["parameters"]) for r in both), STEP_S)
    lost = verdict.losses(pair, *both, [])
    assert lost[0].share == pytest.approx(0.15)
    found = verdict.Verdict(pair, *both, 1.0, lost, [], 0.0)
    assert [loss.cause.name for loss in found.blamed] == named
    assert [loss.cause.name for loss in found.large] == ["casts"]


def test_a_burst_is_not_certain_where_the_other_steps_give_it_to_another_cause(tmp_path):
    # Of the whole less than makes a layer slower; of four groups of five more than that.
    cast = ("void Eigen::internal::EigenMetaKernel<Eigen::half>(int)", "body", "Cast")
    relu = ("void Eigen::internal::EigenMetaKernel<Eigen::half>(int)", "odd", "Relu")
    before = kernels((*CONV, 0.97), (*relu, 0.03))
    after = kernels((*CONV, 0.75), (*cast, 0.15), (*relu, 0.1))
    both = [
        grouped(record(tmp_path / "a", before, "float32", flops=2e13)),
        grouped(record(tmp_path / "b", after, "mixed_bfloat16", flops=2e13), ("odd",)),
    ]
    for one in both:
        one["profile"]["device"] = "cpu"
    pair = Pair(*(Run(**r["parameters"]) for r in both), STEP_S)
    lost = {loss.cause.name: loss for loss in verdict.losses(pair, *both, [])}
    assert lost["memory"].share == pytest.approx(0.1 - 0.03 / 2)
    assert lost["memory"].least < 0
    assert "slow operations" not in lost


def test_a_layer_is_not_slower_where_the_traced_steps_do_not_show_it(tmp_path):
    # Timed beside other programs, the candidate's step is as long as the baseline's; traced without
    # them, all of it is twice as fast.
    both = [grouped(record(tmp_path / policy, kernels((kernel, "body", "Conv2D", 1.0)), policy))
            for policy, kernel in (("float32", F32), ("mixed_bfloat16", BF16))]  # fmt: skip
    for one, traced_s in zip(both, (2 * STEP_S, STEP_S), strict=True):
        one["profile"] |= {"device": "cpu", "step_s": traced_s}
        one["profile"]["rows"][0] |= {"seconds": traced_s, "groups": [traced_s] * 5}
        one["work"]["layers"] = [layer | {"alone_s": traced_s} for layer in one["work"]["layers"]]
    pair = Pair(*(Run(**r["parameters"]) for r in both), STEP_S)
    lost = verdict.losses(pair, *both, [])
    assert lost[0].cause.name == "slow layer"
    assert lost[0].share == pytest.approx(0.5)
    assert lost[0].least == pytest.approx(0.0)


def test_a_loss_that_weighs(tmp_path):
    sums = ("gpu", EIGEN, 0.3 * WHOLE, 0.7 * WHOLE, {"tf_op": "compile_loss/contrastive/Sum:Sum"})
    check(losses(tmp_path, FULL, [*kernels((*CONV, 0.3)), sums]), "loss", 0.7)


def test_an_operation_that_no_rule_knows_is_named_and_is_no_known_cause(tmp_path):
    after = kernels((*CONV, 0.3), ("void novel<float>(int)", "odd", "Novelty", 0.7))
    lost, candidate = losses(tmp_path, FULL, after)
    assert not [loss for loss in lost if loss.share >= 0.1]
    found = verdict.Verdict(None, None, candidate, 1.0, lost, [], 0.7)
    assert found.unknown_operations == ["Novelty in odd"]


def compared(tmp_path, before, after):
    """The sentence about two traces of PyTorch whose convolution runs in these kernels."""
    made = []
    for number, kernel in enumerate((before, after)):
        events = [event for step in range(3) for event in kineto_step(KINETO[1], step)]
        for event in events:
            if "xmma" in event["name"] or "wgrad" in event["name"]:
                event["name"] = kernel
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({"traceEvents": events}))
        made.append(foreign_traces.Recording(path.name, trace_files.read(path)[1]))
    return trace_answer.verdict(made)


def test_two_recordings_that_both_ran_mixed(tmp_path):
    assert "Both do all of their matrix work in bfloat16." in compared(tmp_path, BF16, BF16)


def test_a_float32_that_was_tf32_already(tmp_path):
    tf32 = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16"
    said = compared(tmp_path, tf32, BF16)
    assert "0 does most of its matrix work in TF32 already, not in strict float32." in said
    assert "TF32 already" not in compared(tmp_path, F32, BF16)


def test_steps_without_matrix_work_have_losses(tmp_path):
    # Once a TypeError, of a table of layers without a row.
    relu = kernels((EIGEN, "body", "Relu", 1.0))
    both = [record(tmp_path / p, relu, p) for p in ("float32", "mixed_bfloat16")]
    pair = Pair(*(Run(**r["parameters"]) for r in both), STEP_S)
    assert [loss.cause.name for loss in verdict.losses(pair, *both, [])] == ["memory"]
