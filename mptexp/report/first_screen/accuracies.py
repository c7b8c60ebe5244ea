"""Accuracy, where no time is valid or nothing is compared; at last, what ran without comparison."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy, emulated, points, speedups, summary
from mptexp.analysis.sweep_tables import Tables
from mptexp.execution import remeasuring
from mptexp.records.schema import FINAL
from mptexp.report.answers import caveats, findings, quality, repeats_needed
from mptexp.report.answers.loss_scales import RETRY
from mptexp.report.first_screen import speed_advice
from mptexp.report.first_screen.subject import Bar, Scale, Subject, device, equal, provisional
from mptexp.report.text import column_formats, task_words, wording
from mptexp.report.text.task_words import Measure

NONE = "No run of this sweep succeeded"
FORMATS_OF_A_TEXT = "Formats emulated in a text model are not compared: see their perplexities"
SEVERAL = 2  # epochs, from which a long training asks for accuracy
MEMORY = "more memory, a smaller model or smaller images would compare them."  # no batch fits
SMALLER = "a smaller batch, which fits all of them, would compare them."
AGAIN = "mend what the runs without a result name; the same command makes them again"
UNPROVEN = {"too few repeats", "too few images", "images not recorded"}  # verdicts
DECIDED = ("lower", "higher", "equal")  # verdicts that an interval shows


def of(tables: Tables) -> Iterator[Subject]:
    """Where no time is valid, or nothing is compared with a baseline."""
    table = accuracy.beside_first(accuracy.differences(tables))
    if table.empty:
        yield _alone(tables)
        return
    base, verdicts = speed_advice.baseline(table), set(table.verdict)
    by_measure = _by_measure(table)
    titles = [_title(tables, own, measure) for measure, own in by_measure]
    advice = caveats.remedies(tables, "accuracy")
    if not advice and "undecided" in verdicts:
        open_ = [(own[own.verdict == "undecided"], measure) for measure, own in by_measure]
        needed = [repeats_needed.of_accuracies(*each) for each in open_ if len(each[0])]
        advice = f"{_slow(tables, table)}{needed[0]}."
    if not advice:
        advice = _decided(table, base)
    # Of times that are not valid the page of accuracies says nothing here: the banner does.
    sentences = [s for s in findings.answer(tables) if not s.startswith(wording.NOT_VALID)]
    sentences += _by_epoch(tables, table)
    # A chart has one axis: it shows the differences of the first measure.
    measure, shown = by_measure[0]
    shown = shown[shown.blocks > 0]
    places = wording.places(shown) if len(shown) else []
    pairs = zip(shown.to_dict("records"), places, strict=True)
    bars = [_of_accuracy(row, place) for row, place in pairs]
    scale: Scale = "accuracy" if measure.name == "accuracy" else "perplexity"
    yield Subject("; ".join(titles), sentences, bars, base, scale, advice)


def _decided(table: pd.DataFrame, base: str) -> str:
    """What follows where accuracies are shown to differ; empty where nothing does."""
    worse, better = (
        table[table.verdict.isin(found)] for found in (["lower", "diverged"], ["higher"])
    )
    if len(better):
        names = wording.listed([f"**{name}**" for name in dict.fromkeys(better.candidate)])
        measure = task_words.of(better.dataset.iloc[0])
        how = measure.words.get("higher", "higher")
        return f"find out first why the {measure.name} of {names} is {how}."
    if len(worse) == len(table):
        return f"keep {base}."
    names = wording.listed([f"**{name}**" for name in dict.fromkeys(worse.candidate)])
    return f"avoid {names} where it loses accuracy." if len(worse) else ""


def _slow(tables: Tables, table: pd.DataFrame) -> str:
    """What to use meanwhile where the device only emulates every policy that is compared."""
    own = tables.ok[tables.ok.policy.isin(set(table.candidate))]
    if not own.emulated.astype(bool).all():
        return ""
    names = wording.listed([f"**{name}**" for name in dict.fromkeys(own.policy)])
    return f"to train on this device keep {speed_advice.baseline(table)}: it emulates {names}; "


def of_epochs(tables: Tables) -> Iterator[Subject]:
    """Of long trainings none of whose times is valid: what they learned was asked.

    Long is what has several epochs and is not measured again unasked for its time.
    """
    rows, table = findings.compared(tables), accuracy.differences(tables)
    if rows.empty or table.verdict.isin(quality.NO_MEAN).all():
        return
    untimed = (rows.apply(wording.finding, axis=1) == "not valid").all()
    trained = tables.trained
    if untimed and trained.epochs.min() >= SEVERAL and trained.wall_s.max() >= remeasuring.LONG_S:
        yield from of(tables)


def _by_measure(table: pd.DataFrame) -> list[tuple[Measure, pd.DataFrame]]:
    """The differences of each measure: accuracy and perplexity have no common axis."""
    return [(measure, points.of_task(table, measure.task)) for measure in task_words.met(table)]


def _by_epoch(tables: Tables, table: pd.DataFrame) -> list[str]:
    """How far a single difference moves from epoch to epoch, of which the last is said."""
    moved = accuracy.in_last_epochs(tables, table.iloc[0]) if len(table) == 1 else []
    if not len(moved):
        return []
    measure = task_words.of(table.dataset.iloc[0])
    differences = "Mean differences" if table.blocks.iloc[0] > 1 else "Differences"
    return [f"{differences} of the last {len(moved)} epochs: {measure.between(moved)}."]


def _title(tables: Tables, table: pd.DataFrame, measure: Measure, of: str = "") -> str:
    """What the differences of one measure come to; before it, what diverged.

    Args:
        of: whose figure it is, where a policy before it diverged.
    """
    base = speed_advice.baseline(table)
    whose = f"{base}'s" if table.baseline.nunique() == 1 else f"that of {base}"
    lost = table[table.verdict == "diverged"]
    table = table.drop(lost.index)
    policies = [*dict.fromkeys(table.candidate)]
    figure = f"{policies[0]}'s {measure.name}" if len(policies) == 1 else measure.name.capitalize()
    figure = f"{measure.name} of {of}" if of else figure
    if len(lost):
        said = wording.listed(
            [
                _diverges(name, own, table, tables)
                for name, own in lost.groupby("candidate", sort=False)
            ]
        )
        if table.empty:
            return f"{said}, not {base}"
        return f"{said}; {_title(tables, table, measure, wording.listed(policies))}"
    verdicts = set(table.verdict)
    if verdicts == {"baseline diverged"}:
        return f"{figure} is not compared: runs of {base} diverged"
    if verdicts == {"equal"}:
        return f"{figure} is {equal(tables, measure)} to {whose}"
    if verdicts & {"lower", "higher"}:
        return f"{figure} beside {whose} is {_counted(tables, table, measure)}"
    between = measure.between(table.difference)
    if accuracy.looks_equal(table).all():
        return f"{figure} is {measure.near(table, whose)}"
    if verdicts == {"undecided"}:
        one = f"mean difference {measure.ends(table.iloc[0])} {measure.unit}"
        found = one if len(table) == 1 else f"mean differences {between}"
        return f"{figure} is {wording.UNDECIDED}: {found} from {whose}"
    if "equal" in verdicts:
        return f"{figure} beside {whose} is {_counted(tables, table, measure)}"
    n, mean = wording.repeats(table.blocks), "mean " * bool((table.blocks > 1).all())
    own = f" of {policies[0]}" * (len(policies) == 1)
    figure = f"{mean}validation {measure.name}{own}"
    return provisional(f"{figure} {between} beside {whose}, {wording.UNDECIDED} ({n})")


def _diverges(policy: str, lost: pd.DataFrame, others: pd.DataFrame, tables: Tables) -> str:
    """`float16 diverges in 1 of 3 settings`, of the policy's own; of one, in how many runs."""
    more = int((others.candidate == policy).sum())
    if more:
        return f"{policy} diverges in {len(lost)} of {len(lost) + more} settings"
    every = speedups.with_jit(tables.results)
    runs = points.sharing(every, {**lost.iloc[0], "policy": policy}, [*points.POINT, "policy"])
    bad = int((runs.status == "diverged").sum())
    some = f" in {bad} of {len(runs)} runs" * (len(lost) == 1 and bad < len(runs))
    return f"{policy} diverges{some}"


