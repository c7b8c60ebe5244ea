"""A static site of finished sweeps: an index, every report, its executed notebooks, its data.

Everything is made from the records and the executed notebooks, and no page is copied: a page in
another's directory may hold anything, what is made here neither runs nor loads what records say.
"""

import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image, ImageOps

from mptexp.analysis import comparability, repeated_sweeps
from mptexp.errors import ParamsError
from mptexp.execution import directory
from mptexp.host import files, interrupt
from mptexp.host.project import PACKAGE, user_cache
from mptexp.host.terminal import HALF, visible
from mptexp.records import privacy, store
from mptexp.records.sweep_dir import DIGEST, RUN_ID, SweepDir, leads_out
from mptexp.report import measured_sweep
from mptexp.report.answers import caveats, published_claims, repetitions
from mptexp.report.figures import output
from mptexp.report.first_screen.subject import device
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.pages import first_screen_html, page, rendering
from mptexp.report.text import wording

TITLE = "What does reduced precision buy?"
SHARED = (1200, 630)  # pixels of the image that is shown beside a link
MARGIN = 30
BESIDE = ".making-"  # the folder in which a report is made
MOST_BESIDE = 8  # reports that a page names which are on the same network
# By this an index is known as one that was made here, whose site may be made again.
MARK = '<meta name="generator" content="mptexp publish">'


@dataclass(frozen=True)
class Entry:
    """A report as the index lists it.

    Attributes:
        name: of the sweep; link: the same within an address.
        title: the finding in a few words.
        answer: one sentence, HTML.
        measured: when its last run ended, for readers; ended_at: the same for sorting.
        figure: text alternative of the headline figure, empty where there is none.
        files: data files beside the report.
        findings: what the sweep says of each of `CLAIMS`; empty where it may say nothing.
        ratios: the speedups that it claims.
    """

    name: str
    link: str
    title: str
    question: str
    answer: Markup
    devices: str
    measured: str
    ended_at: str
    runs: str
    figure: str
    files: list[str]
    findings: list[published_claims.Finding]
    ratios: list[repeated_sweeps.Ratio]


def publish(sources: Sequence[Path], site: Path, notebook: Path, address: str = "") -> list[str]:
    """Writes a site; the same records give the same bytes.

    Args:
        sources: sweeps' directories, or folders of them.
        site: a new or an empty folder, or one that this function made: its reports are replaced.
        notebook: the report notebook.
        address: where the site will be found, https://...; links that are shared show an image
            only where it is given.

    Returns:
        A sentence for each damaged record, which was left out, for each that was changed since it
        was written, of which nothing is claimed, and for each sweep of which no report can be made.
        Records of runs that were measured again are named, too.

    Raises:
        ParamsError: where there is nothing to publish, or it cannot be published there; nothing is
            written then.
        OSError: where the site cannot be written.
    """
    places = _sweeps(sources)
    _check(places, site, address)
    with directory.locked(SweepDir(site)):
        return _publish(places, site, notebook, address)


def _publish(places: Sequence[SweepDir], site: Path, notebook: Path, address: str) -> list[str]:
    """Makes the reports that are missing or not up to date, and removes those that are no more.

    Each is made beside the site's own and takes its place once it is whole: a disk that is full
    halfway costs none that was there.
    """
    targets = [SweepDir(site / place.name) for place in places]
    beside = _beside(places)
    proofs = [_proof(place, notebook, address, beside.get(place.name, ())) for place in places]
    known = [_published(*pair) for pair in zip(targets, proofs, strict=True)]
    for left in site.glob(f"{BESIDE}*"):  # of a call that was killed
        if not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
    index = site / "index.html"
    if not index.exists():  # by it the same command goes on, should this one be killed
        store.write_text(index, _index([], address))
    faults, entries = [], []
    for place, target, proof, entry in zip(places, targets, proofs, known, strict=True):
        interrupt.check()
        if entry is None:
            try:
                entry = _made(place, target, notebook, address, beside.get(place.name, ()))
            except OSError:
                raise
            except Exception as error:  # what is wrong with one report costs no other its page
                entry = _earlier(target)
                why = f"no report was made ({type(error).__name__}: {error})"
                now = "not published" if entry is None else "the site's earlier report stays"
                faults.append(f"{place.root}: {why}; {now}")
                entries += filter(None, [entry])
                continue
            _note(proof, target, entry)
        entries.append(entry)
        faults += [fault for part in place.parts for fault in _faults(part)]
    # Two stable sorts: by name, and the newest first.
    entries.sort(key=lambda entry: entry.ended_at, reverse=True)
    store.write_text(index, _index(entries, address))
    listed = {entry.link for entry in entries}
    for made in filter(_is_ours, map(SweepDir, site.glob("*/"))):
        if quote(made.root.name) not in listed:
            _remove(made)
    return faults


