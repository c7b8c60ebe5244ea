"""What the studies claimed of mixed precision, and what this sweep says of each claim.

Speed and accuracy are confirmed or refuted by an interval alone; what was not measured is not
tested here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from mptexp.analysis import accuracy, exponent_range, loss_scale, points, speedups
from mptexp.analysis.sweep_tables import Tables
from mptexp.report import wording
from mptexp.spec.run import defaults

CONFIRMED, REFUTED, UNDECIDED, UNTESTED = "confirmed", "refuted", "undecided", "not tested here"
MIXED = "mixed_float16"
MOST_RUNS = 6  # that a claim names: more are not looked at


@dataclass(frozen=True)
class Finding:
    """What was found of a claim: one of the four words, why, and the ids of the deciding runs."""

    finding: str
    evidence: str = ""
    runs: tuple[str, ...] = ()


NOTHING = Finding(UNTESTED)


def table(tables: Tables) -> list[tuple[str, str, Finding]]:
    """Every claim: its words, its source, and what was found."""
    return [(claim, source, check(tables)) for claim, source, check in CLAIMS]


def _with_tensor_cores(tables: Tables) -> pd.DataFrame:
    """Speedups of mixed_float16 in training on GPUs of compute capability 7.0 and later."""
    cards = {r["run_id"]: r.get("environment") or {} for r in tables.records}
    cores = [(cards[run_id].get("capability") or [0])[0] >= 7 for run_id in tables.results.run_id]
    devices = set(tables.results.gpu_model[cores])
    found = tables.speedups
    return found[
        (found.candidate == MIXED)
        & found.gpu_model.isin(devices)
        & (found.phase == "train")
        & (found.baseline == "float32")
    ]


def _runs(tables: Tables, row: pd.Series, policies: Sequence[str]) -> tuple[str, ...]:
    """The runs of a point under some policies."""
    ok = tables.ok[tables.ok.policy.isin(policies)]
    same = (ok[points.POINT] == row[points.POINT]).all(axis=1)
    return tuple(ok[same].run_id[:MOST_RUNS])


def _by_speed(tables: Tables, rows: pd.DataFrame, least: float) -> Finding:
    """Whether the largest speedup reaches a factor, by its interval."""
    rows = rows.dropna(subset="low")
    if rows.empty:
        return NOTHING
    best = rows.loc[rows.speedup.idxmax()]
    told = wording.ratio(best.speedup, best.low, best.high, best.blocks)
    where = f"at best {told}, batch size {best.batch_size} of {best.model} on {best.gpu_model}"
    finding = CONFIRMED if best.low >= least else REFUTED if best.high < least else UNDECIDED
    return Finding(finding, where, _runs(tables, best, (best.baseline, best.candidate)))


def _three_times(tables: Tables) -> Finding:
    return _by_speed(tables, _with_tensor_cores(tables), 3.0)


def _not_on_a_v100(tables: Tables) -> Finding:
    rows = _with_tensor_cores(tables).dropna(subset="low")
    rows = rows[rows.gpu_model.str.contains("V100") & (rows.model == "keydana_cnn")]
    if rows.empty:
        return NOTHING
    best = rows.loc[rows.speedup.idxmax()]
    told = wording.ratio(best.speedup, best.low, best.high, best.blocks)
    finding = CONFIRMED if best.high < 1.15 else REFUTED if best.low > 1.15 else UNDECIDED
    evidence = f"at best {told}, batch size {best.batch_size}"
    return Finding(finding, evidence, _runs(tables, best, (best.baseline, MIXED)))


def _less_work(tables: Tables) -> Finding:
    """Whether large matrix products in float16 take a quarter of the time, as they did here."""
    peaks = {"float32": [], "float16": []}
    for record in tables.records:
        top = (record.get("work") or {}).get("ceilings") or {}
        if top.get("dtype") in peaks and (record["environment"].get("capability") or [0])[0] >= 7:
            peaks[top["dtype"]].append((top["matmul_flops_per_s"], record["run_id"]))
    if not all(peaks.values()):
        return NOTHING
    wide, half = (pd.DataFrame(peaks[name])[0].median() for name in ("float32", "float16"))
    runs = tuple(run_id for found in peaks.values() for _, run_id in found[:2])
    evidence = f"matrix products in float16 are {half / wide:.1f}× as fast as in float32 (medians)"
    return Finding(CONFIRMED if half / wide >= 4 else REFUTED, evidence, runs)


def _equal_accuracy(tables: Tables) -> Finding:
    return _by_accuracy(tables, MIXED, {"equal": CONFIRMED, "lower": REFUTED, "higher": REFUTED})


def _by_accuracy(tables: Tables, policy: str, words: dict[str, str]) -> Finding:
    """What the verdicts on a policy's accuracy come to: one refutation refutes."""
    usual = replace(tables, results=tables.results[tables.results.run_id.isin(_usual(tables))])
    found = accuracy.differences(usual, tables.options.equivalence_margin)
    found = accuracy.beside_first(found)
    found = found[found.candidate == policy]
    told = found.assign(finding=found.verdict.map(words).fillna(UNDECIDED))
    told = told[told.verdict != "too few repeats"]
    if told.empty:
        return NOTHING
    met = set(told.finding)
    finding = REFUTED if REFUTED in met else met.pop() if len(met) == 1 else UNDECIDED
    row = told[told.finding == finding].iloc[0] if (told.finding == finding).any() else told.iloc[0]
    ends = [wording.signed(v) for v in (told.difference.min(), told.difference.max())]
    between = ends[0] if ends[0] == ends[1] else " to ".join(ends)
    margin = wording.percentage_points(tables.options.equivalence_margin)
    evidence = (
        f"differences from the baseline {between} percentage points at "
        f"{wording.count(len(told), 'point')}, margin {margin}"
    )
    return Finding(finding, evidence, _runs(tables, row, (row.baseline, policy)))


