import os

import pytest

from mptexp.training import machine_state

QUIET = {
    "load": 0.0, "cores": 8, "governor": "performance", "on_battery": None, "swap_used_bytes": 0,
    "container_cpus": None, "hypervisor": False,
}  # fmt: skip


def test_a_quiet_machine_is_not_complained_of():
    assert machine_state.interference(QUIET) == []


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        ({"load": 5.0}, "other programs are at work (load 5.0 on 8 processors)"),
        ({"governor": "powersave"}, "governor is powersave"),
        ({"on_battery": True}, "battery"),
        ({"cores": 2}, "only 2 cores"),
        ({"swap_used_bytes": 2**30}, "1,024 MiB are swapped out"),
        ({"container_cpus": 1.5}, "a container or control group limits this to 1.5 processors"),
        ({"hypervisor": True}, "a virtual machine"),
    ],
)
def test_what_spoils_measurements_is_told(spoilt, words, monkeypatch):
    monkeypatch.setattr(machine_state.psutil, "cpu_count", lambda: 8)
    (told,) = machine_state.interference(QUIET | spoilt)
    assert words in told


def test_a_share_of_a_machine_is_not_what_its_load_is_held_against(monkeypatch):
    monkeypatch.setattr(machine_state.psutil, "cpu_count", lambda: 128)
    # The lie: "load 25.0 on 4 cores", of 25 programs on the 124 other cores.
    assert machine_state.interference(QUIET | {"cores": 4, "load": 25.0}) == []
    monkeypatch.setattr(machine_state.psutil, "cpu_count", lambda: 8)
    # The lie: "held up when it has used them", of as much time as its processors have.
    for quota in (8.0, 64.0):
        assert machine_state.interference(QUIET | {"container_cpus": quota}) == []


def write(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_limits_of_a_container_of_version_2(tmp_path):
    write(tmp_path, **{"sys__fs__cgroup__cpu.max": "150000 100000\n"})
    write(tmp_path, **{"sys__fs__cgroup__memory.max": f"{2**28}\n"})
    found = machine_state.state(tmp_path)
    assert (found["container_cpus"], found["container_memory_bytes"]) == (1.5, 2**28)


def test_limits_of_a_container_of_version_1(tmp_path):
    group = "sys__fs__cgroup__"
    write(tmp_path, **{f"{group}cpu__cpu.cfs_quota_us": "200000\n"})
    write(tmp_path, **{f"{group}cpu__cpu.cfs_period_us": "100000\n"})
    write(tmp_path, **{f"{group}memory__memory.limit_in_bytes": "9223372036854771712\n"})
    found = machine_state.state(tmp_path)
    assert (found["container_cpus"], found["container_memory_bytes"]) == (2, None)


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/a.slice/job_7", {"a.slice/job_7/cpu.max": "200000 100000", "cpu.max": "max 100000"}),
        ("0::/a.slice/job_7", {"a.slice/cpu.max": "200000 100000", "a.slice/job_7/cpu.max": "max"}),
        ("0::/not/seen/here", {"cpu.max": "200000 100000"}),
        (
            "4:cpu,cpuacct:/job",
            {"cpu/job/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_quota_us": "-1"},
        ),
    ],
)
def test_limits_of_groups_within_groups(tmp_path, groups, files):
    # The lie: "limits of the container none" in a job of two processors.
    write(tmp_path, proc__self__cgroup=groups)
    for name, text in files.items():
        write(tmp_path, **{f"sys__fs__cgroup__{name}": text})
    assert machine_state.state(tmp_path)["container_cpus"] == 2
    memory = {n.replace("cpu.max", "memory.max"): f"{2**28}" for n in files if "cpu.max" in n}
    for name, text in memory.items():
        write(tmp_path, **{f"sys__fs__cgroup__{name}": text})
    wanted = 2**28 if memory else None
    assert machine_state.state(tmp_path)["container_memory_bytes"] == wanted


def test_what_is_not_told_is_not_made_up(tmp_path):
    found = machine_state.state(tmp_path)
    for name in ("container_cpus", "container_memory_bytes", "governor", "hypervisor"):
        assert found[name] is None


def test_this_machine():
    found = machine_state.state()
    assert found["load"] >= 0
    assert found["swap_used_bytes"] >= 0
    assert 1 <= machine_state.cores() <= (os.cpu_count() or 1)


def test_gpus_that_a_sweep_gave_are_named_by_digests():
    given = {"CUDA_VISIBLE_DEVICES": "GPU-1,MIG-2"}
    first, second = machine_state.gpus(given)
    assert first != second
    assert "GPU" not in first + second
    assert machine_state.gpus({"CUDA_VISIBLE_DEVICES": "0,1"}) == machine_state.gpus({}) == []
