"""What is said of loss scales."""

import pytest
from builders import loss_scaled, published, several_scales, tables, text

from mptexp.analysis import loss_scale
from mptexp.report.answers import loss_scales, published_claims
from mptexp.report.figures import numerics
from mptexp.report.first_screen import question
from mptexp.spec.run import Run


def test_the_sentence_says_all_of_it():
    sentences = loss_scales.sentences(loss_scale.table(several_scales()))
    assert (
        "**mixed_float16** trains as float32 does with a loss scale of 1 and under the dynamic "
        "scale (4 skipped steps, median), falls behind float32 with 2⁻¹⁶ (−67.1 percentage points) "
        "and diverges in 2 of 3 runs with 2²⁴."
    ) in sentences


def test_the_table_names_what_was_not_finite_first():
    text = loss_scales.text(loss_scale.table(several_scales()))
    assert "diverged, 2 of 3: trained again, the first was the loss, in step 3" in set(text.Finding)


def test_an_interval_that_says_nothing_is_no_training():
    found = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
    found += [loss_scaled("float16", 8.0, b, a) for b, a in enumerate((0.4, 0.8, 0.85))]
    found += [loss_scaled("float16", s, 0, 0.97) for s in (1.0, 2.0, 4.0)]
    rows = loss_scale.table(tables(found))
    assert rows.verdict.tolist()[-1] == "undecided"
    (sentence,) = loss_scales.sentences(rows)
    # Published once: "trains as float32 does" beside "undecided" in the table.
    assert "trains" not in sentence
    assert (
        "float16** is undecided (n = 1 to 3), in the mean −1.0 percentage points from float32 with "
        "1, −1.0 with 2, −1.0 with 4 and −29.7 with 8." in sentence
    )


def scaled_text(policy, scale, block, loss):
    made = text(policy, block, loss + block / 1000)
    made["parameters"] |= {"loss_scale": scale}
    return made | {"run_id": Run(**made["parameters"]).run_id()}


def test_a_text_is_judged_by_its_perplexity():
    made = [scaled_text("float32", "none", b, 2.0) for b in range(3)]
    made += [scaled_text("mixed_float16", "none", b, 2.3) for b in range(3)]
    made += [scaled_text("mixed_float16", 1024.0, b, 2.001) for b in range(3)]
    found = tables(made)
    rows = loss_scale.table(found)
    (sentence,) = loss_scales.sentences(rows)
    assert sentence == (
        "**mixed_float16** trains as float32 does with a loss scale of 1024 and falls behind "
        "float32 without a loss scale (+35.0 % of perplexity)."
    )
    shown = loss_scales.text(rows)
    assert shown["Validation perplexity"].iloc[0].startswith("7.40 (7.39–7.40")
    assert shown["% of perplexity from float32"].iloc[1].startswith("+35.0")
    assert shown.Finding.tolist()[1:] == ["higher (worse)", "equal within 1 %"]
    axis = numerics.accuracy_by_loss_scale(("", rows)).axes[0]
    assert axis.get_ylabel() == "validation perplexity"
    drawn = [y for line in axis.lines for y in line.get_ydata()]
    assert max(drawn) < axis.get_ylim()[1] < 12
    # The studies speak of images.
    about = [
        f.finding for c, f in published_claims.table(found) if "accurate as float32" in c.words
    ]
    assert about == [published_claims.UNTESTED]


