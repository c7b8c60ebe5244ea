"""What is said of comparisons that two sweeps share: whether their results are consistent."""

import json

import pandas as pd

from mptexp.analysis.repeated_sweeps import Ratio, Repetition
from mptexp.report.text import wording

NAMED = 3  # comparisons that a sentence lists


def sentence(shared: Repetition) -> str:
    """`Consistent, the intervals overlap: mixed_bfloat16's speed is 1.26× [1.01, 1.57] and ...`.

    Plain text; comparisons whose intervals do not overlap come first.
    """
    pairs = sorted(shared.ratios, key=lambda pair: pair[0].overlaps(pair[1]))
    points = pd.DataFrame([json.loads(one.work) | {"setting": one.setting} for one, _ in pairs])
    clauses = [
        f"{one.candidate}'s speed is {_number(one)} and {_number(other)} that of "
        f"{wording.default_name(one.baseline)} ({place})"
        for (one, other), place in zip(pairs, wording.places(points), strict=True)
    ]
    more = [f"{len(clauses) - NAMED} more"] * (len(clauses) > NAMED)
    return f"{_verdict(shared)}: {'; '.join([*clauses[:NAMED], *more])}."


def _verdict(shared: Repetition) -> str:
    if not shared.disjoint:
        return "Consistent, the intervals overlap"
    which = f" in {shared.disjoint} of {len(shared.ratios)} comparisons"
    return f"Inconsistent{which * (len(shared.ratios) > 1)}, the intervals do not overlap"


def _number(ratio: Ratio) -> str:
    return f"{wording.factor(ratio.speedup)}× {wording.ends(ratio.low, ratio.high)}"
