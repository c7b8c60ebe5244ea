"""A report of more runs than can be looked at one by one."""

import json
import re
from dataclasses import replace

import pandas as pd
import pytest
from builders import diverged, many, tables
from support import PROJECT

from mptexp.analysis import accuracy, summary
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep
from mptexp.report.answers import findings
from mptexp.report.figures import learning, output, speed, style
from mptexp.report.pages import page as report
from mptexp.report.pages import rendering
from mptexp.report.tables import summary_tables, text_tables
from mptexp.report.tables.text_tables import ROWS


@pytest.fixture(scope="module")
def large():
    return tables(many())


def text(table):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", table.as_raw_html()))


def test_the_headline_stands_for_all_points_where_they_are_many(large):
    assert len(summary.headline(large)) > ROWS
    table, note = summary_tables.headline(large)
    assert "All 216 rows" in note
    assert "table.md" in note
    shown = text(table)
    assert shown.count("mixed_float16") == 36  # a row for each network
    assert "width 0.1" in shown
    assert "2.00× faster [2.00, 2.00] (n = 3): batch size 32" in shown
    # Of more networks than rows, a policy has one row.
    table, _ = summary_tables.headline(tables(many(1, 101)))
    shown = text(table)
    assert shown.count("mixed_float16") == 1
    assert "no interval, n = 1): batch size 32, width 0.1" in shown


def test_the_headline_of_a_small_sweep_is_whole():
    small = tables(many(1, 2))
    table, note = summary_tables.headline(small)
    assert note == ""
    assert table.as_raw_html(inline_css=False).count("<tr") == 1 + len(summary.headline(small))


def test_the_answer_stays_short(large):
    told = findings.answer(large)
    assert len(told) < 6
    (speed,) = [s for s in told if "**mixed_float16** trains" in s]
    assert "2.00× [2.00, 2.00] to 2.00× [2.00, 2.00] faster than float32 (the default; " in speed
    assert speed.endswith("in 108 settings.")
    assert "Validation accuracy is equal within 1 percentage point: mean" in told[1]


def test_figures_draw_some_panels_and_say_so(large):
    for figure in (
        speed.speedup_by_batch_size(large.speedups),
        speed.step_time_by_batch_size(large),
        learning.loss_by_epoch(large),
    ):
        assert sum(axis.get_visible() for axis in figure.axes) == style.PANELS
        assert figure.get_label().startswith(f"{style.PANELS} of ")
        titles = [axis.get_title() for axis in figure.axes if axis.get_visible()]
        assert "width 0.1" in titles[0]
        if "evenly" in figure.get_label():
            assert "width 1.85" in titles[-1]  # from the first to the last
    small = speed.step_time_by_batch_size(tables(many(1, 2)))
    assert small.get_label() == ""


def test_very_many_dots_are_a_picture(large, monkeypatch):
    assert "<image" not in output.svg(speed.step_time_by_batch_size(large))
    monkeypatch.setattr(style, "VECTORS", 100)
    drawn = output.svg(speed.step_time_by_batch_size(large))
    assert drawn.count("<image") == style.PANELS


def test_a_long_table_says_how_long_it_is():
    rows = pd.DataFrame({"a": range(ROWS + 1)})
    assert f"The first {ROWS} of {ROWS + 1} rows." in text(text_tables.plain_table(rows))
    assert "The first" not in text(text_tables.plain_table(rows[:ROWS]))


def test_of_many_failures_those_that_ended_alike_are_one_row(large):
    results = large.results.assign(status="oom", error="no room")
    (row,) = summary_tables.failed(results[results.policy == "float32"]).to_dict("records")
    assert (row["Status"], row["Policy"], row["Error"]) == ("oom", "float32", "no room")
    assert (row["Runs"], row["Batch size"]) == (324, "32–128")
    assert row["One of them"] in set(results.run_id)


def test_of_many_runs_those_that_need_a_look_are_listed(large):
    bad = large.results.run_id[[3, 5]]
    results = large.results
    results = results.assign(
        status=results.status.mask(results.run_id == bad[3], "failed"),
        marks=results.marks.mask(results.run_id == bad[5], "measured while throttled"),
    )
    listed, note = summary_tables.runs(results)
    assert set(listed.run_id) == set(bad)
    assert "Of 648 runs, the 2 that" in note
    assert summary_tables.runs(results[:ROWS])[1] == ""
    # The lie: "the 0 that did not end well", of runs whose repeats lay apart.
    flagged = large.results.assign(flags=["repeats apart"] * 4 + [""] * 644)
    assert len(summary_tables.runs(flagged)[0]) == 4


def test_a_median_of_what_is_not_proven_has_no_direction():
    # The lie: "2.00× faster (median)", of points of a single repeat.
    once = [made for made in many() if made["parameters"]["block"] == 0]
    shown = text(summary_tables.headline(tables(once))[0])
    assert "2.00× as fast (median) 2.00× as fast (no interval, n = 1)" in shown
    assert "faster (" not in shown


