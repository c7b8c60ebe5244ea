import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from support import PROJECT, until
from support import write_images as write

from mptexp.host import files
from mptexp.spec import feasible
from mptexp.spec.run import Run
from mptexp.training.data import cache, datasets, image_folders
from mptexp.training.data.sources import DataError, cache_dir


def source(root, split=0.2):
    return image_folders.source(f"folder:{root}", split)


def names(found, part):
    return [name for name, _, _ in found.examples(part)]


def test_a_tree_is_split_so_that_classes_keep_their_shares(tree):
    found = source(tree)
    assert found.classes == ("Käse", "brot & butter")
    assert found.counts == {"train": 24, "val": 6}
    labels = [label for _, _, label in found.examples("val")]
    assert sorted(labels) == [0, 0, 1, 1, 1, 1]
    assert not set(names(found, "train")) & set(names(found, "val"))


def test_the_split_is_always_the_same(tree):
    assert names(source(tree), "val") == names(source(tree), "val")


def test_a_tree_with_its_own_split_keeps_it(tree):
    write(tree / "train/a", 3)
    write(tree / "train/b", 3)
    write(tree / "val/a", 1)
    write(tree / "val/b", 2)
    found = source(tree)
    assert found.classes == ("a", "b")
    assert found.counts == {"train": 6, "val": 3}
    assert all(name.startswith("val/") for name in names(found, "val"))


def test_hidden_folders_are_no_classes(tmp_path):
    for name in ("a", "b", ".thumbnails"):
        write(tmp_path / "train" / name)
        write(tmp_path / "val" / name)
    assert source(tmp_path).classes == ("a", "b")


def test_an_image_that_may_not_be_read_is_a_broken_one(tree, monkeypatch):
    refused, read = str(tree / "Käse/3.png"), files.content

    def asked(path):  # root may read everything
        if path == refused:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(files, "content", asked)
    found = source(tree, 0.25)
    contents = {name: content for name, content, _ in found.examples("train")}
    contents |= {name: content for name, content, _ in found.examples("val")}
    assert str(contents.pop("Käse/3.png")) == "Permission denied"  # not "not an image"
    assert all(isinstance(content, bytes) for content in contents.values())


@pytest.mark.parametrize(
    "parts",
    [
        *(("Training", "Test"), ("Train", "Testing"), ("train", "Val"), ("train", "validate")),
        *(("training_set", "test_set"), ("seg_train", "seg_test"), ("train2017", "val2017")),
    ],
)
def test_a_split_is_known_however_its_folders_are_written(tmp_path, parts):
    # The lie: an accuracy of two classes, "Test" and "Training".
    for part, number in zip(parts, (3, 1), strict=True):
        for name in ("apple", "pear"):
            write(tmp_path / part / name, number)
    found = source(tmp_path)
    assert found.classes == ("apple", "pear")
    assert found.counts == {"train": 6, "val": 2}
    assert feasible.training_images(Run(dataset=f"folder:{tmp_path}")) == 6


def test_folders_that_may_be_classes_or_parts_are_refused(tmp_path):
    # The lie: two classes, "fold1" and "fold2", of the same flowers.
    for part in ("fold1", "fold2"):
        for name in ("rose", "tulip"):
            write(tmp_path / part / name, 2)
    with pytest.raises(DataError, match="parts with classes in them: fold1, fold2; allowed: two"):
        source(tmp_path)
    assert feasible.training_images(Run(dataset=f"folder:{tmp_path}")) is None
    shutil.rmtree(tmp_path / "fold2")
    (tmp_path / "fold1").rename(tmp_path / "train")
    assert source(tmp_path, 0.5).classes == ("rose", "tulip")
    write(tmp_path / "bus", 2)  # of it nothing was said
    with pytest.raises(DataError, match="parts with classes in them: train;"):
        source(tmp_path)


