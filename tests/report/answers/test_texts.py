"""What a report says of trainings on text."""

import numpy as np
import pytest
from builders import tables, text

from mptexp.report.answers import findings
from mptexp.report.figures import learning, speed
from mptexp.report.first_screen import question
from mptexp.report.tables import summary_tables, text_tables
from mptexp.spec import tasks


@pytest.fixture(scope="module")
def made():
    random = np.random.default_rng(0)
    sequences = random.normal(0, 0.3, 40)
    sequences -= sequences.mean()
    return tables(
        [
            text(policy, block, 2.0 + more, step_s=step_s * 1.01**block, sequences=sequences)
            for block in range(3)
            for policy, step_s, more in (("float32", 0.2, 0.0), ("mixed_bfloat16", 0.1, 0.001))
        ]
    )


def test_sentences_speak_of_perplexity(made):
    said = " ".join(findings.answer(made))
    assert "Validation perplexity is equal within 1 %" in said
    assert "mean difference +0.1 [+0.1, +0.1] % of perplexity" in said
    assert "float32 7.39 and mixed_bfloat16 7.40" in said
    assert "accuracy" not in said
    assert question.of(made).title.endswith(", at equal perplexity")


def test_tables_have_tokens_and_perplexity(made):
    rows = text_tables.headline_rows(made)
    assert rows["Tokens/s"].tolist() == ["20,277", "40,554"]
    assert rows["Validation perplexity"].tolist() == ["7.39 (7.39–7.39)", "7.40 (7.40–7.40)"]
    assert not {"Images/s", "Validation accuracy"} & {*rows}
    (row,) = text_tables.accuracy_rows(made).to_dict("records")
    assert row["Difference, % of perplexity [95 % interval]"].startswith("+0.1 [")
    assert row["Finding"] == "equal within 1 %"
    assert summary_tables.accuracy_rows(made)[1] == ""


def test_figures_show_tokens_and_perplexity(made):
    axis = learning.validation(made, tasks.TOKENS).axes[0]
    assert axis.get_ylabel() == "validation perplexity"
    heights = np.concatenate([line.get_ydata() for line in axis.lines])
    assert heights.min() == pytest.approx(np.exp(2.0))
    rates = speed.rates_by_batch_size(made, tasks.TOKENS)
    assert "tokens per second" in rates.axes[0].get_ylabel()
