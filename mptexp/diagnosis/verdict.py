"""The verdict: ranked causes of why a policy was faster, or why it was not, from records alone."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd
from scipy import special

from mptexp.analysis import steadiness, validity
from mptexp.analysis.comparability import Record
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.sweep_tables import Tables
from mptexp.diagnosis import ablations, breakdown, kernel_arithmetic, proposals, roofline
from mptexp.diagnosis.ablations import Ablation
from mptexp.diagnosis.cause_times import LEAST_SHARE, Case, Loss, left, within_the_step
from mptexp.diagnosis.causes import CAUSES, LEAST_CERTAIN
from mptexp.diagnosis.effects import (
    NOTHING,
    SPEEDUP,
    Effect,
    Records,
    Said,
    blocks,
    effect,
    together,
)
from mptexp.diagnosis.pairs import Pair, in_block, pairs
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.records.tables import results_table
from mptexp.spec.backends import BACKEND_ROWS
from mptexp.spec.run import Run

FEWEST_GROUPS = 3  # of traced steps, from which their spread is known
MOST_STRETCHED = 1.5  # of a timed step: what the operations of a traced one may take
ALIKE = 1.1  # times a ratio: what lies closer is told as one
LEAST_NAMED, MOST_NAMED = 0.01, 2  # unknown operations: share of the step, and how many
# Tried where no trace asks for them, too: a sweep may hold them as axes of its matrix.
ALWAYS = (ablations.INPUT, ablations.XLA_ON, ablations.XLA_OFF, ablations.STRICT)


INVERSE = {
    ablations.XLA_ON.name: ablations.XLA_OFF.name,
    ablations.XLA_OFF.name: ablations.XLA_ON.name,
}
_ADVISED = [r.ablation for cause in CAUSES for r in cause.remedies if r.ablation]
# Flags of a traced run for which its breakdown may not be that of the sweep's steps.
DISTURBED = {store.CHANGED, "in parallel", "sweeps at once", "interference", "throttled"}
DISTURBED |= {"interrupted"}


@dataclass(frozen=True)
class Verdict:
    """All that is known of a pair of policies at a point.

    Attributes:
        baseline: record of the traced run of the baseline's policy; None unless both went well.
        candidate: record of that of the candidate's.
        possible: the speedup that the device would allow, baseline over candidate; NaN where it is
            not known, or was measured to be exceeded by the same work.
        losses: the largest first.
        effects: of the ablations that were made.
        unexplained: share of the step that no rule names, of what ablations leave of it; NaN
            without a time breakdown.
        missing: why there is no time breakdown; empty where there is one.
        hurtful: the ablations that made the candidate slower at another point of this model, or
            with which no run of its own in the sweep ended well.
        other: whether the traced runs differ from the sweep's in more than being traced, or their
            steps take another time.
        as_layers: baseline over candidate of what the layers take alone, where the step's is about
            that and `possible` is NaN for being a little less; else NaN.
        of_one_backend: whether all runs of the sweep have the pair's, so that nobody need name it.
    """

    pair: Pair
    baseline: Record | None
    candidate: Record | None
    possible: float
    losses: list[Loss]
    effects: list[Effect]
    unexplained: float
    missing: str = ""
    hurtful: frozenset[str] = frozenset()
    other: bool = False
    as_layers: float = math.nan
    of_one_backend: bool = True

    @property
    def speedup(self) -> Contrast:
        """Baseline over candidate."""
        return self.pair.speedup

    @property
    def peak_ratio(self) -> float:
        """The candidate's measured peak of arithmetic over the baseline's; NaN without one."""
        sides = [(r or {}).get("work", {}).get("ceilings") for r in (self.baseline, self.candidate)]
        if not all(sides):
            return math.nan
        before, after = (side["matmul_flops_per_s"] for side in sides)
        return float(after / before)

    @property
    def blamed(self) -> list[Loss]:
        """The losses that are large enough to be named, for certain as far as that is known."""
        return [loss for loss in self.large if not loss.least < LEAST_CERTAIN]

    @property
    def main(self) -> Loss:
        """The largest of those that are blamed; of a slower policy the one that it pays most for.

        What both policies pay alike makes neither of them slower.
        """
        if not self.speedup.high < 1:
            return self.blamed[0]
        return max(self.blamed, key=lambda loss: loss.beyond_s)

    @property
    def large(self) -> list[Loss]:
        """The losses that would be large enough to be named, were all of them certain."""
        return [loss for loss in self.losses if loss.share >= LEAST_SHARE]

    @property
    def records(self) -> dict[str, Record]:
        """The traced records of the pair by policy, the baseline's first."""
        both = zip(self.pair.policies, (self.baseline, self.candidate), strict=True)
        return {run.policy: record for run, record in both if record is not None}

    @property
    def traced(self) -> bool:
        """Whether both policies' steps were traced and read; without xprof they are not."""
        records = self.records.values()
        return len(records) == 2 and not any(breakdown.rows(r).empty for r in records)

    @property
    def flags(self) -> str:
        """What is not valid of the runs that it rests on, and of what traces alone show."""
        names = {name for record in self.records.values() for name in validity.of_record(record)}
        times = set(validity.ALL)  # of the traced runs' own times nothing is claimed
        traced = [name for name in names if not times & {*validity.FLAGS[name].invalidates}]
        if self.other or names & DISTURBED:
            traced.append(validity.NOT_THE_STEPS)
        return validity.together([self.pair.flags, *traced])

    @property
    def is_valid(self) -> bool:
        """Whether the pair's times, and its time breakdown, may prove anything."""
        timed = not validity.invalid(self.pair.flags, "time")
        traced = not validity.invalid(self.flags, "time breakdown")
        return timed and (self.candidate is None or traced)

    @property
    def unknown_operations(self) -> list[str]:
        """What takes most of the unexplained time, such as `Svd in whiten`; at least 1 % each."""
        rows = breakdown.rows(self.candidate or {})
        rows = rows[rows.cause == "unexplained"]
        sums = rows.groupby(["op", "layer"]).share.sum().sort_values(ascending=False)
        named = sums[sums >= LEAST_NAMED].index[:MOST_NAMED]
        return [f"{op} in {layer}" if layer else op for op, layer in named]

    def remedies(self, loss: Loss) -> list[tuple[str, Contrast | None]]:
        """What to change against a loss, with what it gave the candidate where it was measured.

        Left out is what was measured to make steps slower, here or, where it was not measured here,
        at another point of this model; what ended without a result; and what the run does already.
        A gain that is not valid is none, but no reason to advise what looked slower.
        """
        made: list[tuple[str, Contrast | None]] = []
        for remedy in loss.cause.remedies:
            ablation = remedy.ablation
            if ablation is None:
                made += [(remedy.text, None)] * (not remedy.idle(self.pair.candidate))
                continue
            gain, is_valid = self._gain(ablation)
            slower = _hurts(gain) if gain else ablation.name in self.hurtful
            idle = "normalization" in ablation.change and not self._normalizes
            if not (slower or idle or self._failed(ablation) or self._has(ablation)):
                made.append((remedy.text, gain if is_valid else None))
        return made

    @cached_property
    def _normalizes(self) -> bool:
        """Whether batch normalization takes enough of the step to be worth a change."""
        return proposals.batch_normalization(self.candidate or {}) >= LEAST_SHARE

    def _gain(self, ablation: Ablation) -> tuple[Contrast | None, bool]:
        """What an ablation gave the candidate, None where it was not made; whether it is valid."""
        for one in self.effects:
            if one.ablation.name == ablation.name:
                policy = self.pair.candidate.policy
                return one.gains.get(policy), one.is_valid(policy)
        return None, True

    def _failed(self, ablation: Ablation) -> bool:
        """Whether a change was tried and ended without a result, or the backend refuses it."""
        run, several = self.pair.candidate, "steps_per_execution" in ablation.change
        compiles = ablation.change.get("jit") == "on"
        if ablation == ablations.FUSED and (
            self._compiled or not BACKEND_ROWS[run.backend].fuses_batch_norm
        ):
            return True
        if (several and run.backend == "torch") or (
            run.backend == "tensorflow" and run.replicas > 1 and (several or compiles)
        ):
            return True
        return any(one.failed for one in self.effects if one.ablation.name == ablation.name)

    @property
    def _compiled(self) -> bool | None:
        """Whether the candidate's step is compiled, `auto` as it came out; None if not known."""
        jit = ((self.candidate or {}).get("in_force") or {}).get("jit")
        return None if jit is None else bool(jit)

    def is_untried(self, text: str) -> bool:
        """Whether a remedy is a compiler, on or off, that neither sweep nor diagnosis has tried."""
        made = {effect.ablation.name for effect in self.effects}
        return any(
            remedy.text == text and remedy.ablation.name not in made
            for cause in CAUSES
            for remedy in cause.remedies
            if remedy.ablation in (ablations.XLA_ON, ablations.XLA_OFF)
        )

    def _has(self, ablation: Ablation) -> bool:
        """Whether the candidate runs with the change already, `auto` as it came out."""
        if ablation.change.keys() == {"jit"} and self._compiled is not None:
            return self._compiled == (ablation.change["jit"] == "on")
        return ablation.variants(*self.pair.policies)[1] == self.pair.candidate

    @property
    def further_effects(self) -> list[tuple[Effect, str, Contrast]]:
        """Ablation, policy, gain: what is proven to change a step, and stands at no named cause.

        The baseline's gains too: what makes only the baseline faster answers another question,
        and is worth more than many a policy.
        """
        cited = {effect.ablation.name for loss in self.blamed for effect in loss.effects}
        least = 1 / (1 - LEAST_SHARE)
        return [
            (effect, policy, gain)
            for effect in self.effects
            for policy, gain in effect.gains.items()
            if effect.is_valid(policy)
            if (gain.low > 1 and gain.estimate >= least)
            and (effect.ablation.name not in cited or policy == self.pair.baseline.policy)
        ]

    def speedup_without(self, loss: Loss) -> float:
        """Baseline over candidate, were a loss's cause fixed; NaN where that is not known.

        As an ablation measured it; else without the time that both steps give to what both pay, and
        of other causes without what the candidate alone lost.
        """
        if loss.is_measured:
            effect = loss.effects[0]
            known = effect.speedup and effect.is_valid(SPEEDUP)
            return effect.speedup.estimate if known else math.nan
        base_s, step_s = self.pair.baseline_step_s(math.nan), self.pair.step_s - loss.seconds
        if loss.cause.is_in_full:
            base_s -= loss.baseline_s
        return base_s / step_s if step_s > 0 else math.inf

    def projected(self, loss: Loss) -> float:
        """How much faster than it is the candidate's step would be, were a loss's cause fixed.

        Not over the baseline, whose step what is changed may make shorter, too.
        """
        step_s = self.pair.step_s
        return step_s / max(step_s - loss.seconds, 1e-12)


