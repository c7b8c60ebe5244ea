"""The commands that a page gives to measure more of its sweep: where they work, and with what.

A model of one's own is imported from the working folder, data by a relative path lie there, and a
notebook of one's own lies beside the params file: in a report's folder there is none of them.
"""

from collections.abc import Collection

from mptexp.analysis.sweep_tables import Tables
from mptexp.report.text.markdown import safe
from mptexp.spec import dataset_paths
from mptexp.spec.names import MODELS

HERE, AGAIN = ".", "../again"  # where results go: to the sweep's own, or beside it


def command(tables: Tables, verb: str, out: str = HERE, options: str = "") -> str:
    """`mptexp run params.yaml --out . --repair` and where to give it, as a clause in Markdown.

    Args:
        verb: run or diagnose.
        out: HERE or AGAIN.
    """
    needed = needs(tables)
    if not needed:
        words = f"mptexp {verb} params.yaml --out {out} {options}".rstrip()
        return f"`{words}` in this report's folder"
    place = {HERE: "DIR", AGAIN: "DIR-again"}[out]
    words = f"mptexp {verb} DIR/params.yaml --out {place} {options}".rstrip()
    with_ = f"DIR: this report's folder; needed: {', '.join(needed)}"
    return f"`{words}` in the folder where it was run ({with_})"


def needs(tables: Tables, given: Collection[str] = ()) -> list[str]:
    """What a sweep needs that is not mptexp's own, but for the data given, each in Markdown."""
    asked = [record["parameters"] for record in tables.records]
    models = sorted({run["model"] for run in asked} - {*MODELS})
    data = sorted(
        {run["dataset"] for run in asked if dataset_paths.path(run["dataset"])} - {*given}
    )
    return [
        *(f"the module {safe(model.partition(':')[0])}" for model in models),
        *(f"{safe(name)} beside params.yaml" for name in notebooks(tables)),
        *(f"the data {safe(dataset_paths.path(name))}" for name in data),
    ]


def notebooks(tables: Tables) -> list[str]:
    """The notebooks of one's own that the runs executed, as the params file names them."""
    names = {str(record.get("notebook", "")) for record in tables.records}
    return sorted(name for name in names if name.endswith((".py", ".ipynb")))
