"""Executes the report notebook on a sweep's records and renders it, data files beside it."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

import pandas as pd

from mptexp.analysis import accuracy, loss_scale, points, summary
from mptexp.analysis.exponent_range import DynamicRange
from mptexp.analysis.sweep_tables import Tables
from mptexp.diagnosis.verdict import Verdict
from mptexp.execution import jupyter_kernel
from mptexp.records import privacy, store
from mptexp.records.sweep_dir import SweepDir, leads_out
from mptexp.report import (
    claims,
    dynamic_range,
    findings,
    loss_scales,
    low_precision,
    measured,
    sortable,
    studies,
    summary_tables,
    text_tables,
    wording,
)
from mptexp.report.figures import output, speed
from mptexp.report.measured import MeasuredSweep
from mptexp.report.studies import Section
from mptexp.spec.terminal import visible

TEMPLATES = Path(__file__).resolve().parent / "templates"


NOT_DIAGNOSED = (
    "Not looked into yet. `mptexp diagnose` with this sweep's directory traces some steps, makes "
    "the experiments that the traces ask for, and puts a verdict here; reading traces takes "
    "`pip install 'mptexp[profile]'`."
)


@dataclass(frozen=True)
class Facts:
    """What the report notebook shows that is not a figure: texts and tables of text."""

    title: str
    question: str
    table_note: str
    details_note: str
    claims: pd.DataFrame
    starts: str
    readings_note: str
    verdicts: list[Verdict]
    not_diagnosed: str
    published: Section | None
    failed: pd.DataFrame
    runs: pd.DataFrame
    runs_note: str
    environment: pd.DataFrame
    warnings: list[str]
    reproduce: str


def build(
    directory: SweepDir,
    notebook: Path,
    shared: Mapping[str, str] | None = None,
    up: tuple[str, str] | None = None,
) -> Path:
    """Writes results.csv, history.csv, speedups.csv, table.md, speedup.svg and index.html.

    Also renders each run's executed notebook as HTML beside it, where there are at most
    text_tables.ROWS: it takes a third of a second each.

    Args:
        directory: a sweep's directory with at least one record.
        notebook: the report notebook.
        shared: Open Graph's properties beside those of `card`: addresses on a site.
        up: address and name of the page that lists this report.

    Raises:
        params.ParamsError: where the directory holds no record.
    """
    sweep = measured.load(directory)
    tables = sweep.tables
    _write_data(directory, tables)
    for place in (directory, directory.diagnosis):
        made = sorted(place.runs.glob("*/notebook.ipynb"))
        for run in made if len(made) <= text_tables.ROWS else ():
            page = run.with_suffix(".html")
            if not page.exists() or page.stat().st_mtime < run.stat().st_mtime:
                _render_run(run, page, os.path.relpath(directory.index, run.parent))
    with jupyter_kernel.scratch_folder() as scratch:
        executed = scratch / "executed.ipynb"
        where = {"sweep_dir": str(directory.root.resolve())}
        jupyter_kernel.execute(notebook, executed, where, scratch)
        linked = card(sweep) | dict(shared or {})
        page = render(executed, _title(directory, tables), code=False, card=linked, up=up)
    store.write_text(directory.index, page)
    return directory.index


def _render_run(notebook: Path, page: Path, report: str) -> None:
    if leads_out(notebook) or page.is_symlink():
        return
    try:
        text = render(notebook, f"Run {notebook.parent.name}", True, up=(report, "The report"))
    except Exception:  # whatever another's notebook holds, the report is made, without its page
        return
    store.write_text(page, text)


def _write_data(directory: SweepDir, tables: Tables) -> None:
    for name in ("results", "history", "speedups"):
        text = getattr(tables, name).to_csv(index=False)
        store.write_text(directory.root / f"{name}.csv", text)
    compared = accuracy.differences(tables, tables.options.equivalence_margin)
    if len(compared) > text_tables.ROWS:
        store.write_text(directory.root / "accuracy.csv", compared.to_csv(index=False))
    if not tables.ok.empty:
        table = text_tables.markdown(text_tables.headline_rows(tables))
        store.write_text(directory.root / "table.md", table)
    if not tables.speedups.empty:
        baseline = tables.speedups.baseline.iloc[0]
        first = tables.speedups[tables.speedups.baseline == baseline]
        document = output.svg(speed.speedup_by_batch_size(first))
        store.write_text(directory.root / "speedup.svg", document)


def render(
    notebook: Path,
    title: str,
    code: bool,
    card: Mapping[str, str] | None = None,
    up: tuple[str, str] | None = None,
) -> str:
    """An executed notebook as one HTML page without remote resources.

    Args:
        code: whether it is a run's notebook: its code is shown, and as it may come from anybody,
            only what shows something is left of its outputs.
        card: Open Graph's properties of the page, as plain text.
        up: address and name of the page from which this one is reached.
    """
    import nbconvert
    import nbformat
    from nbconvert.exporters.html import HTMLExporter

    # Installed with pip's --target, nbconvert has its own templates where it does not look.
    beside = Path(nbconvert.__file__).parent.parent / "share/jupyter/nbconvert/templates"
    exporter = HTMLExporter(
        template_name="mptexp",
        extra_template_basedirs=[str(TEMPLATES), str(beside)],
        extra_template_paths=[str(beside)],
        exclude_input=not code,
    )
    exporter.register_filter("clean", _inert if code else lambda content: content)
    # Not from_filename, which makes the file's name the title.
    clean = privacy.scrub(json.loads(notebook.read_text(encoding="utf-8")))
    node = nbformat.reads(json.dumps(clean), as_version=4)
    told: dict[str, Any] = {"metadata": {"name": title}, "card": dict(card or {}), "up": up}
    if not code:
        told |= {"script": sortable.script(), "script_hash": sortable.hash_source()}
    page, _ = exporter.from_notebook_node(node, resources=told)
    return str(page) if code else _with_contents(_with_shared_styles(str(page)))


TABLE_STYLE = re.compile(r"<style>\s*#([\w-]+) table .*?</style>", re.DOTALL)


def _with_shared_styles(page: str) -> str:
    """The page with the rules that great-tables repeats for each table written once for all."""
    ids: dict[str, list[str]] = {}

    def rules(found: re.Match[str]) -> str:
        return found[0].replace(f"#{found[1]}", "#id")

    for found in TABLE_STYLE.finditer(page):
        ids.setdefault(rules(found), []).append(f"#{found[1]}")

    def first_alone(found: re.Match[str]) -> str:
        alike = ids[rules(found)]
        whose = f":is({', '.join(dict.fromkeys(alike))})"
        return rules(found).replace("#id", whose) if alike[0] == f"#{found[1]}" else ""

    return TABLE_STYLE.sub(first_alone, page)


HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)(?:<a class="anchor-link".*?)?</h2>')


def _with_contents(page: str) -> str:
    """The page with links to its sections before the first of them."""
    found = HEADING.findall(page)
    links = "".join(f'<li><a href="#{place}">{title}</a></li>' for place, title in found)
    nav = f'<nav aria-label="Contents"><ul>{links}</ul></nav>'
    first = page.find('<div class="output">', page.find("</h1>"))
    after = page.find('<div class="output">', first + 1)
    return page[:after] + nav + page[after:] if found and after > 0 else page


# What may stand in the page of a run; all else is shown as text.
TAGS = "a b blockquote br code dd del div dl dt em h1 h2 h3 h4 h5 h6 hr i img li ol p pre s section"
TAGS += " span strong sub sup table tbody td tfoot th thead tr ul"
ATTRIBUTES = ("alt", "aria-label", "class", "colspan", "id", "role", "rowspan", "scope", "tabindex")


def _inert(content: str) -> str:
    """The content of a page, such that it neither runs nor loads anything, whatever it was."""
    import bleach

    # Those of pandas' tables: the page has its own, and as text they would be in the way.
    content = re.sub(r"<style\b.*?</style>", "", content, flags=re.DOTALL)
    tags, links = TAGS.split(), ("http", "https", "data")
    clean = str(bleach.clean(content, tags=tags, attributes=_may_stand, protocols=links))
    return clean.replace("<th></th>", "<td></td>")  # pandas' corner, which is the head of nothing


def _may_stand(tag: str, name: str, value: str) -> bool:
    if (tag, name) == ("a", "href"):
        return value.startswith(("https://", "http://", "#"))
    if (tag, name) == ("img", "src"):
        return value.startswith(("data:image/png;base64,", "data:image/jpeg;base64,"))
    return name in ATTRIBUTES


def sentence(text: str) -> str:
    """A sentence in Markdown that holds values of others: what looks like a tag is shown."""
    return escape(text, quote=False)


def safe(text: str) -> str:
    """A text of others for Markdown: what looks like a tag or a link is shown, not obeyed."""
    return escape(wording.verbatim(text), quote=False)


# --- the texts and tables --------------------------------------------------------------------


def answer(tables: Tables) -> list[str]:
    """What opens a report: of a sweep of loss scales or formats what it asked, then the rest."""
    points = loss_scales.by_point(loss_scale.table(tables))
    asked = [text for title, rows in points for text in loss_scales.sentences(rows, title)]
    asked += [text for part in low_precision.sections(tables) for text in part.sentences]
    return [*asked[: findings.SENTENCES], *findings.answer(tables)]


def numbers(ranges: DynamicRange) -> list[str]:
    """What a training's exponents say, the advice in bold."""
    first, *rest = dynamic_range.answer(ranges)
    return [f"**{first}**", *rest]


