"""Loss scales: policies that stall, train and diverge."""

import math

import pytest
from builders import IDENTITY, loss_scaled, several_scales, tables
from support import PROJECT

from mptexp.analysis import accuracy, loss_scale, sweep_tables
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import loss_scales, published_claims
from mptexp.report.first_screen import question
from mptexp.report.pages import notes
from mptexp.report.text import wording


def test_one_comparison_has_one_interval_on_a_page():
    # The lie: [-1.7, +1.7] points in the table of accuracies, [-3.3, +3.3] in that of loss scales.
    made = sweep_tables.load(SweepDir(PROJECT / "reports/published/loss-scale-cpu"))
    assert accuracy.differences(made).empty
    assert "accuracy (" not in notes.families(made)
    assert "accuracy by loss scale (" in notes.families(made)
    made = several_scales()
    rows = loss_scale.table(made)
    (dynamic,) = rows[
        (rows.policy == "mixed_float16") & (rows.loss_scale == "dynamic")
    ].itertuples()
    (found,) = (
        f for c, f in published_claims.table(made) if c.words == "It is as accurate as float32"
    )
    assert found.runs == dynamic.run_ids
    assert (
        f"{wording.signed(dynamic.difference * 100)} percentage points at 1 point" in found.evidence
    )


def test_an_interval_holds_no_impossible_difference():
    unlike = [0.98, 0.1, 0.5]
    made = [loss_scaled("float32", "none", block, 0.98) for block in range(3)]
    for scale in (8.0, 128.0):
        made += [loss_scaled("mixed_float16", scale, b, value) for b, value in enumerate(unlike)]
    rows = loss_scale.table(tables(made)).query("policy == 'mixed_float16'")
    assert (rows.low == -1).all()
    assert (rows.high <= 1).all()


def test_scales_stall_train_or_diverge():
    rows = loss_scale.table(several_scales())
    mixed = rows[rows.policy == "mixed_float16"]
    assert list(mixed.loss_scale) == [2.0**-16, 1.0, 2.0**24, "dynamic"]
    assert list(mixed.verdict) == ["lower", "equal", "diverged", "equal"]
    assert list(mixed.blocks) == [3, 3, 1, 3]
    assert mixed.difference.iloc[1] == pytest.approx(0.001)
    assert loss_scale.ranges(mixed) == {
        "stall": [2.0**-16], "train": [1.0], "diverge": [2.0**24], "": []
    }  # fmt: skip
    assert mixed.skipped.iloc[3] == 4


def test_float32_is_no_comparison_with_itself():
    # The lie: "+0.0 [+0.0, +0.0]: equal" of the runs that all others are compared with, counted.
    made = several_scales()
    rows = loss_scale.table(made)
    (base,) = rows[rows.policy == "float32"].itertuples()
    assert (base.blocks, base.verdict) == (0, "")
    assert math.isnan(base.difference)
    assert math.isnan(base.low)
    # Of four scales of mixed_float16 one has a single block, and no interval.
    assert rows.low.notna().sum() == 3
    assert "accuracy by loss scale (3)" in notes.families(made)
    shown = loss_scales.text(rows).iloc[0]
    assert shown["Validation accuracy"].startswith("98.1 %")
    assert list(shown.iloc[-3:-1]) == ["–", "–"]


def test_one_scale_is_no_comparison():
    found = [loss_scaled("float32", "auto", 0, 0.9), loss_scaled("mixed_float16", "auto", 0, 0.9)]
    assert loss_scale.table(tables(found)).empty


def test_too_few_repeats_show_neither_a_stall_nor_a_training():
    found = [loss_scaled("float32", "none", 0, 0.98), loss_scaled("float16", 1.0, 0, 0.3)]
    found += [loss_scaled("float16", 8.0, 0, 0.97)]
    rows = loss_scale.table(tables(found))
    assert loss_scale.ranges(rows[rows.policy == "float16"])[""] == [1.0, 8.0]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "equal"),
        ({"identity": None}, "not valid"),
        ({"identity": IDENTITY | {"model_source": "edited"}}, "not valid"),
        ({"in_force": {"validation_images": 20}}, "too few images"),
    ],
)
def test_scales_train_alike_only_where_the_runs_are_comparable_and_the_images_many(
    changes, verdict
):
    found = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
    for scale in (8.0, 16.0):
        found += [loss_scaled("float16", scale, b, 0.98) | changes for b in range(3)]
    rows = loss_scale.table(tables(found))
    assert set(rows[rows.policy == "float16"].verdict) == {verdict}


@pytest.mark.parametrize(("dtype", "verdict"), [("float16", "equal"), ("float32", "not valid")])
def test_weights_of_16_bits_begin_from_those_of_float32_rounded(dtype, verdict):
    made = [loss_scaled("float32", "none", b, 0.98 + b / 1000) for b in range(3)]
    for scale in (1.0, 8.0):
        made += [loss_scaled("float16", scale, b, 0.981 + b / 1000) for b in range(3)]
    for row in made:
        pure = row["parameters"]["policy"] == "float16"
        row["identity"] = row["identity"] | {"initial_weights": "rounded" if pure else "drawn"}
        row["in_force"] = row["in_force"] | {"variable_dtype": dtype if pure else "float32"}
    rows = loss_scale.table(tables(made))
    assert set(rows[rows.policy == "float16"].verdict) == {verdict}


@pytest.mark.parametrize("cut", ["target_ci", "resident"])
def test_scales_are_not_compared_by_runs_that_trained_for_other_lengths(cut):
    # The lie: "trains as float32 does with 8", of runs that target_ci had ended after 200 steps.
    made = [loss_scaled("float32", "none", b, 0.98 + b / 1000) for b in range(3)]
    for scale in (1.0, 8.0):
        made += [loss_scaled("mixed_float16", scale, b, 0.981 + b / 1000) for b in range(3)]
    for row in made:
        if cut == "resident":
            row["parameters"]["input_mode"] = cut
        elif row["parameters"]["loss_scale"] == 8.0:
            row["timing"] = {"ended_by": cut}
    rows = loss_scale.table(tables(made))
    assert rows.empty == (cut == "resident")
    assert 8.0 not in set(rows.get("loss_scale", ()))


def test_scales_are_not_blamed_where_float32_diverges_too():
    # Entitled once: "mixed_float16 diverges with a loss scale of 1 and 2¹⁵".
    rows = [loss_scaled("float32", "none", b, None if b else 0.98) for b in range(3)]
    for scale in (1.0, 2.0**15, "auto"):
        rows += [loss_scaled("mixed_float16", scale, b, None) for b in range(3)]
    made = loss_scale.table(tables(rows))
    assert set(made.verdict[made.policy == "mixed_float16"]) == {"baseline diverged"}
    answer = question.of(tables(rows))
    assert answer.title == "float32 diverges too: nothing is shown of loss scales"
    assert answer.advice.startswith("find settings with which float32 trains")


def test_a_scale_that_was_asked_for_in_two_ways_is_no_second_repeat():
    # The lie: an interval of n = 4, of two blocks: `none` and `auto` of float32 are one scale.
    found = [
        loss_scaled(policy, scale, block, 0.9 + block / 100)
        for block in range(2)
        for policy in ("float32", "mixed_float16")
        for scale in ("none", "auto")
    ]
    rows = loss_scale.table(tables(found))
    assert rows.blocks[rows.policy == "mixed_float16"].tolist() == [2, 2]
    assert rows.low.isna().all()
