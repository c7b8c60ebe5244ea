"""One function per figure: table in, Figure out. Policies have the same colours everywhere."""

import base64
import io
import re
import textwrap
import warnings
from collections.abc import Mapping
from html import escape

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mptexp import analysis
from mptexp.terminal import visible

# Okabe and Ito's colours, distinct to colour-blind readers, on light and on dark grounds.
COLOURS = {
    "float32": "#7f7f7f",
    "tensorfloat32": "#cc79a7",
    "mixed_float16": "#d55e00",
    "mixed_bfloat16": "#0087c8",
    "float16": "#e69f00",
    "bfloat16": "#009e73",
}
MARKERS = dict(zip(COLOURS, "osD^vP", strict=True))
# Ink is drawn in this colour and replaced by the page's own: it must occur nowhere else.
INK = "#010203"
STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.facecolor": "none",
    "grid.alpha": 0.15,
    "grid.color": INK,
    "legend.frameon": False,
    "savefig.facecolor": "none",
    "svg.hashsalt": "mptexp",
    "text.parse_math": False,  # a name may hold dollar signs
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
PANELS = 12  # of a figure: more are neither looked at nor drawn in a reasonable time
VECTORS = 2000  # dots, or lines, that a figure draws each by itself; more are drawn as a picture
Panel = tuple[str, pd.DataFrame]
THEMES = "svg{color:#1d2430}@media(prefers-color-scheme:dark){svg{color:#dfe5ee}}"


