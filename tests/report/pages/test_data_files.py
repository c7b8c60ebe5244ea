import shutil

import pandas as pd
import pytest
from builders import published, record, tables, three

from mptexp.records.sweep_dir import SweepDir
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.pages import checksums, data_files, first_screen_html
from mptexp.report.tables import text_tables


@pytest.fixture
def sweep(tmp_path):
    return MeasuredSweep(SweepDir(tmp_path), three("mixed_float16", [2.0, 2.1, 1.9]))


def test_the_numbers_of_a_report_are_files_beside_it(sweep):
    data_files.write(sweep)
    root = sweep.directory.root
    names = {path.name for path in root.iterdir()}
    assert names == {"results.csv", "history.csv", "speedups.csv", "table.md", "answer.svg"}
    (row,) = pd.read_csv(root / "speedups.csv").to_dict("records")
    assert row["speedup"] == pytest.approx(2, rel=0.01)
    assert (root / "table.md").read_text().startswith("| ")
    assert "<svg" in (root / "answer.svg").read_text()


def test_differences_that_no_table_shows_are_a_file(sweep, monkeypatch):
    monkeypatch.setattr(text_tables, "ROWS", 0)
    data_files.write(sweep)
    assert len(pd.read_csv(sweep.directory.root / "accuracy.csv")) == 1


def test_tables_that_are_not_what_the_records_give_are_named(sweep):
    # The lie: a page and its tables from before some records were changed.
    assert data_files.out_of_step(sweep) == []  # none was written yet
    data_files.write(sweep)
    assert data_files.out_of_step(sweep) == []
    path = sweep.directory.root / "speedups.csv"
    path.write_text(path.read_text().replace("float32", "float64", 1))
    (said,) = data_files.out_of_step(sweep)
    assert said.startswith(f"{path}: is not what the records give")
    path.write_bytes(b"\xff\x00")
    assert len(data_files.out_of_step(sweep)) == 1


def test_a_number_that_was_edited_in_the_headline_table_is_named(sweep):
    # The lie: "2.00×" became "9.00×" in table.md, and every comparison was valid.
    data_files.write(sweep)
    path = sweep.directory.root / "table.md"
    path.write_text(path.read_text().replace("2.0", "9.0", 1))
    (said,) = data_files.out_of_step(sweep)
    assert said.startswith(f"{path}: is not what the records give")


def test_a_word_that_was_edited_in_the_headline_table_is_named(sweep):
    # The lie: "slower" became "faster" in table.md, and nothing was found.
    data_files.write(sweep)
    path = sweep.directory.root / "table.md"
    assert "× faster [" in path.read_text()
    path.write_text(path.read_text().replace("× faster [", "× slower ["))
    (said,) = data_files.out_of_step(sweep)
    assert said.startswith(f"{path}: is not what the records give")


