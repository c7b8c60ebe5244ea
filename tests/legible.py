"""What is wrong with a drawn figure, as a reader sees it: text, ticks, points out of place."""

from itertools import combinations

import numpy as np
from matplotlib.text import Text

SLACK = 1.5  # pixels


def faults(figure):
    """A sentence for each: raw markup, text over text or cut off, points outside the view."""
    figure.draw_without_rendering()
    texts = [(t, t.get_window_extent()) for t in _texts(figure)]
    for text, box in texts:
        words = text.get_text()
        if "$" in words or "\\math" in words:
            yield f"raw markup: {words}"
        if not _within(box, figure.bbox):
            yield f"outside the figure: {words!r}"
    for (one, a), (other, b) in combinations(texts, 2):
        if min(a.x1, b.x1) - max(a.x0, b.x0) > SLACK and min(a.y1, b.y1) - max(a.y0, b.y0) > SLACK:
            yield f"overlap: {one.get_text()!r} and {other.get_text()!r}"
    for axis in figure.axes:
        yield from _few_ticks(axis) if axis.get_visible() else ()
        for xy in _points(axis) if axis.get_visible() else ():
            if not _within_view(axis, xy):
                yield f"outside the view: {xy}"


def _few_ticks(axis):
    """Of fewer than three ticks of a logarithmic scale no value can be read."""
    for which in (axis.xaxis, axis.yaxis):
        low, high = sorted(which.get_view_interval())
        ticks = [tick for tick in which.get_majorticklocs() if low <= tick <= high]
        if which.get_scale() in ("log", "symlog") and len(ticks) < 3:
            yield f"{len(ticks)} ticks from {low:g} to {high:g}"


def _texts(figure):
    hidden = {id(text) for axis in figure.axes for text in _hidden(axis)}
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden:
            yield text


def _hidden(axis):
    """Labels of ticks beyond the view, which matplotlib keeps and does not draw."""
    if not axis.get_visible():
        yield from axis.findobj(Text)
    for which in (axis.xaxis, axis.yaxis):
        low, high = sorted(which.get_view_interval())
        for tick in [*which.get_major_ticks(), *which.get_minor_ticks()]:
            room = 1e-6 * (low if which.get_scale() == "log" else high - low)
            if not tick.get_visible() or not low - room <= tick.get_loc() <= high + room:
                yield from (tick.label1, tick.label2)


def _within(box, outer):
    return (
        box.x0 >= outer.x0 - SLACK
        and box.x1 <= outer.x1 + SLACK
        and box.y0 >= outer.y0 - SLACK
        and box.y1 <= outer.y1 + SLACK
    )


def _points(axis):
    for line in axis.lines:
        if line.get_marker() not in ("None", "", None, " ") and line.get_clip_on():
            yield from zip(*line.get_data(), strict=True)
    for drawn in axis.collections:
        offsets = drawn.get_offsets()
        if drawn.get_offset_transform() == axis.transData:
            yield from np.ma.filled(offsets.astype(float), np.nan)


def _within_view(axis, xy):
    x, y = (float(v) for v in xy)
    if np.isnan(x) or np.isnan(y):
        return True
    (left, right), (low, high) = sorted(axis.get_xlim()), sorted(axis.get_ylim())
    return left <= x <= right and low <= y <= high