def _made(
    source: SweepDir, target: SweepDir, notebook: Path, address: str, beside: Sequence[str]
) -> Entry:
    """Makes the report of a sweep, and then puts it in the place of an earlier one."""
    folder = Path(tempfile.mkdtemp(prefix=BESIDE, dir=target.root.parent))
    try:
        made = SweepDir(folder / target.root.name)
        _copy(source, made)
        entry = _report(made, notebook, address, beside)
        if _is_ours(target):
            _remove(target)
        if target.root.exists():  # with what somebody keeps there
            shutil.copytree(made.root, target.root, dirs_exist_ok=True)
        else:
            made.root.rename(target.root)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return entry


def _beside(places: Sequence[SweepDir]) -> dict[str, list[str]]:
    """By the name of each sweep those of the others that trained the same network on the same data.

    Told by the first run of each that can be read.
    """
    trained = {
        place.name: record
        for place in places
        for _, record in islice(store.readable(place.runs, []), 1)
    }
    return {
        name: [n for n, their in trained.items() if n != name and _alike(own, their)][:MOST_BESIDE]
        for name, own in trained.items()
    }


def _alike(*runs: Mapping[str, Any]) -> bool:
    """Whether two runs trained the same network on the same data.

    `my_model:build` is another file for everybody, and `folder:train` another folder: the source of
    the one and, where they were prepared alike, the content of the other tell.
    """
    asked = [run["parameters"] for run in runs]
    known = [comparability.of(run) or {} for run in runs]
    names = [(each.get("model"), each.get("dataset")) for each in asked]
    prepared = [comparability.kind(each)[2:] for each in asked]
    told = ["model_source"] + ["data"] * (prepared[0] == prepared[1])
    return names[0] == names[1] and all(known[0].get(n) == known[1].get(n) for n in told)


def _remove(made: SweepDir) -> None:
    """Removes a report of the site; what else somebody keeps in its folder stays."""
    for part in made.parts:
        part.measured.unlink(missing_ok=True)
    made.clear()
    with suppress(OSError):
        made.root.rmdir()


def _sweeps(sources: Sequence[Path]) -> list[SweepDir]:
    """The sweeps' directories in order of their names.

    Raises:
        ParamsError: where a source holds none, or two have the same name.
    """
    by_name: dict[str, SweepDir] = {}
    for source in sources:
        inner = [source] if _holds_runs(source) else sorted(source.glob("*"))
        places = [SweepDir(path) for path in inner if _holds_runs(path)]
        if not places:
            raise ParamsError(
                f"{source}: holds no record of a run; give the directory of a sweep, such as "
                "reports/quickstart, or a folder of them"
            )
        for place in places:
            # As on macOS and Windows, to which a site may be copied: é is one sign or two.
            name = unicodedata.normalize("NFC", place.name).casefold()
            other = by_name.setdefault(name, place).root
            if files.real(other) != files.real(place.root):
                raise ParamsError(f"{other} and {place.root}: have the same name; rename one")
    return sorted(by_name.values(), key=lambda place: place.name)


def _holds_runs(path: Path) -> bool:
    return bool(store.record_files(path / "runs"))