def answer_html(tables: Tables) -> str:
    """The first sentence of a report's answer as HTML."""
    from nbconvert.filters.markdown import markdown2html

    return str(markdown2html(sentence(answer(tables)[0]))).strip()


def card(sweep: MeasuredSweep) -> dict[str, str]:
    """Open Graph's properties of a report, plain text: what stands where its link is shared."""
    return {
        "og:type": "article",
        "og:title": visible(sweep.question),
        "og:description": unescape(re.sub(r"<[^>]*>", "", answer_html(sweep.tables))),
    }


def facts(sweep: MeasuredSweep) -> Facts:
    """Everything that the report says in words, from the records and the params file."""
    directory, tables, verdicts = sweep.directory, sweep.tables, sweep.verdicts
    listed, runs_note = summary_tables.runs(tables.results)
    return Facts(
        title=_title(directory, tables),
        question=sweep.question,
        table_note=_table_note(tables),
        details_note=_details_note(tables),
        claims=_claims(directory, tables),
        starts=_starts(tables),
        readings_note=_readings_note(tables),
        verdicts=verdicts,
        not_diagnosed="" if verdicts or tables.speedups.empty else NOT_DIAGNOSED,
        published=studies.section(tables),
        failed=summary_tables.failed(tables.results),
        runs=_runs(directory, listed),
        runs_note=runs_note,
        environment=_environment(tables),
        warnings=_warnings(tables),
        reproduce=_reproduce(directory, tables, sweep.header),
    )


