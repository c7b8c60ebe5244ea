"""A sweep's runs where people keep experiments: MLflow and TensorBoard, by their own writers.

Each run is exported once: where it lies there already as it was measured, nothing is written; where
it was measured again, it takes the place of what lies there.
"""

import importlib.util
import logging
import math
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mptexp.analysis.sweep_tables import Tables
from mptexp.errors import ParamsError
from mptexp.host.project import install
from mptexp.records import privacy
from mptexp.records import store as records_store
from mptexp.records.csv_columns import COLUMNS, HISTORY
from mptexp.records.schema import known_parameters
from mptexp.records.sweep_dir import SweepDir, leads_out
from mptexp.report import measured_sweep
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.pages import data_files
from mptexp.spec.run import Run

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run as Stored
    from tensorboard.compat.proto.summary_pb2 import Summary

ARTIFACTS = ("record.json", "notebook.ipynb")
TAGS = ("status", "error", "flags", "marks", "device", "emulated", "default_policy")
MOST, LONGEST = 1000, 5000  # what MLflow takes: metrics at a time, characters of a value


@dataclass(frozen=True)
class Exported:
    """A run, as a tracker takes it.

    Attributes:
        name: what tells the run apart from the sweep's others.
        varying: the parameters of which it consists.
        digest: of its record and of what is not valid of it, which runs that were measured later
            may show: where it is another, the run is written again.
        metrics: the measured columns of results.csv, SI units; none that is not known.
        epochs: of history.csv, each with `epoch` and `elapsed_s`.
        tags: what is not a number, such as what is not valid of the run; empty ones left out.
        began_s, ended_s: since 1970; 0 of records that do not say when they were made.
        files: its record and its executed notebook, as far as they are there.
    """

    run_id: str
    name: str
    varying: Sequence[str]
    digest: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, float]
    epochs: Sequence[Mapping[str, float]]
    tags: Mapping[str, str]
    began_s: float
    ended_s: float
    files: Sequence[Path]


@dataclass(frozen=True)
class Tracked:
    """What an export to a tracker did.

    Attributes:
        store: the tracking URI or the log directory.
        written: the ids of the runs that were written.
        present: how many runs were there already.
        damaged: a sentence for each damaged record, whose run was left out.
    """

    store: str
    written: list[str]
    present: int
    damaged: list[str]


def export(directory: SweepDir, tracker: str, store: str = "") -> Tracked:
    """Writes a sweep's runs to a tracker.

    Args:
        directory: a sweep's directory with at least one record.
        tracker: mlflow or tensorboard.
        store: MLflow's tracking URI, by default its own; TensorBoard's log directory, by default
            logs/<sweep>.

    Raises:
        ParamsError: where the directory holds no record, the tracker is not installed, or refuses;
            for MLflow also where there is no report, or one that the records do not give.
        OSError: where the log directory takes no files.
    """
    if importlib.util.find_spec(tracker) is None:
        raise ParamsError(f"--to {tracker}: {tracker} is not installed: {install(tracker)}")
    sweep = measured_sweep.load(directory)
    write = {"mlflow": _to_mlflow, "tensorboard": _to_tensorboard}[tracker]
    runs = exported(directory, sweep.tables)
    place, written = write(sweep, runs, store)
    return Tracked(place, written, len(runs) - len(written), sweep.tables.damaged)


def exported(directory: SweepDir, tables: Tables) -> list[Exported]:
    """The runs of a sweep in the order of results.csv."""
    known = [known_parameters(record) for record in tables.records]
    names = [name for name in Run.model_fields if name not in ("seed", "gpu_model")]
    varying = [name for name in names if len({str(one[name]) for one in known if name in one}) > 1]
    rows = tables.results.set_index("run_id", drop=False)
    records = tables.records_by_id
    return [_run(directory, records[run_id], row, varying) for run_id, row in rows.iterrows()]


