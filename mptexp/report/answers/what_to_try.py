"""What to try against a cause in a recorded step, in the words of its framework."""

import re
from collections.abc import Sequence

from mptexp.diagnosis import ablations
from mptexp.diagnosis.cause_times import LEAST_SHARE
from mptexp.diagnosis.causes import CAUSES
from mptexp.diagnosis.foreign_traces import FEWER_BITS, SENT_IN_16_BITS, Recording
from mptexp.traces.operations import Trace

# What to try in the frameworks' own words; where none stands here, the cause's row has it.
TRY: dict[tuple[str, str], Sequence[str]] = {
    ("input", "PyTorch"): ["more workers of the DataLoader", "pin_memory with non_blocking copies",
                           "prefetch_factor", "persistent_workers", "decoding on the GPU"],
    ("input", "TensorFlow"): ["tf.data: map with num_parallel_calls", "cache", "prefetch(AUTOTUNE)",
                              "batches as uint8 that are cast on the device"],
    ("input", "JAX"): ["prepare and copy the next batch while a step runs (grain, jax.device_put "
                       "ahead)", "batches as uint8 that are cast on the device"],
    ("host", "PyTorch"): ["a larger batch", "torch.compile or CUDA graphs",
                          "fused optimizers (fused=True)", "zero_grad(set_to_none=True)"],
    ("host", "TensorFlow"): ["a larger batch", "steps_per_execution", "jit_compile=True"],
    ("host", "JAX"): ["a larger batch", "several steps in one jit (lax.scan)",
                      "fewer waits for results"],
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
    ("memory", "JAX"): ["jit over the whole step", "fewer or cheaper normalizations"],
}  # fmt: skip
# Where nothing stands above, what a cause's row has, but for what is said in mptexp's own keys.
PLAIN = (None, ablations.BATCH, ablations.NO_NORMALIZATION)
# Of what to try: what a trace shows to be done already, by an operation or a kernel.
DONE = {
    "torch.compile": re.compile("^triton_|^CompiledFunction|CompiledFxGraph"),
    "fused=True": re.compile("^_fused_(adamw?|sgd|adagrad)_"),
    "gradients in 16 bits": SENT_IN_16_BITS,
    "jit_compile": re.compile(r"fusion([._]\d+)*$"),
}
# Of what to try: what only a training has, and a type that GPUs before Ampere only emulate.
OF_TRAINING = re.compile("optimizer|zero_grad|gradient|backward|one update")
SINCE_AMPERE = re.compile("bfloat16")
TF32 = " (or TF32, on NVIDIA GPUs from Ampere on)"
BEFORE_AMPERE = re.compile(r"\b(V100|P100|P40?|T4|K80|M60|TITAN|GTX|RTX 20\d\d|Quadro RTX)\b")
IN_16_BITS = FEWER_BITS["float16"]
MATRIX = {  # by what most of it is in, of `FEWER_BITS` up to 16 bits; None where unavailable
    None: f"16 bits{TF32}, unless it is in them already (its type is unavailable); a smaller or "
    "sparser model",
    FEWER_BITS["float32"]: f"16 bits{TF32}; a smaller or sparser model",
    FEWER_BITS["tf32"]: "16 bits in place of TF32; a smaller or sparser model",
    IN_16_BITS: "it is in few bits already: larger matrices (batch, widths that are multiples of "
    "8), a smaller or sparser model",
}


def advice(cause: str, recording: Recording) -> str:
    """What can be tried against a cause and is not done already; a dash where there is nothing."""
    trace, precision = recording.trace, recording.precision
    if cause == "matrix":
        lacks_tf32 = bool(BEFORE_AMPERE.search(trace.gpu)) or trace.device == "cpu"
        text = MATRIX[None if precision is None else min(precision, IN_16_BITS)]
        return text.replace(TF32, "") if lacks_tf32 else text
    plain = {row.name: [r.text for r in row.remedies if r.ablation in PLAIN] for row in CAUSES}
    texts = TRY.get((cause, trace.framework)) or plain.get(cause, [])
    useless = _useless(recording)
    texts = [_without(text, useless) for text in texts if _applies(text, trace)]
    texts = [text for text in texts if text]
    return ("; " if any("," in text for text in texts) else ", ").join(texts) or "–"


def _useless(recording: Recording) -> list[str]:
    """Words of what is of no use: it is done already, or needs memory that there is not."""
    names = {*recording.rows.op, *recording.rows.kernel}
    useless = [word for word, shows in DONE.items() if any(map(shows.search, names))]
    useless += ["CUDA graphs"] * recording.trace.graphed
    return useless + ["a larger batch"] * (recording.share("allocation") >= LEAST_SHARE)


def _without(remedy: str, useless: Sequence[str]) -> str:
    """What is left of what could be tried, as alternatives."""
    parts = [part for part in remedy.split(" or ") if not any(word in part for word in useless)]
    return " or ".join(parts)


def _applies(remedy: str, trace: Trace) -> bool:
    """Whether what could be tried exists in this work and on this GPU."""
    if trace.trains is False and OF_TRAINING.search(remedy):
        return False
    return not (SINCE_AMPERE.search(remedy) and BEFORE_AMPERE.search(trace.gpu))
