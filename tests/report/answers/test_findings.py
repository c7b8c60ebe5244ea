import re

import pytest
from builders import record, tables, three

from mptexp.report.answers import findings
from mptexp.report.tables import text_tables
from mptexp.report.text.wording import INCONCLUSIVE


@pytest.mark.parametrize(
    ("speedups", "verdict"),
    [
        (
            [2.0, 2.1, 1.9],
            "trains 2.00× faster than float32 (the default; 100 ms per step) at batch",
        ),
        (
            [0.5, 0.6, 0.55],
            "trains 1.82× slower than float32 (the default; 100 ms per step) at batch",
        ),
        (
            [0.9, 1.0, 1.1],
            "Inconclusive (the interval includes 1): **mixed_float16** 1.00× as fast as float32",
        ),
        (
            [2.0, 2.1],
            "Fewer than three repeats show nothing: **mixed_float16** 2.05× as fast as float32",
        ),
        (
            [0.5, 0.55],
            "Fewer than three repeats show nothing: **mixed_float16** 0.52× as fast as float32",
        ),
    ],
)
def test_the_answer_says_what_the_interval_allows(speedups, verdict):
    (speed, accuracy) = findings.answer(three("mixed_float16", speedups))
    assert verdict in speed
    assert "at batch size 32" in speed
    assert ("[" in speed) == (len(speedups) > 2)
    assert "emulates" not in speed
    assert accuracy.startswith("Validation accuracy is ")
    assert ": mean difference +0.0" in accuracy
    wanted, memory = (
        ("90.5 %", INCONCLUSIVE) if len(speedups) == 2 else ("91.0 %", "about the same")
    )
    assert f"{wanted} in the mean everywhere. Memory: {memory}" in accuracy


def test_emulation_is_the_reason_of_a_slowdown_only():
    slow = findings.answer(three("mixed_float16", [0.3, 0.31, 0.29], emulated=True))[0]
    assert "no float16 arithmetic and emulates it: slower is expected" in slow
    fast = findings.answer(three("mixed_float16", [3.0, 3.1, 2.9], emulated=True))[0]
    assert "slower is expected" not in fast


def test_float8_is_slower_for_another_reason():
    rows = [record(block=b, step_s=0.1) for b in range(3)]
    rows += [record("mixed_float16", b, 0.4, emulated=True) for b in range(3)]
    rows += [record("float8", b, 0.2, emulated=True, effective_share=0.72) for b in range(3)]
    said = findings.answer(tables(rows))[0]
    rounded = "72 % of the arithmetic on numbers rounded to float8_e4m3fn"
    assert f"**float8** ({rounded}) trains 2.00× slower" in said
    assert said.endswith(
        " This device has no float16 arithmetic and emulates it: slower is expected. Keras "
        "rounds to float8 and multiplies in bfloat16: slower is expected."
    )
    alone = three("float8", [0.3, 0.31, 0.29], emulated=True)
    assert "This device has no" not in findings.answer(alone)[0]


def test_missing_kernels_are_the_reason_of_a_slowdown_only():
    # "mixed_float16 trains 38× slower", of a CPU with float16 instructions, and no word of why.
    asked = {"reference": ["gradients of the weights of convolutions"]}
    slow = findings.answer(three("mixed_float16", [3.0, 3.1, 2.9], **asked))[0]
    assert "slower" not in slow
    slow = findings.answer(three("mixed_float16", [0.03, 0.031, 0.029], **asked))[0]
    said = "no float16 kernel here for gradients of the weights of convolutions: its reference code"
    assert slow.count(said) == 1


def test_what_is_proven_comes_first_and_what_is_emulated_last():
    rows = [record(block=b, step_s=0.1) for b in range(3)]
    rows += [record("mixed_float16", b, 0.4, emulated=True) for b in range(3)]
    rows += [record("mixed_bfloat16", b, 0.05) for b in range(3)]
    first, _, last = findings.answer(tables(rows))
    assert "**mixed_bfloat16** trains 2.00× faster" in first
    assert "**mixed_float16** trains 4.00× slower" in last


def test_one_policy_alone_is_told():
    assert "one of them float32" in findings.answer(tables([record("mixed_float16")]))[0]


def test_no_success_is_told():
    failed = record() | {"status": "failed"}
    assert "No run of this sweep succeeded" in findings.answer(tables([failed]))[0]