def _run(
    directory: SweepDir, record: Mapping[str, Any], row: "pd.Series", varying: Sequence[str]
) -> Exported:
    parameters = known_parameters(record) | {"gpu_model": row.gpu_model}
    varying = [name for name in varying if name in parameters]
    ended = record.get("ended_at")
    ended_s = datetime.fromisoformat(ended).timestamp() if ended else 0.0
    known = [name for name in COLUMNS if name in row and name not in Run.model_fields]
    files = [directory.record(record["run_id"]).with_name(name) for name in ARTIFACTS]
    return Exported(
        run_id=record["run_id"],
        name=", ".join(f"{n} {parameters[n]}" for n in varying) or directory.name,
        varying=varying,
        # That of the record alone where it is valid.
        digest=records_store.digest({**record, "flags": row["flags"]} if row["flags"] else record),
        parameters=parameters,
        metrics={name: float(row[name]) for name in known if _number(row[name])},
        epochs=[epoch for epoch in record.get("history", []) if epoch.get("epoch")],
        tags={name: str(row[name]) for name in TAGS if str(row[name]) not in ("", "nan", "None")},
        began_s=max(0.0, ended_s - record.get("wall_s", 0)),
        ended_s=ended_s,
        files=[file for file in files if file.is_file() and not leads_out(file)],
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _of_epoch(run: Exported) -> Iterator[tuple[int, float, str, float]]:
    """Epoch, seconds since 1970, name and value of each number of a run's history."""
    for each in run.epochs:
        when = run.began_s + (each.get("elapsed_s") or 0)
        for name in HISTORY:
            if name not in ("epoch", "elapsed_s") and _number(each.get(name)):
                yield int(each["epoch"]), when, name, float(each[name])


# --- MLflow ---------------------------------------------------------------------------------------

STATUSES = {"ok": "FINISHED", "killed": "KILLED"}  # MLflow's; of any other status FAILED
PARENT = "mlflow.parentRunId"
SWEEP = "mptexp.sweep"  # of a parent run, and of a run's folder: which sweep it is of


def _to_mlflow(sweep: MeasuredSweep, runs: Sequence[Exported], store: str) -> tuple[str, list[str]]:
    """An experiment of the sweep's name: a run that holds the report, and within it the others."""
    directory = sweep.directory
    _refuse_false_report(sweep)
    # Its usage reports go to its makers: nobody has asked for that by exporting a sweep.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # A server that is not there is asked for minutes, by its own default, before anything is said.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    with _refused(store):
        import mlflow

        _refuse_closed_folder(store or mlflow.get_tracking_uri())
        client = mlflow.MlflowClient(store or None)
        known = client.get_experiment_by_name(directory.name)
        experiment = known.experiment_id if known else client.create_experiment(directory.name)
        there = {run.data.tags.get("mptexp.run_id"): run for run in _stored(client, experiment)}
        which = _which(directory)
        parent = there.get("sweep") or client.create_run(
            experiment, run_name=directory.name, tags={"mptexp.run_id": "sweep", SWEEP: which}
        )
        _refuse_other(which, parent.data.tags.get(SWEEP), f"experiment {directory.name}")
        _log_report(client, sweep, parent.info.run_id)
        if directory.params.is_file() and not directory.params.is_symlink():
            text = privacy.published_params(directory.params_text)
            client.log_text(parent.info.run_id, text, directory.params.name)
        client.set_terminated(parent.info.run_id)
        changed = [run for run in runs if _digest(there.get(run.run_id)) != _told(run)["digest"]]
        replaced = [run.run_id for run in changed if run.run_id in there]
        _refuse_unknown(which, replaced, f"experiment {directory.name}")
        for run in changed:
            _log(client, experiment, run, parent.info.run_id)
            if run.run_id in there:
                client.delete_run(there[run.run_id].info.run_id)
        return store or mlflow.get_tracking_uri(), [run.run_id for run in changed]


def _refuse_closed_folder(store: str) -> None:
    """Refuses a file of SQLite's that nobody can write: MLflow would try for two minutes."""
    kind, _, path = store.partition("?")[0].partition(":///")
    file, folder = Path(path), Path(path).absolute().parent
    if kind == "sqlite" and not (os.access(folder, os.W_OK) and folder.is_dir()):
        why = "takes no files" if folder.is_dir() else "is no folder"
    elif kind == "sqlite" and file.exists() and not (os.access(file, os.W_OK) and file.is_file()):
        folder, why = file.absolute(), "is no file that can be written"
    else:
        return
    raise ParamsError(
        f"--store {store}: {folder}: {why}; allowed: a tracking URI such as sqlite:///mlflow.db, "
        "of a file in a folder that can be written"
    )


def _refuse_false_report(sweep: MeasuredSweep) -> None:
    """Refuses a report that is not there, or that the records do not give.

    To make the page takes a Jupyter kernel and several seconds, which is left to `mptexp report`.
    """
    index, made = sweep.directory.index, "`mptexp report` makes it"
    if not index.is_file() or index.is_symlink():
        raise ParamsError(f"{index}: there is no report, which MLflow gets too: {made}")
    for file, what in data_files.wrong(sweep).items():
        raise ParamsError(f"{file}: {what.partition(',')[0]}: {made} again")


def _log_report(client: "MlflowClient", sweep: MeasuredSweep, run: str) -> None:
    """Gives a run of MLflow the page, and its tables as the records have them now."""
    client.log_artifact(run, str(sweep.directory.index))
    with tempfile.TemporaryDirectory(prefix="mptexp") as made:
        data_files.write_tables(sweep.tables, Path(made))
        data_files.write_some(sweep.tables, Path(made))
        client.log_artifacts(run, made)


def _which(directory: SweepDir) -> str:
    """What tells a sweep from another of its name, wherever it lies; empty where nothing does.

    Of plain loops' own runs no sweep drew an order: it is the first of what was measured there.
    """
    return str(directory.order_seed or directory.first_measured())


def _refuse_other(which: str, there: str | None, place: str) -> None:
    """Refuses to write over the runs of another sweep of the same name.

    Args:
        which: what this sweep is told by; empty where nothing tells it.
        there: the same of the sweep that is there; None where that is not known.
    """
    if which and there and there != which:
        raise ParamsError(
            f"{place} holds another sweep with the same runs; rename the directory, or give "
            "another --store"
        )


def _refuse_unknown(which: str, replaced: Sequence[str], place: str) -> None:
    """Refuses to replace runs by those of a sweep that nothing tells from others of its name."""
    if replaced and not which:
        raise ParamsError(
            f"{place} holds run {replaced[0]} with another record, and nothing says that it is of "
            "this sweep; rename the directory, or give another --store"
        )


def _told(run: Exported) -> dict[str, str]:
    """The tags of a run in MLflow, without their prefix."""
    return {"run_id": run.run_id, "digest": run.digest, **run.tags}


def _digest(stored: "Stored | None") -> str | None:
    """That of the record from which a run was exported; none of one that was not, or not wholly."""
    ended = stored is not None and stored.info.status in {*STATUSES.values(), "FAILED"}
    return stored.data.tags.get("mptexp.digest") if stored is not None and ended else None


def _stored(client: "MlflowClient", experiment: str) -> Iterator["Stored"]:
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], max_results=MOST, page_token=token or None)
        yield from page
        token = page.token or None


