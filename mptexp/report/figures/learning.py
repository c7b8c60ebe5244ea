"""Figures of learning: accuracy or perplexity, and loss, by epoch and by time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from mptexp.analysis import accuracy, points, published, summary, validity
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.figures import style
from mptexp.report.figures.row import FigureRow, single
from mptexp.report.figures.style import COLOURS, INK, sns
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.text import wording
from mptexp.spec import tasks

PUBLISHED = "published (mixed_float16, V100)"
IMAGENETTE = r"imagenette(/|:|$)|folder:imagenette2(-\d+)?$"  # its archives: imagenette2-160.tgz
EPOCHS = 3  # of a curve: fewer are a dot or a line between two
REPEATS = 5  # of a box: it is drawn through five numbers


def learned(tables: Tables) -> pd.DataFrame:
    """The epochs of runs that ended well and could learn: not from a batch that is always the same.

    One that diverged has no last epoch, and would pull a mean.
    """
    epochs = tables.epochs[tables.epochs.status == "ok"]
    return epochs[(epochs.input_mode != "resident") & (epochs.dataset != "synthetic")]


def of_task(tables: Tables, task: tasks.Task) -> pd.DataFrame:
    """The epochs of one task, with its figure in the column `figure`."""
    epochs = points.of_task(learned(tables), task)
    values = pd.to_numeric(epochs[f"val_{task.history}"])
    return epochs.assign(figure=values.map(task.figure, na_action="ignore"))


def validation(tables: Tables, task: tasks.Task, by: str = "epoch") -> Figure:
    """The figure of a task, each repeat faint and the mean strong, a panel per point.

    By epoch, or by `elapsed_s`, the seconds from the first step.
    """
    return _curves(of_task(tables, task), "figure", f"validation {task.measure}", by, task.mean)


def _caption_validation(tables: Tables, task: tasks.Task) -> str:
    epochs = of_task(tables, task).dropna(subset="figure")
    runs = epochs.groupby([*POINT, "policy"]).run_id.nunique()
    repeats = wording.count(runs.max(), "repeat")
    fewest = f"{runs.min()} to " * bool(runs.min() < runs.max())
    opening = f"Faint lines are single runs ({fewest}{repeats} a policy), {_strong(epochs)}"
    spread = summary.accuracy_range(_of_valid_accuracy(tables), task)
    if spread.empty:
        return opening
    if task is tasks.IMAGES:
        differ = f"means differ by at most {spread.difference.max() * 100:.1f} percentage points"
    else:
        factor = (spread.most / spread.least).max()
        differ = f"mean perplexities differ by at most a factor of {factor:.3f}"
    return f"{opening} At the last epoch the policies' {differ} at the same point."


def _strong(epochs: pd.DataFrame) -> str:
    """What the strong lines are: some means end before the last run does."""
    cut = len(_of_all_runs(epochs, [*POINT, "policy"])) < len(epochs)
    return f"strong ones their mean{', of the epochs that all of them have' * cut}."


def _of_all_runs(epochs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The epochs that all runs of a group have: a mean would jump where one of them ends."""
    runs = epochs.groupby(by).run_id.transform("nunique")
    return epochs[epochs.groupby([*by, "epoch"]).run_id.transform("nunique") == runs]


def _of_valid_accuracy(tables: Tables) -> Tables:
    """Without the runs whose accuracy is not valid; that one learned nothing is a finding."""
    flags = tables.results["flags"].map(lambda own: validity.but(own, "not trained"))
    valid = validity.sound(tables.results.assign(flags=flags), "accuracy").index
    whole = len(valid) == len(tables.results)
    return tables if whole else replace(tables, results=tables.results.loc[valid])


