"""Which policy a reader is told to use, and where."""

from itertools import product

import pytest
from builders import (
    diverged,
    identified,
    reaching,
    record,
    tables,
    text,
    three,
)

from mptexp.report.first_screen import question


def measured(*points, blocks=3):
    """Tables of points: keywords of each, the device's default, and step times or ends by policy.

    Where something else than a time is given, it is the status of the policy's runs there.
    """
    rows = []
    for k, (asked, default, steps) in enumerate(points):
        for policy, step_s in steps.items():
            for block in range(blocks):
                ended = isinstance(step_s, str)
                made = record(policy, block, 1.0 if ended else step_s, default=default)
                made["parameters"] = made["parameters"] | asked
                made["run_id"] = f"{policy}-{k}-{block}"
                if ended:
                    made |= {"status": step_s, "error": step_s, "history": [], "timing": {}}
                rows.append(made)
    return identified(tables(rows))


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
    answer = question.of(three("mixed_float16", speedups))
    assert answer.title.removesuffix(", at equal accuracy") == title
    assert answer.advice.startswith("keep float32")


def test_nobody_is_advised_to_train_on_one_batch():
    resident, prefetched = {"input_mode": "resident"}, {"input_mode": "pipeline"}
    both = question.of(faster_in([resident, prefetched], input_mode="keydana")).advice
    assert both.startswith("on this GPU with prefetched input, use **mixed_bfloat16**.")
    one = question.of(faster_in([resident], input_mode="keydana")).advice
    assert one.startswith("keep float32: mixed_bfloat16 gains where no time goes into input")


def test_where_a_policy_is_not_faster_is_named_only_if_the_name_is_its_own():
    # The lie: "but not at batch size 32", of a policy that is faster there with other input too.
    fused = [{"normalization": "fused"}, {"input_mode": "keydana"}, {"batch_size": 64}]
    said = question.of(faster_in(fused)).advice
    assert said.startswith("on this GPU, use **mixed_bfloat16**. Not shown to be faster at batch ")
    sizes = question.of(faster_in([{"batch_size": n} for n in (64, 128)], batch_size=16)).advice
    assert " Not shown to be faster at batch size 16." in sizes


def test_each_phase_has_its_advice():
    times = {("train", 1): 0.5, ("train", 32): 0.6, ("inference", 1): 2.0, ("inference", 32): 1.8}
    rows = [
        record(policy, block, step_s, batch_size=size, phase=phase)
        for (phase, size), fast in times.items()
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", 0.1 * fast))
        for block in range(3)
    ]
    answer = question.of(identified(tables(rows)))
    assert answer.advice == "for inference, keep float32. For training, use **mixed_bfloat16**."
    # The verb names the phase; its place does not again.
    assert (
        "faster than float32 (the default; 100 ms per step) at batch size 1 ["
        in answer.sentences[0]
    )


@pytest.mark.parametrize(
    ("speedups", "advice"),
    [
        (
            [1.01, 1.1, 1.05],
            "keep float32; about 8 repeats, not 3, should show whether 1.05× is real.",
        ),
        (
            [1.01, 0.96, 1.05],
            "keep float32; to show effects as small as those measured would take over",
        ),
    ],
)
def test_how_many_repeats_would_decide_is_said(speedups, advice):
    assert question.of(three("mixed_bfloat16", speedups)).advice.startswith(advice)


def test_of_several_inconclusive_comparisons_the_one_that_is_decided_first_is_named():
    # The puzzle: "to show that 1.14× faster is not chance", of 1.21× and 1.14×.
    rows = [
        record(policy, block, step_s, batch_size=size)
        for size, speedups in ((32, [1.04, 1.1, 1.07]), (64, [1.01, 1.3, 1.05]))
        for block, speedup in enumerate(speedups)
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", 0.1 / speedup))
    ]
    said = question.of(identified(tables(rows))).advice
    assert "repeats, not 3, should show whether 1.07× (batch size 32) is real" in said


