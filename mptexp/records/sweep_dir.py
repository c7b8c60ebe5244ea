"""Where the files of a sweep lie."""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptexp.errors import ParamsError
from mptexp.host import files
from mptexp.records.schema import FINAL

MAKER = "mptexp"
RUN_ID, DIGEST = "[0-9a-f]{12}", "[0-9a-f]{8}"
PARTS = ("search", "diagnosis", "trial")  # sweeps of their own within a sweep
PARAMS = "params.yaml"
MARKER = "sweep.json"
SUMS = "SHA256SUMS"
# The files beside the runs; the marker last, by which what is left of an interruption is known.
WRITTEN = (PARAMS, "index.html", "results.csv", "history.csv", "speedups.csv")
WRITTEN += ("accuracy.csv", "table.md", "answer.svg", "speedup.svg", "share.png", SUMS, MARKER)


@dataclass(frozen=True)
class SweepDir:
    """The one class that knows where the files of a sweep lie.

    A run is made in `partial/<run_id>` and renamed to `runs/<run_id>` once its record is
    complete, so that whatever stands under `runs` is whole.
    """

    root: Path

    @property
    def params(self) -> Path:
        return self.root / PARAMS

    @property
    def params_text(self) -> str:
        """The text of the params file; empty where there is none.

        Raises:
            ParamsError: where it cannot be read.
        """
        try:
            return files.text(self.params)
        except FileNotFoundError:
            return ""
        except OSError as error:
            why = f"cannot be read as a params file: {error.strerror}"
            raise ParamsError(f"{self.params}: {why}") from None

    @property
    def marker(self) -> Path:
        """Says that mptexp made this directory, and from which seed its runs are ordered."""
        return self.root / MARKER

    @property
    def order_seed(self) -> int:
        """The seed that this sweep drew for the order of its runs; 0 before it is made."""
        seed = self._marked.get("order_seed")
        return seed if isinstance(seed, int) else 0

    @property
    def is_marked(self) -> bool:
        """Whether mptexp made this directory: only then is anything in it ever deleted."""
        return self._marked.get("made_by") == MAKER

    @property
    def is_published(self) -> bool:
        """Whether `mptexp publish` made it and nobody measured in it since: all is a copy."""
        return self.is_marked and self._marked.get("published") is True

    @property
    def _marked(self) -> dict[str, Any]:
        """What the marker holds; empty where there is none, or one that cannot be read."""
        try:
            content = json.loads(files.text(self.marker))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def mark(self, seed: int | None = None, published: bool = False) -> None:
        """Draws the seed and writes the marker, once.

        A fixed seed would give every sweep the same permutation, and a drifting machine the same
        false answer each time. A published directory in which somebody measures is no copy any
        more, and keeps its seed.

        Args:
            seed: of the sweep that is copied here, in place of one that is drawn.
            published: whether this is a copy that `mptexp publish` makes.
        """
        if self.is_marked and self.is_published == published:
            return
        if seed is None and self.is_marked:
            seed = self.order_seed
        drawn = secrets.randbits(32) if seed is None else seed
        content: dict[str, Any] = {"made_by": MAKER, "order_seed": drawn}
        if published:
            content["published"] = True
        beside = self.marker.with_suffix(".new")
        beside.write_text(json.dumps(content) + "\n", encoding="utf-8")
        beside.replace(self.marker)

    @property
    def index(self) -> Path:
        return self.root / "index.html"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def partial(self) -> Path:
        return self.root / "partial"

    @property
    def superseded(self) -> Path:
        """Where runs lie that came to an end and were measured again: kept, and not used."""
        return self.root / "superseded"

    @property
    def replaced(self) -> Path:
        """Where records lie that a merge replaced, as they were changed or unreadable: not read."""
        return self.root / "replaced"

    @property
    def at_work(self) -> Path:
        """Says which machine is at work here; beside the directory, so that nothing takes it along.

        Archives, copies and sites are made of what lies in the directory.
        """
        real = files.real(self.root)
        return real.parent / f".{real.name}.at_work"

    @property
    def measured(self) -> Path:
        """A line for each run that came to an end here, its id and the digits of its record.

        --fresh leaves it.
        """
        return self.root / "measured.txt"

    def add_measured(self, others: Iterable["SweepDir"]) -> None:
        """Adds what was measured in other directories, whose runs were merged into this one.

        A result counts once, however often its directory is merged.
        """
        known = self._results()
        more = known.copy()
        for other in others:
            more |= other._results()
        if more != known and not self.measured.is_symlink():  # a link may lead anywhere
            self.root.mkdir(parents=True, exist_ok=True)
            self.measured.write_text("".join(f"{r}\n" for r in sorted(more.elements())), "ascii")

    def _results(self) -> Counter[str]:
        """The lines of `measured`; those of older versions are a run's id alone."""
        try:
            lines = files.text(self.measured).splitlines()
        except (OSError, ValueError):
            return Counter()
        return Counter(line for line in lines if re.fullmatch(f"{RUN_ID}( {DIGEST})?", line))

    def first_measured(self) -> str:
        """The line of the first result that was measured here; empty where none is known."""
        return next(iter(self._results()), "")

    def discarded_runs(self) -> int:
        """How many results were measured here and are here no longer.

        Whoever measures until the result pleases throws away the others.
        """
        left: Counter[str] = Counter()
        for result, times in self._results().items():
            left[result.partition(" ")[0]] += times
        # A result that lies here twice, such as after a merge, is one.
        kept = {i: len(set(map(_digits_in, self.of_run(i))) - {""}) for i in left}
        return sum(max(0, n - kept[run_id]) for run_id, n in left.items())

    @property
    def search(self) -> "SweepDir":
        """Where the attempts to find the largest batch lie, as in a sweep of their own."""
        return SweepDir(self.root / "search")

    @property
    def diagnosis(self) -> "SweepDir":
        """Where profiled runs and ablations lie, as in a sweep of their own."""
        return SweepDir(self.root / "diagnosis")

    @property
    def trial(self) -> "SweepDir":
        """Where a training in the policy that was advised lies, as in a sweep of its own."""
        return SweepDir(self.root / "trial")

    @property
    def parts(self) -> tuple["SweepDir", ...]:
        """The sweep itself, its search, its diagnosis and its trial."""
        return self, self.search, self.diagnosis, self.trial

    @property
    def name(self) -> str:
        return files.real(self.root).name

    def record(self, run_id: str) -> Path:
        return self.runs / run_id / "record.json"

    def publish(self, run_id: str, keep: bool = True) -> None:
        """Moves a finished run from `partial` to `runs`, in place of an earlier attempt.

        Args:
            keep: whether an earlier attempt that came to an end is moved to `superseded`.
        """
        target = self.runs / run_id
        target.parent.mkdir(parents=True, exist_ok=True)
        if keep and (content := _content_if_ended(target)):
            kept = self.superseded_as(run_id, content)
            kept.parent.mkdir(exist_ok=True)
            shutil.rmtree(kept, ignore_errors=True)  # the same record, as a merge brought it
            target.rename(kept)
        elif target.exists():
            shutil.rmtree(target)
        (self.partial / run_id).rename(target)
        # A link may lead anywhere.
        if keep and (content := _content_if_ended(target)) and not self.measured.is_symlink():
            with self.measured.open("a", encoding="ascii") as file:
                file.write(f"{run_id} {_digits(content)}\n")

    def publish_alone(self, run_id: str) -> Path:
        """The same of a run that no sweep executes; the path of its record.

        `partial` goes too, unless a sweep is at work there.
        """
        self.publish(run_id)
        with suppress(OSError):
            self.partial.rmdir()
        return self.record(run_id)

    def of_run(self, run_id: str) -> list[Path]:
        """The folders of a run: that of its result, and those of its superseded ones."""
        linked = self.superseded.is_symlink()
        return [
            self.runs / run_id,
            *([] if linked else self.superseded.glob(f"{run_id}-{'[0-9a-f]' * 8}")),
        ]

    def superseded_as(self, run_id: str, record: bytes) -> Path:
        """The folder of a superseded run, by the content of its record's file."""
        return self.superseded / f"{run_id}-{_digits(record)}"

    def replace(self, run_id: str) -> Path:
        """Moves a run, or a link in its place, to `replaced`; returns its folder there."""
        folder = self.runs / run_id
        try:
            content = (folder / "record.json").read_bytes()
        except OSError:
            content = b""
        while os.path.lexists(kept := self.replaced / f"{run_id}-{_digits(content)}"):
            content += b"\n"
        kept.parent.mkdir(exist_ok=True)
        folder.rename(kept)
        return kept

    def superseded_runs(self) -> int:
        """How many results of runs that were measured again lie here, each counted once."""
        folders = [p.parent for p in self.superseded.glob("*/record.json") if not leads_out(p)]
        found = {(folder.name.partition("-")[0], _digits_in(folder)) for folder in folders}
        return sum(digits != _digits_in(self.runs / run_id) for run_id, digits in found)

    def clear(self) -> None:
        """Removes what mptexp writes into a directory that it made, by name, and nothing else."""
        for part in self.parts:
            if part is self or not part.root.is_symlink():
                for folder in (part.runs, part.partial, part.superseded, part.replaced):
                    remove_runs(folder)
        for part in self.parts[1:]:
            _remove_if_empty(part.root)
        for path in [self.root / name for name in WRITTEN]:
            path.unlink(missing_ok=True)


