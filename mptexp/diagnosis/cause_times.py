"""How much of a step a cause takes: the functions that the rows of `causes` name.

Seconds are those of the candidate's step in the sweep itself. A wait is lost in full, and so is
what precision cannot shrink; of other work what it took more than it should under the policy. Where
an ablation took a cause away, its measurement replaces that of the time breakdown, if it has an
interval: a single run proves nothing. No second of the step is lost twice, see `within_the_step`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from mptexp.diagnosis import ablations
from mptexp.diagnosis.effects import Effect
from mptexp.diagnosis.pairs import Pair
from mptexp.records.tables import valid_peak
from mptexp.spec.policies import EFFECTIVE_SHARE

if TYPE_CHECKING:
    from mptexp.diagnosis.causes import Cause

LEAST_SHARE = 0.10  # of the step: from here a cause is named, and an ablation worth a run
NOT_FASTER = 0.95  # of the baseline's time: what 16 bits do not shorten by more
MOST_LAYERS = 3  # named
BYTES = {"float32": 4, "float64": 8}  # of types that are wider than those of 16-bit policies
AS_BEFORE = 0.75  # of the baseline's time: what a layer takes that casts to the baseline's type
# Times the baseline's: memory-bound work that 16 bits make slower. Up to there the conversions
# around work in float32, such as batch normalization that is not fused, may explain it by bytes;
# from LITTLE_SLOWER on, so may single operations that are so much slower.
SLOWER, LITTLE_SLOWER = 1.6, 1.1
NO_FASTER_PEAK = 1.1  # of the baseline's: a type whose measured peak is below it is no faster
# Times the baseline's: what no kernel takes, but a loop over single numbers.
REFERENCE = 5
# Matrix work that takes so many times what the measured peaks allow has a bad kernel; in less time
# than this, launching it may be what takes long.
BAD_KERNEL, LEAST_KERNEL_S = 10, 1e-3
NOTHING = pd.DataFrame(
    columns=["baseline_s", "candidate_s"], index=pd.Index([], name="layer"), dtype=float
)
NEARLY_ALL = 0.8  # of a loss: layers that hold so much of it are named


@dataclass(frozen=True)
class Loss:
    """What a cause takes of the candidate's step, and what speaks for it.

    Attributes:
        seconds: lost in a step.
        share: of the step.
        spent_s: seconds of a step, by the time breakdown, in which the loss lies.
        baseline_s: the same of the baseline's step; NaN where the two are not compared.
        layers: those in which the loss lies, where that is known.
        effects: of the ablations that took the cause away.
        least: the share that is exceeded for certain, by what the traced steps and the repeats
            differ; NaN where nothing says how much they do.
        replaces: the share that the trace alone gives to the cause, where what an ablation saved
            counts in its place; NaN where the trace counts.
    """

    cause: "Cause"
    seconds: float
    share: float
    spent_s: float
    baseline_s: float = np.nan
    layers: tuple[str, ...] = ()
    effects: tuple[Effect, ...] = ()
    least: float = np.nan
    replaces: float = np.nan

    @property
    def beyond_s(self) -> float:
        """Seconds that the candidate alone loses: without what the baseline pays in full, too."""
        paid = self.baseline_s if self.cause.is_in_full and not self.is_measured else 0.0
        return self.seconds - paid

    @property
    def is_measured(self) -> bool:
        """Whether it is what an ablation saved."""
        return not math.isnan(self.replaces)


class Removed(NamedTuple):
    """Seconds of the step that an ablation saved.

    Attributes:
        seconds: 0 where it proves no saving.
        most: that its interval leaves possible.
    """

    seconds: float
    most: float
    effect: Effect


@dataclass(frozen=True)
class Case:
    """A diagnosed pair, as far as losses follow from it.

    Attributes:
        baseline: record of the traced run of the baseline's policy.
        candidate: record of that of the candidate's.
        seconds: of both policies' steps by cause, layer and op: baseline_s, candidate_s.
        missed: those of the candidate's matrix work, by layer, that ran without Tensor Cores that
            the type has.
        effects: of all ablations that were made.
        least: seconds of a step by layer that the measured peaks allow at best.
        slowed: layers whose memory-bound work is slower than the baseline's, where a whole trace,
            of which this is a part, has told them.
    """

    pair: Pair
    baseline: Mapping[str, Any]
    candidate: Mapping[str, Any]
    seconds: pd.DataFrame
    missed: Mapping[str, float]
    effects: tuple[Effect, ...]
    least: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))
    slowed: pd.Index | None = None

    @cached_property
    def _by_layer(self) -> dict[str, pd.DataFrame]:
        """Seconds of both by layer, of each row of the breakdown."""
        sums = self.seconds.groupby(level=["cause", "layer"]).sum()
        return {str(name): table.droplevel(0) for name, table in sums.groupby(level="cause")}

    def of(self, name: str) -> pd.DataFrame:
        """Seconds of both by layer, in a row of the breakdown."""
        return self._by_layer.get(name, NOTHING)

    @cached_property
    def wide(self) -> pd.DataFrame:
        """Layers that compute in more than 16 bits under a 16-bit policy, see `_wide`."""
        return _wide(self)

    @cached_property
    def slower_memory(self) -> pd.DataFrame:
        """Layers whose memory-bound work takes longer than before, see `_slower_memory`."""
        if self.slowed is None:
            return _slower_memory(self)
        return self.of("memory").reindex(self.slowed, fill_value=0.0)

    @cached_property
    def not_faster(self) -> tuple[pd.Series, pd.Series, pd.Series]:
        """Operations that are not faster than the baseline's, see `_not_faster`."""
        return _not_faster(self)

    def effects_of(self, cause: "Cause") -> tuple[Effect, ...]:
        """What the ablations of a cause changed."""
        names = {ablation.name for ablation in cause.ablations}
        return tuple(e for e in self.effects if e.ablation.name in names and e.gains)

    def removed(self, cause: "Cause") -> Removed | None:
        """What its ablation saved the candidate; None without a valid one with an interval."""
        effect, policy = next(iter(self.effects_of(cause)), None), self.pair.candidate.policy
        gain = effect.gains.get(policy) if effect else None
        if effect is None or gain is None or math.isnan(gain.low) or not effect.is_valid(policy):
            return None
        saved = self.pair.step_s * (1 - 1 / gain.estimate) * (gain.low > 1)
        return Removed(saved, self.pair.step_s * max(0.0, 1 - 1 / gain.high), effect)

    def most_by_batch(self, cause: "Cause") -> float:
        """The most that a cause can take which a larger batch shares out; infinite where unknown.

        With twice the examples in a step each of them has half as much of it.
        """
        policy = self.pair.candidate.policy
        highest = [
            effect.gains[policy].high
            for effect in self.effects_of(cause)
            if effect.ablation.name == ablations.BATCH.name and effect.is_valid(policy)
            if policy in effect.gains and not math.isnan(effect.gains[policy].high)
        ]
        saved = (2 * self.pair.step_s * max(0.0, 1 - 1 / high) for high in highest)
        return min(saved, default=math.inf)

    def loss(self, cause: "Cause", seconds: float, spent_s: float, **evidence: Any) -> Loss:
        """A loss of so many seconds."""
        share = seconds / self.pair.step_s
        return Loss(cause, float(seconds), float(share), float(spent_s), **evidence)

    def saved(
        self, cause: "Cause", removed: Removed, traced_s: float = 0.0, **evidence: Any
    ) -> Loss:
        """A loss of what an ablation saved, in place of the seconds that the trace gives to it."""
        known = {"spent_s": math.nan, "effects": (removed.effect,)} | evidence
        replaces = float(traced_s / self.pair.step_s)
        return self.loss(cause, removed.seconds, replaces=replaces, **known)


