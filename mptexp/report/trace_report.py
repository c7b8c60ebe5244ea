"""What a training that mptexp did not run is explained by: tables, data and a page."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from great_tables import GT

from mptexp.diagnosis.cause_times import LEAST_SHARE
from mptexp.diagnosis.causes import LABELS
from mptexp.diagnosis.foreign_traces import BOUNDS, Comparison, Recording
from mptexp.host.terminal import visible
from mptexp.report.answers import trace_answer, what_to_try
from mptexp.report.figures import diagnosis as figures
from mptexp.report.figures import output, style
from mptexp.report.pages import first_screen_html, rendering
from mptexp.report.tables import text_tables
from mptexp.report.tables.why_tables import by_cause, percent
from mptexp.report.text import markdown, wording
from mptexp.report.text.column_formats import BLANK, without_blanks

MOST_LAYERS = 20
MOST_ROWS = 15  # of differences between two recordings
QUESTION = "Where does the time of a {}step go?"
ONCE = (
    "**One recording each**: what is said holds for them alone. How runs, machines and days differ "
    "was not measured."
)


# --- tables --------------------------------------------------------------------------------------


def facts(recording: Recording) -> pd.DataFrame:
    """What a recording is: framework, device, steps, how they were recognized, shares."""
    trace = recording.trace
    rows = {"Framework": trace.framework or "unknown", "Device": trace.gpu or "CPU"}
    if recording.told:
        times = (trace.step_s, min(trace.step_times), max(trace.step_times))
        mean, least, most = (wording.digits(seconds * 1e3) for seconds in times)
        middle = wording.digits(trace.median_s * 1e3)
        named = f" ({percent(recording.named_layer_share)} of forward and backward passes)"
        rows |= {
            "Steps": f"{trace.steps}, by {trace.how}",
            "Step, ms": f"{mean} (mean; {least} to {most}; median {middle})",
            "Device time with a layer": percent(recording.layer_share)
            + named * bool(recording.layer_share),
            "Unexplained": f"{percent(recording.share('unexplained'))} of the step",
        }
    return pd.DataFrame({"": list(rows), recording.file: list(rows.values())})


def _steps(recordings: Sequence[Recording]) -> dict[str, pd.Series]:
    """Seconds of a step by cause, by the recording's name."""
    steps = (recording.by_cause for recording in recordings)
    return dict(zip(trace_answer.short_names(recordings), steps, strict=True))


def cause_rows(recording: Recording) -> pd.DataFrame:
    """The causes that take much of a step, the largest first, with what to try.

    Empty where the recording does not tell.
    """
    if not recording.told:
        return pd.DataFrame()
    shares = recording.shares.sort_values(ascending=False)
    shares = shares[(shares >= LEAST_SHARE) & (shares.index != "unexplained")]
    return pd.DataFrame(
        [
            {
                "Cause": LABELS[str(name)],
                "ms": f"{share * recording.trace.step_s * 1e3:.3f}",
                "Share": percent(share),
                "What to try": what_to_try.advice(str(name), recording),
            }
            for name, share in shares.items()
        ]
    )


def _of_bound(recording: Recording) -> pd.DataFrame:
    """Those of them that bound the step, where one does.

    Of the ways in which a device waits for its host each may take less than some work.
    """
    rows = cause_rows(recording)
    if rows.empty:
        return rows
    bounding = rows[rows.Cause.isin([LABELS[cause] for cause in BOUNDS[recording.bound[0]]])]
    return bounding if len(bounding) else rows


def layer_rows(recording: Recording) -> pd.DataFrame:
    """The layers that take longest; empty where the trace names none."""
    if not recording.layer_share or not recording.told:
        return pd.DataFrame()
    longest = recording.by_layer[:MOST_LAYERS]
    return pd.DataFrame(
        [
            {
                "Layer": layer,
                "ms": f"{s * 1e3:.3f}",
                "Share": wording.share(s / recording.trace.step_s),
            }
            for layer, s in longest.items()
        ]
    )


def arithmetic_rows(recording: Recording) -> pd.DataFrame:
    """Which arithmetic the matrix work used; empty where no kernel was traced."""
    return pd.DataFrame(
        [
            {
                "Matrix work in": row.type,
                "Tensor Cores": {True: "yes", False: "no", None: "unknown"}[row.tensor_cores],
                "Share": percent(row.share),
            }
            for row in recording.arithmetic.itertuples()
        ]
    )


