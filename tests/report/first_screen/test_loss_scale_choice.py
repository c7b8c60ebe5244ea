"""How sweeps of loss scales open."""

from builders import (
    identified,
    loss_scaled,
    record,
    several_scales,
    tables,
)

from mptexp.report.answers import loss_scales
from mptexp.report.first_screen import question
from mptexp.report.text import wording


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
    assert answer.title.startswith("With model mlp: mixed_float16 diverges with loss scales of")
    # The chart is that network's: once the other's, "No run diverged".
    assert answer.case == "2"
    assert answer.advice.startswith("with model mlp: avoid **mixed_float16**")


def test_scales_of_float32_alone_are_no_question_of_loss_scales():
    # Entitled once: "No loss scale is shown to train as float32 does".
    runs = [loss_scaled("float32", s, b, 0.98) for s in ("none", 1024.0) for b in range(3)]
    answer = question.of(identified(tables(runs)))
    assert "oss scale" not in answer.title
    assert answer.figure != "loss scale"


def test_every_scale_does_not_train_where_the_dynamic_one_fails():
    runs = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
    runs += [loss_scaled("mixed_float16", s, b, 0.98) for s in (1.0, 1024.0) for b in range(3)]
    runs += [loss_scaled("mixed_float16", "dynamic", b, 0.5) for b in range(3)]
    answer = question.of(identified(tables(runs)))
    assert "every" not in answer.title
    assert answer.title.endswith("under the dynamic scale (−48.0 percentage points)")
    assert "any loss scale" not in answer.advice


def with_scale(policy, scale, accuracy, **parameters):
    for block in range(3):
        made = record(policy, block, 0.1)
        made["parameters"] |= {"loss_scale": scale, **parameters}
        made["run_id"] = f"{policy}-{scale}-{block}-{parameters}"
        made["history"][0]["val_accuracy"] = accuracy + block / 1e4
        yield made


def test_a_single_loss_scale_is_compared_with_a_float32_that_has_none():
    # The lie: "Nothing to compare: no policy was measured beside its baseline".
    made = tables([*with_scale("float32", "none", 0.9), *with_scale("mixed_float16", 8.0, 0.3)])
    assert "mixed_float16" in question.of(made).title
    assert "falls behind float32 with 8 (−60.0 percentage points)" in question.of(made).sentences[0]


def test_every_setting_in_which_a_scale_fails_is_counted_and_comes_first():
    # The lie: of two networks that fail by 70 points, one appeared nowhere.
    made = []
    for model, accuracy in (("mlp", 0.9), ("lenet", 0.9), ("alexnet", 0.2), ("vit", 0.2)):
        made += with_scale("float32", "none", 0.9, model=model)
        made += with_scale("mixed_float16", 8.0, accuracy, model=model)
        made += with_scale("mixed_float16", 1024.0, 0.9, model=model)
    answer = question.of(tables(made))
    assert answer.title.endswith("; otherwise in 3 other settings")
    assert ["alexnet" in answer.sentences[0], "vit" in answer.sentences[1]] == [True, True]
    assert answer.sentences[2].endswith(" 1 more finding: see the table.")


def test_a_point_without_xla_has_no_second_with():
    # "With without XLA: mixed_float16 trains …".
    assert wording.capitalized(loss_scales.where("without XLA")) == "Without XLA: "
    assert loss_scales.where("with XLA, model mlp") == "with XLA, model mlp: "
    assert wording.capitalized(loss_scales.where("model mlp")) == "With model mlp: "
    assert loss_scales.where("") == ""


def test_what_one_of_two_devices_emulates_is_not_said_of_the_other():
    # "take mixed_float16 … This device emulates mixed_float16", of the one that does not.
    def of(device, emulated):
        runs = [loss_scaled("float32", "none", b, 0.98) for b in range(3)]
        for scale, figure in (("none", 0.3), ("dynamic", 0.98)):
            runs += [loss_scaled("mixed_float16", scale, b, figure) for b in range(3)]
        for made in runs:
            made["parameters"]["gpu_model"] = device
            made["run_id"] = f"{device.lower()}{made['run_id'][1:]}"
            own = emulated and made["parameters"]["policy"] != "float32"
            made["in_force"] = made.get("in_force", {}) | {"emulated": own}
        return runs

    both = question.of(identified(tables([*of("A", False), *of("B", True)]))).advice
    assert both == "with device A: take **mixed_float16** with the dynamic loss scale."
    alone = question.of(identified(tables(of("B", True)))).advice
    assert alone == (
        "take **mixed_float16** with the dynamic loss scale. This device emulates mixed_float16: "
        "slower training is expected."
    )


def test_each_setting_has_its_advice_and_none_that_stands_for_another():
    # The lie: "take mixed_float16 without a loss scale", with which another model lost 55 points.
    made = []
    for model, bare, scaled in (("mlp", 0.9, 0.8), ("vit", 0.4, 0.9)):
        for scale, policy, figure in (
            ("none", "float32", 0.9), ("none", "mixed_float16", bare),
            (1024.0, "mixed_float16", scaled),
        ):  # fmt: skip
            made += with_scale(policy, scale, figure, model=model)
    answer = question.of(tables(made))
    assert "with model mlp: take **mixed_float16** without a loss scale." in answer.advice.lower()
    assert "ith model vit: take **mixed_float16** with a loss scale of 1024." in answer.advice
    assert answer.title.endswith("; otherwise with model vit")


def test_a_policy_that_is_slower_is_not_advised_without_a_word_of_that():
    # The lie: "take mixed_float16 with any loss scale", four times as slow.
    runs = [*with_scale("float32", "none", 0.9)]
    for scale in ("none", 1024.0):
        for made in with_scale("mixed_float16", scale, 0.9):
            slow = record("mixed_float16", made["parameters"]["block"], 0.4)
            runs.append(made | {"timing": slow["timing"]})
    advice = question.of(tables(runs)).advice
    assert advice == (
        "keep float32: **mixed_float16** trains 4.00× slower here, whatever its loss scale."
    )
