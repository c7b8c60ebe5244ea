"""The report of a real sweep, read as a file; test_browser.py looks at it."""

import html
import json
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

import pandas as pd
import psutil
import pytest
from builders import record, written_sweep
from support import PATIENCE_S, PROJECT, mptexp, started, until

from mptexp.analysis import points, sweep_tables
from mptexp.errors import Stopped
from mptexp.records import schema, store
from mptexp.records.csv_columns import COLUMNS, HISTORY
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep
from mptexp.report.pages import page as report
from mptexp.report.pages import sortable
from mptexp.spec.run import Run


def build(directory):
    report.build(measured_sweep.load(directory), PROJECT / "notebooks/report.py")


@pytest.fixture(scope="module")
def place(tiny):
    return tiny / "reports" / "tiny"


def test_the_report_tells_the_whole_story(place):
    page = (place / "index.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    for words in (
        "Does the whole path work?",
        "Provisional (",
        '<h2 id="terms">Terms',
        "(the default)",
        ", n = 1)",
        "Comparison with published results",
        "Tesla V100",
        "What differs",
        "Runs without a result",
        "tensorfloat32 needs an NVIDIA GPU",
        "What is timed",
        "Instruction sets",
        "mptexp run params.yaml --out reports/again",
    ):
        assert words in page, words
    # How many windows some quick steps fill, varies.
    flags = pd.read_csv(place / "results.csv", dtype={"flags": str})["flags"].fillna("")
    few = flags.str.contains("too few windows").any()
    assert ("fewer than ten windows of steps were timed" in page) == few


def test_the_report_needs_nothing_from_elsewhere(place):
    for page in [place / "index.html", *place.glob("runs/*/notebook.html")]:
        text = page.read_text()
        ours = sortable.script() if page.name == "index.html" else ""
        assert ours in text
        text = rest(page)
        assert not re.search(r"<(script|link|iframe)\b", text), page
        loaded = re.findall(r"\b(?:src|srcset)\s*=\s*\"([^\"]{0,40})", text)
        assert all(source.startswith("data:") for source in loaded), loaded
        assert "@import" not in text
        assert not re.search(r"url\((?!['\"]?data:)", text)


def rest(page):
    """A page without the one script that its policy admits."""
    ours = f'<script type="module">{sortable.script()}</script>'
    return page.read_text().replace(ours, "")


def test_every_link_of_the_report_leads_somewhere(place):
    links = set(re.findall(r"<a href=\"([^\"]+)\"", rest(place / "index.html")))
    local = {link for link in links if not link.startswith(("https://", "#"))}
    assert {"results.csv", "history.csv", "speedups.csv", "params.yaml"} <= local
    assert sum(link.endswith("notebook.html") for link in local) == 3
    for link in local:
        assert (place / link).is_file(), link


OF_IMAGES = [name for name, column in COLUMNS.items() if column.task != "tokens"]
FOREIGN = "<script>owned()</script>"


def another(copy, like, block):
    """A run of another block that is as one of a sweep otherwise, notebook and page included."""
    made = store.read_record(like / "record.json")
    run = Run(**made["parameters"] | {"block": block})
    made |= {"run_id": run.run_id(), "parameters": run.model_dump()}
    shutil.copytree(like, copy.runs / made["run_id"])
    store.write_record(copy.record(made["run_id"]), made)
    return copy.runs / made["run_id"]


@pytest.fixture(scope="module")
def rebuilt(place, tmp_path_factory):
    """A copy of the sweep whose report was made anew, and its runs by what was done to each."""
    copy = SweepDir(tmp_path_factory.mktemp("copy") / "tiny")
    shutil.copytree(place, copy.root)
    own, foreign, linked = (page.parent for page in sorted(copy.runs.glob("*/notebook.html")))
    runs = {"own": own, "foreign": foreign, "linked": linked}
    runs |= {name: another(copy, own, block) for block, name in enumerate(("broken", "absent"), 1)}
    page = foreign / "notebook.html"
    page.write_text(page.read_text().replace("</body>", f"{FOREIGN}</body>"))
    os.utime(page, (2**32, 2**32))  # newer than its notebook
    (linked / "notebook.html").unlink()
    (copy.root.parent / "elsewhere.html").write_text(FOREIGN)
    (linked / "notebook.html").symlink_to(copy.root.parent / "elsewhere.html")
    runs["without"] = copy.runs / "0123456789ab"  # a record
    runs["without"].mkdir()
    (runs["without"] / "notebook.html").write_text(FOREIGN)
    (runs["broken"] / "notebook.html").write_text(FOREIGN)
    (runs["broken"] / "notebook.ipynb").write_text("no notebook")
    for name in ("notebook.html", "notebook.ipynb"):
        (runs["absent"] / name).unlink()
    before = (own / "notebook.html").stat().st_mtime_ns
    build(copy)
    assert (own / "notebook.html").stat().st_mtime_ns == before  # rendered here, and kept
    return copy, {name: folder.name for name, folder in runs.items()}


