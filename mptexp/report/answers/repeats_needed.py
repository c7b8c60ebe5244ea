"""How many repeats it takes where intervals are too wide: to halve them, and to decide."""

import math

import pandas as pd

from mptexp.analysis.contrast import FEWEST, repeats_to_narrow
from mptexp.report.text.task_words import Measure

MOST = 1000  # times the margin: nobody measures what would take a million repeats
ALMOST = 0.9  # of half an interval: what images leave of it can hardly be halved by repeats
HALVED = 2  # times the margin that half an interval is: up to there halving it may decide


def to_halve(blocks: int, times: float = 2) -> str:
    """What it takes for intervals that are too wide, of so many blocks, or for any.

    Args:
        times: by which what repeats differ by is to count for less, where images count too.
    """
    if blocks < FEWEST:
        return f"it takes at least {FEWEST} repeats that end well, not {blocks}, for an interval"
    more = repeats_to_narrow(blocks, times)
    return f"it takes about {more} repeats, not {blocks}, to halve the intervals"


def of_accuracies(open_: pd.DataFrame, measure: Measure) -> str:
    """What halves the narrowest interval, and what would decide, where half is still too wide.

    Repeats narrow what trainings differ by, and leave what few images hide.
    """
    known = open_.dropna(subset=["low", "high"])
    if known.empty:
        return to_halve(int(open_.blocks.min()))
    row = known.loc[(known.high - known.low).idxmin()]
    blocks, margin = int(row.blocks), row.margin
    half, least = (row.high - row.low) / 2, row.least_half
    images = f"more validation {measure.task.example}s"
    if least > ALMOST * half / 2:
        ends = measure.reach(pd.DataFrame({"low": [-least], "high": [least]}))
        return f"it takes {images}: on these, repeats without end would leave {ends} either way"
    own = math.sqrt(half**2 - least**2)  # of the repeats
    needed = to_halve(blocks, own / math.sqrt((half / 2) ** 2 - least**2))
    if half <= HALVED * margin:
        return needed
    if least >= margin:
        return f"{needed}, and {images} to tell {measure.margin(margin)}"
    times = own / math.sqrt(margin**2 - least**2)
    if not times < MOST:
        return needed
    decide = f"about {repeats_to_narrow(blocks, times):,}"
    return f"{needed}, and {decide} to tell {measure.margin(margin)}"
