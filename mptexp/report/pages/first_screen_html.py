"""The first screen as HTML: title, answer, what limits it, advice; short forms for a phone."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from html import escape, unescape
from typing import Any

import pandas as pd

from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.diagnosis.ablations import XLA_OFF, XLA_ON
from mptexp.diagnosis.cause_times import LEAST_SHARE, Loss
from mptexp.diagnosis.verdict import ALIKE, Verdict
from mptexp.host.terminal import visible
from mptexp.records import schema
from mptexp.report.answers import caveats, next_commands, quality, why
from mptexp.report.figures import all_figures, style
from mptexp.report.figures.all_figures import SweepFigure
from mptexp.report.first_screen.subject import RESIDENT, SAME, device
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.tables import why_tables
from mptexp.report.text import markdown, wording
from mptexp.report.text.parameter_values import compiled_in_words, in_words
from mptexp.spec import tasks
from mptexp.spec.backends import LABELS
from mptexp.spec.run import defaults

REMEDIES = 2  # named in what to do
WORTH = 1.25  # times as fast: what a policy has to gain without a cause that is said to be why
SHOWN = 3  # sentences, and names of one kind in the line of conditions
TWO_LINES = 121  # letters of a title on a screen of 1200 pixels
OPTION = re.compile(r"(?<=[\s>])(--[a-z-]+)(?=[^<>]*</code>)")  # of a command: no line breaks in it
SOURCE = r"^(folder|idx|text):"  # of data, before its name
# The cores of a device's name: no line breaks in it.
CORES, UNBROKEN = re.compile(r"\((\d+) (?=cores?[ )])"), "(\\1\N{NO-BREAK SPACE}"
LONGEST_QUESTION = 110  # letters
CLAUSE = re.compile(r": |, and (?=(?:do|does|is|what|how|which|at|in|why)\b)")
# The last of several questions in one, where more followed it.
LAST_ASKED = re.compile(r", (?=(?:do|does|is|what|how|which|why)\b)(?!.*, (?:do|does|is|what)\b)")
USED = re.compile(r"\buse \*\*([^*]+)\*\*")  # the policies that an advice is to use
COMPILED = "compiled"  # the cause: code that a compiler made slower
LIMITS = "What limits it"  # opens the sentence of the causes


def html(sweep: MeasuredSweep) -> str:
    """The first screen of a sweep's report as HTML."""
    first = figure(sweep)
    return screen(
        title(sweep),
        _asked(sweep),
        conditions(sweep.tables),
        caveats.banner(sweep.tables, _rests_on(sweep), findings=_told(sweep)),
        first.html(style.LEAD_WIDTH, titled=False) if first else "",
        sentences(sweep),
        advice(sweep),
        minor=caveats.is_minor(sweep.tables, _rests_on(sweep)),
    )


def findings(sweep: MeasuredSweep) -> tuple[str, ...]:
    """The flags that are no faults: that a run learned nothing is the answer, or it was cut short.

    The answer of a sweep of formats or loss scales; runs that time steps end before they learn.
    """
    answer = sweep.subject
    short = quality.cut_short(sweep.tables.ok)
    return ("not trained",) * (short or answer.scale == "error" or answer.figure == "loss scale")


def _told(sweep: MeasuredSweep) -> tuple[str, ...]:
    """The flags that the banner leaves to the answer: also of policies whose float32 learned.

    Then title and sentences say that their accuracy is lower, or that some runs learned nothing.
    """
    return findings(sweep) or ("not trained",) * caveats.float32_learned(sweep.tables.ok)


def _rests_on(sweep: MeasuredSweep) -> str:
    """What the answer is about: time or accuracy."""
    answer = sweep.subject
    return "time" if answer.scale == "speed" and answer.figure == "answer" else "accuracy"


