"""What all figures share: colours, ink, panels, axes and legend."""

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mptexp.analysis import points
from mptexp.host import imports
from mptexp.host.terminal import visible
from mptexp.report.text import wording
from mptexp.spec.policies import POLICY_ROWS

if TYPE_CHECKING:
    import seaborn as sns
else:  # imported at first use: it takes a second, and most figures have no need of it
    # Half of its time is scipy's statistics, for densities, which no figure here shows.
    sns = imports.Lazy("seaborn", unused="scipy.stats")

COLOURS = {name: row.colour for name, row in POLICY_ROWS.items()}
MARKERS = {name: row.marker for name, row in POLICY_ROWS.items()}
# Ink is drawn in this colour and replaced by the page's own: it must occur nowhere else.
INK = "#010203"
STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.facecolor": "none",
    "grid.alpha": 0.15,
    "grid.color": INK,
    "legend.frameon": False,
    "savefig.facecolor": "none",
    "svg.hashsalt": "mptexp",
    "text.parse_math": False,  # a name may hold dollar signs
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
# What a user has set for their own figures changes none of these, but for where they are shown.
SHOWN = ("backend", "interactive", "toolbar", "timezone", "tk.", "webagg.", "date.epoch")
DEFAULTS = {
    name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith(SHOWN)
}
WIDTH = 8.2  # inches, of every figure
LEAD_WIDTH = 6.4  # of the chart beside the answer
PHONE_WIDTH = 3.9
LETTER = 0.085  # inches of one in a legend, or of a digit below an axis
_width: ContextVar[float] = ContextVar("width", default=WIDTH)
PANELS = 9  # of a figure: more are not read, and take long to draw
VECTORS = 2000  # dots or lines drawn as vectors; more of them become one raster image
BESIDE = 0.8  # inches beside a panel: the labels of its y axis
FEWEST, DECADES = 3, 9  # ticks of a logarithmic axis: of fewer no value can be read
Panel = tuple[str, pd.DataFrame]
T = TypeVar("T")


# --- width ---------------------------------------------------------------------------------------


@contextmanager
def width(inches: float) -> Iterator[None]:
    """Figures drawn within have another width; on a narrow one, panels stand below one another."""
    before = _width.set(inches)
    try:
        yield
    finally:
        _width.reset(before)


def on_both(draw: Callable[[], T], inches: float = WIDTH) -> list[T]:
    """What is drawn wide, and for a phone."""
    made = []
    for one in (inches, PHONE_WIDTH):
        with width(one):
            made.append(draw())
    return made


def current_width() -> float:
    """Inches of what is drawn."""
    return _width.get()


def is_narrow() -> bool:
    """Whether what is drawn is for a phone."""
    return _width.get() <= PHONE_WIDTH


@contextmanager
def ours() -> Iterator[None]:
    """What is drawn within looks the same whatever matplotlib was told before."""
    with matplotlib.rc_context(DEFAULTS | STYLE):
        yield


# --- axes ------------------------------------------------------------------------------------


def new(
    height: float, rows: int = 1, columns: int = 1, **shared: bool
) -> tuple[Figure, list[Axes]]:
    """An empty figure in the common style and its axes, row by row.

    Args:
        height: inches.
        shared: `sharex` and `sharey` of matplotlib's `subplots`.
    """
    with matplotlib.rc_context(STYLE):
        # Without pyplot, which would keep it open, and in a window where there is a screen.
        figure = Figure((_width.get(), height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **shared)
    return figure, list(axes.flat)


def chosen(data: list[Panel]) -> list[Panel]:
    """The panels that a figure has room for, evenly chosen; what its caption speaks of."""
    shown = min(len(data), PANELS)
    return [data[k] for k in np.linspace(0, len(data) - 1, shown).round().astype(int)]


def drawn(data: list[Panel]) -> pd.DataFrame:
    """The rows of those panels."""
    return pd.concat([part for _, part in chosen(data)])


def panels(data: list[Panel], height: float = 3.4) -> tuple[Figure, list[tuple[Axes, Panel]]]:
    """A figure of panels, two in a row or one on a phone, and what to draw on each of its axes.

    Of more than PANELS some are left out, evenly, which the figure's label says.
    """
    shown = min(len(data), PANELS)
    across = 1 if is_narrow() else 2
    rows, height = -(-shown // across), height * (0.75 if is_narrow() else 1)
    figure, axes = new(height * rows, rows, min(shown, across), sharey=True)
    for axis in axes[shown:]:
        axis.set_visible(False)
    if shown < len(data):
        figure.set_label(f"{shown} of {len(data):,} panels are shown, evenly chosen.")
    return figure, list(zip(axes, chosen(data), strict=False))


def log_scale(axes: Axes, name: str = "y", base: int = 10) -> None:
    """Makes the axis x or y logarithmic, its ticks plain numbers; call it after plotting.

    matplotlib's own labels are mathematical markup, which is shown as it is where names may hold
    dollar signs (see STYLE).
    """
    {"x": axes.set_xscale, "y": axes.set_yscale}[name]("log", base=base)
    axis = {"x": axes.xaxis, "y": axes.yaxis}[name]
    if base == 10:
        axis.set_major_locator(_RoundNumbers())
    else:
        low, high = axis.get_view_interval()
        if high / low < base**FEWEST:
            axes.set(**{f"{name}lim": (low / base, high * base)})
    text = wording.power if base == 2 else _number
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: text(value)))