def _log(client: "MlflowClient", experiment: str, run: Exported, parent: str) -> None:
    from mlflow.entities import Metric, Param

    tags = {f"mptexp.{name}": value[:LONGEST] for name, value in _told(run).items()}
    tags[PARENT] = parent
    if "flags" in run.tags:  # shown on the run's page as its description
        tags["mlflow.note.content"] = f"Not valid: {run.tags['flags']}"
    began, ended = round(run.began_s * 1e3), round(run.ended_s * 1e3)
    made = client.create_run(experiment, began or None, tags, run.name).info.run_id
    parameters = [Param(name, str(value)[:LONGEST]) for name, value in run.parameters.items()]
    client.log_batch(made, params=parameters)
    metrics = [Metric(name, value, round(s * 1e3), e) for e, s, name, value in _of_epoch(run)]
    of_epochs = {metric.key for metric in metrics}
    metrics += [Metric(n, v, ended, 0) for n, v in run.metrics.items() if n not in of_epochs]
    for first in range(0, len(metrics), MOST):
        client.log_batch(made, metrics=metrics[first : first + MOST])
    for file in run.files:
        client.log_artifact(made, str(file))
    client.set_terminated(made, STATUSES.get(run.tags["status"], "FAILED"), ended or None)


@contextmanager
def _refused(store: str) -> Iterator[None]:
    """Says in a sentence what MLflow refuses, and leaves out what it logs of its own tables."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    except ParamsError:  # a ValueError, and none of MLflow's
        raise
    except (MlflowException, SQLAlchemyError, ValueError) as error:
        said = [*str(error).strip().splitlines(), type(error).__name__][0]
        raise ParamsError(f"{store or 'mlflow'}: MLflow refuses: {said}") from None
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# --- TensorBoard ----------------------------------------------------------------------------------

NO_NAME = re.compile(r"[^\w.=-]+")  # what stands in no folder's name here
NO_FRAMEWORK = "tensorboard.compat.notf"


def _to_tensorboard(
    sweep: MeasuredSweep, runs: Sequence[Exported], store: str
) -> tuple[str, list[str]]:
    """A folder per run with one event file, which takes the place of an earlier one of the run."""
    # As TensorBoard's own build without TensorFlow, whose import takes seconds.
    sys.modules.setdefault(NO_FRAMEWORK, ModuleType(NO_FRAMEWORK))
    directory = sweep.directory
    folder, which = Path(store or Path("logs") / directory.name), _which(directory)
    # A run's folder is named by what varies, which may be more than when it was written.
    before = {run.run_id: [*folder.glob(f"*-{run.run_id}")] for run in runs}
    for old in (place for places in before.values() for place in places):
        _refuse_other(which, _sweep_of(old), str(old))
    files = {run.run_id: _events_file(folder, run) for run in runs}
    others = [i for i, file in files.items() if any(_others(old, file) for old in before[i])]
    _refuse_unknown(which, others, str(folder))
    written = []
    for run in runs:
        file = files[run.run_id]
        for old in before[run.run_id]:
            _remove_events(old, but=file)
        if file.is_file():
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        _write_events(run, file)
        if which:
            (file.parent / SWEEP).write_text(which)
        written.append(run.run_id)
    return str(folder), written


def _sweep_of(place: Path) -> str | None:
    try:
        return (place / SWEEP).read_text()
    except OSError:
        return None


def _events_file(folder: Path, run: Exported) -> Path:
    place = folder / f"{NO_NAME.sub('_', run.name)[:100]}-{run.run_id}"
    return place / f"events.out.tfevents.{run.ended_s:.0f}.{run.digest[:12]}"


def _others(place: Path, but: Path) -> list[Path]:
    """The event files in a run's folder of another record of the run."""
    return [old for old in place.glob("events.out.tfevents.*") if old.name != but.name]


