"""Whether the runs that are there are those that the sweep's params file asks for."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mptexp.errors import ParamsError
from mptexp.records.schema import is_of_timer, known_parameters
from mptexp.spec import dataset_paths, params
from mptexp.spec.run import Run, defaults


@dataclass(frozen=True)
class Asked:
    """How the runs of a directory and its params file agree.

    Attributes:
        other: how many runs the file does not ask for: it was edited after they were made, or they
            were copied from elsewhere.
        differing: parameters whose values of these runs the file does not have, with both values.
        missing: how many runs that it asks for have no record, on each device that it names; one
            of `local` is missing where no machine has it.
        planned: how many it asks for.
        excluded: how many points of its matrix it leaves out by `exclude`; of `points`.
        points: how many its matrix has.
        entries: those of `exclude`.
        unknown: why what was asked for is not known; empty where it is.
    """

    other: int = 0
    differing: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    planned: int = 0
    excluded: int = 0
    points: int = 0
    entries: Sequence[Mapping[str, Any]] = ()
    unknown: str = ""


def of(records: Sequence[Mapping[str, Any]], text: str) -> Asked:
    """What the text of a params file says of some records; the text is empty where there is none.

    What StepTimer recorded has none by nature.
    Machines share a params file: a run of `local` may be of any device, and no run is another than
    was asked for by its device alone, nor by a batch size that was searched.
    """
    if not text:
        own = all(map(is_of_timer, records))
        return Asked() if own else Asked(unknown="there is no params.yaml")
    try:
        sweep, _ = params.parse(text, "params.yaml", to_run=False)
    except ParamsError as error:  # edited, or of an older version
        return Asked(unknown=str(error).splitlines()[0])
    points = [Run(**point).published().model_dump() for point in sweep.points()]
    wanted = [point | {"block": block} for point in points for block in range(sweep.repeats)]
    runs = [_as_asked(defaults() | record["parameters"]) for record in records]
    # What was searched for is no other batch size, and stands for none that was asked for.
    free = {"gpu_model", *["batch_size"] * sweep.max_batch}
    names = [name for name in Run.model_fields if name not in free]
    named = sweep.devices()
    there = {_key(_on_named(run, named), Run.model_fields) for run in runs}
    asked = {_key(run, Run.model_fields): run["gpu_model"] for run in wanted}
    missing = Counter(device for key, device in asked.items() if key not in there)
    like = {_key(run, names) for run in wanted}
    others = [run for run in runs if _key(run, names) not in like]
    grid = sweep.model_copy(update={"exclude": [], "include": []}).points()
    unknown = {
        name
        for record in records
        for name in record["parameters"].keys() - known_parameters(record)
    }
    return Asked(
        len(others),
        _differing(others, wanted, [name for name in names if name not in unknown]),
        dict(sorted(missing.items())),
        len(asked),
        len(grid) + len(sweep.include) - len(points),
        len(grid),
        tuple(sweep.exclude),
    )


def _as_asked(run: Mapping[str, Any]) -> dict[str, Any]:
    """As a params file has it: the seed of block 0; of older records' datasets the last part."""
    dataset = dataset_paths.published(str(run["dataset"]))
    return {**run, "dataset": dataset, "seed": run["seed"] - run["block"]}


def _on_named(run: Mapping[str, Any], named: Collection[str]) -> dict[str, Any]:
    """The run of `local` that it is, where the params file does not name its device."""
    return {**run, "gpu_model": run["gpu_model"] if run["gpu_model"] in named else "local"}


def _key(run: Mapping[str, Any], names: Iterable[str]) -> str:
    return json.dumps([run[name] for name in names])


def _differing(
    others: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, tuple[str, str]]:
    found = {}
    for name in names:
        sides = [sorted({str(run[name]) for run in side}) for side in (others, wanted)]
        if set(sides[0]) - set(sides[1]):
            found[name] = (", ".join(sides[0]), ", ".join(sides[1]))
    return found