def _counted(tables: Tables, table: pd.DataFrame, measure: Measure) -> str:
    """`lower in 1 of 3 settings and equal in 2`, of several policies what holds of which.

    What is lost comes first.
    """
    order = {verdict: k for k, verdict in enumerate(DECIDED)}
    table = table.sort_values("verdict", key=lambda v: v.map(order), kind="stable")
    said: dict[str, list[str]] = {}
    for policy, own in table.groupby("candidate", sort=False):
        said.setdefault(_verdicts(tables, own, measure), []).append(policy)
    if table.candidate.nunique() == 1 or table.verdict.nunique() == 1:
        return _verdicts(tables, table, measure)
    return "; ".join(f"{text} with {wording.listed(names)}" for text, names in said.items())


def _verdicts(tables: Tables, table: pd.DataFrame, measure: Measure) -> str:
    """`lower (−2.0 percentage points)`, `lower in 1 of 3 settings and equal in 2`."""
    counts = table.verdict.value_counts(sort=False)
    words = {name: measure.words.get(name, name) for name in counts.index}
    words |= {name: f"{wording.UNDECIDED} ({name})" for name in UNPROVEN & words.keys()}
    words["equal"] = equal(tables, measure)
    if len(counts) == 1:
        (verdict,) = counts.index
        differs = verdict in ("lower", "higher")
        return words[verdict] + f" ({measure.between(table.difference)})" * differs
    first, *more = [f"{words[name]} in {n}" for name, n in counts.items()]
    return wording.listed([f"{first} of {wording.count(len(table), 'setting')}", *more])


