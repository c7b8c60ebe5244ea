"""A run, from the parts: train with `fit`, look at what happened, write the record."""

import hashlib
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import pandas as pd

from mptexp import data, environment, measure, models, precision, store
from mptexp.spec import Run


@dataclass(frozen=True)
class Outcome:
    """What one training gave: windows, epochs, figures, and what was in force."""

    run: Run
    in_force: dict[str, Any]
    windows: list[measure.Window]
    epochs: list[dict[str, float]]
    timing: dict[str, Any]
    peak_memory_bytes: int | None
    fit_s: float

    @property
    def history(self) -> pd.DataFrame:
        """One row per epoch: loss, accuracy, val_loss, val_accuracy, elapsed_s."""
        return pd.DataFrame(self.epochs).set_index("epoch")

    @property
    def steps(self) -> pd.DataFrame:
        """One row per window: first_step, steps, ms_per_step, and whether it counts."""
        table = pd.DataFrame(measure.as_dicts(self.windows))
        table["ms_per_step"] = table.seconds / table.steps * 1e3
        table["counts"] = table.first_step >= self.timing["warmup_steps"]
        return table

    @property
    def summary(self) -> pd.Series:
        """What was measured, in units for reading."""
        timing, last = self.timing, self.epochs[-1]
        return pd.Series(
            {
                "median step": f"{timing['step_s'] * 1e3:.2f} ms",
                "5th to 95th percentile": (
                    f"{timing['step_s_low'] * 1e3:.2f} to {timing['step_s_high'] * 1e3:.2f} ms"
                ),
                "throughput": f"{timing['images_per_s']:,.0f} images/s",
                "steps timed": f"{timing['steps_timed']}",
                "left out as warm-up": f"{timing['warmup_steps']} steps",
                "first step, with compilation": f"{timing['first_step_s']:.2f} s",
                "peak memory": f"{(self.peak_memory_bytes or 0) / 2**20:,.0f} MiB",
                "training, with validation": f"{self.fit_s:.1f} s",
                "accuracy, training": f"{last['accuracy']:.3f}",
                "accuracy, validation": f"{last['val_accuracy']:.3f}",
            },
            name="measured",
        )


def fit(run: Run, model: keras.Model, images: data.Images, where: dict[str, Any]) -> Outcome:
    """Compiles and trains the model, timed by the step clock.

    Stops at the first epoch whose loss is not finite.

    Raises:
        precision.NotInForce: before training, where what was asked for is not in force.
        environment.Unsupported: where there are too few steps to time.
    """
    steps = data.steps_per_epoch(images, run.batch_size)
    timed = (steps - 1) * run.epochs  # the last step of an epoch belongs to no window
    if timed < 5:
        raise environment.Unsupported(
            f"batch_size {run.batch_size} and epochs {run.epochs} leave {timed} steps to time; "
            "the clock needs 5: take a smaller batch or more epochs"
        )
    started_from = models.fingerprint(model)
    precision.compile_model(model, run)
    precision.in_force(model, run, where)
    clock = measure.StepClock(measure.synchronizer(run.backend))
    began = time.perf_counter()
    model.fit(
        data.batches(images, run),
        epochs=run.epochs,
        steps_per_epoch=steps,
        validation_data=(images.val_x, images.val_y),
        validation_batch_size=run.batch_size,
        callbacks=[clock, _StopWhenNotFinite()],
        shuffle=False,  # the stream is shuffled already, alike for every policy
        verbose=0,
    )
    fit_s = time.perf_counter() - began
    timing = measure.timing(clock.windows)
    timing["images_per_s"] = run.batch_size / timing["step_s"]
    in_force = {
        **precision.in_force(model, run, where),
        "initial_weights": started_from,
        "data_order": hashlib.sha256(data.order(images, run).tobytes()).hexdigest()[:12],
    }
    peak = measure.peak_memory_bytes(run.backend, where["kind"])
    return Outcome(run, in_force, clock.windows, clock.epochs, timing, peak, fit_s)


class _StopWhenNotFinite(keras.callbacks.Callback):
    """Ends a training whose loss is not a finite number: it will not become one again.

    Not Keras's TerminateOnNaN, which looks at every step: see measure.py.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            self.model.stop_training = True


def record(outcome: Outcome, notebook: str = "train") -> dict[str, Any]:
    """The record of a run that came to its end; its status is ok, or diverged."""
    run = outcome.run.resolved()
    losses = [epoch["loss"] for epoch in outcome.epochs]
    bad = [i for i, loss in enumerate(losses, 1) if not math.isfinite(loss)]
    card = environment.card(run.backend)
    return {
        "schema": store.SCHEMA,
        "run_id": run.run_id(notebook),
        "notebook": notebook,
        "parameters": run.model_dump(),
        "in_force": outcome.in_force,
        "status": "diverged" if bad else "ok",
        "error": f"the loss was not finite in epoch {bad[0]}" if bad else "",
        "environment": card,
        "timing": outcome.timing,
        "windows": measure.as_dicts(outcome.windows),
        "history": outcome.epochs,
        "marks": ["made from a tree with uncommitted changes"] if card["clean"] is False else [],
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "fit_s": outcome.fit_s,
    }


def save(outcome: Outcome) -> Path:
    """Writes the record where the sweep wants it or below reports/interactive; returns the path."""
    folder = os.environ.get("MPTEXP_RUN_DIR")
    notebook = os.environ.get("MPTEXP_NOTEBOOK", "train")
    made = record(outcome, notebook)
    path = Path(folder) if folder else _interactive() / made["run_id"]
    store.write_record(path / "record.json", made)
    return path / "record.json"


def _interactive() -> Path:
    """reports/interactive of the project, also when the notebook's folder is the working one."""
    project = Path(environment.__file__).resolve().parent.parent
    return (
        project if (project / "notebooks").is_dir() else Path.cwd()
    ) / "reports/interactive/runs"
