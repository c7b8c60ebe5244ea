"""What is said of accuracy and memory."""

from dataclasses import replace

import pandas as pd
from builders import diverged, record, tables, three

from mptexp.report.answers import findings, quality
from mptexp.report.first_screen import question


def test_chance_level_is_said_to_be_nothing_learned():
    rows = [
        record(policy, block, chance_accuracy=0.1)
        for policy in ("float32", "mixed_float16")
        for block in range(3)
    ]
    for made in rows:
        made["history"][-1]["val_accuracy"] = 0.1
    sentence = findings.answer(tables(rows))[1]
    assert "**nothing was learned**: every run's accuracy is at chance level, 10.0 %" in sentence


def test_a_difference_of_single_runs_is_no_mean():
    made = [record(policy, 0) for policy in ("float32", "mixed_float16")]
    said = " ".join(findings.answer(tables(made)))
    assert "difference +0.0 percentage points" in said
    made += [record(policy, 1) for policy in ("float32", "mixed_float16")]
    assert "mean difference +0.0 " in " ".join(findings.answer(tables(made)))


def test_the_largest_batches_are_said_where_they_were_searched_for():
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    assert "argest batch" not in " ".join(findings.answer(made))
    policies = ["float32", "mixed_float16"]
    tried = pd.DataFrame({"policy": policies, "batch_size": [64, 64], "status": ["oom", "oom"]})
    said = " ".join(findings.answer(replace(made, attempts=tried)))
    fits = "Largest batch that fits: 32 (not 64) with **float32** and **mixed_float16**."
    assert fits in said
    title = question.of(replace(made, attempts=tried)).title
    assert title.startswith(
        "Equally large batches fit with float32 and mixed_float16: 32 (not 64); "
    )
    tried.loc[1, "batch_size"] = 96
    # The lie: a gain of 10 %, of a search whose gaps are as wide.
    said = " ".join(findings.answer(replace(made, attempts=tried)))
    assert "32 (not 64) with **float32** and 32 (not 96) with **mixed_float16**" in said
    more = pd.DataFrame({"policy": ["mixed_float16"], "batch_size": [64], "status": ["ok"]})
    further = replace(made, attempts=pd.concat([tried, more]))
    begins = "The largest batch is 32 (not 64) with float32 and 64 (not 96) with mixed_float16; "
    assert question.of(further).title.startswith(begins)
    # A short attempt fitted at which the whole runs were out of memory.
    mixed = made.results[made.results.policy == "mixed_float16"].iloc[[0]]
    out = mixed.assign(batch_size=64, status="oom", run_id="out")
    whole = replace(further, results=pd.concat([made.results, out]))
    assert quality.largest_batches(whole).to_dict() == {"float32": 32, "mixed_float16": 32}
    # A search that ended for another reason does not know what fits.
    unknown = replace(made, attempts=tried.assign(status="failed"))
    assert "argest batch" not in " ".join(findings.answer(unknown))
    assert "batch" not in question.of(unknown).title


def test_of_several_policies_the_memory_of_those_that_are_the_same_is_said():
    # "Memory: inconclusive.", although one of two was shown to take as much.
    rows = []
    for block in range(3):
        rows += [record("float32", block), record("mixed_float16", block)]
        vague = record("mixed_bfloat16", block)
        rows.append(vague | {"peak_memory_bytes": vague["peak_memory_bytes"] * (1 + block / 2)})
    (said,) = quality.sentences(tables(rows))
    assert said.endswith("Memory: about the same with **mixed_float16**, others inconclusive.")


def test_a_device_is_said_once():
    # The stutter: "**mixed_float16** on A100 at batch size 32 on A100".
    rows = []
    for device, size in (("A100", 32), ("A100", 64), ("V100", 32), ("V100", 64)):
        for block in range(3):
            lost = (device, size) == ("A100", 32)
            rows.append(record("float32", block, batch_size=size))
            mixed = record("mixed_float16", block, batch_size=size)
            rows.append(diverged(mixed) if lost else mixed)
            for made in rows[-2:]:
                made["parameters"]["gpu_model"] = device
                made["run_id"] += device
    said = " ".join(quality.sentences(tables(rows)))
    assert "**mixed_float16** on A100 at batch size 32 not compared (all runs diverged)" in said


def ended(how, accuracy):
    """Tables of two policies whose runs ended so, with this accuracy after their last epoch."""
    rows = [record(policy, block) for policy in ("float32", "mixed_float16") for block in range(3)]
    for made in rows:
        made["timing"] = made["timing"] | {"ended_by": how}
        for epoch in made["history"]:
            epoch["val_accuracy"] = accuracy
    return tables(rows)


def test_that_no_accuracy_is_compared_is_said_and_why():
    # The puzzle: a page of a gain without a word on what it costs.
    (said,) = quality.sentences(ended("target_ci", 0.9))
    assert said.startswith("Accuracy is not compared: runs ended once their times were known.")
    (said,) = quality.sentences(ended("max_steps", None))
    assert said.startswith("Accuracy was not measured.")
    (said,) = quality.sentences(ended("epochs", 0.9))
    assert "accuracy is" in said
    assert "not" not in said.partition("accuracy is")[0]
