"""Why one policy was faster or slower, part by part, for the cells of a notebook."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any, ClassVar

import pandas as pd
from great_tables import GT, html
from IPython.display import HTML, Markdown

from mptexp.diagnosis import breakdown, kernel_arithmetic
from mptexp.diagnosis.foreign_traces import Recording
from mptexp.diagnosis.verdict import Verdict
from mptexp.errors import ParamsError
from mptexp.host.terminal import visible, without_markdown
from mptexp.records.schema import is_of_timer
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep, trace_report
from mptexp.report.answers import caveats, trace_answer, why
from mptexp.report.figures import all_figures
from mptexp.report.figures.row import Section
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.tables import text_tables
from mptexp.report.text import markdown, wording

# What the matrix work reached of a peak, and a dot under a roof, rest on the time breakdown too.
PEAKS = replace(why.PEAKS, rests_on=why.BREAKDOWN.rests_on)
KERNEL_TIMES = replace(why.BREAKDOWN, own=lambda _: "")  # oneDNN's divide no step
SHOWN = 40  # rows of a long table in a cell, half of them from its end


class Part(pd.DataFrame):
    """A whole table of an explanation, under what the report notes above it.

    A cell shows the ends of a long one and how many rows there are. What is filtered or sorted of
    it keeps the note.

    Attributes:
        note: what is not valid of it, and what it shows, in Markdown; empty where there is nothing.
    """

    _metadata: ClassVar[list[str]] = ["note"]
    note: str = ""

    @property
    def _constructor(self) -> type["Part"]:
        return Part

    @classmethod
    def of(cls, table: pd.DataFrame, note: str) -> "Part":
        """A table with its note."""
        made = cls(table)
        made.note = note
        return made

    def _repr_html_(self) -> str:
        with pd.option_context("display.min_rows", SHOWN):
            return f"{_as_html(self.note)}{pd.DataFrame(self)._repr_html_()}"

    def __repr__(self) -> str:
        with pd.option_context("display.width", 120, "display.max_columns", None):
            table = repr(pd.DataFrame(self))
        return "\n".join(filter(None, [without_markdown(self.note), table]))


@dataclass(frozen=True)
class Explanation:
    """A diagnosed pair of policies; shows itself in a cell as the answer in a sentence.

    Each method gives what a cell shows, or None where there is nothing to show. Above each stands
    what the report notes above it: what is not valid of it, first of all.

    Attributes:
        sweep: that holds the pair; None where there is no such pair.
        pair: which of the sweep's diagnosed pairs it is.
        message: why there is no such pair; empty where there is.
    """

    sweep: MeasuredSweep | None
    pair: int
    message: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that is explained."""
        return self.sweep.verdicts[self.pair] if self.sweep else None

    def _repr_markdown_(self) -> str:
        if self.sweep is None or self.verdict is None:
            return self.message
        among = self.sweep.verdicts
        titles = [f"- pair {i}: {escape(why.title(v, among))}" for i, v in enumerate(among)]
        return "\n".join([markdown.sentence(why.sentence(self.verdict, among)), "", *titles])

    def __repr__(self) -> str:
        if self.sweep is None or self.verdict is None:
            return without_markdown(self.message)
        among = self.sweep.verdicts
        titles = [visible(f"pair {i}: {why.title(v, among)}") for i, v in enumerate(among)]
        return "\n".join([without_markdown(why.sentence(self.verdict, among)), *titles])

    def causes(self) -> GT | None:
        """The ranked causes, each with its evidence and what to change."""
        return self._table(why.CAUSES)

    def ablations(self) -> GT | None:
        """What changed when a suspected cause was taken away."""
        return self._table(why.ABLATIONS)

    def time_by_cause(self) -> HTML | Markdown | None:
        """The figure of the time breakdown, or why there is none."""
        if self.verdict and not self.verdict.traced:
            return Markdown(wording.verbatim(self.verdict.missing))
        return self._figure("time breakdown", why.BREAKDOWN)

    def time_by_layer(self) -> Part | None:
        """Both policies' breakdowns joined: `difference_s` above 0 is slower than the baseline."""
        if self.verdict is None or not self.verdict.traced:
            return None
        table = breakdown.joined(*map(breakdown.rows, self.verdict.records.values()))
        return Part.of(table, why.BREAKDOWN.noted(self.verdict, first=False))

    def operations(self, cause: str = "") -> Part | None:
        """The operations of the candidate's step, or those of one cause, the longest first."""
        if self.verdict is None or self.verdict.candidate is None:
            return None
        table = _longest(breakdown.rows(self.verdict.candidate), cause)
        note = why.BREAKDOWN.noted(self.verdict, first=False)
        return None if table.empty else Part.of(table, note)

    def roofline(self) -> HTML | None:
        """The figure of what each layer reached, under the roofs that the device measured."""
        return self._figure("roofline", PEAKS)

    def layers(self) -> GT | None:
        """What each layer took, and what the device needs for it alone."""
        return self._table(why.LAYERS)

    def peaks(self) -> GT | None:
        """The device's measured peaks, and how far each policy came."""
        return self._table(PEAKS)

    def kernels(self) -> Part | None:
        """Every kernel of a GPU under both policies, or what oneDNN says of its primitives.

        The longest first, whichever policy's it is.
        """
        if self.verdict is None:
            return None
        of = {policy: _kernels(record) for policy, record in self.verdict.records.items()}
        tables = [table.assign(policy=policy) for policy, table in of.items() if len(table)]
        if not tables:
            return None
        table = _longest(pd.concat(tables))
        table = table[["policy", *table.columns.drop("policy")]]
        notes = [
            KERNEL_TIMES.noted(self.verdict, first=False),
            why.ARITHMETIC.noted(self.verdict, first=True),
        ]
        return Part.of(table, "\n\n".join(filter(None, notes)))

    def _table(self, section: why.Section) -> GT | None:
        """A section's table of text, whose cells pandas would cut off, under its note."""
        if self.verdict is None or (rows := section.rows(self.verdict)).empty:
            return None
        note = section.noted(self.verdict, first=True)
        table = text_tables.plain_table(rows).tab_header(title=html(_as_html(note)))
        return table.tab_options(heading_align="left", heading_title_font_size="100%")

    def _figure(self, section: Section, noted: why.Section) -> HTML | None:
        """The pair's figure of a section of the report; it is drawn only here."""
        if self.sweep is None or self.verdict is None:
            return None
        figures = {figure.case: figure for figure in all_figures.figures(self.sweep, section)}
        figure = figures.get(str(self.pair + 1))  # a report counts from 1
        note = _as_html(noted.noted(self.verdict, first=True))
        return HTML(f"{note}{figure.html()}") if figure else None


