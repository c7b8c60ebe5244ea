"""The chart that opens a report: a row for each comparison, with its interval, beside no effect."""

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mptexp.analysis import emulated
from mptexp.report.answers.measured import MeasuredSweep
from mptexp.report.answers.subject import Bar, Subject
from mptexp.report.figures import style
from mptexp.report.figures.row import FigureRow, single
from mptexp.report.figures.style import COLOURS, INK, MARKERS
from mptexp.report.text import wording
from mptexp.spec.terminal import visible

# Where a chart may have ticks on both sides of no effect, the roundest first: factors, and points.
DENSE = [m * 10.0**k for k in range(-1, 13) for m in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)]
FACTORS = (
    [10.0**k for k in range(1, 13)],
    [2.0**k for k in range(1, 13)],
    [3.0**k for k in range(1, 9)],
    [1.5, 2, 3, 5],
    [1.5, 2.5, 4, 6],
    [1.2, 1.5, 2],
    [1 + k / 10 for k in range(1, 20)],
    [1.05, 1.1, 1.15, 1.2, 1.25, 1.3],
    DENSE[11:],
    [1 + k / 200 for k in range(1, 21)] + [1 + k / 40 for k in range(5, 80)] + DENSE[15:],
)
POINTS = ([10.0**k for k in range(13)], [1, 3, 10, 30, 100], [1, 2, 5, 10, 20, 50, 100],
          [0.5, 1, 2, 4, 8], DENSE)  # fmt: skip
FEWEST = 3  # ticks
MOST = {"factors": 4, "points": 5}  # of which each has room for its label
LEAST = 1.02  # factor on both sides of 1 that a chart shows at least
SHORT = 24  # letters of a finding that stands in the line of its label
GAP = 0.7  # between two rows, in lines of text
AXES = {
    "speed": "speed against {}",
    "error": "validation error minus that of {}, percentage points (above 0: worse)",
    "accuracy": "validation accuracy minus that of {}, percentage points (below 0: worse)",
    "perplexity": "change of validation perplexity from that of {}, % (above 0: worse)",
}


def comparisons_at_a_glance(chart: Subject) -> Figure:
    """A marker and an interval for each comparison, in words beside it; a line at no effect."""
    alike = _common_policy(chart)
    bars, named = chart.bars, f"{alike}, " if alike else ""
    said_once = all(bar.finding == "not valid" for bar in bars)  # by the axis
    words = [_words(bar, named, said_once) for bar in bars]
    lines = sum(text.count("\n") + 1 for text in words)
    label = AXES[chart.scale].format(visible(chart.baseline))
    label = label.replace("speed", f"speed of {alike}", 1) if alike else label
    label += "; measured, not claimed" * said_once
    label = textwrap.fill(label, 26 if style.is_narrow() else 42)
    below = label.count("\n") + style.is_narrow()  # further lines, of the ticks' words too
    figure, (axis,) = style.new(0.7 + 0.145 * (lines + below) + 0.1 * len(bars))
    heights = [text.count("\n") + 1 + GAP for text in words]
    places = np.cumsum(heights) - np.divide(heights, 2)
    _scale(axis, chart)
    axis.axvline(1 if chart.scale == "speed" else 0, color=INK, linewidth=1.2)
    if chart.scale == "error":
        axis.axvline(emulated.LITTLE, color=INK, linewidth=0.8, linestyle=":")
    for place, bar in zip(places, bars, strict=True):
        claimed = not np.isnan(bar.low)
        look = {"color": COLOURS[bar.policy], "marker": MARKERS[bar.policy], "markersize": 7}
        look |= {} if claimed else {"markerfacecolor": "none"}
        if claimed:
            axis.plot([bar.low, bar.high], [place, place], color=COLOURS[bar.policy], linewidth=2.4)
        axis.plot([bar.value], [place], linestyle="none", **look)
    axis.set_ylim(sum(heights), 0)
    axis.set_yticks(places, words, size=7.5 if style.is_narrow() else 8.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="y", visible=False)
    axis.spines["left"].set_visible(False)
    axis.set_xlabel(label)
    return figure


def _common_policy(chart: Subject) -> str:
    """The policy with which the labels of all rows begin, which the axis then names once."""
    policies = {bar.policy for bar in chart.bars}
    alike = all(bar.label.startswith(f"{bar.policy}, ") for bar in chart.bars)
    return policies.pop() if len(policies) == 1 and alike and chart.scale == "speed" else ""


