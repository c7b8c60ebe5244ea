"""What the studies claimed of mixed precision, and whether this sweep is consistent with it.

Each claim has a rule that decides, shown beside the finding: by intervals alone where there are
any. What was not measured is not tested here.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from mptexp.analysis import accuracy, emulated, loss_scale, memory, points, speedups, validity
from mptexp.analysis.sweep_tables import Tables
from mptexp.host.devices import has_tensor_cores
from mptexp.report.text import task_words, wording
from mptexp.report.text.wording import INCONCLUSIVE
from mptexp.spec import tasks

CONSISTENT, INCONSISTENT, UNTESTED = "consistent", "inconsistent", "not tested here"
MIXED = "mixed_float16"
DIFFERENCE = ("difference", "low", "high", "verdict")  # columns of a difference in accuracy
OPEN = ("undecided", "incomplete")  # losses that are neither small nor large
MOST_RUNS = 6  # that a claim names: more are not opened


@dataclass(frozen=True)
class Finding:
    """Of a claim: one of the four words, the evidence, and the ids of the deciding runs."""

    finding: str
    evidence: str = ""
    runs: tuple[str, ...] = ()


NOTHING = Finding(UNTESTED)


@dataclass(frozen=True)
class Claim:
    """What a study claims: its words, whose they are, the rule that decides, and its check."""

    words: str
    source: str
    rule: str
    check: Callable[[Tables], Finding]


def table(tables: Tables) -> list[tuple[Claim, Finding]]:
    """Every claim and what a sweep says of it."""
    return [(claim, claim.check(tables)) for claim in CLAIMS]


def over_all(sweeps: Mapping[str, Sequence[tuple[Claim, Finding]]]) -> list[dict[str, Any]]:
    """Every claim once, with the findings of all sweeps that test it, by their names."""
    return [
        {
            "claim": claim,
            "findings": [
                (name, found)
                for name, rows in sweeps.items()
                for found in (rows[place][1],)
                if found.finding != UNTESTED
            ],
        }
        for place, claim in enumerate(CLAIMS)
    ]


def _has_tensor_cores(record: Mapping[str, Any]) -> bool:
    return bool(has_tensor_cores(record.get("environment") or {}))


def _with_tensor_cores(tables: Tables) -> pd.DataFrame:
    """Speedups of mixed_float16 in training on GPUs with Tensor Cores."""
    known = tables.records_by_id
    cores = [_has_tensor_cores(known[run_id]) for run_id in tables.results.run_id]
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
    return tuple(points.sharing(ok, row).run_id[:MOST_RUNS])


def _by_speed(
    tables: Tables, rows: pd.DataFrame, limit: float, words: tuple[str, str], where: str
) -> Finding:
    """Where the interval of the largest speedup lies: words for above a limit and for below it."""
    rows = rows.dropna(subset="low")
    if rows.empty:
        return NOTHING
    best = rows.loc[rows.speedup.idxmax()]
    above, below = words
    finding = above if best.low >= limit else below if best.high < limit else INCONCLUSIVE
    # It is at best what it says only where its interval leaves 1 out.
    own = tables.ok[tables.ok.gpu_model == best.gpu_model]
    over = wording.strict(best.baseline, own.default_policy.iloc[0]) + best.baseline
    largest = f"{'at best' if best.low > 1 else 'largest ratio'} {wording.ratio_of(best)}"
    largest += f" over {over}" * bool(best.low > 1)
    runs = _runs(tables, best, (best.baseline, best.candidate))
    return Finding(finding, f"{largest}, {where.format(**best)}", runs)


def _three_times(tables: Tables) -> Finding:
    where = "batch size {batch_size} of {model} on {gpu_model}"
    return _by_speed(tables, _with_tensor_cores(tables), 3.0, (CONSISTENT, INCONSISTENT), where)


def _not_on_a_v100(tables: Tables) -> Finding:
    rows = _with_tensor_cores(tables)
    rows = rows[rows.gpu_model.str.contains("V100") & (rows.model == "keydana_cnn")]
    return _by_speed(tables, rows, 1.15, (INCONSISTENT, CONSISTENT), "batch size {batch_size}")


def _less_work(tables: Tables) -> Finding:
    """Whether large matrix products in float16 take a quarter of the time, as they did here."""
    rows = []
    for record in tables.records:
        top = (record.get("work") or {}).get("ceilings") or {}
        if top.get("dtype") in ("float32", "float16") and _has_tensor_cores(record):
            device, peak = record["parameters"]["gpu_model"], top["matmul_flops_per_s"]
            rows.append((device, top["dtype"], peak, record["run_id"]))
    peaks = pd.DataFrame(rows, columns=["device", "dtype", "peak", "run_id"])
    medians = peaks.pivot_table(index="device", columns="dtype", values="peak", aggfunc="median")
    medians = medians.reindex(columns=["float16", "float32"]).dropna()
    if medians.empty:
        return NOTHING
    ratios = medians.float16 / medians.float32
    met = {CONSISTENT if ratio >= 4 else INCONSISTENT for ratio in ratios}
    finding = met.pop() if len(met) == 1 else INCONCLUSIVE
    each = [f"{ratio:.1f}× as fast as in float32 on {device}" for device, ratio in ratios.items()]
    evidence = f"matrix products in float16 are {wording.listed(each)} (medians)"
    used = peaks[peaks.device.isin(ratios.index)].groupby(["device", "dtype"]).head(2)
    return Finding(finding, evidence, tuple(used.run_id[:MOST_RUNS]))


def _equal_accuracy(tables: Tables) -> Finding:
    return _by_accuracy(
        tables, MIXED, {"equal": CONSISTENT, "lower": INCONSISTENT, "higher": INCONSISTENT}
    )


def _together(findings: Iterable[str]) -> str:
    """What several findings come to: one that contradicts decides."""
    met = set(findings)
    return INCONSISTENT if INCONSISTENT in met else met.pop() if len(met) == 1 else INCONCLUSIVE


# Of what no interval decides: what more images may, and what needs none.
TESTED = ("diverged", "too few images")


def _by_accuracy(tables: Tables, policy: str, words: dict[str, str]) -> Finding:
    """What the verdicts on a policy's accuracy come to."""
    rows = _accuracies(tables, policy)
    rows = rows[~rows.verdict.isin(accuracy.UNDECIDABLE) | rows.verdict.isin(TESTED)]
    if rows.empty:
        return NOTHING
    words, lost = words | {"diverged": INCONSISTENT}, rows[rows.verdict == "diverged"]
    beyond = _beyond(rows, tables.options.equivalence_margin)
    findings = rows.verdict.map(words).where(beyond).fillna(INCONCLUSIVE)
    finding = _together(findings)
    deciding = rows.runs[findings == finding]
    measure = task_words.MEASURES[tasks.IMAGES.name]
    known = rows.drop(lost.index)
    parts = [f"runs diverged at {wording.count(len(lost), 'point')}"] * bool(len(lost))
    if len(known):
        parts.append(
            f"differences from the baseline {measure.between(known.difference)} at "
            f"{wording.count(len(known), 'point')}, "
            f"margin {measure.margin(tables.options.equivalence_margin)}"
        )
    evidence = "; ".join(parts)
    runs = (deciding if len(deciding) else rows.runs).iloc[0]
    return Finding(finding, evidence, tuple(runs[:MOST_RUNS]))