def within_the_step(case: Case, made: Iterable[Loss]) -> list[Loss]:
    """The losses, as far as they fit into the step beside each other; those of 0 s left out.

    What an ablation saved holds some of all that the trace tells apart, as XLA's code holds time of
    the host: of that as much counts as the ablations leave of the step. Each of several was made
    alone, and what two of them save is saved once: it counts with the larger. So does work that
    two causes have which are cut out of rows of the breakdown; the rows themselves share none.
    """
    ordered = sorted((loss for loss in made if loss.seconds > 0), key=lambda x: -x.seconds)
    measured = _fitting([loss for loss in ordered if loss.is_measured], 1.0)
    traced = [loss for loss in ordered if not loss.is_measured]
    traced.sort(key=lambda x: not x.cause.in_breakdown)
    unexplained = case.of("unexplained").candidate_s.sum() / case.pair.step_s
    room = 1 - sum(loss.replaces for loss in measured) - unexplained
    part = left(measured)
    kept = [*measured, *(_scaled(loss, part) for loss in _fitting(traced, room))]
    return [loss for loss in kept if loss.seconds > 0]


def _fitting(ordered: Iterable[Loss], room: float) -> list[Loss]:
    """The losses, each no more than those before it leave of a share of the step."""
    kept = []
    for loss in ordered:
        share = min(loss.share, max(room, 0.0))
        kept.append(_scaled(loss, share / loss.share))
        room -= share
    return kept


