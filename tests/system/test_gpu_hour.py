import gzip
import importlib.util
import io
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support import PROJECT, mptexp

from mptexp.api import archive, gpu_hour
from mptexp.api.gpu_hour import Step
from mptexp.errors import Interrupted, ParamsError, Stopped
from mptexp.execution.directory import locked
from mptexp.host.project import child_environment
from mptexp.records import instrument_checks
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec.backends import BACKENDS, PREFERRED

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
        ([("sparse", tarfile.GNUTYPE_SPARSE, 0)], "sparse is neither a file nor a folder"),
        ([("all", tarfile.XGLTYPE, 0)], "all is neither a file nor a folder"),
        ([("a/" * 60, tarfile.DIRTYPE, 0)], "more than 40 folders in one another"),
        ([("/a", FILE, 1), ("b/../a", FILE, 1)], "holds a twice"),
        ([("a", FILE, 1)], "holds no measured sweep"),
        ([("h/sweep.json", FILE, 1), ("h/runs", FILE, 1)], "holds no measured sweep"),
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
    assert list((tmp_path / "to").iterdir()) == []


def header(name, size, kind=FILE):
    """A member's header, which may claim a size below zero."""
    made = tarfile.TarInfo(name)
    made.type = kind
    block = bytearray(made.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = struct.pack(">iq", -1 if size < 0 else -(2**31), size)
    checksum = 256 + sum(block[:148]) + sum(block[156:])
    block[148:156] = b"%06o\0 " % checksum
    return bytes(block)


def extended(*pairs):
    """A pax header with these keys and values."""
    lines = [b"%d %s\n" % (len(pair) + 4, pair) for pair in pairs]
    assert all(len(line) in range(10, 100) for line in lines)
    content = b"".join(lines)
    return header("pax", len(content), tarfile.XHDTYPE) + content.ljust(512, b"\0")


@pytest.mark.parametrize(
    ("blocks", "named"),
    [
        (header("a", -512), "a header of -512 bytes"),  # tarfile goes back, and reads it for ever
        (extended(b"size=-512") + header("a", 0), "a is neither a file nor a folder"),
        (extended(b"path=abc") * 5000 + header("a", 0), "a header of more than"),
        ((header("n", 1, b"L") + bytes(512)) * 5000 + header("a", 0), "a header of more than"),
        (
            extended(b"GNU.sparse.major=1", b"GNU.sparse.minor=0")
            + header("a", 10**7)
            + b"1000000\n"
            + b"1\n" * 10**6,
            "a header of more than",
        ),
        (header("a", 1) + bytes(1024 + 10**6), "a header of more than"),  # behind the end
        (header("a", 2**31), "unexpected end of data"),
    ],
)
def test_headers_are_bounded(blocks, named, tmp_path):
    made = tmp_path / "archive.tar.gz"
    made.write_bytes(gzip.compress(blocks + bytes(1024), 1))
    with pytest.raises(ParamsError, match=named):
        archive.unpack(made, tmp_path / "here")
    assert [p.name for p in tmp_path.iterdir()] == ["archive.tar.gz"]


def an_hour(tmp_path):
    """A folder as gpu-hour leaves it, with a record that is no record."""
    run = tmp_path / "hour/tf32/runs/0123456789ab"
    run.mkdir(parents=True)
    (run / "record.json").write_bytes(random.Random(0).randbytes(2000))
    (tmp_path / "hour/tf32/sweep.json").write_text("{}")
    return tmp_path / "hour"


@pytest.mark.parametrize("name", ["partial", "params.yaml", "runs", "hour"])
def test_a_folder_of_any_name_is_packed_whole(name, tmp_path):
    # The lie: "archive: partial.tar.gz", exit status 0, with nothing in it.
    folder = an_hour(tmp_path).rename(tmp_path / name)
    (folder / "tf32/params.yaml").write_text("matrix: {seed: [0]}\n")
    at_work = ("tf32/partial/ba9876543210", "tf32/search/partial/ba9876543210")
    for made in (*at_work, "partial/deep"):  # the last is no sweep's
        (folder / made).mkdir(parents=True)
        (folder / made / "a").touch()
    with tarfile.open(archive.pack(folder)) as tar:
        files = {member.name for member in tar if member.isreg()}
    kept = ("tf32/sweep.json", "tf32/params.yaml", "tf32/runs/0123456789ab/record.json")
    assert files == {f"{name}/{file}" for file in (*kept, "partial/deep/a")}


def test_an_archive_that_would_lack_a_record_is_not_written(tmp_path):
    # The lie: a whole archive, of a folder whose runs lie behind a link, and so not in it.
    folder = an_hour(tmp_path)
    runs = folder / "tf32/runs"
    runs.rename(tmp_path / "another disk")
    runs.symlink_to(tmp_path / "another disk")
    with pytest.raises(Stopped, match=r"it would lack .*0123456789ab/record\.json; allowed: plain"):
        archive.pack(folder)
    assert {path.name for path in tmp_path.iterdir()} == {"hour", "another disk"}


def test_an_archive_that_is_cut_or_damaged_is_refused(tmp_path):
    made = archive.pack(an_hour(tmp_path))
    whole, rest = made.read_bytes(), random.Random(0)
    record = (tmp_path / "hour/tf32/runs/0123456789ab/record.json").read_bytes()
    damaged = [bytearray(whole) for _ in range(100)]
    for content in damaged:
        content[rest.randrange(len(whole))] ^= 1 << rest.randrange(8)
    for content in (*(whole[:n] for n in range(0, len(whole), 37)), *damaged):
        made.write_bytes(content)
        try:
            (place,) = archive.unpack(made, tmp_path / "here")
        except ParamsError:
            assert sorted(p.name for p in tmp_path.iterdir()) == ["hour", "hour.tar.gz"]
        else:  # a bit that says nothing, such as of the time when it was packed
            assert len(content) == len(whole)
            assert (place / "runs/0123456789ab/record.json").read_bytes() == record
            shutil.rmtree(tmp_path / "here")


def test_a_time_that_no_clock_has_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("h/sweep.json")
        member.mtime = 10**30
        tar.addfile(member)
    with pytest.raises(ParamsError, match="cannot be unpacked"):
        archive.unpack(tmp_path / "a.tar.gz", tmp_path / "here")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps([instrument_checks.check("clock", (0.9, 1.1), 1.0)]), []),
        (json.dumps([instrument_checks.check("clock", (0.9, 1.1), 2.0)]), ["Failed: step clock"]),
        (json.dumps([instrument_checks.check("others", (0, 10), 80.0)]), ["nothing is proven"]),
        ('[{"instrument": 1}]', ["holds no checks of instruments"]),
        ("[" * 100_000, ["holds no checks of instruments"]),
    ],
)
def test_instruments_that_failed_there_are_said_here(text, said, tmp_path, monkeypatch):
    folder = an_hour(tmp_path)
    (folder / archive.INSTRUMENTS).write_text(text)
    monkeypatch.setattr(archive.commands, "report", lambda place: (place / "index.html", []))
    _, faults = archive.open_archive(archive.pack(folder), tmp_path / "here")
    assert len(faults) == len(said)
    assert all(words in fault for words, fault in zip(said, faults, strict=True))