def results(root):
    table = pd.read_csv(root / "results.csv", dtype=str).set_index("run_id").sort_index()
    return table.drop(columns=["flags", "setting"])  # which depend on the other runs


def linked_pages(copy):
    return set(re.findall(r"runs/(\w+)/notebook.html", copy.index.read_text()))


def test_what_is_absent_is_not_linked(rebuilt, place):
    copy, runs = rebuilt
    assert runs["absent"] in copy.index.read_text()
    assert runs["absent"] not in linked_pages(copy)
    before, after = (results(root) for root in (place, copy.root))
    pd.testing.assert_frame_equal(after.drop([runs["absent"], runs["broken"]]), before)


def test_only_pages_that_were_rendered_here_are_linked(rebuilt):
    copy, runs = rebuilt
    assert FOREIGN not in "".join(p.read_text() for p in copy.runs.glob("*/notebook.html"))
    assert (copy.root.parent / "elsewhere.html").read_text() == FOREIGN
    assert linked_pages(copy) == {runs[name] for name in ("own", "foreign", "linked")}


def test_a_page_that_cannot_be_rendered_anew_is_not_linked(rebuilt):
    copy, runs = rebuilt
    assert not (copy.runs / runs["broken"] / "notebook.html").exists()
    assert runs["broken"] not in linked_pages(copy)


def test_the_data_files_agree_with_the_report(place):
    results = pd.read_csv(place / "results.csv")
    assert list(results.columns) == OF_IMAGES
    assert sorted(results.status) == ["ok", "ok", "unsupported"]
    assert results[results.status == "ok"].step_s.gt(0).all()
    history = pd.read_csv(place / "history.csv")
    assert list(history.columns) == ["run_id", *HISTORY]
    assert len(history) == 4
    speedups = pd.read_csv(place / "speedups.csv")
    names = "baseline candidate speedup low high claim_low claim_high blocks flags finding"
    assert list(speedups.columns) == [*points.POINT, *names.split()]


def test_executed_notebooks_are_whole_and_private(place, tiny):
    pages = list(place.glob("runs/*/notebook.html"))
    assert len(pages) == 3
    for page in pages:
        text = page.read_text()
        assert "One run: a model trained in one precision" in text
        assert str(tiny) not in text
        assert "cuInit" not in text
    (good,) = [p for p in pages if 'policy = "float32"' in _parameters(p)]
    for words in ("compute_dtype", "conv2d", "images/s", "written to record.json"):
        assert words in good.read_text()


def _parameters(page):
    text = page.with_suffix(".ipynb").read_text()
    cells = json.loads(text)["cells"]
    (cell,) = [c for c in cells if "injected-parameters" in c["metadata"].get("tags", [])]
    return "".join(cell["source"])


def test_values_that_look_like_html_are_text(tmp_path):
    directory = SweepDir(tmp_path / "odd")
    row = record()
    row["parameters"]["gpu_model"] = "<img src=x onerror=alert(1)>"
    store.write_record(directory.record(row["run_id"]), row)
    failed = record("float16") | {"status": "failed", "error": "<script>alert(2)</script>"}
    store.write_record(directory.record(failed["run_id"]), failed)
    directory.params.write_text("# Question: <b>Is it?</b><script>alert(3)</script>\nmatrix: {}\n")
    build(directory)
    page = rest(directory.index)
    for tag in ("<script", "<img src=x", "<b>"):
        assert tag not in page
    differs = page[page.index("What differs") :]
    assert "&lt;img src=x" in differs[: differs.index('id="All-runs"')]


def test_published_numbers_stand_beside_committed_records(tmp_path):
    committed = PROJECT / "reports/published/quickstart-cpu"
    copy = tmp_path / "quickstart-cpu"
    shutil.copytree(committed / "runs", copy / "runs")
    shutil.copy(committed / "params.yaml", copy)
    build(SweepDir(copy))
    # A term's meaning stands at its first occurrence, within whatever words.
    page = re.sub("</?abbr[^>]*>", "", (copy / "index.html").read_text())
    page = page.replace("\N{NO-BREAK SPACE}", " ")
    section = page[page.index('id="Comparison-with-published') : page.index('id="All-runs"')]
    for words in (
        "0.29× [0.23, 0.37] (n = 3)",  # batch size 128, mixed_float16 over float32
        "imagenette/320px (v1, 12894 train / 500 val)",
        "digits, 32 × 32, width 0.25",
        "tensorflow 2.21.0, keras 3.15.1, without XLA",
    ):
        assert words in section, words
    assert "nan" not in section.lower()


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_sweep_without_a_success_has_a_report(tmp_path, status):
    directory = SweepDir(tmp_path / "sad")
    row = record() | {"status": status, "in_force": {}, "timing": {}, "error": "it broke"}
    store.write_record(directory.record(row["run_id"]), row)
    build(directory)
    page = directory.index.read_text()
    assert "No run of this sweep succeeded" in page
    assert "it broke" in page
    assert ">nan<" not in page