def left(made: Iterable[Loss]) -> float:
    """The part of what the trace tells apart that is of the step which ablations leave.

    The trace's own time of the causes that they took away is not in either.
    """
    measured = [loss for loss in made if loss.is_measured]
    by_trace = 1 - sum(loss.replaces for loss in measured)
    by_ablations = max(0.0, 1 - sum(loss.share for loss in measured))
    return min(1.0, by_ablations / by_trace) if by_trace > 0 else 1.0


def _scaled(loss: Loss, factor: float) -> Loss:
    return replace(loss, seconds=loss.seconds * factor, share=loss.share * factor)


def in_full(case: Case, cause: "Cause") -> Loss:
    """All the time that the breakdown gives to the cause, also where the baseline pays it too."""
    return _of_rows(case, cause, case.of(cause.name))


def casts(case: Case, cause: "Cause") -> Loss:
    """The same without layers that compute in more than 16 bits, where casts are of that cause."""
    return _of_rows(case, cause, case.of(cause.name).drop(case.wide.index, errors="ignore"))


def _of_rows(case: Case, cause: "Cause", table: pd.DataFrame) -> Loss:
    if table.empty:  # of most causes, for which pandas would take most of the time
        return case.loss(cause, 0.0, 0.0)
    before, after = table.sum()
    known = {"layers": _layers(table.candidate_s), "effects": case.effects_of(cause)}
    lost = min(after, case.most_by_batch(cause))
    return case.loss(cause, lost, after, baseline_s=before, **known)


def _layers(lost: pd.Series) -> tuple[str, ...]:
    """The few layers in which nearly all of a loss lies; none where it is spread, or has none."""
    order = np.argsort(-lost.to_numpy(), kind="stable")
    sums = lost.to_numpy()[order].clip(min=0).cumsum()
    enough = int((sums < NEARLY_ALL * sums[-1]).sum()) + 1 if len(sums) else 1
    named = tuple(lost.index[order[:enough]])
    return () if "" in named or enough > MOST_LAYERS else named


def wait(case: Case, cause: "Cause") -> Loss | None:
    """What the ablation of input saved, where its interval shows a saving; else the traced wait.

    Of the wait as much as the interval leaves possible. Nothing where less than half of what was
    saved is a wait by the trace: that is for `beside`.
    """
    (before, spent), removed = case.of(cause.name).sum(), case.removed(cause)
    if removed is None:
        return case.loss(cause, spent, spent, baseline_s=before)
    if _mostly_beside(case, removed.seconds):
        return None
    if removed.seconds:
        return case.saved(cause, removed, spent, spent_s=spent, baseline_s=before)
    known = {"baseline_s": before, "effects": (removed.effect,)}
    return case.loss(cause, min(spent, removed.most), spent, **known)


def beside(case: Case, cause: "Cause") -> Loss | None:
    """What the ablation of input saved, where no trace shows that the step waits for it.

    A pipeline that reads ahead slows the step beside it, of which the time breakdown knows nothing.
    """
    removed = case.removed(cause)
    if removed is None or not (case.seconds.empty or _mostly_beside(case, removed.seconds)):
        return None
    return case.saved(cause, removed)


def _mostly_beside(case: Case, saved_s: float) -> bool:
    """Whether the wait that the trace shows is less than half of what the ablation saved."""
    return case.of("input").candidate_s.sum() < saved_s / 2


def by_ablation(case: Case, cause: "Cause") -> Loss | None:
    """What the ablation saved, if its interval shows that it saved anything."""
    removed = case.removed(cause)
    if removed is None or not removed.seconds:
        return None
    return case.saved(cause, removed)


