"""One function per figure: table in, Figure out. Policies have the same colours everywhere."""

import io
import math
import re
import textwrap
import warnings
from collections.abc import Mapping
from html import escape
from urllib.parse import quote

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mptexp.analysis import exponent_range, loss_scale, points, speedups
from mptexp.analysis.exponent_range import DynamicRange
from mptexp.report import wording
from mptexp.spec.formats import FORMATS
from mptexp.spec.policies import POLICY_ROWS
from mptexp.spec.terminal import visible

COLOURS = {name: row.colour for name, row in POLICY_ROWS.items()}
MARKERS = {name: row.marker for name, row in POLICY_ROWS.items()}
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
    table = table.sort_values("setting", key=points.rank, kind="stable")
    return [(str(name), part) for name, part in table.groupby(_panels(table), sort=False)]


def _panels(table: pd.DataFrame) -> pd.Series:
    """As wording.panels, without the device where there is one and more than one panel."""
    titles = wording.panels(table)
    if table.gpu_model.nunique() == 1 and titles.nunique() > 1:
        return titles.str.slice(len(table.gpu_model.iloc[0]) + len(", "))
    return titles


def _titles(table: pd.DataFrame) -> pd.Series:
    """Of each row the title of its point's panel, put together once for each run."""
    runs = table.drop_duplicates("run_id").set_index("run_id")
    titles, batches = _panels(runs), "batch size " + runs.batch_size.astype(str)
    if titles.nunique() == 1:
        titles = batches
    elif batches.nunique() > 1:
        titles = titles + ", " + batches
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
    return _dots(results, results.step_s * 1e3, "ms per step", log=True)[0]


def images_per_s_by_batch_size(results: pd.DataFrame, out: pd.DataFrame) -> Figure:
    """Images per second of every run and their medians as lines; crosses where memory ran out.

    Args:
        results: the runs that ended well.
        out: the runs that ran out of memory.
    """
    table = speedups.with_jit(pd.concat([results, out]))
    table = table.assign(images_per_s=pd.to_numeric(table.images_per_s))
    figure, panels = _dots(table, table.images_per_s, "images per second", log=True)
    places, policies = _places(table), _policies(table)
    for axis, (_, part) in panels:
        for index, policy in enumerate(policies):
            own = part[part.policy == policy]
            medians = own.groupby("batch_size").images_per_s.median().dropna()
            x = [places[size] + _offset(index, len(policies)) for size in medians.index]
            axis.plot(x, medians, color=COLOURS[policy], linewidth=1, alpha=0.6)
            lost = own[own.status == "oom"].batch_size.unique()
            x = [places[size] + _offset(index, len(policies)) for size in lost]
            if x:  # an empty line that is not clipped spoils the layout
                low = axis.get_ylim()[0]
                axis.plot(x, [low] * len(x), "x", color=COLOURS[policy], clip_on=False)
    return figure


def memory_by_batch_size(results: pd.DataFrame, limits: Mapping[str, float]) -> Figure:
    """Peak memory of every run in MiB, a panel per device, with the device's own memory as a line.

    Args:
        limits: bytes of memory by gpu_model; drawn where runs come near it.
    """
    memory = results.peak_memory_bytes / 2**20
    figure, panels = _dots(results, memory, "peak memory, MiB", log=False)
    for axis, (_, part) in panels:
        limit = limits.get(part.gpu_model.iloc[0], 0) / 2**20
        if 0 < limit < 4 * axis.get_ylim()[1]:
            axis.axhline(limit, color=INK, linewidth=1.2, linestyle="--")
            axis.set_ylim(0, max(axis.get_ylim()[1], limit * 1.05))
            axis.annotate("the device's memory", (0.02, limit), xycoords=("axes fraction", "data"),
                          va="bottom", size=8, color=INK)  # fmt: skip
    return figure


def accuracy_by_time(epochs: pd.DataFrame) -> Figure:
    """Validation accuracy by seconds since the first step, a line per run, a panel per point."""
    return _curves(epochs, "val_accuracy", "validation accuracy", by="elapsed_s")


def readings_by_time(samples: pd.DataFrame) -> Figure:
    """Utilization and, where it was read, power over time, a line per policy.

    Args:
        samples: columns policy, seconds (since the first sample), utilization_frac, power_w.
    """
    named = {"utilization_frac": "utilization, %", "power_w": "power, W"}
    found = {name: label for name, label in named.items() if samples[name].notna().any()}
    with matplotlib.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(found), 1, figsize=(8.2, 1.1 + 1.7 * len(found)), sharex=True, squeeze=False,
            layout="constrained",
        )  # fmt: skip
    for axis, (name, label) in zip(axes.flat, found.items(), strict=True):
        for policy in _policies(samples):
            own = samples[samples.policy == policy]
            scale = 100 if name == "utilization_frac" else 1
            style = {"color": COLOURS[policy], "label": policy, "linewidth": 1.4}
            axis.plot(own.seconds, own[name] * scale, **style)
        axis.set_ylabel(label)
        axis.set_ylim(0)
    axes.flat[-1].set_xlabel("seconds")
    _legend(figure, figure.axes[0])
    return figure


