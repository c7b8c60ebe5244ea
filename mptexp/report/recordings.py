"""What explains a training that mptexp did not run: sentences, tables and a page from its trace."""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from great_tables import GT

from mptexp.diagnosis import ablations
from mptexp.diagnosis.causes import CAUSES, LABELS, LEAST_SHARE
from mptexp.diagnosis.recording import (
    BOUNDS,
    FEWER_BITS,
    SENT_IN_16_BITS,
    Comparison,
    Recording,
)
from mptexp.report.figures import diagnosis as figures
from mptexp.report.figures import output, style
from mptexp.report.pages import lead, rendering
from mptexp.report.tables import text_tables
from mptexp.report.tables.why_tables import by_cause, milliseconds, percent
from mptexp.report.text import markdown, wording
from mptexp.report.text.columns import BLANK, without_blanks
from mptexp.spec.terminal import visible
from mptexp.traces.operations import Trace
from mptexp.traces.steps import WHOLE

MOST_LAYERS = 20
MOST_ROWS = 15  # of differences between two recordings
LEAST_SHOWN = 0.0005  # of the step
TENSOR_CORES = {True: "on Tensor Cores", False: "without Tensor Cores", None: "unknown"}
# The sentence that says what bounds a step, about its share.
BOUND = {
    "input": "Waiting for input bounds {work}: {share} of {step}",
    "host": "The host bounds {work}: for {share} of {step} the device has no work",
    "allocation": "Allocating and freeing memory bounds {work}: {share} of {step}",
    "another GPU": "Waiting for other GPUs bounds {work}: for {share} of {step} another one works "
    "and this one has nothing to do",
    "loop": "Loops bound {work}: {share} of {step}",
    "on the host": "Operations on the CPU bound {work}: {share} of {step}",
    "communication": "Communication between devices bounds {work}: {share} of {step}",
    "matrix": "Matrix work bounds {work}: {share} of {step}",
    "memory": "Memory-bound work bounds {work}: {share} of {step}",
    "casts": "Casts and layout changes bound {work}: {share} of {step}",
    "optimizer": "The optimizer bounds {work}: {share} of {step}",
    "loss scaling": "Loss scaling bounds {work}: {share} of {step}",
    "loss": "The loss, metrics and regularizers bound {work}: {share} of {step}",
    "updates": "Clipping of gradients or averages of weights bound {work}: {share} of {step}",
    "loads": "Copies to the GPU within layers and the optimizer bound {work}: {share} of {step}",
    "copies": "Copies from the GPU to the host bound {work}: {share} of {step}",
    "checks": "Checks of numbers bound {work}: {share} of {step}",
    "preprocessing": "Preprocessing beside the model bounds {work}: {share} of {step}",
    "random": "Random numbers bound {work}: {share} of {step}",
    "no 16 bits": "Operations that no device has in 16 bits bound {work}: {share} of {step}",
    "unexplained": "What bounds {work} is unexplained: {share} of {step}",
}
WORK = {True: "this training", False: "this inference", None: "this recording"}
UNTIMED = "This recording has hardware counters instead of times: no share of time can be given"
CUT_SHORT = (
    "This recording ends within its first step: of a training it holds next to no matrix work and "
    "no backward pass, so nothing is said of what bounds it; record some whole steps"
)
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
QUESTION = "Where does the time of a training step go?"
ONCE = (
    "**One recording each**: what is said holds for them alone. How runs, machines and days differ "
    "was not measured."
)
TF32 = " (or TF32, on NVIDIA GPUs from Ampere on)"
BEFORE_AMPERE = re.compile(r"\b(V100|P100|P40?|T4|K80|M60|TITAN|GTX|RTX 20\d\d|Quadro RTX)\b")
IN_16_BITS = FEWER_BITS["float16"]
NOT_SHRUNK = 0.95  # of the time before: what takes more of it is said not to have shrunk
UNEQUAL = 0.03  # of the mean step: where the median is further from it, both are said
# What 16 bits could halve beside memory-bound work and casts, of `recording.HALVED`.
MOVED = {"communication": {"communication"}, "copies": {"copies", "loads"}}
NO_BOUND = 20.0  # times: a larger bound says only that next to nothing else was recorded
MATRIX = {  # by what most of it is in, of `FEWER_BITS` up to 16 bits; None where unavailable
    None: f"16 bits{TF32}, unless it is in them already (its type is unavailable); a smaller or "
    "sparser model",
    FEWER_BITS["float32"]: f"16 bits{TF32}; a smaller or sparser model",
    FEWER_BITS["tf32"]: "16 bits in place of TF32; a smaller or sparser model",
    IN_16_BITS: "it is in few bits already: larger matrices (batch, widths that are multiples of "
    "8), a smaller or sparser model",
}


