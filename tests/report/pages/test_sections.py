"""The report notebook's sections; tests/report/pages/test_page.py reads a whole report."""

import inspect
import re
import subprocess
import sys
from dataclasses import replace
from typing import get_args

import IPython.display
import pytest
from builders import published, record, tables
from support import PROJECT

from mptexp import report
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import export
from mptexp.report.figures import all_figures, speed
from mptexp.report.figures.row import Section
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.pages import sections

NOTEBOOK = (PROJECT / "notebooks/report.py").read_text()
PARTS = {"show_text", "show_table", "show_figures"}


@pytest.fixture
def shown(monkeypatch):
    made = []
    monkeypatch.setattr(IPython.display, "display", made.append)
    return made


def test_the_notebook_shows_every_section_once_in_order():
    functions = dict(inspect.getmembers(sections, inspect.isfunction))
    named = [name for name in functions if name.startswith("show_") and name not in PARTS]
    called = re.findall(r"^report\.(show_\w+)\(sweep\)$", NOTEBOOK, re.MULTILINE)
    assert sorted(called) == sorted(named)
    lines = [functions[name].__code__.co_firstlineno for name in called]
    assert lines == sorted(lines)


def test_a_table_is_explained_where_it_first_stands(shown):
    # The lie: columns without a word, as the first of two pairs was not traced.
    sections.show_reasons(published("tf32-h200"))
    text = " ".join(one.data for one in shown if isinstance(one, IPython.display.Markdown))
    assert text.count("*Alone*, by valid peaks") == 1
    assert text.count("Of the traced runs, whose steps may differ") == 1
    assert text.count("Each is a run with a record of its own") == 1


def test_every_cell_opens_with_its_sentence():
    cells = NOTEBOOK.split("# %%\n")[1:]
    assert len(cells) > 20
    for cell in cells:
        if "report.show" in cell:
            assert re.match(r"# [A-Z][^\n]+(\n# [^\n]+)?\nreport\.show_\w+\(sweep\)\n", cell), cell


def test_every_section_of_the_registry_is_shown():
    screens = (PROJECT / "mptexp/report/first_screen").glob("*.py")
    source = "".join([inspect.getsource(sections), *(path.read_text() for path in screens)])
    assert {name for name in get_args(Section) if f'"{name}"' in source} == set(get_args(Section))


def test_a_sweep_without_data_shows_no_section_that_needs_them(shown, tmp_path):
    failed = record() | {"status": "failed", "in_force": {}, "timing": {}, "history": []}
    sweep = MeasuredSweep(SweepDir(tmp_path), tables([failed]))
    for name in re.findall(r"report\.(show_\w+)\(sweep\)", NOTEBOOK):
        before = len(shown)
        getattr(report, name)(sweep)
        wanted = {"answer", "published", "claims", "failures", "runs", "environment", "reproduce"}
        assert len(shown) == before or name.removeprefix("show_") in wanted, name


def test_the_facade_imports_nothing_before_it_is_used():
    program = (
        "import sys; from mptexp import report; from mptexp.report.text import wording; "
        "print(sorted({'matplotlib', 'great_tables'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
    assert report.load is not None
    with pytest.raises(AttributeError, match="show_nothing"):
        report.show_nothing  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        report.nothing  # noqa: B018


def test_a_row_of_the_registry_is_all_that_a_new_figure_needs(monkeypatch, shown, tmp_path):
    row = replace(speed.FIGURES[1], name="added", title="An added figure")
    monkeypatch.setattr(all_figures, "FIGURES", (*all_figures.FIGURES, row))
    both = [record(), record(batch_size=64)]
    sweep = MeasuredSweep(SweepDir(tmp_path), tables(both))
    sections.show_step_times(sweep)
    assert ["An added figure" in made.data for made in shown] == [False, True]
    for made in both:
        store.write_record(sweep.directory.record(made["run_id"]), made)
    export.export(sweep.directory, tmp_path / "out")
    assert (tmp_path / "out/added.png").is_file()
    assert "*An added figure. " in (tmp_path / "out/draft.md").read_text()


def test_what_loss_scales_were_measured_to_do_replaces_what_range_advises(shown):
    # The lie: "no fixed loss scale is both large and small enough" beside 1024 that trains.
    sweep = published("loss-scale-deep-cpu")
    sections.show_dynamic_range(sweep)
    said = "\n".join(one.data for one in shown if hasattr(one, "data"))
    assert "**mixed_float16** trains as float32 does with loss scales of 1024 and 2¹⁵" in said
    assert "Use policy" not in said
    assert "The numbers allow" not in said
    assert "In mixed_float16 no fixed loss scale" not in said
