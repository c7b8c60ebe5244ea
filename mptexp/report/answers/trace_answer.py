"""What bounds a training that mptexp did not run, or how two compare: title, sentences, notes."""

import re
from collections.abc import Mapping, Sequence

from mptexp.diagnosis.cause_times import LEAST_SHARE
from mptexp.diagnosis.causes import LABELS
from mptexp.diagnosis.foreign_traces import BOUNDS, FEWER_BITS, Comparison, Recording
from mptexp.report.tables.why_tables import milliseconds, percent
from mptexp.report.text import wording
from mptexp.traces.operations import Trace
from mptexp.traces.step_bounds import WHOLE

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
    "no 16 bits": "Operations that frameworks compute in 32 bits bound {work}: {share} of {step}",
    "unexplained": "What bounds {work} is unexplained: {share} of {step}",
}
WORK = {True: "this training", False: "this inference", None: "this recording"}
UNTIMED = "This recording has hardware counters instead of times: no share of time can be given"
CUT_SHORT = (
    "This recording ends within its first step: of a training it holds next to no matrix work and "
    "no backward pass, so nothing is said of what bounds it; record some whole steps"
)
NOT_SHRUNK = 0.95  # of the time before: what takes more of it is said not to have shrunk
MUCH_LEFT = 0.05  # of all recorded steps: who reads only an answer has to know of more
MOSTLY = 0.5  # of what is left out: more than this is most of it
UNEQUAL = 0.03  # of the mean step: where the median is further from it, both are said
# What 16 bits could halve beside memory-bound work and casts, of `foreign_traces.HALVED`.
MOVED = {
    "communication": {"communication"},
    "copies": {"copies", "loads"},
    "the loss": {"loss"},
    "random numbers": {"random"},
}
# What is said of `foreign_traces.HIDING`.
HIDING = {
    "another GPU": "in {share} of its step only another GPU works",
    "unexplained": "{share} of its step is unexplained",
}
LONGER_AFTER = "More time passes after each step than in it"
NO_BOUND = 20.0  # times: a larger bound says only that next to nothing else was recorded


# --- title and sentences -------------------------------------------------------------------------


def title(recordings: Sequence[Recording]) -> str:
    """The finding in a few words."""
    if len(recordings) == 2:
        both = Comparison(*recordings)
        if not both.comparable:
            return "Two recordings that are not of the same work"
        first, second = short_names(recordings)
        other = f" (other {', '.join(both.places)})" * bool(both.places)
        faster = f"{second} is {wording.over(both.speedup)} {first}{other}"
        shares = recordings[1].shares
        bound = f"{percent(shares.max())} of its step is {short_label(str(shares.idxmax()))}"
        name, share = recordings[1].bound
        if shares.idxmax() not in BOUNDS[name]:  # the ways in which a device waits for its host
            bound = f"for {percent(share)} of its step the device waits for its host"
        return f"{wording.PROVISIONAL}: {faster}; {bound}"
    if not recordings[0].told:
        return (CUT_SHORT if recordings[0].cut_short else UNTIMED).partition(":")[0]
    trace, (name, share) = recordings[0].trace, recordings[0].bound
    if after := _longer_after(trace):
        return f"{LONGER_AFTER} ({after})"
    bound = BOUND[name].partition(":")[0].format(work=WORK[trace.trains])
    return f"{bound}: {percent(share)} of a step"


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
    parts = {
        cause: f"{short_label(str(cause))} {percent(value)}" for cause, value in shares.items()
    }
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
    if after := _longer_after(trace):
        return f"{LONGER_AFTER}, in callbacks or the profiler ({after}). In a step: {text}."
    if trace.after_s:
        after = milliseconds(trace.after_s)
        text += f"; not counted: {after} after it, in which callbacks and the profiler ran"
    return f"{text}."


