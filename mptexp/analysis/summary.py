"""Statistics of a finished sweep: speedups with intervals, accuracy.

A speedup is baseline time over candidate time: above 1, the candidate is faster.
"""

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from mptexp.analysis import contrast
from mptexp.records import store
from mptexp.records.store import SweepDir
from mptexp.spec import params
from mptexp.spec.grid import REPORT_KEYS
from mptexp.spec.policies import POLICIES

# What two runs must share to be compared, or to be repeats of one another under one policy.
POINT = ["gpu_model", "backend", "dataset", "model", "batch_size", "jit", "input_mode", "phase"]
POINT += ["replicas", "setting"]
RAW = ("windows", "samples")
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?")


@dataclass(frozen=True)
class Options:
    """What a params file says of its report: see spec.REPORT_KEYS."""

    equivalence_margin: float = 0.01
    target_accuracy: float | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True)
class Tables:
    """A finished sweep as tidy tables: runs, epochs, speedups; and what could not be read.

    `records` are without the raw series RAW, which no table needs: of thousands of runs they take
    gigabytes. `attempts` are the runs that searched for the largest batch, the columns of
    store.COLUMNS.
    """

    results: pd.DataFrame
    history: pd.DataFrame
    speedups: pd.DataFrame
    records: list[dict]
    damaged: list[str]
    options: Options = Options()
    attempts: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def ok(self) -> pd.DataFrame:
        """The runs that can be compared."""
        return self.results[self.results.status == "ok"]

    @property
    def trained(self) -> pd.DataFrame:
        """The runs whose accuracy can be compared: trained as long as the others, on real batches.

        Not those that ended because their step time was certain, each after another number of
        steps, nor those whose batch is always the same.
        """
        ended = self.ok.ended_by != "target_ci"
        return self.ok[ended & (self.ok.input_mode != "resident") & (self.ok.phase == "train")]

    @property
    def latencies(self) -> pd.DataFrame:
        """Seconds of every inference batch after warm-up, with each run's point and policy.

        Not of runs whose timings are void.
        """
        # A record of an earlier version does not say how many batches were warm-up.
        kept = {
            r["run_id"]: r["latencies_s"][r["timing"].get("latency_warmup", 1) :]
            for r in self.records
            if "latencies_s" in r
        }
        rows = pd.DataFrame({"run_id": list(kept), "latency_s": list(kept.values())}, dtype=object)
        rows = rows.explode("latency_s").dropna().astype({"latency_s": float})
        timed = self.ok[self.ok.step_s.notna()]
        return rows.merge(timed[["run_id", "policy", *POINT]], on="run_id")

    @property
    def epochs(self) -> pd.DataFrame:
        """The history with each run's parameters beside it."""
        return self.history.merge(
            self.results.drop(columns=["epochs", "val_accuracy"]), on="run_id"
        )


def load(directory: SweepDir) -> Tables:
    """Reads the records of a sweep and computes its tables."""
    records, damaged = store.read_records(directory, without=RAW)
    results = store.results(records, directory.name)
    history = store.history(records)
    attempts = _attempts(directory, records)
    found = speedups(results)
    return Tables(results, history, found, records, damaged, options(directory), attempts)


def _attempts(directory: SweepDir, records: Sequence[dict]) -> pd.DataFrame:
    """The attempts to find the largest batch, their settings named as the sweep's runs' are."""
    tried, _ = store.read_records(directory.search)
    for record in tried:
        like = records[0]["parameters"] if records else {}
        length = {name: like.get(name) for name in ("max_steps", "target_ci")}
        record["parameters"] = record["parameters"] | length
    return store.results(tried, directory.name, beside=records)


def device_samples(directory: SweepDir, tables: Tables) -> pd.DataFrame:
    """What the device read over time in one run of each policy: the first block, largest batch.

    Returns:
        Columns policy, seconds (since the first sample), utilization_frac, power_w; empty where
        nothing was read.
    """
    ok = tables.ok.sort_values(["block", "batch_size"], ascending=[True, False], kind="stable")
    frames = []
    for run in ok.drop_duplicates("policy").itertuples():
        samples = store.read_record(directory.record(run.run_id)).get("samples")
        frames.append(_over_time(samples).assign(policy=run.policy))
    found = pd.concat(frames) if frames else pd.DataFrame()
    return found if len(found) and found.utilization_frac.notna().any() else pd.DataFrame()