def difference_rows(comparison: Comparison) -> pd.DataFrame:
    """Where two recordings differ most, by layer, part and cause."""
    table = comparison.joined[:MOST_ROWS]
    first, second = trace_answer.short_names([comparison.baseline, comparison.candidate])
    rows = pd.DataFrame(
        [
            {
                "Layer": row.layer or BLANK,
                "Part": row.part or BLANK,
                "Cause": trace_answer.short_label(row.cause),
                f"{first}, ms": f"{row.baseline_s * 1e3:.3f}",
                f"{second}, ms": f"{row.candidate_s * 1e3:.3f}",
                "Difference, ms": wording.signed(row.difference_s * 1e3, ".3f"),
            }
            for row in table.itertuples()
        ]
    )
    return without_blanks(rows)


def tables(recordings: Sequence[Recording]) -> dict[str, pd.DataFrame]:
    """The tables behind a verdict by their headings, in the order of reading."""
    both = Comparison(*recordings) if len(recordings) == 2 else None
    timed = [recording for recording in recordings if recording.told]
    named = dict(zip(trace_answer.short_names(recordings), recordings, strict=True))
    made = {"Where the time of a step goes": by_cause(_steps(timed)) if timed else pd.DataFrame()}
    for name in _advised(recordings):
        made["What to try" + f": {name}" * bool(both)] = cause_rows(named[name])
    if both and both.comparable:
        made["Where they differ"] = difference_rows(both)
    for name, recording in named.items():
        of = f": {name}" if both else ""
        made[f"Layers{of}"] = layer_rows(recording)
        made[f"Arithmetic{of}"] = arithmetic_rows(recording)
        made[f"The recording{of}"] = facts(recording)
    return {heading: table for heading, table in made.items() if not table.empty}


def _advised(recordings: Sequence[Recording]) -> list[str]:
    """The names of those of which it is said what to try: the faster one, where one is known to be.

    On another GPU, of another batch or by a step that may be an exception, none is.
    """
    names = trace_answer.short_names(recordings)
    faster = Comparison(*recordings).faster if len(recordings) == 2 else None
    return names if faster is None else [names[faster]]


# --- JSON ----------------------------------------------------------------------------------------


def content(recordings: Sequence[Recording]) -> dict[str, Any]:
    """The explanation as data: seconds, shares of the step, of matrix work, of device time."""
    both = Comparison(*recordings) if len(recordings) == 2 else None
    return {
        "traces": [_content(recording) for recording in recordings],
        "speedup": both.speedup if both and both.comparable else None,
        "verdict": trace_answer.verdict(recordings),
    }


def _content(recording: Recording) -> dict[str, Any]:
    trace = recording.trace
    return {
        "file": recording.file,
        "framework": trace.framework,
        "devices": list(trace.gpus) or ["CPU"],
        "gpu": trace.gpu,
        "steps": trace.steps,
        "step_s": trace.step_s if recording.told else None,
        "rows": [
            {"cause": name, "seconds": seconds, "share": seconds / trace.step_s}
            for name, seconds in recording.by_cause.items()
            if recording.told
        ],
        "arithmetic": recording.arithmetic.to_dict("records"),
        "layer_share": recording.layer_share if recording.told else None,
        "unexplained_share": recording.share("unexplained") if recording.told else None,
        "notes": trace_answer.notes(recording),
    }


# --- a page --------------------------------------------------------------------------------------


def page(recordings: Sequence[Recording], source: str = "") -> str:
    """The explanation as one HTML page that loads nothing.

    Args:
        source: where the recordings come from, as a sentence for the end of the page.
    """
    from nbformat import v4

    title = trace_answer.title(recordings)
    shown = [{"text/html": html} for html in _parts(recordings, title, source)]
    cells = [v4.new_code_cell(outputs=[v4.new_output("display_data", data)]) for data in shown]
    with TemporaryDirectory() as folder:
        notebook = Path(folder, "explained.ipynb")
        notebook.write_text(json.dumps(v4.new_notebook(cells=cells)), encoding="utf-8")
        said = trace_answer.verdict(recordings)
        card = {"og:type": "article", "og:title": title, "og:description": said}
        return rendering.report_page(notebook, title, card)


