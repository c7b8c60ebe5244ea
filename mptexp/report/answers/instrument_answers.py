"""What `mptexp doctor --check` found, as a table and a sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from mptexp.records.instrument_checks import INSTRUMENTS, failed, is_quiet
from mptexp.report.text import wording

RESULTS = {True: "pass", False: "fail", None: "not here"}


def table(checks: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per test: Result, Instrument, Policy, Expected, Read, Test; all text."""
    known = [c for c in checks if c["instrument"] in INSTRUMENTS]
    rows = [INSTRUMENTS[c["instrument"]] for c in known]
    return pd.DataFrame(
        {
            "Result": [RESULTS[c.get("passed")] for c in known],
            "Instrument": [row.label for row in rows],
            "Policy": [c.get("policy") or "" for c in known],
            "Expected": [_text(c["expected"], r.unit) for c, r in zip(known, rows, strict=True)],
            "Read": [_text(c["read"], r.unit) for c, r in zip(known, rows, strict=True)],
            "Test": [row.test for row in rows],
        }
    )


def sentence(checks: Sequence[Mapping[str, Any]]) -> str:
    """How the checks ended, and what must not be trusted."""
    passed = sum(c.get("passed") is True for c in checks)
    tried = sum(c.get("passed") is not None for c in checks)
    broken = list(dict.fromkeys(row.label for row in failed(checks)))
    total = f"{passed} of {wording.count(tried, 'test')} passed"
    if not is_quiet(checks):
        return (
            f"{total}, but other programs were at work: nothing is proven or kept. End them, and "
            "check again."
        )
    if not broken:
        return f"The instruments were checked on work whose answer is known: {total}."
    return f"{total}. Failed: {wording.listed(broken)}; what they read on this device is not valid."


def _text(value: str | float | Sequence[float], unit: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return f"{value:.3g}{_unit(unit)}"
    return f"{value[0]:g} to {value[1]:g}{_unit(unit)}"


def _unit(unit: str) -> str:
    return {"%": " %", "x": "×"}.get(unit, unit)
