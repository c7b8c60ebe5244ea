"""A sweep's records as tables: one row per run, and one row per run and epoch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mptexp.records.csv_columns import COLUMNS, HISTORY
from mptexp.records.schema import VOID, known_parameters
from mptexp.spec import tasks
from mptexp.spec.run import defaults

LEAST_OF_GPU = 8  # readings of a GPU's utilization, a quarter of a second apart

if TYPE_CHECKING:  # pandas takes half a second to import
    import pandas as pd


def results_table(
    records: Iterable[Mapping[str, Any]], sweep: str, beside: Iterable[Mapping[str, Any]] = ()
) -> "pd.DataFrame":
    """One row per run with the columns of COLUMNS, ordered by point and block.

    Args:
        records: of one sweep, as `store.read_record` gives them.
        beside: records of another sweep that this one is compared with: `setting` also names what
            differs between the two.
    """
    import pandas as pd

    records, beside = list(records), list(beside)
    rows = [_row(record, sweep) for record in records]
    table = pd.DataFrame(rows, columns=_columns([*records, *beside]))
    settings = _settings([known_parameters(record) for record in [*records, *beside]])
    table["setting"] = settings[: len(records)]
    table["gpu_model"] = devices(records)
    order = ["gpu_model", "backend", "dataset", "model", "batch_size", "policy", "block"]
    return table.sort_values(order, kind="stable", ignore_index=True)


def _columns(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of COLUMNS, without figures of a task that no run has."""
    known = {"", tasks.IMAGES.name, *(tasks.of(r["parameters"]["dataset"]).name for r in records)}
    return [name for name, column in COLUMNS.items() if column.task in known]


