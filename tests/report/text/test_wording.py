import math

import pandas as pd
import pytest
from builders import record, tables, three

from mptexp.analysis.contrast import Contrast
from mptexp.report.text import wording


def test_grammar():
    assert wording.count(1, "run") == "1 run"
    assert wording.count(1200, "run") == "1,200 runs"
    assert wording.listed(["a"]) == "a"
    assert wording.listed(["a", "b", "c"]) == "a, b and c"
    assert wording.contrast(Contrast(2, n=1)) == "2.00× (no interval, n = 1)"
    assert wording.contrast(Contrast(2, 1.9, 2.1, 3)) == "2.00× [1.90, 2.10] (n = 3)"
    assert wording.contrast(Contrast()) == "–"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.04, "0.04"), (1.155, "1.16"), (9.994, "9.99"), (9.996, "10.0"), (50.291, "50.3"),
     (99.96, "100"), (1360.4, "1,360"), (math.nan, "nan")],
)  # fmt: skip
def test_a_ratio_has_no_more_digits_than_are_read(ratio, text):
    assert wording.factor(ratio) == text


def test_the_interval_of_a_large_ratio_has_its_digits_too():
    row = {"speedup": 1 / 50.291, "low": 1 / 66.74, "high": 1 / 7.89, "blocks": 3, "flags": ""}
    assert wording.ratio_of(row) == "50.3× slower [7.89, 66.7] (n = 3)"


def test_whether_xla_was_on_is_said_in_words():
    table = three("mixed_float16", [2.0, 2.1, 1.9]).speedups
    both = pd.concat([table.assign(jit=False), table.assign(jit=True)], ignore_index=True)
    assert list(wording.panels(both).str.rpartition(", ")[2].unique()) == [
        "without XLA",
        "with XLA",
    ]
    headed = wording.headed(both, ["jit", "batch_size"])
    assert (list(headed), list(headed["XLA"].unique())) == (["XLA", "Batch size"], ["off", "on"])


def test_a_table_says_in_words_how_input_came():
    table = pd.DataFrame({"input_mode": ["keydana", "resident"], "setting": ["", "width 2"]})
    headed = wording.headed(table, ["input_mode", "setting"])
    assert headed["Input mode"].tolist() == [
        "input as in Keydana 2020",
        "one batch kept on the device",
    ]
    assert headed["Setting"].tolist() == ["", "width 2"]


def test_panels_are_told_apart_by_what_varies():
    rows = [record(), record(width=2.0)]
    assert set(wording.panels(tables(rows).results)) == {"GPU, width 1", "GPU, width 2"}
    assert set(wording.panels(tables(rows[:1]).results)) == {"GPU"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(4312.7, "4,310"), (999.6, "1,000"), (99.94, "99.9"), (0.35349, "0.353"), (0, "0"),
     (1.5e-3, "0.0015"), (123456789, "123,000,000")],
)  # fmt: skip
def test_numbers_are_told_with_three_digits(value, text):
    assert wording.digits(value) == text


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "1"), (0.3, "0.3"), (32768, "2¹⁵"), (2.0**-16, "2⁻¹⁶"), (1024, "1024"), (3000, "3000")],
)
def test_scales_are_written_as_powers_of_two(number, words):
    assert wording.power(number) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [(0, "0 %"), (1e-7, "< 0.001 %"), (0.0123, "1.2 %"), (0.999, "> 99 %"), (1.0, "100 %")],
)
def test_no_share_is_nothing_or_all_that_is_not(share, words):
    assert wording.share(share) == words


def test_a_panels_title_leaves_out_what_is_at_its_default():
    rows = {name: ["x", "x"] for name in wording.POINT}
    rows |= {"input_mode": ["keydana", "pipeline"], "setting": ["", "normalization fused"]}
    titles = wording.panels(pd.DataFrame(rows)).tolist()
    assert titles == [
        "x, input as in Keydana 2020",
        "x, prefetched input, fused batch normalization",
    ]


def test_six_digits_of_a_power_of_two_are_that_power():
    assert wording.setting("loss_scale 1.52588e-05") == "loss_scale 2⁻¹⁶"
    assert wording.setting("loss_scale 1.525878906e-05") == "loss_scale 2⁻¹⁶"
    assert wording.setting("loss_scale 1.5e-05, width 2") == "loss_scale 1.5e-05, width 2"
    assert wording.setting("loss_scale 0, loss_scale 1000") == "loss_scale 0, loss_scale 1000"


@pytest.mark.parametrize("speedup", [0.3, 0.99, 1.01, 3.4])
def test_a_ratio_of_one_recording_each_has_no_direction(speedup):
    assert wording.over(speedup) == f"{speedup:.2f}× as fast as"