def test_a_directory_without_records_is_refused(tmp_path):
    done = mptexp("report", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert "holds no record" in done.stderr
    assert not list(tmp_path.iterdir())


def test_timings_of_runs_that_shared_a_processor_are_in_no_table(tiny, tmp_path):
    place = SweepDir(tmp_path / "shared")
    shutil.copytree(tiny / "reports/tiny", place.root)
    for path in place.runs.glob("*/record.json"):
        record = store.read_record(path)
        void = f"{schema.VOID}: 2 runs shared this machine's processors"
        store.write_record(path, record | {"marks": [void]})
    tables = sweep_tables.load(place)
    assert tables.speedups.empty
    assert tables.ok[[n for n in OF_IMAGES if COLUMNS[n].timed]].isna().all(axis=None)
    assert tables.ok.val_accuracy.notna().all()
    build(place)
    page = place.index.read_text()
    assert "Times are not valid: only accuracy is compared" in html.unescape(page)
    assert "ms per step" not in page.split('id="All-runs"')[0]


SCRIPT = """\
# ---
# jupyter:
#   kernelspec: {{display_name: Python 3, language: python, name: python3}}
# ---
# %% tags=["parameters"]
sweep_dir = ""
# %%
{code}
"""


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os.kill(os.getpid(), 9)", "the Jupyter kernel was ended by SIGKILL"),
        ("raise ValueError('odd')", "ValueError: odd"),
    ],
)
def test_a_report_whose_kernel_does_not_end_well_is_none(tmp_path, code, why):
    place = written_sweep(tmp_path / "sweep", "GPU", 1)
    place.index.write_text("an earlier report")
    (tmp_path / "mine.py").write_text(SCRIPT.format(code=code))
    with pytest.raises(Stopped, match=f"sweep: no report was made: {why}; try again"):
        report.build(measured_sweep.load(place), tmp_path / "mine.py")
    assert place.index.read_text() == "an earlier report"


WAITS = """\
import time
from pathlib import Path
while not Path({go!r}).exists():
    time.sleep(0.02)
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_stopped_is_made_anew_and_leaves_nothing_behind(tmp_path, ending):
    written_sweep(tmp_path / "sweep", "GPU", 1)
    go = tmp_path / "go"
    (tmp_path / "mine.py").write_text(SCRIPT.format(code=WAITS.format(go=str(go))))
    words = ("publish", "sweep", "--to", "site", "--notebook", "mine.py")
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as scratch:
        with started(*words, cwd=tmp_path, TMPDIR=scratch) as publishing:
            until(lambda: list(Path(scratch).glob("*/kernel.json")), of=publishing)
            left = psutil.Process(publishing.pid).children(recursive=True)
            publishing.send_signal(ending)
            assert publishing.wait(PATIENCE_S) == (130 if ending == signal.SIGTERM else -9)
        until(lambda: not any(p.is_running() and p.status() != "zombie" for p in left))
        if ending == signal.SIGTERM:
            assert os.listdir(scratch) == []
        for folder in Path(scratch).iterdir():  # as if it had been a while ago
            assert folder.name.startswith("mptexp")
        go.touch()
        done = mptexp(*words, cwd=tmp_path, TMPDIR=scratch)
        assert done.returncode == 0, done.stderr
    assert "1 report by mptexp" in (tmp_path / "site/index.html").read_text()
    assert (tmp_path / "site/sweep/index.html").exists()


@pytest.mark.parametrize("name", ["notebook.ipynb", "notebook.html"])
def test_a_page_of_what_is_no_file_is_not_waited_for(tmp_path, name):
    place = written_sweep(tmp_path / "sweep", "GPU", 1)
    folder = next(place.runs.iterdir())
    for other in {"notebook.ipynb", "notebook.html"} - {name}:
        (folder / other).write_text("{}")
    os.mkfifo(folder / name)  # reading it would wait for ever
    report._render_runs(place, place.index)
    assert not (folder / "notebook.html").exists()
