"""The static site of two sweeps, one of them made by somebody who means harm."""

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest
from builders import record
from hostile import PIECES, notebook, sweep_of
from PIL import Image
from support import PROJECT, heeding_permissions, mptexp, small_disk

from mptexp.analysis import repeated_sweeps, sweep_tables
from mptexp.errors import ParamsError
from mptexp.execution import directory
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.pages import site as publish
from mptexp.report.pages import sortable

URL = "https://example.org/some/place"
REPORT = PROJECT / "notebooks/report.py"


COUNTS = """\
# ---
# jupyter:
#   kernelspec: {{display_name: Python 3, language: python, name: python3}}
# ---
# %% tags=["parameters"]
sweep_dir = ""
# %%
import pathlib
print("a report")
with pathlib.Path("{log}").open("a") as log:
    print(pathlib.Path(sweep_dir).name, file=log)
"""


@pytest.fixture
def counting(tmp_path):
    """A notebook that makes a short report at once, and the log in which it notes of what."""
    log, made = tmp_path / "log", tmp_path / "counts.py"
    made.write_text(COUNTS.format(log=log))
    return made, log


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of sweeps: `odd`, whose texts are harmful, and `plain`, which is newer."""
    root = tmp_path_factory.mktemp("source")
    shutil.move(sweep_of("".join(PIECES), root).root, root / "odd <b>")
    odd, plain = SweepDir(root / "odd <b>"), SweepDir(root / "plain")
    (first, *_) = sorted(odd.runs.iterdir())
    notebook(first / "notebook.ipynb")
    (first / "notebook.html").write_text("<script>owned()</script>")
    odd.params.write_text(f"# Question: {'<script>owned()</script>'}\nmatrix: {{}}\n")
    for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1)):
        for day in (3, 4, 5):
            made = record(policy, day - 3, step_s) | {"ended_at": f"2026-01-0{day}T12:00:00+00:00"}
            store.write_record(plain.record(made["run_id"]), made)
    plain.params.write_text(f"# Question: Is it?\nmatrix: {{}}  # from {Path.home()}/secret\n")
    damaged = plain.record("0" * 12)
    damaged.parent.mkdir()
    damaged.write_text("{")
    return root


@pytest.fixture(scope="module")
def site(source, tmp_path_factory):
    site = tmp_path_factory.mktemp("made") / "site"
    done = mptexp("publish", source, "--to", site, "--url", URL, cwd=tmp_path_factory.mktemp("cwd"))
    assert done.returncode == 1, done.stderr  # because of the damaged record
    assert "000000000000/record.json: not a readable record" in done.stderr.replace("\n", "")
    assert "index.html" in done.stdout
    return site


class Head(HTMLParser):
    """Open Graph's properties, and every element with its attributes."""

    def __init__(self, page):
        super().__init__()
        self.card, self.elements = {}, []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.elements.append((tag, values))
        if tag == "meta" and "property" in values:
            self.card[values["property"]] = values["content"]

    def values(self, tag, name):
        return [values[name] for other, values in self.elements if other == tag and name in values]


def test_the_index_lists_every_report_the_newest_first(site):
    page = (site / "index.html").read_text()
    assert page.index("Is it?") < page.index("owned()")
    for words in ("2 reports", "measured 2026-01-03 to 2026-01-05", "date not recorded"):
        assert words in page
    assert "<strong>mixed_float16</strong> trains 2.00× faster than float32" in page
    for words in ("GPU · measured", "6 runs", "7 runs"):
        assert words in page


def test_every_link_leads_somewhere(site):
    for page in [site / "index.html", *site.glob("*/index.html")]:
        head = Head(page)
        links = [*head.values("a", "href"), *head.values("img", "src")]
        local = {link for link in links if not link.startswith(("https://", "#", "data:"))}
        assert len(local) > 5
        assert ("../index.html" in local) == (page.parent != site)
        for link in local:
            target = page.parent / link.replace("%20", " ").replace("%3Cb%3E", "<b>")
            assert target.is_file(), link
    assert (site / "plain/results.csv").is_file()
    assert len(list(site.glob("plain/runs/*/record.json"))) == 6


