import numpy as np
import pytest
from builders import emulated_runs, published, record, tables

from mptexp.analysis import rate_ratios, speedups, summary
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


def shown_beside(made):
    """The other tables of one page that show times or rates of the same runs."""
    made_by = (
        rate_ratios.by_replicas,
        rate_ratios.by_backend,
        rate_ratios.by_frontend,
        rate_ratios.by_isa,
    )
    return [table for of in (*made_by, speedups.at_best_batch) if len(table := of(made))]


@pytest.mark.parametrize("name", ["frameworks-cpu", "inference-100px-cpu", "scaling-cpu"])
def test_all_tables_of_a_page_have_the_same_times_whose_quotients_are_the_ratios(name):
    # The lies: 417 and 787 images/s (1.89×) beside "2.00× faster", and 401 and 803 in the table
    # above; Keras faster than a plain loop in one table, slower in the other.
    made = published(name).tables
    known = summary.headline(made)
    assert (known.repeats == 3).all()
    for table in shown_beside(made):
        for column in {"step_s", "throughput"}.intersection(table):
            own, others = (rows[column].to_numpy(float) for rows in (table, known))
            assert (np.abs(own[:, None] / others - 1).min(axis=1) < 1e-9).all(), column
        rates = table.throughput.to_numpy(float)
        for ratio in {"speedup", "strong_speedup"}.intersection(table):
            gaps = np.abs(rates[:, None] / rates - table[[ratio]].to_numpy(float)).min(axis=1)
            assert (gaps[table[ratio].notna()] < 1e-9).all(), ratio


def test_what_was_achieved_is_of_the_times_beside_it():
    # The puzzle: int8 and int4 weights 1 % apart in time and 9 % in TFLOP/s of the same network.
    rows = summary.headline(published("quantized-inference-gpt-cpu").tables)
    work = rows.flops_per_s * rows.step_s
    assert work.to_numpy(float) == pytest.approx(work.iloc[0], rel=1e-6)


def test_runs_that_form_no_ratio_are_in_no_time_beside_it():
    # In the quotient they would be, and not in the ratio.
    rows = [record(p, b, s) for b in range(3) for p, s in (("float32", 0.2), ("float16", 0.1))]
    made = tables(rows)
    last = (made.ok.policy == "float16") & (made.ok.block == 2)
    apart = made.ok.assign(
        step_s=made.ok.step_s.mask(last, 0.4), flags=made.ok["flags"].mask(last, "measured apart")
    )
    assert speedups.row_times(apart, ["policy"]).step_s["float16"] == pytest.approx(0.1)
    alone = speedups.row_times(apart[last], ["policy"])
    assert alone.step_s["float16"] == pytest.approx(0.4)


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


def test_a_row_lies_between_its_own_percentiles():
    # Published once: 2.81 ms beside 2.88 to 3.25, as these were medians over repeats.
    rows = [record(block=block, step_s=step) for block, step in enumerate((0.01, 0.03, 0.031))]
    for one in rows:
        step = one["timing"]["step_s"]
        one["timing"] |= {"step_s_low": 0.99 * step, "step_s_high": 1.01 * step}
    (row,) = summary.headline(tables(rows)).to_dict("records")
    assert row["step_s_low"] == pytest.approx(0.99 * row["step_s"])
    assert row["step_s_high"] == pytest.approx(1.01 * row["step_s"])
