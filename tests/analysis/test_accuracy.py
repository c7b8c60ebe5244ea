import math
import re
from dataclasses import replace

import numpy as np
import pytest
from builders import LOGICAL_CPU, classified, diverged, record, tables
from support import PROJECT

from mptexp.analysis import accuracy
from mptexp.analysis.sweep_tables import Options
from mptexp.records.schema import VOID
from mptexp.report.answers import findings
from mptexp.report.tables import text_tables


def learned(policy, block, *accuracies, **more):
    epochs = [
        {"epoch": k, "loss": 1.0, "accuracy": 0.9, "val_accuracy": value, "elapsed_s": 10.0 * k}
        for k, value in enumerate(accuracies, 1)
    ]
    return record(policy, block, **more) | {"history": epochs}


def pairs(differences, base=0.9):
    rows = []
    for block, difference in enumerate(differences):
        rows.append(learned("float32", block, base))
        rows.append(learned("mixed_float16", block, base + difference))
    return tables(rows)


@pytest.mark.parametrize(
    ("differences", "margin", "verdict"),
    [
        ([0.001, -0.001, 0.0], 0.01, "equal"),
        ([-0.05, -0.051, -0.049], 0.01, "lower"),
        ([0.05, 0.051, 0.049], 0.01, "higher"),
        ([-0.03, 0.03, 0.0], 0.01, "undecided"),
        ([-0.03, 0.03, 0.0], 0.2, "equal"),
        ([0.001, -0.001], 0.01, "too few repeats"),
    ],
)
def test_what_a_difference_means(differences, margin, verdict):
    made = replace(pairs(differences), options=Options(equivalence_margin=margin))
    (row,) = accuracy.differences(made).to_dict("records")
    assert row["verdict"] == verdict
    assert row["difference"] == pytest.approx(sum(differences) / len(differences))
    assert (row["baseline"], row["candidate"]) == ("float32", "mixed_float16")


def test_no_significant_difference_is_never_called_equal():
    noisy = pairs([-0.03, 0.03, 0.0])
    sentence = findings.answer(noisy)[-1]
    (finding,) = text_tables.accuracy_rows(noisy).Finding
    # The puzzle: "inconclusive", of a mean of nothing and of +48 points alike.
    same = "about the same in the mean"
    assert finding == f"{same}, at most 7.5 percentage points either way"
    begins = f"Validation accuracy is {same} as float32's, +0.0 [−7.5, +7.5] percentage points: "
    assert sentence.startswith(begins)
    # A mean of nothing says nothing where repeats lie far apart.
    wide = text_tables.accuracy_rows(pairs([-0.3, 0.3, 0.0])).Finding
    assert wide.tolist() == ["undecided"]


def test_what_may_be_chance_is_said_with_its_size():
    apart = pairs([-0.1, 0.03, 0.0])
    sentence = findings.answer(apart)[-1]
    begins = "Validation accuracy is undecided (n = 3): mean difference −2.3 [−"
    assert sentence.startswith(begins)
    (finding,) = text_tables.accuracy_rows(apart).Finding
    assert finding == "undecided"


def test_the_level_of_two_policies_is_told_of_each():
    level = findings.answer(pairs([-0.05, -0.051, -0.049]))[-1]
    assert ", float32 90.0 % and mixed_float16 85.0 %" in level


def test_an_equivalence_is_stated_with_its_margin():
    _, sentence = findings.answer(pairs([0.001, -0.001, 0.0]))
    assert ", 90.0 % in the mean everywhere" in sentence
    said = "Validation accuracy is equal within 1 percentage point: mean difference +0.0 "
    assert sentence.startswith(said)
    assert text_tables.accuracy_rows(pairs([0.001, -0.001, 0.0])).Finding.tolist() == [
        "equal within 1 percentage point"
    ]


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_policy_of_which_a_run_diverged_is_not_equal(policy):
    # The lie: four blocks say "equal", and the fifth, which diverged, says nothing.
    made = pairs([0.001, -0.001, 0.0, 0.001, -0.001]).records
    assert accuracy.differences(tables(made)).verdict.tolist() == ["equal"]
    for one in made:
        if (one["parameters"]["policy"], one["parameters"]["block"]) == (policy, 4):
            one |= {"status": "diverged", "history": [{"epoch": 1, "val_accuracy": None}]}
            one["in_force"].pop("jit")
    told = tables(made)
    (row,) = accuracy.differences(told).to_dict("records")
    said = "baseline diverged" if policy == "float32" else "diverged"
    assert (row["verdict"], row["blocks"]) == (said, 4)
    whose = "runs of the baseline" if policy == "float32" else "some of the runs"
    assert f"not compared ({whose} diverged)" in findings.answer(told)[-1]
    assert text_tables.accuracy_rows(told).Finding.tolist() == [said]