def verdicts(directory: SweepDir, tables: Tables) -> list[Verdict]:
    """A verdict for every pair of the sweep that was diagnosed, or that holds its own ablations."""
    records = known(directory, tables)
    said = Said(_beside_others(tables, records), tables.ends_by_runs, tables.parts)
    one = tables.ok.backend.nunique() <= 1
    chosen = _diagnosed(tables, records)
    made = [replace(v, of_one_backend=one) for v in of_pairs(chosen, records, said)]
    return [v for v in made if v.candidate is not None or v.effects]


def _diagnosed(tables: Tables, records: Records) -> list[Pair]:
    """The pairs of a sweep; at a smaller batch size where steps were traced there alone."""
    notebook = next(iter(records.values()), {}).get("notebook", "train")

    def is_traced(pair: Pair) -> bool:
        return all(run.run_id(notebook) in records for run in pair.traced)

    made = {_but_for_the_batch(pair): pair for pair in pairs(tables)}
    sizes = {r["parameters"]["batch_size"] for r in records.values() if r.get("profile")}
    for size in sorted(sizes, reverse=True):
        for pair in pairs(tables, tables.ok.run_id[tables.ok.batch_size == size]):
            key = _but_for_the_batch(pair)
            if key in made and is_traced(pair) and not is_traced(made[key]):
                made[key] = pair
    return [*made.values()]


