"""The name of a machine from its start to its end, and its clock since then."""

import subprocess
import sys
import time

import pytest

from mptexp.host import boot


def test_a_machine_keeps_its_name_and_the_name_leads_to_no_machine(tmp_path, monkeypatch):
    drawn = tmp_path / "boot_id"
    monkeypatch.setattr(boot, "DRAWN", drawn)
    assert boot.name() == ""
    names = []
    for text in ("6f1c\n", "6f1c\n", "7a2d\n"):
        drawn.write_text(text)
        names.append(boot.name())
    assert names[0] == names[1] != names[2]
    assert len(names[0]) == 12
    assert "6f1c" not in names[0]


def test_all_processes_of_a_machine_share_a_clock_that_nobody_sets(monkeypatch):
    program = "from mptexp.host import boot; print(boot.since_s())"
    before = boot.since_s()
    other = float(subprocess.check_output([sys.executable, "-c", program]))
    assert before < other < boot.since_s()
    monkeypatch.setattr(time, "time", lambda: 0.0)  # as if somebody had set the other one
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)  # as on macOS
    assert 0 < boot.since_s() == pytest.approx(time.monotonic(), abs=60)
