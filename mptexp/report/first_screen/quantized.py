"""What integers for weights take of the bytes and of the accuracy, beside their speed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import quantized_inference
from mptexp.report.first_screen import speed
from mptexp.report.first_screen.subject import PROVISIONAL, Bar, Scale, Subject
from mptexp.report.text import measures, wording


def of_quantized(tables: Tables) -> Iterator[Subject]:
    """What integers for weights take of the bytes and of the accuracy, beside their speed."""
    made = quantized_inference.measured(tables)
    for subject in speed.of(tables) if made else ():
        said = [*quantized_inference.sentences(made), *subject.sentences]
        margin = tables.options.equivalence_margin
        lossy = {one.policy for one in made if one.loses(margin)}
        faster = {bar.policy for bar in subject.bars if bar.finding == "faster"}
        good = {one.policy for one in made} - lossy
        taken = quantized_inference.taken(made)
        if faster and faster <= good:
            yield replace(subject, title=f"{subject.title}; {taken}", sentences=said)
            continue
        measure, base = measures.of(made[0].dataset), subject.baseline
        name, least = measure.name, _least(made, margin)
        to_do = f"for fewer bytes take {least}, and look at its {name} in your own model."
        if not least:
            to_do = f"keep {base}: all lose more than {measure.margin(margin)} of {name}."
        if subject.title.startswith(PROVISIONAL):
            of_speed = "no speed is valid"
            to_do = f"{to_do} {wording.capitalized(subject.advice)}"
            # Of times that are not valid no chart is made where there is one of what is.
            if bars := [_bar(one) for one in made if one.lost.n]:
                kind: Scale = "accuracy" if name == "accuracy" else "perplexity"
                theirs = "the same weights in float32"
                subject = replace(subject, bars=bars, baseline=theirs, scale=kind)
        else:
            of_speed = subject.title.replace("No other policy", "none")
            fast = [bar for bar in subject.bars if bar.policy in faster & good]
            best = (
                f"take **{max(fast, key=lambda bar: bar.low).policy}**" if fast else f"keep {base}"
            )
            to_do = f"for speed {best}; {to_do}" if least else to_do
        yield replace(subject, title=f"{taken}; {of_speed}", sentences=said, advice=to_do)


def _least(made: Sequence[quantized_inference.Quantized], margin: float) -> str:
    """The policy of the fewest bytes that keeps the accuracy, at each point where they differ.

    Empty where none keeps it anywhere.
    """
    fewest: dict[str, str] = {}
    for one in sorted(made, key=lambda one: one.share):
        if not one.loses(margin):
            fewest.setdefault(one.point, one.policy)
    everywhere = len(fewest) == len({one.point for one in made})
    if everywhere and len(set(fewest.values())) == 1:
        return f"**{next(iter(fewest.values()))}**"
    named = [f"**{policy}** ({wording.verbatim(point)})" for point, policy in fewest.items()]
    return wording.listed(named) if named else ""


def _bar(one: quantized_inference.Quantized) -> Bar:
    """What quantizing changed, beside the bytes that are left."""
    changed = measures.of(one.dataset).changed(one.lost.estimate, one.lost.low, one.lost.high)
    value, *ends = (number * 100 for number in changed)
    word = "not valid" if wording.not_valid(one.flags, "accuracy") else "measured"
    ends = [np.nan, np.nan] if word == "not valid" else ends
    label = f"{one.policy}: {one.share * 100:.0f} % of the bytes"
    return Bar(label, one.policy, value, *ends, word, one.difference)
