"""Figures drawn by several processes are those that one would draw."""

import os
import subprocess
import sys

import pytest
from builders import published
from support import PROJECT

from mptexp.execution import jupyter_kernel
from mptexp.report.figures import beforehand, registry

DRAWS = """
import os, sys
from dataclasses import replace
from pathlib import Path
from mptexp.report import measured
from mptexp.report.figures import beforehand, registry
from mptexp.report.pages import lead

def fails(data):
    raise ValueError("nothing to draw")

rows = [replace(row, draw=fails) if row.section == "learning" else row for row in registry.FIGURES]
registry.FIGURES = (*rows,)
sweep = measured.load(Path(sys.argv[1]))
beforehand._processors = lambda: 2
first = lead.figure(sweep)
with beforehand.drawn(sweep, first):
    pass
print(*sorted(name for name, _ in sweep.drawn))
again = measured.load(Path(sys.argv[1]))
print(lead.figure(again).documents(6.4) == sweep.drawn[first.name, 6.4] == first.documents(6.4))
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("none is left")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
def test_processes_draw_all_figures_but_those_that_fail():
    place = PROJECT / "reports/published/quickstart-cpu"
    words = [sys.executable, "-P", "-c", DRAWS, str(place)]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    drawn, *rest = done.stdout.splitlines()
    sweep = published("quickstart-cpu")
    wanted = {
        f.name for f in registry.figures(sweep) if f.row.section not in ("answer", "learning")
    }
    assert wanted < {*drawn.split()}, done.stderr
    assert len(wanted) == len(drawn.split()) - 1
    assert (rest, done.stderr) == (["True", "none is left"], "")


def test_where_nothing_can_be_forked_nothing_is_drawn_beforehand(monkeypatch):
    monkeypatch.setattr(jupyter_kernel, "may_fork", lambda: False)
    sweep = published("quickstart-cpu")
    with beforehand.drawn(sweep, None):
        pass
    assert not sweep.drawn
