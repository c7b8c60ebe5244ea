"""The table of causes, and that a row without one of its parts is refused."""

import dataclasses

import pytest

from mptexp.diagnosis import causes, verdict
from mptexp.traces.operations import WAITS

CAUSE = causes.CAUSES[0]
TEXTS = ("name", "label", "colour", "sentence", "remedies")


@pytest.mark.parametrize("part", TEXTS)
def test_a_cause_that_lacks_a_part_is_refused(part):
    parts = {field.name: getattr(CAUSE, field.name) for field in dataclasses.fields(CAUSE)}
    assert causes.Cause(**parts) == CAUSE
    with pytest.raises(ValueError, match=f"has no {part}"):
        causes.Cause(**parts | {part: "" if isinstance(parts[part], str) else ()})
    del parts[part]
    with pytest.raises(TypeError, match=part):
        causes.Cause(**parts)


def test_a_colour_is_one():
    with pytest.raises(ValueError, match="not #rrggbb"):
        dataclasses.replace(CAUSE, colour="blue")


def test_two_rows_of_the_same_name_or_colour_are_refused():
    causes.check(causes.ROWS)
    with pytest.raises(ValueError, match=f"the name {CAUSE.name}"):
        causes.check([CAUSE, CAUSE])
    with pytest.raises(ValueError, match=f"the colour {CAUSE.colour}"):
        causes.check([CAUSE, dataclasses.replace(CAUSE, name="another")])


def test_every_wait_of_a_trace_is_a_cause():
    assert set(WAITS) <= {cause.name for cause in causes.CAUSES} & set(causes.LABELS)


def test_only_causes_with_a_share_worth_a_run_are_blamed():
    assert 0 < verdict.LEAST_SHARE < 1
