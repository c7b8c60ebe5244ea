"""The documentation as a site: every page, every link, from what is in the tree."""

import re
import runpy
import shlex
import subprocess
import sys
from functools import cache
from html import unescape
from itertools import pairwise, takewhile

import pytest
from support import PROJECT

import mptexp
from mptexp.analysis import published
from mptexp.host import project
from mptexp.spec import params

SITE = PROJECT / "docs/site.py"


@pytest.fixture(scope="module")
def pages():
    return runpy.run_path(str(SITE))["pages"]()


def test_the_site_has_every_document_study_and_name(pages):
    written = {path.name for path in (PROJECT / "docs").glob("*.md")}
    studies = {f"study-{path.stem}.md" for path in (PROJECT / "params").glob("*.yaml")}
    assert pages.keys() > written | studies
    for name in mptexp.__all__:
        assert f"\n## {name}\n" in pages["api.md"]
    assert (
        "**Args**\n\n- `directory`: the sweep's, or one to which records were copied."
        in pages["api.md"]
    )
    assert "reports/&lt;name of the file>" in pages["api.md"]
    nav = (PROJECT / "mkdocs.yml").read_text()
    assert {name for name in pages if name not in nav} == studies


def test_a_study_names_its_published_report(pages):
    assert "[quickstart-cpu](../quickstart-cpu/index.html)" in pages["study-quickstart.md"]
    assert "mptexp run quickstart" in pages["study-quickstart.md"]
    # The lie: no link, since the header was reworded after its report had been published.
    assert "[sign-digits-cpu](../sign-digits-cpu/index.html)" in pages["study-sign_digits.md"]


def test_every_published_sweep_is_linked_from_its_study_alone(pages):
    published = PROJECT / "reports/published"
    for name in (file.parent.name for file in published.glob("*/params.yaml")):
        link = f"Measured: [{name}]("
        linked = [page for page, text in pages.items() if link in text]
        assert len(linked) == 1, f"{name}: its study belongs into STUDY_OF of docs/site.py"


def test_links_lead_to_where_things_are_on_the_site():
    linked = runpy.run_path(str(SITE))["_linked"]
    known = {"README.md": "index.md", "docs/a.md": "a.md", "params/q.yaml": "study-q.md"}
    for page, text, said in (
        ("docs/b.md", "[x](a.md#here)", "[x](a.md#here)"),
        ("docs/b.md", "[x](../README.md)", "[x](index.md)"),
        ("README.md", "[x](docs/a.md)", "[x](a.md)"),
        ("docs/b.md", "[q](../params/q.yaml)", "[q](study-q.md)"),
        ("README.md", "![x](reports/published/c/answer.svg)", "![x](R/c/answer.svg)"),
        ("README.md", "[x](reports/published/c/)", "[x](R/c/index.html)"),
        ("docs/b.md", "[x](../tests/t.py)", "x (`tests/t.py`)"),
        ("docs/b.md", "[`t.py`](t.py)", "`t.py` (`docs/t.py`)"),
        ("docs/b.md", "`[x](a.md)` [x](https://e.org)", "`[x](a.md)` [x](https://e.org)"),
        ("docs/b.md", "```\n[x](nowhere)\n```", "```\n[x](nowhere)\n```"),
    ):
        assert linked(page, text, known, "R") == said, text


def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, SITE, "--to", tmp_path / "site", "--reports", "../"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").glob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loaded = re.findall(
            r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"([^\"]+)", page.read_text()
        )
        assert not [place for place in loaded if "//" in place], page.name
    guide = (tmp_path / "site/guide.html").read_text()
    assert 'id="for-scripts"' in guide


NAMED = re.compile(r"(?:tests|benchmarks|mptexp|params|notebooks)/[\w./-]+\.(?:py|yaml|csv)")
INVENTED = ("NAME", "params/x.yaml", "mine")


def test_the_files_that_texts_name_exist():
    texts = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *(PROJECT / "docs").glob("*.md")]
    named = {path for text in texts for path in NAMED.findall(text.read_text())}
    real = [path for path in named if not any(part in path for part in INVENTED)]
    assert len(real) > 50
    assert not [path for path in real if not (PROJECT / path).exists()]