def remove_runs(folder: Path) -> None:
    """Removes the runs in a folder, and the folder where nothing else is in it; follows no link."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.iterdir():
        if re.fullmatch(f"{RUN_ID}(-{DIGEST})?", path.name) and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
    _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _digits(record: bytes) -> str:
    """Eight digits that name the content of a record."""
    return hashlib.sha256(record).hexdigest()[:8]


def _digits_in(folder: Path) -> str:
    """Those of the record in a run's folder; empty where it has none that can be read."""
    try:
        return _digits((folder / "record.json").read_bytes())
    except OSError:
        return ""


def _content_if_ended(folder: Path) -> bytes:
    """The content of a run's record; empty where it has none that came to an end."""
    try:
        content = (folder / "record.json").read_bytes()
        return content if json.loads(content)["status"] in FINAL else b""
    except (OSError, ValueError, LookupError, TypeError):
        return b""


def leads_out(path: Path) -> bool:
    """Whether a file of a run is a link, or lies behind one, to outside the sweep's directory."""
    place = path.absolute()
    folder, runs, *_ = place.parents
    root = runs.parent
    links = [place, folder, runs]
    if root.name in PARTS and (root.parent / PARAMS).exists():
        links.append(root)
        root = root.parent
    if not any(p.is_symlink() for p in links):
        return False
    return files.real(root) not in files.real(place).parents
