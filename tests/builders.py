"""Made records, and what is computed of them: no run was executed for them."""

import numpy as np

from mptexp.analysis import speedups, sweep_tables
from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.records.tables import history_table
from mptexp.spec.run import Run

# What a record says that the run was beyond its parameters; see training.identity.
IDENTITY = {"code": "c0de", "model_source": "", "data": "d", "device": "GPU", "cores": 2}


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
            "validation_images": 10**6,
            **more,
        },
        "identity": IDENTITY | {"initial_weights": "w", "data_order": f"o{block}"},
        "timing": {"step_s": step_s, "step_s_low": step_s, "step_s_high": step_s, "steps_timed": 9,
                   "step_ci": 0.01,
                   "images_per_s": batch_size / step_s, "warmup_steps": 1, "first_step_s": 1.0},
        "history": [{"epoch": 1, "loss": 1.0, "accuracy": 0.8, "val_accuracy": 0.9 + block / 100}],
        "peak_memory_bytes": 2**30,
        "fit_s": 1.0,
        "wall_s": 2.0,
    }  # fmt: skip


def classified(made, correct, digest="5a3e5a3e5a3e"):
    """The record of a run that got these validation images right: an array of true and false."""
    correct = np.asarray(correct, bool)
    made["in_force"] |= {"validation_images": len(correct)}
    made["history"] = [{"epoch": 1, "loss": 1.0, "accuracy": 0.8, "val_accuracy": correct.mean()}]
    listed = np.packbits(correct).tobytes().hex()
    return made | {"validated": {"images": len(correct), "digest": digest, "correct": listed}}


def tables(records):
    results = sweep_tables.flagged(records, "mine")
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


LOGICAL_CPU = "Some CPU (CPU)"


def replicated(replicas, batch_size, step_s, jit=False, blocks=3, device="GPU", **parameters):
    """Runs whose machine slows down from block to block: ratios within blocks do not notice."""
    for block in range(blocks):
        made = record(step_s=step_s * 1.5**block, block=block, batch_size=batch_size, jit=jit)
        made["parameters"] |= {"replicas": replicas, **parameters}
        made["environment"] = {"device": device, "packages": {}}
        made["run_id"] = f"{replicas}-{batch_size}-{block}-{jit}-{parameters}"
        yield made


def tables_of(*groups):
    """The tables of groups of records."""
    return tables([made for group in groups for made in group])


FIXED = {"propagation": "<8,8>", "weight_format": "<8,8>"}
STOCHASTIC = FIXED | {"rounding": "stochastic"}


def emulated_runs(errors, policy="float32", status="ok", lost=None, **parameters):
    """A run per block with these validation errors, in percent."""
    for block, error in enumerate(errors):
        made = record(policy, block)
        made["parameters"] |= parameters
        made["run_id"] = f"{policy}-{block}-{sorted(parameters.items())}"
        made["status"] = status
        made["swallowed_updates_frac"] = lost
        made["history"] = [{"epoch": 1, "val_accuracy": 1 - error / 100}] if status == "ok" else []
        yield made


NOT_FINITE = "the loss was not finite in epoch 1; trained again, the first was the loss, in step 3"


def loss_scaled(policy, scale, block, accuracy, skipped=None):
    bad = accuracy is None
    return {
        "run_id": f"{abs(hash((policy, scale, block))):012x}"[:12],
        "status": "diverged" if bad else "ok",
        "error": NOT_FINITE if bad else "",
        "parameters": Run(policy=policy, loss_scale=scale, block=block, seed=block).model_dump(),
        "history": [{"epoch": 1, "val_accuracy": accuracy}],
        "loss_scales": [{"step": 9, "loss_scale": 8.0, "skipped": skipped}] if skipped else [],
        **({"skipped_steps": skipped} if skipped else {}),
    }


def several_scales():
    """A policy stalls with a small loss scale, trains with others, diverges with a large one."""
    records = [loss_scaled("float32", "none", b, 0.98 + b / 1000) for b in range(3)]
    records += [loss_scaled("mixed_float16", 1.0, b, 0.981 + b / 1000) for b in range(3)]
    records += [loss_scaled("mixed_float16", 2.0**-16, b, 0.3 + b / 100) for b in range(3)]
    records += [loss_scaled("mixed_float16", 2.0**24, b, None if b else 0.97) for b in range(3)]
    records += [loss_scaled("mixed_float16", "auto", b, 0.98, skipped=4) for b in range(3)]
    return tables(records)


CARD = {
    "device": "GPU", "capability": [8, 0], "cores": 8, "load": 0.1, "packages": {"keras": "3.15"},
    "variables": {}, "instruction_sets": [], "driver": "590.1", "cuda": "12.9", "cudnn": "9",
    "cpu": "EPYC", "memory_bytes": 2**36, "os": "Linux", "python": "3.11", "commit": "1234",
}  # fmt: skip


def written_sweep(root, device, scale, price=None, runs=3, **card):
    for block in range(runs):
        for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1)):
            made = record(policy, block, step_s * scale * 1.01**block)
            made["parameters"]["gpu_model"] = device
            made["environment"] = CARD | {"device": device, "load": scale} | card
            made["run_id"] = Run(**made["parameters"]).run_id()
            store.write_record(root / "runs" / made["run_id"] / "record.json", made)
    extra = f"price_per_hour: {price}\n" if price else ""
    (root / "params.yaml").write_text(f"matrix: {{policy: [float32]}}\n{extra}")
    return SweepDir(root)
