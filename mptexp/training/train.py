"""A run, from the parts: train or infer, look at what happened, write the record."""

import hashlib
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd

from mptexp.records import schema, store
from mptexp.records.columns import HISTORY
from mptexp.spec.project import PROJECT
from mptexp.spec.run import Run
from mptexp.traces import xplane
from mptexp.training import costs, environment, models, precision
from mptexp.training.backends import replicas
from mptexp.training.data import batches, datasets
from mptexp.training.layers import resident
from mptexp.training.measure import ceilings, profiler, sensors, step_clock
from mptexp.training.numerics import divergence, emulation, exponents


@dataclass(frozen=True)
class Outcome:
    """What one run gave: windows, epochs, figures, and what was in force.

    `latencies_s` holds the seconds of each batch of an inference run, from pictures on the host to
    probabilities on the host; `samples` what the device read while the run was measured, `readings`
    what they say of its timed steps (see sensors.summary); `work` the arithmetic and
    bytes of a step and what the device can do at best; `profile` where the time of traced steps
    went, `trace` the trace itself where it was not read (see profiler.captured); `loss_scales` the
    dynamic loss scale as it changed (exponents.ScaleTrace); `exponents` what
    exponents.ExponentHistograms saw; `diverged` where the first tensor that was not finite was.
    """

    run: Run
    in_force: dict[str, Any]
    windows: list[step_clock.Window]
    epochs: list[dict[str, float]]
    timing: dict[str, Any]
    peak_memory_bytes: int | None
    fit_s: float
    notes: tuple[str, ...] = ()
    latencies_s: list[float] = field(default_factory=list)
    readings: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    card: dict[str, Any] = field(default_factory=dict)
    work: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    trace: bytes = field(default=b"", repr=False)
    loss_scales: list[dict[str, Any]] = field(default_factory=list)
    exponents: dict[str, Any] = field(default_factory=dict)
    diverged: dict[str, Any] = field(default_factory=dict)
    swallowed_updates_frac: float | None = None

    @property
    def history(self) -> pd.DataFrame:
        """One row per epoch: loss, accuracy, val_loss, val_accuracy, elapsed_s."""
        return pd.DataFrame(self.epochs, columns=list(HISTORY)).set_index("epoch")

    @property
    def steps(self) -> pd.DataFrame:
        """One row per window: first_step, steps, ms_per_step, and whether it counts."""
        table = pd.DataFrame(step_clock.as_dicts(self.windows))
        table["ms_per_step"] = table.seconds / table.steps * 1e3
        table["counts"] = table.first_step >= self.timing["warmup_steps"]
        return table

    @property
    def summary(self) -> pd.Series:
        """What was measured, in units for reading."""
        timing = self.timing
        return pd.Series(
            {
                "median step": f"{timing['step_s'] * 1e3:.2f} ms",
                "5th to 95th percentile": (
                    f"{timing['step_s_low'] * 1e3:.2f} to {timing['step_s_high'] * 1e3:.2f} ms"
                ),
                "throughput": f"{timing['images_per_s']:,.0f} images/s",
                "interval of the median": f"± {timing['step_ci'] * 100:.1f} %, within this run",
                "steps timed": f"{timing['steps_timed']}",
                "ended by": timing["ended_by"],
                "left out as warm-up": f"{timing['warmup_steps']} steps",
                "first step, with compilation": f"{timing['first_step_s']:.2f} s",
                "peak memory": f"{(self.peak_memory_bytes or 0) / 2**20:,.0f} MiB",
                **(self._trained() if self.epochs else self._inferred()),
            },
            name="measured",
        )

    def _trained(self) -> dict[str, str]:
        last = self.epochs[-1]
        found = {name: last.get(name) for name in ("accuracy", "val_accuracy")}
        named = {"accuracy": "accuracy, training", "val_accuracy": "accuracy, validation"}
        return {
            "training, with validation": f"{self.fit_s:.1f} s",
            **{named[name]: f"{value:.3f}" for name, value in found.items() if value is not None},
        }

    def _inferred(self) -> dict[str, str]:
        return {
            "latency, median": f"{self.timing['latency_p50_s'] * 1e3:.2f} ms",
            "latency, 99th percentile": f"{self.timing['latency_p99_s'] * 1e3:.2f} ms",
        }