def beyond_half(case: Case, cause: "Cause") -> Loss:
    """What memory-bound work took beyond half of the baseline's: 16 bits halve its bytes.

    Without layers in which it is slower than the baseline's, which bytes do not explain, or whose
    type is the cause.
    """
    apart = [*case.slower_memory.index, *case.wide.index]
    table = case.of(cause.name).drop(apart, errors="ignore")
    lost = table.candidate_s - table.baseline_s / 2
    before, after = table.sum()
    return case.loss(
        cause,
        lost.sum(),
        after,
        baseline_s=before,
        layers=_layers(lost),
        effects=tuple(effect for effect in case.effects_of(cause) if effect.speedup),
    )


def slower_memory(case: Case, cause: "Cause") -> Loss | None:
    """What activations, normalization and the like took, beyond half, in layers they slow down.

    Such as the error function of GELU, which a CPU computes in bfloat16 one number at a time.
    """
    slow = case.slower_memory
    if slow.empty:
        return None
    lost = (slow.candidate_s - slow.baseline_s / 2).sort_values(ascending=False)
    layers = tuple(lost.index[:MOST_LAYERS])
    whole = slow.sum()
    return case.loss(
        cause, lost.sum(), whole.candidate_s, baseline_s=whole.baseline_s, layers=layers
    )


def _slower_memory(case: Case) -> pd.DataFrame:
    """The layers whose memory-bound work takes longer than the baseline's.

    As a whole, or by no more than what single operations do, which a layer's others may hide. Less
    than is named stays what all of it is, memory-bound work that 16 bits did not halve.
    """
    table = case.of("memory").drop(["", *case.wide.index], errors="ignore")
    before, after = table.baseline_s, table.candidate_s
    ops = case.seconds[case.seconds.index.get_level_values("cause") == "memory"]
    slow = ops[(ops.baseline_s > 0) & (ops.candidate_s > SLOWER * ops.baseline_s)]
    longer = (slow.candidate_s - slow.baseline_s).groupby("layer").sum().reindex(table.index)
    by_ops = (after > LITTLE_SLOWER * before) & (longer >= after - before)
    slow = table[(before > 0) & ((after > SLOWER * before) | by_ops)]
    lost_s = (slow.candidate_s - slow.baseline_s / 2).sum()
    return slow if lost_s >= LEAST_SHARE * case.pair.step_s else slow[:0]


def emulation(case: Case, cause: "Cause") -> Loss:
    """What 16-bit work without instructions for it took beyond the baseline's."""
    kinds = pd.concat([case.of(name) for name in ("matrix", "memory", "casts")])
    # The differences are summed, because a difference of sums loses digits.
    lost = (kinds.candidate_s - kinds.baseline_s).sum()
    before, after = kinds.baseline_s.sum(), kinds.candidate_s.sum()
    return case.loss(cause, lost, after, baseline_s=before)


def float32_fallback(case: Case, cause: "Cause") -> Loss | None:
    """What layers that compute in 32 or 64 bits under a 16-bit policy would save in 16.

    By the ablation where it shows a saving; else what their matrix work and memory-bound work take
    beyond 16 bits', and all of their casts, as far as its interval leaves that possible.
    """
    removed = case.removed(cause)
    if removed and removed.seconds:
        asked = case.pair.candidate.float32_layers.split(",")
        named = tuple(name.strip() for name in asked)
        return case.saved(cause, removed, _saved_in_16_bits(case).sum(), layers=named)
    wide = case.wide
    if wide.empty:
        return None
    lost, whole = _saved_in_16_bits(case), sum(_in_layers(case, wide.index).values()).sum()
    layers = tuple(lost.sort_values(ascending=False).index[:MOST_LAYERS])
    seconds = min(lost.sum(), removed.most) if removed else lost.sum()
    known = {"layers": layers, "effects": (removed.effect,) if removed else ()}
    return case.loss(cause, seconds, whole.candidate_s, baseline_s=whole.baseline_s, **known)


def _saved_in_16_bits(case: Case) -> pd.Series:
    """Seconds by layer that those in more than 16 bits would save in 16, by the trace.

    None of a layer whose products would take longer than its casts save.
    """
    took = _in_layers(case, case.wide.index)
    saved = sum(took[name].candidate_s * (1 - case.wide[name]) for name in case.wide)
    return saved.clip(lower=0.0)