def test_what_is_not_valid_beside_a_slow_emulation_is_no_reason_to_keep_float32():
    marks = ["measured while other programs used the processor"]
    rows = [record("float32", b, 0.1) for b in range(3)]
    rows += [record("mixed_float16", b, 0.5, emulated=True) for b in range(3)]
    rows += [record("mixed_bfloat16", b, 0.05) | {"marks": marks} for b in range(3)]
    answer = question.of(tables(rows))
    assert answer.advice.startswith("for a claim, end other programs")


def test_with_too_few_repeats_the_command_says_how_many_and_their_cost():
    answer = question.of(three("mixed_float16", [2.0, 2.1]))
    said = "mixed_float16 trains 2.05× as fast as float32 on GPU"
    assert answer.title == f"Provisional (n = 2, no interval): {said}"
    assert "`mptexp run params.yaml --out ../again --set repeats=3`" in answer.advice
    assert "which measures 6 runs, about 1 min" in answer.advice


def test_a_gain_that_costs_accuracy_is_not_called_none():
    # The lie: "gains where no time goes into input, and not with an input": 1.4 times, proven.
    rows = []
    for k, (mode, ratio) in enumerate((("resident", 1.5), ("pipeline", 1.4))):
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", 0.1 / ratio)):
            for block in range(3):
                made = record(policy, block, step_s)
                made["parameters"] = made["parameters"] | {"input_mode": mode}
                made["run_id"] = f"{policy}-{k}-{block}"
                lost = 0.3 * (policy != "float32")
                made["history"][0]["val_accuracy"] = 0.9 - lost + block / 1000
                rows.append(made)
    advice = question.of(identified(tables(rows))).advice
    assert advice.startswith(
        "keep float32: mixed_bfloat16 gains where no time goes into input, and loses accuracy with"
    )


def test_no_bound_is_said_where_a_comparison_is_not_valid():
    # The lie: "a gain above 1.22× is not likely", beside 1.31 times that other programs disturbed.
    rows = [
        record(p, b, 0.1 * (1 + 0.001 * ((7 * b + len(p)) % 5)), size)
        for size in (32, 64)
        for p in ("float32", "mixed_bfloat16")
        for b in range(6)
    ]
    busy = {"marks": ["measured while other programs used the processor"]}
    whole = question.of(identified(tables(rows))).advice
    some = [one | busy if one["parameters"]["batch_size"] == 64 else one for one in rows]
    assert "is not likely" not in question.of(identified(tables(some))).advice
    assert whole.startswith("keep float32")


def trained_with(rate, lost):
    """float32 and a policy that is twice as fast, whose runs end well or all diverge."""
    for policy, step_s in (("float32", 0.1), ("mixed_float16", 0.05)):
        for block in range(3):
            made = record(policy, block, step_s)
            made["parameters"] |= {"learning_rate": rate}
            made["run_id"] = f"{policy}-{rate}-{block}"
            yield diverged(made) if policy in lost else made


def test_a_policy_is_not_blamed_where_float32_diverges_too():
    # The lie: "some runs diverged", at a learning rate at which float32 did as well.
    both = ("float32", "mixed_float16")
    answer = question.of(tables([*trained_with(0.001, ()), *trained_with(0.1, both)]))
    assert answer.title.endswith("2.00× faster than float32 on GPU, at equal accuracy")
    assert answer.advice == "use **mixed_float16**."
    alone = question.of(tables([*trained_with(0.001, ()), *trained_with(0.1, both[1:])]))
    assert alone.title.endswith("; some runs diverged")


STEPS = {"on": {"float32": 0.05, "mixed_float16": 0.06}}
STEPS |= {"off": {"float32": 0.2, "mixed_float16": 0.1}}


