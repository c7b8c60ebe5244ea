"""The order of the runs of a block: what a ratio compares is adjacent, and positions are balanced.

A machine that drifts by half a percent a run makes whatever runs second look slower. So runs that
differ in their policy alone follow one another, and over the blocks each policy takes each place
among them equally often (the counts differ by at most one). All else is random, from a seed that
is drawn for each sweep: a fixed permutation would give every sweep the same false answer.
"""

import random
from collections.abc import Hashable, Sequence
from typing import TypeVar

from mptexp.spec.run import Run

T = TypeVar("T", bound=Hashable)

# Ratios compare policies, so these stand closest together; then what other studies compare.
INNER = ("policy", "loss_scale", "propagation", "weight_format", "rounding")
MIDDLE = ("backend", "frontend", "replicas", "cpu_isa", "jit", "input_mode", "normalization")
MIDDLE += ("data_format",)
FREE = ("seed", "block")


def by_block(points: Sequence[Run], blocks: int, seed: int) -> list[list[Run]]:
    """The points in the order in which each block visits them.

    Args:
        points: the points of a sweep; what `seed` and `block` they name does not matter.
        seed: of the random choices; the same seed gives the same orders on every machine.
    """
    chance = random.Random(seed)
    groups = {
        outer: {
            middle: balanced(inner, blocks, chance)
            for middle, inner in _grouped(members, MIDDLE).items()
        }
        for outer, members in _grouped(points, _others()).items()
    }
    middles = {outer: balanced(list(group), blocks, chance) for outer, group in groups.items()}
    orders = []
    for block in range(blocks):
        outers = list(groups)
        chance.shuffle(outers)
        orders.append(
            [run for o in outers for m in middles[o][block] for run in groups[o][m][block]]
        )
    return orders


def balanced(items: Sequence[T], blocks: int, chance: random.Random) -> list[list[T]]:
    """An order of the items for each block, in which each item has each place equally often.

    The rows of random Latin squares; of the last one only as many as are still wanted, so that
    counts differ by at most one.
    """
    n, rows = len(items), []
    while len(rows) < blocks:
        symbols, shifts = list(items), list(range(n))
        chance.shuffle(symbols)
        chance.shuffle(shifts)
        wanted = shifts[: blocks - len(rows)]  # a whole square of many items is large
        rows += [[symbols[(place + shift) % n] for place in range(n)] for shift in wanted]
    return rows


def comparison(run: Run) -> tuple[Hashable, ...]:
    """What the runs share that a ratio may compare within a block, as a key.

    They differ in INNER and MIDDLE alone: `by_block` puts them next to one another.
    """
    return (run.block, run.seed - run.block, *(getattr(run, name) for name in _others()))


def point(run: Run) -> tuple[Hashable, ...]:
    """What the runs share that a ratio of policies may compare within a block, as a key."""
    return (*comparison(run), *(getattr(run, name) for name in MIDDLE))


def _others() -> tuple[str, ...]:
    return tuple(n for n in Run.model_fields if n not in (*INNER, *MIDDLE, *FREE))


def _grouped(points: Sequence[Run], names: Sequence[str]) -> dict[tuple, list[Run]]:
    groups: dict[tuple, list[Run]] = {}
    for point in points:
        groups.setdefault(tuple(getattr(point, name) for name in names), []).append(point)
    return groups
