"""A sweep's records as tidy tables: runs, epochs, speedups, latencies, samples of the device."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pandas as pd

from mptexp.analysis import completeness, speedups, validity
from mptexp.analysis.completeness import Asked
from mptexp.analysis.points import POINT
from mptexp.records import consistency, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.records.tables import history_table, results_table, untimed
from mptexp.spec import strict_model, yaml_documents
from mptexp.spec.grid import REPORT_KEYS, Sweep

RAW = ("windows", "samples")
TRIED = ("gpu_model", "model", "policy")  # of a search: for which its batch is the largest
P = ParamSpec("P")
T = TypeVar("T")


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
    COLUMNS. `damaged` and `changed` are a sentence for each record, those of the search, of the
    diagnosis and of runs that were measured again too, that cannot be read, or is another than the
    one that was written. `asked` is how the runs and the params file agree. `superseded` are runs
    that were measured again though nothing of them was not valid, the columns of COLUMNS; its
    `block` is also the call's. `tried` are the records of a training in the policy that was
    advised.
    """

    results: pd.DataFrame
    history: pd.DataFrame
    speedups: pd.DataFrame
    records: list[dict]
    damaged: list[str]
    options: Options = Options()
    attempts: pd.DataFrame = field(default_factory=pd.DataFrame)
    changed: list[str] = field(default_factory=list)
    asked: Asked = field(default_factory=Asked)
    superseded: pd.DataFrame = field(default_factory=pd.DataFrame)
    tried: list[dict] = field(default_factory=list)
    # What `once` has computed.
    known: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def records_by_id(self) -> dict[str, dict]:
        """The records by run id."""
        return {record["run_id"]: record for record in self.records}

    @cached_property
    def parts(self) -> dict[str, Hashable]:
        """Which runs were made next to one another, see `validity.parts`."""
        return validity.parts(self.records)

    def records_by_block(self, runs: pd.DataFrame) -> dict[int, dict]:
        """The records of some runs of which each is of another block."""
        return {b: self.records_by_id[i] for b, i in zip(runs.block, runs.run_id, strict=True)}

    @cached_property
    def ok(self) -> pd.DataFrame:
        """The runs that can be compared; emulated is False where a record does not say."""
        ok = self.results[self.results.status == "ok"]
        return ok.assign(emulated=ok.emulated.eq(True)) if "emulated" in ok else ok

    @property
    def price_per_hour(self) -> float | None:
        """The price that the params file gives; None where it cannot hold of every device."""
        one = self.results.gpu_model.nunique() == 1
        return self.options.price_per_hour if one else None

    @property
    def claims(self) -> pd.DataFrame:
        """The speedups with the intervals that hold for the whole sweep in place of their own."""
        ends = {"low": self.speedups.claim_low, "high": self.speedups.claim_high}
        return self.speedups.assign(**ends).drop(columns=["claim_low", "claim_high"])

    @cached_property
    def ends_by_runs(self) -> dict[speedups.Sides, speedups.Ends]:
        """The intervals of `claims` by the runs that they rest on."""
        return speedups.ends_by_runs(self.ok, self.claims)

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

        Not of runs whose timings are not valid.
        """
        kept = {
            r["run_id"]: r["latencies_s"][r["timing"].get("latency_warmup", 0) :]
            for r in self.records
            if "latencies_s" in r
        }
        rows = pd.DataFrame({"run_id": list(kept), "latency_s": list(kept.values())}, dtype=object)
        rows = rows.explode("latency_s").dropna().astype({"latency_s": float})
        timed = self.ok[self.ok.step_s.notna()]
        return rows.merge(timed[["run_id", "policy", *POINT]], on="run_id")

    @cached_property
    def best_batches(self) -> pd.DataFrame:
        """Every policy at its best batch size, see `speedups.best_batches`."""
        return speedups.best_batches(self)

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """The history with each run's parameters."""
        return self.history.merge(
            self.results.drop(columns=["epochs", "val_accuracy"]), on="run_id"
        )