def screen(
    heading: str,
    question: str,
    rests_on: Sequence[str],
    warnings: Sequence[str],
    chart: str,
    says: Sequence[str],
    to_do: str,
    minor: bool = False,
) -> str:
    """The first screen of any page as HTML: `<header class="lead">`.

    Args:
        heading, question, rests_on: plain text.
        warnings, says, to_do: Markdown.
        chart: HTML.
        minor: whether the warnings take nothing from what the page claims.
    """
    banner = "".join(f"<li>{_inline(text)}</li>" for text in warnings)
    items = "".join(_item(text) for text in says)
    look = " minor" * minor
    brief = warnings and not minor
    conditions = "".join(
        f"<span>{' · ' * bool(k)}{escape(text)}</span>" for k, text in enumerate(rests_on)
    )
    parts = [
        f"<h1>{escape(CORES.sub(UNBROKEN, heading))}</h1>",
        f'<p class="question">{escape(question)}</p>',
        f'<p class="conditions">{conditions}</p>',
        f'<ul class="banner{look}">{banner}</ul>' if banner else "",
        f'<p class="brief">{_inline(_brief(warnings[0]))}</p>' if brief else "",
        f'<div class="answer">{chart}<div class="says"><ul>{items}</ul>',
        f'<p class="to-do"><strong>What to do:</strong> {_inline(to_do)}</p>' if to_do else "",
        "</div></div>",
    ]
    return f'<header class="lead">{"".join(parts)}</header>'


def _item(sentence: str) -> str:
    """A sentence of the answer; the one that says why stands on a phone's first screen."""
    opening = '<li class="why">' if sentence.startswith(LIMITS) else "<li>"
    return f"{opening}{_inline(sentence)}</li>"


# Where a warning has said what is not valid, or not comparable, of which runs: not in brackets.
SAID = re.compile(r"(?:(?<!Not valid)(?<!\*): |; |\. )(?![^()]*\))")


def _brief(warning: str) -> str:
    """A warning in a line, for the first screen of a phone, where all stand below the chart."""
    return f"{SAID.split(warning, maxsplit=1)[0].rstrip('.')}."


def _asked(sweep: MeasuredSweep) -> str:
    """The question up to its question mark, of a long one as many clauses as are read at once.

    All of it stands with how to reproduce it.
    """
    asked, mark, _ = visible(sweep.question).partition("?")
    ends = [match.start() for match in CLAUSE.finditer(asked)] + [len(asked)]
    shown = [end for end in ends if end <= LONGEST_QUESTION] or ends[:1]
    cut = asked[: shown[-1]]
    return (LAST_ASKED.sub(", and ", cut, 1) if len(cut) < len(asked) else cut) + mark


def _inline(text: str) -> str:
    """A sentence in Markdown as HTML without its paragraph."""
    made = markdown.to_html(markdown.sentence(text))
    made = OPTION.sub(r'<span class="option">\1</span>', made)
    return made.removeprefix("<p>").removesuffix("</p>")


def title(sweep: MeasuredSweep) -> str:
    """The finding of a sweep in a few words; where it gains nothing and there is room, why.

    One that takes more than two lines leaves a single device to the line of conditions below.
    """
    devices = set(sweep.tables.results.gpu_model)
    where = f" on {device(sweep.tables)}" if len(devices) == 1 else ""
    whole = _explained(sweep, where)
    return visible(whole if len(whole) <= TWO_LINES else whole.replace(where, "", 1))


def _explained(sweep: MeasuredSweep, where: str) -> str:
    """The finding and its cause; the finding alone where the cause is of one of several devices."""
    finding = sweep.subject.title
    titled = [verdict for verdict in sweep.verdicts if _is_about(finding, verdict)]
    about = [v for v in sweep.verdicts if any(_is_like(v, one) for one in titled)]
    causes = {v.main.cause.name: v.main.cause for v in about if _is_explained(v)}
    if not where or len(causes) != 1 or not all(map(_is_explained, about)):
        return finding
    # The title is of all settings that gain nothing: a cause of some is left to the sentences.
    policy, slower = about[0].pair.candidate.policy, about[0].speedup.high < 1
    told = [bar for bar in sweep.subject.bars if bar.policy == policy]
    if sum(bar.high < 1 if slower else not bar.low > 1 for bar in told) > len(about):
        return finding
    blamed, cause = [v.main for v in about], *causes.values()
    # What the cause says too is said once.
    shorter = finding.replace(" (emulated)", "", 1) if cause.emulated else finding
    whole = f"{shorter}, because {_taken(blamed)} {cause.brief}"
    return whole if len(whole.replace(where, "", 1)) <= TWO_LINES else finding


