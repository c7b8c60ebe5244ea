"""Figures of speed: speedups, step times, images per second, latencies."""

from dataclasses import replace
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mptexp.analysis import validity
from mptexp.analysis.points import POINT, of_task
from mptexp.analysis.speedups import row_times, with_jit
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.figures import style
from mptexp.report.figures.row import FigureRow, single
from mptexp.report.figures.style import COLOURS, INK, MARKERS, Panel, sns
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.tables import text_tables
from mptexp.report.text import wording
from mptexp.spec import tasks

# --- speedups ----------------------------------------------------------------------------------
SEVERAL_SIZES = "of what was measured at several batch sizes"  # others stand in the table alone


def speedup_by_batch_size(speedups: pd.DataFrame) -> Figure:
    """Speedup over one baseline with its interval, a panel per device; 1 is drawn as a line.

    Args:
        speedups: of one baseline, the columns of `Tables.claims`.
    """
    figure, panels = style.panels(style.by_panel(speedups))
    places, policies = style.places(speedups), style.policies(speedups, "candidate")
    for axis, (title, part) in panels:
        axis.axhline(1, color=INK, linewidth=1)
        for index, policy in enumerate(policies):
            rows = part[part.candidate == policy]
            x = [places[size] + style.offset(index, len(policies)) for size in rows.batch_size]
            errors = [rows.speedup - rows.low, rows.high - rows.speedup]
            look = {"color": COLOURS[policy], "fmt": MARKERS[policy], "capsize": 4}
            axis.errorbar(x, rows.speedup, errors, label=policy, markersize=7, **look)
        style.log_scale(axis)
        style.label_batches(axis, places)
        axis.set_title(style.wrapped(title))
    baseline = speedups.baseline.iloc[0]
    figure.axes[0].set_ylabel(f"speedup over {baseline}\n(above 1 is faster)")
    style.legend(figure)
    return figure


def _caption_speedup(speedups: pd.DataFrame) -> str:
    """A ratio is the best only where its whole interval lies above 1, of those that are drawn."""
    speedups = style.drawn(style.by_panel(speedups)).reset_index(drop=True)
    speedups = speedups.assign(place=wording.places(speedups))
    findings = speedups.apply(wording.finding, axis=1)
    faster, valid = speedups[findings == "faster"], speedups[findings != "not valid"]
    among = next((rows for rows in (faster, valid) if len(rows)), speedups)
    most = among.loc[among.speedup.idxmax()]
    are_faster = {0: "none is", 1: "1 is"}.get(len(faster), f"{len(faster)} are")
    proven = f"{are_faster} measurably faster than {wording.default_name(most.baseline)}"
    if valid.empty:
        proven = "none is valid"
    has_bars = speedups.low.notna().any()
    bars = " Bars are 95 % intervals that hold for all points together." if has_bars else ""
    return (
        f"Of {wording.count(len(speedups), 'point')} drawn, {proven}; "
        f"{'largest ratio' if faster.empty else 'best'}: "
        f"{most.candidate} {wording.at(most.place)}, {wording.ratio_of(most)}.{bars}"
    )


def _of_several_sizes(rows: pd.DataFrame) -> pd.Series:
    """Whether the panel of a row holds several batch sizes: over one a figure says nothing."""
    panel = [name for name in POINT if name != "batch_size"]
    return rows.groupby(panel, dropna=False).batch_size.transform("nunique") > 1


def by_sizes(sweep: MeasuredSweep, value: str) -> dict[str, Tables]:
    """The runs of panels with several batch sizes, if a value is known of any.

    Others stand in the headline table.
    """
    results = sweep.tables.results
    tables = replace(sweep.tables, results=results[_of_several_sizes(with_jit(results))])
    return single(tables, bool(value in tables.ok and tables.ok[value].notna().any()))


def _not_in_the_answer(sweep: MeasuredSweep) -> dict[str, pd.DataFrame]:
    """The speedups of each baseline, where the chart of the answer does not hold them all.

    Of panels with several batch sizes: others stand in the headline table.
    """
    cases = dict(tuple(sweep.tables.claims.groupby("baseline", sort=False)))
    if len(sweep.subject.drawn) == sum(map(len, cases.values())):
        return {}
    drawn = {name: rows[_of_several_sizes(rows)] for name, rows in cases.items()}
    return {name: rows for name, rows in drawn.items() if len(rows)}