def test_a_batch_that_is_always_the_same_says_nothing_of_accuracy():
    rows = pairs([0.0, 0.0, 0.0]).records
    for made in rows:
        made["parameters"]["input_mode"] = "resident"
    assert accuracy.differences(tables(rows)).empty


def test_time_to_an_accuracy_is_that_of_the_first_epoch_that_has_it():
    found = tables([learned("float32", 0, 0.5, 0.8, 0.7), learned("float32", 1, 0.5, 0.6, 0.8)])
    assert accuracy.target(found) == 0.8
    assert sorted(accuracy.seconds_to(found, 0.8)) == [20, 30]
    assert sorted(accuracy.seconds_to(found, 0.85)) == [math.inf, math.inf]


def test_when_an_accuracy_was_reached_is_not_known_of_an_epoch_without_a_time():
    # The lie: infinite, as of a run that never reached it; or the end of a later epoch.
    runs = [learned("float32", block, 0.5, 0.8, 0.9) for block in range(2)]
    runs[0]["history"][1]["elapsed_s"] = None
    seconds = accuracy.seconds_to(tables(runs), 0.7)
    assert math.isnan(seconds[runs[0]["run_id"]])
    assert seconds[runs[1]["run_id"]] == 20.0
    assert accuracy.seconds_to(tables(runs), 0.95).tolist() == [math.inf, math.inf]
    for epoch in runs[1]["history"]:
        epoch["elapsed_s"] = None
    assert accuracy.seconds_to(tables(runs[1:]), 0.7).isna().all()


def test_an_accuracy_that_is_reached_exactly_is_reached():
    # The lie: "not reached", of 324 of 360 images, which Keras computes as 0.8999999762.
    exactly = float(np.float32(324 / 360))
    assert exactly < 0.9
    found = tables([learned("float32", block, 0.5, exactly, 0.7) for block in range(2)])
    assert accuracy.target(found) == 0.9
    assert sorted(accuracy.seconds_to(found, 0.9)) == [20, 20]


def test_the_target_is_the_users_or_what_every_run_reached():
    found = tables([learned("float32", 0, 0.912), learned("mixed_float16", 0, 0.897)])
    assert accuracy.target(found) == 0.89
    asked = replace(found, options=Options(target_accuracy=0.9))
    assert accuracy.target(asked) == 0.9
    shown = text_tables.detail_rows(asked)
    assert shown["Time to 90 % accuracy"].tolist() == ["10.0 s", "not reached"]
    assert accuracy.target(tables([record() | {"history": []}])) is None
    # The lie: "not reached", by the median of one that did and one that did not.
    half = tables([learned("float32", 0, 0.912), learned("float32", 1, 0.897)])
    shown = text_tables.detail_rows(replace(half, options=Options(target_accuracy=0.9)))
    assert shown["Time to 90 % accuracy"].tolist() == ["10.0 s (1 of 2 runs)"]


