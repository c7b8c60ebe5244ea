import json
import math

import pytest

from mptexp.records import instrument_checks
from mptexp.records.instrument_checks import INSTRUMENTS, PROVEN, QUIET, check, failed, not_here

IDENTITY = {"code": "a", "versions": {"keras": "3"}, "device": "d", "cores": 2, "data": "x"}


@pytest.mark.parametrize(
    ("expected", "read", "passed"),
    [
        ("oom", "oom", True),
        ("oom", "killed", False),
        ((0.9, 1.1), 1.0, True),
        ((0.9, 1.1), 1.1000001, False),
        ((0.9, 1.1), math.nan, False),
        ((0.9, 1.1), None, False),
        ((0.9, 1.1), "failed: no kernel", False),
    ],
)
def test_a_check_passes_only_within_what_was_expected(expected, read, passed):
    made = check("clock", expected, read)
    assert made["passed"] is passed
    assert failed([made]) == ([] if passed else [INSTRUMENTS["clock"]])
    json.dumps(made, allow_nan=False)


def test_every_instrument_proves_some_figures():
    assert {row.proves for row in INSTRUMENTS.values() if row.name != QUIET} == set(PROVEN)


def test_what_a_device_lacks_has_not_failed():
    assert failed([not_here("energy", "no counter")]) == []


def test_checks_are_kept_for_this_code_these_versions_and_this_device(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checks = [check("clock", (0.9, 1.1), 1.0), not_here("energy", "no counter")]
    assert instrument_checks.known(IDENTITY) == []
    path = instrument_checks.save(IDENTITY, checks)
    assert instrument_checks.known(IDENTITY | {"data": "another"}) == checks
    for other in ({"code": "b"}, {"device": "e"}, {"versions": {"keras": "4"}}, {"cores": 1}):
        assert instrument_checks.known(IDENTITY | other) == []
    for text in ("", "[", "{}", '[{"instrument": 3}]'):
        path.write_text(text)
        assert instrument_checks.known(IDENTITY) == []