def compiled(steps, sizes=(32,)):
    """Tables of runs with and without XLA that take so long."""
    made = []
    for jit, size in product(steps, sizes):
        for policy, step_s in steps[jit].items():
            for block in range(3):
                one = record(policy, block, step_s + block / 1e5, size, jit=jit == "on")
                one["parameters"] |= {"jit": jit}
                one["run_id"] = f"{jit}-{size}-{policy}-{block}"
                made.append(one)
    return identified(tables(made))


def test_a_policy_that_is_slower_than_a_float32_that_was_measured_is_not_advised():
    # The lie: "without XLA, use mixed_float16", where float32 with XLA takes half as long.
    assert question.of(compiled(STEPS)).advice == (
        "keep float32 with XLA, which is faster still than **mixed_float16** without XLA (50.01 ms "
        "per step, not 100.01)."
    )
    slower = STEPS | {"on": {"float32": 0.15, "mixed_float16": 0.18}}
    assert question.of(compiled(slower)).advice == (
        "on this GPU without XLA, use **mixed_float16**, but not with XLA."
    )
    # Nor is float32 named where the policy gains over it too.
    gains = STEPS | {"on": {"float32": 0.05, "mixed_float16": 0.04}}
    assert question.of(compiled(gains)).advice == "use **mixed_float16**."


def test_where_float32_is_faster_still_at_some_points_these_are_named():
    found = compiled(STEPS)
    more = compiled(STEPS | {"on": {"float32": 0.15, "mixed_float16": 0.18}}, sizes=(64,))
    advice = question.of(identified(tables([*found.records, *more.records]))).advice
    assert "use **mixed_float16**" in advice
    assert "without XLA, float32 with XLA is faster still." in advice


A100, T4 = {"gpu_model": "A100"}, {"gpu_model": "T4"}
SMALL, LARGE = {"batch_size": 32}, {"batch_size": 64}


def test_a_policy_that_gains_most_at_one_point_is_not_advised_for_all():
    # The lie: "use mixed_bfloat16", of which a T4 has 1.01 times and of the other 1.80 times.
    devices = measured(
        (A100, "float32", {"float32": 0.2, "mixed_float16": 0.2 / 2.9, "mixed_bfloat16": 0.2 / 3}),
        (T4, "float32", {"float32": 0.2, "mixed_float16": 0.2 / 1.8, "mixed_bfloat16": 0.2 / 1.01}),
    )
    said = question.of(devices).advice
    assert said.startswith("use **mixed_float16**.")
    assert "On A100, **mixed_bfloat16** gains more: 3.00×." in said


def test_one_batch_size_does_not_decide_for_the_others():
    ratios = {32: (1.6, 1.5), 64: (1.1, 1.5), 128: (1.05, 1.5)}
    sizes = measured(
        *(
            (
                {"batch_size": size},
                "float32",
                {"float32": 1, "mixed_float16": 1 / a, "mixed_bfloat16": 1 / b},
            )
            for size, (a, b) in ratios.items()
        )
    )
    said = question.of(sizes).advice
    assert said.startswith("on this GPU, use **mixed_bfloat16**.")
    assert "At batch size 32, **mixed_float16** gains more: 1.60×." in said


def test_a_default_that_was_out_of_memory_is_not_to_be_measured():
    # The lies: "TF32 was not measured", and "1.20 times slower" of it under strict float32's name.
    answer = question.of(
        measured(
            (SMALL, "tensorfloat32", {"float32": 0.2, "tensorfloat32": 0.1, "mixed_float16": 0.12}),
            (
                LARGE,
                "tensorfloat32",
                {"float32": 0.2, "tensorfloat32": "oom", "mixed_float16": 0.12},
            ),
        )
    )
    faster, slower = answer.title.split(", and ")
    assert faster.endswith("faster than strict float32 on GPU at batch size 64")
    assert slower.startswith("1.20× slower than TF32 at batch size 32")
    assert "(the default, TF32, ran out of memory" in answer.sentences[0]
    assert answer.advice.startswith("on this GPU at batch size 64, use **mixed_float16**, but not")