def test_images_in_neither_part_are_counted_by_folder(tmp_path):
    for part in ("train", "val", "test"):
        for name in ("a", "b"):
            write(tmp_path / part / name, 2)
    write(tmp_path, 1)
    write(tmp_path / "train", 3)
    top = tmp_path.name
    assert source(tmp_path).notes == [
        f"left out as images in no class folder: 1 in {top}, 2 in {top}/test/a, "
        f"2 in {top}/test/b, 3 in {top}/train"
    ]


def test_training_images_come_mixed_and_always_in_one_order(tree):
    # The lie: an input mode that keeps the data's order trained on one class after another.
    labels = [label for _, _, label in source(tree).examples("train")]
    assert labels != sorted(labels)
    assert names(source(tree), "train") == names(source(tree), "train")


def test_thumbnails_in_a_hidden_folder_are_left_out_and_named(tree):
    # The lie: 60 images, the same 30 twice, some of them on both sides of the split.
    shutil.copytree(tree / "Käse", tree / "Käse/.@__thumb")
    found = source(tree)
    assert found.counts == {"train": 24, "val": 6}
    assert found.notes == ["left out as hidden folders: Käse/.@__thumb"]


def test_images_behind_links_to_nothing_are_broken_ones(tree):
    # The lie: seven images fewer, without a word.
    for path in sorted((tree / "Käse").iterdir())[:7]:
        path.unlink()
        path.symlink_to(f"/a/disk/that/is/not/here/{path.name}")
    (tree / "rolls").symlink_to("/a/disk/that/is/not/here")
    found = source(tree)
    assert found.counts == {"train": 24, "val": 6}
    assert found.notes == ["left out as links to nothing: rolls"]
    with pytest.raises(DataError, match=r"7 images cannot be read: Käse/0.png \(a link to nothing"):
        datasets.load(Run(dataset=f"folder:{tree}", image_size=8, on_broken="refuse"))


def test_a_name_that_is_not_utf_8_is_text_where_it_enters(tree):
    # The lie: none, but every training ended in a UnicodeEncodeError when its record was written.
    odd = os.fsdecode(b"K\xe4se")
    (tree / f"Käse/{odd}.png").write_text("no image")
    (tree / f"Käse/{odd}.txt").write_text("no image")
    found = source(tree)
    every = [*names(found, "train"), *names(found, "val"), *found.notes]
    assert "left out as no images by their names: Käse/K\\udce4se.txt" in every
    assert "Käse/K\\udce4se.png" in "".join(every).encode().decode()
    write(tree / odd)
    with pytest.raises(DataError, match=r"a class whose name is not UTF-8: K\\udce4se; rename"):
        source(tree)


def test_a_class_may_be_called_train(tmp_path):
    write(tmp_path / "train")
    write(tmp_path / "bus")
    found = source(tmp_path, 0.5)
    assert found.classes == ("bus", "train")
    assert found.notes == ["taken as classes, though parts may be called so: train"]
    (tmp_path / "train").rename(tmp_path / "rail")
    assert source(tmp_path, 0.5).notes == []


@pytest.mark.parametrize("name", ["test", "Test", "val2017", "validation"])
def test_images_to_test_with_beside_the_classes_are_no_class(tmp_path, name):
    # The lie: an accuracy of three classes, of which one was the unlabelled test set.
    for place in ("a", "b", name):
        write(tmp_path / place, 5)
    said = rf"images kept to validate or test with: {name}; allowed: two parts called train and val"
    with pytest.raises(DataError, match=said):
        source(tmp_path)
    with pytest.raises(DataError, match=said):
        image_folders.classes(f"folder:{tmp_path}")
    (tmp_path / name).rename(tmp_path / "test tubes")
    assert source(tmp_path).classes == ("a", "b", "test tubes")
    assert source(tmp_path).notes == ["taken as classes, though parts may be called so: test tubes"]