def once(function: Callable[Concatenate[Tables, P], T]) -> Callable[Concatenate[Tables, P], T]:
    """A function of a sweep's tables that computes each result once; nobody may change it."""

    @wraps(function)
    def known(tables: Tables, *words: P.args, **named: P.kwargs) -> T:
        key = function, words, *named.items()
        if key not in tables.known:
            tables.known[key] = function(tables, *words, **named)
        return tables.known[key]  # type: ignore[no-any-return]

    return known


def load(directory: SweepDir) -> Tables:
    """Reads the records of a sweep and computes its tables."""
    records, damaged = store.read_records(directory, without=RAW)
    changed = store.changed(records, directory)
    for part in directory.parts[1:]:
        inner, faults = store.read_records(part, without=RAW)
        damaged, changed = damaged + faults, changed + store.changed(inner, part)
    superseded = [store.superseded_records(part, without=RAW) for part in directory.parts]
    damaged += [fault for kept in superseded for fault in kept.damaged]
    changed += [other for kept in superseded for other in kept.changed]
    results = flagged(records, directory.name)
    history = history_table(records)
    attempts = _attempts(directory, records)
    again = _superseded(directory.name, records, superseded[0].records)
    ratios = speedups.at_same_batch(results, superseded=again)
    settings = options(directory)
    wanted = completeness.of(records, directory.params_text)
    tried, _ = store.read_records(directory.trial, without=RAW)
    return Tables(
        *(results, history, ratios, records, damaged, settings, attempts, changed, wanted, again),
        tried,
    )


def flagged(records: Sequence[dict], sweep: str, beside: Sequence[dict] = ()) -> pd.DataFrame:
    """The table of a sweep's runs with what is not valid of each, see `records.results_table`."""
    results = results_table(records, sweep, beside)
    results = results.assign(flags=validity.of_runs(results, records, beside))
    return untimed(results) if validity.made_for_accuracy(results, records) else results


def _superseded(sweep: str, records: Sequence[dict], earlier: Sequence[dict]) -> pd.DataFrame:
    """The runs that were measured again though they were valid, and as they are now otherwise.

    Of a record that was changed, nothing it says of itself leaves it out: whoever edits one would
    narrow what is claimed.
    """
    now = {record["run_id"]: record for record in records}
    measured = {consistency.measurement(record) for record in records} - {()}
    kept = [
        record | {"run_id": f"{record['run_id']} {record.get('invocation', '')}"}
        for record in earlier
        if record["run_id"] in now
        and record["status"] == "ok"
        and consistency.measurement(record) not in measured
        and (record.get("changed") or validity.is_repeat(record, now[record["run_id"]]))
    ]
    table = results_table(kept, sweep, beside=records)
    calls = table.run_id.str.partition(" ")[2] if len(table) else ""
    return table.assign(block=table.block.astype(str) + " " + calls, flags="")


def _attempts(directory: SweepDir, records: Sequence[dict]) -> pd.DataFrame:
    """The attempts to find the largest batch, their settings named as the sweep's runs' are.

    Of each is told, however it ended, what its own record shows not to be valid, by `boot` on which
    machine it was made, and by `other` whether with another model or memory than the runs.
    """
    tried, _ = store.read_records(directory.search)
    for record in tried:
        like = records[0]["parameters"] if records else {}
        length = {name: like.get(name) for name in ("max_steps", "target_ci")}
        record["parameters"] = record["parameters"] | length
    flags = {record["run_id"]: validity.together(validity.of_record(record)) for record in tried}
    table = results_table(tried, directory.name, beside=records)
    boots = {record["run_id"]: record.get("boot", "") for record in tried}
    known = [_tried_with(record) for record in records if record["status"] == "ok"]
    other = {record["run_id"]: _is_other(_tried_with(record), known) for record in tried}
    ids = table.run_id
    return table.assign(
        flags=ids.map(flags).astype(object),
        boot=ids.map(boots).astype(object),
        other=ids.map(other).astype(bool),
    )