# --- sentences -----------------------------------------------------------------------------------


def verdict(recordings: Sequence[Recording]) -> str:
    """What bounds the training, or how two recordings compare, as plain text."""
    if len(recordings) == 1:
        return bound_sentence(recordings[0])
    return comparison_sentence(Comparison(*recordings))


def bound_sentence(recording: Recording) -> str:
    """What bounds one training, with numbers."""
    trace = recording.trace
    if recording.cut_short:
        return f"{CUT_SHORT}."
    if not trace.timed:
        return f"{UNTIMED}{_by_number(recording)}."
    name, share = recording.bound
    step = "a step of" if trace.how != WHOLE else "the whole trace, in which no step is marked, of"
    step = f"{step} {milliseconds(trace.step_s)}"
    step += f" (the mean; the median is {median})" if (median := _median(trace)) else ""
    shares = recording.shares[lambda s: s >= LEAST_SHARE].sort_values(ascending=False)
    parts = {cause: f"{_short(str(cause))} {percent(value)}" for cause, value in shares.items()}
    own = [part for cause, part in parts.items() if cause in BOUNDS[name]]
    rest = [part for cause, part in parts.items() if cause not in BOUNDS[name]]
    text = BOUND[name].format(work=WORK[trace.trains], share=percent(share), step=step)
    text += f" ({wording.listed(own)})" if len(own) > 1 else ""
    text += f"; then {wording.listed(rest)}" if rest else ""
    if name == "matrix" and not recording.arithmetic.empty:
        first = recording.arithmetic.iloc[0]
        used = TENSOR_CORES[first.tensor_cores]
        used = "Tensor Cores unknown" if used == "unknown" else used
        text += f"; {percent(first.share)} of the matrix work is in {first.type}, {used}"
    if trace.after_s:
        after = milliseconds(trace.after_s)
        text += f"; not counted: {after} after it, in which callbacks and the profiler ran"
    return f"{text}."


def _median(trace: Trace) -> str:
    """The median step, where it is not nearly as long as the mean one; else empty."""
    unequal = abs(trace.median_s - trace.step_s) > UNEQUAL * trace.step_s
    return milliseconds(trace.median_s) if unequal else ""


def _by_number(recording: Recording) -> str:
    """The arithmetic of kernels that were counted, not timed."""
    parts = [
        f"{percent(row.share)} in {row.type}, {TENSOR_CORES[row.tensor_cores]}"
        for row in recording.arithmetic.itertuples()
    ]
    return f"; of its kernels that multiply, {wording.listed(parts)}" if parts else ""


def not_compared(comparison: Comparison) -> str:
    """Why two recordings have no ratio; empty where they have one."""
    if comparison.comparable:
        return ""
    names = _names([comparison.baseline, comparison.candidate])
    reasons = _differences(comparison.works)
    if not reasons:
        short = comparison.baseline.cut_short or comparison.candidate.cut_short
        counted = "hardware counters were recorded instead of times"
        reasons = ["one of them ends within its first step" if short else counted]
    return (
        f"{names[0]} and {names[1]} are not compared, as a ratio of their steps would not be one "
        f"of the same work: {wording.listed(reasons)}"
    )


def _differences(pairs: Mapping[str, tuple[str, str]]) -> list[str]:
    return [f"{name} {first} against {second}" for name, (first, second) in pairs.items()]