def _but_for_the_batch(pair: Pair) -> str:
    """What identifies a pair, whose blocks and batch sizes may differ."""
    return in_block(pair.candidate, 0).model_copy(update={"batch_size": 1}).run_id()


def _beside_others(tables: Tables, records: Records) -> dict[str, str]:
    """What is not valid of runs as others show it, by run id; a diagnosis's beside its own."""
    own = dict(zip(tables.results.run_id, tables.results["flags"], strict=True))
    made = [r for run_id, r in records.items() if run_id not in own and not r.get("profile")]
    unsteady = steadiness.flags(results_table(made, "diagnosis")) if made else {}
    return own | {run_id: validity.SEPARATOR.join(names) for run_id, names in unsteady.items()}


def known(directory: SweepDir, tables: Tables) -> dict[str, dict[str, Any]]:
    """The records of the sweep and of its diagnosis by run id."""
    extra, _ = store.read_records(directory.diagnosis)
    return {record["run_id"]: record for record in [*tables.records, *extra]}


def of_pairs(chosen: Sequence[Pair], records: Records, said: Said = NOTHING) -> list[Verdict]:
    """The verdicts on pairs; what was not measured is left open.

    The intervals of all their ablations hold together: of a report with many pairs a reader takes
    the most striking.

    Args:
        said: what the sweep says of its runs and of the diagnosis's.
    """
    notebook = next(iter(records.values()), {}).get("notebook", "train")
    traced = [[records.get(run.run_id(notebook)) for run in pair.traced] for pair in chosen]
    made = [
        [
            made
            for ablation in _ablations(pair, *_both(two))
            if (made := effect(pair, ablation, records, notebook, said))
        ]
        for pair, two in zip(chosen, traced, strict=True)
    ]
    wide = iter(together([e for effects in made for e in effects]))
    verdicts = [
        _verdict(
            pair,
            two,
            [next(wide) for _ in effects],
            _differ(pair, two, records, notebook) or _take_longer(pair, two),
        )
        for pair, two, effects in zip(chosen, traced, made, strict=True)
    ]
    return [_among(one, verdicts, _without_result(one.pair, records, notebook)) for one in verdicts]


