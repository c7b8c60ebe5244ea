import numpy as np
import pytest

from mptexp.analysis import speedups, summary, sweep_tables
from mptexp.records.tables import history_table, results_table
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
    results = results_table(records, "mine")
    found = speedups.at_same_batch(results)
    return sweep_tables.Tables(results, history_table(records), found, records, [])


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
