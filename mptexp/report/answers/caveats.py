"""What is not valid of a sweep (the banner), what was left out, what makes it less certain.

They stand at the top of its page and in the terminal.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import pandas as pd

from mptexp.analysis import points, rate_ratios, speedups, summary, validity
from mptexp.analysis.comparability import NOT_RECORDED, Difference
from mptexp.analysis.contrast import FEWEST
from mptexp.analysis.sweep_tables import Tables
from mptexp.analysis.validity import FLAGS, Flag
from mptexp.records import schema
from mptexp.records.schema import is_of_timer
from mptexp.records.timed_windows import LEAST_WINDOWS
from mptexp.report.answers import next_commands
from mptexp.report.text import task_words, wording
from mptexp.report.text.markdown import safe
from mptexp.spec import run_order
from mptexp.spec.run import Run

BUT_A_FINDING = " (that runs learned nothing is a finding)"  # though tables mark these runs
MEASURED_WHILE = "measured while"  # opens the marks that say what interfered with the timing
Counted = tuple[Flag, int, int]  # a flag, how many runs have it, of how many
TIMES = ("time", "training time")  # of a step, of all of them
ANSWERED = ("time", "memory", "accuracy")  # what an answer rests on; all else stands in details
# So many windows of 0.2 s give an interval; two more to be sure.
WINDOWS, WINDOW_S = LEAST_WINDOWS + 2, 0.2
OWN_RUN = "for a claim, let mptexp run the training: `mptexp init` writes what it needs"
PLACES = 2  # that are named of runs without a result
DIFFERENCES = 4  # that a sentence lists; of more it says how many there are
NAMES = {
    "code": "the code of mptexp",
    "notebook": "the notebook",
    "model_source": "the source of the model",
    "network": "the layers of the model",
    "products_flops": "the arithmetic of a step (FLOPs of its products)",
    "data": "the content of the data",
    "data_order": "the order of the training data",
    "fed": "the first examples as the model gets them",
    "initial_weights": "the initial weights",
    "validation": "the validation data",
    "onednn": "whether oneDNN computes (TF_ENABLE_ONEDNN_OPTS=1 turns TensorFlow's on)",
    "cores": "the number of cores",
    "cpu": "the CPU",
    "cpu_version": "the version of the CPU",
    "instruction_sets": "the instruction sets of the CPU",
    "nice": "the priority of the process",
    "device": "the device",
    "driver": "the driver",
    "process": "how processes were started",
}


def banner(
    tables: Tables,
    what: str = "time",
    more: str = "[Details](#Environment)",
    findings: Collection[str] = (),
) -> list[str]:
    """What opens a page beside its answer: what is not valid, and the runs without a result.

    The flag that takes most from the answer is said with its reason, others by their names, and not
    those that take nothing more. What to do about them stands with the details.

    Args:
        what: the answer is about, time or accuracy.
        more: where all are said in full.
        findings: flags that the answer itself speaks of.
    """
    full = _unlike(tables)
    counted = sorted(
        (one for one in _counted(tables) if one[0].name not in findings),
        key=lambda one: (what in one[0].invalidates, one[1]),
        reverse=True,
    )
    if counted:
        flag, runs, of = counted[0]
        others = _short([each for each in counted[1:] if not _covers(counted[0], each)], tables)
        also = f"Also {'; '.join(others)}." * bool(others)
        opening = _opening(flag, runs, of, tables)
        holds = _holds(tables, findings)
        full.append(" ".join(filter(None, [opening, also, holds, f"{more}."])))
    return [*full, *incomplete(tables), *left_out(tables)]


def is_minor(tables: Tables, what: str) -> bool:
    """Whether nothing that a banner says takes a claim of `what`: time or accuracy."""
    return not (doubts(tables, what) or _unlike(tables) or missing(tables))


def left_out(tables: Tables) -> list[str]:
    """The runs that did not end well, by policy, what it emulates and how they ended."""
    if (tables.results.status == "ok").all():
        return []
    runs = summary.by_format(tables)
    rows = summary.left_out(runs.assign(place=wording.places(runs)))
    parts = [
        f"{row['left']} of {wording.count(row['runs'], 'run')} of {row['policy']}"
        f"{wording.emulating(row)} ({row['status']}{_where(row['places'], row['of'])})"
        for row in rows
    ]
    return [f"**Without a result**: {wording.listed(parts)}."]


def _where(places: Sequence[str], of: int) -> str:
    """` at batch size 32`: where runs ended, unless it was everywhere that their policy ran."""
    if len(places) == of:
        return ""
    if len(places) > PLACES:
        return f" in {len(places)} of {of} settings"
    return f" {wording.listed([wording.at(wording.verbatim(place)) for place in places])}"


def doubts(tables: Tables, what: str) -> str:
    """`not valid: identity not recorded`: what takes every claim of time or accuracy."""
    flags = validity.together(tables.ok["flags"])
    return wording.not_valid(validity.but(flags, "not trained"), what)


def remedies(tables: Tables, what: str, compared: float = math.nan) -> str:
    """What to do for a claim, with the command and its cost; empty where nothing is to be done.

    Args:
        what: the claim is about, time or accuracy.
        compared: the most blocks that a comparison has, where some lost runs; NaN: all of them.
    """
    runs = tables.ok
    if _foreign(runs, tables):
        return f"{OWN_RUN}."
    flags = validity.invalid(validity.together(_spoiling(runs)), what)
    names = {flag.name for flag in flags}
    telling = [flag for flag in flags if not names & {*flag.told_by}]
    first = [flag.remedy.partition(validity.REPAIR)[0].removesuffix(", and ") for flag in telling]
    steps = [*dict.fromkeys(filter(None, first))]
    blocks = tables.results.block.nunique()
    lacking = FEWEST - int(blocks if math.isnan(compared) else compared)
    left = sum(tables.asked.missing.values())
    failed = int((~tables.results.status.isin(schema.FINAL)).sum())
    if lacking > 0 and (left or failed) and blocks >= FEWEST:
        here, lost = next_commands.command(tables, "run"), wording.count(left, "missing run")
        more = [f"measures {lost} and what else their blocks hold"] * bool(left)
        more += [f"tries {wording.count(failed, 'run')} again that did not end"] * bool(failed)
        steps.append(f"run {here}, which {wording.listed(more)}")
    elif lacking > 0:  # which measures all of it again
        repeats = blocks + lacking
        keys = [*points.POINT, "policy"]
        each = speedups.with_jit(tables.results).groupby(keys, dropna=False)[["wall_s"]].mean()
        # Each point in each block, also where a run of the sweep itself has not been made.
        cost = ", ".join(_cost(each, repeats))
        again = next_commands.command(
            tables, "run", next_commands.AGAIN, f"--set repeats={repeats}"
        )
        steps.append(f"run {again}, which measures {cost}")
    elif any(flag.curable for flag in flags):
        count, minutes = _cost(_repaired(tables))
        repair = next_commands.command(tables, "run", options="--repair")
        steps.append(f"run {repair}, which measures {count} again, {minutes}")
    return f"for a claim, {'; then '.join(steps)}." if steps else ""


def _repaired(tables: Tables) -> pd.DataFrame:
    """The runs that --repair measures again: those that are compared with one another in a block.

    Of one run that is flagged, all of its comparison, so that they are close together in time; and
    those that did not come to an end, which every call tries again.
    """
    runs, records = tables.ok, tables.records_by_id
    asked = [Run.model_construct(**schema.known_parameters(records[i])) for i in runs.run_id]
    compared = pd.Series(list(map(run_order.comparison, asked)), runs.index, dtype=object)
    again = runs[compared.isin(compared[runs["flags"].map(validity.curable)])]
    return pd.concat([again, tables.results[~tables.results.status.isin(schema.FINAL)]])


def float32_learned(runs: pd.DataFrame) -> bool:
    """Whether float32 was measured and all of it learned: of another policy that is a finding."""
    base = runs[runs.policy == "float32"]["flags"]
    return len(base) > 0 and "not trained" not in validity.names_of(validity.together(base))


def _spoiling(runs: pd.DataFrame) -> pd.Series:
    """The flags of runs, less that of a policy that learned nothing where float32 did.

    That is a finding, and more epochs are no cure for it.
    """
    if not float32_learned(runs):
        return runs["flags"]
    return runs["flags"].map(lambda flags: validity.but(flags, "not trained"))


def _cost(runs: pd.DataFrame, times: int = 1) -> tuple[str, str]:
    """`9 runs` and `about 12 min`: as long as they took, so many times."""
    minutes = runs.wall_s.sum() * times / 60
    return wording.count(len(runs) * times, "run"), f"about {max(minutes, 1):.0f} min"


def remarks(tables: Tables) -> list[str]:
    """What makes the whole sweep less certain, in Markdown."""
    flags = {flag for record in tables.records for flag in record.get("marks", [])}
    lines = sorted(flag for flag in flags if not flag.startswith(MEASURED_WHILE))
    versions = summary.versions(tables.records)
    if len(versions) > 1:
        lines.append(f"the runs were made by different versions of mptexp: {', '.join(versions)}")
    return [safe(text) for text in (*lines, *excluded(tables))]


def incomplete(tables: Tables) -> list[str]:
    """The same as `missing`, as a warning in Markdown."""
    return [f"**Incomplete**: {safe(text)}." for text in missing(tables)]


def missing(tables: Tables) -> list[str]:
    """How many runs that params.yaml asks for are not there, and on which of its devices."""
    asked = tables.asked
    if not asked.missing:
        return []
    runs, planned = sum(asked.missing.values()), wording.count(asked.planned, "run")
    named = set(asked.missing) != {"local"}
    where = f": {', '.join(f'{n} on {name}' for name, n in asked.missing.items())}" * named
    unread = len(tables.damaged)  # those of runs that it does not ask for among them
    damaged = f" ({wording.count(unread, 'record')} cannot be read)" * bool(unread)
    yet = " yet" * (not unread)
    return [f"{runs} of {planned} that params.yaml asks for have no record{yet}{damaged}{where}"]


def excluded(tables: Tables) -> list[str]:
    """Which points of its matrix params.yaml leaves out: whoever excludes the losers wins."""
    asked = tables.asked
    named = [
        " with ".join(f"{name} {value}" for name, value in entry.items()) for entry in asked.entries
    ]
    more = [f"{len(named) - DIFFERENCES} more entries"] if len(named) > DIFFERENCES else []
    which = "; ".join([*named[:DIFFERENCES], *more])
    of = wording.count(asked.points, "point")
    said = f"{asked.excluded} of {of} of its matrix are left out by params.yaml (exclude): {which}"
    return [said] if asked.excluded else []


def _not_asked(tables: Tables) -> list[str]:
    """Which runs params.yaml does not ask for, or that nobody can know it."""
    asked = tables.asked
    if asked.unknown:
        return [
            f"**What was asked for is not known**: {safe(asked.unknown)}. So whether runs are "
            "missing or points are left out is not known either."
        ]
    if not asked.other:
        return []
    named = [
        f"{name} {wording.verbatim(left)} (params.yaml: {wording.verbatim(right)})"
        for name, (left, right) in list(asked.differing.items())[:DIFFERENCES]
    ]
    which = wording.listed(named) or "parameters in another combination"
    runs = wording.count(len(tables.results), "run")
    return [
        f"**Not what was asked for**: params.yaml does not ask for {asked.other} of {runs}, which "
        f"were made with {which}: it was edited after them, or they were copied from "
        "elsewhere."
    ]


def sentences(tables: Tables, findings: Collection[str] = ()) -> list[str]:
    """A sentence for each flag of the sweep: how many runs, why, what is lost, what to do.

    Args:
        findings: names of flags that its answer speaks of, which are no faults.
    """
    made = (_sentence(*each, tables, findings) for each in _counted(tables))
    return [*_unlike(tables), *made]


def faults(tables: Tables, findings: Collection[str] = ()) -> list[str]:
    """Those of them that are no findings."""
    flagged = (each for each in _counted(tables) if each[0].name not in findings)
    return [*_unlike(tables), *(_sentence(*each, tables, findings) for each in flagged)]


def _unlike(tables: Tables) -> list[str]:
    """What forms no ratio: runs that are not comparable or not asked for, sides that differ."""
    return [*_differing(tables), *_not_asked(tables), *_of_tables(tables)]


def _counted(tables: Tables) -> list[Counted]:
    """Each flag that runs have, how many of them, of how many."""
    flags = tables.ok["flags"].map(validity.names_of)
    counts = {name: int(sum(name in names for names in flags)) for name in FLAGS}
    return [(FLAGS[name], n, len(flags)) for name, n in counts.items() if n]


def _to_do(flag: Flag, tables: Tables) -> str:
    """What to do about a flag; of runs that were too short also how long they must be."""
    runs = _flagged(flag, tables)
    step_s, steps = (pd.to_numeric(runs[name]) for name in ("step_s", "steps_timed"))
    needed_s = WINDOWS * step_s.clip(lower=WINDOW_S)
    times = (needed_s / (step_s * steps)).max()
    if _foreign(runs, tables) and flag.name == NOT_RECORDED:
        return OWN_RUN  # another run of the script has no identity either
    if _foreign(runs, tables):
        return flag.remedy.replace(validity.REPAIR, "another run of the script")
    if flag.name != "too few windows" or not math.isfinite(times):
        repair = next_commands.command(tables, "run", options="--repair")
        return flag.remedy.replace(validity.REPAIR, repair)
    asked = [tables.records_by_id[run_id]["parameters"] for run_id in runs.run_id]
    factor = math.ceil(times + 1)
    # Each that is set ends a training where the other would go on.
    most = {name: max(one[name] or 0 for one in asked) for name in ("epochs", "max_steps")}
    options = " ".join(f"--set {name}={n * factor}" for name, n in most.items() if n)
    longer = next_commands.command(tables, "run", next_commands.AGAIN, options)
    return f"{flag.remedy}: about {factor} times as many steps, {longer}"


def _foreign(runs: pd.DataFrame, tables: Tables) -> bool:
    """Whether `mptexp run` can measure none of these runs again: StepTimer recorded them."""
    return len(runs) > 0 and all(is_of_timer(tables.records_by_id[i]) for i in runs.run_id)


def _of_tables(tables: Tables) -> list[str]:
    """What is not compared of devices, replicas, frameworks and the like; each once."""
    makers = (
        rate_ratios.by_device,
        rate_ratios.by_replicas,
        rate_ratios.by_backend,
        rate_ratios.by_isa,
        rate_ratios.by_frontend,
    )
    made = [not_compared(table(tables)) for table in makers]
    return list(dict.fromkeys(text for said in made for text in said))


def not_compared(table: pd.DataFrame) -> list[str]:
    """What the sides of a table of `rate_ratios` differ in beyond its axis; empty: in nothing."""
    columns = [table[name] for name in ("differs", "strong_differs") if name in table]
    by_name = {d.name: d for column in columns for differs in column for d in differs}
    if not by_name:
        return []
    return [f"**Not comparable**: {_listed(by_name.values())}. These runs form no ratio."]


def _sentence(
    flag: Flag, runs: int, of: int, tables: Tables, findings: Collection[str] = ()
) -> str:
    """What is lost first, then why, what holds all the same, and what to do."""
    opening = _opening(flag, runs, of, tables)
    if flag.name in findings:
        said = opening.replace("**Not valid: ", "**At chance level: ")
        return f"{said} Here that is no fault, and nothing to repair."
    to_do = wording.capitalized(_to_do(flag, tables))
    return " ".join(filter(None, [opening, _holds(tables, findings, runs == of), f"{to_do}."]))


def _opening(flag: Flag, runs: int, of: int, tables: Tables) -> str:
    """`**Not valid: times** of 4 of 32 runs, all of float32: repeats ... (repeats apart)`."""
    lost, which, whose = _lost(flag, tables), _which(runs, of), _whose(flag, tables)
    return f"**Not valid: {lost}** of {which}{whose}: {flag.meaning} ({flag.name})."


def _whose(flag: Flag, tables: Tables) -> str:
    """`, all of float32 at batch size 1`: of a flag's runs, where they share what others have not.

    Empty where they do not.
    """
    runs, among = _flagged(flag, tables), tables.ok
    places = pd.Series(wording.places(among, short=True), among.index)
    own = [*set(runs.policy)] * bool(among.policy.nunique() > 1)
    there = [*set(places[runs.index])] * bool(places.nunique() > 1)
    parts = own * (len(own) == 1)
    parts += [wording.at(wording.verbatim(place)) for place in there] * (len(there) == 1)
    return (
        f", {'all ' * (len(runs) > 1)}{'of ' * (len(own) == 1)}{' '.join(parts)}" if parts else ""
    )


def _flagged(flag: Flag, tables: Tables) -> pd.DataFrame:
    """The runs that have a flag."""
    return tables.ok[[flag.name in validity.names_of(flags) for flags in tables.ok["flags"]]]


def _covers(first: Counted, other: Counted) -> bool:
    """Whether a flag takes from all runs what another takes from some."""
    return first[1] == first[2] and {*other[0].invalidates} <= {*first[0].invalidates}


def _rest(left: int, of: int, of_all: bool) -> str:
    runs = wording.count(of, "run")
    return f"{left} of {runs}" if of_all else f"the other {wording.count(left, 'run')}"


def _has(tables: Tables) -> dict[str, pd.Series]:
    """Which runs that ended well have each figure that an answer rests on.

    No time where runs ended for their accuracy, no accuracy of synthetic data or of one batch, and
    no memory where weights are integers.
    """
    ok, records = tables.ok, tables.records_by_id
    quantized = pd.Series([bool(records[i].get("quantized")) for i in ok.run_id], ok.index, bool)
    return {
        "time": ok.step_s.notna() | ok["flags"].ne(""),
        "memory": ok.peak_memory_bytes.notna(),
        "accuracy": points.quality(ok).notna() | quantized,
    }


def _holds(tables: Tables, findings: Collection[str] = (), of_all: bool = False) -> str:
    """What of the answer no flag takes from any run, but for those that the answer speaks of.

    And of how many other runs what some take: `memory; step times of the other 21 runs`, or `of 21
    of 22 runs` where it was all of which something was said.
    """
    cells = {what: tables.ok["flags"][has] for what, has in _has(tables).items()}
    known = [what for what in ANSWERED if len(cells[what])]
    lost = {
        what: sum(
            any(flag.name not in findings for flag in validity.invalid(cell, what))
            for cell in cells[what]
        )
        for what in known
    }
    kept = [
        name + BUT_A_FINDING * any(validity.invalid(cell, what) for cell in cells[what])
        for what in known
        if not lost[what]
        for name in _named([what], tables)
    ]
    others = [
        f"{name} of {_rest(len(cells[what]) - lost[what], len(cells[what]), of_all)}"
        for what in known
        for name in _named([what], tables)
        if 0 < lost[what] < len(cells[what])
    ]
    said = [wording.listed(part) for part in (kept, others) if part]
    return f"Still valid: {'; '.join(said)}." if said else ""


def _lost(flag: Flag, tables: Tables) -> str:
    if flag.invalidates == validity.ALL:
        return "all figures"
    return wording.listed(_named(flag.invalidates, tables))


def _named(figures: Collection[str], tables: Tables) -> list[str]:
    """Figures in words: the accuracy of a text is its perplexity."""
    times = dict.fromkeys(TIMES, "times") if {*TIMES} <= {*figures} else {"time": "step times"}
    own = {"accuracy": task_words.listed(tables.ok)} | times
    return [*dict.fromkeys(own.get(name, name) for name in figures)]


def _short(counted: Sequence[Counted], tables: Tables) -> list[str]:
    """`times of all runs (interference, throttled)`, each loss once."""
    names: dict[str, list[str]] = {}
    for flag, runs, of in counted:
        names.setdefault(f"{_lost(flag, tables)} of {_which(runs, of)}", []).append(flag.name)
    return [f"{what} ({', '.join(own)})" for what, own in names.items()]


def _which(runs: int, of: int) -> str:
    return "all runs" if runs == of else f"{runs} of {wording.count(of, 'run')}"


def _differing(tables: Tables) -> list[str]:
    """What the runs that are not comparable differ in, with one pair of values each."""
    if all(flag.name != "not comparable" for flag, *_ in _counted(tables)):
        return []
    unlike = validity.incomparable(tables.results, tables.records)
    by_name: dict[str, Difference] = {d.name: d for one in unlike.values() for d in one}
    if not by_name:
        return []
    runs = wording.count(len(unlike), "run")
    verb = "differs" if len(unlike) == 1 else "differ"
    return [
        f"**Not comparable**: {runs} {verb} from the others in more than the policy: "
        f"{_listed(by_name.values())}. They form no ratio."
    ]


def _listed(differences: Collection[Difference]) -> str:
    clauses = [difference(d) for d in list(differences)[:DIFFERENCES]]
    more = len(differences) - DIFFERENCES
    return wording.listed([*clauses, *([f"{more} more"] if more > 0 else [])])


def changed(directory: str, differences: Sequence[Difference]) -> list[str]:
    """A line of text for each difference between a directory's runs and those about to begin."""
    return [
        f"{directory}: {difference(one, str)} is not what it was: runs from before and after form "
        "no ratio; undo it, or measure all again with --fresh or another --out"
        for one in differences
    ]


def unlike(first: str, differences: Mapping[str, Sequence[Difference]]) -> list[str]:
    """A line of text for each difference between merged directories."""
    return [
        f"{first} and {name} differ in {difference(one, str)}: runs of the one form no ratio with "
        "runs of the other"
        for name, several in differences.items()
        for one in several
    ]


def at_once(runs: int) -> list[str]:
    """A line of text where runs of merged directories were measured beside one another."""
    flag = FLAGS["sweeps at once"]
    which = wording.count(runs, "run")
    return [f"{which}: {flag.meaning}; their times are not valid"] if runs else []


def difference(found: Difference, shown: Callable[[str], str] = wording.verbatim) -> str:
    """`the source of the model (1f2e against 9a8b)`; `shown` escapes text for Markdown."""
    name, _, inner = found.name.partition(".")
    what = NAMES.get(name, name.replace("_", " ")) + f" {inner}" * bool(inner)
    left, right = (shown(value) or "none" for value in (found.left, found.right))
    return f"{shown(what)} ({left} against {right})"
