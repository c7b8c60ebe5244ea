import csv
import re
import shutil
from collections import Counter
from html import escape
from xml.etree import ElementTree

import pandas as pd
import pytest
from builders import published, record, written_sweep
from hostile import PIECES, markdown, shape, sweep_of
from PIL import Image
from support import PROJECT, mptexp

from mptexp.errors import ParamsError
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import export
from mptexp.report.figures import all_figures
from mptexp.report.tables import number_tables, text_tables

PUBLISHED = PROJECT / "reports/published/quickstart-cpu"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    (folder / "mine.txt").write_text("mine")
    done = mptexp("export", PUBLISHED, "--to", folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "draft.md" in done.stdout
    return folder


def test_tables_are_written_for_people_and_for_programs(exported):
    assert (exported / "table.md").read_text() == (PUBLISHED / "table.md").read_text()
    numbers = pd.read_csv(exported / "table.csv")
    assert numbers.step_s.between(1e-3, 1).all()
    row = numbers[(numbers.policy == "mixed_float16") & (numbers.batch_size == 128)].iloc[0]
    assert f"{1 / row.speedup:.2f}× slower" in (exported / "table.md").read_text()
    for name in ("accuracy", "best_batch_size"):
        assert len(pd.read_csv(exported / f"{name}.csv")) > 1
        assert (exported / f"{name}.md").read_text().startswith("| ")
    assert (exported / "results.csv").read_text() == (PUBLISHED / "results.csv").read_text()
    assert (exported / "mine.txt").read_text() == "mine"


def test_the_columns_of_every_csv_are_documented(exported):
    for name in number_tables.FILES:
        known = {n for n, column in number_tables.COLUMNS.items() if name in column.files}
        assert {*pd.read_csv(exported / name)} <= known
    assert {path.name for path in exported.glob("*.csv")} == {
        "results.csv", "history.csv", *number_tables.FILES,
    }  # fmt: skip


def test_every_figure_is_written_as_svg_and_png(exported):
    drawn = sorted(path.stem for path in exported.glob("*.svg"))
    assert drawn == sorted(path.stem for path in exported.glob("*.png"))
    assert "answer" in drawn
    assert len(drawn) == 8
    for name in drawn:
        ElementTree.parse(exported / f"{name}.svg")
        # Once pale on a white page for whoever's system is dark.
        assert "prefers-color-scheme" not in (exported / f"{name}.svg").read_text()
        with Image.open(exported / f"{name}.png") as image:
            assert image.width > 1200
            assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_the_draft_shows_every_figure_with_its_alternative_and_caption(exported):
    draft = (exported / "draft.md").read_text()
    assert draft.startswith(r"# mixed\_bfloat16 is not shown to train faster")
    shown = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)\n\n\*[^*]+\*\n", draft)
    assert {name for _, name in shown} == {path.name for path in exported.glob("*.svg")}
    assert (exported / "table.md").read_text() in draft


@pytest.mark.parametrize("name", ["quickstart-cpu", "loss-scale-cpu", "why-cpu"])
def test_every_figure_that_is_exported_is_in_the_report(name):
    place = SweepDir(PUBLISHED.with_name(name))
    figures = list(all_figures.figures(published(name)))
    assert len({figure.name for figure in figures}) == len(figures) >= 8
    shown = Counter(re.findall(r'<img[^>]* alt="([^"]*)"', place.index.read_text()))
    assert Counter(escape(figure.alt, quote=False) for figure in figures) == shown


def test_the_report_draws_no_figure_of_its_own():
    notebook = (PROJECT / "notebooks/report.py").read_text()
    assert not re.findall(r"matplotlib|\bplt\b|<svg|<img", notebook)
    assert re.findall(r"^(?:import|from) .*", notebook, re.MULTILINE) == [
        "from mptexp import report"
    ]


def test_values_of_others_are_text_in_the_draft(tmp_path):
    place = sweep_of("".join(PIECES), tmp_path)
    export.export(place, tmp_path / "out")
    page = shape(markdown((tmp_path / "out/draft.md").read_text()))
    tables = {"table", "thead", "tbody", "tr", "th", "td"}
    tags = {tag for tag, _, _ in page.found}
    assert tags == {"h1", "ul", "li", "strong", "em", "p", "img", "a"} | tables
    addresses = {value for tag, _, values in page.found for value in values}
    assert addresses == {path.name for path in tmp_path.glob("out/*.svg")}
    assert {"<script>alert(1)</script>", "[x](javascript:alert(1))"} <= set(PIECES)
    assert "<script>alert(1)</script>" in "".join(page.text)


def test_a_sweep_without_a_success_is_exported(tmp_path):
    place = sweep_of("x", tmp_path)
    for path in place.runs.glob("*/record.json"):
        text = path.read_text().replace('"status": "ok"', '"status": "failed"')
        path.write_text(text)
    assert export.export(place, tmp_path / "out") == []
    assert "No run of this sweep succeeded" in (tmp_path / "out/draft.md").read_text()
    assert not list(tmp_path.glob("out/*.png"))