def test_reports_on_the_same_network_lead_to_each_other(counting, tmp_path):
    for name in ("speed", "accuracy <b>", "other"):
        place = SweepDir(tmp_path / "sweeps" / name)
        for policy in ("float32", "mixed_float16"):
            made = record(policy)
            if name == "other":
                made["parameters"]["dataset"] = "mnist"
            store.write_record(place.record(made["run_id"]), made)
    publish.publish([tmp_path / "sweeps"], tmp_path / "site", counting[0])
    links = {
        place.parent.name: Head(place).values("a", "href")
        for place in (tmp_path / "site").glob("*/index.html")
    }
    up = "../index.html"
    assert links["speed"][:2] == [up, "../accuracy%20%3Cb%3E/index.html"]
    assert links["accuracy <b>"][:2] == [up, "../speed/index.html"]
    assert links["other"] == [up]
    page = (tmp_path / "site/speed/index.html").read_text()
    assert "on the same network" in page
    assert "<b>" not in page.partition("on the same network")[2].partition("</p>")[0]


def test_a_shared_link_shows_question_answer_and_headline_figure(site):
    report, index = Head(site / "plain/index.html").card, Head(site / "index.html").card
    assert report["og:title"].startswith("mixed_float16 trains 2.00× faster than")
    assert "2.00× faster than float32" in report["og:description"]
    assert report["og:url"] == f"{URL}/plain/index.html"
    assert report["og:image"] == index["og:image"] == f"{URL}/plain/share.png"
    assert index["og:url"] == f"{URL}/"
    with Image.open(site / "plain/share.png") as image:
        size = (int(report["og:image:width"]), int(report["og:image:height"]))
        assert image.format == "PNG"
        assert image.size == size == (1200, 630)
        assert len(image.getcolors(2**20)) > 20  # something is drawn


def test_nothing_of_anothers_runs_or_loads(site):
    pages = [site / "index.html", *site.rglob("*.html")]
    assert len(pages) == 5  # the index twice, two reports, one executed notebook
    for page in pages:
        head = Head(page)
        assert not {"iframe", "form", "svg"} & {tag for tag, _ in head.elements}
        # A report's one script is the one that its policy admits by its hash.
        ours = f'<script type="module">{sortable.script()}</script>'
        assert "<script" not in page.read_text().replace(ours, "")
        assert not [name for _, values in head.elements for name in values if name.startswith("on")]
        loaded = head.values("img", "src")
        assert all(s.startswith("data:") or s.endswith("/answer.svg") for s in loaded)
        assert {"<b>", "script"} & set(head.values("a", "href")) == set()
        assert head.card or page.name == "notebook.html"
    odd = Head(site / "odd <b>/index.html").card
    assert odd["og:title"].startswith("mixed_float16 trains 2.00× faster than")
    assert "\x1b" not in "".join(odd.values())


def test_no_home_directory_is_published(site):
    assert "# from secret" in (site / "plain/params.yaml").read_text()


def test_the_same_records_give_the_same_bytes(source, site, tmp_path):
    again = tmp_path / "other place" / "site"
    shutil.copytree(site, again)
    SweepDir(again / "gone/runs/0123456789ab").root.mkdir(parents=True)
    SweepDir(again / "gone").mark()  # a report of an earlier publication
    (again / "CNAME").write_text("example.org")
    (again / "plain/results.csv").write_text("outdated")
    for number, path in enumerate(sorted(source.rglob("*"))):
        os.utime(path, (number, number))
    damaged = publish.publish([source / "odd <b>", source / "plain"], again, REPORT, URL)
    assert len(damaged) == 1
    assert (again / "CNAME").read_text() == "example.org"
    (again / "CNAME").unlink()
    assert contents(again) == contents(site)


