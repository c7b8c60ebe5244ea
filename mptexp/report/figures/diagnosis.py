"""Figures of a diagnosed pair of policies: where a step's time goes, and the roofline."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mptexp.diagnosis import roofline
from mptexp.diagnosis.causes import BREAKDOWN, LABELS
from mptexp.diagnosis.verdict import Verdict
from mptexp.report.figures import style
from mptexp.report.figures.row import FigureRow
from mptexp.report.figures.style import COLOURS, MARKERS
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.tables import why_tables
from mptexp.report.text import wording
from mptexp.traces.operations import WAITS

SEEN = 0.004  # of the longest bar: two pixels

# --- time by cause -------------------------------------------------------------------------------


def time_by_cause(verdict: Verdict) -> Figure:
    """Milliseconds of a step by cause, a bar per policy."""
    return stacked_by_cause(why_tables.seconds_by_cause(verdict))


def stacked_by_cause(steps: Mapping[str, pd.Series]) -> Figure:
    """Milliseconds of steps by cause, a bar for each, under its name."""
    figure, (axis,) = style.new(1.7 + 0.45 * len(steps))
    left = dict.fromkeys(steps, 0.0)
    longest = max(seconds.sum() for seconds in steps.values()) * 1e3
    for cause in BREAKDOWN:
        widths = [seconds.get(cause.name, 0.0) * 1e3 for seconds in steps.values()]
        if max(widths) <= 0:
            continue
        look = {"color": cause.colour, "height": 0.62, "edgecolor": "white", "linewidth": 0.6}
        look["hatch"] = "///" if cause.name in WAITS else None
        # What is too thin to be seen has no place in the legend.
        label = cause.name if max(widths) > SEEN * longest else None
        axis.barh(list(steps), widths, left=list(left.values()), label=label, **look)
        left = {name: left[name] + w for name, w in zip(left, widths, strict=True)}
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("ms of a step")
    style.legend(figure, columns=8)
    return figure


def _caption_time(verdict: Verdict) -> str:
    largest = [
        f"under {policy}: {LABELS[s.idxmax()]}, {why_tables.percent(s.max() / s.sum())}"
        for policy, s in why_tables.seconds_by_cause(verdict).items()
    ]
    return f"Largest part {'; '.join(largest)}."


# --- roofline ------------------------------------------------------------------------------------


def roofline_by_layer(verdict: Verdict) -> Figure:
    """Achieved arithmetic by arithmetic intensity, a dot per layer, a roof per policy.

    The roof is the lesser of the measured matrix product and copy bandwidth times intensity, at the
    bandwidth that tells what bounds a layer: a dot left of its ridge is bound by memory. Source of
    the model: S. Williams, A. Waterman, D. Patterson, Roofline, CACM 52(4), 2009.
    """
    figure, (axis,) = style.new(4.2)
    records = verdict.records
    needs = why_tables.needs_by_layer(verdict)
    dots = {p: table[(table.flops > 0) & (table.took_s > 0)] for p, table in needs.items()}
    intensity = pd.concat([table.flops / table.bytes for table in dots.values()])
    ends = np.geomspace(intensity.min() / 2, intensity.max() * 2, 100)
    bandwidth = roofline.best_bandwidth(*records.values())
    for policy, table in dots.items():
        peak = records[policy]["work"]["ceilings"]["matmul_flops_per_s"]
        roof = np.minimum(peak, bandwidth * ends)
        axis.plot(ends, roof / 1e9, color=COLOURS[policy], linewidth=1.6)
        achieved = table.flops / table.took_s / 1e9
        look = {"color": COLOURS[policy], "marker": MARKERS[policy], "alpha": 0.8, "linewidth": 0}
        axis.scatter(table.flops / table.bytes, achieved, s=36, label=policy, **look)
    style.log_scale(axis, "x")
    style.log_scale(axis, "y")
    axis.set(xlabel="FLOP per byte", ylabel="GFLOP/s")
    style.legend(figure)
    return figure


def _caption_roofline(verdict: Verdict) -> str:
    needs = why_tables.needs_by_layer(verdict)
    worked = {p: t[(t.took_s > 0) & (t.bound != "unknown")] for p, t in needs.items()}
    bound = [
        f"{(t.bound == 'memory').sum()} of {len(t)} under {policy}" for policy, t in worked.items()
    ]
    return (
        "A dot is a layer, a line the measured roof of its policy, at the better copy bandwidth of "
        f"both. Bound by memory: {wording.listed(bound)} (the optimizer counts as one)."
    )


def _numbered(sweep: MeasuredSweep) -> dict[str, Verdict]:
    return {str(n): v for n, v in enumerate(sweep.verdicts, 1) if v.traced}


def _with_roof(sweep: MeasuredSweep) -> dict[str, Verdict]:
    traced = _numbered(sweep).items()
    return {n: v for n, v in traced if why_tables.has_peak(v) and why_tables.names_layers(v)}


FIGURES = (
    FigureRow(
        "time_by_cause_{}",
        "time breakdown",
        "Time of a step by cause",
        "Milliseconds of a step by cause, a stacked bar per policy.",
        _numbered,
        time_by_cause,
        _caption_time,
    ),
    FigureRow(
        "roofline_by_layer_{}",
        "roofline",
        "Roofline",
        "Achieved GFLOP/s by FLOP per byte, a dot per layer and policy under the device's roofs.",
        _with_roof,
        roofline_by_layer,
        _caption_roofline,
    ),
)
