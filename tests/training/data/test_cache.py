import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import until
from support import write_images as write

from mptexp.training.data import cache, decoding, image_folders
from mptexp.training.data.sources import DataError, cache_dir


def prepare(root, size=16, color="rgb", on_broken="skip"):
    return cache.prepare(image_folders.source(f"folder:{root}", 0.2), size, color, on_broken)


def test_prepared_images_are_the_decoded_ones(tree):
    made = prepare(tree)
    source = image_folders.source(f"folder:{tree}", 0.2)
    for part, n in (("train", 24), ("val", 6)):
        stored = made.images(part)
        assert (len(stored), stored.shape) == (n, (n, 16, 16, 3))
        wanted = [decoding.decode(data, "rgb", 16) for _, data, _ in source.examples(part)]
        assert np.array_equal(stored[:], np.stack(wanted))
        labels = [label for _, _, label in source.examples(part)]
        assert made.labels(part).tolist() == labels


def test_images_are_read_by_place(tree):
    stored = prepare(tree).images("train")
    everything = stored[:]
    assert np.array_equal(stored[np.array([5, 0, 5])], everything[[5, 0, 5]])
    assert np.array_equal(stored[2:20:7], everything[2:20:7])
    assert stored[:0].shape == (0, 16, 16, 3)
    with pytest.raises(IndexError):
        stored[np.array([24])]


@pytest.mark.parametrize("size", [1, 3, 64, 12288, 2**20 + 1])
def test_a_framework_need_not_copy_what_was_read(size):
    made = [cache.aligned(size) for _ in range(9)]
    assert all(len(array) == size and array.ctypes.data % 64 == 0 for array in made)
    assert len({array.ctypes.data for array in made}) == 9


def test_it_is_made_once_and_its_size_is_said_before(tree, capsys):
    made = prepare(tree)
    assert "preparing 30 images" in (said := capsys.readouterr().out)
    assert "at 16x16x3 (24 to train on, 6 to validate with; 2 classes: Käse, brot & butter)" in said
    assert ": 0.0 MB in" in said
    inode = (made.folder / "train.u8").stat().st_ino
    assert (prepare(tree).folder / "train.u8").stat().st_ino == inode
    assert capsys.readouterr().out == ""
    assert prepare(tree, size=8).folder != made.folder
    assert prepare(tree, color="grayscale").meta["shape"] == [16, 16, 1]


def truncate(folder):
    os.truncate(folder / "val.u8", 5)


def linked(folder):
    folder.symlink_to(folder.rename(f"{folder}.moved"))
    return folder


def flip(folder):
    with (folder / "train.u8").open("r+b") as file:
        file.write(bytes([255 - file.read(1)[0]]))


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip,
        lambda folder: (folder / "val.u8").unlink(),
        lambda folder: (folder / "meta.json").write_text("{"),
        lambda folder: (folder / "meta.json").write_text("{}"),
        lambda folder: (folder / "meta.json").write_text("[" * 100_000),
        lambda folder: [shutil.rmtree(folder), folder.write_text("a file")],
        lambda folder: [shutil.rmtree(folder), folder.symlink_to("/not/here")],
        lambda folder: truncate(linked(folder)),
    ],
    ids=[
        *("truncated", "flipped bits", "file gone", "meta cut off", "meta empty"),
        *("meta nested", "a file", "a link to nothing", "a link, truncated"),
    ],
)
def test_a_damaged_cache_is_noticed_and_made_again(tree, damage, capsys):
    made = prepare(tree)
    before = made.images("train")[:]
    newest = max(path.stat().st_mtime_ns for path in made.folder.iterdir())
    until(lambda: _now_ns(tree.parent) > newest)  # its clock may stand still a while
    damage(made.folder)
    again = prepare(tree)
    assert "is damaged; it is made again" in capsys.readouterr().out
    assert np.array_equal(again.images("train")[:], before)
    assert len(again.images("val")[:]) == 6


def edited(change):
    def damage(folder):
        path = folder / "meta.json"
        meta = json.loads(path.read_text())
        change(meta)
        path.write_text(json.dumps(meta))

    return damage