def test_policies_that_were_exchanged_in_the_headline_table_are_named(sweep):
    # The lie: mixed_float16 and mixed_bfloat16 exchanged, and "every comparison is valid".
    data_files.write(sweep)
    path = sweep.directory.root / "table.md"
    path.write_text(path.read_text().replace("mixed_float16", "mixed_bfloat16"))
    assert [*data_files.contradicted(sweep)] == [path]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A sweep, and its page as far as it is made without a notebook."""
    root = tmp_path_factory.mktemp("page")
    made = MeasuredSweep(SweepDir(root), three("mixed_float16", [2.0, 2.1, 1.9]))
    data_files.write(made)
    shown = [first_screen_html.html(made), text_tables.headline_html(made.tables).as_raw_html()]
    made.directory.index.write_text("<main>".join(shown))
    return made


@pytest.fixture
def reported(page, tmp_path):
    """A copy of it that a test may edit."""
    shutil.copytree(page.directory.root, tmp_path, dirs_exist_ok=True)
    return MeasuredSweep(SweepDir(tmp_path), page.tables)


EDITED = {
    "a cell of a table": ("index.html", "× faster [", "× slower ["),
    "a number of a cell": ("index.html", ">2.00× faster [", ">9.99× faster ["),
    "a sentence": ("index.html", "</strong> trains 2.00×", "</strong> trains 9.99×"),
    "the title": ("index.html", "<h1>mixed_float16", "<h1>mixed_bfloat16"),
    "a caption": ("index.html", "95 % intervals", "99 % intervals"),
    "the figure": ("answer.svg", "× faster", "× slower"),
}


@pytest.mark.parametrize("what", EDITED)
def test_what_was_edited_in_page_or_figure_is_named(reported, what):
    # The lie: "3.41× slower" became "9.99× faster" on the page, "slower" "faster" in the figure.
    assert data_files.out_of_step(reported) == []
    name, before, after = EDITED[what]
    path = reported.directory.root / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    (said,) = data_files.out_of_step(reported)
    assert said.startswith(f"{path}: is not what the records give, where it says “")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("index.html", "Policy", "Device"), ("table.md", "ms per step", "s per step")],
)
def test_what_was_edited_beyond_its_claims_is_named_by_its_checksum(reported, name, before, after):
    checksums.write(reported.directory.root, data_files.WRITTEN)
    path = reported.directory.root / name
    path.write_text(path.read_text().replace(before, after))
    assert data_files.contradicted(reported) == {}
    said = f"{path}: was edited after its report was made: `mptexp report` makes it again"
    assert data_files.out_of_step(reported) == [said]


def test_what_the_records_contradict_is_said_rather_than_that_it_was_edited(reported):
    checksums.write(reported.directory.root, data_files.WRITTEN)
    path = reported.directory.root / "speedups.csv"
    path.write_text(path.read_text().replace("float32", "float64", 1))
    (said,) = [s for s in data_files.out_of_step(reported) if s.startswith(str(path))]
    assert "is not what the records give" in said


def test_a_page_of_another_version_or_notebook_is_not_false_by_that(reported):
    index = reported.directory.index
    text = index.read_text()
    index.write_text(text.replace("Speed against", "Speedup over").replace(" trains ", " is "))
    assert data_files.out_of_step(reported) == []
    index.write_text("<h1>Mine</h1>")
    assert data_files.out_of_step(reported) == []
    index.write_bytes(b"\xff\x00")
    assert len(data_files.out_of_step(reported)) == 1


def test_tables_of_an_earlier_version_are_not_false_by_their_columns(sweep, monkeypatch):
    monkeypatch.setattr(text_tables, "ROWS", 0)
    data_files.write(sweep)
    root = sweep.directory.root
    ratios, differences = (pd.read_csv(root / f"{n}.csv") for n in ("speedups", "accuracy"))
    ratios.drop(columns="finding").to_csv(root / "speedups.csv", index=False)
    earlier = {"claim_low": "low", "claim_high": "high"}
    differences.rename(columns=earlier).to_csv(root / "accuracy.csv", index=False)
    assert data_files.out_of_step(sweep) == []
    ratios.assign(finding="slower").to_csv(root / "speedups.csv", index=False)
    assert [*data_files.contradicted(sweep)] == [root / "speedups.csv"]


def test_the_published_report_is_what_its_records_give():
    assert data_files.contradicted(published("quickstart-cpu")) == {}


@pytest.mark.parametrize("marked", [True, False])
def test_no_file_is_left_of_an_answer_that_is_no_more(sweep, marked):
    # The lie: "2.00× faster" in table.md and answer.svg beside a page on which every run failed.
    root = sweep.directory.root
    data_files.write(sweep)
    (root / "accuracy.csv").write_text("mine")
    if marked:  # else nothing that may be somebody's is removed
        sweep.directory.mark()
    failed = [record() | {"status": "failed", "in_force": {}, "timing": {}, "history": []}]
    data_files.write(MeasuredSweep(sweep.directory, tables(failed)))
    left = {path.name for path in root.iterdir()} & {"table.md", "answer.svg", "accuracy.csv"}
    assert left == (set() if marked else {"table.md", "answer.svg", "accuracy.csv"})