def _among(verdict: Verdict, verdicts: Sequence[Verdict], lost: frozenset[str]) -> Verdict:
    """A verdict with what the others of its report say of it.

    Args:
        lost: the ablations that no run of its own in the sweep survived.
    """
    possible = _possible(verdict, verdicts)
    as_layers = _as_layers(verdict) if math.isnan(possible) else math.nan
    hurtful = _hurtful(verdict, verdicts) | lost
    return replace(verdict, possible=possible, as_layers=as_layers, hurtful=hurtful)


def _possible(verdict: Verdict, among: Iterable[Verdict]) -> float:
    """One bound for the same work, the highest; NaN where a pair of them was measured above it.

    What the layers take alone, or took in a step, differs from run to run, and bounds nothing that
    a step took beside them.
    """
    alike = [one for one in among if _work(one) == _work(verdict)]
    bound = max([v.possible for v in alike if not math.isnan(v.possible)], default=math.nan)
    exceeded = any(one.speedup.estimate > bound for one in alike)
    return math.nan if math.isnan(verdict.possible) or exceeded else bound


def _as_layers(verdict: Verdict) -> float:
    """What a pair's layers alone gain, where its step gains about as much; else NaN."""
    gained = verdict.speedup.estimate / verdict.possible
    return verdict.possible if 1 / ALIKE <= gained <= ALIKE else math.nan


def _work(verdict: Verdict) -> tuple:
    """What a traced pair's layers with weights compute and move, under which policies and jit.

    Without the others: one input rescales images in the network, another before it.
    """
    run = verdict.pair.candidate
    layers = [
        (policy, layer["layer"], layer["flops"], layer["bytes"])
        for policy, record in verdict.records.items()
        for layer in record["work"]["layers"]
        if layer["parameters"]
    ]
    return run.gpu_model, run.backend, run.jit, layers


def _differ(pair: Pair, traced: Sequence[Record | None], records: Records, notebook: str) -> bool:
    """Whether a traced run had other code, data or devices than the sweep's run of its policy."""
    own = [records.get(run.run_id(notebook)) for run in pair.policies]
    return any(
        bool(validity.across({0: one}, {0: other}, ("policy",)))
        for one, other in zip(own, traced, strict=True)
        if one and other
    )


def _take_longer(pair: Pair, traced: Sequence[Record | None]) -> bool:
    """Whether the steps of a traced run took a time that a repeat of the sweep's may not take.

    By its own clock, before any was traced: longer or shorter. Or whether tracing then made their
    operations so much longer that nothing is known of those that were timed.
    """
    if any(breakdown.stretched(record or {}) > MOST_STRETCHED for record in traced):
        return True
    steps = (pair.baseline_step_s(math.nan), pair.step_s)
    timings = [(record or {}).get("timing") or {} for record in traced]
    return any(
        steadiness.are_apart(timing["step_s"], step_s, timing.get("step_ci") or 0.0)
        for timing, step_s in zip(timings, steps, strict=True)
        if timing.get("step_s")
    )