def flip_keeping_times(folder):
    stat = (folder / "train.u8").stat()
    flip(folder)
    os.utime(folder / "train.u8", ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(
    "damage",
    [
        edited(lambda meta: meta["labels"]["val"].pop()),
        edited(lambda meta: meta["labels"]["train"].reverse()),
        edited(lambda meta: meta["classes"].reverse()),
        edited(lambda meta: meta["broken"].append(["x", "y"])),
        flip_keeping_times,
    ],
    ids=["a label less", "labels swapped", "classes swapped", "broken", "flipped, old time"],
)
def test_what_is_not_what_was_written_is_made_again(tree, damage, capsys):
    made = prepare(tree)
    before, meta = made.images("train")[:], made.meta
    until(lambda: _now_ns(tree.parent) > max(p.stat().st_ctime_ns for p in made.folder.iterdir()))
    damage(made.folder)
    again = prepare(tree)
    assert "is damaged; it is made again" in capsys.readouterr().out
    assert np.array_equal(again.images("train")[:], before)
    assert {n: again.meta[n] for n in meta if n != "states"} == {
        n: meta[n] for n in meta if n != "states"
    }


def test_the_cache_of_other_images_under_this_name_is_not_used(tree):
    made, other = prepare(tree), prepare(tree, size=8)
    shutil.rmtree(made.folder)
    shutil.copytree(other.folder, made.folder)
    assert prepare(tree).images("train").shape == (24, 16, 16, 3)


def test_the_content_is_read_once_where_a_cache_was_copied(tree, monkeypatch):
    made = prepare(tree)
    os.utime(made.folder / "train.u8")
    read = []
    monkeypatch.setattr(cache, "_sha256", lambda path: read.append(path) or _hash(path))
    for _ in range(3):
        prepare(tree)
    assert [path.name for path in read] == ["train.u8", "val.u8"]


def _hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _now_ns(folder):
    (folder / "now").touch()
    return (folder / "now").stat().st_mtime_ns


def test_a_copied_cache_is_used(tree, monkeypatch, tmp_path, capsys):
    made = prepare(tree)
    shutil.copytree(cache_dir(), tmp_path / "other/mptexp", copy_function=shutil.copyfile)
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path / "other"))
    capsys.readouterr()
    assert prepare(tree).folder.name == made.folder.name
    assert capsys.readouterr().out == ""


PROGRAM = """
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from mptexp.training.data import cache, image_folders
cache.prepare(image_folders.source("folder:" + sys.argv[1], 0.2), 512, "rgb", "skip")
"""


def test_one_of_several_processes_makes_it(tree):
    command = [sys.executable, "-c", PROGRAM, str(tree)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = "".join(process.communicate()[0] for process in running)
    assert [process.returncode for process in running] == [0, 0, 0]
    assert said.count("preparing 30 images") == 1


HALF = """
import itertools, time
from mptexp.training.data import decoding
decode, numbers = decoding.decode, itertools.count()

def half(*image):
    if next(numbers) >= 40:
        print("half of it", flush=True)
        time.sleep(600)
    return decode(*image)

decoding.decode = half
"""


def test_a_process_killed_while_making_it_leaves_nothing_that_is_taken_for_whole(tree):
    for i in range(10):
        write(tree / f"class {i}", 5)
    command = [sys.executable, "-c", HALF + PROGRAM, str(tree)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE)
    while b"half of it" not in (line := running.stdout.readline()):
        assert line
    running.kill()
    running.communicate()
    assert not [p for p in cache_dir().iterdir() if p.is_dir() and (p / "meta.json").exists()]
    made = prepare(tree, size=512)
    assert not list(cache_dir().glob("*.partial"))
    assert len(made.images("train")[:1]) == 1


def spoil(root):
    (root / "Käse/5.png").write_bytes((root / "Käse/5.png").read_bytes()[:60])
    (root / "Käse/letter.jpg").write_text("not an image")


def test_broken_images_are_named_in_one_message_and_left_out(tree, capsys):
    spoil(tree)
    made = prepare(tree)
    said = [line for line in capsys.readouterr().out.splitlines() if "cannot be read" in line]
    assert len(said) == 1
    assert "2 images cannot be read and were left out: " in said[0]
    assert "Käse/5.png (" in said[0]
    assert "Käse/letter.jpg (not an image of a kind that is read)" in said[0]
    assert len(made.labels("train")) + len(made.labels("val")) == 29
    prepare(tree)
    assert "Käse/letter.jpg" in capsys.readouterr().out  # said at every use


def test_broken_images_are_refused_on_request(tree):
    spoil(tree)
    with pytest.raises(DataError, match=r"2 images cannot be read: .*on_broken: skip"):
        prepare(tree, on_broken="refuse")


def test_a_class_without_a_readable_image_is_refused(tree):
    write(tree / "x", 0)
    for i in range(5):
        (tree / f"x/{i}.jpg").write_text("no")
    with pytest.raises(DataError, match="no readable training image in x"):
        prepare(tree)


def test_data_without_a_readable_image_to_validate_with_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path / "cache"))
    for name in ("train/a", "train/b"):
        write(tmp_path / "set" / name)
    for name in ("val/a", "val/b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "0.png").write_text("no")
    with pytest.raises(DataError, match="none of its 2 validation images can be read: val/a/0"):
        prepare(tmp_path / "set")


def test_a_disk_without_room_is_refused_before_anything_is_made(tree):
    source = image_folders.source(f"folder:{tree}", 0.2)
    source.counts["train"] = 10**13
    with pytest.raises(DataError, match=r"preparing it takes .* GB in .* GB free; make room"):
        cache.prepare(source, 64, "rgb", "skip")
    assert not [p for p in cache_dir().iterdir() if p.suffix != ".lock" and p.name != "index"]


def test_a_cache_that_cannot_be_written_is_refused_in_a_sentence(tree, monkeypatch):
    (tree.parent / "file").write_text("")
    source = image_folders.source(f"folder:{tree}", 0.2)
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tree.parent / "file"))
    with pytest.raises(DataError, match=r"cannot be prepared in .*name another place with"):
        cache.prepare(source, 16, "rgb", "skip")