@pytest.mark.parametrize(
    ("sources", "site", "url", "fault"),
    [
        (["empty"], "new", "", "holds no record"),
        (["a"], "full", "", "is not empty"),
        (["a"], "a/site", "", "lies in"),
        (["a"], ".", "", "is not empty"),
        (["."], "a", "", "is not empty"),
        (["a", "b/a"], "new", "", "have the same name"),
        (["a", "b/A"], "new", "", "have the same name"),
        (["a"], "site", "", "site/a: was not made by mptexp publish"),
        (["a"], "new", "javascript:x", "is no address"),
        (["a"], "new", "example.org", "is no address"),
    ],
)
def test_what_cannot_be_published_is_refused(tmp_path, monkeypatch, sources, site, url, fault):
    monkeypatch.chdir(tmp_path)
    for place in ("a", "b/a", "b/A"):
        store.write_record(SweepDir(Path(place)).record(record()["run_id"]), record())
    for name in ("empty", "full"):
        Path(name).mkdir()
    Path("full/mine.txt").write_text("mine")
    Path("site/a").mkdir(parents=True)
    Path("site/a/mine.txt").write_text("mine")
    Path("site/index.html").write_text(publish.MARK)
    before = contents(tmp_path)
    with pytest.raises(ParamsError, match=fault):
        publish.publish([Path(s) for s in sources], Path(site), REPORT, url)
    assert contents(tmp_path) == before
    assert not Path("new").exists()


def test_a_sweep_none_of_whose_records_can_be_read_is_refused(tmp_path):
    place, other = SweepDir(tmp_path / "a"), SweepDir(tmp_path / "b")
    store.write_record(other.record(record()["run_id"]), record())
    place.root.mkdir()
    place.runs.symlink_to(other.runs)
    with pytest.raises(ParamsError, match=r"none of its records can be read: .* leads out"):
        publish.publish([place.root], tmp_path / "site", REPORT)
    assert not (tmp_path / "site").exists()


def test_a_site_is_never_made_over_its_own_sources(tmp_path):
    place = SweepDir(tmp_path / "a")
    store.write_record(place.record(record()["run_id"]), record())
    (tmp_path / "index.html").write_text(publish.MARK)
    with pytest.raises(ParamsError, match="or around it"):
        publish.publish([place.root], tmp_path, REPORT)
    assert place.record(record()["run_id"]).is_file()


@pytest.mark.kernel
def test_a_record_that_was_changed_is_published_as_it_is_and_named(tmp_path):
    place, site = SweepDir(tmp_path / "a"), tmp_path / "site"
    runs = [record(policy, b) for policy in ("float32", "mixed_float16") for b in range(3)]
    for made in runs:
        store.write_record(place.record(made["run_id"]), made)
    changed = place.record(runs[0]["run_id"])
    text = changed.read_text().replace('"emulated": false', '"emulated": true')
    changed.write_text(text)
    faults = publish.publish([place.root], site, REPORT)
    assert faults == [f"{changed}: changed since it was written; published as not valid"]
    assert contents(site / "a/runs") | contents(place.runs) == contents(site / "a/runs")
    page = (site / "a/index.html").read_text()
    assert "Changed record" in page
    assert f"{runs[0]['run_id']}/record.json: changed since it was written" in page


def test_a_sweep_of_which_no_report_can_be_made_is_named_and_the_others_are_published(tmp_path):
    for name in ("a", "bad", "c"):
        store.write_record(SweepDir(tmp_path / name).record(record()["run_id"]), record())
    fails = tmp_path / "fails.py"  # of one sweep
    fails.write_text(COUNTS.format(log=tmp_path / "log") + "assert 'bad' not in sweep_dir\n")
    site = tmp_path / "site"
    (fault,) = publish.publish([tmp_path / name for name in ("a", "bad", "c")], site, fails)
    assert fault.startswith(f"{tmp_path / 'bad'}: no report was made (")
    assert [(site / name / "index.html").exists() for name in ("a", "bad", "c")] == [
        True,
        False,
        True,
    ]
    assert not (site / "bad").exists()
    assert "bad/" not in (site / "index.html").read_text()