def _caption_time(tables: Tables) -> str:
    opening = "The same epochs over time, validation included"
    last = _last(tables)
    valid = validity.sound(last, "training time").dropna(subset="elapsed_s")
    if valid.empty:
        return f"{opening}."
    ends = valid.groupby("policy").elapsed_s.median().sort_values()
    by_policy = [f"{seconds:,.1f} s in {policy}" for policy, seconds in ends.items()]
    of = " of the runs whose times are valid" * (len(valid) < len(last))
    return f"{opening}: the last ends after {wording.listed(by_policy)} (medians{of})."


def _last(tables: Tables) -> pd.DataFrame:
    """The last epochs of runs that ended well; none where points differ, of which no median is.

    Those that ended once their step time was known did so after another number of epochs each.
    """
    epochs = learned(tables)
    last = epochs[epochs.ended_by != "target_ci"].groupby("run_id").tail(1)
    return last if len(last[POINT].drop_duplicates()) == 1 else last[:0]


def loss_by_epoch(tables: Tables) -> Figure:
    """Training loss, each repeat faint and the mean strong, a panel per point."""
    return _curves(learned(tables), "loss", "training loss")


def _caption_loss(tables: Tables) -> str:
    last = _last(_of_valid_accuracy(tables))
    ends = last.dropna(subset="loss").groupby("policy").loss.median().sort_values()
    by_policy = [f"{loss:.3g} in {policy}" for policy, loss in ends.items()]
    said = f"Loss at the last epoch: {wording.listed(by_policy)} (medians). " * bool(by_policy)
    return f"{said}Faint lines are single runs, {_strong(learned(tables).dropna(subset='loss'))}"


def _curves(
    epochs: pd.DataFrame,
    value: str,
    label: str,
    by: str = "epoch",
    mean: Callable[[Iterable[float]], float] = tasks.IMAGES.mean,
) -> Figure:
    wanted = [*POINT, "run_id", "policy", "epoch", "elapsed_s", value]  # of very many columns
    epochs = epochs[wanted].dropna(subset=value)
    data = style.by_point(epochs)
    chosen, which = _telling(data, value)
    figure, panels = style.panels([panel for panel in data if panel[0] in chosen])
    if len(chosen) < len(data):
        figure.set_label(
            f"{len(chosen)} of {len(data):,} panels are shown, {which}; history.csv holds all."
        )
    policies = style.policies(epochs)
    many = epochs.run_id.nunique() > style.VECTORS
    for axis, (title, part) in panels:
        for policy in policies:
            lines = _runs(part[part.policy == policy], by, value)
            axis.add_collection(lines).set(color=COLOURS[policy], rasterized=many)
        _means(axis, part, by, value, policies, mean)
        names = {"epoch": "epoch", "elapsed_s": "seconds from the first step"}
        axis.set(title=style.wrapped(title), xlabel=names[by])
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel(label)
        if by == "epoch":
            if part.epoch.nunique() >= EPOCHS:  # beside a dot its twenty epochs say nothing
                _published(axis, part, "val_accuracy" if value == "figure" else value)
            if part.epoch.nunique() == 1:  # around one epoch the locator finds only fractions
                axis.set_xticks([part.epoch.iloc[0]])
            else:
                axis.xaxis.get_major_locator().set_params(integer=True)
    style.legend(figure)
    return figure


def _runs(own: pd.DataFrame, by: str, value: str) -> LineCollection:
    """A faint line for each run of a policy."""
    runs = own.dropna(subset=by).sort_values(by).groupby("run_id")
    lines = [run[[by, value]].to_numpy(float) for _, run in runs]
    look = {"capstyle": "projecting", "joinstyle": "round"}
    return LineCollection(lines, linewidth=0.9, alpha=0.35, **look)


