"""Verdicts for readers: the sentence that answers why, and the tables that support it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from mptexp.analysis import validity
from mptexp.diagnosis.cause_times import LEAST_SHARE, Loss
from mptexp.diagnosis.causes import BY_PEAK, Cause
from mptexp.diagnosis.effects import SPEEDUP
from mptexp.diagnosis.verdict import Verdict
from mptexp.report.tables import why_tables
from mptexp.report.tables.why_tables import gain, percent
from mptexp.report.text import wording
from mptexp.report.text.parameter_values import compiled_in_words, in_words
from mptexp.spec.backends import LABELS as BACKENDS
from mptexp.spec.run import Run, defaults

BROKEN_DOWN = "time breakdown"  # what flags invalidate of a trace
NAMED = 3  # causes in a sentence: more are not read
UNEXPLAINED = 0.03  # of the step: from here a sentence that names causes says so
# Parameters that a pair's own words name, or that its two runs or its blocks differ in.
NAMED_APART = {"policy", "batch_size", "block", "seed", "jit", "input_mode", "backend"}
LENGTHS = ("epochs", "max_steps")
NAMED_APART |= {"max_steps", "target_ci", "epochs", "profile", "loss_scale"}


# --- the sentence ---------------------------------------------------------------------------------


def sentence(verdict: Verdict, among: Sequence[Verdict] = ()) -> str:
    """Why a policy was faster or was not, in one sentence with numbers.

    Args:
        among: the verdicts beside which the sentence stands.
    """
    run, place = verdict.pair.candidate, settings(verdict, among)
    place = f" {wording.verbatim(place.strip())}" if place else ""
    head = (
        f"Why: **{run.policy}**{place} at batch size {run.batch_size} is "
        f"{_against(verdict)}{_possible(verdict)}"
    )
    return f"{head}{_explanation(verdict)}{_doubt(verdict, 'time breakdown')}."


def _against(verdict: Verdict) -> str:
    """`1.08× faster than float32 [1.06, 1.10]`, or why there is no interval."""
    over, base = verdict.speedup, wording.default_name(verdict.pair.baseline.policy)
    return gain(over, verdict.pair.flags, base)


def _doubt(verdict: Verdict, what: str) -> str:
    """`; time breakdown not valid: trace not proven`; empty where nothing invalidates it."""
    reasons = wording.not_valid(verdict.flags, what)
    return f"; {what} {reasons}" if reasons and verdict.candidate is not None else ""


def title(verdict: Verdict, among: Sequence[Verdict] = ()) -> str:
    """The pair in a few words; among as in `sentence`."""
    baseline = wording.default_name(verdict.pair.baseline.policy)
    run = verdict.pair.candidate
    model = "" if "model" in _varying(among) else f", {run.model}"
    return f"{run.policy} against {baseline}{model}{settings(verdict, among)}"


def _varying(among: Sequence[Verdict]) -> list[str]:
    """The parameters that tell the pairs apart, beyond those that each names in any case."""
    runs = [verdict.pair.candidate for verdict in among]
    varied = [n for n in Run.model_fields if len({str(getattr(run, n)) for run in runs}) > 1]
    named = [name for name in varied if name not in NAMED_APART]
    # Two pairs of one name are told apart by how long they were trained.
    own = ["policy", "batch_size", "jit", "input_mode", "backend", *named]
    alike = len({tuple(str(getattr(run, name)) for name in own) for run in runs}) < len(runs)
    return named + [name for name in LENGTHS if name in varied and alike]


def settings(verdict: Verdict, among: Sequence[Verdict]) -> str:
    """What tells the pair apart from others of the sweep, in brackets."""
    named = setting(verdict, among)
    return f" ({named})" if named else ""


def setting(verdict: Verdict, among: Sequence[Verdict]) -> str:
    """The same without brackets."""
    run, usual = verdict.pair.candidate, defaults()
    names = ["input_mode"] * (run.input_mode != usual["input_mode"])
    named = [in_words(n, getattr(run, n)) for n in [*names, *_varying(among)]]
    if not verdict.of_one_backend:
        named.insert(len(names), BACKENDS[run.backend])
    if run.jit != usual["jit"]:
        named.insert(0, compiled_in_words(run.jit == "on", run.backend))
    return ", ".join(named)


def _possible(verdict: Verdict) -> str:
    alone = verdict.as_layers if math.isnan(verdict.possible) else verdict.possible
    if math.isnan(alone):
        return ""
    about, how = _roughly(max(alone, 1 / alone)), "slower" if alone < 1 else "faster"
    if about == "1":
        return ", where its layers alone would take about the same time on this device"
    if math.isnan(verdict.possible):
        peak = f"the measured peak is {wording.factor(verdict.peak_ratio)}× the baseline's"
        return f", as its layers alone are (about {about}× {how}; {peak})"
    return f", where its layers alone would at best be about {about}× {how}"


def _roughly(ratio: float) -> str:
    """To two digits, a large one without an exponent of ten: 1.9, 12, 120, 1,400."""
    return wording.digits(float(f"{ratio:.2g}"))


def _explanation(verdict: Verdict) -> str:
    if verdict.missing and not verdict.blamed:  # no cause was looked for
        return f"; not diagnosed: {wording.verbatim(verdict.missing)}{_further(verdict)}"
    named = wording.verbatim(wording.listed(verdict.unknown_operations))
    unexplained = f"; {percent(verdict.unexplained)} of the step is unexplained"
    unexplained += f" ({named})" if named else ""
    if verdict.blamed:
        parts = [_part(loss, verdict, i == 0) for i, loss in enumerate(verdict.blamed[:NAMED])]
        rest = unexplained if verdict.unexplained >= UNEXPLAINED else ""
        return f": {'; then '.join(parts)}{_further(verdict)}{rest}"
    rest = unexplained if verdict.unexplained >= LEAST_SHARE else ""
    if _doubt(verdict, BROKEN_DOWN):  # which follows: what is not valid excludes no cause
        return f": no cause is named{_further(verdict)}"
    certain = " for certain" if verdict.large else ""
    none = f": no known cause exceeds {percent(LEAST_SHARE)} of the step{certain}"
    return f"{none}{_further(verdict)}{rest}"


def _further(verdict: Verdict) -> str:
    """What ablations show beyond the causes that are named, of the baseline too."""
    backend = verdict.pair.candidate.backend
    parts = [
        f"; {wording.verbatim(effect.ablation.label(backend))} makes {policy} {gain(over)}"
        for effect, policy, over in verdict.further_effects[:NAMED]
    ]
    return "".join(parts)


def _part(loss: Loss, verdict: Verdict, first: bool) -> str:
    backend = verdict.pair.candidate.backend
    of = " of the step" if first else ""
    took = wording.digits(loss.seconds * 1e3)
    where = f" ({wording.verbatim(wording.listed(loss.layers))})" if loss.layers else ""
    changes = [(one.ablation.label(backend), one) for one in loss.effects]
    base = wording.default_name(verdict.pair.baseline.policy)
    proof = [
        f"with {change} it is {gain(one.speedup, flags, f'{base} with {change}')}"
        for change, one, flags in (
            (wording.verbatim(name), one, one.flags_of(SPEEDUP)) for name, one in changes
        )
        if one.speedup
    ]
    proven = f" ({'; '.join(proof)})" if proof else ""
    ratio = f"(measured peak {wording.factor(verdict.peak_ratio)}× the baseline's)"
    said = says(loss.cause, backend).replace(BY_PEAK, ratio)
    return f"{percent(loss.share)}{of} ({took} ms) {said}{where}{proven}"


def says(cause: Cause, backend: str) -> str:
    """The sentence of a cause, with the names of the framework and of its compiler."""
    compiler = compiled_in_words(True, backend).removeprefix("with ")
    here = f"this device with {BACKENDS[backend]}"  # another may have faster code for it
    return cause.sentence.replace("XLA", compiler).replace("this device", here)


def not_valid(verdicts: Sequence[Verdict]) -> list[str]:
    """A sentence where ablations are not valid, and one where time breakdowns are not."""
    effects = [effect for verdict in verdicts for effect in verdict.effects]
    bad = [e.flags for e in effects if not all(map(e.is_valid, e.contrasts))]
    traced = [verdict for verdict in verdicts if verdict.candidate is not None]
    unlike = [verdict.flags for verdict in traced if _doubt(verdict, BROKEN_DOWN)]
    return [
        *_not_valid(bad, len(effects), "ablation", "time"),
        *_not_valid(unlike, len(traced), BROKEN_DOWN, BROKEN_DOWN),
    ]


def _not_valid(flags: Sequence[str], among: int, noun: str, what: str) -> Iterator[str]:
    if flags:
        names = wording.not_valid(validity.together(flags), what).partition(": ")[2]
        which = f"{len(flags)} of {wording.count(among, noun)}"
        yield f"**Not valid in the diagnosis** ({which}): {names}."


# --- the tables -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A table behind a verdict: its heading, the note above it, and how it is made.

    `rests_on` names what of a run it shows, as a flag's `invalidates` does; `own` says what else is
    to be known of one verdict's table.
    """

    heading: str
    note: str
    rows: Callable[[Verdict], pd.DataFrame]
    rests_on: str = ""
    own: Callable[[Verdict], str] = lambda _: ""

    def noted(self, verdict: Verdict, first: bool) -> str:
        """What stands above a verdict's table: the note at the first, and what is not valid."""
        doubt = _doubt(verdict, self.rests_on).removeprefix("; ") if self.rests_on else ""
        said = f"**{wording.capitalized(doubt)}.**" if doubt else ""
        return "\n\n".join(filter(None, [said, self.note if first else "", self.own(verdict)]))


