from pathlib import Path

import pytest
from builders import record, tables, three

from mptexp.analysis import published
from mptexp.records.schema import SEEN
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.figures import learning
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.spec import tasks


def trained(epochs, **of):
    made = record(**of)
    made["history"] = [made["history"][0] | {"epoch": 1 + n} for n in range(epochs)]
    return made


def cases(made):
    sweep = MeasuredSweep(SweepDir(Path("unused")), made)
    return [row.name for row in learning.FIGURES if row.cases(sweep)]


def test_repeats_are_faint_lines_below_their_mean():
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    curves = learning.validation(made, tasks.IMAGES).axes[0]
    assert curves.get_ylabel() == "validation accuracy"
    drawn = [line for line in curves.lines if len(line.get_xdata())]
    means = [line for line in drawn if line.get_linestyle() != "None"]
    assert len(means) == 2  # a mean per policy
    assert [len(policy.get_segments()) for policy in curves.collections] == [3, 3]
    assert means[0].get_linestyle() != means[1].get_linestyle()


@pytest.mark.parametrize("dataset", ["imagenette/320px-v2", "folder:imagenette2-160"])
def test_the_epochs_that_a_study_printed_stand_behind_our_curves(dataset):
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    assert not any(
        line.get_label() == learning.PUBLISHED
        for line in learning.validation(made, tasks.IMAGES).axes[0].lines  # of digits
    )
    for one in made.records:
        one["parameters"]["dataset"] = dataset
    lone = learning.validation(tables(made.records), tasks.IMAGES).axes[0]
    assert not any(line.get_label() == learning.PUBLISHED for line in lone.lines)  # beside a dot
    for one in made.records:
        one["history"] = [one["history"][0] | {"epoch": 1 + n} for n in range(3)]
    made = tables(made.records)
    printed = published.epochs("keydana_cnn", 32, "val_accuracy")
    assert dict(printed) == {16: 0.806, 17: 0.782, 18: 0.784, 19: 0.77, 20: 0.746}
    assert published.epochs("keydana_cnn", 64, "val_accuracy").empty
    curves = learning.validation(made, tasks.IMAGES), learning.loss_by_epoch(made)
    for figure in curves:
        lines = figure.axes[0].lines
        (drawn,) = [line for line in lines if line.get_label() == learning.PUBLISHED]
        assert list(drawn.get_xdata()) == [16, 17, 18, 19, 20]
    lines = learning.validation(made, tasks.IMAGES, "elapsed_s").axes[0].lines
    assert not any(line.get_label() == learning.PUBLISHED for line in lines)


def test_a_folder_that_is_called_a_little_like_a_study_s_data_is_other_data():
    # The lie: the study's curve behind those of two classes of blurred images.
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    for one in made.records:
        one["parameters"]["dataset"] = "folder:imagenette_blurred_2classes"
    lines = learning.validation(tables(made.records), tasks.IMAGES).axes[0].lines
    assert not any(line.get_label() == learning.PUBLISHED for line in lines)


def test_a_batch_that_is_always_the_same_is_not_learned_from():
    assert cases(tables([trained(3)])) == ["accuracy_by_epoch", "accuracy_by_time", "loss_by_epoch"]
    resident = trained(3)
    resident["parameters"]["input_mode"] = "resident"
    assert cases(tables([resident])) == []


def test_two_epochs_and_chance_level_are_no_curve():
    assert cases(tables([trained(2)])) == []
    guessing = trained(7)
    guessing["in_force"] |= {"chance_accuracy": 0.9, "validation_images": 1000}
    assert cases(tables([guessing])) == []
    assert cases(tables([trained(2), trained(3, policy="mixed_float16")]))


def test_captions_state_what_the_curves_end_with():
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    curves = [row for row in learning.FIGURES if "by" in row.name]
    captions = {row.name: row.caption(made) for row in curves}
    assert "3 repeats a policy" in captions["accuracy_by_epoch"]
    assert "differ by at most 0.0 percentage points" in captions["accuracy_by_epoch"]
    assert "1 in float32 and 1 in mixed_float16 (medians)" in captions["loss_by_epoch"]