def _in_layers(case: Case, layers: pd.Index) -> dict[str, pd.DataFrame]:
    """Seconds of both by layer, of the rows of the breakdown that a layer's type changes."""
    rows = ("matrix", "memory", "casts")
    return {name: case.of(name).reindex(layers).fillna(0.0) for name in rows}


def _wide(case: Case) -> pd.DataFrame:
    """Layers with matrix work that compute in more than 16 bits under a 16-bit policy.

    By their own dtype, or because they cast within `call`; without matrix work, those in 64 bits.

    Returns:
        Index: layer. Columns: matrix, memory, casts: the part of their time that it would take in
        16 bits: what was measured of the layer alone; else by the ratio of the measured peaks, as
        memory-bound work of the other layers, and no casts.
    """
    work = case.candidate["work"]["layers"]
    matrix = {*case.of("matrix").index} - {""}
    types = {x["layer"]: x["compute_dtype"] for x in work if x.get("compute_dtype") in BYTES}
    types = {layer: dtype for layer, dtype in types.items() if layer in matrix}
    profile = case.candidate.get("profile") or {}
    doubled = profile.get("float64_layers", [])
    types |= dict.fromkeys({*case.of("memory").index} & {*doubled}, "float64")
    types |= _casting(case, types, profile.get("wide_products"))
    parts, memory = {}, _memory_in_16_bits(case, [*types])
    for layer, dtype in types.items():
        own = memory if dtype == "float32" else 2 / BYTES[dtype]
        parts[layer] = _matrix_in_16_bits(case, dtype), own, 0.0
    for x in work:
        if pd.notna(x.get("alone_low_s")):
            alone = min(1.0, x["alone_low_s"] / x["alone_s"])
            parts[x["layer"]] = alone, alone, 0.0
    return pd.DataFrame.from_dict(parts, "index", columns=["matrix", "memory", "casts"])


def _matrix_in_16_bits(case: Case, dtype: str) -> float:
    """The part of a wider type's time that matrix work takes in 16 bits, by the measured peaks.

    Above 1 on a device that is slower in 16 bits.
    """
    slow, fast = _peaks(case)
    if dtype == "float64":  # older records lack its peak: half of that of 32 bits is 64 bits' most
        slow = case.candidate["work"]["ceilings"].get("float64_flops_per_s", slow / 2)
    valid = valid_peak(case.baseline, case.candidate)
    return slow / fast if valid else min(1.0, slow / fast)


def _memory_in_16_bits(case: Case, wide: Sequence[str]) -> float:
    """The part of float32's time that memory-bound work takes in 16 bits.

    By its bytes a half; as that of the other layers, the more there is of it beside this: a CPU may
    convert number by number and save nothing, but a millisecond elsewhere does not show it.
    """
    memory = case.of("memory")
    own = memory.baseline_s.reindex(wide).sum()
    others = memory.drop(["", *wide], errors="ignore")
    before, after = others[(others > 0).all(axis=1)].sum()
    whole = before + own
    return float(np.clip((after + own / 2) / whole, 0.5, 1.0)) if whole else 0.5


def _casting(
    case: Case, kept: Mapping[str, str], known: Mapping[str, str] | None
) -> dict[str, str]:
    """Layers that cast to 32 or 64 bits within `call`, and to which.

    16 bits do not make these layers' matrix work faster. Where a kernel's name tells the type, that
    counts.

    Args:
        known: those by the graph; without one, the program has products in wider types than the
            policy's, which those of known layers do not explain.
    """
    told = [x["layer"] for x in case.candidate["work"]["layers"] if x.get("alone_s")]
    table = case.of("matrix").drop(["", *told, *case.missed, *kept], errors="ignore")
    table = table[(table.baseline_s > 0) & (table.candidate_s > AS_BEFORE * table.baseline_s)]
    if known is not None:
        return {layer: known[layer] for layer in map(str, table.index) if layer in known}
    dtype = _unexplained_type(case, kept)
    return dict.fromkeys(map(str, table.index), dtype) if dtype else {}


