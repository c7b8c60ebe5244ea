"""A params file and a record from elsewhere are data: nothing in them runs, loads or leads out."""

import io
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import time
from urllib.parse import unquote
from xml.etree import ElementTree

import IPython.display
import jupytext
import pandas as pd
import psutil
import pytest
from builders import record
from hostile import HARMFUL, PIECES, TEXT, markdown, notebook, shape, sweep_of
from hypothesis import given, settings
from rich.console import Console
from support import CHROMIUM, PATIENCE_S, PROJECT, mptexp, processes_of, started

from mptexp.errors import ParamsError
from mptexp.execution import jupyter_kernel
from mptexp.execution.scratch import scratch_folder
from mptexp.host import files, terminal
from mptexp.records import store
from mptexp.records.store import RecordError
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.figures import output, speed
from mptexp.report.pages import rendering
from mptexp.report.tables import text_tables
from mptexp.report.text import markdown as safe_markdown
from mptexp.report.text import wording
from mptexp.spec import params
from mptexp.spec.run import Run


def share(part):
    """So many examples for each that the profile asks for: pages and figures take long to make."""
    return settings(max_examples=round(part * settings().max_examples))


# --- how a page is built ------------------------------------------------------------------------


@share(1.5)
@given(TEXT)
def test_a_value_in_a_sentence_of_markdown_is_text(text):
    for form in ("On {0}, **policy** is 1.2× of {0}.", "# {0}\n\n**Note**: {0}", "- {0}\n- {0}"):
        sentence = safe_markdown.sentence(form.format(wording.verbatim(text)))
        whole = form.format(safe_markdown.safe(text))
        for made in (sentence, whole):
            page, plain = shape(markdown(made)), shape(markdown(form.format("x")))
            assert page.found == plain.found
            shown = re.sub(r"\s", "", terminal.visible(text))
            assert re.sub(r"\s", "", "".join(page.text)).count(shown) >= 2


@share(0.4)
@given(TEXT)
def test_a_value_in_a_table_is_text(text):
    def table(value):
        rows = pd.DataFrame({"Error": [value, "fine"], value: ["1", "2"]})
        link = '<a href="runs/1/record.json">json</a>'
        return text_tables.plain_table(rows.assign(Record=link), links=["Record"]).as_raw_html()

    assert shape(table(text)).found == shape(table("x")).found
    assert "\x1b" not in table(text)
    rows = [text_tables.markdown(pd.DataFrame({"A": [value], "B": ["1"]})) for value in (text, "x")]
    assert shape(markdown(rows[0])).found == shape(markdown(rows[1])).found
    assert len(rows[0].splitlines()) == 3
    assert rows[0].isascii() or "\x1b" not in rows[0]


@share(0.4)
@given(TEXT)
def test_a_value_beside_a_figure_is_text(text):
    drawn = ["<svg/>", "<svg/>"]
    made = output.as_html(drawn, text, text)
    assert shape(made).found == shape(output.as_html(drawn, "x", "x")).found


@share(0.15)
@given(TEXT)
def test_a_value_in_a_figure_is_text(text):
    row = {"gpu_model": text, "candidate": "bfloat16", "baseline": "float32", "batch_size": 1}
    row |= {
        "speedup": 1.0,
        "low": 0.9,
        "high": 1.1,
        "backend": text,
        "dataset": text,
        "model": text,
    }
    rows = pd.DataFrame([row, row | {"dataset": "y"}])
    rows = rows.assign(jit=True, input_mode="x", phase="train", replicas=1, setting="")
    document = output.svg(speed.speedup_by_batch_size(rows))
    names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(document).iter()}
    assert not names & {"script", "a", "image", "foreignObject", "animate", "set"}


@share(1.5)
@given(TEXT)
def test_a_value_on_a_terminal_is_text(text):
    screen = io.StringIO()
    Console(file=screen, width=10_000, emoji=False, highlight=False, force_terminal=True).print(
        f"before {terminal.plain(text)} after", soft_wrap=True
    )
    # Rich takes away or doubles a backslash before a bracket or at the end.
    told, meant = screen.getvalue(), f"before {terminal.visible(text)} after\n"
    assert told.replace("\\", "") == meant.replace("\\", "")
    assert all(sign.isprintable() or sign == "\u00a0" for sign in terminal.visible(text))


# --- the report of records that somebody made ---------------------------------------------------


