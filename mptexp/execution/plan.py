"""The plan of a sweep: its runs, how each of them stands, and what the remaining ones will cost."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError

from mptexp.errors import ParamsError
from mptexp.execution import max_batch
from mptexp.host.devices import is_here, local_device
from mptexp.records import schema, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import dataset_paths, fields, yaml_documents
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run

DAMAGED = "damaged"  # the state of a run whose record cannot be read
# States of runs that have ended and are measured again with the rest of their block, see
# `remeasuring`.
INTERRUPTED, FLAGGED = "interrupted", "flagged"
AGAIN = (INTERRUPTED, FLAGGED)


@dataclass(frozen=True)
class Planned:
    """A run and its state.

    Attributes:
        run_id: its id.
        run: its parameters.
        state: a status, DAMAGED, `pending`, or `elsewhere` (for the device of another machine), or
            one of AGAIN: the run has ended and is measured again.
        wall_s: the seconds that it took, if it has ended.
        invocation: names the call of `mptexp run` that measured it.
    """

    run_id: str
    run: Run
    state: str
    wall_s: float | None = None
    invocation: str = ""

    @property
    def due(self) -> bool:
        """Whether the next call executes it."""
        return self.state not in (*schema.FINAL, "elsewhere")


def runs(sweep: Sweep, directory: SweepDir, everywhere: bool = False) -> list[Planned]:
    """Returns every run of a sweep with its state, in the order of execution.

    Args:
        sweep: the sweep.
        directory: where its results are.
        everywhere: whether runs for devices that this machine lacks are due as well.
    """
    further = max_batch.points(sweep, directory)
    planned = states(sweep.runs(further, directory.order_seed), sweep, directory)
    if not everywhere:
        return planned
    return [replace(p, state="pending") if p.state == "elsewhere" else p for p in planned]


def states(some: Sequence[Run], sweep: Sweep, directory: SweepDir) -> list[Planned]:
    """Returns some runs with the state that each has in a directory.

    Each record is read and checked whole, about 0.6 ms for 40 kB (2,000 records: 1.1 s on two
    cores of an x86 server, n = 3), which is little beside the runs themselves. An index would
    spare it, but would be one more file that has to agree with the records.
    """
    by_id = {run.run_id(sweep.notebook): run for run in some}
    return [_planned(run_id, run, directory.record(run_id)) for run_id, run in by_id.items()]


def _planned(run_id: str, run: Run, path: Path) -> Planned:
    due = "pending" if is_here(run.gpu_model) else "elsewhere"
    if not _is_there(path):
        return Planned(run_id, run, due)
    try:
        record = store.read_record(path)
    except store.RecordError:
        record = {"status": DAMAGED}
    # Only the machine on which a run failed tries it again.
    again = record["status"] not in schema.FINAL and due == "elsewhere"
    state = due if again else record["status"]
    return Planned(run_id, run, state, record.get("wall_s"), record.get("invocation", ""))


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # its folder may not be looked into: it cannot be read either
        return True


def select(planned: Sequence[Planned], filters: Sequence[str]) -> list[Planned]:
    """Returns the runs that match every `key=value`; values of one key are alternatives.

    Raises:
        ParamsError: for a filter that is not key=value, names no parameter, or matches no run.
    """
    wanted: dict[str, list[str]] = {}
    for text in filters:
        name, equals, value = text.partition("=")
        if not equals or name not in Run.model_fields:
            raise ParamsError(
                f"--only {text}: not key=value with a parameter's name; allowed names: "
                f"{', '.join(Run.model_fields)}"
            )
        wanted.setdefault(name, []).append(value)
    selected = list(planned)
    for name, values in wanted.items():
        present = sorted({str(getattr(p.run, name)) for p in selected})
        meant = {_canonical(name, value) for value in values}
        selected = [p for p in selected if _comparable(name, getattr(p.run, name)) in meant]
        if not selected:
            raise ParamsError(
                f"--only {name}={values[0]}: no run has it; its values here: {', '.join(present)}"
            )
    return selected


def _canonical(name: str, given: str) -> str:
    """A filter's value as Run has it, so that learning_rate=1e-3 matches 0.001."""
    if name == "gpu_model" and given == "local":
        return local_device()
    try:
        value = fields.valid(Run, name, yaml_documents.plain(yaml_documents.word(given)))
    except (YAMLError, ValueError):
        value = given
    return _comparable(name, value)


def _comparable(name: str, value: Any) -> str:
    """A value as text: of a dataset's path the same, however the place was written."""
    return dataset_paths.absolute(value) if name == "dataset" else str(value)


# --- what runs cost --------------------------------------------------------------------------


Point = tuple[str, str]


def point(run: Run) -> Point:
    """The device of a run, and all that it shares with its repeats in other blocks, as text."""
    return run.gpu_model, run.model_dump_json(exclude={"block", "seed"})


def remaining_s(planned: Sequence[Planned], sweep: Sweep) -> float | None:
    """Estimated seconds of the runs that are due; None if nothing is known yet."""
    return Costs(planned, sweep).total_s(point(p.run) for p in planned if p.due)


class Costs:
    """Estimates the seconds of a run from those that have ended.

    The estimate is the mean over the finished runs of the same point (in other blocks); without
    any, the mean over all finished runs on the same device, with the params file's `expected_run_s`
    as one of them: the first to end may be that of the largest batch.
    """

    def __init__(self, planned: Iterable[Planned], sweep: Sweep) -> None:
        # Runs that have ended and their seconds together, by point and, of all points, by device.
        self.ended, self.seconds = Counter[Point](), defaultdict[Point, float](float)
        self.usual_s = sweep.expected_run_s
        for one in planned:
            self.add(one)

    def add(self, planned: Planned) -> None:
        """Takes a run into account, if it came to an end."""
        if planned.state in (*schema.FINAL, *AGAIN) and planned.wall_s:
            for key in (point(planned.run), (planned.run.gpu_model, "")):
                self.ended[key] += 1
                self.seconds[key] += planned.wall_s

    def run_s(self, key: Point) -> float | None:
        """Estimated seconds of a run at a point; None if nothing is known."""
        if key in self.ended:
            return self.seconds[key] / self.ended[key]
        device = (key[0], "")
        n, seconds = self.ended[device], self.seconds[device]
        if self.usual_s is not None:
            n, seconds = n + 1, seconds + self.usual_s
        return seconds / n if n else None

    def total_s(self, keys: Iterable[Point]) -> float | None:
        """Estimated seconds of a run at each of some points; None if nothing is known."""
        costs = [self.run_s(key) for key in keys]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None
