from builders import record, tables, text

from mptexp.report.answers import quantized_inference, subject


def quantized(policy, block, before, after, made=None):
    made = made or record(block=block)
    made["parameters"] |= {"phase": "inference", "policy": policy}
    made["run_id"] = f"{policy}-{block}"
    made["history"] = []
    return made | {
        "quantized": {
            "before": before,
            "after": after,
            "bytes_before": 4 * 2**20,
            "bytes_after": 2**20,
            "calibration": "no data",
        }
    }


def test_without_quantized_models_there_is_no_section():
    scales = {"layers": [{"layer": "dense"}]}  # of float8, which is trained
    assert quantized_inference.sections(tables([record() | {"quantized": scales}])) == []


def test_the_difference_is_that_of_the_same_weights():
    rows = [record(block=b) for b in range(3)]
    for block, (before, after) in enumerate([(0.90, 0.89), (0.92, 0.90), (0.94, 0.91)]):
        rows.append(quantized("int8", block, {"val_accuracy": before}, {"val_accuracy": after}))
    (section,) = quantized_inference.sections(tables(rows))
    (row,) = section.rows.to_dict("records")
    assert row["Policy"] == "int8"
    assert row["Validation accuracy, trained"].startswith("92.0 %")
    assert row["Validation accuracy, quantized"].startswith("90.0 %")
    # Differences -1, -2 and -3: their mean, and 4.303 standard errors to each side.
    assert row["Difference, percentage points [95 % interval]"] == "−2.0 [−4.5, +0.5] (n = 3)"
    assert (row["Weights"], row["of their bytes"]) == ("4.0 MiB to 1.0 MiB", "25 %")
    assert section.sentences == ["int8 is calibrated on no data."]


def test_a_text_has_perplexities():
    made = [
        quantized("int4", b, {"val_loss": 2.0}, {"val_loss": 2.01 + b / 1000}, text(block=b))
        for b in range(3)
    ]
    (section,) = quantized_inference.sections(tables(made))
    (row,) = section.rows.to_dict("records")
    assert row["Validation perplexity, trained"] == "7.39 (7.39–7.39)"
    assert row["Difference, % of perplexity [95 % interval]"].startswith("+1.1 [")


def test_what_was_not_validated_has_no_difference():
    (section,) = quantized_inference.sections(tables([quantized("int8", 0, {}, {})]))
    (row,) = section.rows.to_dict("records")
    assert row["Difference, percentage points [95 % interval]"] == "–"


def test_the_page_opens_with_bytes_and_what_they_cost():
    made = []
    for block in range(3):
        made.append(record(block=block, step_s=0.1))
        made[-1]["parameters"] |= {"phase": "inference"}
        one = record(block=block, step_s=0.2 + block / 1e4)
        after = {"val_accuracy": 0.90 + block / 1000}
        made.append(quantized("int8", block, {"val_accuracy": 0.9}, after, one))
    answer = subject.of(tables(made))
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
    answer = subject.of(tables(made))
    title = "int8 shrinks the weights to 25 % of their bytes, accuracy +0.0 percentage points"
    assert answer.title == f"{title}; no speed is valid"
    (bar,) = answer.bars  # of what is valid, not of times that are not
    assert (answer.scale, bar.label) == ("accuracy", "int8: 25 % of the bytes")
    assert (bar.value, bar.low, bar.high) == (0, 0, 0)
    assert answer.advice.startswith("for fewer bytes take **int8**")
    assert "--repair" in answer.advice


def test_a_model_that_had_learned_nothing_shows_nothing_of_its_quantization():
    made = [
        quantized("int8", b, {"val_accuracy": 0.1}, {"val_accuracy": 0.1}, guessing(b))
        for b in range(3)
    ]
    (one,) = quantized_inference.measured(tables(made))
    assert one.difference == "+0.0 (not valid: not trained, n = 3)"


def guessing(block):
    return record(block=block, chance_accuracy=0.1)
