"""What a sweep says of speed and accuracy, grouped by finding: three sentences at most.

Every number is a row of `summary.headline` in the words of `text.wording`, which write it in the
headline table, in the caption and in the chart as well.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy, memory, summary, validity
from mptexp.analysis.points import POINT, of_task, rank
from mptexp.analysis.sweep_tables import Tables, once
from mptexp.report.text import measures, wording
from mptexp.report.text.measures import Measure
from mptexp.report.text.wording import (
    INCONCLUSIVE,
    UNDECIDED,
    count,
    default_name,
    listed,
    verbatim,
)
from mptexp.spec.policies import POLICY_ROWS, without_kernels

APART = 0.1  # between repeats, from where their accuracy is said to vary
SAME_MEMORY = 0.02  # a share within which a difference in memory is none
# Verdicts whose differences mean nothing.
NO_MEAN = ("diverged", "baseline diverged", "not trained", "not valid")
# Findings of which it is said how much.
APART_BY = ("lower", "higher", "undecided", "too few repeats")
FEW = 2  # inconclusive comparisons that are named beside what is decided
CLAUSES = 3  # points that a sentence lists; of more it says from what to what
# How comparisons are counted that a sentence does not name.
OTHERS = {
    INCONCLUSIVE: INCONCLUSIVE,
    "no interval": "with fewer than three repeats",
    "not valid": "not valid",
}
# What became of runs that did not end well, by status.
ENDS = {
    "oom": "ran out of memory",
    "diverged": "diverged",
    "failed": "failed",
    "killed": "was killed",
    "timeout": "took too long",
    "unsupported": "is not supported",
}
ONE_FINDING = "validation {} is "  # opens what is said of accuracies that have one finding
ASKED = {"on": True, "off": False}  # what a run was told of jit -> whether its steps are compiled
NO_MEMORY = f"Memory: {INCONCLUSIVE}."
NONE_SUCCEEDED = "No run of this sweep succeeded, so there is nothing to compare yet."


def answer(tables: Tables) -> list[str]:
    """The sentences that open a report: native policies, accuracy and memory, emulated policies."""
    if tables.ok.empty:
        return [NONE_SUCCEEDED]
    rows = compared(tables)
    if rows.empty:
        return [_without_baseline(tables), *quality(tables)]
    emulated = rows.emulated.astype(bool)
    native = _speed(rows[~emulated], _without_kernels(rows[~emulated], tables))
    others = _emulated(rows[emulated], tables, timed=not native)
    made = [native or others, *quality(tables), others if native else ""]
    return [sentence for sentence in made if sentence]


def compared(tables: Tables) -> pd.DataFrame:
    """The rows of the headline table that have a ratio, with what tells each apart: place.

    Also with difference and verdict of the policy's accuracy, with what tells a row apart from
    others of its phase: within_phase, and with the baseline's step time at its point: base_step_s.
    """
    rows = _told_apart(tables)
    return rows.dropna(subset="speedup") if len(rows) else rows


def unfinished(tables: Tables) -> pd.DataFrame:
    """Rows as of `compared`, without ratios: of policies at points where none of their runs is ok.

    Of those that have a ratio elsewhere, at points whose baseline has a time; with their status.
    """
    rows, runs = _told_apart(tables), tables.results
    if rows.empty:
        return rows
    met, keys = rows.policy[rows.speedup.notna()], [*POINT, "policy"]
    tried = runs[(runs.status != "ok") & runs.policy.isin(met)].drop_duplicates(keys)
    # Of what did not run it is known which jit was asked for, not whether that compiled.
    asked = tried.jit.map(lambda jit: ASKED.get(jit, jit))
    tried = tried.assign(asked=asked)[[*keys, "status", "asked"]].drop(columns="jit")
    # What a point is called, and what it is compared with, its baseline's row knows.
    bases = rows[rows.policy == rows.baseline].drop(columns="policy")
    lost = bases.merge(tried, on=[name for name in POINT if name != "jit"])
    lost = lost[(lost.asked == lost.jit) | (lost.asked == "auto")].assign(speedup=np.nan)
    ok = pd.MultiIndex.from_frame(rows[keys])
    return lost[~pd.MultiIndex.from_frame(lost[keys]).isin(ok)]


@once
def _told_apart(tables: Tables) -> pd.DataFrame:
    """The rows of the headline table, see `compared`; also those without a ratio."""
    if tables.ok.empty:
        return pd.DataFrame()
    table = summary.headline(tables)
    differences = accuracy.differences(tables).rename(columns={"candidate": "policy"})
    keys = [*POINT, "policy", "baseline"]
    table = table.merge(differences[[*keys, "difference", "verdict"]], "left", keys)
    columns = {"policy": "baseline", "step_s": "base_step_s"}
    steps = table[[*POINT, *columns]].rename(columns=columns)
    table = table.merge(steps, "left", [*POINT, "baseline"])
    for _, own in table.groupby("phase"):
        table.loc[own.index, "within_phase"] = wording.places(own, short=True)
    return table.assign(place=wording.places(table, short=True))


# --- speed ----------------------------------------------------------------------------------------


def _speed(rows: pd.DataFrame, because: Sequence[str] = (), timed: bool = True) -> str:
    """What is decided, faster before slower; then few that are inconclusive; the rest is counted.

    Where nothing is decided, the first of the other findings is said in full. The chart names all.

    Args:
        because: sentences on why what is slower is.
        timed: whether the baseline is named with its step time, where it is named first.
    """
    classes = rows.apply(wording.finding, axis=1) if len(rows) else pd.Series(dtype=object)
    own = {word: rows[classes == word] for word in wording.OPENINGS if (classes == word).any()}
    decided = [word for word in ("faster", "slower") if word in own]
    said = [_decided(own.pop(word), timed and word == decided[0]) for word in decided]
    if own and not decided:
        word = next(iter(own))
        first, opening = own.pop(word), wording.OPENINGS[word]
        valid = word != "not valid"
        said = [_doubtful(first, opening, timed) if valid else _not_valid(first, opening)]
    said += because
    if decided and len(own.get(INCONCLUSIVE, ())) in range(1, FEW + 1):
        open_ = own.pop(INCONCLUSIVE)
        known = open_.baseline.nunique() == rows.baseline.nunique() == 1  # said just before
        said.append(_doubtful(open_, wording.capitalized(INCONCLUSIVE), based=not known))
    rest = [f"{len(other)} {OTHERS[word]}" for word, other in own.items()]
    # What is not valid stands in the banner: it needs no sentence of its own.
    said += [f"Others: {listed(rest)}"] * any(word != "not valid" for word in own)
    return " ".join(f"{wording.capitalized(text)}." for text in said)


def _decided(rows: pd.DataFrame, timed: bool) -> str:
    """`**bfloat16** trains 1.37× faster than float32 (the default) at batch size 32 [...]`."""
    parts, before = [], ("", "")
    for (policy, phase, baseline), own in rows.groupby(["policy", "phase", "baseline"], sort=False):
        again = (policy, baseline) == before  # in another phase
        base = "" if again else _base(baseline, own, timed)
        ratios = _ratios(own.assign(place=own.within_phase), base)  # the verb names the phase
        parts.append(f"{'it' if again else _named(policy, own)} {wording.DOES[phase]} {ratios}")
        before = (policy, baseline)
    return "; ".join(parts)


def _doubtful(rows: pd.DataFrame, opening: str, timed: bool = False, based: bool = True) -> str:
    """`Inconclusive (...): **P** 1.04× faster than float32 at ... [0.92, 1.19]`.

    Args:
        timed: whether the baseline is named with its step time; based: whether it is named.
    """
    parts = []
    for (policy, baseline), own in rows.groupby(["policy", "baseline"], sort=False):
        base = _base(baseline, own, timed and not parts) * based
        parts.append(f"{_named(policy, own)} {_ratios(own, base)}")
    return f"{opening}: {'; '.join(parts)}"


def _not_valid(rows: pd.DataFrame, opening: str) -> str:
    """`Measured, but not valid: 4.17× (**int8**) and 1.03× (**int4**) slower than float32 ...`.

    Policies that are compared with one baseline share its name, their place if it is one, and the
    share of the arithmetic in which they are effective.
    """
    rows = rows.assign(word=rows.apply(wording.direction, axis=1))
    notes = {policy: _notes(own) for policy, own in rows.groupby("policy", sort=False)}
    shares = {tuple(note.partition(" in ")[0] for note in own) for own in notes.values()}
    shared = shares.pop() if len(notes) > 1 and len(shares) == 1 else ()
    parts = []
    for (baseline, word), own in rows.groupby(["baseline", "word"], sort=False):
        one_place = own.place.nunique() == 1
        numbers = [
            _unclaimed(policy, notes[policy] * (not shared), of_one, named=not one_place)
            for policy, of_one in own.groupby("policy", sort=False)
        ]
        than = f"{wording.than(word)} {base_name(baseline, own.default_policy.iloc[0])}"
        place = wording.at(verbatim(own.place.iloc[0])) if one_place else ""
        parts.append(" ".join(filter(None, [listed(numbers), word, than, place])))
    parts += [f"{note} is in the type of the policy" for note in shared]
    return f"{opening}: {'; '.join(parts)}"


def _unclaimed(policy: str, notes: Sequence[str], rows: pd.DataFrame, named: bool) -> str:
    """`4.17× (**int8**)`, `1.20× to 2.00× (**bfloat16**, 4 settings)`; named: with its place."""
    ends = dict.fromkeys(f"{wording.speed_parts(row)[0]}×" for row in _ends(rows))
    where = [verbatim(rows.place.iloc[0])] * named
    where = where if len(rows) == 1 else [count(len(rows), "setting")]
    return f"{' to '.join(ends)} ({', '.join([f'**{policy}**', *notes, *where])})"


def _named(policy: str, rows: pd.DataFrame) -> str:
    strict = wording.strict(policy, rows.default_policy.iloc[0])
    return f"{strict}**{policy}**" + "".join(f" ({note})" for note in _notes(rows))


def _notes(rows: pd.DataFrame) -> list[str]:
    """How far a policy is effective, where it is least."""
    return wording.partly(rows.loc[rows.effective_share.astype(float).fillna(1).idxmin()])


def _ratios(rows: pd.DataFrame, base: str) -> str:
    """Ratios with places and intervals; of more than CLAUSES from what to what, in how many."""
    if len(rows) <= CLAUSES:
        records = rows.to_dict("records")
        return listed([_clause(r, base * (k == 0)) for k, r in enumerate(records)])
    ends = [_number(row) for row in _ends(rows)]
    first, last = (wording.direction(row) for row in _ends(rows))
    least = f"{ends[0]} to" if first == last else f"from {ends[0]} {first} to"
    than = f" {wording.than(last)} {base}" if base else ""
    return f"{least} {ends[1]} {last}{than} in {count(len(rows), 'setting')}{_shared(rows.place)}"


def _shared(places: pd.Series) -> str:
    """` in PyTorch`: what the places of some rows have in common and others have not."""
    first = {place.partition(", ")[0] for place in places}
    return f" {wording.at(verbatim(first.pop()))}" if len(first) == 1 else ""


def _ends(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of the least and of the largest number that is said: faster, or slower, than what.

    Of some that are faster and some that are slower, the slower one first.
    """
    up = bool((rows.speedup >= 1).any())
    ordered = rows.sort_values("speedup", ascending=up, kind="stable").to_dict("records")
    return [ordered[0], ordered[-1]]


