"""What a sweep makes ready before any kernel starts, through the command line."""

import pytest
from support import mptexp

pytestmark = pytest.mark.usefixtures("forked_runs")

SMALL = """defaults:
  {{image_size: 16, epochs: 3, batch_size: 4, dataset: '{dataset}'}}
"""
MATRIX = "matrix: {policy: [float32]}\n"
MODEL = """
import keras
from keras import layers

def good(shape, classes):
    return keras.Sequential([
        layers.Input(shape), layers.Flatten(), layers.Dense(classes),
        layers.Activation("softmax", dtype="float32"),
    ])

def half(shape, classes):
    return keras.Sequential([layers.Input(shape), layers.Flatten(), layers.Dense(classes)])
"""


def sweep(folder, dataset, extra=""):
    text = SMALL.format(dataset=dataset) + MATRIX
    (folder / "mine.yaml").write_text(text.replace("epochs", f"{extra}epochs"))
    return mptexp("run", "mine.yaml", "--data-dir", "data", cwd=folder)


def test_a_folder_of_ones_own_images_and_ones_own_model(tree):
    (tree.parent / "mine.py").write_text(MODEL)
    (tree / "Käse/letter.jpg").write_text("not an image")
    done = sweep(tree.parent, f"folder:{tree.name}", "model: 'mine:good', ")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "preparing 31 images of folder:" in done.stdout
    assert done.stdout.count("Käse/letter.jpg") == 1
    assert (tree.parent / "reports/mine/index.html").exists()
    assert "1 image of the dataset could not be read" in (
        tree.parent / "reports/mine/results.csv"
    ).read_text(encoding="utf-8")
    again = mptexp(
        "run", "mine.yaml", "--data-dir", "data", "--fresh", "--no-report", cwd=tree.parent
    )
    assert "preparing" not in again.stdout  # made by the first sweep, shared by the second


@pytest.mark.parametrize(
    ("dataset", "extra", "message"),
    [
        ("folder:nowhere", "", "dataset folder:nowhere: nowhere does not exist"),
        ("folder:{tree}", "on_broken: refuse, ", "1 image cannot be read: Käse/letter.jpg"),
        ("imagenette/321px", "", "no configuration 321px; allowed: 160px"),
        ("folder:{tree}", "model: 'nomodule:f', ", "nomodule"),
        ("folder:{tree}", "model: 'mine:half', ", "float32"),
        # Each run refused it, once its process had started.
        ("digits", "float32_layers: nose, ", "float32_layers names nose, which model keydana_cnn"),
    ],
)
def test_what_is_wrong_is_said_once_and_nothing_is_written(tree, dataset, extra, message):
    (tree.parent / "mine.py").write_text(MODEL)
    (tree / "Käse/letter.jpg").write_text("not an image")
    done = sweep(tree.parent, dataset.format(tree=tree.name), extra)
    assert done.returncode == 2, done.stdout + done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert len(said) == 1
    assert message in said[0]
    assert "Traceback" not in done.stderr
    assert not (tree.parent / "reports").exists()


def test_a_fast_plan_needs_no_data(tree):
    (tree.parent / "mine.yaml").write_text(SMALL.format(dataset="folder:nowhere") + MATRIX)
    assert mptexp("plan", "mine.yaml", "--fast", cwd=tree.parent).returncode == 0
    done = mptexp("plan", "mine.yaml", cwd=tree.parent)
    assert done.returncode == 2
    assert "nowhere does not exist" in done.stderr


@pytest.mark.kernel  # imports tensorflow-datasets
def test_a_plan_says_nothing_that_frameworks_say(tmp_path):
    (tmp_path / "mine.yaml").write_text(SMALL.format(dataset="imagenette/320px-v2") + MATRIX)
    done = mptexp("plan", "mine.yaml", cwd=tmp_path)
    # Printed once: five lines on oneDNN and CUDA, from C++, before the plan.
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.kernel  # three processes import a framework and build the model
def test_a_plan_tries_a_model_of_ones_own_on_data_that_it_does_not_prepare(tree, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # nothing is left beside the model
    text = SMALL.format(dataset=f"folder:{tree.name}")
    (tree.parent / "mine.py").write_text(MODEL)
    for name, said in (("good", ""), ("half", "in bfloat16; end it in"), ("none", "no function")):
        changed = text.replace("epochs", f"model: 'mine:{name}', epochs")
        (tree.parent / "mine.yaml").write_text(changed + MATRIX)
        done = mptexp("plan", "mine.yaml", cwd=tree.parent)
        assert done.returncode == (2 if said else 0), done.stderr
        assert said in done.stderr
    assert {p.name for p in tree.parent.iterdir()} == {tree.name, "mine.py", "mine.yaml"}
