"""What is said of loss scales."""

from builders import loss_scaled, several_scales, tables

from mptexp.analysis import loss_scale
from mptexp.report.answers import loss_scales


def test_the_sentence_says_all_of_it():
    sentences = loss_scales.sentences(loss_scale.table(several_scales()))
    assert (
        "**mixed_float16** trains as float32 does with a loss scale of 1, falls behind float32 "
        "with 2⁻¹⁶, diverges with 2²⁴ and trains under the dynamic scale (4 skipped steps, median)."
    ) in sentences


def test_the_table_names_what_was_not_finite_first():
    text = loss_scales.text(loss_scale.table(several_scales()))
    assert "diverged, 2 of 3: trained again, the first was the loss, in step 3" in set(text.Finding)


def test_an_interval_that_says_nothing_is_no_training():
    found = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
    found += [loss_scaled("float16", 8.0, b, a) for b, a in enumerate((0.4, 0.8, 0.85))]
    found += [loss_scaled("float16", s, 0, 0.97) for s in (1.0, 2.0, 4.0)]
    rows = loss_scale.table(tables(found))
    assert rows.verdict.tolist()[-1] == "undecided"
    (sentence,) = loss_scales.sentences(rows)
    # Published once: "trains as float32 does" beside "undecided" in the table.
    assert "trains" not in sentence
    assert "float16** is inconclusive with 1 to 8." in sentence