def _claims(directory: SweepDir, tables: Tables) -> pd.DataFrame:
    """What the studies claimed and what was found; the column Runs holds HTML."""
    rows = claims.table(tables)
    return pd.DataFrame(
        {
            "Claim": [claim for claim, _, _ in rows],
            "Of": [source for _, source, _ in rows],
            "Finding": [found.finding for _, _, found in rows],
            "Evidence": [found.evidence or "–" for _, _, found in rows],
            "Runs": [
                " ".join(_notebook_link(directory, run_id) for run_id in found.runs) or "–"
                for _, _, found in rows
            ],
        }
    )


def _title(directory: SweepDir, tables: Tables) -> str:
    return f"{directory.name} on {wording.listed(sorted(set(tables.results.gpu_model)))}"


def _table_note(tables: Tables) -> str:
    if tables.ok.step_s.isna().all():
        return "Validation accuracy: mean over repeats, least and most."
    lines = [
        "ms per step: median over repeats of each run's median window. Speedup: time of the "
        "baseline divided by time of the policy, above 1 is faster. Validation accuracy: mean over "
        "repeats, least and most."
    ]
    ended = tables.ok.ended_by.value_counts().drop("epochs", errors="ignore")
    lines += [f"{n} of {len(tables.ok)} runs were ended by {safe(w)}." for w, n in ended.items()]
    if tables.ok.emulated.any():
        lines.append(
            "*Emulated*: the device has no arithmetic instructions for this 16-bit type; "
            "frameworks convert to 32 bits and back, so slower is expected."
        )
    return " ".join(lines)


