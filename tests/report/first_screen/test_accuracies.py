"""How a report opens whose times say nothing."""

import pytest
from builders import (
    IDENTITY,
    record,
    tables,
)

from mptexp.report.first_screen import choose


def test_without_a_time_accuracy_is_the_subject():
    rows = [record(p, b) for p in ("float32", "bfloat16") for b in range(3)]
    found = tables([row | {"timing": {}} for row in rows])
    answer = choose.of(found)
    assert answer.scale == "accuracy"
    assert answer.bars[0].finding == "equal"


def test_a_policy_alone_is_named_with_its_time():
    answer = choose.of(tables([record("float32", block, 0.1) for block in range(3)]))
    assert answer.title == "float32 alone: 100.00 ms per step on GPU"
    assert "a speedup needs two policies" in answer.sentences[0]
    rows = [record("float32", 0, 0.1), record("float32", 0, 0.1, batch_size=7)]
    several = choose.of(tables(rows))
    assert several.title.startswith("Nothing to compare: ")


def test_histograms_alone_open_with_what_they_advise():
    rows = {"kind": "weight_gradients", "layer": "all", "lowest": -20, "counts": [5, 5]}
    rows |= {"zeros": 0, "not_finite": 0, "largest": 2.0**-19}
    sampled = {"exponents": {"samples": [{"step": 0, "swallowed": {}}], "layers": [rows]}}
    answer = choose.of(tables([record("float32", 0, 0.1) | sampled]))
    assert answer.title == "The numbers of this training ask for float32"
    assert (answer.figure, answer.advice) == ("exponents", "use policy float32.")
    assert answer.sentences


@pytest.mark.parametrize(("nice", "title"), [(10, "Accuracy is"), (0, "Provisional: ")])
def test_a_training_of_low_priority_opens_with_its_accuracy(nice, title):
    # The lie by place: times that nobody asked for and nothing is claimed of, before accuracies.
    marks = ["measured while other programs used the processor"]
    rows = [
        record(p, b, s) | {"marks": marks, "identity": IDENTITY | {"nice": nice}}
        for p, s in (("float32", 0.1), ("mixed_bfloat16", 0.05))
        for b in range(3)
    ]
    answer = choose.of(tables(rows))
    assert answer.title.startswith(title)
    # Of times that nobody asked for the banner says that they are not valid.
    assert any(s.startswith("Measured, but not valid") for s in answer.sentences) == (not nice)


def test_differences_that_are_shown_are_counted():
    rows = []
    for size, lost in ((32, 0.0), (64, 0.4)):
        for policy in ("float32", "bfloat16"):
            for block in range(3):
                made = record(policy, block, batch_size=size) | {"timing": {}}
                if policy != "float32":
                    made["history"][-1]["val_accuracy"] -= lost
                rows.append(made)
    title = "Accuracy beside float32's is lower"
    assert choose.of(tables(rows)).title == f"{title} in 1 of 2 settings and equal in 1"
    lower = [r for r in rows if r["parameters"]["batch_size"] == 64]
    assert choose.of(tables(lower)).title == f"{title} (−40.0 percentage points)"
