"""The columns of results.csv and history.csv: one row per column, with unit, meaning and type."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

# Numbers that arithmetic on them cannot bring to infinity, and that are no thousand digits long.
Number = Annotated[float, Field(ge=-1e30, le=1e30)]
Positive = Annotated[float, Field(gt=1e-30, le=1e30)]
Count = Annotated[Number, Field(ge=1)]


@dataclass(frozen=True)
class Column:
    """A column of results.csv; empty where a run has no such value.

    Args:
        name: SI units, with the unit in the name.
        meaning: what it holds, for a reader; the unit where the name has none.
        kind: the type of a value, as records are checked for it.
        timed: whether it is empty for a run whose timings are not valid (see schema.VOID).
        task: of which alone it is a figure, see spec.tasks; a table without such runs lacks it,
            but for those of images.
    """

    name: str
    meaning: str
    kind: Any = Number
    timed: bool = False
    task: str = ""


COLUMNS = {
    column.name: column
    for column in (
        Column("run_id", "12 hex digits: the hash of the run's parameters", str),
        Column("status", "ok, oom, diverged, unsupported, failed, killed or timeout", str),
        Column("error", "first line of the error, empty when ok", str),
        Column("sweep", "name of the params file", str),
        Column("dataset", "name", str),
        Column("model", "name", str),
        Column("gpu_model", "device that was asked for; a CPU's with its cores", str),
        Column("device", "device that was found", str),
        Column("backend", "Keras backend", str),
        Column("policy", "precision policy", str),
        Column(
            "emulated",
            "whether products are computed without instructions for the policy's type",
            bool,
        ),
        Column(
            "effective_share",
            "share of the arithmetic of products in the type that the policy promises",
        ),
        Column("loss_scale", "effective at the end: none, or the number", str | Number),
        Column("batch_size", "images per step, over all replicas", Count),
        Column("replicas", "devices that share a batch", Count),
        Column("jit", "whether XLA compiled the step", bool | str),
        Column("input_mode", "where batches come from", str),
        Column("phase", "train or inference", str),
        Column("setting", "other parameters that vary within the sweep, empty where none do", str),
        Column("block", "which repeat"),
        Column("seed", "of weights and data order"),
        Column("step_s", "median window, seconds per step", Positive, timed=True),
        Column("step_s_low", "5th percentile window, seconds per step", Positive, timed=True),
        Column("step_s_high", "95th percentile window, seconds per step", Positive, timed=True),
        Column("images_per_s", "batch_size / step_s", Positive, timed=True, task="images"),
        Column(
            "tokens_per_s",
            "batch_size * sequence_length / step_s",
            Positive,
            timed=True,
            task="tokens",
        ),
        Column(
            "step_ci",
            "half width of the 95 % interval of step_s within the run, as a fraction of it",
            timed=True,
        ),
        Column("steps_timed", "steps in the windows that count"),
        Column("ended_by", "what ended the run: epochs, target_ci or max_steps", str),
        Column("warmup_steps", "steps left out at the start: compilation, autotuning, warm-up"),
        Column("first_step_s", "seconds of the first step, which compiles", timed=True),
        Column(
            "latency_p50_s", "median seconds of one inference batch alone, host to host", timed=True
        ),
        Column("latency_p99_s", "99th percentile of the same", timed=True),
        Column("peak_memory_bytes", "of the device's allocator on a GPU, of the process on a CPU"),
        Column("device_memory_used_bytes", "most memory in use on the GPU, by any process"),
        Column("readings", "readings of the device while steps were timed"),
        Column(
            "utilization_frac",
            "share of time a GPU's kernels ran, of eight readings or more; on a CPU, of the "
            "processors that it may use",
            timed=True,
        ),
        Column("power_w", "mean power of the device while timed"),
        Column(
            "flops_per_s", "arithmetic of the model's step, from its shapes, / step_s", timed=True
        ),
        Column(
            "bytes_per_s",
            "least traffic of the model's step, from its shapes, / step_s",
            timed=True,
        ),
        Column(
            "mfu_frac",
            "flops_per_s / that of the device's largest measured matrix product, same type; empty "
            "where it exceeds that, which was then measured beside other programs",
            timed=True,
        ),
        Column("energy_per_image_j", "power_w / images_per_s", timed=True, task="images"),
        Column("energy_per_token_j", "power_w / tokens_per_s", timed=True, task="tokens"),
        Column("clock_hz", "mean clock of the device while timed"),
        Column("temperature_c", "mean temperature of the device while timed, Celsius"),
        Column("throttled_frac", "share of the readings with throttled clocks"),
        Column(
            "other_load_frac",
            "processor time that other programs used, of the processors that it may use",
        ),
        Column("other_processes", "most other processes on the GPU at a time"),
        Column("cpu_s", "processor seconds of this process in fit"),
        Column("train_accuracy", "fraction, last epoch", task="images"),
        Column("val_accuracy", "fraction, last epoch", task="images"),
        Column("train_perplexity", "exponential of the loss per token, last epoch", task="tokens"),
        Column("val_perplexity", "the same of the validation", task="tokens"),
        Column(
            "swallowed_updates_frac",
            "share of weight updates, not zero, that left the weight as it was",
        ),
        Column("epochs", "epochs finished"),
        Column(
            "skipped_steps", "steps that a dynamic loss scale left out: gradients were not finite"
        ),
        Column("diverged_step", "step with the first number that was not finite, counted from 1"),
        Column(
            "fit_s",
            "seconds in fit, with validation and what an input pipeline takes to close",
            Positive,
            timed=True,
        ),
        Column("wall_s", "seconds of the whole run, kernel start to record"),
        Column(
            "default_policy",
            "what a user who sets nothing gets on this device with this backend",
            str,
        ),
        Column("flags", "what is not valid of this run, separated by ;", str),
        Column("marks", "what a reader should know of this run, separated by ;", str),
    )
}
# Columns of history.csv, after run_id.
HISTORY = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "elapsed_s")
