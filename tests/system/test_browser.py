"""The report as a reader meets it, in a real Chromium: axe, widths, sorting, links, no request."""

import re
import shutil
from urllib.parse import unquote

import pytest
from playwright.sync_api import expect
from support import PATIENCE_S, PROJECT, mptexp, until

expect.set_options(timeout=PATIENCE_S * 1000)


@pytest.fixture(scope="module")
def reports(tmp_path_factory, tiny):
    """A sweep of few runs with a failed one, and a diagnosed one, rendered now."""
    folder = tmp_path_factory.mktemp("reports")
    shutil.copytree(PROJECT / "reports/published/why-cpu", folder / "why")
    done = mptexp("report", "why", cwd=folder)
    assert done.returncode == 0, done.stderr
    return {"tiny": tiny / "reports/tiny/index.html", "why": folder / "why/index.html"}


@pytest.fixture(params=["tiny", "why"])
def address(request, reports):
    return reports[request.param].as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(page, address, theme):
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme=theme)
    page.goto(address)
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("width", [380, 768, 1200])
def test_the_page_never_scrolls_sideways(page, address, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_image_has_a_text(page, address):
    page.goto(address)
    texts = page.eval_on_selector_all("img", "all => all.map(i => i.alt)")
    assert texts
    assert all(len(text) > 20 for text in texts)


def test_the_answer_comes_first_and_the_contents_lead_to_every_section(page, address):
    page.goto(address)
    order = page.eval_on_selector_all("h1, li, nav, h2, table", "all => all.map(e => e.tagName)")
    assert order.index("H1") < order.index("LI") < order.index("NAV") < order.index("H2")
    links = page.eval_on_selector_all("nav a", "all => all.map(a => a.getAttribute('href'))")
    assert len(links) == page.locator("h2").count()
    for link in links:
        assert page.locator(f'h2[id="{unquote(link[1:])}"]').count() == 1


def test_runs_are_sorted_by_number_and_filtered(page, reports):
    page.goto(reports["tiny"].as_uri())
    head = page.locator("#sortable th", has_text="Whole run")
    place = head.evaluate("th => th.cellIndex + 1")

    def column():
        cells = page.locator(f"#sortable tbody tr td:nth-child({place})").all_inner_texts()
        return [float(cell.split("\u00a0")[0]) for cell in cells]

    # DataTables sorts and filters some time after the event: what it says then is waited for.
    for order in ("ascending", "descending"):
        head.click()
        expect(head).to_have_attribute("aria-sort", order)
        until(lambda order=order: column() == sorted(column(), reverse=order == "descending"))
    assert len(column()) == 3
    page.locator("#sortable input").fill("mixed_bfloat16")
    expect(page.locator(".dt-info")).to_have_text("1 rows of 3")
    assert page.locator("#sortable tbody tr").count() == 1


def bottom(page, part):
    return page.locator(f".lead {part}").evaluate("e => e.getBoundingClientRect().bottom")


@pytest.mark.parametrize(("width", "height"), [(1200, 800), (390, 844)])
def test_the_first_screen_holds_title_chart_and_what_to_do(page, reports, width, height):
    page.set_viewport_size({"width": width, "height": height})
    page.goto(reports["why"].as_uri())
    parts = ["h1", "figure img", ".to-do"]
    parts += [".banner", ".says ul"] if width > 600 else [".brief"]
    assert {part: bottom(page, part) <= height for part in parts} == dict.fromkeys(parts, True)


def test_on_a_phone_every_cell_of_the_headline_table_is_in_view(page, reports):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(reports["why"].as_uri())
    table = page.locator("table").first
    cells = table.locator("td").evaluate_all("all => all.map(e => e.getBoundingClientRect())")
    assert len(cells) > 20
    assert all(0 <= cell["left"] < cell["right"] <= 390 for cell in cells)
    assert table.locator("thead").is_hidden()


def test_on_a_phone_the_links_of_a_cell_are_apart_and_in_view(page):
    # The fault: "0c952904c9ef1b45c4fb13c81b7bf4fca6c6", which pushed the table out of view.
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((PROJECT / "reports/published/tf32-h200/index.html").as_uri())
    cells = page.locator('td[data-label="Runs"]')
    assert cells.count() > 0
    several = [cell for cell in cells.all() if cell.locator("a").count() > 2]
    assert len(several) > 0
    for cell in several:
        assert cell.bounding_box()["width"] + cell.bounding_box()["x"] <= 390
        links = cell.locator("a")
        first, last = links.first.bounding_box(), links.last.bounding_box()
        assert last["y"] > first["y"]  # in lines of their own, as they are no one word


def test_links_to_notebooks_open(page, reports):
    page.goto(reports["tiny"].as_uri())
    page.locator("#sortable tbody tr a", has_text="").first.click()
    page.wait_for_url(re.compile("(notebook.html|record.json)$"))
    assert "notebook.html" in page.url or "record.json" in page.url
    assert "Precision" in page.content() or "run_id" in page.content()


def test_without_a_script_the_tables_are_whole(browser, reports):
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto(reports["tiny"].as_uri())
    assert opened.locator("#sortable tbody tr").count() == 3
    context.close()


def test_it_prints_on_a4(page, address):
    page.goto(address)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 680, "height": 1000})  # what A4 has between its margins
    assert page.evaluate("document.documentElement.scrollWidth") <= 680
    assert not page.locator("nav").is_visible()


@pytest.mark.parametrize(
    "place",
    sorted((PROJECT / "reports/published").glob("*/index.html")),
    ids=lambda p: p.parent.name,
)
def test_the_published_pages_print_on_a4(page, place):
    page.goto(place.as_uri())
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 680, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 680


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_executed_notebooks_are_pages_too(page, tiny, theme):
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": 380, "height": 900})
    pages = list((tiny / "reports/tiny").glob("runs/*/notebook.html"))
    shown = next(p for p in pages if "needs an NVIDIA" not in p.read_text())
    page.goto(shown.as_uri())
    assert page.locator("img").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


def test_light_and_dark_have_grounds_of_their_own(page, address):
    ground = "getComputedStyle(document.body).backgroundColor"
    page.goto(address)
    for theme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 24, 31)")):
        page.emulate_media(color_scheme=theme)
        assert page.evaluate(ground) == colour


def test_it_is_small(reports):
    for path in reports.values():
        assert path.stat().st_size < 3e6
