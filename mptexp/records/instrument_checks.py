"""The instruments that `mptexp doctor --check` tests on work whose answer is known.

One row per instrument. What a device showed is kept below the user's cache, for this device, these
versions and this code, and every record made there holds it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from mptexp.host.project import keyed, user_cache


@dataclass(frozen=True)
class Instrument:
    """An instrument and how it is tested.

    Attributes:
        name: in records.
        label: in tables.
        test: what it is given, a clause.
        unit: of what it reads, printed behind the number; `x` is a ratio of two times or amounts.
        proves: of PROVEN, which figures of a run are not valid if it fails.
    """

    name: str
    label: str
    test: str
    unit: str = ""
    proves: str = ""


# What figures rest on, with those that are not valid while it is not proven.
PROVEN = {
    "clock": ("time", "training time"),
    "memory": ("memory",),
    "utilization": ("utilization",),
    "energy": ("energy",),
    "arithmetic": ("arithmetic",),
    "trace": ("time breakdown",),
    "memory limit": ("largest batch",),
    "determinism": ("repetition",),
}
# Beside other programs nothing is proven: such checks are not kept.
QUIET = "others"
INSTRUMENTS = {
    row.name: row
    for row in (
        Instrument(QUIET, "other programs", "the processor while the clock is tested", "%"),
        Instrument(
            "clock",
            "step clock",
            "a chain of matrix products in `predict`, over the same chain timed alone",
            "x",
            "clock",
        ),
        Instrument("clock_twice", "step clock", "the chain twice as long, over once", "x", "clock"),
        Instrument(
            "device_events",
            "device's own events",
            "the same chain by the device's events, over timed alone",
            "x",
            "clock",
        ),
        Instrument(
            "memory", "peak memory", "an array of known size, read over expected", "x", "memory"
        ),
        Instrument("busy", "utilization", "a load that is switched on", "%", "utilization"),
        Instrument("idle", "utilization", "the load switched off", "%", "utilization"),
        Instrument("energy", "energy counter", "joules over the integral of power", "x", "energy"),
        Instrument(
            "product",
            "matrix product",
            "numbers of known bits through a Dense layer",
            proves="arithmetic",
        ),
        Instrument(
            "convolution",
            "convolution",
            "numbers of known bits through a convolution",
            proves="arithmetic",
        ),
        Instrument(
            "kernels",
            "kernel classification",
            "share of the matrix work of traced steps in the type asked for",
            "%",
            "arithmetic",
        ),
        Instrument("trace", "trace reader", "a traced step over the clock's", "x", "trace"),
        Instrument(
            "memory_limit",
            "memory limit",
            "a batch that needs more than the limit",
            proves="memory limit",
        ),
        Instrument(
            "determinism",
            "determinism",
            "the same training twice, losses compared",
            proves="determinism",
        ),
    )
}


@with_config(ConfigDict(strict=True, extra="allow", allow_inf_nan=False))
class Check(TypedDict):
    """One test of an instrument: what had to be read, and what was.

    `expected` is a word, or the least and the most; `passed` is null where this device has no such
    instrument, and `read` says why; `policy` is empty where it does not matter.
    """

    instrument: str
    policy: str
    expected: str | list[float]
    read: str | float
    passed: NotRequired[bool | None]


def check(
    name: str, expected: str | Sequence[float], read: str | float | None, policy: str = ""
) -> Check:
    """The test of an instrument: passed where it read the word, or a number between two.

    Raises:
        KeyError: where there is no such instrument.
    """
    row = INSTRUMENTS[name]
    if isinstance(expected, str):
        passed, wanted = read == expected, expected
    else:
        wanted = [float(end) for end in expected]
        number = read if isinstance(read, int | float) else math.nan
        passed = wanted[0] <= number <= wanted[1]
    shown = "nothing" if read is None or read != read else read
    return Check(
        instrument=row.name,
        policy=policy,
        expected=wanted,
        read=shown if isinstance(shown, str) else float(shown),
        passed=bool(passed),
    )


def not_here(name: str, why: str, policy: str = "") -> Check:
    """The test of an instrument that this device does not have, or with nothing to compare."""
    return Check(
        instrument=INSTRUMENTS[name].name, policy=policy, expected="", read=why, passed=None
    )


def failed(checks: Sequence[Mapping[str, Any]]) -> list[Instrument]:
    """The instruments that failed a test, each once."""
    names = dict.fromkeys(c["instrument"] for c in checks if c.get("passed") is False)
    return [INSTRUMENTS[name] for name in names if name in INSTRUMENTS]


def is_quiet(checks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no other program was at work, so that a failure is the instrument's own."""
    return all(c.get("passed") is not False for c in checks if c["instrument"] == QUIET)


# --- kept for a device -------------------------------------------------------------------------

# Of a run's identity what decides whether a check of yesterday still says something.
OF_IDENTITY = ("code", "versions", "device", "cpu", "cores", "driver", "cuda", "cudnn")


def save(identity: Mapping[str, Any], checks: Sequence[Check]) -> Path:
    """Keeps what was checked for runs of the same code, versions and device; returns the file.

    Raises:
        OSError: where it cannot be written.
    """
    from mptexp.records import store  # which imports the schema, and that this module

    path = _path(identity)
    store.write_text(path, json.dumps(list(checks), indent=1))
    return path


def known(identity: Mapping[str, Any]) -> list[Check]:
    """What was checked for such runs; empty where nothing was, or it cannot be read."""
    with suppress(OSError, ValueError, ValidationError):
        text = _path(identity).read_text()
        return TypeAdapter(list[Check]).validate_python(json.loads(text))
    return []


def _path(identity: Mapping[str, Any]) -> Path:
    parts = [identity.get(name) for name in OF_IDENTITY]
    return keyed(user_cache() / "instruments", parts)
