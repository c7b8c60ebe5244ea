"""Files that a careless reader would wait for, or read for ever."""

import os
from pathlib import Path

import pytest

from mptexp.host import files


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/dev/zero", "Is not a plain file"),
        ("fifo", "Is not a plain file"),
        ("folder", "Is a directory"),
        ("latin1", "Is not UTF-8 text"),
        ("large", "Is larger than 0.00390625 MiB, the most that is read"),
        ("loop", "Too many levels of symbolic links"),
        ("n" * 300, "File name too long"),
        ("null\0", "embedded null byte"),
        ("absent", "No such file or directory"),
    ],
)
def test_what_cannot_be_read_is_an_error_at_once_that_says_why(tmp_path, path, why):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin1").write_bytes(b"K\xe4se")
    (tmp_path / "large").write_bytes(bytes(4097))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match=why) as caught:
        files.text(tmp_path / path, most=4096)
    assert caught.value.strerror == why
    assert not files.is_file(tmp_path / path) or path in ("latin1", "large")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="this system has no /proc")
def test_a_file_whose_size_the_system_does_not_tell_is_read_whole_or_refused():
    assert os.stat("/proc/self/status").st_size == 0
    assert b"VmHWM" in files.content("/proc/self/status")
    with pytest.raises(OSError, match="Is larger than"):
        files.content("/proc/self/status", most=10)


def test_a_loop_of_links_has_a_path(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert files.real(tmp_path / "loop").name == "loop"
    assert files.text(Path(__file__)).startswith('"""Files')


def test_the_mark_before_a_text_is_no_part_of_it(tmp_path):
    # The lie: the header of a params file from such an editor was nowhere on its page.
    (tmp_path / "marked.yaml").write_bytes("\ufeff# Question: which?\r\n".encode())
    assert files.text(tmp_path / "marked.yaml") == "# Question: which?\n"
