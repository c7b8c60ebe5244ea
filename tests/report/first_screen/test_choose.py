"""Which question opens a report."""

from builders import (
    record,
    tables,
)

from mptexp.report.first_screen import choose


def test_nothing_succeeded():
    failed = record() | {"status": "failed"}
    assert choose.of(tables([failed])).title == "No run of this sweep succeeded"