def _parts(recordings: Sequence[Recording], title: str, source: str) -> list[str]:
    """The parts of the page as HTML: the first screen, the tables, notes."""
    said, warnings = [trace_answer.verdict(recordings)], []
    if len(recordings) == 2:
        head, found, bound = said[0].partition(". In ")
        said = [f"{head}.", f"In {bound}"] if found else said
        said += filter(None, [trace_answer.shrink_sentence(Comparison(*recordings))])
        warnings = [ONCE]
    warnings += _left_out(recordings)
    timed = [recording for recording in recordings if recording.told]
    opening = first_screen_html.screen(
        title,
        QUESTION.format("training " * bool(recordings[0].trace.trains)),
        _conditions(recordings),
        warnings,
        _figure(timed) if timed else "",
        [wording.verbatim(text) for text in said],
        wording.verbatim(_to_do(recordings)),
        minor=len(recordings) == 1,
    )
    names = trace_answer.short_names(recordings)
    named = zip(names, recordings, strict=True)
    more = [f"{name}: {note}" for name, each in named for note in trace_answer.notes(each)]
    return [opening, *_sections(recordings), *_listed(more), *_source(source)]


def _left_out(recordings: Sequence[Recording]) -> list[str]:
    """Warnings where much of what was recorded is in no mean, of two by the recording's name."""
    names = trace_answer.short_names(recordings)
    return [
        wording.verbatim(f"{name}: {note}." if len(names) > 1 else f"{note}.")
        for name, recording in zip(names, recordings, strict=True)
        for note in trace_answer.much_left_out(recording)
    ]


def _to_do(recordings: Sequence[Recording]) -> str:
    """What follows: what bounds a step; of two what the faster one does, where one is."""
    named = dict(zip(trace_answer.short_names(recordings), recordings, strict=True))
    causes = {name: _of_bound(named[name]) for name in _advised(recordings)}
    advice = {name: rows.iloc[0]["What to try"] for name, rows in causes.items() if len(rows)}
    if len(recordings) == 1 or len({*advice.values()}) < len(advice):  # of both the same
        return "".join(f"{text}." for text in {*advice.values()})
    if len(causes) == 2:
        return " ".join(f"{name}: {text}." for name, text in advice.items())
    (faster,) = causes
    return (
        f"train as in {faster}"
        + "".join(f"; to go on from there: {text}" for text in advice.values())
        + "."
    )


def _conditions(recordings: Sequence[Recording]) -> list[str]:
    """Device, framework and steps of each recording."""
    traces = [recording.trace for recording in recordings]
    steps = trace_answer.counted_steps([trace.steps for trace in traces])
    parts = [
        wording.listed([*dict.fromkeys(trace.gpu or "CPU" for trace in traces)]),
        wording.listed([*dict.fromkeys(trace.framework for trace in traces if trace.framework)]),
        f"{wording.count(len(traces), 'recording')}, {steps}",
    ]
    return [visible(part) for part in parts if part]


def _listed(sentences: Sequence[str]) -> list[str]:
    items = "".join(f"<li>{escape(text)}</li>" for text in sentences)
    return [f'<h2 id="notes">Notes</h2><ul>{items}</ul>'] if items else []


def _source(text: str) -> list[str]:
    return (
        [f'<h2 id="source">Source</h2>{markdown.to_html(markdown.sentence(text))}'] if text else []
    )


def _figure(recordings: Sequence[Recording]) -> str:
    steps = _steps(recordings)
    both = style.on_both(lambda: figures.stacked_by_cause(steps), style.LEAD_WIDTH)
    drawn = [output.svg(figure) for figure in both]
    parts = [
        f"{name}: {trace_answer.short_label(str(s.idxmax()))}, {percent(s.max() / s.sum())}"
        for name, s in steps.items()
    ]
    caption = f"Largest part: {'; '.join(parts)}."
    alt = "Milliseconds of a step by cause, a stacked bar per recording."
    return output.as_html(drawn, alt, caption, "Time of a step by cause")


def _sections(recordings: Sequence[Recording]) -> list[str]:
    parts = []
    for number, (heading, table) in enumerate(tables(recordings).items(), 1):
        shown: GT = text_tables.plain_table(table, id=f"t{number}")
        parts.append(f'<h2 id="s{number}">{escape(heading)}</h2>{shown.as_raw_html()}')
    return parts