def _longer_after(trace: Trace) -> str:
    """The time after a step against its own, where it is longer; a profiler alone takes less."""
    longer = trace.after_s > trace.step_s
    return f"{milliseconds(trace.after_s)} against {milliseconds(trace.step_s)}" * longer


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
    names = short_names([comparison.baseline, comparison.candidate])
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
    first, second = short_names([comparison.baseline, comparison.candidate])
    if refused := not_compared(comparison):
        each = [(first, comparison.baseline), (second, comparison.candidate)]
        return f"{refused}. " + " ".join(f"{n}: {bound_sentence(r)}" for n, r in each)
    before, after = comparison.baseline.trace, comparison.candidate.trace
    times = [wording.digits(trace.step_s * 1e3) for trace in (after, before)]
    head = (
        f"Within these recordings {second} is {wording.over(comparison.speedup)} {first} "
        f"({times[0]} ms against {times[1]} ms, {_of_steps(comparison)})"
    )
    head += _unequal({first: before, second: after})
    if comparison.places:
        head += f", but {wording.listed(_differences(comparison.places))}"
    table = comparison.by_cause
    least = 0.02 * before.step_s
    changed = table[table.difference_s.abs() >= least]
    changed = changed.sort_values("difference_s", key=abs, ascending=False)[:3]
    parts = [
        f"{short_label(str(name))} {'grew' if row.difference_s > 0 else 'fell'} by "
        f"{milliseconds(abs(row.difference_s))}"
        for name, row in changed.iterrows()
    ]
    text = f"{head}: {wording.listed(parts)}" if parts else head
    text += _same_arithmetic(comparison, first) + _untold(comparison)
    return f"{text}. In {second}: {bound_sentence(comparison.candidate)}"


def _unequal(traces: Mapping[str, Trace]) -> str:
    """The medians of those of two recordings whose steps are unequal, by their names."""
    medians = {name: median for name, trace in traces.items() if (median := _median(trace))}
    if len(medians) > 1:
        each = wording.listed([f"{median} in {name}" for name, median in medians.items()])
        return f", with unequal steps in both, whose medians are {each}"
    return "".join(
        f", with unequal steps in {name}, whose median is {median}"
        for name, median in medians.items()
    )


def _of_steps(comparison: Comparison) -> str:
    """Of how many steps the means are, and how far the ratio of any two goes."""
    steps = [r.trace.steps for r in (comparison.candidate, comparison.baseline)]
    if max(steps) == 1:
        return "one step of each, whose spread is unknown"
    if min(steps) == 1:
        return f"means of {counted_steps(steps)}; how much a single one varies is unknown"
    low, high = comparison.spread
    return f"means of {counted_steps(steps)}; any step over any other: {low:.2f} to {high:.2f}"


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
        name: f"{short_label(str(name))} ({milliseconds(s)}, before {milliseconds(was[name])})"
        for name, s in stayed.items()
    }
    longer = [name for name, seconds in stayed.items() if NOT_SHRUNK * seconds > was[name]]
    same = wording.listed([p for name, p in parts.items() if name not in [*little, *longer]])
    said = [f"did not shrink {same}"] if same else []
    more = wording.listed([parts[name] for name in longer])
    said += [f"took longer in {more}"] if more else []
    less = wording.listed([parts[name] for name in little])
    said += [f"shrank {less} by less than a quarter"] if less else []
    text = f"{subject} precision {' and '.join(said)}. " if said and lower else ""
    names = short_names([comparison.baseline, comparison.candidate])
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
    if precision not in (None, FEWER_BITS["float32"], FEWER_BITS["tf32"]):
        return ""  # in 16 bits or fewer already, or in 64, of which 16 are not half
    if hiding := recording.hiding:
        reasons = [HIDING[cause].format(share=percent(share)) for cause, share in hiding.items()]
        return (
            f"No bound can be given to what 16 bits could give {name}: {wording.listed(reasons)}."
        )
    if recording.best > NO_BOUND:
        return (
            f"Nearly all of {name} is matrix work, so it sets no bound to what 16 bits could give."
        )
    opening = f"If {name} is in 32 bits (its type is unavailable), " * (precision is None)
    others = [text for text, causes in MOVED.items() if recording.halved.keys() & causes]
    halved = wording.listed(["memory-bound work", "casts", *others])
    told = f"if its matrix work took no time, {halved} half of theirs, and all else stayed"
    best = f"{wording.factor(recording.best)}× faster"
    if measured > recording.best:
        return (
            f"{opening}16 bits would make {name} {best} {told}; it became faster by more than "
            "that, so some of it took less time than is assumed here."
        )
    return f"{opening}16 bits would make {name} at most {best}: that much {told}."