def test_what_a_killed_process_left_is_no_want_of_room(tree, monkeypatch):
    made = prepare(tree)
    partial = made.folder.with_suffix(".partial")
    shutil.move(made.folder, partial)
    room = shutil.disk_usage(tree)

    def full(place):
        return room._replace(free=0 if partial.exists() else 10**9)

    monkeypatch.setattr(cache.shutil, "disk_usage", full)
    assert prepare(tree).folder == made.folder
    # Nor is what is damaged, and made again.
    (made.folder / "train.u8").write_bytes(b"")
    monkeypatch.setattr(
        cache.shutil,
        "disk_usage",
        lambda _: room._replace(free=0 if made.folder.exists() else 10**9),
    )
    assert len(prepare(tree).labels("train")) == 24


def test_who_waits_for_another_process_is_told(tree, capsys):
    key = prepare(tree).folder
    capsys.readouterr()
    held = subprocess.Popen(
        [
            sys.executable, "-c",
            "import fcntl, sys, time\n"
            "lock = open(sys.argv[1], 'w')\n"
            "fcntl.flock(lock, fcntl.LOCK_EX)\n"
            "print('held', flush=True)\n"
            "sys.stdin.readline()\n",
            str(key.with_suffix(".lock")),
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert held.stdout.readline() == "held\n"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(prepare, tree)
        said = []
        told = "waiting for another process that prepares the same data\n"
        try:
            until(lambda: said.append(capsys.readouterr().out) or told in said)
            assert not waiting.done()
        finally:
            held.communicate("go\n")
        assert waiting.result().folder == key


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), OSError(30, "Read-only file system")]
)
def test_what_another_user_prepared_is_used(tree, monkeypatch, capsys, error):
    made = prepare(tree)

    def denied(folder):
        raise error

    monkeypatch.setattr(cache, "_locked", denied)  # root may write everywhere
    assert prepare(tree).folder == made.folder
    (made.folder / "meta.json").write_text("{}")
    capsys.readouterr()
    with pytest.raises(DataError, match=rf"cannot be prepared in .*{error.strerror}"):
        prepare(tree)
    assert "made again" not in capsys.readouterr().out


def test_what_a_moment_lacks_is_not_kept_as_a_fault_of_the_image(tree, monkeypatch):
    # The lie: "cannot be read and were left out", for ever, of images that were whole.
    decode = decoding.decode

    def short_of_memory(data, *words):
        if len(data) == len((tree / "Käse/3.png").read_bytes()):
            raise MemoryError
        return decode(data, *words)

    with monkeypatch.context() as patched:
        patched.setattr(decoding, "decode", short_of_memory)
        with pytest.raises(DataError, match=r"there is no memory to decode .*make it smaller"):
            prepare(tree)
    assert prepare(tree).meta["broken"] == []


def test_no_thread_has_all_of_a_few_large_images(tree, monkeypatch):
    together, decode = threading.Barrier(2), decoding.decode

    def with_another(*words):
        together.wait(30)
        return decode(*words)

    monkeypatch.setattr(cache, "cores", lambda: 2)
    monkeypatch.setattr(cache, "CHUNK", 2)
    monkeypatch.setattr(decoding, "decode", with_another)
    assert len(prepare(tree).labels("train")) == 24


@pytest.mark.parametrize(
    "put", [lambda place, _: place.write_text("x"), lambda place, other: place.symlink_to(other)]
)
def test_what_stands_where_it_is_made_is_removed_and_nothing_behind_it(tree, tmp_path, put):
    # The lie: "File exists; name another place", for ever, once all was decoded.
    (tmp_path / "other").mkdir()
    (tmp_path / "other/kept").touch()
    made = prepare(tree)
    shutil.rmtree(made.folder)
    put(made.folder.with_suffix(".partial"), tmp_path / "other")
    assert len(prepare(tree).labels("train")) == 24
    assert (tmp_path / "other/kept").exists()
    assert not os.path.lexists(made.folder.with_suffix(".partial"))


def test_names_are_printed_so_that_a_terminal_obeys_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path / "cache"))
    root = tmp_path / "a set\x1b[2J"
    for name in ("a\nb", "c\x1b[31m"):
        write(root / name, 5)
    (root / "c\x1b[31m/odd.png").write_text("no image")
    prepare(root)
    said = capsys.readouterr().out
    assert "2 classes: a\\nb, c\\x1b[31m)" in said
    assert "a set\\x1b[2J: 1 image cannot be read" in said
    assert "\x1b" not in said
    assert said.count("\n") == 2
