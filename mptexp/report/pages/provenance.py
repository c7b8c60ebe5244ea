"""Where a report's numbers come from: runs, environment, and what it takes to measure again."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from mptexp.analysis import accuracy, points, summary
from mptexp.records.schema import VOID
from mptexp.records.sweep_dir import SweepDir, leads_out
from mptexp.report.answers import next_commands, published_claims
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.tables import summary_tables
from mptexp.report.text import column_formats, task_words, wording
from mptexp.report.text.column_formats import BLANK
from mptexp.report.text.markdown import safe
from mptexp.spec import dataset_paths, params

WITHOUT_NOTEBOOKS = (
    "This copy holds no executed notebooks: each run's record holds every sample and setting, and "
    "the commands under [Reproduce this](#Reproduce-this) write notebooks anew."
)
DATA = ("results.csv", "history.csv", "speedups.csv", "accuracy.csv", "params.yaml")


def runs(sweep: MeasuredSweep) -> tuple[pd.DataFrame, str]:
    """The table of runs, linked to notebooks and records, and what to say where it is not whole.

    The columns Run and Record hold HTML.
    """
    rows, note = summary_tables.runs(sweep.tables.results)
    rows = rows.sort_values(["batch_size", "policy", "block"], key=points.rank, kind="stable")
    trained = rows.run_id.map(accuracy.training_s(sweep.tables))
    table = pd.DataFrame(
        {
            "Run": [_notebook(sweep, run_id) for run_id in rows.run_id],
            "Record": [
                f'<a href="runs/{run_id}/record.json" title="everything measured">json</a>'
                for run_id in rows.run_id
            ],
            "Status": rows.status,
            **wording.told_apart(rows),
            "Batch size": rows.batch_size,
            "Policy": rows.policy,
            "Block": rows.block,
            **column_formats.shown(rows, "step_s", "steps_timed", "warmup_steps"),
            "Flags": [flags or BLANK for flags in rows["flags"]],
            **column_formats.shown(rows, "first_step_s"),
            **{
                measure.name.capitalize(): column_formats.cells(
                    measure.task.column, rows[measure.task.column]
                )
                for measure in task_words.met(rows)
            },
            **column_formats.shown(rows.assign(training_s=trained), "training_s", "wall_s"),
        }
    )
    table = column_formats.without_blanks(table)
    linked = sweep.is_foreign or table.Run.str.contains("<a ").any()
    return table, note or ("" if linked else WITHOUT_NOTEBOOKS)


def _notebook(sweep: MeasuredSweep, run_id: str) -> str:
    """The run's id, linked to its executed notebook; what is absent is not linked."""
    for name in ("notebook.html", "notebook.ipynb"):  # a page is one that `page.build` rendered
        path = sweep.directory.runs / run_id / name
        if path.is_file() and not leads_out(path):
            return f'<a href="runs/{run_id}/{name}">{run_id}</a>'
    return run_id


def checked_claims(sweep: MeasuredSweep) -> pd.DataFrame:
    """What the studies claimed and what this sweep says of it; the column Runs holds HTML."""
    rows = [
        row
        for row in published_claims.table(sweep.tables)
        if row[1].finding != published_claims.UNTESTED
    ]
    return pd.DataFrame(
        {
            "Claim": [claim.words for claim, _ in rows],
            "Of": [claim.source for claim, _ in rows],
            "Finding": [finding.finding for _, finding in rows],
            "Evidence": [finding.evidence or BLANK for _, finding in rows],
            "Rule": [claim.rule for claim, _ in rows],
            "Runs": [
                " ".join(_notebook(sweep, run_id) for run_id in finding.runs) or BLANK
                for _, finding in rows
            ],
        }
    )


def environment(sweep: MeasuredSweep) -> pd.DataFrame:
    """Device, machine and software of all runs; values that differ between them side by side."""
    values: dict[str, dict[str, None]] = {}
    for record in sweep.tables.records:
        for name, value in _card(record.get("environment") or {}).items():
            values.setdefault(name, {})[value] = None
    return pd.DataFrame({"What": list(values), "Value": [" · ".join(v) for v in values.values()]})


def checks(sweep: MeasuredSweep) -> list[dict[str, Any]]:
    """What `mptexp doctor --check` found on the devices of the runs, each test once."""
    found = [check for r in sweep.tables.records for check in r.get("instruments", ())]
    return list({json.dumps(check, sort_keys=True): check for check in found}.values())


def _card(card: Mapping[str, Any]) -> dict[str, str]:
    """A record's environment as text; a run that failed early has none."""
    if not card:
        return {}
    version = f" ({card['cpu_version']})" if card.get("cpu_version") else ""
    versions = [str(card[name]) for name in ("driver", "cuda", "cudnn") if card[name]]
    lines = {
        "Device": card["device"],
        "Compute capability": ".".join(map(str, card["capability"] or [])),
        "Driver, CUDA, cuDNN": ", ".join(versions),
        "CPU": f"{card['cpu']}{version}, {wording.count(card['cores'], 'core')} in use",
        "Instruction sets": " ".join(card["instruction_sets"]),
        "Memory": _gibibytes(card["memory_bytes"], 0),
        "Limits and state": _limits(card),
        "System": f"{card['os']}, Python {card['python']}",
        "Packages": ", ".join(f"{name} {version}" for name, version in card["packages"].items()),
        "Variables": ", ".join(f"{name}={value}" for name, value in card["variables"].items()),
    }
    return {name: text for name, text in lines.items() if text}