# --- step times and images per second ------------------------------------------------------------


def step_time_by_batch_size(tables: Tables) -> Figure:
    """Median milliseconds per step of every run, a panel per device."""
    figure, panels = dots(tables.ok, tables.ok.step_s * 1e3, "ms per step")
    for axis, _ in panels:
        style.log_scale(axis)
    style.legend(figure)
    return figure


def _caption_step_time(tables: Tables) -> str:
    dots = style.drawn(style.by_panel(tables.ok)).step_s.notna().sum()
    runs = wording.count(int(dots), "run")
    return f"Each dot is the median step of one run ({runs}, {SEVERAL_SIZES})."


def _rates(tables: Tables, task: tasks.Task) -> pd.DataFrame:
    """The runs of a task with their rate, and those that ran out of memory."""
    out = tables.results[tables.results.status == "oom"]
    table = of_task(with_jit(pd.concat([tables.ok, out])), task)
    return table.assign(rate=pd.to_numeric(table[task.rate]))


def rates_by_batch_size(tables: Tables, task: tasks.Task) -> Figure:
    """Units per second of every run and their means as lines; crosses where memory ran out."""
    table = _rates(tables, task)
    figure, panels = dots(table, table.rate, f"{task.unit}s per second")
    places, policies = style.places(table), style.policies(table)
    for axis, (_, part) in panels:
        style.log_scale(axis)
        for index, policy in enumerate(policies):
            own = part[part.policy == policy]
            means = row_times(own, ["batch_size"]).throughput.dropna()
            # Not set apart as dots are: on a rising curve a line to the right looks like one below.
            x = [places[size] for size in means.index]
            axis.plot(x, means, color=COLOURS[policy], linewidth=1, alpha=0.6)
            lost = own[own.status == "oom"].batch_size.unique()
            x = [places[size] + style.offset(index, len(policies)) for size in lost]
            if x:  # an empty line that is not clipped spoils the layout
                low = axis.get_ylim()[0]
                axis.plot(x, [low] * len(x), "x", color=COLOURS[policy], clip_on=False)
    if (table.status == "oom").any():
        figure.axes[0].plot([], [], "x", color=INK, label="out of memory")
    style.legend(figure)
    return figure


def _caption_rates(tables: Tables, task: tasks.Task) -> str:
    table = style.drawn(style.by_panel(_rates(tables, task)))
    lost = table[table.status == "oom"]
    tail = f" {wording.count(len(lost), 'run')} ran out of memory (crosses)." if len(lost) else ""
    drawn = "Dots are runs, set apart by policy; lines go through geometric means."
    return f"{_highest(table)}{drawn}{tail}"


def _highest(runs: pd.DataFrame) -> str:
    """The highest rate of a row of the headline table whose times are valid; empty without any."""
    keys = [*POINT, "policy"]
    flags = runs.groupby(keys)["flags"].agg(validity.together)
    rows = row_times(runs, keys).join(flags).reset_index()
    rows = rows.assign(place=wording.places(rows)).dropna(subset="throughput")
    valid = validity.sound(rows, "time")
    if valid.empty:
        return ""
    best = valid.loc[valid.throughput.idxmax()]
    of = " of what is valid" * (len(valid) < len(rows))
    said = f"{wording.rate(best.throughput)}, {best.policy} {wording.at(best.place)}"
    return f"Highest rate{of}: {said}. "


def dots(
    runs: pd.DataFrame, values: pd.Series, label: str
) -> tuple[Figure, list[tuple[Axes, Panel]]]:
    """A value of every run by batch size, a dot per run, a panel per device; without a legend."""
    table = runs.assign(value=values)
    figure, panels = style.panels(style.by_panel(table))
    places, policies = style.places(table), style.policies(table)
    for axis, (title, part) in panels:
        for index, policy in enumerate(policies):
            rows = part[part.policy == policy]
            x = [places[size] + style.offset(index, len(policies)) for size in rows.batch_size]
            look = {"color": COLOURS[policy], "marker": MARKERS[policy], "alpha": 0.75}
            look["rasterized"] = len(table) > style.VECTORS
            axis.scatter(x, rows.value, s=34, label=policy, linewidth=0, **look)
        style.label_batches(axis, places)
        axis.set_title(style.wrapped(title))
    figure.axes[0].set_ylabel(label)
    return figure, panels


