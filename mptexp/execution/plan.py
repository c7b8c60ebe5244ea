"""The plan of a sweep: its runs, how each of them stands, and what the remaining ones will cost."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError

from mptexp.errors import ParamsError
from mptexp.execution import max_batch
from mptexp.host.devices import is_here, local_device, local_devices
from mptexp.records import schema, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import dataset_paths, strict_model, yaml_documents
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run

DAMAGED = "damaged"  # the state of a run whose record cannot be read
ELSEWHERE = "elsewhere"  # of one without a result, for a device that this machine lacks
# States of runs that have ended and are measured again with the rest of their block, see
# `remeasuring`.
INTERRUPTED, FLAGGED = "interrupted", "flagged"
AGAIN = (INTERRUPTED, FLAGGED)


@dataclass(frozen=True)
class Planned:
    """A run and its state.

    Attributes:
        state: a status, DAMAGED, `pending`, ELSEWHERE, or one of AGAIN: the run has ended and is
            measured again.
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
        return self.state not in (*schema.FINAL, ELSEWHERE)


def runs(sweep: Sweep, directory: SweepDir, everywhere: bool = False) -> list[Planned]:
    """Returns every run of a sweep with its state, in the order of execution.

    Args:
        everywhere: whether runs for devices that this machine lacks are due as well.
    """
    planned = states(asked(sweep, directory), sweep, directory)
    if not everywhere:
        return planned
    return [replace(p, state="pending") if p.state == ELSEWHERE else p for p in planned]


def asked(sweep: Sweep, directory: SweepDir) -> list[Run]:
    """The runs of a sweep in their order, those at the largest batches that were found too."""
    return sweep.runs(max_batch.points(sweep, directory), directory.order_seed)


def states(some: Sequence[Run], sweep: Sweep, directory: SweepDir) -> list[Planned]:
    """Returns some runs with the state that each has in a directory.

    Each record is read and checked whole, about 0.6 ms for 40 kB (2,000 records: 1.1 s on two
    cores of an x86 server, n = 3), which is little beside the runs themselves. An index would
    spare it, but would be one more file that has to agree with the records.
    """
    by_id = {run.run_id(sweep.notebook): run for run in some}
    return [_planned(run_id, run, directory.record(run_id)) for run_id, run in by_id.items()]


def _planned(run_id: str, run: Run, path: Path) -> Planned:
    due = "pending" if is_here(run.gpu_model) else ELSEWHERE
    if not _is_there(path):
        return Planned(run_id, run, due)
    try:
        record = store.read_record(path)
    except store.RecordError:
        record = {"status": DAMAGED}
    # Only the machine on which a run failed tries it again.
    again = record["status"] not in schema.FINAL and due == ELSEWHERE
    state = due if again or _is_installed_since(record, run) else record["status"]
    return Planned(run_id, run, state, record.get("wall_s"), record.get("invocation", ""))


def _is_installed_since(record: Mapping[str, Any], run: Run) -> bool:
    """Whether a run ended for want of its backend, which is there now."""
    lacked = str(record.get("error", "")).startswith(f"{run.backend} is not installed;")
    return lacked and record["status"] == "unsupported" and find_spec(run.backend) is not None


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # its folder may not be looked into: it cannot be read either
        return True


def counts(planned: Iterable[Planned]) -> dict[str, int]:
    """How many runs are `done`, are `due`, and are `elsewhere`: each is one of the three."""
    kinds = ["due" if p.due else ELSEWHERE if p.state == ELSEWHERE else "done" for p in planned]
    return {kind: kinds.count(kind) for kind in ("done", "due", ELSEWHERE)}


def lacking(planned: Iterable[Planned]) -> list[str]:
    """The devices of the runs that are elsewhere, as they were asked for."""
    return sorted({p.run.gpu_model for p in planned if p.state == ELSEWHERE})


def impossible(planned: Sequence[Planned]) -> str:
    """Why a call with these runs can do nothing, nor has anything been done; empty where it can.

    Where some have a result, copied from their machine, what is missing is normal.
    """
    if not planned or counts(planned)[ELSEWHERE] < len(planned):
        return ""
    here = ", ".join(dict.fromkeys(name for name, _ in local_devices()))
    return (
        f"gpu_model {', '.join(lacking(planned))}: this machine has no such device, and none of "
        f"the chosen runs has a result yet; allowed here: local, which is {here}; or run it on a "
        "machine that has the device"
    )


def select(planned: Sequence[Planned], filters: Sequence[str]) -> list[Planned]:
    """Returns the runs that match every `key=value`; values of one key are alternatives.

    Raises:
        ParamsError: for a filter that is not key=value, names no parameter, or whose value no run
            has, or none of those that the other keys leave: an alternative that is dropped without
            a word is taken for measured.
    """
    wanted: dict[str, dict[str, str]] = {}
    for text in filters:
        name, equals, value = text.partition("=")
        if not equals or name not in Run.model_fields:
            raise ParamsError(
                f"--only {text}: not key=value with a parameter's name; allowed names: "
                f"{', '.join(Run.model_fields)}"
            )
        wanted.setdefault(name, {})[_canonical(name, value)] = value
    for name, values in wanted.items():
        _refuse_absent(planned, name, values, "no run has it; its values here")
    for name, values in wanted.items():
        others = _matching(planned, {key: wanted[key] for key in wanted.keys() - {name}})
        _refuse_absent(others, name, values, "no run that the others leave has it; their values")
    return _matching(planned, wanted)


def _matching(planned: Sequence[Planned], wanted: Mapping[str, Container[str]]) -> list[Planned]:
    """The runs that have one of the values of every key."""
    return [
        p
        for p in planned
        if all(_comparable(name, getattr(p.run, name)) in wanted[name] for name in wanted)
    ]


def _refuse_absent(
    planned: Sequence[Planned], name: str, values: Mapping[str, str], why: str
) -> None:
    """Refuses a value that none of some runs has; values are as given, by their canonical text."""
    there = [getattr(p.run, name) for p in planned]
    present = {_comparable(name, value) for value in there}
    for canonical, given in values.items():
        if canonical not in present:
            known = ", ".join(sorted(set(map(str, there)))) or "none"
            raise ParamsError(f"--only {name}={given}: {why}: {known}")


def _canonical(name: str, given: str) -> str:
    """A filter's value as Run has it, so that learning_rate=1e-3 matches 0.001."""
    if name == "gpu_model" and given == "local":
        return local_device()
    try:
        value = strict_model.valid(Run, name, yaml_documents.plain(yaml_documents.word(given)))
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


def remaining_s(planned: Sequence[Planned], costs: "Costs") -> float | None:
    """Estimated seconds of those of some runs that are due; None if nothing is known yet.

    Args:
        costs: from all runs of the directory, not from these alone: others tell what they cost.
    """
    return costs.total_s(point(p.run) for p in planned if p.due)


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
