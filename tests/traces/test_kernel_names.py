import csv

import pytest
from support import PROJECT

from mptexp.diagnosis import breakdown
from mptexp.traces import kernel_names

# Recorded in public traces of TensorFlow, JAX, PyTorch, TensorRT and cuDNN: a kernel's name, the
# operation (of XLA the instruction) that it was launched for, and what it is.
RECORDED = list(csv.DictReader((PROJECT / "tests/recorded_kernels.csv").read_text().splitlines()))
# Names of kernels as libraries of each generation give them. xprof's own list of 2020 is wrong
# about those marked so: it misses Tensor Core kernels, or flags float32 ones.
NAMES = [
    # Volta
    ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", "float16", True),
    ("volta_h884gemm_64x128_ldg8_nn", "float16", True),
    ("volta_fp16_s884cudnn_fp16_256x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1", "float16", True),
    ("volta_sgemm_128x64_nn", "float32", False),
    ("volta_scudnn_128x64_relu_interior_nn_v1", "float32", False),
    ("volta_hcudnn_128x128_relu_interior_nn_v1", "float16", False),
    ("volta_cgemm_32x32_tn", "float32", False),
    # Turing
    ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "float16", True),
    ("turing_h1688gemm_128x128_ldg8_stages_32x1_nn", "float16", True),
    ("turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_medium_nhwc_tn_v1", "float16", True),
    # Ampere
    ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn", "float16", True),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn", "bfloat16", True),
    ("ampere_h16816gemm_128x128_ldg8_stages_64x3_tn", "float16", True),
    ("ampere_sgemm_128x64_tn", "float32", False),
    ("ampere_scudnn_128x64_relu_xregs_large_nn_v1", "float32", False),
    ("cutlass_80_simt_sgemm_128x64_8x5_nn_align1", "float32", False),
    ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4", "tf32", True),
    ("cutlass_80_tensorop_s1688tf32gemm_256x128_16x3_nt_align4", "tf32", True),
    ("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8", "bfloat16", True),
    ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_64x64_32x6_tn_align8>",
     "float16", True),
    ("cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4", "tf32", True),
    ("void cutlass_cudnn::Kernel<cutlass_tensorop_f16_s16816dgrad_optimized_f16_128x128_32x4>",
     "float16", True),
    ("void wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align8", "float16", True),
    ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4", "float16", True),
    ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize64x64x64_stage4", "bfloat16", True),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x64x32_stage3", "tf32", True),
    # The traps: xprof misses these ...
    ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4"
     "_warpsize2x2x1_g1_tensor16x8x16_kernel_cudnn", "float16", True),
    ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16",
     "tf32", True),
    ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"
     "_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn", "bfloat16", True),
    ("sm90_xmma_dgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize256x128x64",
     "float16", True),
    ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNN", "float16", True),
    ("nvjet_tst_192x192_64x3_2x1_v_bz_coopB_TNT", "bfloat16", True),
    ("nvjet_qqtst_128x128_128x6_1x1_v_bz_TNT", "float8", True),
    ("nvjet_sss_64x8_64x16_1x4_h_bz_TNT", "unknown", True),
    ("cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16_128x128x64_2x1x1_0_tnn",
     "float16", True),
    ("cutlass3x_sm90_tensorop_s64x256x16gemm_bf16_bf16_f32_bf16_bf16_128x256x64_2x1x1_0_tnn",
     "bfloat16", True),
    ("cutlass3x_sm90_tensorop_s64x128x8gemm_tf32_tf32_f32_f32_f32_128x128x32_1x1x1_0_tnn",
     "tf32", True),
    # ... and flags these, which multiply in float32 with ordinary instructions.
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4",
     "float32", False),
    ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x128x8_ffma",
     "float32", False),
    ("sm86_xmma_dgrad_implicit_gemm_indexed_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8",
     "float32", False),
    # Blackwell
    ("nvjet_sm100_tst_mma_128x256x64_4_64x32x64_cta_1x2x1_2cta_h_bz_TNT", "bfloat16", True),
    ("cutlass3x_sm100_tensorop_h128x256x16gemm_f16_f16_f32_f16_f16_256x256x64", "float16", True),
    ("sm100_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
     "float16", True),
    # Older and odd ones
    ("volta_s884gemm_128x128_ldg8_nn", "float16", True),
    ("my_gemv_kernel", "unknown", None),
    ("void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false>", "float32", False),
    ("maxwell_sgemm_128x64_nt", "float32", False),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", "float32", False),
    ("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128>", "float16", False),
    ("void gemvNSP_kernel<float, float, float, float, 1, 16, 4, 1024>", "float32", False),
    ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, cutlass::bfloat16_t>>",
     "bfloat16", True),
    # Names that do not tell: shown as unknown, never counted as something.
    ("gemm_fusion_dot_3", "unknown", None),
    ("triton_gemm_dot_7", "unknown", None),
    ("cudnn_generated_operation_0_1", "unknown", None),
    ("loop_add_fusion", "unknown", None),
    ("void splitKreduce_kernel<32, 16, int>", "unknown", None),
    ("MemcpyH2D", "unknown", None),
]  # fmt: skip


