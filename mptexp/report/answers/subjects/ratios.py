"""Ratios of speed that are not between policies: instruction sets, replicas."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import scaling
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import caveats
from mptexp.report.answers.subjects import speed, speed_advice
from mptexp.report.answers.subjects.opening import MOST, Bar, Subject, device, first, provisional
from mptexp.report.text import wording
from mptexp.report.text.parameter_values import in_words
from mptexp.report.text.wording import INCONCLUSIVE, verbatim
from mptexp.spec.devices import CPU_ISAS
from mptexp.spec.policies import POLICIES

INSTRUCTION_SETS = (*CPU_ISAS, "default")  # each with those before it


def of_instruction_sets(tables: Tables) -> Iterator[Subject]:
    """Each policy with each instruction set, to float32 with all of them."""
    rows = scaling.by_isa(tables)
    if len(rows):
        labels = rows.policy + " with " + rows.cpu_isa.map(partial(in_words, "cpu_isa"))
        every = "float32 with all instruction sets"
        for made in of_ratios(rows, labels, every, tables, choose=True):
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
        lost = wording.times(below.speedup) if lost == "slower" else lost
        but = f", and {lost} with {without} alone"
        gain = f"{policy} is {wording.times(best.speedup)} than float32 on {where}"
        title = f"{gain} thanks to {needed}{but}"
        to_do = f"on a CPU with {needed}, use **{policy}**; on one without, keep float32."
        return replace(made, title=title, advice=to_do)
    return made


def of_replicas(tables: Tables) -> Iterator[Subject]:
    """Several replicas to one, the batch of each kept."""
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
            labels = f"{rows.replicas.iloc[0]} replicas, " + labels
        if rows.policy.nunique() > 1:
            labels = rows.policy + ", " + labels
        base = "1 replica with the same batch size per replica"
        nothing = "More replicas are not shown to train more images a second than one"
        otherwise = "keep one replica"
        yield from of_ratios(rows, labels, base, tables, nothing=nothing, otherwise=otherwise)


def of_ratios(
    rows: pd.DataFrame,
    labels: Any,
    base: str,
    tables: Tables,
    choose: bool = False,
    nothing: str = "Not shown to differ in speed from {}",
    otherwise: str = "",
) -> Iterator[Subject]:
    """Ratios to one baseline: sentences by finding, the largest proven ones as the title.

    Args:
        choose: whether a reader can choose among them, and is told to take the fastest.
        nothing, otherwise: how the title opens, and what to do, where no difference is shown.
    """
    rows = rows.assign(label=labels).dropna(subset="speedup")
    if rows.empty:
        return
    rows = rows.assign(finding=rows.apply(wording.finding, axis=1))
    rows = rows.drop_duplicates(["label", "policy"]).sort_values("speedup", kind="stable")
    bars = [speed.bar_of(row, row["label"]) for row in rows[:MOST].to_dict("records")]
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
        said = f"{nothing.format(base)}: {span}, {INCONCLUSIVE}"
        title = said if inconclusive else provisional(title)
    sentences = [
        f"{wording.OPENINGS[word].format(base)}: {_named(own)}."
        for word in wording.OPENINGS
        if (own := [bar for bar in bars if bar.finding == word])
    ]
    more = caveats.remedies(tables, "time") or speed_advice.more_repeats(rows)
    keep = otherwise * all(bar.finding == INCONCLUSIVE for bar in bars)
    advice = "" if proven else "; ".join(filter(None, [keep, more]))
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
    return first([f"**{verbatim(bar.label)}** {bar.text.partition(' (')[0]}" for bar in order])