def test_a_default_that_was_not_measured_is_told():
    rows = [
        record(policy, block, step_s, default="tensorfloat32")
        for block in range(3)
        for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1))
    ]
    sentence = findings.answer(tables(rows))[0]
    assert "strict float32 (the default, TF32, was not measured; 200 ms per step)" in sentence
    assert "at batch size 32 [2.00, 2.00]" in sentence
    rows = text_tables.headline_rows(tables(rows))
    head = "Speed against strict float32 (the default, TF32, was not measured) [95 % interval]"
    assert head in rows


def test_a_ratio_over_float32_is_not_told_as_one_over_tf32():
    tf32 = {"default": "tensorfloat32"}
    rows = []
    for block in range(3):
        for size in (32, 512):
            rows.append(record("float32", block, 0.4, size, **tf32))
            rows.append(record("mixed_float16", block, 0.1, size, **tf32))
        rows.append(record("tensorfloat32", block, 0.2, 32, **tf32))  # none at 512: out of memory
    first = findings.answer(tables(rows))[0]
    assert "2.00× faster than TF32 (the default; 200 ms per step) at batch size 32 [" in first
    wanted = (
        "4.00× faster than strict float32 (the default, TF32, was not measured; 400 ms per step)"
    )
    assert wanted in first
    head = "Speed against the default, or strict float32 where it was not measured"
    assert [name for name in text_tables.headline_rows(tables(rows)) if name.startswith(head)]


def test_a_policy_that_is_effective_in_part_is_never_under_its_bare_name():
    made = three("mixed_bfloat16", [2.0, 2.1, 1.9], effective_share=0.7249)
    (sentence, *_) = findings.answer(made)
    assert "**mixed_bfloat16** (72 % of the arithmetic in bfloat16) trains 2.00× faster" in sentence
    (_, row) = text_tables.headline_rows(made).to_dict("records")
    assert row["Policy"] == "mixed_bfloat16 (72 % of the arithmetic in bfloat16)"


def test_a_policy_that_is_effective_has_its_bare_name():
    (sentence, *_) = findings.answer(three("mixed_bfloat16", [2.0, 2.1], effective_share=0.96))
    assert "**mixed_bfloat16** 2.05× as fast as" in sentence


def test_ratios_on_both_sides_of_1_that_prove_nothing_have_one_word():
    made = [
        record(policy, block, step_s, width=width)
        for block in range(2)
        for width, ratio in ((0.1, 5.0), (0.2, 4.0), (0.3, 3.0), (0.4, 0.5))
        for policy, step_s in (("float32", 0.1), ("mixed_float16", 0.1 * ratio))
    ]
    said = " ".join(findings.answer(tables(made)))
    assert "0.20× to 2.00× as fast as float32 (the default; 100 ms per step) in 4 settings" in said
    void = {"marks": ["measured while other programs used the processor"]}
    said = " ".join(findings.answer(tables([one | void for one in made])))
    wanted = "0.20× to 2.00× (**mixed_float16**, 4 settings) as fast as float32 (the default)"
    assert wanted in said


def test_beside_what_is_decided_few_that_are_open_are_named_and_the_rest_is_counted():
    marks = {"marks": ["measured while other programs used the processor"]}
    times = {8: (0.05, 0.05, 0.05), 16: (0.09, 0.11, 0.10), 32: (0.05, 0.05, 0.05)}
    rows = []
    for size, own in times.items():
        void = marks if size == 32 else {}
        for block, step_s in enumerate(own):
            rows.append(record("float32", block, 0.1, size))
            rows.append(record("mixed_bfloat16", block, step_s, size) | void)
    said = findings.answer(tables(rows))[0]
    assert said.startswith("**mixed_bfloat16** trains 2.00× faster than float32 (the default; ")
    # "Others: 1 inconclusive": which, and what may it be?
    named = r"\. Inconclusive: \*\*mixed_bfloat16\*\* 1\.00× as fast at batch size 16 \[[^]]+\]"
    assert re.search(named + r"\.$", said)
    unclear = [made for made in rows if made["parameters"]["batch_size"] != 8]
    said = findings.answer(tables(unclear))[0]
    assert said.startswith("Inconclusive (the interval includes 1): **mixed_bfloat16** 1.00× as ")
    assert said.endswith("].")  # what is not valid stands in the banner


def not_valid(size=32, **shares):
    """Three blocks of float32 and of policies, by how far they are effective; none is valid."""
    marks = {"marks": ["measured while other programs used the processor"]}
    policies = {"float32": 1.0, **shares}
    return [
        record(policy, block, 0.1 * place, size, effective_share=share) | marks
        for block in range(3)
        for place, (policy, share) in enumerate(policies.items(), 1)
    ]


