"""Notebooks for readers: their pictures, as published and with sliders."""

import html
import json
import re

import jupytext
import nbformat
import pytest
from conftest import PROJECT

from mptexp import kernel, report

NOTEBOOK = PROJECT / "notebooks/numerics.py"


def executed(notebook, folder):
    with kernel.scratch_folder() as scratch:
        kernel.execute(notebook, folder / "done.ipynb", {}, scratch)
    return json.loads((folder / "done.ipynb").read_text())["cells"]


def pictures(cell):
    shown = [output for output in cell["outputs"] if "image/png" in output.get("data", {})]
    return [output["data"]["image/png"] for output in shown]


def test_the_notebook_shows_its_pictures_and_is_published_without_sliders(tmp_path):
    cells = [c for c in executed(NOTEBOOK, tmp_path) if c["cell_type"] == "code"]
    drawn = [cell["metadata"].get("alt") for cell in cells if pictures(cell)]
    assert len(drawn) == len(set(drawn)) == 6
    assert all(drawn)
    assert not [o for cell in cells for o in cell["outputs"] if o.get("name") == "stderr"]
    page = html.unescape(report.render(tmp_path / "done.ipynb", "Numbers", code=False))
    assert [alt for alt in drawn if f'alt="{alt}"' in page] == drawn
    assert not re.search("<script|VBox|Slider", page)


MOVE = """\
import gc
for slider in [found for found in gc.get_objects() if type(found) is ipywidgets.SelectionSlider]:
    slider.index -= 1
"""


def test_sliders_redraw_the_picture(tmp_path):
    pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
    book = jupytext.read(NOTEBOOK)
    codes = [cell for cell in book.cells if cell.cell_type == "code"]
    upto = next(i for i, cell in enumerate(codes) if "explore(spacing" in cell.source) + 1
    added = ["display(closed(spacing(4, 2)))", "display(closed(spacing(3, 1)))", MOVE]
    book.cells = codes[:upto] + [nbformat.v4.new_code_cell(source) for source in added]
    jupytext.write(book, tmp_path / "moved.ipynb")
    *_, shown, first, lower, _ = executed(tmp_path / "moved.ipynb", tmp_path)
    assert pictures(shown) == pictures(lower) != pictures(first)
