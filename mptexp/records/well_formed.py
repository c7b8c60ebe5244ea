"""What a record must hold together, so that whatever passes the check can be analysed.

`schema` describes each part by itself. Here stands which part needs which other: a run whose steps
were traced is diagnosed from its layers, its peaks and its step time.
"""

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic asks for it below Python 3.12

from mptexp.records.csv_columns import Number, Positive
from mptexp.records.schema import OPEN, Seconds


def _with(**kinds: Any) -> Any:
    """What a part of a record holds at least."""
    return with_config(OPEN)(TypedDict("Part", kinds))  # type: ignore[misc]


_LAYER = _with(
    parameters=Number, alone_s=Positive | None, alone_low_s=Positive | None, channels=Number | None
)
_DIAGNOSED = _with(
    notebook=str,
    timing=_with(step_s=Positive),
    in_force=_with(emulated=bool, jit=bool | str | None),
    environment=_with(device=str),
    profile=_with(missing=Literal[""], device=str, input_busy_s=Seconds),
    work=_with(layers=Annotated[list[_LAYER], Field(min_length=1)]),
)
_LATENCIES = _with(
    latency_warmup=Annotated[int, Field(ge=0, lt=2**31)],
    latency_p50_s=Positive,
    latency_p99_s=Positive,
)
_INFERRED = _with(timing=_LATENCIES)


def fault(record: dict[str, Any]) -> str:
    """What a record of the right types lacks to be analysed, in a sentence; empty if nothing."""
    needs = {
        "a traced run": (_DIAGNOSED, bool((record.get("profile") or {}).get("rows"))),
        "a run with latencies": (_INFERRED, bool(record.get("latencies_s"))),
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
