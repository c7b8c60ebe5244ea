"""Kernel classification: what a GPU kernel does, in which arithmetic, whether on Tensor Cores.

All from the kernel's name, by the rules below; what they do not know is unknown, never counted as
something.

Sources: NVIDIA's CUTLASS documentation, "CUTLASS Profiler" and "Layouts and Tensors" (operation
names: simt, tensorop, wmma_tensorop; the type before the instruction's shape, s1688, s16816,
s64x128x16, h884, ...); the PTX ISA, sections on mma, wgmma and tcgen05 (which shapes belong to
which type: m8n8k4 float16 on Volta, m16n8k8 float16 on Turing and TF32 on Ampere, m16n8k16 float16
and bfloat16 on Ampere, wgmma on Hopper, tcgen05 on Blackwell); the names that kernels bear in
public traces of TensorFlow, JAX and PyTorch (tests/recorded_kernels.csv).
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

LOW = ("float16", "bfloat16", "tf32", "float8", "float4")
# What kernels do, as the time breakdown names it; the first pattern that matches decides. A
# convolution launches changes of layout and sums too. Each is tried against
# tests/recorded_kernels.csv.
WORK = {
    "communication": re.compile(
        r"^(void )?(nccl|rccl|mscclpp|msccl|nvshmem)|cross_device_reduce|userbuffers_"
        r"|(one|two)_?shot_all_?reduce|multimem_all_?(reduce|gather)|deep_ep::"
    ),
    "optimizer": re.compile(
        r"fused_?adam|fused_?sgd|fused_?lamb|fused_?adagrad|multi_tensor_(adam|sgd|lamb|novograd)"
        r"|apply(adam|gradientdescent|(keras)?momentum|rmsprop|adagrad|adadelta|ftrl)\w*kernel"
        r"|adamfunctor|split_embedding_backward|k(adam|sgd|optimizer)\w*(32bit|8bit)"
    ),
    "casts": re.compile(
        r"nchwtonhwc|nhwctonchw|foldednchw|swapdimension|shuffleintensor3|addpadding"
        r"|padinputcustom|converttensor|generictranspose|transpose_readwrite"
        r"|(?<!load_)(?<!deformable_)im([23]d)?2col|(?<!deformable_)col2im"
        r"|direct_copy_kernel|rocclr_copy|cast_transpose|castkernel|cast_kernel|convert_(d?q|dkv)"
        r"|convertqgrad|convertdq|b?float\d+\w*_copy_kernel|^cast_gpu_|batched_?transpose"
        r"|transpose_kernel|transpose_nchw|copy_device_to_device|tensor_?reorder"
        r"|(?<![a-z])k?(de)?quantize(?!d|\w*(gemm|linear|matmul))"
        r"|^wrapped_(convert|copy|transpose|bitcast)([._]\d+)*$"
        r"|^(loop|input)_(copy|transpose)_fusion([._]\d+)*$"
    ),
    "memory": re.compile(
        r"splitkreduce|reducesplitk|split_k_kernel|reduce_wgrad|compute\w*offsets|gemm_pointers"
        r"|flip_filter|precompute_indices|scalepackedtensor|redzone|eigenmetakernel|_gpu_dt_"
        r"|(::|\d)bn_[fb]w|batch_?norm|layer_?norm|rms_?norm|group_?norm|instance_?norm|pooling"
        r"|softmax_|softmaxforward|softmaxbackward|miopensoftmax|(::|_)elementwise|elemwisernncell"
        r"|cublaslt::epilogue|gridwise_generic_reduce|cucompute(part)?grad"
        r"|epilogue::impl::globalkernel|op_generic_tensor|subtensorop|rocclr_fill"
        r"|split_embedding|fbgemm_gpu|embedding|index_?select|populate_rng|rowwisemoments"
        r"|dot_do_o|graddoto|bwd_?preprocess|split_?kv_?combine|fwd_?combine|merge_attn_states"
        r"|deformable_(im2col|col2im)|reshape_and_cache|memset"
    ),
    "matrix": re.compile(
        r"xmma|cutlass|nvjet|gemm(?!a(_|\d|$))|gemv|dot_kernel|cublas|convol|conv2d|conv3d|convnd|convfwd"
        r"|fprop|dgrad|wgrad|winograd|[fs]p3asmconv|naive_conv|grouped_conv|depthwise"
        r"|fft[12]d|_fft(_|<|$)|pointwise_mult_and_sum_complex|[shd](\d{3,5})?cudnn_|gcnasmconv"
        r"|cudnn_generated|blockpersist|^cijk_|^bmm_|^wvsplitk|matmul|marlin\w*::marlin"
        r"|fused_moe_kernel|fmha|flash_|flashatt|sdpa|attention|_attn_|attn_(fwd|bwd)|mha_(fwd|bwd|forward|backward)"
        r"|(prefill|decode)with\w*kvcache"
    ),
    "elementwise": re.compile(  # of libraries whose other kernels the rows above know
        r"at::native::|tensorflow::|cub::|thrust::"
        r"|transformer_engine::|rotary|fused_rope|act_and_mul|silu_|gelu|swiglu|dropout|nll_loss"
        r"|cross_?entropy|topk|radixsort|bitonic|upsample|interpolate|op(\dd)?tensor"
        r"|multi_tensor_apply|vectorized_elementwise|cunn_|reduce_kernel|miopen\w*(pool|activ)"
    ),
}


class Kernel(NamedTuple):
    """What a kernel multiplies in.

    Attributes:
        arithmetic: float16, bfloat16, tf32, float32, float64, float8, int8, unknown.
        tensor_cores: whether it ran on Tensor Cores; None where its name does not tell.
    """

    arithmetic: str
    tensor_cores: bool | None


UNKNOWN = Kernel("unknown", None)
TYPES = {"f16": "float16", "fp16": "float16", "bf16": "bfloat16", "tf32": "tf32"}
TYPES |= {"f32": "float32", "fp32": "float32", "f64": "float64"}
TYPES |= {"i8": "int8", "s8": "int8", "int8": "int8"}
TYPES |= {"e4m3": "float8", "e5m2": "float8", "e2m1": "float4", "bfloat16": "bfloat16"}
TYPES |= {"tfloat32_t": "tf32", "half_t": "float16", "bfloat16_t": "bfloat16"}
TYPES |= {"float_e4m3_t": "float8", "float_e5m2_t": "float8", "float_e2m1_t": "float4"}
TYPE = r"bf16|fp16|f16|tf32|f32|f64|i8|s8|int8|e4m3|e5m2"
LETTERS = {"h": "float16", "s": "float32", "d": "float64", "c": "float32", "z": "float64"}


def _xmma(match: re.Match) -> Kernel:
    """`gemm_f32f32_tf32f32_f32`: operands, types of products and sums, result.

    A first layer's has one type of sums instead: `first_layer_f16f16_f32_f16`.
    """
    arithmetic = TYPES[match["math"] if match["sums"] else match["operand"]]
    ordinary = arithmetic == "float32" or (arithmetic == "float64" and "tensor" not in match.string)
    return Kernel(arithmetic, not ordinary)


def _hmma(match: re.Match) -> Kernel:
    """`Ampere_hmma_fp32_traits`: sums in float32 of half products, where no other type is named."""
    return Kernel(TYPES.get(match["type"], "float16"), True)


def _collective(match: re.Match) -> Kernel:
    """A template of CUTLASS 3: the instruction's types, else the wider of the two operands'.

    Tensor Cores multiply operands of one type; the narrower is converted before.
    """
    if match["atom"]:
        return Kernel(TYPES[match["atom"]], True)
    text = match.string[match.end("of") :].partition("epilogue")[0]
    types = r"(?<![a-z])(tfloat32_t|bfloat16_t|half_t|float_(?:e4m3|e5m2|e2m1)_t)"
    operands = re.findall(types, text)[:2]
    return Kernel(_widest(operands), True)


def _widest(operands: Sequence[str]) -> str:
    """The arithmetic of operands that are converted to the widest of them."""
    width = ("tf32", "bfloat16", "float16", "float8", "float4")
    return min((TYPES[name] for name in operands), key=width.index, default="unknown")


def _block_scaled(match: re.Match) -> Kernel:
    """`bstensorop_..._ue4m3xf4_ue4m3xf4_f32`: the type of the scales, that of an operand."""
    return Kernel({"4": "float4", "8": "float8"}.get(match["bits"], "unknown"), True)


def _nvjet(match: re.Match) -> Kernel:
    """Tensor Cores always; `hsh` are half operands and result, `tst` bfloat16, `qq` 8 bits."""
    code = match["code"]
    if match["tf32"]:
        return Kernel("tf32", True)
    first = "float8" if code.startswith("qq") else {"h": "float16", "t": "bfloat16"}.get(code[0])
    return Kernel(first or "unknown", True)


def _tensorop(match: re.Match) -> Kernel:
    """The types in the name; m16n8k8 without a type multiplies in TF32 (float16 is named)."""
    named = re.findall(rf"(?<![a-z0-9])(?:{TYPE})(?![0-9])", match.string[match.start() :])
    named += [match["fast"]] if match["fast"] else []
    low = [TYPES[name] for name in named if TYPES[name] in (*LOW, "int8")]
    if low:
        return Kernel(low[0], True)
    if match["letter"] in "hd":
        return Kernel(LETTERS[match["letter"]], True)
    return Kernel("tf32" if match["shape"].startswith("1688") else "unknown", True)


def _sass(match: re.Match) -> Kernel:
    """Of cuBLAS and cuDNN: `ampere_bf16_s16816gemm_bf16`, `volta_sgemm`, `turing_h1688gemm`.

    The shape is that of a Tensor Core's instruction; without one the letter is the arithmetic, and
    a type before it only that of the data.
    """
    if not match["shape"]:
        return Kernel({**LETTERS, "i": "int8"}[match["letter"]], False)
    named = TYPES.get(match["type"] or "") or TYPES.get(match["result"] or "")
    usual = {"h": "float16", "s": "tf32", "d": "float64", "i": "int8"}
    if match["shape"] == "884" and match["letter"] == "s":  # of Volta, which has no TF32
        usual["s"] = "float16"
    return Kernel(named or usual.get(match["letter"], "unknown"), True)


def _by_letter(match: re.Match) -> Kernel:
    """Ordinary instructions, whose letter is that of BLAS."""
    return Kernel(LETTERS[match["letter"]], False)


def _by_argument(match: re.Match) -> Kernel:
    """A vector kernel: no Tensor Cores; the type is a template argument."""
    text = match.string
    for word, arithmetic in (("bfloat16", "bfloat16"), ("half", "float16"), ("float", "float32")):
        if word in text:
            return Kernel(arithmetic, False)
    return UNKNOWN


def _attention(match: re.Match) -> Kernel:
    """CuDNN's own say f16 of bfloat16 too; on AMD's GPUs there are no Tensor Cores to speak of."""
    if match["cudnn"]:
        return Kernel("unknown", True)
    tensor_cores = None if re.search(r"ck_tile|gfx\d|aiter", match.string) else True
    if "float_e4m3_t" in match.string:  # what comes out is wider, and named too
        return Kernel("float8", tensor_cores)
    if inputs := re.search(r"qkv?(e4m3|e5m2|e2m1|bfloat16|bf16|fp16|f16)", match.string):
        return Kernel(TYPES[inputs[1]], tensor_cores)
    half = "bfloat16" if re.search(r"bf16|bfloat16", match.string) else "float16"
    known = re.search(r"half|f16|bfloat16", match.string)
    return Kernel(half, tensor_cores) if known else UNKNOWN


def _bmm(match: re.Match) -> Kernel:
    """`bmm_Bfloat16_MxE2m1Bfloat16_Fp32`: result, operands, sums; the wider operand is multiplied.

    Where only one type is named, it is that of all; one that names none is somebody's own.
    """
    named = re.findall(r"e2m1|e4m3|e5m2|bfloat16|fp16", match["operands"] or match["result"])
    return Kernel(_widest(named), True) if named else UNKNOWN


def _efficient_attention(match: re.Match) -> Kernel:
    """`fmha_cutlassF_f32_aligned_..._sm80`; without Tensor Cores before the first that have them.

    From 8.0 on a float32 product is three of TF32: neither type's arithmetic.
    """
    arithmetic, capability = TYPES[match["type"]], int(match["capability"])
    if arithmetic == "float32" and capability >= 80:
        return Kernel("unknown", True)
    return Kernel(arithmetic, capability >= 70 and arithmetic != "float32")


def _float32(_: re.Match) -> Kernel:
    """Engines that multiply in float32 with ordinary instructions, whatever the data are in."""
    return Kernel("float32", False)


# The first rule whose pattern matches in the lower-cased name decides.
RULES: tuple[tuple[str, Callable[[re.Match], Kernel]], ...] = (
    (rf"xmma_.*?_(?P<operand>{TYPE})(?:{TYPE})_(?P<math>{TYPE})(?P<sums>{TYPE})?", _xmma),
    (r"nvjet_(?:sm\d+_)?(?P<code>[a-z]+)_(?P<tf32>tf32)?", _nvjet),
    (r"simt_(?P<letter>[shdcz])(?:gemm|fprop|dgrad|wgrad)", _by_letter),
    (r"bstensorop_\w*?_u?e\dm\dx(?:m?x?f(?P<bits>\d)|e\dm\d)", _block_scaled),
    (
        r"tensorop_(?:(?:bf16|f16|tf32|e4m3|e5m2)_)*(?P<letter>[shdi])(?P<shape>\d[\dx]*)"
        r"(?P<fast>bf16|f16|tf32)?(?:gemm|fprop|dgrad|wgrad|implicit_gemm|_conv3d)",
        _tensorop,
    ),
    (
        r"(?:volta|turing|ampere|hopper|maxwell|pascal)_(?:(?P<type>fp16|bf16|int8)_)?"
        r"(?P<letter>[shdicz])(?P<shape>\d{3,5})?(?:gemm|cudnn)(?:_(?P<result>fp16|bf16))?",
        _sass,
    ),
    (r"(?<![a-z])hmma(?:_(?P<type>bf16|tf32))?", _hmma),
    # A template of CUTLASS, whose operands are among its arguments.
    (
        r"cutlass.*?(?P<type>tfloat32_t|bfloat16_t|half_t).*mmatensorop",
        lambda match: Kernel(TYPES[match["type"]], True),
    ),
    (
        r"cutlass.*?(?P<of>collectivemma)(?:.*?sm90_\d+x\d+x\d+_[fs]\d+(?P<atom>bf16|tf32|f16|e4m3|e5m2"
        r"|s8))?",
        _collective,
    ),
    (
        r"^bmm_(?P<result>(?:mx)?[a-z0-9]+)(?:_(?P<operands>[a-z0-9]*(?:e2m1|e4m3|e5m2|bfloat16|fp16)"
        r"[a-z0-9]*))?",
        _bmm,
    ),
    (r"fmha_cutlass[fb]_(?P<type>f32|f16|bf16)_.*_sm(?P<capability>\d+)", _efficient_attention),
    (  # of MIOpen: igemm_fwd_gtcx3_nhwc_fp16_bx0
        r"igemm_(?:fwd|bwd|wrw)_gtcx?\d*_n[a-z]+_(?P<type>fp32|fp16|bf16)",
        lambda match: Kernel(TYPES[match["type"]], None),
    ),
    (r"(?P<cudnn>sdpa_sm\d+_flash)|flash_(?:fwd|bwd)|flashatt|fmha|attention", _attention),
    (r"(?<![a-z0-9])fp8_gemm", lambda _: Kernel("float8", True)),
    # Of AMD's Tensile: types of data, result and sums (ProblemType.__str__); of one letter, such as
    # SB, the second may say something else. Cijk_Ailk_Bljk_BBS_BH_...: bfloat16, summed in float32.
    (r"^cijk_[a-z]+_[a-z]+_b[bhs]s_", lambda _: Kernel("bfloat16", None)),
    (r"^cijk_[a-z]+_[a-z]+_h[bhs]s_", lambda _: Kernel("float16", None)),
    (r"gemv|dot_kernel|gemmsn_|gemmk1_|depthwise", _by_argument),
    (r"(?:convolve|magma)_(?P<letter>[shd])gemm", _by_letter),
    (r"convolve_common_engine_float|convolvend_\w*float_engine|gcgemm", _float32),
    (r"(?:vector|regular)_fft.*double", lambda _: Kernel("float64", False)),
    (r"winograd|fft[12]d|pointwise_mult_and_sum_complex|(?:vector|regular)_fft", _float32),
    (r"(?:dgrad|wgrad)\w*_engine\w*<|_engineif", _float32),
    (r"(?:conv|dgrad|wgrad)2d_grouped_direct|(?:dgrad|wgrad)2d_alg1", _by_argument),
    (r"(?<![a-z])(?P<letter>[sd])gemm", _by_letter),
    # Code made at run time: triton, gemm_fusion, cudnn_generated: its name does not tell.
)


@cache
def work(name: str) -> str:
    """What a kernel does, a key of `WORK`; empty where its name does not tell."""
    lowered = _bare(name)
    # Inductor names a kernel after all operations around it: triton_poi_fused_convolution_relu_3
    # adds a bias; what multiplies is called triton_tem.
    if match := re.match(r"triton_(?:(tem)|poi|red|per|mix|spl|for|fused)_", lowered):
        return "matrix" if match[1] else "memory"
    kind = next((kind for kind, pattern in WORK.items() if pattern.search(lowered)), "")
    return "memory" if kind == "elementwise" else kind


@cache
def kernel(name: str) -> Kernel:
    """The arithmetic of a kernel; unknown for one that multiplies nothing."""
    lowered = _bare(name)
    if work(name) not in ("matrix", ""):
        return UNKNOWN
    for pattern, rule in RULES:
        if match := re.search(pattern, lowered):
            return rule(match)
    return UNKNOWN


def _bare(name: str) -> str:
    """A name in lower case without what ROCm appends: `.kd`, ` [clone .kd]`."""
    return re.sub(r"( \[clone [.\w]+\]|\.kd)+$", "", name.lower())
