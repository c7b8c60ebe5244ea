"""Paths that a cell or a script gives."""

from pathlib import Path

import pytest

from mptexp.errors import ParamsError
from mptexp.spec.given_paths import resolved


def test_a_path_begins_here_or_in_the_folder_above_or_at_home(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir(), (tmp_path / "reports").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert resolved("reports/mine") == Path("../reports/mine")
    (tmp_path / "notebooks/reports").mkdir()
    assert resolved(Path("reports/mine")) == Path("reports/mine")
    # The fault: once anything was made there, what is published was "no such directory".
    (tmp_path / "reports/published").mkdir()
    assert resolved("reports/published") == Path("../reports/published")
    assert resolved("~/mine") == tmp_path / "home/mine"
    assert resolved("new") == Path("new")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "a path is null; allowed: a text or a pathlib.Path"),
        (b"mine", "a path is .*; allowed: a text or a pathlib.Path"),
        ("a\0b", "null byte; allowed"),
        ("x" * 300, "File name too long; allowed"),
        ("x/" * 2030, "File name too long; allowed"),  # with what a sweep's directory holds
    ],
)
def test_what_is_no_path_is_refused(given, why):
    with pytest.raises(ParamsError, match=why):
        resolved(given)
