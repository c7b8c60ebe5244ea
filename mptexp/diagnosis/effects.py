"""What an ablation changed, from records alone."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import pandas as pd

from mptexp.analysis import contrast, simultaneous_intervals, validity
from mptexp.analysis.contrast import Contrast
from mptexp.analysis.speedups import Ends, Sides, sides_of
from mptexp.diagnosis.ablations import Ablation
from mptexp.diagnosis.pairs import Pair, in_block
from mptexp.spec import tasks
from mptexp.spec.run import Run

MOST_BLOCKS = 100  # blocks follow one another from 0: the first that is missing ends them
Records = Mapping[str, dict[str, Any]]  # by run id
Find = Callable[[Run], dict[str, Any] | None]  # the record of a run, if there is one


@dataclass(frozen=True)
class Said:
    """What a sweep says of runs beyond what the record of each does.

    Attributes:
        flags: what is not valid of them as others show it, by run id.
        ends: see `Tables.ends_by_runs`.
        parts: see `Tables.parts`.
    """

    flags: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[Sides, Ends] = field(default_factory=dict)
    parts: Mapping[str, Hashable] = field(default_factory=dict)


NOTHING = Said()
SPEEDUP = "speedup"  # among the contrasts of an effect
# Of a run's identity: what a step's time hangs on, whatever the code and the model.
DEVICE = ("device", "cpu", "cpu_version", "instruction_sets", "cores")


@dataclass(frozen=True)
class Effect:
    """What an ablation changed.

    Attributes:
        gains: policy -> images per second with the change over those without: above 1, it made
            steps faster.
        speedup: baseline over candidate with the change made to both; None where no block has both.
        failed: status and error of the run that ended the ablation; empty where it has a result.
        flags: what is not valid of the runs that it rests on, see `validity`.
        flags_by: the same of each contrast, where that is known.
        claimed: the `contrasts` whose interval is that of the sweep's own comparison of their runs.
        apart: of each contrast, in how many blocks both sides were measured, but in two calls,
            which form no ratio.
        of_sweep: whether the sweep's own runs show it, and not those of a diagnosis.
    """

    ablation: Ablation
    gains: dict[str, Contrast] = field(default_factory=dict)
    speedup: Contrast | None = None
    failed: str = ""
    flags: str = ""
    claimed: frozenset[str] = frozenset()
    apart: Mapping[str, int] = field(default_factory=dict)
    of_sweep: bool = False
    flags_by: Mapping[str, str] = field(default_factory=dict)

    def flags_of(self, name: str) -> str:
        """What is not valid of the runs of a contrast: a policy's gain, or SPEEDUP."""
        return self.flags_by.get(name, self.flags)

    def is_valid(self, name: str) -> bool:
        """Whether the times of a contrast may prove anything."""
        return not validity.invalid(self.flags_of(name), "time")

    @property
    def contrasts(self) -> dict[str, Contrast]:
        """All that it claims: the gains by policy, then the speedup as SPEEDUP."""
        return self.gains | ({SPEEDUP: self.speedup} if self.speedup else {})


def together(effects: Sequence[Effect]) -> list[Effect]:
    """Effects with intervals that hold for all that is claimed of them together.

    What the sweep's own tables claim keeps the interval that it has there.
    """
    places = [(e, name, over) for e in effects for name, over in e.contrasts.items()]
    own = [e.is_valid(name) and name not in e.claimed for e, name, _ in places]
    made = simultaneous_intervals.together([over for *_, over in places], among=own)
    wide = iter(
        over if name in e.claimed and e.is_valid(name) else new
        for (e, name, over), new in zip(places, made, strict=True)
    )
    return [
        replace(e, gains={p: next(wide) for p in e.gains}, speedup=e.speedup and next(wide))
        for e in effects
    ]


def effect(
    pair: Pair, ablation: Ablation, records: Records, notebook: str, said: Said = NOTHING
) -> Effect | None:
    """What an ablation changed, by the runs of the diagnosis, else by the sweep's own.

    Runs are compared within a block and with their own control, never between the two; those of
    another device than the sweep's say nothing of it. None where it was not made.

    Args:
        said: what the sweep says of the runs.
    """
    failed = ""

    def find(run: Run) -> dict[str, Any] | None:
        return records.get(run.run_id(notebook))

    for before in (pair.controls, pair.policies):
        after = ablation.variants(*before)
        if after == before or _compiled_alike(before, after, find):  # such as XLA on, where it is
            continue
        made = _contrasted(ablation, before, after, find, said.parts)
        if made is not None:
            sides, axes = _sides(before, after), ("policy", *ablation.change)
            ids = {name: [_ids(r, find, notebook) for r in sides[name]] for name in made.contrasts}
            elsewhere = ["not comparable"] * _is_elsewhere(before, pair.policies, find)
            flags = {
                name: validity.together(
                    [
                        *_flags(sides[name], axes, find),
                        *(said.flags.get(i, "") for own in both for i in own.values()),
                        *elsewhere,
                    ]
                )
                for name, both in ids.items()
            }
            every, own = validity.together(flags.values()), before == pair.policies
            made = replace(made, flags=every, flags_by=flags, of_sweep=own)
            known = {name: said.ends.get(sides_of(*both)) for name, both in ids.items()}
            return _as_claimed(made, {name: ends for name, ends in known.items() if ends})
        failed = failed or next(filter(None, (_ending(find(run)) for run in after)), "")
    return Effect(ablation, failed=failed) if failed else None


