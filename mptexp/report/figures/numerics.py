"""Figures of numerics: exponents of a training's values, loss scales."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mptexp.analysis import loss_scale, out_of_range
from mptexp.analysis.out_of_range import DynamicRange, Histogram
from mptexp.report.answers import loss_scales
from mptexp.report.figures import style
from mptexp.report.figures.row import FigureRow, single
from mptexp.report.figures.style import COLOURS, INK, MARKERS, sns
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.text import task_words, wording
from mptexp.spec import tasks
from mptexp.spec.number_formats import FORMATS

# --- exponents -----------------------------------------------------------------------------------

# Kinds of values of a training, in tones of their own: policies have theirs.
KIND_COLOURS = {
    "weights": "#7f7f7f",
    "activations": "#009e73",
    "activation_gradients": "#d55e00",
    "weight_gradients": "#cc79a7",
    "updates": "#0087c8",
}
LAYERS = 30  # rows of the figure of layers: more cannot be read
HALF = FORMATS["float16"]
# Exponents below which float16 rounds to zero and is subnormal, and from which it is too small.
ENDS = (math.log2(HALF.flushed_below), math.log2(HALF.smallest_normal), 16)


def exponents_by_kind(ranges: DynamicRange) -> Figure:
    """Share of the values of each kind that are not zero by exponent; float16's range is marked."""
    figure, (axis,) = style.new(3.6)
    exponents = np.arange(out_of_range.LOWEST, out_of_range.LOWEST + out_of_range.BINS)
    kinds = [kind for kind in KIND_COLOURS if ranges.counted(kind)]
    for kind in kinds:
        counts = ranges.kinds[kind].counts
        look = {"color": KIND_COLOURS[kind], "label": out_of_range.KINDS[kind], "linewidth": 1.8}
        axis.plot(exponents + 0.5, counts / counts.sum() * 100, drawstyle="steps-mid", **look)
    filled = np.flatnonzero(sum(ranges.kinds[k].counts for k in kinds)) + out_of_range.LOWEST
    _mark_range(axis)
    axis.set_xlim(max(filled.min(), -60) - 1, max(filled.max(), 16) + 2)
    axis.set(xlabel="exponent: values from 2^k to 2^(k+1)", ylabel="% of those not zero", ylim=0)
    style.legend(figure, columns=3)
    return figure


def _mark_range(axis: Axes) -> None:
    """Where float16 is subnormal, hatched; and its ends, named."""
    least, normal, over = ENDS
    look = {"facecolor": "none", "edgecolor": INK, "linewidth": 0, "alpha": 0.25}
    axis.axvspan(least, normal, hatch="///", **look)
    for exponent in ENDS:
        axis.axvline(exponent, color=INK, linewidth=0.8, linestyle=":")
    words = {"size": 8, "color": INK, "va": "top", "transform": axis.get_xaxis_transform()}
    axis.text(least - 0.3, 0.98, "zero in\nfloat16", ha="right", **words)
    axis.text((least + normal) / 2, 0.98, "subnormal", ha="center", **words)
    axis.text(over + 0.3, 0.98, "too\nlarge", ha="left", **words)


def _caption_kinds(ranges: DynamicRange) -> str:
    kinds = [kind for kind in out_of_range.GRADIENTS if kind in ranges.kinds]
    parts = [
        f"{wording.share(out_of_range.flushed(ranges.kinds[kind], HALF))} of the "
        f"{out_of_range.KINDS[kind]}"
        for kind in kinds
    ]
    runs = f"each of {ranges.runs} runs" if ranges.runs > 1 else "one run"
    return (
        f"{' and '.join(parts)} would be flushed to zero in float16. Values of a training in "
        f"{ranges.policy}, {ranges.samples} samples of {runs}; gradients without loss scale. "
        "Hatched: where float16 is subnormal."
    )


def exponents_by_layer(ranges: DynamicRange) -> Figure:
    """Share of each layer's activation gradients by exponent, a row per layer, the first on top."""
    counts = {name: h.counts for name, h in _gradients_by_layer(ranges).items()}
    names = _drawn_layers(ranges)[::-1]
    grid = np.array([counts[name] / counts[name].sum() * 100 for name in names])
    filled = np.flatnonzero(grid.sum(axis=0))
    first, last = filled[0], filled[-1] + 1
    figure, (axis,) = style.new(1.3 + 0.24 * len(names))
    ends = (first + out_of_range.LOWEST, last + out_of_range.LOWEST, len(names) - 0.5, -0.5)
    shown = np.ma.masked_equal(grid[:, first:last], 0)
    drawn = axis.imshow(shown, aspect="auto", extent=ends, cmap="viridis", interpolation="none")
    for exponent in ENDS[:2]:
        axis.axvline(exponent, color="white", linewidth=1.2, linestyle=":")
    axis.set_yticks(range(len(names)), [style.drawable(name) for name in names])
    axis.set_xlabel(
        "exponent of its output's gradient"
        if style.is_narrow()
        else "exponent of the gradient of the layer's output"
    )
    axis.grid(visible=False)
    figure.colorbar(drawn, label="% of those not zero", pad=0.01)
    if len(names) < len(counts):
        figure.set_label(f"{len(names)} of {len(counts)} layers are shown, evenly chosen.")
    return figure


