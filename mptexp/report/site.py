"""A static site of finished sweeps: an index, every report, its executed notebooks, its data.

Everything is made anew from the records and the executed notebooks, and no page is copied: a page
in another's directory may hold anything, what is made here neither runs nor loads what records say.
"""

import io
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image, ImageOps

from mptexp.records import privacy, store
from mptexp.records.store import RecordError
from mptexp.records.sweep_dir import SweepDir, leads_out
from mptexp.report import lead, measured, page, rendering, subject, wording
from mptexp.report.figures import output
from mptexp.spec import documents, files
from mptexp.spec.errors import ParamsError
from mptexp.spec.terminal import visible

TITLE = "What does reduced precision buy?"
SHARED = (1200, 630)  # pixels of the image that is shown beside a link
MARGIN = 30
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


def publish(sources: Sequence[Path], site: Path, notebook: Path, address: str = "") -> list[str]:
    """Writes a site; the same records give the same bytes.

    Args:
        sources: sweeps' directories, or folders of them.
        site: a new or an empty folder, or one that this function made: its reports are replaced.
        notebook: the report notebook.
        address: where the site will be found, https://...; links that are shared show an image
            only where it is given.

    Returns:
        A sentence for each damaged record, which was left out, and for each that was changed
        since it was written, of which nothing is claimed.

    Raises:
        ParamsError: where there is nothing to publish, or it cannot be published there; nothing is
            written then.
        OSError: where the site cannot be written.
    """
    places = _sweeps(sources)
    _check(places, site, address)
    for made in filter(_is_ours, map(SweepDir, site.glob("*/"))):
        made.clear()
        with suppress(OSError):  # what else somebody keeps there stays
            made.root.rmdir()
    index = site / "index.html"
    if not index.exists():  # by it the same command goes on, should this one be killed
        store.write_text(index, _index([], address))
    faults, entries = [], []
    for place in places:
        target = SweepDir(site / place.name)
        faults += _copy(place, target)
        entries.append(_report(target, notebook, address))
    # Two stable sorts: by name, and the newest first.
    entries.sort(key=lambda entry: entry.ended_at, reverse=True)
    store.write_text(index, _index(entries, address))
    return faults


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
    return any(path.glob("runs/*/record.json"))


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
        if fault := _unreadable(place):
            raise ParamsError(f"{place.root}: none of its records can be read: {fault}")
        one, other = files.real(site), files.real(place.root)
        if one == other or one in other.parents or other in one.parents:
            raise ParamsError(f"{site}: lies in {place.root} or around it; give another folder")
        target = SweepDir(site / place.name)
        if target.root.exists() and not _is_ours(target) and _holds_more(target.root, "sweep"):
            raise ParamsError(
                f"{target.root}: was not made by mptexp publish; give another folder, or remove it"
            )


def _holds_more(folder: Path, first: str) -> bool:
    """Whether a folder holds more than the start of its first file, written by who was killed."""
    begun = (f".{first}.", f"{first}.new")
    return not folder.is_dir() or not all(p.name.startswith(begun) for p in folder.iterdir())


def _unreadable(place: SweepDir) -> str:
    """Why the first record of a sweep cannot be read; empty where one of them can."""
    faults = []
    for path in sorted(place.runs.glob("*/record.json")):
        try:
            store.read_record(path)
        except RecordError as error:
            faults.append(str(error))
        else:
            return ""
    return next(iter(faults), "")


def _is_ours(place: SweepDir) -> bool:
    """Whether a folder of a site is a report that was published there."""
    return place.is_marked and not place.root.is_symlink()


def _copy(source: SweepDir, target: SweepDir) -> list[str]:
    """Copies what a report is made from; a sentence for each damaged or changed record."""
    faults = []
    target.root.mkdir(exist_ok=True, parents=True)
    target.mark(source.order_seed)
    if source.params.is_file() and not source.params.is_symlink():  # it may lead to a private file
        store.write_text(target.params, privacy.scrub(documents.published(source.params_text)))
    for part, out in ((source, target), (source.search, target.search)):
        faults += _copy_runs(part, out)
    return faults + _copy_runs(source.diagnosis, target.diagnosis)


def _copy_runs(source: SweepDir, target: SweepDir) -> list[str]:
    faults = []
    for path in sorted(source.runs.glob("*/record.json")):
        try:
            record = store.read_record(path)
        except RecordError as error:
            faults.append(f"{error}; not published")
            continue
        faults += [f"{text}; published as not valid" for text in store.changed([record], source)]
        folder = target.runs / path.parent.name
        folder.mkdir(parents=True)
        shutil.copyfile(path, folder / path.name)
        notebook = path.with_name("notebook.ipynb")
        if notebook.is_file() and not leads_out(notebook):
            shutil.copyfile(notebook, folder / notebook.name)
    return faults


def _report(place: SweepDir, notebook: Path, address: str) -> Entry:
    """Makes the report and the image of its link; returns what the index says of it."""
    sweep = measured.load(place)
    tables = sweep.tables
    link = quote(place.name)
    shared = {"og:url": f"{_base(address)}{link}/index.html"} if address else {}
    first = lead.figure(sweep)
    if first:
        _share(first.draw()[0], place.root / "share.png")
        shared |= _image(f"{_base(address)}{link}/share.png", first.alt) if address else {}
    page.build(sweep, notebook, shared, ("../index.html", "All reports"))
    moments = [r["ended_at"] for r in tables.records if r.get("ended_at")]
    return Entry(
        name=visible(place.name),
        link=link,
        title=lead.title(sweep),
        question=visible(sweep.question),
        answer=Markup(lead.first_html(sweep)),
        devices=visible(subject.device(tables)),
        measured=_span(moments),
        ended_at=max(moments, default=""),
        runs=wording.count(len(tables.results), "run"),
        figure=first.alt if first else "",
        files=[
            p.name for p in sorted(place.root.iterdir()) if p.suffix in (".csv", ".yaml", ".md")
        ],
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
    card: Mapping[str, str] = {"og:type": "website", "og:title": TITLE, "og:description": lead}
    first = next((entry for entry in entries if entry.figure), None)
    if address:
        card = {**card, "og:url": _base(address)}
    if address and first:
        card = {**card, **_image(f"{_base(address)}{first.link}/share.png", first.figure)}
    return template.render(title=TITLE, lead=lead, card=card, entries=entries) + "\n"
