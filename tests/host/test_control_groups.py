"""Control groups: the folders that tell of the process's own, and of those above it."""

import pytest

from mptexp.host import control_groups

GROUPS = "sys/fs/cgroup"


def written(root, text):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("0::/a/b\n", ["a/b", "unified/a/b"]),
        ("0::/\n", ["", "unified"]),
        ("5:cpu,cpuacct:/a\n4:memory:/m\n0::/\n", ["cpu/a", "", "unified"]),
        ("4:memory:/m\n", []),
        ("3:name=systemd:/cpu:x\nodd\n", []),
    ],
)
def test_the_own_group_is_told_by_its_hierarchy(tmp_path, text, own):
    places = control_groups.own("cpu", written(tmp_path, text))
    assert places == [tmp_path / GROUPS / place for place in own]


def test_those_above_follow_and_none_is_named_twice(tmp_path):
    places = control_groups.with_those_above("cpu", written(tmp_path, "0::/a/b\n"))
    known = [str(place.relative_to(tmp_path / GROUPS)) for place in places]
    assert known[:3] == ["a/b", "a", "."]
    assert len({*places}) == len(places)
    assert places[-1] == tmp_path / GROUPS / "cpu"


def test_where_nothing_is_told_the_roots_are_looked_at(tmp_path):
    names = ["", "unified", "cpu"]
    wanted = [tmp_path / GROUPS / name for name in names]
    assert control_groups.own("cpu", tmp_path) == []
    assert control_groups.with_those_above("cpu", tmp_path) == wanted
