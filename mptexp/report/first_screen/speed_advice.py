"""Of a sweep that compares the speed of policies, which to use and where; else what decides it."""

from itertools import chain
from typing import NamedTuple

import numpy as np
import pandas as pd

from mptexp.analysis import accuracy, contrast, validity
from mptexp.analysis.contrast import MOST_REPEATS, Contrast
from mptexp.analysis.points import POINT, sharing
from mptexp.analysis.speedups import row_times
from mptexp.analysis.sweep_tables import Tables, once
from mptexp.report.answers import caveats
from mptexp.report.answers.findings import ENDS, NOT_MEASURED, ends
from mptexp.report.first_screen.subject import NAMED, RESIDENT, SAME, equal
from mptexp.report.text import column_formats, task_words, wording
from mptexp.report.text.parameter_values import in_words
from mptexp.report.text.wording import INCONCLUSIVE, count, listed, verbatim
from mptexp.spec.policies import POLICY_ROWS

MANY_REPEATS = f"to show effects as small as those measured would take over {MOST_REPEATS} repeats"
# What a reader may use otherwise in the same training, which learns as much then.
CHOICES = ("jit", "input_mode")
ALIKE = ("phase", "gpu_model", "input_mode")
OUT_OF_MEMORY = ENDS["oom"]
TRY_STABLE = "try another loss scale or a lower learning rate"
FEW = 12  # repeats, of more of which an interval says more


def where_shown(own: pd.DataFrame, word: str) -> str:
    """` at batch size 32`, ` in 2 of 4 settings`: where a policy is not shown to be so in all.

    What decides is named if it is one parameter, and so is the one setting of which it is shown.
    """
    proven = own.finding == word
    if proven.all() or not proven.any():
        return ""
    for name in POINT:
        own_value = own[name] == own[name][proven].iloc[0]
        if name != "setting" and (own_value == proven).all():
            return f" {wording.at(wording.of_table(own[proven], name).iloc[0])}"
    if proven.sum() == 1:
        return f" {wording.at(pd.Series(wording.places(own), own.index)[proven].iloc[0])}"
    return f" in {proven.sum()} of {len(own)} settings"


def where_measured(own: pd.DataFrame, tables: Tables) -> str:
    """` at batch size 128`: where a policy was measured alone, and others elsewhere too.

    Args:
        own: the comparisons of the policy. Of all runs those count that are alike in ALIKE.
    """
    runs = tables.ok
    for name in ALIKE:
        runs = runs[runs[name].isin(own[name])]
    mine = runs[runs.policy.isin(own.policy)]
    for name in POINT:
        if name != "setting" and mine[name].nunique() == 1 < runs[name].nunique():
            return f" {wording.at(wording.of_table(own, name).iloc[0])}"
    return ""


def baseline(rows: pd.DataFrame) -> str:
    """What the policies are compared with: a policy, or each device's own default."""
    if rows.baseline.nunique() > 1:
        return "the default of each device"
    return wording.default_name(rows.baseline.iloc[0])


def strict_baseline(rows: pd.DataFrame) -> str:
    """The same of times: `strict float32` where what users have was not measured, TF32."""
    row = rows.iloc[0]
    one = len(rows[["baseline", "default_policy"]].drop_duplicates()) == 1
    return wording.strict(row.baseline, row.default_policy) * one + baseline(rows)


def diverged(best: pd.Series, tables: Tables) -> bool:
    """Whether trainings of a policy on its device diverged, at points of which no ratio tells.

    Where a baseline's did too, that says nothing of the policy.
    """
    runs = tables.results[tables.results.status == "diverged"]
    if runs.empty:
        return False
    asked = {record["run_id"]: record["parameters"] for record in tables.records}
    where = runs.run_id.map(lambda run_id: accuracy.shared(asked[run_id]))
    bases = (runs.policy == "float32") | (runs.policy == runs.default_policy)
    own = (runs.policy == best.policy) & (runs.gpu_model == best.gpu_model)
    return not set(where[own]) <= set(where[bases & ~own])


