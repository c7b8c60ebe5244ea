"""Slots: one run at a time on each GPU, which it sees alone. The GPUs are pretended."""

import itertools
import os

import pytest
from support import PATIENCE_S, mptexp, nvml_library, records, started, until

from mptexp.errors import ParamsError
from mptexp.execution import device_slots
from mptexp.execution.device_slots import Slot
from mptexp.spec.run import Run

# A library that answers as NVML does on a machine of two H100 and one A100.
LIBRARY = """
#include <string.h>
static const char *names[] = {"NVIDIA H100", "NVIDIA A100-SXM4-40GB", "NVIDIA H100"};
static const char *uuids[] = {"GPU-zero", "GPU-one", "GPU-two"};
static int places[] = {0, 1, 2};
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned f) { return 0; }
const char *nvmlErrorString(int e) { return "an error"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
  if (i > 2) return 2;
  *h = &places[i]; return 0; }
int nvmlDeviceGetHandleByUUID(const char *u, void **h) {
  for (int i = 0; i < 3; i++) if (!strcmp(u, uuids[i])) { *h = &places[i]; return 0; }
  return 2; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) { strcpy(s, names[*(int *)h]); return 0; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) { strcpy(s, uuids[*(int *)h]); return 0; }
"""
H100, A100 = "NVIDIA H100", "NVIDIA A100-SXM4-40GB"


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """The environment of a machine with three GPUs."""
    return {"LD_LIBRARY_PATH": str(nvml_library(tmp_path_factory.mktemp("gpus"), LIBRARY))}


def test_each_gpu_takes_one_run_at_a_time_and_each_run_sees_its_own(light, gate, tmp_path, machine):
    light({"gpu_model": ["H100", "A100", "V100"], "seed": [13, 14, 15]})
    every = ["GPU-one", "GPU-two", "GPU-zero"]
    with started("run", "light.yaml", "--no-report", cwd=tmp_path, **machine) as sweep:
        # All GPUs are at work at once.
        until(lambda: sorted(gate.waiting().values()) == every, of=sweep)
        gate.let(6)
        assert sweep.wait(PATIENCE_S) == 0, sweep.stderr.read()
    ended = records(tmp_path)
    assert len(ended) == 6  # a V100 is elsewhere
    by_gpu = {}
    for record in ended:
        by_gpu.setdefault(record["seen"], []).append(record)
    assert set(by_gpu) == {"GPU-zero", "GPU-one", "GPU-two"}
    for uuid, runs in by_gpu.items():
        models = {r["parameters"]["gpu_model"] for r in runs}
        assert models == {"A100" if uuid == "GPU-one" else "H100"}
        spans = sorted(r["span"] for r in runs)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))


def test_only_visible_gpus_are_used(light, tmp_path, machine):
    light({"seed": [0, 100]}, defaults="{gpu_model: H100, replicas: 2, batch_size: 32}")
    visible = {"CUDA_VISIBLE_DEVICES": "2,0"}
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path, **machine, **visible)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r["seen"] for r in records(tmp_path)} == {"GPU-two,GPU-zero"}


def run(model, **values):
    return Run(gpu_model=model, **values)


def test_slots_that_a_run_takes():
    every = [Slot(H100, "a"), Slot(A100, "b"), Slot(H100, "c")]
    assert device_slots.taken(run("H100"), every, every) == every[:1]
    assert device_slots.taken(run("H100", replicas=2), every, every) == [every[0], every[2]]
    assert device_slots.taken(run("H100", replicas=2), every[1:], every) == []
    assert device_slots.taken(run("H100", replicas=4), every, every) == [every[0], every[2]]
    assert device_slots.environment(every[:2]) == {"CUDA_VISIBLE_DEVICES": "a,b"}
    cpu = [Slot("x (CPU)", "")]
    assert device_slots.taken(run("x (CPU)", replicas=2), cpu, cpu) == cpu
    assert device_slots.environment(cpu) == {}


def test_a_cpu_has_one_slot_unless_timings_do_not_matter(monkeypatch):
    monkeypatch.setattr(device_slots, "local_devices", lambda: (("x (CPU)", ""),))
    assert len(device_slots.slots()) == 1
    assert len(device_slots.slots(3)) == 3
    monkeypatch.setattr(device_slots, "local_devices", lambda: ((H100, "a"), (H100, "b")))
    assert len(device_slots.slots()) == 2
    with pytest.raises(ParamsError, match="each of the 2 GPUs here takes one run at a time"):
        device_slots.slots(2)


def test_runs_that_share_a_processor_are_marked(light, gate, tmp_path):
    light({"seed": [13, 14]})
    words = ("run", "light.yaml", "--no-report", "--parallel", "2")
    with started(*words, cwd=tmp_path) as sweep:
        until(lambda: len(gate.waiting()) == 2, of=sweep)  # at once
        gate.let(2)
        assert sweep.wait(PATIENCE_S) == 0, sweep.stderr.read()
    (a, b) = records(tmp_path)
    void = "timings are void: 2 runs shared this machine's processors"
    assert [r["marks"] for r in (a, b)] == [[void], [void]]
    assert "CUDA_VISIBLE_DEVICES" in os.environ or a["seen"] is None


def test_the_device_that_a_name_stands_for_is_shown(monkeypatch):
    monkeypatch.setattr(device_slots, "local_devices", lambda: ((H100, "GPU-0"), (A100, "GPU-1")))
    runs = [Run(gpu_model=name) for name in ("A100", "V100", H100, "A100")]
    assert device_slots.found(runs) == [f"gpu_model A100 is {A100} here"]