def _check(places: Sequence[SweepDir], site: Path, address: str) -> None:
    """Refuses a site that would harm anything, and an address that is none."""
    parts = urlsplit(address)
    if address and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise ParamsError(f"--url {address}: is no address; allowed: https://HOST/PATH")
    index = site / "index.html"
    ours = index.is_file() and MARK in index.read_text(encoding="utf-8", errors="replace")
    if site.exists() and not ours and (not site.is_dir() or _holds_more(site, "index.html")):
        raise ParamsError(
            f"{site}: is not empty, and no site that mptexp publish made; give another folder"
        )
    for place in places:
        _check_name(place)
        if fault := _unreadable(place):
            raise ParamsError(f"{place.root}: none of its records can be read: {fault}")
        one, other = files.real(site), files.real(place.root)
        if one == other or one in other.parents or other in one.parents:
            raise ParamsError(f"{site}: lies in {place.root} or around it; give another folder")
        target = SweepDir(site / place.name)
        if target.root.exists() and not _is_ours(target) and _holds_more(target.root, "sweep"):
            made = "was not made by mptexp publish"
            if target.is_marked and not target.root.is_symlink():
                made = "holds results that were measured there, which publishing would remove"
            raise ParamsError(f"{target.root}: {made}; give another folder, or move it away")


def _check_name(place: SweepDir) -> None:
    """Refuses a name that no page may have."""
    if unicodedata.normalize("NFC", place.name).casefold() == "index.html":
        raise ParamsError(f"{place.root}: the site's own index has this name; rename the folder")
    if HALF.search(place.name):
        raise ParamsError(f"{place.root}: the name is not UTF-8; rename the folder")


def _holds_more(folder: Path, first: str) -> bool:
    """Whether a folder holds more than the start of its first file, written by who was killed."""
    begun = (f".{first}.", f"{first}.new")
    return not folder.is_dir() or not all(p.name.startswith(begun) for p in folder.iterdir())


def _unreadable(place: SweepDir) -> str:
    """Why the first record of a sweep cannot be read; empty where one of them can."""
    faults: list[str] = []
    any_readable = any(store.readable(place.runs, faults))
    return "" if any_readable or not faults else faults[0]


def _is_ours(place: SweepDir) -> bool:
    """Whether a folder of a site is a report that was published there, and nothing else.

    A sweep that is measured in a site is no copy: its results are nowhere else. Older versions
    marked their copies as they mark sweeps; those never held what `run` notes of a result.
    """
    if place.root.is_symlink() or not place.is_marked:
        return False
    return place.is_published or not any(
        part.measured.exists() or part.partial.exists() for part in place.parts
    )


# --- what is up to date -------------------------------------------------------------------------
# A report of a large sweep takes a minute: one that is there from an earlier call, perhaps killed
# meanwhile, is kept where it proves to be what was made here of exactly this.


def _proof(source: SweepDir, notebook: Path, address: str, beside: Sequence[str]) -> Path:
    """A file of the user's cache, where only this user writes, named by all that a report is of."""
    # The paths are taken out of pages.
    about = (address, source.name, *beside, Path.cwd(), Path.home())
    total = hashlib.sha256(_renderer() + "\0".join(map(str, about)).encode())
    total.update(_contents([notebook], Path("/")))
    total.update(_contents(_sources(source), source.root.absolute()))
    return user_cache() / "reports" / total.hexdigest()[:32]


@cache
def _renderer() -> bytes:
    """What reports are made by: another version of any package makes them anew."""
    packages = sorted(f"{one.name} {one.version}" for one in metadata.distributions())
    code = _contents(PACKAGE.rglob("*.*"), PACKAGE)
    return hashlib.sha256("\n".join(packages).encode() + code).digest()


def _sources(source: SweepDir) -> list[Path]:
    """The files that are copied from a sweep; links are not followed."""
    found = [path for part in source.parts for path in part.runs.glob("*/*")]
    kept = [path for part in source.parts for path in part.superseded.glob("*/record.json")]
    found = [path for path in found if path.suffix in (".json", ".ipynb")]
    noted = [part.measured for part in source.parts]
    return [source.params, source.marker, *noted, *found, *kept]