def shown(place):
    """What the report notebook displays, executed here, as one page of HTML."""
    cells = jupytext.read(PROJECT / "notebooks/report.py").cells
    code = "\n\n".join(cell.source for cell in cells if cell.cell_type == "code")
    code = code.replace('"reports/quickstart"', repr(str(place.root)))
    made = []
    IPython.display.display, kept = made.append, IPython.display.display
    try:
        exec(compile(code, "report.py", "exec"), {})
    finally:
        IPython.display.display = kept
    assert len(made) > 15
    return "\n".join(map(_html, made))


def _html(displayed):
    if isinstance(displayed, IPython.display.Markdown):
        return markdown(displayed.data)
    if isinstance(displayed, IPython.display.HTML):
        return displayed.data
    return displayed.as_raw_html()


def test_whatever_records_say_the_report_has_the_same_elements(tmp_path):
    sizes = (32, 64)  # figures are drawn of several
    plain = shape(shown(sweep_of("plain", tmp_path / "plain", sizes)))
    # One text with everything in it, and one that ends within a tag and within a link.
    for number, text in enumerate(["".join(PIECES), "<a href='[x](`"]):
        page = shape(shown(sweep_of(text, tmp_path / str(number), sizes)))
        assert page.found == plain.found
        assert not set("".join(page.text)) & {"\x1b", "\0", "\u202e", "\x07"}
        assert len(page.images) == len(plain.images) > 2
        for image in page.images:
            ElementTree.fromstring(unquote(image.partition(",")[2]))


def test_the_page_of_anothers_notebook_keeps_nothing_that_runs_or_loads(tmp_path):
    notebook(tmp_path / "notebook.ipynb")
    page = rendering.run_page(tmp_path / "notebook.ipynb", "<script>title</script>")
    found = shape(page)
    tags = {tag for tag, _, _ in found.found}
    assert not tags & {"script", "iframe", "form", "svg", "object", "embed", "base", "link"}
    names = {name for _, attributes, _ in found.found for name in attributes}
    assert not any(name.startswith("on") for name in names)
    assert {v for _, _, led in found.found for v in led} <= {"data:"}
    assert page.count("<style") == page.count("<main>") == 1
    assert sum(tag == "meta" for tag, _, _ in found.found) == 4
    assert "a table" in "".join(found.text)
    assert "owned()" in "".join(found.text)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_runs_nothing_of_anothers(tmp_path):
    place = sweep_of("".join(PIECES).replace("alert(1)", "owned()"), tmp_path)
    (first, *_) = sorted(place.runs.iterdir())
    notebook(first / "notebook.ipynb")
    done = mptexp("report", place.root, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {"index": place.index, "run": first / "notebook.html"}
    # The same probe in a page without our head runs, so that the test can fail.
    pages["bare"] = tmp_path / "bare.html"
    pages["bare"].write_text(f"<!doctype html><body>{HARMFUL['text/html'].partition('<meta')[0]}")
    told = {name: _loaded(page, tmp_path) for name, page in pages.items()}
    assert "owned" in told["bare"]
    assert "owned" not in told["index"]
    assert "owned" not in told["run"]


def _loaded(page, folder):
    """The title of a page after it was loaded, which a call of owned() has changed."""
    probe = "<script>function owned() { document.documentElement.className = 'owned' }</script>"
    text = page.read_text()
    opened = page.with_name("opened.html")
    head = "<meta charset" if "<meta charset" in text else "<body>"
    opened.write_text(text.replace(head, probe + head, 1))
    words = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=2000", "--dump-dom", opened.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    shutil.rmtree(folder / "profile", ignore_errors=True)
    return re.search(r"<html[^>]*>", done.stdout)[0]


# --- records ------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path):
    """A sweep's directory with one good record."""
    made = SweepDir(tmp_path / "sweep")
    good = record()
    store.write_record(made.record(good["run_id"]), good)
    return made


def only_record(place):
    (path,) = place.runs.glob("*/record.json")
    return path


def changed(record, **more):
    return json.dumps(record | more)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda r: b"\xff\xfe", "not a readable record: expected value"),
        (lambda r: "[" * 100_000, "recursion limit exceeded"),
        (lambda r: '{"schema": 1, "a": ' + "[" * 100_000, "recursion limit exceeded"),
        (lambda r: changed(r, wall_s=float("nan")), "expected value"),
        (lambda r: changed(r, wall_s=float("-inf")), "invalid number"),
        (lambda r: changed(r, wall_s=1).replace('"wall_s": 1', '"wall_s": 1e999'), "wall_s"),
        (lambda r: changed(r, wall_s="W").replace('"W"', "9" * 5000), "number out of range"),
        (lambda r: changed(r, wall_s="W").replace('"W"', "9" * 400), "wall_s"),
        (lambda r: changed(r, error="W").replace("W", "\\ud800"), "unexpected end of hex escape"),
        (lambda r: changed(r, schema=2), "not a record of schema 1"),
        (lambda r: changed(r, schema=[1]), "not a record of schema 1"),
        (lambda r: changed(r, run_id="../../../x"), "run_id"),
        (lambda r: changed(r, run_id="0123456789ab"), "in a folder of another name"),
        (lambda r: changed(r, status=["ok"]), "status"),
        (lambda r: changed(r, error={"a": 1}), "error"),
        (lambda r: changed(r, parameters=[]), "parameters"),
        (lambda r: changed(r, parameters=r["parameters"] | {"batch_size": "32"}), "batch_size"),
        (lambda r: changed(r, parameters=r["parameters"] | {"batch_size": 0}), "batch_size"),
        (lambda r: changed(r, parameters=r["parameters"] | {"policy": "<b>"}), "policy"),
        (lambda r: changed(r, timing={"step_s": "0.1"}), "timing.step_s"),
        (lambda r: changed(r, timing={"step_s": 0}), "timing.step_s"),
        (lambda r: changed(r, timing=None), "timing"),
        (lambda r: changed(r, in_force={"step_s": "<b>"}), "in_force.step_s"),
        (lambda r: changed(r, history={}), "history"),
        (lambda r: changed(r, history=[{"loss": "low"}]), "history.0.loss"),
        (lambda r: changed(r, marks=[1]), "marks.0"),
        (lambda r: changed(r, windows=[{"first_step": 1}]), "windows.0"),
        (lambda r: changed(r, environment={"device": "x"}), "environment"),
        (lambda r: changed(r, identity={"nice": "x"}), "identity: Value error, nice, the priority"),
        (lambda r: changed(r, work={"flops_per_step": 1.0}), "work"),
        (lambda r: changed(r, profile={"rows": 1, "step_s": 1.0}), "profile"),
        (lambda r: changed(r, profile={"missing": "x", "primitives": [{"a": 1}]}), "profile"),
    ],
)
def test_a_record_that_is_none_is_named_in_a_sentence(place, make, fault):
    path = only_record(place)
    text = make(store.read_record(path))
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecordError) as raised:
        store.read_record(path)
    told = str(raised.value)
    assert told.startswith(f"{path}: ")
    assert fault in told
    assert len(told.splitlines()) == 1
    assert len(told) < len(str(path)) + 300
    records, damaged = store.read_records(place)
    assert (records, damaged) == ([], [told])