def _compiled_alike(before: tuple[Run, Run], after: tuple[Run, Run], find: Find) -> bool:
    """Whether a change of `jit` changed nothing: `auto` may have been the same in force."""
    if [run.jit for run in before] == [run.jit for run in after]:
        return False
    sides = [
        {
            one.get("in_force", {}).get("jit")
            for run in runs
            for one in _of_blocks(run, find).values()
        }
        for runs in (before, after)
    ]
    return sides[0] == sides[1] and len(sides[0]) == 1 and sides[0] != {None}


def _is_elsewhere(controls: tuple[Run, Run], own: tuple[Run, Run], find: Find) -> bool:
    """Whether a diagnosis was made on another device than the sweep's runs, of the same name."""
    sides = [(_of_blocks(a, find), _of_blocks(b, find)) for a, b in zip(controls, own, strict=True)]
    differs = (d for side in sides for d in validity.across(*side, ("policy",)))
    return any(difference.name in DEVICE for difference in differs)


def _contrasted(
    ablation: Ablation,
    before: tuple[Run, Run],
    after: tuple[Run, Run],
    find: Find,
    parts: Mapping[str, Hashable],
) -> Effect | None:
    """The effect in runs before and after the change; None where no block has both."""
    changed = [new for new, old in zip(after, before, strict=True) if new != old]
    # The runs before the change are there in any case: they tell nothing of the ablation.
    if not any(find(in_block(run, 0)) for run in changed):
        return None
    rates = {run: _rates(run, find, parts) for run in {*before, *after}}
    sides = _sides(before, after)
    overs = {name: contrast.paired(rates[a], rates[b]) for name, (a, b) in sides.items()}
    overs = {name: over for name, over in overs.items() if over.n}
    gains = {name: over for name, over in overs.items() if name != SPEEDUP}
    if not gains:
        return None
    both = {
        n: _of_blocks(a, find).keys() & _of_blocks(b, find).keys() for n, (a, b) in sides.items()
    }
    apart = {name: len(both[name]) - over.n for name, over in overs.items()}
    return Effect(ablation, gains, overs.get(SPEEDUP), apart=apart)


def _sides(before: tuple[Run, Run], after: tuple[Run, Run]) -> dict[str, tuple[Run, Run]]:
    """The runs that each contrast sets side by side, that whose rate is above the line first."""
    gains = {old.policy: (new, old) for old, new in zip(before, after, strict=True) if new != old}
    return gains | {SPEEDUP: (after[1], after[0])}


def _flags(sides: tuple[Run, Run], axes: tuple[str, ...], find: Find) -> list[str]:
    """The flags of the runs of a contrast; not comparable where more differs than the change."""
    made = [_of_blocks(run, find) for run in sides]
    names = [name for own in made for record in own.values() for name in validity.of_record(record)]
    return [*names, *["not comparable"] * bool(validity.across(*made, axes))]


def blocks(run: Run, find: Find) -> dict[int, dict[str, Any]]:
    """The records of a run by block, however they ended."""
    found = (find(in_block(run, block)) for block in range(MOST_BLOCKS))
    return dict(enumerate(takewhile(bool, found)))


def _of_blocks(run: Run, find: Find) -> dict[int, dict[str, Any]]:
    """The records by block of a run's blocks that ended well."""
    return {block: one for block, one in blocks(run, find).items() if one["status"] == "ok"}


def _ids(run: Run, find: Find, notebook: str) -> dict[Hashable, str]:
    """The ids of a run's blocks that ended well, by block and call."""
    own = _of_blocks(run, find).items()
    return {
        (block, record.get("invocation")): in_block(run, block).run_id(notebook)
        for block, record in own
    }


def _as_claimed(made: Effect, known: Mapping[str, Ends]) -> Effect:
    """The effect whose contrasts have the intervals that the sweep's own comparisons have."""
    overs = made.contrasts
    overs |= {name: replace(overs[name], low=e[0], high=e[1]) for name, e in known.items()}
    gains = {policy: overs[policy] for policy in made.gains}
    return replace(made, gains=gains, speedup=overs.get(SPEEDUP), claimed=frozenset(known))


def _rates(run: Run, find: Find, parts: Mapping[str, Hashable]) -> pd.Series:
    """Units of the task per second, by block and call: two calls form no ratio.

    Nor do a sweep's own runs between which a call paused.
    """
    rate = tasks.of(run.dataset).rate
    rates = {
        f"{block} {parts.get(record.get('run_id', ''), record.get('invocation', ''))}": (
            record["timing"][rate]
        )
        for block, record in _of_blocks(run, find).items()
    }
    return pd.Series(rates, dtype=float)


def _ending(record: Mapping[str, Any] | None) -> str:
    """How a run ended that did not end well; empty for one that did, or was not made."""
    if record is None or record["status"] == "ok":
        return ""
    return f"{record['status']}: {record['error']}"
