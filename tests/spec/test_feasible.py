"""Plans that cannot work are refused with what is allowed, where the number of images is known."""

import gzip

import pytest
from support import mptexp

from mptexp.errors import ParamsError
from mptexp.spec import feasible, params
from mptexp.spec.run import Run


def fault(images=1000, **parameters):
    return feasible.fault(Run(gpu_model="cpu", **parameters), images)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"batch_size": 1001}, "batch_size 1001 is larger than the 1000 training images"),
        ({"batch_size": 1001, "phase": "inference"}, "is larger than the 1000 training images"),
        ({"batch_size": 501, "epochs": 10_000}, "more epochs do not help"),
        ({"batch_size": 500, "epochs": 4}, "leave 4 steps to time"),
        ({"batch_size": 500, "epochs": 1}, "leave 1 step to time"),
        ({"batch_size": 100, "steps_per_execution": 6}, "leave 0 executions of 6 steps"),
        ({"batch_size": 1000, "phase": "inference", "epochs": 5}, "leave 4 steps to time"),
    ],
)
def test_what_cannot_be_timed_is_a_sentence(parameters, words):
    assert words in fault(**parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"batch_size": 500, "epochs": 5},
        {"batch_size": 501, "epochs": 5, "input_mode": "keydana"},  # its last batch is smaller
        {"batch_size": 100, "steps_per_execution": 5, "epochs": 2},
        {"batch_size": 1000, "phase": "inference", "epochs": 6},
    ],
)
def test_what_can_be_timed_is_not_refused(parameters):
    assert fault(**parameters) == ""


def test_more_epochs_are_advised_only_where_they_help():
    assert "or more epochs" in fault(batch_size=500, epochs=4)
    assert "or more epochs" not in fault(batch_size=501, epochs=4)
    assert "or more epochs" in fault(batch_size=1000, phase="inference", epochs=2)


def counted(dataset, **parameters):
    return feasible.training_images(Run(gpu_model="cpu", dataset=dataset, **parameters))


def test_the_images_of_a_folder_are_counted(tmp_path):
    for folder, n in (("a", 30), ("b/deep", 11), (".hidden", 5)):
        (tmp_path / folder).mkdir(parents=True)
        for k in range(n):
            (tmp_path / folder / f"{k}.PNG").touch()
    (tmp_path / "a/notes.txt").touch()
    (tmp_path / "a/.5.png").touch()
    assert counted(f"folder:{tmp_path}") == 41 - 9  # of 41, 8.2 rounded up to validate with
    assert counted("folder:nowhere") is None
    assert counted("imagenette/320px") is None


def test_a_split_on_disk_is_taken_as_it_is(tmp_path):
    for folder, n in (("train/a", 6), ("train/b", 4), ("val/a", 3)):
        (tmp_path / folder).mkdir(parents=True)
        for k in range(n):
            (tmp_path / folder / f"{k}.jpg").touch()
    assert counted(f"folder:{tmp_path}") == 10


@pytest.mark.parametrize("packed", [True, False])
def test_an_idx_file_says_how_many_it_has(tmp_path, packed):
    data = bytes([0, 0, 8, 3]) + (70).to_bytes(4, "big") + bytes(8)
    name = "train-images-idx3-ubyte" + ".gz" * packed
    (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    assert counted(f"idx:{tmp_path}") == 70
    (tmp_path / name).write_bytes(b"\x1f\x8b broken")
    assert counted(f"idx:{tmp_path}") is None


@pytest.mark.parametrize(
    ("text", "sequences"),
    [("漢字" * 2000 + "abcd" * 250, 749), ("abcd" * 250 + "漢字" * 2000, 624), ("a" * 101, 4)],
    ids=["wide first", "wide last", "ASCII"],
)
def test_sequences_of_a_text_are_those_that_it_is_cut_into(tmp_path, monkeypatch, text, sequences):
    path = tmp_path / "mine.txt"
    path.write_text(text, "utf-8")
    asked = {"dataset": f"text:{path}", "model": "gpt", "sequence_length": 16}
    assert counted(**asked) == sequences
    assert counted(**asked, tokenizer="bpe") is None
    monkeypatch.setattr(feasible, "MOST_BYTES", path.stat().st_size - 1)
    assert counted(**asked) is None


@pytest.mark.parametrize("content", [b"", b"too short", b"\xff" * 10_000])
def test_of_a_text_that_cannot_be_used_who_reads_it_says_why(tmp_path, content):
    path = tmp_path / "mine.txt"
    path.write_bytes(content)
    assert counted(f"text:{path}", model="gpt", sequence_length=16) is None


@pytest.mark.parametrize("kind", ["folder", "idx", "text"])
def test_of_a_user_who_is_not_known_nothing_is_counted(kind):
    run = Run(dataset=f"{kind}:~nobody-of-this-name/x", model="my_models:build")
    assert feasible.training_images(run) is None


@pytest.mark.parametrize("kind", ["folder", "idx", "text"])
def test_of_a_path_that_the_system_does_not_take_nothing_is_counted(kind):
    # The traceback: OSError 36, and of a folder that may not be entered PermissionError.
    run = Run(dataset=f"{kind}:{'x' * 5000}", model="my_models:build")
    assert feasible.training_images(run) is None


def test_sizes_of_built_in_data():
    assert counted("synthetic", synthetic_length=77) == 77
    assert counted("digits") == feasible.DIGITS


def refused(folder, text, *overrides):
    path = folder / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ParamsError) as error:
        params.read(path, overrides, to_run=True)
    assert params.read(path, overrides)  # a directory made of it can still be merged
    return str(error.value).splitlines()


def test_the_line_of_the_batch_size_is_named_once(tmp_path):
    text = "defaults: {epochs: 3}\nmatrix:\n  policy: [float32, bfloat16]\n  batch_size:\n"
    text += "  - 32\n  - 2048\ninclude:\n- {batch_size: 1000}\n"
    lines = refused(tmp_path, text)
    assert lines == [
        f"{tmp_path}/mine.yaml:6: batch_size 2048 is larger than the 1437 training images; "
        "allowed: at most 718 (dataset digits)",
        lines[1],
    ]
    assert lines[1].startswith(f"{tmp_path}/mine.yaml:8: batch_size 1000 and epochs 3 leave 0 ")
    (line,) = refused(tmp_path, "matrix: {policy: [float32]}\n", "batch_size=4000")
    assert line.startswith("--set batch_size=4000: ")
    (line,) = refused(tmp_path, "defaults: {batch_size: 900}\nmatrix: {policy: [float32]}\n")
    assert line.startswith(f"{tmp_path}/mine.yaml:1: ")


def test_a_plan_that_cannot_work_ends_with_status_2_and_writes_nothing(tmp_path):
    (tmp_path / "mine.yaml").write_text("matrix: {batch_size: [64, 1437]}\n")
    for command in ("plan", "run"):
        done = mptexp(command, "mine.yaml", cwd=tmp_path)
        assert done.returncode == 2
        assert "mine.yaml:1: batch_size 1437 and epochs 20 leave 0 steps to time" in done.stderr
        assert "more epochs do not help" in done.stderr
        assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]