def comparison_sentence(comparison: Comparison) -> str:
    """How the second recording compares with the first, and what made the difference."""
    first, second = _names([comparison.baseline, comparison.candidate])
    if refused := not_compared(comparison):
        each = [(first, comparison.baseline), (second, comparison.candidate)]
        return f"{refused}. " + " ".join(f"{n}: {bound_sentence(r)}" for n, r in each)
    before, after = comparison.baseline.trace, comparison.candidate.trace
    times = [wording.digits(trace.step_s * 1e3) for trace in (after, before)]
    head = (
        f"Within these recordings {second} is {wording.over(comparison.speedup)} {first} "
        f"({times[0]} ms against {times[1]} ms, {_of_steps(comparison)})"
    )
    for name, trace in ((first, before), (second, after)):
        if median := _median(trace):
            head += f", with unequal steps in {name}, whose median is {median}"
    if comparison.places:
        head += f", but {wording.listed(_differences(comparison.places))}"
    table = comparison.by_cause
    least = 0.02 * before.step_s
    changed = table[table.difference_s.abs() >= least]
    changed = changed.sort_values("difference_s", key=abs, ascending=False)[:3]
    parts = [
        f"{_short(str(name))} {'grew' if row.difference_s > 0 else 'fell'} by "
        f"{milliseconds(abs(row.difference_s))}"
        for name, row in changed.iterrows()
    ]
    text = f"{head}: {wording.listed(parts)}" if parts else head
    text += _same_arithmetic(comparison, first) + _untold(comparison)
    return f"{text}. In {second}: {bound_sentence(comparison.candidate)}"


def _of_steps(comparison: Comparison) -> str:
    """Of how many steps the means are, and how far the ratio of any two goes."""
    steps = [r.trace.steps for r in (comparison.candidate, comparison.baseline)]
    if max(steps) == 1:
        return "one step of each, whose spread is unknown"
    low, high = comparison.spread
    return f"means of {_each(steps)}; any step over any other: {low:.2f} to {high:.2f}"


def _each(steps: Sequence[int]) -> str:
    """`2 steps each`, `20 and 18 steps`."""
    if len(steps) == 1:
        return wording.count(steps[0], "step")
    if len({*steps}) == 1:
        return f"{wording.count(steps[0], 'step')} each"
    return f"{wording.listed([str(n) for n in steps])} steps"


def _same_arithmetic(comparison: Comparison, first: str) -> str:
    """Says where the two do not differ in what they multiply in, or the first is in TF32."""
    both = (comparison.baseline, comparison.candidate)
    before, after = (recording.main_type for recording in both)
    if before == after != "":
        whole = all(recording.arithmetic.type.nunique() == 1 for recording in both)
        return f". Both do {'all' if whole else 'most'} of their matrix work in {before}"
    if before == "tf32":
        return f". {first} does most of its matrix work in TF32 already, not in strict float32"
    return ""


def _untold(comparison: Comparison) -> str:
    """Says what has to be alike for the ratio to mean anything, and is unavailable."""
    unknown = comparison.untold
    return (
        f". Whether both had the same {wording.listed(unknown)} is unavailable" if unknown else ""
    )


def _short(cause: str) -> str:
    """A cause's label without its examples."""
    return LABELS[cause].partition(" (")[0].partition(",")[0]


