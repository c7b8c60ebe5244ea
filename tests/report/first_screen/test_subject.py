"""Which question opens a report."""

from builders import (
    record,
    tables,
)

from mptexp.report.first_screen import subject


def test_nothing_succeeded():
    failed = record() | {"status": "failed"}
    assert subject.of(tables([failed])).title == "No run of this sweep succeeded"
