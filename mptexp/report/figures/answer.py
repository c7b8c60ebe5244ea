"""The chart that opens a report: a row for each comparison, with its interval, beside no effect."""

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mptexp.analysis import emulated
from mptexp.report.figures import style
from mptexp.report.figures.row import FigureRow, single
from mptexp.report.figures.style import COLOURS, INK, MARKERS
from mptexp.report.first_screen.subject import Bar, Subject
from mptexp.report.text import wording

# Where a chart may have ticks on both sides of no effect, the roundest first: factors, and points.
DENSE = [m * 10.0**k for k in range(-1, 13) for m in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)]
FACTORS = (
    [10.0**k for k in range(1, 13)],
    [2.0**k for k in range(1, 13)],
    [3.0**k for k in range(1, 9)],
    [1.5, 2, 3, 5],
    [1.5, 2.5, 4, 6],
    [1.2, 1.5, 2, 3],
    [1 + k / 10 for k in range(1, 20)],
    [1.05, 1.1, 1.15, 1.2, 1.25, 1.3],
    DENSE[11:],
    [1 + k / 200 for k in range(1, 21)] + [1 + k / 40 for k in range(5, 80)] + DENSE[15:],
)
POINTS = ([10.0**k for k in range(13)], [1, 3, 10, 30, 100], [1, 2, 5, 10, 20, 50, 100],
          [0.5, 1, 2, 4, 8], DENSE)  # fmt: skip
LIMITED = ([emulated.LITTLE, *POINTS[0][1:]], [emulated.LITTLE, 10, 30, 100], *POINTS[1:])
FEWEST = 3  # ticks
MOST = {"factors": 6, "points": 5}  # of which each has room for its label
LEAST = 1.02  # factor on both sides of 1 that a chart shows at least
LINEAR = 30  # points or percent, up to which an axis of differences is linear
AXES = {
    "speed": "speed against {}",
    "error": "validation error minus that of {}, percentage points (right: worse)",
    "accuracy": "validation accuracy minus that of {}, percentage points (left: worse)",
    "perplexity": "change of validation perplexity from that of {}, % (right: worse)",
}
# Of a row, in inches: a line of words, the strip below them in which it is drawn, and the gap
# to the next. The size of words is that of a page's small print.
LINE, STRIP, GAP = 0.165, 0.19, 0.07
SIZE = 9.0
LETTER = SIZE / 72 * 0.56  # inches of one, on average
DENSE_ROWS, TIGHT = 9, 0.65  # rows, of more of which strips and gaps are a share of their height
FAR = 3.0  # spans of what is native, beyond which what is emulated is an arrow at the edge
ROOM = 0.35  # of that span, for the arrow
LONG = 5  # rows, from which the axis stands above them: a screen shows it before its end
GREY, GOOD, BAD = "#8a8a8a", "#009e73", "#d55e00"
LOOKS = {"small": GOOD, "large": BAD}
LOOKS |= dict.fromkeys((wording.INCONCLUSIVE, "undecided", "incomplete"), GREY)
NOT_SHOWN = "shown neither to be equal nor to differ"  # by an interval, whatever its mean
MANY = 3  # comparisons, of more of which a caption counts the findings
OF_POLICY = re.compile(r"^(, | (?=with ))")  # behind the policy in a label
N = re.compile(r" \(n = (\d+)\)|, n = (\d+)(?=\))")  # repeats, of a finding in words


def comparisons_at_a_glance(chart: Subject) -> Figure:
    """A row for each comparison: its name and finding in words, below them marker and interval.

    A line at no effect; what is inconclusive is grey, what has no interval hollow. What is emulated
    and lies far from the rest is an arrow.
    """
    rows = _rows(chart)
    height = GAP + sum(row.height for row in rows)
    label = textwrap.fill(_axis_label(chart), 44 if style.is_narrow() else 80)
    below = 0.36 + 0.15 * (label.count("\n") + 1 + style.is_narrow())
    figure, (axis,) = style.new(height + below)
    axis.set_ylim(height, 0)
    axis.set_yticks([])
    axis.grid(visible=False)  # a line through words cannot be read
    _scale(axis, chart)
    top = GAP
    for row in rows:
        _draw(axis, row, top, chart)
        top += row.height
    axis.spines["left"].set_visible(False)
    axis.set_xlabel(label)
    if len(chart.drawn) > LONG:
        axis.xaxis.tick_top()
        axis.xaxis.set_label_position("top")
        axis.spines["bottom"].set_visible(False)
        axis.spines["top"].set_visible(True)
    return figure


