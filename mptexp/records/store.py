"""The files of a sweep: where they lie, writing a record atomically, reading a sweep as tables."""

import getpass
import json
import math
import os
import re
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

if TYPE_CHECKING:  # pandas takes half a second to import, and `mptexp --help` imports this module
    import pandas as pd
    from pydantic import TypeAdapter

SCHEMA = 1
MOST_BYTES = 64 * 2**20  # of a record; the largest so far have a fifth of a MiB
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

STATUSES = ("ok", "oom", "diverged", "unsupported", "failed", "killed", "timeout")
VOID = "timings are void"  # how the mark begins of a run that was not alone on its device
# Columns that are empty for such a run.
TIMED = ("step_s", "step_s_low", "step_s_high", "step_ci", "images_per_s", "first_step_s", "fit_s")
TIMED += ("latency_p50_s", "latency_p99_s", "flops_per_s", "bytes_per_s", "mfu_frac")
TIMED += ("utilization_frac", "energy_per_image_j")
FINAL = ("ok", "oom", "diverged", "unsupported")  # the others run again at the next call

# Columns of results.csv: name -> unit and meaning. Empty where a run has no such value.
COLUMNS = {
    "run_id": "12 hex digits: the hash of the run's parameters",
    "status": "ok, oom, diverged, unsupported, failed, killed or timeout",
    "error": "first line of the error, empty when ok",
    "sweep": "name of the params file",
    "dataset": "name",
    "model": "name",
    "gpu_model": "device that was asked for",
    "device": "device that was found",
    "backend": "Keras backend",
    "policy": "precision policy",
    "emulated": "whether the device runs this policy's 16-bit type without native instructions",
    "loss_scale": "in force at the end: none, or the number",
    "batch_size": "images per step, over all replicas",
    "replicas": "devices that share a batch",
    "jit": "whether XLA compiled the step",
    "input_mode": "where batches come from",
    "phase": "train or inference",
    "setting": "other parameters that vary within the sweep, empty where none do",
    "block": "which repeat",
    "seed": "of weights and data order",
    "step_s": "median window, seconds per step",
    "step_s_low": "5th percentile window, seconds per step",
    "step_s_high": "95th percentile window, seconds per step",
    "images_per_s": "batch_size / step_s",
    "step_ci": "half width of the 95 % interval of step_s within the run, as a fraction of it",
    "steps_timed": "steps in the windows that count",
    "ended_by": "what ended the run: epochs, target_ci or max_steps",
    "warmup_steps": "steps left out at the start: compilation, autotuning, warm-up",
    "first_step_s": "seconds of the first step, which compiles",
    "latency_p50_s": "median seconds of one inference batch alone, host to host",
    "latency_p99_s": "99th percentile of the same",
    "peak_memory_bytes": "of the device's allocator on a GPU, of the process on a CPU",
    "device_memory_used_bytes": "most memory in use on the GPU, by any process",
    "readings": "readings of the device while steps were timed",
    "utilization_frac": "share of time a GPU's kernels ran; on a CPU, of all processors' time",
    "power_w": "mean power of the device while timed",
    "flops_per_s": "arithmetic of the model's step, from its shapes, / step_s",
    "bytes_per_s": "least traffic of the model's step, from its shapes, / step_s",
    "mfu_frac": "flops_per_s / that of the device's largest measured matrix product, same type",
    "energy_per_image_j": "power_w / images_per_s",
    "clock_hz": "mean clock of the device while timed",
    "temperature_c": "mean temperature of the device while timed, Celsius",
    "throttled_frac": "share of the readings with throttled clocks",
    "other_load_frac": "processor time that other programs used, of all processors' time",
    "other_processes": "most other processes on the GPU at a time",
    "cpu_s": "processor seconds of this process in fit",
    "train_accuracy": "fraction, last epoch",
    "val_accuracy": "fraction, last epoch",
    "swallowed_updates_frac": "share of weight updates, not zero, that left the weight as it was",
    "epochs": "epochs finished",
    "skipped_steps": "steps that a dynamic loss scale left out: gradients were not finite",
    "diverged_step": "step with the first number that was not finite, counted from 1",
    "fit_s": "seconds in fit, validation included",
    "wall_s": "seconds of the whole run, kernel start to record",
    "default_policy": "what a user who sets nothing gets on this device with this backend",
    "marks": "what a reader should know of this run, separated by ;",
}
HISTORY = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "elapsed_s")


class RecordError(ValueError):
    """A record that cannot be read: the message names the file and the fault."""


