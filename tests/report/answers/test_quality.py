"""What is said of accuracy and memory."""

from dataclasses import replace

import pandas as pd
import pytest
from builders import diverged, published, record, tables, three

from mptexp.analysis import memory
from mptexp.analysis.sweep_tables import Options
from mptexp.records.interference import GPU_USED
from mptexp.report.answers import findings, quality
from mptexp.report.first_screen import question
from mptexp.report.tables import text_tables


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
    tried = attempts(made, ("float32", 36, "oom"), ("mixed_float16", 36, "oom"))
    said = " ".join(findings.answer(replace(made, attempts=tried)))
    fits = "Largest batch that fits: 32 (not 36) with **float32** and **mixed_float16**."
    assert fits in said
    title = question.of(replace(made, attempts=tried)).title
    assert title.startswith(
        "The largest batch is 32 (not 36) with float32 and mixed_float16 alike; "
    )
    tried.loc[1, "batch_size"] = 96
    # The lie: "the largest batch is 32 (not 96)", of a search that was stopped.
    said = " ".join(findings.answer(replace(made, attempts=tried)))
    assert "32 (not 36) with **float32** and between 32 and 96 with **mixed_float16**" in said
    more = attempts(made, ("mixed_float16", 88, "ok"))
    further = replace(made, attempts=pd.concat([tried, more], ignore_index=True))
    begins = "The largest batch is 32 (not 36) with float32 and 88 (not 96) with mixed_float16; "
    assert question.of(further).title.startswith(begins)
    # A short attempt fitted at which the whole runs were out of memory.
    mixed = made.results[made.results.policy == "mixed_float16"].iloc[[0]]
    out = mixed.assign(batch_size=88, status="oom", run_id="out")
    whole = replace(further, results=pd.concat([made.results, out]))
    assert quality.largest_batches(whole).fits.to_dict() == {"float32": 32, "mixed_float16": 32}
    # The lie: "equally large batches fit", of one that one of three whole runs survived.
    once = replace(further, results=pd.concat([whole.results, mixed.assign(batch_size=88)]))
    assert quality.largest_batches(once).fits.to_dict() == {"float32": 32, "mixed_float16": 32}
    # Nor is a search relied on that was made beside others on the GPU, or with another model.
    assert memory.is_relied_on(further)
    for change in ({"marks": f"a tree; {GPU_USED}"}, {"other": True}):
        doubtful = replace(further, attempts=further.attempts.assign(**change))
        assert quality.largest_batches(doubtful).empty
    # The lie: "384 (not 320)".
    below = pd.concat([further.attempts, attempts(made, ("mixed_float16", 64, "oom"))])
    sizes = quality.largest_batches(replace(made, attempts=below.reset_index(drop=True)))
    assert sizes.loc["mixed_float16"].to_dict() == {"fits": 88, "fails": 96}
    # The lie: the largest batch "on AMD EPYC", of runs that were allowed 1.3 GB.
    limited = [
        r | {"parameters": r["parameters"] | {"memory_limit_gb": 1.3}} for r in further.records
    ]
    title = question.of(replace(further, records=limited)).title
    assert title.startswith("The largest batch in 1.3 GB is 32 (not 36) with float32 and ")
    # A search that ended for another reason does not know what fits.
    unknown = replace(made, attempts=tried.assign(status="failed"))
    assert "argest batch" not in " ".join(findings.answer(unknown))
    assert "batch" not in question.of(unknown).title


def attempts(made, *each):
    """Runs of a search at the point of some tables: policy, batch size, status."""
    like = made.results.iloc[[0] * len(each)].assign(flags="")
    named = pd.DataFrame(each, columns=["policy", "batch_size", "status"])
    return like.reset_index(drop=True).assign(**named)


def test_a_title_joins_no_batches_of_two_networks():
    # The lie: "1,024 (not 288)", of which the first was a network's that had not been run yet.
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    policies = ("float32", "mixed_float16")
    tried = attempts(made, *[(policy, 64, "oom") for policy in policies])
    for status in ("ok", "oom"):
        other = attempts(made, *[(policy, 1024, status) for policy in policies])
        both = pd.concat([tried, other.assign(setting="width 0.25")])
        assert quality.largest_batches(replace(made, attempts=both)).empty