def repeated(n):
    """Repeats of two policies, of which each has other accuracies."""
    made = three("mixed_float16", [2.0] * n)
    for one in made.records:
        last = 0.9 if one["parameters"]["policy"] == "float32" else 0.5
        one["history"][-1]["val_accuracy"] = last + one["parameters"]["block"] / 100
    return tables(made.records)


def test_of_five_repeats_boxes_show_the_spread():
    rows = {row.name: row for row in learning.FIGURES if row.name.startswith("spread")}
    sweep = MeasuredSweep(SweepDir(Path("unused")), repeated(5))
    for name in ("spread_of_accuracy", "spread_of_time"):
        (runs,) = rows[name].cases(sweep).values()
        (axes,) = rows[name].draw(runs).axes
        assert [text.get_text() for text in axes.get_yticklabels()] == ["float32", "mixed_float16"]
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert [len(line.get_xdata()) for line in dots] == [5, 5]
        assert len(axes.patches) == 2
    runs = rows["spread_of_accuracy"].cases(sweep)[""]
    text = rows["spread_of_accuracy"].caption(runs)
    assert "at most 4 percentage points in float32 and 4 percentage points in mixed_float16" in text
    # What is drawn of fewer is nothing: "at most 4" beside a table with 14 of four runs.
    assert text.startswith("Dots are runs of policies with 5 or more at a point, boxes hold")
    fewer = MeasuredSweep(SweepDir(Path("unused")), repeated(4))
    assert not any(row.cases(fewer) for row in rows.values())


def test_a_run_that_diverged_did_not_end():
    # The lie: "the last ends after 2.1 s in float16", of a run of one epoch of twenty.
    made = [trained(3, policy=policy) for policy in ("float32", "float16")]
    for one, seconds in zip(made, (41.0, 2.1), strict=True):
        one["history"] = [epoch | {"elapsed_s": seconds} for epoch in one["history"]]
    made[1] |= {"status": "diverged", "history": made[1]["history"][:1]}
    caption = learning._caption_time(tables(made))
    assert "41.0 s in float32 (medians)" in caption
    assert "float16" not in caption
    assert "float16" not in learning._caption_loss(tables(made))


def test_means_and_counts_are_of_runs_that_ended_well():
    made = [trained(3, policy=p, block=b) for p in ("float32", "float16") for b in range(5)]
    for one in made[-2:]:
        one["status"] = "diverged"
        one["history"][-1] = one["history"][-1] | {"val_accuracy": 0.1}
    found = tables(made)
    assert learning._caption_validation(found, tasks.IMAGES).startswith(
        "Faint lines are single runs (3 to 5 repeats a policy), strong ones their mean."
    )
    assert learning.of_task(found, tasks.IMAGES).figure.min() > 0.5


def test_runs_that_ended_once_their_time_was_certain_are_no_box():
    made = [trained(3, policy=p, block=b) for p in ("float32", "float16") for b in range(5)]
    assert {"spread_of_accuracy", "spread_of_time"} <= {*cases(tables(made))}
    for one in made:
        one["timing"] = one["timing"] | {"ended_by": "target_ci"}
    assert not {"spread_of_accuracy", "spread_of_time"} & {*cases(tables(made))}


def test_a_caption_leaves_out_times_that_are_not_valid():
    # The lie: "the last ends after 20.0 s in mixed_float16", beside other programs.
    made = [trained(3, policy=policy) for policy in ("float32", "mixed_float16")]
    for one, seconds in zip(made, (41.0, 20.0), strict=True):
        one["history"] = [epoch | {"elapsed_s": seconds} for epoch in one["history"]]
    made[1]["marks"] = ["measured while other programs used the processors"]
    told = learning._caption_time(tables(made))
    assert told.endswith(
        "ends after 41.0 s in float32 (medians of the runs whose times are valid)."
    )
    none = learning._caption_time(tables([one | {"marks": made[1]["marks"]} for one in made]))
    assert none == "The same epochs over time, validation included."


