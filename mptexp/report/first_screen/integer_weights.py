"""What integers for weights take of the bytes and of the accuracy, beside their speed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from mptexp.analysis import validation_variance
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import caveats, next_commands, quantized_inference, repeats_needed
from mptexp.report.first_screen import policy_speed
from mptexp.report.first_screen.subject import Bar, Scale, Subject, opening
from mptexp.report.text import task_words, wording


def of_quantized(tables: Tables) -> Iterator[Subject]:
    """What integers for weights take of the bytes and of the accuracy, beside their speed."""
    made = quantized_inference.measured(tables)
    lossy = {one.key for one in made if not one.keeps}
    for subject in policy_speed.of(tables, lossy) if made else ():
        said = [*quantized_inference.sentences(made), *subject.sentences]
        taken, of_speed = quantized_inference.taken(made), subject.title
        # Of times that are not valid no chart is made where there is one of what is.
        if opening(of_speed):
            spoiled = any(bar.finding == "not valid" for bar in subject.bars)
            of_speed = "no speed is valid" if spoiled else "no speed is shown"
            subject = _of_losses(subject, made)
        parts = [taken, of_speed.replace("No other policy", "none")]
        faster = {bar.policy for bar in subject.bars if bar.finding == "faster"}
        if faster and not lossy and faster <= {one.policy for one in made}:
            parts, advice = [subject.title, taken], subject.advice  # they gain in both
        else:
            advice = _advice(made, subject, tables)
        yield replace(subject, title="; ".join(parts), sentences=said, advice=advice)


def _of_losses(subject: Subject, made: Sequence[quantized_inference.Quantized]) -> Subject:
    """With the chart of what quantizing changed, where that was validated."""
    several = len({one.point for one in made}) > 1
    bars = [_bar(one, several) for one in made if one.lost.n]
    accurate = task_words.of(made[0].dataset).name == "accuracy"
    scale: Scale = "accuracy" if accurate else "perplexity"
    if not bars:
        return subject
    return replace(subject, bars=bars, baseline="the same weights in float32", scale=scale)


def _advice(made: Sequence[quantized_inference.Quantized], subject: Subject, tables: Tables) -> str:
    """What to use for speed, and what for fewer bytes, which may be two policies."""
    least, measure = _least(made), task_words.of(made[0].dataset)
    look = f", and look at its {measure.name} in your own model" * ("look at" not in subject.advice)
    for_bytes = f"for fewer bytes take {least}{look}."
    speed_of = subject.advice.rstrip(".")
    if opening(subject.title):
        first = for_bytes if least else f"keep the weights in float32: {_lost(made)}."
        return f"{first} {wording.capitalized(subject.advice)}" if speed_of else first
    decides = _decides(made, tables)
    if not least and speed_of.startswith("keep "):
        keep = speed_of.partition(";")[0]  # more repeats of a speed that nobody may use help nobody
        return f"{keep}: {_lost(made)}{decides}"
    if not least:
        return f"{speed_of}; take no quantized weights: {_lost(made)}{decides}"
    aim = {"for": "", "on": "for speed, "}.get(speed_of.partition(" ")[0], "for speed ")
    return f"{aim}{speed_of}; {for_bytes}"


def _lost(made: Sequence[quantized_inference.Quantized]) -> str:
    """Why none of the quantized weights is advised."""
    measure, margin = task_words.of(made[0].dataset), made[0].margin
    if not any(one.share < 1 for one in made):
        return "quantized weights are not known to take fewer bytes"
    if all(one.verdict in quantized_inference.INVALID for one in made):
        return f"the {measure.name} of quantized weights is not valid"
    if all(one.loses for one in made):
        return f"all lose more than {measure.margin(margin)} of {measure.name}"
    return f"none is shown to keep the {measure.name} within {measure.margin(margin)}"


def _decides(made: Sequence[quantized_inference.Quantized], tables: Tables) -> str:
    """What would show whether any of them may be used, behind the reason why none is."""
    if remedy := caveats.remedies(tables, "accuracy"):
        return f". {wording.capitalized(remedy)}"
    if any(one.verdict == quantized_inference.UNRECORDED for one in made):
        return f". {_recorded(made, tables)}"
    if any(one.verdict == "too few images" for one in made):
        least = math.ceil(validation_variance.NONE_AMONG / made[0].margin)
        examples = f"validation {task_words.of(made[0].dataset).task.example}s"
        return f"; it takes at least {least:,} {examples}."
    open_ = [one.lost.n for one in made if one.verdict in ("undecided", "too few repeats")]
    return f"; {repeats_needed.to_halve(min(open_))}." if open_ else "."


def _recorded(made: Sequence[quantized_inference.Quantized], tables: Tables) -> str:
    """What to run where records have no list of examples, as older ones and profiled ones do."""
    profiled = any(record["parameters"].get("profile") for record in tables.records)
    options = "--set profile=false" * profiled
    again = next_commands.command(tables, "run", next_commands.AGAIN, options)
    example = task_words.of(made[0].dataset).task.example
    return f"For a claim, run {again}, which records how each {example} is predicted."


def _least(made: Sequence[quantized_inference.Quantized]) -> str:
    """The policies of the fewest bytes that keep the accuracy, at each point where they differ.

    Empty where none keeps it anywhere.
    """
    kept: dict[str, list[quantized_inference.Quantized]] = {}
    for one in sorted(made, key=lambda one: one.share):
        if one.keeps and one.share < 1:
            kept.setdefault(one.point, []).append(one)
    fewest = {point: _smallest(ones) for point, ones in kept.items()}
    everywhere = len(fewest) == len({one.point for one in made})
    if everywhere and len(set(fewest.values())) == 1:
        return next(iter(fewest.values()))
    named = [f"{policies} ({wording.verbatim(point)})" for point, policies in fewest.items()]
    return wording.listed(named) if named else ""


def _smallest(made: Sequence[quantized_inference.Quantized]) -> str:
    """`**int8** or **int8_weights**`: the policies of the fewest bytes, which may be several."""
    least = min(one.share for one in made)
    return " or ".join(f"**{one.policy}**" for one in made if not one.share > least)


def _bar(one: quantized_inference.Quantized, several: bool) -> Bar:
    """What quantizing changed, beside the bytes that are left.

    Args:
        several: whether there are other points, from which its own is told.
    """
    changed = task_words.of(one.dataset).changed(one.lost.estimate, one.lost.low, one.lost.high)
    value, *ends = (number * 100 for number in changed)
    word = "no interval" if np.isnan(one.lost.low) else "measured"
    if one.verdict == quantized_inference.UNRECORDED:
        word = f"{task_words.of(one.dataset).task.example}s not recorded"
    word = "not valid" if wording.not_valid(one.flags, "accuracy") else word
    ends = [np.nan, np.nan] if word == "not valid" else ends
    name = f"{one.policy}, {one.point}" if several else one.policy
    label = f"{name}: {one.share * 100:.0f} % of the bytes"
    return Bar(label, one.policy, value, *ends, word, one.difference)
