"""How a report opens whose times say nothing."""

from dataclasses import replace

import pandas as pd
import pytest
from builders import (
    IDENTITY,
    diverged,
    published,
    record,
    tables,
    text,
)

from mptexp.analysis import accuracy
from mptexp.report.figures.answer import FIGURES
from mptexp.report.first_screen import accuracies, question
from mptexp.report.tables import text_tables


def test_without_a_time_accuracy_is_the_subject():
    rows = [record(p, b) for p in ("float32", "bfloat16") for b in range(3)]
    found = tables([row | {"timing": {}} for row in rows])
    answer = question.of(found)
    assert answer.scale == "accuracy"
    assert answer.bars[0].finding == "equal"


def test_a_policy_alone_is_named_with_its_time():
    answer = question.of(tables([record("float32", block, 0.1) for block in range(3)]))
    assert answer.title == "float32 alone: 100.00 ms per step on GPU"
    assert "a speedup needs two policies" in answer.sentences[0]
    rows = [record("float32", 0, 0.1), record("float32", 0, 0.1, batch_size=7)]
    several = question.of(tables(rows))
    assert several.title.startswith("Nothing to compare: ")


@pytest.mark.parametrize(
    ("nice", "title"),
    [(10, "mixed_bfloat16's accuracy"), (0, "Provisional (not valid): ")],
)
def test_a_training_of_low_priority_opens_with_its_accuracy(nice, title):
    # The lie by place: times that nobody asked for and nothing is claimed of, before accuracies.
    marks = ["measured while other programs used the processor"]
    rows = [
        record(p, b, s) | {"marks": marks, "identity": IDENTITY | {"nice": nice}}
        for p, s in (("float32", 0.1), ("mixed_bfloat16", 0.05))
        for b in range(3)
    ]
    measured = tables(rows)
    answer = question.of(measured)
    assert answer.title.startswith(title)
    # Of times that nobody asked for the banner says that they are not valid; none is shown.
    assert any(s.startswith("Measured, but not valid") for s in answer.sentences) == (not nice)
    shown = {"ms per step", "Images/s"} & {*text_tables.headline_rows(measured)}
    assert bool(shown) == (not nice)


def test_of_a_long_training_without_a_valid_time_the_accuracy_is_the_subject():
    # The puzzle: "Provisional: mixed_bfloat16 trains 1.47× faster", of a sweep of 20 epochs that
    # asks for accuracy.
    measured = published("imagenette-128px-accuracy-cpu").tables
    answer = question.of(measured)
    assert answer.scale == "accuracy"
    whose = "validation accuracy of mixed_bfloat16"
    beside = "+6.9 percentage points beside float32's, undecided (n = 1)"
    assert answer.title == f"Provisional: {whose} {beside}"
    # The false start: a quickstart beside other work asks for speed, and can be measured again.
    for other in ({"epochs": 1}, {"wall_s": 95.0}):
        asked = replace(measured, results=measured.results.assign(**other))
        assert question.of(asked).scale == "speed"


def test_times_of_low_priority_are_shown_where_one_is_valid_or_nothing_was_learned():
    niced = {"identity": IDENTITY | {"nice": 10}}
    disturbed = {"marks": ["measured while other programs used the processor"]}
    quiet, busy = (record(p, 0, 0.1) | niced for p in ("float32", "mixed_bfloat16"))
    short = quiet | disturbed | {"timing": quiet["timing"] | {"ended_by": "target_ci"}}
    for rows in ([quiet], [quiet, busy | disturbed], [short]):
        assert tables(rows).ok.step_s.notna().all()
    assert tables([quiet | disturbed]).ok.step_s.isna().all()


