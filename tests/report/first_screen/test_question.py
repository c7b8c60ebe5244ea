"""What opens a report, of sweeps of which what it said was false."""

import pytest
from builders import FIXED, emulated_runs, quantized, record, tables, tables_of, text, trained_by

from mptexp.report.answers import comparisons, findings
from mptexp.report.first_screen import question


def arm(policy, step_s=0.1, blocks=3, lost=(), end="oom", accuracy=0.9, default="float32", **asked):
    """The runs of a policy; those of some blocks without a result."""
    runs = []
    for block in range(blocks):
        made = record(policy, block, step_s * (1 + block / 1e3), default=default)
        made["parameters"] |= asked
        made["environment"] = {"device": made["parameters"]["gpu_model"], "packages": {}}
        made["run_id"] = "-".join(map(str, [policy, block, *asked.values()]))
        made["history"] = [made["history"][-1] | {"val_accuracy": accuracy}]
        if block in lost:
            made |= {"status": end, "error": end, "history": [], "timing": {}}
            if end != "diverged":  # of what did not train nothing is known but what was asked for
                del made["in_force"]
        runs.append(made)
    return runs


ALL = (0, 1, 2)


def test_a_policy_is_not_advised_where_it_never_got_through():
    # "use mixed_float16", which runs out of memory at one batch size of three, on one GPU of two.
    sizes = [
        arm(policy, step_s, batch_size=size, lost=ALL if (policy, size) == lost else ())
        for lost in [("mixed_float16", 256)]
        for size in (32, 128, 256)
        for policy, step_s in (("float32", 0.1), ("mixed_float16", 0.05))
    ]
    answer = question.of(tables_of(*sizes))
    assert answer.title.startswith(
        "mixed_float16 trains up to 2.00× faster than float32 on GPU in 2 of 3 settings"
    )
    assert "use **mixed_float16**, but not at batch size 256" in answer.advice
    devices = [
        arm("float32", gpu_model="A100"),
        arm("mixed_float16", 0.05, gpu_model="A100"),
        arm("float32", gpu_model="P100"),
        arm("mixed_float16", 0.05, lost=ALL, end="diverged", gpu_model="P100"),
    ]
    answer = question.of(tables_of(*devices))
    assert answer.advice.startswith("on A100, use **mixed_float16**, but not on P100")


def test_what_failed_everywhere_is_open_not_worse():
    sizes = [
        arm(policy, step_s, batch_size=size, end="failed", lost=lost)
        for size, policy, step_s, lost in (
            (32, "float32", 0.1, ()),
            (32, "mixed_float16", 0.05, ()),
            (64, "float32", 0.1, ()),
            (64, "mixed_float16", 0.05, ()),
            (128, "float32", 0.1, ()),
            (128, "mixed_float16", 0.05, ALL),
        )
    ]
    advice = question.of(tables_of(*sizes)).advice
    assert "but not" not in advice
    assert "Not shown to be faster at batch size 128." in advice


def test_a_verdict_on_quality_is_said_of_the_perplexity():
    # "use mixed_bfloat16, whose perplexity is shown to be higher": it is lower.
    wide = (0.3, -0.3, 0.25, -0.2)
    rows = [text("float32", block, 2.0) for block in range(4)]
    rows += [text("mixed_float16", b, 2.0 + wide[b], step_s=0.05) for b in range(4)]
    rows += [text("mixed_bfloat16", b, 1.9 + b * 1e-4, step_s=0.07) for b in range(4)]
    answer = question.of(tables(rows))
    assert "mixed_bfloat16**, whose perplexity is shown to be lower (better)." in answer.advice


def test_a_worse_perplexity_has_its_difference():
    rows = [text("float32", block, 2.0) for block in range(4)]
    rows += [text("mixed_float16", b, 2.2 + b * 1e-4, step_s=0.05) for b in range(4)]
    said = " ".join(findings.answer(tables(rows)))
    assert "perplexity is higher (worse): mean difference +22.2 [+22." in said


