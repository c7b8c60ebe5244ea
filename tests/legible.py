"""What is wrong with a drawn figure, as a reader sees it: text, ticks, points out of place."""

import numpy as np
from matplotlib.text import Text

SLACK = 1.5  # pixels


def faults(figure):
    """A sentence for each: raw markup, text over text or cut off, points outside the view."""
    figure.draw_without_rendering()
    texts = list(_texts(figure))
    boxes = np.array([text.get_window_extent().extents for text in texts]).reshape(-1, 4)
    for text, cut_off in zip(texts, _beyond(boxes, figure.bbox), strict=True):
        words = text.get_text()
        if "$" in words or "\\math" in words:
            yield f"raw markup: {words}"
        if cut_off:
            yield f"outside the figure: {words!r}"
    for one, other in _overlapping(boxes):
        yield f"overlap: {texts[one].get_text()!r} and {texts[other].get_text()!r}"
    for axis in figure.axes:
        if axis.get_visible():
            yield from _few_ticks(axis)
            yield from _equal_labels(axis)
            yield from _out_of_view(axis)


def _beyond(boxes, outer):
    """Which boxes (left, bottom, right, top) are not within another one."""
    inwards = np.array([1, 1, -1, -1])
    return ((boxes - outer.extents) * inwards < -SLACK).any(axis=1)


def _overlapping(boxes):
    """The places of each two boxes that overlap, the earlier first."""
    (left, bottom, right, top) = boxes.T
    wide, high = (
        np.minimum.outer(end, end) - np.maximum.outer(begin, begin) > SLACK
        for begin, end in ((left, right), (bottom, top))
    )
    return np.argwhere(np.triu(wide & high, 1))


def _few_ticks(axis):
    """Of fewer than three ticks of a logarithmic scale no value can be read."""
    for which in (axis.xaxis, axis.yaxis):
        low, high = sorted(which.get_view_interval())
        ticks = [tick for tick in which.get_majorticklocs() if low <= tick <= high]
        if which.get_scale() in ("log", "symlog") and len(ticks) < 3:
            yield f"{len(ticks)} ticks from {low:g} to {high:g}"


def _equal_labels(axis):
    """Two ticks of one label: one of them is false."""
    hidden = {id(text) for text in _hidden(axis)}
    for which in (axis.xaxis, axis.yaxis):
        shown = [tick.label1 for tick in which.get_major_ticks() if id(tick.label1) not in hidden]
        labels = [text.get_text() for text in shown]
        for label in {label for label in labels if label and labels.count(label) > 1}:
            yield f"{labels.count(label)} ticks with the label {label!r}"


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


def _out_of_view(axis):
    """A sentence for each point of an axis that it does not show."""
    points = np.concatenate([np.empty((0, 2)), *_points(axis)])
    low, high = np.sort([axis.get_xlim(), axis.get_ylim()]).T
    beyond = ((points < low) | (points > high)).any(axis=1) & ~np.isnan(points).any(axis=1)
    for point in points[beyond]:
        yield f"outside the view: {point}"


def _points(axis):
    for line in axis.lines:
        if line.get_marker() not in ("None", "", None, " ") and line.get_clip_on():
            yield np.column_stack([np.asarray(values, float) for values in line.get_data()])
    for drawn in axis.collections:
        if drawn.get_offset_transform() == axis.transData:
            yield np.ma.filled(drawn.get_offsets().astype(float), np.nan)
