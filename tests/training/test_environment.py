import importlib.metadata
import json
import os
import subprocess
import sys

import forked
import pytest
from support import PROJECT

import mptexp
from mptexp.host import devices
from mptexp.spec.run import Run
from mptexp.training import backends, capability, environment, machine_state, onednn, precision

CPU = {"kind": "cpu", "capability": None, "device": "x"}


def test_a_driver_without_a_gpu_in_the_framework_is_told_with_the_remedy():
    where = CPU | {"driver": "580.1", "cores": 64} | machine_state.state()
    assert "pip install 'tensorflow[and-cuda]" in " ".join(environment.advice("tensorflow", where))


def test_a_backend_that_sees_no_gpu_runs_on_the_cpu_whatever_the_driver_says(monkeypatch):
    monkeypatch.setattr(backends.backend("tensorflow"), "gpu", lambda: None)
    monkeypatch.setattr(devices, "_gpus", lambda: (("NVIDIA H200", "GPU-1"),))
    devices.local_devices.cache_clear()
    assert devices.local_device() == "NVIDIA H200"
    assert environment.device("tensorflow")["device"].endswith("(CPU)")
    with pytest.raises(capability.SettingNotApplied, match="gpu_model is NVIDIA H200, but"):
        precision._check_device(Run(), environment.device("tensorflow"))
    devices.local_devices.cache_clear()


def test_doctor_says_of_each_type_whether_it_is_emulated_or_lacks_kernels():
    card = environment.card()
    said = " ".join(environment.advice("tensorflow", card))
    for dtype in capability.NARROW:
        native = capability.is_native(dtype, card)
        slow = native and bool(onednn.reference("tensorflow", dtype))
        assert (f"{dtype} is emulated" in said) is not native
        assert (f"no {dtype} kernel here" in said) is slow


def test_only_listed_variables_are_recorded(monkeypatch):
    monkeypatch.setenv("MY_PASSWORD", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    card = _diagnosis()
    assert card["variables"]["OMP_NUM_THREADS"] == "1"
    assert "MY_PASSWORD" not in json.dumps(card)
    assert card["packages"]["tensorflow"].startswith("2.")
    assert card["cores"] >= 1
    assert card["native"]["float32"] is True


def _diagnosis():
    words = ["-m", "mptexp.training.environment"]
    return json.loads(forked.run("tensorflow", words, PROJECT, os.environ).stdout)


def test_a_checkout_that_is_not_installed_has_its_version(monkeypatch):
    # On a rented GPU the package was only on the path, and pages named version "?".
    monkeypatch.setattr(importlib.metadata, "version", _missing)
    assert environment.versions() == {"mptexp": mptexp.__version__}


def _missing(name):
    raise importlib.metadata.PackageNotFoundError(name)


def test_a_variable_that_hides_the_gpus_is_the_cause_that_is_named(nvml):
    # The lie: "tensorflow does not see the GPU: pip install ...", gigabytes that change nothing.
    program = (
        "import json, os, sys\n"
        "from mptexp.training import environment as e\n"
        "cpu = {'kind': 'cpu', 'driver': '580', 'onednn': True, 'capability': None}\n"
        "quiet = {'load': 0, 'cores': 8, 'swap_used_bytes': 0, 'governor': None,\n"
        "    'on_battery': None, 'container_cpus': None, 'hypervisor': False}\n"
        "for value in json.loads(sys.argv[1]):\n"
        "    os.environ.pop('CUDA_VISIBLE_DEVICES', None)\n"
        "    if value is not None: os.environ['CUDA_VISIBLE_DEVICES'] = value\n"
        "    print(e.advice('tensorflow', cpu | quiet)[0])"
    )
    # The system looks for libraries where this variable said when a process began.
    known = os.environ | {"LD_LIBRARY_PATH": str(nvml)}
    values = ("", "-1", "3", "7,0", "GPU-of-nobody", "0", "0,7", "G", "MIG-1", None)
    words = [sys.executable, "-c", program, json.dumps(values)]
    said = subprocess.run(words, env=known, capture_output=True, text=True).stdout.splitlines()
    for value, sentence in zip(values, said, strict=True):
        hidden = value in ("", "-1", "3", "7,0", "GPU-of-nobody")
        assert ("unset it, or name one" in sentence) is hidden, (value, sentence)
        assert ("does not see the GPU" in sentence) is not hidden, (value, sentence)


def test_what_variables_decide_is_what_the_doctor_says(monkeypatch):
    card = environment.card()
    gpu = card | {"kind": "gpu", "capability": [8, 0], "onednn": None}
    assert capability.default_policy(gpu, "tensorflow") == "tensorfloat32"
    # The lie: "TF32 on by default", with NVIDIA's own variable that leaves it off.
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert capability.default_policy(gpu, "tensorflow") == "float32"
    # The lie: bfloat16 "native" under a limit on oneDNN's instructions.
    monkeypatch.setattr(capability, "instruction_sets", lambda: ["avx512_bf16", "avx512bw"])
    cpu = card | {"onednn": True}
    assert "is emulated, as" not in " ".join(environment.advice("tensorflow", cpu))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    said = " ".join(environment.advice("tensorflow", cpu))
    assert "bfloat16 is emulated, as ONEDNN_MAX_CPU_ISA limits oneDNN to avx2" in said
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "of nobody")
    assert "is emulated, as" not in " ".join(environment.advice("tensorflow", cpu))