@dataclass(frozen=True)
class _Row:
    """A comparison in lines of words, or without one the heading of those that follow.

    Attributes:
        names: lines at the left.
        finding: at the right of the last of them, or in a line of its own.
        tight: the share of the usual height that its strip and gap have.
    """

    names: Sequence[str]
    finding: str = ""
    bar: Bar | None = None
    tight: float = 1.0

    @property
    def lines(self) -> int:
        return len(self.names) + (not self._shared)

    @property
    def _shared(self) -> bool:
        """Whether the finding stands in the last line of the names."""
        return len(self.names[-1]) + len(self.finding) + 3 <= _letters()

    @property
    def height(self) -> float:
        return self.lines * LINE + (self.strip + GAP * self.tight if self.bar else GAP)

    @property
    def strip(self) -> float:
        return STRIP * self.tight


def _letters() -> int:
    """How many letters a line of words holds."""
    return int((style.current_width() - 0.2) / LETTER)


def _rows(chart: Subject) -> list[_Row]:
    """The rows of a chart; several groups or policies are headings, one is named by the axis."""
    groups = {bar.group or bar.policy for bar in chart.drawn}
    shared = all(bar.group or OF_POLICY.match(_rest(bar)) for bar in chart.drawn)
    headed = len(groups) > 1 and shared
    said_once = _claims_nothing(chart)  # by the axis
    named, repeats = _common_policy(chart), _repeats(chart)
    tight = TIGHT if len(chart.drawn) > DENSE_ROWS else 1.0
    made = []
    for group, own in groupby(chart.drawn, key=lambda bar: bar.group or bar.policy):
        bars = list(own)
        emulates = " (emulated)" * all(bar.emulated for bar in bars)
        made += [_Row(textwrap.wrap(f"{group}{emulates}", _letters()))] * headed
        for bar in bars:
            cut = bool(named) or (headed and not bar.group)
            name = style.drawable(OF_POLICY.sub("", _rest(bar)) if cut else bar.label)
            name += " (emulated)" * (bar.emulated and not (headed or named))
            finding = _finding(bar, said_once, repeats)
            made.append(_Row(textwrap.wrap(name, _letters())[:4] or [""], finding, bar, tight))
    return made


def _rest(bar: Bar) -> str:
    """What stands behind the policy in the label of a row: `, batch size 32`, ` with AVX2`."""
    return bar.label.removeprefix(bar.policy) if bar.label.startswith(bar.policy) else ""


def _common_policy(chart: Subject) -> str:
    """The policy with which the labels of all rows begin, which the axis then names once."""
    policies = {bar.policy for bar in chart.drawn}
    alike = all(bar.label.startswith(f"{bar.policy}, ") for bar in chart.drawn)
    return policies.pop() if len(policies) == 1 and alike and chart.scale == "speed" else ""


def _axis_label(chart: Subject) -> str:
    alike, label = _common_policy(chart), AXES[chart.scale].format(style.drawable(chart.baseline))
    label = label.replace("speed", f"speed of {alike}", 1) if alike else label
    label = label if chart.baseline else f"{label}the baseline in each heading"
    return label + "; not valid" * _claims_nothing(chart)


def _claims_nothing(chart: Subject) -> bool:
    return all(bar.finding == "not valid" for bar in chart.drawn)


def _repeats(chart: Subject) -> str:
    """The number of repeats where all rows have as many, which the caption then says once."""
    counts = {
        next(filter(None, found.groups())) for b in chart.drawn if (found := N.search(b.text))
    }
    return counts.pop() if len(counts) == 1 else ""


def _finding(bar: Bar, said_once: bool, repeats: str) -> str:
    """The finding of a row; why one is not valid stands above the chart.

    Args:
        said_once: whether the axis says of all rows that they are not valid.
        repeats: how many each row has; empty where each says its own.
    """
    if bar.finding == "not valid":
        return bar.text.partition(" (")[0] + ", not valid" * (not said_once)
    return style.drawable(N.sub("", bar.text) if repeats else bar.text)


def _draw(axis: Axes, row: _Row, top: float, chart: Subject) -> None:
    """The words of a row from `top` on, in inches, and below them its strip."""
    place = {"transform": axis.get_yaxis_transform(), "va": "center", "size": SIZE, "color": INK}
    for k, line in enumerate(row.names):
        weight, above = ("normal", 0.0) if row.bar else ("bold", GAP)
        axis.text(0, top + above + (k + 0.5) * LINE, line, weight=weight, **place)
    if row.bar is None:
        return
    strip = top + row.lines * LINE
    axis.text(1, strip - LINE / 2, row.finding, ha="right", **place)
    ends, lines = (strip + 0.02, strip + row.strip), {"color": INK}
    axis.vlines(axis.get_xticks(), *ends, alpha=0.15, linewidth=0.8, **lines)
    axis.vlines(1 if chart.scale == "speed" else 0, *ends, linewidth=1.2, **lines)
    if chart.scale == "error":
        axis.vlines(emulated.LITTLE, *ends, linewidth=0.8, linestyle=":", **lines)
    _mark(axis, row.bar, sum(ends) / 2)