def test_a_network_that_needs_a_scale_is_titled_by_the_scales_that_do():
    found = [loss_scaled("float32", "none", b, 0.95) for b in range(3)]
    found += [loss_scaled("mixed_bfloat16", "none", b, 0.95) for b in range(3)]
    for scale, accuracy in (("none", 0.1), (1024.0, 0.95), (2.0**15, 0.95)):
        found += [loss_scaled("mixed_float16", scale, b, accuracy) for b in range(3)]
    made = tables([run | {"in_force": run["in_force"] | {"chance_accuracy": 0.1}} for run in found])
    rows = loss_scale.table(made)
    # Entitled once: "mixed_bfloat16 trains as float32 does with every loss scale", its only one.
    said = "mixed_float16 trains as float32 does with loss scales of 1024 and 2¹⁵"
    assert loss_scales.title(rows) == (
        f"{said}, and falls behind float32 without a loss scale (−85.0 percentage points)"
    )
    assert "**mixed_bfloat16** trains as float32 does without a loss scale." in (
        loss_scales.sentences(rows)
    )
    # Runs at chance level beside a float32 that learned are the finding, and nothing to repair.
    assert "not trained" in set(made.ok["flags"])
    answer = question.of(made)
    assert answer.figure == "loss scale"
    assert answer.advice == (
        "take **mixed_float16** with loss scales of 1024 and 2¹⁵ or **mixed_bfloat16** without a "
        "loss scale."
    )


def test_where_images_are_few_the_failures_are_the_answer():
    found = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
    for scale, accuracy in ((2.0**-16, 0.3), (1.0, 0.98), (2.0**24, None)):
        found += [loss_scaled("mixed_float16", scale, b, accuracy) for b in range(3)]
    few = {"validation_images": 100, "validation_labels": [50, 50]}
    rows = loss_scale.table(tables([run | {"in_force": few} for run in found]))
    # The lie: "ends at most 1 percentage point below float32 only with 1", by its mean.
    assert loss_scales.title(rows) == (
        "mixed_float16 falls behind float32 with a loss scale of 2⁻¹⁶ (−68.0 percentage points) "
        "and diverges with 2²⁴; the other loss scale is about the same in the mean, at most 6.0 "
        "percentage points either way"
    )
    assert loss_scales.advice(rows, 0.01).startswith("validate with more images")


def test_of_what_is_open_it_is_said_which_lacks_images():
    # The lie: "too few validation images" of all that is open, with a scale whose trainings vary.
    few = {"validation_images": 30, "validation_labels": [15, 15]}
    made = scaled((0.98,) * 3, (1.0, (0.98,) * 3), (8.0, (0.98,) * 3), (128.0, (0.98,) * 3))
    rows = loss_scale.table(tables([run | {"in_force": few} for run in made.records]))
    open_ = rows.loss_scale == 8.0
    rows = rows.assign(
        verdict=rows.verdict.mask(open_, "undecided"), low=rows.low.mask(open_, -0.064)
    )
    rows["high"] = rows.high.mask(open_, 0.064)
    (said,) = loss_scales.sentences(rows)
    assert said == (
        "**mixed_float16** is about the same in the mean as float32's, +0.0 [−6.4, +6.4] "
        "percentage points with 8 and is undecided with 1 and 128 (+0.0 percentage points: too few "
        "validation images)."
    )
    assert loss_scales.advice(rows, 0.01) == (
        "validate with more images and in more repeats to rule out a small loss of accuracy."
    )


def test_one_run_that_diverges_is_not_all():
    found = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
    for scale, accuracies in ((1.0, (0.98,) * 3), (2.0**15, (0.98, None, 0.98))):
        found += [loss_scaled("mixed_float16", scale, b, a) for b, a in enumerate(accuracies)]
    (sentence,) = loss_scales.sentences(loss_scale.table(tables(found)))
    assert "diverges in 1 of 3 runs with 2¹⁵" in sentence


def scaled(base, *scales):
    """The table of float32 beside mixed_float16 with scales: (scale, accuracies of its blocks)."""
    found = [loss_scaled("float32", "none", b, a) for b, a in enumerate(base)]
    for scale, accuracies in scales:
        found += [loss_scaled("mixed_float16", scale, b, a) for b, a in enumerate(accuracies)]
    return tables(found)


