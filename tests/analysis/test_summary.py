import numpy as np
import pandas as pd
import pytest

from mptexp.analysis import summary
from mptexp.records import store
from mptexp.report import text_tables
from mptexp.spec.run import Run


def record(
    policy="float32", block=0, step_s=0.1, batch_size=32, default="float32", width=1.0, **more
):
    run = Run(
        gpu_model="GPU",
        policy=policy,
        block=block,
        seed=block,
        batch_size=batch_size,
        width=width,
    )
    return {
        "schema": 1,
        "run_id": run.run_id(),
        "status": "ok",
        "error": "",
        "parameters": run.model_dump(),
        "in_force": {
            "jit": False,
            "emulated": False,
            "default_policy": default,
            "variable_dtype": "float32",
            "initial_weights": "w",
            "data_order": f"o{block}",
            **more,
        },
        "timing": {"step_s": step_s, "step_s_low": step_s, "step_s_high": step_s, "steps_timed": 9,
                   "images_per_s": batch_size / step_s, "warmup_steps": 1, "first_step_s": 1.0},
        "history": [{"epoch": 1, "loss": 1.0, "accuracy": 0.8, "val_accuracy": 0.9 + block / 100}],
        "peak_memory_bytes": 2**30,
        "fit_s": 1.0,
        "wall_s": 2.0,
    }  # fmt: skip


def tables(records):
    results = store.results(records, "mine")
    found = summary.speedups(results)
    return summary.Tables(results, store.history(records), found, records, [])


def test_a_speedup_is_baseline_over_candidate_within_blocks():
    # The machine slows down by half from block to block; the ratio is 2 throughout.
    rows = [
        record(policy, block, step_s * 1.5**block)
        for block in range(3)
        for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1))
    ]
    (row,) = tables(rows).speedups.to_dict("records")
    assert (row["baseline"], row["candidate"], row["blocks"]) == ("float32", "mixed_float16", 3)
    assert row["speedup"] == pytest.approx(2)
    assert row["low"] == pytest.approx(2)
    assert row["high"] == pytest.approx(2)


def test_both_baselines_where_the_default_is_tf32():
    rows = [
        record(policy, 0, step_s, default="tensorfloat32")
        for policy, step_s in (("float32", 0.4), ("tensorfloat32", 0.2), ("mixed_float16", 0.1))
    ]
    found = tables(rows).speedups.set_index(["baseline", "candidate"]).speedup
    assert found["tensorfloat32", "mixed_float16"] == pytest.approx(2)
    assert found["float32", "mixed_float16"] == pytest.approx(4)
    assert found["tensorfloat32", "float32"] == pytest.approx(0.5)
    row = summary.headline(tables(rows)).set_index("policy").loc["mixed_float16"]
    assert (row.speedup, row.strict_speedup) == (pytest.approx(2), pytest.approx(4))


def test_only_pairs_count_and_failures_do_not():
    rows = [record(), record("mixed_float16", 1, 0.05), record("bfloat16") | {"status": "failed"}]
    assert tables(rows).speedups.empty
    both = tables([*rows, record("mixed_float16", 0, 0.05)]).speedups
    assert both.blocks.tolist() == [1]


def test_runs_that_differ_in_anything_else_are_not_repeats():
    rows = [
        record(policy, block, step_s, width=width)
        for block in range(3)
        for width, half in ((1.0, 0.2), (8.0, 0.05))
        for policy, step_s in (("float32", 0.1), ("mixed_float16", half))
    ]
    found = tables(rows).speedups.set_index("setting").speedup
    assert found["width 1"] == pytest.approx(0.5)
    assert found["width 8"] == pytest.approx(2)
    assert summary.starts_agree(tables(rows).results, rows)


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


def test_devices_that_share_a_batch_are_another_point():
    rows = [record(p, b, s) for b in range(3) for p, s in (("float32", 0.2), ("float16", 0.1))]
    rows += [record(p, b, 0.05) for b in range(3) for p in ("float32", "float16")]
    for made in rows[6:]:
        made["parameters"]["replicas"] = 2
        made["run_id"] += " on two"
    found = tables(rows).speedups.set_index("replicas").speedup
    assert found[1] == pytest.approx(2)
    assert found[2] == pytest.approx(1)
    assert set(summary.panels(tables(rows).results)) == {"GPU, replicas 1", "GPU, replicas 2"}


def test_panels_are_told_apart_by_what_varies():
    rows = [record(), record(width=2.0)]
    assert set(summary.panels(tables(rows).results)) == {"GPU, width 1", "GPU, width 2"}
    assert set(summary.panels(tables(rows[:1]).results)) == {"GPU"}


