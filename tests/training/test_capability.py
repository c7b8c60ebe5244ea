import os
import subprocess
import sys

import keras
import pytest
from support import ONE_GPU, nvml_library

from mptexp.host import devices
from mptexp.host.devices import CPU_ISAS
from mptexp.records.tables import BY_RANK
from mptexp.spec.policies import ARITHMETICS
from mptexp.training import capability, costs, onednn

CPU = {"kind": "cpu", "capability": None, "device": "x"}


def gpu(major, minor, name="GPU"):
    return {"kind": "gpu", "capability": [major, minor], "device": name}


@pytest.mark.parametrize(
    ("dtype", "where", "native"),
    [
        ("float32", CPU, True),
        ("tensorfloat32", CPU, False),
        ("float16", gpu(7, 0), True),
        ("bfloat16", gpu(7, 5), False),
        ("bfloat16", gpu(8, 0), True),
        ("tensorfloat32", gpu(7, 5), False),
        ("tensorfloat32", gpu(9, 0), True),
        ("float8_e4m3fn", gpu(8, 9), True),
        ("float8_e4m3fn", gpu(8, 0), False),
        ("float8_e4m3fn", CPU, False),
    ],
)
def test_native_types(dtype, where, native):
    assert capability.is_native(dtype, where) is native


@pytest.mark.parametrize(
    ("flags", "float16", "bfloat16"),
    [([], False, False), (["avx512_bf16"], False, True), (["amx_fp16", "amx_bf16"], True, True)],
)
def test_native_types_of_a_cpu(monkeypatch, flags, float16, bfloat16):
    monkeypatch.setattr(capability, "instruction_sets", lambda: flags)
    assert capability.is_native("float16", CPU) is float16
    assert capability.is_native("bfloat16", CPU) is bfloat16


def test_the_default_is_tf32_from_capability_8():
    assert capability.default_policy(gpu(8, 0), "jax") == "tensorfloat32"
    assert capability.default_policy(gpu(7, 0), "jax") == "float32"
    assert capability.default_policy(CPU, "tensorflow") == "float32"


@pytest.mark.parametrize(
    ("body", "usual"),
    [
        ([keras.layers.Conv2D(8, 3), keras.layers.Flatten()], "tensorfloat32"),
        ([keras.layers.Flatten(), keras.layers.Dense(64)], "float32"),
        ([keras.layers.Flatten()], "float32"),
        # What no rule counts: eight blocks of somebody else's beside a small head.
        (
            [keras.layers.TimeDistributed(keras.layers.Conv1D(8, 3)), keras.layers.Flatten()],
            "tensorfloat32",
        ),
        ([keras.layers.LSTM(4)], "float32"),
    ],
)
def test_pytorch_takes_tf32_for_convolutions_alone(body, usual):
    # A network of matrix products was compared with "TF32 (the default)" on PyTorch, too, which
    # multiplies in strict float32.
    shape = (8, 4) if isinstance(body[0], keras.layers.LSTM) else (8, 8, 4)
    model = keras.Sequential([keras.Input(shape), *body, keras.layers.Dense(2)])
    share = costs.convolutions_frac(model)
    assert capability.default_policy(gpu(9, 0), "torch", share) == usual
    assert capability.default_policy(gpu(9, 0), "tensorflow", share) == "tensorfloat32"


def test_tensor_cores_are_not_decided_by_capability_alone():
    assert capability.tensor_cores(gpu(7, 5, "NVIDIA GeForce GTX 1660")).startswith("no")
    assert capability.tensor_cores(gpu(7, 5, "Tesla T4")) == "yes"
    assert capability.tensor_cores(gpu(6, 1)) == "no (capability below 7.0)"
    assert capability.tensor_cores(CPU) == "no"
    assert capability.tensor_cores({"kind": "gpu", "capability": None, "device": "x"}) == "unknown"


@pytest.mark.parametrize(
    "name", ["Quadro T1000", "NVIDIA T400 4GB", "Quadro T2000 with Max-Q Design", "GeForce MX450"]
)
def test_the_doctor_says_of_tensor_cores_what_the_report_does(name):
    # The lie: "Tensor Cores: yes" of cards of which the report knew that they have none.
    card = gpu(7, 5, name)
    assert devices.has_tensor_cores(card) is False
    assert capability.tensor_cores(card) == "no (one of Turing's small chips)"


def test_what_a_limit_leaves_is_native_or_not(monkeypatch):
    cpu = {"kind": "cpu", "capability": None}
    flags = ["avx512_bf16", "avx512_fp16", "amx_bf16"]
    monkeypatch.setattr(capability, "instruction_sets", lambda: flags)
    native = {
        name: {isa for isa in ("default", *CPU_ISAS) if capability.is_native(name, cpu, isa)}
        for name in ("float32", "bfloat16", "float16")
    }
    rich = {"default", "avx512_core_fp16", "avx512_core_amx"}
    assert native["float32"] == {"default", *CPU_ISAS}
    assert native["float16"] == rich
    assert native["bfloat16"] == rich | {"avx512_core_bf16"}
    limits = {least for row in ARITHMETICS.values() for least in row.cpu_flags.values() if least}
    assert limits <= set(CPU_ISAS) == set(onednn.NAMES.values())


def test_a_cpu_is_named_by_instructions_that_records_hold():
    assert BY_RANK.keys() <= {*capability.INSTRUCTION_SETS}


def test_a_gpu_that_shares_the_memory_of_the_machine_has_none_of_its_own(tmp_path):
    # GB10, Jetson: NVML answers "not supported", which ended every run before its first step.
    shared = ONE_GPU.replace(
        "m->total = 85899345920ull; m->used = 1073741824ull; return 0;", "return 3;"
    )
    known = os.environ | {"LD_LIBRARY_PATH": str(nvml_library(tmp_path, shared))}
    program = "from mptexp.training import capability; print(capability.gpu_memory_bytes())"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=known, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