def test_speed_beside_quantized_weights_is_that_of_all_policies():
    # "for speed keep float32", below a title that says that mixed_float16 is twice as fast.
    rows = [*arm("float32", phase="inference"), *arm("mixed_float16", 0.05, phase="inference")]
    for block in range(3):
        slow = record(block=block, step_s=0.2 + block / 1e3)
        rows.append(quantized("int8", block, {"val_accuracy": 0.9}, {"val_accuracy": 0.9}, slow))
    advice = question.of(tables(rows)).advice
    assert advice.startswith("for speed use **mixed_float16**")
    assert "; for fewer bytes take **int8**" in advice


def test_quantized_weights_are_advised_for_speed_where_they_lose_nothing():
    rows = []
    for model, after in (("lenet", 0.9), ("mlp", 0.4)):
        rows += arm("float32", phase="inference", model=model)
        for block, fast in enumerate(arm("float32", 0.06, phase="inference", model=model)):
            made = quantized("int8", block, {"val_accuracy": 0.9}, {"val_accuracy": after}, fast)
            rows.append(made | {"run_id": f"{model}-int8-{block}"})
    advice = question.of(tables(rows)).advice
    assert advice.startswith("for speed, on this GPU with lenet, use **int8**, but not with mlp")


def test_a_title_says_of_a_device_what_was_measured_on_it():
    # "1.50× faster on V100; strict float32 trains 1.67× slower", which was on the A100.
    a100 = {"default": "tensorfloat32", "gpu_model": "A100"}
    arms = [
        arm("float32", 0.167, **a100),
        arm("tensorfloat32", **a100),
        arm("mixed_float16", 0.077, **a100),
        arm("float32", gpu_model="V100"),
        arm("mixed_float16", 0.067, gpu_model="V100"),
    ]
    title = question.of(tables_of(*arms)).title
    assert title.startswith("mixed_float16 trains 1.49× faster than float32 on V100")
    assert "slower" not in title


@pytest.mark.parametrize("devices", [1, 2])
def test_the_policy_that_is_slower_is_in_the_title_of_one_that_is_faster(devices):
    # The puzzle: a study of float8 whose title spoke of bfloat16 alone, for want of room.
    names = ["AMD EPYC 9R14 Processor (16 cores with AVX512_BF16)", "Intel Xeon (2 cores with AMX)"]
    times = {"float32": 0.1, "mixed_bfloat16": 0.07, "float8": 0.2}
    arms = [arm(p, s, gpu_model=name) for name in names[:devices] for p, s in times.items()]
    title = question.of(tables_of(*arms)).title
    assert title.startswith(f"mixed_bfloat16 trains 1.43× faster than float32 on {names[0]}")
    # Of one device a page leaves its name to the line below.
    assert title.endswith("; float8 trains 2.00× slower") == (devices == 1)


def test_a_default_that_was_not_measured_comes_before_any_advice():
    # "use mixed_float16", which gains nothing over TF32, the default.
    tf32 = {"default": "tensorfloat32"}
    answer = question.of(tables_of(arm("float32", 0.2, **tf32), arm("mixed_float16", **tf32)))
    assert "2.00× faster than strict float32 on GPU" in answer.title
    assert answer.advice.startswith("measure TF32, the default here, which may gain as much,")


def test_where_an_accuracy_is_higher_is_said():
    rows = []
    for size, accuracy in ((32, 0.9), (64, 0.9), (128, 0.95)):
        rows += arm("float32", batch_size=size, blocks=4)
        rows += arm("mixed_float16", 5 / size, batch_size=size, blocks=4, accuracy=accuracy)
    assert "its accuracy is higher at batch size 128" in question.of(tables(rows)).title