def _is_about(title: str, verdict: Verdict) -> bool:
    """Whether a title that is of one policy alone says that this pair gains nothing."""
    policy, over = verdict.pair.candidate.policy, verdict.speedup
    slower = over.high < 1 and f" {wording.times(over.estimate)} " in title
    not_faster = title.startswith(f"{policy} is not shown ") and not over.low > 1
    return title.startswith(f"{policy} ") and ";" not in title and (slower or not_faster)


def _is_like(verdict: Verdict, titled: Verdict) -> bool:
    """Whether a pair has the titled one's policy and ratio, as far as a title tells ratios."""
    policies = {one.pair.candidate.policy for one in (verdict, titled)}
    return len(policies) == 1 and _is_near(verdict.speedup.estimate, titled.speedup.estimate)


def _is_near(one: float, other: float) -> bool:
    """Whether a title tells two ratios as one."""
    return max(one, other) <= SAME * min(one, other)


def _taken(blamed: Sequence[Loss]) -> str:
    """`84 % of its step is`, or `is lost to`, where work that is not all lost holds the cause."""
    shares = [loss.share for loss in blamed]
    in_part = not all(loss.cause.is_in_full for loss in blamed)
    return f"{_span(min(shares), max(shares))} of its step is{' lost to' * in_part}"


def _is_explained(verdict: Verdict) -> bool:
    """Whether one cause takes by far the most, and the policy would do better without it."""
    if not verdict.blamed or not verdict.is_valid:
        return False
    main = verdict.main
    others = [loss.share for loss in verdict.blamed if loss is not main]
    alone = all(not share > main.share / 2 for share in [verdict.unexplained, *others])
    return alone and _is_why(verdict, main)


def _is_why(verdict: Verdict, loss: Loss) -> bool:
    """Whether without a cause the policy would really gain, or lose no more than half as much.

    What both policies pay alike makes none of them slower, though a faster one gains less by it.
    """
    over, without = verdict.speedup, verdict.speedup_without(loss)
    if not without > 0:  # not known, or by the trace the baseline did nothing else
        return False
    if over.high < 1:
        return 1 / without - 1 <= (1 / over.estimate - 1) / 2
    return without >= WORTH * max(1.0, over.estimate)


def alone(sweep: MeasuredSweep) -> list[str]:
    """The sentences as they stand without the chart, whose caption says what they leave out."""
    return [*sentences(sweep), *wording.unless_said(sweep.subject.usual)]


def sentences(sweep: MeasuredSweep) -> list[str]:
    """At most three sentences in Markdown; the last says why, where pairs were diagnosed."""
    said, why = list(sweep.subject.sentences), causes(sweep.verdicts, sweep.tables.ok)
    if why:  # what says the least gives way
        said = [s for s in said if s != quality.NO_MEMORY] or said
    return [*said[: SHOWN - 1], why] if why else said[:SHOWN]


def causes(verdicts: Sequence[Verdict], runs: pd.DataFrame) -> str:
    """What most of the step is lost to, over all diagnosed pairs, else what an ablation proves.

    Args:
        runs: that ended well: of the settings in which nothing was diagnosed nothing is said, and
            of several devices that one which was.
    """
    said, devices = _causes(verdicts, runs), {v.pair.candidate.gpu_model for v in verdicts}
    if said and len(devices) == 1 < runs.gpu_model.nunique():
        return f"{said.removesuffix('.')} (on {wording.verbatim(devices.pop())}, alone diagnosed)."
    return said