def _usual(tables: Tables) -> set[str]:
    """The runs with Keras's own loss scale and without emulated formats."""
    known = {r["run_id"]: defaults() | r["parameters"] for r in tables.records}
    formats = ("propagation", "weight_format")
    return {
        run_id
        for run_id, asked in known.items()
        if asked["loss_scale"] in ("auto", "dynamic")
        and all(asked[name] == "policy" for name in formats)
    }


def _float16_fails(tables: Tables) -> Finding:
    rows = tables.results[(tables.results.policy == "float16") & (tables.results.phase == "train")]
    rows = rows[rows.run_id.isin(_usual(tables))]
    bad = rows[rows.status == "diverged"]
    if len(bad):
        evidence = f"{len(bad)} of {wording.count(len(rows), 'run')} diverged"
        return Finding(CONFIRMED, evidence, tuple(bad.run_id[:MOST_RUNS]))
    return _by_accuracy(tables, "float16", {"equal": REFUTED, "lower": CONFIRMED})


def _scale_must_be_chosen(tables: Tables) -> Finding:
    rows = loss_scale.table(tables)
    rows = rows[rows.policy == MIXED] if len(rows) else rows
    for _, own in rows.groupby("point") if len(rows) else ():
        stall, good, diverge = loss_scale.ranges(own)
        if good and (stall or diverge):
            bad = wording.listed([exponent_range.power(s) for s in (*stall, *diverge)])
            trains = wording.listed([exponent_range.power(s) for s in good])
            return Finding(CONFIRMED, f"{MIXED} trains with {trains}, not with {bad}")
        if len(good) > 1:
            scales = wording.listed([exponent_range.power(s) for s in good])
            return Finding(REFUTED, f"{MIXED} trains alike with {scales}")
    return NOTHING


def _larger_batches(tables: Tables) -> Finding:
    """Decided where one of two policies ran at a batch size at which the other had no memory."""
    results = tables.results
    if len(tables.attempts):  # those to find the largest batch
        results = pd.concat([results, tables.attempts[tables.attempts.status == "oom"]])
    best = speedups.at_best_batch(results)
    keys = [name for name in points.POINT if name != "batch_size"]
    mixed = best[(best.policy == MIXED) & (best.baseline != MIXED)]
    both = mixed.merge(best, left_on=[*keys, "baseline"], right_on=[*keys, "policy"])
    for row in both.to_dict("records"):
        own, others = row["largest_x"], row["largest_y"]
        evidence = f"largest batch that ran: {own} in {MIXED}, {others} in {row['baseline_x']}"
        if own >= row["too_large_y"]:
            return Finding(CONFIRMED, evidence)
        if others >= row["too_large_x"]:
            return Finding(REFUTED, evidence)
        if row["too_large_x"] == row["too_large_y"]:
            return Finding(UNDECIDED, evidence)
    return NOTHING


CLAIMS: list[tuple[str, str, Callable[[Tables], Finding]]] = [
    ("Multiplying in float16 is four times less work", "the studies", _less_work),
    ("Mixed precision is 3 to 4 times as fast on Tensor Cores", "M. O'Connor, 2018", _three_times),
    ("It is as accurate as float32", "Micikevicius et al., 2018", _equal_accuracy),
    ("Pure float16 fails to train", "a question and its answers", _float16_fails),
    ("A loss scale must be chosen", "the same answers", _scale_must_be_chosen),
    ("Larger batches fit", "M. O'Connor, 2018", _larger_batches),
    ("No notable speedup on a V100", "S. Keydana, 2020", _not_on_a_v100),
]