def _details_note(tables: Tables) -> str:
    """What the columns of the second table are."""
    lines = ["5–95 %: percentiles of the windows."] if tables.ok.step_s.notna().any() else []
    wanted = accuracy.target(tables)
    if wanted is not None:
        by = "the params file" if tables.options.target_accuracy else "what every run reached"
        lines.append(
            f"Time to {wanted * 100:g} % accuracy (the level is {by}): from the first step to the "
            "end of the first epoch that reached it, compilation and validation included."
        )
    if tables.ok.flops_per_s.notna().any():
        lines.append(
            "Achieved: arithmetic of the model's step, from its shapes, per second; MFU: over that "
            "of this device's large matrix product in the same type; least traffic: inputs, "
            "outputs and weights, each once per pass, per second."
        )
    if tables.options.price_per_hour:
        lines.append(f"Cost: at {tables.options.price_per_hour:g} per hour.")
    return " ".join(lines)


def _starts(tables: Tables) -> str:
    if tables.ok.empty:
        return ""
    equal = summary.starts_agree(tables.results, tables.records)
    return (
        "All policies of a block whose weights are float32 started from the same weights and saw "
        "the pictures in the same order (fingerprints in the records agree)."
        if equal
        else "**Warning**: policies of one block started from different weights or saw another "
        "order of pictures; compare accuracies with care."
    )


def _readings_note(tables: Tables) -> str:
    """What the table of readings shows, and which runs are marked."""
    lines = [
        "Medians over repeats of what was read every quarter of a second while steps were timed. "
        "On a CPU, utilization is this process's processor time over that of all processors."
    ]
    marked = pd.Series([m for r in tables.records for m in r.get("marks", [])], dtype=object)
    of = wording.count(len(tables.results), "run")
    found = marked[marked.str.startswith("measured while")].value_counts()
    lines += [
        f"**{n} of {of}** {'was' if n == 1 else 'were'} {safe(mark)}." for mark, n in found.items()
    ]
    return " ".join(lines)


