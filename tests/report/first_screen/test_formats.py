"""How sweeps of emulated formats open."""

import math

import pytest
from builders import (
    FIXED,
    STOCHASTIC,
    emulated_runs,
    identified,
    record,
    tables,
    tables_of,
)

from mptexp.report.figures.answer import FIGURES
from mptexp.report.first_screen import accuracies, question
from mptexp.report.tables import text_tables


def low_precision_title(*groups):
    return question.of(identified(tables([run for group in groups for run in group]))).title


def test_emulated_formats_open_with_their_loss():
    found = tables_of(emulated_runs([2.0, 2.1, 1.9]), emulated_runs([3.0, 3.1, 2.9], **FIXED))
    answer = question.of(identified(found))
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
    answer = question.of(tables(found.records))
    assert answer.title == (
        "1 of 3 settings are shown to train within 2 percentage points of float32's error, 1 is "
        "inconclusive; the worst ends 89.0 points above it (activations <7,8>, weights <8,8>)"
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
    assert answer.advice.endswith("it takes about 5 repeats, not 3, to halve the intervals.")


def test_what_rounding_decides_is_the_title():
    groups = [[*emulated_runs([1, 1.1, 0.9])], [*emulated_runs([80, 81, 79], **FIXED)]]
    counted = "0 of 1 settings train within 2 percentage points of float32's error; the worst ends"
    assert low_precision_title(*groups).startswith(counted)
    said = low_precision_title(*groups, emulated_runs([1.2, 1.3, 1.1], **STOCHASTIC))
    assert said == (
        "keydana_cnn in <8,8> trains if rounded stochastically (+0.2 points of error against "
        "float32), not if rounded to nearest (+79.0)"
    )
    # Published once without a word of the loss scale with which it trains nearly as well.
    scaled = emulated_runs([4.0, 4.1, 3.9], loss_scale=128.0, **FIXED)
    said = low_precision_title(
        emulated_runs([1, 1.1, 0.9]),
        emulated_runs([80, 81, 79], **FIXED),
        emulated_runs([1.2, 1.3, 1.1], **STOCHASTIC),
        scaled,
    )
    assert said.endswith("nearest (+79.0; with a loss scale of 128 +3.0)")


def test_trainings_with_and_without_clipping_have_labels_of_their_own():
    # The lie: two rows of one name, of which one was trained with clipped gradients.
    groups = [
        emulated_runs([1, 1.1, 0.9], clip_norm=clip, **formats)
        for clip in (None, 1.0)
        for formats in ({}, FIXED)
    ]
    bars = question.of(identified(tables([run for group in groups for run in group]))).bars
    assert sorted(bar.label for bar in bars) == [
        "<8,8>",
        "<8,8>, gradients clipped to norm 1",
    ]


def test_how_few_bits_train_is_the_title_where_formats_of_several_sizes_were_tried():
    groups = [
        emulated_runs([1, 1.1, 0.9]),
        emulated_runs([1.2, 1.3, 1.1], propagation="dynamic<10>", weight_format="dynamic<12>"),
        emulated_runs([80, 81, 79], propagation="<2,6>", weight_format="<2,6>"),
        emulated_runs([1.1, 1.2, 1.0], **STOCHASTIC),
        emulated_runs([90, 91, 89], **FIXED),
    ]
    answer = question.of(identified(tables([run for group in groups for run in group])))
    near = "within 2 percentage points of float32's error"
    assert (
        answer.title == f"keydana_cnn trains with 10-bit activations and 12-bit weights to {near}"
    )
    assert answer.sentences[0] == (
        f"Fewest bits {near}: **activations dynamic<10>, weights dynamic<12>** (+0.2 points)."
    )
    assert answer.sentences[1].startswith(r"keydana\_cnn in <8,8> trains if rounded stochastically")
    assert answer.advice == (
        "for the fewest bits take **activations dynamic<10>, weights dynamic<12>**; with **<8,8>** "
        "(+89.0 points): round stochastically (+0.1)."
    )


def test_what_diverged_in_all_runs_is_counted_and_named():
    groups = [
        emulated_runs([1, 1.1, 0.9]),
        emulated_runs([1.2, 1.3, 1.1], **FIXED),
        emulated_runs([0, 0, 0], status="diverged", propagation="float8_e4m3fn"),
    ]
    answer = question.of(identified(tables_of(*groups)))
    near = "1 of 2 settings train within 2 percentage points of float32's error"
    assert answer.title == f"{near}; all runs of one diverged"
    assert answer.sentences[0].startswith("Of 2 settings, 1 is within")
    assert answer.sentences[0].endswith(" and 1 diverged in every run.")
    assert answer.sentences[-1].startswith("All runs diverged with **activations float8\\_e4m3fn")
    assert answer.advice.startswith("avoid **activations float8\\_e4m3fn")


def test_a_run_that_diverged_leaves_the_others_interval_open():
    runs = [*emulated_runs([1, 1.1, 0.9, 1]), *emulated_runs([1.2, 1.3, 1.1, 1.2], **FIXED)]
    runs[-1] |= {"status": "diverged", "history": []}
    answer = question.of(identified(tables(runs)))
    assert answer.bars[0].finding == "incomplete"
    assert answer.sentences == [
        "Of 1 setting, 1 is within 2 percentage points of it only where runs ended well."
    ]


def test_of_many_formats_all_are_counted_and_the_ends_are_drawn():
    groups = [emulated_runs([1, 1.1, 0.9])]
    for bits in range(1, 21):
        error = 1.1 if bits > 10 else 40 + bits
        made = {"propagation": f"<2,{bits}>", "weight_format": f"<2,{bits}>"}
        groups.append(emulated_runs([error, error + 0.1, error - 0.1], **made))
    answer = question.of(identified(tables_of(*groups)))
    assert (len(answer.drawn), len(answer.bars)) == (14, 20)
    # Without a word, once, on the six that were not drawn.
    assert FIGURES[0].caption(answer).startswith("Of 20 comparisons; drawn are 14, the ends. ")
    assert answer.bars[0].group.startswith("10 of 20 within")
    assert answer.title.startswith("keydana_cnn trains with 13-bit activations")


def test_where_float32_learned_nothing_no_format_is_counted():
    groups = [emulated_runs([90, 90, 90]), emulated_runs([90, 90, 90], **FIXED)]
    found = identified(tables_of(*groups))
    for made in found.records:
        made["in_force"]["chance_accuracy"] = 0.1
    answer = question.of(tables(found.records))
    assert answer.title == "No format is compared with a float32 that learned"
    assert answer.advice


def test_formats_are_not_blamed_where_float32_diverges_too():
    # The lie: "0 of 1 settings train within 2 percentage points of float32's error".
    lost = emulated_runs([1, 1, 1], status="diverged")
    both = tables_of(lost, emulated_runs([1, 1, 1], status="diverged", **FIXED))
    answer = question.of(both)
    assert answer.title == "float32 diverges too: no format is compared with it"


def test_runs_that_diverged_are_not_called_too_few():
    some = [*emulated_runs([1.1, 1.2], **FIXED)]
    some += [*emulated_runs([1] * 5, status="diverged", **FIXED)][2:]
    answer = question.of(tables_of(emulated_runs([1, 1, 1, 1, 1]), some))
    assert "only where runs ended well" in answer.sentences[0]


def test_what_two_repeats_show_is_not_that_no_format_trains():
    formats = [{"propagation": f"<{bits},8>", "weight_format": "<8,8>"} for bits in (8, 7)]
    groups = [emulated_runs([1.0, 1.1], **kept) for kept in formats]
    answer = question.of(identified(tables_of(emulated_runs([1.0, 1.1]), *groups)))
    # Once "0 of 2 settings train", of formats whose means are float32's.
    assert answer.title == "Nothing is shown of 2 settings: fewer than three repeats"
    assert answer.advice == "it takes at least 3 repeats that end well, not 2, for an interval."


def test_a_network_that_no_format_trains_is_in_the_title():
    sizes, near, far = (4, 8, 12), [1.0, 1.1, 0.9], [60.0, 61.0, 62.0]
    groups = []
    for model, errors in (("lenet", near), ("mlp", far)):
        groups.append(emulated_runs(near, model=model))
        for bits in sizes:
            groups.append(emulated_runs(errors, propagation=f"<4,{bits}>", model=model))
    answer = question.of(identified(tables_of(*groups)))
    assert answer.title.startswith("lenet trains with 8-bit activations")
    assert answer.title.endswith("; mlp with none that was measured")
    assert not answer.advice.rstrip(".").endswith(";")


def test_formats_that_never_ended_are_counted():
    # The lie: "1 of 2 settings train", of three that were measured.
    groups = [
        emulated_runs([1, 1.1, 0.9]),
        emulated_runs([1.2, 1.3, 1.1], **FIXED),
        emulated_runs([0, 0, 0], status="diverged", propagation="<4,4>"),
        emulated_runs([0, 0, 0], status="timeout", propagation="<2,2>"),
    ]
    answer = question.of(identified(tables_of(*groups)))
    near = "1 of 3 settings train within 2 percentage points of float32's error"
    assert answer.title == f"{near}, 1 did not end; all runs of one diverged"
    assert answer.sentences[-1] == "No run ended well of **activations <2,2>**."
    again = "the same command makes the runs again that did not end."
    assert answer.advice == f"avoid **activations <4,4>**; {again}"


def test_of_a_run_that_was_killed_the_same_command_is_advised():
    # The lie: "at least 5 repeats to halve the intervals", where one run is to be made again.
    runs = [*emulated_runs([1, 1.1, 0.9, 1]), *emulated_runs([1.2, 1.3, 1.1, 1.2], **FIXED)]
    runs[-1] |= {"status": "killed", "history": []}
    again = "the same command makes the runs again that did not end."
    assert question.of(identified(tables(runs))).advice == again
    base = [*emulated_runs([1, 1.1, 0.9]), *emulated_runs([1.2, 1.3, 1.1], **FIXED)]
    base[0] |= {"status": "killed", "history": []}
    assert question.of(identified(tables(base))).advice == again


def test_a_network_whose_float32_diverges_is_not_left_out_without_a_word():
    # The lie: "Of 1 setting, …", of two networks that were measured.
    lost = emulated_runs([1.0] * 3, status="diverged", model="mlp")
    beside = emulated_runs([1.0] * 3, model="mlp", **FIXED)
    fine = emulated_runs([1.0, 1.1, 0.9]), emulated_runs([3.0, 3.1, 2.9], **FIXED)
    said = question.of(identified(tables_of(lost, beside, *fine))).sentences
    assert "In **mlp** float32 diverges too: no format is compared with it there." in said


def test_formats_with_which_every_run_diverges_are_advised_against():
    # Once no advice at all.
    base = emulated_runs([1.0, 1.1, 0.9])
    lost = emulated_runs([1.0] * 3, status="diverged", **FIXED)
    answer = question.of(identified(tables_of(base, lost)))
    assert answer.sentences == ["All runs diverged with **<8,8>**."]
    assert answer.advice == "avoid **<8,8>**."


def test_the_fewest_bits_are_the_fewest_of_weights_too():
    # The lie: "for the fewest bits take activations <4,4>, weights <8,8>", beside <4,4> of both.
    groups = [emulated_runs([1.0, 1.1, 1.2])]
    for error, activations, weights in (
        (0.10, "<4,4>", "<8,8>"), (0.15, "<4,4>", "<4,4>"), (0.2, "<8,8>", "<8,8>"),
        (8.0, "<2,2>", "<8,8>"),
    ):  # fmt: skip
        own = {"propagation": activations, "weight_format": weights, "rounding": "stochastic"}
        groups.append(emulated_runs([1.0 + error, 1.1 + error, 1.2 + error], **own))
    advice = question.of(identified(tables_of(*groups))).advice
    assert advice.startswith("for the fewest bits take **<4,4>, rounded stochastically**")


def test_what_ends_below_float32_s_error_is_not_said_to_lie_within_2_points_of_it():
    groups = [emulated_runs([10, 10.1, 9.9]), emulated_runs([4, 4.1, 3.9], **FIXED)]
    answer = question.of(identified(tables_of(*groups)))
    near = "within 2 percentage points of float32's error or below it"
    assert answer.title == f"1 of 1 settings train {near}"
    assert answer.sentences[0] == f"Of 1 setting, 1 is {near}."


def test_formats_of_a_text_are_said_not_to_be_compared():
    # The lie: "no policy was measured beside its baseline", of perplexities of 7.4, 10.0 and 18.2.
    rows = []
    for kept, figure in (("policy", 7.4), ("<8,8>", 18.2)):
        for block in range(3):
            made = record("float32", block)
            made["parameters"] |= {"dataset": "hamlet", "model": "gpt", "propagation": kept}
            made["run_id"] = f"{kept}-{block}"
            made["history"] = [{"epoch": 1, "val_loss": math.log(figure)}]
            rows.append(made)
    found = tables(rows)
    assert question.of(found).title == accuracies.FORMATS_OF_A_TEXT
    # Nor is one of them the default.
    column = text_tables.headline_rows(found)
    speeds = [name for name in column if name.startswith("Speed against")]
    assert column[speeds[0]].tolist() == ["1 (the default)", "1 (baseline)"]
