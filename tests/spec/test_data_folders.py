"""Folders of files on disk: what is read, what is left out, which folders are parts."""

import os
from pathlib import Path

import pytest

from mptexp.spec import data_folders


def made(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_what_is_not_entered_is_named_and_a_link_to_nothing_is_a_file(tmp_path):
    made(tmp_path, "x/a.png", "x/in/b.PNG", "x/.cache/c.png", "x/.d.png", "y/e.png", "x/f.txt")
    (tmp_path / "x/linked").symlink_to(tmp_path / "y")
    (tmp_path / "x/gone.jpg").symlink_to("/not/here.jpg")
    left_out = {}
    there = {
        os.path.relpath(p, tmp_path / "x") for p in data_folders.below(tmp_path / "x", left_out)
    }
    assert there == {"a.png", "in/b.PNG", "gone.jpg", "f.txt"}
    assert {why: [p.name for p in paths] for why, paths in left_out.items()} == {
        "hidden folders": [".cache"],
        "links to folders": ["linked"],
    }
    named = {os.path.basename(p) for p in data_folders.images(tmp_path / "x")}
    assert named == {"a.png", "b.PNG", "gone.jpg"}


def test_files_are_in_the_order_of_their_folders(tmp_path):
    made(tmp_path, "a-b/c.png", "a/b.png", "a/B.png", "a.png", "z.png")
    there = data_folders.in_order(data_folders.below(tmp_path))
    assert there == [str(path) for path in sorted(map(Path, there))]
    assert [os.path.relpath(p, tmp_path) for p in there][:4] == [
        "a/B.png", "a/b.png", "a-b/c.png", "a.png",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["bus/1.png", "train/1.png"], (None, None)),
        (["train/a/1.png", "train/b/1.png"], ("train", None)),
        (["Train/a/1.png", "test/a/1.png", "valid/a/1.png"], ("Train", "valid")),
        (["seg_train/a/1.png", "seg_test/a/1.png", "seg_pred/1.png"], ("seg_train", "seg_test")),
        (["apple/red/1.png", "apple/green/1.png", "pear/green/1.png"], (None, None)),
        (["strainer/a/1.png", "testosterone/a/1.png"], (None, None)),
    ],
)
def test_parts_are_known_by_words_of_their_names(tmp_path, names, parts):
    made(tmp_path, *names)
    train, val = parts
    wanted = (tmp_path / train if train else tmp_path, val and tmp_path / val)
    assert data_folders.parts(tmp_path) == wanted


@pytest.mark.parametrize(
    ("names", "doubtful"),
    [
        (["x/a/1.png", "x/b/1.png", "y/a/1.png", "y/b/1.png"], "x, y"),
        (["train/a/1.png", "train1/a/1.png", "val/a/1.png"], "train, train1"),
        (["train/a/1.png", "train/b/1.png", "bus/1.png"], "train"),
    ],
)
def test_what_may_be_parts_or_classes_is_refused(tmp_path, names, doubtful):
    made(tmp_path, *names)
    with pytest.raises(ValueError, match=f"with classes in them: {doubtful}; allowed: two parts"):
        data_folders.parts(tmp_path)


@pytest.mark.parametrize("place", ["test", "TEST", "val", "validation_2", "testing"])
def test_a_part_beside_class_folders_is_no_class(tmp_path, place):
    made(tmp_path, "a/1.png", "b/1.png", f"{place}/1.png")
    with pytest.raises(ValueError, match=f"validate or test with: {place}; allowed: two parts"):
        data_folders.parts(tmp_path)


@pytest.mark.parametrize("place", ["valid", "test tube", "détest", "1", "train"])
def test_a_class_of_another_name_is_one(tmp_path, place):
    made(tmp_path, "a/1.png", "b/1.png", f"{place}/1.png")
    assert data_folders.parts(tmp_path) == (tmp_path, None)


def test_classes_that_are_called_as_parts_are_told_apart():
    assert data_folders.like_parts(["bus", "Train", "test tube", "strainer", "Käse"]) == [
        "Train",
        "test tube",
    ]


def test_links_to_what_is_read_anyway_are_no_class_folders(tmp_path):
    made(tmp_path, "set/a/1.png", "set/b/in/1.png", "set/.store/c/1.png", "elsewhere/1.png")
    root = tmp_path / "set"
    for name, target in {
        "above": tmp_path,
        "c": root / ".store/c",
        "itself": root,
        "like a": root / "a",
        "like b": root / "b/in",
        "new": tmp_path / "elsewhere",
        "newer": tmp_path / "elsewhere",
    }.items():
        (root / name).symlink_to(target)
    assert [folder.name for folder in data_folders.folders(root)] == ["a", "b", "c", "new"]


def test_folders_of_a_nas_are_hidden_ones(tmp_path):
    made(tmp_path, "a/1.png", "a/@eaDir/1.png/S.jpg", "#recycle/2.png", "@EADIR/a.png", "b/@.png")
    left_out = {}
    there = {os.path.relpath(path, tmp_path) for path in data_folders.below(tmp_path, left_out)}
    assert there == {"a/1.png", "b/@.png"}
    assert {p.name for p in left_out["hidden folders"]} == {"@eaDir", "#recycle", "@EADIR"}
    assert [folder.name for folder in data_folders.folders(tmp_path)] == ["a", "b"]