def test_cost_stands_in_the_table_where_a_price_is_given():
    found = tables([record(step_s=0.32)])  # 100 images per second, one second of training
    assert not [name for name in text_tables.detail_rows(found) if "Cost" in name]
    several = tables([record(step_s=0.32)])
    several.results["replicas"] = 4
    priced = [
        text_tables.detail_rows(replace(one, options=Options(price_per_hour=3.6)))
        for one in (found, several)
    ]
    (cost,) = [name for name in priced[0] if "million" in name]
    alone, four = (float(rows[cost].iloc[0]) for rows in priced)
    assert four == pytest.approx(4 * alone)  # the price is that of a device
    # The lie: a CPU of four logical devices charged four times.
    several.results["device"] = LOGICAL_CPU
    rows = text_tables.detail_rows(replace(several, options=Options(price_per_hour=3.6)))
    assert float(rows[cost].iloc[0]) == pytest.approx(alone)
    priced = replace(found, options=Options(price_per_hour=3.6))
    shown = text_tables.detail_rows(priced)
    assert shown["Cost per million images"].tolist() == ["10"]
    assert shown["Cost per training"].tolist() == ["0.001"]
    # Merged from machines of which one was given a price: once the other's cost too.
    apart = tables([record(step_s=0.32), record("bfloat16", step_s=0.32)])
    apart.results["gpu_model"] = ["A100", "T4"]
    apart = replace(apart, options=Options(price_per_hour=3.6))
    assert not [name for name in text_tables.detail_rows(apart) if "Cost" in name]


def test_trainings_of_other_lengths_are_not_compared():
    # Their step times were certain after different numbers of steps.
    rows = pairs([0.5, 0.5, 0.5], base=0.2).records
    for made in rows:
        made["timing"]["ended_by"] = "target_ci"
    found = tables(rows)
    assert accuracy.differences(found).empty
    assert accuracy.target(found) is None
    assert not [s for s in findings.answer(found) if "accuracy" in s]
    assert "Validation accuracy" not in text_tables.headline_rows(found)


def test_every_device_has_its_own_verdict():
    rows = pairs([0.0, 0.0, 0.0]).records
    for made in pairs([-0.4, -0.4, -0.4]).records:
        made["parameters"]["gpu_model"] = "V100"
        made["run_id"] += "v"
        rows.append(made)
    (said,) = [s for s in findings.answer(tables(rows)) if "alidation accuracy" in s]
    assert "**mixed_float16** on GPU equal within 1 percentage point" in said
    assert "**mixed_float16** on V100 lower" in said


def validated(policy, accuracies, images=500, chance=0.1):
    for block, value in enumerate(accuracies):
        made = record(policy, block)
        made["in_force"] |= {"chance_accuracy": chance, "validation_images": images}
        made["history"] = [{"epoch": 1, "loss": 1.0, "accuracy": value, "val_accuracy": value}]
        yield made


def verdicts(*groups):
    made = tables([one for group in groups for one in group])
    return accuracy.differences(made).verdict.tolist(), made


def test_policies_that_both_learned_nothing_are_not_equal():
    # Published once: 10.0 % on ten classes, "equal within 1 point", "confirmed".
    nothing = [0.1, 0.1, 0.1]
    found, made = verdicts(validated("float32", nothing), validated("mixed_float16", nothing))
    assert found == ["not trained"]
    assert accuracy.target(made) is None


def test_a_policy_that_alone_learned_nothing_is_lower():
    found, _ = verdicts(
        validated("float32", [0.9, 0.91, 0.92]), validated("mixed_float16", [0.1, 0.1, 0.11])
    )
    assert found == ["lower"]


