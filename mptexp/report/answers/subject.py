"""What a sweep asks about, and what it answers: title, comparisons, sentences, what to do.

Most sweeps ask about the speed of policies; some about loss scales, emulated formats, instruction
sets, replicas, frameworks or plain loops. Each opens its report with its own comparisons. Where
nothing can be claimed, the title is what was measured, said to be provisional.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from mptexp.analysis import (
    accuracy,
    contrast,
    emulated,
    exponent_range,
    identity,
    loss_scale,
    scaling,
    summary,
    validity,
)
from mptexp.analysis import advice as advices
from mptexp.analysis.contrast import MOST_REPEATS, Contrast
from mptexp.analysis.points import of_task, rank
from mptexp.analysis.sweep_tables import Options, Tables
from mptexp.report.answers import (
    caveats,
    comparisons,
    dynamic_range,
    findings,
    loss_scales,
    low_precision,
    quantized_inference,
)
from mptexp.report.text import columns, measures, wording
from mptexp.report.text.measures import Measure
from mptexp.report.text.parameter_values import in_words
from mptexp.report.text.wording import INCONCLUSIVE, listed, verbatim
from mptexp.spec.backends import LABELS

Scale = Literal["speed", "error", "accuracy", "perplexity"]
MOST = 12  # rows of the chart; of more, the least and the largest of each policy
MARGIN = Options.equivalence_margin  # of accuracies that a title calls equal without a word more
NAMED = 3  # comparisons that a sentence lists
PROVISIONAL = "Provisional"
MORE_REPEATS = "more repeats would narrow the inconclusive intervals"
MANY_REPEATS = f"to show effects as small as those measured would take over {MOST_REPEATS} repeats"
RESIDENT = "resident"  # an input mode in which nobody can train: one batch, again and again


@dataclass(frozen=True)
class Bar:
    """A comparison: a row of the chart.

    Attributes:
        label: what is compared with the baseline.
        policy: whose colour and marker the row has.
        value: a speedup, or a difference in percentage points; low, high: its interval, NaN where
            nothing is claimed.
        finding: faster, slower, small, large, equal, lower, ..., inconclusive, not valid.
        text: the same in words, as the report's table has it.
    """

    label: str
    policy: str
    value: float
    low: float
    high: float
    finding: str
    text: str


@dataclass(frozen=True)
class Subject:
    """What opens a report.

    Attributes:
        title: the finding in a few words, plain text.
        bars: the comparisons with one baseline; empty where there are none.
        baseline: its name.
        scale: of the bars.
        sentences: Markdown, the best proven first.
        advice: what to do, Markdown; empty where nothing follows.
        figure: the section of the registry whose first figure is the chart.
        usual: what holds of every bar whose label does not say otherwise; empty of nothing.
    """

    title: str
    sentences: Sequence[str]
    bars: Sequence[Bar] = ()
    baseline: str = ""
    scale: Scale = "speed"
    advice: str = ""
    figure: str = "answer"
    usual: str = ""


def of(tables: Tables) -> Subject:
    """The subject of a sweep: the first of SUBJECTS that has anything to say of it."""
    if tables.ok.empty and (tables.results.status != "diverged").all():
        return Subject("No run of this sweep succeeded", [findings.NONE_SUCCEEDED])
    return next(subject for of_kind in SUBJECTS for subject in of_kind(tables))


def device(tables: Tables) -> str:
    """The names of the devices: `AMD EPYC (2 cores)`."""
    return listed(sorted(set(tables.results.gpu_model)))


def _provisional(title: str) -> str:
    """A title of what was measured, but cannot be claimed."""
    return f"{PROVISIONAL}: {title}"


def _unclaimed(sentences: Sequence[str]) -> list[str]:
    """Sentences on what was measured; the first says that nothing of it is claimed."""
    return [f"{wording.NO_CLAIM}. {sentences[0]}", *sentences[1:]] if sentences else []


# --- speed of policies ----------------------------------------------------------------------------


def _speed(tables: Tables) -> Iterator[Subject]:
    rows = findings.compared(tables)
    if rows.empty:
        return
    rows = rows.assign(finding=rows.apply(wording.finding, axis=1))
    if not _claims(rows) and _asks_for_accuracy(tables):
        yield from _only_accuracy(tables)
        return
    rows = rows.sort_values(["emulated", "policy"], key=_order, kind="stable")
    base = rows.baseline.iloc[0]
    bars = [
        _bar(row, f"{row['policy']}, {row['place']}" if rows.place.nunique() > 1 else row["policy"])
        for row in _few(rows).to_dict("records")
    ]
    name = wording.default_name(base) if rows.baseline.nunique() == 1 else "the default"
    title, advice = _speed_title(rows, tables), _speed_advices(rows, tables)
    usual = wording.usual(rows)
    yield Subject(title, findings.answer(tables), bars, name, advice=advice, usual=usual)


def _claims(rows: pd.DataFrame) -> bool:
    """Whether anything may be said of any speedup."""
    return not rows.finding.isin(["not valid", "no interval"]).all()


def _asks_for_accuracy(tables: Tables) -> bool:
    """Whether every run shared the machine on purpose, and accuracies can be compared.

    On purpose is beside others of its sweep, or at a lowered priority.
    """
    shared = [
        "in parallel" in validity.names_of(flags)
        or (identity.of(tables.records_by_id[run_id]) or {}).get("nice", 0) > 0
        for run_id, flags in zip(tables.ok.run_id, tables.ok["flags"], strict=True)
    ]
    return all(shared) and not accuracy.differences(tables).verdict.isin(accuracy.UNDECIDABLE).all()


def _order(column: pd.Series) -> pd.Series:
    return rank(column) if column.name == "policy" else column.astype(bool)


def _few(rows: pd.DataFrame) -> pd.DataFrame:
    """All rows, or the least and the largest of each policy on each device, at most MOST."""
    if len(rows) > MOST:
        groups = rows.groupby(["gpu_model", "policy"], sort=False).speedup
        rows = rows.loc[
            [k for ends in zip(groups.idxmin(), groups.idxmax(), strict=True) for k in ends]
        ][:MOST]
    return rows


def _bar(row: Mapping[str, Any], label: str) -> Bar:
    word = wording.finding(row)
    ends = (np.nan, np.nan) if word == "not valid" else (row["low"], row["high"])
    return Bar(label, row["policy"], row["speedup"], *ends, word, wording.ratio_of(row))


def _speed_title(rows: pd.DataFrame, tables: Tables) -> str:
    """The best that is proven; else that nothing is, what is slower, or what was measured."""
    where = device(tables)
    if not _claims(rows):
        return _provisional(_extreme(rows.loc[rows.speedup.idxmax()], rows, where))
    faster = rows[rows.finding == "faster"]
    if len(faster):
        best = faster.loc[faster.speedup.idxmax()]
        within = _equal(tables, measures.of(best.dataset))
        name = measures.of(best.dataset).name
        equal = f", at equal {name}" if within == "equal" else f", {name} {within}"
        equal *= bool(best.verdict == "equal")
        more = _other_phase(best, rows) or _slower(rows, [best.policy])
        return f"{_extreme(best, rows, where)}{equal}{more}"
    slower = rows[rows.finding == "slower"]
    if len(slower) == len(rows):
        return _extreme(rows.loc[rows.speedup.idxmax()], rows, where)
    if len(slower) and rows.policy.nunique() == 1:
        return _extreme(slower.loc[slower.speedup.idxmin()], rows, where)
    base = wording.default_name(rows.baseline.iloc[0])
    native = rows.policy[~rows.emulated.astype(bool)]
    names = list(dict.fromkeys(native if len(native) else rows.policy))
    which = f"{names[0]} is not" if len(names) == 1 else "No other policy is"
    doing = {"train": "train", "inference": "run inference"}
    acts = " or ".join(doing[phase] for phase in doing if (rows.phase == phase).any())
    return f"{which} shown to {acts} faster than {base} on {where}{_slower(rows, names)}"


def _other_phase(best: pd.Series, rows: pd.DataFrame) -> str:
    """`; it runs inference 1.54× faster`: what is proven of the same policy in another phase."""
    other = (rows.policy == best.policy) & (rows.phase != best.phase)
    proven = rows[other & rows.finding.isin(["faster", "slower"])]
    if proven.empty:
        return ""
    rows = proven.sort_values("speedup").iloc[[0, -1]]
    ends = [f"{wording.speed_parts(r)[0]}× {wording.direction(r)}" for _, r in rows.iterrows()]
    said = ends[0] if len(proven) == 1 else f"from {ends[0]} to {ends[1]}"
    return f"; it {wording.DOES[proven.phase.iloc[0]]} {said}"


def _slower(rows: pd.DataFrame, others: Sequence[str]) -> str:
    """`; float8 trains 2.36× slower`: the one policy that is, beside the others."""
    slower = rows[(rows.finding == "slower") & ~rows.policy.isin(others)]
    if slower.policy.nunique() != 1:
        return ""
    row = slower.loc[slower.speedup.idxmin()]
    bound = "up to " * (len(slower) > 1)
    return f"; {row.policy} {wording.DOES[row.phase]} {bound}{wording.speed_parts(row)[0]}× slower"


def _extreme(row: pd.Series, rows: pd.DataFrame, where: str) -> str:
    """`bfloat16 trains up to 1.37× faster than float32 on AMD EPYC (2 cores)`.

    Where the same policy is also slower, from what to what.
    """
    verb = wording.DOES[row.phase]
    word = wording.direction(row)
    own = rows[(rows.policy == row.policy) & (rows.phase == row.phase)]
    least = own.loc[own.speedup.idxmin()]
    furthest = word == "faster" or (word == "slower" and row.speedup == least.speedup)
    bound = "up to " if furthest else "at least " * (word == "slower")
    bound *= int((own.finding == word).sum() != 1)
    if word == "faster" and wording.direction(least) == "slower":
        bound = f"from {wording.speed_parts(least)[0]}× slower to "
    ends = [wording.speed_parts(end)[0] for end in (least, row)]
    alike = word == wording.direction(least) and ends[0] != ends[1]
    if alike and (word == "as fast" or (word == "faster" and (own.finding == "faster").all())):
        bound = f"{ends[0]}× to "
    bound = bound if len(own) > 1 else ""
    note = "".join(f" ({part})" for part in wording.partly(row))
    base = wording.default_name(row.baseline)
    where = row.gpu_model if rows.gpu_model.nunique() > 1 else where
    than = "as" if word == "as fast" else "than"
    ratio = f"{wording.speed_parts(row)[0]}× {word}"
    some = "" if bound.startswith("from") else _some(own, word)
    return f"{row.policy}{note} {verb} {bound}{ratio} {than} {base}{some} on {where}"


def _some(own: pd.DataFrame, word: str) -> str:
    """` in 2 of its 4 comparisons`, where a policy is not shown to be faster, or slower, in all."""
    n = int((own.finding == word).sum())
    return f" in {n} of its {len(own)} comparisons" if 0 < n < len(own) else ""


def _equal(tables: Tables, measure: Measure) -> str:
    """`equal`; within what, where the params file allows more: in 90 points all are."""
    margin = tables.options.equivalence_margin
    return "equal" + f" within {measure.margin(margin)}" * (margin > MARGIN)


def _speed_advices(rows: pd.DataFrame, tables: Tables) -> str:
    """What to do; of a sweep with training and inference, for each where they differ."""
    phases = dict(list(rows.groupby("phase", sort=False)))
    if len(phases) == 1:
        return _speed_advice(rows, tables)
    each = {
        phase: _speed_advice(phases[phase].assign(place=phases[phase].within_phase), tables)
        for phase in wording.DOES
        if phase in phases
    }
    if len(set(each.values())) == 1:
        return next(iter(each.values()))
    first, *more = [f"for {in_words('phase', phase)}, {text}" for phase, text in each.items()]
    return " ".join([first, *map(wording.capitalized, more)])


def _speed_advice(rows: pd.DataFrame, tables: Tables) -> str:
    base = wording.default_name(rows.baseline.iloc[0])
    # What is proven and rounds to 1.00 is worth no change.
    faster = rows[(rows.finding == "faster") & (rows.apply(wording.direction, axis=1) == "faster")]
    faster = faster[~faster.verdict.isin(["lower", "diverged"])]
    usable = faster[faster.input_mode != RESIDENT]
    if len(faster) and usable.empty and (rows.input_mode != RESIDENT).any():
        names = listed(dict.fromkeys(faster.policy))
        return f"keep {base}: {names} gains where no time goes into input, and not with an input."
    if len(faster):
        best = (usable if len(usable) else faster).pipe(lambda own: own.loc[own.low.idxmax()])
        measure = measures.of(best.dataset)
        within = best.verdict == "equal" and _equal(tables, measure) == "equal"
        own = "training" if best.phase == "train" else "model"
        check = "" if within else f", and look at its {measure.name} in your own {own}"
        return f"use **{best.policy}**{_there(best, rows)}{check}."
    native = rows[~rows.emulated.astype(bool)]
    if (native if len(native) else rows).finding.isin(["not valid", "no interval"]).all():
        return caveats.remedies(tables, "time")
    more = _more_repeats((native if len(native) else rows).query("speedup > 1"))
    return f"keep {base}{f'; {more}' * bool(more)}."


def _more_repeats(rows: pd.DataFrame) -> str:
    """What more repeats of the inconclusive comparisons would show; empty where none is.

    Said of the one that takes fewest.
    """
    own = rows[rows.finding == INCONCLUSIVE]
    if own.empty:
        return ""
    wanted = [
        (n, f"{row.speedup:.2f}", f"{row.blocks:.0f}")
        for row in own.itertuples()
        if (n := contrast.repeats_to_decide(Contrast(row.speedup, row.low, row.high, row.blocks)))
    ]
    if not wanted:
        return MANY_REPEATS
    least, speedup, blocks = min(wanted)
    return f"to show that {speedup}× is no chance would take about {least} repeats, not {blocks}"


def _there(best: pd.Series, rows: pd.DataFrame) -> str:
    """Where a policy is slower, or is not shown to be faster; where it is most, if often."""
    own = rows[rows.policy == best.policy]
    other = own[own.finding != "faster"]
    if len(other) > len(own) / 3:
        faster = own.place[own.finding == "faster"]
        some = faster if 1 < len(faster) <= NAMED else [best.place]
        return f" ({'; '.join(map(verbatim, some))})"
    # "At batch size 32" would also name what differs from it in something else.
    parts = any(place.startswith(f"{less}, ") for place in own.place for less in other.place)
    if parts or len(other) > NAMED:
        return f" where it is shown to be faster, in {len(own) - len(other)} of {len(own)} places"
    slower = other.finding == "slower"
    sides = {", but not": other.place[slower], "; not shown to be faster": other.place[~slower]}
    return "".join(
        f"{words} {' or '.join(findings.at(verbatim(place)) for place in places)}"
        for words, places in sides.items()
        if len(places)
    )


def _quantized(tables: Tables) -> Iterator[Subject]:
    """What integers for weights take of the bytes and of the accuracy, beside their speed."""
    made = quantized_inference.measured(tables)
    for subject in _speed(tables) if made else ():
        said = [*quantized_inference.sentences(made), *subject.sentences]
        if any(bar.finding == "faster" for bar in subject.bars):
            yield replace(subject, sentences=said)
            continue
        least = min(made, key=lambda one: one.share)
        name, base = measures.of(least.dataset).name, subject.baseline
        look = f"look at its {name} in your own model"
        to_do = f"for fewer bytes take **{least.policy}**, and {look}."
        if subject.title.startswith(PROVISIONAL):
            speed = "no speed is claimed"
            to_do = f"{to_do} {wording.capitalized(subject.advice)}"
        else:
            speed = subject.title.replace("No other policy", "none")
            to_do = f"for speed keep {base}; {to_do}"
        title = f"{quantized_inference.taken(made)}; {speed}"
        yield replace(subject, title=title, sentences=said, advice=to_do)


def _only_accuracy(tables: Tables) -> Iterator[Subject]:
    """Where no time is valid, or nothing is compared with a baseline."""
    table = accuracy.beside_first(accuracy.differences(tables))
    if table.empty:
        yield Subject(_alone(tables), findings.answer(tables))
        return
    bars = [
        _of_accuracy(row, place)
        for row, place in zip(table[:MOST].to_dict("records"), wording.places(table), strict=False)
    ]
    base, verdicts = wording.default_name(table.baseline.iloc[0]), set(table.verdict)
    measure = measures.of(table.dataset.iloc[0])
    figure = measure.name.capitalize()
    title = f"{figure} is {_equal(tables, measure)} to {base}'s" if verdicts == {"equal"} else ""
    if not title and verdicts <= {"lower", "higher"}:
        title = f"{figure} differs from {base}'s"
    between = measure.between(of_task(table, measure.task).difference)
    if not title and verdicts == {"undecided"}:
        one = f"mean difference {bars[0].text.partition(' (')[0]} {measure.unit}"
        found = one if len(bars) == 1 else f"mean differences {between}"
        title = f"{figure} is {INCONCLUSIVE}: {found} from {base}'s"
    title = title or _provisional(
        f"mean validation {measure.name} differs from {base}'s by {between}"
    )
    advice = caveats.remedies(tables, "accuracy")
    if not advice and "undecided" in verdicts:
        advice = f"{MORE_REPEATS}."
    # What is claimed of accuracy stands before what is not of time.
    sentences = sorted(findings.answer(tables), key=lambda s: s.startswith(wording.NO_CLAIM))
    scale: Scale = "accuracy" if measure.name == "accuracy" else "perplexity"
    yield Subject(title, sentences, bars, base, scale, advice)


def _alone(tables: Tables) -> str:
    """What was measured where nothing is compared."""
    rows = tables.ok if tables.ok.empty else summary.headline(tables).dropna(subset="step_s")
    if len(rows) != 1:
        return "Nothing to compare: no policy was measured beside its baseline"
    row, where = rows.iloc[0], device(tables)
    return f"{row.policy} alone: {columns.cell('step_s', row.step_s)} ms per step on {where}"


def _dynamic_range(tables: Tables) -> Iterator[Subject]:
    """What histograms of exponents advise, where no policies are compared."""
    for training in exponent_range.measured(tables.records)[:1]:
        advised = advices.advise(training)
        reasons = [*dynamic_range.reasons(advised), *dynamic_range.sentences(training)]
        choice = dynamic_range.choice(advised)
        title, to_do = f"The numbers of this training ask for {choice}", f"use policy {choice}."
        yield Subject(title, reasons, advice=to_do, figure="exponents")


def _of_accuracy(row: Mapping[str, Any], place: str) -> Bar:
    measure = measures.of(row["dataset"])
    numbers = [measure.change(row[name]) * 100 for name in ("difference", "low", "high")]
    numbers[1:] = sorted(numbers[1:])
    text = measure.difference(*(row[n] for n in ("difference", "low", "high", "blocks")))
    if row["verdict"] in accuracy.UNDECIDABLE:
        numbers[1:] = [np.nan, np.nan]
    return Bar(f"{row['candidate']}, {place}", row["candidate"], *numbers, row["verdict"], text)


# --- instruction sets, replicas, frameworks -------------------------------------------------------


def _instruction_sets(tables: Tables) -> Iterator[Subject]:
    rows = scaling.by_isa(tables)
    if len(rows):
        labels = rows.policy + " with " + rows.cpu_isa.replace("default", "all instruction sets")
        yield from _of_ratios(
            rows, labels, "float32 with all instruction sets", tables, choose=True
        )


def _replicas(tables: Tables) -> Iterator[Subject]:
    rows = scaling.by_replicas(tables)
    if len(rows):
        rows = rows[rows.speedup.notna()]
        each = rows.assign(batch_size=rows.batch_per_replica)
        named = zip(wording.places(each), each.batch_size, strict=True)
        labels = pd.Series(
            [place.replace(f"batch size {n}", f"batch size {n} each", 1) for place, n in named],
            rows.index,
            dtype=object,
        )
        if rows.replicas.nunique() == 1:
            labels = wording.named(rows.replicas, wording.BARE) + ", " + labels
        if rows.policy.nunique() > 1:
            labels = rows.policy + ", " + labels
        base = "1 replica with the same batch size per replica"
        yield from _of_ratios(rows, labels, base, tables)


def _frameworks(tables: Tables) -> Iterator[Subject]:
    rows = scaling.by_backend(tables)
    if len(rows):
        labels = rows.backend.map(LABELS) + ", " + rows.policy
        beside = _of_ratios(rows, labels, "TensorFlow", tables)
        yield from _after_speed(beside, tables)


def _frontends(tables: Tables) -> Iterator[Subject]:
    rows = scaling.by_frontend(tables)
    if len(rows):
        frameworks = pd.Series(comparisons.in_frameworks(rows), rows.index)
        # Of training alone the phase is not named.
        made = {"train": "Keras training"} if rows.phase.nunique() > 1 else {"train": "Keras"}
        made |= {"inference": "Keras inference"}
        labels = rows.phase.map(made) + " on " + frameworks + ", " + rows.policy
        beside = _of_ratios(rows, labels, "a plain loop", tables)
        yield from _after_speed(beside, tables)


def _after_speed(beside: Iterator[Subject], tables: Tables) -> Iterator[Subject]:
    """What reduced precision gains in each framework, then how these lie to one another."""
    for subject in beside:
        speed = next(_speed(tables), None)
        if speed is None:
            yield subject
            continue
        title = f"{speed.title}; {subject.title}"
        first, *more = speed.sentences
        yield replace(speed, title=title, sentences=[first, *subject.sentences, *more])


def _of_ratios(
    rows: pd.DataFrame, labels: Any, base: str, tables: Tables, choose: bool = False
) -> Iterator[Subject]:
    """Ratios to one baseline: sentences by finding, the largest proven ones as the title.

    Args:
        choose: whether a reader can choose among them, and is told to take the fastest.
    """
    rows = rows.assign(label=labels).dropna(subset="speedup")
    if rows.empty:
        return
    rows = rows.assign(finding=rows.apply(wording.finding, axis=1))
    rows = rows.drop_duplicates(["label", "policy"]).sort_values("speedup", kind="stable")
    bars = [_bar(row, row["label"]) for row in rows[:MOST].to_dict("records")]
    proven = [bar for bar in bars if bar.finding in ("faster", "slower")]
    slower, faster = (
        [bar for bar in proven if bar.finding == word] for word in ("slower", "faster")
    )
    sides = [slower, faster] if slower and faster else [proven or bars]
    most = " and ".join(map(_furthest, sides))
    title = f"{most} {'as' if most.endswith('as fast') else 'than'} {base}"
    if not proven:
        inconclusive = all(bar.finding == INCONCLUSIVE for bar in bars)
        ends = [f"{bar.value:.2f}×" for bar in (bars[0], bars[-1])]
        span = " to ".join(dict.fromkeys(ends))
        nothing = f"No difference in speed from {base} is shown: {span}, {INCONCLUSIVE}"
        title = nothing if inconclusive else _provisional(title)
    sentences = [
        f"{wording.OPENINGS[word].format(base)}: {_named(own)}."
        for word in wording.OPENINGS
        if (own := [bar for bar in bars if bar.finding == word])
    ]
    advice = "" if proven else caveats.remedies(tables, "time") or _more_repeats(rows)
    if faster and choose:
        advice = f"use {verbatim(max(faster, key=lambda bar: bar.value).label)}."
    yield Subject(title, sentences, bars, base, advice=advice and f"{advice.rstrip('.')}.")


def _furthest(bars: Sequence[Bar]) -> str:
    """`float32 with sse41 is 5.15× slower`: of some bars the one furthest from no effect."""
    bar = max(bars, key=lambda bar: abs(np.log(bar.value)))
    return f"{bar.label} is {bar.text.partition(' [')[0].partition(' (')[0]}"


def _named(bars: Sequence[Bar]) -> str:
    """Comparisons in words, the largest effects first."""
    order = sorted(bars, key=lambda bar: -abs(np.log(bar.value)))
    return _first([f"**{verbatim(bar.label)}** {bar.text.partition(' (')[0]}" for bar in order])


def _first(clauses: Sequence[str]) -> str:
    """The first NAMED clauses, which may hold commas, and how many more there are."""
    more = [f"{len(clauses) - NAMED} more"] * (len(clauses) > NAMED)
    return "; ".join([*clauses[:NAMED], *more])


# --- loss scales and emulated formats -------------------------------------------------------------


def _loss_scales(tables: Tables) -> Iterator[Subject]:
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
        title, sentences = _provisional(title), _unclaimed(sentences)
    advice = caveats.remedies(tables, "accuracy") or loss_scales.advice(points[0][1])
    yield Subject(title, sentences[:NAMED], advice=advice, figure="loss scale")


FORMATS = {  # what settings are, by how their error lies to that of float32
    "large": "more than {} worse than float32",
    "small": "less than {} worse than float32",
    "undecided": "inconclusive (the interval includes {})",
    "too few repeats": "inconclusive (fewer than three repeats)",
    "not valid": "not valid",
}


def _low_precision(tables: Tables) -> Iterator[Subject]:
    points = [p for p in emulated.points(tables) if p.loss.n and not p.is_float32]
    if not emulated.emulates(points):
        return
    doubtful = bool(caveats.doubts(tables, "accuracy"))
    points = sorted(points, key=lambda p: p.loss.estimate, reverse=True)[:MOST]
    bars = [low_precision_bar(point, points) for point in points]
    limit = f"{emulated.LITTLE:g} percentage points"
    words = [
        ("small" if bar.value < emulated.LITTLE else "large") if doubtful else bar.finding
        for bar in bars
    ]
    title = _low_precision_title(points, bars, words)
    names = [f"**{verbatim(bar.label)}**" for bar in bars]
    sentences = [
        f"{_of_all(len(own), len(bars))} {clause.format(limit)}: {_first(own)}."
        for word, clause in FORMATS.items()
        if (own := [name for name, w in zip(names, words, strict=True) if w == word])
    ]
    advice = _low_precision_advice(points, bars, words)
    if doubtful:  # that a format learns nothing is no doubt: it is a finding
        title, sentences = _provisional(title), _unclaimed(sentences)
        advice = caveats.remedies(tables, "accuracy")
    yield Subject(title, sentences[:NAMED], bars, "float32", "error", advice)


def _of_all(n: int, total: int) -> str:
    """`1 of 9 settings is`, `4 of 10 settings are`."""
    return f"{n} of {wording.count(total, 'setting')} {'is' if n == 1 else 'are'}"


def _low_precision_title(
    points: Sequence[emulated.Point], bars: Sequence[Bar], words: Sequence[str]
) -> str:
    """What one choice decides, where it is the worst's; else how many come near float32's error."""
    near, valid = words.count("small"), len(words) - words.count("not valid")
    limit = f"within {emulated.LITTLE:g} percentage points of float32's error"
    title = f"{near} of {valid} settings train {limit}"
    if "large" not in words:
        return title
    worst, bar = next(
        each for *each, word in zip(points, bars, words, strict=True) if word == "large"
    )
    ends = f"ends {bar.value:.1f} points above it"
    trained = [p for p, word in zip(points, words, strict=True) if word == "small"]
    if worst.sibling(trained, rounding="stochastic"):
        name = low_precision.setting(worst, points)
        return f"Rounded stochastically, {name} trains {limit}; rounded to nearest, it {ends}"
    return f"{title}; the worst {ends} ({bar.label})"


def _low_precision_advice(
    points: Sequence[emulated.Point], bars: Sequence[Bar], words: Sequence[str]
) -> str:
    """What to avoid, and what differs from it in one choice and trains; else more repeats."""
    steps = []
    for point, bar, word in zip(points, bars, words, strict=True):
        if word == "large":
            cures = [
                f"**{verbatim(other.label)}**"
                for sibling, other, known in zip(points, bars, words, strict=True)
                if known == "small" and point.differs_by_one(sibling)
            ]
            bad = f"**{verbatim(bar.label)}**"
            better = f"in place of {bad} take {' or '.join(cures[:2])}"
            steps.append(better if cures else f"avoid {bad}")
    if "undecided" in words:
        steps.append(MORE_REPEATS)
    return f"{'; '.join(steps[:NAMED])}." if steps else ""


def low_precision_bar(point: emulated.Point, among: Sequence[emulated.Point]) -> Bar:
    """A choice of formats as a row: its loss from float32, above zero is worse."""
    named = low_precision.own_name(point, among)
    label = ", ".join(filter(None, [named, low_precision.formats(point)]))
    claimed = point.size != "not valid"
    ends = (point.loss.low, point.loss.high) if claimed else (np.nan, np.nan)
    value, text = point.loss.estimate, low_precision.loss(point)
    return Bar(label, point.choice["policy"], value, *ends, point.size, text)


SUBJECTS: tuple[Callable[[Tables], Iterator[Subject]], ...] = (
    _loss_scales,
    _low_precision,
    _instruction_sets,
    _replicas,
    _frontends,
    _frameworks,
    _quantized,
    _speed,
    _dynamic_range,
    _only_accuracy,
)
