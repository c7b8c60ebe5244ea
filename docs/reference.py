"""Writes docs/params.md and params/schema.json, the reference of the params file, from the types.

Run it, or `make reference`, after a parameter has changed.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mptexp.report.tables import text_tables
from mptexp.spec import strict_model
from mptexp.spec.grid import Sweep
from mptexp.spec.names import DATASETS, MODELS
from mptexp.spec.run import Run

PROJECT = Path(__file__).resolve().parent.parent
# What strings an editor proposes where a type allows others too.
EXAMPLES = {
    "dataset": [*DATASETS, "folder:PATH", "imagenette/320px-v2"],
    "model": [*MODELS, "module:function"],
}
POINT = "#/definitions/point"
INTRODUCTION = """\
# The params file

Made by `make reference` from the types in [mptexp/spec](../mptexp/spec); do not edit. An
editor that reads JSON schemas completes and checks a params file whose first line is
`# yaml-language-server: $schema=schema.json` (the path from that file to
[params/schema.json](../params/schema.json)).

The file is YAML 1.2. Comments that begin with `# Question:`, `# Cost:` and `# Expected:` open it;
the first of them heads the report. Names end in their unit: `_s` seconds, `_min` minutes, `_gb`
10⁹ bytes; shares and accuracies are fractions of 1.

## Keys

"""
PARAMETERS = """
## Parameters of a run

They stand under `defaults`, as axes under `matrix`, and in the entries of `exclude` and `include`.

"""


def rows(model: type[BaseModel], without: tuple[str, ...] = ()) -> str:
    """A model's fields as a table in Markdown."""
    import pandas as pd

    table = [
        {
            "Name": name,
            "Allowed": _allowed(model, name),
            "Default": json.dumps(field.default),
            "Meaning, unit": field.description,
        }
        for name, field in model.model_fields.items()
        if name not in without
    ]
    return text_tables.markdown(pd.DataFrame(table))


def _allowed(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    return strict_model.allowed(model, name) + (", null" if field.default is None else "")


def markdown() -> str:
    """docs/params.md."""
    return INTRODUCTION + rows(Sweep) + PARAMETERS + rows(Run, without=("block",))


def schema() -> dict[str, Any]:
    """params/schema.json: draft 7, which editors know best."""
    run = _properties(Run)
    del run["block"]  # blocks come from repeats
    for name, examples in EXAMPLES.items():
        run[name]["examples"] = examples
    keys = _properties(Sweep)
    keys["defaults"]["allOf"] = [{"$ref": POINT}]
    axes = {name: _axis(name, entry["description"]) for name, entry in run.items()}
    keys["matrix"] |= {"properties": axes, "additionalProperties": False}
    for name in ("exclude", "include"):
        keys[name]["items"] = {"$ref": POINT}
    point = {"type": "object", "properties": run, "additionalProperties": False}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A params file of mptexp",
        "type": "object",
        "properties": keys,
        "additionalProperties": False,
        "anyOf": [{"required": ["matrix"]}, {"required": ["include"]}],
        "definitions": {"point": point},
    }


def _axis(name: str, description: str) -> dict[str, Any]:
    items = {"$ref": f"{POINT}/properties/{name}"}
    return {"type": "array", "items": items, "minItems": 1, "description": description}


def _properties(model: type[BaseModel]) -> dict[str, Any]:
    """A model's fields as JSON schema, without the titles, which only repeat the names."""
    properties = model.model_json_schema()["properties"]
    return {name: {k: v for k, v in f.items() if k != "title"} for name, f in properties.items()}


def files() -> dict[Path, str]:
    """What is written, and where."""
    return {
        PROJECT / "docs/params.md": markdown(),
        PROJECT / "params/schema.json": json.dumps(schema(), indent=1) + "\n",
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