def all_alike(policy, images, digest="5a3e5a3e5a3e", wrong=10):
    for block in range(3):
        yield classified(record(policy, block), np.arange(images) >= images // wrong, digest)


@pytest.mark.parametrize(
    ("images", "verdict"), [(20, "too few images"), (368, "too few images"), (400, "equal")]
)
def test_few_validation_images_cannot_show_that_policies_are_equal(images, verdict):
    found, _ = verdicts(all_alike("float32", images), all_alike("mixed_float16", images))
    assert found == [verdict]


def test_the_guide_says_how_many_images_show_that_policies_are_equal():
    # The lie: 370.
    (said,) = re.findall(r"it takes (\d+) images", (PROJECT / "docs/guide.md").read_text())
    for images, enough in ((int(said) - 1, False), (int(said), True)):
        found, _ = verdicts(all_alike("float32", images), all_alike("mixed_float16", images))
        assert (found == ["equal"]) == enough


def test_images_are_not_what_is_lacking_where_trainings_vary():
    # The lie: "too few validation images" beside -1.6 [-14.7, +11.5] points, which without end of
    # images would be [-9.0, +5.8]: a reader validates with more of them in vain.
    apart = [
        classified(record("mixed_float16", block), np.arange(200) >= 20 + more)
        for block, more in enumerate((0, 10, 1))
    ]
    found, _ = verdicts(all_alike("float32", 200), apart)
    assert found == ["undecided"]


def test_few_validation_images_show_a_large_loss():
    # The lie by silence: 31 % beside 98 % of 360 images, in six repeats, "inconclusive".
    found, _ = verdicts(all_alike("float32", 200), all_alike("mixed_float16", 200, wrong=2))
    assert found == ["lower"]


def test_without_the_list_of_images_each_side_counts_as_validated_with_its_own():
    # Two runs that got 450 of 500 right may have got any 450 right.
    same = [0.9, 0.9, 0.9]
    found, made = verdicts(validated("float32", same), validated("mixed_float16", same))
    assert found == ["undecided"]
    row = accuracy.differences(made).iloc[0]
    assert row.high == pytest.approx(2 * math.sqrt(2 * 0.09 / 500), rel=0.05)
    # Lists of other images, or of the same in another order, are not paired either.
    lists = all_alike("float32", 500), all_alike("mixed_float16", 500, digest="0123456789ab")
    assert verdicts(*lists)[0] == ["undecided"]


def test_a_record_that_does_not_say_how_many_images_there_were_shows_no_equality():
    rows = pairs([0.0, 0.0, 0.0]).records
    for made in rows:
        del made["in_force"]["validation_images"]
    found = tables(rows)
    assert accuracy.differences(found).verdict.tolist() == ["images not recorded"]
    assert "equal" not in " ".join(findings.answer(found))


def test_what_is_not_valid_is_no_finding():
    rows = list(validated("mixed_float16", [0.9, 0.9, 0.9]))
    for row in rows:
        row["identity"] = None
    assert verdicts(validated("float32", [0.9, 0.9, 0.9]), rows)[0] == ["not valid"]


def test_what_follows_the_last_epoch_is_no_training():
    # Published once: two of three float16 runs were idle for 45 s before `fit` returned.
    idle, void = learned("float32", 0, 0.5, 0.8), learned("float32", 1, 0.5)
    idle["fit_s"] = 65.0
    void["marks"] = [f"{VOID}: 2 runs shared this machine"]
    silent = record(block=2)
    found = accuracy.training_s(tables([idle, void, silent]))
    assert found[idle["run_id"]] == 20.0
    assert math.isnan(found[void["run_id"]])
    assert found[silent["run_id"]] == silent["fit_s"]


def test_a_training_whose_last_epoch_has_no_time_has_none():
    # The lie: the seconds, and the price, of the epochs that had one.
    cut = learned("float32", 0, 0.5, 0.8, 0.9)
    cut["history"][-1]["elapsed_s"] = None
    assert accuracy.training_s(tables([cut])).isna().all()


def test_there_is_no_time_to_an_accuracy_that_guessing_reaches():
    made = tables([record(chance_accuracy=0.1)])
    for wanted, reached in ((0.09, None), (0.5, 0.5)):
        options = Options(target_accuracy=wanted)
        assert accuracy.target(replace(made, options=options)) == reached
    silent = [learned("float32", 0, 0.912), learned("mixed_float16", 0, 0.897)]
    for each in silent:
        del each["in_force"]["validation_labels"]
    assert accuracy.target(tables(silent)) is None


def test_a_policy_of_which_all_runs_diverged_is_a_row_and_a_lost_baseline_forbids_all():
    # The lies: no row, so "accuracy is equal" of the others; "mixed_float16 diverges" beside a
    # float32 that does.
    policies = ("float32", "mixed_bfloat16", "float16")
    rows = [record(p, b) for p in policies for b in range(3)]
    lost = [diverged(one) if one["parameters"]["policy"] == "float16" else one for one in rows]
    table = accuracy.differences(tables(lost)).set_index("candidate")
    assert table.verdict.to_dict() == {"mixed_bfloat16": "equal", "float16": "diverged"}
    assert table.blocks.to_dict() == {"mixed_bfloat16": 3, "float16": 0}
    rows += [record("float32", 3), record("float16", 3)]
    rows[-2:] = map(diverged, rows[-2:])
    assert set(accuracy.differences(tables(rows)).verdict) == {"baseline diverged"}
