"""Loss scales: which of them train."""

from collections.abc import Iterator

from mptexp.analysis import loss_scale
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import caveats, loss_scales
from mptexp.report.first_screen.opening import NAMED, Subject, provisional, unclaimed


def of(tables: Tables) -> Iterator[Subject]:
    """The loss scales that train, of the first point that has several."""
    points = loss_scales.by_point(loss_scale.table(tables))
    if not points:
        return
    doubtful = bool(caveats.doubts(tables, "accuracy"))
    if doubtful:
        margin = tables.options.equivalence_margin
        points = [(title, loss_scales.by_means(rows, margin)) for title, rows in points]
    title = loss_scales.title(points[0][1])
    sentences = [text for title, rows in points for text in loss_scales.sentences(rows, title)]
    if doubtful:
        title, sentences = provisional(title), unclaimed(sentences)
    advice = caveats.remedies(tables, "accuracy") or loss_scales.advice(points[0][1])
    yield Subject(title, sentences[:NAMED], advice=advice, figure="loss scale")