def notes(recording: Recording) -> list[str]:
    """What else a reader has to know of a recording."""
    trace = recording.trace
    said = list(trace.notes)
    if trace.warm_up:
        first = wording.count(trace.warm_up, "first step")
        said.append(f"{first} left out as warm-up{_left_out(trace, trace.left[: trace.warm_up])}")
    if trace.untrained:
        others = wording.count(trace.untrained, "step")
        said.append(f"{others} without a backward pass left out, as evaluations have none")
    if trace.unusual:
        first = wording.count(trace.unusual, "step")
        said.append(
            f"{first} of more than three times the median left out, as a single evaluation, "
            "checkpoint or compilation in it would be"
            f"{_left_out(trace, trace.left[trace.warm_up :])}"
        )
    if trace.hidden_s > LEAST_SHOWN * trace.step_s:
        hidden = milliseconds(trace.hidden_s)
        said.append(f"other work hides {hidden} a step of communication, which cost no time")
    if trace.outside_s > 0 and recording.told:
        said.append(f"{milliseconds(trace.outside_s)} of the device's work lies outside the steps")
    others = {name: s for name, s in trace.gpus.items() if name != trace.gpu}
    total = sum(trace.gpus.values())
    if others and total:
        shares = [f"{name} {percent(s / total)}" for name, s in others.items()]
        chosen = percent(trace.gpus.get(trace.gpu, 0.0) / total)
        said.append(
            f"the busiest GPU is explained, {trace.gpu} with {chosen} of all kernel time; the "
            f"others: {wording.listed(shares)}"
        )
    return said + _counted(recording)


def _left_out(trace: Trace, left: Sequence[Mapping[str, float]]) -> str:
    """How long steps that are left out took, and what they hold."""
    took = sum(sum(states.values()) for states in left)
    if not took:
        return ""
    every = sum(sum(states.values()) for states in trace.left) + sum(trace.step_times)
    names = {state for states in left for state in states}
    shares = {name: sum(states.get(name, 0.0) for states in left) / took for name in names}
    parts = [
        f"{'work' if name == 'op' else _short(name)} {percent(share)}"
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= LEAST_SHARE
    ]
    return (
        f": {milliseconds(took)}, {percent(took / every)} of all recorded steps "
        f"({wording.listed(parts)})"
    )


def _counted(recording: Recording) -> list[str]:
    """What hardware counters say of the kernels' names."""
    counters = recording.trace.counters
    if counters is None:
        return []
    if not counters.disagreements:
        return [f"hardware counters of {counters.kernels} kernels agree with what their names say"]
    return [
        f"hardware counters of {len(counters.disagreements)} of {counters.kernels} kernels "
        f"disagree with their names: {'; '.join(counters.disagreements[:3])}"
    ]


# --- tables --------------------------------------------------------------------------------------


def facts(recording: Recording) -> pd.DataFrame:
    """What a recording is: framework, device, steps, how they were recognized, shares."""
    trace = recording.trace
    rows = {"Framework": trace.framework or "unknown", "Device": trace.gpu or "CPU"}
    if recording.told:
        times = (trace.step_s, min(trace.step_times), max(trace.step_times))
        mean, least, most = (wording.digits(seconds * 1e3) for seconds in times)
        middle = wording.digits(trace.median_s * 1e3)
        named = f" ({percent(recording.named_layer_share)} of forward and backward passes)"
        rows |= {
            "Steps": f"{trace.steps}, by {trace.how}",
            "Step, ms": f"{mean} (mean; {least} to {most}; median {middle})",
            "Device time with a layer": percent(recording.layer_share)
            + named * bool(recording.layer_share),
            "Unexplained": f"{percent(recording.share('unexplained'))} of the step",
        }
    return pd.DataFrame({"": list(rows), recording.file: list(rows.values())})


def _steps(recordings: Sequence[Recording]) -> dict[str, pd.Series]:
    """Seconds of a step by cause, by the recording's name."""
    steps = (recording.by_cause for recording in recordings)
    return dict(zip(_names(recordings), steps, strict=True))


def _names(recordings: Sequence[Recording]) -> list[str]:
    """The recordings' names without the words that both begin with."""
    names = [recording.name for recording in recordings]
    if len(names) == 1:
        return names
    if len(set(names)) < len(names):
        return ["first", "second"]
    same = re.match(r"(.*[_\W]).*\n\1", "\n".join(names))  # up to the end of a word
    return [name.removeprefix(same[1] if same else "") or name for name in names]


