"""Figures that are drawn by a second process are those that the notebook would have drawn."""

import multiprocessing
import os
import signal
import time

import pytest
from builders import published
from support import PATIENCE_S, until

from mptexp.report.figures import all_figures, drawn_ahead


class Figure:
    """Stands for a figure, with what is done to draw it."""

    def __init__(self, name, draw):
        self.name, self.html = name, draw


def drawn(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_figure_drawn_elsewhere_is_the_one_that_is_drawn_here(tmp_path):
    sweep = published("quickstart-cpu")
    figures = [f for f in all_figures.figures(sweep) if f.name == "memory_by_batch_size"]
    with drawn_ahead.drawing(lambda: figures, tmp_path):
        until(lambda: drawn(tmp_path) == ["memory_by_batch_size"])
    there = (tmp_path / "memory_by_batch_size").read_text()
    assert there == figures[0].html()
    (tmp_path / "memory_by_batch_size").write_text("taken as it is")
    with drawn_ahead.into(tmp_path):
        assert figures[0].html() == "taken as it is"
        assert figures[0].html(titled=False) != "taken as it is"  # of another form
    assert figures[0].html() == there


def test_the_last_comes_first_and_what_cannot_be_drawn_is_left(tmp_path, capfd):
    def fails():
        os.write(2, b"a warning")
        raise ValueError("no such figure")

    figures = [
        Figure("first", lambda: "1"), Figure("second", fails), Figure("third", lambda: "3"),
    ]  # fmt: skip
    with drawn_ahead.drawing(lambda: figures, tmp_path):
        (process,) = multiprocessing.active_children()
        process.join(PATIENCE_S)
    assert drawn(tmp_path) == ["third"]
    assert capfd.readouterr() == ("", "")
    with drawn_ahead.into(tmp_path):
        assert [drawn_ahead.html(figure.name) for figure in figures] == ["", "", "3"]


@pytest.mark.parametrize("number", [signal.SIGINT, None])
def test_it_ends_with_what_it_is_drawn_beside_and_not_by_ctrl_c(tmp_path, number, capfd):
    def slowly():
        (tmp_path / "begun").touch()
        time.sleep(PATIENCE_S)

    with drawn_ahead.drawing(lambda: [Figure("slow", slowly)], tmp_path):
        (process,) = multiprocessing.active_children()
        until((tmp_path / "begun").exists)
        if number:
            os.kill(process.pid, number)
        process.join(0.1)
        assert process.is_alive()
    assert process.exitcode == -signal.SIGKILL
    assert capfd.readouterr() == ("", "")