def _causes(verdicts: Sequence[Verdict], runs: pd.DataFrame) -> str:
    named = [verdict for verdict in verdicts if verdict.blamed and verdict.is_valid]
    if not named:
        clause = _nothing(verdicts)
        return _proven(verdicts) or (f"{LIMITS}: {clause}." if clause else "")
    trained = runs[runs.phase == "train"].drop_duplicates([*POINT, "policy"])
    sizes = trained.batch_size.nunique() > 1
    # Those of models that were diagnosed name them; where one alone was, nothing else does.
    models = trained.model.nunique() > 1 == len({v.pair.candidate.model for v in verdicts})
    rows = [
        (
            why.says(loss.cause, run.backend),
            loss.share,
            _words(v, verdicts, sizes, models),
            run.input_mode,
            run.policy,
        )
        for v in named
        for loss, run in [(v.main, v.pair.candidate)]
    ]
    columns = ["cause", "share", "settings", "mode", "policy"]
    table = (
        pd.DataFrame(rows, columns=columns)
        .groupby("cause")
        .agg(
            count=("share", "size"),
            least=("share", "min"),
            most=("share", "max"),
            shared=("settings", lambda own: frozenset(own.iloc[0]).intersection(*own)),
            trains=("mode", lambda own: (own != RESIDENT).any()),
            policies=("policy", frozenset),
        )
    )
    order = ["trains", "count", "most"]  # nobody trains on one batch
    of_policy = Counter(verdict.pair.candidate.policy for verdict in verdicts)
    measured = Counter(trained.policy)
    whole = {policy: n for policy, n in of_policy.items() if n == measured[policy]}
    clauses, before = [], frozenset[str]()
    pairs = [(v.pair.candidate.policy, _words(v, verdicts, sizes, models)) for v in verdicts]
    for row in table.sort_values(order, ascending=False).itertuples(name="Row"):
        step = " of the step" if row.policies == before else f" of {_step(row.policies)}"
        where = _where(row, pairs, whole)
        clauses.append(f"{where}{_span(row.least, row.most)}{step} {row.Index}")
        before = row.policies
    if len(named) == 1:  # room for what takes nearly as much
        first, all_of_it = named[0].main, named[0].blamed
        further = [x for x in all_of_it if x is not first and x.share > first.share / 2]
        clauses[0] += "".join(
            f", {_span(loss.share, loss.share)} "
            f"{why.says(loss.cause, named[0].pair.candidate.backend)}"
            for loss in further[: SHOWN - 1]
        )
    nothing, of_most = _nothing(verdicts), 2 * len(_clean(verdicts)) > len(verdicts)
    clauses = [nothing, *clauses] if of_most else [*clauses, nothing]
    return f"{LIMITS}: {'; '.join([*filter(None, clauses)][:SHOWN])}."


