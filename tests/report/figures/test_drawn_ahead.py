"""Figures that are drawn by a second process are those that the notebook would have drawn.

Each test forks in a process of its own: that of the tests may have imported a framework.
"""

import subprocess
import sys

import pytest
from support import PATIENCE_S, PROJECT

BEGIN = """\
import multiprocessing, os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from mptexp.report.figures import drawn_ahead
folder, PATIENCE_S = Path(sys.argv[1]), float(sys.argv[2])
def figure(name, draw):
    return SimpleNamespace(name=name, html=draw)
def child():
    (process,) = multiprocessing.active_children()
    return process
def ended():
    for process in multiprocessing.active_children():  # none where it has ended by now
        process.join(PATIENCE_S)
def drawn():
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
"""


def passes(script, folder):
    """Whether a script comes to its end, and says nothing of its own."""
    command = [sys.executable, "-c", BEGIN + script, folder, str(PATIENCE_S)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_figure_drawn_elsewhere_is_the_one_that_is_drawn_here(tmp_path):
    script = """
from mptexp.report import measured_sweep
from mptexp.report.figures import all_figures
sweep = measured_sweep.load(Path("reports/published/quickstart-cpu"))
(one,) = [f for f in all_figures.figures(sweep) if f.name == "memory_by_batch_size"]
with drawn_ahead.drawing(lambda: [one], folder):
    ended()
assert drawn() == [one.name]
there = (folder / one.name).read_text()
assert there == one.html()
(folder / one.name).write_text("taken as it is")
with drawn_ahead.into(folder):
    assert one.html() == "taken as it is"
    assert one.html(titled=False) not in (there, "taken as it is")  # of another form
assert one.html() == there
"""
    passes(script, tmp_path)


def test_the_last_comes_first_and_what_cannot_be_drawn_is_left(tmp_path):
    script = """
def fails():
    print("words", flush=True)
    raise ValueError("no such figure")
figures = [figure("first", lambda: "1"), figure("second", fails), figure("third", lambda: "3")]
with drawn_ahead.drawing(lambda: figures, folder):
    ended()
assert drawn() == ["third"]
with drawn_ahead.into(folder):
    assert [drawn_ahead.html(one.name) for one in figures] == ["", "", "3"]
"""
    passes(script, tmp_path)


def test_where_no_more_processes_are_allowed_nothing_is_drawn(tmp_path):
    script = """
def refused():
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = refused
with drawn_ahead.drawing(lambda: [figure("one", lambda: "1")], folder):
    pass
assert drawn() == []
"""
    passes(script, tmp_path)


@pytest.mark.parametrize("signals", ["", "os.kill(process.pid, signal.SIGINT)"])
def test_it_ends_with_what_it_is_drawn_beside_and_not_by_ctrl_c(tmp_path, signals):
    script = f"""
def slowly():
    (folder / "begun").touch()
    time.sleep(PATIENCE_S)
with drawn_ahead.drawing(lambda: [figure("slow", slowly)], folder):
    process = child()
    while not (folder / "begun").exists():
        time.sleep(0.01)
    {signals}
    process.join(0.1)
    assert process.is_alive()
assert process.exitcode == -signal.SIGKILL
assert drawn() == ["begun"]
"""
    passes(script, tmp_path)
