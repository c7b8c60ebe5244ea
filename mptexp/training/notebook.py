"""Tables and figures of one run's notebook."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from mptexp.spec import tasks
from mptexp.spec.run import Run
from mptexp.training.data import batches
from mptexp.training.data.datasets import Images
from mptexp.training.outcome import Outcome

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "gray"
SHOWN = 120  # tokens of a text
SIZE = (8, 2.8)  # inches: the width of a notebook's column


def table(values: Mapping[str, Any], name: str = "value") -> pd.DataFrame:
    """The values that are known, a row each."""
    return pd.Series(values, name=name, dtype=object).dropna().to_frame()


def show_profile(outcome: Outcome, rows: int = 15) -> None:
    """The operations on which traced steps spent most, or why there are none."""
    if missing := outcome.profile.get("missing", "no steps were to be traced"):
        print(missing)
        return
    print(f"{outcome.profile['steps']} steps, slower by {outcome.profile['slowdown']:.2f}")
    display(pd.DataFrame(outcome.profile["rows"]).head(rows))


def show_images(run: Run, images: Images) -> None:
    """How much data there is, and some of the first batch where it may be published."""
    task = tasks.of(run.dataset)
    n, val = len(images.train_x), len(images.val_x)
    print(f"{n:,} {task.example}s to train on, {val:,} to validate with")
    for note in images.notes:
        print(note)
    if task is tasks.TOKENS:
        _show_text(run, images)
    elif run.dataset == "synthetic":  # noise, half a megabyte of it in every notebook
        print("The images are random numbers.")
    else:
        _show_pixels(run, images)


def _show_text(run: Run, text: Images) -> None:
    """The tokens of a sequence by their numbers, and by their characters where they are bytes."""
    print(f"{len(text.classes):,} tokens, {run.sequence_length} in a sequence")
    if not batches.may_be_shown(run):
        print("The text is not shown: whether it may be published is not known.")
        return
    first = text.train_x[batches.order(text, run)[0][:1]][0][:SHOWN]
    known = [text.classes[token] for token in first]
    print(bytes(first.tolist()).decode(errors="replace") if len(text.classes) == 256 else known)


def _show_pixels(run: Run, images: Images) -> None:
    shown, names = batches.samples(images, run)
    if not len(shown):
        print("The images are not shown: whether they may be published is not known.")
        return
    figure, axes = plt.subplots(2, 8, figsize=SIZE)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, image, name in zip(axes.flat, shown, names, strict=False):
        axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255)
        axis.set_title(name, fontsize=9)
    _show(figure)


def show_steps(outcome: Outcome) -> None:
    """Milliseconds per step of every window, warm-up marked, and the median."""
    steps = outcome.steps
    figure, axis = plt.subplots(figsize=SIZE)
    for counts, colour, label in ((False, ORANGE, "warm-up, left out"), (True, BLUE, "counts")):
        part = steps[steps.counts == counts]
        axis.scatter(part.first_step, part.ms_per_step, s=14, color=colour, label=label)
    axis.axhline(outcome.timing["step_s"] * 1e3, color=GREY, linewidth=1, zorder=0)
    axis.set(xlabel="step", ylabel="ms per step", yscale="log")
    axis.legend(frameon=False)
    _show(figure)


def show_learning(outcome: Outcome) -> None:
    """Loss and accuracy by epoch; of an inference, the distribution of latencies."""
    if outcome.run.phase == "inference":
        figure, axis = plt.subplots(figsize=SIZE)
        axis.hist([s * 1e3 for s in outcome.latencies_s[1:]], bins=50, color=BLUE)
        axis.set(xlabel="ms per batch, the first left out", ylabel="batches")
    else:
        history = outcome.history
        alone = "o" * (len(history) == 1)  # one epoch is no line
        figure, axes = plt.subplots(1, 2, figsize=SIZE)
        for axis, name in zip(axes, ("loss", "accuracy"), strict=True):
            axis.plot(history.index, history[name], f"{alone}--", color=GREY, label="training")
            axis.plot(
                history.index, history[f"val_{name}"], f"{alone}-", color=BLUE, label="validation"
            )
            axis.set(xlabel="epoch", ylabel=name)
        axes[1].legend(frameon=False)
    _show(figure)


def _show(figure: Figure) -> None:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.show()