def _limits(card: Mapping[str, Any]) -> str:
    """What may limit or disturb the machine."""
    cpus, memory = card.get("container_cpus"), card.get("container_memory_bytes")
    lines = [
        f"container of {cpus:g} processors" if cpus else "",
        f"container of {_gibibytes(memory, 1)}" if memory else "",
        f"frequency governor {card['governor']}" if card.get("governor") else "",
        "virtual machine" if card.get("hypervisor") else "",
        "on battery" if card.get("on_battery") else "",
    ]
    return ", ".join(line for line in lines if line)


def _gibibytes(size: float, decimals: int) -> str:
    return f"{size / 2**30:.{decimals}f} GiB"


def _commands(sweep: MeasuredSweep) -> list[str]:
    """Every command that made the page, in order."""
    parallel = any(
        mark.startswith(VOID) for r in sweep.tables.records for mark in r.get("marks", [])
    )
    data = "".join(f" --set dataset={name.partition(':')[0]}:PATH" for name in _places(sweep))
    what = "params.yaml --out reports/again"
    run = f"mptexp run {what}" + " --parallel 2" * parallel + data
    diagnosed = sweep.directory.diagnosis.runs.is_dir()
    # A notebook of one's own is found beside the params file that names it.
    asked = f"{what}{data}" if next_commands.notebooks(sweep.tables) else "reports/again"
    return [run, *[f"mptexp diagnose {asked}"] * diagnosed, "mptexp report reports/again"]


def _places(sweep: MeasuredSweep) -> list[str]:
    """The data that lay in a place of the machine that measured, by their published names."""
    names = sorted({r["parameters"]["dataset"] for r in sweep.tables.records})
    return names if len(names) == 1 and dataset_paths.path(names[0]) else []


def measured_again(directory: SweepDir) -> list[str]:
    """How many results of a directory are not used, and how many it holds no longer."""
    superseded, discarded = directory.superseded_runs(), directory.discarded_runs()
    kept = (
        f"measured again: {wording.count(superseded, 'run')} of blocks that were interrupted or "
        "not valid, or in a directory that a merge did not prefer; these records lie under "
        "`superseded` and are in no table, but intervals of times cover those that were valid, too"
    )
    lost = (
        f"**discarded**: {wording.count(discarded, 'result')} that this directory once held, by "
        "--fresh, by hand or because its record was damaged; whoever measures until the answer "
        "pleases finds one"
    )
    return [kept] * bool(superseded) + [lost] * bool(discarded)


def _of_diagnosis(sweep: MeasuredSweep) -> list[str]:
    """What a diagnosis was measured with and when, where that is not as the runs were."""
    traced = [record for verdict in sweep.verdicts for record in verdict.records.values()]
    own, versions = (summary.versions(records) for records in (sweep.tables.records, traced))
    boots = [{r.get("boot") for r in records} for records in (sweep.tables.records, traced)]
    lines = []
    if set(versions) - set(own):
        lines.append(f"mptexp of the traced runs: {safe(', '.join(versions))}")
    if not boots[1] <= boots[0]:
        lines.append("steps were traced after another start of the machine than the runs'")
    return lines


def reproduce(sweep: MeasuredSweep) -> str:
    """How to measure all this again, and what it cost, in Markdown."""
    results = sweep.tables.results
    cost = f"{wording.count(len(results), 'run')}, {results.wall_s.sum() / 60:.1f} minutes in all"
    versions = safe(", ".join(summary.versions(sweep.tables.records))) or "unknown"
    files = [name for name in DATA if (sweep.directory.root / name).exists()]
    lines = [
        "\n".join(f"    {command}" for command in _commands(sweep)),
        "(with `params.yaml` from below, which is the file as it was executed)",
        *[f"- needed there: {text}" for text in next_commands.needs(sweep.tables, _places(sweep))],
        *[f"- PATH: where your copy of {safe(name)} lies" for name in _places(sweep)],
        f"- question: {safe(sweep.question)}",
        f"- set when it was run, in place of what question and cost may say: {safe(set_)}"
        if (set_ := sweep.header.get(params.SET.lower()))
        else "",
        f"- mptexp, by version or commit: {versions}",
        *[f"- {text}" for text in _of_diagnosis(sweep)],
        f"- cost: {cost}",
        *[f"- {text}" for text in measured_again(sweep.directory)],
        f"- expected beforehand: {safe(sweep.header['expected'])}"
        if "expected" in sweep.header
        else "",
        f"- data: {' · '.join(f'[{name}]({name})' for name in files)}",
    ]
    return "\n\n".join(line for line in lines if line)
