"""How a sweep of quantized weights opens."""

from dataclasses import replace

import numpy as np
import pytest
from builders import identified, quantized, record, tables
from support import PROJECT

from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import quantized_inference
from mptexp.report.first_screen import integer_weights, question


def test_the_page_opens_with_bytes_and_what_they_cost():
    made = []
    for block in range(3):
        made.append(record(block=block, step_s=0.1))
        made[-1]["parameters"] |= {"phase": "inference"}
        one = record(block=block, step_s=0.2 + block / 1e4)
        after = {"val_accuracy": 0.90 + block / 1000}
        made.append(quantized("int8", block, {"val_accuracy": 0.9}, after, one))
    answer = question.of(tables(made))
    assert answer.title == (
        "int8 shrinks the weights to 25 % of their bytes, accuracy +0.1 percentage points; "
        "int8 runs inference 2.00× slower than float32 on GPU"
    )
    assert answer.sentences[0] == (
        "Bytes of the weights, of which embeddings and normalizations stay float32, and what "
        "quantizing changed: **int8** 25 %, accuracy +0.1 [−0.1, +0.3] percentage points."
    )
    assert answer.advice.startswith("for speed keep float32; for fewer bytes take **int8**")


def test_where_no_time_is_valid_the_bytes_are_claimed_and_no_speed():
    made = []
    for block in range(3):
        one = record(block=block, step_s=0.1)
        one["parameters"] |= {"phase": "inference"}
        apart = record(block=block, step_s=0.1 * 2**block)
        after = {"val_accuracy": 0.9}
        made += [one, quantized("int8", block, after, after, apart)]
    answer = question.of(tables(made))
    title = "int8 shrinks the weights to 25 % of their bytes, accuracy +0.0 percentage points"
    assert answer.title == f"{title}; no speed is valid"
    (bar,) = answer.bars  # of what is valid, not of times that are not
    assert (answer.scale, bar.label) == ("accuracy", "int8: 25 % of the bytes")
    assert (bar.value, bar.low, bar.high) == pytest.approx((0, 0, 0), abs=0.1)
    assert answer.advice.startswith("for fewer bytes take **int8**")
    assert "--repair" in answer.advice


def test_weights_that_are_ruined_are_not_advised():
    # The lie: "for fewer bytes take int4", 60 points below.
    made = []
    for block in range(3):
        made.append(record(block=block, step_s=0.1))
        made[-1]["parameters"] |= {"phase": "inference"}
        for policy, lost, size in (("int8", 0.001, 2**20), ("int4", 0.6, 2**19)):
            after = {"val_accuracy": 0.9 - lost + block / 10000}
            one = record(block=block, step_s=0.2 + block / 1e4)
            made.append(quantized(policy, block, {"val_accuracy": 0.9}, after, one))
            made[-1]["quantized"]["bytes_after"] = size
    advice = question.of(tables(made)).advice
    assert advice.startswith("for speed keep float32; for fewer bytes take **int8**")
    ruined = [r for r in made if r["parameters"]["policy"] != "int8"]
    assert question.of(tables(ruined)).advice == (
        "keep float32: all lose more than 1 percentage point of accuracy."
    )


def test_what_loses_on_one_network_is_advised_on_the_other_alone():
    # The lie: "for fewer bytes take int4", which loses 60 points on one of two networks.
    made = []
    for model, lost in (("lenet", 0.6), ("mlp", 0.0)):
        for policy, change, size in (("float32", 0, 0), ("int8", 0, 2**20), ("int4", lost, 2**19)):
            for block in range(3):
                one = record(block=block, step_s=0.1 + 0.1 * (policy != "float32"))
                one["parameters"] |= {"phase": "inference", "model": model}
                one["run_id"] = f"{model}-{policy}-{block}"
                if size:
                    after = {"val_accuracy": 0.9 - change}
                    one = quantized(policy, block, {"val_accuracy": 0.9}, after, one)
                    one["run_id"] = f"{model}-{policy}-{block}"
                    one["quantized"]["bytes_after"] = size
                made.append(one)
    advice = question.of(tables(made)).advice
    assert "for fewer bytes take **int4** (mlp) and **int8** (lenet), and look at" in advice