def test_a_record_is_a_plain_file_of_a_bearable_size_in_its_directory(place, tmp_path):
    path = only_record(place)
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(RecordError, match="a link that leads out"):
        store.read_record(path)
    inside = path.with_name("inside.json")
    (tmp_path / "elsewhere.json").rename(inside)
    path.unlink()
    path.symlink_to("inside.json")
    assert store.read_record(path)["status"] == "ok"
    path.unlink()
    os.mkfifo(path)  # reading it would wait for ever
    with pytest.raises(RecordError, match="Is not a plain file"):
        store.read_record(path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(files.MOST_BYTES + 1)
    with pytest.raises(RecordError, match="Is larger than 64 MiB"):
        store.read_record(path)


def test_further_keys_and_missing_parameters_are_those_of_other_versions(place):
    path = only_record(place)
    known = store.read_record(path)
    known["parameters"]["of_a_later_version"] = [1]
    known["in_force"]["of_a_later_version"] = {"a": "b"}
    known["of_a_later_version"] = {"a": [None]}
    for name in ("phase", "replicas", "width"):
        del known["parameters"][name]
    store.write_record(path, known)
    usual = {"phase": "train", "replicas": 1, "width": 1.0}
    assert store.read_record(path) == known | {"parameters": known["parameters"] | usual}
    assert "of_a_later_version" not in shown(place)


def test_every_published_record_reads():
    found = sorted((PROJECT / "reports/published").rglob("record.json"))
    assert len(found) >= 95
    for path in found:
        assert store.read_record(path)["schema"] == 1


# --- a params file ------------------------------------------------------------------------------


# Ten lines that stand for a thousand million values.
LETTERS = "abcdefghij"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n"
for before, letter in itertools.pairwise(LETTERS):
    BOMB += f"{letter}: &{letter} [{', '.join([f'*{before}'] * 9)}]\n"
BOMB += "matrix: {seed: *j}"


@pytest.mark.parametrize(
    "text",
    [
        "matrix: {seed: [!!python/object/apply:os.system ['touch owned']]}",
        "matrix: {gpu_model: [!!python/object/new:os.system ['touch owned']]}",
        "matrix: &m {seed: [*m]}",
        BOMB,
        "matrix: " + "{a: " * 600 + "}" * 600,
        "matrix: {seed: [" + "9" * 5000 + "]}",
    ],
    ids=["tag", "new", "circle", "aliases", "deep", "digits"],
)  # fmt: skip
def test_a_params_file_is_data(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ParamsError) as raised:
        params.read(tmp_path / "x.yaml")
    assert "x.yaml" in str(raised.value)
    assert [p.name for p in tmp_path.iterdir()] == ["x.yaml"]


def test_plan_names_the_code_that_will_run(light, tmp_path):
    light({"model": ["mine:net", "mlp", "their.nets:large"], "gpu_model": ["a"]})
    (tmp_path / "mine.py").write_text("raise SystemExit('executed')")
    done = mptexp("plan", "light.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == [
        f"notebook: {tmp_path / 'light.py'}",
        "model function: mine:net",
        "model function: their.nets:large",
        f"modules are imported from: {tmp_path}",
    ]
    told = json.loads(mptexp("plan", "light.yaml", "--format", "json", cwd=tmp_path).stdout)
    functions = ["mine:net", "their.nets:large"]
    assert told["executes"] == {
        "notebook": str(tmp_path / "light.py"),
        "functions": functions,
        "import_path": [str(tmp_path)],
    }
    assert len(told["runs"]) == 3


def test_a_device_with_the_name_of_a_command_is_text_on_the_terminal(light, tmp_path):
    path = light({"gpu_model": ["HERE", "../../elsewhere"]})
    path.write_text(path.read_text().replace("'HERE'", r'"\e]0;owned\a[red]\u202e"'))
    done = mptexp("plan", "light.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert r"\x1b]0;owned\x07[red]\u202e" in done.stdout
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)  # both are elsewhere
    assert done.returncode == 2, done.stderr
    assert r"gpu_model \x1b]0;owned\x07[red]\u202e, ../../elsewhere: this machine" in done.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"light.py", "light.yaml"}