def cause_rows(recording: Recording) -> pd.DataFrame:
    """The causes that take much of a step, the largest first, with what to try.

    Empty where the recording does not tell.
    """
    if not recording.told:
        return pd.DataFrame()
    shares = recording.shares.sort_values(ascending=False)
    shares = shares[(shares >= LEAST_SHARE) & (shares.index != "unexplained")]
    return pd.DataFrame(
        [
            {
                "Cause": LABELS[str(name)],
                "ms": f"{share * recording.trace.step_s * 1e3:.3f}",
                "Share": percent(share),
                "What to try": _try(str(name), recording),
            }
            for name, share in shares.items()
        ]
    )


def _try(cause: str, recording: Recording) -> str:
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


def layer_rows(recording: Recording) -> pd.DataFrame:
    """The layers that take longest; empty where the trace names none."""
    if not recording.layer_share or not recording.told:
        return pd.DataFrame()
    longest = recording.by_layer[:MOST_LAYERS]
    return pd.DataFrame(
        [
            {
                "Layer": layer,
                "ms": f"{s * 1e3:.3f}",
                "Share": wording.share(s / recording.trace.step_s),
            }
            for layer, s in longest.items()
        ]
    )


def arithmetic_rows(recording: Recording) -> pd.DataFrame:
    """Which arithmetic the matrix work used; empty where no kernel was traced."""
    return pd.DataFrame(
        [
            {
                "Matrix work in": row.type,
                "Tensor Cores": {True: "yes", False: "no", None: "unknown"}[row.tensor_cores],
                "Share": percent(row.share),
            }
            for row in recording.arithmetic.itertuples()
        ]
    )


def difference_rows(comparison: Comparison) -> pd.DataFrame:
    """Where two recordings differ most, by layer, part and cause."""
    table = comparison.joined[:MOST_ROWS]
    first, second = _names([comparison.baseline, comparison.candidate])
    rows = pd.DataFrame(
        [
            {
                "Layer": row.layer or BLANK,
                "Part": row.part or BLANK,
                "Cause": _short(row.cause),
                f"{first}, ms": f"{row.baseline_s * 1e3:.3f}",
                f"{second}, ms": f"{row.candidate_s * 1e3:.3f}",
                "Difference, ms": wording.signed(row.difference_s * 1e3, ".3f"),
            }
            for row in table.itertuples()
        ]
    )
    return without_blanks(rows)


def shrink_sentence(comparison: Comparison) -> str:
    """What 16 bits did not shrink, and the best that they could have given."""
    if not comparison.comparable:
        return ""
    before, after = comparison.baseline.precision, comparison.candidate.precision
    if before is not None and after is not None and before > after:
        return (
            "The first recording is that in lower precision: to see what it gives, name the one in "
            "higher precision first."
        )
    lower = before is not None and after is not None and after > before and not comparison.places
    alike = wording.listed(comparison.untold)
    subject = f"If both had the same {alike}, lower" if alike else "Lower"
    stayed = comparison.unshrunk[lambda s: s >= LEAST_SHARE * comparison.candidate.trace.step_s]
    was = comparison.by_cause.baseline_s
    little = [name for name, seconds in stayed.items() if seconds < NOT_SHRUNK * was[name]]
    parts = {
        name: f"{_short(str(name))} ({milliseconds(seconds)}, before {milliseconds(was[name])})"
        for name, seconds in stayed.items()
    }
    same = wording.listed([part for name, part in parts.items() if name not in little])
    said = [f"did not shrink {same}"] if same else []
    less = wording.listed([parts[name] for name in little])
    said += [f"shrank {less} by less than a quarter"] if less else []
    text = f"{subject} precision {' and '.join(said)}. " if said and lower else ""
    names = _names([comparison.baseline, comparison.candidate])
    # Where both are in as many bits, what is to be done next concerns the second.
    if before is not None and before == after:
        return f"{text}{_at_best(comparison.candidate, names[1])}".strip()
    return f"{text}{_at_best(comparison.baseline, names[0], comparison.speedup)}".strip()


