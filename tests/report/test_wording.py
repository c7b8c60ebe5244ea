import math

import pandas as pd
import pytest
from builders import record, tables, three

from mptexp.report import text_tables, wording


@pytest.mark.parametrize(
    ("speedups", "verdict"),
    [
        ([2.0, 2.1, 1.9], "makes training steps faster than TensorFlow's default there, float32"),
        ([0.5, 0.6, 0.55], "makes training steps slower"),
        ([0.9, 1.0, 1.1], "neither measurably faster nor slower"),
        ([2.0, 2.1], "was measured too few times"),
    ],
)
def test_the_answer_says_what_the_interval_allows(speedups, verdict):
    (sentence, level) = wording.answer(three("mixed_float16", speedups))
    assert verdict in sentence
    assert "at batch size 32" in sentence
    assert f"(n = {len(speedups)})" in sentence or "no interval" in sentence
    assert "emulates" not in sentence
    assert "; it takes about as much memory; its validation accuracy is " in sentence
    assert "(mean difference +0.0 percentage points)" in sentence
    wanted = "90.5 %" if len(speedups) == 2 else "91.0 %"
    assert level == f"Mean validation accuracy is {wanted} everywhere."


def test_emulation_is_the_reason_of_a_slowdown_only():
    slow = wording.answer(three("mixed_float16", [0.3, 0.31, 0.29], emulated=True))[0]
    assert "emulates it: slower is expected" in slow
    fast = wording.answer(three("mixed_float16", [3.0, 3.1, 2.9], emulated=True))[0]
    assert "slower is expected" not in fast


def test_one_policy_alone_is_told():
    assert "needs float32" in wording.answer(tables([record("mixed_float16")]))[0]


def test_no_success_is_told():
    failed = record() | {"status": "failed"}
    assert "No run of this sweep succeeded" in wording.answer(tables([failed]))[0]


def test_runs_that_are_left_out_are_told():
    rows = [record(), record("float16") | {"status": "diverged"}, record("float16", 1)]
    sentences = wording.answer(tables(rows))
    assert (
        "Left out of the figures: 1 of 2 runs of float16, which ended as *diverged*." in sentences
    )
    assert not any("nan" in sentence for sentence in sentences)


def test_a_default_that_was_not_measured_is_told():
    rows = [
        record(policy, block, step_s, default="tensorfloat32")
        for block in range(3)
        for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1))
    ]
    sentence = wording.answer(tables(rows))[0]
    assert "faster than strict float32 (the default there, TF32, was not measured)" in sentence
    assert "2.00× [2.00, 2.00] (n = 3)" in sentence
    rows = text_tables.headline_rows(tables(rows))
    assert "Speedup over strict float32 (default TF32 not measured) [95 % interval]" in rows


def test_what_varies_stands_in_the_table():
    rows = text_tables.headline_rows(tables([record(), record(width=2.0)]))
    assert rows.Setting.tolist() == ["width 1", "width 2"]


def test_a_memory_that_is_not_known_is_not_made_up():
    rows = text_tables.headline_rows(tables([record() | {"peak_memory_bytes": None}]))
    assert "Peak memory" not in rows
    both = tables([record(), record("mixed_float16") | {"peak_memory_bytes": None}])
    assert text_tables.headline_rows(both)["Peak memory"].tolist() == ["1,024 MiB", "–"]


def test_grammar():
    assert wording.count(1, "run") == "1 run"
    assert wording.count(1200, "run") == "1,200 runs"
    assert wording.listed(["a"]) == "a"
    assert wording.listed(["a", "b", "c"]) == "a, b and c"
    assert wording.ratio(2, math.nan, math.nan, 1) == "2.00× (no interval, n = 1)"
    assert wording.ratio(2, 1.9, 2.1, 3) == "2.00× [1.90, 2.10] (n = 3)"


def test_the_baseline_is_named_in_the_column_head():
    rows = text_tables.headline_rows(three("mixed_float16", [2.0, 2.1, 1.9]))
    assert "Speedup over the default, strict float32 [95 % interval]" in rows
    both = tables(
        [record(default="tensorfloat32"), record("tensorfloat32", default="tensorfloat32")]
    )
    rows = text_tables.headline_rows(both)
    assert "Speedup over the default, TF32 [95 % interval]" in rows
    assert "Speedup over strict float32" in rows


def test_no_ratio_stands_without_its_interval_and_n():
    text = text_tables.markdown(text_tables.headline_rows(three("mixed_float16", [2.0, 2.1, 1.9])))
    for line in text.splitlines():
        if "×" in line:
            assert "[" in line
            assert "(n = 3)" in line


def test_a_ratio_over_float32_is_not_told_as_one_over_tf32():
    tf32 = {"default": "tensorfloat32"}
    rows = []
    for block in range(3):
        for size in (32, 512):
            rows.append(record("float32", block, 0.4, size, **tf32))
            rows.append(record("mixed_float16", block, 0.1, size, **tf32))
        rows.append(record("tensorfloat32", block, 0.2, 32, **tf32))  # none at 512: out of memory
    found = [s for s in wording.answer(tables(rows)) if "**mixed_float16** makes" in s]
    (over_tf32,) = [s for s in found if "than TensorFlow's default there, TF32" in s]
    (over_float32,) = [s for s in found if "than strict float32" in s]
    assert "2.00×" in over_tf32
    assert "4.00×" not in over_tf32
    assert "4.00×" in over_float32
    head = "Speedup over the default, or over strict float32 where it was not measured"
    assert [name for name in text_tables.headline_rows(tables(rows)) if name.startswith(head)]


def test_whether_xla_was_on_is_said_in_words():
    table = three("mixed_float16", [2.0, 2.1, 1.9]).speedups
    both = pd.concat([table.assign(jit=False), table.assign(jit=True)], ignore_index=True)
    assert list(wording.panels(both).str.rpartition(", ")[2].unique()) == [
        "without XLA",
        "with XLA",
    ]
    headed = wording.headed(both, ["jit", "batch_size"])
    assert (list(headed), list(headed["XLA"].unique())) == (["XLA", "Batch size"], ["off", "on"])


def test_panels_are_told_apart_by_what_varies():
    rows = [record(), record(width=2.0)]
    assert set(wording.panels(tables(rows).results)) == {"GPU, width 1", "GPU, width 2"}
    assert set(wording.panels(tables(rows[:1]).results)) == {"GPU"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(4312.7, "4,310"), (999.6, "1,000"), (99.94, "99.9"), (0.35349, "0.353"), (0, "0"),
     (1.5e-3, "0.0015"), (123456789, "123,000,000")],
)  # fmt: skip
def test_numbers_are_told_with_three_digits(value, text):
    assert wording.digits(value) == text