def test_what_is_not_valid_is_one_short_sentence():
    said = findings.answer(tables(not_valid(mixed_bfloat16=0.92, float8=0.92)))[0]
    assert said == (
        "Measured, but not valid: 0.50× (**mixed_bfloat16**) and 0.33× (**float8**) as fast as "
        "float32 (the default) at batch size 32; each policy applies to 92 % of the arithmetic."
    )


def test_how_far_a_policy_is_effective_stands_beside_it_where_others_differ():
    said = findings.answer(tables(not_valid(mixed_bfloat16=0.5, float8=0.92)))[0]
    assert "0.50× (**mixed_bfloat16**, 50 % of the arithmetic in bfloat16) and" in said
    assert "0.33× (**float8**, 92 % of the arithmetic in float8_e4m3fn)" in said
    alone = findings.answer(tables(not_valid(mixed_bfloat16=0.5)))[0]
    assert "0.50× (**mixed_bfloat16**, 50 % of the arithmetic in bfloat16) as fast" in alone


def test_what_is_not_valid_in_several_places_names_or_counts_them():
    rows = not_valid(mixed_bfloat16=1.0) + not_valid(64, mixed_bfloat16=1.0, float8=1.0)
    assert (
        "0.50× (**mixed_bfloat16**, 2 settings) and 0.33× (**float8**, batch size 64) as fast"
        in findings.answer(tables(rows))[0]
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "This device has no bfloat16 arithmetic"),
        # The lie: "this device has no", of one that may not use what it has.
        ({"cpu_isa": "avx2"}, "What the run may use of this device has no bfloat16 arithmetic"),
    ],
)
def test_what_lacks_the_arithmetic_is_named(asked, said):
    rows = [
        record(p, b, s, emulated=p != "float32")
        for p, s in (("float32", 0.1), ("mixed_bfloat16", 0.3))
        for b in range(3)
    ]
    for made in rows:
        made["parameters"] |= asked
    assert said in " ".join(findings.answer(tables(rows)))


def with_scale(policy, scale, status="ok", accuracy=0.9):
    for block in range(3):
        made = record(policy, block, 0.1)
        made["parameters"] |= {"loss_scale": scale}
        made["run_id"] = f"{policy}-{scale}-{block}"
        made["history"][0]["val_accuracy"] = accuracy
        yield made if status == "ok" else made | {"status": status, "history": [], "timing": {}}


def test_a_policy_some_of_whose_runs_ended_well_was_measured():
    # The lie: "only float32 was measured", beside runs of mixed_float16 with another loss scale.
    rows = [*with_scale("float32", "none"), *with_scale("mixed_float16", 8.0)]
    some = tables([*rows, *with_scale("mixed_float16", 64.0, "timeout")])
    assert findings.ended(some) == "mixed_float16 took too long in 3 of 6 runs at batch size 32"
    alone = tables([*rows[:3], *with_scale("mixed_float16", 64.0, "timeout")])
    assert findings.ended(alone).endswith(
        "took too long at batch size 32; only float32 was measured"
    )


def test_of_two_devices_it_is_said_on_which_runs_ended():
    # The lie: "float32 ran out of memory in 3 of 6 runs", as if it had been on both.
    rows = [*with_scale("float32", "none"), *with_scale("mixed_float16", 8.0)]
    for made in (lost := list(with_scale("float32", "none", "oom"))):
        made["parameters"] = made["parameters"] | {"gpu_model": "P100"}
        made["run_id"] += "-P100"
    said = findings.ended(tables([*rows, *lost]))
    assert said.startswith("float32 ran out of memory in 3 of 6 runs on P100 at batch size 32")


@pytest.mark.parametrize(
    ("met", "how"),
    [
        ({"oom": 3}, "all ran out of memory"),
        ({"failed": 2, "killed": 1}, "2 failed and 1 was killed"),
        ({"unsupported": 3}, "none is supported"),
    ],
)
def test_a_policy_without_any_result_is_named(met, how):
    # The lie: "keep float32", of three policies, and of one that never ran to its end nothing.
    rows = [*three("mixed_float16", (1.0, 1.01, 0.99)).records]
    ended = [status for status, n in met.items() for _ in range(n)]
    for block, status in enumerate(ended):
        rows.append(record("float16", block) | {"status": status, "error": status, "history": []})
        rows[-1]["timing"] = {}
    said = findings.answer(tables(rows))
    assert said[0].endswith(f" No run of **float16** ended well: {how}.")
    one = [*rows, record("float16", 5)]
    assert "ended well" not in " ".join(findings.answer(tables(one)))
