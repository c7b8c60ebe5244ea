"""Whose processes were killed because memory ran out, and what is kept of their output."""

import os

import pytest

from mptexp.execution import processes


@pytest.mark.parametrize(
    ("groups", "file", "text"),
    [
        ("0::/user/a\n", "sys/fs/cgroup/user/a/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("9:name=x:/\n4:memory:/b\n", "sys/fs/cgroup/memory/b/memory.oom_control", "oom_kill 2\n"),
        ("0::/elsewhere\n", "proc/vmstat", "pgfault 7\noom_kill 2\n"),
        ("", "proc/vmstat", "oom_kill 2\n"),
    ],
)
def test_kills_for_memory_are_those_of_the_own_group(tmp_path, groups, file, text):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/vmstat").write_text("oom_kill 99\n")
    (tmp_path / "proc/self/cgroup").write_text(groups)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert processes.kills_for_memory(tmp_path) == 2
    assert processes.kills_for_memory(tmp_path / "absent") == 0


def test_the_end_of_an_output_is_kept():
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream, os.fdopen(write, "wb") as output:
        tail = processes.Tail(stream)
        output.write(b"line\n" * processes.TAIL + b"\n  the last \xff\n")
        output.close()
        tail.join()
        assert tail.lines()[-1] == "the last \ufffd"
        assert len(tail.kept) == processes.TAIL


def test_a_process_that_has_ended_holds_nothing():
    assert processes.resident(None) == 0
    assert processes.largest_child(2**22 + 1) is None