def test_the_dynamic_scale_is_one_of_those_that_were_measured():
    fine, apart = (0.98,) * 3, (0.98, 0.50, 0.95)
    rows = loss_scale.table(scaled(fine, (1.0, fine), (1024.0, fine), ("dynamic", apart)))
    # Once "with every loss scale that was tried", beside an undecided dynamic one.
    said = "trains as float32 does with loss scales of 1 and 1024"
    assert loss_scales.title(rows) == f"mixed_float16 {said}"
    assert loss_scales.advice(rows, 0.01).endswith("with loss scales of 1 and 1024.")
    # And once "No loss scale is shown to train", beside a dynamic one that does.
    rows = loss_scale.table(scaled(fine, (4.0, apart), ("dynamic", fine)))
    assert loss_scales.title(rows).endswith("as float32 does with the dynamic scale")


def test_what_trains_better_than_float32_is_said_to():
    fine, poor = (0.98,) * 3, (0.90,) * 3
    rows = loss_scale.table(scaled(poor, (1.0, fine), (1024.0, fine)))
    assert loss_scales.title(rows) == (
        "mixed_float16 trains better than float32 with every loss scale that was measured"
    )
    rows = loss_scale.table(scaled(poor, (1.0, fine), (1024.0, poor), ("dynamic", fine)))
    (said,) = loss_scales.sentences(rows)
    assert "trains as float32 does or better with loss scales of 1 and 1024" in said
    assert "trains better than float32 under the dynamic scale" in said


def test_no_scale_is_advised_that_is_shown_to_fail():
    fine, worse = (0.98,) * 3, (0.50, 0.501, 0.499)
    rows = loss_scale.table(scaled(fine, ("dynamic", worse), (2.0**24, (None,) * 3)))
    # Once "keep its dynamic scale, Keras's default", and once a lone full stop.
    assert loss_scales.advice(rows, 0.01) == (
        "avoid **mixed_float16**: none of the loss scales that were measured makes it train as "
        "float32 does."
    )
    assert loss_scales.advice(rows[rows.policy == "float32"], 0.01) == ""


def test_only_the_float32_that_is_compared_with_can_be_lost():
    fine = (0.98,) * 3
    found = scaled(fine, (1.0, fine)).records
    found += [loss_scaled("float32", 2.0**24, b, a) for b, a in enumerate((0.98, None, 0.98))]
    rows = loss_scale.table(tables(found))
    # Once "float32 diverges too", of a scale that nobody trains float32 with.
    assert "trains as float32 does" in loss_scales.title(rows)
    lost = loss_scale.table(scaled((0.98, None, 0.98), (1.0, fine), (2.0**24, (None,) * 3)))
    for each in (lost, loss_scales.by_means(lost, 0.01)):
        assert loss_scales.title(each).startswith("float32 diverges too")


def test_too_few_images_do_not_make_the_better_evidence_undecided():
    # The lie: "undecided with 1" of repeats that agree, beside "about the same" of those that vary.
    few = {"validation_images": 100, "validation_labels": [50, 50]}
    made = scaled((0.98,) * 3, (1.0, (0.98,) * 3), (8.0, (0.98, 0.97, 0.99)), (2.0**15, (0.9,) * 3))
    rows = loss_scale.table(tables([run | {"in_force": few} for run in made.records]))
    assert rows.verdict[rows.loss_scale == 1.0].tolist() == ["too few images"]
    (said,) = loss_scales.sentences(rows)
    assert "either way with 1 and 8" in said
    assert "2¹⁵" in said.partition("with 1 and 8")[2]


def test_what_diverged_first_is_told_of_all_runs_with_its_steps():
    # The lie: "in step 3" of runs that failed in steps 2 to 9.
    opening = "it ended; trained again step by step, the first was the gradient of conv2d, in step"
    other = "it ended; trained again step by step, the first was the weights of dense, in step 1"
    found = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
    for block, error in enumerate((f"{opening} 3", f"{opening} 9", other)):
        found.append(loss_scaled("mixed_float16", 2.0**15, block, None) | {"error": error})
    (finding,) = loss_scales.text(loss_scale.table(tables(found))).Finding[1:]
    assert finding == (
        "diverged, 3 of 3: trained again step by step, the first was the gradient of conv2d, in "
        "steps 3 to 9 (in 2 of the 3)"
    )


