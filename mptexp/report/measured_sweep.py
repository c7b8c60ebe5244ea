"""What a report is made from: a sweep's directory, its tables and the diagnoses of its pairs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mptexp.analysis import sweep_tables
from mptexp.analysis.sweep_tables import Tables
from mptexp.diagnosis import pairs, verdict
from mptexp.diagnosis.verdict import Verdict
from mptexp.records import store
from mptexp.records.schema import is_of_timer
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.first_screen import question
from mptexp.report.first_screen.subject import Subject
from mptexp.spec import given_paths, params


@dataclass(frozen=True)
class MeasuredSweep:
    """A sweep with at least one record."""

    directory: SweepDir
    tables: Tables

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Why each diagnosed pair of policies differs in speed; empty before `mptexp diagnose`."""
        return verdict.verdicts(self.directory, self.tables)

    @cached_property
    def can_be_diagnosed(self) -> bool:
        """Whether `mptexp diagnose` has a pair to look at: not of inference or of plain loops."""
        return bool(pairs.pairs(self.tables))

    @property
    def is_foreign(self) -> bool:
        """Whether mptexp ran none of it: StepTimer recorded scripts of the user's."""
        return all(map(is_of_timer, self.tables.records))

    @cached_property
    def header(self) -> dict[str, str]:
        """Question, cost and expected outcome, where the params file's header states them."""
        return params.header(self.directory.params_text)

    @cached_property
    def subject(self) -> Subject:
        """What opens the report: title, sentences, chart and card are all made from it."""
        return question.of(self.tables)

    @property
    def question(self) -> str:
        """The question of the sweep."""
        return self.header.get("question") or "What does reduced precision buy on this device?"


_handed: dict[Path, MeasuredSweep] = {}


@contextmanager
def handed(sweep: MeasuredSweep) -> Iterator[None]:
    """A process that is forked within has the sweep: `load` computes nothing again."""
    place = Path(os.path.realpath(sweep.directory.root))
    _handed[place] = copy(sweep)  # with what it has computed
    _handed[place].__dict__["directory"] = SweepDir(place)  # for another working directory
    try:
        yield
    finally:
        del _handed[place]


def load(directory: SweepDir | str | os.PathLike[str]) -> MeasuredSweep:
    """The measurements of a sweep.

    Raises:
        ParamsError: where the directory holds no record that can be read.
    """
    given = isinstance(directory, SweepDir)
    place = directory if given else SweepDir(given_paths.resolved(directory))
    if known := _handed.get(Path(os.path.realpath(place.root))):
        return known
    tables = sweep_tables.load(place)
    if not tables.records:
        raise store.refusal(place, tables.damaged)
    return MeasuredSweep(place, tables)