def fit(run: Run, model: keras.Model, images: datasets.Images, where: dict[str, Any]) -> Outcome:
    """Compiles and trains the model, timed by the step clock.

    Stops at the first epoch whose loss is not finite.

    Raises:
        precision.NotInForce: before training, where what was asked for is not in force.
        environment.Unsupported: where there are too few steps to time, or the backend has no such
            input.
    """
    steps = batches.steps_per_epoch(images, run)
    # The last call of an epoch belongs to no window.
    _check_input(run, images, (steps // run.steps_per_execution - 1) * run.epochs)
    started_from = models.fingerprint(model)
    trained = _compiled(run, model, images, where)
    # Traced steps come after the timed ones, in an epoch of their own where need be; an execution
    # of several steps takes a few batches more than an epoch has.
    longer = run.model_copy(update={"epochs": run.epochs + 2 * run.profile})
    most = min(run.max_steps or math.inf, steps * run.epochs)
    scales, histograms = exponents.ScaleTrace(), _histograms(run, images)
    watchers = [scales, *([histograms] if histograms else [])]
    clock = _clock(run.model_copy(update={"max_steps": most}) if run.profile else run, watchers)

    def train(callbacks: list[keras.callbacks.Callback]) -> None:
        trained.fit(
            profiler.announced(batches.training(images, longer), run),
            epochs=run.epochs + run.profile,
            steps_per_epoch=steps,
            **({} if run.profile else batches.validation(images, run)),
            callbacks=[*callbacks, _StopWhenNotFinite()],
            shuffle=False,  # the stream is shuffled already, alike for every policy
            verbose=0,
        )

    traced: dict[str, Any] = {}
    kept = b""
    with sensors.Sampler(where["kind"]) as sampler:
        began = time.perf_counter()
        if run.profile:
            traced, kept = profiler.captured(run, trained, clock, train)
        else:
            train([clock])
        fit_s = time.perf_counter() - began
    outcome = _outcome(run, trained, images, where, clock, sampler, started_from, fit_s)
    if where["kind"] == "cpu" and (kept or "rows" in traced):
        traced["primitives"] = profiler.primitives(run, trained)
    if histograms:
        histograms.end(trained)
    if not run.profile:  # its traced steps are not counted
        scales.look(trained, clock.begun)
    return replace(
        outcome,
        profile=traced,
        trace=kept,
        loss_scales=exponents.changes(scales.seen),
        exponents=histograms.record() if histograms else {},
        diverged=_diverged(run, images, where, clock),
    )


def _histograms(run: Run, images: datasets.Images) -> exponents.ExponentHistograms | None:
    """What looks at the exponents of the very batches that are trained on."""
    if not run.exponents_every:
        return None
    order = batches.order(images, run)
    return exponents.ExponentHistograms(
        lambda step: _batch(run, images, order[step % len(order)]), run.exponents_every
    )


def _batch(run: Run, images: datasets.Images, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pictures and labels as the run's model takes them."""
    y = images.train_y[chosen]
    if run.input_mode == "resident":
        return np.zeros(len(chosen), np.uint8), y
    x = images.train_x[chosen]
    return (x.astype("float32") / 255 if run.input_mode == "keydana" else x), y


def _diverged(
    run: Run, images: datasets.Images, where: dict[str, Any], clock: step_clock.StepClock
) -> dict[str, Any]:
    """Where a training that diverged did so: `told` in words and, where it is known, the rest."""
    if _finite_losses(clock.epochs):
        return {}
    if run.replicas > 1 or run.input_mode == "keydana":
        return {
            "told": "in which step, is looked for with one replica and input_mode pipeline alone"
        }
    model = models.build(run, images.shape, len(images.classes))
    again = _compiled(run.model_copy(update={"steps_per_execution": 1}), model, images, where)
    order = batches.order(images, run)[: clock.begun]
    found = divergence.first_not_finite(again, (_batch(run, images, k) for k in order))
    return {"told": divergence.sentence(found), **(found or {})}


def _finite_losses(epochs: Sequence[dict[str, float]]) -> bool:
    return all(math.isfinite(epoch["loss"]) for epoch in epochs)


def infer(run: Run, model: keras.Model, images: datasets.Images, where: dict[str, Any]) -> Outcome:
    """Predicts with the untrained model: the time of a batch alone, then of many in a row.

    Latency is what `predict_on_batch` takes; throughput comes from `predict`, timed by the step
    clock. Both include the copies to the device and back. Speed does not depend on the weights.

    Raises:
        precision.NotInForce: where what was asked for is not in force.
        environment.Unsupported: where there are too few batches to time, or the backend has no such
            input.
    """
    indices = batches.order(images, run)
    _check_input(run, images, len(indices) // run.steps_per_execution - 1)
    started_from = models.fingerprint(model)
    inferring = _compiled(run, model, images, where)
    clock = _clock(run)
    with sensors.Sampler(where["kind"]) as sampler:
        began = time.perf_counter()
        alone = indices[: min(run.max_steps or MOST_LATENCIES, MOST_LATENCIES)]
        latencies = [_latency(run, inferring, images, chosen) for chosen in alone]
        stream = batches.training(images, run)
        inferring.predict(stream, steps=len(indices), callbacks=[clock], verbose=0)
        fit_s = time.perf_counter() - began
    outcome = _outcome(run, inferring, images, where, clock, sampler, started_from, fit_s)
    timing = outcome.timing | _latency_figures(latencies)
    return replace(outcome, timing=timing, latencies_s=latencies)


PHASES = {"train": fit, "inference": infer}
MOST_LATENCIES = 1000


def _latency(run: Run, model: keras.Model, images: datasets.Images, chosen: np.ndarray) -> float:
    resident = run.input_mode == "resident"
    batch = np.zeros(len(chosen), np.uint8) if resident else images.train_x[chosen]
    began = time.perf_counter()
    model.predict_on_batch(replicas.shared(batch, run))
    return time.perf_counter() - began


def _latency_figures(latencies: list[float]) -> dict[str, Any]:
    warmup = step_clock.warmup_windows([step_clock.Window(0, 1, s) for s in latencies])
    low, high = np.percentile(latencies[warmup:], (50, 99))
    return {
        "latency_p50_s": float(low),
        "latency_p99_s": float(high),
        "latency_warmup": warmup,
    }


def _outcome(
    run: Run,
    model: keras.Model,
    images: datasets.Images,
    where: dict[str, Any],
    clock: step_clock.StepClock,
    sampler: sensors.Sampler,
    started_from: str,
    fit_s: float,
) -> Outcome:
    """What clock, sampler and model say after either phase."""
    card = environment.card(run.backend)
    return Outcome(
        run,
        _in_force(model, run, where, images) | {"initial_weights": started_from},
        clock.windows,
        clock.epochs,
        _timing(clock, run),
        step_clock.peak_memory_bytes(run.backend, where["kind"]),
        fit_s,
        batches.notes(images, run),
        readings=sensors.summary(sampler.samples, clock.timed(), where["kind"]),
        samples=sampler.samples,
        card=card,
        work=_work(run, model, card),
        swallowed_updates_frac=emulation.lost_updates_frac(model),
    )


def _work(run: Run, model: keras.Model, card: dict[str, Any]) -> dict[str, Any]:
    """What a step costs in arithmetic and bytes, and what its devices can do at best.

    Keys: flops_per_step, bytes_per_step, ceilings (see ceilings.measured; of all GPUs together); of
    a profiled run also layers: the rows of costs.per_step with alone_s (see
    ceilings.layer_seconds), alone_low_s (see ceilings.low_seconds) and channels. Where GPUs share a
    batch, these are of one of them, as the trace is.
    """
    devices = run.replicas if card["kind"] == "gpu" else 1
    each = run.model_copy(update={"batch_size": run.batch_size // devices})
    layers = costs.per_step(model, each.batch_size, run.phase == "train")
    found: dict[str, Any] = {
        "flops_per_step": float(layers.flops.sum(skipna=False)) * devices,
        "bytes_per_step": float(layers.bytes.sum(skipna=False)) * devices,
        "ceilings": _together(ceilings.measured(run, card), devices),
    }
    if run.profile:
        alone = ceilings.layer_seconds(each, model, card)
        low = ceilings.low_seconds(each, model, card)
        layers["alone_s"] = [alone.get(name) for name in layers.index]
        layers["alone_low_s"] = [low.get(name) for name in layers.index]
        layers["channels"] = layers.index.map(costs.widths(model))
        found["layers"] = layers.rename_axis("layer").reset_index().to_dict("records")
    return found


def _together(found: dict[str, Any], devices: int) -> dict[str, Any]:
    """The ceilings of so many devices, from those of one."""
    return {k: v * devices if isinstance(v, float) else v for k, v in found.items()}


def _check_input(run: Run, images: datasets.Images, timed: int) -> None:
    """Refuses an input that the backend lacks, and one that leaves too few calls to time."""
    if run.input_mode == "keydana" and (run.backend, run.phase) != ("tensorflow", "train"):
        raise environment.Unsupported(
            f"input_mode keydana is a tf.data pipeline for training; backend {run.backend}, phase "
            f"{run.phase} cannot use it: allowed are pipeline and resident"
        )
    last = len(images.train_x) % run.batch_size
    if run.input_mode == "keydana" and 0 < last < run.replicas:
        raise environment.Unsupported(
            f"input_mode keydana ends an epoch with a batch of {last}, too few for {run.replicas} "
            f"replicas; take another batch size than {run.batch_size}"
        )
    every = run.steps_per_execution
    if run.max_steps and every > 1:
        timed = min(timed, run.max_steps // every - 1)
    least = 5 if every == 1 else 2
    if timed < least:
        what = f"executions of {every} steps" if every > 1 else "steps"
        raise environment.Unsupported(
            f"batch_size {run.batch_size} and epochs {run.epochs} leave {max(timed, 0)} {what} to "
            f"time; the clock needs {least}: take a smaller batch or more epochs"
            + (", or fewer steps per execution" if every > 1 else "")
        )


def _compiled(
    run: Run, model: keras.Model, images: datasets.Images, where: dict[str, Any]
) -> keras.Model:
    """The model, reading one batch from the device where the run asks for that, compiled."""
    if run.input_mode == "resident":
        chosen = batches.order(images, run)[0]
        model = resident(model, images.train_x[chosen], images.train_y[chosen])
    precision.compile_model(model, run, batches.steps_per_epoch(images, run))
    precision.in_force(model, run, where)
    return model


def _clock(run: Run, watchers: Sequence[step_clock.Watcher] = ()) -> step_clock.StepClock:
    return step_clock.StepClock(
        step_clock.synchronizer(run.backend),
        run.target_ci,
        run.max_steps,
        run.steps_per_execution,
        ends_training=not run.profile,
        watchers=watchers,
    )


def _timing(clock: step_clock.StepClock, run: Run) -> dict[str, Any]:
    timing = step_clock.timing(clock.windows)
    return timing | {
        "images_per_s": run.batch_size / timing["step_s"],
        "ended_by": clock.ended_by,
    }


def _in_force(
    model: keras.Model, run: Run, where: dict[str, Any], images: datasets.Images
) -> dict[str, Any]:
    return {
        **precision.in_force(model, run, where),
        "data": images.content,
        "data_order": hashlib.sha256(batches.order(images, run).tobytes()).hexdigest()[:12],
    }


class _StopWhenNotFinite(keras.callbacks.Callback):
    """Ends a training whose loss is not a finite number: it will not become one again.

    Not Keras's TerminateOnNaN, which looks at every step: see step_clock.py.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            self.model.stop_training = True


def record(outcome: Outcome, notebook: str = "train") -> dict[str, Any]:
    """The record of a run that came to its end; its status is ok, or diverged."""
    run = outcome.run.resolved()
    losses = [epoch["loss"] for epoch in outcome.epochs]
    bad = [i for i, loss in enumerate(losses, 1) if not math.isfinite(loss)]
    told = outcome.diverged.get("told", "")
    return {
        "schema": schema.SCHEMA,
        "run_id": run.run_id(notebook),
        "notebook": notebook,
        "parameters": run.model_dump(),
        "in_force": outcome.in_force,
        "status": "diverged" if bad else "ok",
        "error": f"the loss was not finite in epoch {bad[0]}; {told}" if bad else "",
        "environment": outcome.card,
        "timing": outcome.timing,
        "windows": step_clock.as_dicts(outcome.windows),
        **({"latencies_s": outcome.latencies_s} if outcome.latencies_s else {}),
        "history": outcome.epochs,
        "marks": [*_marks(outcome), *sensors.marks(outcome.readings), *outcome.notes],
        "readings": _readings(outcome),
        "samples": outcome.samples,
        "work": outcome.work,
        **({"profile": outcome.profile} if outcome.profile else {}),
        **({"exponents": outcome.exponents} if outcome.exponents else {}),
        **_scales(outcome),
        **({"diverged_step": outcome.diverged.get("step")} if outcome.diverged else {}),
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "swallowed_updates_frac": outcome.swallowed_updates_frac,
        "fit_s": outcome.fit_s,
    }


def _scales(outcome: Outcome) -> dict[str, Any]:
    seen = outcome.loss_scales
    return {"loss_scales": seen, "skipped_steps": seen[-1]["skipped"]} if seen else {}


def _readings(outcome: Outcome) -> dict[str, Any]:
    watts = outcome.readings["power_w"]
    several = outcome.run.replicas > 1 and outcome.card["kind"] == "gpu"  # one of them is read
    joules = None if watts is None or several else watts / outcome.timing["images_per_s"]
    used = [sample["own_cpu_s"] for sample in outcome.samples] or [math.nan]
    return outcome.readings | {"energy_per_image_j": joules, "cpu_s": used[-1] - used[0]}


def _marks(outcome: Outcome) -> list[str]:
    run = outcome.run
    logical = run.replicas > 1 and outcome.card["kind"] == "cpu"
    cases = {
        "made from a tree with uncommitted changes": outcome.card["clean"] is False,
        replicas.LOGICAL: logical,
        emulation.NOTE: {run.propagation, run.weight_format} != {"policy"},
    }
    return [text for text, holds in cases.items() if holds]


def save(outcome: Outcome) -> Path:
    """Writes the record where the sweep wants it or below reports/interactive; returns the path."""
    folder = os.environ.get("MPTEXP_RUN_DIR")
    notebook = os.environ.get("MPTEXP_NOTEBOOK", "train")
    made = record(outcome, notebook)
    path = Path(folder) if folder else _interactive() / made["run_id"]
    kept = path / xplane.FILE
    kept.unlink(missing_ok=True)  # of an earlier run of the same parameters
    if outcome.trace:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(outcome.trace)
    store.write_record(path / "record.json", made)
    return path / "record.json"


def _interactive() -> Path:
    """reports/interactive of the project, also when the notebook's folder is the working one."""
    project = PROJECT
    return (
        project if (project / "notebooks").is_dir() else Path.cwd()
    ) / "reports/interactive/runs"