def test_differences_that_are_shown_are_counted():
    rows = []
    for size, lost in ((32, 0.0), (64, 0.4)):
        for policy in ("float32", "bfloat16"):
            for block in range(3):
                made = record(policy, block, batch_size=size) | {"timing": {}}
                if policy != "float32":
                    made["history"][-1]["val_accuracy"] -= lost
                rows.append(made)
    title = "bfloat16's accuracy beside float32's is lower"
    assert question.of(tables(rows)).title == f"{title} in 1 of 2 settings and equal in 1"
    lower = [r for r in rows if r["parameters"]["batch_size"] == 64]
    assert question.of(tables(lower)).title == f"{title} (−40.0 percentage points)"
    # The lie: "in 1 of 2 settings", of one setting and two policies.
    both = [r for r in rows if r["parameters"]["batch_size"] == 64]
    both += [record("mixed_bfloat16", b, batch_size=64) | {"timing": {}} for b in range(3)]
    own = "(−40.0 percentage points) with bfloat16; equal with mixed_bfloat16"
    title = title.replace("bfloat16's accuracy", "Accuracy")
    assert question.of(tables(both)).title == f"{title} {own}"


def test_what_is_lower_in_the_last_of_many_settings_is_drawn():
    # The lie: "lower in 8 of 20 settings" over twelve rows, all of them equal.
    rows = []
    for k in range(20):
        for policy in ("float32", "mixed_float16"):
            for block in range(3):
                made = record(policy, block, width=(1 + k) / 4) | {"timing": {}}
                made["history"][-1]["val_accuracy"] -= 0.4 * (policy != "float32" and k >= 12)
                rows.append(made)
    answer = question.of(tables(rows))
    assert {bar.finding for bar in answer.drawn} == {"equal", "lower"}
    (chart,) = FIGURES
    said = chart.caption(answer)
    assert said.startswith("Of 20 comparisons: 12 equal and 8 lower; drawn are 14, the ends. ")


@pytest.mark.parametrize(
    ("lost", "title", "advice"),
    [
        (
            {"status": "oom", "error": "out of memory", "history": [], "timing": {}},
            "float32 ran out of memory at batch size 32, mixed_float16 did not",
            "a smaller batch",
        ),
        (
            {"status": "diverged", "history": [], "timing": {}},
            "float32 diverged at batch size 32, mixed_float16 did not",
            "find settings",
        ),
    ],
)
def test_a_baseline_that_failed_is_not_one_that_was_not_measured(lost, title, advice):
    # The lie: "This sweep measured mixed_float16; a speedup needs two policies".
    rows = [record(p, b) for p in ("float32", "mixed_float16") for b in range(3)]
    answer = question.of(tables([row | lost for row in rows[:3]] + rows[3:]))
    assert answer.title == title
    assert answer.sentences[0] == f"No times are compared: {title}.".replace("_", "\\_")
    assert answer.advice.startswith(advice)


def test_a_smaller_batch_is_no_cure_of_what_failed_otherwise():
    # Once "a smaller batch, which fits all of them, would compare them", and not a word of a bug.
    rows = [record(p, b) for p in ("float32", "mixed_float16") for b in range(3)]
    without = {"status": "oom", "history": [], "timing": {}}
    rows = [row | without for row in rows[:3]] + [row | without for row in rows[3:]]
    assert question.of(tables(rows)).advice.startswith("a smaller batch")
    failed = [row | {"status": "failed", "error": "no such layer"} for row in rows[3:]]
    advice = question.of(tables(rows[:3] + failed)).advice
    assert advice.startswith("mend what the runs without a result name; ")
    assert advice.endswith("; a smaller batch, which fits all of them, would compare them.")
    # The lie: the same where not even one image fits.
    out = {"status": "oom", "error": "no memory"}
    lost = tables([record() | out, record("mixed_float16") | out])
    assert accuracies.retry(lost) == accuracies.SMALLER
    tried = pd.DataFrame({"status": ["oom"] * 2, "policy": "float32", "batch_size": [2, 1]})
    assert accuracies.retry(replace(lost, attempts=tried)) == accuracies.MEMORY
    # The advice: a smaller batch, where all of float32 diverged, after a search for the largest.
    bad = tables([diverged(record("float32")), record("mixed_float16")])
    assert accuracies.retry(replace(bad, attempts=tried)) == accuracies.RETRY


