"""What a run's notebook shows; figures are looked at, not shown."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest

from mptexp.records import timed_windows
from mptexp.spec.run import Run
from mptexp.training.data.datasets import Images
from mptexp.training.outcome import Outcome

mpl.use("Agg")
from mptexp.training import notebook

WINDOWS = [timed_windows.Window(0, 1, 5.0), *(timed_windows.Window(i, 1, 0.1) for i in range(1, 9))]
EPOCHS = [
    {"epoch": i, "loss": 1 / i, "accuracy": 0.5, "val_loss": 1, "val_accuracy": 0.4} for i in (1, 2)
]
OUTCOME = Outcome(Run(), {}, WINDOWS, EPOCHS, timed_windows.timing(WINDOWS), None, 1.0)
X = np.zeros((64, 8, 8, 1), np.uint8)
IMAGES = Images(X, np.zeros(64, int), X[:8], np.zeros(8, int), ("nought",), notes=("a note",))


@pytest.fixture
def shown(monkeypatch):
    """The figures that are shown, in order."""
    figures = []
    monkeypatch.setattr(notebook.plt, "show", lambda: figures.append(notebook.plt.gcf()))
    yield figures
    notebook.plt.close("all")


def test_a_table_leaves_out_what_is_unknown():
    table = notebook.table({"device": "x", "cuda": None}, "known")
    assert table.known.to_dict() == {"device": "x"}


def test_images_are_shown_with_their_labels_where_they_may_be(shown, monkeypatch, capsys):
    notebook.show_images(Run(), IMAGES)
    assert [axis.get_title() for axis in shown[0].axes] == ["nought"] * 16
    assert capsys.readouterr().out == "64 images to train on, 8 to validate with\na note\n"
    monkeypatch.setenv("MPTEXP_RUN_DIR", "anywhere")
    notebook.show_images(Run(dataset="folder:holidays"), IMAGES)
    assert len(shown) == 1
    assert "whether they may be published" in capsys.readouterr().out


def test_steps_are_points_of_two_colours_and_the_median(shown):
    notebook.show_steps(OUTCOME)
    (axis,) = shown[0].axes
    assert [len(points.get_offsets()) for points in axis.collections] == [1, 8]
    assert axis.lines[0].get_ydata()[0] == pytest.approx(100)


def test_learning_is_by_epoch_and_inference_by_latency(shown):
    notebook.show_learning(OUTCOME)
    assert [axis.get_ylabel() for axis in shown[0].axes] == ["loss", "accuracy"]
    inferred = replace(OUTCOME, run=Run(phase="inference"), latencies_s=[0.1, 0.01, 0.02])
    notebook.show_learning(inferred)
    assert "ms per batch" in shown[1].axes[0].get_xlabel()


def test_a_profile_is_a_table_or_a_reason(capsys):
    notebook.show_profile(OUTCOME)
    assert capsys.readouterr().out == "no steps were to be traced\n"
    rows = [{"operation": "conv", "seconds": 0.1}] * 20
    profile = {"steps": 5, "slowdown": 1.02, "rows": rows, "missing": ""}
    notebook.show_profile(replace(OUTCOME, profile=profile), rows=3)
    printed = capsys.readouterr().out
    assert printed.startswith("5 steps, slower by 1.02")
    assert printed.count("conv") == 3
