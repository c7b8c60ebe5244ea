import pytest
from builders import three

from mptexp.records.sweep_dir import SweepDir
from mptexp.report import answer
from mptexp.report.measured import MeasuredSweep


@pytest.fixture
def sweep(tmp_path):
    return MeasuredSweep(SweepDir(tmp_path / "mine"), three("mixed_float16", [2.0, 2.1, 1.9]))


def test_title_and_first_sentence_are_those_of_the_sweep(sweep):
    assert answer.title(sweep) == "mine on GPU"
    first = answer.sentences(sweep.tables)[0]
    assert "mixed_float16" in first
    assert answer.first_html(sweep).startswith("<p>")
    assert "<strong>mixed_float16</strong>" in answer.first_html(sweep)


def test_what_is_shared_is_plain_text(sweep):
    card = answer.card(sweep)
    assert card["og:title"] == "What does reduced precision buy on this device?"
    assert "mixed_float16" in card["og:description"]
    assert not set("<>*") & set(card["og:description"])
