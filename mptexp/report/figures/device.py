"""Figures of the device: its memory, and its utilization and power over time."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from mptexp.analysis import summary, sweep_tables, validity
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.figures import speed, style
from mptexp.report.figures.row import FigureRow, single
from mptexp.report.figures.style import COLOURS, INK
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.text import column_formats, wording

MIB = 2**20


def memory_by_batch_size(tables: Tables) -> Figure:
    """Peak memory of every run in MiB, a panel per device; what there is as a line if near."""
    memory = tables.ok.peak_memory_bytes / MIB
    figure, panels = speed.dots(tables.ok, memory, "peak memory, MiB")
    for axis, _ in panels:
        axis.set_ylim(0, memory.max() * 1.08)
    for axis, (_, part) in panels:
        limit, whose = min(available_memory(tables.records_by_id[i]) for i in part.run_id)
        limit /= MIB
        if limit < 4 * axis.get_ylim()[1]:
            axis.axhline(limit, color=INK, linewidth=1.2, linestyle="--")
            axis.set_ylim(0, max(axis.get_ylim()[1], limit * 1.05))
            axis.annotate(whose, (0.02, limit), xycoords=("axes fraction", "data"),
                          va="bottom", size=8, color=INK)  # fmt: skip
    style.legend(figure)
    return figure


def available_memory(record: Mapping[str, Any]) -> tuple[float, str]:
    """Bytes of memory that a run could take, infinite where not known, and what they are called.

    On a CPU a container or a limit may allow less than the machine has; that of the machine is no
    GPU's.
    """
    known = record.get("environment") or {}
    sizes, name = [known.get("device_memory_bytes")], "the device's memory"
    if known.get("kind") == "cpu":
        limit_gb = record["parameters"].get("memory_limit_gb")
        sizes = [known.get("memory_bytes"), known.get("container_memory_bytes")]
        sizes, name = [*sizes, limit_gb and limit_gb * 1e9], "the memory that a run may use"
    return min((s for s in sizes if isinstance(s, int | float)), default=math.inf), name


def _caption_memory(tables: Tables) -> str:
    table = summary.headline(tables).dropna(subset="peak_memory_bytes")
    table = table.assign(place=wording.places(table), flags=table.run_flags)
    known = (
        "On a CPU this is the whole process, framework included; on a GPU, the framework's "
        "allocator."
    )
    valid = validity.sound(table, "memory")
    if valid.empty:
        return known
    of = f"medians over repeats, {speed.SEVERAL_SIZES}"
    of += ", where that is valid" * (len(valid) < len(table))
    least = valid.loc[valid.peak_memory_bytes.idxmin()]
    most = valid.loc[valid.peak_memory_bytes.idxmax()]
    ends = column_formats.cells(
        "peak_memory_bytes", [row.peak_memory_bytes for row in (least, most)]
    )
    return (
        f"From {ends[0]} ({least.policy}, {least.place}) to {ends[1]} ({most.policy}, "
        f"{most.place}): {of}. {known}"
    )


def readings_by_time(samples: pd.DataFrame) -> Figure:
    """Utilization and, where it was read, power over time, a line per policy.

    Args:
        samples: columns policy, seconds (since the first sample), utilization_frac, power_w.
    """
    read = _read(samples)
    figure, axes = style.new(1.1 + 1.7 * len(read), rows=len(read), sharex=True)
    for axis, name in zip(axes, read, strict=True):
        scale = 100 if name == "utilization_frac" else 1
        for policy in style.policies(samples):
            own = samples[samples.policy == policy]
            look = {"color": COLOURS[policy], "label": policy, "linewidth": 1.4}
            axis.plot(own.seconds, own[name] * scale, **look)
        axis.set_ylabel(read[name])
        axis.set_ylim(0)
    axes[-1].set_xlabel("seconds")
    style.legend(figure)
    return figure


def _read(samples: pd.DataFrame) -> dict[str, str]:
    """The readings that there are, by column, as their axes are labelled."""
    labels = {"utilization_frac": "utilization, %", "power_w": "power, W"}
    return {name: label for name, label in labels.items() if samples[name].notna().any()}


def _names(samples: pd.DataFrame) -> str:
    names = [label.partition(",")[0] for label in _read(samples).values()]
    return f"{wording.capitalized(wording.listed(names))}."


def _caption_readings(samples: pd.DataFrame) -> str:
    # The largest: a GPU's first readings, and a mean with them, are of what came before the steps.
    most = samples.groupby("policy", sort=False).utilization_frac.max().dropna() * 100
    by_policy = [f"{value:.0f} % in {policy}" for policy, value in most.items()]
    return (
        f"Utilization reaches {wording.listed(by_policy)}: one run of each policy"
        f"{_where(samples)}, from its first reading to its last: also before and after the steps "
        "that were timed, of which the table is."
    )


def _where(samples: pd.DataFrame) -> str:
    """` with prefetched input`: the setting of these runs, where they share one."""
    places = samples.get("place", pd.Series(dtype=str)).unique()
    if len(places) > 1:
        return ", not all in one setting"
    return "".join(f" {wording.at(place)}" for place in places if place)


def _samples(sweep: MeasuredSweep) -> dict[str, pd.DataFrame]:
    samples, ok = sweep_tables.device_samples(sweep.directory, sweep.tables), sweep.tables.ok
    if not samples.empty:
        places = pd.Series(wording.places(ok), ok.run_id)
        samples["place"] = samples.run_id.map(places)
    return single(samples, not samples.empty)


FIGURES = (
    FigureRow(
        "memory_by_batch_size",
        "memory",
        "Peak memory",
        "Peak memory in MiB by batch size, one dot per run, coloured by policy.",
        partial(speed.by_sizes, value="peak_memory_bytes"),
        memory_by_batch_size,
        _caption_memory,
    ),
    FigureRow(
        "readings_by_time",
        "device",
        "Device readings over time",
        "Readings of the device by seconds, a line per policy.",
        _samples,
        readings_by_time,
        _caption_readings,
        _names,
    ),
)