def _hurtful(verdict: Verdict, among: Iterable[Verdict]) -> frozenset[str]:
    """The ablations that made the policy of a verdict's candidate slower, wherever measured.

    Compiling the step does where not to compile it is a gain.
    """
    of = _model(verdict.pair.candidate)
    effects = [e for other in among if _model(other.pair.candidate) == of for e in other.effects]
    gains = [(effect.ablation.name, effect.gains.get(of[-1])) for effect in effects]
    hurt = {name for name, gain in gains if gain and _hurts(gain)}
    helped = {name for name, gain in gains if gain and gain.low > 1}
    return frozenset(hurt | {INVERSE[name] for name in helped & INVERSE.keys()})


def _without_result(pair: Pair, records: Records, notebook: str) -> frozenset[str]:
    """What is advised and, made to the candidate in the sweep, had no run that ended well."""
    changed = {ablation.name: ablation.variants(*pair.policies)[1] for ablation in _ADVISED}

    def ends(run: Run) -> set[str]:
        made = blocks(run, lambda one: records.get(one.run_id(notebook)))
        return {record["status"] for record in made.values()}

    ended = {name: ends(run) for name, run in changed.items()}
    return frozenset(name for name, own in ended.items() if own and "ok" not in own)


def _model(run: Run) -> tuple[str, ...]:
    """What an ablation's effect hangs on first: device, backend, model, policy."""
    return run.gpu_model, run.backend, run.model, run.policy


def _hurts(gain: Contrast) -> bool:
    return gain.high < 1 or gain.estimate < proposals.SLOWER


def _both(traced: Sequence[Record | None]) -> tuple[Record | None, Record | None]:
    """The traced records of a pair; none where one failed: a breakdown of one compares nothing."""
    baseline, candidate = (r if r and r["status"] == "ok" else None for r in traced)
    return (baseline, candidate) if baseline and candidate else (None, None)


def _verdict(
    pair: Pair, traced: Sequence[Record | None], effects: list[Effect], other: bool
) -> Verdict:
    baseline, candidate = _both(traced)
    lost = losses(pair, baseline, candidate, effects)
    return Verdict(
        pair=pair,
        baseline=baseline,
        candidate=candidate,
        possible=roofline.possible_speedup(baseline, candidate)
        if baseline and candidate
        else math.nan,
        losses=lost,
        effects=effects,
        unexplained=_unexplained(candidate) * left(lost),
        missing=_missing(traced),
        other=other,
    )


def _missing(traced: Iterable[Record | None]) -> str:
    """Why there is no time breakdown."""
    for record in traced:
        if record is None:
            return "no steps were traced; mptexp diagnose does"
        if record["status"] != "ok":
            return f"the run to be traced ended as {record['status']}: {record['error']}"
        if record["profile"]["missing"]:
            return record["profile"]["missing"]
    return ""


def _unexplained(candidate: Record | None) -> float:
    seconds = breakdown.by_cause(candidate or {})
    if candidate is None or seconds.empty:
        return math.nan
    return float(seconds["unexplained"] / candidate["timing"]["step_s"])


def _ablations(pair: Pair, baseline: Record | None, candidate: Record | None) -> list[Ablation]:
    """Those that the traced steps ask for, then those that the sweep may hold itself."""
    asked = proposals.worthwhile(pair, baseline, candidate) if baseline and candidate else []
    names = {ablation.name for ablation in asked}
    return asked + [ablation for ablation in ALWAYS if ablation.name not in names]


@dataclass(frozen=True)
class _Traced:
    """A traced record, or nothing, and its time breakdown, which takes a while to make."""

    record: Record
    rows: pd.DataFrame


def _traced(record: Record | None) -> _Traced:
    return _Traced(record or {}, breakdown.rows(record or {}))


def losses(
    pair: Pair, baseline: Record | None, candidate: Record | None, effects: Sequence[Effect]
) -> list[Loss]:
    """What the candidate's step lost to what, the largest first.

    Without a time breakdown of both policies, what the ablations alone say of the input.
    """
    both = (_traced(baseline), _traced(candidate))
    whole = _case(pair, *both, effects)
    made = _losses(whole)
    if not whole.candidate or all(loss.share < LEAST_SHARE for loss in made):
        return made
    # One limit decides of two causes which one work is of: parts of the trace keep to the whole's,
    # else what one step alone took would leave its cause with it, and show in no error.
    slowed = whole.slower_memory.index
    errors = _errors(pair, *both, effects, slowed)
    if not errors:
        return made
    at_most = _at_most(pair, baseline, candidate)
    slower = _shares(_losses(_case(at_most, *both, effects, slowed)))
    certain = []
    for loss in made:
        by_repeats = max(0.0, loss.share - slower.get(loss.cause.name, 0.0))
        least = loss.share - math.hypot(errors[loss.cause.name], by_repeats)
        certain.append(replace(loss, least=least))
    return certain


