"""What the studies claimed of mixed precision, and whether this sweep is consistent with it.

Speed and accuracy are confirmed or refuted by an interval alone; what was not measured is not
tested here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from mptexp.analysis import accuracy, loss_scale, points, speedups
from mptexp.analysis.sweep_tables import Tables
from mptexp.report import wording
from mptexp.report.wording import INCONCLUSIVE

CONFIRMED, REFUTED, UNTESTED = "confirmed", "refuted", "not tested here"
MIXED = "mixed_float16"
MOST_RUNS = 6  # that a claim names: more are not opened


@dataclass(frozen=True)
class Finding:
    """Of a claim: one of the four words, the evidence, and the ids of the deciding runs."""

    finding: str
    evidence: str = ""
    runs: tuple[str, ...] = ()


NOTHING = Finding(UNTESTED)


def table(tables: Tables) -> list[tuple[str, str, Finding]]:
    """Every claim: its words, its source, and the finding."""
    return [(claim, source, check(tables)) for claim, source, check in CLAIMS]


def _with_tensor_cores(tables: Tables) -> pd.DataFrame:
    """Speedups of mixed_float16 in training on GPUs of compute capability 7.0 and later."""
    cards = {r["run_id"]: r.get("environment") or {} for r in tables.records}
    cores = [(cards[run_id].get("capability") or [0])[0] >= 7 for run_id in tables.results.run_id]
    devices = set(tables.results.gpu_model[cores])
    rows = tables.claims
    return rows[
        (rows.candidate == MIXED)
        & rows.gpu_model.isin(devices)
        & (rows.phase == "train")
        & (rows.baseline == "float32")
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
    where = f"batch size {best.batch_size} of {best.model} on {best.gpu_model}"
    finding = CONFIRMED if best.low >= least else REFUTED if best.high < least else INCONCLUSIVE
    evidence = f"{_largest(best)}, {where}"
    return Finding(finding, evidence, _runs(tables, best, (best.baseline, best.candidate)))


def _largest(row: pd.Series) -> str:
    """The largest speedup, which is at best what it says only where its interval leaves 1 out."""
    return f"{'at best' if row.low > 1 else 'largest ratio'} {wording.ratio_of(row)}"


def _three_times(tables: Tables) -> Finding:
    return _by_speed(tables, _with_tensor_cores(tables), 3.0)


def _not_on_a_v100(tables: Tables) -> Finding:
    rows = _with_tensor_cores(tables).dropna(subset="low")
    rows = rows[rows.gpu_model.str.contains("V100") & (rows.model == "keydana_cnn")]
    if rows.empty:
        return NOTHING
    best = rows.loc[rows.speedup.idxmax()]
    finding = CONFIRMED if best.high < 1.15 else REFUTED if best.low > 1.15 else INCONCLUSIVE
    evidence = f"{_largest(best)}, batch size {best.batch_size}"
    return Finding(finding, evidence, _runs(tables, best, (best.baseline, MIXED)))


def _less_work(tables: Tables) -> Finding:
    """Whether large matrix products in float16 take a quarter of the time, as they did here."""
    peaks = {"float32": [], "float16": []}
    for record in tables.records:
        top = (record.get("work") or {}).get("ceilings") or {}
        capability = record.get("environment", {}).get("capability") or [0]
        if top.get("dtype") in peaks and capability[0] >= 7:
            peaks[top["dtype"]].append((top["matmul_flops_per_s"], record["run_id"]))
    if not all(peaks.values()):
        return NOTHING
    wide, half = (pd.DataFrame(peaks[name])[0].median() for name in ("float32", "float16"))
    runs = tuple(run_id for measured in peaks.values() for _, run_id in measured[:2])
    evidence = f"matrix products in float16 are {half / wide:.1f}× as fast as in float32 (medians)"
    return Finding(CONFIRMED if half / wide >= 4 else REFUTED, evidence, runs)


def _equal_accuracy(tables: Tables) -> Finding:
    return _by_accuracy(tables, MIXED, {"equal": CONFIRMED, "lower": REFUTED, "higher": REFUTED})


def _by_accuracy(tables: Tables, policy: str, words: dict[str, str]) -> Finding:
    """What the verdicts on a policy's accuracy come to: one refutation refutes."""
    usual = replace(tables, results=tables.results[tables.results.run_id.isin(_usual(tables))])
    rows = accuracy.beside_first(accuracy.differences(usual, tables.options.equivalence_margin))
    rows = rows[(rows.candidate == policy) & ~rows.verdict.isin(accuracy.UNDECIDABLE)]
    if rows.empty:
        return NOTHING
    rows = rows.assign(finding=rows.verdict.map(words).fillna(INCONCLUSIVE))
    met = set(rows.finding)
    finding = REFUTED if REFUTED in met else met.pop() if len(met) == 1 else INCONCLUSIVE
    row = rows[rows.finding == finding].iloc[0] if (rows.finding == finding).any() else rows.iloc[0]
    ends = [wording.signed(v) for v in (rows.difference.min(), rows.difference.max())]
    between = ends[0] if ends[0] == ends[1] else " to ".join(ends)
    margin = wording.percentage_points(tables.options.equivalence_margin)
    evidence = (
        f"differences from the baseline {between} percentage points at "
        f"{wording.count(len(rows), 'point')}, margin {margin}"
    )
    return Finding(finding, evidence, _runs(tables, row, (row.baseline, policy)))


def _usual(tables: Tables) -> set[str]:
    """The runs with Keras's own loss scale and without emulated formats."""
    known = {r["run_id"]: r["parameters"] for r in tables.records}
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
        scales = loss_scale.ranges(own)
        good, bad = scales["train"], [*scales["stall"], *scales["diverge"]]
        if good and bad:
            bad = wording.listed([wording.power(s) for s in bad])
            trains = wording.listed([wording.power(s) for s in good])
            return Finding(CONFIRMED, f"{MIXED} trains with {trains}, not with {bad}")
        if len(good) > 1:
            scales = wording.listed([wording.power(s) for s in good])
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
            return Finding(INCONCLUSIVE, evidence)
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