@pytest.mark.kernel
def test_a_report_that_cannot_be_made_again_costs_none_that_was_there(counting, tmp_path):
    # The loss: a faulty notebook, "not published", and the site's only copies were gone.
    place, site = SweepDir(tmp_path / "a"), tmp_path / "site"
    store.write_record(place.record(record()["run_id"]), record())
    publish.publish([place.root], site, counting[0])
    before = contents(site)
    counting[0].write_text(COUNTS.format(log=counting[1]) + "raise ImportError\n")
    (fault,) = publish.publish([place.root], site, counting[0])
    assert fault.endswith("; the site's earlier report stays")
    assert contents(site) == before


@pytest.mark.kernel
def test_what_lies_in_a_site_and_was_not_published_there_stays(counting, tmp_path):
    place, site = SweepDir(tmp_path / "a"), tmp_path / "site"
    store.write_record(place.record(record()["run_id"]), record())
    publish.publish([place.root], site, counting[0])
    mine = ["thesis/runs/draft.txt", "a/notes.txt", "a/runs/mine/x.txt", "linked/runs/x.txt"]
    for name in (*mine, "elsewhere/runs/0123456789ab/x.txt"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("mine")
    (site / "thesis/sweep.json").write_text('{"made_by": "another program"}')
    (site / "elsewhere").rename(tmp_path / "elsewhere")
    SweepDir(tmp_path / "elsewhere").mark()
    (site / "link").symlink_to(tmp_path / "elsewhere")
    publish.publish([place.root], site, counting[0])
    assert {(site / name).read_text() for name in mine} == {"mine"}
    assert (site / "link/runs/0123456789ab/x.txt").is_file()


def test_a_link_to_a_private_file_is_not_followed(tmp_path):
    place, target = SweepDir(tmp_path / "a"), SweepDir(tmp_path / "b")
    (tmp_path / "private.txt").write_text("private")
    for run_id in (record()["run_id"], record("bfloat16")["run_id"]):
        made = record() if run_id == record()["run_id"] else record("bfloat16")
        store.write_record(place.record(run_id), made)
    place.params.symlink_to(tmp_path / "private.txt")
    place.record(run_id).with_name("notebook.ipynb").symlink_to(tmp_path / "private.txt")
    place.record(run_id).unlink()
    place.record(run_id).symlink_to(tmp_path / "private.txt")
    publish._copy(place, target)
    assert len(publish._checked(place)[1]) == 1
    kept = Path("runs") / record()["run_id"] / "record.json"
    assert set(contents(target.root)) == {kept, Path("sweep.json")}


def test_a_run_says_when_it_ended(light, tmp_path):
    light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    (path,) = tmp_path.glob("reports/light/runs/*/record.json")
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", _ended_at(path))
    path.write_text(path.read_text().replace(_ended_at(path), "<b>yesterday</b>"))
    with pytest.raises(store.RecordError, match="ended_at"):
        store.read_record(path)


def _ended_at(path):
    return json.loads(path.read_text())["ended_at"]


@pytest.mark.parametrize("width", [380, 1200])
def test_a_browser_shows_the_index(site, page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if width == 380 else "light")
    page.goto((site / "index.html").as_uri())
    shown = "all => all.map(i => i.naturalWidth > 0 && i.alt !== '')"
    assert page.eval_on_selector_all("img", shown) == [True, True]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 24, 31)" if width == 380 else "rgb(255, 255, 255)")