def _runs(directory: SweepDir, rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.sort_values(["batch_size", "policy", "block"], key=points.rank, kind="stable")
    return pd.DataFrame(
        {
            "Run": [_notebook_link(directory, run_id) for run_id in rows.run_id],
            "Record": [
                f'<a href="runs/{run_id}/record.json" title="everything measured">json</a>'
                for run_id in rows.run_id
            ],
            "Status": rows.status,
            "Batch size": rows.batch_size,
            "Policy": rows.policy,
            "Block": rows.block,
            "ms per step": _number(rows.step_s * 1e3, "{:.2f}"),
            "Steps timed": _number(rows.steps_timed, "{:.0f}"),
            "Warm-up steps": _number(rows.warmup_steps, "{:.0f}"),
            "Marked": rows.marks.map(_mark),
            "First step": _number(rows.first_step_s, "{:.2f}\u00a0s"),
            "Accuracy": _number(rows.val_accuracy * 100, "{:.1f} %"),
            "Training": _number(rows.fit_s, "{:.1f}\u00a0s"),
            "Whole run": _number(rows.wall_s, "{:.1f}\u00a0s"),
        }
    )


def _mark(marks: str) -> str:
    """What disturbed a run, in short."""
    words = {"other programs": "shared processor", "other processes": "shared GPU"}
    words["throttled"] = "throttled"
    return ", ".join(short for long, short in words.items() if long in (marks or "")) or "–"


def _number(values: pd.Series, form: str) -> pd.Series:
    return pd.to_numeric(values).map(form.format).where(values.notna(), "–")


def _notebook_link(directory: SweepDir, run_id: str) -> str:
    """The run's id, linked to its executed notebook; what is absent is not linked."""
    for name in ("notebook.html", "notebook.ipynb"):
        if (directory.runs / run_id / name).exists():
            return f'<a href="runs/{run_id}/{name}">{run_id}</a>'
    return run_id


def _environment(tables: Tables) -> pd.DataFrame:
    rows: dict[str, dict[str, None]] = {}
    for record in tables.records:
        for name, value in _card_rows(record.get("environment", {})):
            rows.setdefault(name, {})[value] = None
    return pd.DataFrame({"What": list(rows), "Found": [" · ".join(v) for v in rows.values()]})


def _card_rows(card: dict) -> list[tuple[str, str]]:
    if not card:
        return []
    packages = ", ".join(f"{name} {version}" for name, version in card["packages"].items())
    variables = ", ".join(f"{name}={value}" for name, value in card["variables"].items())
    found = {
        "Device": card["device"],
        "Compute capability": ".".join(map(str, card["capability"] or [])),
        "Driver, CUDA, cuDNN": ", ".join(
            str(card[name]) for name in ("driver", "cuda", "cudnn") if card[name]
        ),
        "CPU": f"{card['cpu']}, {wording.count(card['cores'], 'core')} in use",
        "Instruction sets": " ".join(card["instruction_sets"]),
        "Memory": f"{card['memory_bytes'] / 2**30:.0f} GiB",
        "Limits and state": _state(card),
        "System": f"{card['os']}, Python {card['python']}",
        "Packages": packages,
        "Variables": variables,
    }
    return [(name, value) for name, value in found.items() if value]


def _state(card: dict) -> str:
    """What may limit or disturb the machine, as far as the card of that version tells."""
    cpus, memory = card.get("container_cpus"), card.get("container_memory_bytes")
    found = [
        f"container of {cpus:g} processors" if cpus else "",
        f"container of {memory / 2**30:.1f} GiB" if memory else "",
        f"frequency governor {card['governor']}" if card.get("governor") else "",
        "virtual machine" if card.get("hypervisor") else "",
        "on battery" if card.get("on_battery") else "",
    ]
    return ", ".join(text for text in found if text)


def _warnings(tables: Tables) -> list[str]:
    marks = {mark for record in tables.records for mark in record.get("marks", [])}
    found = sorted(mark for mark in marks if not mark.startswith("measured while"))
    versions = summary.versions(tables.records)
    if len(versions) > 1:
        found.append(f"the runs were made by different versions of mptexp: {', '.join(versions)}")
    return [safe(text) for text in found]


def _reproduce(directory: SweepDir, tables: Tables, head: dict[str, str]) -> str:
    minutes = tables.results.wall_s.sum() / 60
    versions = safe(", ".join(summary.versions(tables.records))) or "unknown"
    data = " · ".join(
        f"[{name}]({name})"
        for name in ("results.csv", "history.csv", "speedups.csv", "accuracy.csv", "params.yaml")
        if (directory.root / name).exists()
    )
    lines = [
        "## Reproduce this",
        "    mptexp run params.yaml --out reports/again",
        "(with `params.yaml` from below, which is the file as it was executed)",
        f"- mptexp version and commit: {versions}",
        f"- cost: {wording.count(len(tables.results), 'run')}, {minutes:.1f} minutes in all",
        f"- expected beforehand: {safe(head['expected'])}" if "expected" in head else "",
        f"- data: {data}",
    ]
    return "\n\n".join(line for line in lines if line)
