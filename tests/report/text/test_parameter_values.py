"""Values of parameters are said in plain words, in one way."""

import numpy as np
import pytest

from mptexp.report.text import glossary, parameter_values
from mptexp.spec.run import Run


@pytest.mark.parametrize("row", parameter_values.ROWS, ids=lambda row: row.words)
def test_each_is_a_value_that_a_params_file_may_have(row):
    allowed = Run.model_fields[row.name].annotation.__args__
    assert row.value in allowed
    assert "'" not in row.words


@pytest.mark.parametrize("name", ["input_mode", "normalization", "frontend"])
def test_no_value_is_forgotten(name):
    known = {row.value for row in parameter_values.ROWS if row.name == name}
    usual = {"batch"}  # not named beside others, see records.tables
    assert known | usual >= set(Run.model_fields[name].annotation.__args__)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("jit", True, "with XLA"),
        ("jit", np.False_, "without XLA"),
        ("jit", "off", "without XLA"),
        ("input_mode", "resident", "one batch kept on the device"),
        ("replicas", 1, "replicas 1"),
        ("memory_limit_gb", None, "no memory limit"),
        ("memory_limit_gb", 2.0, "at most 2 GB of memory"),
        ("depth", None, "usual depth"),
        ("max_steps", None, "no max steps"),
        ("batch_size", 32, "batch size 32"),
        ("clip_norm", None, "gradients not clipped"),
        ("clip_norm", 0.5, "gradients clipped to norm 0.5"),
    ],
)
def test_a_value_is_in_words_or_behind_its_name(name, value, words):
    assert parameter_values.in_words(name, value) == words


def test_further_parameters_are_in_words_too():
    text = parameter_values.setting_in_words("normalization fused, loss_scale 8")
    assert text == "fused batch normalization, loss_scale 8"
    assert parameter_values.setting_in_words("") == ""


def test_a_page_explains_the_words_and_says_how_to_ask_for_them():
    page = "<main><p>Where nothing else is said: prefetched input.</p></main>"
    made = glossary.explained(page)
    assert ">prefetched input</abbr>" in made
    assert "In a params file: input_mode: pipeline." in made