# What kernels do whose names were taken wrongly, or by no rule, in traces of real GPUs.
DOES = [
    ("void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, long, float*, "
     "cublasLtEpilogue_t, int)", "memory", "unknown", None),
    ("split_embedding_codegen_forward_unweighted_kernel", "memory", "unknown", None),
    ("void fbgemm_gpu::permute_2D_sparse_data_kernel<false, long>", "memory", "unknown", None),
    ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x8x512u2", "matrix", "float8", True),
    ("bmm_Bfloat16_MxE2m1Bfloat16_Fp32_t128x8x512", "matrix", "bfloat16", True),
    ("bmm_E4m3_E4m3E4m3_Fp32_t128x8x512", "matrix", "float8", True),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H128PagedKvCausalVarSeqQ128Kv128Persistent", "matrix",
     "float8", True),
    ("void fft1d_r2c_32<float, float, float2, false, false>(float2*, float const*)", "matrix",
     "float32", False),
    ("void fft1d_c2r_32<float2, float, float, false, true, false, false>(float*)", "matrix",
     "float32", False),
    ("void pointwise_mult_and_sum_complex<float2, 8, 4>(float2*, float2*)", "matrix", "float32",
     False),
    ("void xmma_new::gemm::kernel<xmma_new::implicit_gemm::fprop::Kernel_traits<"
     "xmma_new::Ampere_hmma_tf32_traits<unsigned int, float>>>", "matrix", "tf32", True),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64.kd", "matrix", "bfloat16", None),
    ("Cijk_Ailk_Bljk_HHS_BH_MT64x64x32_MI16x16x16x1_SN.kd", "matrix", "float16", None),
    ("Cijk_Ailk_Bljk_SB_MT64x64x32.kd", "matrix", "unknown", None),
    ("void ck_tile::kentry<ck_tile::gfx950_t, 2, ck_tile::FmhaFwdKernel<ck_tile::"
     "BlockFmhaPipelineProblem<std::bfloat16>>> [clone .kd]", "matrix", "bfloat16", None),
    ("__amd_rocclr_copyBuffer.kd", "casts", "unknown", None),
    ("__amd_rocclr_fillBufferAligned.kd", "memory", "unknown", None),
    ("Im3d2Col.kd", "casts", "unknown", None),
    ("input_transpose_fusion_1.kd", "casts", "unknown", None),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
     "communication", "unknown", None),
    ("void multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>",
     "optimizer", "unknown", None),
    ("void tensorflow::functor::ApplyAdamKernel<float>(int, float*)", "optimizer", "unknown", None),
    ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<cutlass::bfloat16_t>>",
     "matrix", "bfloat16", True),
    ("triton_poi_fused_addmm_relu_3", "memory", "unknown", None),
    ("triton_tem_fused_mm_7", "matrix", "unknown", None),
    # Templates of CUTLASS 3, plain and mangled: the instruction's types, else the operands'.
    ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int>, "
     "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4>,"
     " cute::tuple<cute::C<64>>, cutlass::bfloat16_t, cute::tuple<long>, cutlass::bfloat16_t, "
     "cute::TiledMMA<cute::MMA_Atom<cute::SM90_64x128x16_F32BF16BF16_SS<>>>>>>", "matrix",
     "bfloat16", True),
    ("void cutlass::device_kernel<GemmUniversal<CollectiveMma<MainloopSm90TmaGmma<4>"
     ", float, cute::tuple<long>, float, cute::SM90_64x128x8_F32TF32TF32_SS_TN<>>>>", "matrix",
     "tf32", True),
    ("void cutlass::device_kernel<GemmUniversal<CollectiveMma<MainloopSm100TmaUmma<4>"
     ", cutlass::float_e4m3_t, cute::tuple<long>, cutlass::float_e4m3_t>, cutlass::bfloat16_t>>",
     "matrix", "float8", True),
    # The lie: "100 % of the matrix work is in bfloat16", of TF32 with a result in bfloat16.
    ("void cutlass::device_kernel<GemmUniversal<CollectiveMma<MainloopSm100TmaUmma<4>, "
     "cutlass::tfloat32_t, cute::tuple<long>, cutlass::tfloat32_t, MMA_Atom<SM100_MMA_TF32_SS<>>>, "
     "CollectiveEpilogue<Sm100Tma<4>, cutlass::bfloat16_t, cutlass::bfloat16_t>>>", "matrix",
     "tf32", True),
    ("void cutlass::device_kernel<GemmUniversal<CollectiveMma<MainloopSm90TmaGmma<4>, float, "
     "float>, CollectiveEpilogue<cutlass::bfloat16_t, cutlass::bfloat16_t>>>", "matrix",
     "unknown", True),
    ("void cutlass::device_kernel<cutlass::conv::kernel::ConvUniversal<cute::SM90_TMA_LOAD_IM2COL, "
     "cutlass::half_t>>", "matrix", "unknown", None),
    ("void vector_fft<256u, EPT<16u>, 8u, 32u, (padding_t)1, (twiddle_t)0, unsigned int, double>",
     "matrix", "float64", False),
    # The lie: matrix work, of what a model called Gemma adds up.
    ("_gemma_residual_add_kernel", "", "unknown", None),
    ("void tensorflow::GemmArray<float>", "matrix", "unknown", None),
    ("_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collective"
     "13CollectiveMmaINS1_34MainloopSm90TmaGmmaWarpSpecializedILi4EEENS_6half_tENS_6half_tE",
     "matrix", "float16", True),
    ("cutlass3x_sm100_bstensorop_s128x256x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_bf16_bf16",
     "matrix", "float4", True),
    ("cutlass3x_sm100_bstensorop_s128x256x32gemm_block_scaled_ue8m0xmxf8_ue8m0xmxf8_f32_bf16_bf16",
     "matrix", "float8", True),
    ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 2112u, 7168u>", "matrix", "float8", True),
    ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", "matrix", "float64", True),
    ("sm80_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x64x16_stage3_tensor8x8x4", "matrix",
     "float64", True),
    ("ampere_igemm_int8_128x128_ldg4_nn", "matrix", "int8", False),
    ("volta_h884cudnn_256x128_ldg8_relu_exp_interior_nhwc_tn_v1", "matrix", "float16", True),
    ("igemm_wrw_gtcx3_nhwc_fp16_bx0_ex1_bt256x256x32_wt32x32x8_gkgs", "matrix", "float16", None),
    ("igemm_fwd_gtcx35_nhwc_fp32_bx0_ex0_bt128x64x16", "matrix", "float32", None),
    ("miopenGcnAsmConv1x1U", "matrix", "unknown", None),
    # PyTorch's memory-efficient attention; in float32 from 8.0 on three products in TF32.
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm75(AttentionKernel<float>::Params)", "matrix",
     "float32", False),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(AttentionKernel<float>::Params)", "matrix",
     "unknown", True),
    ("fmha_cutlassF_f16_aligned_64x64_rf_sm50(AttentionKernel<cutlass::half_t>::Params)", "matrix",
     "float16", False),
    ("fmha_cutlassB_bf16_aligned_64x64_k64_sm80(AttentionBackwardKernel<>)", "matrix", "bfloat16",
     True),
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<CollectiveMainloopFwdSm90<2, "
     "cutlass::float_e4m3_t, float>, CollectiveEpilogueFwd<cutlass::bfloat16_t>>>", "matrix",
     "float8", True),
    # What attention launches besides its products.
    ("void pytorch_flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, "
     "cutlass::half_t>>", "memory", "unknown", None),
    ("void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cutlass::bfloat16_t, float>>",
     "memory", "unknown", None),
    ("void cutlass::device_kernel<flash::FlashAttnBwdPostprocessConvertdQ<cutlass::bfloat16_t>>",
     "casts", "unknown", None),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "memory", "unknown", None),
    ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<x>", "matrix", "unknown", None),
    ("mha_forward", "matrix", "unknown", None),
    ("fused_moe_kernel", "matrix", "unknown", None),
    # What stands beside attention and deformable convolutions and multiplies nothing.
    ("void vllm::merge_attn_states_kernel<__nv_bfloat16, 128>", "memory", "unknown", None),
    ("void cutlass::device_kernel<flash::FlashAttnFwdCombine<x>>", "memory", "unknown", None),
    ("void ck_tile::kentry<ck_tile::FmhaFwdSplitKVCombineKernel<x>>", "memory", "unknown", None),
    ("_attn_bwd_preprocess", "memory", "unknown", None),
    ("_attn_bwd_dkdv", "matrix", "unknown", None),
    ("void ms_deformable_im2col_gpu_kernel<float>", "memory", "unknown", None),
    # Changes of type.
    ("void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda("
     "at::TensorIteratorBase&)::{lambda(float)#1}>", "casts", "unknown", None),
    ("Cast_GPU_DT_FLOAT_DT_HALF_kernel", "casts", "unknown", None),
    ("kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 1>", "casts", "unknown", None),
    ("void quantize_mxfp8_kernel<true>", "casts", "unknown", None),
    ("void cuComputePartGradGammaBeta<float, float>", "memory", "unknown", None),
    ("void elemWiseRNNcell<float, float, float, (cudnnRNNMode_t)2>", "memory", "unknown", None),
    ("MIOpenSoftmax", "memory", "unknown", None),
    ("gridwise_generic_reduce_1", "memory", "unknown", None),
    ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>", "communication", "unknown", None),
    ("triton_tem_fused_addmm_native_layer_norm_5", "matrix", "unknown", None),
    ("triton_mix_fused_native_layer_norm_backward_2", "memory", "unknown", None),
    ("mystery_v7", "", "unknown", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "does", "arithmetic", "tensor_cores"), DOES)