def _unexplained_type(case: Case, kept: Mapping[str, str]) -> str:
    """The type wider than the policy's in which the program has products that no layer explains.

    Empty where there are few.
    """
    work, settings = case.candidate["work"]["layers"], case.candidate.get("in_force", {})
    flops, wide = settings.get("products_flops", 0), settings.get("arithmetic") or {}
    rest = {dtype: wide.get(dtype, 0.0) * flops for dtype in BYTES}
    for layer in work:
        if layer["layer"] in kept:
            known = layer.get("flops")
            rest[kept[layer["layer"]]] -= flops if pd.isna(known) else known
    dtype = max(rest, key=lambda name: rest[name])
    return dtype if rest[dtype] > (1 - EFFECTIVE_SHARE) * flops else ""


def slower_layers(case: Case, cause: "Cause") -> Loss | None:
    """What operations of layers took that are not faster than the baseline's.

    Such as the gradient of a depthwise filter, in a layer whose other operations are faster. Where
    the layer alone is faster in 16 bits, they should have taken so much less than the baseline's.
    Not what reference code computes, nor what all matrix work takes longer on this device, see
    `slower_type`. None where the trace names no layer.
    """
    after, before, best = case.not_faster
    own = ~_by_reference(case, after, before)
    after, before, best = after[own], before[own], best[own]
    lost = (after - best).groupby("layer").sum().sort_values(ascending=False)
    if lost.empty:
        return None
    layers = tuple(lost.index)
    effects = tuple(e for e in case.effects if e.ablation.change.get("float32_layers") in layers)
    return case.loss(
        cause,
        lost.sum(),
        after.sum(),
        baseline_s=before.sum(),
        layers=layers[:MOST_LAYERS],
        effects=effects,
    )


def reference_code(case: Case, cause: "Cause") -> Loss | None:
    """What operations took beyond the baseline's that oneDNN computes by its reference code."""
    after, before, _ = case.not_faster
    own = _by_reference(case, after, before)
    after, before = after[own], before[own]
    lost = (after - before).groupby("layer").sum()
    if lost.empty:
        return None
    return case.loss(
        cause,
        lost.sum(),
        after.sum(),
        baseline_s=before.sum(),
        layers=_layers(lost),
        effects=case.effects_of(cause),
    )


def _by_reference(case: Case, after: pd.Series, before: pd.Series) -> pd.Series:
    """Which operations reference code computes: the slow ones, where the run has any by it."""
    known = (case.candidate.get("in_force") or {}).get("reference")
    return (after > REFERENCE * before) & bool(known)


