import unicodedata
from pathlib import Path

import pytest

from mptexp.errors import ParamsError
from mptexp.spec import dataset_paths


@pytest.mark.parametrize(
    ("dataset", "shown"),
    [
        ("digits", "digits"),
        ("imagenette/320px-v2", "imagenette/320px-v2"),
        ("folder:photos", "folder:photos"),
        ("folder:/home/ada/Secret Project/photos/", "folder:photos"),
        ("folder: ~/a/../photos", "folder:photos"),
        ("idx:data/mnist", "idx:mnist"),
        ("folder:/", "folder:/"),
        ("folder:~", "folder:~"),
        (f"folder:{Path.home()}", "folder:~"),
        ("folder:~nobody-of-this-name/x", "folder:x"),
        ("folder:~nobody-of-this-name", "folder:~nobody-of-this-name"),
        ("folder:~\0/x\0y", "folder:x\0y"),
        (
            unicodedata.normalize("NFD", "folder:/x/Käse"),
            unicodedata.normalize("NFC", "folder:Käse"),
        ),
    ],
)
def test_a_path_is_its_last_part(dataset, shown):
    assert dataset_paths.published(dataset) == shown
    assert dataset_paths.published(shown) == shown


def test_a_blank_at_the_end_of_a_path_is_part_of_it():
    # The lie: of a folder "pics " the images of the folder "pics" beside it were taken.
    assert dataset_paths.path("folder:/x/pics ") == "/x/pics "
    assert dataset_paths.full("folder:/x/pics ") == "/x/pics "
    assert dataset_paths.published("folder:/x/pics ") == "folder:pics "
    assert dataset_paths.path("folder: ") == ""


def test_all_names_of_one_place_are_one_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ("pics", "./pics/", "~/pics", f"{tmp_path}/x/../pics")
    assert {dataset_paths.absolute(f"folder:{name}") for name in names} == {
        f"folder:{tmp_path}/pics"
    }
    assert dataset_paths.absolute("idx:pics") == f"idx:{tmp_path}/pics"
    assert dataset_paths.absolute("digits") == "digits"


def test_a_relative_path_without_a_name_has_that_of_its_folder(tmp_path, monkeypatch):
    (tmp_path / "photos/inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "photos/inner")
    assert dataset_paths.published("folder:.") == "folder:inner"
    assert dataset_paths.published("folder:..") == "folder:photos"


def test_a_name_needs_no_working_directory(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert dataset_paths.published("folder:a/photos") == "folder:photos"


def test_every_dataset_of_a_params_file_is_meant():
    content = {
        "defaults": {"dataset": "idx:/a/b"},
        "matrix": {"dataset": ["folder:/a/c", "digits"]},
    }
    assert dataset_paths.everywhere(content) == {
        "defaults": {"dataset": "idx:b"},
        "matrix": {"dataset": ["folder:c", "digits"]},
    }


def test_two_folders_of_one_name_are_refused():
    assert dataset_paths.known(["digits", "folder:/a/x", "idx:/b/x", "folder:/a/./x"]) == {
        "digits": "digits",
        "folder:x": "folder:/a/x",
        "idx:x": "idx:/b/x",
    }
    with pytest.raises(ParamsError, match="folder:/a/x and folder:/b/x have the same last part"):
        dataset_paths.known(["folder:/a/x", "folder:/b/x"])
