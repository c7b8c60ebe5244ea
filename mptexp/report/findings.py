"""The sentences that open a report: of each device and policy, its speed, memory and accuracy."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mptexp.analysis import accuracy, summary
from mptexp.analysis.points import POINT
from mptexp.analysis.sweep_tables import Tables
from mptexp.report import wording
from mptexp.report.wording import INCONCLUSIVE, count, default_name, listed, verbatim

SENTENCES = 24  # of the answer: more are not read
CLAUSES = 8  # batch sizes that a sentence lists; of more it says from what to what


def answer(tables: Tables) -> list[str]:
    """One sentence per device and policy: the answer that opens a report."""
    missing = [_left_out(row) for row in summary.left_out(tables.results).to_dict("records")]
    if tables.ok.empty:
        return ["No run of this sweep succeeded, so there is nothing to compare yet.", *missing]
    table = _with_accuracy(summary.headline(tables), tables)
    table = _placed(table, table.policy)
    keys = ["panel", "backend", "phase", "policy", "baseline"]
    margin = tables.options.equivalence_margin
    sentences = [
        _policy_sentence(panel, policy, rows[rows.speedup.notna()], margin)
        for (panel, _, _, policy, _), rows in table.groupby(keys, sort=False)
        if rows.speedup.notna().any()
    ]
    accuracies = _level(tables) if sentences else _accuracy_answer(tables)
    return [*(sentences or [_without_baseline(table)]), *accuracies, *missing]


def _with_accuracy(table: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """A headline table with difference and verdict of each policy's accuracy."""
    compared = accuracy.differences(tables, tables.options.equivalence_margin)
    compared = compared.rename(columns={"candidate": "policy"})
    keys = [*POINT, "policy", "baseline"]
    return table.merge(compared[[*keys, "difference", "verdict"]], "left", keys)


def _placed(table: pd.DataFrame, policies: pd.Series) -> pd.DataFrame:
    """Points with panel: of what a sentence speaks, and place: what sets a point apart there.

    Of more than SENTENCES panels and policies, a sentence speaks of all that a device measured.
    """
    panels = wording.panels(table)
    if panels.nunique() * policies.nunique() <= SENTENCES:
        return table.assign(panel=panels, place="")
    places = wording.panels(table.assign(gpu_model="")).str.removeprefix(", ")
    return table.assign(panel=table.gpu_model, place=places)


def _left_out(row: Mapping[str, Any]) -> str:
    return (
        f"Left out of the figures: {row['left']} of {count(row['runs'], 'run')} of "
        f"{row['policy']}, which ended as *{row['status']}*."
    )


def _policy_sentence(panel: str, policy: str, rows: pd.DataFrame, margin: float) -> str:
    least = rows.loc[rows.effective_share.astype(float).fillna(1).idxmin()]
    partly = "".join(f" ({note})" for note in wording.partly(least))
    return (
        f"On {verbatim(panel)}, **{policy}**{partly} {_speed(rows)}{_memory(rows)}"
        f"{_of_accuracy(rows, margin)}.{_reason(rows)}"
    )


# --- speed ----------------------------------------------------------------------------------------


def _speed(rows: pd.DataFrame) -> str:
    """What the intervals allow to be said: faster, slower or inconclusive, number first."""
    baseline = _baseline(rows)
    faster, slower = rows[rows.low > 1], rows[rows.high < 1]
    decided = [
        _decided(group, word, baseline, len(rows))
        for group, word in ((faster, "faster"), (slower, "slower"))
        if len(group)
    ]
    open_rows = rows.drop([*faster.index, *slower.index])
    flagged = open_rows[open_rows["flags"].map(wording.not_valid) != ""]
    open_rows = open_rows.drop(flagged.index)
    doubts = [
        f"{INCONCLUSIVE}{why} ({_several(group)})"
        for group, why in (
            (open_rows[open_rows.low.notna()], ": the interval includes 1"),
            (open_rows[open_rows.low.isna()], ": fewer than three repeats"),
        )
        if len(group)
    ]
    doubts += [f"claims nothing: {_several(flagged)}"] if len(flagged) else []
    if not decided:
        verb = "" if len(flagged) == len(rows) else "is "
        return f"against {baseline} {verb}{' and '.join(doubts)}"
    verb = "trains" if rows.phase.iloc[0] == "train" else "runs inference"
    return "; ".join([f"{verb} {listed(decided)}", *doubts])


def _decided(rows: pd.DataFrame, word: str, baseline: str, of: int) -> str:
    """`3.30× slower than float32 (the default) at batch size 32 [3.10, 3.50] (n = 3)`."""
    if word == "slower":  # a time over the baseline's, so that the number is above 1
        ends = {"speedup": 1 / rows.speedup, "low": 1 / rows.high, "high": 1 / rows.low}
        rows = rows.assign(**ends)
    if len(rows) > CLAUSES:
        at = f"all {of:,} points" if len(rows) == of else f"{len(rows):,} of {of:,} points"
        return f"{word} than {baseline} at {at}, {_several(rows)}"
    thans = [f" than {baseline}", *[""] * (len(rows) - 1)]
    return listed(
        [
            f"{row['speedup']:.2f}× {word}{than} at {_place(row)} "
            f"[{row['low']:.2f}, {row['high']:.2f}] (n = {row['blocks']:.0f})"
            for than, row in zip(thans, rows.to_dict("records"), strict=True)
        ]
    )