# --- latencies -----------------------------------------------------------------------------------


def latency_distribution(tables: Tables) -> Figure:
    """Share of inference batches that took at most so many milliseconds, a panel per point."""
    table = tables.latencies.assign(latency_ms=tables.latencies.latency_s * 1e3)
    figure, panels = style.panels(style.by_point(table))
    policies = style.policies(table)
    for axis, (title, part) in panels:
        for policy in policies:
            values = part[part.policy == policy].latency_ms  # of all repeats together
            sns.ecdfplot(x=values, color=COLOURS[policy], label=policy, linewidth=2, ax=axis)
        # The slowest hundredth would squeeze the rest: each curve is seen to the dotted line.
        slowest = part.groupby("policy").latency_ms.quantile(0.99).max()
        axis.set_xlim(part.latency_ms.min() * 0.95, slowest * 1.1)
        axis.axhline(0.99, color=INK, linewidth=0.8, linestyle=":")
        axis.set(title=style.wrapped(title), xlabel="ms per batch, host to host")
        axis.set_ylabel("share of batches")
    style.legend(figure)
    return figure


def _caption_latency(tables: Tables) -> str:
    opening = (
        "A curve further left is faster; a long way from its middle to the dotted line (99 of 100 "
        "batches) means unsteady latency."
    )
    table = style.drawn(style.by_point(tables.latencies))
    keys = [*POINT, "policy"]
    groups = table.groupby(keys, dropna=False).latency_s
    ends = groups.quantile([0.5, 0.99]).unstack()
    ends = ends.assign(n=groups.count(), slowest=groups.max()).reset_index()
    flags = tables.ok.groupby(keys, as_index=False, dropna=False)["flags"].agg(validity.together)
    ends = ends.assign(place=wording.places(ends)).merge(flags, on=keys)
    valid = validity.sound(ends, "time")
    if valid.empty:
        return opening
    worst = valid.loc[(valid[0.99] - valid[0.5]).idxmax()]  # the axis is linear
    of = " of what is valid" * (len(valid) < len(ends))
    slow = f"99th percentile {worst[0.99] * 1e3:.2f} ms, over the batches of all repeats"
    if worst.n < text_tables.FEW_LATENCIES:
        slow = f"the slowest of the {worst.n} batches of all repeats {worst.slowest * 1e3:.2f} ms"
    return (
        f"{opening} The longest{of} is {worst.policy}'s {wording.at(worst.place)}: median "
        f"{worst[0.5] * 1e3:.2f} ms, {slow}."
    )


FIGURES = (
    FigureRow(
        "speedup_over_{}_by_batch_size",
        "speedups",
        "Speedup over {}",
        "Speedup over {} by batch size, one marker per policy, with intervals.",
        _not_in_the_answer,
        speedup_by_batch_size,
        _caption_speedup,
    ),
    FigureRow(
        "step_time_by_batch_size",
        "step times",
        "Time per step",
        "Milliseconds per step by batch size, one dot per run, coloured by policy.",
        partial(by_sizes, value="step_s"),
        step_time_by_batch_size,
        _caption_step_time,
    ),
    *(
        FigureRow(
            f"{task.rate}_by_batch_size",
            "throughput",
            f"{task.unit.capitalize()}s per second",
            f"{task.unit.capitalize()}s per second by batch size, one dot per run, a line per "
            "policy through geometric means.",
            partial(by_sizes, value=task.rate),
            partial(rates_by_batch_size, task=task),
            partial(_caption_rates, task=task),
        )
        for task in tasks.TASKS.values()
    ),
    FigureRow(
        "latency_distribution",
        "latency",
        "Latency of inference",
        "Share of inference batches by milliseconds taken, a curve per policy.",
        lambda sweep: single(sweep.tables, not sweep.tables.latencies.empty),
        latency_distribution,
        _caption_latency,
    ),
)