def _remove_events(place: Path, but: Path) -> None:
    """What an earlier export wrote into a run's folder; the folder too, where nothing is left."""
    for old in place.glob("events.out.tfevents.*"):
        if old != but:
            old.unlink()
    if place != but.parent:
        (place / SWEEP).unlink(missing_ok=True)
        with suppress(OSError):  # somebody keeps files there
            place.rmdir()


def _write_events(run: Exported, file: Path) -> None:
    """Writes a run's events; under a name of its own, as TensorBoard's holds the host's."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as scratch, _quiet_threads():
        writer = EventFileWriter(scratch)
        for summary in _once(run):
            writer.add_event(Event(wall_time=run.ended_s, step=0, summary=summary))
        for epoch, when, name, value in _of_epoch(run):
            summary = _scalar(f"epoch/{name}", value, "")
            writer.add_event(Event(wall_time=when, step=epoch, summary=summary))
        writer.close()
        (made,) = Path(scratch).iterdir()
        made.replace(file)


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """TensorBoard writes in a thread, and raises here what failed there: it is said once."""
    before, threading.excepthook = threading.excepthook, lambda failed: None
    try:
        yield
    finally:
        threading.excepthook = before


def _once(run: Exported) -> Iterator["Summary"]:
    """What holds for a whole run: parameters, figures with their meaning, what is not valid."""
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.plugins.text import metadata

    shown = {name: run.parameters[name] for name in ("policy", "batch_size", *run.varying)}
    plain = {n: v if isinstance(v, bool | int | float) else str(v) for n, v in shown.items()}
    yield hparams_pb(plain, trial_id=run.run_id, start_time_secs=run.began_s)
    for name, value in run.metrics.items():
        yield _scalar(f"run/{name}", value, COLUMNS[name].meaning)
    for name, text in run.tags.items():
        yield _value(f"mptexp/{name}", text.encode(), metadata.create_summary_metadata(name, ""))


def _scalar(tag: str, value: float, meaning: str) -> "Summary":
    from tensorboard.plugins.scalar import metadata

    return _value(tag, value, metadata.create_summary_metadata("", meaning))


def _value(tag: str, value: float | bytes, metadata: Any) -> "Summary":
    import numpy as np
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.util.tensor_util import make_tensor_proto

    content = value if isinstance(value, bytes) else np.float32(value)
    tensor = make_tensor_proto(content)
    return Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])
