"""What was edited after a report was made is known, whatever it says."""

import shutil
import subprocess

import pytest

from mptexp.records.sweep_dir import SUMS
from mptexp.report.pages import checksums

FILES = {"index.html": "<p>The conditions</p>\n", "table.md": "| ms per step |\n", "a.csv": "a\n"}
EDITED, REMOVED = (f"was {what} after its report was made" for what in ("edited", "removed"))


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    checksums.write(tmp_path, [*FILES, "answer.svg"])  # which this report has not
    return tmp_path


def edited(root):
    return {path.name: what for path, what in checksums.edited(root, [*FILES, "answer.svg"])}


def test_nothing_is_said_of_files_as_they_were_written(root):
    assert edited(root) == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [("index.html", "<p>Other conditions</p>\n"), ("table.md", "| s per step |\n")],
)
def test_a_file_in_other_words_is_named(root, name, text):
    (root / name).write_text(text)
    assert edited(root) == {name: EDITED}


def test_files_that_were_removed_or_made_folders_are_named(root):
    (root / "index.html").unlink()
    (root / "a.csv").unlink()
    (root / "a.csv").mkdir()
    assert edited(root) == {"index.html": REMOVED, "a.csv": EDITED}


def test_the_line_ends_that_git_writes_on_windows_are_no_edit(root):
    path = root / "index.html"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert edited(root) == {}


def test_of_a_report_without_checksums_nothing_is_said(root):
    checksums.remove(root)
    assert edited(root) == {}
    checksums.remove(root)  # nor is it an error that there is none


def test_checksums_that_cannot_be_read_are_named_and_odd_lines_passed_over(root):
    path = root / SUMS
    path.write_text(f"\n# mine\n{path.read_text()}{'0' * 64}  ../../etc/passwd\n")
    assert edited(root) == {}
    path.write_bytes(b"\xff\x00")
    assert edited(root) == {SUMS: "cannot be read: Is not UTF-8 text"}


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs sha256sum")
def test_sha256sum_reads_them(root):
    command = ["sha256sum", "--check", "--strict", SUMS]
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == 0
    (root / "table.md").write_text("| other |\n")
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == 1