def _contents(paths: Iterable[Path], root: Path) -> bytes:
    """A digest of the names and contents of files."""
    total = hashlib.sha256()
    for path in sorted(map(Path.absolute, paths)):
        if path.is_file() and not path.is_symlink() and path.suffix != ".pyc":
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(os.fsencode(f"{path.relative_to(root)}\0{content}\n"))
    return total.digest()


def _digest(target: SweepDir) -> str:
    return _contents(target.root.rglob("*"), target.root.absolute()).hex()


def _published(target: SweepDir, proof: Path) -> Entry | None:
    """What the index says of a report that is there and up to date; None where it is not."""
    try:
        noted = json.loads(files.text(proof))
    except (OSError, ValueError):
        return None
    if not _is_ours(target) or noted["digest"] != _digest(target):
        return None
    entry = noted["entry"]
    findings = [
        published_claims.Finding(f["finding"], f["evidence"], tuple(f["runs"]))
        for f in entry["findings"]
    ]
    ratios = [repeated_sweeps.Ratio(**ratio) for ratio in entry["ratios"]]
    read = {"answer": Markup(entry["answer"]), "findings": findings, "ratios": ratios}
    return Entry(**entry | read)


def _note(proof: Path, target: SweepDir, entry: Entry) -> None:
    with suppress(OSError):  # without it, the report is made anew each time
        store.write_text(proof, json.dumps({"digest": _digest(target), "entry": asdict(entry)}))


# --- a report ----------------------------------------------------------------------------------


def _copy(source: SweepDir, target: SweepDir) -> None:
    """Copies what a report is made from, but damaged records."""
    target.root.mkdir(exist_ok=True, parents=True)
    target.mark(source.order_seed, published=True)
    if source.params.is_file() and not source.params.is_symlink():  # it may lead to a private file
        store.write_text(target.params, privacy.published_params(source.params_text))
    for part, out in zip(source.parts, target.parts, strict=True):
        for run_id in _checked(part)[0]:
            _copy_run(part.runs / run_id, out.runs / run_id)
        # What was measured again or thrown away belongs to what may be claimed: without it a page
        # here would say more than the sweep's own.
        for name, path in _superseded(part).items():
            (out.superseded / name).mkdir(parents=True)
            shutil.copyfile(path, out.superseded / name / "record.json")
        out.add_measured([part])