def _over_time(samples: object) -> pd.DataFrame:
    """A record's samples as numbers: on a CPU utilization is what its counters grew by."""
    table = pd.DataFrame(samples if isinstance(samples, list) else [])
    names = ["time", "utilization", "power_w", "own_cpu_s", "processors"]
    numbers = table.reindex(columns=names).apply(pd.to_numeric, errors="coerce")
    grown = numbers.own_cpu_s.diff() / numbers.time.diff() / numbers.processors
    return pd.DataFrame(
        {
            "seconds": numbers.time - numbers.time.min(),
            "utilization_frac": numbers.utilization.fillna(grown),
            "power_w": numbers.power_w,
        }
    ).astype(float)


def options(directory: SweepDir) -> Options:
    """The report's options in the directory's params file; the defaults where it has none."""
    path = directory.params
    known = params.load(path.read_text(encoding="utf-8")) if path.exists() else None
    known = known if isinstance(known, dict) else {}
    return Options(**{name: known[name] for name in REPORT_KEYS if known.get(name)})


def speedups(results: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """Speedup of every policy over strict float32 and over the device's default.

    Ratios are formed within a block, so that drift of the machine cancels; the run is the unit.
    The estimate is the geometric mean of the blocks' ratios; low and high are Student's t interval
    of their logarithms. Fewer than three blocks claim no interval (low and high are empty).

    Args:
        results: one row per run, the columns of store.COLUMNS.
        confidence: nominal coverage of the interval.

    Returns:
        Columns of POINT, baseline, candidate, speedup (baseline time / candidate time), low,
        high, blocks.
    """
    columns = [*POINT, "baseline", "candidate", "speedup", "low", "high", "blocks"]
    rows = []
    for point, default, times in by_block(results[results.status == "ok"], "step_s"):
        for baseline in baselines(default, times):
            for candidate in [p for p in times if p != baseline]:
                over = contrast.paired(times[baseline], times[candidate], confidence=confidence)
                if over.n:
                    rows.append([*point, baseline, candidate, *over.columns("speedup").values()])
    return pd.DataFrame(rows, columns=columns)


def by_block(
    runs: pd.DataFrame, value: str, keys: Sequence[str] = POINT
) -> Iterator[tuple[tuple, str, dict[str, np.ndarray]]]:
    """Every point, its default policy, and each policy's values there: one per block, or NaN.

    One pivot for all points, because one for each takes ten milliseconds.
    """
    runs = runs.dropna(subset=value)
    if runs.empty:
        return
    defaults = runs.drop_duplicates(list(keys)).set_index(list(keys)).default_policy.to_dict()
    table = runs.pivot_table(index=[*keys, "block"], columns="policy", values=value)
    points = table.index.droplevel("block")
    first = np.flatnonzero(~points.duplicated())
    for point, rows in zip(points[first], np.split(table.to_numpy(float), first[1:]), strict=True):
        known = dict(zip(table, rows.T, strict=True))
        yield point, defaults[point], {p: v for p, v in known.items() if not np.isnan(v).all()}


def baselines(default: str, times: Container[str]) -> list[str]:
    """The device's default and strict float32, where they are among a point's policies."""
    wanted = dict.fromkeys([default, "float32"])
    return [name for name in wanted if name in times]


def best_batches(results: pd.DataFrame) -> pd.DataFrame:
    """Every policy at the batch size that gives it the most images per second.

    Where a point was measured at several batch sizes: a 16-bit policy may have room for a batch
    that float32 has not. A batch size with a run that ran out of memory does not count.

    Returns:
        Columns of POINT without batch_size, policy, batch_size (its best), largest (the largest
        that ran), too_large (the smallest that ran out of memory, or NaN), images_per_s (median),
        baseline, speedup (images per second over the baseline's at its own best batch size, above 1
        is faster; NaN for the baseline), low, high, blocks.
    """
    keys = [name for name in POINT if name != "batch_size"]
    own = [*keys, "policy"]
    ended = with_jit(results[results.status.isin(["ok", "oom"])])
    ended = ended[ended.groupby(keys).batch_size.transform("nunique") > 1]
    out, ok = (ended[ended.status == status] for status in ("oom", "ok"))
    sizes, lost = (pd.MultiIndex.from_frame(t[[*own, "batch_size"]]) for t in (ok, out))
    ran = ok[~sizes.isin(lost)].dropna(subset="images_per_s")  # void where runs ran side by side
    best = _fastest(ran, own)
    at_best = ran.merge(best[[*own, "batch_size"]])
    told = best.set_index(own).to_dict("index")
    too_large = out.groupby(own).batch_size.min().to_dict()
    rows = []
    for point, default, rates in by_block(at_best, "images_per_s", keys):
        baseline = next(iter(baselines(default, rates)), "")
        for policy in [p for p in POLICIES if p in rates]:
            named = dict(zip(own, (*point, policy), strict=True)) | {"baseline": baseline}
            least = {"too_large": too_large.get((*point, policy), np.nan)}
            over = _over(rates, policy, baseline)
            rows.append(named | told[(*point, policy)] | least | over)
    columns = ["batch_size", "largest", "too_large", "images_per_s"]
    figures = ["baseline", "speedup", "low", "high", "blocks"]
    return pd.DataFrame(rows, columns=[*own, *columns, *figures])


def _fastest(runs: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The batch size with the most images per second, and the largest one, of each of some keys."""
    rates = runs.groupby([*keys, "batch_size"], as_index=False).images_per_s.median()
    rates["largest"] = rates.groupby(list(keys)).batch_size.transform("max")
    return rates.loc[rates.groupby(list(keys)).images_per_s.idxmax()]


def with_jit(results: pd.DataFrame) -> pd.DataFrame:
    """Fills in the jit of runs that ended before they were compiled: as like runs had it."""
    asked = {"on": True, "off": False}
    keys = [name for name in POINT if name not in ("batch_size", "jit")]
    ok = results[results.status == "ok"]
    known = {point: jit.iloc[0] for point, jit in ok.groupby(keys).jit if jit.nunique() == 1}
    points = results[keys].itertuples(index=False, name=None)
    pairs = zip(points, results.jit, strict=True)
    return results.assign(
        jit=[known.get(p, j) if j == "auto" else asked.get(j, j) for p, j in pairs]
    )


def _over(rates: Mapping[str, np.ndarray], policy: str, baseline: str) -> dict[str, float]:
    over = contrast.Contrast()
    if baseline and policy != baseline:
        over = contrast.paired(rates[policy], rates[baseline])
    return over.columns("speedup") if over.n else dict.fromkeys(over.columns("speedup"), np.nan)


def rank(column: pd.Series) -> pd.Series:
    """Sort key for a column: policies in the order of spec.POLICIES, numbers in text by value."""
    if column.name == "policy":
        return column.map(POLICIES.index)
    return column.map(_by_number) if column.name == "setting" else column


def _by_number(text: str) -> tuple[tuple[float, str], ...]:
    """Sorts `loss_scale 8` before `loss_scale 128`, and words behind numbers."""
    words = re.split(r"[ ,]+", text)
    return tuple((float(w), "") if NUMBER.fullmatch(w) else (math.inf, w) for w in words)


def headline(tables: Tables) -> pd.DataFrame:
    """One row per point and policy: the table of a report.

    Columns: step_s, step_s_low, step_s_high, images_per_s, latency_p50_s, latency_p99_s (medians
    over blocks; latencies of inference only), flops_per_s, bytes_per_s, mfu_frac (medians),
    baseline (the device's default where it was measured at this point, else float32, else none),
    memory_ratio (peak memory over the baseline's: below 1, the policy takes less),
    speedup/low/high/blocks over it, strict_speedup/strict_low/strict_high/strict_blocks over
    float32, val_accuracy (mean), val_accuracy_low, val_accuracy_high (least, most), repeats,
    peak_memory_bytes, emulated, default_policy.
    """
    keys = [*POINT, "policy"]
    cut = tables.ok.ended_by == "target_ci"
    ok = tables.ok.assign(val_accuracy=tables.ok.val_accuracy.mask(cut))
    # What no run has is a column of objects, whose median pandas takes group by group.
    empty = {name: pd.to_numeric(ok[name]) for name in ok if ok[name].isna().all()}
    ok = ok.assign(**empty)
    rows = ok.groupby(keys, sort=True, as_index=False).agg(
        step_s=("step_s", "median"),
        step_s_low=("step_s_low", "median"),
        step_s_high=("step_s_high", "median"),
        images_per_s=("images_per_s", "median"),
        latency_p50_s=("latency_p50_s", "median"),
        latency_p99_s=("latency_p99_s", "median"),
        flops_per_s=("flops_per_s", "median"),
        bytes_per_s=("bytes_per_s", "median"),
        mfu_frac=("mfu_frac", "median"),
        repeats=("run_id", "count"),
        val_accuracy=("val_accuracy", "mean"),
        val_accuracy_low=("val_accuracy", "min"),
        val_accuracy_high=("val_accuracy", "max"),
        peak_memory_bytes=("peak_memory_bytes", "median"),
        emulated=("emulated", "first"),
        default_policy=("default_policy", "first"),
    )
    measured = rows.groupby(POINT).policy.transform(lambda names: [set(names)] * len(names))
    rows["baseline"] = [
        next((name for name in (default, "float32") if name in names), "")
        for default, names in zip(rows.default_policy, measured, strict=True)
    ]
    memory = rows.set_index(keys).peak_memory_bytes.astype(float)
    base = pd.MultiIndex.from_frame(rows[[*POINT, "baseline"]])
    rows["memory_ratio"] = rows.peak_memory_bytes.to_numpy(float) / memory.reindex(base).to_numpy()
    found = tables.speedups.rename(columns={"candidate": "policy"})
    rows = rows.merge(found, "left", [*keys, "baseline"])
    figures = ["speedup", "low", "high", "blocks"]
    strict = found[found.baseline == "float32"].drop(columns="baseline")
    strict = strict.rename(columns={name: f"strict_{name}" for name in figures})
    rows = rows.merge(strict, "left", keys)
    return rows.sort_values(keys, key=rank, kind="stable", ignore_index=True)


def panels(table: pd.DataFrame) -> pd.Series:
    """What tells the points of a table apart, besides the batch size: the titles of panels."""
    names = [n for n in POINT if n not in ("gpu_model", "batch_size") and table[n].nunique() > 1]
    label = table.gpu_model.astype(str)
    for name in names:
        label = label + ", " + said(table[name], ("backend", "dataset", "model", "setting"))
    return label


XLA = {True: "with XLA", False: "without XLA"}


def digits(value: float) -> str:
    """A number to three digits, a large one without an exponent of ten: 4,310, 18.2, 0.353."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"


def teraflops(rate: float) -> str:
    """A rate in FLOP/s as text."""
    return f"{digits(rate / 1e12)} TFLOP/s"


def gigabytes(rate: float) -> str:
    """A rate in bytes/s as text."""
    return f"{digits(rate / 1e9)} GB/s"


def said(values: pd.Series, bare: Sequence[str]) -> pd.Series:
    """Values of a parameter as text, after its name unless that is one of the bare ones."""
    if values.name == "jit":
        return values.map(XLA)
    words = "" if values.name in bare else str(values.name).replace("_", " ") + " "
    return words + values.astype(str)


def left_out(results: pd.DataFrame) -> pd.DataFrame:
    """How many runs of each policy did not end well: columns policy, status, left, runs."""
    runs = results.groupby("policy").run_id.count()
    bad = results[results.status != "ok"].groupby(["policy", "status"]).run_id.count()
    table = bad.rename("left").reset_index()
    return table.assign(runs=table.policy.map(runs)).sort_values("policy", key=rank)


def accuracy_range(tables: Tables) -> pd.DataFrame:
    """Least and most of the policies' mean validation accuracies at a point, and their difference.

    Only points that two policies reached with an accuracy.
    """
    table = headline(tables)
    means = table.dropna(subset="val_accuracy").groupby(POINT).val_accuracy
    spread = pd.DataFrame({"least": means.min(), "most": means.max()})
    return spread.assign(difference=spread.most - spread.least)[means.count() > 1]


def starts_agree(results: pd.DataFrame, records: Sequence[dict]) -> bool:
    """Whether all runs of a block with float32 variables began from the same weights and order."""
    started = {
        r["run_id"]: (r["in_force"].get("initial_weights"), r["in_force"].get("data_order"))
        for r in records
        if r["status"] == "ok" and r.get("in_force", {}).get("variable_dtype") == "float32"
    }
    rows = results[results.run_id.isin(list(started))]
    groups = rows.groupby([*POINT, "block"]).run_id
    return all(len({started[run_id] for run_id in group}) == 1 for _, group in groups)


def versions(records: Sequence[dict]) -> list[str]:
    """The distinct mptexp versions and commits of the records; more than one is worth a warning."""
    cards = [r["environment"] for r in records if r.get("environment")]
    found = {
        f"{c['packages'].get('mptexp', '?')} {(c['commit'] or '')[:12]}".strip() for c in cards
    }
    return sorted(found)
