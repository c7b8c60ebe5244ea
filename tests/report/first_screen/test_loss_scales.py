"""How sweeps of loss scales open."""

from builders import (
    identified,
    loss_scaled,
    several_scales,
    tables,
)

from mptexp.report.first_screen import question


def test_loss_scales_open_with_the_range_that_trains():
    answer = question.of(identified(several_scales()))
    assert answer.title == (
        "mixed_float16 trains as float32 does with a loss scale of 1 and the dynamic scale, and "
        "falls behind float32 with 2⁻¹⁶ (−67.1 percentage points) and diverges in 2 of 3 runs with "
        "2²⁴"
    )
    assert answer.figure == "loss scale"
    assert answer.advice.startswith("take **mixed_float16** with ")
    unknown = question.of(tables([r | {"identity": None} for r in several_scales().records]))
    assert unknown.title == f"Provisional: {answer.title}"
    assert [text.partition(". ")[0] for text in unknown.sentences] == [
        "Measured, but not valid",
        *(text.rstrip(".") for text in answer.sentences[1:]),
    ]
    assert "--repair`" in unknown.advice


def test_of_several_networks_the_one_that_fails_is_the_title_and_named():
    runs = []
    for model, accuracy in (("lenet", 0.98), ("mlp", None)):
        for scale in (1.0, 2.0**15):
            runs += [(model, loss_scaled("mixed_float16", scale, b, accuracy)) for b in range(3)]
        runs += [(model, loss_scaled("float32", "none", b, 0.98)) for b in range(3)]
    for model, made in runs:
        made["parameters"] |= {"model": model}
        made["run_id"] += model
    answer = question.of(identified(tables([made for _, made in runs])))
    assert answer.title.startswith("With model mlp: mixed_float16 diverges with a loss scale of")
    # The chart is that network's: once the other's, "No run diverged".
    assert answer.case == "2"
    assert answer.advice.startswith("with model mlp: avoid **mixed_float16**")


def test_every_scale_does_not_train_where_the_dynamic_one_fails():
    runs = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
    runs += [loss_scaled("mixed_float16", s, b, 0.98) for s in (1.0, 1024.0) for b in range(3)]
    runs += [loss_scaled("mixed_float16", "dynamic", b, 0.5) for b in range(3)]
    answer = question.of(identified(tables(runs)))
    assert "every" not in answer.title
    assert answer.title.endswith("falls behind under the dynamic scale")
    assert "any loss scale" not in answer.advice