def _clause(row: Mapping[str, Any], base: str) -> str:
    """`1.37× faster than float32 (the default) at batch size 32 [1.2, 1.5]`.

    Why one is not valid stands once, in the banner, and in each table.
    """
    value, interval = wording.speed_parts(row)
    word, place = wording.direction(row), verbatim(row["place"])
    than = f"{wording.than(word)} {base}" if base else ""
    parts = [f"{value}× {word}", than, wording.at(place)]
    return " ".join(filter(None, [*parts, interval * interval.startswith("[")]))


def _number(row: Mapping[str, Any]) -> str:
    """`1.37× [1.2, 1.5]`."""
    value, interval = wording.speed_parts(row)
    return f"{value}×" + f" {interval}" * interval.startswith("[")


def base_name(baseline: str, default: str) -> str:
    """The baseline as sentences name it, and whether it is what users have."""
    if baseline == default:
        return f"{default_name(baseline)} (the default)"
    return f"strict {baseline} (the default, {verbatim(default_name(default))}, was not measured)"


def _base(baseline: str, rows: pd.DataFrame, timed: bool) -> str:
    """A baseline, with its step time if asked: `float32 (the default; 31.2 to 282 ms per step)`.

    Args:
        rows: that are compared with it; of two phases, whose steps are not the same, no time.
    """
    name, steps_s = base_name(baseline, rows.default_policy.iloc[0]), rows.base_step_s.dropna()
    if not timed or rows.phase.nunique() > 1 or steps_s.empty:
        return name
    ends = dict.fromkeys(wording.digits(1e3 * end) for end in (steps_s.min(), steps_s.max()))
    unit = "step" if rows.phase.iloc[0] == "train" else "batch"
    return f"{name.removesuffix(')')}; {' to '.join(ends)} ms per {unit})"