def explanation(directory: SweepDir, pair: int, ended: bool = True) -> Explanation:
    """The explanation of one pair of a sweep; says what is missing where there is none.

    Args:
        ended: whether every run ended that was to tell why.
    """
    name = wording.verbatim(str(directory.root))
    if not directory.root.is_dir():
        return Explanation(None, pair, f"{name}: there is no such directory.")
    try:
        sweep = measured_sweep.load(directory)
    except ParamsError as error:
        return Explanation(None, pair, f"{wording.verbatim(str(error))}.")
    if not sweep.verdicts:
        timed = all(map(is_of_timer, sweep.tables.records))
        cure = caveats.OWN_RUN if timed else "run `mptexp diagnose` on it"
        cure = cure if ended else "some runs failed; the same call tries them again"
        return Explanation(None, pair, f"{name} is not diagnosed: {cure}.")
    if not 0 <= pair < len(sweep.verdicts):
        most = len(sweep.verdicts) - 1
        return Explanation(None, pair, f"pair is {pair}; allowed: 0 to {most}.")
    return Explanation(sweep, pair)


def _kernels(record: Mapping[str, Any]) -> pd.DataFrame:
    table = kernel_arithmetic.table(breakdown.rows(record))
    return kernel_arithmetic.instructions(record) if table.empty else table


def _longest(rows: pd.DataFrame, cause: str = "") -> pd.DataFrame:
    """The rows of a time breakdown, or those of one cause, the longest first."""
    chosen = rows[rows.cause == cause] if cause else rows
    return chosen.sort_values("seconds", ascending=False, kind="stable", ignore_index=True)


def _as_html(note: str) -> str:
    return markdown.to_html(note) if note else ""


@dataclass(frozen=True)
class RecordedExplanation:
    """One trace or two of trainings that mptexp did not run; shows itself as the verdict."""

    recordings: list[Recording]

    def _repr_markdown_(self) -> str:
        sentences = [trace_answer.verdict(self.recordings)]
        sentences += [note for each in self.recordings for note in trace_answer.notes(each)]
        return "\n\n".join(map(markdown.safe, sentences))

    def __repr__(self) -> str:
        return visible(trace_answer.verdict(self.recordings))

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables behind the verdict by their headings, as text."""
        return trace_report.tables(self.recordings)

    def operations(self, cause: str = "", which: int = -1) -> pd.DataFrame:
        """The operations of a recording's step, or those of one cause, the longest first."""
        return _longest(self.recordings[which].rows, cause)

    def content(self) -> dict[str, Any]:
        """What `mptexp explain --format json` prints."""
        return trace_report.content(self.recordings)