def _mark(axis: Axes, bar: Bar, place: float) -> None:
    """Marker and interval of a comparison."""
    # float32's own grey would be taken for what is inconclusive.
    policy = INK if bar.policy == "float32" else COLOURS[bar.policy]
    colour = LOOKS.get(bar.finding, policy)
    look = {"color": colour, "marker": MARKERS[bar.policy], "markersize": 7}
    low, high = axis.get_xlim()
    if not low <= bar.value <= high:
        left = bar.value < low
        arrow = look | {"marker": "<" if left else ">", "clip_on": False}
        edge = (low if left else high, place)
        axis.plot(*([at] for at in edge), linestyle="none", **arrow)
        beside = {"xytext": (8 if left else -8, 0), "textcoords": "offset points", "color": colour}
        number = bar.text.partition(" ")[0]
        axis.annotate(number, edge, ha="left" if left else "right", va="center", size=8, **beside)
        return
    if np.isnan(bar.low):
        look["markerfacecolor"] = "none"
    else:  # without caps: an end that stops short of a line must be seen to
        ends = [bar.low, bar.high]
        axis.plot(ends, [place] * 2, color=colour, linewidth=3, solid_capstyle="butt", alpha=0.75)
    axis.plot([bar.value], [place], linestyle="none", **look)


def _scale(axis: Axes, chart: Subject) -> None:
    """The axis of all values and of no effect, with few ticks in words."""
    if chart.scale != "speed":
        ends = _ends(chart.drawn)
        ticks = _difference_ticks(axis, chart, np.nanmin(ends), np.nanmax(ends))
        labels = [wording.signed(tick, "g") if tick else "0" for tick in ticks]
    else:
        axis.set_xscale("log")
        low, high = _span(_within(chart.drawn))
        room, beyond = (high / low) ** 0.08, (high / low) ** ROOM
        far = [bar.value for bar in chart.drawn if not low <= bar.value <= high]
        left = beyond if min(far, default=low) < low else room
        right = beyond if max(far, default=high) > high else room
        axis.set_xlim(low / left, high * right)
        ticks = _ticks(axis, 1.0, FACTORS, lambda factor: 1 / factor, MOST["factors"])
        labels = [_in_words(tick) for tick in ticks]
        # Two lines of a phone's label need half the width.
        labels = [t.replace(" ", "\n") if style.is_narrow() else t for t in labels]
    axis.set_xticks(ticks, labels)
    axis.minorticks_off()


def _ends(bars: Sequence[Bar]) -> np.ndarray:
    """Value, low and high of each row."""
    return np.array([[b.value, b.low, b.high] for b in bars], float)


def _span(bars: Sequence[Bar]) -> tuple[float, float]:
    """The least and the largest ratio that an axis of some rows holds, intervals included."""
    ends = _ends(bars)
    return min(np.nanmin(ends), 1 / LEAST), max(np.nanmax(ends), LEAST)


def _near(bars: Sequence[Bar]) -> Sequence[Bar]:
    """The rows that the axis has to hold: without the emulated ones that would squeeze the others.

    Ratios, whose distance is that of their logarithms.
    """
    native = [bar for bar in bars if not bar.emulated]
    if not native:
        return bars
    near, whole = (np.log(high / low) for low, high in map(_span, (native, bars)))
    return native if whole > FAR * near else bars


def _within(bars: Sequence[Bar]) -> Sequence[Bar]:
    """The rows that the axis holds: those near, and those whose value lies among their intervals.

    Of each the whole interval: one that ended at the edge would look as if it did end there.
    """
    within = _near(bars)
    while True:
        low, high = _span(within)
        more = [bar for bar in bars if low <= bar.value <= high or bar in within]
        if len(more) == len(within):
            return within
        within = more