def _emulated(rows: pd.DataFrame, tables: Tables, timed: bool) -> str:
    if rows.empty:
        return ""
    slower = (rows.speedup < 1).any()
    because = _why_emulated(sorted(set(rows.policy)), _lacking(tables)) if slower else []
    return _speed(rows, because, timed)


def _without_kernels(rows: pd.DataFrame, tables: Tables) -> list[str]:
    """Why policies are slow whose type the device has, but oneDNN too few kernels for."""
    slower = set(rows.policy[rows.speedup < 1])
    said = []
    for run_id in tables.ok.run_id[tables.ok.policy.isin(slower)]:
        record = tables.records_by_id[run_id]
        dtype = POLICY_ROWS[record["parameters"]["policy"]].compute_dtype
        said += without_kernels(dtype, (record.get("in_force") or {}).get("reference", []))
    return [*dict.fromkeys(said)]


def _lacking(tables: Tables) -> str:
    """What lacks the arithmetic that is emulated: this device, one of several, or a limit."""
    runs = tables.ok[tables.ok.emulated.astype(bool)]
    asked = [tables.records_by_id[run_id]["parameters"] for run_id in runs.run_id]
    if any(one.get("cpu_isa", "default") != "default" for one in asked):
        return "What the run may use of this device"
    devices = [*dict.fromkeys(runs.gpu_model)]
    return "This device" if tables.ok.gpu_model.nunique() == 1 else verbatim(listed(devices))


