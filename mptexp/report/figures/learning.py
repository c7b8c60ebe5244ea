"""Figures of learning: accuracy and loss by epoch and by time."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mptexp.analysis import published, summary, validity
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers.measured import MeasuredSweep
from mptexp.report.figures import style
from mptexp.report.figures.row import FigureRow, single
from mptexp.report.figures.style import COLOURS, sns
from mptexp.report.text import wording

PUBLISHED = "published (mixed_float16, V100)"
EPOCHS = 3  # of a curve: fewer are a dot or a line between two


def learned(tables: Tables) -> pd.DataFrame:
    """The epochs of runs that could learn: not from a batch that is always the same."""
    return tables.epochs[tables.epochs.input_mode != "resident"]


def accuracy_by_epoch(tables: Tables) -> Figure:
    """Validation accuracy, each repeat faint and the mean strong, a panel per point."""
    return _curves(learned(tables), "val_accuracy", "validation accuracy")


def _caption_accuracy(tables: Tables) -> str:
    repeats = wording.count(tables.ok.block.nunique(), "repeat")
    opening = f"Faint lines are single runs ({repeats} a policy), strong ones their mean."
    spread = summary.accuracy_range(tables)
    if spread.empty:
        return opening
    points = spread.difference.max() * 100
    return (
        f"{opening} At the last epoch the policies' means differ by at most {points:.1f} "
        "percentage points at the same point."
    )


def accuracy_by_time(tables: Tables) -> Figure:
    """Validation accuracy by seconds since the first step, a line per run, a panel per point."""
    return _curves(learned(tables), "val_accuracy", "validation accuracy", by="elapsed_s")


def _caption_time(tables: Tables) -> str:
    last = learned(tables).groupby("run_id").last()
    ends = last.groupby("policy").elapsed_s.median().sort_values()
    by_policy = [f"{seconds:,.1f} s in {policy}" for policy, seconds in ends.items()]
    return (
        "The same epochs over time, validation included: the last ends after "
        f"{wording.listed(by_policy)} (medians)."
    )


def loss_by_epoch(tables: Tables) -> Figure:
    """Training loss, each repeat faint and the mean strong, a panel per point."""
    return _curves(learned(tables), "loss", "training loss")


def _caption_loss(tables: Tables) -> str:
    last = learned(tables).dropna(subset="loss").groupby("run_id").last()
    ends = last.groupby("policy").loss.median().sort_values()
    by_policy = [f"{loss:.3g} in {policy}" for policy, loss in ends.items()]
    return (
        f"Loss at the last epoch: {wording.listed(by_policy)} (medians). Faint lines are single "
        "runs, strong ones their mean."
    )


def _curves(epochs: pd.DataFrame, value: str, label: str, by: str = "epoch") -> Figure:
    epochs = epochs.dropna(subset=value)
    data = style.by_point(epochs)
    most = sorted(data, key=lambda panel: -_spread(panel[1], value))[: style.PANELS]
    chosen = {title for title, _ in most}
    figure, panels = style.panels([panel for panel in data if panel[0] in chosen])
    if len(chosen) < len(data):
        figure.set_label(
            f"{len(chosen)} of {len(data):,} panels are shown, those in which policies differ "
            "most; history.csv holds all."
        )
    policies = style.policies(epochs)
    look = {"x": by, "y": value, "hue": "policy", "hue_order": policies, "palette": COLOURS}
    for axis, (title, part) in panels:
        repeats = {"units": "run_id", "estimator": None, "linewidth": 0.9, "alpha": 0.35}
        repeats["rasterized"] = epochs.run_id.nunique() > style.VECTORS
        sns.lineplot(part, **look, **repeats, legend=False, ax=axis)
        # Policies often lie on one another: dashes let the lower one show.
        strong = {"style": "policy", "style_order": policies, "errorbar": None, "linewidth": 2.2}
        if part.epoch.nunique() == 1:  # a line of one point is invisible
            strong["marker"] = "o"
        sns.lineplot(_mean_times(part) if by == "elapsed_s" else part, **look, **strong, ax=axis)
        names = {"epoch": "epoch", "elapsed_s": "seconds from the first step"}
        axis.set(title=style.wrapped(title), xlabel=names[by], ylabel=label)
        if by == "epoch":
            _published(axis, part, value)
            axis.xaxis.get_major_locator().set_params(integer=True)
        axis.get_legend().remove()
    style.legend(figure, figure.axes[0])
    return figure


def _published(axis: Axes, part: pd.DataFrame, value: str) -> None:
    """Draws the epochs that a study printed of this network and batch size behind our curves.

    Of the same data alone, Imagenette, whichever its size and split.
    """
    part = part[part.dataset.str.contains("imagenette")]
    for model, size in part[["model", "batch_size"]].drop_duplicates().itertuples(index=False):
        known = published.epochs(model, size, value)
        if len(known):
            look = {"color": "grey", "marker": "x", "linewidth": 1, "zorder": 0}
            axis.plot(known.index, known, label=PUBLISHED, **look)


def _spread(part: pd.DataFrame, value: str) -> float:
    """How far the policies' means are apart at the last epoch of a panel."""
    last = part[part.epoch == part.epoch.max()]
    means = last.groupby("policy")[value].mean()
    return float(means.max() - means.min())


def _mean_times(part: pd.DataFrame) -> pd.DataFrame:
    """Epochs at the mean of the times at which the repeats ended them."""
    return part.assign(elapsed_s=part.groupby(["policy", "epoch"]).elapsed_s.transform("mean"))


def applies(sweep: MeasuredSweep) -> bool:
    """Whether a training has a curve: of EPOCHS at least, and above chance level."""
    tables = sweep.tables
    if tables.ok.empty:
        return False
    above = validity.without(tables.ok, "not trained").run_id
    epochs = learned(tables).dropna(subset="loss")
    return bool((epochs[epochs.run_id.isin(above)].groupby("run_id").size() >= EPOCHS).any())


def _validated(sweep: MeasuredSweep) -> bool:
    return applies(sweep) and bool(learned(sweep.tables).val_accuracy.notna().any())


FIGURES = (
    FigureRow(
        "accuracy_by_epoch",
        "learning",
        "Accuracy by epoch",
        "Validation accuracy by epoch, a panel per batch size, a line per run and policy.",
        lambda sweep: single(sweep.tables, _validated(sweep)),
        accuracy_by_epoch,
        _caption_accuracy,
    ),
    FigureRow(
        "accuracy_by_time",
        "learning",
        "Accuracy by time",
        "Validation accuracy by seconds since the first step, a line per run and policy.",
        # Where runs shared a processor, their times are not valid.
        lambda sweep: single(
            sweep.tables, _validated(sweep) and sweep.tables.ok.step_s.notna().any()
        ),
        accuracy_by_time,
        _caption_time,
    ),
    FigureRow(
        "loss_by_epoch",
        "learning",
        "Training loss",
        "Training loss by epoch, a panel per batch size, a line per run and policy.",
        lambda sweep: single(sweep.tables, applies(sweep)),
        loss_by_epoch,
        _caption_loss,
    ),
)