def _tried_with(record: Mapping[str, Any]) -> dict[str, Any]:
    """What decides whether a batch fits, as far as a record tells: the model, the memory."""
    own, identity = record.get("environment") or {}, record.get("identity") or {}
    told = {name: identity.get(name) for name in ("model_source", "network")}
    memory = own.get("device_memory_bytes") or own.get("memory_bytes")
    room = round(memory / 2**30) if isinstance(memory, int | float) and memory < math.inf else None
    return {name: record["parameters"][name] for name in TRIED} | told | {"memory": room}


def _is_other(attempt: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no run of an attempt's point agrees with it in what both tell."""
    beside = [run for run in runs if all(run[name] == attempt[name] for name in TRIED)]
    return bool(beside) and not any(
        all(None in (value, attempt[name]) or value == attempt[name] for name, value in run.items())
        for run in beside
    )


def options(directory: SweepDir) -> Options:
    """The report's options in the directory's params file; the defaults where it has none.

    And where it has a value that is not allowed: why, `completeness` says of the whole file.
    """
    known = yaml_documents.content(directory.params_text)
    given = {name: known[name] for name in REPORT_KEYS if isinstance(known, dict) and name in known}
    return Options(**{name: value for name, value in given.items() if _is_allowed(name, value)})


def _is_allowed(name: str, value: Any) -> bool:
    return bool(value) and strict_model.fault(Sweep, name, value) is None


def device_samples(directory: SweepDir, tables: Tables) -> pd.DataFrame:
    """What the device read over time in one run of each policy, at a point that most of them share.

    In the first block of those, at the largest such batch size.

    Returns:
        Columns policy, seconds (since the first sample), utilization_frac, power_w, run_id; without
        the policies of which nothing was read, empty where no utilization was.
    """
    # Of policies at two points, or on two devices, the difference would be these'.
    others = [name for name in POINT if name != "batch_size"]
    rows = tables.ok.astype(dict.fromkeys(others, str)).sort_values(others, kind="stable")
    own = [*others, "batch_size", "block"]
    rows = rows.assign(shared=rows.groupby(own).policy.transform("nunique"))
    order, ascending = ["shared", "block", "batch_size"], [False, True, False]
    ok = rows.sort_values(order, ascending=ascending, kind="stable")
    frames = []
    for run in ok.drop_duplicates("policy").itertuples():
        read = _over_time(store.read_record(directory.record(run.run_id)), run.policy)
        frames.append(read.assign(run_id=run.run_id))
    read = pd.concat(frames) if frames else pd.DataFrame()
    return read if len(read) and read.utilization_frac.notna().any() else pd.DataFrame()


def _over_time(record: Mapping[str, Any], policy: str) -> pd.DataFrame:
    """A record's samples as numbers; none where neither utilization nor power was read."""
    samples = record.get("samples")
    table = pd.DataFrame(samples if isinstance(samples, list) else [])
    names = ["time", "utilization", "power_w", "own_cpu_s", "processors"]
    numbers = table.reindex(columns=names).apply(pd.to_numeric, errors="coerce")
    # Processor time says nothing of a GPU whose utilization is not known.
    if (record.get("environment") or {}).get("kind") == "cpu":
        numbers = _of_counters(numbers)
    read = pd.DataFrame(
        {
            "policy": policy,
            "seconds": numbers.time - numbers.time.min(),
            "utilization_frac": numbers.utilization,
            "power_w": numbers.power_w,
        }
    ).astype({"seconds": float, "utilization_frac": float, "power_w": float})
    return read if read[["utilization_frac", "power_w"]].notna().any(axis=None) else read[:0]


def _of_counters(numbers: pd.DataFrame) -> pd.DataFrame:
    """Samples with the share of the processors' time that the process used since the one before.

    Without those soon after another, as the last often is: over a millisecond the counters' own
    steps make more of it than there is.
    """
    gaps = numbers.time.diff()
    apart = numbers[~(gaps < gaps.median() / 2)]
    grown = apart.own_cpu_s.diff() / apart.time.diff() / apart.processors
    return apart.assign(utilization=grown.clip(upper=1))