@pytest.mark.parametrize(
    ("low", "high", "flags", "word"),
    [
        (1.05, 1.2, "", "faster"),
        (0.9, 1.3, "interference", "as fast"),
        (1.05, 1.2, "interference", "as fast"),
        (0.9, 1.3, "", "as fast"),
        (math.nan, math.nan, "", "as fast"),
        (math.nan, math.nan, "interference", "as fast"),
    ],
)
def test_a_direction_is_said_where_an_interval_proves_it(low, high, flags, word):
    # The lie: two blocks "1.01× faster", another two "1.01× slower", all three inconclusive.
    row = {"speedup": 1.1, "low": low, "high": high, "flags": flags, "blocks": 3}
    assert wording.direction(row) == word
    said = wording.ratio_of(row)
    assert f"1.10× {word}" in said
    assert ("not valid" in said) == bool(flags)
    assert ("inconclusive" in said) == (low == 0.9 and not flags)


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [(-4.71, ".1f", "−4.7"), (21.84, ".1f", "+21.8"), (-0.04, ".1f", "+0.0"), (-0.5, "g", "−0.5")],
)
def test_a_number_below_zero_has_a_minus_sign(value, form, text):
    assert wording.signed(value, form) == text


POINT = dict.fromkeys(["gpu_model", "backend", "dataset", "model", "phase", "setting"], "") | {
    "batch_size": 32,
    "jit": False,
    "input_mode": "pipeline",
    "replicas": 1,
}


def test_what_holds_of_most_points_is_said_once():
    settings = [{}, {"batch_size": 64}, {"jit": True}, {"input_mode": "keydana"}]
    points = pd.DataFrame([POINT | one for one in settings])
    assert wording.places(points, short=True) == [
        "batch size 32",
        "batch size 64",
        "batch size 32, with XLA",
        "batch size 32, input as in Keydana 2020",
    ]
    assert wording.usual(points) == "without XLA, prefetched input"
    assert wording.places(points[points.batch_size == 32], short=True) == [
        "without XLA, prefetched input",
        "with XLA, prefetched input",
        "without XLA, input as in Keydana 2020",
    ]


def test_a_point_that_has_all_that_most_have_is_named_by_it():
    settings = [{}, {"jit": True}, {"replicas": 2}, {"input_mode": "resident"}]
    points = pd.DataFrame([POINT | one for one in settings])
    usual = "without XLA, prefetched input, 1 replica"
    others = ["with XLA", "2 replicas", "one batch kept on the device"]
    assert wording.places(points, short=True) == [usual, *others]


def test_what_rounds_weights_alone_is_said_to():
    parts = {
        name: wording.partly({"policy": name, "effective_share": 0.9, "emulated": False})
        for name in ("int8", "int8_weights", "int4")
    }
    assert parts == {
        "int8": ["90 % of the arithmetic in int8"],
        "int8_weights": ["90 % of the arithmetic in int8 weights"],
        "int4": ["90 % of the arithmetic in int4 weights"],
    }


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("with XLA", "with XLA"),
        ("batch size 32", "at batch size 32"),
        ("prefetched input, width 2", "with prefetched input, width 2"),
        ("some model", "with some model"),
        ("PyTorch, with XLA", "in PyTorch, with XLA"),
        ("batch size 1, some model", "at batch size 1 with some model"),
        ("batch size 32, with XLA, width 2", "at batch size 32 with XLA, width 2"),
    ],
)
def test_a_place_in_plain_words_follows_its_preposition(place, said):
    assert wording.at(place) == said


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ((-0.024, -0.0477, -0.0003), "−2.4 [−4.8, −0.03] (n = 3)"),  # once +0.0, of what is lower
        ((0.024, 0.00004, 0.0477), "+2.4 [+0.004, +4.8] (n = 3)"),
        ((0.024, -0.0003, 0.0477), "+2.4 [+0.0, +4.8] (n = 3)"),
        ((0.0, 0.0, 0.0), "+0.0 [+0.0, +0.0] (n = 3)"),
    ],
)
def test_an_end_close_to_zero_is_not_zero_where_zero_is_left_out(over, said):
    assert wording.difference(*over, 3) == said


def test_an_end_close_to_one_is_not_one_where_one_is_left_out():
    row = {"speedup": 1.1, "low": 1.0004, "high": 1.2096, "blocks": 3, "flags": ""}
    # The lie: "1.10× faster [1, 1.21]".
    assert wording.ratio_of(row) == "1.10× faster [1.0004, 1.21] (n = 3)"
    assert wording.open_to({"low": 0.9, "high": 1.05}) == "inconclusive"
    assert wording.open_to({"low": 0.0, "high": math.inf}) == "inconclusive"
    # One word for no information and for a good null.
    assert wording.open_to({"low": 0.94, "high": 1.085}) == "inconclusive, within 9 %"
    open_ = row | {"low": 0.9996}
    assert wording.ratio_of(open_) == "1.10× as fast [1.00, 1.21] (n = 3): inconclusive"