INTERVAL = re.compile(r"\[([-+−]?[\d.]+), ([-+−]?[\d.]+)\]")
LINKED = re.compile(r"reports/published/([\w-]+)")


def test_intervals_beside_a_link_to_a_page_are_that_page_s():
    # README gave a GPT's 1.26× [1.01, 1.57] for weeks after it had been measured anew: 1.33×.
    wrong = [
        f"{document.name}: [{', '.join(ends)}], not in {' or '.join(names)}"
        for document in (PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md")))
        for names, ends in beside_links(document.read_text())
        if not any(same_interval(ends, name) for name in names)
    ]
    assert wrong == []


def test_published_errors_are_those_of_the_curated_table():
    # The lie: errors that no one had read in their source, of a format that a paper did not claim.
    lines = (PROJECT / "docs/numerics.md").read_text().splitlines()
    head = next(i for i, line in enumerate(lines) if "| published error |" in line)
    table = [line.split("|") for line in takewhile(str.strip, lines[head:])]
    column = [name.strip() for name in table[0]].index("published error")
    said = [cells[column].strip() for cells in table[2:] if cells[column].strip()]
    known = published.table()
    known = known[(known.dataset == "MNIST") & known.metric.str.startswith("test_error")]
    assert len(said) > 0
    assert all(any(text.startswith(f"{v:g} %") for v in known.value.astype(float)) for text in said)


def test_what_is_said_of_the_v100_traces_is_on_their_page():
    # The lie: 12 % of the steps idle before the recording, long after that was left out of them.
    sentences = re.split(r"(?<=\.)\s", " ".join((PROJECT / "docs/explain.md").read_text().split()))
    said = [n for s in sentences if "V100" in s for n in re.findall(r"[\d.]+ (?:ms|%)", s)]
    assert len(said) >= 3
    assert [figure for figure in said if figure not in plain("explain-v100-resnet50")] == []


NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def test_readme_counts_the_reports_with_a_diagnosis():
    # The lie: "four reports have a diagnosis", when five had one.
    diagnosed = len(list((PROJECT / "reports/published").glob("*/diagnosis")))
    words = " ".join((PROJECT / "README.md").read_text().split())
    assert f" {NUMBERS[diagnosed]} reports have a diagnosis" in words


def beside_links(text):
    """The intervals of a text, each with the reports that its part of the text links to.

    A part is a row of a table, or all up to the next heading or empty line; a table that follows
    a link without links of its own is part of it.
    """
    names = []
    for part in filter(str.strip, re.split(r"\n(?=\||\n|#)", text)):
        found = LINKED.findall(part)
        if found or not part.lstrip().startswith("|"):
            names = found
        for ends in INTERVAL.findall(part) if names else ():
            yield names, ends


def same_interval(ends, name):
    """Whether a page shows an interval, perhaps with more digits or in the other direction."""
    digits = max(len(end.partition(".")[2]) for end in ends)
    least, most = (float(end.replace("−", "-")) for end in ends)
    rounded = {tuple(round(end, digits) for end in each) for each in shown(name)}
    return {(least, most), (-most, -least)} & rounded


@cache
def plain(name):
    text = (PROJECT / "reports/published" / name / "index.html").read_text()
    return unescape(re.sub(r"<[^>]*>", "", text)).replace("\N{NO-BREAK SPACE}", " ")


@cache
def shown(name):
    ends = INTERVAL.findall(plain(name))
    return {tuple(float(end.replace("−", "-")) for end in both) for both in ends}


def _commands():
    """The commands of the documents that begin with a params file or a study's name."""
    for path in [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]:
        for block in re.findall(r"^```\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("mptexp ") and "--set" in line:
                    words = shlex.split(line, comments=True)
                    yield pytest.param(words, id=f"{path.name}: {line[:60]}")


@pytest.mark.parametrize("words", list(_commands()))
def test_what_a_document_sets_is_allowed(words):
    # README's first command for a model of one's own was refused.
    known = project.studies()
    file = next((known.get(w, PROJECT / w) for w in words if w in known or "params/" in w), None)
    if file is None:
        pytest.skip("begins with a file of the reader's own")
    given = [value for name, value in pairwise(words) if name == "--set"]
    sweep, _ = params.read(file, given)
    assert sweep.points()
