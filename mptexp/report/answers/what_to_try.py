"""What to try against a cause in a recorded step, in the words of its framework."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from mptexp.diagnosis import ablations
from mptexp.diagnosis.cause_times import LEAST_SHARE
from mptexp.diagnosis.causes import CAUSES
from mptexp.diagnosis.foreign_traces import FEWER_BITS, MOST, SENT_IN_16_BITS, Recording
from mptexp.traces import kernel_names
from mptexp.traces.operations import CAPABILITY, Trace

# What to try in the frameworks' own words; where none stands here, the cause's row has it.
TRY: dict[tuple[str, str], Sequence[str]] = {
    ("input", "PyTorch"): ["more workers of the DataLoader", "pin_memory with non_blocking copies",
                           "prefetch_factor", "decoding on the GPU"],
    ("input", "TensorFlow"): ["tf.data: map with num_parallel_calls", "cache", "prefetch(AUTOTUNE)",
                              "batches as uint8 that are cast on the device"],
    ("input", "JAX"): ["prepare and copy the next batch while a step runs (grain, jax.device_put "
                       "ahead)", "batches as uint8 that are cast on the device"],
    ("host", "PyTorch"): ["a larger batch", "torch.compile or CUDA graphs",
                          "fused optimizers (fused=True)"],
    ("host", "TensorFlow"): ["a larger batch", "steps_per_execution", "jit_compile=True"],
    ("host", "JAX"): ["a larger batch", "several steps in one jit (lax.scan)",
                      "fewer waits for results"],
    ("on the host", "PyTorch"): [
        "parameters and the optimizer's state on the GPU, where they fit",
        "an optimizer that is made for the CPU, beside other work", "a version of the operation "
        "for GPUs"],
    ("idle", "PyTorch"): ["fewer .item(), .cpu() and print of losses: each waits for the GPU"],
    ("memory", "PyTorch"): ["torch.compile, which fuses it", "channels_last",
                            "fused normalizations"],
    ("casts", "PyTorch"): ["channels_last throughout", "a model in bfloat16 rather than autocast"],
    ("allocation", "PyTorch"): [
        "a trace of later steps (the first ones allocate)", "one shape of all batches",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "less memory (a smaller batch, "
        "activation checkpointing)"],
    ("idle", "TensorFlow"): ["a larger batch", "steps_per_execution",
                             "fewer metrics and callbacks"],
    ("memory", "TensorFlow"): ["jit_compile=True, which fuses it",
                               "fewer or cheaper normalizations"],
    ("idle", "JAX"): ["a larger batch", "fewer waits for results"],
    ("memory", "JAX"): ["jit over the whole step", "fewer or cheaper normalizations"],
}  # fmt: skip
# Where nothing stands above, what a cause's row has, but for what is said in mptexp's own keys.
PLAIN = (None, ablations.BATCH, ablations.NO_NORMALIZATION)


class Done(NamedTuple):
    """How a trace shows that something is done already.

    Attributes:
        shows: finds it in the name of an operation or a kernel.
        concerns: the cause whose work it would be done to.
        least: of that work's time, so much shows it where it is done.
        works: what kernels that show it do, of `kernel_names.WORK`.
        tells: is in the name of a kernel of that work from which it could be seen.
    """

    shows: re.Pattern
    concerns: str
    least: float
    works: Sequence[str] = ()
    tells: re.Pattern = re.compile("")


# In the names of collectives that tell their type, which those that only copy do not.
OF_FLOATS = re.compile("_(bf16|f16|f32|f64|half|bfloat16|float|double)", re.IGNORECASE)
# A compiler leaves much of memory-bound work to libraries; but one compiled metric is no step.
COMPILED = 0.05
# Of communication: from here what other work hides shows that it is sent in the backward pass.
OVERLAPS = 0.25
DONE = {
    "torch.compile": Done(
        re.compile("^triton_|^CompiledFunction|CompiledFxGraph"), "memory", COMPILED
    ),
    "fused=True": Done(
        re.compile("^_fused_(adamw?|sgd|adagrad)_"), "optimizer", MOST, ["optimizer"]
    ),
    "gradients in 16 bits": Done(SENT_IN_16_BITS, "communication", MOST, tells=OF_FLOATS),
    "jit_compile": Done(re.compile(r"fusion([._]\d+)*$"), "memory", COMPILED),
}
# Collectives that add no gradients up: between the stages of a pipeline, between experts.
SENT_TO_ONE = re.compile("send_?recv|all_?-?to_?-?all|deep_ep", re.IGNORECASE)
TO_ONE = ["a larger batch per device", "what is sent in 16 bits, unless it is in them already",
          "other work while it is sent"]  # fmt: skip
# Of what to try: what only a training has, what only a GPU has, what only images with channels
# have, and a type that GPUs before Ampere only emulate.
OF_TRAINING = re.compile("optimizer|gradient|backward|one update")
OF_GPU = ["CUDA", "GPU", "pin_memory"]
OF_CHANNELS, LARGER_BATCH = "channels_last", "a larger batch"
CHANNELS = re.compile(
    r"conv(?!ert)|fprop|dgrad|wgrad|winograd|im2col|col2im|nchw|nhwc|[shd]\d*cudnn_", re.IGNORECASE
)
# In the names of kernels and of changes of layout where images lie channels last already, or not.
CHANNELS_LAST = re.compile(r"nhwc|channels_last", re.IGNORECASE)
CHANGES_LAYOUT = re.compile(r"nchw_?to_?nhwc|nhwc_?to_?nchw", re.IGNORECASE)
SINCE_AMPERE = re.compile("bfloat16")
TF32 = " (or TF32, on NVIDIA GPUs from Ampere on)"
AMPERE, VOLTA = (8, 0), (7, 0)
# By its name, where a trace does not tell a GPU's compute capability.
BEFORE_AMPERE = re.compile(r"\b(V100|P100|P40?|T4|K80|M60|TITAN|GTX|RTX 20\d\d|Quadro RTX)\b")
# Before Tensor Cores only these multiply faster in 16 bits.
TWICE_IN_16_BITS = ((5, 3), (6, 0), (6, 2))
NO_FASTER = "a smaller or sparser model: this GPU multiplies no faster in 16 bits"
LITTLE = 0.1
# Of PyTorch, against what is no wait for a loader.
COPIED = ["batches as uint8 that are cast on the GPU", "the copy of the next batch on another "
          "stream while a step runs"]  # fmt: skip
OFTEN = 4  # times a step: a host that awaits its device so often has to begin anew each time
IN_16_BITS, IN_64_BITS = FEWER_BITS["float16"], FEWER_BITS["float64"]
MATRIX = {  # by what most of it is in, of `FEWER_BITS` up to 16 bits; None where unavailable
    None: f"16 bits{TF32}, unless it is in them already (its type is unavailable); a smaller or "
    "sparser model",
    IN_64_BITS: "float32, where its digits suffice; then fewer bits; a smaller or sparser model",
    FEWER_BITS["float32"]: f"16 bits{TF32}; a smaller or sparser model",
    FEWER_BITS["tf32"]: "16 bits in place of TF32; a smaller or sparser model",
    IN_16_BITS: "it is in few bits already: larger matrices (batch, widths that are multiples of "
    "8), a smaller or sparser model",
}


def advice(cause: str, recording: Recording) -> str:
    """What can be tried against a cause and is not done already; a dash where there is nothing."""
    if cause == "matrix":
        return _against_matrix_work(recording)
    plain = {row.name: [r.text for r in row.remedies if r.ablation in PLAIN] for row in CAUSES}
    own = TRY.get((cause, recording.trace.framework), [])
    if cause == "input" and own and _is_copied(recording):
        own = COPIED
    if cause == "host" and recording.trace.awaited >= OFTEN:
        own = [*TRY.get(("idle", recording.trace.framework), []), *own]
    if cause == "communication" and _sent_to_one(recording.rows):
        own = TO_ONE
    texts = _of_use(own, recording) or _of_use(plain.get(cause, []), recording)
    return ("; " if any("," in text for text in texts) else ", ").join(texts) or "–"


def _against_matrix_work(recording: Recording) -> str:
    trace, precision = recording.trace, recording.precision
    bits = None if precision is None else min(precision, IN_16_BITS)
    if bits not in (IN_16_BITS, IN_64_BITS) and _no_faster_in_16_bits(trace):
        return NO_FASTER
    lacks_tf32 = _before_ampere(trace) or trace.device == "cpu"
    text = MATRIX[bits].replace(TF32, "") if lacks_tf32 else MATRIX[bits]
    if lacks_tf32 and trace.device != "cpu":  # of 16 bits their Tensor Cores have float16 alone
        text = text.replace("16 bits", "float16")
    return text.replace("batch, ", "") if LARGER_BATCH in _useless(recording) else text


def _of_use(remedies: Sequence[str], recording: Recording) -> list[str]:
    """What of it, or what alternatives in it, can be done here and is not done already."""
    useless = _useless(recording)
    left = [_without(text, useless) for text in remedies]
    return [text for text in left if text and _applies(text, recording.trace)]


def _is_copied(recording: Recording) -> bool:
    """Whether next to all of the wait for input is copies to the device: nobody awaits a batch."""
    trace = recording.trace
    input_s = recording.share("input") * trace.step_s
    return trace.framework == "PyTorch" and trace.loaded_s < LITTLE * input_s


def _sent_to_one(rows: pd.DataFrame) -> bool:
    """Whether most communication is between two devices each, by its time."""
    sent = rows[rows.cause == "communication"]
    to_one = _named(sent, SENT_TO_ONE)
    return bool(sent.seconds[to_one].sum() > MOST * sent.seconds.sum())


def _useless(recording: Recording) -> list[str]:
    """Words of what is of no use: done already, not there, or in need of memory that is full."""
    rows, trace = recording.rows, recording.trace
    useless = [word for word, done in DONE.items() if _is_done(done, rows)]
    useless += OF_GPU if trace.device == "cpu" else []
    useless += trace.in_use
    if not _named(rows, CHANNELS).any() or _has_channels_last(rows):
        useless.append(OF_CHANNELS)
    useless += ["CUDA graphs"] * trace.graphed
    useless += ["torch.compile"] * (() < _capability(trace) < VOLTA)  # Triton has no code for it
    shown_s = recording.share("communication") * trace.step_s
    beside = trace.hidden_s > OVERLAPS * (trace.hidden_s + shown_s)
    useless += ["communication during"] * beside
    return useless + [LARGER_BATCH] * (recording.share("allocation") >= LEAST_SHARE)


def _has_channels_last(rows: pd.DataFrame) -> bool:
    """Whether convolutions, where their names tell, take images channels last as they lie."""
    told = rows[(rows.cause == "matrix") & _named(rows, CHANNELS)]
    last = told.seconds[_named(told, CHANNELS_LAST)].sum()
    return bool(last > MOST * told.seconds.sum()) and not _named(rows, CHANGES_LAYOUT).any()


def _is_done(done: Done, rows: pd.DataFrame) -> bool:
    """Whether enough of the work that something could be done to shows it, by time."""
    shows = _named(rows, done.shows) | rows.kernel.map(kernel_names.work).isin(done.works)
    concerned = shows | ((rows.cause == done.concerns) & _named(rows, done.tells))
    return bool(rows.seconds[shows].sum() > done.least * rows.seconds[concerned].sum())


def _named(rows: pd.DataFrame, pattern: re.Pattern) -> pd.Series:
    """Which rows have an operation or a kernel in whose name a pattern is."""
    either = zip(rows.op, rows.kernel, strict=True)
    found = [bool(pattern.search(op) or pattern.search(kernel)) for op, kernel in either]
    return pd.Series(found, rows.index, bool)


def _without(remedy: str, useless: Sequence[str]) -> str:
    """What is left of what could be tried, as alternatives."""
    parts = [part for part in remedy.split(" or ") if not any(word in part for word in useless)]
    return " or ".join(parts)


def _applies(remedy: str, trace: Trace) -> bool:
    """Whether what could be tried exists in this work and on this GPU."""
    if trace.trains is False and OF_TRAINING.search(remedy):
        return False
    return not (SINCE_AMPERE.search(remedy) and _before_ampere(trace))


def _before_ampere(trace: Trace) -> bool:
    """Whether a GPU is older than Ampere, by its compute capability, else by its name."""
    capability = _capability(trace)
    return capability < AMPERE if capability else bool(BEFORE_AMPERE.search(trace.gpu))


def _no_faster_in_16_bits(trace: Trace) -> bool:
    """Whether a GPU is known to multiply no faster in 16 bits."""
    capability = _capability(trace)
    return bool(capability) and capability < VOLTA and capability not in TWICE_IN_16_BITS


def _capability(trace: Trace) -> tuple[int, ...]:
    """A GPU's compute capability; empty where the trace does not tell it."""
    return tuple(int(part) for part in trace.recorded.get(CAPABILITY, "").split(".") if part)