@pytest.mark.parametrize("left", [".index.html.99", "plain/sweep.new", "plain"])
def test_a_site_that_was_only_begun_is_taken_for_one(tmp_path, left):
    place = tmp_path / "site" / left
    place.parent.mkdir(parents=True)
    place.touch() if "." in left else place.mkdir()
    if "plain" in left:
        (tmp_path / "site/index.html").write_text(publish.MARK)
    publish._check([SweepDir(tmp_path / "plain")], tmp_path / "site", "")
    (tmp_path / "site/plain").mkdir(exist_ok=True)
    (tmp_path / "site/plain/somebodys").touch()
    with pytest.raises(ParamsError):
        publish._check([SweepDir(tmp_path / "plain")], tmp_path / "site", "")


@pytest.mark.kernel
def test_a_report_that_is_up_to_date_is_not_made_again(counting, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    notebook_, log = counting
    a, b, site = SweepDir(tmp_path / "a"), SweepDir(tmp_path / "b"), tmp_path / "site"
    for place in (a, b):
        store.write_record(place.record(record()["run_id"]), record())
    sources = [a.root, b.root]

    def made(*sources, address=""):
        log.write_text("")
        publish.publish(sources, site, notebook_, address)
        return log.read_text().split()

    assert made(*sources) == ["a", "b"]
    whole = contents(site)
    (site / "index.html").write_text(publish.MARK)  # as a call leaves it that is killed later on
    shutil.rmtree(site / "b/runs")
    assert made(*sources) == ["b"]
    assert contents(site) == whole
    assert made(*sources) == []
    (site / "a/results.csv").write_text("changed")
    assert made(*sources) == ["a"]
    assert contents(site) == whole
    store.write_record(b.record(record("bfloat16")["run_id"]), record("bfloat16"))
    assert made(*sources) == ["b"]
    assert made(*sources, address=URL) == ["a", "b"]
    assert made(a.root, address=URL) == ["a"]  # which led to b, on the same network
    assert made(a.root, address=URL) == []
    assert not (site / "b").exists()


def test_two_commands_do_not_write_one_site(tmp_path):
    place, site = SweepDir(tmp_path / "a"), tmp_path / "site"
    store.write_record(place.record(record()["run_id"]), record())
    with (
        directory.locked(SweepDir(site)),
        pytest.raises(ParamsError, match="another mptexp command is at work here"),
    ):
        publish.publish([place.root], site, REPORT)
    assert list(site.iterdir()) == []


def held(place, **changes):
    """A sweep of one run."""
    made = record() | changes
    store.write_record(place.record(made["run_id"]), made)
    return place.root


@pytest.mark.kernel
def test_a_disk_that_is_full_halfway_costs_no_report_that_was_there(counting, tmp_path):
    # What was not up to date was removed before the first was made anew: the index led nowhere.
    with small_disk(tmp_path / "disk", 3):
        site = tmp_path / "disk/site"
        sources = [held(SweepDir(tmp_path / name)) for name in "abc"]
        publish.publish(sources, site, counting[0])
        for source in sources:
            (run,) = (source / "runs").iterdir()
            cell = {"cell_type": "markdown", "metadata": {}, "source": "x" * 1_500_000}
            content = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
            (run / "notebook.ipynb").write_text(json.dumps(content))
        with pytest.raises(OSError, match="No space left"):
            publish.publish(sources, site, counting[0])
        assert sorted(path.name for path in site.iterdir()) == ["a", "b", "c", "index.html"]
        assert all((site / name / "index.html").exists() for name in "abc")


@pytest.mark.parametrize(
    ("name", "fault"),
    [("Index.html", "the site's own index has this name"), ("caf\udce9", "the name is not UTF-8")],
)
def test_a_name_that_no_page_may_have_is_refused_before_anything_is_written(tmp_path, name, fault):
    place = SweepDir(tmp_path / "sweeps" / name)
    held(place)
    with pytest.raises(ParamsError, match=f"{fault}.*; rename the folder"):
        publish.publish([tmp_path / "sweeps"], tmp_path / "site", REPORT)
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("changes", "is_linked"),
    [
        ({}, True),
        ({"model_source": "b"}, False),  # `my_model:build` of somebody else
        ({"data": "b"}, False),  # another `folder:train`
    ],
)
def test_a_name_alone_makes_no_network_the_same(tmp_path, changes, is_linked):
    known = {"identity": record()["identity"] | {"model_source": "a", "data": "a"}}
    places = [SweepDir(tmp_path / name) for name in "ab"]
    held(places[0], **known)
    held(places[1], identity=known["identity"] | changes)
    assert publish._beside(places)["a"] == (["b"] if is_linked else [])