def test_a_caption_leaves_out_accuracies_that_are_not_valid():
    # The lie: "means differ by at most 0.0 percentage points", of images that were trained on.
    made = [trained(3, policy=policy) for policy in ("float32", "mixed_float16")]
    assert "differ" in learning._caption_validation(tables(made), tasks.IMAGES)
    made[1]["marks"] = [f"900 of 1000 images {SEEN}"]
    assert "differ" not in learning._caption_validation(tables(made), tasks.IMAGES)


def test_boxes_are_told_of_the_runs_that_are_valid():
    made = repeated(5)
    for one in made.records:
        if one["parameters"]["policy"] == "mixed_float16":
            one["marks"] = ["measured while other programs used the processors"]
    (row,) = [row for row in learning.FIGURES if row.name == "spread_of_time"]
    sweep = MeasuredSweep(SweepDir(Path("unused")), tables(made.records))
    text = row.caption(row.cases(sweep)[""])
    assert "at a point, of the runs that are valid: at most 0 s in float32." in text


def test_trainings_of_other_lengths_have_no_last_epoch_to_compare():
    # The lie: "Loss at the last epoch: 0.111 in float32 and 0.333 in mixed_float16", of the ninth
    # epoch and of the third.
    made = [trained(9), trained(3, policy="mixed_float16")]
    for one in made:
        one["timing"]["ended_by"] = "target_ci"
    for caption in (learning._caption_loss, learning._caption_time):
        assert "float" not in caption(tables(made))


def test_a_mean_ends_where_the_first_of_its_runs_does():
    # The lie: a mean that falls from 0.9 to 0.5 in the third epoch, of the runs that are left.
    lengths = {0: (2, 0.9), 1: (4, 0.5), 2: (4, 0.5)}
    made = [trained(n, block=block) for block, (n, _) in lengths.items()]
    for one, (_, value) in zip(made, lengths.values(), strict=True):
        for epoch in one["history"]:
            epoch |= {"val_accuracy": value, "elapsed_s": 10.0 * epoch["epoch"]}
    resident = trained(4, block=3)
    resident["parameters"]["input_mode"] = "resident"
    found = tables([*made, resident])
    for by in ("epoch", "elapsed_s"):
        axis = learning.validation(found, tasks.IMAGES, by).axes[0]
        (mean,) = [line for line in axis.lines if len(line.get_xdata())]
        assert list(mean.get_ydata()) == [pytest.approx(19 / 30)] * 2
    said = "strong ones their mean, of the epochs that all of them have."
    opening = f"Faint lines are single runs (3 repeats a policy), {said}"
    assert learning._caption_validation(found, tasks.IMAGES).startswith(opening)
    assert learning._caption_loss(found).endswith(said)


def test_a_caption_tells_no_time_of_an_epoch_before_the_last():
    # The lie: "the last ends after 10.0 s in mixed_float16", of its second epoch of three.
    made = [trained(3, policy=policy) for policy in ("float32", "mixed_float16")]
    for one in made:
        times = enumerate(one["history"], 1)
        one["history"] = [epoch | {"elapsed_s": 5.0 * n} for n, epoch in times]
    made[1]["history"][-1]["elapsed_s"] = None
    caption = learning._caption_time(tables(made))
    assert "15.0 s in float32 (" in caption
    assert "mixed_float16" not in caption


@pytest.mark.parametrize("policies", [("float32",), ("float32", "mixed_float16")])
def test_of_many_panels_it_is_said_which_are_shown(policies):
    # Published once: "those in which policies differ most", of panels with one policy each.
    rows = []
    for k in range(12):
        for policy in policies:
            made = trained(3, policy=policy, width=1 + k / 100)
            for epoch in made["history"]:
                epoch["val_accuracy"] = 0.5 + k / 100
            made["history"][-1]["val_accuracy"] += k / 100 * (policy != "float32")
            rows.append(made)
    drawn = learning.validation(tables(rows), tasks.IMAGES)
    differ = "in which policies differ most" if len(policies) > 1 else "that end lowest and highest"
    shown = f"9 of 12 panels are shown, those {differ}; history.csv holds all."
    assert drawn.get_label() == shown
    titles = {axis.get_title() for axis in drawn.axes}
    assert any("1.11" in title for title in titles)
    assert any(title.endswith("width 1") for title in titles) == (len(policies) == 1)
