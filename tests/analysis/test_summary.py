import numpy as np
import pytest
from builders import emulated_runs, record, tables

from mptexp.analysis import summary
from mptexp.report.answers import caveats
from mptexp.report.tables import text_tables


def test_strict_float32_is_the_baseline_where_the_default_was_not_measured():
    rows = [
        record(policy, block, step_s, default="tensorfloat32")
        for block in range(3)
        for policy, step_s in (("float32", 0.4), ("mixed_float16", 0.1))
    ]
    row = summary.headline(tables(rows)).set_index("policy").loc["mixed_float16"]
    assert (row.baseline, row.speedup, row.blocks) == ("float32", pytest.approx(4), 3)


def test_n_is_the_number_of_pairs():
    rows = [record("mixed_float16", block, 0.05) for block in range(3)]
    rows += [record(block=block) for block in range(2)]
    row = summary.headline(tables(rows)).set_index("policy").loc["mixed_float16"]
    assert (row.blocks, row.repeats) == (2, 3)
    assert np.isnan(row.low)


def test_other_starts_are_noticed():
    alike = [record(), record("mixed_float16"), record(block=1)]
    assert summary.starts_agree(tables(alike).results, alike)
    unlike = [record(), record("mixed_float16", initial_weights="other")]
    assert not summary.starts_agree(tables(unlike).results, unlike)
    pure = [record(), record("float16", initial_weights="other", variable_dtype="float16")]
    assert summary.starts_agree(tables(pure).results, pure)


def test_a_device_whose_peak_was_exceeded_has_no_peak():
    # The lie: 29 % of a peak that was measured beside other programs, as those that were exceeded.
    made = []
    for policy, peak in (("float32", 3e9), ("mixed_float16", 8e9)):
        one = record(policy, step_s=0.1)
        ceilings = {"dtype": "float32", "matmul_flops_per_s": peak, "copy_bytes_per_s": 1e10}
        one["work"] = {"flops_per_step": 4e8, "bytes_per_step": 1e6, "ceilings": ceilings}
        made.append(one)
    assert summary.headline(tables(made)).mfu_frac.isna().all()
    assert summary.headline(tables(made[1:])).mfu_frac.tolist() == [0.5]


def test_an_accuracy_says_of_how_many_runs_it_is():
    made = [record(block=block) for block in range(3)]
    for one in made[1:]:
        one["timing"]["ended_by"] = "target_ci"
    (row,) = summary.headline(tables(made)).to_dict("records")
    assert (row["val_accuracy"], row["val_accuracy_n"], row["repeats"]) == (0.9, 1, 3)
    (shown,) = text_tables.headline_rows(tables(made))["Validation accuracy"]
    assert shown == "90.0 % (n = 1)"


def test_what_no_record_says_to_be_emulated_is_not_called_so():
    # The lie: "float32 (emulated)" of records that do not say, such as those of StepTimer: an empty
    # column became NaN, which is true.
    rows = [record(policy, emulated=None) for policy in ("float32", "mixed_bfloat16")]
    made = tables(rows)
    assert made.ok.emulated.tolist() == [False, False]
    assert summary.headline(made).emulated.tolist() == [False, False]
    assert "emulated" not in text_tables.markdown(text_tables.headline_rows(made))
    assert not any(made.results.emulated.notna())  # results.csv says nothing of what is not known


def test_the_times_of_a_table_divide_to_its_ratio():
    # The puzzle: 120 ms over 86.6 is 1.39, beside "1.43× faster": medians, and a mean of ratios.
    steps_s = {"float32": (0.1, 0.2, 0.15), "mixed_float16": (0.09, 0.1, 0.12)}
    made = tables([record(p, b, s) for p, own in steps_s.items() for b, s in enumerate(own)])
    rows = summary.headline(made).set_index("policy")
    ratio = rows.step_s["float32"] / rows.step_s["mixed_float16"]
    assert rows.speedup["mixed_float16"] == pytest.approx(ratio)
    assert rows.throughput["mixed_float16"] / rows.throughput["float32"] == pytest.approx(ratio)


def test_runs_without_a_result_are_of_what_they_emulate():
    # The lie: "3 of 12 runs of float32 (diverged)", of the format <4,4>.
    eight, four = ({"propagation": name, "weight_format": name} for name in ("<8,8>", "<4,4>"))
    runs = [*emulated_runs([1.0] * 3), *emulated_runs([1.0] * 3, **eight)]
    runs += emulated_runs([1.0] * 3, status="diverged", **four)
    (row,) = summary.left_out(summary.by_format(tables(runs)).assign(place=""))
    named = (row["policy"], row["propagation"], row["weight_format"], row["status"])
    assert named == ("float32", "<4,4>", "<4,4>", "diverged")
    assert (row["left"], row["runs"]) == (3, 3)
    assert caveats.left_out(tables(runs)) == [
        "**Without a result**: 3 of 3 runs of float32 in <4,4> (diverged)."
    ]