@dataclass(frozen=True)
class SweepDir:
    """The one class that knows where the files of a sweep lie.

    A run is made in `partial/<run_id>` and renamed to `runs/<run_id>` once its record is
    complete, so that whatever stands under `runs` is whole.
    """

    root: Path

    @property
    def params(self) -> Path:
        return self.root / "params.yaml"

    @property
    def index(self) -> Path:
        return self.root / "index.html"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def partial(self) -> Path:
        return self.root / "partial"

    @property
    def outcomes(self) -> Path:
        return self.root / ".outcomes.json"

    @property
    def search(self) -> "SweepDir":
        """Where the attempts to find the largest batch lie, as in a sweep of their own."""
        return SweepDir(self.root / "search")

    @property
    def diagnosis(self) -> "SweepDir":
        """Where profiled runs and counter-experiments lie, as in a sweep of their own."""
        return SweepDir(self.root / "diagnosis")

    @property
    def name(self) -> str:
        return self.root.resolve().name

    def record(self, run_id: str) -> Path:
        return self.runs / run_id / "record.json"

    def publish(self, run_id: str) -> None:
        """Moves a finished run from `partial` to `runs`, in place of an earlier attempt."""
        target = self.runs / run_id
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        (self.partial / run_id).rename(target)

    def clear(self) -> None:
        """Removes what a sweep writes, and nothing else."""
        for folder in (self.runs, self.partial, self.search.root, self.diagnosis.root):
            shutil.rmtree(folder, ignore_errors=True)
        names = ("params.yaml", "index.html", "results.csv", "history.csv", "speedups.csv")
        names += ("accuracy.csv", "table.md", "speedup.svg", self.outcomes.name)
        for path in [self.root / n for n in names]:
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes beside, then renames: the file is the old one or the new one, never half of either."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a record atomically, without host, user and home names, NaN as null."""
    _write(path, scrub(_finite(record)))


def amend_record(path: Path, record: Mapping[str, Any], **changes: Any) -> None:
    """Writes a record that was read, perhaps another machine's, with some keys anew.

    The rest stays as it was: this machine's names stand in it by chance, if at all.
    """
    _write(path, {**record, **scrub(_finite(changes))})