def test_what_is_not_valid_is_counted_and_in_no_median():
    def spoiled(made):
        return made | {"marks": ["measured while other programs used the processor"]}

    runs = many()
    parameters = [made["parameters"] for made in runs]
    bad = [
        p["policy"] != "float32" and p["batch_size"] == 32 and p["width"] < 1 for p in parameters
    ]
    for made, is_bad in zip(runs, bad, strict=True):
        made["timing"]["step_s"] *= 10 if is_bad else 1
    some = text(
        summary_tables.headline(
            tables([spoiled(m) if b else m for m, b in zip(runs, bad, strict=True)])
        )[0]
    )
    # The lie: 5.00× slower as the least, and no word that it is not valid.
    assert "mixed_float16 3 2 0 2.00× faster (median) 2.00× faster [" in some
    assert "91.0–91.0 % 1 of 3 " in some
    fast = [spoiled(m) if b else m for m, b in zip(many(), bad, strict=True)]
    for made in fast:  # the lie: "Most images/s" of runs that are not valid
        made["timing"]["images_per_s"] *= 100 if made.get("marks") else 1
    rates = text(summary_tables.headline(tables(fast))[0])
    assert "1,280" in rates
    assert not re.search(r"\d\d,\d\d\d", rates)
    none = text(summary_tables.headline(tables([spoiled(made) for made in runs]))[0])
    assert "(median)" not in none
    assert "3 of 3" in none


def test_differences_that_are_not_equal_come_first(large):
    rows, note = summary_tables.accuracy_rows(large)
    assert note == ""
    records = many(3, 72)
    for made in records:  # one network loses accuracy in mixed_float16
        if made["parameters"]["width"] == 3.6 and made["parameters"]["policy"] != "float32":
            made["history"][-1]["val_accuracy"] -= 0.5
    found = tables(records)
    rows, note = summary_tables.accuracy_rows(found)
    assert "Of 216 differences" in note
    assert "accuracy.csv" in note
    assert rows.Finding.tolist()[:3] == ["lower"] * 3
    assert set(rows.Finding[3:]) == {"equal within 1 percentage point"}
    assert len(accuracy.differences(found)) == 216


def test_what_diverged_comes_first_and_then_by_number():
    # The lie: "those that are not equal come first", of a table cut before those that diverged.
    records = many(3, 72)
    for made in records:
        width, policy = made["parameters"]["width"], made["parameters"]["policy"]
        if policy != "float32" and width in (3.55, 3.6):
            made["history"][-1]["val_accuracy"] -= 0.5 if width == 3.6 else 0.08
        if policy != "float32" and width == 3.5:
            made |= diverged(made)
    rows, note = summary_tables.accuracy_rows(tables(records))
    assert "those of runs that diverged come first, then those that are not equal" in note
    assert rows.Finding.tolist()[:9] == ["diverged"] * 3 + ["lower"] * 6
    assert rows.Setting.tolist()[3:9] == ["width 3.6"] * 3 + ["width 3.55"] * 3


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The report of a sweep of more runs than are looked at one by one."""
    place = SweepDir(tmp_path_factory.mktemp("user") / "large")
    empty = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    for index, made in enumerate(many(1)):
        made |= {"marks": ["measured while throttled"]} if index == 7 else {}
        store.write_record(place.record(made["run_id"]), made)
        place.record(made["run_id"]).with_name("notebook.ipynb").write_text(json.dumps(empty))
    report.build(measured_sweep.load(place), PROJECT / "notebooks/report.py")
    return place


def test_the_report_of_many_runs_is_short_and_leads_to_everything(place):
    page = place.index.read_text()
    assert max(table.count("<tr") for table in page.split("<table")) < ROWS
    assert page[page.index('id="All-runs"') :].split("</table>")[0].count("<tr") == 2
    assert "Of 216 runs, the 1 that did not end well, are marked or have a flag" in page
    assert f"{style.PANELS} of 36 panels are shown" in page
    assert len(pd.read_csv(place.root / "results.csv")) == 216
    # Once without the second table: costs stood nowhere.
    assert (place.root / "table.md").read_text().count("\n") == 2 * (2 + 216) + 1
    links = set(re.findall(r"<a href=\"([^\"]+)\"", page))
    local = {link for link in links if not link.startswith(("https://", "#"))}
    assert sum(link.endswith("notebook.ipynb") for link in local) == 1
    for link in local:
        assert (place.root / link).is_file(), link


def test_notebooks_of_many_runs_are_not_rendered(place):
    assert not list(place.runs.glob("*/notebook.html"))
    made = next(place.runs.glob("*/notebook.ipynb"))
    assert "<main>" in rendering.run_page(made, "a run")


def test_images_and_tokens_and_devices_stay_apart():
    # The lie: "Most images/s 1,500,000", which is tokens/s.
    images, words = tables(many()), pd.DataFrame()
    words = images.results.assign(dataset="hamlet", model="gpt", images_per_s=None)
    words = words.assign(tokens_per_s=1.5e6, val_perplexity=9.0)
    both = replace(images, results=pd.concat([images.results, words], ignore_index=True))
    shown = text(summary_tables.headline(both)[0])
    assert "Most tokens/s" in shown
    assert "1,500,000" not in shown.partition("Most images/s")[2].partition("hamlet")[0]