def devices(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The name of each run's device; a CPU's with the cores that the run could use.

    With 2 and with 32 of its cores a CPU is two devices, though a params file names it alike. A run
    that left no environment was on the device of the others of that name, if there is only one.
    """
    asked = [record["parameters"]["gpu_model"] for record in records]
    known = list(map(device, records))
    of: dict[str, set[str]] = {}
    for name, full in zip(asked, known, strict=True):
        of.setdefault(name, set()).update({full} - {""})
    return [
        full or (min(of[name]) if len(of[name]) == 1 else name)
        for name, full in zip(asked, known, strict=True)
    ]


def device(record: Mapping[str, Any]) -> str:
    """`AMD EPYC (2 cores with AVX512_BF16)` for `AMD EPYC (CPU)`; a GPU's name as it is.

    Empty where it is unknown. A virtual machine may hide instructions of its CPU, and clouds call
    several generations by one name: which of them it has decides what 16 bits buy.
    """
    name, environment = record["parameters"]["gpu_model"], record.get("environment") or {}
    cores = environment.get("cores")
    if not name.endswith(" (CPU)") or not cores:
        return name if environment else ""
    usable = min(cores, environment.get("container_cpus") or cores)
    flags = environment.get("instruction_sets") or ()
    best = next((f" with {words}" for flag, words in BY_RANK.items() if flag in flags), "")
    return f"{name.removesuffix('(CPU)')}({usable:g} {'core' if usable == 1 else 'cores'}{best})"


# Flags of /proc/cpuinfo, the first that a CPU has names it; an Arm's behind.
BY_RANK = {
    **{"amx_bf16": "AMX", "avx512_fp16": "AVX512_FP16", "avx512_bf16": "AVX512_BF16"},
    **{"avx512f": "AVX512", "avx2": "AVX2", "avx": "AVX", "sse4_2": "SSE4.2"},
    **{"bf16": "BF16", "sve": "SVE", "asimdhp": "FP16", "asimd": "NEON"},
}


# Nothing is emulated or replaced: not worth a word beside runs in which something is.
USUAL = {
    "propagation": "policy",
    "weight_format": "policy",
    "rounding": "nearest",
    "normalization": "batch",
}


def _settings(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The parameters that vary between runs and have no column of their own, as text.

    The seed varies with the block by design: only the seed of block 0 counts. A parameter that a
    run does not have is not known of it.
    """
    named = {*COLUMNS, "batch_size", "policy", "block", "seed"} - {"loss_scale", "epochs"}
    bases = [
        {**run, **({"base seed": run["seed"] - run["block"]} if "seed" in run else {})}
        for run in runs
    ]
    names = [n for n in (*defaults(), "base seed") if n not in named]
    varying = [n for n in names if len({str(run[n]) for run in bases if n in run}) > 1]
    return [
        ", ".join(
            f"{n} {_plain(run[n])}" for n in varying if n in run and run[n] != USUAL.get(n, ...)
        )
        for run in bases
    ]


def _plain(value: Any) -> str:
    """A parameter as text: 16777216 for 16777216.0."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _row(record: Mapping[str, Any], sweep: str) -> dict[str, Any]:
    in_force, timing = record.get("in_force", {}), record.get("timing", {})
    environment = record.get("environment", {})
    history = record.get("history") or [{}]
    task = tasks.of(record["parameters"]["dataset"])
    known = {
        **record["parameters"],
        **timing,
        **_readings(record),
        **in_force,
        **_achieved(record),
        "device": environment.get("device"),
        "sweep": sweep,
        f"train_{task.measure}": task.measured(history[-1], ""),
        task.column: task.measured(history[-1]),
        "epochs": len(record.get("history", [])),
        "flags": "",  # analysis.validity says them
        "marks": "; ".join(record.get("marks", [])),
    }
    if any(mark.startswith(VOID) for mark in record.get("marks", [])):
        known |= dict.fromkeys(name for name, column in COLUMNS.items() if column.timed)
    return {name: known.get(name, record.get(name)) for name in COLUMNS}


def _readings(record: Mapping[str, Any]) -> dict[str, Any]:
    """What was read of the device, without utilization and power of a GPU read for too short.

    Each reading is a mean over up to a second before it, so that the first ones are of what came
    before the steps, and the counter of energy lags: of an H200 that steps kept at work for 0.85 of
    the time, two and three readings said 0.58 and 0.64; three gave 664 W, longer runs 560.
    """
    readings = dict(record.get("readings") or {})
    on_gpu = (record.get("environment") or {}).get("kind") == "gpu"
    if on_gpu and (readings.get("readings") or 0) < LEAST_OF_GPU:
        of_power = [name for name in readings if name.startswith("energy_per_")]
        readings |= dict.fromkeys(("utilization_frac", "power_w", *of_power))
    return readings


def _achieved(record: Mapping[str, Any]) -> dict[str, float]:
    """Rates of the model's arithmetic and traffic, where both work and step time are known."""
    work, step_s = record.get("work") or {}, record.get("timing", {}).get("step_s")
    if not step_s or not work.get("flops_per_step"):
        return {}
    flops = work["flops_per_step"] / step_s
    moved = work["bytes_per_step"]
    return {
        "flops_per_s": flops,
        "bytes_per_s": moved / step_s if moved else math.nan,
        "mfu_frac": flops / work["ceilings"]["matmul_flops_per_s"]
        if valid_peak(record)
        else math.nan,
    }


def valid_peak(*records: Mapping[str, Any]) -> bool:
    """Whether the measured peaks of runs bound anything: not where steps do more arithmetic.

    Then other programs were at work when one was measured, or kernels need less than shapes count.
    """
    for record in records:
        work, step_s = record.get("work") or {}, record.get("timing", {}).get("step_s")
        flops = work.get("flops_per_step")
        if step_s and flops and flops / step_s > work["ceilings"]["matmul_flops_per_s"]:
            return False
    return True


def untimed(results: "pd.DataFrame") -> "pd.DataFrame":
    """The table without times, as it is of runs whose timings are void."""
    return results.assign(**{n: None for n in results if n in COLUMNS and COLUMNS[n].timed})


def history_table(records: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """One row per run and epoch: run_id, then HISTORY."""
    import pandas as pd

    rows = [
        {"run_id": record["run_id"], **epoch}
        for record in records
        for epoch in record.get("history", [])
    ]
    return pd.DataFrame(rows, columns=["run_id", *HISTORY])
