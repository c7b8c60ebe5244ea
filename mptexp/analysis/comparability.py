"""Which runs may be compared: those whose identity agrees but for what the comparison is about.

The identity of a run is what it was beyond its parameters (see `training.identity`): the code in
the Jupyter kernel, the user's model, the data, the versions, the device and its environment.
Weights and order of the images depend on the block's seed, so they must agree within a block.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
WITHIN_BLOCK = ("initial_weights", "data_order")
OF_A_POINT = (*WITHIN_BLOCK, "fed", "network", "products_flops")
# What differs between the sides of a comparison because of the parameter that it is about.
FOLLOWS = {
    "policy": (),
    "gpu_model": (
        *("device", "cpu", "cpu_version", "instruction_sets", "cores", "threads", "cpu_limits"),
        *("driver", "cuda", "cudnn"),
    ),
    # Not every framework draws the weights alike, and each brings libraries of its own.
    "backend": (
        "versions",
        "initial_weights",
        "cuda",
        "cudnn",
        "threads",
        "products_flops",
        "onednn",
    ),
    "frontend": ("products_flops",),
    "model": ("model_source", "initial_weights", "network", "products_flops"),
    "dataset": ("data", "data_order", "fed", "network", "products_flops"),
    "input_mode": ("data_order", "fed", "network"),
    "batch_size": ("data_order", "products_flops"),
    "replicas": ("products_flops",),
    "cpu_isa": (),
    "normalization": ("initial_weights",),
    "width_multiple": ("initial_weights",),
}
NOT_RECORDED = "identity not recorded"


@dataclass(frozen=True)
class Difference:
    """What two runs differ in beyond what is compared; values as short text."""

    name: str
    left: str
    right: str


def of(record: Record) -> dict[str, Any] | None:
    """The identity in a record; None where it has none.

    A virtual machine may lack instructions of its CPU's version; some records have them in their
    environment alone.
    """
    known = record.get("identity")
    if not (isinstance(known, dict) and known):
        return None
    has = (record.get("environment") or {}).get("instruction_sets")
    return known if has is None else {"instruction_sets": " ".join(has)} | known


def differences(
    left: Mapping[str, Any], right: Mapping[str, Any], axes: Iterable[str] = ("policy",)
) -> list[Difference]:
    """What two identities differ in, but for what follows from the axes of the comparison.

    Args:
        left: the identity of a run.
        right: that of another, of the same block where the two share their weights.
        axes: the parameters that the comparison is about, keys of FOLLOWS; any other explains no
            difference.
    """
    explained = {name for axis in axes for name in FOLLOWS.get(axis, ())}
    flat = [_flat(side) for side in (left, right)]
    names = dict.fromkeys(name for side in flat for name in side)
    return [
        Difference(name, *(str(side.get(name, "")) for side in flat))
        for name in names
        if name.split(".")[0] not in explained and flat[0].get(name) != flat[1].get(name)
    ]


def shared(identity: Mapping[str, Any]) -> str:
    """The part of an identity that all blocks share, as a key."""
    kept = {name: value for name, value in identity.items() if name not in WITHIN_BLOCK}
    return json.dumps(kept, sort_keys=True)


# The device comes first. What decides how the data are prepared, decides their digest.
KIND = (
    *("gpu_model", "backend", "model", "dataset", "image_size", "color_mode", "validation_split"),
    *("sequence_length", "tokenizer", "vocabulary"),
)
Kind = tuple[str, ...]  # of runs whose identity agrees: see `kind`


def kind(parameters: Mapping[str, Any]) -> Kind:
    """Device, backend, model and data: runs of one sweep that share them have one identity."""
    return tuple(str(parameters.get(name, "")) for name in KIND)


def calls(records: Iterable[Record]) -> set[tuple[str, str]]:
    """The calls that runs were made in, with the start of the machine, where they are known."""
    return {(str(r.get("boot")), r["invocation"]) for r in records if r.get("invocation")}


def latest(records: Iterable[Record]) -> dict[Kind, dict[str, Any]]:
    """The identity of the last run of each kind that ended well."""
    ended = [r for r in records if r.get("status") == "ok" and of(r)]
    ended.sort(key=lambda record: str(record.get("ended_at", "")))
    return {kind(record["parameters"]): of(record) or {} for record in ended}


def between(
    left: Mapping[Kind, Mapping[str, Any]], right: Mapping[Kind, Mapping[str, Any]]
) -> list[Difference]:
    """What two sessions or directories differ in, each name once, of what both know.

    Runs of one device are compared with one another where both have it, else with those of any
    other. What follows from the parameters of a point or from its block is left out.
    """
    named: dict[str, Difference] = {}
    for one, identity in left.items():
        others = [two for two in right if two[1:] == one[1:]]
        for two in [one] if one in right else others:
            axes = ("policy",) if one == two else ("gpu_model",)
            both = (identity.keys() & right[two].keys()) - set(OF_A_POINT)
            sides = [{n: side[n] for n in side if n in both} for side in (identity, right[two])]
            named |= {d.name: d for d in differences(*sides, axes)}
    return list(named.values())


def largest_alike(identities: Sequence[Mapping[str, Any]]) -> list[int]:
    """The places of the most runs that may be compared with one another; the last of several.

    Runs of one point, in the order in which they ended. Where a model was edited halfway, the
    larger half is compared; where both are alike in size, the later one.
    """
    groups: dict[str, list[int]] = {}
    for place, identity in enumerate(identities):
        groups.setdefault(shared(identity), []).append(place)
    return max(groups.values(), key=lambda places: (len(places), places[-1]), default=[])


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values under names with dots, such as versions.keras."""
    flat: dict[str, Any] = {}
    for name, value in identity.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": v for inner, v in value.items()}
        else:
            flat[name] = value
    return flat