@pytest.mark.parametrize("why", [*memory.DOUBTFUL, memory.OTHERS])
def test_no_batch_is_the_largest_of_a_search_that_may_not_be_relied_on(why):
    # The lie: "384 (not 512)", of attempts that had been edited, or whose limit was not in force.
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    tried = attempts(made, ("float32", 64, "oom"), ("mixed_float16", 64, "oom"))
    assert len(quality.largest_batches(replace(made, attempts=tried))) == 2
    tried.loc[1, "flags"] = why
    assert quality.largest_batches(replace(made, attempts=tried)).empty
    (fine, doubtful) = text_tables.attempt_rows(replace(made, attempts=tried)).Outcome
    assert fine == "oom"
    assert doubtful.startswith("oom (not valid: ")


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


def test_a_search_on_two_machines_of_one_name_finds_no_largest_batch():
    # The lie: "32 (not 36) with float32 and 88 (not 96)", each on another machine, merged.
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    tried = attempts(made, ("float32", 36, "oom"), ("mixed_float16", 36, "oom"))
    for boots, known in ((("one", "one"), 2), (("one", ""), 2), (("one", "two"), 0)):
        searched = replace(made, attempts=tried.assign(boot=boots))
        assert len(quality.largest_batches(searched)) == known


def test_means_beside_a_difference_are_of_its_repeats():
    # The lie: "mean difference +0.00, float32 92.5 % and mixed_float16 91.0 %", of 6 and 3 seeds.
    rows = [
        record(policy, block)
        for policy, blocks in (("float32", 6), ("mixed_float16", 3))
        for block in range(blocks)
    ]
    for made in rows:
        made["history"][-1]["val_accuracy"] = 0.9 + made["parameters"]["block"] / 100
    read = tables(rows)
    sentence = findings.answer(read)[1]
    assert "+0.0" in sentence
    assert sentence.count("91.0 %") == 2
    cells = list(text_tables.headline_rows(read)["Validation accuracy"])
    assert cells[0].startswith("92.5 %")
    assert cells[1].endswith("(n = 3)")


def test_what_looks_equal_is_not_called_undecided_beside_what_is():
    # A first screen said "undecided" of what its own table calls about the same in the mean.
    (said,) = [s for s in findings.answer(published("quickstart-cpu").tables) if "accuracy" in s]
    assert said.startswith(
        "Validation accuracy: **mixed_bfloat16** at batch size 128 and **mixed_float16** about "
        "the same in the mean as float32's, at most 1.5 percentage points either way; "
        "**mixed_bfloat16** at batch size 32 undecided (n = 3)"
    )


def test_the_time_to_an_accuracy_that_was_asked_for_is_said():
    # The lie by omission: "use mixed_float16", which takes twice as long to the 85 % asked for.
    rows = []
    for policy, reached in (("float32", (0.86, 0.9)), ("mixed_float16", (0.5, 0.9))):
        for block in range(3):
            made = record(policy, block, 0.1)
            made["history"] = [
                {"epoch": n, "loss": 1.0, "accuracy": 0.8, "val_accuracy": v, "elapsed_s": 10.0 * n}
                for n, v in enumerate(reached, 1)
            ]
            rows.append(made)
    asked = replace(tables(rows), options=Options(target_accuracy=0.85))
    (said,) = quality.sentences(asked)
    assert "Time to 85 %: float32 10.0 s and mixed_float16 20.0 s." in said
    assert "Time to" not in quality.sentences(tables(rows))[0]


def test_memory_of_a_cpu_is_said_to_be_the_processs():
    # The lie: "Memory: about the same, within 2 %", of processes of which little is activations.
    made = three("mixed_float16", [2.0, 2.1, 1.9])
    assert any("Memory: about the same" in text for text in quality.sentences(made))
    cpu = replace(made, results=made.results.assign(device="AMD EPYC (CPU)"))
    assert any("Process memory: about the same" in text for text in quality.sentences(cpu))


def test_what_did_not_fit_into_the_memory_that_was_allowed_is_said_so():
    # The lie: "float32 ran out of memory", under a memory_limit_gb of 1.3.
    out = {"status": "oom", "error": "1.4 GB were in use", "timing": {}, "history": []}
    rows = [record("float32") | out, record("mixed_float16")]
    for limit, how in ((None, "ran out of memory"), (1.3, "did not fit in 1.3 GB")):
        limited = [r | {"parameters": r["parameters"] | {"memory_limit_gb": limit}} for r in rows]
        assert findings.ended(tables(limited)).startswith(f"float32 {how} at batch size 32")
