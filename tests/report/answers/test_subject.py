"""Which question opens a report, and with what."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from builders import (
    FIXED,
    IDENTITY,
    STOCHASTIC,
    emulated_runs,
    record,
    replicated,
    several_scales,
    tables,
    tables_of,
    three,
)

from mptexp.analysis.sweep_tables import Options
from mptexp.report.answers import caveats, subject


def identified(found):
    """The tables again, of records that say what they were."""
    begun = {"initial_weights": "w", "data_order": "o"}
    return tables([r | {"identity": IDENTITY | begun} for r in found.records])


def test_speed_is_the_subject_of_policies():
    answer = subject.of(three("mixed_float16", [2.0, 2.1, 1.9]))
    (bar,) = answer.bars
    assert (bar.label, bar.finding, answer.baseline) == ("mixed_float16", "faster", "float32")
    assert bar.text.startswith("2.00× faster [")
    assert answer.advice.startswith("use **mixed_float16**")


@pytest.mark.parametrize(
    ("speedups", "title"),
    [
        ([1.0, 1.1, 0.9], "mixed_float16 is not shown to train faster than float32 on GPU"),
        ([0.5, 0.51, 0.5], "mixed_float16 trains 1.99× slower than float32 on GPU"),
        # The lie: "use it", of a gain that is proven and is 0.4 %.
        ([1.004, 1.0041, 1.0039], "mixed_float16 trains 1.00× as fast as float32 on GPU"),
    ],
)
def test_what_is_not_faster_is_no_advice(speedups, title):
    answer = subject.of(three("mixed_float16", speedups))
    assert answer.title.removesuffix(", at equal accuracy") == title
    assert answer.advice.startswith("keep float32")


def test_the_one_policy_that_is_slower_is_in_the_title():
    rows = [record(block=b, step_s=0.1) for b in range(3)]
    rows += [record("mixed_bfloat16", b, s) for b, s in enumerate((0.1, 0.11, 0.09))]
    rows += [record("float8", b, 0.2, emulated=True) for b in range(3)]
    nothing = "mixed_bfloat16 is not shown to train faster than float32 on GPU"
    assert subject.of(tables(rows)).title == f"{nothing}; float8 trains 2.00× slower"


def faster_in(places, **elsewhere):
    """Tables in which bfloat16 is faster at these places and at those not: keyword -> values."""
    rows = []
    for k, (asked, ratio) in enumerate([*((p, 2.0) for p in places), (elsewhere, 1.0)]):
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", 0.1 / ratio)):
            for block in range(3):
                made = record(policy, block, step_s)
                made["parameters"] = made["parameters"] | asked
                made["run_id"] = f"{policy}-{k}-{block}"
                rows.append(made)
    return identified(tables(rows))


def test_a_policy_that_is_slower_somewhere_is_titled_with_it():
    base = {("float32", size): 0.1 for size in (32, 64)}
    times = base | {("mixed_float16", 32): 0.4, ("mixed_float16", 64): 0.1}
    rows = [record(p, b, s, batch_size=n) for (p, n), s in times.items() for b in range(3)]
    title = subject.of(identified(tables(rows))).title
    wanted = "mixed_float16 trains 4.00× slower than float32 on GPU at batch size 32"
    assert title == wanted


def test_pytorch_has_no_xla():
    rows = []
    for jit in ("on", "off"):
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", 0.05 if jit == "on" else 0.1)):
            for block in range(3):
                made = record(policy, block, step_s)
                made["parameters"] = made["parameters"] | {"jit": jit, "backend": "torch"}
                made["in_force"] = made["in_force"] | {"jit": jit == "on"}
                made["run_id"] = f"{policy}-{jit}-{block}"
                rows.append(made)
    answer = subject.of(identified(tables(rows)))
    said = " ".join([answer.advice, *(bar.label for bar in answer.bars)])
    assert "with torch.compile" in said
    assert "XLA" not in said


def test_nobody_is_advised_to_train_on_one_batch():
    resident, prefetched = {"input_mode": "resident"}, {"input_mode": "pipeline"}
    both = subject.of(faster_in([resident, prefetched], input_mode="keydana")).advice
    assert both.startswith("on this GPU with prefetched input, use **mixed_bfloat16**.")
    one = subject.of(faster_in([resident], input_mode="keydana")).advice
    assert one.startswith("keep float32: mixed_bfloat16 gains where no time goes into input")


def test_where_a_policy_is_not_faster_is_named_only_if_the_name_is_its_own():
    # The lie: "but not at batch size 32", of a policy that is faster there with other input too.
    fused = [{"normalization": "fused"}, {"input_mode": "keydana"}, {"batch_size": 64}]
    said = subject.of(faster_in(fused)).advice
    assert said.startswith("on this GPU, use **mixed_bfloat16**. Not shown to be faster at batch ")
    sizes = subject.of(faster_in([{"batch_size": n} for n in (64, 128)], batch_size=16)).advice
    assert " Not shown to be faster at batch size 16." in sizes


def test_what_is_faster_everywhere_is_titled_from_the_least_to_the_most():
    rows = [
        record(policy, block, step_s, batch_size=size)
        for size, fast in ((32, 0.08), (64, 0.05))
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", fast))
        for block in range(3)
    ]
    title = subject.of(identified(tables(rows))).title
    assert title.startswith("mixed_bfloat16 trains 1.25× to 2.00× faster than float32 on GPU")


def test_what_is_both_faster_and_slower_is_titled_from_what_to_what():
    base = {("float32", size): 0.1 for size in (32, 64)}
    times = base | {("bfloat16", 32): 0.2, ("bfloat16", 64): 0.05}
    rows = [record(p, b, s, batch_size=n) for (p, n), s in times.items() for b in range(3)]
    wanted = (
        "bfloat16 trains 2.00× faster than float32 on GPU at batch size 64, and 2.00× slower at "
        "batch size 32"
    )
    assert subject.of(identified(tables(rows))).title.startswith(wanted)
    unknown = subject.of(tables([row | {"identity": None} for row in rows]))
    assert unknown.title == (
        "Provisional: bfloat16 trains from 2.00× slower to 2.00× faster than float32 on GPU"
    )


def test_an_emulated_policy_alone_has_its_name_in_the_title():
    made = three("mixed_float16", [0.9, 1.0, 1.1], emulated=True)
    title = subject.of(made).title
    assert title.startswith("mixed_float16 is not shown to train faster than float32")


def test_both_phases_are_in_the_title():
    times = {("train", 1): 1.0, ("train", 32): 0.5, ("inference", 1): 2.0, ("inference", 32): 0.8}
    rows = [
        record(policy, block, step_s, batch_size=size, phase=phase)
        for (phase, size), fast in times.items()
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", 0.1 * fast))
        for block in range(3)
    ]
    title = subject.of(identified(tables(rows))).title
    assert title == (
        "mixed_bfloat16 runs inference 1.25× faster than float32 on GPU at batch size 32, and "
        "2.00× slower at batch size 1"  # a longer one is not read; the sentences have the rest
    )


def test_each_phase_has_its_advice():
    times = {("train", 1): 0.5, ("train", 32): 0.6, ("inference", 1): 2.0, ("inference", 32): 1.8}
    rows = [
        record(policy, block, step_s, batch_size=size, phase=phase)
        for (phase, size), fast in times.items()
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", 0.1 * fast))
        for block in range(3)
    ]
    answer = subject.of(identified(tables(rows)))
    assert answer.advice == "for training, use **mixed_bfloat16**. For inference, keep float32."
    # The verb names the phase; its place does not again.
    assert "trains 2.00× faster than float32 (the default) at batch size 1 [" in answer.sentences[0]


@pytest.mark.parametrize(
    ("speedups", "advice"),
    [
        (
            [1.01, 1.1, 1.05],
            "keep float32; to show that 1.05× faster is not chance would take about 8 repeats",
        ),
        (
            [1.01, 0.96, 1.05],
            "keep float32; to show effects as small as those measured would take over",
        ),
    ],
)
def test_how_many_repeats_would_decide_is_said(speedups, advice):
    assert subject.of(three("mixed_bfloat16", speedups)).advice.startswith(advice)


def test_what_is_not_valid_is_not_the_title():
    rows = [record(p, b, s) for p, s in (("float32", 0.1), ("bfloat16", 0.05)) for b in range(3)]
    marks = ["measured while other programs used the processor"]
    answer = subject.of(tables([row | {"marks": marks} for row in rows]))
    assert answer.title == "Provisional: bfloat16 trains 2.00× faster than float32 on GPU"
    assert answer.bars[0].text == "2.00× faster (not valid: interference, n = 3)"
    assert answer.advice == (
        "for a claim, end other programs; then run `mptexp run params.yaml --out . --repair` in "
        "this report's folder, which measures 6 runs again, about 1 min."
    )
    assert np.isnan(answer.bars[0].low)


def test_what_is_not_valid_beside_a_slow_emulation_is_no_reason_to_keep_float32():
    marks = ["measured while other programs used the processor"]
    rows = [record("float32", b, 0.1) for b in range(3)]
    rows += [record("mixed_float16", b, 0.5, emulated=True) for b in range(3)]
    rows += [record("mixed_bfloat16", b, 0.05) | {"marks": marks} for b in range(3)]
    answer = subject.of(tables(rows))
    assert answer.advice.startswith("for a claim, end other programs")


def test_accuracy_within_a_wide_margin_is_not_called_equal_without_it():
    # The lie that was told: "4.28x faster, at equal accuracy", 40 points lower, by a margin of 90.
    rows = three("mixed_float16", [2.0, 2.1, 1.9]).records
    for made in rows:
        if made["parameters"]["policy"] == "mixed_float16":
            made["history"][-1]["val_accuracy"] -= 0.4
    found = identified(tables(rows))
    assert "accuracy" not in subject.of(found).title
    wide = subject.of(replace(found, options=Options(equivalence_margin=0.9)))
    assert wide.title.endswith(", accuracy equal within 90 percentage points")
    assert wide.advice.endswith("and look at its accuracy in your own training.")
    alike = identified(three("mixed_float16", [2.0, 2.1, 1.9]))
    assert subject.of(alike).title.endswith(", at equal accuracy")


def test_loss_scales_open_with_the_range_that_trains():
    answer = subject.of(identified(several_scales()))
    assert answer.title == (
        "mixed_float16 trains as float32 does with a loss scale of 1, and falls behind float32 "
        "with 2⁻¹⁶ and diverges in some runs with 2²⁴"
    )
    assert answer.figure == "loss scale"
    assert answer.advice.startswith("take **mixed_float16** with ")
    unknown = subject.of(tables([r | {"identity": None} for r in several_scales().records]))
    assert unknown.title == f"Provisional: {answer.title}"
    assert [text.partition(". ")[0] for text in unknown.sentences] == [
        "Measured, but not valid",
        *(text.rstrip(".") for text in answer.sentences[1:]),
    ]
    assert "--repair`" in unknown.advice


def test_with_too_few_repeats_the_command_says_how_many_and_their_cost():
    answer = subject.of(three("mixed_float16", [2.0, 2.1]))
    assert answer.title == "Provisional: mixed_float16 trains 2.05× faster than float32 on GPU"
    assert "`mptexp run params.yaml --out ../again --set repeats=3`" in answer.advice
    assert "which measures 6 runs, about 1 min" in answer.advice


def test_emulated_formats_open_with_their_loss():
    found = tables_of(emulated_runs([2.0, 2.1, 1.9]), emulated_runs([3.0, 3.1, 2.9], **FIXED))
    answer = subject.of(identified(found))
    assert answer.title == "1 of 1 settings train within 2 percentage points of float32's error"
    assert answer.bars[0].label == "<8,8>"
    assert answer.scale == "error"
    assert answer.bars[0].value == pytest.approx(1.0)


def test_a_format_that_learns_nothing_is_a_finding_and_no_doubt():
    formats = [{"propagation": f"<{bits},8>", "weight_format": "<8,8>"} for bits in (8, 7, 6)]
    errors = ([1.0, 1.1, 0.9], [90, 90, 90], [3.0, 1.0, 2.0])
    groups = [emulated_runs(own, **kept) for own, kept in zip(errors, formats, strict=True)]
    found = identified(tables_of(emulated_runs([1.0, 1.1, 0.9]), *groups))
    for made in found.records:
        made["in_force"]["chance_accuracy"] = 0.1
    answer = subject.of(tables(found.records))
    assert answer.title == (
        "1 of 3 settings train within 2 percentage points of float32's error; the worst ends "
        "89.0 points above it (activations <7,8>, weights <8,8>)"
    )
    assert answer.sentences == [
        "Of 3 settings, 1 is within 2 percentage points of float32's error, 1 is more than 2 "
        "percentage points above float32's error and 1 is inconclusive (the interval includes 2 "
        "percentage points)."
    ]
    assert [bar.group.partition(" 2 ")[0] for bar in answer.bars] == [
        "1 of 3 within",
        "1 of 3 more than",
        "1 of 3 inconclusive (the interval includes",
    ]
    change = "with **activations <7,8>, weights <8,8>** (+89.0 points): use <8,8> for activations ("
    assert answer.advice.startswith(change)
    assert answer.advice.endswith("more repeats would narrow the inconclusive intervals.")


def test_replicas_open_with_their_scaling():
    found = [*replicated(1, 32, 0.1), *replicated(2, 64, 0.11)]
    for made in found:  # of a steady machine
        step_s = 0.1 if made["parameters"]["replicas"] == 1 else 0.11
        size = made["parameters"]["batch_size"]
        made["timing"] |= {"step_s": step_s, "images_per_s": size / step_s}
    answer = subject.of(tables(found))
    assert answer.title.endswith("1.82× faster than 1 replica with the same batch size per replica")
    assert answer.bars[0].label.startswith("replicas 2, ")


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
    answer = subject.of(by_isa())
    assert answer.title.startswith(
        "float32 with SSE4.1 is 4.00× slower and mixed_bfloat16 with all instruction sets is 2.00× "
        "faster than float32 with all instruction sets"
    )
    assert answer.advice == r"use mixed\_bfloat16 with all instruction sets."
    assert [bar.finding for bar in answer.bars] == ["slower", "faster"]


def test_what_a_policy_needs_to_be_faster_is_the_title():
    rows = by_isa().records
    pattern = [row for row in rows if row["parameters"]["policy"] == "mixed_bfloat16"]
    for isa, step_s in (("avx512_core", 0.25), ("avx512_core_bf16", 0.06)):
        for made in copy.deepcopy(pattern):
            made["run_id"] += isa
            made["parameters"]["cpu_isa"] = isa
            made["timing"] |= {"step_s": step_s, "images_per_s": 32 / step_s}
            rows.append(made)
    answer = subject.of(tables(rows))
    assert answer.title == (
        "mixed_bfloat16 is 2.00× faster than float32 on Some (CPU) thanks to AVX512_BF16; with "
        "AVX512 alone it is 2.50× slower"
    )
    assert answer.advice == (
        "on a CPU with AVX512_BF16, use **mixed_bfloat16**; on one without, keep float32."
    )
    assert [bar.label.partition(" with ")[2] for bar in answer.bars] == [
        "SSE4.1",
        "AVX512",
        "AVX512_BF16",
        "all instruction sets",
    ]


def test_instruction_sets_of_other_models_are_not_compared():
    answer = subject.of(by_isa(model_source="edited"))
    assert [bar.finding for bar in answer.bars] == ["faster"]
    assert answer.title.startswith("mixed_bfloat16 with all instruction sets is 2.00× faster")
    (said,) = caveats.sentences(by_isa(model_source="edited"))
    assert "the source of the model" in said


def test_without_a_time_accuracy_is_the_subject():
    rows = [record(p, b) for p in ("float32", "bfloat16") for b in range(3)]
    found = tables([row | {"timing": {}} for row in rows])
    answer = subject.of(found)
    assert answer.scale == "accuracy"
    assert answer.bars[0].finding == "equal"


def test_nothing_succeeded():
    failed = record() | {"status": "failed"}
    assert subject.of(tables([failed])).title == "No run of this sweep succeeded"


def test_a_policy_alone_is_named_with_its_time():
    answer = subject.of(tables([record("float32", block, 0.1) for block in range(3)]))
    assert answer.title == "float32 alone: 100.00 ms per step on GPU"
    assert "a speedup needs two policies" in answer.sentences[0]
    rows = [record("float32", 0, 0.1), record("float32", 0, 0.1, batch_size=7)]
    several = subject.of(tables(rows))
    assert several.title.startswith("Nothing to compare: ")


def test_histograms_alone_open_with_what_they_advise():
    rows = {"kind": "weight_gradients", "layer": "all", "lowest": -20, "counts": [5, 5]}
    rows |= {"zeros": 0, "not_finite": 0, "largest": 2.0**-19}
    sampled = {"exponents": {"samples": [{"step": 0, "swallowed": {}}], "layers": [rows]}}
    answer = subject.of(tables([record("float32", 0, 0.1) | sampled]))
    assert answer.title == "The numbers of this training ask for float32"
    assert (answer.figure, answer.advice) == ("exponents", "use policy float32.")
    assert answer.sentences


def test_replicas_of_several_policies_are_labelled_with_them():
    sizes = {1: (32, 0.1), 2: (64, 0.11)}
    found = [
        made
        for policy in ("float32", "mixed_float16")
        for replicas, size in sizes.items()
        for made in replicated(replicas, *size, policy=policy)
    ]
    labels = [bar.label for bar in subject.of(tables(found)).bars]
    assert len(set(labels)) == len(labels) == 2
    assert all(label.startswith(("float32, ", "mixed_float16, ")) for label in labels)


def low_precision_title(*groups):
    return subject.of(identified(tables([run for group in groups for run in group]))).title


def test_what_rounding_decides_is_the_title():
    groups = [[*emulated_runs([1, 1.1, 0.9])], [*emulated_runs([80, 81, 79], **FIXED)]]
    counted = "0 of 1 settings train within 2 percentage points of float32's error; the worst ends"
    assert low_precision_title(*groups).startswith(counted)
    said = low_precision_title(*groups, emulated_runs([1.2, 1.3, 1.1], **STOCHASTIC))
    assert said == (
        "keydana_cnn in <8,8> trains if rounded stochastically (+0.2 points of error against "
        "float32), not if rounded to nearest (+79.0)"
    )


def test_trainings_with_and_without_clipping_have_labels_of_their_own():
    # The lie: two rows of one name, of which one was trained with clipped gradients.
    groups = [
        emulated_runs([1, 1.1, 0.9], clip_norm=clip, **formats)
        for clip in (None, 1.0)
        for formats in ({}, FIXED)
    ]
    bars = subject.of(identified(tables([run for group in groups for run in group]))).bars
    assert sorted(bar.label for bar in bars) == [
        "<8,8>",
        "<8,8>, gradients clipped to norm 1",
    ]


@pytest.mark.parametrize(("nice", "title"), [(10, "Accuracy is"), (0, "Provisional: ")])
def test_a_training_of_low_priority_opens_with_its_accuracy(nice, title):
    # The lie by place: times that nobody asked for and nothing is claimed of, before accuracies.
    marks = ["measured while other programs used the processor"]
    rows = [
        record(p, b, s) | {"marks": marks, "identity": IDENTITY | {"nice": nice}}
        for p, s in (("float32", 0.1), ("mixed_bfloat16", 0.05))
        for b in range(3)
    ]
    answer = subject.of(tables(rows))
    assert answer.title.startswith(title)
    # Of times that nobody asked for the banner says that they are not valid.
    assert any(s.startswith("Measured, but not valid") for s in answer.sentences) == (not nice)