def _beyond(rows: pd.DataFrame, margin: float) -> pd.Series:
    """Whether what is lower or higher is so by more than the margin, as the rules say."""
    apart = (rows.high < -margin) | (rows.low > margin)
    return apart | ~rows.verdict.isin(["lower", "higher"])


def _accuracies(tables: Tables, policy: str) -> pd.DataFrame:
    """A policy's differences in accuracy at Keras's own loss scale, those of the report's tables.

    Columns difference, low, high, verdict and runs, the ids of those that were compared.
    """
    usual = _usual(tables)
    table = accuracy.beside_first(accuracy.differences(tables))
    # The studies' claims are of images.
    table = points.of_task(table, tasks.IMAGES)
    scaled = loss_scale.table(tables)
    if len(scaled):
        scaled = points.of_task(scaled[scaled.policy == policy], tasks.IMAGES)
    rows = [
        (*(row[n] for n in DIFFERENCE), _runs(tables, row, (row.baseline, policy)))
        for _, row in table[table.candidate == policy].iterrows()
    ]
    rows += [
        (row.difference, row.low, row.high, row.verdict, row.run_ids) for row in scaled.itertuples()
    ]
    made = pd.DataFrame(rows, columns=[*DIFFERENCE, "runs"])
    return made[made.runs.map(lambda runs: bool(usual & set(runs))).astype(bool)]