def collapsed(row: pd.Series, tables: Tables) -> int:
    """How many runs of a comparison's policy learned nothing, where all of its baseline did.

    None where all are like that: then its accuracy is shown to be lower.
    """
    none = _untrained(tables)
    if row.verdict not in ("undecided", "too few images") or not none.any():
        return 0
    there = sharing(tables.ok, row)
    none = none[there.index]
    own, base = (none[there.policy == row[name]] for name in ("policy", "baseline"))
    return int(own.sum()) if not base.any() and not own.all() else 0


@once
def _untrained(tables: Tables) -> pd.Series:
    """Of the runs that ended well, which learned nothing."""
    flags = tables.ok["flags"]
    return flags.map(lambda names: "not trained" in validity.names_of(names)).astype(bool)


def strict_is_above(best: pd.Series, rows: pd.DataFrame) -> bool:
    """Whether strict float32 is shown to be more accurate than a policy's baseline, TF32."""
    near = rows[(rows.gpu_model == best.gpu_model) & (rows.baseline == best.baseline)]
    return bool(((near.policy == "float32") & (near.verdict == "higher")).any())


class _Advice(NamedTuple):
    """What to do, what to look at then, and where it is not shown to help."""

    what: str
    look: str = ""
    unclear: str = ""

    def text(self, looks: bool = True) -> str:
        """The advice as sentences; empty where there is none."""
        return f"{self.what}{self.look * looks}.{self.unclear}" if self.what else ""


def advise(rows: pd.DataFrame, lost: pd.DataFrame, tables: Tables) -> str:
    """What to do; of a sweep with training and inference, for each where they differ.

    Args:
        rows: the comparisons; lost: where policies did not get through, with findings of theirs.
    """
    phases = set(rows.phase)
    if len(phases) == 1:
        return _advice(rows, lost, tables).text()
    made = {  # inference first: a sweep measures it if it asks for it
        phase: _advice(*(_of_phase(table, phase) for table in (rows, lost)), tables)
        for phase in ("inference", "train")
        if phase in phases
    }
    each = {phase: one for phase, one in made.items() if one.what}
    if not each:
        return ""
    if len({one.text() for one in made.values()}) == 1:
        return next(iter(each.values())).text()
    once = all(one.look for one in made.values())  # what to look at is said once
    first, *more = [
        f"for {in_words('phase', phase)}, {one.text(looks=phase == 'train' or not once)}"
        for phase, one in each.items()
    ]
    return " ".join([first, *map(wording.capitalized, more)])


def _of_phase(rows: pd.DataFrame, phase: str) -> pd.DataFrame:
    """The rows of a phase, which their places do not name."""
    own = rows[rows.phase == phase]
    return own.assign(place=own.within_phase)


def _advice(rows: pd.DataFrame, lost: pd.DataFrame, tables: Tables) -> _Advice:
    bad = rows.verdict.isin(["lower", "diverged"]) | rows.out_of_memory
    bad |= np.array([collapsed(row, tables) > 0 for _, row in rows.iterrows()], bool)
    worse = (rows.finding == "faster") & bad
    rows = rows.assign(finding=rows.finding.mask(worse, "worse"))
    # What is proven and rounds to 1.00 is worth no change.
    faster = rows[(rows.finding == "faster") & (rows.apply(wording.direction, axis=1) == "faster")]
    usable = faster[faster.input_mode != RESIDENT]
    if len(faster) and usable.empty and (rows.input_mode != RESIDENT).any():
        return _Advice(f"{_keep(rows)}: {_without_input(faster, rows)}")
    if len(faster):
        return _use(usable if len(usable) else faster, rows, lost, tables)
    native = rows[~rows.emulated.astype(bool)]
    if (native if len(native) else rows).finding.isin(["not valid", "no interval"]).all():
        unstable = [row for _, row in rows.drop_duplicates("policy").iterrows()]
        unstable = [row.policy for row in unstable if diverged(row, tables)]
        names = listed([f"**{name}**" for name in unstable])
        if unstable:  # more repeats of it would diverge as well
            return _Advice(f"find out first why runs of {names} diverged, and {TRY_STABLE}")
        return _Advice(caveats.remedies(tables, "time", rows.blocks.max()).removesuffix("."))
    measured = native if len(native) else rows
    more = repeats_to_decide(measured, _names(measured), gains=True)
    return _Advice("; ".join(filter(None, [_keep(rows), more, _untried(rows, tables)])))