def _new(found: list[Panel], height: float = 3.4) -> tuple[Figure, list[tuple[Axes, Panel]]]:
    """A figure of panels, two in a row, and what to draw on each of its axes.

    Of more than PANELS some are left out, which the figure's label says.
    """
    panels, rows = min(len(found), PANELS), -(-min(len(found), PANELS) // 2)
    with matplotlib.rc_context(STYLE):
        figure, axes = plt.subplots(
            rows,
            min(panels, 2),
            figsize=(8.2, height * rows),
            squeeze=False,
            sharey=True,
            layout="constrained",
        )
    for axis in axes.flat[panels:]:
        axis.set_visible(False)
    if panels < len(found):
        figure.set_label(f"{panels} of {len(found):,} panels are shown, evenly chosen.")
    chosen = np.linspace(0, len(found) - 1, panels).round().astype(int)
    return figure, [(axis, found[k]) for axis, k in zip(axes.flat, chosen, strict=False)]


def _policies(table: pd.DataFrame, column: str = "policy") -> list[str]:
    return [name for name in COLOURS if name in set(table[column])]


def _places(table: pd.DataFrame) -> dict[int, int]:
    """Batch sizes as evenly spaced places: they are doubled, not added."""
    return {size: place for place, size in enumerate(sorted(table.batch_size.unique()))}


def _label_batches(axis: Axes, places: dict[int, int]) -> None:
    every = -(-len(places) // 12)  # more labels than that lie on one another
    labels = [str(size) if place % every == 0 else "" for size, place in places.items()]
    axis.set_xticks(list(places.values()), labels)
    axis.set_xlim(-0.5, len(places) - 0.5)
    axis.set_xlabel("batch size")


def _plain_log(axis: Axes) -> None:
    """A logarithmic axis whose ticks are written as ordinary numbers; call it after plotting."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    wide = (1, 2, 5)
    narrow = (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    ticks = matplotlib.ticker.LogLocator(subs=wide if high / low > 4 else narrow)
    axis.yaxis.set_major_locator(ticks)
    axis.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axis.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda v, _: f"{v:g}"))


def _wrapped(title: str) -> str:
    return textwrap.fill(visible(title), 40, max_lines=6)


def _offset(index: int, of: int) -> float:
    return (index - (of - 1) / 2) * 0.16


def _by_panel(table: pd.DataFrame) -> list[Panel]:
    return [(str(name), part) for name, part in table.groupby(analysis.panels(table), sort=False)]


def _titles(table: pd.DataFrame) -> pd.Series:
    """Of each row the title of its point's panel, put together once for each run."""
    runs = table.drop_duplicates("run_id").set_index("run_id")
    titles = "batch size " + runs.batch_size.astype(str)
    if analysis.panels(runs).nunique() > 1:
        titles = analysis.panels(runs) + ", " + titles
    return table.run_id.map(titles)


def speedup_by_batch_size(speedups: pd.DataFrame, baseline: str) -> Figure:
    """Speedup over one baseline with its interval, a panel per device; 1 is drawn as a line.

    Args:
        speedups: the columns of speedups.csv.
        baseline: the policy to compare with.
    """
    table = speedups[speedups.baseline == baseline]
    figure, panels = _new(_by_panel(table))
    places, policies = _places(table), _policies(table, "candidate")
    for axis, (device, part) in panels:
        axis.axhline(1, color=INK, linewidth=1)
        for index, policy in enumerate(policies):
            rows = part[part.candidate == policy]
            x = [places[size] + _offset(index, len(policies)) for size in rows.batch_size]
            errors = [rows.speedup - rows.low, rows.high - rows.speedup]
            style = {"color": COLOURS[policy], "fmt": MARKERS[policy], "capsize": 4}
            axis.errorbar(x, rows.speedup, errors, label=policy, markersize=7, **style)
        _plain_log(axis)
        _label_batches(axis, places)
        axis.set_title(_wrapped(device))
    figure.axes[0].set_ylabel(f"speedup over {baseline}\n(above 1 is faster)")
    _legend(figure, figure.axes[0])
    return figure


def step_time_by_batch_size(results: pd.DataFrame) -> Figure:
    """Median milliseconds per step of every run, a panel per device."""
    return _dots(results, results.step_s * 1e3, "ms per step", log=True)


def memory_by_batch_size(results: pd.DataFrame) -> Figure:
    """Peak memory of every run in MiB, a panel per device."""
    return _dots(results, results.peak_memory_bytes / 2**20, "peak memory, MiB", log=False)


def _dots(results: pd.DataFrame, values: pd.Series, label: str, log: bool) -> Figure:
    table = results.assign(value=values)
    figure, panels = _new(_by_panel(table))
    places, policies = _places(table), _policies(table)
    for axis, (device, part) in panels:
        for index, policy in enumerate(policies):
            rows = part[part.policy == policy]
            x = [places[size] + _offset(index, len(policies)) for size in rows.batch_size]
            style = {"color": COLOURS[policy], "marker": MARKERS[policy], "alpha": 0.75}
            style["rasterized"] = len(table) > VECTORS
            axis.scatter(x, rows.value, s=34, label=policy, linewidth=0, **style)
        _plain_log(axis) if log else axis.set_ylim(0, table.value.max() * 1.08)
        _label_batches(axis, places)
        axis.set_title(_wrapped(device))
    figure.axes[0].set_ylabel(label)
    _legend(figure, figure.axes[0])
    return figure


def accuracy_by_epoch(epochs: pd.DataFrame) -> Figure:
    """Validation accuracy, each repeat faint and the mean strong, a panel per point."""
    return _curves(epochs, "val_accuracy", "validation accuracy")


def loss_by_epoch(epochs: pd.DataFrame) -> Figure:
    """Training loss, each repeat faint and the mean strong, a panel per point."""
    return _curves(epochs, "loss", "training loss")


def _curves(epochs: pd.DataFrame, value: str, label: str) -> Figure:
    epochs = epochs.dropna(subset=value).sort_values("batch_size", kind="stable")
    figure, panels = _new(list(epochs.groupby(_titles(epochs), sort=False)))
    policies = _policies(epochs)
    look = {"x": "epoch", "y": value, "hue": "policy", "hue_order": policies, "palette": COLOURS}
    for axis, (title, part) in panels:
        repeats = {"units": "run_id", "estimator": None, "linewidth": 0.9, "alpha": 0.35}
        repeats["rasterized"] = epochs.run_id.nunique() > VECTORS
        sns.lineplot(part, **look, **repeats, legend=False, ax=axis)
        # Policies often lie on one another: dashes let the lower one show.
        strong = {"style": "policy", "style_order": policies, "errorbar": None, "linewidth": 2.2}
        if part.epoch.nunique() == 1:  # a line of one point is not seen
            strong["marker"] = "o"
        sns.lineplot(part, **look, **strong, ax=axis)
        axis.set(title=_wrapped(title), xlabel="epoch", ylabel=label)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.get_legend().remove()
    _legend(figure, figure.axes[0])
    return figure


def latency_distribution(latencies: pd.DataFrame) -> Figure:
    """Share of inference batches that took at most so many milliseconds, a panel per point.

    Args:
        latencies: latency_s in seconds, with the runs' parameters.
    """
    table = latencies.assign(latency_ms=latencies.latency_s * 1e3)
    table = table.sort_values("batch_size", kind="stable")
    figure, panels = _new(list(table.groupby(_titles(table), sort=False)))
    policies = _policies(table)
    for axis, (title, part) in panels:
        # Batches of all repeats together; the slowest hundredth would squeeze the rest.
        for policy in policies:
            values = part[part.policy == policy].latency_ms
            sns.ecdfplot(x=values, color=COLOURS[policy], label=policy, linewidth=2, ax=axis)
        axis.set_xlim(part.latency_ms.min() * 0.95, part.latency_ms.quantile(0.99) * 1.1)
        axis.axhline(0.99, color=INK, linewidth=0.8, linestyle=":")
        axis.set(title=_wrapped(title), xlabel="ms per batch, host to host")
        axis.set_ylabel("share of batches")
    _legend(figure, figure.axes[0])
    return figure


# What a step's time goes to: work in the policies' own tones, waits hatched.
CAUSE_COLOURS = {
    "matrix": "#0087c8",
    "memory": "#56b4e9",
    "casts": "#cc79a7",
    "optimizer": "#009e73",
    "loss scaling": "#f0e442",
    "on the host": "#8c510a",
    "input": "#d55e00",
    "host": "#e69f00",
    "idle": "#bdbdbd",
    "unexplained": "#7f7f7f",
}


def time_by_cause(ledgers: Mapping[str, pd.Series]) -> Figure:
    """Milliseconds of a step by cause, a bar per policy.

    Args:
        ledgers: seconds by cause of each policy, as ledger.by_cause gives them.
    """
    with matplotlib.rc_context(STYLE):
        height = 1.7 + 0.45 * len(ledgers)
        figure, axis = plt.subplots(figsize=(8.2, height), layout="constrained")
    left = dict.fromkeys(ledgers, 0.0)
    for cause, colour in CAUSE_COLOURS.items():
        widths = [table.get(cause, 0.0) * 1e3 for table in ledgers.values()]
        if max(widths) <= 0:
            continue
        hatch = "///" if cause in ("input", "host", "idle") else None
        style = {"color": colour, "height": 0.62, "edgecolor": "white", "linewidth": 0.6}
        axis.barh(
            list(ledgers), widths, left=list(left.values()), label=cause, hatch=hatch, **style
        )
        left = {name: left[name] + w for name, w in zip(left, widths, strict=True)}
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("ms of a step")
    handles, labels = axis.get_legend_handles_labels()
    with matplotlib.rc_context(STYLE):
        figure.legend(handles, labels, loc="outside upper left", ncols=8)
    return figure


def roofline_by_layer(needs: Mapping[str, pd.DataFrame], ceilings: Mapping[str, dict]) -> Figure:
    """Achieved arithmetic by arithmetic intensity, a dot per layer, a roof per policy.

    The roof is the lesser of the measured matrix product and copy bandwidth times intensity. Source
    of the model: S. Williams, A. Waterman, D. Patterson, Roofline, CACM 52(4), 2009.

    Args:
        needs: policy -> what diagnose.needs gives.
        ceilings: policy -> what a record's work holds under ceilings.
    """
    with matplotlib.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(8.2, 4.2), layout="constrained")
    dots = {p: table[(table.flops > 0) & (table.took_s > 0)] for p, table in needs.items()}
    intensity = pd.concat([table.flops / table.bytes for table in dots.values()])
    ends = np.geomspace(intensity.min() / 2, intensity.max() * 2, 100)
    for policy, table in dots.items():
        top = ceilings[policy]
        roof = np.minimum(top["matmul_flops_per_s"], top["copy_bytes_per_s"] * ends)
        axis.plot(ends, roof / 1e9, color=COLOURS[policy], linewidth=1.6)
        achieved = table.flops / table.took_s / 1e9
        style = {"color": COLOURS[policy], "marker": MARKERS[policy], "alpha": 0.8, "linewidth": 0}
        axis.scatter(table.flops / table.bytes, achieved, s=36, label=policy, **style)
    axis.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="GFLOP/s")
    _legend(figure, axis)
    return figure


def _legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    with matplotlib.rc_context(STYLE):
        figure.legend(handles, labels, loc="outside upper left", ncols=len(labels) or 1)


def svg(figure: Figure) -> str:
    """The figure as an SVG document whose ink follows the reader's light or dark theme.

    Closes the figure.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a name in another script
        # The resolution is that of what is drawn as a picture, see VECTORS.
        figure.savefig(buffer, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = buffer.getvalue().replace(INK, "currentColor")
    return re.sub(r"(<svg\b[^>]*>)", rf"\1<style>{THEMES}</style>", text, count=1)


def png(figure: Figure) -> bytes:
    """The figure as a PNG picture on white ground, for places that take no SVG.

    Closes the figure, which may be written again.
    """
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a name in another script
        metadata = {"Software": None}
        figure.savefig(buffer, format="png", dpi=200, facecolor="white", metadata=metadata)
    plt.close(figure)
    return buffer.getvalue()


def as_html(document: str, alt: str, caption: str) -> str:
    """An SVG document as an HTML figure with a text alternative and a caption."""
    data = base64.b64encode(document.encode()).decode()
    image = f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(alt)}">'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"