def test_a_kernels_name_tells_what_it_does(name, does, arithmetic, tensor_cores):
    assert kernel_names.work(name) == does
    assert kernel_names.kernel(name) == (arithmetic, tensor_cores)


@pytest.mark.parametrize(("name", "arithmetic", "tensor_cores"), NAMES)
def test_a_kernels_name_tells_its_arithmetic(name, arithmetic, tensor_cores):
    assert kernel_names.kernel(name) == (arithmetic, tensor_cores)


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["kernel"][:60])
def test_a_recorded_kernel_is_what_it_is(row):
    known = kernel_names.kernel(row["kernel"])
    assert known.arithmetic == row["arithmetic"]
    assert known.tensor_cores == {"yes": True, "no": False, "unknown": None}[row["tensor_cores"]]
    assert breakdown.cause("op", "other", row["operation"], row["kernel"]) == row["cause"]


def test_the_recorded_kernels_are_of_every_kind():
    values = {name: {row[name] for row in RECORDED} for name in RECORDED[0]}
    assert values["tensor_cores"] == {"yes", "no", "unknown"}
    assert {"matrix", "memory", "casts", "checks", "random", "unexplained"} == values["cause"]
    assert {"float16", "bfloat16", "tf32", "float32", "unknown"} == values["arithmetic"]
    known = [row for row in RECORDED if row["cause"] == "matrix"]
    assert len([row for row in known if row["arithmetic"] == "unknown"]) < 0.05 * len(known)


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("triton_poi_fused_convolution_relu_3", "memory"),
        ("triton_per_fused_convolution_backward_sum_12", "memory"),
        ("triton_red_fused__log_softmax_nll_loss_forward_0", "memory"),
        ("triton_tem_fused_addmm_relu_5", "matrix"),
    ],
)
def test_what_inductor_generates_is_named_after_all_around_it(name, work):
    assert kernel_names.work(name) == work


@pytest.mark.parametrize("name", ["bmm_kernel", "bmm_fwd_kernel_0d1d2d"])
def test_a_kernel_of_somebody_s_own_is_not_said_to_run_on_tensor_cores(name):
    assert kernel_names.work(name) == "matrix"
    assert kernel_names.kernel(name) == kernel_names.UNKNOWN
