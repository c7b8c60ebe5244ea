"""The time breakdown: where a step's time went, by layer and by cause.

What an operation was for follows from the table of `traces.operations` by the rules below, whether
it is a record's profile or the trace of a training that mptexp did not run.
"""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from mptexp.diagnosis.causes import LABELS
from mptexp.traces import kernel_names
from mptexp.traces.operations import IN_LOOP, ON_HOST, PYTHON, TO_DEVICE, Trace

MATRIX = re.compile(
    r"conv(?!ert)|matmul|tensordot|dot_general|^dot|gemm(?!a)|einsum|cublas|cudnn(?!_batch_norm)"
    r"|^(addmm|mm|bmm|baddbmm|addbmm|addmv|mv|linear|bilinear|mkldnn_linear|_addmm_activation)$"
    r"|attention|_attn_|_rnn$|^(lstm|gru)$",
    re.IGNORECASE,
)
CASTS = re.compile(
    r"^(cast|convert|transpose|bitcast|reshape|copy|layout|memcpyd(2|to)d|.*nhwctonchw|.*nchwtonhwc)"
    r"|convert_element_type|tomkl|mkltotf|SpaceTo(Batch|Depth)|(Batch|Depth)ToSpace|^_foreach_copy_",
    re.IGNORECASE,
)
BETWEEN_DEVICES = re.compile(  # copies from one GPU to another, collective operations
    r"^MemcpyP(2|to)P$|^(Nccl|Collective)[A-Z]|^(c10d::|gloo:|nccl:)"
    r"|^(all-(reduce|gather|to-all)|reduce-scatter|collective-permute)(-start|-done)?([._]\d+)*$"
)
# Words in the names of memory-bound operations: BiasAddGrad, reduce_sum, loop_add_fusion. XLA names
# a fusion after the operations in it; one without such a word is unexplained, as is a copy that
# does not say from where to where.
_MEMORY_WORDS = """
    abs accumulate acos add addcdiv addcmul all and any arange arg argmax argmin asin assign
    atan avgpool bernoulli bias broadcast cat ceil clamp clip compare concat concatenate const
    constant convert copy copysign cos cosh count cumprod cumsum diag difference div divide
    dropout elu embedding eq equal erf erfc exp expand expm expm1 exponential fill finite flip
    floor foreach gather ge gelu greater gt hardswish hardtanh huber identity index interpolate
    iota isfinite isinf isnan isneginf isposinf l1 le leaky lerp less linspace log logical
    logistic lookup lrn lt masked max maximum maxpool mean memset min minimum mish mod
    mse mul multiply ne neg negate nll nonzero norm normal normalization normalize not one ones
    or pack pad partition patches philox pool pooling pow power prelu prod quantize random range
    read reciprocal reduce relu relu6 repeat resize reverse rint rng roll round rsqrt scalar scatter
    segment select selu shape sigmoid sign silu sin sinh slice softmax softplus softsign sort
    split sqrt square squared squeeze stack stateless stitch sub subtract sum swish take tan
    tanh threshold tile topk transpose tril triu unary unfold uniform unpack unsorted update
    upsample where window xdivy xlogy xor zero zeros
"""
MEMORY_WORDS = frozenset(_MEMORY_WORDS.split())
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Reductions to a truth value serve assertions; those of loss scaling are told apart before.
CHECKS = re.compile(
    r"^(Assert|CheckNumerics|DebugNumericSummary|Print|StringFormat|All|Any|Is(Nan|Inf|Finite))(V\d)?$"
    r"|^(Write)?(Scalar|Histogram|Image|Audio|Tensor|RawProto)?Summary(V\d)?$|debug_(callback|print)"
)
# Kinds of Keras's layers that change images before a model computes with them.
PREPROCESSING = re.compile(
    r"^(Random[A-Z]\w*|Rescaling|Resizing|CenterCrop|AugMix|AutoContrast|CutMix|Equalization|MixUp"
    r"|RandAugment|Solarization)$"
)
INPUT_OPERATIONS = re.compile(  # images, files, text
    r"^(ImageProjective|Adjust(Contrast|Hue|Saturation)|RGBToHSV|HSVToRGB|ReadFile|(De|En)code[A-Z]|Parse[A-Z]"
    r"|String|AsString|StaticRegex|Regex|Unicode|LookupTable|Bucketize|Substr|ReduceJoin|DrawBoundingBoxes"
    r"|ScaleAndTranslate|ExtractGlimpse|AudioSpectrogram|Mfcc)"
)
RESIZE = re.compile(r"^Resize[A-Z]")
UPSAMPLING = re.compile(r"^UpSampling")  # layers of models that resize what they compute with
UPSAMPLES = re.compile(r"(^|[/_])up_?sampl", re.IGNORECASE)  # the same by their names
RANDOM = re.compile(
    r"^(Stateful|Stateless)?(Random|Standard|Uniform(?!Quant|Deq|Req)|Shuffle$|TruncatedNormal|ParameterizedTruncated|Multinomial)"
    r"|CandidateSampler$|^_?(fused|native)_dropout$"
    r"|^(bernoulli|normal|uniform|randn?|randint|randperm|randn?_like|randint_like)_?$|threefry|rng_bit|random_bits"
)
# What TensorFlow has kernels for in 32 and 64 bits alone (the registry of 2.21).
KERNELS_IN_32_BITS = (
    r"^(FakeQuantWithMinMax\w+|QuantizeAndDequantize\w*|Fractional(Avg|Max)Pool(Grad)?|Betainc|Dawsn"
    r"|Erfinv|Expint|Fresnel(Cos|Sin)|Igamma(c|GradA)?|Ndtri|NextAfter|Polygamma|Spence|Zeta)$"
)
# Frameworks compute them in 32 bits: they cast, work with indices, or have no other kernels.
NO_16_BITS = re.compile(
    r"^((Batch)?(Svd|Qr|Cholesky\w*|Lu|LU|Eig|SelfAdjointEig\w*|Matrix(Inverse|Solve\w*"
    r"|TriangularSolve|Determinant|SquareRoot|Exponential|Logarithm)|LogMatrixDeterminant))(V\d)?$"
    r"|^(Batch)?I?R?FFT([123]D|ND)?$|^(Real|Imag|Complex|ComplexAbs|Conj|Angle)$"
    r"|^((Approx|In)?TopK|Unique\w*|(Combined)?NonMaxSuppression\w*|CTCLoss|CTC\w+Decoder|NthElement)(V\d)?$"
    r"|^((Batch)?TridiagonalSolve|BandedTriangularSolve|SparseMatrixSparseCholesky|LowerBound|UpperBound"
    r"|\w*Bincount|HistogramFixedWidth|ListDiff)$"
    rf"|{KERNELS_IN_32_BITS}"
    r"|^(sort|argsort|topk|top_k|unique\w*|msort|fft|_fft_\w+|fft_\w+|_?linalg_(?!\w*norm|matmul|vecdot|cross|diagonal)\w+"
    r"|cholesky\w*|triangular_solve|lu|qr|svd|eigh?|inverse|_ctc_loss)$"
)
# In the names of kernels that compute them in 16 bits after all: PyTorch's sorts, cuFFT.
IN_16_BITS = re.compile(r"\b(c10|at|Eigen)::(Half|half|BFloat16|bfloat16)\b|\b__(half|nv_bfloat16)")
TO_HOST = re.compile(r"^MemcpyD(2|to)[HM]$|^CopyDeviceToHost$|\(D2[HM]\)", re.IGNORECASE)
# Of the elementwise work of a layer: from here all of it is there for the one thing; its casts are
# from here of the two alone.
MAINLY = 0.5
# Of a traced step: from the first on noise may be a wait for input, from the second on it is one.
SOME_INPUT, MUCH_INPUT = 0.10, 0.25
SERVED = ["python", "checks", "preprocessing", "loop", "random", "no 16 bits"]
SERVING = ["memory", "casts"]
COLUMNS = ["cause", "layer", "part", "op", "kernel", "seconds", "share", "count"]