def test_a_sweep_that_cannot_be_read_is_a_sentence(tmp_path):
    made = archive.pack(an_hour(tmp_path))
    pages, faults = archive.open_archive(made, tmp_path / "here")
    assert pages == []
    assert len(faults) == 1
    assert "tf32" in faults[0]
    with pytest.raises(ParamsError, match="exists already"):
        archive.open_archive(made, tmp_path / "here")


def test_an_absolute_name_stays_in_the_folder(tmp_path):
    members = ("/tmp/mptexp-absolute/sweep.json", FILE, 2), ("/tmp/mptexp-absolute/runs/a", FILE, 2)
    made = packed(tmp_path / "archive.tar.gz", *members)
    assert archive.unpack(made, tmp_path / "here") == [tmp_path / "here/tmp/mptexp-absolute"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be unpacked"),
        (b"no archive", "a.tar.gz: is no archive of `mptexp gpu-hour`"),
        (b"\x1f\x8b\x08\0", "cannot be unpacked"),
    ],
)
def test_what_is_no_archive_is_refused(content, said, tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(ParamsError, match=said):
        archive.unpack(tmp_path / "a.tar.gz", tmp_path / "here")
    assert [p.name for p in tmp_path.iterdir()] == ["a.tar.gz"]


def test_an_archive_that_is_not_there_and_a_folder_that_takes_none_are_named(tmp_path):
    # Once "[Errno 2] No such file or directory", and a temporary name nobody had given.
    with pytest.raises(ParamsError, match=r"a.tar.gz: there is no such file; allowed: what"):
        archive.unpack(tmp_path / "a.tar.gz", tmp_path / "here")
    made = packed(tmp_path / "b.tar.gz", ("s/sweep.json", FILE, 2), ("s/runs/a", FILE, 2))
    (tmp_path / "file").touch()
    with pytest.raises(ParamsError, match=r"--to .*file/here: cannot be made: "):
        archive.unpack(made, tmp_path / "file/here")


def test_a_folder_that_exists_is_left_alone(tmp_path):
    done = mptexp("open", "a.tar.gz", "--to", ".", cwd=tmp_path)
    assert done.returncode == 2
    assert "exists already; allowed: a new folder" in done.stderr


def test_every_step_names_a_study_of_the_package():
    assert {s.study for s in gpu_hour.STEPS} <= {p.stem for p in (PROJECT / "params").iterdir()}


def test_the_documentation_lists_the_same_steps():
    listed = (
        (PROJECT / "docs/gpu.md").read_text().partition("Each step by hand:")[2].split("```")[1]
    )
    commands = [line.partition("#")[0].split() for line in listed.splitlines()]
    steps = [["mptexp", s.command, f"params/{s.study}.yaml", *s.words] for s in gpu_hour.STEPS]
    assert [words for words in commands if words[1:2] and words[1] in ("run", "diagnose")] == steps


@pytest.fixture
def fast(monkeypatch):
    """Steps and instruments that are begun, and answer with a status, in no time."""
    begun = []

    def command(words, seconds, stdout=None):
        begun.append(words[:2])
        if stdout is not None:
            os.write(stdout, b"[]")
        else:
            run = Path(words[words.index("--out") + 1]) / "runs/0123456789ab"
            run.mkdir(parents=True, exist_ok=True)
            (run / "record.json").write_text("{}")
        return 0

    monkeypatch.setattr(gpu_hour, "_command", command)
    return begun


@pytest.mark.usefixtures("forked_runs")
@pytest.mark.kernel
def test_an_hour_leaves_an_archive_that_opens_elsewhere(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(gpu_hour, "STEPS", (Step("tf32", words=("--only", "batch_size=32")),))
    monkeypatch.setattr(gpu_hour, "CHECK_S", math.inf)
    folder, said = tmp_path / "hour", []
    words = (*SMALL, "input_mode=resident", "target_ci=null", "max_steps=20")
    made = gpu_hour.measure_hour(folder, 10, "tensorflow", words, said.append)
    assert said[0].startswith("device: ")
    assert said[2:] == ["step 1 of 1: run tf32 --only batch_size=32"]
    pages, _ = archive.open_archive(made, tmp_path / "elsewhere")
    assert pages == [tmp_path / "elsewhere/hour/tf32/index.html"]
    assert "tensorfloat32" in pages[0].read_text()


def test_without_time_nothing_is_begun(tmp_path, fast):
    said = []
    with pytest.raises(Stopped, match="nothing was measured: time was up before the first step"):
        gpu_hour.measure_hour(tmp_path / "hour", 0.5, "tensorflow", (), said.append)
    assert said[2:] == [
        f"time is up before step 1 of {len(gpu_hour.STEPS)}; the same command goes on"
    ]
    assert said[1].startswith("instruments: not checked, which takes")
    assert tarfile.is_tarfile(tmp_path / "hour.tar.gz")
    assert fast == []


def test_steps_that_were_cut_off_have_measured_nothing(tmp_path, monkeypatch):
    # The lie: status 0 and "archive: ...", which `open` refuses, where no run had ended.
    monkeypatch.setattr(gpu_hour, "_command", lambda *_: 130)
    with pytest.raises(Stopped, match="nothing was measured: no run came to its end in time"):
        gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow", (), lambda text: None)
    run = tmp_path / "hour/tf32/runs/0123456789ab"
    run.mkdir(parents=True)
    (run / "record.json").write_text("{}")  # of an earlier call
    made = gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow", (), lambda text: None)
    assert made == tmp_path / "hour.tar.gz"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a CPU (CPU)", "device: a CPU (CPU); no GPU is seen here, so the CPU is measured"),
        ("NVIDIA H100", "device: NVIDIA H100"),
    ],
)
def test_the_device_that_the_time_is_spent_on_is_said_first(
    tmp_path, fast, monkeypatch, name, said
):
    monkeypatch.setattr(gpu_hour, "local_device", lambda: name)
    lines = []
    gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow", (), lines.append)
    assert lines[0] == said


