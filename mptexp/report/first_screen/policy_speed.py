"""The speed of policies: its best proven ratio is the title, of at most LONGEST_TITLE letters."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy
from mptexp.analysis.points import POINT, rank, sharing
from mptexp.analysis.sweep_tables import Tables
from mptexp.records.schema import FINAL
from mptexp.report.answers import findings, larger_batch, quality
from mptexp.report.first_screen import speed_advice
from mptexp.report.first_screen.subject import (
    RESIDENT,
    SAME,
    UNPROVEN,
    Bar,
    Subject,
    equal,
    provisional,
    unproven,
)
from mptexp.report.text import task_words, wording
from mptexp.report.text.parameter_values import in_words
from mptexp.report.text.wording import listed
from mptexp.spec.backends import LABELS

LONGEST_TITLE = 145  # letters of a title that is still read at once


def of(tables: Tables, lossy: Collection[tuple[Any, ...]] = ()) -> Iterator[Subject]:
    """Each policy to the default of its device.

    Args:
        lossy: policies with the values of POINT at which they lose accuracy, which their runs'
            validation does not know: not to be advised there.
    """
    rows, said = findings.compared(tables), findings.answer(tables)
    larger = not {key[0] for key in lossy}.issuperset(larger_batch.gains(tables).policy[:1])
    if rows.empty:
        if larger:
            row = larger_batch.gains(tables).iloc[0].to_dict()
            title, advice = larger_batch.title(tables), larger_batch.advice(tables)
            bars = [bar_of(row, larger_batch.label(row))]
            yield Subject(title, said, bars, wording.default_name(row["baseline"]), advice=advice)
        return
    rows = _telling(rows.assign(finding=rows.apply(_finding, axis=1)))
    lost = findings.unfinished(tables)
    lost = lost.assign(finding=lost.status.isin(FINAL).map({True: "worse", False: "unfinished"}))
    rows = rows.sort_values(["emulated", "policy"], key=_order, kind="stable")
    phases = rows.policy.nunique() == 1 and rows.phase.nunique() > 1  # then these are headings
    rows = rows.sort_values("phase", kind="stable") if phases else rows
    place = "within_phase" if phases else "place"
    records = rows.to_dict("records")
    bars = [
        bar_of(row, f"{row['policy']}, {row[place]}" if rows.place.nunique() > 1 else row["policy"])
        for row in records
    ]
    if phases:
        named = zip(bars, records, strict=True)
        bars = [replace(bar, group=in_words("phase", row["phase"])) for bar, row in named]
    name = speed_advice.strict_baseline(rows) if rows.baseline.nunique() == 1 else "the default"
    title = _speed_title(rows, lost, tables)
    proven = rows[rows.finding == "faster"]
    larger &= not (proven.speedup.round(2) > 1).any()
    if larger:
        title = larger_batch.title(tables)
        gains = larger_batch.gains(tables).to_dict("records")
        bars += [bar_of(row, larger_batch.label(row)) for row in gains]
    title = _largest(tables) + title
    loses = [key in lossy for key in rows[["policy", *POINT]].itertuples(index=False, name=None)]
    judged = rows.assign(verdict=rows.verdict.mask(loses, "lower"))
    advice = larger_batch.advice(tables) if larger else speed_advice.advise(judged, lost, tables)
    usual = wording.usual(rows)
    again = len(tables.superseded) > 0
    yield Subject(title, said, bars, name, advice=advice, usual=usual, again=again)


def _telling(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, in which what is proven and rounds to 1.00 is no gain beside one that is more.

    With an input and on one batch alone apart, as a title is of one of them.
    """
    gains, even = rows.finding == "faster", rows.speedup.map(wording.is_even)
    more = (gains & ~even).groupby(rows.input_mode == RESIDENT).transform("any")
    return rows.assign(finding=rows.finding.mask(gains & even & more, wording.AS_FAST))


def _finding(row: pd.Series) -> str:
    """As `wording.finding`; what is proven to be slower and rounds to 1.00 is as fast."""
    word = wording.finding(row)
    return wording.AS_FAST if word == "slower" and wording.direction(row) != word else word


def _largest(tables: Tables) -> str:
    """`The largest batch is 320 with float32 and 384 with bfloat16; `, where that was asked."""
    sizes = quality.largest_batches(tables)
    if len(sizes) < 2:
        return ""
    # What was tried has gaps: the limit lies between what fits and what does not.
    each = [quality.between(*row) for row in sizes.itertuples(index=False)]
    where = quality.room(tables)
    if len(set(each)) == 1 and not each[0].startswith("between"):
        return f"The largest batch{where} is {each[0]} with {listed([*sizes.index])} alike; "
    named = listed([f"{size} with {p}" for p, size in zip(sizes.index, each, strict=True)])
    return f"The largest batch{where} is {named}; "