def _at_best(recording: Recording, name: str, measured: float = 0.0) -> str:
    """What 16 bits alone could give over a recording, where it is in more bits.

    Args:
        measured: the speedup that another recording has over it; what is less than that bounds
            nothing.
    """
    precision = recording.precision
    if precision is not None and precision >= IN_16_BITS:
        return ""
    if recording.best > NO_BOUND:
        return (
            f"Nearly all of {name} is matrix work, so it sets no bound to what 16 bits could give."
        )
    opening = f"If {name} is in 32 bits (its type is unavailable), " * (precision is None)
    others = [text for text, causes in MOVED.items() if recording.halved.keys() & causes]
    halved = wording.listed(["memory-bound work", "casts", *others])
    told = f"if its matrix work took no time, {halved} half of theirs, and all else stayed"
    if measured > recording.best:
        return (
            f"{opening}16 bits would make {name} {recording.best:.2f}× faster {told}; it became "
            "faster by more than that, so something else changed too."
        )
    best = f"{recording.best:.2f}× faster"
    return f"{opening}16 bits would make {name} at most {best}: that much {told}."


def tables(recordings: Sequence[Recording]) -> dict[str, pd.DataFrame]:
    """The tables behind a verdict by their headings, in the order of reading."""
    last = recordings[-1]
    both = Comparison(*recordings) if len(recordings) == 2 else None
    timed = [recording for recording in recordings if recording.told]
    made = {
        "Where the time of a step goes": by_cause(_steps(timed)) if timed else pd.DataFrame(),
        "What to try": cause_rows(last) if last in timed else pd.DataFrame(),
        "Where they differ": difference_rows(both) if both and both.comparable else pd.DataFrame(),
    }
    for name, recording in zip(_names(recordings), recordings, strict=True):
        of = f": {name}" if both else ""
        made[f"Layers{of}"] = layer_rows(recording)
        made[f"Arithmetic{of}"] = arithmetic_rows(recording)
        made[f"The recording{of}"] = facts(recording)
    return {heading: table for heading, table in made.items() if not table.empty}


# --- JSON ----------------------------------------------------------------------------------------


def content(recordings: Sequence[Recording]) -> dict[str, Any]:
    """The explanation as data: seconds, shares of the step, of matrix work, of device time."""
    both = Comparison(*recordings) if len(recordings) == 2 else None
    return {
        "traces": [_content(recording) for recording in recordings],
        "speedup": both.speedup if both and both.comparable else None,
        "verdict": verdict(recordings),
    }


def _content(recording: Recording) -> dict[str, Any]:
    trace = recording.trace
    return {
        "file": recording.file,
        "framework": trace.framework,
        "devices": list(trace.gpus) or ["CPU"],
        "gpu": trace.gpu,
        "steps": trace.steps,
        "step_s": trace.step_s if recording.told else None,
        "rows": [
            {"cause": name, "seconds": seconds, "share": seconds / trace.step_s}
            for name, seconds in recording.by_cause.items()
            if recording.told
        ],
        "arithmetic": recording.arithmetic.to_dict("records"),
        "layer_share": recording.layer_share if recording.told else None,
        "unexplained_share": recording.share("unexplained") if recording.told else None,
        "notes": notes(recording),
    }


# --- a page --------------------------------------------------------------------------------------


def page(recordings: Sequence[Recording], source: str = "") -> str:
    """The explanation as one HTML page that loads nothing.

    Args:
        source: where the recordings come from, as a sentence for the end of the page.
    """
    from nbformat import v4

    title = _title(recordings)
    shown = [{"text/html": html} for html in _parts(recordings, title, source)]
    cells = [v4.new_code_cell(outputs=[v4.new_output("display_data", data)]) for data in shown]
    with TemporaryDirectory() as folder:
        notebook = Path(folder, "explained.ipynb")
        notebook.write_text(json.dumps(v4.new_notebook(cells=cells)), encoding="utf-8")
        card = {"og:type": "article", "og:title": title, "og:description": verdict(recordings)}
        return rendering.report_page(notebook, title, card)


