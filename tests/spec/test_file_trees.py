"""Folders of files on disk: what is read, what is left out, which folders are parts."""

import os
from pathlib import Path

import pytest

from mptexp.spec import file_trees


def made(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_what_is_not_entered_is_named_and_a_link_to_nothing_is_a_file(tmp_path):
    made(tmp_path, "x/a.png", "x/in/b.PNG", "x/.cache/c.png", "x/.d.png", "y/e.png", "x/f.txt")
    (tmp_path / "x/linked").symlink_to(tmp_path / "y")
    (tmp_path / "x/gone.jpg").symlink_to("/not/here.jpg")
    left_out = {}
    there = {os.path.relpath(p, tmp_path / "x") for p in file_trees.below(tmp_path / "x", left_out)}
    assert there == {"a.png", "in/b.PNG", "gone.jpg", "f.txt"}
    assert {why: [p.name for p in paths] for why, paths in left_out.items()} == {
        "hidden folders": [".cache"],
        "links to folders": ["linked"],
    }
    named = {os.path.basename(p) for p in file_trees.images(tmp_path / "x")}
    assert named == {"a.png", "b.PNG", "gone.jpg"}


def test_files_are_in_the_order_of_their_folders(tmp_path):
    made(tmp_path, "a-b/c.png", "a/b.png", "a/B.png", "a.png", "z.png")
    there = file_trees.in_order(file_trees.below(tmp_path))
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
    assert file_trees.parts(tmp_path) == wanted


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
        file_trees.parts(tmp_path)
