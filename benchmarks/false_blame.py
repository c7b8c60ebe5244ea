"""How often a report of many pairs and ablations blames what changes nothing, by simulation.

    python benchmarks/false_blame.py [--reports 500] [--records reports/published]

The noise is this machine's: what the logarithms of rates of published runs differ by, block by
block, from the mean of their point, drawn with replacement. In each simulated report some pairs of
policies are tried with six ablations in some blocks; none changes anything. Printed is the share of
reports that show any ablation to make steps faster or slower, and of those that name one in a
sentence (faster by a tenth at least), by intervals that hold for each pair and for the whole
report. Then the power: of an ablation that takes away a fifth of the step, beside those that change
nothing, how often it is shown to be faster, and how often its gain is said to be excluded.
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from mptexp.analysis import contrast
from mptexp.analysis.contrast import Contrast
from mptexp.diagnosis import ablations, effects
from mptexp.diagnosis.cause_times import LEAST_SHARE
from mptexp.diagnosis.effects import Effect

TRIED = (ablations.INPUT, ablations.XLA_ON, ablations.BATCH, ablations.EXECUTION,
         ablations.PADDED, ablations.NO_NORMALIZATION)  # fmt: skip
SIDES = ("float32", "mixed_bfloat16")
TRUE = 1 / (1 - 0.2)
FEWEST = 3  # blocks of a point, for a mean to differ from
MOST = 0.15  # standard deviation of a point's logarithms: above it the machine was in use


def noise(folder: Path) -> np.ndarray:
    """Deviations of log rates from the mean of their point, widened for the mean's own error."""
    points: dict[str, list[float]] = defaultdict(list)
    for path in sorted(folder.rglob("record.json")):
        record = json.loads(path.read_text())
        rate = (record.get("timing") or {}).get("images_per_s")
        if record["status"] == "ok" and rate:
            same = {k: v for k, v in record["parameters"].items() if k not in ("block", "seed")}
            key = json.dumps([str(path.parents[2]), same], sort_keys=True)
            points[key].append(math.log(rate))
    kept = [np.array(v) for v in points.values() if len(v) >= FEWEST and np.std(v, ddof=1) < MOST]
    return np.concatenate([(v - v.mean()) * math.sqrt(len(v) / (len(v) - 1)) for v in kept])


def report(drawn: np.ndarray, true: float = 1.0) -> list[list[Effect]]:
    """The effects of each pair by their own intervals; the first ablation gains what is true.

    Args:
        drawn: noise, shape (pairs, 1 + ablations, policies, blocks); the control is the first.
    """
    return [
        [
            _effect(ablation, runs[0], after * (true if first else 1.0))
            for first, ablation, after in zip(FIRST, TRIED, runs[1:], strict=True)
        ]
        for runs in np.exp(drawn)
    ]


FIRST = [ablation is TRIED[0] for ablation in TRIED]


def _effect(ablation: ablations.Ablation, before: np.ndarray, after: np.ndarray) -> Effect:
    gains = {p: contrast.paired(a, b) for p, a, b in zip(SIDES, after, before, strict=True)}
    return Effect(ablation, gains, contrast.paired(after[1], after[0]))


def shows(over: Contrast) -> bool:
    """Whether an interval leaves 1 out."""
    return over.low > 1 or over.high < 1


def names(over: Contrast) -> bool:
    """Whether a sentence would name it, see `Verdict.further_effects`."""
    return over.low > 1 and over.estimate >= 1 / (1 - LEAST_SHARE)


def rates(made: list[list[Effect]]) -> dict[str, tuple[bool, bool]]:
    """Whether anything is shown, and named, by intervals of three families."""
    flat = [e for pair in made for e in pair]
    families = {
        "each alone": flat,
        "each pair": [e for pair in made for e in effects.together(pair)],
        "whole report": effects.together(flat),
    }
    return {
        family: (
            any(shows(over) for e in known for over in e.gains.values()),
            any(names(over) for e in known for over in e.gains.values()),
        )
        for family, known in families.items()
    }


def main() -> None:
    """Prints a line per number of pairs and blocks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reports", type=int, default=500)
    parser.add_argument("--records", type=Path, default=Path("reports/published"))
    asked = parser.parse_args()
    pool, random = noise(asked.records), np.random.default_rng(0)
    print(f"noise: {len(pool)} runs, standard deviation {pool.std() * 100:.1f} %")
    for pairs in (1, 4, 12):
        for blocks in (3, 5):
            shape = (asked.reports, pairs, 1 + len(TRIED), len(SIDES), blocks)
            drawn = random.choice(pool, shape)
            found = [rates(report(one)) for one in drawn]
            for family in found[0]:
                shown, named = np.mean([f[family] for f in found], axis=0)
                print(
                    f"{pairs} pairs, {blocks} blocks, {family}: {shown:.1%} show, {named:.1%} name"
                )
            true = [effects.together(report(one, TRUE)[0])[0].gains[SIDES[1]] for one in drawn]
            whole = [
                effects.together([e for pair in report(one, TRUE) for e in pair])[0].gains[SIDES[1]]
                for one in drawn
            ]
            for family, gains in (("each pair", true), ("whole report", whole)):
                power = np.mean([g.low > 1 for g in gains])
                excluded = np.mean([g.high < TRUE for g in gains])
                print(f"  a true {TRUE:.2f}x, {family}: {power:.1%} shown, {excluded:.1%} excluded")


if __name__ == "__main__":
    main()
