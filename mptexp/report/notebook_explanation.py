"""Why one policy was faster or slower, part by part, for the cells of a notebook."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd
from great_tables import GT
from IPython.display import HTML, Markdown

from mptexp.diagnosis import breakdown, kernel_arithmetic
from mptexp.diagnosis.foreign_traces import Recording
from mptexp.diagnosis.verdict import Verdict
from mptexp.errors import ParamsError
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep, trace_report
from mptexp.report.answers import trace_answer, why
from mptexp.report.figures import all_figures
from mptexp.report.figures.row import Section
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.tables import text_tables, why_tables
from mptexp.report.text import markdown, wording

MOST_ROWS = 40


@dataclass(frozen=True)
class Explanation:
    """A diagnosed pair of policies; shows itself in a cell as the answer in a sentence.

    Each method gives what a cell shows, or None where there is nothing to show.

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

    def causes(self) -> GT | None:
        """The ranked causes, each with its evidence and what to change."""
        return self._table(why_tables.cause_rows)

    def ablations(self) -> GT | None:
        """What changed when a suspected cause was taken away."""
        return self._table(why_tables.ablation_rows)

    def time_by_cause(self) -> HTML | Markdown | None:
        """The figure of the time breakdown, or why there is none."""
        if self.verdict and not self.verdict.traced:
            return Markdown(wording.verbatim(self.verdict.missing))
        return self._figure("time breakdown")

    def time_by_layer(self) -> pd.DataFrame | None:
        """Both policies' breakdowns joined: `difference_s` above 0 is slower than the baseline."""
        if self.verdict is None or not self.verdict.traced:
            return None
        return breakdown.joined(*self.verdict.records.values()).head(MOST_ROWS)

    def operations(self, cause: str = "") -> pd.DataFrame | None:
        """The operations of the candidate's step, or those of one cause, the longest first."""
        if self.verdict is None or self.verdict.candidate is None:
            return None
        rows = breakdown.rows(self.verdict.candidate)
        return _shown(rows[rows.cause == cause] if cause else rows)

    def roofline(self) -> HTML | None:
        """The figure of what each layer reached, under the roofs that the device measured."""
        return self._figure("roofline")

    def layers(self) -> GT | None:
        """What each layer took, and what the device needs for it at best."""
        return self._table(why_tables.layer_rows)

    def peaks(self) -> GT | None:
        """The device's measured peaks, and how far each policy came."""
        return self._table(why_tables.peak_rows)

    def kernels(self) -> pd.DataFrame | None:
        """Every kernel of a GPU under both policies, or what oneDNN says of its primitives."""
        records = self.verdict.records if self.verdict else {}
        tables = [_kernels(record).assign(policy=policy) for policy, record in records.items()]
        return _shown(pd.concat(tables) if tables else None)

    def _table(self, rows: Callable[[Verdict], pd.DataFrame]) -> GT | None:
        """A table of text, whose cells pandas would cut off."""
        table = pd.DataFrame() if self.verdict is None else rows(self.verdict)
        return None if table.empty else text_tables.plain_table(table)

    def _figure(self, section: Section) -> HTML | None:
        """The pair's figure of a section of the report; it is drawn only here."""
        if self.sweep is None:
            return None
        figures = {figure.case: figure for figure in all_figures.figures(self.sweep, section)}
        figure = figures.get(str(self.pair + 1))  # a report counts from 1
        return HTML(figure.html()) if figure else None


def explanation(directory: SweepDir, pair: int) -> Explanation:
    """The explanation of one pair of a sweep; says what is missing where there is none."""
    name = wording.verbatim(str(directory.root))
    if not directory.root.is_dir():
        return Explanation(None, pair, f"{name}: there is no such directory.")
    try:
        sweep = measured_sweep.load(directory)
    except ParamsError as error:
        return Explanation(None, pair, f"{wording.verbatim(str(error))}.")
    if not sweep.verdicts:
        return Explanation(None, pair, f"{name} is not diagnosed: run `mptexp diagnose` on it.")
    if not 0 <= pair < len(sweep.verdicts):
        most = len(sweep.verdicts) - 1
        return Explanation(None, pair, f"pair is {pair}; allowed: 0 to {most}.")
    return Explanation(sweep, pair)


def _kernels(record: Mapping[str, Any]) -> pd.DataFrame:
    table = kernel_arithmetic.table(record)
    return kernel_arithmetic.instructions(record) if table.empty else table


def _shown(table: pd.DataFrame | None) -> pd.DataFrame | None:
    return None if table is None or table.empty else table.head(MOST_ROWS)


@dataclass(frozen=True)
class RecordedExplanation:
    """One trace or two of trainings that mptexp did not run; shows itself as the verdict.

    Attributes:
        recordings: one or two.
    """

    recordings: list[Recording]

    def _repr_markdown_(self) -> str:
        sentences = [trace_answer.verdict(self.recordings)]
        sentences += [note for each in self.recordings for note in trace_answer.notes(each)]
        return "\n\n".join(map(markdown.safe, sentences))

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables behind the verdict by their headings, as text."""
        return trace_report.tables(self.recordings)

    def operations(self, cause: str = "", which: int = -1) -> pd.DataFrame:
        """The operations of a recording's step, or those of one cause, the longest first."""
        rows = self.recordings[which].rows
        return (rows[rows.cause == cause] if cause else rows).head(MOST_ROWS)

    def content(self) -> dict[str, Any]:
        """What `mptexp explain --format json` prints."""
        return trace_report.content(self.recordings)
