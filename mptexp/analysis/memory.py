"""What policies take of memory, over their baselines, with intervals."""

import numpy as np
import pandas as pd

from mptexp.analysis import contrast, simultaneous_intervals, validity
from mptexp.analysis.points import POINT, baselines, by_block
from mptexp.analysis.sweep_tables import Tables
from mptexp.records import store

COMPARED = ["baseline", "candidate", "ratio", "low", "high", "blocks"]
FITTED = ("ok", "diverged")  # how a run ends that had room for its batch
# Flags of a run of which it is doubtful whether its batch fits, alone on its device.
DOUBTFUL = ("in parallel", store.CHANGED, validity.unproven("memory limit"))


def doubts(flags: str) -> list[str]:
    """What of a run makes it doubtful that its batch fits, or does not fit."""
    return [validity.FLAGS[name].meaning for name in validity.names_of(flags) if name in DOUBTFUL]


def is_relied_on(tables: Tables) -> bool:
    """Whether every run and attempt of a sweep shows reliably if there was memory for its batch."""
    runs = map(validity.together, map(validity.of_record, tables.records))
    return not any(map(doubts, [*tables.attempts.get("flags", ()), *runs]))


def ratios(tables: Tables) -> pd.DataFrame:
    """Peak memory of every policy over its first baseline's, at the same point.

    Formed within a block. Runs whose memory is not valid form no ratio. Peak memory of a process
    varies from run to run by some percent, that of a GPU's allocator hardly.

    Returns:
        Columns of POINT, then COMPARED: ratio (below 1, the policy takes less), low and high (for
        all of the table together; empty below three blocks).
    """
    ok = validity.comparable(tables.ok)
    # As an array: of no rows a list would choose no columns.
    is_valid = np.array([not validity.invalid(flags, "memory") for flags in ok["flags"]], bool)
    valid = ok[is_valid]
    rows, overs = [], []
    for point, default, sizes in by_block(valid, "peak_memory_bytes"):
        for baseline in baselines(default, sizes)[:1]:
            for candidate in [policy for policy in sizes if policy != baseline]:
                over = contrast.paired(sizes[candidate], sizes[baseline])
                if over.n:
                    rows.append([*point, baseline, candidate])
                    overs.append(over)
    ends = [over.columns("ratio").values() for over in simultaneous_intervals.together(overs)]
    made = [[*row, *cells] for row, cells in zip(rows, ends, strict=True)]
    return pd.DataFrame(made, columns=[*POINT, *COMPARED])


def finding(ratio: float, low: float, high: float, same: float) -> str:
    """`less`, `more`, `same` (within a factor of 1 + same), `inconclusive` or `no interval`."""
    if np.isnan(low) or np.isnan(ratio):
        return "no interval"
    if 1 / (1 + same) < low and high < 1 + same:
        return "same"
    return "less" if high < 1 else "more" if low > 1 else "inconclusive"
