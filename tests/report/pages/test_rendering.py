"""Notebooks as pages: what is folded, left out, listed."""

import re
import time

import nbformat
import pandas as pd
import pytest

from mptexp.report.pages import rendering, sortable
from mptexp.report.tables import text_tables

V4 = nbformat.v4


@pytest.fixture
def page(tmp_path):
    def render(*cells, how=rendering.run_page):
        nbformat.write(V4.new_notebook(cells=list(cells)), tmp_path / "notebook.ipynb")
        return how(tmp_path / "notebook.ipynb", "A title")

    return render


def tagged(source, *tags):
    return V4.new_code_cell(source, metadata={"tags": list(tags)})


def test_the_cell_of_all_parameters_is_folded_and_the_one_that_was_given_is_shown(page):
    shown = page(
        V4.new_markdown_cell("# One run"),
        tagged('policy: str = "float32"', "parameters"),
        tagged('policy = "bfloat16"', "injected-parameters"),
        tagged("print(policy)"),
    )
    (folded,) = re.findall(r"<details.*?</details>", shown, re.DOTALL)
    text = re.sub("<[^>]+>", "", folded)
    assert text.startswith("All parameters and their defaults")
    assert "policy" in text
    assert "float32" in text
    assert "bfloat16" not in text
    rest = re.sub("<[^>]+>", "", shown.replace(folded, ""))
    assert "bfloat16" in rest
    assert "print(policy)" in rest
    assert "All parameters" not in page(tagged("print(1)"))


def test_many_parameters_of_a_run_are_folded_too(page):
    given = "\n".join(f"name_{number} = {number}" for number in range(40))
    shown = page(tagged("name_0 = 7", "parameters"), tagged(given, "injected-parameters"))
    folded = re.findall(r"<details.*?</details>", shown, re.DOTALL)
    assert ["their defaults" in part for part in folded] == [True, False]
    assert "name_39" in folded[1]
    assert "All parameters of this run" in folded[1]


def test_a_cell_for_whoever_opens_the_notebook_is_on_no_page(page):
    cells = (
        V4.new_markdown_cell("# Only here", metadata={"tags": ["remove-cell"]}),
        V4.new_markdown_cell("# Everywhere"),
    )
    for how in (rendering.run_page, rendering.report_page):
        shown = page(*cells, how=how)
        assert "Only here" not in shown
        assert "Everywhere" in shown


def test_a_report_has_contents_and_no_code(page):
    def markdown(text):
        output = V4.new_output("display_data", {"text/markdown": text})
        return V4.new_code_cell("secret = 1", outputs=[output])

    lead = '<header class="lead"><h1>Title</h1><p>An answer</p></header>'
    cells = (markdown(lead), markdown("## First\n\n## Second"))
    shown = page(*cells, how=rendering.report_page)
    assert "secret" not in shown
    nav = shown[shown.index("<nav") : shown.index("</nav>")]
    assert re.findall(r'href="#([^"]*)">([^<]*)', nav) == [("First", "First"), ("Second", "Second")]
    assert shown.index("Title") < shown.index("An answer") < shown.index("<nav")
    assert "<nav" not in page(*cells)


def test_rules_that_tables_share_are_written_once(page):
    def table(name, rule):
        style = f"<style>\n#{name} table {{ {rule} }}\n#{name} td {{ {rule} }}\n</style>"
        output = V4.new_output("display_data", {"text/html": f'<div id="{name}">{style}</div>'})
        return V4.new_code_cell("", outputs=[output])

    cells = (table("a", "color: red"), table("b", "color: red"), table("c", "color: blue"))
    shown = page(*cells, how=rendering.report_page)
    assert shown.count("color: red") == 2
    assert ":is(#a, #b) table { color: red }" in shown
    assert ":is(#c) table { color: blue }" in shown


@pytest.mark.parametrize(
    "text",
    [
        *(
            tag * 11_000
            for tag in (
                "<style",
                "<style>",
                "<b>",
                "<B>",
                "<div>",
                "<pre>",
                "<i></b>",
                "<x>",
                "&lt;",
            )
        ),
        f"<a {' '.join(f'a{i}=1' for i in range(9000))}>",
    ],
    ids=lambda text: text[:7],
)
def test_cleaning_does_not_take_the_square_of_the_length(text):
    def seconds(content):
        began = time.process_time()
        assert "<script" not in rendering._inert(content + "<script>x</script>")
        return time.process_time() - began

    once = seconds(text)
    assert seconds(text * 4) < 12 * once + 0.5  # the square would be 16 times


def test_styles_are_left_out_of_an_output():
    assert rendering._inert("a<style>x</style>b<style y>z</style>c") == "abc"
    nested = "<div>" * 60 + "<b>deep</b>" + "</div>" * 60
    assert rendering._inert(nested) == nested


def test_a_number_and_its_unit_stay_in_one_line():
    page = '<style>a 1 % b</style><main><p title="5 %">10.5 % (n = 3), 5 percent</p><a>x</a></main>'
    shown = rendering._unbroken(page)
    assert "10.5\N{NO-BREAK SPACE}% (n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}3), 5 percent" in shown
    assert shown.startswith('<style>a 1 % b</style><main><p title="5 %">')


def test_each_cell_of_a_wide_table_names_its_column(page):
    def cell(name, columns, id=None):
        rows = pd.DataFrame({f'<{k}> "{name}"': [str(k)] for k in range(columns)})
        shown = text_tables.plain_table(rows, id=id).as_raw_html()
        return V4.new_code_cell("", outputs=[V4.new_output("display_data", {"text/html": shown})])

    cells = (cell("wide", 5), cell("narrow", 4), cell("runs", 5, sortable.ID))
    shown = page(*cells, how=rendering.report_page)
    labels = re.findall(r'<td data-label="([^"]*)"[^>]*>(.*?)</td>', shown)
    assert labels == [(f"&lt;{k}&gt; &quot;wide&quot;", str(k)) for k in range(5)]