def test_where_all_runs_diverged_the_title_says_so():
    rows = [diverged(record(p, b)) for p in ("float32", "mixed_float16") for b in range(3)]
    answer = question.of(tables(rows))
    # Once "Nothing to compare: no policy was measured beside its baseline".
    assert answer.title == "All runs diverged"
    assert answer.advice.startswith("find settings")


def test_a_policy_that_diverged_everywhere_is_in_the_title():
    # Entitled once: "Accuracy is equal to float32's".
    rows = [
        record(p, b) | {"timing": {}}
        for p in ("float32", "mixed_bfloat16", "float16")
        for b in range(3)
    ]
    rows[6:] = map(diverged, rows[6:])
    answer = question.of(tables(rows))
    # And then "float16 diverges in 1 of 2 settings", of the one that it has.
    equal = "accuracy of mixed_bfloat16 is equal to float32's"
    assert answer.title == f"float16 diverges; {equal}"
    assert [bar.policy for bar in answer.bars] == ["mixed_bfloat16"]
    assert "**float16** not compared (all runs diverged)" in " ".join(answer.sentences)


def test_accuracy_and_perplexity_are_told_apart():
    # The lie: a worse text, drawn as a gain of 5 points of accuracy.
    images = [record(p, b) | {"timing": {}} for p in ("float32", "bfloat16") for b in range(3)]
    losses = {"float32": 2.0, "bfloat16": 2.05}
    texts = [text(p, b, x) | {"timing": {}} for p, x in losses.items() for b in range(3)]
    answer = question.of(tables(images + texts))
    accuracies, perplexities = answer.title.split("; ")
    assert accuracies == "bfloat16's accuracy is equal to float32's"
    assert perplexities.startswith("bfloat16's perplexity beside float32's is higher")
    assert (answer.scale, len(answer.bars)) == ("accuracy", 1)


def test_devices_with_defaults_of_their_own_have_no_common_baseline():
    rows = []
    for device, default in (("H100", "tensorfloat32"), ("V100", "float32")):
        for policy in (default, "mixed_float16"):
            for block in range(3):
                made = record(policy, block, default=default)
                made["parameters"] |= {"gpu_model": device}
                made["run_id"] += device
                rows.append(made | {"timing": {}})
    title = question.of(tables(rows)).title
    # Once "to TF32's", of a V100 that has none.
    assert title == "mixed_float16's accuracy is equal to that of the default of each device"


def test_a_policy_that_is_only_emulated_is_not_advised_while_its_accuracy_is_undecided():
    # "What to do: it takes more repeats", of a policy that nobody would train in on this CPU.
    def told(emulated):
        rows = [record("float32", b) for b in range(3)]
        rows += [record("mixed_float16", b, emulated=emulated) for b in range(3)]
        for made, change in zip(rows, (0, 0, 0, -0.2, 0.2, 0.0), strict=True):
            made["history"][-1]["val_accuracy"] += change - 0.3
        return question.of(tables([made | {"timing": {}} for made in rows])).advice

    # Nor "5 repeats" alone, with which an interval is half of many times the margin.
    more = (
        "it takes about 5 repeats, not 3, to halve the intervals, and about 1,566 to tell "
        "1 percentage point."
    )
    assert told(False) == more
    keep = "to train on this device keep float32: it emulates **mixed_float16**; "
    assert told(True) == keep + more


def test_what_is_shown_is_said_beside_what_few_repeats_leave_open():
    # The lie: "provisional, undecided" of both, where one loses 40 points in three repeats.
    rows = []
    for size, lost, blocks in ((32, 0.4, 3), (64, 0.0, 2)):
        for policy in ("float32", "bfloat16"):
            for block in range(blocks):
                made = record(policy, block, batch_size=size) | {"timing": {}}
                if policy != "float32":
                    made["history"][-1]["val_accuracy"] -= lost
                rows.append(made)
    assert question.of(tables(rows)).title == (
        "bfloat16's accuracy beside float32's is lower in 1 of 2 settings and undecided (too few "
        "repeats) in 1"
    )