def test_a_link_inside_a_folder_to_itself_or_another_class_is_no_class(tree):
    # The lie: three classes, of which one held the images of the other two.
    (tree / tree.name).symlink_to(tree)
    (tree / "rolls").symlink_to(tree / "brot & butter")
    found = source(tree)
    assert found.classes == ("Käse", "brot & butter")
    assert found.counts == {"train": 24, "val": 6}
    assert found.notes == [f"left out as links to folders: {tree.name}, rolls"]
    assert feasible.training_images(Run(dataset=f"folder:{tree}", validation_split=0.2)) == 24


def test_thumbnails_of_a_nas_are_left_out_and_named(tree):
    # The lie: 50 images, twenty of them small copies of others, on both sides of the split.
    for number in range(10):
        write(tree / f"Käse/@eaDir/{number}.png", 2)
    write(tree / "#recycle", 3)
    found = source(tree)
    assert found.classes == ("Käse", "brot & butter")
    assert found.counts == {"train": 24, "val": 6}
    assert found.notes == ["left out as hidden folders: #recycle, Käse/@eaDir"]


def test_what_is_left_out_is_said(tree):
    (tree / "empty").mkdir()
    (tree / "Käse/notes.txt").write_text("not an image")
    (tree / ".hidden").write_text("nothing to say of")
    assert source(tree).notes == [
        "left out as class folders without images: empty",
        "left out as no images by their names: Käse/notes.txt",
    ]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: shutil.rmtree(root), "does not exist; give a folder with a folder per class"),
        (lambda root: shutil.rmtree(root / "Käse"), "has only the class brot & butter"),
        (lambda root: [shutil.rmtree(p) for p in root.iterdir()], "no class folder with images"),
        (lambda root: write(root / "one", 1), r"class one has 1\)"),
        (lambda root: [write(root / "train/a"), write(root / "val/b")], "only the class a"),
        (
            lambda root: [write(root / n) for n in ("train/a", "train/b", "val/c")],
            "val has classes that train has not: c",
        ),
        (
            lambda root: (
                [write(root / n, k) for n, k in (("train/a", 1), ("train/b", 1))]
                + [(root / "val").mkdir()]
            ),
            "val holds no images to validate with in class folders",
        ),
    ],
)
def test_a_tree_that_cannot_be_used_is_refused_in_a_sentence(tree, spoil, message):
    spoil(tree)
    with pytest.raises(DataError, match=message) as error:
        source(tree)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("place", ["~nobody-of-this-name/x", "a\0b"])
def test_what_is_no_path_is_refused_in_a_sentence(place):
    with pytest.raises(DataError, match="does not exist"):
        image_folders.source(f"folder:{place}", 0.2)


def test_a_file_is_not_a_folder(tree):
    with pytest.raises(DataError, match=r"0.png is a file"):
        image_folders.source(f"folder:{tree}/Käse/0.png", 0.2)


def test_the_content_names_the_images_not_their_place(tree, tmp_path):
    first = source(tree).identity
    shutil.copytree(tree, tmp_path / "moved")
    assert source(tmp_path / "moved").identity == first
    write(tree / "Käse", 1, start=99)
    assert source(tree).identity != first


def test_an_image_that_was_replaced_is_noticed(tree):
    first = source(tree).identity
    shutil.copy(tree / "brot & butter/7.png", tree / "Käse/3.png")
    assert source(tree).identity != first


@pytest.fixture
def settled(monkeypatch):
    """Files are as old as they must be for the index."""
    monkeypatch.setattr(image_folders, "SETTLED_NS", -1)


def test_other_content_of_the_same_size_and_time_is_noticed(tree, settled):
    path = tree / "Käse/3.png"
    path.write_bytes(bytes(500))
    stat, first = path.stat(), source(tree).identity
    until(lambda: _touched(tree.parent / "now") > stat.st_ctime_ns)
    path.write_bytes(bytes(499) + b"x")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert source(tree).identity != first


def _touched(path):
    path.touch()
    return path.stat().st_ctime_ns


