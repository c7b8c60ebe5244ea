"""An executed notebook as one HTML page that loads nothing, and whose notebook runs nothing."""

import html
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mptexp.host import files
from mptexp.records import privacy
from mptexp.report.pages import sortable
from mptexp.report.text import glossary

TEMPLATES = Path(__file__).resolve().parent / "templates"
NOT_SHOWN = "remove-cell"  # tag of cells for whoever opens the notebook, not for the page


def report_page(
    notebook: Path,
    title: str,
    card: Mapping[str, str] | None = None,
    up: tuple[str, str] | None = None,
    beside: Sequence[tuple[str, str]] = (),
) -> str:
    """The executed notebook of a report, without its code, with contents and sortable tables.

    Args:
        card: Open Graph's properties of the page, as plain text.
        up: address and name of the page from which this one is reached.
        beside: the same of reports on the same network.
    """
    resources = {"card": dict(card or {}), "up": up, "beside": beside}
    resources |= {"script": sortable.script(), "script_hash": sortable.hash_source()}
    page = _exported(notebook, title, resources, with_code=False)
    page = _with_labels(_with_shared_styles(page))
    return _unbroken(_with_contents(glossary.explained(page)))


def run_page(notebook: Path, title: str, up: tuple[str, str] | None = None) -> str:
    """The executed notebook of a run with its code.

    It may come from anybody: of its outputs only what shows something is left.
    """
    return _exported(notebook, title, {"card": {}, "up": up, "beside": ()}, with_code=True)


def _exported(notebook: Path, title: str, resources: dict[str, Any], with_code: bool) -> str:
    import nbconvert
    import nbformat
    from nbconvert.exporters.html import HTMLExporter

    # Installed with pip's --target, nbconvert has its own templates where it does not look.
    installed = Path(nbconvert.__file__).parent.parent / "share/jupyter/nbconvert/templates"
    exporter = HTMLExporter(
        template_name="mptexp",
        extra_template_basedirs=[str(TEMPLATES), str(installed)],
        extra_template_paths=[str(installed)],
        exclude_input=not with_code,
    )
    exporter.register_filter("clean", _inert if with_code else lambda content: content)
    # Not from_filename, which makes the file's name the title.
    clean = privacy.scrub(json.loads(files.text(notebook)))
    node = nbformat.reads(json.dumps(clean), as_version=4)
    node.cells = [cell for cell in node.cells if NOT_SHOWN not in cell.metadata.get("tags", [])]
    page, _ = exporter.from_notebook_node(node, {"metadata": {"name": title}} | resources)
    return str(page)


# --- the page of a report ------------------------------------------------------------------------

TABLE_STYLE = re.compile(r"<style>\s*#([\w-]+) table .*?</style>", re.DOTALL)


def _with_shared_styles(page: str) -> str:
    """The page with the rules that great-tables repeats for each table written once for all."""
    ids: dict[str, list[str]] = {}

    def rules(style: re.Match[str]) -> str:
        return style[0].replace(f"#{style[1]}", "#id")

    for style in TABLE_STYLE.finditer(page):
        ids.setdefault(rules(style), []).append(f"#{style[1]}")

    def only_the_first(style: re.Match[str]) -> str:
        alike = ids[rules(style)]
        tables = f":is({', '.join(dict.fromkeys(alike))})"
        return rules(style).replace("#id", tables) if alike[0] == f"#{style[1]}" else ""

    return TABLE_STYLE.sub(only_the_first, page)


COLUMN = re.compile(r'<th [^>]*?id="([^"]*)"[^>]* scope="col">(.*?)</th>', re.DOTALL)
CELL = re.compile(r'<td (?=[^>]*?headers="(?:[^"]* )?([^" ]*)")')
FEW = 4  # columns that a phone has room for


def _with_labels(page: str) -> str:
    """The page with the name of its column at each cell of a table too wide for a phone.

    There a row is shown as a list. The table of runs, which is sorted by its head, stays one.
    """
    names = {place: re.sub("<[^>]*>", "", name) for place, name in COLUMN.findall(page)}
    columns = Counter(place.partition("-")[0] for place in names)
    del columns[sortable.ID]

    def labelled(cell: re.Match[str]) -> str:
        name = names.get(cell[1], "").replace('"', "&quot;")
        wide = columns[cell[1].partition("-")[0]] > FEW
        return cell[0] + f'data-label="{name}" ' * wide

    return CELL.sub(labelled, page)


HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)(?:<a class="anchor-link".*?)?</h2>')


def _with_contents(page: str) -> str:
    """The page with links to its sections, folded, behind the first screen."""
    headings = HEADING.findall(page)
    links = "".join(f'<li><a href="#{place}">{title}</a></li>' for place, title in headings)
    nav = f'<nav aria-label="Contents"><ul>{links}</ul></nav>'
    nav = f'<details class="contents"><summary>Contents</summary>{nav}</details>'
    return page.replace("</header>", f"</header>{nav}", 1) if headings else page


# What stays in one line of text: `10.5 %`, `n = 3`.
UNIT = re.compile(r"(?:(?<=\d) (?=%)|(?<=\bn) (?== \d)|(?<=\bn =) (?=\d))(?=[^<>]*<)")


def _unbroken(page: str) -> str:
    """The page's main part with spaces within a number and its unit that break no line."""
    head, opened, body = page.partition("<main>")
    return head + opened + UNIT.sub("\N{NO-BREAK SPACE}", body)


# --- the page of a run ---------------------------------------------------------------------------

# What may stand in it; of all else the text is left.
TAGS = "a b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img li ol p pre s"
TAGS += " section span strong sub summary sup table tbody td tfoot th thead tr ul"
DEEPEST = 100  # elements of one kind within one another
# Elements that the next of their kind closes, or that nothing is within.
FLAT = "area base br col dd dt embed hr img input li link meta option p source tbody td th thead tr"
FLAT_TAGS = {*FLAT.split(), "track", "wbr"}
ATTRIBUTES = ("alt", "aria-label", "class", "colspan", "id", "role", "rowspan", "scope", "tabindex")
STANDS = {"*": {*ATTRIBUTES}, "a": {"href"}, "img": {"src"}}


def _inert(content: str) -> str:
    """The content of a page, such that it neither runs nor loads anything, whatever it was."""
    import nh3

    if _is_bomb(content):
        return html.escape(content)
    clean = nh3.clean(
        content,
        tags={*TAGS.split()},
        attributes=STANDS,
        attribute_filter=_may_stand,
        url_schemes={"http", "https", "data"},
        link_rel=None,
    )
    return clean.replace("<th></th>", "<td></td>")  # pandas' corner, which is the head of nothing


def _is_bomb(content: str) -> bool:
    """Whether cleaning would take the square of the content's length: of a deep tree it does."""
    levels, deepest = Counter[str](), 0
    for end, name in re.findall(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)", content):
        name = name.lower()
        if name not in FLAT_TAGS:
            levels[name] = max(0, levels[name] + (-1 if end else 1))
            deepest = max(deepest, levels[name])
    return deepest > DEEPEST


def _may_stand(tag: str, name: str, value: str) -> str | None:
    if (tag, name) == ("a", "href"):
        return value if value.startswith(("https://", "http://", "#")) else None
    if (tag, name) == ("img", "src"):
        shown = value.startswith(("data:image/png;base64,", "data:image/jpeg;base64,"))
        return value if shown else None
    return value
