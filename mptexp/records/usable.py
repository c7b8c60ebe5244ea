"""What a record must hold together, so that whatever passes the check can be analysed.

`schema` describes each part by itself. Here stands which part needs which other: a run whose steps
were traced is diagnosed from its layers, its peaks and its step time.
"""

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic asks for it below Python 3.12

from mptexp.records.columns import Number, Positive
from mptexp.records.schema import OPEN, Seconds


@with_config(OPEN)
class _Step(TypedDict):
    step_s: Positive


@with_config(OPEN)
class _Effective(TypedDict):
    emulated: bool
    jit: bool | str | None


@with_config(OPEN)
class _Profile(TypedDict):
    missing: Literal[""]
    device: str
    input_busy_s: Seconds


@with_config(OPEN)
class _Layer(TypedDict):
    parameters: Number
    alone_s: Positive | None
    alone_low_s: Positive | None
    channels: Number | None


@with_config(OPEN)
class _Work(TypedDict):
    layers: Annotated[list[_Layer], Field(min_length=1)]


@with_config(OPEN)
class _Device(TypedDict):
    device: str


@with_config(OPEN)
class _Diagnosed(TypedDict):
    notebook: str
    timing: _Step
    in_force: _Effective
    environment: _Device
    profile: _Profile
    work: _Work


@with_config(OPEN)
class _Latency(TypedDict):
    latency_warmup: Annotated[int, Field(ge=0, lt=2**31)]
    latency_p50_s: Positive
    latency_p99_s: Positive


@with_config(OPEN)
class _Inferred(TypedDict):
    timing: _Latency


def fault(record: dict[str, Any]) -> str:
    """What a record of the right types lacks to be analysed, in a sentence; empty if nothing."""
    needs = {
        "a traced run": (_Diagnosed, bool((record.get("profile") or {}).get("rows"))),
        "a run with latencies": (_Inferred, bool(record.get("latencies_s"))),
    }
    for what, (kind, holds) in needs.items():
        if holds and (missing := _missing(kind, record)):
            return f"{missing} in {what}"
    return ""


def _missing(kind: Any, record: dict[str, Any]) -> str:
    try:
        _adapter(kind).validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(str(step) for step in first['loc'])}: {first['msg']}"
    return ""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
