"""Made records, and what is computed of them: no run was executed for them."""

from mptexp.analysis import speedups, sweep_tables
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


def many(blocks=3, widths=36):
    """Two policies at three batch sizes of so many networks: mixed_float16 is twice as fast."""
    return [
        record(policy, block, step_s, batch_size, width=round(0.1 + k / 20, 2))
        for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1))
        for batch_size in (32, 64, 128)
        for k in range(widths)
        for block in range(blocks)
    ]


def three(policy, speedups, **more):
    rows = []
    for block, speedup in enumerate(speedups):
        rows += [record(block=block, step_s=0.1), record(policy, block, 0.1 / speedup, **more)]
    return tables(rows)