def test_what_could_not_be_read_is_asked_for_again(tree, settled, monkeypatch):
    whole, read = source(tree).identity, files.content
    shutil.rmtree(cache_dir() / "index")

    def asked(path):  # root may read everything
        if path.endswith("/3.png"):
            raise PermissionError(13, "Permission denied")
        return read(path)

    with monkeypatch.context() as refused:
        refused.setattr(files, "content", asked)
        assert source(tree).identity != whole
    assert source(tree).identity == whole


def test_what_is_so_new_that_a_change_may_not_show_is_read_again(tree, monkeypatch):
    monkeypatch.setattr(image_folders, "SETTLED_NS", 10**18)
    source(tree)
    assert not (cache_dir() / "index").exists()


@pytest.mark.parametrize("text", ["", "0" * 32, f"{'0' * 32} {'1' * 32}", "é", "a b c"])
def test_a_damaged_index_is_not_used(tree, settled, text):
    first = source(tree).identity
    (path,) = (cache_dir() / "index").iterdir()
    path.write_text(text)
    assert source(tree).identity == first


def test_an_image_that_changes_while_it_is_read_is_refused(tree):
    found = source(tree)
    (tree / "Käse/3.png").write_bytes(b"another")
    with pytest.raises(DataError, match=r"Käse/3.png was changed while it was read"):
        [*found.examples("train"), *found.examples("val")]


def test_a_folder_that_is_left_out_is_named(tree, monkeypatch):
    write(tree / "Käse/locked", 2)
    write(tree.parent / "elsewhere", 2)
    (tree / "Käse/linked").symlink_to(tree.parent / "elsewhere")
    (tree / "class by link").symlink_to(tree.parent / "elsewhere")
    (tree.parent / "elsewhere/deeper").symlink_to(tree.parent)
    allowed = os.access
    locked = str(tree / "Käse/locked")  # root may read everything
    monkeypatch.setattr(os, "access", lambda p, m: str(p) != locked and allowed(p, m))
    found = source(tree, 0.5)
    assert found.classes == ("Käse", "brot & butter", "class by link")
    assert sum(found.counts.values()) == 32
    assert found.notes == [
        "left out as folders that may not be read: Käse/locked",
        "left out as links to folders: Käse/linked, class by link/deeper",
    ]


def test_a_relative_path_begins_where_the_user_stands(tree, monkeypatch):
    monkeypatch.chdir(tree.parent)
    assert image_folders.source(f"folder:{tree.name}", 0.2).counts["train"] == 24


SHARED = PROJECT.parent / "shared/data"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared pictures are not here")
@pytest.mark.parametrize(
    ("name", "classes", "counts"),
    [
        ("imagenette2-224-subset", 10, {"train": 1000, "val": 500}),
        ("sign-language-digits", 10, {"train": 1649, "val": 413}),
        ("flower_photos", 5, {"train": 160, "val": 40}),
    ],
)
def test_real_photographs_are_prepared_without_a_broken_one(
    tmp_path, monkeypatch, name, classes, counts
):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path))
    found = source(SHARED / name)
    assert (len(found.classes), found.counts) == (classes, counts)
    made = cache.prepare(found, 32, "rgb", "refuse")  # grey, 3024 pixels wide, turned by EXIF
    assert len(made.labels("train")) == counts["train"]


def test_an_image_that_vanishes_meanwhile_is_named(tree):
    found = source(tree)
    examples = found.examples("train")
    name, _, _ = next(examples)
    left = sorted(tree.rglob("*.png"))
    for path in left:
        path.unlink()
    with pytest.raises(DataError, match=r"png was removed while it was read; try again"):
        next(examples)
    assert name


def test_a_file_larger_than_any_image_is_a_broken_one(tree, monkeypatch):
    monkeypatch.setattr(files.content, "__defaults__", (100,))
    reasons = {str(data) for _, data, _ in source(tree).examples("val")}
    assert reasons == {"Is larger than 9.53674e-05 MiB, the most that is read"}


