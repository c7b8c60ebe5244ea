"""What a sweep asks about, and what it answers: title, comparisons, sentences, what to do.

Most sweeps ask about the speed of policies; some about loss scales, emulated formats, instruction
sets, replicas, frameworks or plain loops. Each opens its report with its own comparisons. Where
nothing can be claimed, the title is what was measured, said to be provisional.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from mptexp.analysis.points import POINT, of_task, rank
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
from mptexp.report.text.wording import INCONCLUSIVE, count, listed, verbatim
from mptexp.spec.backends import LABELS
from mptexp.spec.devices import CPU_ISAS
from mptexp.spec.policies import POLICIES

Scale = Literal["speed", "error", "accuracy", "perplexity"]
MOST = 12  # rows of the chart; of more, the least and the largest of each policy
MARGIN = Options.equivalence_margin  # of accuracies that a title calls equal without a word more
NAMED = 3  # comparisons that a sentence lists
CHANGES = 2  # of formats that advice names
LONGEST = 130  # letters of a title that is still read at once
PROVISIONAL = "Provisional"
MORE_REPEATS = "more repeats would narrow the inconclusive intervals"
MANY_REPEATS = f"to show effects as small as those measured would take over {MOST_REPEATS} repeats"
INSTRUCTION_SETS = (*CPU_ISAS, "default")  # each with those before it
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
        group: the heading under which the row stands; empty under that of its policy.
        emulated: whether the device only emulates the policy: where it lies far from what the
            device has instructions for, the chart says so in words.
    """

    label: str
    policy: str
    value: float
    low: float
    high: float
    finding: str
    text: str
    group: str = ""
    emulated: bool = False