def _keep(rows: pd.DataFrame) -> str:
    """`keep float32`: what a user has, of which others are not shown to be better.

    Where that is TF32 and was not measured, nothing is known of it; and where it is less accurate
    than others, it is not kept without a word.
    """
    base, first = strict_baseline(rows), rows.iloc[0]
    if base.startswith("strict ") and first.default_ended not in ("", OUT_OF_MEMORY):
        return f"{_measure_default(first, rows)}, before you change anything"
    better = rows[rows.verdict == "higher"]
    if better.empty:
        return f"keep {base}"
    names = listed([f"**{name}**" for name in dict.fromkeys(better.policy)])
    measure = task_words.of(better.dataset.iloc[0])
    worse = measure.words.get("higher", "higher")
    return f"keep {base}, but find out first why the {measure.name} of {names} is {worse}"


def _use(faster: pd.DataFrame, rows: pd.DataFrame, lost: pd.DataFrame, tables: Tables) -> _Advice:
    """Which of the policies that are faster to use: the fastest of those that lose no accuracy."""
    alone = [name for name, own in faster.groupby("policy") if len(_ahead(own, tables)) < len(own)]
    faster = faster[faster.policy.isin(alone)] if alone else faster
    shown = faster.verdict.isin(["equal", "higher"]).groupby(faster.policy).all()
    safe = faster[faster.policy.map(shown)]
    candidates = _over_defaults(safe if len(safe) else faster)
    best = _gains_most(candidates)
    if best.default_ended not in ("", OUT_OF_MEMORY):
        first = f"{_measure_default(best, rows)}, which may gain as much"
        return _Advice(f"{first}, before you use **{best.policy}**")
    advised = faster[faster.policy == best.policy]
    measure, open_ = task_words.of(best.dataset), _open(advised, tables)
    within = not open_ and not diverged(best, tables)
    own = "training" if best.phase == "train" else "model"
    look = "" if within else f", and look at its {open_ or measure.name} in your own {own}"
    if strict_is_above(best, rows):
        return _Advice(
            f"find out first why the {measure.name} of strict float32 is higher than that of "
            f"{wording.default_name(best.baseline)}, before you use **{best.policy}**"
        )
    look += _later(best, tables)
    look += _failed(best, tables)
    ahead = _ahead(advised, tables)
    if len(ahead) == len(advised):
        one = min(ahead, key=lambda ahead: ahead.base_s)
        steps = [column_formats.cell("step_s", step_s) for step_s in (one.base_s, one.step_s)]
        than = f"than **{best.policy}** {one.at} ({steps[0]} ms per step, not {steps[1]})"
        return _Advice(f"keep {one.base} {one.base_at}, which is faster still {than}")
    every = pd.concat([rows, lost]) if len(lost) else rows
    condition, but, unclear = _there(best, every, tables)
    unclear += "".join(
        f" {wording.capitalized(wording.at(verbatim(one.place)))}, {one.base} {one.base_at} is "
        "faster still."
        for one in ahead[:NAMED]
    )
    unclear += _more_elsewhere(advised, candidates)
    unclear += _to_measure(advised)
    why, fastest = "", _gains_most(_over_defaults(faster)).policy
    if within and fastest not in set(candidates.policy):
        verdict = measure.words.get(best.verdict, best.verdict)
        why = f", whose {measure.name} is shown to be {verdict}"
    devices = {*rows.gpu_model[rows.policy == best.policy]}
    if devices < {*tables.results.gpu_model} and not condition:  # of others nothing is compared
        condition = f"on {listed([verbatim(name) for name in sorted(devices)])}"
    where = _where(condition, tables) if condition or but or unclear else ""
    return _Advice(f"{where}use **{best.policy}**{why}{but}", look, unclear)


def _over_defaults(faster: pd.DataFrame) -> pd.DataFrame:
    """What gains over what a user has, the device's default; all, where nothing does."""
    own = faster[faster.default_ended.isin(["", OUT_OF_MEMORY])]
    return own if len(own) else faster


def _gains_most(faster: pd.DataFrame) -> pd.Series:
    """The best comparison of the policy that gains most over all points, by what is assured.

    By the sum of the logarithms of the lower ends: one point where another policy gains more does
    not decide for the others.
    """
    assured = np.log(faster.low).groupby(faster.policy).sum()
    own = faster[faster.policy == assured.idxmax()]
    return own.loc[own.low.idxmax()]