def _shares(made: Iterable[Loss]) -> dict[str, float]:
    return {loss.cause.name: loss.share for loss in made}


def _errors(
    pair: Pair,
    baseline: _Traced,
    candidate: _Traced,
    effects: Sequence[Effect],
    slowed: pd.Index,
) -> dict[str, float]:
    """By how much each loss's share may be too high, by cause, with a confidence of 95 %.

    By the jackknife over groups of consecutive traced steps (B. Efron, C. Stein, Ann. Statist.
    9(3), 1981): other programs on the machine disturb some steps, and not all alike. Empty where a
    trace has too few steps.
    """
    numbers = [breakdown.groups(each.record) for each in (baseline, candidate)]
    if min(numbers) < FEWEST_GROUPS:
        return {}
    sides = [
        [(_without_group(baseline, n), candidate) for n in range(numbers[0])],
        [(baseline, _without_group(candidate, n)) for n in range(numbers[1])],
    ]
    variances = dict.fromkeys((cause.name for cause in CAUSES), 0.0)
    for side, number in zip(sides, numbers, strict=True):
        shares = [_shares(_losses(_case(pair, *both, effects, slowed))) for both in side]
        for name in variances:
            values = [of.get(name, 0.0) for of in shares]
            variances[name] += (number - 1) * statistics.pvariance(values)
    t = float(special.stdtrit(min(numbers) - 1, 0.95))
    return {name: t * math.sqrt(variance) for name, variance in variances.items()}


def _without_group(traced: _Traced, group: int) -> _Traced:
    return _traced(breakdown.without_group(traced.record, group))


def _at_most(pair: Pair, baseline: Record, candidate: Record) -> Pair:
    """The pair with the longest step of the baseline that the measurements leave possible.

    By the interval of the repeats, and on a CPU by the traced steps: tracing slows both alike.
    """
    ratios = [pair.speedup.estimate, pair.speedup.high]
    profiles = [record["profile"] for record in (baseline, candidate)]
    if all(profile["device"] == "cpu" for profile in profiles):
        ratios.append(profiles[0]["step_s"] / profiles[1]["step_s"])
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    return replace(pair, speedup=replace(pair.speedup, estimate=max(known))) if known else pair


def _losses(case: Case) -> list[Loss]:
    """What the step lost to what, the largest first; together no more than the step."""
    if case.candidate:
        emulated = case.candidate["in_force"]["emulated"]
        causes = [cause for cause in CAUSES if cause.emulated in (None, emulated)]
    else:
        causes = [cause for cause in CAUSES if cause.name in ("pipeline", "compiled")]
    made = [loss for cause in causes if (loss := cause.loss(case, cause))]
    return sorted(within_the_step(case, made), key=lambda x: -x.seconds)


def _case(
    pair: Pair,
    baseline: _Traced,
    candidate: _Traced,
    effects: Sequence[Effect],
    slowed: pd.Index | None = None,
) -> Case:
    """What losses follow from; without records where a policy's steps were not traced or read."""
    if baseline.rows.empty or candidate.rows.empty:
        nothing = _seconds(_traced(None), _traced(None), (0.0, 0.0))
        return Case(pair, {}, {}, nothing, {}, tuple(effects))
    records = (baseline.record, candidate.record)
    # Both as seconds of the sweep's own steps: a traced run is another one.
    steps = (pair.baseline_step_s(records[0]["timing"]["step_s"]), pair.step_s)
    return Case(
        pair,
        *records,
        _seconds(baseline, candidate, steps),
        kernel_arithmetic.missed(candidate.record, candidate.rows),
        tuple(effects),
        roofline.least_s(*records),
        slowed,
    )


def _seconds(baseline: _Traced, candidate: _Traced, steps: tuple[float, float]) -> pd.DataFrame:
    """Seconds of steps of both by cause, layer and op, see `Case.seconds`."""
    before, after = (
        traced.rows.groupby(["cause", "layer", "op"]).share.sum() * step_s
        for traced, step_s in zip((baseline, candidate), steps, strict=True)
    )
    return pd.DataFrame({"baseline_s": before, "candidate_s": after}).fillna(0.0)