def _words(bar: Bar, named: str, said_once: bool) -> str:
    """Label and finding of a row, in lines; why nothing is claimed stands above the chart.

    Args:
        bar: the row.
        named: what the axis says of all labels, and is left out of this one.
        said_once: whether the axis says of all rows that nothing is claimed.
    """
    text = bar.text
    if bar.finding == "not valid":
        text = text.partition(" (")[0] + ", no\N{NO-BREAK SPACE}claim" * (not said_once)
    letters, label = 32 if style.is_narrow() else 40, visible(bar.label.removeprefix(named))
    text = visible(text).replace("n = ", "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    parts = [label, text] if len(text) > SHORT else [f"{label}: {text}"]
    return "\n".join(line for part in parts for line in textwrap.wrap(part, letters)[:4])


def _scale(axis: Axes, chart: Subject) -> None:
    """The axis of all values and of no effect, with few ticks in words."""
    ends = np.array([[b.value, b.low, b.high] for b in chart.bars], float)
    if chart.scale != "speed":
        axis.set_xscale("symlog", linthresh=1, linscale=0.8)
        axis.set_xlim(min(np.nanmin(ends) * 1.3, -0.6), max(np.nanmax(ends) * 1.3, 0.6))
        ticks = _ticks(axis, 0.0, POINTS, lambda points: -points, MOST["points"])
        labels = [wording.signed(tick, "g") if tick else "0" for tick in ticks]
    else:
        axis.set_xscale("log")
        low, high = min(np.nanmin(ends), 1 / LEAST), max(np.nanmax(ends), LEAST)
        room = (high / low) ** 0.08
        axis.set_xlim(low / room, high * room)
        ticks = _ticks(axis, 1.0, FACTORS, lambda factor: 1 / factor, MOST["factors"])
        labels = [_in_words(tick) for tick in ticks]
        # Two lines of a phone's label need half the width.
        labels = [t.replace(" ", "\n") if style.is_narrow() else t for t in labels]
    axis.set_xticks(ticks, labels)
    axis.minorticks_off()


def _ticks(
    axis: Axes,
    middle: float,
    levels: Sequence[Sequence[float]],
    mirrored: Callable[[float], float],
    most: int,
) -> list[float]:
    """The roundest ticks on both sides of the middle that are FEWEST at least and have room."""
    low, high = axis.get_xlim()
    place = axis.xaxis.get_transform().transform
    room = (place(high) - place(low)) / most
    ticks = [middle]
    for level in levels:
        ticks = [middle]
        for side in (level, [mirrored(tick) for tick in level]):
            last = place(middle)
            for tick in side:
                if low <= tick <= high and abs(place(tick) - last) > room:
                    ticks.append(tick)
                    last = place(tick)
        if len(ticks) >= FEWEST:
            break
    return sorted(ticks)


def _in_words(factor: float) -> str:
    """`2× slower`, `same`, `1.5× faster`."""
    if factor == 1:
        return "same"
    return f"{factor:g}× faster" if factor > 1 else f"{1 / factor:g}× slower"


def _caption(chart: Subject) -> str:
    """How many comparisons came to which finding, and what dots, bars and brackets are."""
    limit = f"{emulated.LITTLE:g} points"
    words = {"small": f"within {limit}", "large": f"more than {limit} worse"}
    words |= {"undecided": "inconclusive"}
    counts = Counter(words.get(bar.finding, bar.finding) for bar in chart.bars)
    said = wording.listed([f"{n} {finding}" for finding, n in counts.items()])
    opening = f"Of {wording.count(len(chart.bars), 'comparison')}: {said}."
    opening += f" Where nothing else is said: {visible(chart.usual)}." * bool(chart.usual)
    opening += _fixed_point(chart)
    hollow = " Hollow markers: measured, not claimed."
    if all(np.isnan(bar.low) for bar in chart.bars):
        dotted = f" The dotted line is at {limit}." * (chart.scale == "error")
        return f"{opening}{hollow}{dotted}"
    together = ", which hold for all comparisons together" if chart.scale == "speed" else ""
    crossing = {"speed": "the line at “same”", "error": f"the dotted line at {limit}"}.get(
        chart.scale
    )
    rule = f" An interval across {crossing} is inconclusive." if crossing else ""
    unit = "%" if chart.scale == "perplexity" else "point"
    rule += f" Beyond 1 {unit} the axis is logarithmic." * (chart.scale != "speed")
    bars = f"Bars and brackets are 95 % intervals{together}; n is the number of repeats."
    hollow *= any(np.isnan(bar.low) for bar in chart.bars)
    return f"{opening} {bars}{rule}{hollow}"


def _fixed_point(chart: Subject) -> str:
    """What `<8,8>` means, of the first such format of a row."""
    found = re.search(r"(?<!dynamic)<(\d+),(\d+)>", " ".join(bar.label for bar in chart.bars))
    if not found:
        return ""
    whole, fraction = found.groups()
    return (
        f" {found[0]} is fixed point with {whole} bits before the binary point and {fraction} "
        "behind it."
    )


def _values(chart: Subject) -> str:
    """Every bar in words."""
    words = "; ".join(f"{bar.label}: {bar.text}" for bar in chart.bars)
    return re.sub(r"\[([^,]+), ([^\]]+)\]", r"(\1 to \2)", words) + "."  # a link in Markdown


def _chart(sweep: MeasuredSweep) -> dict[str, Subject]:
    return single(sweep.subject, bool(sweep.subject.bars))


FIGURES = (
    FigureRow(
        "answer",
        "answer",
        "The answer",
        "A marker with an interval for each comparison, beside a line at no effect.",
        _chart,
        comparisons_at_a_glance,
        _caption,
        _values,
    ),
)