def test_a_disk_that_fails_for_a_moment_leaves_out_no_image(tree, settled, monkeypatch):
    # The lie: "20 images", for ever, of 30 of which ten could not be read once.
    found, read = source(tree), files.content

    def failing(path):
        if path.endswith("/3.png"):
            raise OSError(5, "Input/output error")
        return read(path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "content", failing)
        every = itertools.chain(found.examples("train"), found.examples("val"))
        with pytest.raises(DataError, match=r"3\.png cannot be read now \(Input/output error\)"):
            list(every)
    assert source(tree).identity == found.identity


def test_classes_that_nothing_is_validated_with_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path / "cache"))
    run = Run(dataset=f"folder:{tmp_path}/set", image_size=8)
    for place in ("train/a", "train/b", "train/c", "val/a"):
        write(tmp_path / "set" / place, 3)
    (tmp_path / "set/val/b").mkdir()
    assert "no image to validate with in b, c" in datasets.load(run).notes
    for place in ("val/b", "val/c"):
        write(tmp_path / "set" / place, 3)
    assert datasets.load(run).notes == ()
    # The lie: no word, where all of a class were there and none could be read.
    for path in (tmp_path / "set/val/b").iterdir():
        path.write_text("no image")
    assert "no image to validate with in b" in datasets.load(run).notes


@pytest.fixture
def anybody():
    """A folder that every user may enter; while the test runs, root is nobody in particular."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o777)
    yield place
    if os.getuid() == 0:
        os.seteuid(0)
    shutil.rmtree(place)


def test_a_folder_that_may_not_be_read_is_named(anybody, monkeypatch):
    # The lie: no word, or "class folders without images", of what this user may not list.
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(anybody / "cache"))
    for name in ("a", "b", "a/session2", "c"):
        write(anybody / "set" / name, 5)
    closed = [anybody / "set" / name for name in ("a/session2", "c")]
    for folder in closed:
        folder.chmod(0o700 if os.getuid() == 0 else 0)
    if os.getuid() == 0:
        os.seteuid(65534)
    found = source(anybody / "set")
    assert found.classes == ("a", "b")
    assert found.notes == ["left out as folders that may not be read: a/session2, c"]
    if os.getuid() != 0:
        for folder in closed:
            folder.chmod(0o700)


def test_a_linked_class_without_images_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path / "cache"))
    for name in ("a", "b"):
        write(tmp_path / "set" / name, 5)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "set/c").symlink_to(tmp_path / "elsewhere")
    assert source(tmp_path / "set").notes == ["left out as class folders without images: c"]


@pytest.mark.parametrize(
    ("full", "closed", "said"),
    [
        (
            ("a", "b"),
            "b",
            "set has only the class a; .*left out as folders that may not be read: b",
        ),
        (("train/a", "train/b", "val/a"), "val", "val may not be read by this user"),
        (
            ("train/a", "train/b", "val/a"),
            "val/a",
            "val holds no images .*; left out as folders that may not be read: a",
        ),
        (
            ("train/a", "train/b", "val/a"),
            "train",
            "called so; left out as folders that may not be read: train",
        ),
    ],
)
def test_a_folder_that_may_not_be_read_is_named_where_it_is_the_reason(
    anybody, monkeypatch, full, closed, said
):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(anybody / "cache"))
    for name in full:
        write(anybody / "set" / name, 5)
    place = anybody / "set" / closed
    place.chmod(0o700 if os.getuid() == 0 else 0)
    if os.getuid() == 0:
        os.seteuid(65534)
    with pytest.raises(DataError, match=said):
        source(anybody / "set")
    if os.getuid() != 0:
        place.chmod(0o700)


def test_a_path_that_no_system_can_hold_does_not_exist():
    with pytest.raises(DataError, match="does not exist; give a folder"):
        image_folders.path_of(f"folder:{'x' * 300}")