def test_instruments_that_would_take_all_the_time_wait_for_more_of_it(tmp_path, fast):
    gpu_hour.measure_hour(tmp_path / "hour", 2, "tensorflow", (), lambda text: None)
    assert ["doctor", "--check"] not in fast
    gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow", (), lambda text: None)
    gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow", (), lambda text: None)
    assert fast.count(["doctor", "--check"]) == 1
    assert (tmp_path / "hour" / gpu_hour.INSTRUMENTS).read_text() == "[]"


def test_instruments_that_were_interrupted_get_more_time_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_hour, "_command", lambda *_: 130)
    monkeypatch.setattr(gpu_hour, "LEAST_S", math.inf)  # as if the time was up behind it
    for minutes, tried in ((5, True), (5, False), (10, True)):
        said = []
        with suppress(Stopped):
            gpu_hour.measure_hour(tmp_path / "hour", minutes, "tensorflow", (), said.append)
        assert ("instruments: do they read what is known?" in said) is tried


@pytest.mark.parametrize("minutes", [0, -1, math.nan, math.inf, 1e9])
def test_minutes_that_are_no_time_are_refused(minutes, tmp_path):
    with pytest.raises(ParamsError, match=r"--minutes .*: allowed: more than 0, up to 1440"):
        gpu_hour.measure_hour(tmp_path / "hour", minutes, "tensorflow")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_else_is_not_packed(tmp_path, fast):
    home = tmp_path / "home"
    home.mkdir()
    (home / "id_rsa").write_text("private")
    with pytest.raises(ParamsError, match="holds something else; allowed: a new folder"):
        gpu_hour.measure_hour(home, 5, "tensorflow")
    (tmp_path / "file").write_text("text")
    for wrong in (tmp_path / "file", home / "id_rsa/hour"):
        with pytest.raises(ParamsError, match="cannot hold results"):
            gpu_hour.measure_hour(wrong, 5, "tensorflow")
    (tmp_path / "hour.tar.gz").write_text("of an earlier hour")
    with pytest.raises(ParamsError, match=r"hour.tar.gz: exists already; move it away"):
        gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "home", "hour.tar.gz"]
    assert (tmp_path / "hour.tar.gz").read_text() == "of an earlier hour"
    assert fast == []


