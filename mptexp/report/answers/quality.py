"""What a sweep says of accuracy and memory: one sentence, beside those of speed in `findings`."""

from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy, memory, summary, validity
from mptexp.analysis.points import POINT, of_task, sharing
from mptexp.analysis.sweep_tables import Tables
from mptexp.records.schema import FITTED
from mptexp.report.text import task_words, wording
from mptexp.report.text.task_words import Measure
from mptexp.report.text.wording import INCONCLUSIVE, UNDECIDED, default_name, listed, verbatim

CLAUSES = 3  # points that a sentence lists; of more it says from what to what
APART = 0.1  # between repeats, from where their accuracy is said to vary
SAME_MEMORY = 0.02  # a share within which a difference in memory is none
# Verdicts whose differences mean nothing.
NO_MEAN = ("diverged", "baseline diverged", "not trained", "not valid")
# Findings of which it is said how much.
APART_BY = ("lower", "higher", "undecided", "too few repeats")
ONE_FINDING = "validation {} is "  # opens what is said of accuracies that have one finding
NO_MEMORY = f"Memory: {INCONCLUSIVE}."


def sentences(tables: Tables) -> list[str]:
    """One sentence on accuracy, which ends in the memory that the policies take."""
    margin = tables.options.equivalence_margin
    table = accuracy.beside_first(accuracy.differences(tables))
    known = task_words.met(table) if len(table) else task_words.met(tables.ok)
    own = {m.name: of_task(table, m.task) for m in known}
    parts = [_of_measure(tables, own[m.name], m, margin) for m in known]
    text = " ".join(
        f"{wording.capitalized(part)}."
        for part in [*parts, _to_target(tables), _memory(tables), _fits(tables)]
        if part
    )
    return [text] if text else []


def _to_target(tables: Tables) -> str:
    """`to 85 % accuracy: float32 10.0 s, ...`: medians, where that was asked of one setting."""
    wanted, runs = tables.options.target_accuracy, tables.trained
    timed = not validity.invalid(validity.together(runs["flags"]), "time")
    if wanted is None or not timed or len(runs[POINT].drop_duplicates()) != 1:
        return ""
    seconds = runs.run_id.map(accuracy.seconds_to(tables, wanted)).astype(float)
    if seconds.isna().any():
        return ""
    said = []
    for policy, own in seconds.groupby(runs.policy, sort=False):
        reached = own[np.isfinite(own)]
        some = f" ({len(reached)} of {len(own)} runs)" * (len(reached) < len(own))
        time = f"{reached.median():,.1f} s" if len(reached) else "not reached"
        said.append(f"{policy} {time}{some * bool(len(reached))}")
    return f"time to {wanted * 100:g} %: {listed(said)}"


def _of_measure(tables: Tables, table: pd.DataFrame, measure: Measure, margin: float) -> str:
    """What is said of accuracy: what is found, by how much, how accurate the policies are."""
    if nothing := _not_compared(tables, table, measure):
        return nothing
    table = _native_first(table, tables) if len(table) else table
    said, level = _accuracies(tables, table, measure, margin), _level(tables, table, measure)
    numbers = [level, _apart(tables, table, measure)]
    one = said.startswith(ONE_FINDING.format(measure.name))  # of several each has its own
    if one and (of := _mean(table, measure)):
        numbers.insert(0, of)
    return ": ".join(filter(None, [said, ", ".join(filter(None, numbers))]))


def _not_compared(tables: Tables, table: pd.DataFrame, measure: Measure) -> str:
    """That no accuracies of trainings are compared, and why; empty where some are."""
    own = of_task(tables.ok, measure.task)
    own = own[own.phase == "train"]
    if (table.verdict != "not trained").any() or own.policy.nunique() < 2:
        return ""
    if own[measure.task.column].isna().all():
        return f"{measure.name} was not measured"
    if not cut_short(own):
        return ""
    known = (own.ended_by == "target_ci").any()
    why = "once their times were known" if known else "after few steps, to time them"
    return f"{measure.name} is not compared: runs ended {why}"


def cut_short(runs: pd.DataFrame) -> bool:
    """Whether all runs are known to have ended before their last epoch, as do those that time."""
    return bool(runs.ended_by.isin(["target_ci", "max_steps"]).all())


