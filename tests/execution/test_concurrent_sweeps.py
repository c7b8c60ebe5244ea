"""Two sweeps at once on one device, each of which must know of the other."""

import os
import time

import pytest
from support import mptexp

from mptexp.execution import concurrent_sweeps
from mptexp.host.project import user_cache
from mptexp.records import store
from mptexp.records.schema import AT_ONCE
from mptexp.records.sweep_dir import SweepDir


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_sweep_sees_others_on_its_devices_and_not_itself():
    assert concurrent_sweeps.marks([""]) == []
    with concurrent_sweeps.announced(["GPU-1", "GPU-2", "GPU-2"]) as own:
        assert concurrent_sweeps.marks(["GPU-2"]) == [AT_ONCE]
        assert concurrent_sweeps.marks(["GPU-2"], own=own) == []
        assert concurrent_sweeps.marks(["", "GPU-3"]) == []
        with concurrent_sweeps.announced(["GPU-1"]):
            assert concurrent_sweeps.marks(["GPU-1"], own=own) == [AT_ONCE]


def test_one_that_began_and_ended_during_a_run_is_seen_after_it():
    before = time.time() - 1
    with concurrent_sweeps.announced([""]):
        pass
    assert concurrent_sweeps.marks([""], time.time() + 1) == []
    assert concurrent_sweeps.marks([""], before) == [AT_ONCE]


def test_what_a_killed_sweep_left_hinders_nobody_and_goes_when_it_is_old():
    with concurrent_sweeps.announced([""]) as (own,):
        pass
    os.utime(own, (0, 0))
    assert concurrent_sweeps.marks([""], 1.0) == []
    with concurrent_sweeps.announced([""]):
        assert not own.exists()


def test_a_cache_that_takes_no_files_costs_no_run():
    user_cache().parent.mkdir(parents=True)
    user_cache().write_text("a file where a folder should be")
    with concurrent_sweeps.announced([""]) as own:
        assert own == frozenset()
        assert concurrent_sweeps.marks([""]) == []


def test_a_sweep_beside_another_says_so_in_the_terminal_and_in_its_record(light, tmp_path):
    light({"seed": [0]})
    with concurrent_sweeps.announced([""]):
        done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "another sweep of mptexp measures on this device" in done.stdout
    (record,), _ = store.read_records(SweepDir(tmp_path / "reports/light"))
    assert record["marks"] == [AT_ONCE]