def _order(column: pd.Series) -> pd.Series:
    return rank(column) if column.name == "policy" else column.astype(bool)


def bar_of(row: Mapping[str, Any], label: str) -> Bar:
    """A row of a table of ratios as a row of the chart."""
    word = wording.finding(row)
    ends = (np.nan, np.nan) if word == "not valid" else (row["low"], row["high"])
    text, by_hand = wording.ratio_of(row), bool(row.get("emulated", False))
    return Bar(label, row["policy"], row["speedup"], *ends, word, text, emulated=by_hand)


def _speed_title(rows: pd.DataFrame, lost: pd.DataFrame, tables: Tables) -> str:
    """The best that is proven; else that nothing is, what is slower, or what was measured.

    Args:
        lost: where policies did not get through, see `findings.unfinished`.
    """
    trained, measured = rows[rows.input_mode != RESIDENT], len(rows)
    rows = trained if len(trained) else rows
    if rows.finding.isin(UNPROVEN).all():  # nothing may be said of a speedup
        native = rows[~rows.emulated.astype(bool)]
        best = rows.loc[(native if len(native) else rows).speedup.idxmax()]
        title = _extreme(best, rows, lost, tables) + _lost_runs(best, rows, tables)
        return provisional(title, unproven(rows))
    faster, slower = (rows[rows.finding == word] for word in ("faster", "slower"))
    if len(slower):
        faster = faster[faster.speedup.round(2) > 1]  # 1.00 is no title beside anything else
    if (faster.phase == "inference").any():  # which a sweep measures if it asks for it
        faster = faster[faster.phase == "inference"]
    if len(faster):
        over_default = faster[faster.baseline == faster.default_policy]  # what a user has
        faster = _soundest(over_default if len(over_default) else faster, rows, tables)
        best = faster.loc[faster.speedup.idxmax()]
        title = _extreme(best, rows, lost, tables)
        # Left out is what gains more on one batch: on it nobody trains.
        fed = len(rows) < measured and title.endswith(best.gpu_model)
        title += ", input included" * fed + _at_what(best, rows, tables)
        there = rows[rows.gpu_model == best.gpu_model]  # another device would have to be named
        of_baseline = there[there.baseline == best.baseline]
        more = _other_phase(best, of_baseline) or _slower(of_baseline, [best.policy])
        # The sentences have it too; the page leaves a single device to the line below.
        room = LONGEST_TITLE + len(best.gpu_model) * (tables.results.gpu_model.nunique() == 1)
        return title + more * (len(title + more) <= room)
    if len(slower) == len(rows):
        return _extreme(rows.loc[rows.speedup.idxmax()], rows, lost, tables)
    if len(slower) and rows.policy.nunique() == 1:
        return _extreme(slower.loc[slower.speedup.idxmin()], rows, lost, tables)
    base, where = speed_advice.strict_baseline(rows), listed(sorted(set(rows.gpu_model)))
    native = rows.policy[~rows.emulated.astype(bool)]
    names = list(dict.fromkeys(native if len(native) else rows.policy))
    which = f"{names[0]} is not" if len(names) == 1 else "No other policy is"
    doing = {"train": "train", "inference": "run inference"}
    acts = " or ".join(doing[phase] for phase in doing if (rows.phase == phase).any())
    return f"{which} shown to {acts} faster than {base} on {where}{_slower(rows, names)}"