def _copy_run(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copyfile(source / "record.json", folder / "record.json")
    notebook = source / "notebook.ipynb"
    if notebook.is_file() and not leads_out(notebook):
        shutil.copyfile(notebook, folder / notebook.name)


def _superseded(part: SweepDir) -> dict[str, Path]:
    """The readable records of runs that were measured again, by the name of the copy's folder.

    One in a folder of another name is read by the sweep's own page, and so it is copied too.
    """
    records: dict[str, Path] = {}
    if part.superseded.is_symlink():
        return records
    for path, record in store.readable(part.superseded, []):
        name = path.parent.name
        if not re.fullmatch(f"{RUN_ID}-{DIGEST}", name):
            name = part.superseded_as(record["run_id"], path.read_bytes()).name
        records[name] = path
    return records


def _checked(part: SweepDir) -> tuple[list[str], list[str]]:
    """The ids of the runs that can be read, and a sentence for each damaged or changed record."""
    ids, damaged, changed = [], list[str](), list[str]()
    for path, record in store.readable(part.runs, damaged):
        changed += store.changed([record], part)
        ids.append(path.parent.name)
    faults = [f"{text}; not published" for text in damaged]
    return ids, [*faults, *(f"{text}; published as not valid" for text in changed)]


def _faults(part: SweepDir) -> list[str]:
    """What is wrong with the records of a sweep, in sentences; superseded ones are claimed over."""
    kept = store.superseded_records(part)
    left = [f"{fault}; not published" for fault in kept.damaged]
    return [*_checked(part)[1], *left, *(f"{text}; published as it is" for text in kept.changed)]


def _report(place: SweepDir, notebook: Path, address: str, beside: Sequence[str]) -> Entry:
    """Makes the report and the image of its link; returns what the index says of it."""
    sweep = measured_sweep.load(place)
    link = quote(place.name)
    shared = {"og:url": f"{_base(address)}{link}/index.html"} if address else {}
    first = first_screen_html.figure(sweep)
    if first:
        _share(first.draw()[0], place.root / "share.png")
        shared |= _image(f"{_base(address)}{link}/share.png", first.alt) if address else {}
    others = [(f"../{quote(name)}/index.html", visible(name)) for name in beside]
    page.build(sweep, notebook, shared, ("../index.html", "All reports"), others)
    return _entry(sweep)


def _earlier(target: SweepDir) -> Entry | None:
    """What the index says of a report that an earlier call made; None where there is none."""
    if not (_is_ours(target) and target.index.is_file()):
        return None
    return _entry(measured_sweep.load(target))


def _entry(sweep: MeasuredSweep) -> Entry:
    """What the index says of a report."""
    place, tables = sweep.directory, sweep.tables
    first = first_screen_html.figure(sweep)
    moments = [r["ended_at"] for r in tables.records if r.get("ended_at")]
    return Entry(
        name=visible(place.name),
        link=quote(place.name),
        title=first_screen_html.title(sweep),
        question=visible(sweep.question),
        answer=Markup(first_screen_html.first_html(sweep)),
        devices=visible(device(tables)),
        measured=_span(moments),
        ended_at=max(moments, default=""),
        runs=wording.count(len(tables.results), "run"),
        figure=first.alt if first else "",
        files=[
            p.name for p in sorted(place.root.iterdir()) if p.suffix in (".csv", ".yaml", ".md")
        ],
        findings=[]
        if caveats.doubts(tables, "accuracy")
        else [finding for _, finding in published_claims.table(tables)],
        ratios=repeated_sweeps.ratios(tables),
    )


def _base(address: str) -> str:
    return address.rstrip("/") + "/"


def _image(url: str, alt: str) -> dict[str, str]:
    width, height = map(str, SHARED)
    return {
        "og:image": url,
        "og:image:type": "image/png",
        "og:image:width": width,
        "og:image:height": height,
        "og:image:alt": alt,
    }


def _share(figure: Figure, path: Path) -> None:
    """Writes the headline figure as an image of the shape that links are shown with."""
    drawn = Image.open(io.BytesIO(output.png(figure))).convert("RGB")
    width, height = (side - 2 * MARGIN for side in SHARED)
    inner = ImageOps.pad(drawn, (width, height), color="white")
    ImageOps.expand(inner, MARGIN, "white").save(path, optimize=True)


def _span(moments: Sequence[str]) -> str:
    """From which day to which runs ended."""
    days = sorted({moment[:10] for moment in moments})
    if not days:
        return "date not recorded"
    return "measured " + " to ".join(dict.fromkeys((days[0], days[-1])))


def _index(entries: Sequence[Entry], address: str) -> str:
    loader = jinja2.FileSystemLoader(rendering.TEMPLATES / "mptexp")
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("site.html.j2")
    lead = f"{wording.count(len(entries), 'report')} by mptexp, the newest first."
    card = {"og:type": "website", "og:title": TITLE, "og:description": lead}
    first = next((entry for entry in entries if entry.figure), None)
    if address:
        card["og:url"] = _base(address)
    if address and first:
        card |= _image(f"{_base(address)}{first.link}/share.png", first.figure)
    tested = {
        entry.name: list(zip(published_claims.CLAIMS, entry.findings, strict=True))
        for entry in entries
        if entry.findings
    }
    table = published_claims.over_all(tested) if entries else []
    links = {entry.name: entry.link for entry in entries}
    shown = {"claims": table, "repeated": _repeated(entries), "links": links}
    return template.render(title=TITLE, lead=lead, card=card, entries=entries, **shown) + "\n"


def _repeated(entries: Sequence[Entry]) -> list[dict[str, str]]:
    """Every two reports of which each holds a comparison of the other, and what is said of it."""
    shared = repeated_sweeps.repetitions({entry.name: entry.ratios for entry in entries})
    return [
        {"first": one.first, "second": one.second, "sentence": repetitions.sentence(one)}
        for one in shared
    ]
