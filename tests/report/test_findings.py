import pytest
from builders import record, tables, three

from mptexp.report import findings, text_tables


@pytest.mark.parametrize(
    ("speedups", "verdict"),
    [
        ([2.0, 2.1, 1.9], "trains 2.00× faster than float32 (the default) at batch size 32 ["),
        ([0.5, 0.6, 0.55], "trains 1.82× slower than float32 (the default) at batch size 32 ["),
        ([0.9, 1.0, 1.1], "against float32 (the default) is inconclusive: the interval includes 1"),
        ([2.0, 2.1], "against float32 (the default) is inconclusive: fewer than three repeats"),
    ],
)
def test_the_answer_says_what_the_interval_allows(speedups, verdict):
    (sentence, level) = findings.answer(three("mixed_float16", speedups))
    assert verdict in sentence
    assert "at batch size 32" in sentence
    assert f"(n = {len(speedups)})" in sentence or "no interval" in sentence
    assert "emulates" not in sentence
    assert "; it takes about as much memory; its validation accuracy is " in sentence
    assert "(mean difference +0.0 percentage points)" in sentence
    wanted = "90.5 %" if len(speedups) == 2 else "91.0 %"
    assert level == f"Mean validation accuracy is {wanted} everywhere."


def test_emulation_is_the_reason_of_a_slowdown_only():
    slow = findings.answer(three("mixed_float16", [0.3, 0.31, 0.29], emulated=True))[0]
    assert "emulates it: slower is expected" in slow
    fast = findings.answer(three("mixed_float16", [3.0, 3.1, 2.9], emulated=True))[0]
    assert "slower is expected" not in fast


def test_one_policy_alone_is_told():
    assert "needs float32" in findings.answer(tables([record("mixed_float16")]))[0]


def test_no_success_is_told():
    failed = record() | {"status": "failed"}
    assert "No run of this sweep succeeded" in findings.answer(tables([failed]))[0]


def test_runs_that_are_left_out_are_told():
    rows = [record(), record("float16") | {"status": "diverged"}, record("float16", 1)]
    sentences = findings.answer(tables(rows))
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
    sentence = findings.answer(tables(rows))[0]
    assert "2.00× faster than strict float32 (the default, TF32, was not measured)" in sentence
    assert "at batch size 32 [2.00, 2.00] (n = 3)" in sentence
    rows = text_tables.headline_rows(tables(rows))
    assert "Speedup over strict float32 (default TF32 not measured) [95 % interval]" in rows


def test_a_ratio_over_float32_is_not_told_as_one_over_tf32():
    tf32 = {"default": "tensorfloat32"}
    rows = []
    for block in range(3):
        for size in (32, 512):
            rows.append(record("float32", block, 0.4, size, **tf32))
            rows.append(record("mixed_float16", block, 0.1, size, **tf32))
        rows.append(record("tensorfloat32", block, 0.2, 32, **tf32))  # none at 512: out of memory
    found = [s for s in findings.answer(tables(rows)) if "**mixed_float16** trains" in s]
    (over_tf32,) = [s for s in found if "than TF32 (the default)" in s]
    (over_float32,) = [s for s in found if "than strict float32" in s]
    assert "2.00×" in over_tf32
    assert "4.00×" not in over_tf32
    assert "4.00×" in over_float32
    head = "Speedup over the default, or over strict float32 where it was not measured"
    assert [name for name in text_tables.headline_rows(tables(rows)) if name.startswith(head)]


def test_a_policy_that_is_effective_in_part_is_never_under_its_bare_name():
    made = three("mixed_bfloat16", [2.0, 2.1, 1.9], effective_share=0.7249)
    (sentence, *_) = findings.answer(made)
    assert "**mixed_bfloat16** (72 % of the arithmetic in bfloat16) trains 2.00× faster" in sentence
    (_, row) = text_tables.headline_rows(made).to_dict("records")
    assert row["Policy"] == "mixed_bfloat16 (72 % of the arithmetic in bfloat16)"


def test_a_policy_that_is_effective_has_its_bare_name():
    (sentence, *_) = findings.answer(three("mixed_bfloat16", [2.0, 2.1], effective_share=0.96))
    assert "**mixed_bfloat16** against" in sentence
