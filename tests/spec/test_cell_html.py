"""What a notebook's cell shows of a run and of a sweep."""

from mptexp.spec import cell_html
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run


def test_a_run_shows_what_differs_from_the_defaults():
    shown = Run(epochs=3)._repr_html_()
    assert "<th>epochs</th>" in shown
    assert "<th>policy</th>" in shown
    assert "<th>jit</th>" not in shown


def test_a_sweep_shows_its_points_and_the_number_of_runs():
    sweep = Sweep(matrix={"batch_size": [32, 64]}, defaults={"epochs": 3}, repeats=5)
    shown = sweep._repr_html_()
    assert "<td>64</td>" in shown
    assert "2 points × 5 blocks = 10 runs of train; all with epochs 3" in shown


def test_tags_and_long_tables_are_contained():
    shown = cell_html.html(range(99), [["<script>"]] * 99, ["x"])
    assert "<script>" not in shown
    assert shown.count("&lt;script&gt;") == cell_html.MOST_ROWS