def _drawn_layers(ranges: DynamicRange) -> list[str]:
    """The layers of which there is a row, in their order: LAYERS of them, the worst among these."""
    names, below = list(_gradients_by_layer(ranges)), _flushed(ranges)
    if len(names) <= LAYERS:
        return names
    chosen = set(np.linspace(0, len(names) - 1, LAYERS - 1).round().astype(int))
    worst = names.index(max(below, key=lambda name: below[name]))
    return [names[i] for i in sorted(chosen | {worst})]


def _flushed(ranges: DynamicRange) -> dict[str, float]:
    """The share of each layer's gradients that float16 would flush, of those that are not zero."""
    return {
        name: out_of_range.flushed(h, HALF) * h.total / h.counts.sum()
        for name, h in _gradients_by_layer(ranges).items()
    }


def _gradients_by_layer(ranges: DynamicRange) -> dict[str, Histogram]:
    """Each layer's activation gradients by exponent; layers without any are left out."""
    kind = "activation_gradients"
    return {name: h for (k, name), h in ranges.layers.items() if k == kind and h.counts.any()}


def _caption_layers(ranges: DynamicRange) -> str:
    below = _flushed(ranges)
    worst = max(below, key=lambda name: below[name])
    opening = (
        f"{worst} has most that would be flushed to zero in float16: {wording.share(below[worst])} "
        "of its gradients that are not zero."
        if below[worst]
        else "No layer has gradients that would be flushed to zero in float16."
    )
    return (
        f"{opening} Dotted: left of the first line float16 rounds to zero, between both it is "
        "subnormal."
    )


def _trainings(sweep: MeasuredSweep) -> dict[str, DynamicRange]:
    """Those with values that are not zero, of any kind that is drawn."""
    ranges = enumerate(out_of_range.measured(sweep.tables.records), 1)
    return {str(number): one for number, one in ranges if any(map(one.counted, KIND_COLOURS))}


def _with_gradients(sweep: MeasuredSweep) -> dict[str, DynamicRange]:
    return {name: one for name, one in _trainings(sweep).items() if _gradients_by_layer(one)}


# --- loss scale ----------------------------------------------------------------------------------


def accuracy_by_loss_scale(point: tuple[str, pd.DataFrame]) -> Figure:
    """Mean accuracy or perplexity by loss scale, a line per policy; below, crosses that diverged.

    Args:
        point: what tells a point of loss_scale.table from the others, and its rows.
    """
    _, rows = point
    diverged = bool((rows.diverged > 0).any())
    figure, (axis, *strip) = style.new(3.6, 1 + diverged, sharex=True)
    numbers = sorted({loss_scale.number(s) for s in rows.loss_scale})
    places = {number: i for i, number in enumerate(numbers)}
    policies = style.policies(rows)
    (measure,) = task_words.met(rows)
    counts = measure.task is tasks.IMAGES
    percent, most = (100, 102) if counts else (1, 1.1 * np.nanmax([*rows.figure_high, 1.0]))
    failing = [p for p in policies if p in set(rows.policy[rows.diverged > 0])]
    for lowest in strip:
        _strip(lowest, len(failing))
    for index, policy in enumerate(policies):
        own = rows[rows.policy == policy].drop_duplicates("loss_scale")
        x = np.array([places[loss_scale.number(s)] for s in own.loss_scale])
        x = x + style.offset(index, len(policies))
        bad = (own.diverged > 0).to_numpy()
        look = {"color": COLOURS[policy], "markersize": 6}
        y = own.figure * percent
        axis.plot(x, y.where(~bad), MARKERS[policy], label=policy, ls="-", linewidth=1.2, **look)
        # The mean of those that did not diverge is apart from the line: it is not the setting's.
        axis.plot(x[bad], y[bad], MARKERS[policy], markerfacecolor="none", linestyle="", **look)
        ends = [own[name] * percent for name in ("figure_low", "figure_high")]
        axis.vlines(x, *ends, color=COLOURS[policy], linewidth=2.5, alpha=0.5)
        for place, row in zip(x[bad], own[bad].itertuples(), strict=True):
            level = failing.index(policy)
            strip[0].plot([place], [level], "x", markeredgewidth=2, **look)
            if row.diverged < row.runs:  # a cross alone would say that all did
                some = f"{row.diverged}/{row.runs}"
                beside = {"xytext": (6, 0), "textcoords": "offset points"}
                strip[0].annotate(some, (place, level), **beside, va="center", size=7, color=INK)
    auto = "dyn." if style.is_narrow() else "dynamic"
    words = [auto if math.isinf(n) else wording.power(n) for n in numbers]
    if "none" in set(rows.loss_scale):
        words[places[1.0]] = "none" if 1.0 not in set(rows.loss_scale) else "1\nnone"
    lowest = [axis, *strip][-1]
    lowest.set_xticks(range(len(numbers)), words)
    lowest.set_xlabel("loss scale")
    name = f"validation {measure.name}" + ", %" * counts
    axis.set(ylabel=name, ylim=(0, most))
    style.legend(figure)
    return figure


