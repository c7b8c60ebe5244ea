"""Loss scales: which of them train."""

from collections.abc import Iterator, Sequence

import pandas as pd

from mptexp.analysis import loss_scale, summary
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import caveats, findings, loss_scales
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
    titles = {loss_scales.title(own) for *_, own in based}
    advices = {of: loss_scales.advice(own, margin) for _, of, own in based}
    several = len({*advices.values()}) > 1
    # What is said of every setting alike needs none of them; a device is named.
    devices = tables.results.gpu_model.nunique() > 1
    place = loss_scales.where(name) * (len(titles) > 1 or devices)
    title = wording.capitalized(place) + loss_scales.title(rows)
    if others := [of for _, of, _ in based if of != name] * (len(titles) > 1):
        alone = loss_scales.where(others[0]).rstrip(": ")
        counted = f"in {wording.count(len(others), 'other setting')}"
        title += f"; otherwise {alone if len(others) == 1 else counted}"
    order = sorted(cases, key=lambda one: not loss_scales.fails(one[2]))
    sentences = _named([s for _, of, own in order for s in loss_scales.sentences(own, of)])
    if doubtful:
        title, sentences = provisional(title), unclaimed(sentences)
    first = [name, *(of for of in advices if of != name)][: NAMED if several else 1]
    each = [
        loss_scales.where(wording.verbatim(of)) * (several or devices) + advices[of]
        for of in first
        if advices[of]
    ]
    own = " ".join([*each[:1], *map(wording.capitalized, each[1:])])
    own = _slower(tables, rows) or own
    own += _without_result(tables, rows) * bool(own)
    runs = tables.ok[tables.ok.run_id.isin({run_id for ids in rows.run_ids for run_id in ids})]
    slow = summary.emulated(runs)
    emulated = [policy for policy in dict.fromkeys(rows.policy) if policy in slow]
    if own and emulated:
        own += f" This device emulates {wording.listed(emulated)}: slower training is expected."
    spoils = "" if loss_scales.lacks_float32(rows) else caveats.remedies(tables, "accuracy")
    advice = spoils or own
    yield Subject(title, sentences, advice=advice, figure="loss scale", case=case)


def _slower(tables: Tables, rows: pd.DataFrame) -> str:
    """To keep float32, where the device computes every other policy's type itself, and slower."""
    said, speeds = [], findings.compared(tables)
    for policy in _others(rows) if len(speeds) else ():
        own = speeds[(speeds.policy == policy) & ~speeds.emulated.astype(bool)]
        if own.empty or (own.apply(wording.finding, axis=1) != "slower").any():
            return ""
        ends = [wording.factor(1 / own.speedup.max()), wording.factor(1 / own.speedup.min())]
        times = " to ".join(f"{end}×" for end in dict.fromkeys(ends))
        said.append(f"**{policy}** trains {times} slower here")
    return f"keep float32: {wording.listed(said)}, whatever its loss scale." if said else ""


def _others(rows: pd.DataFrame) -> list[str]:
    return [name for name in dict.fromkeys(rows.policy) if name != "float32"]


def _without_result(tables: Tables, rows: pd.DataFrame) -> str:
    """That runs of the policies failed, or took too long."""
    said = []
    for policy in _others(rows):
        runs = tables.results[tables.results.policy == policy]
        bad = int(runs.status.isin(["failed", "killed", "timeout"]).sum())
        said += [
            f" Find out why {bad} of {wording.count(len(runs), 'run')} of **{policy}** failed or "
            "took too long."
        ] * bool(bad)
    return "".join(said)


def _named(sentences: Sequence[str]) -> list[str]:
    """The first NAMED sentences; of more, how many."""
    more = len(sentences) - NAMED
    if more <= 0:
        return [*sentences]
    told = f"{sentences[NAMED - 1]} {wording.count(more, 'more finding')}: see the table."
    return [*sentences[: NAMED - 1], told]