def _clean(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The pairs of which a valid time breakdown names no cause."""
    return [v for v in verdicts if v.traced and v.is_valid and not v.large]


def _nothing(verdicts: Sequence[Verdict]) -> str:
    """Of which pairs no cause is named; empty where there are none."""
    if not (clean := _clean(verdicts)):
        return ""
    policies, all_policies = ({v.pair.candidate.policy for v in own} for own in (clean, verdicts))
    words = why.setting(clean[0], verdicts) * (len(clean) == 1)
    among = wording.count(len(verdicts), "diagnosed comparison")
    counted = f"in {len(clean)} of {among}, " * (len(verdicts) > 1)
    where = f"{wording.at(wording.verbatim(words))}, " if words else counted
    step = _step(policies) if len(all_policies) > 1 else "the step"
    none = f"{where}no known cause takes more than {100 * LEAST_SHARE:.0f} % of {step}"
    unknown = [v.unexplained for v in clean]
    if max(unknown) >= LEAST_SHARE:
        return f"{none}, and {_span(min(unknown), max(unknown))} of it is unexplained"
    if not all(v.as_layers > ALIKE for v in clean):
        return none
    peaks = {wording.factor(v.peak_ratio) for v in clean}
    peak = f" (measured peak: {'/'.join(peaks)}× the baseline's)" * (len(peaks) == 1)
    return f"{none}, which gains what its layers alone do{peak}"


def _proven(verdicts: Sequence[Verdict]) -> str:
    """Which ablation proves the largest gain, which needs no trace; empty where none proves one.

    Not as what limits the step: that a change helps does not say of which cause.
    """
    proven = [
        (gain.low, verdict, effect)
        for verdict in verdicts
        for effect in verdict.effects
        for policy in [verdict.pair.candidate.policy]
        if (gain := effect.gains.get(policy)) and effect.is_valid(policy) and gain.low > 1
    ]
    if not proven:
        return ""
    _, verdict, effect = max(proven, key=lambda one: one[0])
    place = why.setting(verdict, verdicts)
    where = f"{wording.at(wording.verbatim(place))}, " if place else ""
    gains = [
        f"**{policy}** is {why_tables.gain(over)}"
        for policy, over in effect.gains.items()
        if effect.is_valid(policy)
    ]
    name = wording.verbatim(effect.ablation.label(verdict.pair.candidate.backend))
    return f"Of the changes tried, {name} helps most: {where}{wording.listed(gains)}."


def _step(policies: Collection[str]) -> str:
    """Whose step: of one policy its own."""
    return f"**{next(iter(policies))}**'s step" if len(policies) == 1 else "the step"


def _words(
    verdict: Verdict, among: Sequence[Verdict], sizes: bool, models: bool
) -> dict[str, None]:
    """The settings of a pair, each in words, in order.

    Args:
        sizes, models: whether its batch size and its model are to be among them.
    """
    size = f"batch size {verdict.pair.candidate.batch_size}" * sizes
    named = why.setting(verdict, among).split(", ")
    return dict.fromkeys(filter(None, [size, *named, verdict.pair.candidate.model * models]))


def _where(
    row: Any, diagnosed: Sequence[tuple[str, Mapping[str, None]]], whole: Mapping[str, int]
) -> str:
    """What tells the pairs apart in which a cause is the largest, or how many of all they are.

    Nothing where these are all settings of one policy, which the step names.

    Args:
        diagnosed: the policy and the settings of each diagnosed pair.
        whole: by policy how many pairs were diagnosed, of those that were in all their settings.
    """
    pairs = [settings for policy, settings in diagnosed if policy in row.policies]
    all_settings = sum(whole.get(policy, len(pairs) + 1) for policy in row.policies) == row.count
    if len(row.policies) == 1 and all_settings and row.count < len(diagnosed):
        return ""
    alike = [pair for pair in pairs if row.shared <= pair.keys()]
    some = row.count < len(pairs) or not all_settings
    if row.shared and len(alike) == row.count and some:
        named = ", ".join(word for word in alike[0] if word in row.shared)
        return f"{wording.at(wording.verbatim(named))}, "
    among = wording.count(len(pairs), "diagnosed comparison")
    return f"in {row.count} of {among}, " * (len(pairs) > 1 or not all_settings)


def _span(least: float, most: float) -> str:
    ends = [f"{share * 100:.0f}" for share in (least, most)]
    return f"{ends[0]} %" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]} %"


def advice(sweep: MeasuredSweep) -> str:
    """What follows from the answer, in Markdown."""
    answer = sweep.subject
    proven = any(bar.finding in ("faster", "slower", wording.INCONCLUSIVE) for bar in answer.bars)
    open_ = not any(v.candidate for v in sweep.verdicts) and sweep.can_be_diagnosed
    said = [answer.advice, _compiler(sweep)]
    if answer.scale == "speed" and proven and answer.advice and open_:
        said[0] = f"{answer.advice.rstrip('.')}."
        diagnose = next_commands.command(sweep.tables, "diagnose")
        said.append(f"To see where the time goes, run {diagnose}.")
    elif not proven or any(bar.finding == "faster" for bar in answer.bars):
        said.append(_remedies(sweep))
    return " ".join(filter(None, said))


def _compiler(sweep: MeasuredSweep) -> str:
    """`Leave XLA off (jit off): with it steps take 6.9 to 10.3 times as long.`, where proven.

    Where it may help elsewhere, with what it hurts: `Leave XLA off with model gpt ...`.
    """
    verdicts = sweep.verdicts
    slower = [
        (gain.estimate, verdict)
        for verdict in verdicts
        for loss in verdict.blamed
        for effect in loss.effects
        for policy, gain in effect.gains.items()
        if loss.cause.name == COMPILED and effect.is_valid(policy) and gain.low > 1
    ]
    if not slower:
        return ""
    of = [verdict for _, verdict in slower]
    name = compiled_in_words(True, of[0].pair.candidate.backend).removeprefix("with ")
    factors = [factor for factor, _ in slower]
    ends = dict.fromkeys(f"{factor:.1f}" for factor in (min(factors), max(factors)))
    places = [_place(one, sweep).removeprefix(f"with {name}") for one in of]
    places = [place.removeprefix(", ") for place in places]
    if not all(places):  # what is slower is told apart by its policy alone
        places = [one.pair.candidate.policy for one in of]
    told = _helps(verdicts) or not _slower_wherever_compiled(sweep.tables.ok)
    where = f" with {wording.verbatim(' or '.join(dict.fromkeys(places)))}" * told
    return (
        f"Leave {name} off{where} (jit off): with it steps take {' to '.join(ends)} times as long."
    )


def _helps(verdicts: Sequence[Verdict]) -> bool:
    """Whether compiling the step is proven to gain anywhere."""
    gains = [
        (effect.ablation.name, gain)
        for verdict in verdicts
        for effect in verdict.effects
        for policy, gain in effect.gains.items()
        if effect.is_valid(policy)
    ]
    on = any(gain.low > 1 for name, gain in gains if name == XLA_ON.name)
    return on or any(gain.high < 1 for name, gain in gains if name == XLA_OFF.name)


def _slower_wherever_compiled(runs: pd.DataFrame) -> bool:
    """Whether a compiler made steps longer wherever it was, on each device, model and batch size.

    What a diagnosis alone tried is of one of them.
    """
    point = [*(name for name in POINT if name != "jit"), "policy"]
    place = ["gpu_model", "model", "batch_size"]
    runs = runs[runs.step_s.notna() & (runs.phase == "train")]
    steps = runs.groupby([*point, "jit"], dropna=False).step_s.median().unstack("jit")
    places = len(runs[place].drop_duplicates())
    if not {True, False} <= {*steps.columns}:
        return places <= 1
    longer = (steps[True] / steps[False]).dropna()
    tried = longer.reset_index()[place].drop_duplicates()
    return bool((longer > ALIKE).all()) and len(tried) == places


def _remedies(sweep: MeasuredSweep) -> str:
    """What to try first against the causes that take most of a step, each once, and where.

    Of emulation the answer says it, another policy, and of compiled code `_compiler`. Nobody trains
    on one batch kept on the device. Where a policy is to be used, of that one alone; and no policy
    that the sweep itself has measured: what it brings stands in its own row.
    """
    verdicts, policies = sweep.verdicts, {bar.policy for bar in sweep.subject.bars}
    real = [v for v in verdicts if v.candidate and v.pair.candidate.input_mode != RESIDENT]
    known = [v for v in real or verdicts if v.blamed and v.is_valid]
    advised = USED.findall(sweep.subject.advice)
    known = [v for v in known if not advised or v.pair.candidate.policy in advised]
    largest = [(v.main, v) for v in known]
    largest.sort(key=lambda pair: -pair[0].share)
    named: dict[str, str] = {}
    for loss, verdict in largest:
        own = sweep.tables.ok[sweep.tables.ok.policy == verdict.pair.candidate.policy]
        settings = len(own[own.phase == "train"].drop_duplicates(POINT))
        place = _place(verdict, sweep) * (len(known) > 1 or settings > 1)
        where = f" ({wording.verbatim(place)})" if place else ""
        # What was measured and is not shown to help is left to the table of causes.
        open_ = [
            text
            for text, gain in verdict.remedies(loss)
            if (gain is None or gain.low > 1) and text.partition(",")[0] not in policies
        ]
        for text in open_[: loss.cause.name not in ("emulated", COMPILED)]:
            untried = ", not tried yet" * verdict.is_untried(text)
            named.setdefault(text, f"{where}: {text}{untried}")
    first = list(named.values())[:REMEDIES]
    return f"To go faster{';'.join(first)}." if first else ""


def _place(verdict: Verdict, sweep: MeasuredSweep) -> str:
    """What tells a diagnosed pair from the others, and from what was measured and not diagnosed."""
    run, runs = verdict.pair.candidate, sweep.tables.ok
    told = why.setting(verdict, sweep.verdicts)
    named = {column: getattr(run, column) for column in ("model", "batch_size", "gpu_model")}
    more = [
        in_words(name, value)
        for name, value in named.items()
        if runs[name].nunique() > 1 and in_words(name, value) not in told.split(", ")
    ]
    return ", ".join(filter(None, [told, *more]))


def conditions(tables: Tables) -> list[str]:
    """Device, model, data, software and n: on what the answer rests."""
    runs, records = tables.results, tables.records
    by_keras = any("frontend" in schema.known_parameters(record) for record in records)
    names = [*dict.fromkeys(runs.backend), *["keras"] * by_keras]
    labels = {"keras": "Keras"} | LABELS
    known = {name: _versions(name, records) for name in names}
    versions = [f"{labels[name]} {known[name]}" for name in names if known[name]]
    blocks = runs.block.nunique()
    least, most = tables.claims.blocks.min(), tables.claims.blocks.max()  # what ratios rest on
    span = f"{least:.0f} to {most:.0f}" if least < most else f"{most:.0f}"
    of = f"{span} of " * bool(0 < least < blocks)
    return [
        visible(text)
        for text in (
            device(tables),
            _some("model", runs.model),
            _data(tables),
            _epochs(tables),
            _batches(runs),
            _limited(tables),
            _input(tables),
            ", ".join(versions),
            f"n = {of}{wording.count(blocks, 'repeat')}, {wording.count(len(runs), 'run')}",
        )
        if text
    ]


def _versions(name: str, records: Sequence[Mapping[str, Any]]) -> str:
    """`2.21.0`, `2.15.0 and 2.21.0`, `in 4 versions`: of a package in all runs."""
    known = {(r.get("environment") or {}).get("packages", {}).get(name) for r in records} - {None}
    if len(known) > SHOWN:
        return f"in {len(known)} versions"
    by_number = sorted(known, key=lambda text: [int(n) for n in re.findall(r"\d+", text)])
    return wording.listed(by_number)


def _data(tables: Tables) -> str:
    """`data imagenette2-128 at 64 pixels`: without the kind of source that a params file names."""
    runs = [schema.known_parameters(record) for record in tables.records]
    drawn = [tasks.of(run["dataset"]) is tasks.IMAGES for run in runs]
    sizes = {run.get("image_size") for run in runs} if all(drawn) else set()  # no text has pixels
    names = tables.results.dataset.str.replace(SOURCE, "", regex=True)
    return _some("data", names) + (
        f" at {sizes.pop()} pixels" if len(sizes - {None}) == len(sizes) == 1 else ""
    )


def _limited(tables: Tables) -> str:
    """`limited to AVX2`: one limit of all runs, below what the device's name says it has."""
    limits = {schema.known_parameters(r).get("cpu_isa", "default") for r in tables.records}
    limit = limits.pop() if len(limits) == 1 else "default"
    return f"limited to {in_words('cpu_isa', limit)}" * (limit != "default")


def _input(tables: Tables) -> str:
    """`one batch kept on the device`: how all runs were fed, where it is not the usual way."""
    modes, usual = set(tables.results.input_mode), defaults()["input_mode"]
    return in_words("input_mode", modes.pop()) if len(modes) == 1 and modes != {usual} else ""


def _epochs(tables: Tables) -> str:
    """`2 epochs`, `1 to 20 epochs`: after how many accuracy or perplexity was measured.

    Empty where one ended within an epoch.
    """
    runs = tables.trained
    measured = [task.column for task in tasks.TASKS.values() if task.column in runs]
    runs = runs.dropna(subset=measured, how="all")
    if runs.empty or (runs.ended_by != "epochs").any():
        return ""
    least, most = int(runs.epochs.min()), int(runs.epochs.max())
    return f"{least} to " * (least != most) + wording.count(most, "epoch")


def _batches(runs: pd.DataFrame) -> str:
    """`batch size 32`, `batch sizes 1 and 32`, `batch sizes 32 to 512`."""
    sizes = [str(size) for size in sorted(set(runs.batch_size))]
    if len(sizes) == 1:
        return f"batch size {sizes[0]}"
    named = wording.listed(sizes) if len(sizes) <= SHOWN else f"{sizes[0]} to {sizes[-1]}"
    return f"batch sizes {named}"


def _some(noun: str, values: pd.Series) -> str:
    """`model keydana_cnn`, `4 models`."""
    names = list(dict.fromkeys(map(str, values)))
    if len(names) > SHOWN:
        return f"{len(names)} {noun}s" if noun != "data" else f"{len(names)} data sets"
    return f"{noun} {', '.join(names)}"


def figure(sweep: MeasuredSweep) -> SweepFigure | None:
    """The chart of the answer: of a section with several the one that the answer is about."""
    shown, case = all_figures.figures(sweep, sweep.subject.figure), sweep.subject.case
    return next((figure for figure in shown if case in ("", figure.case)), None)


def card(sweep: MeasuredSweep) -> dict[str, str]:
    """Open Graph's properties of a report, plain text: what stands where its link is shared."""
    return {
        "og:type": "article",
        "og:title": title(sweep),
        "og:description": unescape(re.sub(r"<[^>]*>", "", first_html(sweep))),
    }


def first_html(sweep: MeasuredSweep) -> str:
    """The first sentence of the answer as HTML."""
    said = sentences(sweep) or [markdown.safe(title(sweep))]
    return markdown.to_html(markdown.sentence(said[0]))