def _two_steps(verdict: Verdict) -> str:
    """Which step the time breakdown divides, and which the causes and the first table have."""
    if not verdict.traced:
        return ""
    pair = verdict.pair
    traced_s = {name: s.sum() for name, s in why_tables.seconds_by_cause(verdict).items()}
    before_s = pair.baseline_step_s(traced_s[pair.baseline.policy])
    own_s = {pair.baseline.policy: before_s, pair.candidate.policy: pair.step_s}
    traced, own = (
        wording.listed([f"{why_tables.milliseconds(of[name])} with {name}" for name in own_s])
        for of in (traced_s, own_s)
    )
    if traced == own:
        return ""
    return (
        f"This table divides a step of the traced runs: {traced}. In the sweep's own runs, of "
        f"which the causes and the first table of the page are, it took {own}."
    )


CAUSES = Section(
    "Causes",
    "What the step lost to what, largest first. A wait is lost in full, and so is what precision "
    "cannot shrink; memory-bound work as far as it took more than half of the baseline's. Where an "
    "ablation removed a cause, its measurement replaces that of the time breakdown, and as much of "
    "the other causes counts as it leaves of the step. *Projected speedup of the step if fixed*: "
    "the candidate's own step over that step without these milliseconds; not over the baseline, "
    "whose step a change may make shorter, too.",
    why_tables.cause_rows,
    BROKEN_DOWN,
)
ABLATIONS = Section(
    "Ablations",
    "Each is a run with a record of its own, compared within its block with a run whose identity "
    "agrees but for the change, by the time that an example takes. *With it*: beside the same "
    "policy without the change. "
    "Intervals hold for all rows together; what the sweep itself compares keeps its interval. "
    "*n* = 1: it took longer in the first block, and was not repeated; one block proves nothing. "
    "*Excluded*: gains that the interval rules out where it shows none.",
    why_tables.ablation_rows,
)
BREAKDOWN = Section(
    "Where the time of a step goes",
    "From a trace of steps that follow the timed ones. Every instant belongs to the operations "
    "active at that instant, in equal shares; instants without any are input, host or idle. "
    "Tracing changes a step: the rows add up to the step of the same run before its trace; on "
    "a GPU the waits are scaled to it and kernels keep their time, on a CPU all rows are scaled "
    "alike, but for a wait for input that was longer then.",
    why_tables.breakdown_rows,
    BROKEN_DOWN,
    _two_steps,
)
LAYERS = Section(
    "Layers",
    "*Alone*, by valid peaks: what a layer with a kernel takes by itself at its own shapes, "
    "however far that is from the peak, and any other its bytes at the measured copy bandwidth "
    "(the better of both policies'); but no more than it took: where the two are equal, it took no "
    "longer in the step than alone. Forward and backward.",
    why_tables.layer_rows,
    BROKEN_DOWN,
)
PEAKS = Section(
    "Measured peak",
    "Of the traced runs, whose steps may differ from those of the first table. Peaks: measured on "
    "this device through this backend, the best of several tries; in brackets, where "
    "it is known, the share of the published peak (published.csv). MFU: arithmetic of the model's "
    "step, from its shapes, over that of a large matrix product in the same type; of the matrix "
    "work, over its own time alone (–: no time by layer is known, or it is above that product's "
    "rate, as of arrays that stay in a cache, or XLA multiplies in a wider type). Least traffic: "
    "inputs, outputs and weights, each once per pass. A dot may lie above its roof: libraries skip "
    "arithmetic on padding, which shapes count, and small arrays stay in a cache, which a large "
    "copy does not. *No valid peak*: a step does more arithmetic than was measured at the peak, as "
    "where other programs ran meanwhile; then there is no roof, and no bound by layer. *Tracing "
    "slowed the step*: against steps of the same run before its trace.",
    why_tables.peak_rows,
)
ARITHMETIC = Section(
    "Which arithmetic was used",
    "On a GPU from the kernels' names; where those do not tell, unknown. On a CPU as oneDNN says; "
    "work that oneDNN does not take (float16, on a CPU without it) is not in it.",
    why_tables.arithmetic_rows,
    "arithmetic",
)
COMPILED = Section(
    "What XLA multiplies in",
    "The matrix products and convolutions of the program that XLA made for this CPU, by the type "
    "of their operands. Where XLA has no 16-bit code it widens them: then the policy saves bytes "
    "and adds casts, and its products are float32's.",
    why_tables.compiled_rows,
    "arithmetic",
)
TENSOR_CORES = Section(
    "Matrix work and Tensor Cores, by layer",
    "ms of a step under the candidate's policy. *Unknown*: the kernels' names do not tell.",
    why_tables.tensor_core_rows,
    "arithmetic",
)
SECTIONS = (CAUSES, ABLATIONS, BREAKDOWN, LAYERS, PEAKS, ARITHMETIC, COMPILED, TENSOR_CORES)


def tables(verdict: Verdict) -> dict[Section, pd.DataFrame]:
    """The tables behind a verdict by section, in the order of reading; empty ones left out."""
    made = {section: section.rows(verdict) for section in SECTIONS}
    return {section: table for section, table in made.items() if not table.empty}