def _usual(tables: Tables) -> set[str]:
    """The runs with Keras's own loss scale and without emulated formats."""
    asked = {r["run_id"]: r["parameters"] for r in tables.records}
    return {
        run_id
        for run_id, p in asked.items()
        if p["loss_scale"] in ("auto", "dynamic")
        and p["propagation"] == p["weight_format"] == "policy"
    }


def _float16_fails(tables: Tables) -> Finding:
    rows = tables.results[(tables.results.policy == "float16") & (tables.results.phase == "train")]
    rows = rows[rows.run_id.isin(_usual(tables) & _where_baselines_train(tables))]
    bad = rows[rows.status == "diverged"]
    if len(bad):
        evidence = (
            f"{len(bad)} of {wording.count(len(rows), 'run')} diverged, where float32 trained"
        )
        return Finding(CONSISTENT, evidence, tuple(bad.run_id[:MOST_RUNS]))
    return _by_accuracy(tables, "float16", {"equal": INCONSISTENT, "lower": CONSISTENT})


def _where_baselines_train(tables: Tables) -> set[str]:
    """The runs at points at which no run of a baseline diverged or stayed at chance level.

    At too large a learning rate every policy diverges, which says nothing of float16.
    """
    point = {r["run_id"]: accuracy.shared(r["parameters"]) for r in tables.records}
    runs = tables.results[tables.results.phase == "train"]
    runs = runs[(runs.policy == "float32") | (runs.policy == runs.default_policy)]
    runs = runs[runs.policy != "float16"]
    untrained = runs["flags"].map(lambda flags: "not trained" in validity.names_of(flags))
    failed, points_of = (runs.status == "diverged") | untrained.astype(bool), runs.run_id.map(point)
    trained = {*points_of[runs.status == "ok"]} - {*points_of[failed]}
    return {run_id for run_id, own in point.items() if own in trained}


def _scaled(tables: Tables) -> Iterator[pd.DataFrame]:
    """What is known of mixed_float16's loss scales, for each point; see `loss_scale.table`."""
    rows = loss_scale.table(tables)
    if rows.empty:
        return
    rows = rows[(rows.policy == MIXED) & _beyond(rows, tables.options.equivalence_margin)]
    yield from (own for _, own in rows.groupby("point"))


def _powers(scales: Sequence[float], own: pd.DataFrame) -> str:
    unscaled = 1.0 not in set(own.loss_scale)
    names = ["no scale" if s == 1 and unscaled else wording.power(s) for s in scales]
    return wording.listed(names)


def _of_scales(own: pd.DataFrame, scales: Sequence[float]) -> pd.DataFrame:
    """The rows of a point with some of its loss scales."""
    return own[own.loss_scale.map(loss_scale.number).isin(scales)]


def _named(rows: pd.DataFrame) -> tuple[str, ...]:
    """The runs of such rows, as many as are named."""
    return tuple(run_id for ids in rows.run_ids for run_id in ids)[:MOST_RUNS]


def _scale_must_be_chosen(tables: Tables) -> Finding:
    """An absurd scale alone shows nothing: training without one must fail, and with one succeed."""
    findings = []
    for own in _scaled(tables):
        scales, runs = loss_scale.ranges(own), _named(_of_scales(own, [1]))
        good, bad = scales["train"], [*scales["stall"], *scales["diverge"]]
        larger = [scale for scale in good if scale > 1]
        if 1 in bad and larger:
            evidence = f"{MIXED} trains with {_powers(larger, own)}, not without a scale"
            return Finding(CONSISTENT, evidence, runs)
        if 1 in good:
            evidence = f"{MIXED} trains as float32 without a scale"
            findings.append(Finding(INCONSISTENT, evidence, runs))
    return findings[0] if findings else NOTHING


