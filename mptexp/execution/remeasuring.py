"""Which runs that have ended are measured again, because what they are compared with was not.

A ratio is formed within a block because its runs were made next to one another. A sweep that was
stopped between two of them, or in which one had to be tried again, has put hours between them: so
all that a ratio compares in that block is measured again. What it had stays under `superseded`.
"""

from collections.abc import Callable, Collection, Container, Hashable, Sequence
from dataclasses import replace

from mptexp.execution import plan
from mptexp.execution.job import Job
from mptexp.execution.plan import FLAGGED, INTERRUPTED, Planned
from mptexp.host.devices import is_here
from mptexp.records import schema
from mptexp.spec import run_order
from mptexp.spec.run import Run

# Seconds of a run that is not measured again unasked: its accuracy holds whenever its partners are
# measured, and what its time is worth says the flag "measured apart", which --repair cures.
LONG_S = 600.0


def chosen(
    job: Job, only: Sequence[str] = (), repair: Collection[str] = (), everywhere: bool = False
) -> list[Planned]:
    """Returns the runs of a sweep that match, with the states of those that are measured again.

    Args:
        only: filters such as `policy=float32`. What they leave out of a comparison is not measured
            for its sake, unless it is to be repaired.
        repair: ids of runs whose whole comparison, of that block, is to be measured again.
        everywhere: whether runs for devices that this machine lacks are due as well.
    """
    every = plan.runs(job.sweep, job.directory, everywhere)
    selected = plan.select(every, only)
    if repair and only:
        asked = {run_order.comparison(p.run) for p in selected}
        wanted = asked & {run_order.comparison(p.run) for p in every if p.run_id in repair}
        kept = {p.run_id for p in selected}
        selected = [p for p in every if p.run_id in kept or run_order.comparison(p.run) in wanted]
    return begun_anew(selected, repair, everywhere)


def begun_anew(
    selected: Sequence[Planned],
    repair: Container[str] = (),
    everywhere: bool = False,
    comparison: Callable[[Run], Hashable] = run_order.comparison,
) -> list[Planned]:
    """Returns runs of which those that have ended are due again where their block is not whole.

    Args:
        repair: ids of runs whose whole comparison is to be measured again.
        everywhere: whether runs for devices that this machine lacks can be executed as well.
        comparison: what the runs share that are compared within a block.
    """
    groups: dict[Hashable, list[Planned]] = {}
    for planned in selected:
        groups.setdefault(comparison(planned.run), []).append(planned)
    again: dict[str, str] = {}
    for group in groups.values():
        if everywhere or is_here(group[0].run.gpu_model):
            state = _state(group, repair)
            again |= {p.run_id: state for p in group if state and p.state == "ok"}
    return [replace(p, state=again.get(p.run_id, p.state)) for p in selected]


def _state(group: Sequence[Planned], repair: Container[str]) -> str:
    """Why the runs of a comparison that ended well are measured again; empty where they are not."""
    well = [planned for planned in group if planned.state == "ok"]
    if any(planned.run_id in repair for planned in well):
        return FLAGGED
    left = {planned.state for planned in group} - set(schema.FINAL)
    # One that failed is tried first, alone: it may fail again, and then nothing was gained.
    if not well or (left and left <= {"failed", "killed", "timeout"}):
        return ""
    apart = len({planned.invocation for planned in well}) > 1
    long = max(planned.wall_s or 0.0 for planned in well) > LONG_S
    return INTERRUPTED if (left or apart) and not long else ""