def quantized_to(losses, marks=(), model="lenet"):
    """Runs of float32 and of int8 that is twice as fast, an accuracy lost in each block."""
    for block, lost in enumerate(losses):
        for policy, step_s in (("float32", 0.1), ("int8", 0.05)):
            made = record(block=block, step_s=step_s + block / 1e5)
            made["parameters"] |= {"phase": "inference", "model": model}
            if policy == "int8":
                made = quantized(
                    "int8", block, {"val_accuracy": 0.9}, {"val_accuracy": 0.9 - lost}, made
                )
            made["run_id"] = f"{model}-{policy}-{block}"
            yield made | {"marks": [*marks]}


def test_what_is_not_decided_is_not_advised_and_has_possible_ends():
    # The lie: "use int8" by a mean of 0.0, or "all lose more than 1 percentage point" by one of
    # -3.3, of intervals from -60.7 to +54.0 points, of a model that was right in 90 %.
    for losses in ((0.3, -0.1, -0.1), (0.4, 0.3, -0.7)):
        answer = question.of(tables([*quantized_to(losses)]))
        assert "accuracy undecided, " in answer.title
        assert answer.advice == (
            "keep float32: none is shown to keep the accuracy within 1 percentage point; it takes "
            "about 5 repeats, not 3, to halve the intervals."
        )
        assert "+10.0] percentage points" in answer.title


def test_an_accuracy_that_is_not_valid_is_no_loss():
    # The lie: "all lose more than 1 percentage point", of accuracies that are not valid.
    seen = ["900 of 1000 validation images are trained on too"]
    advice = question.of(tables([*quantized_to([0.5, 0.5, 0.5], seen)])).advice
    assert advice.startswith("keep float32: the accuracy of quantized weights is not valid. For a")


def test_of_a_single_run_no_speed_is_shown():
    # The lie: "no speed is valid", and "for fewer bytes take int8" of one run.
    answer = question.of(tables([*quantized_to([0.0])]))
    assert answer.title.endswith(
        "+0.0 percentage points (fewer than three repeats); no speed is shown"
    )
    assert answer.advice.startswith(
        "keep the weights in float32: none is shown to keep the accuracy"
    )


def test_the_network_that_loses_is_named_first_and_the_others_are_counted():
    # The lie: three times "+0.00", of four networks of which the fourth loses 60 points.
    made = [
        run
        for model, lost in (("mlp", 0), ("lenet", 0), ("alexnet", 0), ("vit", 0.6))
        for run in quantized_to([lost] * 3, model=model)
    ]
    said = question.of(tables(made)).sentences[0]
    assert "changed: **int8** (vit) 25 %, accuracy −60.0 [" in said
    assert said.endswith("; 1 more.")


def published(name):
    return store.read_records(SweepDir(PROJECT / "reports/published" / name))[0]


TIMES = ("timing", "windows", "latencies_s", "readings", "samples")


def unlisted():
    """The published sweep as if its records had the figures alone, as older ones have.

    Its times are all those of float32, which nothing disturbed: what is said of them is left out.
    """
    records = published("quantized-inference-gpt-cpu")
    undisturbed = {
        one["parameters"]["block"]: {part: one[part] for part in TIMES}
        for one in records
        if one["parameters"]["policy"] == "float32"
    }
    for one in records:
        one |= undisturbed[one["parameters"]["block"]]
        for part in (one.get("quantized") or {}).values():
            if isinstance(part, dict):
                part.pop("validated", None)
    return records


