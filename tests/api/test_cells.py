"""What a cell's call takes as a sweep, and what it says where there is none."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import written_sweep

from mptexp import answer, compare, explain, load, record
from mptexp.errors import ParamsError

ALLOWED = "allowed: the directory of a sweep, such as reports/quickstart"


@pytest.fixture
def two(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return [written_sweep(Path(name), "A100", 1.0) for name in ("a", "b")]


# --- where a sweep lies --------------------------------------------------------------------------

READERS = {
    "load": load,
    "answer": answer,
    "record": lambda given: record(given, "2f82d9d75f24"),
    "compare": lambda given: compare("a", given),
    "several": lambda given: compare([given], "a"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_file_or_nothing_in_place_of_a_sweep_is_called_so(read, two):
    # The fault: "results.csv/params.yaml: cannot be read as a params file: Not a directory".
    Path("a/results.csv").touch()
    with pytest.raises(ParamsError, match=f"^a/results.csv: it is a file; {ALLOWED}$"):
        read("a/results.csv")
    with pytest.raises(ParamsError, match=f"^absent: .*, as it does not exist; {ALLOWED}$"):
        read("absent")


@pytest.mark.parametrize("run_id", ["", ".", ".."])
def test_a_run_without_a_name_is_refused(run_id, two):
    with pytest.raises(ParamsError, match=re.escape(f"run_id is {run_id!r}; allowed: a text")):
        record("a", run_id)


# --- the sides of a comparison -------------------------------------------------------------------

SEVERAL = {
    "array": lambda paths: np.array(paths),
    "series": lambda paths: pd.Series(paths),
    "index": lambda paths: pd.Index(paths),
    "generator": lambda paths: (Path(path) for path in paths),
    "keys": lambda paths: dict.fromkeys(paths).keys(),
    "set": lambda paths: {*paths},
    "tuple": tuple,
}


@pytest.mark.parametrize("held", SEVERAL.values(), ids=SEVERAL)
def test_a_side_of_a_comparison_is_in_whatever_holds_paths(held, two):
    # The fault: 'a path is "[\'a\']"', though a list was allowed.
    written_sweep(Path("c"), "A100", 1.0)
    assert repr(compare(held(["b", "c"]), "a")) == repr(compare(["b", "c"], "a"))


NO_SIDES = [None, 5, b"a", {"a": 1}, pd.DataFrame({"a": [1]}), np.array("a"), np.array([["a"]])]


@pytest.mark.parametrize("given", NO_SIDES, ids=lambda given: type(given).__name__)
def test_what_is_no_side_is_refused_with_what_is_allowed(given, two):
    said = f"a side of a comparison is a {type(given).__name__}; allowed: .*, or a list of several"
    with pytest.raises(ParamsError, match=said):
        compare("b", given)


def test_a_table_of_runs_is_no_side(two):
    with pytest.raises(ParamsError, match="a side of a comparison is a Results; allowed"):
        compare(load("a"), load("b"))


# --- a run's record ------------------------------------------------------------------------------


def test_a_record_is_shown_wherever_the_working_folder_is_later(two, tmp_path, monkeypatch):
    # The fault: "IndexError: single positional indexer is out-of-bounds", from the display.
    made = record("a", load("a").run_id[0])
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert made.place.root == tmp_path / "a"
    assert made.row["run_id"] == made["run_id"]
    assert "<th>step_s" in made._repr_html_()


def test_a_record_whose_folder_is_gone_shows_what_it_holds(two):
    made = record("a", load("a").run_id[0])
    made["error"] = "<script>alert(1)</script>\u202e"
    shutil.rmtree("a")
    said = rf"/a: no longer holds a readable record of the run '{made['run_id']}'.*; allowed: a rec"
    with pytest.raises(ParamsError, match=said):
        _ = made.row
    page = made._repr_html_()
    assert "no longer holds a readable record" in page
    assert made["run_id"] in page.partition("<pre>")[2]
    assert "<script" not in page
    assert "\u202e" not in page


def test_a_record_without_its_name_is_shown_too(two):
    made = record("a", load("a").run_id[0])
    del made["run_id"]
    assert "<pre>" in made._repr_html_()


# --- a trace -------------------------------------------------------------------------------------

TRACES = {"empty.json": "", "cut.json.gz": "\x1f\x8b", "none.json": '{"traceEvents": []}'}
TRACES |= {"wrong.json": '{"traceEvents": [{', "other.json": '{"traceEvents": [{"ph": "X"}]}'}


@pytest.mark.parametrize("name", [*TRACES, "absent.json"])
def test_a_trace_that_cannot_be_read_is_one_sentence_in_a_cell(name, tmp_path, monkeypatch):
    # The fault: our own traceback, as if it were an error of the user's code, above the sentence.
    monkeypatch.chdir(tmp_path)
    if name in TRACES:
        Path(name).write_bytes(TRACES[name].encode("latin-1"))
    with pytest.raises(ParamsError, match=f"^{name}: cannot be read: ") as refused:
        explain(name)
    assert refused.value._render_traceback_() == [f"ParamsError: {refused.value}"]