def test_a_backend_that_is_not_installed_costs_no_minute(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "jax")
    for backend, named in (("torch", "torch: is not installed; allowed: jax"), ("x", "x: unknown")):
        with pytest.raises(ParamsError, match=named):
            gpu_hour.measure_hour(tmp_path / "hour", 5, backend)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ParamsError, match="no backend is installed"):
        gpu_hour.measure_hour(tmp_path / "hour", 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("there", "taken"),
    [({"tensorflow", "torch", "jax"}, "tensorflow"), ({"torch", "jax"}, "torch"), ({"jax"}, "jax")],
)
def test_without_tensorflow_it_takes_what_compiles_nothing(there, taken, monkeypatch):
    # The puzzle: of a quarter of an hour on an H200 by JAX no block came to its end.
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in there or None)
    assert gpu_hour._installed(None) == taken
    assert set(PREFERRED) == set(BACKENDS)


def test_it_goes_on_with_what_it_began_with(tmp_path, fast):
    gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow", ("repeats=2",))
    with pytest.raises(ParamsError, match=r"was begun with --set repeats=2, not repeats=3"):
        gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow", ("repeats=3",))
    with pytest.raises(ParamsError, match=r"was begun with --set repeats=2, not none"):
        gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow")
    with pytest.raises(ParamsError, match="repeats"):
        gpu_hour.measure_hour(tmp_path / "other", 5, "tensorflow", ("repeats=-1",))
    assert not (tmp_path / "other").exists()


