"""Loss scales: which of them train."""

from collections.abc import Iterator, Sequence

from mptexp.analysis import loss_scale, summary
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import caveats, loss_scales
from mptexp.report.first_screen.subject import NAMED, Subject, provisional, unclaimed
from mptexp.report.text import wording


def of(tables: Tables) -> Iterator[Subject]:
    """The loss scales that train, of the first point that has several."""
    points = loss_scales.by_point(loss_scale.table(tables))
    points = [(title, rows) for title, rows in points if set(rows.policy) != {"float32"}]
    if not points:
        return
    doubtful, margin = bool(caveats.doubts(tables, "accuracy")), tables.options.equivalence_margin
    if doubtful:
        points = [(title, loss_scales.by_means(rows, margin)) for title, rows in points]
    # Of several points one that fails decides; what trains is said of the first.
    cases = [(str(number), *point) for number, point in enumerate(points, 1)]
    based = [one for one in cases if not loss_scales.without_baseline(one[2])] or cases
    failing = [one for one in based if loss_scales.fails(one[2])]
    case, name, rows = (failing or based)[0]
    titles, advices = (
        {say(own) for *_, own in based}
        for say in (loss_scales.title, lambda own: loss_scales.advice(own, margin))
    )
    # What is said of every setting alike needs none of them; a device is named.
    devices = tables.results.gpu_model.nunique() > 1
    place = loss_scales.where(name) * (len(titles) > 1 or devices)
    title = wording.capitalized(place) + loss_scales.title(rows)
    if len(failing) > 1 and place:
        title += f"; some scale fails in {len(failing)} of {wording.count(len(based), 'setting')}"
    order = sorted(cases, key=lambda one: not loss_scales.fails(one[2]))
    sentences = _named([s for _, of, own in order for s in loss_scales.sentences(own, of)])
    if doubtful:
        title, sentences = provisional(title), unclaimed(sentences)
    of = loss_scales.where(wording.verbatim(name)) * (len(advices) > 1 or devices)
    own = of + loss_scales.advice(rows, margin)
    runs = tables.ok[tables.ok.run_id.isin({run_id for ids in rows.run_ids for run_id in ids})]
    slow = summary.emulated(runs)
    emulated = [policy for policy in dict.fromkeys(rows.policy) if policy in slow]
    if own and emulated:
        own += f" This device emulates {wording.listed(emulated)}: slower training is expected."
    spoils = "" if loss_scales.lacks_float32(rows) else caveats.remedies(tables, "accuracy")
    advice = spoils or own
    yield Subject(title, sentences, advice=advice, figure="loss scale", case=case)


def _named(sentences: Sequence[str]) -> list[str]:
    """The first NAMED sentences; of more, how many."""
    more = len(sentences) - NAMED
    if more <= 0:
        return [*sentences]
    told = f"{sentences[NAMED - 1]} {wording.count(more, 'more finding')}: see the table."
    return [*sentences[: NAMED - 1], told]
