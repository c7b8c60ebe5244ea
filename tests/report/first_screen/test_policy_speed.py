"""The title of a sweep of policies, and its comparisons."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from builders import (
    classified,
    identified,
    reaching,
    record,
    tables,
    three,
)

from mptexp.analysis.sweep_tables import Options
from mptexp.report.answers import caveats
from mptexp.report.first_screen import question


def test_speed_is_the_subject_of_policies():
    answer = question.of(three("mixed_float16", [2.0, 2.1, 1.9]))
    (bar,) = answer.bars
    assert (bar.label, bar.finding, answer.baseline) == ("mixed_float16", "faster", "float32")
    assert bar.text.startswith("2.00× faster [")
    assert answer.advice.startswith("use **mixed_float16**")


def test_the_one_policy_that_is_slower_is_in_the_title():
    rows = [record(block=b, step_s=0.1) for b in range(3)]
    rows += [record("mixed_bfloat16", b, s) for b, s in enumerate((0.1, 0.11, 0.09))]
    rows += [record("float8", b, 0.2, emulated=True) for b in range(3)]
    nothing = "mixed_bfloat16 is not shown to train faster than float32 on GPU"
    assert question.of(tables(rows)).title == f"{nothing}; float8 (emulated) trains 2.00× slower"


def test_a_policy_that_is_slower_somewhere_is_titled_with_it():
    base = {("float32", size): 0.1 for size in (32, 64)}
    times = base | {("mixed_float16", 32): 0.4, ("mixed_float16", 64): 0.1}
    rows = [record(p, b, s, batch_size=n) for (p, n), s in times.items() for b in range(3)]
    title = question.of(identified(tables(rows))).title
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
    answer = question.of(identified(tables(rows)))
    said = " ".join([answer.advice, *(bar.label for bar in answer.bars)])
    assert "with torch.compile" in said
    assert "XLA" not in said


def test_what_is_faster_everywhere_is_titled_from_the_least_to_the_most():
    rows = [
        record(policy, block, step_s, batch_size=size)
        for size, fast in ((32, 0.08), (64, 0.05))
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", fast))
        for block in range(3)
    ]
    title = question.of(identified(tables(rows))).title
    assert title.startswith("mixed_bfloat16 trains 1.25× to 2.00× faster than float32 on GPU")


def test_what_is_both_faster_and_slower_is_titled_from_what_to_what():
    base = {("float32", size): 0.1 for size in (32, 64)}
    times = base | {("bfloat16", 32): 0.2, ("bfloat16", 64): 0.05}
    rows = [record(p, b, s, batch_size=n) for (p, n), s in times.items() for b in range(3)]
    wanted = (
        "bfloat16 trains 2.00× faster than float32 on GPU at batch size 64, and 2.00× slower at "
        "batch size 32"
    )
    assert question.of(identified(tables(rows))).title.startswith(wanted)
    unknown = question.of(tables([row | {"identity": None} for row in rows]))
    assert unknown.title == (
        "Provisional (not valid): bfloat16 trains 0.50× to 2.00× as fast as float32 on GPU"
    )


def test_an_emulated_policy_alone_has_its_name_in_the_title():
    made = three("mixed_float16", [0.9, 1.0, 1.1], emulated=True)
    title = question.of(made).title
    assert title.startswith("mixed_float16 is not shown to train faster than float32")


def test_both_phases_are_in_the_title():
    times = {("train", 1): 1.0, ("train", 32): 0.5, ("inference", 1): 2.0, ("inference", 32): 0.8}
    rows = [
        record(policy, block, step_s, batch_size=size, phase=phase)
        for (phase, size), fast in times.items()
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", 0.1 * fast))
        for block in range(3)
    ]
    title = question.of(identified(tables(rows))).title
    assert title == (
        "mixed_bfloat16 runs inference 1.25× faster than float32 on GPU at batch size 32, and "
        "2.00× slower at batch size 1"  # a longer one is not read; the sentences have the rest
    )


def test_what_is_not_valid_is_not_the_title():
    rows = [record(p, b, s) for p, s in (("float32", 0.1), ("bfloat16", 0.05)) for b in range(3)]
    marks = ["measured while other programs used the processor"]
    answer = question.of(tables([row | {"marks": marks} for row in rows]))
    said = "bfloat16 trains 2.00× as fast as float32 on GPU"
    assert answer.title == f"Provisional (not valid): {said}"
    assert answer.bars[0].text == "2.00× as fast (not valid: interference, n = 3)"
    assert answer.advice == (
        "for a claim, end other programs; then run `mptexp run params.yaml --out . --repair` in "
        "this report's folder, which measures 6 runs again, about 1 min."
    )
    assert np.isnan(answer.bars[0].low)


def test_what_a_repair_costs_is_all_that_it_measures():
    # The lie: "4 runs again, about 1 min", of which the command then says 9, about 6 min.
    rows = [
        record(policy, block, 0.1, batch_size=size)
        for size in (32, 64)
        for policy in ("float32", "bfloat16")
        for block in range(3)
    ]
    rows[1] |= {"marks": ["measured while other programs used the processor"]}
    assert "which measures 2 runs again" in caveats.remedies(tables(rows), "time")


def test_accuracy_within_a_wide_margin_is_not_called_equal_without_it():
    # The lie that was told: "4.28x faster, at equal accuracy", 40 points lower, by a margin of 90.
    rows = three("mixed_float16", [2.0, 2.1, 1.9]).records
    for made in rows:
        if made["parameters"]["policy"] == "mixed_float16":
            made["history"][-1]["val_accuracy"] -= 0.4
    found = identified(tables(rows))
    assert question.of(found).title.endswith(" than float32 on GPU; its accuracy is lower")
    wide = question.of(replace(found, options=Options(equivalence_margin=0.9)))
    assert wide.title.endswith(", accuracy equal within 90 percentage points")
    assert wide.advice.endswith("and look at its accuracy in your own training.")
    alike = identified(three("mixed_float16", [2.0, 2.1, 1.9]))
    assert question.of(alike).title.endswith(", at equal accuracy")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ((-0.4, -0.41, -0.39), "; its accuracy is lower"),
        ((-0.2, 0.2, 0.0), "; accuracy undecided, +0.0 [−49.7, +49.7] percentage points"),
        (
            (-0.02, 0.02, 0.0),
            "; accuracy about the same in the mean, at most 5.0 percentage points either way",
        ),
        ((0.0, 0.0, 0.0), ", at equal accuracy"),
    ],
)
def test_a_title_says_what_a_gain_costs(changes, said):
    rows = three("mixed_float16", [2.0, 2.1, 1.9]).records
    for made in rows:
        if made["parameters"]["policy"] == "mixed_float16":
            made["history"][-1]["val_accuracy"] += changes[made["parameters"]["block"]]
    title = question.of(identified(tables(rows))).title
    assert title == f"mixed_float16 trains 2.00× faster than float32 on GPU{said}"


def on_devices(**times):
    """Steps of both policies on several devices, over the default of each."""
    rows = []
    for device, (default, base, fast) in times.items():
        for policy, step_s in ((default, base), ("mixed_float16", fast)):
            for block in range(3):
                made = record(policy, block, step_s, default=default)
                made["parameters"] |= {"gpu_model": device}
                made["run_id"] = f"{device}-{policy}-{block}"
                made["identity"] = made["identity"] | {"device": device}
                rows.append(made)
    return identified(tables(rows))


def test_a_ratio_of_another_device_is_not_in_the_title():
    # The lie: "1.07x to 1.40x faster than TF32 on H200", of which 1.07 is the V100's.
    both = on_devices(V100=("float32", 0.107, 0.1), H200=("tensorfloat32", 0.14, 0.1))
    title = question.of(both).title
    assert title.startswith("mixed_float16 trains 1.40× faster than TF32 on H200")
    none = on_devices(V100=("float32", 0.1, 0.1), H200=("tensorfloat32", 0.1, 0.1))
    answer = question.of(none)
    if "not shown" in answer.title:
        assert answer.title.endswith("than the default of each device on H200 and V100")
    assert "TF32" not in answer.advice


def accuracies(**points):
    """Runs at batch sizes: how fast mixed_float16 is there, and what its accuracy loses."""
    rows = []
    for size, (fast, lost) in points.items():
        for policy, step_s in (("float32", 0.1), ("mixed_float16", 0.1 / fast)):
            for block in range(3):
                made = record(policy, block, step_s, batch_size=int(size[1:]))
                if policy != "float32" and lost is None:
                    made |= {"status": "diverged", "history": []}
                elif policy != "float32":
                    made["history"][-1]["val_accuracy"] -= lost
                rows.append(made)
    return question.of(identified(tables(rows)))


def test_accuracy_is_that_of_all_points_and_not_of_the_fastest():
    answer = accuracies(b32=(1.4, 0.05), b128=(1.6, 0.0))
    assert answer.title.endswith("; its accuracy is lower at batch size 32")
    assert answer.advice == (
        "on this GPU at batch size 128, use **mixed_float16**, but not at batch size 32."
    )
    answer = accuracies(b32=(1.4, 0.0), b128=(1.6, None))
    assert answer.title.endswith("; some runs diverged")
    assert answer.advice.endswith("look at its accuracy in your own training.")


def test_a_policy_that_is_slower_at_one_size_is_titled_so():
    times = {("float32", 1): 0.1, ("float32", 128): 0.1, ("bfloat16", 1): 0.15}
    times |= {("bfloat16", 128): 0.0999}
    rows = [record(p, b, s, batch_size=n) for (p, n), s in times.items() for b in range(3)]
    assert question.of(identified(tables(rows))).title == (
        "bfloat16 trains 1.50× slower than float32 on GPU at batch size 1"
    )


def test_the_ends_are_drawn_and_all_are_counted_and_advised():
    slow = {8: 1.1, 16: 1.1, 24: 1.1, 512: 5.0}
    rows = []
    for size in (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 512):
        for block in range(3):
            rows.append(record("float32", block, 0.1, batch_size=size))
            rows.append(record("mixed_float16", block, 0.1 * slow.get(size, 0.5), batch_size=size))
    answer = question.of(identified(tables(rows)))
    assert (len(answer.drawn), len(answer.bars)) == (14, 16)
    assert answer.drawn[-1].label.endswith("batch size 512")
    # Once "but not at batch size 8 or at batch size 16 or at batch size 24", 5 times slower at 512.
    assert ", but not at batch size 512 or " in answer.advice
    assert "or in 1 more setting" in answer.advice
    assert "Of 16 comparisons: 4 slower and 12 faster; drawn are 14" in figure_caption(answer)


def figure_caption(answer):
    from mptexp.report.figures import answer as drawn

    return drawn._caption(answer)


def ending(policy, size, speedup, values):
    """Runs of a policy whose blocks end with these accuracies, at one batch size."""
    made = [record(policy, b, 0.1 / speedup, batch_size=size) for b in range(3)]
    for run, value in zip(made, values, strict=True):
        run["history"][-1]["val_accuracy"] = value
    return made


def test_a_policy_is_advised_without_a_word_only_where_all_of_it_is_shown_equal():
    fine, apart = (0.9, 0.9, 0.9), (0.9, 0.1, 0.8)
    rows = []
    for size, values in ((32, fine), (64, apart), (128, apart)):
        rows += ending("float32", size, 1, fine)
        rows += ending("mixed_float16", size, 3 if size == 32 else 2, values)
    answer = question.of(identified(tables(rows)))
    assert answer.advice == "use **mixed_float16**, and look at its accuracy in your own training."


def test_a_policy_whose_accuracy_is_shown_goes_before_a_faster_one_whose_is_not():
    fine, apart = (0.9, 0.9, 0.9), (0.9, 0.5, 0.95)
    rows = ending("float32", 32, 1, fine) + ending("mixed_bfloat16", 32, 1.6, fine)
    answer = question.of(identified(tables(rows + ending("mixed_float16", 32, 2, apart))))
    assert answer.advice == "use **mixed_bfloat16**, whose accuracy is shown to be equal."


@pytest.mark.parametrize(
    ("blocks", "bound"), [(1, "trains 0.50× to 0.80× as fast as"), (3, "1.25× slower")]
)
def test_ratios_apart_keep_their_bound_where_nothing_is_valid_too(blocks, bound):
    rows = [
        record(policy, block, step_s, batch_size=size)
        for size, slow in ((32, 0.2), (64, 0.125))
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", slow))
        for block in range(blocks)
    ]
    assert bound in question.of(tables(rows)).title


@pytest.mark.parametrize(
    ("kept", "title"),
    [
        ((0, 1), "Provisional (n = 2, no interval): bfloat16 trains 1.01× as fast as float32"),
        ((1, 2), "Provisional (n = 2, no interval): bfloat16 trains 0.99× as fast as float32"),
        ((0, 1, 2), "bfloat16 is not shown to train faster than float32"),
    ],
)
def test_two_blocks_of_three_say_no_direction_that_the_third_takes_away(kept, title):
    # The lie: "trains 1.01× faster" of blocks 0 and 1, "1.01× slower" of 1 and 2, which together
    # are inconclusive.
    ratios = (1.034, 0.988, 0.999)
    rows = [record(block=b, step_s=0.1) for b in kept]
    rows += [record("bfloat16", b, 0.1 / ratios[b]) for b in kept]
    assert question.of(identified(tables(rows))).title.startswith(f"{title} on GPU")


def test_ratios_that_are_one_ratio_have_no_bound():
    rows = [
        record(policy, block, step_s * (1 + block / 10), batch_size=size)
        for size, slow in ((32, 0.154), (64, 0.155))
        for policy, step_s in (("float32", 0.1), ("mixed_bfloat16", slow))
        for block in range(3)
    ]
    title = question.of(identified(tables(rows))).title
    assert title.startswith("mixed_bfloat16 trains 1.54× slower than float32")


def test_what_is_slower_and_rounds_to_one_is_not_called_slower():
    # The lie: "; mixed_bfloat16 trains 1.00× slower", of which the sentence says "as fast".
    rows = [
        record(policy, block, step_s)
        for policy, step_s in (("float32", 1), ("mixed_float16", 0.5), ("mixed_bfloat16", 1.0035))
        for block in range(5)
    ]
    answer = question.of(identified(tables(rows)))
    assert answer.title.startswith("mixed_float16 trains 2.00× faster than float32")
    assert "slower" not in answer.title
    assert "1.00× as fast" in answer.sentences[0]


def test_of_another_phase_the_title_says_in_how_many_settings():
    rows = []
    for size, ratio in ((32, 1.5), (64, 1.2), (128, 1.0)):
        for phase, gain in (("train", ratio), ("inference", 2.0)):
            for policy, step_s in (("float32", 0.1), ("mixed_float16", 0.1 / gain)):
                for block in range(3):
                    made = record(policy, block, step_s, size)
                    made["parameters"]["phase"] = phase
                    made["run_id"] = f"{policy}-{phase}-{size}-{block}"
                    rows.append(made)
    title = question.of(identified(tables(rows))).title
    assert title.endswith("; it trains 1.20× to 1.50× faster in 2 of 3 settings")


def test_the_title_counts_the_settings_of_which_accuracy_is_compared():
    # The lie: "lower in 2 of 6 settings", three of them of inference; the sentence said 2 of 3.
    rows = []
    for size, accuracy in ((32, 0.6), (64, 0.9), (128, 0.6)):
        for phase, (policy, step_s) in product(
            ("train", "inference"), (("float32", 0.1), ("mixed_float16", 0.05))
        ):
            for block in range(3):
                made = record(policy, block, step_s, size)
                made["parameters"]["phase"] = phase
                made["run_id"] = f"{policy}-{phase}-{size}-{block}"
                reached = accuracy if policy == "mixed_float16" else 0.9
                made = reaching(made, reached + block / 1e4)
                rows.append(made if phase == "train" else made | {"history": []})
    answer = question.of(identified(tables(rows)))
    assert "its accuracy is lower in 2 of 3 settings" in answer.title
    assert any("in 2 of 3 settings lower" in sentence for sentence in answer.sentences)


def test_what_is_proven_and_rounds_to_1_is_no_setting_with_a_gain():
    # The lie: "up to 2.00× faster in 2 of 3 settings", "use it at batch size 32", of 1.00×.
    steps = {
        (32, "mixed_float16"): 0.0998,
        (64, "mixed_float16"): 0.05,
        (128, "mixed_float16"): 0.1,
    }
    steps |= {(size, "float32"): 0.1 for size in (32, 64, 128)}
    rows = [
        record(policy, block, step_s * 1.5**block, batch_size=size)
        for (size, policy), step_s in steps.items()
        for block in range(3)
    ]
    answer = question.of(identified(tables(rows)))
    assert answer.title.startswith(
        "mixed_float16 trains 2.00× faster than float32 on GPU at batch size 64"
    )
    assert answer.advice.startswith("on this GPU at batch size 64, use **mixed_float16**")


def at_sizes(policy, times, lost=(), status="oom"):
    """Three runs of a policy at each batch size; those of `lost`, (size, block), end so."""
    rows = []
    for size, step_s in times.items():
        for block in range(3):
            made = record(policy, block, step_s * (1 + block / 100), size)
            if (size, block) in lost:
                made |= {"status": status, "error": "no", "history": [], "timing": {}}
            rows.append(made)
    return rows


def test_a_policy_is_advised_where_it_was_measured_and_no_other_gains_more_elsewhere():
    # The lie: "use mixed_float16. At batch size 32, mixed_bfloat16 gains more", where the former
    # was not measured.
    rows = at_sizes("float32", {32: 0.1, 128: 0.3}) + at_sizes("mixed_float16", {128: 0.15})
    rows += at_sizes("mixed_bfloat16", {32: 0.077, 128: 0.23})
    answer = question.of(tables(rows))
    assert answer.title.startswith(
        "mixed_float16 trains 2.00× faster than float32 on GPU at batch size 128"
    )
    assert answer.advice.startswith("on this GPU at batch size 128, use **mixed_float16**")
    assert "At batch size 32, **mixed_bfloat16** gains 1.30×." in answer.advice


def test_what_has_no_memory_for_both_takes_nothing_from_either():
    lost = [(512, 0)]
    rows = at_sizes("float32", {32: 0.1, 512: 0.8}, lost)
    answer = question.of(tables(rows + at_sizes("mixed_float16", {32: 0.05, 512: 0.4}, lost)))
    assert "out of memory" not in answer.title
    assert "but not at batch size 512" not in answer.advice
    alone = question.of(tables(rows + at_sizes("mixed_float16", {32: 0.05, 512: 0.4})))
    assert "out of memory" not in alone.title


def test_of_a_policy_whose_runs_diverged_more_repeats_are_not_all_that_is_advised():
    lost = [(32, 0), (32, 1)]
    rows = at_sizes("float32", {32: 0.1}) + at_sizes("mixed_float16", {32: 0.05}, lost, "diverged")
    answer = question.of(tables(rows))
    assert answer.title.startswith("Provisional (n = 1, no interval): mixed_float16 trains")
    assert answer.title.endswith("; some runs diverged")
    assert answer.advice.startswith(
        "find out first why runs of **mixed_float16** diverged, and try"
    )
    assert "repeats" not in answer.advice  # which would diverge as well


def test_runs_that_failed_are_tried_again_before_a_sweep_is_repeated():
    lost = [(32, 0)]
    rows = at_sizes("float32", {32: 0.1}) + at_sizes("mixed_float16", {32: 0.05}, lost, "failed")
    advice = question.of(tables(rows)).advice
    assert advice.startswith("for a claim, run ")
    assert advice.endswith("which tries 1 run again that did not end.")


def test_a_provisional_title_is_of_what_the_device_has_instructions_for():
    rows = []
    for policy, step_s, emulated in (
        ("float32", 0.1, False), ("float16", 0.09, True), ("mixed_bfloat16", 0.095, False),
    ):  # fmt: skip
        rows.append(record(policy, 0, step_s, emulated=emulated))
    assert "mixed_bfloat16 trains" in question.of(tables(rows)).title


def test_a_policy_that_was_compared_with_one_of_two_models_is_advised_with_it_alone():
    # The lie: "use mixed_float16", beside a model of which float32 alone was measured.
    rows = at_sizes("float32", {32: 0.1}) + at_sizes("mixed_float16", {32: 0.05})
    other = at_sizes("float32", {32: 0.4})
    for made in other:
        made["parameters"]["model"] = "resnet50"
        made["run_id"] = f"r{made['run_id']}"
    answer = question.of(tables(rows + other))
    assert "on GPU with keydana_cnn, at" in answer.title
    assert answer.advice.startswith(r"on this GPU with keydana\_cnn, use **mixed_float16**")


def test_formats_without_a_float32_beside_them_are_named():
    # The lie: "this sweep measured float32".
    rows = at_sizes("float32", {32: 0.1})
    for made in rows:
        made["parameters"]["propagation"] = "<8,8>"
        made["run_id"] = f"f{made['run_id']}"
    assert "This sweep measured float32 in <8,8>;" in question.of(tables(rows)).sentences[0]


def test_a_run_that_learned_nothing_is_told_and_no_policy_advised_that_has_one():
    # The lie: "use mixed_float16, and look at its accuracy", of which one run of three ended at
    # chance; of one that diverged "keep float32".
    rows = at_sizes("float32", {32: 0.1}) + at_sizes("mixed_float16", {32: 0.05})
    for made in rows:
        made["in_force"] = made["in_force"] | {"chance_accuracy": 0.1}
        lost = made["parameters"]["policy"] != "float32" and made["parameters"]["block"] == 0
        for epoch in made["history"]:
            epoch["val_accuracy"] = 0.1 if lost else 0.9
    answer = question.of(tables(rows))
    assert answer.title.endswith("on GPU; 1 run of it learned nothing")
    assert answer.advice.startswith("keep float32")


def test_a_title_is_of_the_device_on_which_a_gain_costs_nothing():
    # The lie: "2.04× faster on T4; some runs diverged", beside 2.01× on an A100 without any.
    rows = []
    for device, step_s, lost in (("T4", 0.049, [(32, 0)]), ("A100", 0.05, [])):
        own = at_sizes("float32", {32: 0.1})
        own += at_sizes("mixed_float16", {32: step_s}, lost, "diverged")
        for made in own:
            made["parameters"]["gpu_model"] = device
            made["run_id"] = f"{device}{made['run_id']}"
        rows += own
    title = question.of(tables(rows)).title
    assert title.startswith("mixed_float16 trains 2.00× faster than float32 on A100")
    assert "diverged" not in title


def test_a_baseline_that_is_less_accurate_than_strict_float32_is_told():
    # The lie: "at equal accuracy", "use mixed_float16", where TF32 itself costs ten points.
    rows = []
    for policy, step_s, figure in (
        ("float32", 0.3, 0.9), ("tensorfloat32", 0.1, 0.8), ("mixed_float16", 0.08, 0.8),
    ):  # fmt: skip
        for block in range(3):
            made = record(policy, block, step_s, default="tensorfloat32", images=9000)
            for epoch in made["history"]:
                epoch["val_accuracy"] = figure + block / 1e4
            rows.append(made)
    answer = question.of(tables(rows))
    assert ", at TF32's accuracy, which is below that of strict float32" in answer.title
    assert answer.advice == (
        "find out first why the accuracy of strict float32 is higher than that of TF32, before you "
        "use **mixed_float16**."
    )


def test_what_looks_equal_of_few_images_is_said_in_one_way():
    # The contradiction: "undecided: too few validation images" above "about the same in the mean".
    rows = [
        classified(record(policy, block, step_s), [n != (3 * block + k) % 40 for n in range(40)])
        for k, (policy, step_s) in enumerate((("float32", 0.1), ("mixed_float16", 0.05)))
        for block in range(5)
    ]
    answer = question.of(tables(rows))
    near = "accuracy about the same in the mean, "
    assert near in answer.title
    assert "accuracy is about the same in the mean as float32's, " in answer.sentences[1]


def test_what_is_not_proven_of_one_of_two_models_has_a_title_too():
    # Once no report: "attempt to get argmin of an empty sequence".
    rows = [record("float32", 0, 0.1), record("mixed_float16", 0, 0.05)]
    other = record("float32", 0, 0.4)
    other["parameters"]["model"], other["run_id"] = "resnet50", "r1"
    title = question.of(tables([*rows, other])).title
    assert title.startswith("Provisional (n = 1, no interval): mixed_float16 trains 2.00× as fast")
    assert "with keydana_cnn" in title


def test_a_faster_policy_that_reaches_its_target_later_is_not_advised_without_that():
    # The lie by omission: "use mixed_float16", which needs three epochs where float32 needs one.
    rows = at_sizes("float32", {32: 0.1}) + at_sizes("mixed_float16", {32: 0.07})
    for made in rows:
        late = made["parameters"]["policy"] != "float32"
        made["history"] = [
            {"epoch": n, "loss": 1.0, "accuracy": 0.8, "val_accuracy": v, "elapsed_s": 10.0 * n}
            for n, v in enumerate((0.5 if late else 0.86, 0.6 if late else 0.87, 0.9), 1)
        ]
    asked = replace(tables(rows), options=Options(target_accuracy=0.85))
    later = "; where the time to 85 % counts, keep float32, which takes less"
    assert later in question.of(asked).advice
    assert later not in question.of(tables(rows)).advice