def test_scales_that_trained_alike_to_the_last_bit_are_one_training():
    # The lie: the dynamic scale as evidence of its own, which never moved from a fixed one.
    rows = loss_scale.table(published("loss-scale-deep-cpu").tables)
    assert loss_scales.trained_alike(rows).startswith(
        "Bit for bit the same losses in every epoch of the blocks in which none diverged: "
        "**mixed_float16** with 2¹⁵ and the dynamic scale. "
    )
    assert loss_scales.trained_alike(rows[rows.loss_scale != "dynamic"]) == ""


def test_of_one_block_no_interval_is_said():
    # "the other loss scales are undecided, intervals from +nan %", of a sweep with repeats=1.
    known = published("loss-scale-gpt-cpu").tables.records
    told = question.of(tables([one for one in known if one["parameters"]["block"] == 1]))
    assert told.title.endswith(
        "with a loss scale of 2¹⁵; the other loss scales are undecided (n = 1)"
    )
    assert not any("in the mean" in sentence for sentence in told.sentences)


def test_scales_without_float32_lack_that_and_not_repeats():
    known = published("loss-scale-gpt-cpu").tables.records
    made = tables([one for one in known if one["parameters"]["policy"] != "float32"])
    findings = loss_scales.text(loss_scale.table(made)).Finding
    assert [text for text in findings if not text.startswith("diverged")] == [
        "no float32 beside it"
    ] * 5
    # "train for more epochs, or with another learning rate", by one of its runs.
    assert question.of(made).advice.startswith("measure float32 in the same blocks, without which")


def test_losses_that_are_not_known_are_not_alike():
    unknown = [
        one | {"history": [epoch | {"loss": None} for epoch in one.get("history", [])]}
        for one in published("loss-scale-deep-cpu").tables.records
    ]
    assert loss_scales.trained_alike(loss_scale.table(tables(unknown))) == ""


def test_a_divergence_says_what_its_record_does_whatever_its_form():
    found = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
    found += [
        loss_scaled("mixed_float16", 2.0**15, block, None) | {"error": "the loss was not finite"}
        for block in range(3)
    ]
    (finding,) = loss_scales.text(loss_scale.table(tables(found))).Finding[1:]
    assert finding == "diverged, 3 of 3: the loss was not finite"


def test_what_trained_alike_is_told_beside_one_that_diverged_and_without_a_scale():
    # The dynamic scale and 2¹⁵, alike in the five blocks of six in which neither diverged.
    told = loss_scales.trained_alike(loss_scale.table(published("loss-scale-gpt-cpu").tables))
    assert ": **mixed_float16** with 2¹⁵ and the dynamic scale. " in told
    told = loss_scales.trained_alike(loss_scale.table(published("loss-scale-cpu").tables))
    assert "**float32** with 2⁻¹⁶ to 2²⁴ and the dynamic scale, and without one;" in told


def test_a_figure_beside_runs_that_diverged_says_of_how_many_it_is():
    rows = loss_scales.text(loss_scale.table(published("loss-scale-gpt-cpu").tables))
    assert [cell for cell in rows["Validation perplexity"] if "n =" in cell] == [
        "12.64 (11.69–13.72) (n = 5)"
    ]


def test_what_numbers_name_like_a_scale_of_1_is_told_apart():
    (said, *_) = loss_scales.sentences(loss_scale.table(published("loss-scale-cpu").tables))
    assert said.endswith(" Without a loss scale it fares as with 1.")
    (said, *_) = loss_scales.sentences(loss_scale.table(published("loss-scale-gpt-cpu").tables))
    assert "fares" not in said


