"""One run, read top to bottom: build the model, train or infer under the clock, gather."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from mptexp.records import interference, timed_windows
from mptexp.spec import feasible
from mptexp.spec import tasks as spec_tasks
from mptexp.spec.run import Run
from mptexp.training import (
    costs,
    effective_arithmetic,
    environment,
    frontends,
    models,
    precision,
    quantize_after_training,
    quantized_layers,
    replay,
    task_models,
)
from mptexp.training.backends import backend
from mptexp.training.capability import Unsupported
from mptexp.training.data import batches
from mptexp.training.data.datasets import Images
from mptexp.training.effective_settings import effective
from mptexp.training.layers import resident
from mptexp.training.measure import profiler, sensors, step_clock, work
from mptexp.training.numerics import divergence, dynamic_range, emulation
from mptexp.training.outcome import Outcome
from mptexp.training.validated_examples import validated

MOST_LATENCIES = 1000  # of single batches; their 99th percentile needs some hundreds


def build(run: Run, images: Images) -> keras.Model:
    """The run's model for these images, with initial weights that depend on the seed alone."""
    return models.build(run, images.shape, len(images.classes))


def execute(run: Run, model: keras.Model, images: Images, device: dict[str, Any]) -> Outcome:
    """Trains or infers with what `build` gave, as the run's phase says; gathers what was measured.

    The device is what precision.use gave.

    Raises:
        SettingNotApplied: before anything is timed, where a setting is not effective.
        Unsupported: where there are too few steps to time, the backend has no such input, or the
            policy has no effect on the model (see arithmetic.of_step).
    """
    # A process has one peak. Of a second run in a notebook it is the first one's, unless raised.
    before = sensors.peak_memory_bytes(device["kind"]) if _executed else None
    _executed.append(run)
    outcome = PHASES[run.phase](run, model, images, device)
    peak = outcome.peak_memory_bytes
    raised = before is None or peak is None or peak > before
    return replace(outcome, peak_memory_bytes=peak if raised else None)


_executed: list[Run] = []  # in this process


# --- training -----------------------------------------------------------------------------------


def fit(run: Run, model: keras.Model, images: Images, device: dict[str, Any]) -> Outcome:
    """Compiles and trains the model, timed by the step clock.

    Stops at the first epoch whose loss is not finite.
    """
    steps = batches.steps_per_epoch(images, run)
    _check_input(run, images)
    initial_weights = models.fingerprint(model)
    trained = _compiled(run, model, images)
    trainer = frontends.trainer(run, trained, images)
    effective(trained, run, device, trainer.settings())
    products = effective_arithmetic.of_step(run, trained, trainer.products())
    before = {"initial_weights": initial_weights, **products}
    scales, histograms = dynamic_range.ScaleTrace(trainer.scale), replay.histograms(run, images)
    watchers = [scales, *([histograms] if histograms else [])]
    clock = _clock(run, steps, trainer.synchronize, watchers)
    profile: dict[str, Any] = {}
    trace = b""
    with sensors.Sampler(device["kind"]) as sampler:
        began = time.perf_counter()
        if run.profile:
            profile, trace = profiler.captured(run, trained, clock, trainer.fit)
        else:
            trainer.fit(clock)
        fit_s = time.perf_counter() - began
    before |= trainer.settings()
    outcome = _outcome(run, trained, images, device, clock, sampler, before, fit_s)
    if device["kind"] == "cpu" and (trace or "rows" in profile):
        profile["primitives"] = profiler.primitives(run, trained)
        profile["products"] = effective_arithmetic.compiled(run, trained)
    seen: dict[str, Any] = {}
    if histograms:
        histograms.end(trained)
        # Beside what was seen, the names that `float32_layers` may hold, in order.
        names = [leaf.layer.name for leaf in costs.leaves(trained)]
        seen = {**histograms.record(), "network": names}
    if not run.profile:  # its traced steps are not counted
        scales.look(trained, clock.begun)
    outcome = replace(
        outcome,
        profile=profile,
        work=work.with_float64(outcome.work, run, outcome.card, profile),
        trace=trace,
        validated={} if outcome.diverged_epoch else validated(run, trainer.predicted, images),
        loss_scales=dynamic_range.changes(scales.samples),
        exponents=seen,
        broken_layer=divergence.broken(trained),
    )
    if outcome.status == "ok":
        return outcome

    def compiled(again: Run) -> keras.Model:
        return _compiled(again, build(run, images), images)

    diverged = replay.first_not_finite(run, images, clock.begun, compiled)
    return replace(outcome, diverged=diverged)


# --- inference ----------------------------------------------------------------------------------


