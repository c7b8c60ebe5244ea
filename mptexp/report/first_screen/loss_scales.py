"""Loss scales: which of them train."""

from collections.abc import Iterator

from mptexp.analysis import loss_scale
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import caveats, loss_scales
from mptexp.report.first_screen.parts import NAMED, Subject, provisional, unclaimed
from mptexp.report.text import wording


def of(tables: Tables) -> Iterator[Subject]:
    """The loss scales that train, of the first point that has several."""
    points = loss_scales.by_point(loss_scale.table(tables))
    if not points:
        return
    doubtful = bool(caveats.doubts(tables, "accuracy"))
    if doubtful:
        margin = tables.options.equivalence_margin
        points = [(title, loss_scales.by_means(rows, margin)) for title, rows in points]
    # Of several points one that fails decides; what trains is said of the first.
    cases = [(str(number), *point) for number, point in enumerate(points, 1)]
    based = [one for one in cases if not loss_scales.without_baseline(one[2])] or cases
    case, name, rows = next((one for one in based if loss_scales.fails(one[2])), based[0])
    title = f"With {name}: " * bool(name) + loss_scales.title(
        rows, tables.options.equivalence_margin
    )
    sentences = [text for title, rows in points for text in loss_scales.sentences(rows, title)]
    if doubtful:
        title, sentences = provisional(title), unclaimed(sentences)
    own = f"with {wording.verbatim(name)}: " * bool(name) + loss_scales.advice(
        rows, tables.options.equivalence_margin
    )
    advice = caveats.remedies(tables, "accuracy") or own
    yield Subject(title, sentences[:NAMED], advice=advice, figure="loss scale", case=case)
