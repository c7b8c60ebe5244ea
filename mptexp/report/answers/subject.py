"""What a sweep asks about, and what it answers: title, comparisons, sentences, what to do.

Most sweeps ask about the speed of policies; some about loss scales, emulated formats, instruction
sets, replicas, frameworks or plain loops. Each opens its report with its own comparisons. Where
nothing can be claimed, the title is what was measured, said to be provisional.
"""

from collections.abc import Callable, Iterator

from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import findings
from mptexp.report.answers.subjects import accuracies, formats, frameworks, quantized, ratios, speed
from mptexp.report.answers.subjects.opening import Subject


def of(tables: Tables) -> Subject:
    """The subject of a sweep: the first of SUBJECTS that has anything to say of it."""
    if tables.ok.empty and (tables.results.status != "diverged").all():
        return Subject("No run of this sweep succeeded", [findings.NONE_SUCCEEDED])
    return next(subject for of_kind in SUBJECTS for subject in of_kind(tables))


SUBJECTS: tuple[Callable[[Tables], Iterator[Subject]], ...] = (
    formats.of_loss_scales,
    formats.of_formats,
    ratios.of_instruction_sets,
    ratios.of_replicas,
    frameworks.of_frontends,
    frameworks.of_frameworks,
    quantized.of_quantized,
    speed.of,
    accuracies.of_exponents,
    accuracies.of,
)