def _title(recordings: Sequence[Recording]) -> str:
    """The finding in a few words."""
    if len(recordings) == 2:
        both = Comparison(*recordings)
        if not both.comparable:
            return "Two recordings that are not of the same work"
        first, second = _names(recordings)
        other = f" (other {', '.join(both.places)})" * bool(both.places)
        faster = f"{second} is {wording.over(both.speedup)} {first}{other}"
        shares = recordings[1].shares
        bound = f"{percent(shares.max())} of its step is {_short(str(shares.idxmax()))}"
        return f"Provisional: {faster}; {bound}"
    if not recordings[0].told:
        return (CUT_SHORT if recordings[0].cut_short else UNTIMED).partition(":")[0]
    trace, (name, share) = recordings[0].trace, recordings[0].bound
    bound = BOUND[name].partition(":")[0].format(work=WORK[trace.trains])
    return f"{bound}: {percent(share)} of a step"


def _parts(recordings: Sequence[Recording], title: str, source: str) -> list[str]:
    """The parts of the page as HTML: the first screen, the tables, notes."""
    said, warnings = [verdict(recordings)], []
    if len(recordings) == 2:
        head, found, bound = said[0].partition(". In ")
        said = [f"{head}.", f"In {bound}"] if found else said
        said += filter(None, [shrink_sentence(Comparison(*recordings))])
        warnings = [ONCE]
    timed = [recording for recording in recordings if recording.told]
    opening = lead.screen(
        title,
        QUESTION,
        _conditions(recordings),
        warnings,
        _figure(timed) if timed else "",
        [wording.verbatim(text) for text in said],
        wording.verbatim(_to_do(recordings)),
    )
    names = _names(recordings)
    more = [f"{n}: {note}" for n, r in zip(names, recordings, strict=True) for note in notes(r)]
    return [opening, *_sections(recordings), *_listed(more), *_source(source)]


def _to_do(recordings: Sequence[Recording]) -> str:
    """What follows: of two, what the faster one does, then what bounds that one."""
    fastest, opening = len(recordings) - 1, ""
    if len(recordings) == 2 and (both := Comparison(*recordings)).comparable:
        fastest = int(both.speedup >= 1)
        opening = f"train as in {_names(recordings)[fastest]}; to go on from there: "
    causes = cause_rows(recordings[fastest])
    return f"{opening}{causes.iloc[0]['What to try']}." if len(causes) else ""


def _conditions(recordings: Sequence[Recording]) -> list[str]:
    """Device, framework and steps of each recording."""
    traces = [recording.trace for recording in recordings]
    parts = [
        wording.listed([*dict.fromkeys(trace.gpu or "CPU" for trace in traces)]),
        wording.listed([*dict.fromkeys(trace.framework for trace in traces if trace.framework)]),
        f"{wording.count(len(traces), 'recording')}, {_each([trace.steps for trace in traces])}",
    ]
    return [visible(part) for part in parts if part]


def _listed(sentences: Sequence[str]) -> list[str]:
    items = "".join(f"<li>{escape(text)}</li>" for text in sentences)
    return [f'<h2 id="notes">Notes</h2><ul>{items}</ul>'] if items else []


def _source(text: str) -> list[str]:
    return (
        [f'<h2 id="source">Source</h2>{markdown.to_html(markdown.sentence(text))}'] if text else []
    )


def _figure(recordings: Sequence[Recording]) -> str:
    steps = _steps(recordings)
    both = style.on_both(lambda: figures.stacked_by_cause(steps), style.LEAD_WIDTH)
    drawn = [output.svg(figure) for figure in both]
    parts = [
        f"{n}: {_short(str(s.idxmax()))}, {percent(s.max() / s.sum())}" for n, s in steps.items()
    ]
    caption = f"Largest part: {'; '.join(parts)}."
    alt = "Milliseconds of a step by cause, a stacked bar per recording."
    return output.as_html(drawn, alt, caption, "Time of a step by cause")


def _sections(recordings: Sequence[Recording]) -> list[str]:
    parts = []
    for number, (heading, table) in enumerate(tables(recordings).items(), 1):
        shown: GT = text_tables.plain_table(table, id=f"t{number}")
        parts.append(f'<h2 id="s{number}">{escape(heading)}</h2>{shown.as_raw_html()}')
    return parts
