"""What reduced precision gains in each framework, and what Keras costs beside a plain loop."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from mptexp.analysis import rate_ratios
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import comparisons
from mptexp.report.first_screen import policy_speed, ratios
from mptexp.report.first_screen.subject import Bar, Subject, opening
from mptexp.report.text import wording
from mptexp.report.text.parameter_values import in_words
from mptexp.report.text.wording import listed
from mptexp.spec.backends import LABELS

NOTHING = "not shown to differ in speed from"
NAMES = LABELS | {"keras": "Keras", "native": "a plain loop"}  # of what is compared


def of_frameworks(tables: Tables) -> Iterator[Subject]:
    """What reduced precision gains in each framework, then how fast these are to one another."""
    rows = rate_ratios.by_backend(tables)
    if len(rows):
        labels = pd.Series(comparisons.in_frameworks(rows), rows.index) + ", " + rows.policy
        if rows.phase.nunique() > 1:
            labels = labels + ", " + rows.phase.map(partial(in_words, "phase"))
        own = rows.backend[rows.speedup.notna()]
        met = [LABELS[name] for name in dict.fromkeys(own) if name != "tensorflow"]
        nothing = f"{listed(met)} {'is' if len(met) == 1 else 'are'} {NOTHING}"
        made = ratios.of(rows, labels, "TensorFlow", tables, nothing)
        beside = (ratios.with_losses(one, tables, "backend", NAMES) for one in made)
        yield from _after_speed(beside, tables, "other frameworks")


def of_frontends(tables: Tables) -> Iterator[Subject]:
    """What reduced precision gains in Keras and without it, then what Keras costs."""
    rows = rate_ratios.by_frontend(tables)
    if len(rows):
        frameworks = pd.Series(comparisons.in_frameworks(rows), rows.index)
        # Of training alone the phase is not named.
        made = {"train": "Keras training"} if rows.phase.nunique() > 1 else {"train": "Keras"}
        made |= {"inference": "Keras inference"}
        labels = rows.phase.map(made) + " on " + frameworks + ", " + rows.policy
        own = ratios.of(rows, labels, "a plain loop", tables, f"Keras is {NOTHING}")
        short = (_short(made) for made in own)
        beside = (ratios.with_losses(one, tables, "frontend", NAMES) for one in short)
        yield from _after_speed(beside, tables, "Keras")


def _short(made: Subject) -> Subject:
    """What Keras costs, the policy left out of the title: `Keras on PyTorch is 2.73× slower`."""
    slower = [bar for bar in made.bars if bar.finding == "slower"]
    if not slower or any(bar.finding == "faster" for bar in made.bars):
        return made
    bar = min(slower, key=lambda bar: bar.value)
    name = bar.label.partition(", ")[0]
    alike = [other for other in made.bars if other.label.startswith(f"{name}, ")]
    name = name if all(other.finding == "slower" for other in alike) else bar.label
    times, costs = wording.times(bar.value), not wording.is_even(bar.value)
    bound = "up to " * (len(slower) > 1 and costs)
    title = f"{name} is {bound}{times} {wording.than(times)} a plain loop"
    advice = "a plain loop avoids what Keras costs there." if costs else made.advice
    return replace(made, title=title, advice=advice)


def _headed(bars: Sequence[Bar], what: str, base: str) -> list[Bar]:
    """Bars under the heading `mixed_bfloat16 against float32`, which their labels leave out."""
    before = (f"{what}, ", f"{what} on ")
    # A heading of their own, such as a phase, tells them apart below this one.
    named = [", ".join(filter(None, [bar.label, bar.group])) for bar in bars]
    short = [label.removeprefix(before[0]).removeprefix(before[1]) for label in named]
    group = f"{what} against {base}"
    return [replace(bar, label=s, group=group) for bar, s in zip(bars, short, strict=True)]


def _after_speed(beside: Iterator[Subject], tables: Tables, what: str) -> Iterator[Subject]:
    """What reduced precision gains in each framework, then how these lie to one another.

    Args:
        beside: the second answer; what: is compared in it.
    """
    for subject in beside:
        policies = next(policy_speed.of(tables), None)
        if policies is None:
            yield subject
            continue
        second = subject.title
        if same := opening(policies.title):  # what is said once holds of both
            second = second.removeprefix(same)
        title = f"{policies.title}; {second}"
        first, *more = policies.sentences
        named = listed(list(dict.fromkeys(bar.policy for bar in policies.bars)))
        # Not in a policy's colour, which means faster in one group and slower in the other.
        plain = [replace(bar, policy="float32") for bar in subject.bars]
        bars = [
            *_headed(policies.bars, named, policies.baseline),
            *_headed(sorted(plain, key=lambda bar: bar.label), what, subject.baseline),
        ]
        said = [first, *subject.sentences, *more]
        advice = policies.advice
        if subject.advice and subject.advice != advice:
            shown = any(bar.finding in ratios.PROVEN for bar in subject.bars)
            of = "" if shown else f"of {what} against {subject.baseline}: "
            advice += f" {wording.capitalized(f'{of}{subject.advice}')}"
        yield replace(policies, title=title, sentences=said, advice=advice, bars=bars, baseline="")
