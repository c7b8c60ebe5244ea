"""Typed models whose refusals are sentences: what was given, and what the field allows."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from mptexp.errors import ParamsError
from mptexp.spec.names import meant


class StrictModel(BaseModel):
    """A frozen model with strict types, whose constructor refuses in sentences (ParamsError)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **values: Any) -> None:
        """Checks the values.

        Raises:
            ParamsError: a line for each that is not allowed: what was given, what is allowed.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ParamsError(_message(type(self), values, error)) from None


def _message(model: type[BaseModel], values: Mapping[str, Any], error: ValidationError) -> str:
    """In sentences, why a model cannot have these values."""
    known = model.model_fields
    strange = [unknown(name, list(known)) for name in values if name not in known]
    faults = [fault(model, name, value) for name, value in values.items() if name in known]
    # Each value is allowed by itself: a validator of the whole model has refused.
    together = str(error.errors()[0].get("ctx", {}).get("error", error))
    return "\n".join([*strange, *(sentence for _, sentence in filter(None, faults))]) or together


def valid(model: type[BaseModel], name: str, value: Any) -> Any:
    """A value as the field `name` of `model` has it, whatever the other fields are.

    Raises:
        ValueError: where it may not stand there.
    """
    return _adapter(model, name).validate_python(value, strict=True)


def fault(
    model: type[BaseModel], name: str, value: Any
) -> tuple[tuple[str | int, ...], str] | None:
    """Why `value` may not stand for the field `name` of `model`; None where it may.

    Returns:
        Where within the value the fault is (empty: the value itself), and a sentence.
    """
    try:
        valid(model, name, value)
    except ValidationError as error:
        # Of a union's alternatives the error that fits best is not known; the location of a
        # fault inside a list or mapping is.
        first = error.errors()[0]
        inner = tuple(s for s in first["loc"] if isinstance(s, int) or s in _keys(value))
        if inner:
            kind = {"list_type": "a list", "dict_type": "a mapping"}.get(first["type"], "")
            label = ".".join(str(step) for step in (name, *inner))
            message = f"{label} is {shown(first['input'])}; allowed: {kind or first['msg']}"
        else:
            ours = first.get("ctx", {}).get("error") if first["type"] == "value_error" else None
            names = _literals(model.model_fields[name].annotation)
            wanted = ours or f"{allowed(model, name)}{meant(str(value), names)}"
            message = f"{name} is {shown(value)}; allowed: {wanted}"
        return inner, message
    return None


def _keys(value: Any) -> Sequence[Any]:
    """Keys of a mapping, and of the mappings in a list; empty for anything else."""
    if isinstance(value, dict):
        return list(value)
    return [k for v in value for k in _keys(v)] if isinstance(value, list) else []


@cache
def _adapter(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    field = model.model_fields[name]
    return TypeAdapter(Annotated[field.annotation, field])


def unknown(name: str, allowed: Sequence[str]) -> str:
    """The sentence for a key that is none of those allowed."""
    return f"unknown key {name}{meant(name, allowed) or ';'} allowed: {', '.join(allowed)}"


def _literals(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return [name for part in get_args(annotation) for name in _literals(part)]
    return []


def allowed(model: type[BaseModel], name: str) -> str:
    """What the field `name` of a model may be, in words: `a number above 0`."""
    names, words = _literals(model.model_fields[name].annotation), []
    kinds = {
        "number": "a number",
        "integer": "an integer",
        "string": "a text",
        "boolean": "true or false",
        "object": "a mapping",
        "array": "a list",
    }
    schema = _adapter(model, name).json_schema()
    for option in schema.get("anyOf", [schema]):
        kind = kinds.get(option.get("type", ""))
        if kind and "enum" not in option and "const" not in option:
            words.append(kind + _bounds(option))
    return ", ".join([*names, *words])


def _bounds(schema: Mapping[str, Any]) -> str:
    phrases = {
        "exclusiveMinimum": "above {:.15g}",
        "minimum": "of at least {:.15g}",
        "maximum": "of at most {:.15g}",
        "exclusiveMaximum": "below {:.15g}",
        "maxItems": "of at most {} entries",
    }
    bounds = [text.format(schema[key]) for key, text in phrases.items() if key in schema]
    return f" {' and '.join(bounds)}" if bounds else ""


def shown(value: Any) -> str:
    """A value as a message shows it, in 60 characters at most."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    short = text if len(text) <= 60 else text[:57] + "..."
    return repr(short) if isinstance(value, str) else short
