"""Where the files of a sweep lie."""

import json
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SweepDir:
    """The one class that knows where the files of a sweep lie.

    A run is made in `partial/<run_id>` and renamed to `runs/<run_id>` once its record is
    complete, so that whatever stands under `runs` is whole.
    """

    root: Path

    @property
    def params(self) -> Path:
        return self.root / "params.yaml"

    @property
    def marker(self) -> Path:
        """Says that mptexp made this directory, and from which seed its runs are ordered."""
        return self.root / "sweep.json"

    @property
    def order_seed(self) -> int:
        """The seed that this sweep drew for the order of its runs; 0 before it is made."""
        try:
            seed = json.loads(self.marker.read_text(encoding="utf-8"))["order_seed"]
        except (OSError, ValueError, LookupError, TypeError):
            return 0
        return seed if isinstance(seed, int) else 0

    def mark(self) -> None:
        """Draws the seed and writes the marker, once.

        A fixed seed would give every sweep the same permutation, and a drifting machine the same
        false answer each time.
        """
        if not self.marker.exists():
            content = {"made_by": "mptexp", "order_seed": secrets.randbits(32)}
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
    def search(self) -> "SweepDir":
        """Where the attempts to find the largest batch lie, as in a sweep of their own."""
        return SweepDir(self.root / "search")

    @property
    def diagnosis(self) -> "SweepDir":
        """Where profiled runs and ablations lie, as in a sweep of their own."""
        return SweepDir(self.root / "diagnosis")

    @property
    def name(self) -> str:
        return self.root.resolve().name

    def record(self, run_id: str) -> Path:
        return self.runs / run_id / "record.json"

    def publish(self, run_id: str) -> None:
        """Moves a finished run from `partial` to `runs`, in place of an earlier attempt."""
        target = self.runs / run_id
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        (self.partial / run_id).rename(target)

    def clear(self) -> None:
        """Removes what a sweep writes, and nothing else."""
        for folder in (self.runs, self.partial, self.search.root, self.diagnosis.root):
            shutil.rmtree(folder, ignore_errors=True)
        names = ("params.yaml", "sweep.json", "index.html", "results.csv", "history.csv")
        names += ("speedups.csv", "accuracy.csv", "table.md", "speedup.svg")
        for path in [self.root / n for n in names]:
            path.unlink(missing_ok=True)


def leads_out(path: Path) -> bool:
    """Whether a file of a run is a link, or lies behind one, to outside the sweep's directory."""
    place = path.absolute()
    folder, runs, *_ = place.parents
    if not any(p.is_symlink() for p in (place, folder, runs)):
        return False
    return runs.parent.resolve() not in place.resolve().parents