def _why_emulated(names: Sequence[str], device: str) -> list[str]:
    """Why emulated policies are slow: the device lacks their type, or Keras only rounds to it."""
    rounding = [name for name in names if POLICY_ROWS[name].quantization]
    types = sorted({name.removeprefix("mixed_") for name in names if name not in rounding})
    sentences = []
    if types:
        sentences.append(f"{device} has no {listed(types)} arithmetic and emulates it")
    for name in rounding:
        computes = POLICY_ROWS[name].compute_dtype
        sentences.append(f"Keras rounds to {name} and multiplies in {computes}")
    return [f"{sentence}: slower is expected" for sentence in sentences]


def _without_baseline(tables: Tables) -> str:
    table = summary.headline(tables)
    if table.step_s.isna().all():
        return f"Times are not valid: only {measures.listed(table)} is compared."
    names = listed(sorted(set(table.policy)))
    if lost := ended(tables):
        return f"No times are compared: {verbatim(lost)}."
    if any("measured apart" in validity.names_of(flags) for flags in tables.ok["flags"]):
        return f"No times are compared: {names} were measured apart."
    return (
        f"This sweep measured {names}; a speedup needs two policies at the same point, one of them "
        "float32 or the device's default."
    )


def ended(tables: Tables) -> str:
    """`float32 ran out of memory at batch size 32, mixed_float16 did not`.

    How the runs of policies ended that did not end well, of a sweep that compares none of them;
    empty where all did, or where no baseline was asked for.
    """
    runs = tables.results
    bad = runs[runs.status != "ok"].sort_values("policy", key=rank, kind="stable")
    bases = {"float32", *runs.default_policy.dropna()}
    if bad.empty or runs.policy.nunique() < 2 or not runs.policy.isin(bases).any():
        return ""
    said, counts = [], runs.policy.value_counts()
    for policy, own in bad.groupby("policy", sort=False):
        how = listed([ENDS[status] for status in dict.fromkeys(own.status)])
        of = int(counts[policy])
        some = f" in {len(own)} of {count(of, 'run')}" * (len(own) < of)
        said.append(f"{policy} {how}{some}")
    sizes = [f"{size:,}" for size in sorted(set(bad.batch_size))]
    others = sorted(set(runs.policy[runs.batch_size.isin(bad.batch_size)]) - set(bad.policy))
    did = bad.status.isin(["oom", "diverged", "failed"]).all()
    rest = f", {listed(others)} did not" if did else f"; only {listed(others)} was measured"
    return f"{listed(said)} at batch size {listed(sizes)}{rest * bool(others)}"


