"""Which kind of question a sweep asks, and so which module of this folder opens its report.

Most sweeps ask about the speed of policies; some about loss scales, emulated formats, instruction
sets, replicas, frameworks or plain loops; of long trainings without a valid time the accuracy is
asked. Each opens its report with its own comparisons. Where nothing can be claimed, the title is
what was measured, said to be provisional.
"""

from collections.abc import Callable, Iterator

from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import findings
from mptexp.report.first_screen import (
    accuracies,
    dynamic_range,
    formats,
    frameworks,
    instruction_sets,
    integer_weights,
    loss_scale_choice,
    policy_speed,
    replicas,
)
from mptexp.report.first_screen.subject import Subject


def of(tables: Tables) -> Subject:
    """The subject of a sweep: the first of SUBJECTS that has anything to say of it."""
    if tables.ok.empty and (tables.results.status != "diverged").all():
        return Subject(accuracies.NONE, [findings.NONE_SUCCEEDED], advice=accuracies.retry(tables))
    return next(subject for of_kind in SUBJECTS for subject in of_kind(tables))


SUBJECTS: tuple[Callable[[Tables], Iterator[Subject]], ...] = (
    loss_scale_choice.of,
    formats.of,
    instruction_sets.of,
    replicas.of,
    frameworks.of_frontends,
    frameworks.of_frameworks,
    integer_weights.of_quantized,
    accuracies.of_epochs,
    policy_speed.of,
    dynamic_range.of,
    accuracies.of,
)