def test_a_gain_over_the_default_opens_and_the_other_says_what_became_of_the_default():
    answer = question.of(
        measured(
            (SMALL, "tensorfloat32", {"float32": 0.2, "tensorfloat32": 0.1, "mixed_float16": 0.08}),
            (
                LARGE,
                "tensorfloat32",
                {"float32": 0.2, "tensorfloat32": "killed", "mixed_float16": 0.08},
            ),
        )
    )
    assert "1.25× faster than TF32 on GPU at batch size 32" in answer.title
    assert answer.advice.startswith("on this GPU at batch size 32, use **mixed_float16**.")
    assert "At batch size 64, the default, TF32, was killed." in answer.advice


def test_the_default_of_one_device_is_not_that_of_another():
    own = {"float32": 0.2, "mixed_bfloat16": 0.1}
    answer = question.of(measured((T4, "float32", own), (A100, "tensorfloat32", own)))
    on_a100, on_t4 = answer.sentences[0].split("; **mixed_bfloat16**")
    assert "than float32 (the default" in on_t4
    assert "on T4" in on_t4
    assert "than strict float32 (the default, TF32, was not measured" in on_a100
    assert answer.advice.startswith("on T4, use **mixed_bfloat16**.")
    assert "On A100, the default, TF32, was not measured." in answer.advice


def test_what_holds_on_one_device_names_it():
    sizes = [(A100 | {"batch_size": n}, 1.0) for n in (32, 64)] + [(A100 | {"batch_size": 256}, 2)]
    points = [*sizes, (T4 | {"batch_size": 256}, 1.0)]
    answer = question.of(
        measured(
            *(
                (asked, "float32", {"float32": 0.1, "mixed_float16": 0.1 / ratio})
                for asked, ratio in points
            )
        )
    )
    assert "at batch size 256 on A100" in answer.sentences[0]
    assert answer.advice.startswith("at batch size 256 on A100, use **mixed_float16**")


def test_runs_that_failed_are_named_beside_the_advice():
    own = {"float32": 0.2, "mixed_float16": 0.1}
    failed = [record("mixed_float16", block, 0.1) for block in (7, 8)]
    both = measured((SMALL, "float32", own))
    for one in failed:
        one |= {"status": "failed", "error": "cuBLAS", "history": [], "timing": {}}
    said = question.of(identified(tables([*both.records, *failed]))).advice
    assert said.endswith("find out why 2 of its 5 runs failed.")


def test_runs_that_were_killed_are_named_too():
    own = {"float32": 0.2, "mixed_float16": 0.1}
    killed = [record("mixed_float16", block, 0.1) | KILLED for block in (7, 8)]
    both = measured((SMALL, "float32", own))
    said = question.of(identified(tables([*both.records, *killed]))).advice
    assert said.endswith("find out why 2 of its 5 runs were killed.")


KILLED = {"status": "killed", "error": "by SIGKILL", "history": [], "timing": {}}


def with_xla(ended="ok", accuracy=0.9):
    """A policy that gains without XLA, beside float32 that is faster still with it."""
    rows = []
    for jit, policy, step_s in (
        (False, "float32", 0.2), (False, "mixed_float16", 0.1),
        (True, "float32", 0.06), (True, "mixed_float16", 0.065),
    ):  # fmt: skip
        for block in range(5):
            made = record(policy, block, step_s * (1 + block / 1000), jit=jit)
            made["run_id"] = f"{policy}-{jit}-{block}"
            still = jit and policy == "float32"
            made = reaching(made, (accuracy if still else 0.9) + block / 1e4)
            lost = ended != "ok" and still and block < 2
            rows.append(made | (KILLED | {"status": ended} if lost else {}))
    return identified(tables(rows))