def test_no_weights_are_advised_of_whose_sequences_nothing_is_recorded():
    # The lie: "for fewer bytes take int4", of three repeats on the same text.
    answer = question.of(tables(unlisted()))
    assert (
        "% in the mean, undecided (how each sequence was predicted is not recorded)"
    ) in answer.title
    assert answer.advice == (
        "keep float32: none is shown to keep the perplexity within 1 %. For a claim, run `mptexp "
        "run params.yaml --out ../again` in this report's folder, which records how each sequence "
        "is predicted."
    )


def test_a_profiled_sweep_is_told_to_run_without_the_profile():
    records = unlisted()
    for one in records:
        one["parameters"]["profile"] = True
    assert "--set profile=false` in this" in question.of(tables(records)).advice


def test_bars_of_what_is_not_recorded_have_no_interval():
    made = []
    for block in range(3):
        one = record(block=block, step_s=0.1)
        one["parameters"] |= {"phase": "inference"}
        apart = record(block=block, step_s=0.1 * 2**block)
        after = {"val_accuracy": 0.9}
        made += [one, quantized("int8", block, after, after, apart)]
        for each in made[-2:]:
            each["in_force"]["validation_images"] = None
    answer = question.of(tables(made))
    (bar,) = answer.bars
    assert bar.finding == "images not recorded"
    assert np.isnan([bar.low, bar.high]).all()
    assert "take **int8**" not in answer.advice


def test_too_few_images_are_no_reason_for_more_repeats():
    # The lie: "use int8", of three repeats that agree on 360 images.
    made = [*quantized_to([0.0] * 3)]
    for one in made:
        one["in_force"] |= {"validation_images": 360, "validation_labels": [360]}
    answer = question.of(tables(made))
    assert "undecided (too few validation images)" in answer.title
    assert answer.advice == (
        "keep float32: none is shown to keep the accuracy within 1 percentage point; it takes at "
        "least 369 validation images."
    )


def test_of_equal_bytes_none_is_the_smallest():
    # The lie: "for fewer bytes take int8", where int8_weights has as few and is no slower.
    (one,) = quantized_inference.measured(tables([*quantized_to([0.0, 0.0, 0.0])]))
    same = replace(one, policy="int8_weights")
    fewer = replace(one, policy="int4", bytes_after=one.bytes_after / 2)
    assert integer_weights._least([one, same]) == "**int8** or **int8_weights**"
    assert integer_weights._least([one, same, fewer]) == "**int4**"


def test_weights_that_nobody_may_use_need_no_repeats_of_their_speed():
    # The lie: "to show effects as small … would take over 50 repeats: all lose more than 1 …".
    made = []
    for block in range(3):
        near = {"val_accuracy": 0.9 - 0.2 - block / 1000}
        base = record("float32", block, 0.1)
        base["parameters"] |= {"phase": "inference"}
        same = record("float32", block, 0.1 + (block - 1) / 1e6)
        made += [base, quantized("int4", block, {"val_accuracy": 0.9}, near, same)]
    advice = question.of(identified(tables(made))).advice
    assert advice == "keep float32: all lose more than 1 percentage point of accuracy."


@pytest.mark.parametrize(
    ("after", "took"), [(1100, "take 107 % of the bytes"), (0, "take a size that is not recorded")]
)
def test_weights_that_take_more_bytes_are_not_advised_for_fewer(after, took):
    # The lie: "int8 shrinks the weights to 107 % of their bytes; for fewer bytes take int8".
    made = []
    for block in range(3):
        base = record("float32", block, 0.1)
        base["parameters"] |= {"phase": "inference"}
        same = {"val_accuracy": 0.9}
        one = quantized("int8", block, same, same, record("float32", block, 0.12))
        one["quantized"] |= {"bytes_before": 1024 * bool(after), "bytes_after": after}
        made += [base, one]
    answer = question.of(identified(tables(made)))
    assert answer.title.startswith(f"the weights of int8 {took}")
    assert answer.advice == "keep float32: quantized weights are not known to take fewer bytes."