# --- notes ---------------------------------------------------------------------------------------


def notes(recording: Recording) -> list[str]:
    """What else a reader has to know of a recording."""
    trace = recording.trace
    said = [*trace.notes, *_steps_left_out(trace)]
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
            f"one GPU is explained, {trace.gpu} with {chosen} of all kernel time; the others: "
            f"{wording.listed(shares)}"
        )
    return said + _counted(recording)


def much_left_out(recording: Recording) -> list[str]:
    """Those notes on steps that are left out which an answer may not go without."""
    trace = recording.trace
    if not recording.told or _recorded_s(trace) - sum(trace.step_times) < (
        MUCH_LEFT * _recorded_s(trace)
    ):
        return []
    return _steps_left_out(trace)


def _steps_left_out(trace: Trace) -> list[str]:
    """Which steps a mean does not hold, how long they took, and why."""
    said = []
    if trace.warm_up:
        first = wording.count(trace.warm_up, "first step")
        left = trace.left[: trace.warm_up]
        said.append(f"{first} left out {_first_steps(left)}{_left_out(trace, left)}")
    if trace.untrained:
        others = wording.count(trace.untrained, "step")
        share = percent(trace.untrained_s / _recorded_s(trace))
        took = f": {milliseconds(trace.untrained_s)}, {share} of all recorded steps"
        said.append(
            f"{others} without a backward pass left out, as evaluations have none"
            f"{took * bool(trace.untrained_s)}"
        )
    if trace.unusual:
        first = wording.count(trace.unusual, "step")
        said.append(
            f"{first} of more than three times the median left out, as a single evaluation, "
            "checkpoint or compilation in it would be"
            f"{_left_out(trace, trace.left[trace.warm_up :])}"
        )
    return said


def _first_steps(left: Sequence[Mapping[str, float]]) -> str:
    """What long first steps may be: mostly the device's work need not be a warm-up."""
    took = sum(sum(states.values()) for states in left)
    worked = sum(states.get("op", 0.0) for states in left)
    if worked <= MOSTLY * took:
        return "as warm-up"
    return "as longer than the others (a warm-up, a prefill or another shape of batch)"


def _left_out(trace: Trace, left: Sequence[Mapping[str, float]]) -> str:
    """How long steps that are left out took, and what they hold."""
    took = sum(sum(states.values()) for states in left)
    if not took:
        return ""
    names = {state for states in left for state in states}
    shares = {name: sum(states.get(name, 0.0) for states in left) / took for name in names}
    parts = [
        f"{'work' if name == 'op' else short_label(name)} {percent(share)}"
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= LEAST_SHARE
    ]
    return (
        f": {milliseconds(took)}, {percent(took / _recorded_s(trace))} of all recorded steps "
        f"({wording.listed(parts)})"
    )


def _recorded_s(trace: Trace) -> float:
    """Seconds of all steps, with those that were left out."""
    left_s = sum(sum(states.values()) for states in trace.left)
    return left_s + trace.untrained_s + sum(trace.step_times)


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


# --- how recordings, causes and steps are named --------------------------------------------------


def short_names(recordings: Sequence[Recording]) -> list[str]:
    """The recordings' names without the words that both begin with."""
    names = [recording.name for recording in recordings]
    if len(names) == 1:
        return names
    if len(set(names)) < len(names):
        return ["first", "second"]
    same = re.match(r"(.*[_\W]).*\n\1", "\n".join(names))  # up to the end of a word
    return [name.removeprefix(same[1] if same else "") or name for name in names]


def short_label(cause: str) -> str:
    """A cause's label without its examples."""
    return LABELS[cause].partition(" (")[0].partition(",")[0]


def counted_steps(steps: Sequence[int]) -> str:
    """`2 steps each`, `20 and 18 steps`."""
    if len(steps) == 1:
        return wording.count(steps[0], "step")
    if len({*steps}) == 1:
        return f"{wording.count(steps[0], 'step')} each"
    return f"{wording.listed([str(n) for n in steps])} steps"
