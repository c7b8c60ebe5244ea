"""Loss scales: what is said of policies that stall, train and diverge."""

import pytest

from mptexp.analysis import loss_scale
from mptexp.analysis.sweep_tables import Tables
from mptexp.records.tables import history_table, results_table
from mptexp.spec.run import Run

ERROR = "the loss was not finite in epoch 1; trained again, the first was the loss, in step 3"


def record(policy, scale, block, accuracy, skipped=None):
    bad = accuracy is None
    return {
        "run_id": f"{abs(hash((policy, scale, block))):012x}"[:12],
        "status": "diverged" if bad else "ok",
        "error": ERROR if bad else "",
        "parameters": Run(policy=policy, loss_scale=scale, block=block, seed=block).model_dump(),
        "history": [{"epoch": 1, "val_accuracy": accuracy}],
        "loss_scales": [{"step": 9, "loss_scale": 8.0, "skipped": skipped}] if skipped else [],
        **({"skipped_steps": skipped} if skipped else {}),
    }


def tables(records):
    return Tables(results_table(records, "s"), history_table(records), None, records, [])


@pytest.fixture
def sweep():
    found = [record("float32", "none", b, 0.98 + b / 1000) for b in range(3)]
    found += [record("mixed_float16", 1.0, b, 0.981 + b / 1000) for b in range(3)]
    found += [record("mixed_float16", 2.0**-16, b, 0.3 + b / 100) for b in range(3)]
    found += [record("mixed_float16", 2.0**24, b, None if b else 0.97) for b in range(3)]
    found += [record("mixed_float16", "auto", b, 0.98, skipped=4) for b in range(3)]
    return tables(found)


def test_scales_stall_train_or_diverge(sweep):
    rows = loss_scale.table(sweep)
    mixed = rows[rows.policy == "mixed_float16"]
    assert list(mixed.loss_scale) == [2.0**-16, 1.0, 2.0**24, "dynamic"]
    assert list(mixed.verdict) == ["lower", "equal", "diverged", "equal"]
    assert list(mixed.blocks) == [3, 3, 1, 3]
    assert mixed.difference.iloc[1] == pytest.approx(0.001)
    assert loss_scale.ranges(mixed) == ([2.0**-16], [1.0], [2.0**24])
    assert mixed.skipped.iloc[3] == 4


def test_the_sentence_says_all_of_it(sweep):
    told = loss_scale.sentences(loss_scale.table(sweep))
    assert (
        "**mixed_float16** trains as float32 does with a loss scale of 1, falls behind float32 "
        "with 2⁻¹⁶, diverges with 2²⁴ and trains under the dynamic scale (4 skipped steps, median)."
    ) in told


def test_the_table_names_what_was_not_finite_first(sweep):
    text = loss_scale.text(loss_scale.table(sweep))
    assert "diverged, 2 of 3: trained again, the first was the loss, in step 3" in set(text.Finding)


def test_an_interval_that_says_nothing_is_no_training():
    found = [record("float32", "none", b, 0.98) for b in range(3)]
    found += [record("float16", 8.0, b, a) for b, a in enumerate((0.4, 0.8, 0.85))]
    found += [record("float16", s, 0, 0.97) for s in (1.0, 2.0, 4.0)]
    rows = loss_scale.table(tables(found))
    assert rows.verdict.tolist()[-1] == "undecided"
    (sentence,) = loss_scale.sentences(rows)
    assert "loss scale of 1 to 4 and falls behind float32 with 8." in sentence


def test_one_scale_is_no_comparison():
    found = [record("float32", "auto", 0, 0.9), record("mixed_float16", "auto", 0, 0.9)]
    assert loss_scale.table(tables(found)).empty


def test_too_few_repeats_still_tell_a_stall_from_a_training():
    found = [record("float32", "none", 0, 0.98), record("float16", 1.0, 0, 0.3)]
    found += [record("float16", 8.0, 0, 0.97)]
    rows = loss_scale.table(tables(found))
    assert loss_scale.ranges(rows[rows.policy == "float16"]) == ([1.0], [8.0], [])