def _more_elsewhere(advised: pd.DataFrame, others: pd.DataFrame) -> str:
    """` On T4, **mixed_float16** gains more: 1.80×.`: where another policy than the advised does.

    Args:
        others: comparisons of all policies that may be advised.
    """
    own, said = advised.set_index(POINT), []
    others = others[others.policy != advised.policy.iloc[0]]
    best = others.loc[others.groupby(POINT, dropna=False).low.idxmax()]
    for row in best.to_dict("records"):
        point = tuple(row[name] for name in POINT)
        known = point in own.index
        if row["low"] > (own.high[point] if known else 1):
            ratio, place = wording.factor(row["speedup"]), wording.at(verbatim(row["place"]))
            gains = "gains more:" if known else "gains"
            said.append(f"{place}, **{row['policy']}** {gains} {ratio}×")
    if (more := len(said) - NAMED) > 0:
        said[NAMED:] = [f"so do others in {count(more, 'more setting')}"]
    return f" {wording.capitalized('; '.join(said))}." if said else ""


def _to_measure(advised: pd.DataFrame) -> str:
    """` On A100, the default, TF32, was not measured.`: where a gain is over strict float32."""
    strict = advised[~advised.default_ended.isin(["", OUT_OF_MEMORY])]
    said = [
        f"{wording.at(verbatim(row['place']))}, the default, "
        f"{wording.default_name(row['default_policy'])}, {row['default_ended']}"
        for row in strict.to_dict("records")[:NAMED]
    ]
    return f" {wording.capitalized('; '.join(said))}." if said else ""


def _open(advised: pd.DataFrame, tables: Tables) -> str:
    """`accuracy and perplexity`: what is not shown to be equal of a policy that gains."""
    kept = advised.verdict.isin(["equal", "higher"])
    each = [(task_words.of(name), own) for name, own in kept.groupby(advised.dataset, sort=False)]
    names = [m.name for m, own in each if not own.all() or equal(tables, m) != "equal"]
    return listed([*dict.fromkeys(names)])


def _later(best: pd.Series, tables: Tables) -> str:
    """That a faster policy reaches the accuracy that was asked for later than its baseline."""
    wanted = tables.options.target_accuracy
    runs = sharing(tables.trained, best) if wanted is not None else tables.trained[:0]
    if runs.empty:
        return ""
    seconds = runs.run_id.map(accuracy.seconds_to(tables, wanted)).astype(float)
    own, base = (seconds[runs.policy == name].median() for name in (best.policy, best.baseline))
    if not own > base:
        return ""
    base_name = wording.default_name(best.baseline)
    return f"; where the time to {wanted * 100:g} % counts, keep {base_name}, which takes less"


def _failed(best: pd.Series, tables: Tables) -> str:
    """That runs of a policy have no result, but for those that had no memory or diverged."""
    runs = tables.results
    own = runs[(runs.policy == best.policy) & (runs.gpu_model == best.gpu_model)]
    bad = own.status[own.status.isin(["failed", "timeout", "killed"])]
    how = [ends(status, len(bad) > 1) for status in dict.fromkeys(bad)]
    return f"; find out why {len(bad)} of its {len(own)} runs {' or '.join(how)}" * bool(len(bad))


def _measure_default(row: pd.Series, rows: pd.DataFrame) -> str:
    """`measure TF32, the default here`, or `again`, where it did not end well, or `on A100`."""
    name = verbatim(wording.default_name(row.default_policy))
    again = " again" * (row.default_ended != NOT_MEASURED)
    on = f"on {verbatim(row.gpu_model)}" if rows.gpu_model.nunique() > 1 else "here"
    return f"measure {name}{again}, the default {on}"


class _Ahead(NamedTuple):
    """A baseline that takes shorter steps elsewhere than a policy where it gains.

    Attributes:
        base: the baseline; base_at: where it does; base_s: its step.
        at: where the policy gains; step_s: its step.
        place: of the comparison.
    """

    base: str
    base_at: str
    base_s: float
    at: str
    step_s: float
    place: str