@pytest.mark.parametrize(
    ("sweep", "moved"),
    [  # "−4.8" alone, of the last of five epochs; "+6.9", of one pair.
        ("imagenette-accuracy-cpu", "Mean differences of the last 5 epochs: −4.8 to +3.6"),
        ("imagenette-128px-accuracy-cpu", "Differences of the last 5 epochs: −3.8 to +6.9"),
        ("imagenette-float16-cpu", ""),  # two epochs
        ("sign-digits-cpu", ""),  # several differences
    ],
)
def test_how_far_a_difference_moves_from_epoch_to_epoch_is_said(sweep, moved):
    tables = published(sweep).tables
    said = [s for s in question.of(tables).sentences if "of the last 5 epochs" in s]
    assert said == [f"{moved} percentage points."] * bool(moved)


def test_trainings_of_other_lengths_or_blocks_have_no_common_epochs():
    rows = []
    for policy, blocks in (("float32", 3), ("mixed_float16", 3)):
        for block in range(blocks):
            made = record(policy, block)
            first = made["history"][-1]
            made["history"] = [first | {"epoch": n, "val_accuracy": 0.9} for n in range(1, 11)]
            rows.append(made)
    row = accuracy.differences(tables(rows)).iloc[0]
    assert accuracy.in_last_epochs(tables(rows), row).tolist() == [0.0] * 5
    assert accuracy.in_last_epochs(tables(rows[:-1]), row).empty
    unknown = [*rows[-1]["history"][:-1], rows[-1]["history"][-1] | {"val_accuracy": None}]
    assert accuracy.in_last_epochs(tables([*rows[:-1], rows[-1] | {"history": unknown}]), row).empty
    # Of a text "−2.0 % of perplexity", which was what its tokens' accuracy changed by.
    assert accuracy.in_last_epochs(tables(rows), {**row, "dataset": "hamlet"}).empty
    shorter = rows[-1] | {"history": rows[-1]["history"][:9]}
    assert accuracy.in_last_epochs(tables([*rows[:-1], shorter]), row).empty
    assert accuracy.in_last_epochs(
        tables([r | {"history": r["history"][:9]} for r in rows]), row
    ).empty


def test_repeats_are_no_cure_where_few_images_make_the_interval():
    # "it takes about 5 repeats", then 17, then 29: on the same images the interval stays.
    known = published("vit-cpu").tables.records
    first = {r["parameters"]["policy"]: r for r in known if r["parameters"]["block"] == 0}
    alike = []
    for made in known:
        same, block = first[made["parameters"]["policy"]], made["parameters"]["block"]
        history = [epoch | {"loss": epoch["loss"] + block / 1000} for epoch in same["history"]]
        learned = {"history": history, "validated": same["validated"]}
        alike.append(made | learned | {"timing": {}, "marks": []})
    advice = question.of(tables(alike)).advice
    assert "more validation images: on these, repeats without end would leave" in advice
    assert "repeats, not 3" not in advice


def test_a_title_says_in_how_many_runs_a_policy_diverges():
    # "mixed_float16 diverges", of one run in three.
    rows = [record("float32", b) | {"timing": {}} for b in range(3)]
    for block in range(3):
        made = record("mixed_float16", block) | {"timing": {}}
        rows.append(diverged(made) if block == 1 else made)
    assert question.of(tables(rows)).title.startswith("mixed_float16 diverges in 1 of 3 runs")


@pytest.mark.parametrize(
    ("figure", "advice"),
    [
        (0.5, "keep float32."),
        (0.99, "find out first why the accuracy of **bfloat16** is higher."),
        (0.9, ""),
    ],
)
def test_what_follows_from_accuracies_that_are_shown_to_differ(figure, advice):
    # The omission: "What to do" stood where nothing was decided alone.
    rows = [record("float32", block) for block in range(3)]
    rows += [record("bfloat16", block) for block in range(3)]
    for made in rows:
        made["timing"] = {}
        own = figure if made["parameters"]["policy"] == "bfloat16" else 0.9
        made["history"][-1]["val_accuracy"] = own
    assert question.of(tables(rows)).advice == advice