def _native_first(table: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Rows of candidates, those last that the device only emulates."""
    emulated = summary.emulated(tables.ok)
    return table.sort_values("candidate", key=lambda c: c.isin(emulated), kind="stable")


def _accuracies(tables: Tables, table: pd.DataFrame, measure: Measure, margin: float) -> str:
    """What the intervals allow to be said, each finding once, of which policies and settings."""
    if table.empty:
        return ""
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
    """The verdicts on differences; also which look equal, and where all runs diverged."""
    all_lost = (table.verdict == "diverged") & (table.blocks == 0)
    near = accuracy.looks_equal(table)
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
        "not trained": "not compared (runs of the baseline are at chance level)",
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
    # The device is said by itself.
    places = pd.Series(wording.places(table.assign(gpu_model=""), short=True), table.index)
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
        known = summary.headline(tables).dropna(subset=measure.task.column)
        everywhere = " everywhere" * (len(known[POINT].drop_duplicates()) == len(spread))
        return f"{ends[0]} in the mean{everywhere}"
    if len(spread) == 1 and len(means := _means(tables, spread.index[0], measure)) <= CLAUSES:
        return listed([f"{policy} {measure.level(mean)}" for policy, mean in means.items()])
    return f"all means {ends[0]} to {ends[1]}"


def _means(tables: Tables, point: tuple[Any, ...], measure: Measure) -> pd.Series:
    """The mean of each policy at a point.

    Over the blocks that all of them have, as differences are: another block has another seed.
    """
    column = measure.task.column
    values = dict(zip(POINT, point, strict=True))
    here, runs = (
        sharing(table, values).dropna(subset=column)
        for table in (summary.headline(tables), tables.ok)
    )
    means = here.set_index("policy")[column]
    runs = runs[runs.ended_by != "target_ci"]
    policies = runs.groupby("block").policy.nunique()
    shared = runs[runs.block.map(policies) == len(means)]
    if len(shared):
        means = shared.groupby("policy")[column].agg(measure.task.mean).reindex(means.index)
    return means.sort_index(
        key=lambda names: names.isin(summary.emulated(tables.ok)), kind="stable"
    )


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

    Only what an interval shows has a number. On a CPU it is the whole process's, of which little is
    activations.
    """
    rows = memory.ratios(tables)
    if rows.empty:
        return ""
    on_cpu = tables.ok.device.fillna("").astype(str).str.endswith("(CPU)").all()
    whose = "process memory" if on_cpu else "memory"
    ends = zip(rows.ratio, rows.low, rows.high, strict=True)
    words = pd.Series([memory.finding(*each, SAME_MEMORY) for each in ends], rows.index)
    met = set(words)
    if met == {"same"}:
        return f"{whose}: about the same, within {wording.share(SAME_MEMORY)}"
    proven = rows[words.isin(["less", "more"])]
    if proven.empty:
        open_ = set(rows.candidate[words != "same"])
        same = [f"**{name}**" for name in dict.fromkeys(rows.candidate) if name not in open_]
        few = " with fewer than three repeats" * (met == {"no interval"})
        told = f"about the same with {listed(same)}, others {INCONCLUSIVE}"
        return f"{whose}: {told if same else INCONCLUSIVE + few}"
    said: dict[tuple[str, str], list[str]] = {}
    ordered = _native_first(proven.assign(finding=words), tables)
    for (name, _), own in ordered.groupby(["candidate", "finding"], sort=False):
        total = int((rows.candidate == name).sum())
        some = f" in {len(own)} of {total} settings" * (len(own) < total)
        said.setdefault((_saved((1 - own.ratio) * 100), some), []).append(f"**{name}**")
    parts = [f"{saved} with {listed(names)}{some}" for (saved, some), names in said.items()]
    rest = set(words[~rows.candidate.isin(proven.candidate)])
    other = "about the same" if rest == {"same"} else INCONCLUSIVE
    return f"{whose}: {listed(parts)}{f', others {other}' * bool(rest)}"


def _fits(tables: Tables) -> str:
    """`largest batch that fits: 320 with float32, 384 with bfloat16`; empty where not searched."""
    sizes = largest_batches(tables)
    if sizes.empty:
        return ""
    named = [
        f"{between(fits, fails)} with {listed([f'**{policy}**' for policy in own.index])}"
        for (fits, fails), own in sizes.groupby(["fits", "fails"])
    ]
    return f"largest batch that fits{room(tables)}: {listed(named)}"


def room(tables: Tables) -> str:
    """` in 1.3 GB`: the memory that a sweep allows its runs; empty where it allows all."""
    limits = {record["parameters"].get("memory_limit_gb") for record in tables.records}
    (limit,) = limits if len(limits) == 1 else {None}
    return f" in {limit:g} GB" if limit else ""


def between(fits: int, fails: int) -> str:
    """`320 (not 352)`; of a search that did not end, `between 256 and 512`."""
    known = fails - fits <= max(1, fits / 8)  # to which a search goes on
    return f"{fits:,} (not {fails:,})" if known else f"between {fits:,} and {fails:,}"


def largest_batches(tables: Tables) -> pd.DataFrame:
    """The largest batch size by policy, where a larger one was tried and did not fit.

    Of a sweep of one point but for batch sizes; tables have that of others. None where one of the
    runs or attempts may not be relied on.

    Returns:
        By policy: fits (the largest that did), fails (the smallest above it that did not).
    """
    tried, columns = tables.attempts, ["fits", "fails"]
    if tried.empty or not _one_network(tables) or not memory.is_relied_on(tables):
        return pd.DataFrame(columns=columns, dtype=int)
    every = pd.concat([tables.results, tried])
    # One that has no memory at times, or in whole runs alone, does not fit.
    named = ["policy", "batch_size"]
    lost = every[every.status == "oom"]
    ran_out = pd.MultiIndex.from_frame(every[named]).isin(pd.MultiIndex.from_frame(lost[named]))
    sizes = every[every.status.isin(FITTED) & ~ran_out].groupby("policy", sort=False).batch_size
    sizes = sizes.max()
    lost = lost[lost.batch_size > lost.policy.map(sizes)]
    fails = lost.groupby("policy").batch_size.min()
    return pd.concat([sizes, fails], axis=1, join="inner", keys=columns).astype(int)


def _one_network(tables: Tables) -> bool:
    """Whether all that was run or tried is one point, but for batch sizes."""
    others = [name for name in POINT if name not in ("batch_size", "jit")]
    every = pd.concat([tables.results, tables.attempts])[[*others, "status"]]
    known = every[every.status.isin([*FITTED, "oom"])][others]
    return bool(known.nunique().max() <= 1 and tables.ok.jit.nunique() <= 1)


def _saved(saved: pd.Series) -> str:
    """`5 to 20 % less`, or `more`; of what is saved in percent, less than zero is more."""
    less = saved.max() > 0
    ends = [f"{v:.0f}" for v in (saved.abs().min(), saved.abs().max())]
    ends = dict.fromkeys("over 99" if less and end == "100" else end for end in ends)
    return f"{' to '.join(ends)} % {'less' if less else 'more'}"