def _write(path: Path, record: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_record(path: Path) -> dict[str, Any]:
    """The record in a file, which may come from anybody: it is read as data and checked.

    Raises:
        RecordError: if the file is not a record of this schema; one sentence.
    """
    try:
        # Four times as fast as json, and stricter: of text, of depth, of numbers.
        record = from_json(_record_bytes(path), allow_inf_nan=False)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RecordError(f"{path}: not a readable record: {why}") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise RecordError(f"{path}: not a record of schema {SCHEMA}")
    if fault := _fault(record, path):
        raise RecordError(f"{path}: {fault}")
    return record


def _record_bytes(path: Path) -> bytes:
    """A file's content, where it is a plain one of a bearable size in its own directory."""
    if leads_out(path):
        raise ValueError("a link that leads out of the sweep's directory")
    if not path.is_file():
        raise ValueError("not a file" if path.exists() else "no such file")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES // 2**20} MiB")
    return path.read_bytes()


def leads_out(path: Path) -> bool:
    """Whether a file of a run is a link, or lies behind one, to outside the sweep's directory."""
    place = path.absolute()
    folder, runs, *_ = place.parents
    if not any(p.is_symlink() for p in (place, folder, runs)):
        return False
    return runs.parent.resolve() not in place.resolve().parents


def _fault(record: dict[str, Any], path: Path) -> str:
    """What is wrong with a record of this schema; empty where nothing is."""
    from pydantic import ValidationError

    try:
        _checks().validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        return f"{where}: {first['msg']}" + _given(first["input"])
    # A run is made in one folder and published in another of the same name.
    if path.parent.parent.name in ("runs", "partial") and record["run_id"] != path.parent.name:
        return f"run_id {record['run_id']} in a folder of another name"
    return ""


def _given(value: Any) -> str:
    """A short value as it was given; a long one is not repeated."""
    text = json.dumps(value) if not isinstance(value, dict | list) else ""
    return f", not {text}" if 0 < len(text) <= 60 else ""


@cache
def _checks() -> "TypeAdapter[Any]":
    from mptexp.records import (
        schema,  # pydantic takes a while to import, and so do its checks to make
    )

    return schema.adapter(tuple(COLUMNS), STATUSES)


def read_records(
    directory: SweepDir, without: Sequence[str] = ()
) -> tuple[list[dict[str, Any]], list[str]]:
    """All readable records of a sweep, ordered by run id, and a sentence for each damaged one.

    Args:
        without: what to leave out of the records.
    """
    records, damaged = [], []
    for path in sorted(directory.runs.glob("*/record.json")):
        try:
            record = read_record(path)
        except RecordError as error:
            damaged.append(str(error))
            continue
        records.append({name: value for name, value in record.items() if name not in without})
    return records, damaged


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@cache
def _private_names() -> list[tuple[re.Pattern[str], str]]:
    """What says where and by whom a run was made, and what stands in its place."""
    places = {str(Path.cwd()): ".", str(Path.home()): "~"}
    # The longer first: one may lie in the other.
    longest = sorted((p for p in places if len(p) > 1), key=len, reverse=True)
    found = [(re.compile(re.escape(p) + r"(?![\w.-])"), places[p]) for p in longest]
    host, user = re.escape(socket.gethostname()), re.escape(_user())
    found.append((re.compile(rf"\b{host}\b"), "<host>"))
    # A user's name may be any word; it is one only in a path or an address.
    found.append((re.compile(rf"(?<=[/@]){user}\b|\b{user}(?=@)"), "<user>"))
    return found


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user id
        return "nobody"


KEPT = ("parameters", "run_id", "notebook", "image/png")


def scrub(value: Any) -> Any:
    """Text, or JSON data, without host name, user name, home directory and working directory.

    What stands under one of KEPT stays as it is: it identifies the run, or is a picture.
    """
    if isinstance(value, str):
        for pattern, stand_in in _private_names():
            value = pattern.sub(stand_in, value)
        return value
    if isinstance(value, Mapping):
        return {k: v if k in KEPT else scrub(v) for k, v in value.items()}
    return [scrub(v) for v in value] if isinstance(value, list) else value


def results(
    records: Iterable[Mapping[str, Any]], sweep: str, beside: Iterable[Mapping[str, Any]] = ()
) -> "pd.DataFrame":
    """One row per run, the columns of COLUMNS, blocks in order.

    Args:
        records: of one sweep.
        sweep: its name.
        beside: records of another sweep that this one is compared with: `setting` also names what
            differs between the two.
    """
    import pandas as pd

    from mptexp.spec.run import defaults

    # A record of an earlier version lacks the parameters that came later: it ran their defaults.
    records = [{**r, "parameters": defaults() | r["parameters"]} for r in records]
    others = [defaults() | r["parameters"] for r in beside]
    table = pd.DataFrame([_row(record, sweep) for record in records], columns=list(COLUMNS))
    settings = _settings([*(record["parameters"] for record in records), *others])
    table["setting"] = settings[: len(records)]
    order = ["gpu_model", "backend", "dataset", "model", "batch_size", "policy", "block"]
    return table.sort_values(order, kind="stable", ignore_index=True)


# Nothing is emulated: not worth a word beside runs in which something is.
USUAL = {"propagation": "policy", "weight_format": "policy", "rounding": "nearest"}


def _settings(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The parameters that vary between runs and have no column of their own, as text."""
    named = {*COLUMNS, "batch_size", "policy", "block", "seed"} - {"loss_scale", "epochs"}
    bases = [{**run, "base seed": run["seed"] - run["block"]} for run in runs]
    names = [n for n in (bases[0] if bases else {}) if n not in named]
    varying = [n for n in names if len({str(run.get(n)) for run in bases}) > 1]
    told = [[n for n in varying if run.get(n) != USUAL.get(n, ...)] for run in bases]
    return [
        ", ".join(f"{n} {_plain(run.get(n))}" for n in names)
        for run, names in zip(bases, told, strict=True)
    ]


def _plain(value: Any) -> str:
    """A parameter as text: 16777216 for 16777216.0."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _row(record: Mapping[str, Any], sweep: str) -> dict[str, Any]:
    in_force, timing = record.get("in_force", {}), record.get("timing", {})
    environment = record.get("environment", {})
    history = record.get("history") or [{}]
    known = {
        **record["parameters"],
        **timing,
        **record.get("readings", {}),
        **in_force,
        **_achieved(record),
        "device": environment.get("device"),
        "sweep": sweep,
        "train_accuracy": history[-1].get("accuracy"),
        "val_accuracy": history[-1].get("val_accuracy"),
        "epochs": len(record.get("history", [])),
        "marks": "; ".join(record.get("marks", [])),
    }
    if any(mark.startswith(VOID) for mark in record.get("marks", [])):
        known |= dict.fromkeys(TIMED)
    return {name: known.get(name, record.get(name)) for name in COLUMNS}


def _achieved(record: Mapping[str, Any]) -> dict[str, float]:
    work, step_s = record.get("work") or {}, record.get("timing", {}).get("step_s")
    if not step_s or not work.get("flops_per_step"):
        return {}
    flops = work["flops_per_step"] / step_s
    peak = work["ceilings"]["matmul_flops_per_s"]
    moved = work["bytes_per_step"]
    return {
        "flops_per_s": flops,
        "bytes_per_s": moved / step_s if moved else math.nan,
        "mfu_frac": flops / peak,
    }


def history(records: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """One row per run and epoch: run_id, then HISTORY."""
    import pandas as pd

    rows = [
        {"run_id": record["run_id"], **epoch}
        for record in records
        for epoch in record.get("history", [])
    ]
    return pd.DataFrame(rows, columns=["run_id", *HISTORY])