def _difference_ticks(axis: Axes, chart: Subject, low: float, high: float) -> Sequence[float]:
    """The ticks of an axis of points or percent, which it makes logarithmic where they go far."""
    if max(-low, high) <= LINEAR and chart.scale != "error":
        low, high = min(low, 0), max(high, 0)
        room = 0.06 * max(high - low, 1.0)
        low, high = low - room, high + room
        axis.set_xlim(low, high)
        ticks = MaxNLocator(MOST["points"] - 1, min_n_ticks=FEWEST).tick_values(low, high)
        return [tick for tick in ticks if low <= tick <= high]
    limited = chart.scale == "error"
    axis.set_xscale("symlog", linthresh=emulated.LITTLE if limited else 1, linscale=0.8)
    axis.set_xlim(min(low * 1.3, -0.6), max(high * 1.3, 0.6))
    levels = LIMITED if limited else POINTS
    return _ticks(axis, 0.0, levels, lambda points: -points, MOST["points"])


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
    of_error = chart.scale in ("error", "speed")
    open_ = wording.INCONCLUSIVE if of_error else NOT_SHOWN
    words |= {"undecided": open_, "incomplete": open_}
    words |= {"no interval": "without an interval"}
    counts = Counter(words.get(bar.finding, bar.finding) for bar in chart.bars)
    said = wording.listed([f"{n} {finding}" for finding, n in counts.items()])
    drawn = f"drawn are {len(chart.drawn)}, the ends" * (len(chart.bars) > len(chart.drawn))
    several = len(chart.bars) > MANY
    counted = chart.scale == "error" and any(bar.group for bar in chart.drawn)  # in the headings
    said = f": {said}" * (not counted) + f"; {drawn}" * bool(drawn)
    parts = [f"Of {len(chart.bars)} comparisons{said}."] * (several and bool(said))
    parts += wording.unless_said(chart.usual)
    letters = style.key([bar.label for bar in chart.drawn])
    parts += [f"Letters that the figures' font lacks: {letters}."] * bool(letters)
    parts += [_fixed_point(chart), _bars(chart), _scaled(chart)]
    grey = any(LOOKS.get(bar.finding) == GREY and not np.isnan(bar.low) for bar in chart.drawn)
    parts += [f"Grey: {open_}."] * grey
    hollow = [words.get(bar.finding, bar.finding) for bar in chart.drawn if np.isnan(bar.low)]
    parts += [f"Hollow: {wording.listed([*dict.fromkeys(hollow)])}."] * bool(hollow)
    far = chart.scale == "speed" and len(_within(chart.drawn)) < len(chart.drawn)
    parts += ["Arrow: beyond the axis, emulated."] * far
    return " ".join(filter(None, parts))


def _bars(chart: Subject) -> str:
    """What bars and brackets are, and of how many repeats."""
    if all(np.isnan(bar.low) for bar in chart.drawn):
        return ""
    together = chart.together and len(chart.drawn) > 1 and chart.scale == "speed"
    which = "simultaneous " * together + "95 % intervals"
    which += " under each heading" * (together and not chart.baseline)
    repeats = _repeats(chart)
    n = f" from {repeats} repeats" if repeats else "; n: repeats"
    both = "; some repeats were measured twice, and intervals cover both results" * chart.again
    return f"Bars and brackets: {which}{n}{both}."


def _scaled(chart: Subject) -> str:
    """The dotted line, and from where on the axis is logarithmic."""
    if chart.scale == "error":
        limit = f"{emulated.LITTLE:g} points"
        return f"The dotted line is at {limit}, beyond which the axis is logarithmic."
    if chart.scale == "speed" or np.nanmax(np.abs(_ends(chart.drawn))) <= LINEAR:
        return ""
    return f"Beyond 1 {'%' if chart.scale == 'perplexity' else 'point'} the axis is logarithmic."


def _fixed_point(chart: Subject) -> str:
    """What `<8,8>`, `dynamic<10>` and `binary` mean, of the first such format of a row."""
    labels = " ".join(bar.label for bar in chart.drawn)
    said = []
    if fixed := re.search(r"(?<!dynamic)<(\d+),(\d+)>", labels):
        whole, fraction = fixed.groups()
        said.append(
            f"{fixed[0]}: fixed point, {whole} bits before the binary point, {fraction} behind it."
        )
    if dynamic := re.search(r"dynamic<(\d+)>", labels):
        said.append(f"{dynamic[0]}: of {dynamic[1]} bits, its range follows the values.")
    said += ["binary: −1 and +1."] * bool(re.search(r"\bbinary\b", labels))
    return " ".join(said)


def _values(chart: Subject) -> str:
    """Every row in words."""
    headed = chart.scale == "speed"
    words = "; ".join(
        f"{f'{bar.group}, ' * (headed and bool(bar.group))}{bar.label}: {bar.text}"
        for bar in chart.drawn
    )
    return re.sub(r"\[([^,]+), ([^\]]+)\]", r"(\1 to \2)", words) + "."  # a link in Markdown


FIGURES = (
    FigureRow(
        "answer",
        "answer",
        "The answer",
        "A marker with an interval for each comparison, beside a line at no effect.",
        lambda sweep: single(sweep.subject, bool(sweep.subject.bars)),
        comparisons_at_a_glance,
        _caption,
        _values,
    ),
)
