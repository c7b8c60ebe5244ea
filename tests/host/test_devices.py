import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ONE_GPU, nvml_library

from mptexp.host import devices
from mptexp.host.devices import local_device, local_devices, same_model


def test_no_visible_gpu_means_the_cpu(monkeypatch):
    local_devices.cache_clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local_device().endswith("(CPU)")
    local_devices.cache_clear()


@pytest.mark.parametrize(
    ("asked", "found", "same"),
    [
        ("V100", "Tesla V100-SXM2-16GB", True),
        ("A100-40G", "NVIDIA A100-SXM4-40GB", True),
        ("A100-80G", "NVIDIA A100-SXM4-40GB", False),
        ("h200", "NVIDIA H200", True),
        ("L4", "NVIDIA L40", False),
        ("NVIDIA H200", "NVIDIA H200", True),
        ("NVIDIA H200 NVL", "NVIDIA H200", False),
        ("-", "NVIDIA H200", False),
        # The lie: one device was measured under both names, and compared with itself.
        ("RTX 3090", "NVIDIA GeForce RTX 3090 Ti", False),
        ("RTX 3090 Ti", "NVIDIA GeForce RTX 3090 Ti", True),
        ("RTX 3090 Ti", "NVIDIA GeForce RTX 3090", False),
        ("RTX 4070", "NVIDIA GeForce RTX 4070 SUPER", False),
        ("RTX 6000", "NVIDIA RTX 6000 Ada Generation", False),
        ("H200", "NVIDIA H200 NVL", False),
        ("A100", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", False),
        # The lie: a part of a card that a virtual machine shares was the card.
        ("A100", "GRID A100-10C", False),
        ("A100-10C", "GRID A100-10C", True),
        ("A100", "GRID A100-1-5CME", False),
        ("A10", "NVIDIA A10-24Q", False),
        ("P40", "GRID P40-3B4", False),
        ("H200", "NVIDIA H200-141C", False),
        ("K520", "GRID K520", True),  # a card of this name
        ("Xeon", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz (CPU)", True),
        ("AMD Ryzen 7 7840U (CPU)", "AMD Ryzen 7 PRO 7840U (CPU)", False),
    ],
)
def test_a_short_name_stands_for_the_devices_that_hold_its_words(asked, found, same):
    assert same_model(asked, found) is same


def test_a_cpu_is_told_from_others_of_its_name():
    version = devices.cpu_version()
    if not devices.cpuinfo("cpu family"):
        assert version == ""
    else:
        assert re.fullmatch(r"family \d+, model \d+(, stepping \d+)?", version)


CORE = """\
processor\t: 0
Features\t: fp asimd bf16
CPU implementer\t: {maker}
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: {part}
CPU revision\t: 1
"""


@pytest.mark.parametrize(
    ("maker", "part", "name"),
    [
        ("0x41", "0xd0c", "Neoverse N1 (CPU)"),
        ("0x41", "0xd40", "Neoverse V1 (CPU)"),
        ("0xc0", "0xac3", f"{platform.machine()} implementer 0xc0 part 0xac3 (CPU)"),
    ],
)
def test_an_arm_cpu_is_told_by_its_numbers(monkeypatch, maker, part, name):
    # The lie: every Arm CPU was "aarch64 (CPU)" without a version, so two generations were one.
    text = CORE.format(maker=maker, part=part) * 2
    monkeypatch.setattr(Path, "read_text", lambda path: text)
    devices.cpuinfo.cache_clear()
    assert devices.cpu_name() == name
    assert devices.cpu_version() == (f"implementer {maker}, part {part}, variant 0x1, revision 1")
    monkeypatch.undo()
    devices.cpuinfo.cache_clear()


GENERIC = "model name\t: ARMv8 Processor rev 0 (v8l)\n"
POWER = "processor\t: 0\ncpu\t\t: POWER{n} (architected)\nmodel\t\t: IBM pSeries\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (GENERIC + CORE.format(maker="0x41", part="0xd0c"), "Neoverse N1"),
        (GENERIC + CORE.format(maker="0x41", part="0xd4f"), "Neoverse V2"),
        (POWER.format(n=9), "POWER9 (architected)"),
        (POWER.format(n=10), "POWER10 (architected)"),
        ("processor\t: 0\nuarch\t\t: sifive,x280\n", "sifive,x280"),
        ("cpu family\t: 6\nmodel\t\t: 143\nmodel name\t: A Xeon\n", "A Xeon"),
        ("model name\n", platform.processor() or platform.machine()),
    ],
)
def test_no_two_generations_of_a_cpu_have_one_name(monkeypatch, text, name):
    # The lie: two Arm servers were "ARMv8 Processor rev 0 (v8l)", two POWERs "ppc64le".
    monkeypatch.setattr(Path, "read_text", lambda path: text)
    devices.cpuinfo.cache_clear()
    assert devices.cpu_name() == f"{name} (CPU)"
    monkeypatch.undo()
    devices.cpuinfo.cache_clear()


@pytest.mark.parametrize(
    ("device", "capability", "has"),
    [
        ("Tesla V100-SXM2-16GB", [7, 0], True),
        ("NVIDIA H100 80GB HBM3", [9, 0], True),
        ("Tesla P100-PCIE-16GB", [6, 0], False),
        ("NVIDIA GeForce GTX 1660 Ti", [7, 5], False),
        ("Tesla T4", [7, 5], True),
        ("NVIDIA T400", [7, 5], False),
        ("a CPU", None, None),
    ],
)
def test_which_gpus_have_tensor_cores(device, capability, has):
    assert devices.has_tensor_cores({"device": device, "capability": capability}) is has


# On the bus the slower stands first; CUDA calls the faster one 0 unless it is told otherwise.
TWO_MODELS = (
    ONE_GPU.replace("*n = 1; return 0;", "*n = 2; return 0;")
    .replace("*h = (void *)1; return i ? 2 : 0;", "*h = (char *)1 + i; return i > 1 ? 2 : 0;")
    .replace('name = "NVIDIA H100"', 'name = h == (void *)2 ? "NVIDIA H100" : "NVIDIA T400"')
    + """
int nvmlDeviceGetHandleByUUID(const char *u, void **h) { *h = (void *)2; return 0; }
"""
)
FIRST = (
    "import pynvml; from mptexp.host import devices; first = devices.nvidia_handle();"
    "print(first and pynvml.nvmlDeviceGetName(first), len(devices.local_devices()))"
)


def test_a_gpu_that_cuda_may_number_otherwise_is_not_taken_for_its_first(tmp_path):
    nvml = nvml_library(tmp_path, TWO_MODELS)
    by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    cases = [
        ({}, "None 2"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "None 1"),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "None 2"),
        (by_bus, "NVIDIA T400 2"),
        (by_bus | {"CUDA_VISIBLE_DEVICES": "1"}, "NVIDIA H100 1"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-of-a-sweep"}, "NVIDIA H100 1"),
    ]
    usual = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    for given, said in cases:
        known = usual | {"LD_LIBRARY_PATH": str(nvml)} | given
        words = [sys.executable, "-c", FIRST]
        done = subprocess.run(words, env=known, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == said, given


def test_gpus_of_one_model_are_numbered_alike(tmp_path):
    nvml = nvml_library(tmp_path, TWO_MODELS.replace("NVIDIA T400", "NVIDIA H100"))
    usual = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    known = usual | {"LD_LIBRARY_PATH": str(nvml)}
    words = [sys.executable, "-c", FIRST]
    done = subprocess.run(words, env=known, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "NVIDIA H100 2"