def test_nothing_at_all_is_an_empty_table():
    failed = record() | {"status": "failed", "in_force": {}, "timing": {}}
    assert tables([failed]).speedups.empty
    assert "speedup" in tables([failed]).speedups


def test_other_starts_are_noticed():
    alike = [record(), record("mixed_float16"), record(block=1)]
    assert summary.starts_agree(tables(alike).results, alike)
    unlike = [record(), record("mixed_float16", initial_weights="other")]
    assert not summary.starts_agree(tables(unlike).results, unlike)
    pure = [record(), record("float16", initial_weights="other", variable_dtype="float16")]
    assert summary.starts_agree(tables(pure).results, pure)


def test_policies_are_ranked_as_the_design_lists_them():
    table = pd.DataFrame({"policy": ["mixed_bfloat16", "float32", "mixed_float16"]})
    order = table.sort_values("policy", key=summary.rank).policy.tolist()
    assert order == ["float32", "mixed_float16", "mixed_bfloat16"]


def sizes(*points):
    """Records of (policy, batch size, images per second in each block, or oom)."""
    rows = []
    for policy, size, rates in points:
        if rates == "oom":
            out = {"status": "oom", "timing": {}, "in_force": {}, "history": []}
            rows.append(record(policy, 0, batch_size=size) | out)
        else:
            rows += [record(policy, k, size / r, batch_size=size) for k, r in enumerate(rates)]
    return tables(rows)


def test_every_policy_has_its_best_batch():
    found = sizes(
        ("float32", 32, [100, 110, 120]),
        ("float32", 64, [200, 220, 240]),
        ("float32", 128, "oom"),
        ("mixed_float16", 32, [90, 99, 108]),
        ("mixed_float16", 64, [300, 330, 360]),
        ("mixed_float16", 128, [600, 660, 720]),
    )
    rows = summary.best_batches(found.results).set_index("policy")
    base, mixed = rows.loc["float32"], rows.loc["mixed_float16"]
    assert (base.batch_size, base.largest, base.too_large) == (64, 64, 128)
    assert (mixed.batch_size, mixed.largest) == (128, 128)
    assert np.isnan(mixed.too_large)
    assert mixed.speedup == pytest.approx(3)
    assert (mixed.low, mixed.high, mixed.blocks) == (pytest.approx(3), pytest.approx(3), 3)
    assert np.isnan(base.speedup)
    shown = text_tables.best_rows(found)
    assert shown["Smallest that ran out of memory"].tolist() == ["128", "–"]
    assert shown["Images/s over the baseline's best [95 % interval]"].tolist()[0] == "1 (float32)"


def test_one_batch_size_is_no_comparison_of_batches():
    assert text_tables.best_rows(sizes(("float32", 32, [100]), ("float16", 32, [90]))).empty


def test_a_larger_batch_is_not_always_better():
    found = sizes(("float32", 32, [100]), ("float32", 64, [90]), ("float16", 64, [300]))
    assert summary.best_batches(found.results).batch_size.tolist() == [32, 64]
    out_everywhere = sizes(("float32", 32, "oom"), ("float32", 64, "oom"))
    assert summary.best_batches(out_everywhere.results).empty


def test_backends_keep_their_own_limits():
    rows = []
    for backend, jit in (("tensorflow", False), ("jax", True)):
        for made in sizes(("float32", 32, [100]), ("float32", 64, "oom")).records:
            made["parameters"]["backend"] = backend
            made["run_id"] += backend
            made["in_force"] = made["in_force"] and made["in_force"] | {"jit": jit}
            rows.append(made)
    found = summary.best_batches(tables(rows).results).set_index("backend")
    assert found.too_large.to_dict() == {"tensorflow": 64, "jax": 64}


def test_latencies_of_runs_whose_timings_are_void_are_left_out():
    alone, beside = record(block=0), record(block=1)
    for made in (alone, beside):
        made["latencies_s"] = [0.1, 0.2, 0.3]
    beside["marks"] = [f"{store.VOID}: 2 runs shared this machine's processors"]
    found = tables([alone, beside]).latencies
    assert set(found.run_id) == {alone["run_id"]}


@pytest.mark.parametrize(
    ("value", "text"),
    [(4312.7, "4,310"), (999.6, "1,000"), (99.94, "99.9"), (0.35349, "0.353"), (0, "0"),
     (1.5e-3, "0.0015"), (123456789, "123,000,000")],
)  # fmt: skip
def test_numbers_are_told_with_three_digits(value, text):
    assert summary.digits(value) == text
