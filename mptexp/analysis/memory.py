"""What policies take of memory, over their baselines, with intervals."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mptexp.analysis import contrast, simultaneous_intervals, summary, validity
from mptexp.analysis.comparability import Record
from mptexp.analysis.points import POINT, baselines, by_block
from mptexp.analysis.sweep_tables import Tables
from mptexp.records import store
from mptexp.records.interference import GPU_USED

COMPARED = ["baseline", "candidate", "ratio", "low", "high", "blocks"]
# Flags of a run of which it is doubtful whether its batch fits, alone on its device.
DOUBTFUL = ("in parallel", store.CHANGED, validity.unproven("memory limit"))
OTHERS = "sweeps at once"  # whose memory may be what a run lacked


def doubts(flags: str, status: str) -> list[str]:
    """What of a run makes it doubtful that its batch fits, or does not fit."""
    doubtful = (*DOUBTFUL, *[OTHERS] * (status == "oom"))
    return [validity.FLAGS[name].meaning for name in validity.names_of(flags) if name in doubtful]


def is_relied_on(tables: Tables) -> bool:
    """Whether every run and attempt of a sweep shows reliably if there was memory for its batch.

    What ran out of memory on another machine says nothing of the one that is compared.
    """
    tried = tables.attempts
    ended = [(validity.together(validity.of_record(r)), r["status"]) for r in tables.records]
    ended += zip(tried.get("flags", ()), tried.get("status", ()), strict=True)
    marked = [*tables.results.marks, *tried.get("marks", ())]
    doubtful = any(doubts(*one) for one in ended) or any(GPU_USED in marks for marks in marked)
    searched_elsewhere = _searched_on_several(tried) or any(tried.get("other", ()))
    return not (doubtful or _elsewhere(tables.records) or searched_elsewhere)


def _searched_on_several(tried: pd.DataFrame) -> bool:
    """Whether machines of one device's name made attempts, so that a batch fits one of them."""
    if "boot" not in tried:
        return False
    known = tried[tried.boot != ""]
    return bool((known.groupby("gpu_model").boot.nunique() > 1).any())


def _elsewhere(records: Sequence[Record]) -> bool:
    """Whether a run was out of memory where no run that ended well was, or other memory is.

    In no call and on no machine of theirs, as far as records name them; or their machines differ
    in their memory, and whose it was is not known.
    """
    well = [record for record in records if record["status"] == "ok"]
    out = [record for record in records if record["status"] == "oom"]
    met = {place for record in well for place in _places(record)}
    named = [set(_places(record)) for record in out]
    rooms: dict[str, set[int]] = {}
    for record in well:
        known = (record.get("environment") or {}).get("memory_bytes") or 0
        rooms.setdefault(record["parameters"]["gpu_model"], set()).add(round(known / 2**30))
    several = any(len(rooms.get(record["parameters"]["gpu_model"], ())) > 1 for record in out)
    return several or any(places and not places & met for places in named)


def _places(record: Record) -> list[tuple[str, str]]:
    """What names where a run was measured: the call, and the machine since its start."""
    named = [(name, str(record.get(name) or "")) for name in ("invocation", "boot")]
    return [place for place in named if place[1]]


def ratios(tables: Tables) -> pd.DataFrame:
    """Peak memory of every policy over its first baseline's, at the same point.

    Formed within a block. Runs whose memory is not valid form no ratio, nor does a policy at a
    point at which some of its runs were out of memory: the others are those that took less. Peak
    memory of a process varies from run to run by some percent, that of a GPU's allocator hardly.

    Returns:
        Columns of POINT, then COMPARED: ratio (below 1, the policy takes less), low and high (for
        all of the table together; empty below three blocks).
    """
    valid = validity.sound(validity.comparable(tables.ok), "memory")
    lost = summary.ended(tables.results, "oom")
    rows, overs = [], []
    for point, default, sizes in by_block(valid, "peak_memory_bytes"):
        for baseline in baselines(default, sizes)[:1]:
            for candidate in [policy for policy in sizes if policy != baseline]:
                over = contrast.paired(sizes[candidate], sizes[baseline])
                partly = {(*point, policy) for policy in (baseline, candidate)} & lost.keys()
                if over.n and not partly:
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