@given(TEXT)
def test_no_path_of_a_run_leaves_its_directory(text):
    run = Run(gpu_model=text, dataset="folder:x" + text, float32_layers=text)
    run_id = run.run_id(text)
    assert re.fullmatch("[0-9a-f]{12}", run_id)
    assert str(SweepDir(PROJECT).record(run_id).resolve()).startswith(f"{PROJECT}/runs/")


TELL = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---
# %% tags=["parameters"]
one = two = ""
values = []
# %%
import json, pathlib
pathlib.Path("told.json").write_text(json.dumps([one, two, *values]))
"""


def test_every_text_arrives_in_the_kernel_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.py").write_text(TELL)
    chance = random.Random(0)
    mixed = ["".join(chance.sample(PIECES, 5)) for _ in range(200)]
    signs = [chr(code) for code in [*range(0x250), 0x2028, 0x2029, 0xFEFF, 0xFFFF, 0x1F600]]
    values = [*PIECES, *mixed, *signs, "'''", '"""', "\\N{DASH}", "\\x41", "\\", "\\'", "#\n1/0"]
    given = {"one": "".join(PIECES), "two": "\"\"\"\n1/0\n'''\\", "values": values}
    with scratch_folder() as scratch:
        jupyter_kernel.execute(tmp_path / "n.py", tmp_path / "done.ipynb", given, scratch)
    assert json.loads((tmp_path / "told.json").read_text()) == [given["one"], given["two"], *values]
    assert {p.name for p in tmp_path.iterdir()} == {"n.py", "done.ipynb", "told.json"}


# --- the network --------------------------------------------------------------------------------


def test_no_process_of_a_run_listens_on_a_public_address(light, gate, tmp_path):
    light({"seed": [13]})
    seen, heard = set(), set()
    with started("run", "light.yaml", "--no-report", cwd=tmp_path) as sweep:
        ends = time.monotonic() + PATIENCE_S
        while sweep.poll() is None:
            assert time.monotonic() < ends
            waits = gate.waiting()
            for process in [psutil.Process(sweep.pid), *processes_of(tmp_path)]:
                try:
                    found = process.net_connections(kind="inet")
                except psutil.Error:
                    continue
                seen.add(process.pid)
                heard |= {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}
                heard |= {c.raddr.ip for c in found if c.raddr}
            if waits and not gate.given:  # all its processes were looked at while it was at work
                gate.let()
            time.sleep(0.05)
    assert sweep.returncode == 0
    assert len(seen) >= 3  # the parent, the worker and the kernel
    assert heard <= {"127.0.0.1", "::1"}