def _means(
    axis: Axes,
    part: pd.DataFrame,
    by: str,
    value: str,
    policies: list[str],
    mean: Callable[[Iterable[float]], float],
) -> None:
    """The mean of each policy's runs, epoch by epoch, at the mean of the times of their ends."""
    common = _of_all_runs(part.dropna(subset=by), ["policy"])
    if common.empty:  # no run says when its epochs ended
        return
    means = common.groupby(["policy", "epoch"], as_index=False).agg(
        {"elapsed_s": "mean", value: mean}
    )
    # Policies often lie on one another: dashes let the lower one show.
    look = {"hue": "policy", "hue_order": policies, "palette": COLOURS, "style": "policy"}
    look |= {"style_order": policies, "estimator": None, "linewidth": 2.2}
    sns.lineplot(means, x=by, y=value, ax=axis, **look)
    axis.get_legend().remove()
    for policy, own in means.groupby("policy"):
        if len(own) == 1:  # a line of one point is invisible
            axis.plot(own[by], own[value], "o", color=COLOURS[policy], markeredgecolor="w")


def _published(axis: Axes, part: pd.DataFrame, value: str) -> None:
    """Draws the epochs that a study printed of this network and batch size behind our curves.

    Of the same data alone, Imagenette, whichever its size and split: by its name among data sets,
    or in a folder that is called as its archives are.
    """
    part = part[part.dataset.str.match(IMAGENETTE)]
    for model, size in part[["model", "batch_size"]].drop_duplicates().itertuples(index=False):
        known = published.epochs(model, size, value)
        if len(known):
            look = {"color": "grey", "marker": "x", "linewidth": 1, "zorder": 0}
            axis.plot(known.index, known, label=PUBLISHED, **look)


def _telling(data: Sequence[style.Panel], value: str) -> tuple[set[str], str]:
    """The titles of as many panels as a figure holds, and which these are, in words.

    Where each panel has one policy alone, as of emulated formats, none differ in any.
    """
    ends = {title: part[part.epoch == part.epoch.max()] for title, part in data}
    means = {title: end.groupby("policy")[value].mean() for title, end in ends.items()}
    spread = {title: own.max() - own.min() for title, own in means.items()}
    if any(spread.values()):
        order = sorted(means, key=lambda title: -spread[title])
        return {*order[: style.PANELS]}, "those in which policies differ most"
    order = sorted(means, key=lambda title: means[title].mean())
    low = style.PANELS // 2
    return {*order[:low], *order[low - style.PANELS :]}, "those that end lowest and highest"


# --- repeats -------------------------------------------------------------------------------------


def _repeated(values: pd.Series, tables: Tables) -> pd.DataFrame:
    """The runs of each point that have a value, in the column `value`, under several policies.

    Each policy has REPEATS of them at least.
    """
    runs = tables.trained  # the others ended after another number of steps each
    runs = runs.assign(value=runs.run_id.map(values)).dropna(subset="value")
    runs = runs[runs.groupby([*POINT, "policy"]).run_id.transform("size") >= REPEATS]
    return runs[runs.groupby(POINT).policy.transform("nunique") > 1]


def _accuracies(tables: Tables) -> pd.DataFrame:
    above = points.of_task(validity.without(tables.ok, "not trained"), tasks.IMAGES)
    return _repeated(above.set_index("run_id").val_accuracy * 100, tables)