@lru_cache(2**16)  # a report asks of the same operations over and over
def cause(state: str, part: str, op: str, kernel: str, kind: str = "") -> str:
    """The category of `causes` that a row of a record's profile belongs to.

    Args:
        state, part, op, kernel: of the row, see `Operation`.
        kind: the class of its layer, such as RandomRotation.

    Returns:
        Its name; unexplained where no rule knows.
    """
    if state != "op":
        return state
    by_kernel = kernel_names.work(kernel)
    # Gradients are reduced within the optimizer's scope, metrics within the loss's.
    if by_kernel == "communication" or BETWEEN_DEVICES.match(op):
        return "communication"
    if TO_DEVICE.search(op):
        return "loads"
    by_design = (PYTHON, CHECKS, INPUT_OPERATIONS)  # on the host, whatever the device
    if kernel == ON_HOST and not any(kind.search(op) for kind in by_design):
        return "on the host"
    if part in ("optimizer", "loss scaling"):
        return part
    if PYTHON.search(op):
        return "python"
    if CHECKS.search(op):
        return "checks"
    # What has a gradient is a layer: nothing before the model's first weights has one.
    prepares = INPUT_OPERATIONS.search(op) or (RESIZE.search(op) and part != "backward")
    if PREPROCESSING.search(kind) or (prepares and not UPSAMPLING.search(kind)):
        return "preprocessing"
    if part == "loop" or IN_LOOP.search(op):
        return "loop"
    if part in ("loss", "updates"):
        return part
    if TO_HOST.search(op):
        return "copies"
    if RANDOM.search(op):
        return "random"
    if NO_16_BITS.search(op):
        return "memory" if _in_16_bits(op, kernel) else "no 16 bits"
    if multiplies(op, kernel):
        return "matrix"
    if CASTS.search(op):
        return "casts"
    if by_kernel:
        return by_kernel
    words = {word.lower() for word in WORDS.findall(op)}
    return "memory" if words & MEMORY_WORDS else "unexplained"


