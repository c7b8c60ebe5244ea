"""What one run measured, as a value that a notebook shows and a record is made of."""

import math
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from mptexp.records import timed_windows
from mptexp.records.csv_columns import HISTORY
from mptexp.spec import tasks
from mptexp.spec.run import Run


@dataclass(frozen=True)
class Outcome:
    """What one run gave: its settings, windows, epochs and figures.

    Args:
        effective: the settings that were effective (see effective_settings.effective).
        windows: the windows of steps, in order.
        epochs: one dict per epoch (see StepClock.epochs).
        timing: figures of the windows (see timed_windows.timing) and of the latencies.
        peak_memory_bytes: see sensors.peak_memory_bytes.
        fit_s: seconds of the whole training or inference, validation included.
        notes: what a reader should know of the data.
        latencies_s: seconds of each batch of an inference, from images on the host to
            probabilities on the host.
        samples: what the device's sensors gave while the run was measured.
        sensors: summary of the samples of timed steps (see sensors.summary).
        work: arithmetic and bytes of a step, and the device's measured peaks (see work.of_step).
        profile: where the time of traced steps went (see profiler.captured).
        trace: the trace itself, compressed, where it was not read.
        loss_scales: the dynamic loss scale wherever it changed (see dynamic_range.changes).
        exponents: see ExponentHistograms.record.
        broken_layer: the first with weights that were not finite after the training; else empty.
        diverged: where the first tensor was that was not finite (see replay.first_not_finite).
        validated: which validation images were classified correctly at the end (see `validated`).
        lost_updates_frac: share of weight updates lost to rounding, of an emulated weight format.
        quantized: scales and magnitudes of float8 layers after the training, see
            quantized_layers.state.
    """

    run: Run
    effective: dict[str, Any]
    windows: list[timed_windows.Window]
    epochs: list[dict[str, float]]
    timing: dict[str, Any]
    peak_memory_bytes: int | None
    fit_s: float
    notes: tuple[str, ...] = ()
    latencies_s: list[float] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    sensors: dict[str, Any] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)
    work: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    trace: bytes = field(default=b"", repr=False)
    loss_scales: list[dict[str, Any]] = field(default_factory=list)
    exponents: dict[str, Any] = field(default_factory=dict)
    broken_layer: str = ""
    diverged: dict[str, Any] = field(default_factory=dict)
    validated: dict[str, Any] = field(default_factory=dict)
    lost_updates_frac: float | None = None
    quantized: dict[str, Any] = field(default_factory=dict)

    @property
    def diverged_epoch(self) -> int | None:
        """The first epoch whose loss was not finite; None where all were.

        Also of the training before an inference with integers.
        """
        epochs = self.epochs or self.quantized.get("history", [])
        losses = [epoch["loss"] for epoch in epochs]
        return next((i for i, loss in enumerate(losses, 1) if not math.isfinite(loss)), None)

    @property
    def status(self) -> str:
        """The record's: diverged or ok."""
        return "diverged" if self.diverged_epoch or self.broken_layer else "ok"

    @property
    def history(self) -> pd.DataFrame:
        """One row per epoch: loss, accuracy, val_loss, val_accuracy, elapsed_s."""
        return pd.DataFrame(self.epochs, columns=list(HISTORY)).set_index("epoch")

    @property
    def steps(self) -> pd.DataFrame:
        """One row per window: first_step, steps, ms_per_step, and whether it counts."""
        table = pd.DataFrame(self.windows)
        table["ms_per_step"] = table.seconds / table.steps * 1e3
        table["counts"] = table.first_step >= self.timing["warmup_steps"]
        return table

    @property
    def summary(self) -> pd.Series:
        """The run's figures that are known, in units for reading."""
        timing, task, peak = self.timing, tasks.of(self.run.dataset), self.peak_memory_bytes
        low, high = timing["step_s_low"] * 1e3, timing["step_s_high"] * 1e3
        return pd.Series(
            {
                "median step": f"{timing['step_s'] * 1e3:.2f} ms",
                "5th to 95th percentile": f"{low:.2f} to {high:.2f} ms",
                "throughput": f"{timing[task.rate]:,.0f} {task.unit}s/s",
                "interval of the median": f"± {timing['step_ci'] * 100:.1f} %, within this run",
                "steps timed": f"{timing['steps_timed']}",
                "ended by": timing["ended_by"],
                "steps left out as warm-up": f"{timing['warmup_steps']}",
                "first step, with compilation": f"{timing['first_step_s']:.2f} s",
                **({"peak memory": f"{peak / 2**20:,.0f} MiB"} if peak else {}),
                **(self._training() if self.epochs else self._inference()),
            },
            name="measured",
        )

    def _training(self) -> dict[str, str]:
        last = self.epochs[-1]
        task = tasks.of(self.run.dataset)
        parts = {"training": task.measured(last, ""), "validation": task.measured(last)}
        return {
            # Not fit_s: a pipeline may take a minute to close.
            "training, with validation": f"{last['elapsed_s']:.1f} s",
            **{f"{task.measure}, {part}": f"{v:.3f}" for part, v in parts.items() if v is not None},
        }

    def _inference(self) -> dict[str, str]:
        return {
            "latency, median": f"{self.timing['latency_p50_s'] * 1e3:.2f} ms",
            "latency, 99th percentile": f"{self.timing['latency_p99_s'] * 1e3:.2f} ms",
        }
