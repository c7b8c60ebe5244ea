"""What is not valid of a sweep, in sentences: at the top of its page and in the terminal."""

from mptexp.analysis import validity
from mptexp.analysis.identity import Difference
from mptexp.analysis.sweep_tables import Tables
from mptexp.analysis.validity import FLAGS, Flag
from mptexp.report import wording

DIFFERENCES = 4  # that a sentence lists; of more it says how many there are
NAMES = {
    "code": "the code of mptexp",
    "notebook": "the notebook",
    "model_source": "the source of the model",
    "data": "the content of the data",
    "data_order": "the order of the images",
    "initial_weights": "the initial weights",
    "cores": "the number of cores",
    "cpu": "the CPU",
    "device": "the device",
    "driver": "the driver",
}


def sentences(tables: Tables) -> list[str]:
    """A sentence for each flag of the sweep: how many runs, why, what is lost, what to do."""
    flags = tables.ok["flags"].map(validity.names_of)
    counts = {name: int(sum(name in names for names in flags)) for name in FLAGS}
    found = [_sentence(FLAGS[name], n, len(flags)) for name, n in counts.items() if n]
    differing = _differing(tables) if counts["not comparable"] else ""
    return [*([differing] if differing else []), *found]


def _sentence(flag: Flag, runs: int, of: int) -> str:
    lost = wording.listed(list(flag.invalidates))
    which = "all runs" if runs == of else f"{runs} of {wording.count(of, 'run')}"
    return (
        f"**Not valid: {flag.name}** ({which}): {flag.meaning}. Nothing is claimed of their "
        f"{lost}; {flag.remedy}."
    )


def _differing(tables: Tables) -> str:
    """What the runs that are not comparable differ in, with one pair of values each."""
    unlike = validity.incomparable(tables.results, tables.records)
    by_name: dict[str, Difference] = {d.name: d for one in unlike.values() for d in one}
    if not by_name:
        return ""
    clauses = [difference(d) for d in list(by_name.values())[:DIFFERENCES]]
    more = len(by_name) - DIFFERENCES
    tail = [f"{more} more"] if more > 0 else []
    runs = wording.count(len(unlike), "run")
    return (
        f"**Not comparable**: {runs} differ from the others in more than the policy: "
        f"{wording.listed([*clauses, *tail])}. They form no ratio."
    )


def difference(found: Difference) -> str:
    """`the source of the model (1f2e against 9a8b)`."""
    name, _, inner = found.name.partition(".")
    what = NAMES.get(name, name.replace("_", " ")) + f" {inner}" * bool(inner)
    left, right = (wording.verbatim(value) or "none" for value in (found.left, found.right))
    return f"{wording.verbatim(what)} ({left} against {right})"