def test_policies_that_did_not_end_are_said_to_have_been_asked_for():
    # "mixed_float16 alone: 100 ms per step", of a float32 that failed.
    failed = question.of(tables_of(arm("float32", lost=ALL, end="failed"), arm("mixed_float16")))
    assert failed.title == "float32 failed at batch size 32, mixed_float16 did not"
    assert failed.sentences[0].startswith("No times are compared: float32 failed at batch size 32")
    assert "the same command makes them again" in failed.advice
    big = question.of(tables_of(arm("float32"), arm("mixed_float16", lost=ALL)))
    assert big.title == "mixed_float16 ran out of memory at batch size 32, float32 did not"
    assert "smaller batch" in big.advice
    # "float32 ran out of memory, mixed_float16 did not", which did so in the other block.
    each = [arm("float32", lost=[0], blocks=2), arm("mixed_float16", lost=[1], blocks=2)]
    assert "mixed_float16 ran out of memory in 1 of 2 runs" in question.of(tables_of(*each)).title
    # "find settings with which float32 trains, such as a lower learning rate": memory is lacking.
    none = [arm("float32", lost=ALL), arm("mixed_float16", lost=ALL, end="diverged")]
    assert "smaller batch" in question.of(tables_of(*none)).advice


def test_a_policy_that_this_device_lacks_leaves_the_other_alone():
    rows = [arm("float32"), arm("tensorfloat32", lost=ALL, end="unsupported")]
    answer = question.of(tables_of(*rows))
    assert answer.title.startswith("float32 alone: ")
    assert (
        "tensorfloat32 is not supported at batch size 32; only float32 was" in answer.sentences[0]
    )


def test_no_end_of_a_proven_interval_reads_as_no_effect():
    # "1.00× as fast [1.002, 1.00] than one of the plain loop": the low end above the high one.
    rows = [
        made
        for frontend, step_s in (("keras", 0.1), ("native", 0.1003))
        for block in range(10)
        for made in trained_by(frontend, step_s * (1 + 1e-5 * (block * 3 % 4)))
        if made["parameters"]["block"] == block % 3
    ]
    for k, made in enumerate(rows):
        made["parameters"] |= {"block": k % 10, "seed": k % 10}
        made["run_id"] = f"{made['parameters']['frontend']}-{k}"
    (section,) = comparisons.sections(tables(rows))
    assert "1.00× as fast [1.002, 1.004] (n = 10) as one of the plain loop" in section.sentences[0]


def test_a_comparison_that_lost_a_block_asks_for_one_more():
    # "For training, .", and nothing at all where a sweep has one phase.
    whole = [arm("float32", phase="inference"), arm("mixed_float16", 0.05, phase="inference")]
    part = [arm("float32"), arm("mixed_float16", 0.05, lost=[1])]
    said = question.of(tables_of(*whole, *part)).advice
    assert "For training, for a claim, run `mptexp run" in said
    assert "--set repeats=4" in said
    assert "measures 8 runs" in question.of(tables_of(*part)).advice


def test_what_two_comparisons_need_is_said_once():
    rows = []
    for backend, slow in (("tensorflow", 0.1), ("jax", 0.07)):
        rows += arm("float32", slow, blocks=2, backend=backend)
        rows += arm("mixed_float16", 0.05, blocks=2, backend=backend)
    answer = question.of(tables(rows))
    assert answer.title.count("Provisional") == 1
    assert answer.advice.count("or a claim, run `mptexp") == 1


def test_formats_of_which_runs_diverged_have_no_interval_to_halve():
    lost = [
        made | {"parameters": made["parameters"] | {"block": 2, "seed": 2}, "run_id": "lost"}
        for made in emulated_runs((1,), status="diverged", **FIXED)
    ]
    rows = [*emulated_runs((2, 2.1, 1.9)), *emulated_runs((2.1, 2.2), **FIXED), *lost]
    advice = question.of(tables(rows)).advice
    assert advice == "it takes at least 3 repeats that end well, not 2, for an interval."


def test_nothing_succeeded():
    failed = record() | {"status": "failed"}
    assert question.of(tables([failed])).title == "No run of this sweep succeeded"