def test_the_draft_says_which_runs_are_missing(tmp_path, monkeypatch):
    # The lie: a draft of two devices of three, without a word of the third.
    monkeypatch.setattr(all_figures, "FIGURES", ())
    place = written_sweep(tmp_path / "sweep", "V100", 1.0)
    matrix = "policy: [float32, mixed_float16], gpu_model: [V100, H100]"
    place.params.write_text(f"repeats: 3\nmatrix: {{{matrix}}}\n")
    export.export(place, tmp_path / "out")
    said = "6 of 12 runs that params.yaml asks for have no record yet: 6 on H100."
    assert f"- **Incomplete**: {said}" in (tmp_path / "out/draft.md").read_text()


def test_a_directory_without_records_is_refused(tmp_path):
    with pytest.raises(ParamsError, match="holds no record"):
        export.export(SweepDir(tmp_path), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_nothing_is_exported_among_the_runs_of_a_sweep(tmp_path):
    # An export once lay among the data of the sweep that it was made of.
    place = SweepDir(tmp_path / "sweep")
    store.write_record(place.record(record()["run_id"]), record())
    for folder in (place.runs, place.runs / "mine"):
        with pytest.raises(ParamsError, match="lies among the sweep's runs"):
            export.export(place, folder)


def test_the_same_table_has_the_same_id_and_another_another():
    rows = text_tables.accuracy_rows(published(PUBLISHED.name).tables)
    made = [text_tables.plain_table(rows.head(n)).as_raw_html() for n in (2, 2, 1)]
    assert made[0] == made[1]
    ids = [re.search(r'<div id="(\w+)"', page)[1] for page in made]
    assert ids[0] != ids[2]


@pytest.mark.parametrize("text", ["=HYPERLINK(0)", "@SUM(1)", "+1|x", "-1|x", "\t=1", "x\r=1,=1"])
def test_no_record_puts_a_formula_into_a_spreadsheet(tmp_path, monkeypatch, text):
    monkeypatch.setattr(all_figures, "FIGURES", ())  # only tables are looked at
    export.export(sweep_of(text, tmp_path), tmp_path / "out")
    written = sorted((tmp_path / "out").glob("*.csv"))
    assert {path.name for path in written} >= {"results.csv", "history.csv", "speedups.csv"}
    for path in written:
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        for cell in cells:
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")) or float(cell) < 0
    assert any(text in cell for cell in cells)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A sweep that was exported: to draw its figures takes seconds."""
    folder = tmp_path_factory.mktemp("written")
    export.export(sweep_of("x", folder), folder / "article")
    return folder


@pytest.fixture
def article(written, tmp_path):
    """A sweep, and the folder into which it was exported."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return SweepDir(tmp_path / "sweep"), tmp_path / "article"


@pytest.mark.parametrize("name", ["draft.md", "results.csv", "answer.png"])
@pytest.mark.parametrize("noted", [True, False])
def test_a_draft_that_somebody_wrote_on_is_never_replaced(article, name, noted):
    # The loss: exported again, draft.md without a word of what had been written into it.
    place, folder = article
    (folder / name).write_bytes((folder / name).read_bytes() + b"\nMy own words.\n")
    (folder / "table.md").unlink()
    if not noted:
        (folder / export.NOTED).unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ParamsError, match="was edited since it was exported, or is another's"):
        export.export(place, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_what_nobody_edited_is_replaced_and_leaves_nothing_of_before(article):
    place, folder = article
    (folder / "mine.txt").write_text("mine")
    (folder / "answer.svg").replace(folder / "kept.svg")
    (folder / "answer.svg").symlink_to(folder / "kept.svg")
    kept, drawn = (folder / "kept.svg").read_bytes(), set(folder.glob("*.png"))
    for path in place.runs.glob("*/record.json"):
        path.write_text(path.read_text().replace('"status": "ok"', '"status": "failed"'))
    export.export(place, folder)
    assert drawn
    assert {path.name for path in folder.iterdir()} == {
        "draft.md", "results.csv", "history.csv", "speedups.csv", "mine.txt", "kept.svg",
        export.NOTED,
    }  # fmt: skip
    assert (folder / "kept.svg").read_bytes() == kept


def test_an_export_that_was_killed_is_gone_on_with(article, monkeypatch):
    place, folder = article
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "results.csv").unlink()
    copied = []

    def killed(source, target):
        if len(copied) == 3:
            raise KeyboardInterrupt
        copied.append(source)
        target.write_bytes(source.read_bytes())

    with monkeypatch.context() as patched:
        patched.setattr(export, "_copy", killed)
        with pytest.raises(KeyboardInterrupt):
            export.export(place, folder)
    export.export(place, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def test_no_folder_at_all_is_not_the_one_that_one_works_in(tmp_path):
    done = mptexp("export", PROJECT / "reports/published/quickstart-cpu", "--to", "", cwd=tmp_path)
    assert (done.returncode, not list(tmp_path.iterdir())) == (2, True)
    assert "--to is empty; allowed: a folder, " in done.stderr
