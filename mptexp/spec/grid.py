"""The grid of a sweep: GitHub Actions' matrix vocabulary over the parameters of a run."""

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from mptexp.spec import cell_html, dataset_paths, run_order, yaml_documents
from mptexp.spec.run import Run, defaults
from mptexp.spec.strict_model import StrictModel

# Keys of a params file that change its report alone.
REPORT_KEYS = ("equivalence_margin", "target_accuracy", "price_per_hour")
MOST_RUNS = 10_000  # of a sweep: more would take longer to plan than anybody waits


class Sweep(StrictModel):
    """All runs of one params file: GitHub Actions' matrix vocabulary over the fields of Run."""

    notebook: str = Field(
        default="train",
        min_length=1,
        description="train, or the path of a notebook beside the file",
    )
    defaults: dict[str, Any] = Field(default={}, description="parameters that all runs share")
    matrix: dict[str, list[Any]] = Field(
        default={}, description="axes: parameter -> list of values; every combination is a point"
    )
    exclude: list[dict[str, Any]] = Field(
        default=[],
        max_length=1000,
        description="points that agree with all values of an entry are dropped",
    )
    include: list[dict[str, Any]] = Field(
        default=[], description="each entry is a further point over the defaults"
    )
    repeats: int = Field(
        default=1, ge=1, le=1000, description="blocks: each point runs once in each"
    )
    timeout_min: float = Field(
        default=60.0, gt=0, le=1e6, description="minutes after which a run is ended"
    )
    expected_run_s: float | None = Field(
        default=None,
        gt=0,
        le=1e8,
        description="seconds of a run, for the plan: as if one had ended",
    )
    max_batch: bool = Field(
        default=False,
        description="first finds the largest batch of each policy, and measures at it too",
    )
    # What a report says beyond the measurements; the others decide what is measured.
    equivalence_margin: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="accuracies are equal within this, a fraction; report only",
    )
    target_accuracy: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="the time to reach it is reported, a fraction; report only",
    )
    price_per_hour: float | None = Field(
        default=None, gt=0, le=1e9, description="of the device, any currency; report only"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_a_cell(cls, given: Any) -> Any:
        return yaml_documents.native(given)

    @model_validator(mode="after")
    def _can_be_planned(self) -> "Sweep":
        grid = math.prod(len(values) for values in self.matrix.values()) if self.matrix else 0
        runs = (grid + len(self.include)) * self.repeats
        if runs > MOST_RUNS:
            raise ValueError(
                f"the matrix and include make {runs:,} runs over all repeats, exclude apart; "
                f"allowed: {MOST_RUNS:,} at most; divide them among several params files"
            )
        return self

    def points(self) -> list[dict[str, Any]]:
        """One dict of parameters per point, in the order written, without repeats.

        `exclude` drops the points that agree with all of an entry's values; an entry of
        `include` is a point of its own over the defaults.
        """
        left = self._grid()
        if self.exclude:
            # An entry may name a parameter that no point does: it is at its default there.
            usual, entries = defaults(), [_placed(entry) for entry in self.exclude]
            left = [p for p in left if not _excluded(_placed(usual | p), entries)]
        return left + [{**self.defaults, **entry} for entry in self.include]

    def idle(self) -> list[dict[str, Any]]:
        """Entries of `exclude` with which no point of the matrix agrees, so that they drop none."""
        if not self.exclude:
            return []
        usual = defaults()
        points = [_placed(usual | point) for point in self._grid()]
        placed = [_placed(entry) for entry in self.exclude]
        dropping = [any(_excluded(point, [entry]) for point in points) for entry in placed]
        return [e for e, drops in zip(self.exclude, dropping, strict=True) if not drops]

    def _grid(self) -> list[dict[str, Any]]:
        """Every combination of the matrix over the defaults."""
        axes = [[(name, value) for value in values] for name, values in self.matrix.items()]
        grid = itertools.product(*axes) if axes else []
        return [{**self.defaults, **dict(point)} for point in grid]

    def devices(self) -> set[str]:
        """The devices that points name; a point of `local` is of each machine that measures it."""
        return {Run(**point).gpu_model for point in self.points()} - {"local"}

    def unnamed(self) -> dict[str, Any]:
        """Axes of the matrix that an entry of `include` does not name, and its value of each."""
        usual = defaults() | self.defaults
        return {n: usual[n] for n in self.matrix for entry in self.include if n not in entry}

    def runs(self, further: Sequence[Run] = (), seed: int = 0) -> list[Run]:
        """Every run, block by block, in the order of `order.by_block`.

        Args:
            further: points beside those of the params file, each at block 0.
            seed: of the order; a sweep draws its own, see `SweepDir.order_seed`.
        """
        points = [Run(**point).resolved() for point in self.points()]
        points += [run.resolved() for run in further]
        blocks = enumerate(run_order.by_block(points, self.repeats, seed))
        return [
            point.model_copy(update={"block": block, "seed": point.seed + block})
            for block, members in blocks
            for point in members
        ]

    def located(self, run: Run) -> Run:
        """A run as a record has it, with its dataset where this sweep's params file has it."""
        points = {point["dataset"]: point for point in self.points() if "dataset" in point}
        known = dataset_paths.known(
            Run(**points[name]).resolved().dataset for name in sorted(points)
        )
        return run.model_copy(update={"dataset": known.get(run.dataset, run.dataset)})

    def axes(self) -> list[str]:
        """Names of the parameters that differ between points, in the order of Run's fields."""
        usual, points = defaults(), self.points()
        written = {*self.matrix, *(name for entry in self.include for name in entry)}
        varying = {n for n in written if len({p.get(n, usual[n]) for p in points}) > 1}
        varying |= {"batch_size"} if self.max_batch else set()
        return [n for n in Run.model_fields if n in varying]

    def _repr_html_(self) -> str:
        """For a notebook's cell: a row per point, and how many runs they make."""
        points, usual, axes = self.points(), defaults(), self.axes()
        rows = [[cell_html.cell((usual | p)[name]) for name in axes] for p in points]
        runs = f"{len(points)} points × {self.repeats} blocks = {len(points) * self.repeats} runs"
        same = [f"{n} {cell_html.cell(v)}" for n, v in self.defaults.items() if n not in axes]
        summary = f"{runs} of {self.notebook}" + f"; all with {', '.join(same)}" * bool(same)
        return (
            f"{cell_html.html(range(1, len(points) + 1), rows, axes)}<p>{html.escape(summary)}</p>"
        )


def _placed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values in which a dataset's path is absolute, since one place has several names."""
    dataset = values.get("dataset")
    placed = {"dataset": dataset_paths.absolute(dataset)} if isinstance(dataset, str) else {}
    return {**values, **placed}


def _excluded(point: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> bool:
    return any(all(point[name] == value for name, value in e.items()) for e in entries)
