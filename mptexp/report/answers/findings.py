"""What a sweep says of speed and accuracy, grouped by finding: three sentences at most.

Every number is a row of `summary.headline` in the words of `text.wording`, which write it in the
headline table, in the caption and in the chart as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy, speedups, summary, validity
from mptexp.analysis.points import POINT, rank, sharing
from mptexp.analysis.sweep_tables import Tables, once
from mptexp.report.answers import larger_batch, quality
from mptexp.report.text import task_words, wording
from mptexp.report.text.wording import INCONCLUSIVE, count, default_name, listed, verbatim
from mptexp.spec.policies import POLICY_ROWS, without_kernels

ALIKE = 1.1  # times their least: step times that are said together
FEW = 2  # inconclusive comparisons that are named beside what is decided
# How comparisons are counted that a sentence does not name.
OTHERS = {
    INCONCLUSIVE: INCONCLUSIVE,
    "no interval": "with fewer than three repeats",
    "not valid": "not valid",
}
# What rows share whose baseline one phrase names, see `base_name`.
BASE = ["baseline", "default_policy", "default_ended"]
# What became of runs that did not end well, by status.
ENDS = {
    "oom": "ran out of memory",
    "diverged": "diverged",
    "failed": "failed",
    "killed": "was killed",
    "timeout": "took too long",
    "unsupported": "is not supported",
}
NOT_MEASURED = "was not measured"
NONE_SUCCEEDED = "No run of this sweep succeeded, so there is nothing to compare yet."


def answer(tables: Tables) -> list[str]:
    """The sentences that open a report: native policies, accuracy and memory, emulated policies."""
    if tables.ok.empty:
        return [NONE_SUCCEEDED]
    rows, larger = compared(tables), larger_batch.sentence(tables)
    if rows.empty:
        return [larger or _without_baseline(tables), *quality.sentences(tables)]
    emulated = rows.emulated.astype(bool)
    native = _speed(rows[~emulated], _without_kernels(rows[~emulated], tables))
    others = _emulated(rows[emulated], tables, timed=not native)
    first = " ".join(filter(None, [native or others, larger, _without_result(tables)]))
    made = [first, *quality.sentences(tables), others if native else ""]
    return [sentence for sentence in made if sentence]


def _without_result(tables: Tables) -> str:
    """Which policies have no run that ended well on a device, and how these ended.

    Not the device's default, of which each comparison says so, nor what diverged, of which the
    accuracy does.
    """
    runs, said = tables.results, []
    for device, own in runs.groupby("gpu_model", sort=False):
        on = f" on {verbatim(device)}" * (runs.gpu_model.nunique() > 1)
        defaults, ended = set(own.default_policy.dropna()), dict[str, list[str]]()
        for policy, mine in own.groupby("policy", sort=False):
            met = mine.status.value_counts(sort=False)
            if "ok" not in met and {*met.index} != {"diverged"} and policy not in defaults:
                each = [f"{n} {ends(status, n > 1)}" for status, n in met.items()]
                how = f"all {ends(met.index[0], True)}" if len(met) == 1 else listed(each)
                how = "none is supported" if {*met.index} == {"unsupported"} else how
                ended.setdefault(how, []).append(f"**{policy}**")
        for how, names in ended.items():
            said.append(f"No run of {listed(names)}{on} ended well: {how}.")
    return " ".join(said)


def ends(status: str, several: bool) -> str:
    """`ran out of memory`, `was killed`, of several runs `were killed`."""
    text = ENDS[status]
    return text.replace("was ", "were ").replace("is ", "are ") if several else text


def compared(tables: Tables) -> pd.DataFrame:
    """The rows of the headline table that have a ratio, with what tells each apart: place.

    Also with difference and verdict of the policy's accuracy, with what tells a row apart from
    others of its phase: within_phase, with the baseline's step time at its point: base_step_s, and
    whether runs of the policy were out of memory there, and none of the baseline: out_of_memory.
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
    asked = tried.jit.map(lambda jit: speedups.ASKED.get(jit, jit))
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
    out = summary.ended(tables.results, "oom")
    own, base = (
        [point in out for point in table[[*POINT, name]].itertuples(index=False, name=None)]
        for name in ("policy", "baseline")
    )
    table = table.assign(out_of_memory=np.array(own, bool) & ~np.array(base, bool))
    ended = [_default_ended(row, tables.results) for row in table.to_dict("records")]
    table = table.assign(default_ended=ended)
    for _, own in table.groupby("phase"):
        table.loc[own.index, "within_phase"] = wording.places(own, short=True)
    return table.assign(place=wording.places(table, short=True))


def _default_ended(row: Mapping[str, Any], runs: pd.DataFrame) -> str:
    """How the device's default ended at a point, where it is not what a row is compared with."""
    if row["baseline"] == row["default_policy"]:
        return ""
    # Of what did not run it is not known whether XLA compiled it.
    there = sharing(runs, row, [name for name in POINT if name != "jit"])
    met = there.status[there.policy == row["default_policy"]]
    return ENDS.get(met.iloc[0], "has no valid time") if len(met) else NOT_MEASURED


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
        known = len(rows[BASE].drop_duplicates()) == 1  # said just before
        said.append(_doubtful(open_, wording.capitalized(INCONCLUSIVE), based=not known))
    rest = [f"{len(other)} {OTHERS[word]}" for word, other in own.items()]
    # What is not valid stands in the banner: it needs no sentence of its own.
    said += [f"Others: {listed(rest)}"] * any(word != "not valid" for word in own)
    # Not oneDNN, which is a name.
    begun = [f"S{text[1:]}" if text.startswith("strict ") else text for text in said]
    return " ".join(f"{text}." for text in begun)


