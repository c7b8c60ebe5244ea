"""Ratios of speed that are not between policies, and what may stand against the faster side."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import rate_ratios
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import caveats, findings
from mptexp.report.first_screen import policy_speed, speed_advice
from mptexp.report.first_screen.subject import Bar, Subject, first, provisional, unproven
from mptexp.report.text import task_words, wording
from mptexp.report.text.wording import INCONCLUSIVE, listed, verbatim
from mptexp.spec.backends import LABELS

PROVEN = ("faster", "slower")


def of(
    rows: pd.DataFrame,
    labels: Any,
    base: str,
    tables: Tables,
    nothing: str,
    choose: bool = False,
    otherwise: str = "",
) -> Iterator[Subject]:
    """Ratios to one baseline: sentences by finding, the largest proven ones as the title.

    Args:
        choose: whether a reader can choose among them, and is told to take the fastest.
        nothing, otherwise: how the title opens, before the baseline, and what to do, where no
            difference is shown.
    """
    rows = rows.assign(label=labels).dropna(subset="speedup")
    if rows.empty:
        return
    rows = rows.assign(finding=rows.apply(wording.finding, axis=1))
    rows = rows.sort_values("speedup", kind="stable")
    bars = [policy_speed.bar_of(row, row["label"]) for row in rows.to_dict("records")]
    proven = [bar for bar in bars if bar.finding in PROVEN]
    # What is proven and rounds to 1.00 is no title beside anything else, and worth no change.
    telling = [bar for bar in proven if not wording.is_even(bar.value)]
    slower, faster = (
        [bar for bar in telling if bar.finding == word] for word in ("slower", "faster")
    )
    sides = [slower, faster] if slower and faster else [telling or proven or bars]
    most = " and ".join(map(_furthest, sides))
    title = f"{most} {wording.than(most)} {base}"
    if not proven:
        inconclusive = all(bar.finding == INCONCLUSIVE for bar in bars)
        ends = dict.fromkeys(f"{wording.factor(bar.value)}×" for bar in (bars[0], bars[-1]))
        held = "its interval includes" if len(bars) == 1 else "all intervals include"
        said = f"{nothing} {base}: {' to '.join(ends)}, but {held} 1"
        title = said if inconclusive else provisional(title, unproven(rows))
    sentences = [
        f"{wording.OPENINGS[word].format(base)}: {_named(own)}."
        for word in wording.OPENINGS
        if (own := [bar for bar in bars if bar.finding == word])
    ]
    # Who keeps the baseline unless there is a gain needs no proof of a loss.
    open_ = speed_advice.repeats_to_decide(rows, rows.label, gains=bool(otherwise))
    more = caveats.remedies(tables, "time") or open_
    keep = otherwise * all(bar.finding == INCONCLUSIVE for bar in bars)
    advice = "" if proven else "; ".join(filter(None, [keep, more]))
    if faster and choose:
        which, _, place = max(faster, key=lambda bar: bar.value).label.partition(", ")
        at = f"{wording.at(verbatim(place))}, " if place else ""
        advice = f"{at}use {verbatim(which)}."
    advice = advice and f"{advice.rstrip('.')}."
    yield Subject(title, sentences, bars, base, advice=advice)


def _furthest(bars: Sequence[Bar]) -> str:
    """`float32 with sse41 is 5.15× slower`: of some bars the one furthest from no effect."""
    bar = max(bars, key=lambda bar: abs(np.log(bar.value)))
    verb = "are" if re.search(r"\breplicas\b", bar.label) else "is"
    return f"{bar.label} {verb} {bar.text.partition(' [')[0].partition(' (')[0]}"


def _named(bars: Sequence[Bar]) -> str:
    """Comparisons in words, the largest effects first."""
    order = sorted(bars, key=lambda bar: -abs(np.log(bar.value)))
    return first([f"**{verbatim(bar.label)}** {bar.text.partition(' (')[0]}" for bar in order])


def with_losses(made: Subject, tables: Tables, axis: str, names: Mapping[Any, str]) -> Subject:
    """With what is shown to learn less, or has runs that did not end well: speed is no gain then.

    Nobody is told to use such a side before it is known why.

    Args:
        axis: as `rate_ratios.learned` takes it.
        names: of its values.
    """
    learned, ended = (
        table.assign(place=_places(table, axis)) if len(table) else table
        for table in (rate_ratios.learned(tables, axis), rate_ratios.endings(tables, axis))
    )
    less = learned[learned.verdict == "lower"] if len(learned) else learned
    less = less.assign(alike=[_at_one_batch(row, learned) for row in less.to_dict("records")])
    lost = ended[ended.lost.map(len) > 0] if len(ended) else ended
    if less.empty and lost.empty:
        return made
    clauses = [_less(less, axis, names), _lost(lost, axis, names)]
    said = " ".join(f"{wording.capitalized(first(own))}." for own in clauses if own)
    open_ = all(bar.finding == INCONCLUSIVE for bar in made.bars)
    behind = [] if open_ else _behind(less, names)
    failing = _failing(ended, axis, names)
    title = "; ".join([made.title, *behind, *failing])
    made = replace(made, title=title, sentences=[said, *made.sentences])
    proven = any(bar.finding in PROVEN for bar in made.bars)
    if not proven or not (behind or (len(lost) and lost.gains.any())):
        return made
    why = " and ".join(f"why {clause}" for clause in [*behind, *failing])
    return replace(made, advice=f"find out first {why}.")


def _at_one_batch(row: Mapping[str, Any], learned: pd.DataFrame) -> float:
    """The difference between the sides of a row where both train the same global batch.

    NaN where that was not measured, or is the row itself.
    """
    if len({*row["sizes"]}) == 1:
        return np.nan
    sides = {row["candidate"], row["baseline"]}
    names = [name for name in (*POINT, "policy") if name != "batch_size" and name in learned]
    for other in learned.to_dict("records"):
        same = len({*other["sizes"]}) == 1 and {other["candidate"], other["baseline"]} == sides
        alike = all(other[name] == row[name] for name in names)
        if same and alike and {*other["sizes"]} <= {*row["sizes"]}:
            sign = 1 if other["candidate"] == row["candidate"] else -1
            return sign * float(other["difference"])
    return np.nan


def _behind(less: pd.DataFrame, names: Mapping[Any, str]) -> list[str]:
    """`a plain loop's accuracy is lower`: of what is faster, in the mean at least.

    What is lost at the same global batch size too is not lost to replicas.
    """
    if less.empty:
        return []
    less = less[~(less.alike > less.difference / 2)]
    gains = less[less.faster].drop_duplicates("candidate")
    if gains.empty:
        return []
    measure = task_words.of(gains.dataset.iloc[0])
    whose = listed([_possessive(names[name]) for name in gains.candidate])
    return [f"{whose} {measure.name} is {measure.words.get('lower', 'lower')}"]


def _possessive(name: str) -> str:
    """`Keras's`, `2 replicas'`."""
    return f"{name}'" if name.endswith("replicas") else f"{name}'s"


def _failing(ended: pd.DataFrame, axis: str, names: Mapping[Any, str]) -> list[str]:
    """`some runs of Keras and a plain loop diverged`, `all runs of 4 replicas diverged`.

    Not of what never fits into the memory, of which nobody asks why.
    """
    said: dict[tuple[str, str], list[str]] = {}
    for name, own in ended.groupby(axis, sort=False) if len(ended) else ():
        met = [*dict.fromkeys(chain(*own.lost[own.fits]))]
        if met:
            all_lost = own.lost.map(lambda lost: sum(lost.values())).sum() == own.runs.sum()
            how = listed([findings.ends(status, several=True) for status in met])
            said.setdefault(("all" if all_lost else "some", how), []).append(names[name])
    return [f"{which} runs of {listed(whose)} {how}" for (which, how), whose in said.items()]


def _less(less: pd.DataFrame, axis: str, names: Mapping[Any, str]) -> list[str]:
    """`validation accuracy is lower in a plain loop than in Keras (JAX, float32): −60.0 ...`."""
    clauses, at, heads = [], "with" if axis == "replicas" else "in", set[str]()
    ordered = less.sort_values("difference") if len(less) else less
    for row in ordered.to_dict("records"):
        measure = task_words.of(row["dataset"])
        sides = [names[row[name]] for name in ("candidate", "baseline")]
        over = [row[name] for name in ("difference", "low", "high", "blocks")]
        change = measure.difference(*over).partition(" (n =")[0]
        head = (
            f"validation {measure.name} is {measure.words.get('lower', 'lower')} {at} {sides[0]} "
            f"than {at} {sides[1]} "
        )
        unit = measure.unit.partition(" of ")[0]
        clauses.append(f"{head * (head not in heads)}({row['place']}): {change} {unit}")
        heads.add(head)
        if not np.isnan(row["alike"]):
            by = measure.between(pd.Series([row["alike"]])).partition(" ")[0]
            clauses[-1] += f" ({by} at the same global batch size)"
    return clauses


def _lost(lost: pd.DataFrame, axis: str, names: Mapping[Any, str]) -> list[str]:
    """`3 of 6 runs of a plain loop (JAX, float32) diverged`; those first that would be a gain."""
    clauses = []
    ordered = lost.sort_values("gains", ascending=False, kind="stable") if len(lost) else lost
    for row in ordered.to_dict("records"):
        (status, n), *others = row["lost"].items()
        runs = wording.count(row["runs"], "run")
        which = f"all {runs}" if n == row["runs"] > 1 else f"{n} of {runs}"
        which = "the only run" if row["runs"] == 1 else which
        how = [findings.ends(status, n > 1)]
        how += [f"{n} {findings.ends(status, n > 1)}" for status, n in others]
        clauses.append(f"{which} of {names[row[axis]]} ({row['place']}) {listed(how)}")
    return clauses


def _places(table: pd.DataFrame, axis: str) -> list[str]:
    """`JAX, float32, compiled`; then the batch sizes and what else tells the rows apart."""
    replicas = axis == "replicas"
    sized = replicas or len({*chain(*table.sizes)}) > 1
    others = table.assign(backend="", jit=False, batch_size=0, replicas=1)
    apart = len(others[POINT].drop_duplicates()) > 1
    more = wording.places(others) if apart else [""] * len(table)
    places = []
    for row, other in zip(table.to_dict("records"), more, strict=True):
        sizes = " against ".join(map(str, dict.fromkeys(row["sizes"])))
        sizes = f"{'global ' * replicas}batch size {sizes}" * sized
        backend = LABELS[row["backend"]] if axis == "frontend" else ""
        compiled = "compiled" * (row["jit"] is True)
        places.append(", ".join(filter(None, [backend, row["policy"], compiled, sizes, other])))
    return [verbatim(place) for place in places]