def _too(outcome: str, side: Callable[[float, float], bool]) -> Callable[[Tables], Finding]:
    """Whether a scale beyond all that train has an outcome: a stall or a divergence.

    Where none is shown to train, beyond all that are not shown to fail.
    """

    def check(tables: Tables) -> Finding:
        for own in _scaled(tables):
            scales = loss_scale.ranges(own)
            good, does = scales["train"] or scales[""], "trains" if scales["train"] else "not"
            beyond = [s for s in scales[outcome] if good and all(side(s, g) for g in good)]
            if beyond:
                fails = f"{MIXED} {outcome}s with {_powers(beyond, own)}"
                failed = _of_scales(own, beyond)
                lost, runs = int(failed.diverged.sum()), int(failed.runs.sum())
                some = f" in {lost} of {runs} runs" * (0 < lost < runs)
                evidence = f"{fails}{some}, {does} with {_powers(good, own)}"
                finding = INCONCLUSIVE if some else CONSISTENT
                return Finding(finding, evidence, _named(failed))
        return NOTHING

    return check


def _formats(
    chosen: Callable[[emulated.Point], bool], small: str, large: str
) -> Callable[[Tables], Finding]:
    """What the losses in some emulated formats come to; one that contradicts decides.

    The runs that are named are of the setting that says so most clearly.
    """

    def check(tables: Tables) -> Finding:
        words = {"small": small, "large": large, "diverged": large}
        words |= dict.fromkeys(OPEN, INCONCLUSIVE)
        met = [p for p in emulated.points(tables) if chosen(p) and p.size in words]
        if not met:
            return NOTHING
        finding = _together(words[p.size] for p in met)
        deciding = [p for p in met if words[p.size] == finding] or met
        outermost = min if words["small"] == finding else max
        point = outermost(deciding, key=lambda p: p.loss.estimate if p.loss.n else math.inf)
        evidence = "; ".join(_losses(met, size) for size in dict.fromkeys(p.size for p in met))
        return Finding(finding, evidence, tuple(point.runs.values())[:MOST_RUNS])

    return check


def _losses(met: Iterable[emulated.Point], size: str) -> str:
    """`2 settings: loss small, +0.04 to +0.3 points`: those of one size."""
    losses = [p.loss.estimate for p in met if p.size == size]
    named = wording.count(len(losses), "setting")
    if size == "diverged":
        return f"{named}: diverged"
    return f"{named}: loss {size}, {wording.signed_range(min(losses), max(losses))} points"


def _sixteen(rounding: str, fraction: int = 15) -> Callable[[emulated.Point], bool]:
    """Whether a point is in 16-bit fixed point of at most so many bits of fraction, rounded so."""

    def chosen(point: emulated.Point) -> bool:
        own, how = point.fixed_point, point.choice["rounding"]
        return bool(own and own.bits == 16 and own.fraction_bits <= fraction and how == rounding)

    return chosen


def _dynamic(point: emulated.Point) -> bool:
    return point.choice["propagation"].startswith("dynamic<10")


def _no_master(point: emulated.Point) -> bool:
    return point.lacks_master_weights and point.choice["rounding"] == "nearest"


def _larger_batches(tables: Tables) -> Finding:
    """Decided where one of two policies ran at a batch size at which the other had no memory."""
    if not memory.is_relied_on(tables):
        return NOTHING
    results = tables.results
    if len(tables.attempts):  # those to find the largest batch
        results = pd.concat([results, tables.attempts[tables.attempts.status == "oom"]])
    best = speedups.at_best_batch(replace(tables, results=results))
    keys = [name for name in points.POINT if name != "batch_size"]
    mixed = best[(best.policy == MIXED) & (best.baseline != MIXED)]
    both = mixed.merge(best, left_on=[*keys, "baseline"], right_on=[*keys, "policy"])
    for row in both.to_dict("records"):
        own, others = row["largest_x"], row["largest_y"]
        evidence = f"largest batch that ran: {own} in {MIXED}, {others} in {row['baseline_x']}"
        if own >= row["too_large_y"]:
            return Finding(CONSISTENT, evidence)
        if others >= row["too_large_x"]:
            return Finding(INCONSISTENT, evidence)
        if row["too_large_x"] == row["too_large_y"]:
            return Finding(INCONCLUSIVE, evidence)
    return NOTHING


