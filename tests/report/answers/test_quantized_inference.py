from builders import quantized, record, tables, text

from mptexp.report.answers import quantized_inference
from mptexp.report.pages import notes


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


def test_an_interval_takes_account_of_the_images():
    # Three repeats that agree on 20 images: "+0.0 [+0.0, +0.0]", of any number of images.
    def made(n):
        right = {"images": n, "digest": "0" * 12, "correct": "ff" * (n // 8)}
        figures = {"val_accuracy": 1.0, "validated": right}
        return tables([quantized("int8", b, figures, figures) for b in range(3)])

    few, many = (quantized_inference.measured(made(n))[0].lost for n in (24, 24_000))
    assert few.estimate == many.estimate == 0
    assert few.low < -0.1 < -0.01 < many.low < 0
    assert few.high == many.high == 0  # of what was 100 %


def test_a_text_has_perplexities():
    made = [
        quantized("int4", b, of_text(2.0), of_text(2.01 + b / 1000), text(block=b))
        for b in range(3)
    ]
    (section,) = quantized_inference.sections(tables(made))
    (row,) = section.rows.to_dict("records")
    assert row["Validation perplexity, trained"] == "7.39 (7.39–7.39)"
    assert row["Difference, % of perplexity [95 % interval]"].startswith("+1.1 [")


def of_text(loss, examples=400, listed=True):
    """A validation of a text, whose sequences' losses differ from one another."""
    losses = [loss + (0.1 if k % 2 else -0.1) for k in range(examples)]
    known = {"images": examples, "digest": "0" * 12, "losses": losses}
    return {"val_loss": loss} | ({"validated": known} if listed else {})


def test_a_text_whose_sequences_are_not_recorded_is_not_equal():
    # The lie: "equal" by three repeats on the same text, of which nothing else is known.
    def made(listed):
        sides = of_text(2.0, listed=listed), of_text(2.0001, listed=listed)
        return tables([quantized("int4", b, *sides, text(block=b)) for b in range(3)])

    (known,), (unknown,) = (quantized_inference.measured(made(x)) for x in (True, False))
    assert (known.verdict, known.keeps) == ("equal", True)
    assert (unknown.verdict, unknown.keeps, unknown.loses) == ("images not recorded", False, False)
    assert unknown.difference == "+0.01 (sequences not recorded, n = 3)"
    assert quantized_inference.taken([unknown]).endswith(
        "perplexity +0.01 % in the mean, undecided (how each sequence was predicted is not "
        "recorded)"
    )
    (sentence,) = quantized_inference.sentences([unknown])
    assert sentence.endswith("perplexity +0.01 % (sequences not recorded, n = 3).")
    assert not any("integers" in text for text in notes.families(made(False)))


def of_images(count, **known):
    """Three repeats that lose nothing, validated with so many images of which none is listed."""
    for block in range(3):
        made = quantized("int8", block, {"val_accuracy": 0.9}, {"val_accuracy": 0.9})
        made["in_force"] |= {"validation_images": count, "validation_labels": [count]} | known
        yield made


def test_images_that_are_not_listed_are_as_uncertain_as_their_number():
    # The lie: "+0.0 [-0.2, +0.1]", equal, whatever number of images it was validated with.
    found = {
        count: quantized_inference.measured(tables([*of_images(count)]))[0]
        for count in (None, 20, 360, 1_000_000)
    }
    verdicts = {count: one.verdict for count, one in found.items()}
    assert verdicts == {
        None: "images not recorded",
        20: "too few images",
        360: "too few images",
        1_000_000: "equal",
    }
    assert found[360].lost.low < -0.03
    assert found[None].difference == "+0.0 (images not recorded, n = 3)"
    assert "undecided (too few validation images)" in quantized_inference.taken([found[360]])


def test_a_number_of_images_that_nothing_supports_claims_nothing():
    made = tables([*of_images(1_000_000, validation_labels=None)])
    assert quantized_inference.measured(made)[0].verdict == "images not recorded"


def test_what_is_not_recorded_widens_no_interval_of_what_is():
    def rows(policy, listed):
        sides = of_text(2.0, listed=listed), of_text(2.01, listed=listed)
        return [quantized(policy, b, *sides, text(block=b)) for b in range(3)]

    (alone,) = quantized_inference.measured(tables(rows("int8", True)))
    both = quantized_inference.measured(tables([*rows("int8", True), *rows("int4", False)]))
    assert alone.lost == next(one for one in both if one.policy == "int8").lost
    assert quantized_inference.taken(both).endswith(
        "undecided with int4 (how each sequence was predicted is not recorded)"
    )


def test_what_was_not_validated_has_no_difference():
    (section,) = quantized_inference.sections(tables([quantized("int8", 0, {}, {})]))
    (row,) = section.rows.to_dict("records")
    assert row["Difference, percentage points [95 % interval]"] == "–"


def test_a_model_that_had_learned_nothing_shows_nothing_of_its_quantization():
    made = [
        quantized("int8", b, {"val_accuracy": 0.1}, {"val_accuracy": 0.1}, guessing(b))
        for b in range(3)
    ]
    (one,) = quantized_inference.measured(tables(made))
    assert one.difference == "+0.0 (not valid: not trained, n = 3)"


def guessing(block):
    return record(block=block, chance_accuracy=0.1)


def test_intervals_hold_for_all_that_was_quantized_together():
    def rows(policy):
        pairs = enumerate([(0.90, 0.89), (0.92, 0.90), (0.94, 0.91)])
        return [
            quantized(policy, b, {"val_accuracy": x}, {"val_accuracy": y}) for b, (x, y) in pairs
        ]

    (alone,) = quantized_inference.measured(tables(rows("int8")))
    both = tables([*rows("int8"), *rows("int4")])
    # The lie: each alone, of a page that says that its intervals hold together.
    assert all(one.lost.low < alone.lost.low for one in quantized_inference.measured(both))
    assert "what integers for weights change (2)" in notes.families(both)


def test_perplexities_have_the_mean_by_which_they_are_compared():
    # "27.36", beside a headline of 20.09: an arithmetic mean, of what is compared by ratios.
    losses = (2.0, 3.0, 4.0)
    made = [
        quantized("int4", b, {"val_loss": loss}, {"val_loss": loss + 0.1}, text(block=b))
        for b, loss in enumerate(losses)
    ]
    (section,) = quantized_inference.sections(tables(made))
    (row,) = section.rows.to_dict("records")
    assert row["Validation perplexity, trained"].startswith("20.09 (")
