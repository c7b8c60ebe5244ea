"""Settings that are edited in one place of a record, and signed anew."""

import json

import pytest
from support import PROJECT

from mptexp.records import settings_agree, store, timed_windows
from mptexp.records.schema import FOREIGN
from mptexp.records.store import RecordError
from mptexp.spec.run import run_id

PUBLISHED = PROJECT / "reports/published/quickstart-cpu"


def made(policy="mixed_bfloat16"):
    records = (json.loads(p.read_text()) for p in sorted(PUBLISHED.glob("runs/*/record.json")))
    return next(r for r in records if r["parameters"]["policy"] == policy)


def test_what_runs_wrote_agrees_with_itself():
    paths = sorted((PROJECT / "reports/published").glob("**/record.json"))
    assert len(paths) > 300
    assert [
        fault for p in paths if (fault := settings_agree.fault(json.loads(p.read_text())))
    ] == []


@pytest.mark.parametrize(
    ("where", "change", "said"),
    [
        ("parameters", {"policy": "float32"}, "in_force.compute_dtype is bfloat16, but float32"),
        ("parameters", {"batch_size": 7}, "in_force.batch_per_replica is"),
        ("parameters", {"gpu_model": "NVIDIA H100"}, "gpu_model is NVIDIA H100, but AMD"),
        ("parameters", {"jit": "on"}, "in_force.jit is False, but True"),
        ("in_force", {"default_policy": "mixed_float16"}, "default_policy is mixed_float16"),
        ("in_force", {"emulated": True}, "in_force.emulated is True, but False"),
        ("in_force", {"arithmetic": {"float32": 1.0}}, "in_force.effective_share is 1.0, but 0.0"),
        ("in_force", {"propagation": "binary"}, "in_force.propagation is binary, but policy"),
        ("identity", {"cores": 32}, "identity.cores is 32, but 2"),
    ],
)  # fmt: skip
def test_a_setting_that_another_contradicts_is_a_damaged_record(tmp_path, where, change, said):
    # The lies that were told: policies swapped, "on an H100" of a CPU, a slow default.
    record = made()
    record[where] |= change
    record["run_id"] = run_id(record["parameters"], record["notebook"])
    path = tmp_path / "runs" / record["run_id"] / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record | {"digest": store.digest(record)}))
    with pytest.raises(RecordError) as raised:
        store.read_record(path)
    assert said in str(raised.value)


def test_a_run_that_was_timed_was_not_out_of_memory():
    # The lie that was told: the slow policy is "oom".
    assert settings_agree.fault(made() | {"status": "oom"}).startswith("status is oom, but ")


def test_a_gpus_instructions_follow_from_its_capability():
    record = made("float32")
    record["parameters"]["gpu_model"] = record["identity"]["device"] = "NVIDIA H100"
    record["environment"] |= {"kind": "gpu", "capability": [9, 0], "device": "NVIDIA H100"}
    said = "in_force.default_policy is float32, but tensorfloat32"
    assert settings_agree.fault(record).startswith(said)
    record["environment"]["capability"] = [7, 0]
    assert settings_agree.fault(record) == ""


def test_a_users_own_model_may_have_layers_in_other_types():
    record = made()
    record["parameters"]["model"] = "mine:build"
    record["in_force"]["compute_dtype"] = "bfloat16, float32"
    assert settings_agree.fault(record) == ""


def test_whether_float8_is_native_is_for_the_compiled_program_to_say():
    record = made()
    record["parameters"]["policy"] = "float8"
    record["in_force"]["arithmetic"] = {"float8_e4m3fn": 0.9, "bfloat16": 0.1}
    record["in_force"] |= {"effective_share": 0.9, "emulated": False}
    assert settings_agree.fault(record).startswith("in_force.emulated is False, but True follows")
    record["in_force"]["emulated"] = True
    assert settings_agree.fault(record) == ""
    record["parameters"]["gpu_model"] = record["identity"]["device"] = "NVIDIA H100"
    record["environment"] |= {"kind": "gpu", "capability": [9, 0], "device": "NVIDIA H100"}
    record["in_force"]["default_policy"] = "tensorfloat32"
    for emulated in (True, False):
        record["in_force"]["emulated"] = emulated
        assert settings_agree.fault(record) == ""


@pytest.mark.parametrize("lie", ["policies", "windows"])
def test_a_sweep_that_calls_itself_a_script_is_held_against_itself_too(tmp_path, lie):
    # The lie: StepTimer's notebook in a record of a sweep, of which nothing was asked any more, and
    # as much was claimed.
    record = made() | {"notebook": FOREIGN}
    if lie == "policies":
        record["parameters"]["policy"] = "float32"
    else:
        del record["windows"][3]
        windows = [timed_windows.Window(**window) for window in record["windows"]]
        record["timing"] |= timed_windows.timing(windows)
        rate = record["parameters"]["batch_size"] / record["timing"]["step_s"]
        record["timing"]["images_per_s"] = rate
    record["run_id"] = run_id(record["parameters"], FOREIGN)
    path = tmp_path / "runs" / record["run_id"] / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record | {"digest": store.digest(record)}))
    said = "compute_dtype is bfloat16, but float32" if lie == "policies" else "windows: step"
    with pytest.raises(RecordError, match=said):
        store.read_record(path)
