import io
import tarfile

import pytest
from support import PROJECT, mptexp

from mptexp.api import archive, gpu_hour
from mptexp.api.gpu_hour import Step
from mptexp.spec.errors import ParamsError

SMALL = ("dataset=digits", "model=mlp", "width=0.0625", "image_size=28", "epochs=8", "repeats=1")


def packed(path, *members, mode="w:gz"):
    """An archive of (name, type, size or target)."""
    with tarfile.open(path, mode) as tar:
        for name, kind, what in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if isinstance(what, int):
                member.size = what
            else:
                member.linkname = what
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return path


FILE, LINK = tarfile.REGTYPE, tarfile.SYMTYPE


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ([("../out.txt", FILE, 3)], "outside the destination"),
        ([("a/../../out.txt", FILE, 3)], "outside the destination"),
        ([("link", LINK, "/etc/passwd")], "link is neither a file nor a folder"),
        ([("hard", tarfile.LNKTYPE, "/etc/passwd")], "hard is neither a file nor a folder"),
        ([("pipe", tarfile.FIFOTYPE, 0)], "pipe is neither a file nor a folder"),
        ([("disk", tarfile.BLKTYPE, 0)], "disk is neither a file nor a folder"),
        ([("a", FILE, 2000), ("b", FILE, 2000)], "unpacks to more than"),
        ([(f"{k}", FILE, 0) for k in range(9)], "unpacks to more than"),
        ([("n" * 200_000, FILE, 0)], "a header of 200,"),
        ([("a", FILE, 1)], "holds no measured sweep"),
        ([("a", FILE, 1), ("a/b", FILE, 1)], "cannot be unpacked"),
    ],
)
def test_a_hostile_archive_leaves_nothing(members, named, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MOST_BYTES", 3000)
    monkeypatch.setattr(archive, "MOST_FILES", 8)
    made = packed(tmp_path / "archive.tar.gz", *members)
    with pytest.raises(ParamsError, match=named):
        archive.open_archive(made, tmp_path / "to" / "here")
    assert not (tmp_path / "out.txt").exists()
    assert not (tmp_path / "to" / "out.txt").exists()
    assert [p.name for p in (tmp_path / "to").iterdir() if p.name != "here"] == []


def test_an_absolute_name_stays_in_the_folder(tmp_path):
    made = packed(tmp_path / "archive.tar.gz", ("/tmp/mptexp-absolute/sweep.json", FILE, 2))
    assert archive.unpack(made, tmp_path / "here") == [tmp_path / "here/tmp/mptexp-absolute"]


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\0"])
def test_what_is_no_archive_is_refused(content, tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(ParamsError, match="cannot be unpacked"):
        archive.unpack(tmp_path / "a.tar.gz", tmp_path / "here")
    assert [p.name for p in tmp_path.iterdir()] == ["a.tar.gz"]


def test_a_folder_that_exists_is_left_alone(tmp_path):
    done = mptexp("open", "a.tar.gz", "--to", ".", cwd=tmp_path)
    assert done.returncode == 2
    assert "exists already; allowed: a new folder" in done.stderr


def test_every_step_names_a_study_of_the_package():
    assert {s.study for s in gpu_hour.STEPS} <= {p.stem for p in (PROJECT / "params").iterdir()}


@pytest.mark.kernel
def test_an_hour_leaves_an_archive_that_opens_elsewhere(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(gpu_hour, "STEPS", (Step("tf32", words=("--only", "batch_size=32")),))
    folder, said = tmp_path / "hour", []
    folder.mkdir()
    (folder / gpu_hour.INSTRUMENTS).write_text("[]")
    words = (*SMALL, "input_mode=resident", "target_ci=null", "max_steps=20")
    made = gpu_hour.measure_hour(folder, 10, "tensorflow", words, said.append)
    assert said == ["step 1 of 1: run tf32 --only batch_size=32"]
    pages, _ = archive.open_archive(made, tmp_path / "elsewhere")
    assert pages == [tmp_path / "elsewhere/hour/tf32/index.html"]
    assert "tensorfloat32" in pages[0].read_text()


def test_without_time_nothing_is_begun(tmp_path, monkeypatch):
    said = []
    made = gpu_hour.measure_hour(tmp_path / "hour", 0.5, "tensorflow", (), said.append)
    assert said == [f"time is up before step 1 of {len(gpu_hour.STEPS)}; the same command goes on"]
    assert made == tmp_path / "hour.tar.gz"
    assert tarfile.is_tarfile(made)