def _ahead(gains: pd.DataFrame, tables: Tables) -> list[_Ahead]:
    """Of each gain of a policy the fastest baseline ahead of it, with another of CHOICES."""
    varied = [name for name in CHOICES if tables.ok[name].nunique() > 1]
    if not varied:
        return []
    runs = validity.sound(tables.ok, "time")
    steps = row_times(runs, [*POINT, "policy"]).step_s.dropna().reset_index()
    each = [
        [ahead for name in varied if (ahead := _ahead_with(name, row, gains, steps, runs, tables))]
        for _, row in gains.iterrows()
    ]
    return [min(own, key=lambda ahead: ahead.base_s) for own in each if own]


def _ahead_with(
    name: str,
    row: pd.Series,
    gains: pd.DataFrame,
    steps: pd.DataFrame,
    runs: pd.DataFrame,
    tables: Tables,
) -> _Ahead | None:
    """The fastest baseline at a point that differs in a parameter, if it is ahead of a policy.

    It is not where the policy has shorter steps with another value with which it gains too, where
    the blocks do not show it, nor where the baseline is worth less there.

    Args:
        row: the comparison of the policy; gains: all of its own.
        steps: of `runs`, those that are valid, by point and policy.
    """
    same = [other for other in POINT if other != name]
    alike = sharing(steps, row, same)
    if row.input_mode != RESIDENT:  # in which nobody can train
        alike = alike[alike.input_mode != RESIDENT]
    own = alike[(alike.policy == row.policy) & alike[name].isin(sharing(gains, row, same)[name])]
    others = alike[(alike.policy == row.baseline) & (alike[name] != row[name])]
    if own.empty or others.empty or others.step_s.min() * SAME >= own.step_s.min():
        return None
    here, fastest = own[own[name] == row[name]], others.loc[[others.step_s.idxmin()]]
    if accuracy.falls_behind(tables, fastest.iloc[0].to_dict(), row.to_dict()):
        return None
    shortest = own.loc[[own.step_s.idxmin()]]
    sides = [runs.merge(one[[*POINT, "policy"]]) for one in (shortest, fastest)]
    if not contrast.paired(*(one.groupby("block").step_s.mean() for one in sides)).low > 1:
        return None
    at, base_at = (wording.at(wording.of_table(t, name).iloc[0]) for t in (here, fastest))
    base = verbatim(wording.default_name(row.baseline))
    return _Ahead(base, base_at, fastest.step_s.iloc[0], at, here.step_s.iloc[0], row.place)


def _where(condition: str, tables: Tables) -> str:
    """`on this GPU at batch size 32, `, `on A100, `, `on this GPU, ` without a condition.

    Of several devices none is this one.
    """
    if tables.results.gpu_model.nunique() > 1:
        return f"{condition}, " * bool(condition)
    if condition.startswith("on "):
        return f"{condition}, "
    return f"on this {' '.join(filter(None, [_kind(tables), condition]))}, "


def _untried(rows: pd.DataFrame, tables: Tables) -> str:
    """The policies of types that the device has, where only emulated ones were measured."""
    if not rows.emulated.astype(bool).all():
        return ""
    known = [(record.get("environment") or {}).get("native", []) for record in tables.records]
    met = {POLICY_ROWS[policy].compute_dtype for policy in tables.results.policy}
    types = [dtype for dtype in dict.fromkeys(chain(*known)) if dtype not in met]
    names = listed([f"**mixed_{dtype}**" for dtype in types])
    which = f"whose arithmetic this {_kind(tables)} has"
    return f"{names}, {which}, {'was' if len(types) == 1 else 'were'} not measured" * bool(types)