def _strip(axis: Axes, levels: int) -> None:
    """Below the figure, apart from what was learned: a line per policy of which runs diverged."""
    axis.get_gridspec().set_height_ratios([4, 0.2 + 0.3 * levels])
    axis.set_ylim(levels - 0.4, -0.6)
    axis.set_yticks([])
    axis.set_ylabel("diverged", rotation=0, ha="right", va="center")


def _caption_scales(point: tuple[str, pd.DataFrame]) -> str:
    name, rows = point
    bad = rows[rows.diverged > 0]
    count = wording.count(int(bad.diverged.sum()), "run")
    lost = f"{count} of {rows.runs.sum()} diverged (crosses)." if len(bad) else "No run diverged."
    some = (bad.diverged < bad.runs).any()
    which = (
        " A number at a cross is how many of its runs did; without a number, all. Hollow: mean of "
        "the others."
    ) * bool(some)
    dots = "Dots are means over repeats, vertical lines their range."
    return f"{wording.capitalized(loss_scales.where(name))}{lost}{which} {dots}"


def _points(sweep: MeasuredSweep) -> dict[str, tuple[str, pd.DataFrame]]:
    points = loss_scales.by_point(loss_scale.table(sweep.tables))
    return {str(number): point for number, point in enumerate(points, 1)}


def loss_scale_by_step(traces: pd.DataFrame) -> Figure:
    """The dynamic loss scale by step, a line per run."""
    figure, (axis,) = style.new(2.6)
    look = {"hue": "policy", "hue_order": style.policies(traces), "palette": COLOURS}
    line = {"units": "run_id", "estimator": None, "drawstyle": "steps-post", "alpha": 0.8}
    sns.lineplot(traces, x="step", y="loss_scale", **look, **line, ax=axis)
    style.log_scale(axis, base=2)
    axis.set(xlabel="step", ylabel="loss scale")
    axis.get_legend().remove()
    style.legend(figure)
    return figure


def _caption_traces(traces: pd.DataFrame) -> str:
    last = traces.groupby("run_id").last()
    return (
        f"{wording.count(len(last), 'run')} with a dynamic loss scale skipped "
        f"{wording.count(int(last.skipped.sum()), 'step')} in all. Each halves the scale; 2,000 "
        "steps without one double it."
    )


def _traces(sweep: MeasuredSweep) -> dict[str, pd.DataFrame]:
    """The dynamic scales, where loss scales are what the sweep asks about or a step was skipped."""
    traces = loss_scale.traces(sweep.tables)
    return single(traces, not traces.empty and bool(_points(sweep) or traces.skipped.any()))


FIGURES = (
    FigureRow(
        "exponents_by_kind_{}",
        "exponents",
        "Values by exponent",
        "Share of weights, activations, gradients and updates by exponent, float16's range marked.",
        _trainings,
        exponents_by_kind,
        _caption_kinds,
    ),
    FigureRow(
        "exponents_by_layer_{}",
        "exponents",
        "Gradients by layer and exponent",
        "Share of each layer's activation gradients by exponent, a row per layer.",
        _with_gradients,
        exponents_by_layer,
        _caption_layers,
    ),
    FigureRow(
        "accuracy_by_loss_scale_{}",
        "loss scale",
        "Accuracy or perplexity by loss scale",
        "Validation by loss scale, a line per policy, crosses for what diverged.",
        _points,
        accuracy_by_loss_scale,
        _caption_scales,
    ),
    FigureRow(
        "loss_scale_by_step",
        "loss scale",
        "The dynamic loss scale",
        "The dynamic loss scale by step, a line per run.",
        _traces,
        loss_scale_by_step,
        _caption_traces,
    ),
)
