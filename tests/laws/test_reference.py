"""The reference of the params file and the schema for editors are those of the types."""

import json
import runpy

import jsonschema
import pytest
from support import PROJECT

from mptexp.spec import params, yaml_documents
from mptexp.spec.grid import Sweep
from mptexp.spec.run import Run

SCHEMA = json.loads((PROJECT / "params/schema.json").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
FILES = sorted((PROJECT / "params").glob("*.yaml"))


def faults(text):
    return list(VALIDATOR.iter_errors(yaml_documents.content(text)))


def test_the_reference_is_up_to_date():
    made = runpy.run_path(str(PROJECT / "docs/reference.py"))["files"]()
    assert len(made) == 2
    for path, text in made.items():
        assert path.read_text() == text, f"{path.name} is outdated: make reference"


def test_every_key_and_parameter_is_explained():
    page = (PROJECT / "docs/params.md").read_text()
    for name in {*Sweep.model_fields, *Run.model_fields} - {"block"}:
        assert f"| {name} | " in page
    assert "|  |" not in page
    assert "| None |" not in page


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_params_file_names_the_schema_and_keeps_it(path):
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=schema.json\n# Question: ")
    assert faults(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "marix: {policy: [float32]}",
        "defaults: {epochs: 1}",
        "matrix: {polcy: [float32]}",
        "matrix: {policy: [float23]}",
        "matrix: {policy: float32}",
        "matrix: {policy: []}",
        "matrix: {batch_size: [1.5]}",
        "matrix: {batch_size: [0]}",
        "matrix: {seed: [1]}\ndefaults: {width: 0}",
        "matrix: {seed: [1]}\ndefaults: {block: 1}",
        "matrix: {seed: [1]}\nexclude: [{sede: 1}]",
        "matrix: {seed: [1]}\nrepeats: two",
        "matrix: {deterministic: ['no']}",
    ],
)
def test_what_the_schema_refuses_is_refused(text, tmp_path):
    assert faults(text)
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(params.ParamsError):
        params.read(tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "matrix: {learning_rate: [1, 1e-4], loss_scale: [dynamic, 128.0], max_steps: [null, 9]}",
        "include: [{batch_size: 32, deterministic: true}]",
    ],
)
def test_what_is_allowed_the_schema_allows(text, tmp_path):
    assert faults(text) == []
    (tmp_path / "good.yaml").write_text(text)
    assert params.read(tmp_path / "good.yaml")[0].runs()


def test_an_error_says_what_a_boolean_and_a_large_number_may_be(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("defaults: {deterministic: 3}\nmatrix: {batch_size: [2000000]}\n")
    with pytest.raises(params.ParamsError) as caught:
        params.read(path)
    assert "deterministic is 3; allowed: true or false" in str(caught.value)
    assert "at most 1048576" in str(caught.value)