def multiplies(op: str, kernel: str) -> bool:
    """Whether an operation is matrix work, whatever it is for: losses and optimizers multiply too.

    A kernel's own name goes before the operation that it was launched for.
    """
    if _in_16_bits(op, kernel):
        return False
    by_kernel = kernel_names.work(kernel)
    by_op = not by_kernel and MATRIX.search(op) and not CASTS.search(op)
    return by_kernel == "matrix" or bool(by_op)


def _in_16_bits(op: str, kernel: str) -> bool:
    """Whether a kernel computes in 16 bits what else is computed in 32: a sort, an FFT."""
    return bool(IN_16_BITS.search(kernel) and NO_16_BITS.search(op))


def rows(record: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of a record's profile with their cause, as seconds of a timed step.

    The rows sum to the run's median step, see `_as_timed`.

    Returns:
        Columns: cause, layer, part, op, kernel, seconds, share (of the step), count; empty where
        the record has no profile.
    """
    profile = record.get("profile") or {}
    if profile.get("missing", "not traced"):
        return pd.DataFrame(columns=COLUMNS)
    table, step_s = pd.DataFrame(profile["rows"]), record["timing"]["step_s"]
    table["seconds"] = _as_timed(table, profile, step_s)
    kinds = {layer["layer"]: layer.get("kind", "") for layer in record["work"]["layers"]}
    return _with_causes(table, step_s, kinds)


def stretched(record: Mapping[str, Any]) -> float:
    """What the operations of a record's traced step took, over its step as it was timed; else 0."""
    profile = record.get("profile") or {}
    if profile.get("missing", "not traced") or not record["timing"].get("step_s"):
        return 0.0
    worked_s = sum(row["seconds"] for row in profile["rows"] if row["state"] == "op")
    return float(worked_s / record["timing"]["step_s"])


def groups(record: Mapping[str, Any]) -> int:
    """In how many groups of consecutive steps a record's profile has its rows; 0 without them."""
    profile = record.get("profile") or {}
    return min((len(row.get("groups", ())) for row in profile.get("rows", ())), default=0)


def without_group(record: Mapping[str, Any], group: int) -> dict[str, Any]:
    """The record as if a group of steps had not been traced."""
    kept = [
        row | {"seconds": statistics.fmean(s for n, s in enumerate(row["groups"]) if n != group)}
        for row in record["profile"]["rows"]
    ]
    step_s = sum(row["seconds"] for row in kept)
    return {**record, "profile": {**record["profile"], "rows": kept, "step_s": step_s}}


def of_trace(trace: Trace) -> pd.DataFrame:
    """The same columns of a trace by itself; the rows sum to its mean step.

    Not to the median one: a wait in one step of four is no part of it, and squeezing the mean into
    it shortens work that took as long in every step.
    """
    table = pd.DataFrame([row._asdict() for row in trace.operations])
    return _with_causes(table, trace.step_s, {})


def _with_causes(table: pd.DataFrame, step_s: float, kinds: Mapping[str, str]) -> pd.DataFrame:
    """The rows of a table of operations with their cause and their share of a step."""
    columns = ("state", "part", "op", "kernel", "layer")
    grown = (n for n in _upsampling(table) if not PREPROCESSING.search(kinds.get(n, "")))
    kinds = {**kinds, **dict.fromkeys(grown, "UpSampling")}
    table["cause"] = [
        cause(*key, kinds.get(layer, ""))
        for *key, layer in zip(*(table[name] for name in columns), strict=True)
    ]
    serving = _serving(table)
    table["cause"] = [
        serving.get((layer, name), name)
        for layer, name in zip(table.layer, table.cause, strict=True)
    ]
    table["share"] = table.seconds / step_s
    return table[COLUMNS]


def _upsampling(table: pd.DataFrame) -> set[str]:
    """The layers that resize what a model computes with: by their names, or as they have gradients.

    Without them the kind of a layer is unknown in the trace of a training that mptexp did not run.
    """
    resizes = table[[bool(RESIZE.search(op)) for op in table.op]]
    known = zip(resizes.layer, resizes.part, strict=True)
    grown = {layer for layer, part in known if part == "backward" or UPSAMPLES.search(layer)}
    return grown - {""}


def _serving(table: pd.DataFrame) -> dict[tuple[str, str], str]:
    """By layer and cause the work that serves an operation which precision does not shrink.

    Such as the casts around an FFT: without it, they would go too. Elementwise work may be there
    for something else as well, and counts only if it is less than the operation.
    """
    seconds: dict[str, Counter[str]] = defaultdict(Counter)
    for layer, name, took in zip(table.layer, table.cause, table.seconds, strict=True):
        if layer and name in (*SERVED, *SERVING):
            seconds[layer][name] += took
    made = {}
    for layer, of in seconds.items():
        name = max(SERVED, key=lambda name: of[name])
        if of[name] > MAINLY * (of[name] + of["casts"]):
            made[layer, "casts"] = name
        if of[name] > MAINLY * of.total():
            made[layer, "memory"] = name
    return made


def _as_timed(table: pd.DataFrame, profile: Mapping[str, Any], step_s: float) -> pd.Series:
    """Seconds of the rows in a timed step, which is another one than the traced step.

    Tracing makes a GPU's host launch kernels more slowly and leaves the kernels as they are: there
    the waits take up the difference, and are none where the kernels fill the timed step. On a CPU
    all rows are scaled alike; but where a traced step that waits for input is the shorter one, it
    had batches that were read while the trace was started, and the timed step waited for longer.
    """
    alike = table.seconds * (step_s / profile["step_s"])
    if profile["device"] == "gpu":
        return _waiting(table, table.state != "op", step_s, alike)
    fed = table.state == "input"
    behind = table.seconds[fed].sum() / profile["step_s"]
    part = np.clip((behind - SOME_INPUT) / (MUCH_INPUT - SOME_INPUT), 0, 1)
    if step_s <= profile["step_s"] or not part:
        return alike
    # By degrees: two policies, or groups of one's steps, may lie on either side of any limit.
    return part * _waiting(table, fed, step_s, alike) + (1 - part) * alike


def _waiting(table: pd.DataFrame, waits: pd.Series, step_s: float, alike: pd.Series) -> pd.Series:
    """Seconds in a step where waits take up the difference; all alike where there are none."""
    busy, waiting = table.seconds[~waits].sum(), table.seconds[waits].sum()
    if not waiting:
        return alike
    if busy >= step_s:
        return table.seconds.where(~waits, 0.0) * (step_s / busy)
    return table.seconds.where(~waits, table.seconds * ((step_s - busy) / waiting))


def by_cause(record: Mapping[str, Any]) -> pd.Series:
    """Seconds of a step by cause, every category of the breakdown; empty without a profile."""
    return by_cause_of(rows(record))


def by_cause_of(table: pd.DataFrame) -> pd.Series:
    """Seconds of a step by cause, of what `rows` or `of_trace` gives."""
    if table.empty:
        return pd.Series(dtype=float)
    return table.groupby("cause").seconds.sum().reindex(list(LABELS), fill_value=0.0)


def by_layer(record: Mapping[str, Any]) -> pd.DataFrame:
    """Seconds of a step by layer (index) and cause (columns), what no layer owns last."""
    table = rows(record)
    named = table.assign(layer=table.layer.where(table.layer != "", table.part))
    named["layer"] = named.layer.where(named.layer != "", "(no operation)")
    wide = named.pivot_table(
        index="layer", columns="cause", values="seconds", aggfunc="sum", fill_value=0.0, sort=False
    )
    order = [layer["layer"] for layer in record["work"]["layers"] if layer["layer"] in wide.index]
    rest = [name for name in wide.index if name not in order]
    return wide.reindex(index=order + rest, columns=[name for name in LABELS if name in wide])


def joined(baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    """Two breakdowns, of `rows` or `of_trace`, joined on layer, part and cause, never on kernels.

    Returns:
        Columns: layer, part, cause, baseline_s, candidate_s, difference_s (candidate minus
        baseline: above 0 is slower); the largest difference first.
    """
    sides = {"baseline_s": baseline, "candidate_s": candidate}
    keys = ["layer", "part", "cause"]
    sums = {name: table.groupby(keys).seconds.sum() for name, table in sides.items()}
    both = pd.DataFrame(sums).fillna(0.0).reset_index()
    both["difference_s"] = both.candidate_s - both.baseline_s
    return both.sort_values("difference_s", key=abs, ascending=False, ignore_index=True)
