"""Replicas of a model: several to one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from mptexp.analysis import rate_ratios
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.first_screen import policy_speed, ratios
from mptexp.report.first_screen.subject import Subject, opening
from mptexp.report.text import wording

PARTS = "Logical replicas are parts of one CPU: their scaling says nothing of hardware."
NOTHING = "More replicas are not shown to be faster than"
KEEP = "keep one replica"
# What several replicas are compared with, by whether the batch size of each is kept.
BASES = {
    True: "1 replica with the same batch size per replica",
    False: "1 replica with the same global batch size",
}


def of(tables: Tables) -> Iterator[Subject]:
    """Several replicas to one, with the batch of each kept and with the global one: what was run.

    Each kind has a baseline of its own, and neither stands for the other: with the batch of each
    kept there may be a gain where a step of the same global batch takes longer, or the reverse.
    """
    rows = rate_ratios.by_replicas(tables)
    if rows.empty:
        return
    several = tables.ok.policy.nunique() > 1
    kinds = {base: _of_kind(rows, each, several) for each, base in BASES.items()}
    kinds = {base: own for base, own in kinds.items() if len(own)}
    made = [
        subject
        for base, own in kinds.items()
        for subject in ratios.of(own, own.label, base, tables, nothing=NOTHING, otherwise=KEEP)
    ]
    advice = _advice(made)
    if len(made) > 1:
        every = pd.concat(kinds.values(), ignore_index=True)
        pooled = ratios.of(every, every.label, "one", tables, nothing=NOTHING, otherwise=KEEP)
        made = [_joined(made, next(pooled))]
    logical = any(own.logical.any() for own in kinds.values())
    made = [one if one.advice else replace(one, advice=advice) for one in made]
    names = {n: wording.count(n, "replica") for n in tables.results.replicas.unique()}
    policies = next(policy_speed.of(tables), None)
    shown = policies and any(bar.finding in ratios.PROVEN for bar in policies.bars)
    precision = policies.sentences[:1] if shown else []
    for subject in made:
        said = [" ".join(subject.sentences), *[PARTS] * logical, *precision]
        yield ratios.with_losses(replace(subject, sentences=said), tables, "replicas", names)


def _advice(made: Sequence[Subject]) -> str:
    """The fastest replicas of each kind and policy, where any are a gain.

    Nothing of parts of one CPU. Policies are not compared here, so each has its own.
    """
    best = {}
    for one in made:
        for bar in sorted(one.bars, key=lambda bar: bar.value):
            if bar.finding == "faster" and not wording.is_even(bar.value):
                best[one.baseline, bar.policy] = bar.label
    if not best:
        proven = any(bar.finding in ratios.PROVEN for one in made for bar in one.bars)
        return f"{KEEP}." * proven
    if any("logical" in label for label in best.values()):
        return ""
    named: dict[str, list[str]] = {}
    for (base, policy), label in best.items():
        own = label.removeprefix(f"{policy}, ")
        kept = f" {base.removeprefix('1 replica ')}" * ("batch size" not in own)
        named.setdefault(f"**{wording.verbatim(own)}**{kept}", []).append(policy)
    every = {bar.policy for one in made for bar in one.bars}
    each = [
        choice + f" in {wording.listed(whose)}" * (set(whose) != every)
        for choice, whose in named.items()
    ]
    return f"where time counts more than devices, use {' or '.join(each)}."


def _of_kind(rows: pd.DataFrame, each: bool, several: bool) -> pd.DataFrame:
    """The rows with a ratio to one replica, labelled: see `_labels`."""
    if not each:
        strong = [name for name in rows if name.startswith("strong_")]
        plain = {name: name.removeprefix("strong_") for name in strong}
        rows = rows.drop(columns=plain.values(), errors="ignore").rename(columns=plain)
    rows = rows[rows.speedup.notna()]
    return rows.assign(label=_labels(rows, each, several)) if len(rows) else rows


def _joined(made: Sequence[Subject], pooled: Subject) -> Subject:
    """Both kinds as one answer: what either proves is its title; else what both come to.

    Args:
        made: those; pooled: all of their ratios as if they had one baseline.
    """
    shown = [one for one in made if any(bar.finding in ratios.PROVEN for bar in one.bars)]
    open_ = pooled.title.startswith(NOTHING)
    unsure = [one for one in made if opening(one.title)]
    titles = [one.title.removeprefix(opening(one.title)) for one in shown or unsure]
    title = "; ".join(titles)
    title = title if shown else pooled.title if open_ else f"{opening(pooled.title)}{title}"
    bars = [replace(bar, group=f"Against {one.baseline}") for one in made for bar in one.bars]
    said = [_against(text, one.baseline) for one in made for text in one.sentences]
    return Subject(title, said, bars, advice=pooled.advice)


def _against(text: str, base: str) -> str:
    """A sentence on ratios that says to what: `Against 1 replica with ..., inconclusive: ...`."""
    if base in text:
        return text
    finding, _, named = text.partition(": ")
    finding = finding.partition(" (")[0]
    return f"Against {base}, {finding[0].lower()}{finding[1:]}: {named}"


def _labels(rows: pd.DataFrame, each: bool, several: bool) -> pd.Series:
    """`float32, 2 replicas, batch size 32 each`; of parts of one CPU `2 logical replicas`.

    Args:
        each: whether a batch size is that of each replica, not of all together.
        several: whether the sweep measured several policies.
    """
    sizes, whose = (rows.batch_per_replica, "each") if each else (rows.batch_size, "in all")
    places = wording.places(rows.assign(batch_size=sizes))
    named = zip(places, sizes, strict=True)
    labels = pd.Series(
        [place.replace(f"batch size {n}", f"batch size {n} {whose}", 1) for place, n in named],
        rows.index,
        dtype=object,
    )
    if rows.replicas.nunique() == 1:
        labels = f"{rows.replicas.iloc[0]} replicas, " + labels
    logical = labels.str.replace(" replicas", " logical replicas", n=1, regex=False)
    labels = labels.where(~rows.logical.astype(bool), logical)
    return rows.policy + ", " + labels if several else labels