class _RoundNumbers(matplotlib.ticker.LogLocator):
    """Ticks of a logarithmic axis: the wider its view, the rounder, and never fewer than three."""

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        low, high = sorted((vmin, vmax))
        exponents = np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        if high / low > 1000:
            every = math.ceil((len(exponents) - 2) / DECADES)  # two of them may be out of view
            ticks = 10.0 ** exponents[exponents % every == 0]
        else:
            steps = (1, 2, 5) if high / low > 30 else (1, 2, 3, 5)
            ticks = np.outer(10.0**exponents, steps).ravel()
        if high / low < 4 or sum((low <= ticks) & (ticks <= high)) < FEWEST:
            ticks = matplotlib.ticker.MaxNLocator(
                6, steps=(1, 2, 5, 10), min_n_ticks=FEWEST
            ).tick_values(low, high)
        return ticks[ticks > 0]


def _number(value: float) -> str:
    """A tick's number, `0.5` or `1,000`; beyond six digits a power of ten."""
    if 1e-4 <= value < 1e6:
        return f"{value:,g}"
    exponent = math.floor(math.log10(value))
    factor = f"{value / 10.0**exponent:g}"
    power = "10" + str(exponent).translate(wording.RAISED)
    return power if factor == "1" else f"{factor}·{power}"


def legend(figure: Figure, columns: int = 0) -> None:
    """Names above the panels what any of them draws, in one row unless `columns` or fewer fit."""
    entries: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    handles, labels = [*entries.values()], [*entries]
    with matplotlib.rc_context(STYLE):
        longest = max(map(len, labels), default=1) * LETTER + 0.5
        ncols = min(columns or len(labels) or 1, max(int(_width.get() / longest), 1))
        figure.legend(handles, labels, loc="outside upper left", ncols=ncols)


# --- policies and batch sizes ------------------------------------------------------------------


def policies(table: pd.DataFrame, column: str = "policy") -> list[str]:
    """The policies in a column, in the order of all tables and figures."""
    return [name for name in POLICY_ROWS if name in set(table[column])]


def offset(index: int, of: int) -> float:
    """How far one of several policies stands to the side of its batch size, lest dots overlap.

    However many they are, each stays nearer to its own batch size than to the next.
    """
    return (index - (of - 1) / 2) * min(0.16, 0.8 / of)


def places(table: pd.DataFrame) -> dict[int, int]:
    """Batch sizes as evenly spaced places: they are doubled, not added."""
    return {size: place for place, size in enumerate(sorted(table.batch_size.unique()))}


def label_batches(axis: Axes, places: dict[int, int]) -> None:
    """Names the batch sizes on the x axis; only some where a panel has no room for all."""
    room = _width.get() / axis.get_gridspec().ncols - BESIDE
    every = math.ceil(len(places) * (len(str(max(places))) + 1) * LETTER / room)
    labels = [str(size) if place % every == 0 else "" for size, place in places.items()]
    axis.set_xticks(list(places.values()), labels)
    axis.set_xlim(-0.5, len(places) - 0.5)
    axis.set_xlabel("batch size")


# --- titles of panels --------------------------------------------------------------------------


@cache
def _drawn_letters() -> frozenset[int]:
    """What the font of the figures has."""
    path = font_manager.findfont(font_manager.FontProperties())
    return frozenset(font_manager.get_font(path).get_charmap())


def drawable(text: str) -> str:
    """Text for a figure, letters that its font lacks as escapes: all would be the same box."""
    return "".join(
        c if ord(c) in _drawn_letters() else c.encode("unicode_escape").decode()
        for c in visible(text)
    )


def key(texts: Sequence[str]) -> str:
    """`\\u732b: 猫`: what stands for which letter in some texts of a figure."""
    letters = dict.fromkeys(c for text in texts for c in visible(text) if drawable(c) != c)
    return ", ".join(f"{drawable(letter)}: {letter}" for letter in letters)


def wrapped(title: str) -> str:
    """A panel's title in lines that fit over it."""
    return textwrap.fill(drawable(title), 32 if is_narrow() else 40, max_lines=6)


def by_panel(table: pd.DataFrame) -> list[Panel]:
    """The rows of each point but for its batch size, behind the panel's title."""
    names = [n for n in points.POINT if n != "batch_size" and table[n].nunique() > 1]
    table = table.sort_values(names, key=points.rank, kind="stable") if names else table
    return [(str(name), part) for name, part in table.groupby(_titles(table), sort=False)]


def by_point(table: pd.DataFrame) -> list[Panel]:
    """The rows of each point, behind the panel's title: of runs, one row or many each."""
    table = table.sort_values(["batch_size", "setting"], key=points.rank, kind="stable")
    runs = table.drop_duplicates("run_id").set_index("run_id")  # titles are formed once per run
    titles, batches = _titles(runs), "batch size " + runs.batch_size.astype(str)
    if titles.nunique() == 1:
        titles = batches
    elif batches.nunique() > 1:
        titles = (titles + ", " + batches).str.removeprefix(", ")
    return list(table.groupby(table.run_id.map(titles), sort=False))


def _titles(table: pd.DataFrame) -> pd.Series:
    """As wording.panels, without the device where there is one and more than one panel."""
    titles = wording.panels(table)
    if table.gpu_model.nunique() == 1 and titles.nunique() > 1:
        return titles.str.slice(len(table.gpu_model.iloc[0]) + len(", "))
    return titles
