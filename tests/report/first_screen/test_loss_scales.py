"""How sweeps of loss scales open."""

from builders import (
    identified,
    several_scales,
    tables,
)

from mptexp.report.first_screen import subject


def test_loss_scales_open_with_the_range_that_trains():
    answer = subject.of(identified(several_scales()))
    assert answer.title == (
        "mixed_float16 trains as float32 does with a loss scale of 1, and falls behind float32 "
        "with 2⁻¹⁶ (−67.1 percentage points) and diverges in some runs with 2²⁴"
    )
    assert answer.figure == "loss scale"
    assert answer.advice.startswith("take **mixed_float16** with ")
    unknown = subject.of(tables([r | {"identity": None} for r in several_scales().records]))
    assert unknown.title == f"Provisional: {answer.title}"
    assert [text.partition(". ")[0] for text in unknown.sentences] == [
        "Measured, but not valid",
        *(text.rstrip(".") for text in answer.sentences[1:]),
    ]
    assert "--repair`" in unknown.advice