def retry(tables: Tables) -> str:
    """What would compare policies of which some did not end well."""
    runs, tried = tables.results, tables.attempts  # those to find the largest batch
    if len(tried):  # one of them always ends without memory: not of what ended otherwise
        other = set(runs.policy) - set(runs.policy[runs.status == "oom"])
        runs = pd.concat([runs, tried[~tried.policy.isin(other)]])
    again = "" if runs.status.isin(FINAL).all() else AGAIN
    sizes = runs.batch_size[runs.status == "oom"]
    if len(sizes):
        return "; ".join(filter(None, [again, MEMORY if (sizes == 1).any() else SMALLER]))
    if (runs.status[runs.policy == "float32"] == "diverged").any():
        return RETRY
    return f"{again}." if again else ""


def _alone(tables: Tables) -> Subject:
    """What was measured where nothing is compared."""
    said = findings.answer(tables)
    ended, met = findings.ended(tables), {*tables.results.status} - {"ok"}
    if tables.ok.empty or (ended and met != {"unsupported"}):
        title = "All runs diverged" if {*tables.results.status} == {"diverged"} else ended or NONE
        return Subject(title, said, advice=retry(tables))
    rows = summary.headline(tables).dropna(subset="step_s")
    if len(rows) != 1 and emulated.has_formats(tables):  # of a text: of images there are points
        return Subject(FORMATS_OF_A_TEXT, said)
    if len(rows) != 1:
        return Subject("Nothing to compare: no policy was measured beside its baseline", said)
    row, where = rows.iloc[0], device(tables)
    time = column_formats.cell("step_s", row.step_s)
    return Subject(f"{row.policy} alone: {time} ms per step on {where}", said)


def _of_accuracy(row: Mapping[str, Any], place: str) -> Bar:
    measure = task_words.of(row["dataset"])
    over = [row[name] for name in ("difference", "low", "high")]
    value, *ends = (number * 100 for number in measure.changed(*over))
    text = measure.difference(*over, row["blocks"])
    if row["verdict"] in accuracy.UNDECIDABLE:
        ends = [np.nan, np.nan]
    return Bar(f"{row['candidate']}, {place}", row["candidate"], value, *ends, row["verdict"], text)
