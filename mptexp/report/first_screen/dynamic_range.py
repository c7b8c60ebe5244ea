"""The dynamic range of trainings, where no policies are compared: what it and a trial advise."""

from collections.abc import Iterator, Sequence

from mptexp.analysis import out_of_range, range_advice
from mptexp.analysis.range_advice import Advice
from mptexp.analysis.sweep_tables import Tables
from mptexp.report.answers import dynamic_range
from mptexp.report.first_screen.subject import Subject
from mptexp.report.text import wording


def of(tables: Tables) -> Iterator[Subject]:
    """What histograms of exponents advise, where no policies are compared; of each training."""
    trainings = out_of_range.measured(tables.records)
    if not trainings:
        return
    names = [dynamic_range.title(training, trainings) for training in trainings]
    tried = [range_advice.tried(training, tables) for training in trainings]
    advised = [range_advice.advise(*pair) for pair in zip(trainings, tried, strict=True)]
    choices = [dynamic_range.choice(one) for one in advised]
    said = [
        f"{name}: {text}"
        for name, one in zip(names, advised, strict=True)
        for text in dynamic_range.reasons(one)[:1]
    ]
    said += dynamic_range.left_open(advised[0])
    whose, what = f"all {len(trainings)} trainings", choices[0]
    if len(trainings) == 1:
        whose, said = "this training", dynamic_range.answer(trainings[0], tried[0])[1:]
    elif len(set(choices)) > 1:
        whose = f"{len(trainings)} trainings"
        pairs = zip(choices, names, strict=True)
        what = wording.listed([f"{choice} ({name})" for choice, name in pairs])
    title = _of_range(advised, whose, what)
    advice = f"use policy {what}."
    if any(one.policy != "float32" for one in advised):
        advice = f"measure what it brings: `mptexp run`, with policy {what}."
    yield Subject(title, said, advice=advice, figure="exponents")


def _of_range(advised: Sequence[Advice], whose: str, what: str) -> str:
    """The title: what the device, a short training in it, or the range of the numbers decides."""
    first, *others = advised
    if first.tried and first.tried.fails and not others:
        failed = first.tried.policy
        how = {"unsupported": "is not supported", "failed": "failed when it was tried"}
        how |= {"timeout": "did not end in time", "oom": "had no memory", "killed": "was ended"}
        ended = how.get(first.tried.status, "did not keep up when it was tried")
        return f"Use {what} for this training: {failed} {ended}"
    in_16_bits = [{"float16", "bfloat16"} & {*(one.native or ())} for one in advised]
    if not any(in_16_bits):
        if any(one.native is None for one in advised):
            return f"Use {what}: in which types the device computes is not recorded"
        limits = {one.cpu_isa for one in advised} - {"default"}
        under = f"under cpu_isa {wording.listed(sorted(limits))} " if limits else ""
        return f"Use {what}: {under}this device computes in neither 16-bit type"
    allowed = {one.policy != "float32" for one in advised}
    if len(allowed) > 1:  # not the numbers alone: the devices too
        return f"The numbers of {whose}, and their devices, allow {what}"
    allowed = all(allowed)
    return f"The numbers of {whose} {'allow' if allowed else 'ask for'} {what}"
