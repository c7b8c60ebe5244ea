import math

import pytest

from mptexp.records import tables
from mptexp.records.csv_columns import COLUMNS, HISTORY
from mptexp.records.schema import VOID
from mptexp.records.tables import history_table, results_table
from mptexp.spec.run import Run

PARAMETERS = Run(gpu_model="x").model_dump()
RECORD = {
    "schema": 1,
    "run_id": "abc123abc123",
    "status": "ok",
    "error": "",
    "parameters": PARAMETERS,
    "in_force": {"loss_scale": "none", "jit": False},
    "timing": {"step_s": 0.25, "images_per_s": 128.0},
    "history": [{"epoch": 1, "loss": 1.0, "val_accuracy": 0.5}],
    "marks": ["a", "b"],
    "wall_s": 3.0,
}


def test_results_have_the_documented_columns():
    table = results_table([RECORD], "mine")
    text = RECORD["parameters"] | {"dataset": "hamlet", "model": "gpt", "sequence_length": 64}
    both = results_table([RECORD, RECORD | {"parameters": text}], "mine")
    assert list(both.columns) == list(COLUMNS)
    of_text = {name for name, column in COLUMNS.items() if column.task == "tokens"}
    assert list(table.columns) == [name for name in COLUMNS if name not in of_text]
    row = table.iloc[0]
    assert (row.sweep, row.status, row.step_s, row.val_accuracy) == ("mine", "ok", 0.25, 0.5)
    assert (row.epochs, row.marks, row.wall_s) == (1, "a; b", 3.0)


def test_parameters_without_a_column_are_the_setting():
    runs = [PARAMETERS | {"width": w, "block": 1, "seed": 1} for w in (1.0, 2.0)]
    table = results_table([RECORD | {"parameters": run} for run in runs], "mine")
    assert sorted(table.setting) == ["width 1", "width 2"]
    blocks = [PARAMETERS | {"block": k, "seed": k} for k in (0, 1)]
    table = results_table([RECORD | {"parameters": run} for run in blocks], "mine")
    assert set(table.setting) == {""}


def named(*devices):
    """The devices of runs on these: each a name, cores or None, and a container's limit or None."""
    records = [
        {
            "parameters": PARAMETERS | {"gpu_model": name},
            "environment": {"cores": cores, "container_cpus": limit} if cores else {},
        }
        for name, cores, limit in devices
    ]
    return tables.devices(records)


def test_a_cpu_with_2_and_with_32_cores_is_two_devices():
    epyc = "AMD EPYC (CPU)"
    assert named((epyc, 2, None), (epyc, 32, None), (epyc, 32, 4.0), (epyc, 1, 0.5)) == [
        "AMD EPYC (2 cores)",
        "AMD EPYC (32 cores)",
        "AMD EPYC (4 cores)",
        "AMD EPYC (0.5 cores)",
    ]
    assert named(("NVIDIA H200", 32, None)) == ["NVIDIA H200"]


def test_a_cpu_is_named_with_the_instructions_that_decide_what_16_bits_buy():
    # Two virtual machines of one name, version and cores: 1.77 times faster on the one with AMX,
    # 1.54 times slower on the other.
    names = []
    for sets in (["avx512f", "avx512_bf16", "amx_bf16"], ["avx2", "avx512f", "avx512_bf16"], ["x"]):
        own = {"cores": 2, "instruction_sets": sets}
        run = {"parameters": PARAMETERS | {"gpu_model": "Xeon (CPU)"}, "environment": own}
        names += tables.devices([run])
    assert names == ["Xeon (2 cores with AMX)", "Xeon (2 cores with AVX512_BF16)", "Xeon (2 cores)"]


def test_a_run_that_left_no_environment_is_on_the_others_device():
    epyc = "AMD EPYC (CPU)"
    assert named((epyc, 2, None), (epyc, None, None)) == ["AMD EPYC (2 cores)"] * 2
    assert named((epyc, 2, None), (epyc, None, None), (epyc, 8, None))[1] == epyc
    assert named((epyc, None, None)) == [epyc]


def test_what_is_not_emulated_is_not_named_in_the_setting():
    formats = [{}, {"weight_format": "bfloat16"}, {"propagation": "<8,8>"}]
    rows = [RECORD | {"parameters": PARAMETERS | chosen} for chosen in formats]
    found = results_table(rows, "x").setting
    assert sorted(found) == ["", "propagation <8,8>", "weight_format bfloat16"]


def test_a_failed_run_is_a_row():
    failed = {
        "schema": 1,
        "run_id": "x",
        "status": "oom",
        "error": "e",
        "parameters": PARAMETERS,
    }
    table = results_table([failed, RECORD], "mine")
    assert sorted(table.status) == ["ok", "oom"]


def test_a_run_whose_timings_are_void_has_no_times():
    (row,) = results_table([RECORD | {"marks": [f"{VOID}: in parallel"]}], "x").to_dict("records")
    assert (row["step_s"], row["images_per_s"]) == (None, None)
    assert (row["val_accuracy"], row["wall_s"]) == (0.5, 3.0)


@pytest.mark.parametrize(
    ("kind", "count", "shown"), [("gpu", 3, None), ("gpu", 8, 0.64), ("cpu", 3, 0.64)]
)
def test_a_gpu_that_was_read_for_a_moment_has_no_utilization(kind, count, shown):
    # An H200 said 0.64 in three readings, of which the first was of the time before the steps.
    # Nor is what follows from its power: joules per token were shown of watts that were not.
    names = ("utilization_frac", "power_w", "energy_per_image_j", "energy_per_token_j")
    readings = {"readings": count} | dict.fromkeys(names, 0.64)
    text = {"parameters": PARAMETERS | {"dataset": "hamlet"}}
    made = RECORD | text | {"environment": {"kind": kind}, "readings": readings}
    (row,) = results_table([made], "x").to_dict("records")
    assert {row[name] for name in names if name in row} == {shown}
    assert "energy_per_token_j" in row


def test_the_history_has_a_row_per_run_and_epoch():
    table = history_table([RECORD, {"run_id": "b" * 12}])
    assert list(table.columns) == ["run_id", *HISTORY]
    assert table.val_accuracy.tolist() == [0.5]


def test_a_peak_that_a_model_exceeds_is_none():
    def mfu(peak):
        ceilings = {"matmul_flops_per_s": peak, "copy_bytes_per_s": 1e9}
        work = {"flops_per_step": 1e9, "bytes_per_step": 1e6, "ceilings": ceilings}
        return results_table([RECORD | {"work": work}], "mine").mfu_frac[0]

    assert mfu(8e9) == 0.5
    assert math.isnan(mfu(3.9e9))
