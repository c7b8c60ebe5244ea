"""Instruction sets of a CPU: each policy with each of them, and what a policy needs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from mptexp.analysis import accuracy, rate_ratios
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.host.devices import CPU_ISAS
from mptexp.report.answers import quality
from mptexp.report.first_screen import ratios
from mptexp.report.first_screen.subject import Subject, device
from mptexp.report.text import task_words, wording
from mptexp.report.text.parameter_values import in_words
from mptexp.spec.policies import ARITHMETICS, POLICIES, POLICY_ROWS

INSTRUCTION_SETS = (*CPU_ISAS, "default")  # each with those before it
# AVX512_BF16 makes bfloat16 faster on an EPYC and slower on a Xeon: see reports/published.
WIDER = ("avx", "avx2", "avx512_core")  # whose vectors are wider than those of the sets before
NOTHING = "No policy is shown to differ in speed from"
ANOTHER = "another CPU with the same instructions may do otherwise"
UNLIKE = ("slower", wording.INCONCLUSIVE)  # findings of a set that another can be held against


def of(tables: Tables) -> Iterator[Subject]:
    """Each policy with each instruction set, to float32 with all of them."""
    rows = rate_ratios.by_isa(tables)
    if len(rows):
        labels = rows.policy + " with " + rows.cpu_isa.map(partial(in_words, "cpu_isa"))
        several = len(rows[POINT].drop_duplicates()) > 1
        labels = labels + ", " + wording.places(rows) if several else labels
        every = "float32 with all instruction sets"
        for made in ratios.of(rows, labels, every, tables, NOTHING, choose=True):
            made, policy = (made, "") if several else _needing(made, rows, tables)
            best = max(made.bars, key=lambda bar: bar.value * (bar.finding == "faster"))
            policy = policy or (best.policy if best.finding == "faster" else "")
            own = rows[rows.policy == policy].dropna(subset="speedup")
            own = own[own.apply(wording.finding, axis=1) == "faster"] if len(own) else own
            yield _with_accuracy(made, policy, [*own.cpu_isa], tables)


def _with_accuracy(made: Subject, policy: str, gain: Sequence[str], tables: Tables) -> Subject:
    """With what is known of the accuracy of the policy that is advised; empty of none.

    Args:
        gain: the instruction sets with which it is faster; with others nobody is to use it.
    """
    # With all instruction sets a policy's ratio is that of the sweep's own table.
    made = replace(made, sentences=[*made.sentences, *quality.sentences(tables)], together=False)
    if policy in ("", "float32"):
        return made
    table = accuracy.beside_first(accuracy.differences(tables))
    with_ = {f"cpu_isa {name}" for name in gain}
    here = table.setting.map(lambda text: not with_.isdisjoint(text.split(", ")))
    own = table[(table.candidate == policy) & here.astype(bool)]
    (measure, *_) = task_words.met(own if len(own) else tables.ok)
    verdicts = {*own.verdict} if len(own) else {"not compared"}
    if verdicts & {"lower", "diverged"}:
        what = measure.words.get("lower", "lower") if "lower" in verdicts else "lost: runs diverge"
        title = f"{made.title}; its {measure.name} is {what}"
        return replace(
            made, title=title, advice=f"keep float32: {policy}'s {measure.name} suffers."
        )
    look = f" Look at its {measure.name} in your own training."
    return replace(made, advice=made.advice + look * (not verdicts <= {"equal", "higher"}))


def _needing(made: Subject, rows: pd.DataFrame, tables: Tables) -> tuple[Subject, str]:
    """What a policy needs that is faster with some instruction sets alone: title, advice, chart.

    The least instruction set with which it is shown to be faster, where the next smaller one whose
    times are valid does not show it. With the policy; empty where none does, or float32 with fewer
    instruction sets is the fastest.
    """
    where = device(tables)
    order = {in_words("cpu_isa", name): k for k, name in enumerate(INSTRUCTION_SETS)}
    bars = sorted(  # policies are headings
        made.bars,
        key=lambda bar: (POLICIES.index(bar.policy), order[bar.label.partition(" with ")[2]]),
    )
    made = replace(made, bars=bars)
    proven = [bar for bar in bars if bar.finding == "faster"]
    if proven and max(proven, key=lambda bar: bar.value).policy == "float32":
        return made, ""
    known = {(row.policy, row.cpu_isa): row for row in rows.dropna(subset="speedup").itertuples()}
    for policy in dict.fromkeys(bar.policy for bar in bars if bar.policy != "float32"):
        own = [known[policy, isa] for isa in INSTRUCTION_SETS if (policy, isa) in known]
        words = [wording.finding(row._asdict()) for row in own]
        if "faster" not in words[1:] or words[0] == "faster":
            continue
        first = words.index("faster")
        # Of what is not valid nothing is said: the set before it is compared.
        before = [k for k, word in enumerate(words[:first]) if word in UNLIKE]
        if not before:
            continue
        least, below = own[first], own[before[-1]]
        needed, without = _beyond(least, below, tables), in_words("cpu_isa", below.cpu_isa)
        proven = [row for row, word in zip(own, words, strict=True) if word == "faster"]
        best = max(proven, key=lambda row: row.speedup)
        lost = words[before[-1]]
        lost = wording.times(below.speedup) if lost == "slower" else lost
        but = f", and {lost} with {without} alone"
        # What a larger set adds is not this one's, where the interval says that it adds anything.
        beyond = best.low > least.speedup and wording.times(best.speedup) != wording.times(
            least.speedup
        )
        gain = (least if beyond else best).speedup
        more = f"; {wording.times(best.speedup)} with {in_words('cpu_isa', best.cpu_isa)}"
        gain = f"{policy} is {wording.times(gain)} than float32 on {where}"
        title = f"{gain} thanks to {needed}{but}{more * bool(beyond)}"
        to_do = f"on this CPU use **{policy}** with {needed}, else float32; {ANOTHER}."
        return replace(made, title=title, advice=to_do), policy
    return made, ""


def _beyond(least: Any, below: Any, tables: Tables) -> str:
    """The instruction sets that one row has and the other has not: those of its policy's type.

    Of all sets of a CPU, which have no name of their own, those that its card names. Also those
    of wider vectors between the two that were not measured, from which nothing tells these apart.
    """
    order = INSTRUCTION_SETS.index(below.cpu_isa)
    if least.cpu_isa != "default":
        return _either(order, [least.cpu_isa])
    cards = [record.get("environment") or {} for record in tables.records]
    flags = {flag for card in cards for flag in card.get("instruction_sets", ())}
    limits = ARITHMETICS[POLICY_ROWS[least.policy].arithmetic].cpu_flags
    own = [
        limit
        for flag, limit in limits.items()
        if flag in flags and limit and INSTRUCTION_SETS.index(limit) > order
    ]
    if not own:
        return in_words("cpu_isa", "default")
    return _either(order, own)


def _either(order: int, own: Sequence[str]) -> str:
    """Instruction sets, after those of wider vectors between them and the one at a place."""
    between = INSTRUCTION_SETS[order + 1 : min(map(INSTRUCTION_SETS.index, own))]
    wider = [name for name in between if name in WIDER]
    return " or ".join(in_words("cpu_isa", name) for name in (*wider, *own))
