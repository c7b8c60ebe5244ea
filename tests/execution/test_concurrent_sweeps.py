"""Two sweeps at once on one device, each of which must know of the other."""

import os
import time

import pytest
from support import PATIENCE_S, mptexp, started, until

from mptexp.execution import concurrent_sweeps
from mptexp.host import boot
from mptexp.host.project import user_cache
from mptexp.records import store
from mptexp.records.schema import AT_ONCE
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.run import Run


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_sweep_sees_others_on_its_devices_and_not_itself():
    assert concurrent_sweeps.marks([""]) == []
    with concurrent_sweeps.announced(["GPU-1", "GPU-2", "GPU-2"], "one") as others:
        assert concurrent_sweeps.marks(["GPU-2"]) == [AT_ONCE]
        assert concurrent_sweeps.marks(["GPU-2"], sweep="one") == []
        assert concurrent_sweeps.marks(["", "GPU-3"]) == []
        assert others() == []
        with concurrent_sweeps.announced(["GPU-1"], "two"):
            assert concurrent_sweeps.marks(["GPU-1"], sweep="one") == [AT_ONCE]
            assert others() == [AT_ONCE]


def test_one_that_began_and_ended_during_a_run_is_seen_after_it():
    with concurrent_sweeps.announced([""]) as others:
        assert others() == []
        with concurrent_sweeps.announced([""]):
            pass
        assert others() == [AT_ONCE]
    with concurrent_sweeps.announced([""]) as others:
        assert others() == []


def test_one_that_is_killed_during_a_run_is_seen_though_it_began_before():
    other = concurrent_sweeps._locked("", "other")
    concurrent_sweeps._note_time(other)
    with concurrent_sweeps.announced([""]) as others:
        other.close()  # as the system does of a process that is gone
        assert others() == [AT_ONCE]


def test_runs_of_one_sweep_are_no_other_and_leave_a_file_each_that_was_at_work_at_once():
    for _ in range(3):
        with (
            concurrent_sweeps.announced([""], "one") as first,
            concurrent_sweeps.announced([""], "one") as second,
        ):
            assert first() == second() == []
    assert len(list((user_cache() / "measuring").iterdir())) == 2


def test_what_a_killed_sweep_left_hinders_nobody_and_goes_when_it_is_old():
    with concurrent_sweeps.announced([""]):
        pass
    (left,) = (user_cache() / "measuring").iterdir()
    os.utime(left, (0, 0))
    assert concurrent_sweeps.marks([""]) == []
    with concurrent_sweeps.announced([""]):
        assert not left.exists()


def test_another_machine_with_the_same_home_directory_does_not_disturb(tmp_path, monkeypatch):
    # The lie: "sweeps at once" of two nodes of a cluster, whose CPUs had one key.
    monkeypatch.setattr(boot, "DRAWN", tmp_path / "boot_id")
    for drawn, expected in (("first", [AT_ONCE]), ("second", [])):
        boot.DRAWN.write_text("first")
        with concurrent_sweeps.announced([""]):
            boot.DRAWN.write_text(drawn)
            assert concurrent_sweeps.marks([""]) == expected


def test_a_clock_that_was_ahead_for_a_while_hinders_nobody():
    # The lie: "another sweep measures", for as long as the file of one that had ended was dated
    # in the future; --repair got the same flag again.
    with concurrent_sweeps.announced([""]):
        pass
    (left,) = (user_cache() / "measuring").iterdir()
    in_three_days = time.time() + 3 * 86400
    os.utime(left, (in_three_days, in_three_days))
    assert concurrent_sweeps.marks([""]) == []
    left.write_text(f"{boot.since_s() + 1000}")
    assert concurrent_sweeps.marks([""]) == []
    left.write_text("no time")
    assert concurrent_sweeps.marks([""], 0.0) == []


def test_a_run_takes_the_devices_that_its_processes_see(monkeypatch):
    gpu, cpu = Run(gpu_model="NVIDIA H100"), Run(gpu_model="A processor (CPU)")
    monkeypatch.setattr(concurrent_sweeps, "_uuids", lambda: ["GPU-1"])
    assert concurrent_sweeps.devices(cpu, "GPU-1") == [""]
    assert concurrent_sweeps.devices(gpu, "GPU-1,GPU-2") == ["GPU-1", "GPU-2"]
    assert concurrent_sweeps.devices(gpu, "0") == ["GPU-1"]  # Ray gives numbers
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert concurrent_sweeps.devices(gpu) == ["GPU-1"]
    monkeypatch.setattr(concurrent_sweeps, "_uuids", list)  # without NVML
    assert concurrent_sweeps.devices(gpu) == ["3"]


def test_a_cache_that_takes_no_files_costs_no_run():
    user_cache().parent.mkdir(parents=True)
    user_cache().write_text("a file where a folder should be")
    with concurrent_sweeps.announced([""]) as others:
        assert others() == []
        assert concurrent_sweeps.marks([""]) == []


def test_a_sweep_beside_another_says_so_in_the_terminal_and_in_its_record(light, tmp_path):
    light({"seed": [0]})
    with concurrent_sweeps.announced([""]):
        done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "another sweep of mptexp measures on this device" in done.stdout
    (record,), _ = store.read_records(SweepDir(tmp_path / "reports/light"))
    assert record["marks"] == [AT_ONCE]


def test_a_run_on_ray_beside_another_sweep_says_so_too(light, tmp_path):
    # The lie: no mark of either, where one of two sweeps at once ran on Ray.
    pytest.importorskip("ray")
    light({"seed": [0, 100]})
    words = ("run", "light.yaml", "--executor", "ray", "--no-report")
    with concurrent_sweeps.announced([""]):
        done = mptexp(*words, cwd=tmp_path)
    assert done.stdout.count("another sweep of mptexp measures on this device") == 1, done.stdout
    read, _ = store.read_records(SweepDir(tmp_path / "reports/light"))
    assert [record["marks"] for record in read] == [[AT_ONCE], [AT_ONCE]]


def test_an_attempt_to_find_the_largest_batch_beside_another_sweep_says_so_too(light, tmp_path):
    # The lie: a search, whose attempts take the whole device, was seen by no other sweep.
    light({"seed": [1]}, max_batch="true", defaults="{memory_limit_gb: 4}")  # fails at once
    with concurrent_sweeps.announced([""]):
        done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    said = "failed: ValueError: the second value is odd (another sweep of mptexp measured on this"
    assert said in done.stdout.replace("\n", " ")
    (attempt,), _ = store.read_records(SweepDir(tmp_path / "reports/light").search)
    assert attempt["marks"] == [AT_ONCE]


def test_whoever_executes_a_run_is_seen_while_it_is_at_work(light, gate, tmp_path):
    light({"seed": [13]})
    with started("run", "light.yaml", "--no-report", cwd=tmp_path) as sweep:
        until(gate.waiting)
        assert concurrent_sweeps.marks([""]) == [AT_ONCE]
        gate.let()
        assert sweep.wait(PATIENCE_S) == 0
    assert concurrent_sweeps.marks([""]) == []