def test_a_policy_that_fails_with_every_scale_is_named_beside_one_that_trains():
    # "mixed_bfloat16 trains as float32 does", and no word of mixed_float16, 10 to 93 points less.
    found = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
    found += [loss_scaled("mixed_bfloat16", "none", b, 0.98) for b in range(3)]
    for scale, figure in ((1.0, 0.3), (1024.0, 0.4), ("dynamic", 0.5)):
        found += [loss_scaled("mixed_float16", scale, b, figure) for b in range(3)]
    rows = loss_scale.table(tables(found))
    assert loss_scales.title(rows) == (
        "mixed_bfloat16 trains as float32 does without a loss scale; no measured scale makes "
        "mixed_float16 do so"
    )
    # "No loss scale helps" was said of accuracies from 30 to 85 %.
    assert loss_scales.advice(rows, 0.01) == (
        "take **mixed_bfloat16** without a loss scale; avoid **mixed_float16**: none of the loss "
        "scales that were measured makes it train as float32 does."
    )


def test_where_float32_learned_nothing_no_scale_is_undecided():
    # The lie: "mixed_float16 is undecided (n = 3), in the mean +79.9 with 1024".
    found = [loss_scaled("float32", "none", b, 0.1) for b in range(3)]
    found += [loss_scaled("mixed_float16", "none", b, 0.1) for b in range(3)]
    found += [loss_scaled("mixed_float16", 1024.0, b, 0.9) for b in range(3)]
    for made in found:
        made["in_force"] = made.get("in_force", {}) | {"chance_accuracy": 0.1}
    rows = loss_scale.table(tables(found))
    assert loss_scales.title(rows) == "float32 learned nothing: nothing is shown of loss scales"
    assert loss_scales.sentences(rows) == [
        "float32 learned nothing: no scale is compared with it. **mixed_float16** ends in the mean "
        "at 10.0 % without a loss scale and 90.0 % with 1024."
    ]
    assert loss_scales.advice(rows, 0.01) == loss_scales.RETRY


def test_a_title_says_of_what_its_numbers_are_where_only_the_dynamic_scale_trains():
    found = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
    for scale, figure in ((1.0, 0.3), (1024.0, 0.4), ("dynamic", 0.98)):
        found += [loss_scaled("mixed_float16", scale, b, figure) for b in range(3)]
    assert loss_scales.title(loss_scale.table(tables(found))).startswith(
        "mixed_float16 trains as float32 does with the dynamic scale, and falls behind float32 "
        "with loss scales of 1 and 1024 ("
    )


@pytest.mark.parametrize("baseline", [True, False])
def test_scales_that_trained_alike_are_named_whether_or_not_they_were_compared(baseline):
    # Once no report: "1.0 is not in list", of float32 with two scales, or without float32.
    of = {"float32": ("none", 1024.0) if baseline else (), "mixed_float16": (16.0, 32.0)}
    found = [
        loss_scaled(policy, scale, b, 0.98)
        for policy, scales in of.items()
        for scale in scales
        for b in range(3)
    ]
    for made in found:
        made["history"][-1] |= {"loss": 0.5, "val_loss": 0.6}
    told = loss_scales.trained_alike(loss_scale.table(tables(found)))
    assert "**mixed_float16** with 16 and 32" in told
    assert ("**float32** without a loss scale and with 1024" in told) == baseline


def test_no_scale_fares_as_1_only_where_both_trained_alike():
    # "+5.0 without a loss scale and −16.7 with 1 … Without a loss scale it fares as with 1."
    found = [loss_scaled("float32", "none", b, 0.9) for b in range(3)]
    for scale, figures in (("none", (0.98, 0.9, 0.97)), (1.0, (0.9, 0.4, 0.9))):
        found += [loss_scaled("mixed_float16", scale, b, a) for b, a in enumerate(figures)]
    for made in found:
        made["history"][-1] |= dict.fromkeys(
            ("loss", "val_loss"), made["history"][-1]["val_accuracy"]
        )
    (said,) = loss_scales.sentences(loss_scale.table(tables(found)))
    assert "fares" not in said