def _decided(rows: pd.DataFrame, timed: bool) -> str:
    """`**bfloat16** trains 1.37× faster than float32 (the default) at batch size 32 [...]`."""
    parts, before = [], ()
    for (policy, phase, *base_of), own in rows.groupby(["policy", "phase", *BASE], sort=False):
        again = (policy, *base_of) == before  # in another phase
        base = "" if again else _base(own, timed)
        ratios = _ratios(own.assign(place=own.within_phase), base)  # the verb names the phase
        parts.append(f"{'it' if again else _named(policy, own)} {wording.DOES[phase]} {ratios}")
        before = (policy, *base_of)
    return "; ".join(parts)


def _doubtful(rows: pd.DataFrame, opening: str, timed: bool = False, based: bool = True) -> str:
    """`Inconclusive (...): **P** 1.04× faster than float32 at ... [0.92, 1.19]`.

    Args:
        timed: whether the baseline is named with its step time; based: whether it is named.
    """
    parts = []
    for (policy, *_), own in rows.groupby(["policy", *BASE], sort=False):
        base = _base(own, timed and not parts) * based
        parts.append(f"{_named(policy, own)} {_ratios(own, base)}")
    return f"{opening}: {'; '.join(parts)}"


def _not_valid(rows: pd.DataFrame, opening: str) -> str:
    """`Measured, but not valid: 0.24× (**int8**) and 0.97× (**int4**) as fast as float32 ...`.

    Policies that are compared with one baseline share its name, their place if it is one, and the
    share of the arithmetic in which they are effective.
    """
    rows = rows.assign(word=rows.apply(wording.direction, axis=1))
    notes = {policy: _notes(own) for policy, own in rows.groupby("policy", sort=False)}
    shares = {tuple(note.partition(" in ")[0] for note in own) for own in notes.values()}
    shared = shares.pop() if len(notes) > 1 and len(shares) == 1 else ()
    parts = []
    for (*_, word), own in rows.groupby([*BASE, "word"], sort=False):
        one_place = own.place.nunique() == 1
        numbers = [
            _unclaimed(policy, notes[policy] * (not shared), of_one, named=not one_place)
            for policy, of_one in own.groupby("policy", sort=False)
        ]
        than = f"{wording.than(word)} {base_name(own.iloc[0])}"
        place = wording.at(verbatim(own.place.iloc[0])) if one_place else ""
        parts.append(" ".join(filter(None, [listed(numbers), word, than, place])))
    parts += [f"each policy applies to {note}" for note in shared]
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
    if len(rows) <= quality.CLAUSES:
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
    """The rows of the least and of the largest number that is said, all of one finding.

    Of what is slower the number said is the larger the smaller the speedup.
    """
    up = wording.finding(rows.iloc[0]) != "slower"
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


def base_name(row: Mapping[str, Any]) -> str:
    """The baseline as sentences name it, and whether it is what users have of that device."""
    baseline, default = row["baseline"], verbatim(default_name(row["default_policy"]))
    if not row["default_ended"]:
        return f"{default_name(baseline)} (the default)"
    return f"strict {baseline} (the default, {default}, {row['default_ended']})"


def _base(rows: pd.DataFrame, timed: bool) -> str:
    """A baseline, with its step time if asked: `float32 (the default; 85.7 to 88.3 ms per step)`.

    Args:
        rows: that are compared with it, alike in BASE.
        timed: whether its step time is asked for; of steps not about the same none is said.
    """
    name, steps_s = base_name(rows.iloc[0]), rows.base_step_s.dropna()
    alike = rows.phase.nunique() == 1 and steps_s.max() <= ALIKE * steps_s.min()
    if not timed or not alike:
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
        return f"Times are not valid: only {task_words.listed(table)} is compared."
    names = _named_formats(tables)
    if lost := ended(tables):
        return f"No times are compared: {verbatim(lost)}."
    parted = {"measured apart", validity.CLOCK_SET}
    if any(parted & {*validity.names_of(flags)} for flags in tables.ok["flags"]):
        return f"No times are compared: {names} were measured apart."
    return (
        f"This sweep measured {names}; a speedup needs two policies at the same point, one of them "
        "float32 or the device's default."
    )


def _named_formats(tables: Tables) -> str:
    """The policies that were measured, with the formats that runs of them emulate."""
    runs = summary.by_format(replace(tables, results=tables.ok))
    named = {f"{row['policy']}{wording.emulating(row)}" for row in runs.to_dict("records")}
    return listed(sorted(named))


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
    said, counts, allowed = [], runs.policy.value_counts(), quality.room(tables)
    met = ENDS | ({"oom": f"did not fit{allowed}"} if allowed else {})
    for policy, own in bad.groupby("policy", sort=False):
        how = listed([met[status] for status in dict.fromkeys(own.status)])
        of = int(counts[policy])
        some = f" in {len(own)} of {count(of, 'run')}" * (len(own) < of)
        on = f" on {listed(sorted(set(own.gpu_model)))}" * (runs.gpu_model.nunique() > 1)
        said.append(f"{policy} {how}{some}{on}")
    sizes = [f"{size:,}" for size in sorted(set(bad.batch_size))]
    well = set(runs.policy[runs.batch_size.isin(bad.batch_size) & (runs.status == "ok")])
    others = sorted(well - set(bad.policy))
    rest = f", {listed(others)} did not" * bool(others)
    if not bad.status.isin(["oom", "diverged", "failed"]).all():
        verb = "was" if len(well) == 1 else "were"
        some = 0 < len(well) < runs.policy.nunique()
        rest = f"; only {listed(sorted(well))} {verb} measured" * some
    return f"{listed(said)} at batch size {listed(sizes)}{rest}"
