"""What a cell shows of a table that was edited in place: what the table holds."""

import pickle

import pandas as pd
import pytest
from builders import written_sweep

from mptexp import compare, load
from mptexp.records.csv_columns import COLUMNS

# Those who write cells use it all the same.
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword in")


@pytest.fixture
def runs(tmp_path):
    return load(written_sweep(tmp_path / "a", "A100", 1.0).root)


@pytest.fixture
def compared(tmp_path):
    for name, scale in (("a", 1.0), ("b", 0.5)):
        written_sweep(tmp_path / name, "A100", scale)
    return compare(tmp_path / "a", tmp_path / "b")


def upper(runs):
    runs.columns = [name.upper() for name in runs]


def of_two_levels(runs):
    runs.columns = pd.MultiIndex.from_product([["a"], runs.columns])


def twice(name):
    return lambda runs: runs.insert(0, name, runs[name], allow_duplicates=True)


def lists(runs):
    runs["block"] = [[1]] * len(runs)


def without_what_is_shown(runs):
    runs.drop(columns=runs.short().columns, inplace=True)


# --- the runs of a sweep -------------------------------------------------------------------------


def test_a_column_that_a_cell_added_is_shown(runs):
    # The lie: "the columns that vary or were measured, of 59", without the 59th.
    before = list(runs.short())
    assert "or were added" not in repr(runs)
    runs["ms"] = 1e3 * runs.step_s
    assert list(runs.short()) == [*before, "ms"]
    for shown in (repr(runs), runs._repr_html_()):
        assert "ms" in shown
        assert f"vary, were measured or were added, of {runs.shape[1]} in .whole" in shown
    runs.sort_values("ms", ascending=False, inplace=True)
    assert list(runs.short()) == [*before, "ms"]
    assert list(pickle.loads(pickle.dumps(runs)).short()) == [*before, "ms"]


def test_a_column_that_a_cell_renamed_is_shown(runs):
    before = list(runs.short())
    runs.rename(columns={"step_s": "seconds"}, inplace=True)
    assert set(runs.short()) == {*before} - {"step_s"} | {"seconds"}


CHANGES = {
    "renamed": upper,
    "of two levels": of_two_levels,
    "twice a name": twice("policy"),
    "twice another": twice("run_id"),
    "lists": lists,
    "without them": without_what_is_shown,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_table_of_which_no_few_columns_can_be_told_is_shown_as_it_is(runs, change):
    # The fault: "Empty DataFrame, Columns: []", or a traceback from within the display.
    change(runs)
    assert runs.short().equals(runs.whole)
    assert runs._repr_html_() == runs.whole._repr_html_()
    with pd.option_context("display.width", 120, "display.max_columns", None):
        assert repr(runs) == repr(runs.whole)


def test_where_pandas_is_to_show_text_there_is_no_page(runs, compared):
    with pd.option_context("display.notebook_repr_html", False):
        assert runs._repr_html_() is None  # and no "None" with a sentence below it
    assert "<table" in runs._repr_html_()


def test_all_that_a_sweep_is_made_with_is_known(runs):
    assert set(runs.as_made) <= set(COLUMNS)
    assert runs.as_made == tuple(runs.whole)


# --- two sweeps ----------------------------------------------------------------------------------


def sorted_anew(compared):
    compared.sort_values("policy", ascending=False, inplace=True)


def fewer(compared):
    compared.drop(compared.index[:1], inplace=True)


def inverted(compared):
    compared["ratio"] = 1 / compared["ratio"]


def one_value(compared):
    compared.loc[compared.index[0], "ratio"] = 7.25


def another_column(compared):
    compared["mine"] = range(len(compared))


def other_names(compared):
    compared.columns = range(compared.shape[1])


@pytest.mark.parametrize(
    "change", [sorted_anew, fewer, inverted, one_value, another_column, other_names, of_two_levels]
)
def test_a_comparison_that_a_cell_edited_shows_what_it_holds(compared, change):
    # The lie: the rows and ratios that were compared, whatever a cell had made of them.
    assert "no interval: one session each" in repr(compared)
    change(compared)
    held = pd.DataFrame(compared)
    assert repr(compared) == repr(held)
    assert compared._repr_html_() == held._repr_html_()


def test_a_comparison_that_is_as_it_was_made_shows_its_sentences(compared):
    before = repr(compared), compared._repr_html_()
    ratio = compared["ratio"].copy()
    inverted(compared)
    assert before != (repr(compared), compared._repr_html_())
    compared["ratio"] = ratio
    again = pickle.loads(pickle.dumps(compared))
    for same in (compared, again):
        assert (repr(same), same._repr_html_()) == before
    assert "A is " in before[0]