@dataclass(frozen=True)
class Subject:
    """What opens a report.

    Attributes:
        title: the finding in a few words, plain text.
        bars: the comparisons with one baseline; empty where there are none. Those of several have
            groups that name them.
        baseline: its name; empty of several.
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
    return [f"{wording.NOT_VALID}. {sentences[0]}", *sentences[1:]] if sentences else []


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
    phases = rows.policy.nunique() == 1 and rows.phase.nunique() > 1  # then these are headings
    rows = rows.sort_values("phase", kind="stable") if phases else rows
    place = "within_phase" if phases else "place"
    bars = [
        _bar(row, f"{row['policy']}, {row[place]}" if rows.place.nunique() > 1 else row["policy"])
        for row in _few(rows).to_dict("records")
    ]
    if phases:
        named = zip(bars, _few(rows).phase, strict=True)
        bars = [replace(bar, group=in_words("phase", phase)) for bar, phase in named]
    name = wording.default_name(base) if rows.baseline.nunique() == 1 else "the default"
    title, advice = _speed_title(rows, tables) + _largest(tables), _speed_advices(rows, tables)
    usual = wording.usual(rows)
    yield Subject(title, findings.answer(tables), bars, name, advice=advice, usual=usual)


def _largest(tables: Tables) -> str:
    """`; the largest batch is 320 with float32 and 384 with bfloat16`, where that was asked."""
    sizes = findings.largest_batches(tables)
    if len(sizes) < 2:
        return ""
    if sizes.nunique() == 1:
        return f"; no larger batch fits ({sizes.iloc[0]:,})"
    named = listed([f"{size:,} with {policy}" for policy, size in sizes.items()])
    return f"; the largest batch is {named}"


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
    text, by_hand = wording.ratio_of(row), bool(row.get("emulated", False))
    return Bar(label, row["policy"], row["speedup"], *ends, word, text, emulated=by_hand)


def _speed_title(rows: pd.DataFrame, tables: Tables) -> str:
    """The best that is proven; else that nothing is, what is slower, or what was measured."""
    where = device(tables)
    trained = rows[rows.input_mode != RESIDENT]
    rows = trained if len(trained) else rows
    if not _claims(rows):
        return _provisional(_extreme(rows.loc[rows.speedup.idxmax()], rows, where))
    faster = rows[rows.finding == "faster"]
    if (faster.phase == "inference").any():  # which a sweep measures if it asks for it
        faster = faster[faster.phase == "inference"]
    if len(faster):
        best = faster.loc[faster.speedup.idxmax()]
        within = _equal(tables, measures.of(best.dataset))
        name = measures.of(best.dataset).name
        equal = f", at equal {name}" if within == "equal" else f", {name} {within}"
        equal *= bool(best.verdict == "equal")
        title = f"{_extreme(best, rows, where)}{equal}"
        more = _other_phase(best, rows) or _slower(rows, [best.policy])
        return title + more * (len(title + more) <= LONGEST)  # the sentences have it too
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
    where = f" {findings.at(rows.within_phase.iloc[0])}" * bool(other.sum() > 1)
    said = f"{ends[0]}{where}" if len(proven) == 1 else f"from {ends[0]} to {ends[1]}"
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
    some = _some(own, word)
    decided = bool(some) and not some.endswith("settings")
    if decided:  # what is not decided elsewhere is left to the sentences
        some += _and_slower(own) * (word == "faster")
        own = own[own.finding == word]
    least = own.loc[own.speedup.idxmin()]
    furthest = word == "faster" or (word == "slower" and row.speedup == least.speedup)
    bound = "up to " if furthest else "at least " * (word == "slower")
    bound *= int((own.finding == word).sum() != 1)
    both = least.finding in ("slower", row.finding)  # what is inconclusive is no end of a span
    if word == "faster" and wording.direction(least) == "slower" and both:
        bound, some = f"from {wording.speed_parts(least)[0]}× slower to ", ""
    ends = [wording.speed_parts(end)[0] for end in (least, row)]
    alike = word == wording.direction(least) and ends[0] != ends[1]
    if alike and word != "slower" and (own.finding == row.finding).all():
        bound = f"{ends[0]}× to "
    bound = bound if len(own) > 1 else ""
    note = "".join(f" ({part})" for part in wording.partly(row))
    base = wording.default_name(row.baseline)
    where = row.gpu_model if rows.gpu_model.nunique() > 1 else where
    than = "as" if word == "as fast" else "than"
    ratio = f"{wording.speed_parts(row)[0]}× {word}"
    return f"{row.policy}{note} {verb} {bound}{ratio} {than} {base} on {where}{some}"


def _and_slower(own: pd.DataFrame) -> str:
    """`, and 1.34× slower at batch size 1`: what a title must not leave out of a policy."""
    slower = own[own.finding == "slower"]
    if slower.empty:
        return ""
    ratio = wording.speed_parts(slower.loc[slower.speedup.idxmin()])[0]
    return f", and {'up to ' * (len(slower) > 1)}{ratio}× slower{_some(own, 'slower')}"


def _some(own: pd.DataFrame, word: str) -> str:
    """` at batch size 32`, ` in 2 of 4 settings`: where a policy is not shown to be so in all.

    What decides is named if it is one parameter, and so is the one setting of which it is shown.
    """
    proven = own.finding == word
    if proven.all() or not proven.any():
        return ""
    for name in POINT:
        own_value = own[name] == own[name][proven].iloc[0]
        if name != "setting" and (own_value == proven).all():
            return f" {findings.at(wording.of_table(own[proven], name).iloc[0])}"
    if proven.sum() == 1:
        return f" {findings.at(own.within_phase[proven].iloc[0])}"
    return f" in {proven.sum()} of {len(own)} settings"


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
        condition, but, unclear = _there(best, rows)
        some = bool(condition or but or unclear)
        where = f"on this {' '.join(filter(None, [_kind(tables), condition]))}, " * some
        return f"{where}use **{best.policy}**{but}{check}.{unclear}"
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
        (n, wording.times(row.speedup), f"{row.blocks:.0f}")
        for row in own.itertuples()
        if (n := contrast.repeats_to_decide(Contrast(row.speedup, row.low, row.high, row.blocks)))
    ]
    if not wanted:
        return MANY_REPEATS
    least, speedup, blocks = min(wanted)
    return f"to show that {speedup} is not chance would take about {least} repeats, not {blocks}"


def _kind(tables: Tables) -> str:
    """What the sweep ran on, as advice calls it: `CPU`, `GPU`, `device` of both."""
    kinds = {"CPU" if "(CPU)" in str(name) else "GPU" for name in tables.ok.device}
    return kinds.pop() if len(kinds) == 1 else "device"


def _there(best: pd.Series, rows: pd.DataFrame) -> tuple[str, str, str]:
    """Where to use a policy that is not faster everywhere, where not, and where it is not shown.

    By the one parameter that decides, if one does; else by naming those of which it is not shown,
    or those of which it is, where these are fewer.
    """
    own = rows[(rows.policy == best.policy) & (rows.input_mode != RESIDENT)]
    own = own if len(own) else rows[rows.policy == best.policy]
    faster, slower = own.finding == "faster", own.finding == "slower"
    if faster.all():
        return "", "", ""
    if not (decided := _some(own, "faster")).endswith("settings"):
        return verbatim(decided), _but_not(own[slower]), ""
    if (~faster).sum() > len(own) / 3:
        some = own.place[faster] if 1 < faster.sum() <= NAMED else [best.place]
        where = " or ".join(findings.at(verbatim(place)) for place in some)
        return where, _but_not(own[slower]), ""
    unclear = own.place[~faster & ~slower]
    which = " or ".join(findings.at(verbatim(place)) for place in unclear)
    which = which if len(unclear) <= NAMED else f"in {count(len(unclear), 'setting')}"
    return "", _but_not(own[slower]), f" Not shown to be faster {which}." * bool(len(unclear))


def _but_not(slower: pd.DataFrame) -> str:
    """`, but not at batch size 1`: where it is shown to be slower."""
    places = [findings.at(verbatim(place)) for place in slower.place]
    return f", but not {' or '.join(places[:NAMED])}" if places else ""


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
        speed_claimed = not subject.title.startswith(PROVISIONAL)
        if not speed_claimed:
            speed = "no speed is valid"
            to_do = f"{to_do} {wording.capitalized(subject.advice)}"
        else:
            speed = subject.title.replace("No other policy", "none")
            to_do = f"for speed keep {base}; {to_do}"
        title = f"{quantized_inference.taken(made)}; {speed}"
        made_of = replace(subject, title=title, sentences=said, advice=to_do)
        # Of times that are not valid no chart is made where there is one of what is.
        bars = [_of_quantized(one) for one in made if one.lost.n]
        if speed_claimed or not bars:
            yield made_of
        else:
            kind: Scale = "accuracy" if name == "accuracy" else "perplexity"
            yield replace(made_of, bars=bars, baseline="the same weights in float32", scale=kind)


def _of_quantized(one: quantized_inference.Quantized) -> Bar:
    """What quantizing changed, beside the bytes that are left."""
    measure = measures.of(one.dataset)
    numbers = [measure.change(v) * 100 for v in (one.lost.estimate, one.lost.low, one.lost.high)]
    numbers[1:] = sorted(numbers[1:])
    word = "not valid" if wording.not_valid(one.flags, "accuracy") else "measured"
    numbers[1:] = [np.nan, np.nan] if word == "not valid" else numbers[1:]
    label = f"{one.policy}: {one.share * 100:.0f} % of the bytes"
    return Bar(label, one.policy, *numbers, word, one.difference)


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
    # Of times that are not valid the page of accuracies says nothing here: the banner does.
    sentences = [s for s in findings.answer(tables) if not s.startswith(wording.NOT_VALID)]
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
        labels = rows.policy + " with " + rows.cpu_isa.map(partial(in_words, "cpu_isa"))
        every = "float32 with all instruction sets"
        for made in _of_ratios(rows, labels, every, tables, choose=True):
            yield _needing(made, rows, device(tables))


def _needing(made: Subject, rows: pd.DataFrame, where: str) -> Subject:
    """What a policy needs that is faster with some instruction sets alone: title, advice, chart.

    The least instruction set with which it is shown to be faster, where the next smaller one that
    was measured does not show it.
    """
    order = {in_words("cpu_isa", name): k for k, name in enumerate(INSTRUCTION_SETS)}
    bars = sorted(  # policies are headings
        made.bars,
        key=lambda bar: (POLICIES.index(bar.policy), order[bar.label.partition(" with ")[2]]),
    )
    made = replace(made, bars=bars)
    known = {(row.policy, row.cpu_isa): row for row in rows.dropna(subset="speedup").itertuples()}
    for policy in dict.fromkeys(bar.policy for bar in bars if bar.policy != "float32"):
        own = [known[policy, isa] for isa in INSTRUCTION_SETS if (policy, isa) in known]
        words = [wording.finding(row._asdict()) for row in own]
        if "faster" not in words[1:] or words[0] == "faster":
            continue
        first = words.index("faster")
        least, below = own[first], own[first - 1]
        needed, without = (in_words("cpu_isa", row.cpu_isa) for row in (least, below))
        best = max((row for row in own if not pd.isna(row.speedup)), key=lambda row: row.speedup)
        lost = words[first - 1]
        lost = f"is {wording.times(below.speedup)}" if lost == "slower" else f"is {lost}"
        gain = f"{policy} is {wording.times(best.speedup)} than float32 on {where}"
        title = f"{gain} thanks to {needed}; with {without} alone it {lost}"
        to_do = f"on a CPU with {needed}, use **{policy}**; on one without, keep float32."
        return replace(made, title=title, advice=to_do)
    return made


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
        yield from _after_speed(beside, tables, "other frameworks")


def _frontends(tables: Tables) -> Iterator[Subject]:
    rows = scaling.by_frontend(tables)
    if len(rows):
        frameworks = pd.Series(comparisons.in_frameworks(rows), rows.index)
        # Of training alone the phase is not named.
        made = {"train": "Keras training"} if rows.phase.nunique() > 1 else {"train": "Keras"}
        made |= {"inference": "Keras inference"}
        labels = rows.phase.map(made) + " on " + frameworks + ", " + rows.policy
        beside = (_short(made) for made in _of_ratios(rows, labels, "a plain loop", tables))
        yield from _after_speed(beside, tables, "Keras")


def _short(made: Subject) -> Subject:
    """What Keras costs, the policy left out of the title: `Keras on PyTorch is 2.73× slower`."""
    slower = [bar for bar in made.bars if bar.finding == "slower"]
    if not slower:
        return made
    bar = min(slower, key=lambda bar: bar.value)
    bound = "up to " * (len(slower) > 1)
    title = (
        f"{bar.label.partition(', ')[0]} is {bound}{1 / bar.value:.2f}× slower than a plain loop"
    )
    return replace(made, title=title, advice="a plain loop avoids what Keras costs there.")


def _headed(bars: Sequence[Bar], what: str, base: str) -> list[Bar]:
    """Bars under the heading `mixed_bfloat16 against float32`, which their labels leave out."""
    opening = (f"{what}, ", f"{what} on ")
    short = [bar.label.removeprefix(opening[0]).removeprefix(opening[1]) for bar in bars]
    group = f"{what} against {base}"
    return [replace(bar, label=s, group=group) for bar, s in zip(bars, short, strict=True)]


def _after_speed(beside: Iterator[Subject], tables: Tables, what: str) -> Iterator[Subject]:
    """What reduced precision gains in each framework, then how these lie to one another.

    Args:
        beside: the second answer.
        tables: of the sweep.
        what: is compared in it.
    """
    for subject in beside:
        speed = next(_speed(tables), None)
        if speed is None:
            yield subject
            continue
        title = f"{speed.title}; {subject.title}"
        first, *more = speed.sentences
        policies = listed(list(dict.fromkeys(bar.policy for bar in speed.bars)))
        bars = [
            *_headed(speed.bars, policies, speed.baseline),
            *_headed(sorted(subject.bars, key=lambda bar: bar.label), what, subject.baseline),
        ]
        said = [first, *subject.sentences, *more]
        beside_it = subject.advice and f" {wording.capitalized(subject.advice)}"
        advice = speed.advice + beside_it
        yield replace(speed, title=title, sentences=said, advice=advice, bars=bars, baseline="")


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
        ends = [wording.times(bar.value) for bar in (bars[0], bars[-1])]
        words = [end.partition(" ")[2] for end in ends]
        ends[0] = ends[0].partition(" ")[0] if words[0] == words[1] != "as fast" else ends[0]
        span = " to ".join(dict.fromkeys(ends)) if ends[0] not in ends[1] else ends[1]
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


CURES = {  # what to change in a choice of formats, by its parameter
    "rounding": {"stochastic": "round stochastically", "nearest": "round to nearest"},
    "weight_format": {"policy": "keep weights in the format of the policy"},
    "loss_scale": {"auto": "use the usual loss scale", "none": "use no loss scale"},
}
CURE = {
    "weight_format": "keep weights in {}",
    "loss_scale": "use a loss scale of {}",
    "propagation": "use {} for activations",
    "policy": "use {}",
}
FORMATS = {  # what settings do, by how their error lies to that of float32
    "small": "within {} of float32's error",
    "large": "more than {} above float32's error",
    "undecided": "inconclusive (the interval includes {})",
    "too few repeats": "inconclusive (fewer than three repeats)",
    "not valid": "not valid",
}


def _low_precision(tables: Tables) -> Iterator[Subject]:
    points = [p for p in emulated.points(tables) if p.loss.n and not p.is_float32]
    if not emulated.emulates(points):
        return
    doubtful = bool(caveats.doubts(tables, "accuracy"))
    points = sorted(points, key=lambda p: p.loss.estimate)
    points = points if len(points) <= MOST else [*points[: MOST // 2], *points[-MOST // 2 :]]
    bars = [low_precision_bar(point, points) for point in points]
    limit = f"{emulated.LITTLE:g} percentage points"
    words = [
        ("small" if bar.value < emulated.LITTLE else "large") if doubtful else bar.finding
        for bar in bars
    ]
    title = _low_precision_title(points, bars, words)
    counts = {word: words.count(word) for word in FORMATS if word in words}
    each = [
        f"{n} {'is' if n == 1 else 'are'} {FORMATS[word].format(limit)}"
        for word, n in counts.items()
    ]
    sentences = [f"Of {count(len(bars), 'setting')}, {listed(each)}."]
    advice = _low_precision_advice(points, bars, words)
    order = sorted(range(len(bars)), key=lambda k: (list(FORMATS).index(words[k]), bars[k].value))
    heads = {
        word: f"{n} of {len(bars)} {FORMATS[word].format(limit)}" for word, n in counts.items()
    }
    bars = [replace(bars[k], group=heads[words[k]]) for k in order]
    if doubtful:  # that a format learns nothing is no doubt: it is a finding
        title, sentences = _provisional(title), _unclaimed(sentences)
        advice = caveats.remedies(tables, "accuracy")
    yield Subject(title, sentences[:NAMED], bars, "float32", "error", advice)


def _low_precision_title(
    points: Sequence[emulated.Point], bars: Sequence[Bar], words: Sequence[str]
) -> str:
    """What rounding decides, where it is the worst's; else how many come near float32's error."""
    near, valid = words.count("small"), len(words) - words.count("not valid")
    limit = f"within {emulated.LITTLE:g} percentage points of float32's error"
    title = f"{near} of {valid} settings train {limit}"
    if "large" not in words:
        return title
    each = list(zip(points, bars, words, strict=True))
    worst, bar, _ = max((e for e in each if e[2] == "large"), key=lambda e: e[1].value)
    cure = worst.sibling([p for p, _, word in each if word == "small"], rounding="stochastic")
    if cure:
        cured = next(b.value for p, b, _ in each if p is cure)
        ends = [wording.signed(value) for value in (cured, bar.value)]
        return (
            f"{low_precision.setting(worst, points)} trains if rounded stochastically ({ends[0]} "
            f"points of error against float32), not if rounded to nearest ({ends[1]})"
        )
    return f"{title}; the worst ends {bar.value:.1f} points above it ({bar.label})"


def _low_precision_advice(
    points: Sequence[emulated.Point], bars: Sequence[Bar], words: Sequence[str]
) -> str:
    """The one change that makes what fails train; what fails all the same is to avoid."""
    named = list(zip(points, bars, words, strict=True))
    bad = [(point, bar) for point, bar, word in reversed(named) if word == "large"]
    good = [(point, bar) for point, bar, word in named if word == "small"]
    cures = {
        bar: [
            f"{_change(point, other)} ({wording.signed(better.value)})"
            for other, better in good
            if point.differs_by_one(other)
        ]
        for point, bar in bad
    }
    steps = [
        f"with {_strong(bar)} ({wording.signed(bar.value)} points): {' or '.join(changes)}"
        for bar, changes in cures.items()
        if changes
    ][:CHANGES]
    others = [bar for bar, changes in cures.items() if not changes]
    steps += [f"avoid {_first([*map(_strong, others)])}"] * bool(others)
    steps += [MORE_REPEATS] * ("undecided" in words)
    return f"{'; '.join(steps)}." if steps else ""


def _change(point: emulated.Point, other: emulated.Point) -> str:
    """`round stochastically`: the one choice in which another point differs, as a request."""
    name = next(n for n in emulated.FORMATS if point.choice[n] != other.choice[n])
    value = str(other.choice[name])
    return CURES.get(name, {}).get(value) or CURE.get(name, f"{name} {{}}").format(verbatim(value))


def _strong(bar: Bar) -> str:
    return f"**{verbatim(bar.label)}**"


def low_precision_bar(point: emulated.Point, among: Sequence[emulated.Point]) -> Bar:
    """A choice of formats as a row: its loss from float32, above zero is worse."""
    named = low_precision.own_name(point, among)
    parts = [named, low_precision.formats(point)]
    # What varies of a training stands behind the formats, a network before them.
    parts = parts if point.network.startswith(named.partition(", ")[0]) else parts[::-1]
    label = ", ".join(filter(None, parts))
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