def test_two_at_once_in_one_folder_are_refused(tmp_path, fast):
    with locked(SweepDir(tmp_path / "hour")), pytest.raises(ParamsError, match="is at work here"):
        gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow")


def test_where_no_step_can_be_made_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_hour, "_command", lambda *_: gpu_hour.REFUSED)
    with pytest.raises(Stopped, match="nothing was measured: no step can be made here"):
        gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow", (), lambda text: None)
    assert tarfile.is_tarfile(tmp_path / "hour.tar.gz")


def test_what_ctrl_c_leaves_is_in_the_archive(tmp_path, monkeypatch):
    def interrupted(words, *_):
        run = tmp_path / "hour/tf32/runs/0123456789ab"
        run.mkdir(parents=True)
        (run / "record.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_hour, "_command", interrupted)
    monkeypatch.setattr(gpu_hour, "CHECK_S", math.inf)
    with pytest.raises(Interrupted, match=r"kept, also in .*hour.tar.gz"):
        gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow", (), lambda text: None)
    with tarfile.open(tmp_path / "hour.tar.gz") as tar:
        assert "hour/tf32/runs/0123456789ab/record.json" in tar.getnames()


def test_a_disk_that_takes_no_archive_is_a_sentence(tmp_path, monkeypatch, fast):
    def full(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "pack", full)
    with pytest.raises(Stopped, match="No space left on device"):
        gpu_hour.measure_hour(tmp_path / "hour", 5, "tensorflow")


def test_time_to_pack_is_kept_free(tmp_path, monkeypatch, fast):
    def slow(folder):
        time.sleep(0.2)
        return folder

    monkeypatch.setattr(archive, "pack", slow)
    monkeypatch.setattr(gpu_hour, "LEAST_S", 60 - gpu_hour.ENDING_S - 0.5)
    said = []
    with pytest.raises(Stopped):
        gpu_hour.measure_hour(tmp_path / "hour", 1, "tensorflow", (), said.append)
    assert "time is up before step 1" in said[-1]


KILLED = """\
import sys
from mptexp.api import gpu_hour
sys.executable = sys.argv[1]
gpu_hour._command([], 60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere children outlive their parent")
def test_killed_without_a_word_it_leaves_nothing_at_work(tmp_path):
    """The command that it started ends with it: two would share the GPU when it is given again."""
    works = tmp_path / "works"
    # The program before the command is Python's own.
    works.write_text(f'#!/bin/sh\n[ "$1" = -I ] && exec {sys.executable} "$@"\nexec sleep 60')
    works.chmod(0o755)
    parent = subprocess.Popen([sys.executable, "-c", KILLED, works], env=child_environment())
    process, children, ends = psutil.Process(parent.pid), [], time.monotonic() + 60
    while not children and time.monotonic() < ends and parent.poll() is None:
        time.sleep(0.05)
        children = process.children()
    time.sleep(0.5)  # until the child has asked for the signal
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert children
    assert psutil.wait_procs(children, timeout=30)[1] == []


def test_an_archive_names_no_path_of_its_machine(tmp_path):
    # The leak: the params file of each sweep, and the command's own file, as they were given.
    made = an_hour(tmp_path)
    private = f"dataset=folder:{Path.home()}/clients/acme/faces"
    assert gpu_hour._published(private) == "dataset=folder:faces"
    assert gpu_hour._published("image_size=[64, 128]") == "image_size=[64, 128]"
    place = next(iter(made.rglob("sweep.json"))).parent
    text = f"defaults: {{dataset: 'folder:{Path.home()}/clients/acme/faces'}}\n"
    (place / "params.yaml").write_text(text)
    archive.unpack(archive.pack(made), tmp_path / "here")
    (there,) = (tmp_path / "here").rglob("params.yaml")
    assert there.read_text() == "defaults: {dataset: 'folder:faces'}\n"


def test_a_command_is_started_without_a_fork_of_a_process_that_has_used_jax():
    # In `make test`, by which files shared a process, it was a warning that the fork may hang.
    jax = pytest.importorskip("jax")
    jax.numpy.ones(3).sum().block_until_ready()
    assert gpu_hour._command(["--version"], 60) == 0