def _several(rows: pd.DataFrame) -> str:
    """Ratios with their intervals and batch sizes; of many, the ends."""
    if len(rows) > CLAUSES:
        rows = rows.loc[[rows.speedup.idxmin(), rows.speedup.idxmax()]]
        return f"from {' to '.join(_clauses(rows))}"
    return listed(_clauses(rows))


def _clauses(rows: pd.DataFrame) -> list[str]:
    return [f"{wording.ratio_of(row)} at {_place(row)}" for row in rows.to_dict("records")]


def _place(row: Mapping[str, Any]) -> str:
    return f"batch size {row['batch_size']}" + (f" ({row['place']})" if row["place"] else "")


def _baseline(rows: pd.DataFrame) -> str:
    """The baseline of some rows, and whether it is what users have."""
    baseline, default = rows.baseline.iloc[0], rows.default_policy.iloc[0]
    if baseline == default:
        return f"{default_name(baseline)} (the default)"
    named = verbatim(default_name(default))
    return f"strict {baseline} (the default, {named}, was not measured)"


def _reason(rows: pd.DataFrame) -> str:
    if rows.emulated.iloc[0] and (rows.speedup < 1).any():
        return " This device has no instructions for the type and emulates it: slower is expected."
    return ""


def _without_baseline(table: pd.DataFrame) -> str:
    if table.step_s.isna().all():
        return "Timings not valid (runs in parallel): only accuracy is compared."
    names = listed(sorted(set(table.policy)))
    return (
        f"This sweep measured {names}; a speedup needs float32 or the device's default and "
        "another policy at the same point, and there is none."
    )


# --- memory and accuracy --------------------------------------------------------------------------


def _memory(rows: pd.DataFrame) -> str:
    """How much less memory a policy takes than its baseline; empty where that is not known."""
    saved = (1 - rows.memory_ratio.dropna()) * 100
    if saved.empty:
        return ""
    if saved.abs().max() < 2:
        return "; it takes about as much memory"
    least, most = sorted((saved.min(), saved.max()), key=abs)
    ends = [f"{abs(v):.0f} %{' less' if v > 0 else ' more'}" for v in (least, most)]
    if least * most > 0:  # one direction is named once
        ends[0] = ends[0].rpartition(" ")[0].removesuffix(" %")
    same = least * most > 0 and f"{abs(least):.0f}" == f"{abs(most):.0f}"
    return f"; it takes {ends[1] if same else ' to '.join(ends)} memory"


def _of_accuracy(rows: pd.DataFrame, margin: float) -> str:
    """What the intervals allow to be said of a policy's accuracy; empty without one."""
    rows = rows.dropna(subset="verdict")
    if rows.empty:
        return ""
    return f"; its validation accuracy is {_verdicts(rows, margin)} ({_between(rows)})"


def _verdicts(rows: pd.DataFrame, margin: float) -> str:
    """Every verdict on some points, the most frequent first."""
    equal = f"equal within {wording.percentage_points(margin)}"
    words = {
        "equal": equal,
        "undecided": f"{INCONCLUSIVE} (neither shown to be {equal} nor different)",
        "too few repeats": f"{INCONCLUSIVE} with fewer than three repeats",
        "not trained": "not compared: the baseline is at chance level",
        "not valid": "not compared: not valid",
        "images not recorded": f"{INCONCLUSIVE}: how many images were validated with is not "
        "recorded",
        "too few images": f"{INCONCLUSIVE}: too few validation images to show a difference of "
        f"{wording.percentage_points(margin)}",
    }
    counts = rows.verdict.value_counts().to_dict()
    return listed(
        [
            words.get(verdict, verdict)
            + (f" at {n} of {len(rows)} points" if n < len(rows) else "")
            for verdict, n in counts.items()
        ]
    )


def _between(rows: pd.DataFrame) -> str:
    least, most = (wording.signed(v) for v in (rows.difference.min(), rows.difference.max()))
    ends = least if least == most else f"{least} to {most}"
    return f"mean difference {ends} percentage points"


def _accuracy_answer(tables: Tables) -> list[str]:
    margin = tables.options.equivalence_margin
    table = accuracy.differences(tables, margin)
    if table.empty:
        return []
    table = accuracy.beside_first(table)
    table = _placed(table, table.candidate)
    several = table.panel.nunique() > 1
    sentences = [
        f"{f'On {verbatim(panel)}, validation' if several else 'Validation'} accuracy of "
        f"**{policy}** against {default_name(baseline)}: {_verdicts(rows, margin)} "
        f"({_between(rows)})."
        for (panel, policy, baseline), rows in table.groupby(
            ["panel", "candidate", "baseline"], sort=False
        )
    ]
    return [*sentences, *_level(tables)]


def _level(tables: Tables) -> list[str]:
    """How accurate the policies are that were compared."""
    spread = summary.accuracy_range(tables)
    if spread.empty:
        return []
    ends = [f"{value * 100:.1f} %" for value in (spread.least.min(), spread.most.max())]
    if ends[0] == ends[1]:
        return [f"Mean validation accuracy is {ends[0]} everywhere."]
    return [f"Mean validation accuracy is between {ends[0]} and {ends[1]}."]