def _without_input(faster: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Why what gains on one batch is not advised: what the same policies do with an input."""
    names = [*dict.fromkeys(faster.policy)]
    gains = f"{listed(names)} gain{'s' * (len(names) == 1)} where no time goes into input"
    fed = rows[(rows.input_mode != RESIDENT) & rows.policy.isin(faster.policy)].finding
    if fed.empty:
        return f"{gains}; with an input {'it was' if len(names) == 1 else 'they were'} not measured"
    if fed.isin(["slower", "faster"]).all():  # what is faster rounds to 1.00
        return f"{gains}, and not with an input"
    if (fed == "worse").any():
        return f"{gains}, and lose{'s' * (len(names) == 1)} accuracy with an input"
    return f"{gains}; with an input no gain is shown"


def repeats_to_decide(rows: pd.DataFrame, names: pd.Series, gains: bool = False) -> str:
    """What more repeats of the inconclusive comparisons would show; empty where none is.

    Said of the one that takes fewest.

    Args:
        names: of the rows, said where several are inconclusive.
        gains: whether it is gains that are looked for.
    """
    own = rows[(rows.finding == INCONCLUSIVE) & ((rows.speedup > 1) | (not gains))]
    if own.empty:
        return ""
    wanted = [
        (n, f"{row.blocks:.0f}", f"{wording.factor(row.speedup)}×", names[row.Index])
        for row in own.itertuples()
        if (n := contrast.repeats_to_decide(Contrast(row.speedup, row.low, row.high, row.blocks)))
    ]
    if not wanted:
        return MANY_REPEATS
    least, blocks, ratio, name = min(wanted)
    # Nor is a bound known where a comparison has no interval.
    open_ = ~rows.finding.isin(["faster", "worse", "not valid", "no interval"]).any()
    if least > FEW and open_ and (most := rows.high.max()) > 1:
        return (
            f"if there is a gain, it is hardly above {wording.factor(most)}×, the upper end of the "
            "interval"
        )
    which = f"{ratio} ({verbatim(name)})" if len(own) > 1 else ratio
    return f"about {least} repeats, not {blocks}, should show whether {which} is real"


def _names(rows: pd.DataFrame) -> pd.Series:
    """`mixed_bfloat16, batch size 32`: what tells comparisons apart, by policy and place."""
    parts = [name for name in ("policy", "place") if rows[name].nunique() > 1]
    named = [", ".join(row[part] for part in parts) for row in rows.to_dict("records")]
    return pd.Series(named, rows.index, dtype=object)


def _kind(tables: Tables) -> str:
    """What the sweep ran on, as advice calls it: `CPU`, `GPU`, `device` of both."""
    kinds = {"CPU" if "(CPU)" in str(name) else "GPU" for name in tables.ok.device}
    return kinds.pop() if len(kinds) == 1 else "device"


def _there(best: pd.Series, rows: pd.DataFrame, tables: Tables) -> tuple[str, str, str]:
    """Where to use a policy that is not faster everywhere, where not, and where it is not shown.

    By the one parameter that decides, if one does; else by naming those of which it is not shown,
    or those of which it is, where these are fewer.
    """
    own = rows[(rows.policy == best.policy) & (rows.input_mode != RESIDENT)]
    own = own if len(own) else rows[rows.policy == best.policy]
    faster, slower = own.finding == "faster", own.finding.isin(["slower", "worse"])
    faster &= own.default_ended.isin(["", OUT_OF_MEMORY])  # over what a user has
    if faster.all():
        return verbatim(where_measured(own, tables).strip()), "", ""
    shown = own.assign(finding=own.finding.where(faster | (own.finding != "faster"), "by strict"))
    if not (decided := where_shown(shown, "faster")).endswith("settings"):
        return verbatim(decided), _but_not(own[slower]), ""
    if (~faster).sum() >= faster.sum():
        some = own.place[faster] if 1 < faster.sum() <= NAMED else [best.place]
        where = " or ".join(wording.at(verbatim(place)) for place in some)
        return where, _but_not(own[slower]), ""
    unclear = own.place[~faster & ~slower]
    which = " or ".join(_at(place, own) for place in unclear)
    which = which if len(unclear) <= NAMED else f"in {count(len(unclear), 'setting')}"
    return "", _but_not(own[slower]), f" Not shown to be faster {which}." * bool(len(unclear))


def _at(place: str, own: pd.DataFrame) -> str:
    """A place after its preposition; with what usually holds, where another begins like it."""
    several = any(other.startswith(f"{place}, ") for other in own.place)
    return wording.at(verbatim(place)) + f" ({wording.usual(own)})" * several


def _but_not(slower: pd.DataFrame) -> str:
    """`, but not at batch size 1`: where it is shown to be slower or worse, the slowest first.

    Before these, where it did not get through.
    """
    places = [
        wording.at(verbatim(place))
        for place in slower.sort_values("speedup", na_position="first").place
    ]
    more = len(places) - NAMED
    named = [*places[:NAMED], *([f"in {count(more, 'more setting')}"] if more > 0 else [])]
    return f", but not {' or '.join(named)}" if places else ""