def test_a_sweep_that_may_not_be_read_is_named_and_its_report_stays(tmp_path):
    sources = [held(SweepDir(tmp_path / "sweeps" / name)) for name in ("mine", "other")]
    program = (
        "import sys; from pathlib import Path; from mptexp.report.pages import site\n"
        "try: site._check(site._sweeps([Path(sys.argv[1])]), Path(sys.argv[2]), '')\n"
        "except Exception as error: print(error)"
    )
    (sources[0] / "runs").chmod(0)
    try:
        command = heeding_permissions("-c", program, tmp_path / "sweeps", tmp_path / "site")
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    finally:
        (sources[0] / "runs").chmod(0o755)
    assert done.stdout.startswith(f"{sources[0]}: none of its records can be read")
    assert "Permission denied" in done.stdout


SLOW = {"float32": (0.10, 0.151, 0.1), "mixed_float16": (0.1, 0.1, 0.15)}
AGREE = {"float32": (0.15, 0.151, 0.152), "mixed_float16": (0.1, 0.1, 0.101)}


def measure(place, times, call="call 0"):
    """Puts three blocks of runs into a directory as `mptexp run` does."""
    for policy, steps in times.items():
        for block, step_s in enumerate(steps):
            made = record(policy, block, step_s) | {"invocation": call, "boot": "b"}
            store.write_record(place.partial / made["run_id"] / "record.json", made)
            place.publish(made["run_id"])


def test_what_was_measured_again_or_thrown_away_is_published_too(counting, tmp_path, monkeypatch):
    # The lie: on the site "1.50× faster" was proven, which the sweep's own page says of the last
    # set of several alone; and "discarded: 2 results" was gone.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place, site = SweepDir(tmp_path / "a"), tmp_path / "site"
    for call, times in enumerate((SLOW, SLOW, AGREE)):
        measure(place, times, f"call {call}")
    run_ids = [record(policy)["run_id"] for policy in AGREE]
    for folder in [*place.superseded.glob(f"{run_ids[0]}-*")]:
        shutil.rmtree(folder)
    (place.superseded / "0123456789ab-01234567").mkdir()
    (place.superseded / "0123456789ab-01234567/record.json").write_text("private")
    copy = SweepDir(site / "a")
    for _ in range(2):
        publish.publish([place.root], site, counting[0])
        ours, theirs = sweep_tables.load(place).claims, sweep_tables.load(copy).claims
        assert theirs.equals(ours)
        assert theirs.low.item() < 1 < theirs.high.item()
        assert (copy.superseded_runs(), copy.discarded_runs()) == (10, 2)
    assert counting[1].read_text().split() == ["a"]
    shutil.rmtree(next(place.superseded.glob(f"{run_ids[1]}-*")))
    publish.publish([place.root], site, counting[0])
    assert counting[1].read_text().split() == ["a", "a"]
    assert copy.discarded_runs() == 3
    shutil.rmtree(place.superseded)
    place.measured.unlink()
    publish.publish([place.root], site, counting[0])
    assert (copy.superseded_runs(), copy.discarded_runs()) == (0, 0)