def _dots(
    results: pd.DataFrame, values: pd.Series, label: str, log: bool
) -> tuple[Figure, list[tuple[Axes, Panel]]]:
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
    return figure, panels


def accuracy_by_epoch(epochs: pd.DataFrame) -> Figure:
    """Validation accuracy, each repeat faint and the mean strong, a panel per point."""
    return _curves(epochs, "val_accuracy", "validation accuracy")


def loss_by_epoch(epochs: pd.DataFrame) -> Figure:
    """Training loss, each repeat faint and the mean strong, a panel per point."""
    return _curves(epochs, "loss", "training loss")


def _curves(epochs: pd.DataFrame, value: str, label: str, by: str = "epoch") -> Figure:
    epochs = epochs.dropna(subset=value)
    epochs = epochs.sort_values(["batch_size", "setting"], key=points.rank, kind="stable")
    figure, panels = _new(list(epochs.groupby(_titles(epochs), sort=False)))
    policies = _policies(epochs)
    look = {"x": by, "y": value, "hue": "policy", "hue_order": policies, "palette": COLOURS}
    for axis, (title, part) in panels:
        repeats = {"units": "run_id", "estimator": None, "linewidth": 0.9, "alpha": 0.35}
        repeats["rasterized"] = epochs.run_id.nunique() > VECTORS
        sns.lineplot(part, **look, **repeats, legend=False, ax=axis)
        # Policies often lie on one another: dashes let the lower one show.
        strong = {"style": "policy", "style_order": policies, "errorbar": None, "linewidth": 2.2}
        if part.epoch.nunique() == 1:  # a line of one point is not seen
            strong["marker"] = "o"
        sns.lineplot(_mean_times(part) if by == "elapsed_s" else part, **look, **strong, ax=axis)
        names = {"epoch": "epoch", "elapsed_s": "seconds from the first step, validation included"}
        axis.set(title=_wrapped(title), xlabel=names[by], ylabel=label)
        if by == "epoch":
            axis.xaxis.get_major_locator().set_params(integer=True)
        axis.get_legend().remove()
    _legend(figure, figure.axes[0])
    return figure


def _mean_times(part: pd.DataFrame) -> pd.DataFrame:
    """Epochs at the mean of the times at which the repeats ended them."""
    return part.assign(elapsed_s=part.groupby(["policy", "epoch"]).elapsed_s.transform("mean"))


def latency_distribution(latencies: pd.DataFrame) -> Figure:
    """Share of inference batches that took at most so many milliseconds, a panel per point.

    Args:
        latencies: latency_s in seconds, with the runs' parameters.
    """
    table = latencies.assign(latency_ms=latencies.latency_s * 1e3)
    table = table.sort_values(["batch_size", "setting"], key=points.rank, kind="stable")
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


# Kinds of values of a training, in tones of their own: policies have theirs.
KIND_COLOURS = {
    "weights": "#7f7f7f",
    "activations": "#009e73",
    "activation_gradients": "#d55e00",
    "weight_gradients": "#cc79a7",
    "updates": "#0087c8",
}


def exponents_by_kind(seen: DynamicRange) -> Figure:
    """Share of the values of each kind that are not zero by exponent; float16's range is marked."""
    with matplotlib.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(8.2, 3.6), layout="constrained")
    exponents = np.arange(exponent_range.LOWEST, exponent_range.LOWEST + exponent_range.BINS)
    kinds = [k for k in KIND_COLOURS if k in seen.kinds and seen.kinds[k].counts.any()]
    for kind in kinds:
        counts = seen.kinds[kind].counts
        style = {"color": KIND_COLOURS[kind], "label": exponent_range.KINDS[kind], "linewidth": 1.8}
        axis.plot(exponents + 0.5, counts / counts.sum() * 100, drawstyle="steps-mid", **style)
    filled = np.flatnonzero(sum(seen.kinds[k].counts for k in kinds)) + exponent_range.LOWEST
    _mark_range(axis)
    axis.set_xlim(max(filled.min(), -60) - 1, max(filled.max(), 16) + 2)
    axis.set(xlabel="exponent: values from 2^k to 2^(k+1)", ylabel="% of those not zero", ylim=0)
    _legend(figure, axis, columns=3)
    return figure


