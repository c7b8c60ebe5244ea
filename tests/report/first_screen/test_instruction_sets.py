"""How sweeps of instruction sets open."""

import copy

from builders import reaching, record, tables

from mptexp.report.answers import caveats
from mptexp.report.first_screen import question


def by_isa(**asked):
    """float32 and bfloat16 under the default instruction sets, and float32 without most of them."""
    rows = []
    for policy, isa, step_s in (
        ("float32", "default", 0.1),
        ("mixed_bfloat16", "default", 0.05),
        ("float32", "sse41", 0.4),
    ):
        for block in range(3):
            made = record(policy, block, step_s)
            made["parameters"] |= {"cpu_isa": isa, "gpu_model": "Some (CPU)"}
            made["run_id"] = f"{policy}-{isa}-{block}"
            made["identity"] = made["identity"] | (asked if isa == "sse41" else {})
            rows.append(made)
    return tables(rows)


def test_instruction_sets_open_with_the_ratio_between_them():
    answer = question.of(by_isa())
    assert answer.title.startswith(
        "float32 with SSE4.1 is 4.00× slower and mixed_bfloat16 with all instruction sets is 2.00× "
        "faster than float32 with all instruction sets"
    )
    assert answer.advice == r"use mixed\_bfloat16 with all instruction sets."
    assert [bar.finding for bar in answer.bars] == ["slower", "faster"]


def test_what_a_policy_needs_to_be_faster_is_the_title():
    rows = by_isa().records
    pattern = [row for row in rows if row["parameters"]["policy"] == "mixed_bfloat16"]
    for isa, step_s in (("avx512_core", 0.25), ("avx512_core_bf16", 0.0501)):
        for made in copy.deepcopy(pattern):
            made["run_id"] += isa
            made["parameters"]["cpu_isa"] = isa
            made["timing"] |= {"step_s": step_s, "images_per_s": 32 / step_s}
            rows.append(made)
    answer = question.of(tables(rows))
    assert answer.title == (
        "mixed_bfloat16 is 2.00× faster than float32 on Some (CPU) thanks to AVX512_BF16, "
        "and 2.50× slower with AVX512 alone"
    )
    assert answer.advice == (
        "on this CPU use **mixed_bfloat16** with AVX512_BF16, else float32; another CPU with the "
        "same instructions may do otherwise."
    )
    assert [bar.label.partition(" with ")[2] for bar in answer.bars] == [
        "SSE4.1",
        "AVX512",
        "AVX512_BF16",
        "all instruction sets",
    ]


def test_all_instruction_sets_of_a_cpu_are_called_by_what_the_type_needs_of_them():
    # "thanks to all instruction sets, and not valid with cpu isa avx512_core_amx alone".
    rows = by_isa().records
    pattern = [row for row in rows if row["parameters"]["policy"] == "mixed_bfloat16"]
    for isa, step_s in (("avx512_core_bf16", 0.125), ("avx512_core_amx", 0.051)):
        for made in copy.deepcopy(pattern):
            made["run_id"] += isa
            made["parameters"]["cpu_isa"] = isa
            made["timing"] |= {"step_s": step_s, "images_per_s": 32 / step_s}
            busy = ["measured while other programs used the processor"]
            made["marks"] = busy * (isa == "avx512_core_amx")
            rows.append(made)
    for made in rows:
        made["environment"] = {"instruction_sets": ["avx512_bf16", "avx512_fp16", "amx_bf16"]}
    answer = question.of(tables(rows))
    assert answer.title == (
        "mixed_bfloat16 is 2.00× faster than float32 on Some (CPU) thanks to AMX, "
        "and 1.25× slower with AVX512_BF16 alone"
    )
    assert answer.advice.startswith("on this CPU use **mixed_bfloat16** with AMX, else float32")


def test_instruction_sets_of_other_models_are_not_compared():
    answer = question.of(by_isa(model_source="edited"))
    assert [bar.finding for bar in answer.bars] == ["faster"]
    assert answer.title.startswith("mixed_bfloat16 with all instruction sets is 2.00× faster")
    (said,) = caveats.sentences(by_isa(model_source="edited"))
    assert "the source of the model" in said


def test_what_a_larger_instruction_set_adds_is_not_the_smallers():
    # The lie: "3.00× faster thanks to AVX512_BF16", of what AMX gives.
    rows = by_isa().records
    pattern = [row for row in rows if row["parameters"]["policy"] == "mixed_bfloat16"]
    for isa, step_s in (("avx512_core", 0.25), ("avx512_core_bf16", 0.08)):
        for made in copy.deepcopy(pattern):
            made["run_id"] += isa
            made["parameters"]["cpu_isa"] = isa
            made["timing"] |= {"step_s": step_s, "images_per_s": 32 / step_s}
            rows.append(made)
    assert question.of(tables(rows)).title == (
        "mixed_bfloat16 is 1.25× faster than float32 on Some (CPU) thanks to AVX512_BF16, "
        "and 2.50× slower with AVX512 alone; 2.00× faster with all instruction sets"
    )


def test_a_policy_that_loses_accuracy_is_not_advised_for_its_speed():
    rows = by_isa().records
    for made in rows:
        if made["parameters"]["policy"] == "mixed_bfloat16":
            made["history"][-1]["val_accuracy"] -= 0.4
    answer = question.of(tables(rows))
    # Once "use mixed_bfloat16 with all instruction sets", at half the accuracy.
    assert answer.title.endswith("; its accuracy is lower")
    assert answer.advice == "keep float32: mixed_bfloat16's accuracy suffers."


def test_accuracy_counts_where_the_policy_gains():
    # The lie: "keep float32: its accuracy suffers", of AVX512 alone, with which nobody uses it.
    def trained(policy, isa, step_s, accuracy):
        for block in range(5):
            made = record(policy, block, step_s)
            made["parameters"] |= {"cpu_isa": isa, "gpu_model": "Some (CPU)"}
            made["run_id"] = f"{policy}-{isa}-{block}"
            yield reaching(made, accuracy + block / 1e4)

    base = [*trained("float32", "default", 0.1, 0.9), *trained("float32", "avx512_core", 0.1, 0.9)]
    ends = {"avx512_core": "may do otherwise.", "default": "mixed_bfloat16's accuracy suffers."}
    for lossy, said in ends.items():
        mixed = [
            made
            for isa, step_s in (("default", 0.05), ("avx512_core", 0.2))
            for made in trained("mixed_bfloat16", isa, step_s, 0.6 if isa == lossy else 0.9)
        ]
        assert question.of(tables([*base, *mixed])).advice.endswith(said)


def test_sets_that_were_not_measured_apart_are_all_named():
    # The lie: "thanks to AVX512_BF16", where AVX512 alone, which was not measured, gives as much.
    rows = by_isa().records
    pattern = [row for row in rows if row["parameters"]["policy"] == "mixed_bfloat16"]
    for isa, step_s in (("avx2", 0.25), ("avx512_core_bf16", 0.0501)):
        for made in copy.deepcopy(pattern):
            made["run_id"] += isa
            made["parameters"]["cpu_isa"] = isa
            made["timing"] |= {"step_s": step_s, "images_per_s": 32 / step_s}
            rows.append(made)
    answer = question.of(tables(rows))
    assert "thanks to AVX512 or AVX512_BF16, and 2.50× slower with AVX2 alone" in answer.title