def test_superseded_records_are_left_out_of_no_page_without_a_word(counting, tmp_path):
    # The lie: a folder of another name was read by the sweep's own page, and not published.
    place, site = SweepDir(tmp_path / "a"), tmp_path / "site"
    for call, times in enumerate((SLOW, SLOW, AGREE)):
        measure(place, times, f"call {call}")
    renamed, damaged, *_ = sorted(place.superseded.iterdir())
    renamed = renamed.rename(place.superseded / "mine")
    (damaged / "record.json").write_text("{")
    faults = publish.publish([place.root], site, counting[0])
    assert sorted(fault.rpartition("; ")[2] for fault in faults) == [
        "not published",
        "published as it is",
    ]
    assert sorted(faults)[0].startswith(f"{damaged}/record.json: not a readable record")
    assert sorted(faults)[1].startswith(f"{renamed}/record.json: changed since it was written")
    ours, theirs = sweep_tables.load(place).claims, sweep_tables.load(SweepDir(site / "a")).claims
    assert theirs.equals(ours)
    assert len([*(site / "a/superseded").iterdir()]) == 11


def test_a_sweep_that_is_measured_in_a_site_is_never_removed(counting, tmp_path):
    # The loss: mptexp run FILE --out site/b, and publish --to site removed its only results.
    place, site = SweepDir(tmp_path / "a"), tmp_path / "site"
    store.write_record(place.record(record()["run_id"]), record())
    store.write_text(place.params, "matrix: {policy: [float32]}\n")
    publish.publish([place.root], site, counting[0])
    beside, within = SweepDir(site / "b"), SweepDir(site / "a")
    with directory.locked(beside):
        directory.prepare(beside, "matrix: {policy: [bfloat16]}\n")
    measure(beside, AGREE)
    before = contents(beside.root)
    publish.publish([place.root], site, counting[0])
    assert contents(beside.root) == before
    with directory.locked(within):
        directory.prepare(within, within.params_text)
    measure(within, {"bfloat16": (0.1,)})
    before = contents(site)
    with pytest.raises(ParamsError, match="site/a: holds results that were measured there"):
        publish.publish([place.root], site, counting[0])
    assert contents(site) == before


def test_a_copy_that_an_older_version_published_is_replaced(counting, tmp_path):
    place, site = SweepDir(tmp_path / "a"), tmp_path / "site"
    store.write_record(place.record(record()["run_id"]), record())
    publish.publish([place.root], site, counting[0])
    older = SweepDir(site / "a")
    older.mark()  # without a word that it is a copy
    store.write_record(place.record(record("bfloat16")["run_id"]), record("bfloat16"))
    publish.publish([place.root], site, counting[0])
    assert len(list(older.runs.iterdir())) == 2
    assert older.is_published


WORK = json.dumps(record()["parameters"] | {"jit": False})


def entry(name, speedup):
    ratio = repeated_sweeps.Ratio(
        WORK, "", "float32", "float8", speedup, speedup - 0.3, speedup + 0.3
    )
    words = dict.fromkeys(("title", "question", "devices", "measured", "ended_at", "runs"), "")
    shown = {"answer": "", "figure": "", "files": [], "findings": [], "ratios": [ratio]}
    return publish.Entry(name, quote(name), **shown, **words)


def test_the_index_says_whether_two_reports_of_one_comparison_agree():
    page = publish._index([entry("a", 1.26), entry("b", 1.24), entry("<c>", 3.0)], "")
    said = re.findall(r"<li>(.*?)</li>", page)
    assert [re.sub("<[^>]*>", "", text).partition(",")[0] for text in said] == [
        "a and b: Consistent",
        "a and &lt;c&gt;: Inconsistent",
        "b and &lt;c&gt;: Inconsistent",
    ]
    assert "1.26× [0.96, 1.56] and 1.24× [0.94, 1.54] that of float32 (batch size 32)" in said[0]
    assert '<a href="a/index.html">a</a>' in said[0]
    assert 'id="repeated"' not in publish._index([entry("a", 1.26)], "")


def test_what_a_link_shows_is_a_name_and_no_address():
    page = publish._index([entry("größe 1", 1.26), entry("b", 1.24)], "")
    assert '<a href="gr%C3%B6%C3%9Fe%201/index.html">größe 1</a> and' in page