def test_a_baseline_that_is_faster_still_is_not_kept_where_it_is_worth_less():
    assert question.of(with_xla()).advice.startswith("keep float32 with XLA, which is faster still")
    # The lies: "keep float32 with XLA", where it diverges, has no memory, or learns less.
    for ended in ("diverged", "oom", "killed"):
        assert "keep float32" not in question.of(with_xla(ended)).advice
    assert "keep float32" not in question.of(with_xla(accuracy=0.6)).advice


def test_strict_float32_is_not_kept_where_the_default_was_not_measured():
    # The lie: "keep strict float32" on a GPU where everybody has TF32.
    own = {"float32": 0.1, "mixed_float16": 0.12}
    answer = question.of(measured((SMALL, "tensorfloat32", own)))
    assert answer.advice == "measure TF32, the default here, before you change anything."


def test_a_default_that_learns_less_is_not_kept_without_a_word():
    rows = [
        reaching(record(policy, block, step_s, default="tensorfloat32"), reached + block / 1e4)
        for policy, step_s, reached in (("tensorfloat32", 0.05, 0.5), ("mixed_float16", 0.06, 0.9))
        for block in range(5)
    ]
    said = question.of(identified(tables(rows))).advice
    assert said == (
        "keep TF32, but find out first why the accuracy of **mixed_float16** is higher."
    )


def test_where_the_advised_policy_is_worse_another_one_is_not_said_to_gain_more():
    # The lie: "bfloat16 gains more: 1.06×", where the policy that loses accuracy gains 1.25.
    rows = [
        reaching(record(policy, block, step_s * (1 + block / 1e3), size), reached + block / 1e4)
        for policy, size, step_s, reached in (
            ("float32", 32, 0.1, 0.9), ("float32", 128, 0.4, 0.9),
            ("mixed_bfloat16", 32, 0.04, 0.9), ("mixed_bfloat16", 128, 0.32, 0.6),
            ("bfloat16", 32, 0.1, 0.9), ("bfloat16", 128, 0.375, 0.9),
        )
        for block in range(5)
    ]  # fmt: skip
    said = question.of(identified(tables(rows))).advice
    assert "At batch size 128, **bfloat16** gains 1.07×." in said


def test_a_device_on_which_nothing_is_compared_is_left_out_of_the_advice():
    # The lie: "use mixed_float16", which has no memory on one of the two devices.
    own = {"float32": 0.2, "mixed_float16": 0.1}
    none = {"float32": "timeout", "mixed_float16": "oom"}
    points = [({"gpu_model": "A100"}, "float32", own), ({"gpu_model": "P100"}, "float32", none)]
    assert question.of(measured(*points)).advice.startswith("on A100, use **mixed_float16**")
    other = {"float32": 0.2, "mixed_bfloat16": 0.6}  # or where it was not measured
    points[1] = ({"gpu_model": "P100"}, "float32", other)
    assert question.of(measured(*points)).advice.startswith("on A100, use **mixed_float16**")


def test_what_is_to_be_looked_at_is_what_is_open():
    # The lie: "look at its accuracy", which is shown to be equal.
    rows = []
    for block in range(5):
        rows += [record("float32", block, 0.2), record("mixed_float16", block, 0.1)]
        rows.append(text("float32", block, loss=2.0, step_s=0.2))
        loss = 2.1 if block % 2 else 1.9
        rows.append(text("mixed_float16", block, loss=loss, step_s=0.15))
    said = question.of(identified(tables(rows))).advice
    assert "look at its perplexity in your own training" in said


def test_a_default_that_was_killed_everywhere_is_to_be_measured_again():
    own = {"float32": 0.2, "tensorfloat32": "killed", "mixed_float16": 0.1}
    answer = question.of(measured((SMALL, "tensorfloat32", own)))
    assert "than strict float32 (the default, TF32, was killed" in answer.sentences[0]
    assert answer.advice.startswith("measure TF32 again, the default here, which may gain as much")