GUPTA_TRAINS = 14  # bits of fraction with which rounding to nearest is not claimed to fail
LITTLE = f"{emulated.LITTLE:g} percentage points"
INTERVAL = "the 95 % interval of the speedup"
MARGIN = "the sweep's margin of equivalence"

CLAIMS = (
    Claim(
        "Multiplying in float16 is four times less work",
        "the studies",
        "large matrix products in float16 at least 4 times as fast, on Tensor Cores",
        _less_work,
    ),
    Claim(
        "Mixed precision is three times as fast or more on Tensor Cores",
        "M. O'Connor, 2018",
        f"{INTERVAL} at its largest lies above 3, or below",
        _three_times,
    ),
    Claim(
        "No notable speedup on a V100",
        "S. Keydana, 2020",
        f"{INTERVAL} of her network lies below 1.15, or above",
        _not_on_a_v100,
    ),
    Claim(
        "It is as accurate as float32",
        "Micikevicius et al., 2018",
        f"the difference lies within {MARGIN}, or beyond it",
        _equal_accuracy,
    ),
    Claim(
        "Pure float16 fails to train",
        "a question and its answers",
        "with the loss scale `auto` or `dynamic` it diverges, or its accuracy is lower by more "
        f"than {MARGIN}",
        _float16_fails,
    ),
    Claim(
        "bfloat16 converges as float32 does",
        "a question and its answers",
        f"the difference of mixed_bfloat16 lies within {MARGIN}, or below it",
        lambda tables: _by_accuracy(
            tables,
            "mixed_bfloat16",
            {"equal": CONSISTENT, "higher": CONSISTENT, "lower": INCONSISTENT},
        ),
    ),
    Claim(
        "A loss scale must be chosen",
        "a question and its answers",
        "mixed_float16 fails without a scale and trains with one above 1; that some scale is too "
        "large or too small does not show it",
        _scale_must_be_chosen,
    ),
    Claim(
        "Too large a loss scale gives Inf and NaN",
        "a question and its answers",
        "every run diverges with a scale above all with which it trains; where it is shown to with "
        "none, above all with which it is not shown to fail",
        _too("diverge", operator.gt),
    ),
    Claim(
        "Too small a loss scale does not converge",
        "a question and its answers",
        f"it falls behind float32 by more than {MARGIN} with a scale below all with which it "
        "trains; where it is shown to with none, below all with which it is not shown to fail",
        _too("stall", operator.lt),
    ),
    Claim(
        "Larger batches fit",
        "M. O'Connor, 2018",
        "one policy ran at a batch size at which the other was out of memory",
        _larger_batches,
    ),
    Claim(
        "16-bit weights without a float32 copy lose accuracy",
        "Micikevicius et al., 2018",
        f"the interval of the loss lies above {LITTLE}, or below, which decides in one setting",
        _formats(_no_master, INCONSISTENT, CONSISTENT),
    ),
    Claim(
        "16-bit fixed point trains with stochastic rounding",
        "Gupta et al., 2015",
        f"the interval of the loss lies below {LITTLE}, or above, which decides in one setting",
        _formats(_sixteen("stochastic"), CONSISTENT, INCONSISTENT),
    ),
    Claim(
        "16-bit fixed point fails with rounding to nearest",
        "Gupta et al., 2015",
        f"with fewer than {GUPTA_TRAINS} bits of fraction, the interval of the loss lies above "
        f"{LITTLE}, or below, which decides in one setting",
        _formats(_sixteen("nearest", GUPTA_TRAINS - 1), INCONSISTENT, CONSISTENT),
    ),
    Claim(
        "10 bits between layers and 12 of weights suffice",
        "Courbariaux et al., 2014",
        f"the interval of the loss lies below {LITTLE}, or above, which decides in one setting",
        _formats(_dynamic, CONSISTENT, INCONSISTENT),
    ),
    Claim(
        "Binary weights and activations train",
        "Courbariaux, Hubara et al., 2016",
        f"the interval of the loss lies below {LITTLE}, or above, which decides in one setting",
        _formats(lambda p: p.choice["propagation"] == "binary", CONSISTENT, INCONSISTENT),
    ),
)