def infer(run: Run, model: keras.Model, images: Images, device: dict[str, Any]) -> Outcome:
    """Predicts with the untrained model: the time of a batch alone, then of many in a row.

    Under a policy of integers with the model that was trained and quantized first.

    Latency is what `predict_on_batch` takes, with the copies to the device and back; throughput
    comes from `predict`, timed by the step clock, of which nothing but the last batch's output is
    kept. Speed does not depend on the weights.
    """
    order = batches.order(images, run)
    _check_input(run, images)
    initial_weights = models.fingerprint(model)
    quantization, traced = quantize_after_training.quantized_after_training(run, model, images)
    inferring = _compiled(run, model, images)
    trainer = frontends.trainer(run, inferring, images)
    effective(inferring, run, device, trainer.settings())
    traced = trainer.products() if traced is None else traced
    products = effective_arithmetic.of_step(run, inferring, traced)
    before = {"initial_weights": initial_weights, **products, **trainer.settings()}
    clock = _clock(run, len(order), trainer.synchronize)
    with sensors.Sampler(device["kind"]) as sampler:
        began = time.perf_counter()
        single = order[: min(run.max_steps or MOST_LATENCIES, MOST_LATENCIES)]
        latencies = [_latency(run, trainer, images, chosen) for chosen in single]
        alone = (began, time.perf_counter())
        trainer.predict(clock)
        fit_s = time.perf_counter() - began
    outcome = _outcome(run, inferring, images, device, clock, sampler, before, fit_s)
    timing = outcome.timing | _latency_figures(latencies)
    # The readings are of the timed windows: what interfered with single batches is told beside.
    beside = interference.marks(sensors.summary(sampler.samples, [alone], device["kind"]))
    told = {*interference.marks(outcome.sensors), *outcome.notes}
    notes = (*outcome.notes, *(mark for mark in beside if mark not in told))
    outcome = replace(outcome, timing=timing, latencies_s=latencies, notes=notes)
    if quantization:  # the process has trained too: its peak is not that of the inference
        outcome = replace(outcome, quantized=quantization, peak_memory_bytes=None)
    return outcome


def _latency(run: Run, trainer: frontends.Trainer, images: Images, chosen: np.ndarray) -> float:
    x, _ = replay.batch(run, images, chosen)
    began = time.perf_counter()
    trainer.predict_on_batch(x)
    return time.perf_counter() - began


def _latency_figures(latencies: list[float]) -> dict[str, Any]:
    warmup = timed_windows.warmup_windows([timed_windows.Window(0, 1, s) for s in latencies])
    low, high = np.percentile(latencies[warmup:], (50, 99))
    return {"latency_p50_s": float(low), "latency_p99_s": float(high), "latency_warmup": warmup}


PHASES = {"train": fit, "inference": infer}

# --- both ---------------------------------------------------------------------------------------


def _check_input(run: Run, images: Images) -> None:
    """Refuses an input that the backend lacks, and one that leaves too few calls to time."""
    if run.input_mode == "keydana" and not (
        backend(run.backend).READS_TF_DATA and run.phase == "train"
    ):
        raise Unsupported(
            f"input_mode keydana is a tf.data pipeline for training; backend {run.backend}, phase "
            f"{run.phase} cannot use it: allowed are pipeline and resident"
        )
    last = len(images.train_x) % run.batch_size
    if run.input_mode == "keydana" and 0 < last < run.replicas:
        raise Unsupported(
            f"input_mode keydana ends an epoch with a batch of {last}, too few for {run.replicas} "
            f"replicas; take another batch size than {run.batch_size}"
        )
    if why := feasible.fault(run, len(images.train_x)):
        raise Unsupported(why)


def _compiled(run: Run, model: keras.Model, images: Images) -> keras.Model:
    """The model, reading one batch from the device where Keras trains on that alone, compiled."""
    if run.input_mode == "resident" and run.frontend == "keras":
        chosen = batches.order(images, run)[0]
        model = resident(model, images.train_x[chosen], images.train_y[chosen])
    precision.compile_model(model, run, batches.steps_per_epoch(images, run))
    return model


def _clock(
    run: Run,
    steps: int,
    synchronize: Callable[[keras.Model], None],
    watchers: Sequence[step_clock.Watcher] = (),
) -> step_clock.StepClock:
    """A clock for epochs of so many steps; a profiled training goes on where the clock ends."""
    most = int(min(run.max_steps or math.inf, steps * run.epochs))
    return step_clock.StepClock(
        synchronize,
        run.target_ci,
        most if run.profile else run.max_steps,
        run.steps_per_execution,
        ends_training=not run.profile,
        watchers=watchers,
    )


def _outcome(
    run: Run,
    model: keras.Model,
    images: Images,
    device: dict[str, Any],
    clock: step_clock.StepClock,
    sampler: sensors.Sampler,
    before: dict[str, Any],
    fit_s: float,
) -> Outcome:
    """What clock, sampler and model hold after either phase, and what was read before it."""
    timing = timed_windows.timing(clock.windows)
    validated_with = batches.validation_count(images, run)
    settings = effective(model, run, device) | {
        "data": images.content,
        "data_order": batches.order_digest(images, run),
        "fed": batches.fingerprint(images, run),
        "validation_images": validated_with,
        **task_models.of(run).chance(images, validated_with),
        **before,
    }
    # Read before the device's peaks are measured, which takes memory too.
    peak_memory_bytes = sensors.peak_memory_bytes(device["kind"])
    card = environment.card(run.backend)
    return Outcome(
        run,
        settings,
        clock.windows,
        clock.epochs,
        timing | _rate(run, timing["step_s"]) | {"ended_by": clock.ended_by},
        peak_memory_bytes,
        fit_s,
        batches.notes(images, run),
        samples=sampler.samples,
        sensors=sensors.summary(sampler.samples, clock.timed(), device["kind"]),
        card=card,
        work=work.of_step(run, model, card),
        lost_updates_frac=emulation.lost_updates_frac(model),
        quantized=quantized_layers.state(model),
    )


def _rate(run: Run, step_s: float) -> dict[str, float]:
    """Units of the run's task per second, under their name."""
    units = run.batch_size * spec_tasks.units(run.model_dump())
    return {spec_tasks.of(run.dataset).rate: units / step_s}
