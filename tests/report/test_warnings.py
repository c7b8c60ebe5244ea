import shutil

import pytest
from builders import record, tables
from support import PROJECT, mptexp

from mptexp.report import warnings

QUICKSTART = PROJECT / "reports/published/quickstart-cpu"


def three(**changes):
    """Three blocks of two policies; changes are of mixed_float16's records."""
    for block in range(3):
        yield record(block=block)
        yield record("mixed_float16", block, 0.05) | changes


def test_a_sweep_that_is_valid_has_no_warning():
    assert warnings.sentences(tables(list(three()))) == []


def test_a_flag_says_how_many_runs_why_what_is_lost_and_what_to_do():
    marks = ["measured while other programs used the processor"]
    (sentence,) = warnings.sentences(tables(list(three(marks=marks))))
    assert sentence == (
        "**Not valid: interference** (3 of 6 runs): other programs were at work. Nothing is "
        "claimed of their time; end them, and `mptexp run --repair` measures the block again."
    )


def test_what_differs_is_named_with_both_values():
    identity = record()["identity"] | {"model_source": "1f2e", "versions": {"keras": "3.16"}}
    sentence, flag = warnings.sentences(tables(list(three(identity=identity))))
    assert "the source of the model (" in sentence
    assert "versions keras (" in sentence
    assert "They form no ratio." in sentence
    assert flag.startswith("**Not valid: not comparable**")


def test_text_of_a_record_is_shown_not_obeyed():
    identity = record()["identity"] | {"cpu": "*bold* [x](http://y) <b>"}
    sentence, _ = warnings.sentences(tables(list(three(identity=identity))))
    assert "\\*bold\\*" in sentence
    assert "\\[x\\](http\\:" in sentence


@pytest.mark.parametrize("edited", [False, True])
def test_check_says_what_is_not_valid_and_fails(tmp_path, edited):
    place = tmp_path / "sweep"
    shutil.copytree(QUICKSTART, place)
    for path in place.glob("runs/*/record.json") if edited else ():
        path.write_text(path.read_text().replace('"identity"', '"other"'))
    done = mptexp("report", place, "--check", cwd=tmp_path)
    assert done.returncode == int(edited)
    assert ("identity not recorded" in done.stdout) == edited
    assert "Traceback" not in done.stderr