def _not_faster(case: Case) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Operations that are not faster than before: seconds after, before, and at best."""
    after, before = _alike(case)
    alone = [_alone(record) for record in (case.baseline, case.candidate)]
    most = _longer_by_peak(case)
    ratio = (alone[1] / alone[0]).clip(upper=most)
    best = before * ratio.reindex(after.index.get_level_values("layer")).fillna(most).to_numpy()
    best = best.mask(_by_reference(case, after, before), before)
    # What only fell short of its best is not slow: it must not be faster than before.
    slow = (after > best) & (after >= NOT_FASTER * before)
    slow &= ~after.index.isin(case.wide.index, level="layer")  # those are a cause of their own
    return after[slow], before[slow], best[slow]


def _longer_by_peak(case: Case) -> float:
    """Times the baseline's that matrix work takes by the measured peaks; 1 where it is no longer.

    A CPU of AVX512_BF16 without AMX may multiply bfloat16 at half the rate of float32: that is the
    device's, and no layer's. Reference code is a cause of its own.
    """
    if not _is_no_faster(case):
        return 1.0
    slow, fast = _peaks(case)
    return max(1.0, slow / fast)


def widened(record: Mapping[str, Any]) -> bool:
    """Whether the program that XLA made for a CPU multiplies in wider types than the policy's.

    A peak in 16 bits then bounds none of its products.
    """
    products = (record.get("profile") or {}).get("products") or {}
    wide = bool(products) and products.keys() <= BYTES.keys()
    return wide and record["work"]["ceilings"]["dtype"] not in BYTES


def _is_no_faster(case: Case) -> bool:
    """Whether the device's measured peak in 16 bits is no higher than the baseline's.

    Not where the step's own work in 16 bits is faster: then a peak was measured beside other
    programs, as one was that is not valid. Nor where a compiler widened all products.
    """
    if not valid_peak(case.baseline, case.candidate) or widened(case.candidate):
        return False
    slow, fast = _peaks(case)
    before, after = case.of("matrix").drop(case.wide.index, errors="ignore").sum()
    return bool(fast < NO_FASTER_PEAK * slow and before <= NO_FASTER_PEAK * after)


def bad_kernels(case: Case, cause: "Cause") -> Loss | None:
    """What matrix work far below the measured peaks takes beyond what other layers' would take.

    Slow under both policies, such as a first convolution at an unlucky shape. Not what another
    cause has: work that is slower in 16 bits, in layers kept in float32, or without Tensor Cores.
    """
    apart = [*case.missed, *case.wide.index]
    took = case.of("matrix").candidate_s.drop(apart, errors="ignore")
    after, _, best = case.not_faster
    named = (after - best).groupby("layer").sum()
    took = (took - named.reindex(took.index).fillna(0.0)).drop("", errors="ignore")
    least = case.least.reindex(took.index)
    bad = (took > BAD_KERNEL * least) & (took >= LEAST_KERNEL_S)
    if not bad.any():
        return None
    others, theirs = took[~bad].sum(), least[~bad].sum()
    usual = min(max(others / theirs, 1.0), BAD_KERNEL) if theirs else 1.0
    lost = (took - usual * least)[bad].sort_values(ascending=False)
    layers = tuple(lost.index[:MOST_LAYERS])
    effects = case.effects_of(cause)
    return case.loss(cause, lost.sum(), took[bad].sum(), layers=layers, effects=effects)


def no_faster_type(case: Case, cause: "Cause") -> Loss | None:
    """Matrix work, where the device's measured peak in 16 bits is about the baseline's."""
    return None if _is_slower(case) else _by_the_device(case, cause)


def slower_type(case: Case, cause: "Cause") -> Loss | None:
    """Matrix work, where the device's measured peak in 16 bits is below the baseline's."""
    return _by_the_device(case, cause) if _is_slower(case) else None


def _is_slower(case: Case) -> bool:
    slow, fast = _peaks(case)
    return slow > NO_FASTER_PEAK * fast


def _by_the_device(case: Case, cause: "Cause") -> Loss | None:
    """All matrix work, but for what layers take longer than the peaks explain, and wider types."""
    if not _is_no_faster(case):
        return None
    longer, _, best = case.not_faster
    wide = _in_layers(case, case.wide.index)["matrix"].candidate_s
    saved = wide * (1 - case.wide["matrix"].clip(upper=1.0))
    before, after = case.of("matrix").sum()
    lost = after - (longer - best).sum() - saved.sum()
    return case.loss(cause, lost, after, baseline_s=before)


def _peaks(case: Case) -> list[float]:
    """FLOP/s of a large matrix product under both policies, as measured."""
    return [
        record["work"]["ceilings"]["matmul_flops_per_s"]
        for record in (case.baseline, case.candidate)
    ]


def _alike(case: Case) -> tuple[pd.Series, pd.Series]:
    """Seconds of matrix work by layer and op, after and before, of layers that both policies have.

    Where their operations have other names, such as a fused convolution, the layer as a whole.
    """
    matrix = case.seconds[case.seconds.index.get_level_values("cause") == "matrix"].droplevel(0)
    ran = matrix.gt(0).groupby("layer")
    both, same = ran.any().all(axis=1), ran.all().all(axis=1)
    table = matrix.reset_index()
    table = table[table.layer.map(both).astype(bool) & (table.layer != "")]
    table["op"] = table.op.where(table.layer.map(same), "")
    sums = table.groupby(["layer", "op"])[["candidate_s", "baseline_s"]].sum()
    return sums.candidate_s, sums.baseline_s


def _alone(record: Mapping[str, Any]) -> pd.Series:
    """Seconds that each layer with a kernel takes alone."""
    known = {x["layer"]: x["alone_s"] for x in record["work"]["layers"] if x.get("alone_s")}
    return pd.Series(known, dtype=float)


def without_tensor_cores(case: Case, cause: "Cause") -> Loss | None:
    """What matrix work without Tensor Cores would save at the ratio of the measured peaks.

    Not in layers that compute in more than 16 bits: those are a cause of their own.
    """
    missed = {layer: s for layer, s in case.missed.items() if layer not in case.wide.index}
    if not missed:
        return None
    slow, fast = _peaks(case)
    spent = sum(missed.values())
    return case.loss(cause, spent * max(0.0, 1 - slow / fast), spent, layers=tuple(missed))
