"""Folders for one execution: short, gone afterwards, and named where there is no room."""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from support import small_disk

from mptexp.errors import ParamsError
from mptexp.execution import preparation, scratch
from mptexp.execution.scratch import scratch_folder
from mptexp.spec.run import Run


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    monkeypatch.setattr(scratch, "LONGEST", 1000)
    return tmp_path / "t"


def test_it_is_gone_afterwards_and_its_place_is_short(place):
    place.mkdir()
    with scratch_folder() as made:
        assert made.parent == place
        (made / "file").touch()
    assert list(place.iterdir()) == []


def test_its_place_is_short(place, monkeypatch):
    place.mkdir()
    monkeypatch.setattr(scratch, "LONGEST", 3)
    with scratch_folder() as made:
        assert made.parent == Path("/tmp")


def test_what_a_killed_process_left_is_removed_and_nothing_else(place, monkeypatch):
    for name in ("mptexp-dead", "mptexp-live", "mptexp-other", "other"):
        (place / name).mkdir(parents=True)
        if name != "mptexp-other":
            (place / name / scratch.LOCK).touch()
    with (place / "mptexp-live" / scratch.LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with scratch_folder():
            assert len(list(place.iterdir())) == 5  # each may just have been made
        monkeypatch.setattr(scratch, "YOUNG_S", -1)
        with scratch_folder() as mine, scratch_folder():
            assert mine.exists()
    assert sorted(os.listdir(place)) == ["mptexp-live", "mptexp-other", "other"]


def test_a_full_temporary_folder_is_named(place):
    with small_disk(place, 1):
        (place / "ballast").write_bytes(bytes(900_000))
        with (
            pytest.raises(scratch.NoScratch, match="No space left on device; make room") as caught,
            scratch_folder(),
        ):
            pass
        assert f"the temporary folder {place} takes no files" in str(caught.value)
        assert [p.name for p in place.iterdir()] == ["ballast"]


def test_where_no_folder_takes_files_it_is_said(monkeypatch):
    def none():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(scratch.NoScratch, match="takes no files: No usable"), scratch_folder():
        pass
    # Of a plan, which looks at the data in a process of its own: once a traceback.
    with pytest.raises(ParamsError, match="make room, or name another with TMPDIR"):
        preparation.look([Run(dataset="folder:x")])
