"""How a column of numbers is headed and written, once for HTML, Markdown and the terminal.

The tables of a report are text before great-tables renders them: its own formatters write HTML
alone, and none of them writes a ratio with its interval and n.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pandas as pd

from mptexp.report.text import wording
from mptexp.spec import tasks

BLANK = "–"  # of what is not known, or was not measured


@dataclass(frozen=True)
class Column:
    """The heading of a column in SI units, and how its numbers are written.

    Attributes:
        heading: with the unit, where the cells do not name it.
        form: a format of str.format, or a function of the scaled number.
        scale: what a number in SI units is multiplied with.
    """

    heading: str
    form: str | Callable[[float], str]
    scale: float = 1.0

    def cell(self, value: float) -> str:
        """A number as text."""
        if pd.isna(value):
            return BLANK
        scaled = float(value) * self.scale
        return self.form.format(scaled) if isinstance(self.form, str) else self.form(scaled)


COLUMNS = {
    "step_s": Column("ms per step", "{:,.2f}", 1e3),
    "images_per_s": Column("Images/s", wording.rate),
    "tokens_per_s": Column("Tokens/s", wording.rate),
    "steps_timed": Column("Steps timed", "{:.0f}"),
    "warmup_steps": Column("Warm-up steps", "{:.0f}"),
    "skipped": Column("Skipped steps, median", "{:g}"),
    "first_step_s": Column("First step", "{:.2f}\u00a0s"),
    "training_s": Column("Training", "{:,.1f}\u00a0s"),
    "wall_s": Column("Whole run", "{:,.1f}\u00a0s"),
    "val_accuracy": Column("Validation accuracy", "{:.1f} %", 100),
    "val_perplexity": Column("Validation perplexity", wording.perplexity),
    "peak_memory_bytes": Column("Peak memory", "{:,.0f} MiB", 2**-20),
    "cost_per_million_images": Column("Cost per million images", wording.digits),
    "cost_per_million_tokens": Column("Cost per million tokens", wording.digits),
    "cost_per_training": Column("Cost per training", wording.digits),
    "zeros": Column("Zero already", wording.share),
    "flushed": Column("Flushed to zero", wording.share),
    "subnormal": Column("Subnormal", wording.share),
    "above": Column("Too large", wording.share),
    "lost_updates": Column("Updates lost to rounding", wording.share),
    # What a device's sensors say while steps are timed.
    "utilization_frac": Column("Utilization", "{:.0f} %", 100),
    "power_w": Column("Power", "{:.0f} W"),
    "energy_per_image_j": Column("Energy per image", lambda mj: f"{wording.digits(mj)} mJ", 1e3),
    "energy_per_token_j": Column("Energy per token", lambda mj: f"{wording.digits(mj)} mJ", 1e3),
    "clock_hz": Column("Clock", "{:,.0f} MHz", 1e-6),
    "temperature_c": Column("Temperature", "{:.0f} °C"),
    "throttled_frac": Column("Throttled, at most", lambda s: f"{wording.share(s)} of readings"),
    "device_memory_used_bytes": Column("Memory in use on the device", "{:,.0f} MiB", 2**-20),
    "other_load_frac": Column("Processor used by others, at most", wording.share),
    "other_processes": Column("Others on the GPU, at most", "{:.0f}"),
}
# Of what disturbs a run the most of all repeats is shown, of the others the median.
DISTURBING = ("throttled_frac", "other_load_frac", "other_processes")
SENSORS = {
    name: "max" if name in DISTURBING else "median"
    for name in tuple(COLUMNS)[tuple(COLUMNS).index("utilization_frac") :]
}


def cell(name: str, value: float) -> str:
    """A number of a column as text."""
    return COLUMNS[name].cell(value)


def cells(name: str, values: Iterable[float]) -> list[str]:
    """Numbers of a column as text."""
    return [COLUMNS[name].cell(value) for value in values]


def shown(table: pd.DataFrame, *names: str) -> dict[str, list[str]]:
    """Some columns of a table as text, under their headings."""
    return {COLUMNS[name].heading: cells(name, table[name]) for name in names}


def marked(cells: Iterable[str], flags: Iterable[str], *what: str) -> list[str]:
    """Cells of a column, each with why it is not valid: `20.0 s (not valid: interference)`.

    Args:
        what: the figures rest on, such as time, see `validity.invalid`.
    """
    whys = [wording.not_valid(own, *what) for own in flags]
    return [
        cell + f" ({why})" * (cell != BLANK and bool(why))
        for cell, why in zip(cells, whys, strict=True)
    ]


def by_task(table: pd.DataFrame, value: str, form: str) -> dict[str, list[str]]:
    """A column as text under the heading of each row's task.

    Args:
        form: name of one of COLUMNS, where {} stands for the task's unit; {rate} for its rate.
    """
    own = [tasks.of(dataset) for dataset in table.dataset]
    shown = {}
    for task in dict.fromkeys(own):
        column = COLUMNS[form.format(task.unit, rate=task.rate)]
        pairs = zip(own, table[value], strict=True)
        shown[column.heading] = [column.cell(v) if of is task else BLANK for of, v in pairs]
    return shown


def rates(table: pd.DataFrame) -> dict[str, list[str]]:
    """Throughput as text: `Images/s`, `Tokens/s` or both."""
    return by_task(table, "throughput", "{rate}")


def without_blanks(rows: pd.DataFrame) -> pd.DataFrame:
    """A table of text without the columns in which nothing is known."""
    return rows.drop(columns=[name for name in rows if (rows[name] == BLANK).all()])