# --- accuracy and memory --------------------------------------------------------------------------


def quality(tables: Tables) -> list[str]:
    """One sentence on accuracy, which ends in the memory that the policies take."""
    margin = tables.options.equivalence_margin
    table = accuracy.beside_first(accuracy.differences(tables))
    known = measures.met(table) if len(table) else measures.met(tables.ok)
    own = {m.name: of_task(table, m.task) for m in known}
    parts = [_of_measure(tables, own[m.name], m, margin) for m in known]
    text = " ".join(
        f"{wording.capitalized(part)}." for part in [*parts, _memory(tables), _fits(tables)] if part
    )
    return [text] if text else []


def _of_measure(tables: Tables, table: pd.DataFrame, measure: Measure, margin: float) -> str:
    """What is said of accuracy: what is found, by how much, how accurate the policies are."""
    said, level = _accuracies(tables, table, measure, margin), _level(tables, table, measure)
    numbers = [level, _apart(tables, table, measure)]
    one = said.startswith(ONE_FINDING.format(measure.name))  # of several each has its own
    if one and (of := _mean(table, measure)):
        numbers.insert(0, of)
    return ": ".join(filter(None, [said, ", ".join(filter(None, numbers))]))


def _native_first(table: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Rows of candidates, those last that the device only emulates."""
    emulated = summary.emulated(tables.ok)
    return table.sort_values("candidate", key=lambda c: c.isin(emulated), kind="stable")


def _accuracies(tables: Tables, table: pd.DataFrame, measure: Measure, margin: float) -> str:
    """What the intervals allow to be said, each finding once, of which policies and settings."""
    if table.empty:
        return ""
    table = _native_first(table, tables)
    words, found = _words(measure, margin), _found(table)
    groups = {word: table[found == word] for word in words if (found == word).any()}
    said = {word: words[word] or _range(own, word, measure) for word, own in groups.items()}
    if len(said) == 1:
        return f"{ONE_FINDING.format(measure.name)}{next(iter(said.values()))}"
    clauses = [
        f"{listed(_whose(own, table))} {said[word]}"
        + (f", {_span(own, measure)}" if word in APART_BY else "")
        for word, own in groups.items()
    ]
    return f"validation {measure.name}: {'; '.join(clauses)}"


def _found(table: pd.DataFrame) -> pd.Series:
    """The verdicts on differences; also which look equal, and where all runs diverged.

    Beside what is undecided, what looks equal is undecided too: an interval says how far.
    """
    all_lost = (table.verdict == "diverged") & (table.blocks == 0)
    near = accuracy.looks_equal(table)
    near &= not table.verdict[~near].isin(["undecided", "too few images"]).any()
    return table.verdict.mask(near, "near").mask(all_lost, "all diverged")


def _words(measure: Measure, margin: float) -> dict[str, str]:
    """What is said of each finding, in the order in which a sentence has them; else its range."""
    examples = f"{measure.task.example}s"
    return {
        "lower": measure.words.get("lower", "lower"),
        "higher": measure.words.get("higher", "higher"),
        "equal": f"equal within {measure.margin(margin)}",
        "near": "",
        "undecided": "",
        "too few repeats": f"{UNDECIDED} (fewer than three repeats can be compared)",
        "too few images": f"{UNDECIDED} (too few validation {examples} to rule out a difference of "
        f"{measure.margin(margin)})",
        "images not recorded": f"{UNDECIDED} (how many {examples} were validated with is not "
        "recorded)",
        "diverged": "not compared (some of the runs diverged)",
        "all diverged": "not compared (all runs diverged)",
        "baseline diverged": "not compared (runs of the baseline diverged)",
        "not trained": "not compared (the baseline is at chance level)",
        "not valid": "not valid",
    }


def _range(rows: pd.DataFrame, found: str, measure: Measure) -> str:
    """What the intervals hold of what is neither equal nor shown to differ."""
    if found == "undecided":
        return f"{UNDECIDED} ({wording.repeats(rows.blocks)})"
    bases = {default_name(name) for name in rows.baseline}
    return measure.near(rows, f"{bases.pop()}'s" if len(bases) == 1 else "")


def _whose(rows: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """`**bfloat16**`, `**float16** at batch size 32`, `**float16** in 2 of 3 settings`.

    Args:
        rows: of `table`, those of one finding.
    """
    named, several = [], table.gpu_model.nunique() > 1
    places = pd.Series(wording.places(table, short=True), table.index)
    for (policy, device), own in rows.groupby(["candidate", "gpu_model"], sort=False):
        of = int(((table.candidate == policy) & (table.gpu_model == device)).sum())
        some = f" in {len(own)} of {of} settings"
        some = f" {wording.at(verbatim(places[own.index[0]]))}" if len(own) == 1 else some
        where = f" on {verbatim(device)}" * several + some * (len(own) < of)
        named.append(f"**{policy}**{where}")
    return named


def _mean(rows: pd.DataFrame, measure: Measure) -> str:
    """`mean differences −0.2 to +0.1 percentage points`, of two with what each is of.

    Nothing of what looks equal, of which the ends are said already.
    """
    rows = rows[~rows.verdict.isin(NO_MEAN)]
    if accuracy.looks_equal(rows).all():  # or nothing is left
        return ""
    mean = "mean " * bool((rows.blocks > 1).all())
    return f"{mean}difference{'s' * (len(rows) > 1)} {_span(rows, measure)}"


def _span(rows: pd.DataFrame, measure: Measure) -> str:
    """`−0.2 to +0.1 percentage points`, of few rows with an interval for each."""
    if len(rows) <= CLAUSES and rows.low.notna().all():
        return f"{listed(_each(rows, measure))} {measure.unit}"
    return measure.between(rows.difference)


def _each(rows: pd.DataFrame, measure: Measure) -> list[str]:
    """`+0.3 [−0.9, +1.5] (mixed_float16)`: differences, with what tells each from the others."""
    names = [rows.candidate] * (rows.candidate.nunique() > 1)
    places = pd.Series(wording.places(rows, short=True), rows.index)
    names += [places] * (places.nunique() > 1)
    made = []
    for k, row in enumerate(rows.itertuples()):
        of = verbatim(", ".join(own.iloc[k] for own in names))
        made.append(measure.ends(row) + f" ({of})" * bool(of))
    return made


def _level(tables: Tables, rows: pd.DataFrame, measure: Measure) -> str:
    """How accurate the policies are that were compared; empty where none could be."""
    spread = summary.accuracy_range(tables, measure.task)
    if spread.empty:
        return ""
    ends = [measure.level(value) for value in (spread.least.min(), spread.most.max())]
    if all("not trained" in validity.names_of(flags) for flags in tables.ok["flags"]):
        level = " to ".join(dict.fromkeys(ends))
        return f"**nothing was learned**: every run's {measure.name} is at chance level, {level}"
    several = tables.ok.policy.nunique() > 1
    if (rows.empty and several) or (len(rows) and rows.verdict.isin(NO_MEAN).all()):
        return ""
    if ends[0] == ends[1]:
        return f"{ends[0]} in the mean everywhere"
    if len(spread) == 1 and len(means := _means(tables, measure)) <= CLAUSES:
        return listed([f"{policy} {measure.level(mean)}" for policy, mean in means.items()])
    return f"means {ends[0]} to {ends[1]}"


def _means(tables: Tables, measure: Measure) -> pd.Series:
    """The mean of each policy, of a sweep of one point."""
    column = measure.task.column
    return summary.headline(tables).dropna(subset=column).set_index("policy")[column]


def _apart(tables: Tables, rows: pd.DataFrame, measure: Measure) -> str:
    """How far repeats of one setting lie apart, where that is far more than what is compared."""
    runs = of_task(tables.trained, measure.task).dropna(subset="val_accuracy")
    if rows.verdict.isin(NO_MEAN).all() or measure.name != "accuracy" or runs.empty:
        return ""
    accuracies = runs.groupby([*POINT, "policy"]).val_accuracy
    most = (accuracies.max() - accuracies.min()).max()
    return f"repeats of one setting up to {most * 100:.0f} points apart" if most > APART else ""


def _memory(tables: Tables) -> str:
    """How much less memory the policies take than their baselines; empty where not known.

    Only what an interval shows has a number.
    """
    rows = memory.ratios(tables)
    if rows.empty:
        return ""
    ends = zip(rows.ratio, rows.low, rows.high, strict=True)
    words = pd.Series([memory.finding(*each, SAME_MEMORY) for each in ends], rows.index)
    met = set(words)
    if met == {"same"}:
        return f"memory: about the same, within {wording.share(SAME_MEMORY)}"
    proven = rows[words.isin(["less", "more"])]
    if proven.empty:
        open_ = set(rows.candidate[words != "same"])
        same = [f"**{name}**" for name in dict.fromkeys(rows.candidate) if name not in open_]
        few = " with fewer than three repeats" * (met == {"no interval"})
        told = f"about the same with {listed(same)}, others {INCONCLUSIVE}"
        return f"memory: {told if same else INCONCLUSIVE + few}"
    said: dict[tuple[str, str], list[str]] = {}
    for name, own in _native_first(proven, tables).groupby("candidate", sort=False):
        total = int((rows.candidate == name).sum())
        some = f" in {len(own)} of {total} settings" * (len(own) < total)
        said.setdefault((_saved((1 - own.ratio) * 100), some), []).append(f"**{name}**")
    parts = [f"{saved} with {listed(names)}{some}" for (saved, some), names in said.items()]
    rest = set(words[~rows.candidate.isin(proven.candidate)])
    other = "about the same" if rest == {"same"} else INCONCLUSIVE
    return f"memory: {listed(parts)}{f', others {other}' * bool(rest)}"


def _fits(tables: Tables) -> str:
    """`largest batch that fits: 320 with float32, 384 with bfloat16`; empty where not searched."""
    sizes = largest_batches(tables)
    if sizes.empty:
        return ""
    failed = least_too_large(tables)
    both = pd.DataFrame({"fits": sizes, "not": failed.reindex(sizes.index)})
    named = [
        f"{fits:,} (not {fails:,.0f}) with {listed([f'**{policy}**' for policy in own.index])}"
        for (fits, fails), own in both.groupby(["fits", "not"])
    ]
    return f"largest batch that fits: {listed(named)}"


def least_too_large(tables: Tables) -> pd.Series:
    """The smallest batch size that did not fit, of those that were tried, by policy."""
    tried = tables.attempts
    return tried[tried.status == "oom"].groupby("policy").batch_size.min()


def largest_batches(tables: Tables) -> pd.Series:
    """The largest batch size by policy, where a larger one was tried and did not fit.

    Of a sweep of one point but for batch sizes; tables have that of others.
    """
    others = [name for name in POINT if name != "batch_size"]
    tried = tables.attempts
    if tried.empty or tables.ok[others].nunique().max() > 1:
        return pd.Series(dtype=int)
    ran = tables.results[tables.results.status.isin(["ok", "diverged"])]
    fitted = pd.concat([ran, tried[tried.status.isin(["ok", "diverged"])]])
    # A short attempt fitted at which every whole run was out of memory.
    named = ["policy", "batch_size"]
    out = tables.results[tables.results.status == "oom"]
    bad = pd.MultiIndex.from_frame(out[named]).difference(pd.MultiIndex.from_frame(ran[named]))
    fitted = fitted[~pd.MultiIndex.from_frame(fitted[named]).isin(bad)]
    sizes = fitted.groupby("policy", sort=False).batch_size.max()
    failed = tried[tried.status == "oom"].groupby("policy").batch_size.max()
    return sizes[sizes < failed.reindex(sizes.index)]


def _saved(saved: pd.Series) -> str:
    """`5 to 20 % less`, `from 8 % less to 5 % more`; of what is saved, less than zero is more."""
    if saved.min() < 0 < saved.max():
        return f"from {saved.max():.0f} % less to {-saved.min():.0f} % more"
    ends = dict.fromkeys(f"{v:.0f}" for v in (saved.abs().min(), saved.abs().max()))
    return f"{' to '.join(ends)} % {'less' if saved.max() > 0 else 'more'}"