def _soundest(faster: pd.DataFrame, rows: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """The gains of the policy that gains most, on the devices where it costs nothing, if any.

    So a title is not of the one device on which it loses accuracy, or is slower somewhere.
    """
    policy = faster.policy[faster.speedup.idxmax()]
    own, gains = rows[rows.policy == policy], faster[faster.policy == policy]
    lossy = own.verdict.isin(["lower", "diverged"]) | own.out_of_memory | (own.finding == "slower")
    lossy |= np.array([speed_advice.collapsed(row, tables) > 0 for _, row in own.iterrows()], bool)
    each = [row for _, row in own.drop_duplicates("gpu_model").iterrows()]
    costs = {row.gpu_model for row in each if speed_advice.diverged(row, tables)}
    costs |= {*own.gpu_model[lossy]}
    sound = gains[~gains.gpu_model.isin(costs)]
    return sound if len(sound) else faster


def _at_what(best: pd.Series, rows: pd.DataFrame, tables: Tables) -> str:
    """`, at equal accuracy`: what a policy's gain costs; empty where that was not the question.

    At all points of the policy on its device, not only at the one where it gains most.
    """
    own = rows[(rows.policy == best.policy) & (rows.gpu_model == best.gpu_model)]
    own = own.assign(finding=own.verdict)
    for dataset in own.dataset[own.verdict == "lower"][:1]:
        where, lost = speed_advice.where_shown(own, "lower"), task_words.of(dataset)
        if where.endswith("settings"):  # of those of which accuracy is compared
            each = accuracy.beside_first(accuracy.differences(tables))
            each = each[(each.candidate == best.policy) & (each.gpu_model == best.gpu_model)]
            where = speed_advice.where_shown(each.assign(finding=each.verdict), "lower")
        return f"; its {lost.name} is {lost.words.get('lower', 'lower')}{where}"
    if some := _lost_runs(best, own, tables):
        return some
    measure, own = task_words.of(best.dataset), own[own.phase == best.phase]
    if best.verdict == "equal":
        within, where = equal(tables, measure), speed_advice.where_shown(own, "equal")
        said = f"at equal {measure.name}" if within == "equal" else f"{measure.name} {within}"
        if speed_advice.strict_is_above(best, rows):
            base = wording.default_name(best.baseline)
            return f", at {base}'s {measure.name}, which is below that of strict float32"
        return f", {said}{where}"
    if best.verdict == "higher":
        where = speed_advice.where_shown(own, "higher")
        return f"; its {measure.name} is {measure.words.get('higher', 'higher')}{where}"
    if best.verdict == "too few images" and not _looks_equal(best, tables):
        few = f"too few validation {measure.task.example}s"
        return f"; {measure.name} {wording.UNDECIDED}: {few}"
    told = best.verdict in ("undecided", "too few images")
    return f"; {measure.name} {_open(best, tables)}" if told else ""


def _lost_runs(best: pd.Series, rows: pd.DataFrame, tables: Tables) -> str:
    """`; some runs diverged`: how runs of a policy ended where those of its baseline did not."""
    own = rows[(rows.policy == best.policy) & (rows.gpu_model == best.gpu_model)]
    if (own.verdict == "diverged").any() or speed_advice.diverged(best, tables):
        return "; some runs diverged"
    if lost := sum(speed_advice.collapsed(row, tables) for _, row in own.iterrows()):
        return f"; {wording.count(lost, 'run')} of it learned nothing"
    return "; some runs ran out of memory" * bool(own.out_of_memory.any())


def _open(best: pd.Series, tables: Tables) -> str:
    """How far the accuracies of a policy may lie apart that are not shown to differ."""
    return task_words.of(best.dataset).open(_alike(best, tables))


def _looks_equal(best: pd.Series, tables: Tables) -> bool:
    return bool(accuracy.looks_equal(_alike(best, tables)).all())


def _alike(best: pd.Series, tables: Tables) -> pd.DataFrame:
    """The differences of a policy's accuracy on its device that have the same verdict."""
    names = {"candidate": best.policy, "verdict": best.verdict}
    names |= {name: best[name] for name in ("baseline", "gpu_model", "phase", "dataset")}
    return sharing(accuracy.differences(tables), names, names)


def _other_phase(best: pd.Series, rows: pd.DataFrame) -> str:
    """`; it runs inference 1.54× faster`: what is proven of the same policy in another phase."""
    other = (rows.policy == best.policy) & (rows.phase != best.phase)
    proven = rows[other & rows.finding.isin(["faster", "slower"])]
    if proven.empty:
        return ""
    rows = proven.sort_values("speedup", ascending=(proven.finding != "slower").any()).iloc[[0, -1]]
    ends = [f"{wording.speed_parts(r)[0]}× {wording.direction(r)}" for _, r in rows.iterrows()]
    where = f" {wording.at(rows.within_phase.iloc[0])}" * bool(other.sum() > 1)
    first, last = (wording.direction(row) for _, row in rows.iterrows())
    span = f"{ends[0].removesuffix(f' {last}')} to {ends[1]}" if first == last else ""
    span = ends[0] if ends[0] == ends[1] else span or f"from {ends[0]} to {ends[1]}"
    said = f"{ends[0]}{where}" if len(proven) == 1 else span
    if 1 < len(proven) < other.sum():
        said += f" in {len(proven)} of {other.sum()} settings"
    return f"; it {wording.DOES[proven.phase.iloc[0]]} {said}"


def _slower(rows: pd.DataFrame, others: Sequence[str]) -> str:
    """`; float8 trains 2.36× slower`: the one policy that is, beside the others."""
    slower = rows[(rows.finding == "slower") & ~rows.policy.isin(others)]
    if slower.policy.nunique() != 1:
        return ""
    row = slower.loc[slower.speedup.idxmin()]
    own = rows[(rows.policy == row.policy) & (rows.phase == row.phase)]
    if (own.finding == "faster").any():
        return ""
    where = speed_advice.where_shown(own, "slower")
    strict = wording.strict(row.policy, row.default_policy)
    name = f"{strict}{row.policy}{' (emulated)' * bool(row.emulated)}"
    ends = [wording.speed_parts(own.loc[k])[0] for k in (own.speedup.idxmax(), row.name)]
    least = "up to " if where or len(own) > len(slower) else f"{ends[0]}× to "
    ratio = f"{least * (ends[0] != ends[1])}{ends[1]}× slower"
    return f"; {name} {wording.DOES[row.phase]} {ratio}{where}"


def _extreme(row: pd.Series, rows: pd.DataFrame, lost: pd.DataFrame, tables: Tables) -> str:
    """`bfloat16 trains up to 1.37× faster than float32 on AMD EPYC (2 cores)`.

    Where the same policy is also slower there, from what to what. Another device has another
    baseline, and its ratios are left to the sentences.
    """
    verb = wording.DOES[row.phase]
    word = wording.direction(row)
    own = pd.concat([rows, lost]) if len(lost) else rows
    own = own[(own.policy == row.policy) & (own.phase == row.phase)]
    own = own[own.gpu_model == row.gpu_model].reset_index(drop=True)
    every, alike = own, own.baseline == row.baseline
    own = own.assign(finding=own.finding.where(alike, "over another baseline"))
    some = speed_advice.where_shown(own, word)
    decided = bool(some) and not some.endswith("settings")
    some = some or speed_advice.where_measured(own, tables)
    if decided:  # what is not decided elsewhere is left to the sentences
        some += (_not_shown(own) + _and_slower(every, row.baseline)) * (word == "faster")
        own = own[own.finding == word]
    own = own[own.baseline == row.baseline]
    least = own.loc[own.speedup.idxmin()]
    furthest = word == "faster" or (word == "slower" and row.speedup == least.speedup)
    bound = "up to " if furthest else "at least " * (word == "slower")
    said = own.speedup[own.finding == row.finding]
    several = word != "slower" or said.max() > SAME * said.min()
    bound *= int(several and (own.finding == word).sum() != 1)
    if word == "faster" and wording.direction(least) == "slower":
        bound, some = f"from {wording.speed_parts(least)[0]}× slower to ", ""
    ends = [wording.speed_parts(end)[0] for end in (least, row)]
    alike = word == wording.direction(least) and ends[0] != ends[1]
    met = {*own.finding}
    if alike and word != "slower" and (met == {row.finding} or met <= {*UNPROVEN}):
        bound = f"{ends[0]}× to "
    bound = bound if len(own) > 1 else ""
    marks = wording.partly(row) or ["emulated"] * bool(row.emulated)
    note = "".join(f" ({part})" for part in marks)
    strict = wording.strict(row.baseline, row.default_policy)
    than = f"{wording.than(word)} {strict}{wording.default_name(row.baseline)}"
    ratio = f"{wording.speed_parts(row)[0]}× {word}"
    name = f"{wording.strict(row.policy, row.default_policy)}{row.policy}"
    return f"{name}{note} {verb} {bound}{ratio} {than} on {row.gpu_model}{some}"


def _not_shown(own: pd.DataFrame) -> str:
    """`, no gain shown in JAX and TensorFlow`: of a policy whose gain depends on the framework."""
    faster = set(own.backend[own.finding == "faster"])
    others = own[~own.backend.isin(faster)]
    if others.empty or set(others.finding) != {wording.INCONCLUSIVE}:
        return ""
    return f", no gain shown in {listed([LABELS[name] for name in dict.fromkeys(others.backend)])}"


def _and_slower(own: pd.DataFrame, baseline: str) -> str:
    """`, and 1.34× slower at batch size 1`: what a title must not leave out of a policy.

    Args:
        own: all comparisons of the policy; baseline: which the title has named.
    """
    slower = own[own.finding == "slower"]
    if slower.empty:
        return ""
    slowest = slower.loc[slower.speedup.idxmin()]
    bound, where = "up to " * (len(slower) > 1), speed_advice.where_shown(own, "slower")
    than = "" if slowest.baseline == baseline else f" than {wording.default_name(slowest.baseline)}"
    return f", and {bound}{wording.speed_parts(slowest)[0]}× slower{than}{where}"