def _mark_range(axis: Axes) -> None:
    """Where float16 is subnormal, hatched; and its ends, named."""
    half = FORMATS["float16"]
    least, normal = math.log2(half.smallest_subnormal), math.log2(half.smallest_normal)
    style = {"facecolor": "none", "edgecolor": INK, "linewidth": 0, "alpha": 0.25}
    axis.axvspan(least, normal, hatch="///", **style)
    for place in (least, normal, 16):
        axis.axvline(place, color=INK, linewidth=0.8, linestyle=":")
    words = {"size": 8, "color": INK, "va": "top", "transform": axis.get_xaxis_transform()}
    axis.text(least - 0.3, 0.98, "zero in\nfloat16", ha="right", **words)
    axis.text((least + normal) / 2, 0.98, "subnormal", ha="center", **words)
    axis.text(16.3, 0.98, "too\nlarge", ha="left", **words)


LAYERS = 30  # rows of a picture of layers: more cannot be read


def exponents_by_layer(seen: DynamicRange) -> Figure:
    """Share of each layer's activation gradients by exponent, a row per layer, the first on top."""
    kind = "activation_gradients"
    found = {name: h.counts for (k, name), h in seen.layers.items() if k == kind and h.counts.any()}
    names = list(found)[::-1]
    if len(names) > LAYERS:
        chosen = np.linspace(0, len(names) - 1, LAYERS).round().astype(int)
        names = [names[i] for i in chosen]
    grid = np.array([found[name] / found[name].sum() * 100 for name in names])
    filled = np.flatnonzero(grid.sum(axis=0))
    first, last = filled[0], filled[-1] + 1
    with matplotlib.rc_context(STYLE):
        height = 1.3 + 0.24 * len(names)
        figure, axis = plt.subplots(figsize=(8.2, height), layout="constrained")
    ends = (first + exponent_range.LOWEST, last + exponent_range.LOWEST, len(names) - 0.5, -0.5)
    shown = np.ma.masked_equal(grid[:, first:last], 0)
    drawn = axis.imshow(shown, aspect="auto", extent=ends, cmap="viridis", interpolation="none")
    for place in (-24, -14):
        axis.axvline(place, color="white", linewidth=1.2, linestyle=":")
    axis.set_yticks(range(len(names)), [visible(name) for name in names])
    axis.set_xlabel("exponent of the gradient of the layer's output, without loss scale")
    axis.grid(visible=False)
    figure.colorbar(drawn, label="% of those not zero", pad=0.01)
    return figure


def accuracy_by_loss_scale(rows: pd.DataFrame) -> Figure:
    """Mean validation accuracy by loss scale, a line per policy; what diverged stands at zero.

    Args:
        rows: of loss_scale.table, of one point.
    """
    with matplotlib.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(8.2, 3.6), layout="constrained")
    numbers = sorted({loss_scale.number(s) for s in rows.loss_scale})
    places = {number: i for i, number in enumerate(numbers)}
    policies = _policies(rows)
    for index, policy in enumerate(policies):
        own = rows[rows.policy == policy].drop_duplicates("loss_scale")
        x = np.array([places[loss_scale.number(s)] for s in own.loss_scale])
        x = x + _offset(index, len(policies))
        bad = (own.verdict == "diverged").to_numpy()
        style = {"color": COLOURS[policy], "markersize": 6}
        y = (own.val_accuracy * 100).where(~bad)
        axis.plot(x, y, MARKERS[policy], label=policy, linestyle="-", linewidth=1.2, **style)
        axis.plot(x[bad], np.zeros(bad.sum()), "x", clip_on=False, markeredgewidth=2, **style)
    words = ["dynamic" if math.isinf(n) else wording.power(n) for n in numbers]
    axis.set_xticks(range(len(numbers)), words)
    axis.set(xlabel="loss scale (none is 1)", ylabel="validation accuracy, %", ylim=(0, 102))
    _legend(figure, axis)
    return figure


def loss_scale_by_step(traces: pd.DataFrame) -> Figure:
    """The dynamic loss scale by step, a line per run."""
    with matplotlib.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(8.2, 2.6), layout="constrained")
    look = {"hue": "policy", "hue_order": _policies(traces), "palette": COLOURS}
    style = {"units": "run_id", "estimator": None, "drawstyle": "steps-post", "alpha": 0.8}
    sns.lineplot(traces, x="step", y="loss_scale", **look, **style, ax=axis)
    axis.set_yscale("log", base=2)
    axis.set(xlabel="step", ylabel="loss scale")
    axis.get_legend().remove()
    _legend(figure, axis)
    return figure


def _legend(figure: Figure, axis: Axes, columns: int = 0) -> None:
    handles, labels = axis.get_legend_handles_labels()
    with matplotlib.rc_context(STYLE):
        ncols = columns or len(labels) or 1
        figure.legend(handles, labels, loc="outside upper left", ncols=ncols)


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
    # A quarter less than in base64; with parentheses it would read as if it loaded something.
    data = quote(" ".join(document.split()), safe=" /:;,='!@$*+?")
    image = f'<img src="data:image/svg+xml,{data}" alt="{escape(alt)}">'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"
