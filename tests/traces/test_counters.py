import pytest

from mptexp.traces import counters

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
HFMA = "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum"
FADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
TENSOR = "sm__inst_executed_pipe_tensor.sum"
TF32 = "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw"


@pytest.mark.parametrize(
    ("kernel", "counts", "agrees"),
    [
        (TF32, {FFMA: 0, FADD: 100}, True),
        (TF32, {FFMA: 10**6, FADD: 100}, False),
        (TF32, {TENSOR: 0, FFMA: 0}, False),
        ("ampere_sgemm_32x32_sliced1x4_tn", {FFMA: 10**6, FADD: 5}, True),
        ("ampere_sgemm_32x32_sliced1x4_tn", {FFMA: 0, HFMA: 10**6}, False),
        ("ampere_sgemm_32x32_sliced1x4_tn", {TENSOR: 9}, False),
        ("void fft2d_r2c_32x32<float, false, 5u, true>(float2*)", {FFMA: 5, FADD: 100}, True),
        ("void at::native::vectorized_elementwise_kernel<4>", {FFMA: 0, HFMA: 9}, True),
    ],
)
def test_counters_are_held_against_names(kernel, counts, agrees):
    compared = counters.compared([(kernel, counts)])
    assert compared.kernels == 1
    assert (compared.disagreements == ()) == agrees


def test_kernels_without_counters_say_nothing():
    assert counters.compared([(TF32, {}), (TF32, {FADD: 1})]) is None


def test_of_the_details_of_a_kernel_the_counters_are_told():
    args = {FFMA: 3, TENSOR: "text", "device": 0, "a__b": 1, "grid.sum": 2}
    assert counters.among(args) == {FFMA: 3.0}