def _boxed(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return single(runs, not runs.empty)


def _boxes(runs: pd.DataFrame, label: str) -> Figure:
    """A box for each policy and a dot for each of its runs, a panel per point."""
    policies = style.policies(runs)
    figure, panels = style.panels(style.by_point(runs), height=1.1 + 0.35 * len(policies))
    for axis, (title, part) in panels:
        for place, policy in enumerate(policies):
            values = part.value[part.policy == policy].astype(float)
            _box(axis, place, values, COLOURS[policy])
        axis.set(title=style.wrapped(title), xlabel=label, ylim=(len(policies) - 0.5, -0.5))
        axis.set_yticks(range(len(policies)), policies)
    return figure


def _box(axis: Axes, place: int, values: pd.Series, colour: str) -> None:
    """Lying; not by matplotlib's or seaborn's, whose arguments for that change between versions."""
    if values.empty:
        return
    least, low, middle, high, most = values.quantile([0, 0.25, 0.5, 0.75, 1])
    axis.barh(place, high - low, 0.5, low, fill=False, edgecolor=colour, linewidth=1.5)
    axis.plot([middle] * 2, [place - 0.25, place + 0.25], color=colour, linewidth=2.5)
    axis.hlines([place] * 2, [least, high], [low, most], color=colour, linewidth=1.5)
    axis.plot(values, [place] * len(values), "o", color=INK, markersize=3.5, alpha=0.7)


def _caption_boxes(runs: pd.DataFrame, unit: str, what: str) -> str:
    opening = (
        f"Dots are runs of policies with {REPEATS} or more at a point, boxes hold the middle half "
        "of them, with the median."
    )
    valid = validity.sound(runs, what)
    if valid.empty:
        return opening
    spread = valid.groupby([*POINT, "policy"]).value.agg(["min", "max"])
    widest = (spread["max"] - spread["min"]).groupby("policy").max()
    each = [f"{widest[name]:.3g} {unit} in {name}" for name in style.policies(valid)]
    of = ", of the runs that are valid" * (len(valid) < len(runs))
    return f"{opening} From the least to the most at a point{of}: at most {wording.listed(each)}."


def applies(sweep: MeasuredSweep) -> bool:
    """Whether a training has a curve: of EPOCHS at least, and above chance level."""
    tables = sweep.tables
    if tables.ok.empty:
        return False
    above = validity.without(tables.ok, "not trained").run_id
    epochs = learned(tables).dropna(subset="loss")
    return bool((epochs[epochs.run_id.isin(above)].groupby("run_id").size() >= EPOCHS).any())


def _validated(sweep: MeasuredSweep, task: tasks.Task, timed: bool = False) -> dict[str, Tables]:
    """A sweep that has validations of a task, and where asked valid times."""
    known = applies(sweep) and bool(of_task(sweep.tables, task).figure.notna().any())
    # Where runs shared a processor, their times are not valid.
    valid = not timed or bool(sweep.tables.ok.step_s.notna().any())
    return single(sweep.tables, known and valid)


def _of_validation(task: tasks.Task) -> tuple[FigureRow, FigureRow]:
    name = task.measure
    return (
        FigureRow(
            f"{name}_by_epoch",
            "learning",
            f"{name.capitalize()} by epoch",
            f"Validation {name} by epoch, a panel per setting, a line per run and policy.",
            partial(_validated, task=task),
            partial(validation, task=task),
            partial(_caption_validation, task=task),
        ),
        FigureRow(
            f"{name}_by_time",
            "learning",
            f"{name.capitalize()} by time",
            f"Validation {name} by seconds since the first step, a line per run and policy.",
            partial(_validated, task=task, timed=True),
            partial(validation, task=task, by="elapsed_s"),
            _caption_time,
        ),
    )


FIGURES = (
    *(row for task in tasks.TASKS.values() for row in _of_validation(task)),
    FigureRow(
        "spread_of_accuracy",
        "learning",
        "Accuracy over repeats",
        "Box plots of the last validation accuracy over repeats, a box and dots per policy.",
        lambda sweep: _boxed(_accuracies(sweep.tables)),
        partial(_boxes, label="validation accuracy, %"),
        partial(_caption_boxes, unit="percentage points", what="accuracy"),
    ),
    FigureRow(
        "spread_of_time",
        "learning",
        "Training time over repeats",
        "Box plots of the seconds of a training over repeats, a box and dots per policy.",
        lambda sweep: _boxed(_repeated(accuracy.training_s(sweep.tables), sweep.tables)),
        partial(_boxes, label="seconds of training"),
        partial(_caption_boxes, unit="s", what="training time"),
    ),
    FigureRow(
        "loss_by_epoch",
        "learning",
        "Training loss",
        "Training loss by epoch, a panel per setting, a line per run and policy.",
        lambda sweep: single(sweep.tables, applies(sweep)),
        loss_by_epoch,
        _caption_loss,
    ),
)
