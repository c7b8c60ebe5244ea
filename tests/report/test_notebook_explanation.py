"""What the notebook of a diagnosis shows, and that it says in a sentence what is missing."""

import shutil

import jupytext
import pytest
from builders import published
from support import PROJECT

from mptexp.execution import jupyter_kernel
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep, notebook_explanation

WHY = PROJECT / "reports/published/why-cpu"
PARTS = ("causes", "ablations", "time_by_cause", "time_by_layer", "operations", "roofline",
         "layers", "peaks", "kernels")  # fmt: skip


def executed(tmp_path, **parameters):
    """The outputs of the executed notebook, those of each cell that has some."""
    path = tmp_path / "executed.ipynb"
    jupyter_kernel.execute(PROJECT / "notebooks/diagnose.py", path, parameters, tmp_path)
    cells = [cell.outputs for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    return [outputs for outputs in cells if outputs]


def test_the_notebook_shows_every_part_once(tmp_path):
    shown = executed(tmp_path, sweep_dir=str(WHY), pair=2)
    text = str(shown)
    assert "the extra cost of emulating its arithmetic" in text
    assert all(len(outputs) == 1 for outputs in shown)
    assert text.count("Achieved GFLOP/s by FLOP per byte") == 1
    assert "image/png" not in text


def test_a_directory_that_does_not_exist_is_a_sentence(tmp_path):
    ((output,),) = executed(tmp_path, sweep_dir=str(tmp_path / "nothing"))
    assert "there is no such directory" in output.data["text/markdown"]


def test_a_sweep_that_was_not_diagnosed_is_a_sentence(tmp_path):
    place = tmp_path / "plain"
    shutil.copytree(PROJECT / "reports/published/sign-digits-cpu", place)
    explained = notebook_explanation.explanation(SweepDir(place), 0)
    assert "is not diagnosed: run `mptexp diagnose`" in explained._repr_markdown_()
    assert [getattr(explained, part)() for part in PARTS] == [None] * len(PARTS)


@pytest.fixture(scope="module")
def why():
    """The sweep of WHY, read once."""
    with measured_sweep.handed(published(WHY.name)):
        yield SweepDir(WHY)


@pytest.mark.parametrize("pair", [-1, 4])
def test_a_pair_that_the_sweep_has_not_is_a_sentence(why, pair):
    explained = notebook_explanation.explanation(why, pair)
    assert f"pair is {pair}; allowed: 0 to 3" in explained._repr_markdown_()
    assert explained.causes() is None
