"""Documents that a YAML library would build, wait for or never end."""

from pathlib import Path

import numpy as np
import pytest
from fuzz import answering
from ruamel.yaml.error import YAMLError

from mptexp.spec import yaml_documents


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x: &a {<<: *a}", "what its tag, anchor or alias says"),
        ("!!bool x", "what its tag, anchor or alias says"),
        ("? [1]\n: 2", "a key is a list"),
        ("? {a: 1}\n: 2", "a key is a mapping"),
        ("2024-01-01: 2", "a key is a date"),
        ("1: 2", "a key is a number"),
        ("a: 2024-01-01T10:00:00Z", "a value is a date"),
        ("a: !!binary aGk=", "a value is binary"),
        ("a: !!set {b}", "allowed: texts, numbers"),
        ('a: "\\ud800"', "half a character"),
        ("a: 0x" + "f" * 5000, "more than 300 digits"),
        ("a: " + "[" * 5500, "nested too deeply"),
        ("- " * 5500, "nested too deeply"),
        ("x" * 2_000_000, "more than 1,048,576 characters"),
        ("a: &a [" + "x," * 1000 + "]\nb: [" + "*a," * 60 + "]", "more than 50,000 values"),
    ],
)
def test_what_is_no_plain_document_is_refused_in_a_sentence(text, problem):
    with pytest.raises(YAMLError) as caught:
        yaml_documents.load(text)
    assert problem in caught.value.problem


@pytest.mark.parametrize("unit", ["1,", "[],", "{a: 1},", "&a 1,"])
def test_a_file_of_many_values_is_refused_before_they_are_made(unit, monkeypatch):
    monkeypatch.setattr(yaml_documents, "MOST_VALUES", 5_000)  # at ten times as many, half a minute
    text = f"a: [\n{unit * (1_000_000 // len(unit))}]"
    with answering(), pytest.raises(YAMLError) as caught:
        yaml_documents.load(text)
    assert caught.value.problem == "more than 5,000 keys and values"
    assert caught.value.problem_mark.line == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" a #b ", "a #b "),
        ("3 #2", "3 #2"),
        ("#x", "#x"),
        ("'a' #b", "a"),
        ("[a, 'b #c'] # d", ["a", "b #c"]),
        (" 1e-3 ", 0.001),
        ("false", False),
        ("", None),
    ],
)
def test_a_plain_word_is_the_whole_text_and_all_else_is_yaml(text, value):
    assert yaml_documents.plain(yaml_documents.word(text)) == value


def test_a_file_of_yaml_1_1_is_read_without_a_warning(recwarn):
    text = "%YAML 1.1\n---\nlearning_rate: 1e-3\n"
    assert yaml_documents.content(text) == {"learning_rate": 0.001}
    assert not recwarn.list


def test_an_anchor_may_be_given_again():
    assert yaml_documents.plain(yaml_documents.load("a: &x 1\nb: &x 2\nc: *x\n")) == {
        "a": 1,
        "b": 2,
        "c": 2,
    }


def test_the_line_of_a_wrong_tag_is_known():
    with pytest.raises(YAMLError) as caught:
        yaml_documents.load("a: 1\nb:\n  c: !!bool x\n")
    assert caught.value.problem_mark.line == 2


def test_a_refusal_knows_its_line():
    with pytest.raises(YAMLError) as caught:
        yaml_documents.load("a: 1\nb:\n  c: 2024-01-01\n")
    assert caught.value.problem_mark.line == 2


def test_a_document_is_plain_and_written_as_it_was():
    text = "a: &x {b: 1.50, 'c': [true, null]} # why\nd: {<<: *x, e: 'é'}\n"
    document = yaml_documents.load(text)
    assert yaml_documents.plain(document) == {
        "a": {"b": 1.5, "c": [True, None]},
        "d": {"b": 1.5, "c": [True, None], "e": "é"},
    }
    assert yaml_documents.dump(document) == text


def test_what_a_cell_gives_is_native():
    given = {"a": np.float32(0.5), "b": (Path("x"), {2, 1}), "c": [np.array([[True]]), None, "é"]}
    assert yaml_documents.native(given) == {
        "a": 0.5,
        "b": ["x", [1, 2]],
        "c": [[[True]], None, "é"],
    }
    strange = object()
    assert yaml_documents.native(strange) is strange


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "  # dataset: folder:/mnt/clinic/alice/patients_2024",
            "  # dataset: folder:patients_2024",
        ),
        ("a: 1  # as in /srv/users/alice/train.py, ~/acme/x", "a: 1  # as in train.py, x"),
        ("# D:\\people\\alice\\x and ~alice/y/z", "# x and z"),
        ("title: what /home/alice/old/net gave", "title: what net gave"),
        ("a: [\n  dataset: folder:/mnt/clinic/alice/x", "a: [\n  dataset: folder:x"),  # no YAML
        ("# https://example.com/a/b, images/s, 1/2/3, /tmp", None),
        ("base: {dataset: 'folder:/one'}  # 50 %", "base: {dataset: 'folder:one'}  # 50 %"),
    ],
)
def test_no_path_of_several_parts_is_published(text, left):
    assert yaml_documents.published(text) == (text if left is None else left)


def test_a_path_that_is_written_otherwise_takes_no_comment_with_it():
    # Published without its question and what was set, where YAML had folded the path.
    opening = "# Question: Is it?\n# Set when it was run: dataset\n"
    path = "dataset: folder:/home/alice/a long\n    name/pics\n"
    made = yaml_documents.published(f"{opening}defaults:\n  {path}")
    assert made.startswith(opening)
    assert "alice" not in made
    assert yaml_documents.content(made) == {"defaults": {"dataset": "folder:pics"}}
